"""The cost of a pass, as it is told, and refused if it cannot fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dask_sketch.errors import InputError, PlanError
from dask_sketch.features.arguments import whole_number
from dask_sketch.graph.estimate import (
    SCHEDULER_SECONDS,
    Calibration,
    Estimate,
    estimate_pass,
)
from dask_sketch.graph.group_memory import WAY_OUT
from dask_sketch.sources.chunking import describe_bytes, n_bytes


@dataclass(frozen=True)
class Plan:
    """The cost of one pass.

    Attributes
    ----------
    source
        Name of the input.
    passes
        Times that the data is read: 1.
    n_samples
        Number of rows, ``None`` if only the pass can tell.
    n_chunks, n_merges, n_tasks
        Tasks that read and sketch, tasks that merge, and their sum.
    n_batches
        Graphs that they run in, one after the other: more than one above ``sketch.task-limit``.
    n_frequencies
        Of the feature map.
    bytes_read
        Bytes read, ``None`` if unknown.
    largest_chunk
        Bytes of the largest chunk in memory, ``None`` if unknown.
    memory_per_thread
        Projected peak of one thread in bytes, beyond the idle process; ``None`` if unknown.
    memory_available
        Bytes that a thread may use: memory of a worker over its threads, times the setting
        ``sketch.memory-share``.
    sketch_bytes
        Bytes of the result, ``None`` where only the pass can tell how many groups there are.
    n_threads
        Threads that there are.
    warnings
        What to think about first.
    calibration
        Measured rates, if they were asked for.
    groups
        Name of the labels of groups, if there is a sketch for each.
    n_groups
        How many groups there are, at most; ``None`` where only the pass can tell.
    client_memory, client_available
        Projected bytes that the client needs for the result, ``None`` if unknown, and what it has.
    """

    source: str
    passes: int
    n_samples: int | None
    n_chunks: int
    n_merges: int
    n_tasks: int
    n_batches: int
    n_frequencies: int
    bytes_read: int | None
    largest_chunk: int | None
    memory_per_thread: int | None
    memory_available: int
    sketch_bytes: int | None
    n_threads: int
    warnings: tuple[str, ...]
    calibration: Calibration | None = None
    groups: str | None = None
    n_groups: int | None = None
    client_memory: int | None = None
    client_available: int | None = None

    def estimate(
        self, n_cores: int | None = None, *, bandwidth: str | float | None = None
    ) -> Estimate:
        """Time of the pass, and what holds it up.

        Parameters
        ----------
        n_cores
            Threads that work, each as fast as those that were measured; by default as many as
            there are. A cluster that was not measured is taken to need a millisecond for each task.
        bandwidth
            Bytes per second that the store gives to all readers together, as a number or as text
            such as ``"1GB"``; by default the readers are not in each other's way.

        Returns
        -------
        estimate
            Of batches that follow each other without a pause. Starting and decoding are not in it.
            As good as a second of measuring: within a factor of two on a machine that does nothing
            else, and no better than its load where others work.

        Raises
        ------
        InputError
            If the plan was made without ``calibrate=True``, or a number is not positive.
        """
        rates = self.calibration
        if rates is None:
            raise InputError("this plan has measured nothing: make it with plan(calibrate=True).")
        cores = self.n_threads if n_cores is None else n_cores
        whole_number("n_cores", cores, 1)
        n = self.n_samples
        elsewhere = n_cores is not None and not rates.on_cluster and n_cores > self.n_threads
        return estimate_pass(
            rates,
            n_samples=round(rates.rows_per_chunk * self.n_chunks) if n is None else n,
            n_frequencies=self.n_frequencies,
            n_chunks=self.n_chunks,
            n_tasks=self.n_tasks,
            n_cores=cores,
            bytes_read=self.bytes_read,
            bandwidth=None if bandwidth is None else n_bytes("bandwidth", bandwidth),
            task_seconds=SCHEDULER_SECONDS if elsewhere else None,
        )

    def require_fit(self) -> None:
        """Refuse what cannot fit.

        Raises
        ------
        PlanError
            With both numbers, and what to do.
        """
        if self.client_memory is not None and self.client_memory > (self.client_available or 0):
            raise PlanError(
                f"{self._the_groups()} take {describe_bytes(self.sketch_bytes)}, and the client "
                f"needs {describe_bytes(self.client_memory)} to put them together, but it has "
                f"{describe_bytes(self.client_available)}. {WAY_OUT}"
            )
        if self.memory_per_thread is None or self.memory_per_thread <= self.memory_available:
            return
        if self.n_groups is not None and self.sketch_bytes is not None:
            raise PlanError(
                f"sketching {self.source} needs {describe_bytes(self.memory_per_thread)} of memory "
                f"per thread (largest chunk {describe_bytes(self.largest_chunk)}; "
                f"{self._the_groups()} take {describe_bytes(self.sketch_bytes)}, several times "
                f"over where they are merged), but only {describe_bytes(self.memory_available)} is "
                f"available to each of {self.n_threads} threads. {WAY_OUT}"
            )
        raise PlanError(
            f"sketching {self.source} needs {describe_bytes(self.memory_per_thread)} of memory "
            f"per thread (largest chunk {describe_bytes(self.largest_chunk)}), but only "
            f"{describe_bytes(self.memory_available)} is available to each of "
            f"{self.n_threads} threads. Use fewer threads per worker or more memory, a smaller "
            "chunk_size if chunks were joined, or store the data in smaller chunks."
        )

    def _the_groups(self) -> str:
        return f"the sketches of {self.n_groups:,} groups of {self.groups}"

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON; with the estimate, if there is a calibration."""
        made = None if self.calibration is None else asdict(self.estimate())
        return asdict(self) | {"estimate": made}

    def _fields(self) -> dict[str, str]:
        samples = "unknown before the pass" if self.n_samples is None else f"{self.n_samples:,}"
        fields = {
            "source": self.source,
            "samples": samples,
            "passes over the data": str(self.passes),
            "tasks": f"{self.n_tasks:,} ({self.n_chunks:,} chunks, {self.n_merges:,} merges"
            + (f"; {self.n_batches:,} batches)" if self.n_batches > 1 else ")"),
            "bytes read": describe_bytes(self.bytes_read),
            "largest chunk": describe_bytes(self.largest_chunk),
            "memory per thread": (
                f"{describe_bytes(self.memory_per_thread)} of "
                f"{describe_bytes(self.memory_available)}, {self.n_threads} threads"
            ),
        }
        if self.groups is not None:
            many = "unknown before the pass" if self.n_groups is None else f"{self.n_groups:,}"
            fields["groups"] = f"{many}, of {self.groups}"
        fields["sketch"] = describe_bytes(self.sketch_bytes)
        if self.calibration is not None:
            fields |= {"time": str(self.estimate()), "measured": str(self.calibration)}
        return fields | {f"warning {i + 1}": text for i, text in enumerate(self.warnings)}

    def __str__(self) -> str:
        width = max(map(len, self._fields()))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self._fields().items())

    def _repr_html_(self) -> str:
        from dask_sketch.display.passes import plan_card

        made = None if self.calibration is None else self.estimate()
        n_samples = "unknown" if self.n_samples is None else f"{self.n_samples:,}"
        return plan_card(
            {name: text for name, text in self._fields().items() if text not in self.warnings},
            f"1 pass, {n_samples} samples, {self.n_tasks:,} tasks",
            self.warnings,
            (self.memory_per_thread, self.memory_available),
            {} if made is None else made.parts,
            "" if made is None else f"time of each part: bound by {made.held_up_by}",
        )
