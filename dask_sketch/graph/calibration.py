"""Measure rates on the machines of a pass, and estimate its time from them."""

from __future__ import annotations

import math
import pickle
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
from dask.utils import format_time

from dask_sketch.display.text import counted
from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.chunks import ChunkGraph, chunk_graphs
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.reduction import Reduction
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.partial import partial_sketch
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.array import array_samples
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_integer

if TYPE_CHECKING:
    from distributed import Client

# Rates of this process.

_FIRST_ROWS = 256
_LARGEST = 2**25  # bytes of random rows
_MERGED = 16


def pairs_per_second(
    feature_map: FeatureMap, n_rows: int, dtype: Any = np.float32, seconds: float = 1.0
) -> float:
    """Measure the number of (sample, frequency) pairs that one thread sketches in a second.

    Parameters
    ----------
    feature_map
        Feature map to average.
    n_rows
        Number of rows of a chunk, ``>= 1``, because the fixed cost of a chunk is measured as well.
        Fewer rows are used if this number would take too long.
    dtype
        Type of the rows.
    seconds
        Approximate duration of the measurement, after compiling.

    Examples
    --------
    >>> pairs_per_second(FeatureMap(2, 20, scale=1.0), 1000, seconds=0.01) > 1e4
    True
    """
    d = feature_map.n_features
    max_rows = max(min(n_rows, _LARGEST // (8 * d)), 1)
    rows = min(_FIRST_ROWS, max_rows)
    noise = np.random.default_rng(0).standard_normal((max_rows, d), dtype=np.float32)
    x = (noise + feature_map.center).astype(dtype)
    partial_sketch(x[:rows], feature_map)  # compiles
    calls, start = 0, time.perf_counter()
    while True:
        begin = time.perf_counter()
        partial_sketch(x[:rows], feature_map)
        now = time.perf_counter()
        calls += 1
        if rows < max_rows and now - begin < seconds / 8:
            rows = min(2 * rows, max_rows)
            calls, start = 0, time.perf_counter()
        elif now - start >= seconds:
            return calls * rows * feature_map.n_frequencies / (now - start)


def merge_seconds(feature_map: FeatureMap) -> float:
    """Measure the seconds for one partial sketch to be sent, received and added.

    Examples
    --------
    >>> merge_seconds(FeatureMap(2, 20, scale=1.0)) > 0
    True
    """
    sent = pickle.dumps(Sketch.empty(feature_map), protocol=5)
    start = time.perf_counter()
    received = [pickle.loads(sent) for _ in range(_MERGED)]
    pickle.dumps(merge(received), protocol=5)
    return (time.perf_counter() - start) / _MERGED


SCHEDULER_SECONDS = 1e-3  # time of the scheduler for each task, on a cluster that was not measured
KERNEL_SECONDS = 1.0  # duration of the measurement of the kernel
READ_SECONDS = 1.0  # duration of the measurement of reading
READ_CHUNKS = 4  # chunks that one thread reads at most
EMPTY_TASKS = 400
MAX_THREADS = 64  # threads that measure the kernel at once


@dataclass(frozen=True)
class Calibration:
    """Rates that were measured on the machines of a pass.

    Attributes
    ----------
    pairs_per_second
        Number of (sample, frequency) pairs that one thread sketches in a second, with all threads
        at work.
    read_seconds
        Seconds for one thread to read one chunk of the input, with all threads reading.
    rows_per_chunk
        Mean number of rows of the chunks that were read.
    merge_seconds
        Seconds for one partial sketch to be sent, received and added.
    task_seconds
        Seconds of the scheduler for one task that does nothing.
    on_cluster
        Whether a cluster was measured, rather than the threads of this process.
    """

    pairs_per_second: float
    read_seconds: float
    rows_per_chunk: float
    merge_seconds: float
    task_seconds: float
    on_cluster: bool

    def __str__(self) -> str:
        return (
            f"{self.pairs_per_second / 1e9:.2f} G pairs/s a thread; a chunk is read in "
            f"{format_time(self.read_seconds)}, a task scheduled in "
            f"{format_time(self.task_seconds)}"
        )


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds of one pass, and of its parts.

    Attributes
    ----------
    n_cores
        Number of threads that work.
    seconds
        Wall time: the largest of ``working_seconds``, ``scheduler_seconds`` and ``store_seconds``,
        which run at the same time.
    bottleneck
        Part to improve first: ``"kernel"``; ``"read"``, the threads that read; ``"store"``, its
        bandwidth; ``"scheduler"``; or ``"chunks"``, too few chunks for the number of cores.
    working_seconds
        Seconds of the busiest thread: reading, sketching and merging its chunks.
    kernel_seconds, read_seconds, merge_seconds
        Seconds for all chunks, divided by the number of cores. Their sum is ``working_seconds`` if
        all cores have the same number of chunks.
    scheduler_seconds
        Seconds of the scheduler, for all tasks.
    store_seconds
        Seconds to transfer all bytes at the bandwidth of the store; 0 without a bandwidth.
    """

    n_cores: int
    seconds: float
    bottleneck: str
    working_seconds: float
    kernel_seconds: float
    read_seconds: float
    merge_seconds: float
    scheduler_seconds: float
    store_seconds: float

    @property
    def parts(self) -> dict[str, float]:
        """Seconds that each part would take alone, by name; parts of zero are left out."""
        parts = {
            "kernel": self.kernel_seconds,
            "reading": self.read_seconds + self.merge_seconds,
            "scheduler": self.scheduler_seconds,
            "store": self.store_seconds,
        }
        return {name: seconds for name, seconds in parts.items() if seconds}

    @property
    def bottleneck_words(self) -> str:
        """Bottleneck in words."""
        return {"chunks": "too few chunks", "read": "reading"}.get(self.bottleneck, self.bottleneck)

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {format_time(s)}" for name, s in self.parts.items())
        return (
            f"{format_time(self.seconds)} on {counted(self.n_cores, 'core')} "
            f"({shown}); bound by {self.bottleneck_words}"
        )


def estimate_pass(
    calibration: Calibration,
    *,
    n_samples: int,
    n_frequencies: int,
    n_chunks: int,
    n_tasks: int,
    n_cores: int,
    bytes_read: int | None = None,
    bandwidth: float | None = None,
    task_seconds: float | None = None,
) -> Estimate:
    """Estimate the time of a pass at measured rates.

    Parameters
    ----------
    calibration
        Rates from :func:`measure`.
    n_samples, n_frequencies, n_chunks, n_tasks
        Size of the pass.
    n_cores
        Number of threads that work, ``>= 1``.
    bytes_read, bandwidth
        Number of all bytes, and bytes per second that the store gives to all readers together.
        Without a bandwidth, every thread reads as fast as the measured threads.
    task_seconds
        Seconds of the scheduler for each task, in place of the measured seconds.

    Returns
    -------
    estimate
        Times of the pass and of its parts.

    Raises
    ------
    InputError
        If ``n_cores``, ``bandwidth`` or ``task_seconds`` is not positive.

    Examples
    --------
    >>> rates = Calibration(2e9, 0.01, 1e6, 1e-4, 1e-3, True)
    >>> made = estimate_pass(rates, n_samples=10**9, n_frequencies=1000, n_chunks=1000,
    ...                      n_tasks=1068, n_cores=2)
    >>> round(made.seconds), made.bottleneck
    (255, 'kernel')
    """
    require_integer("n_cores", n_cores, 1)
    for name, value in (("bandwidth", bandwidth), ("task_seconds", task_seconds)):
        real = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if value is not None and not (real and value > 0):
            raise InputError(f"{name}={value!r}: give a positive number.")
    kernel = n_samples * n_frequencies / calibration.pairs_per_second
    read = n_chunks * calibration.read_seconds
    merging = n_chunks * calibration.merge_seconds
    # fraction of the chunks that the busiest thread has
    fraction = math.ceil(n_chunks / n_cores) / max(n_chunks, 1)
    working = fraction * (kernel + read + merging)
    scheduler = n_tasks * (calibration.task_seconds if task_seconds is None else task_seconds)
    store = 0.0 if bandwidth is None or bytes_read is None else bytes_read / bandwidth
    longest = max(working, scheduler, store)
    if longest == working:
        bottleneck = "kernel" if kernel >= read + merging else "read"
        if fraction * n_cores > 2:  # half of the cores would have nothing to do
            bottleneck = "chunks"
    else:
        bottleneck = "scheduler" if longest == scheduler else "store"
    return Estimate(
        n_cores=int(n_cores),
        seconds=longest,
        bottleneck=bottleneck,
        working_seconds=working,
        kernel_seconds=kernel / n_cores,
        read_seconds=read / n_cores,
        merge_seconds=merging / n_cores,
        scheduler_seconds=scheduler,
        store_seconds=store,
    )


def measure(
    samples: Samples,
    feature_map: FeatureMap,
    n_threads: int,
    split_every: int,
    client: Client | None,
) -> Calibration:
    """Measure reading, sketching, merging and scheduling, in a few seconds.

    Parameters
    ----------
    samples
        Samples of the pass; up to four of their chunks for each thread are read.
    feature_map
        Feature map of the pass; random rows are sketched for a second on every thread at once.
    n_threads
        Number of threads available.
    split_every
        Fan-in of the merges.
    client
        Client of the cluster of the pass; ``None`` for the threads of this process.

    Returns
    -------
    calibration
        Measured rates.

    Raises
    ------
    ChunkError
        If a chunk cannot be read.
    """
    # threads are used without a cluster, also for bags; see LazyResult
    where: dict[str, Any] = {"scheduler": "threads" if client is None else client.get}
    n_busy = min(n_threads, MAX_THREADS)
    # all threads at once: the cost of what they share, such as the interpreter lock, counts
    read = dask.delayed(_read, pure=False, traverse=False)
    read_times = dask.compute(*(read(some) for some in _some_chunks(samples, n_busy)), **where)
    n_chunks, rows, spent = (sum(column) for column in zip(*read_times, strict=True))
    rate = dask.delayed(pairs_per_second, pure=False, traverse=False)
    per_chunk = max(math.ceil(rows / n_chunks), 1)
    rates = dask.compute(
        *(rate(feature_map, per_chunk, samples.dtype, KERNEL_SECONDS) for _ in range(n_busy)),
        **where,
    )
    return Calibration(
        pairs_per_second=sum(rates) / len(rates),
        read_seconds=spent / n_chunks,
        rows_per_chunk=rows / n_chunks,
        merge_seconds=merge_seconds(feature_map),
        task_seconds=_task_seconds(split_every, where),
        on_cluster=client is not None,
    )


class _Chunks:
    """Chunks that one thread reads; a plain object, since Dask looks for tasks in lists."""

    def __init__(self, graphs: list[ChunkGraph]):
        self.graphs = graphs


def _some_chunks(samples: Samples, n_readers: int) -> list[_Chunks]:
    """Some random chunks for each reader; the same for all readers if there are few chunks."""
    order = np.random.default_rng(0).permutation(samples.n_chunks)[: n_readers * READ_CHUNKS]
    graphs = chunk_graphs(samples, [[int(number)] for number in order])
    return [_Chunks(graphs[i::n_readers] or graphs[:1]) for i in range(n_readers)]


def _read(chunks: _Chunks) -> tuple[int, int, float]:
    """Number of chunks and of rows that this thread read, and the seconds that it took."""
    counts: list[int] = []
    start = time.perf_counter()
    for number, graph in enumerate(chunks.graphs):
        if number == 1:
            counts, start = [], time.perf_counter()  # the first one opened the store as well
        counts.append(sum(_count(block.rows, None, label) for block, label in graph.blocks()))
        if time.perf_counter() - start > READ_SECONDS:
            break
    return len(counts), sum(counts), time.perf_counter() - start


def _count(rows: Any, weights: Any, label: str) -> int:
    return math.prod(np.shape(rows)[:-1])


def _task_seconds(split_every: int, where: dict[str, Any]) -> float:
    """Seconds of one task of a pass over nothing."""
    for n_chunks in (20, EMPTY_TASKS):  # the first is not counted
        empty = array_samples(da.zeros((n_chunks, 1), chunks=(1, 1)), "nothing")
        lazy = LazyResult(empty, Reduction("calibrate", _count, sum), split_every)
        start = time.perf_counter()
        lazy.compute(**where)
        spent = time.perf_counter() - start
    return spent / (n_chunks * (1 + 1 / split_every))
