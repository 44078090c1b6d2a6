"""Compute a separate result for each chunk, in passes that survive failures."""

from __future__ import annotations

import heapq
import math
import queue
import sys
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dask_sketch import config
from dask_sketch.display.progress import progress_bar
from dask_sketch.errors import ArtifactError, ChunkError, ClusterError, DeviceError, InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.chunks import ChunkGraph, chunk_graphs
from dask_sketch.graph.compute import WORKERS_DIED, active_client, start_pass
from dask_sketch.graph.executors import Cluster, ConnectionLost, TaskLost, TaskThreads
from dask_sketch.graph.moments import partition_moments
from dask_sketch.graph.reduction import Reduction, reduce_blocks
from dask_sketch.graph.sketch import sketch_reduction
from dask_sketch.sketching.arguments import require_nan_policy
from dask_sketch.sketching.missing import require_sparse
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.row_sample import RowSampling, sample_bytes
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.bag import Block
from dask_sketch.sources.samples import SMALL_TASK, Samples

AHEAD = 4  # tasks for each thread: the next tasks of a worker are sent while it computes
MAX_BATCH = 64  # chunks of one task, at most
RESULT_BYTES = 2**22  # bytes of the results of one task, at most
# chunks whose graphs are built at a time: at first, and at most
FIRST_PAGE, PAGE = 64, 4096
MAX_GAP = 8 * PAGE  # largest difference of the numbers of the first and the last chunk of a page
WAIT_SECONDS = 0.5  # longest wait for a result before the cluster is polled


def sketch_partitions(
    samples: Samples,
    chosen: Sequence[int],
    feature_map: FeatureMap | MomentGrid,
    *,
    nan_policy: str = "raise",
    sampling: RowSampling | None = None,
    identities: Mapping[int, tuple[int, ...]] | None = None,
    attempts: int = 3,
    backoff: float = 1.0,
    in_flight: int | None = None,
    progress: bool = False,
) -> Generator[tuple[int, Sketch | SecondMoments | ChunkError], None, None]:
    """Sketch each chunk separately, eq. (13), on the active client or on local threads.

    Parameters
    ----------
    samples
        Samples from :func:`open_samples`.
    chosen
        Different numbers of chunks, from 0 to ``samples.n_chunks - 1``.
    feature_map
        Feature map to average, or grid of the second moments of each chunk.
    nan_policy
        Treatment of rows that are not finite, see :func:`sketch`.
    sampling
        Choice of the random rows that the sketch of each chunk carries; none by default. The rows
        are chosen by the identity of the chunk and by their positions in the chunk.
    identities, attempts, backoff, in_flight, progress
        Arguments of :func:`stream`.

    Yields
    ------
    number, result
        Number of a chunk, and its sketch or second moments, empty if it has no rows; or the error
        with which it was given up.

    Raises
    ------
    InputError
        If an argument is out of range, or the samples are in the memory of a cluster.
    PlanError
        If the largest chunk cannot fit in the memory of a thread.
    ArtifactError
        If a worker draws other frequencies than the client.
    ClusterError
        If the cluster is lost; see :func:`stream`.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_sketch import open_samples
    >>> samples = open_samples(np.zeros((1000, 2)), chunk_size=1600)
    >>> done = dict(sketch_partitions(samples, [2, 5], FeatureMap(2, 100, scale=1.0)))
    >>> sorted((number, sketch.count) for number, sketch in done.items())
    [(2, 100), (5, 100)]
    """
    samples.require_features(feature_map.n_features, "the feature map", feature_map.feature_names)
    require_nan_policy(nan_policy)
    if isinstance(feature_map, MomentGrid):
        reduction, result_bytes = partition_moments(feature_map, nan_policy), feature_map.nbytes
    else:
        if nan_policy == "available":
            require_sparse(feature_map)
        reduction = sketch_reduction(
            samples, feature_map, nan_policy, sampling=sampling, allow_empty=True
        )
        result_bytes = 32 * feature_map.n_frequencies
        if sampling is not None:
            result_bytes += sample_bytes(sampling.size, feature_map.n_features)
    return stream(
        samples,
        reduction,
        chosen,
        result_bytes=result_bytes,
        identities=identities,
        attempts=attempts,
        backoff=backoff,
        in_flight=in_flight,
        progress=progress,
    )


def stream(
    samples: Samples,
    reduction: Reduction,
    chosen: Sequence[int],
    *,
    result_bytes: int,
    identities: Mapping[int, tuple[int, ...]] | None = None,
    attempts: int = 3,
    backoff: float = 1.0,
    in_flight: int | None = None,
    progress: bool = False,
) -> Generator[tuple[int, Any], None, None]:
    """Compute a separate result for each chunk, on the active client or on local threads.

    Each chunk is read and reduced within one task; a task may have many small chunks. A result
    leaves the cluster as soon as it is yielded, and is then safe from failures of the cluster.
    Workers may be killed, restarted and replaced meanwhile: results that they had not delivered are
    computed again.

    Parameters
    ----------
    samples
        Samples from :func:`open_samples`.
    reduction
        Computation; its ``finalize`` is applied to the partial result of each chunk.
    chosen
        Different numbers of chunks, from 0 to ``samples.n_chunks - 1``.
    result_bytes
        Approximate bytes of the result of one chunk.
    identities
        Numbers that identify each chunk, by the number of the chunk, for a reduction that uses
        them; by default the number of the chunk.
    attempts
        Number of attempts to read a chunk before it counts as unreadable, ``>= 1``. Chunks with
        refused values are not read again.
    backoff
        Seconds before the second attempt, ``>= 0``, which double before each further attempt. The
        client waits, and no thread of a worker.
    in_flight
        Maximum number of chunks that are sent, computed and not yet yielded, or waiting for another
        attempt, ``>= 1``. The default is enough for four tasks of each thread.
    progress
        Whether to show a bar, in a notebook or on the standard error stream.

    Yields
    ------
    number, result
        Number of a chunk, and its result or the :class:`ChunkError` with which it was given up, in
        the order of completion. Close an iterator that is not exhausted, so that no task is left on
        the cluster.

    Raises
    ------
    InputError
        If an argument is out of range, or the samples are in the memory of a cluster.
    PlanError
        If the largest chunk cannot fit in the memory of a thread.
    ClusterError
        If the scheduler is lost, or there is no worker for the time of ``sketch.worker-timeout``.
        Results that were yielded before are complete; the other chunks can be computed on another
        cluster.
    """
    _require_arguments(samples, chosen, attempts, backoff, in_flight)
    _require_standalone(samples)
    client = active_client()
    span = start_pass(samples, reduction, config.get("split-every"), client)
    executor = TaskThreads(reduction) if client is None else Cluster(client, reduction, span)
    graphs = _graphs(samples, sorted(chosen), reduction, identities)
    running = _Stream(samples.label, len(chosen), graphs, executor, attempts, backoff)
    return running.results(_batch_length(samples, result_bytes), in_flight, progress)


def _batch_length(samples: Samples, result_bytes: int) -> int:
    """Number of chunks of one task, such that a task takes longer than its scheduling."""
    if not samples.bytes_read:
        return 1
    by_size = SMALL_TASK * samples.n_chunks // samples.bytes_read
    return max(min(by_size, RESULT_BYTES // result_bytes, MAX_BATCH), 1)


def _require_arguments(
    samples: Samples, chosen: Sequence[int], attempts: int, backoff: float, in_flight: int | None
) -> None:
    if attempts < 1 or not 0 <= backoff < float("inf"):
        raise InputError(
            f"attempts={attempts!r}, backoff={backoff!r}: give at least one attempt, and a "
            "non-negative number of seconds."
        )
    if in_flight is not None and in_flight < 1:
        raise InputError(f"in_flight={in_flight!r}: give at least one chunk.")
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(samples.n_chunks)):
        raise InputError(
            f"chosen: give different numbers of chunks, from 0 to {samples.n_chunks - 1}, of "
            f"{samples.label}."
        )


def _require_standalone(samples: Samples) -> None:
    """Raise for input in the memory of a cluster: graphs of chunks must be independent."""
    if "distributed" not in sys.modules:  # then nobody can have persisted anything
        return
    from distributed import futures_of

    collections: list[Any] = [x for x in (samples.blocks, samples.weights) if x is not None]
    for collection in collections:
        layers = HighLevelGraph.from_collections("", {}, [collection]).layers.values()
        # layers of another type describe how tasks are made, and hold none
        if any(futures_of(dict(layer)) for layer in layers if isinstance(layer, MaterializedLayer)):
            raise InputError(
                f"{samples.label} is held by a cluster, and can be lost with it: give the "
                "collection that persist() was called on."
            )


# Tasks on a worker, which reduce some chunks and return errors by chunk.

FATAL = (ArtifactError, DeviceError)  # errors of the worker, not of its data, which end the pass


@dataclass(frozen=True)
class ChunkFailure:
    """Failure of one chunk.

    Attributes
    ----------
    message
        Error message.
    retry
        Whether another try may succeed.
    """

    message: str
    retry: bool


@dataclass(frozen=True)
class ChunkBatch:
    """Chunks that one task reduces, one after the other.

    Dask passes on an object unchanged, while it would take a list of graphs for tasks.

    Attributes
    ----------
    chunks
        Graphs that read the chunks.
    label
        Name of the samples for messages.
    alone
        Whether no other task is on the cluster, so that a failure is the fault of this one.
    """

    chunks: tuple[ChunkGraph, ...]
    label: str
    alone: bool = False


def reduce_batch(batch: ChunkBatch, reduction: Reduction) -> list[Any]:
    """Reduce the chunks of a batch; an error of one chunk is the result of this chunk.

    Errors of the data are not raised: a worker would log a traceback for every chunk and every
    attempt, and schedulers have no pauses between attempts.

    Raises
    ------
    ArtifactError
        If this process draws other frequencies than the map states; before data is read.
    """
    reduction.prepare_worker()  # this worker may have joined after the pass began
    return [_reduce_chunk(chunk, batch.label, reduction) for chunk in batch.chunks]


def _reduce_chunk(chunk: ChunkGraph, label: str, reduction: Reduction) -> Any:
    blocks = _read(chunk, label)
    try:
        reduced = reduce_blocks(blocks, reduction.chunk, reduction.combine_on_worker)
    except _Unreadable as error:
        return ChunkFailure(str(error), retry=True)
    except FATAL:
        raise
    except (ChunkError, InputError) as error:  # the same values would be refused again
        return ChunkFailure(str(error), retry=False)
    return reduction.finalize(reduced)


class _Unreadable(Exception):
    """Data could not be read, for an unknown reason, so that another try may succeed."""


def _read(chunk: ChunkGraph, label: str) -> Iterator[tuple[Block, str]]:
    row = 0
    try:
        for block, name in chunk.blocks():
            yield block._replace(number=chunk.identity, row=row), name
            row += math.prod(block.rows.shape[:-1])
    except ChunkError as error:  # a reader raised it, and named its object
        raise _Unreadable(str(error)) from error
    except InputError:  # the data are not samples
        raise
    except Exception as error:  # stores and decoders fail in many ways
        raise _Unreadable(
            f"chunk {chunk.number} of {label} could not be read: {type(error).__name__}: {error}."
        ) from error


# Process that sends the tasks.


class _Stream:
    """One pass, with the chunks that are under way, to be tried again, and not begun."""

    def __init__(
        self,
        label: str,
        n_chunks: int,
        graphs: Iterator[ChunkGraph],
        executor: TaskThreads | Cluster,
        attempts: int,
        backoff: float,
    ):
        self._label = label
        self._total = self._left = n_chunks  # chunks in all, and chunks not taken up yet
        self._graphs = graphs
        self._executor = executor
        self._attempts = attempts
        self._backoff = backoff
        self._under_way = 0  # chunks that were begun, and neither yielded nor suspected
        self._ready: deque[ChunkBatch] = deque()  # batches to be sent
        self._later: list[tuple[float, int, ChunkGraph]] = []  # a heap, by the time they are due
        # batches that may have killed workers: to be sent when all else is done
        self._suspects: deque[ChunkBatch] = deque()
        self._sent: dict[Any, ChunkBatch] = {}  # batches by future
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()  # futures
        self._failures: Counter[int] = Counter()  # failures of chunks
        self._losses = 0  # losses of the connection

    def results(
        self, length: int, in_flight: int | None, progress: bool
    ) -> Generator[tuple[int, Any], None, None]:
        done = 0
        try:
            with progress_bar(progress) as show:
                while done < self._total:
                    self._executor.update()
                    self._begin(length, in_flight)
                    self._send()
                    for result in self._receive():
                        self._under_way -= 1
                        done += 1
                        words = f"completed, {done:,} of {self._total:,} partitions"
                        show(done, self._total, words)
                        yield result
        except ClusterError as error:
            raise ClusterError(
                f"{error} {done:,} of {self._total:,} partitions of {self._label} were done "
                "before, and are not lost. Start the cluster again, and read the others."
            ) from error
        finally:
            self._executor.cancel(list(self._sent))

    def _begin(self, length: int, in_flight: int | None) -> None:
        """Make batches of the next chunks, up to the limit, and of chunks to be tried again."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            self._ready.append(self._batch(heapq.heappop(self._later)[2]))
        threads = self._executor.n_threads
        max_tasks = AHEAD * threads * length if in_flight is None else in_flight
        while self._left and self._under_way < max_tasks:
            # the last batches are shorter, so that no thread is left with a long one
            fair = min(max_tasks, self._left) // (AHEAD * threads)
            size = min(max(min(fair, length), 1), max_tasks - self._under_way)
            batch = self._batch(*islice(self._graphs, size))
            self._left -= size
            self._under_way += size
            self._ready.append(batch)
        if self._suspects and not self._under_way:
            self._under_way = 1
            self._ready.append(self._suspects.popleft())

    def _send(self) -> None:
        try:
            while self._ready and self._executor.ready:
                future = self._executor.submit(reduce_batch, self._ready[0])
                self._sent[future] = self._ready.popleft()
                future.add_done_callback(self._ended.put)
        except ConnectionLost:
            self._send_again()

    def _batch(self, *chunks: ChunkGraph) -> ChunkBatch:
        return ChunkBatch(chunks, self._label)

    def _receive(self) -> Iterator[tuple[int, Any]]:
        """Yield results of the next task that ends; nothing if something else is due first."""
        pause = WAIT_SECONDS
        if self._later:
            pause = min(max(self._later[0][0] - time.monotonic(), 0), WAIT_SECONDS)
        try:
            future = self._ended.get(timeout=pause)
        except queue.Empty:
            return
        batch = self._sent.get(future)
        if batch is None:  # given up when the connection was lost
            return
        try:
            results = self._executor.result(future)
        except TimeoutError:  # lost after it had ended, and being made again
            future.add_done_callback(self._ended.put)
            return
        except ConnectionLost:
            self._send_again()
            return
        except TaskLost as error:
            results = self._suspect(batch, error)
        del self._sent[future], future
        for chunk, result in zip(batch.chunks, results, strict=False):
            judged = self._judge(chunk, result) if isinstance(result, ChunkFailure) else result
            if judged is not None:
                yield chunk.number, judged

    def _judge(self, chunk: ChunkGraph, failure: ChunkFailure) -> ChunkError | None:
        """Error with which a chunk is given up; ``None`` if it will be tried again."""
        self._failures[chunk.number] += 1
        failures = self._failures[chunk.number]
        if failure.retry and failures < self._attempts:
            due = time.monotonic() + self._backoff * 2 ** (failures - 1)
            heapq.heappush(self._later, (due, chunk.number, chunk))
            return None
        tried = f" It was tried {failures} times." if failures > 1 else ""
        return ChunkError(failure.message + tried)

    def _suspect(self, batch: ChunkBatch, error: TaskLost) -> list[ChunkFailure]:
        """Search a batch for the chunk that killed workers, whose other tasks were lost as well."""
        if len(batch.chunks) > 1:
            self._ready.extend(self._batch(chunk) for chunk in batch.chunks)
            return []
        if not batch.alone:
            self._under_way -= 1
            self._suspects.append(replace(batch, alone=True))
            return []
        message = (
            f"chunk {batch.chunks[0].number} of {self._label}: workers died while they computed "
            f"it, and nothing else ({error}). {WORKERS_DIED}"
        )
        return [ChunkFailure(message, retry=False)]

    def _send_again(self) -> None:
        """Send tasks again that a scheduler has lost."""
        self._losses += 1
        if self._losses > self._attempts:
            raise ClusterError(
                f"the connection to the scheduler was lost {self._losses} times: check the network."
            )
        self._executor.cancel(list(self._sent))
        self._ready.extend(self._sent.values())
        self._sent.clear()


def _graphs(
    samples: Samples,
    chosen: list[int],
    reduction: Reduction,
    identities: Mapping[int, tuple[int, ...]] | None,
) -> Iterator[ChunkGraph]:
    """Graphs of the chosen chunks, built in pages, which is far cheaper than one by one."""
    size, start = FIRST_PAGE, 0
    while start < len(chosen):
        stop = min(start + size, bisect_left(chosen, chosen[start] + MAX_GAP))
        page = chunk_graphs(samples, [chosen[start:stop]], with_groups=reduction.uses_groups)
        if reduction.uses_numbers:
            identity_of = (
                {n: (n,) for n in chosen[start:stop]} if identities is None else identities
            )
            page = [replace(graph, identity=identity_of[graph.number]) for graph in page]
        yield from page
        start, size = stop, min(2 * size, PAGE)
