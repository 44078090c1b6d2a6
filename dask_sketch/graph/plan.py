"""Project the cost of a pass before it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from dask.system import CPU_COUNT

from dask_sketch import config
from dask_sketch.display.html import card
from dask_sketch.display.text import counted, describe_bytes
from dask_sketch.errors import InputError, PlanError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.kernels.row_loop import N_EXPONENTS
from dask_sketch.graph.calibration import (
    SCHEDULER_SECONDS,
    Calibration,
    Estimate,
    estimate_pass,
    measure,
)
from dask_sketch.graph.compute import active_client, cluster_errors
from dask_sketch.graph.memory import (
    REMEDY,
    GroupMemory,
    counter_bytes,
    default_fan_in,
    free_memory,
    group_memory,
    moment_fan_in,
)
from dask_sketch.graph.telemetry import log_calibration
from dask_sketch.graph.tree import batch_chunks, count_merges
from dask_sketch.sketching.accumulator import BLOCK_BYTES, block_rows, buffered_rows
from dask_sketch.sketching.arguments import require_feature_map, require_nan_policy
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.partial import GATHERED
from dask_sketch.sketching.row_sample import sample_bytes, sample_size, wanted_rows
from dask_sketch.sources.named_columns import with_named_columns
from dask_sketch.sources.open import open_samples, require_options
from dask_sketch.sources.samples import SMALL_TASK, Samples, n_bytes
from dask_sketch.validation.arrays import require_integer

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class Plan:
    """Cost of one pass.

    Attributes
    ----------
    source
        Name of the input.
    passes
        Number of times that the data is read: 1.
    n_samples
        Number of rows; ``None`` if it is unknown before the pass.
    n_chunks, n_merges, n_tasks
        Number of tasks that read and sketch, of tasks that merge, and their sum.
    n_batches
        Number of graphs, computed one after the other; above 1 for more tasks than
        ``sketch.task-limit``.
    n_frequencies
        Number of frequencies of the feature map; 0 for second moments.
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
        Bytes of the result; ``None`` if the number of groups is unknown before the pass.
    n_threads
        Number of threads available.
    warnings
        Reasons to change the input or the settings before the pass.
    calibration
        Measured rates, if they were requested.
    groups
        Name of the labels of groups, if there is a sketch for each.
    n_groups
        Maximum number of groups; ``None`` if it is unknown before the pass.
    client_memory, client_available
        Projected bytes that the client needs for the result, ``None`` if unknown; and bytes that
        the client has.
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
        """Estimate the time of the pass, and its bottleneck.

        Parameters
        ----------
        n_cores
            Number of threads, each as fast as the measured threads; all available threads by
            default. A cluster that was not measured is assumed to need a millisecond for each task.
        bandwidth
            Bytes per second that the store gives to all readers together, as a number or as text
            such as ``"1GB"``; by default readers do not slow each other down.

        Returns
        -------
        estimate
            Time of batches that follow each other without a pause, excluding start and decoding.
            It is extrapolated from one second of measurement, with an error of up to a factor of
            two on an idle machine, and more on a busy one.

        Raises
        ------
        InputError
            If the plan was made without ``calibrate=True``, or a number is not positive.
        """
        rates = self.calibration
        if rates is None:
            raise InputError(
                "calibrate=False: this plan has no measured rates. Make it with "
                "plan(calibrate=True)."
            )
        cores = self.n_threads if n_cores is None else n_cores
        require_integer("n_cores", cores, 1)
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
        """Raise if the pass cannot fit in memory.

        Raises
        ------
        PlanError
            With the bytes needed, the bytes available, and the remedy.
        """
        if self.client_memory is not None and self.client_memory > (self.client_available or 0):
            raise PlanError(
                f"{self._group_words()} take {describe_bytes(self.sketch_bytes)}, and the client "
                f"needs {describe_bytes(self.client_memory)} to combine them, but it has "
                f"{describe_bytes(self.client_available)}. {REMEDY}"
            )
        if self.memory_per_thread is None or self.memory_per_thread <= self.memory_available:
            return
        if self.n_groups is not None and self.sketch_bytes is not None:
            raise PlanError(
                f"sketching {self.source} needs {describe_bytes(self.memory_per_thread)} of memory "
                f"per thread (largest chunk {describe_bytes(self.largest_chunk)}; "
                f"{self._group_words()} take {describe_bytes(self.sketch_bytes)}, several times "
                f"over where they are merged), but only {describe_bytes(self.memory_available)} is "
                f"available to each of {self.n_threads} threads. {REMEDY}"
            )
        raise PlanError(
            f"sketching {self.source} needs {describe_bytes(self.memory_per_thread)} of memory "
            f"per thread (largest chunk {describe_bytes(self.largest_chunk)}), but only "
            f"{describe_bytes(self.memory_available)} is available to each of "
            f"{self.n_threads} threads. {SMALLER_CHUNKS}"
        )

    def _group_words(self) -> str:
        return f"the sketches of {self.n_groups:,} groups of {self.groups}"

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON, and the estimate if there is a calibration."""
        estimate = None if self.calibration is None else asdict(self.estimate())
        return asdict(self) | {"estimate": estimate}

    def _fields(self) -> dict[str, str]:
        samples = "unknown before the pass" if self.n_samples is None else f"{self.n_samples:,}"
        fields = {
            "source": self.source,
            "samples": samples,
            "passes over the data": str(self.passes),
            "tasks": f"{self.n_tasks:,} ({counted(self.n_chunks, 'chunk')}, "
            + counted(self.n_merges, "merge")
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
        n_samples = "unknown" if self.n_samples is None else f"{self.n_samples:,}"
        fields = {name: text for name, text in self._fields().items() if text not in self.warnings}
        summary = f"1 pass, {n_samples} samples, {self.n_tasks:,} tasks"
        return card("Plan", fields, summary=summary, notes=self.warnings)


SMALLER_CHUNKS = (
    "Use fewer threads per worker or more memory, a smaller chunk_size if chunks were joined, or "
    "store the data in smaller chunks."
)
MANY_PIECES = 10_000  # number of stored chunks from which there is a warning if they are small
SMALL_PIECE = 2**14  # bytes of a small stored chunk: decoding it takes longer than sketching


def plan(
    x: Any,
    feature_map: FeatureMap | MomentGrid,
    weights: Any = None,
    *,
    groups: Any = None,
    split_every: int | None = None,
    nan_policy: str = "raise",
    sample: int | bool | None = None,
    memory_per_thread: str | int | None = None,
    calibrate: bool = False,
    **options: Any,
) -> Plan:
    """Estimate the cost of sketching ``x``, without reading it.

    Parameters
    ----------
    x, feature_map, weights, groups, split_every, nan_policy, sample, options
        Arguments of :func:`sketch`.
    memory_per_thread
        Bytes of memory for each thread, as a number or as text such as ``"2GB"``; by default the
        memory of the smallest worker of the active client, or the free memory of this machine,
        divided by the number of threads.
    calibrate
        Whether to measure for a few seconds, on the active client or on the threads of this
        process, for an estimate of the time: a few chunks are read, and random rows are sketched.

    Returns
    -------
    plan
        Plan, which prints as a table.

    Raises
    ------
    PlanError
        If the largest chunk cannot fit; the message has the bytes needed and available.
    InputError
        If the input cannot be opened, or has another number of features than the map.
    ChunkError
        If a chunk that is read to calibrate cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> plan(np.zeros((1000, 2)), FeatureMap(2, 100, scale=1.0)).passes
    1
    >>> made = plan(np.zeros((1000, 2)), FeatureMap(2, 100, scale=1.0), calibrate=True)
    >>> made.estimate(n_cores=1).seconds > 0
    True
    """
    require_nan_policy(nan_policy)
    if isinstance(feature_map, MomentGrid):
        unused = {"groups": groups, "sample": sample or None, "calibrate": calibrate or None}
        for name in (name for name, value in unused.items() if value is not None):
            raise InputError(
                f"{name}={unused[name]!r}: the plan of second moments does not take it; leave it "
                "out.",
                parameter=name,
            )
    samples, fan_in = open_input(
        plan, x, feature_map, split_every, weights=weights, groups=groups, options=options
    )
    available = None
    if memory_per_thread is not None:
        available = n_bytes("memory_per_thread", memory_per_thread)
    client = active_client() if samples.lazy else None
    size = None
    if not isinstance(feature_map, MomentGrid):
        size = sample_size(
            sample, feature_map.n_features, grouped=samples.groups is not None,
            wanted=wanted_rows(feature_map),
        )  # fmt: skip
    estimated = make_plan(
        samples, feature_map, fan_in, client=client, available=available, sample=size,
        nan_policy=nan_policy,
    )  # fmt: skip
    estimated.require_fit()
    if calibrate and not isinstance(feature_map, MomentGrid):
        with cluster_errors(client):
            rates = measure(samples, feature_map, estimated.n_threads, fan_in, client)
        log_calibration(client, feature_map, rates.pairs_per_second)
        estimated = replace(estimated, calibration=rates)
    return estimated


def open_input(
    function: Callable[..., Any],
    x: Any,
    feature_map: FeatureMap | MomentGrid,
    split_every: int | None,
    *,
    options: dict[str, Any],
    **beside: Any,
) -> tuple[Samples, int]:
    """Validate the arguments that :func:`sketch` and :func:`plan` share, and open the input.

    Parameters
    ----------
    function
        Public function that was called, for messages.
    x, feature_map, split_every
        Arguments of :func:`sketch`.
    options
        Further keyword arguments of the function, which must be arguments of :func:`open_samples`.
    beside
        Weights and groups.

    Returns
    -------
    samples, split_every
        Opened samples, and the fan-in of the merges.

    Raises
    ------
    InputError
        If the input cannot be opened, or has another number of features than the map.
    TypeError
        If an option is not known.
    """
    if isinstance(feature_map, MomentGrid):
        require_options(function, options)
        options = with_named_columns(x, feature_map.feature_names, options)
        samples = open_samples(x, **beside, **options)
        samples = samples.named_like(feature_map.feature_names, "the grid")
        samples.require_features(feature_map.n_features, "the grid", feature_map.feature_names)
        fan_in = moment_fan_in(feature_map.nbytes) if split_every is None else split_every
        return samples, require_integer("split_every", fan_in, 2)
    require_feature_map(feature_map)
    require_options(function, options)
    options.setdefault("categories", feature_map.categories)
    options = with_named_columns(x, feature_map.feature_names, options)
    samples = open_samples(x, **beside, **options)
    samples = samples.named_like(feature_map.feature_names, "the feature map")
    samples.require_features(feature_map.n_features, "the feature map", feature_map.feature_names)
    samples.require_categories(feature_map.categories, "the feature map")
    fan_in = default_fan_in(samples) if split_every is None else split_every
    return samples, require_integer("split_every", fan_in, 2)


def require_fit(
    samples: Samples,
    split_every: int,
    client: Client | None,
    *,
    feature_map: FeatureMap,
    sample: int | None = None,
    nan_policy: str = "raise",
) -> None:
    """Raise if a pass cannot fit in memory; for :class:`dask_sketch.graph.reduction.Reduction`.

    Raises
    ------
    PlanError
        With the bytes needed, the bytes available, and the remedy.
    """
    estimated = make_plan(
        samples, feature_map, split_every, client=client, sample=sample, nan_policy=nan_policy
    )
    estimated.require_fit()


def chunk_memory(samples: Samples, split_every: int, part_bytes: int) -> int | None:
    """Projected peak of one thread in bytes; None if the sizes of chunks are unknown.

    Parameters
    ----------
    samples
        Samples of the pass.
    split_every
        Maximum number of partial results that one task combines.
    part_bytes
        Number of bytes of a partial result.
    """
    if samples.largest_chunk is None:
        return None
    reading = samples.copies * samples.largest_chunk + 2 * BLOCK_BYTES + 2 * part_bytes
    return max(reading, (split_every + 1) * part_bytes)


def require_chunks_fit(
    samples: Samples, split_every: int, client: Client | None, *, part_bytes: int
) -> None:
    """Raise if the largest chunk cannot fit in memory, with partial results of ``part_bytes``.

    Parameters
    ----------
    samples, split_every, part_bytes
        Arguments of :func:`chunk_memory`.
    client
        Client of the cluster, or None.

    Raises
    ------
    PlanError
        With the bytes needed, the bytes available, and the remedy.
    """
    needed = chunk_memory(samples, split_every, part_bytes)
    if needed is None:
        return
    available, n_threads = resources(client)
    if needed > available:
        raise PlanError(
            f"a pass over {samples.label} needs {describe_bytes(needed)} of memory per thread "
            f"(largest chunk {describe_bytes(samples.largest_chunk)}), but only "
            f"{describe_bytes(available)} is available to each of {n_threads} threads. "
            f"{SMALLER_CHUNKS}"
        )


def make_plan(
    samples: Samples,
    feature_map: FeatureMap | MomentGrid,
    split_every: int,
    *,
    client: Client | None = None,
    available: int | None = None,
    sample: int | None = None,
    nan_policy: str = "raise",
) -> Plan:
    """Plan a pass, even if it cannot fit in memory; see :func:`plan`."""
    memory, n_threads = resources(client)
    weighted = samples.is_weighted
    with_missing = nan_policy == "available"
    grouped, rows = None, 0
    if isinstance(feature_map, MomentGrid):
        one_sketch = feature_map.nbytes
        per_thread = chunk_memory(samples, split_every, one_sketch)
    else:
        grouped = group_memory(samples, feature_map, split_every, n_threads, with_missing)
        one_sketch = _sketch_bytes(feature_map)
        if with_missing:
            one_sketch += counter_bytes(feature_map, weighted=True)
        rows = _sample_bytes(samples, feature_map, sample)
        # if the number of samples is known, all partial samples together have twice as many rows
        held = 3 * rows if samples.n_samples and not weighted else (split_every + 1) * rows
        per_thread = _thread_memory(samples, feature_map, split_every, one_sketch, grouped, held)
    n_chunks = samples.n_chunks
    size = batch_chunks(n_chunks, split_every) or max(n_chunks, 1)
    whole, rest = divmod(n_chunks, size)
    n_merges = whole * count_merges(size, split_every)
    if rest or not whole:
        n_merges += count_merges(rest, split_every)
    n_batches = max(-(-n_chunks // size), 1)
    return Plan(
        source=samples.label,
        passes=1,
        n_samples=samples.n_samples,
        n_chunks=n_chunks,
        n_merges=n_merges,
        n_tasks=n_chunks + n_merges,
        n_batches=n_batches,
        n_frequencies=0 if isinstance(feature_map, MomentGrid) else feature_map.n_frequencies,
        bytes_read=samples.bytes_read,
        largest_chunk=samples.largest_chunk,
        memory_per_thread=per_thread,
        memory_available=memory if available is None else available,
        sketch_bytes=one_sketch + rows if grouped is None else grouped.result,
        n_threads=n_threads,
        warnings=tuple(_warnings(samples, n_batches, grouped)),
        groups=None if grouped is None else grouped.dim,
        n_groups=None if grouped is None else grouped.n_groups,
        client_memory=None if grouped is None else grouped.client,
        client_available=None if grouped is None else free_memory(),
    )


def _sketch_bytes(feature_map: FeatureMap) -> int:
    # sums in two words each, and two bounds
    return 32 * feature_map.n_frequencies + 8 * 6 * feature_map.n_features


def _sample_bytes(samples: Samples, feature_map: FeatureMap, sample: int | None) -> int:
    """Bytes of the random rows of a sketch, each with three numbers."""
    if sample is None:
        return 0
    itemsize = 4 if samples.dtype == np.float32 else 8
    n_rows = sample if samples.n_samples is None else min(sample, samples.n_samples)
    return sample_bytes(n_rows, feature_map.n_features, itemsize)


def _thread_memory(
    samples: Samples,
    feature_map: FeatureMap,
    split_every: int,
    one_sketch: int,
    grouped: GroupMemory | None,
    sampled: int,
) -> int | None:
    """Projected peak of one thread in bytes; ``None`` where chunk sizes are unknown."""
    if samples.largest_chunk is None:
        return None
    m, d = feature_map.n_frequencies, feature_map.n_features
    frequencies = 12 * d * m  # bytes in float64, and packed in float32; once for a process
    scratch = 2 * BLOCK_BYTES + 2 * one_sketch
    if samples.is_weighted:
        # longer blocks; sums, and rows that wait, for each group of weights
        ratio = buffered_rows(d, feature_map.dtype) / block_rows(d, feature_map.dtype)
        buffered = int(ratio * BLOCK_BYTES)
        scratch += 2 * GATHERED * BLOCK_BYTES + N_EXPONENTS * (one_sketch // 2 + buffered)
    reading = samples.copies * samples.largest_chunk + scratch
    if grouped is None:
        merging = (split_every + 1) * one_sketch + sampled
    else:
        reading, merging = reading + grouped.sketching, grouped.merging
    return max(reading, merging) + frequencies


def _warnings(samples: Samples, n_batches: int, grouped: GroupMemory | None) -> list[str]:
    """Reasons to change the input or the settings before a pass."""
    texts = []
    n_chunks, n_bytes_read = samples.n_chunks, samples.bytes_read or 0
    if n_batches > 1 and n_bytes_read < n_chunks * SMALL_TASK:
        texts.append(
            f"{n_chunks:,} chunks are of {describe_bytes(n_bytes_read // n_chunks)} on average: "
            "the scheduler will be the bottleneck. Make larger ones: raise chunk_size for a store, "
            "rechunk an array where it is read."
        )
    pieces = samples.stored_chunks
    if pieces and pieces >= MANY_PIECES and n_bytes_read < pieces * SMALL_PIECE:
        texts.append(
            f"{pieces:,} stored chunks are of {describe_bytes(n_bytes_read // pieces)}"
            " on average, and Zarr needs a fifth of a millisecond for each. Store larger chunks; "
            "or, with Zarr 3.3 or later, set ZARR_CODEC_PIPELINE__PATH="
            "zarr.core.codec_pipeline.FusedCodecPipeline on the workers, which takes under half."
        )
    if samples.largest_chunk is None:
        texts.append("chunk sizes are unknown: memory cannot be projected.")
    if grouped is not None and grouped.result is None:
        texts.append(
            f"each group of {grouped.dim} will take {describe_bytes(grouped.each)}, and only the "
            "pass can tell how many there are: memory is projected without them."
        )
    return texts


def resources(client: Client | None) -> tuple[int, int]:
    """Bytes for each thread of the smallest worker, and number of all threads."""
    fraction = float(config.get("memory-share"))
    if client is not None:
        workers = list(client.scheduler_info(n_workers=-1)["workers"].values())
        limits = [w["memory_limit"] / w["nthreads"] for w in workers if w.get("memory_limit")]
        threads = sum(w["nthreads"] for w in workers)
        if limits:
            return int(fraction * min(limits)), threads
        if workers:  # workers without limits: the memory of this machine stands for theirs
            memory = psutil.virtual_memory().total / max(w["nthreads"] for w in workers)
            return int(fraction * memory), threads
    return free_memory() // CPU_COUNT, CPU_COUNT
