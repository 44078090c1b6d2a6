"""What a pass will cost, said before anything runs, and refused if it cannot fit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import psutil
from dask.system import CPU_COUNT
from dask.utils import parse_bytes

from dask_sketch import config
from dask_sketch.errors import InputError, PlanError
from dask_sketch.features import FeatureMap
from dask_sketch.graph.run import active_client
from dask_sketch.graph.tree import require_fan_in
from dask_sketch.sketching.partial import BLOCK_BYTES
from dask_sketch.sources import Samples, open_samples
from dask_sketch.sources.chunking import describe_bytes


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
        Bytes of the result.
    n_threads
        Threads that there are.
    warnings
        What to think about first.
    """

    source: str
    passes: int
    n_samples: int | None
    n_chunks: int
    n_merges: int
    n_tasks: int
    bytes_read: int | None
    largest_chunk: int | None
    memory_per_thread: int | None
    memory_available: int
    sketch_bytes: int
    n_threads: int
    warnings: tuple[str, ...]

    def require_fit(self) -> None:
        """Refuse what cannot fit.

        Raises
        ------
        PlanError
            With both numbers, and what to do.
        """
        if self.memory_per_thread is None or self.memory_per_thread <= self.memory_available:
            return
        raise PlanError(
            f"sketching {self.source} needs {describe_bytes(self.memory_per_thread)} of memory "
            f"per thread (largest chunk {describe_bytes(self.largest_chunk)}), but only "
            f"{describe_bytes(self.memory_available)} is available to each of "
            f"{self.n_threads} threads. Use fewer threads per worker or more memory, a smaller "
            "chunk_size if chunks were joined, or store the data in smaller chunks."
        )

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)

    def _fields(self) -> dict[str, str]:
        samples = "unknown before the pass" if self.n_samples is None else f"{self.n_samples:,}"
        return {
            "source": self.source,
            "samples": samples,
            "passes over the data": str(self.passes),
            "tasks": f"{self.n_tasks:,} ({self.n_chunks:,} chunks, {self.n_merges:,} merges)",
            "bytes read": describe_bytes(self.bytes_read),
            "largest chunk": describe_bytes(self.largest_chunk),
            "memory per thread": (
                f"{describe_bytes(self.memory_per_thread)} of "
                f"{describe_bytes(self.memory_available)}, {self.n_threads} threads"
            ),
            "sketch": describe_bytes(self.sketch_bytes),
        } | {f"warning {i + 1}": text for i, text in enumerate(self.warnings)}

    def __str__(self) -> str:
        width = max(map(len, self._fields()))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self._fields().items())

    def _repr_html_(self) -> str:
        from dask_sketch.display import table

        return table("Plan", self._fields())


def plan(
    x: Any,
    feature_map: FeatureMap,
    weights: Any = None,
    *,
    split_every: int | None = None,
    memory_per_thread: str | int | None = None,
    **options: Any,
) -> Plan:
    """Say what sketching ``x`` will cost, without reading it.

    Parameters
    ----------
    x, feature_map, weights, split_every, options
        As for :func:`sketch`.
    memory_per_thread
        Memory that each thread has; by default that of the smallest worker of the active client,
        or what is free on this machine, shared among the threads.

    Returns
    -------
    plan
        Prints as a table.

    Raises
    ------
    PlanError
        If the largest chunk cannot fit; the message has both numbers.
    InputError
        As for :func:`open_samples`.

    Examples
    --------
    >>> import numpy as np
    >>> plan(np.zeros((1000, 2)), FeatureMap(2, 100, scale=1.0)).passes
    1
    """
    if not isinstance(feature_map, FeatureMap):
        raise InputError(
            f"feature_map of type {type(feature_map).__name__}: give a FeatureMap, from design()."
        )
    samples = open_samples(x, weights=weights, **options)
    samples.require_features(feature_map.n_features, "the feature map")
    fan_in = config.get("split-every") if split_every is None else split_every
    require_fan_in(fan_in)
    available = None
    if memory_per_thread is not None:
        try:
            available = int(parse_bytes(memory_per_thread))
        except (AttributeError, TypeError, ValueError):
            available = 0
        if available < 1:
            raise InputError(
                f"memory_per_thread={memory_per_thread!r}: give bytes, or text such as '2GiB'."
            )
    made = make_plan(samples, feature_map, fan_in, client=active_client(), available=available)
    made.require_fit()
    return made


def make_plan(
    samples: Samples,
    feature_map: FeatureMap,
    split_every: int,
    *,
    client: Any = None,
    available: int | None = None,
) -> Plan:
    """The plan, fitting or not; see :func:`plan`."""
    memory, n_threads = _resources(client)
    if available is not None:
        memory = available
    m, d = feature_map.n_frequencies, feature_map.n_features
    sketch_bytes = 16 * m + 8 * 5 * d
    drawn = 12 * d * m  # frequencies in float64, and packed in float32; once for a process
    chunk_memory = None
    if samples.largest_chunk is not None:
        scratch = 2 * BLOCK_BYTES + 2 * sketch_bytes
        merging = (split_every + 1) * sketch_bytes
        chunk_memory = max(samples.copies * samples.largest_chunk + scratch, merging) + drawn
    n_merges = _merges(samples.n_chunks, split_every)
    warnings = []
    limit = config.get("task-limit")
    if samples.n_chunks + n_merges > limit:
        warnings.append(
            f"{samples.n_chunks + n_merges:,} tasks are over sketch.task-limit ({limit:,}): the "
            "scheduler will be the bottleneck. Raise chunk_size, or store larger chunks."
        )
    if samples.largest_chunk is None:
        warnings.append("chunk sizes are unknown: memory cannot be projected.")
    return Plan(
        source=samples.label,
        passes=1,
        n_samples=samples.n_samples,
        n_chunks=samples.n_chunks,
        n_merges=n_merges,
        n_tasks=samples.n_chunks + n_merges,
        bytes_read=samples.bytes_read,
        largest_chunk=samples.largest_chunk,
        memory_per_thread=chunk_memory,
        memory_available=memory,
        sketch_bytes=sketch_bytes,
        n_threads=n_threads,
        warnings=tuple(warnings),
    )


def _merges(n_chunks: int, split_every: int) -> int:
    """Merge tasks of a tree over ``n_chunks`` leaves; there is one even over a single leaf."""
    total, width = 0, max(n_chunks, 1)
    while width > 1 or total == 0:
        width = math.ceil(width / split_every)
        total += width
    return total


def _resources(client: Any) -> tuple[int, int]:
    """Bytes for each thread of the smallest worker, and threads in all."""
    share = float(config.get("memory-share"))
    if client is not None:
        workers = list(client.scheduler_info(n_workers=-1)["workers"].values())
        limits = [w["memory_limit"] / w["nthreads"] for w in workers if w.get("memory_limit")]
        threads = sum(w["nthreads"] for w in workers)
        if limits:
            return int(share * min(limits)), threads
        if workers:
            return int(share * psutil.virtual_memory().total), threads
    return int(share * psutil.virtual_memory().available / CPU_COUNT), CPU_COUNT
