"""A pass that gives one sketch for each partition, and outlives what fails on the way."""

from __future__ import annotations

import heapq
import queue
import sys
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import dask
import numpy as np
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.optimization import cull

from dask_sketch import config
from dask_sketch.display.progress import progress_bar
from dask_sketch.errors import ArtifactError, ChunkError, ClusterError, DeviceError, InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.chunks import blocks_of_bag, parts_of_array, parts_of_bag
from dask_sketch.graph.executors import Cluster, ConnectionLost, TaskLost, Threads, active_client
from dask_sketch.graph.plan import make_plan
from dask_sketch.graph.telemetry import announce, report_rows
from dask_sketch.sketching.arguments import require_nan_policy
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.partial import partial_sketch, prepare
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.samples import SMALL_TASK, Samples

# Graphs that read single chunks, each by itself, to be run wherever and whenever it suits.


def read_apart(samples: Samples, chosen: Sequence[int]) -> list[tuple[dict[Any, Any], Any]]:
    """Graphs that read some chunks, each by itself.

    Parameters
    ----------
    samples
        The input.
    chosen
        Numbers of the chunks, ascending.

    Returns
    -------
    graphs
        For each chunk a graph, of one task where the source can be fused into one, and its key. The
        key computes to what :func:`blocks_read` takes.
    """
    read: Any
    if samples.is_bag:
        read = parts_of_bag(samples, blocks_of_bag, "read", chosen)
    else:
        read = parts_of_array(samples, _as_read, "read", {}, chosen)
    (optimised,) = dask.optimize(read)
    graph = dict(optimised.__dask_graph__())
    return [(cull(graph, [key])[0], key) for key in flatten(optimised.__dask_keys__())]


def blocks_read(result: Any) -> Iterator[tuple[Any, Any, str]]:
    """Blocks of rows, their weights or none, and their names, of one chunk that was read."""
    if isinstance(result, np.ndarray):
        return iter([result.item()])
    return ((block.rows, block.weights, label) for block, label in result)


def _as_read(block: Any, weights: Any, label: str) -> tuple[Any, Any, str]:
    return block, weights, label


def require_apart(samples: Samples) -> None:
    """Raise for input that a cluster holds: :func:`read_apart` gives graphs that stand alone."""
    if "distributed" not in sys.modules:  # then nobody can have persisted anything
        return
    from distributed import futures_of

    collections: list[Any] = [x for x in (samples.blocks, samples.weights) if x is not None]
    for collection in collections:
        layers = HighLevelGraph.from_collections("", {}, [collection]).layers.values()
        # layers of another kind say how tasks are made, and hold none
        if any(futures_of(dict(layer)) for layer in layers if isinstance(layer, MaterializedLayer)):
            raise InputError(
                f"{samples.label} is held by a cluster, and can be lost with it: give what "
                "persist() was called on."
            )


# What a worker does for a pass over partitions: sketches some, and keeps their errors apart.

FATAL = (ArtifactError, DeviceError)  # of the worker and not of its data: they end the pass


@dataclass(frozen=True)
class Reading:
    """How one partition is read: its number, and a graph that stands by itself."""

    number: int
    graph: dict[Any, Any]
    key: Any


@dataclass(frozen=True)
class Failed:
    """A partition that gave no sketch; ``again`` if another try may."""

    message: str
    again: bool


@dataclass(frozen=True)
class Run:
    """Neighbouring partitions that one task sketches, one after the other.

    An object, which Dask hands over as it is; a list of graphs would be taken for tasks.
    """

    readings: tuple[Reading, ...]
    alone: bool = False  # with nothing else on the cluster, so that what goes wrong is its fault


def sketch_run(
    run: Run, feature_map: FeatureMap, label: str, nan_policy: str, dtype: Any
) -> list[Sketch | Failed]:
    """Sketch the partitions of a run; an error of one is its result, and not that of the others.

    Nothing that is wrong with the data is raised: a worker would log where it was raised from, for
    every partition and every try, and a scheduler knows no pauses between tries.

    Raises
    ------
    ArtifactError
        If this process draws other frequencies than the map states; before anything is read.
    """
    # a worker that joined after the pass began does this here
    prepare(feature_map, dtype)
    return [_sketch_partition(reading, label, feature_map, nan_policy) for reading in run.readings]


def _sketch_partition(
    reading: Reading, label: str, feature_map: FeatureMap, nan_policy: str
) -> Sketch | Failed:
    found: list[Sketch] = []
    try:
        for block, weights, name in _blocks(reading, label):
            part = partial_sketch(block, feature_map, weights, nan_policy=nan_policy, label=name)
            report_rows(part.count, feature_map.n_frequencies)
            # merged as they come, so that one block at a time is held
            found = [merge([*found, part])] if found else [part]
    except _Unreadable as error:
        return Failed(str(error), again=True)
    except FATAL:
        raise
    except (ChunkError, InputError) as error:  # the same values would be refused again
        return Failed(str(error), again=False)
    return found[0] if found else Sketch.empty(feature_map)


class _Unreadable(Exception):
    """Data did not come; why is not known here, so that another try may help."""


def _blocks(reading: Reading, label: str) -> Iterator[tuple[Any, Any, str]]:
    try:
        yield from blocks_read(dask.get(reading.graph, reading.key))
    except ChunkError as error:  # from a reader, which has named what it read
        raise _Unreadable(str(error)) from error
    except InputError:  # what was read is not samples
        raise
    except Exception as error:  # stores and decoders fail in many ways
        raise _Unreadable(
            f"chunk {reading.number} of {label} could not be read: {type(error).__name__}: {error}."
        ) from error


AHEAD = 4  # tasks for each thread: what one worker has done, another's next are on their way
MOST_IN_RUN = 64  # partitions that one task sketches,
RESULT_BYTES = 2**22  # and bytes of their sketches
FIRST_PAGE, PAGE = 64, 4096  # partitions whose graphs are built at a time
SPAN = 8 * PAGE  # and between the first and the last of them
WAIT = 0.5  # seconds to wait for a result before looking at the cluster


def sketch_partitions(
    samples: Samples,
    chosen: Sequence[int],
    feature_map: FeatureMap,
    *,
    nan_policy: str = "raise",
    attempts: int = 3,
    backoff: float = 1.0,
    in_flight: int | None = None,
    progress: bool = False,
) -> Generator[tuple[int, Sketch | ChunkError], None, None]:
    """Sketch partitions one by one, eq. (13), on the active client or on local threads.

    Each partition is read and sketched within one task, and many small ones by one task after each
    other. A sketch leaves the cluster as soon as it is given here, and is then safe whatever
    happens to the cluster. Workers may be killed, restarted and replaced meanwhile: what they had
    not delivered is done again.

    Parameters
    ----------
    samples
        From :func:`open_samples`.
    chosen
        Numbers of chunks, each once: in the range of ``samples.n_chunks``.
    feature_map
        What to average.
    nan_policy
        As for :func:`sketch`.
    attempts
        Times that a partition is read before it counts as unreadable, ``>= 1``. Values that are
        refused are not read again.
    backoff
        Seconds before the second try, ``>= 0``; twice as long before each further one. It is the
        client that waits, and no thread of a worker.
    in_flight
        Most partitions that are under way at a time: sent, done and not yet given, or to be tried
        again; ``>= 1``. By default enough for four tasks of each thread.
    progress
        Show a bar, in a notebook or on the standard error stream.

    Yields
    ------
    number, result
        The sketch of a chunk, empty if it has no rows; or the error with which it was given up. In
        the order in which they are done. An iterator that is not used up should be closed: nothing
        of it is then left on the cluster.

    Raises
    ------
    InputError
        If an argument is out of range, or the samples are held by a cluster.
    PlanError
        If the largest chunk cannot fit in the memory of a thread.
    ArtifactError
        If a worker draws other frequencies than the client.
    ClusterError
        If the scheduler is lost, or no worker comes for the time of ``sketch.worker-timeout``. What
        was given before is whole; the partitions that were not can be sketched on another cluster.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_sketch import open_samples
    >>> samples = open_samples(np.zeros((1000, 2)), chunk_size=1600)
    >>> done = dict(sketch_partitions(samples, [2, 5], FeatureMap(2, 100, scale=1.0)))
    >>> sorted((number, sketch.count) for number, sketch in done.items())
    [(2, 100), (5, 100)]
    """
    _require(samples, chosen, feature_map, nan_policy, attempts, backoff, in_flight)
    client = active_client()
    make_plan(samples, feature_map, config.get("split-every"), client=client).require_fit()
    require_apart(samples)
    where = (
        Threads(feature_map, samples.dtype)
        if client is None
        else Cluster(client, feature_map, samples.dtype, announce(client, samples, feature_map))
    )
    task = partial(sketch_run, label=samples.label, nan_policy=nan_policy, dtype=samples.dtype)
    running = _Pass(samples, sorted(chosen), where, task, attempts, backoff)
    length = _run_length(samples, feature_map)
    return running.results(length, in_flight, progress)


def _run_length(samples: Samples, feature_map: FeatureMap) -> int:
    """Partitions that one task may take, for it to be worth sending."""
    if not samples.bytes_read:
        return 1
    by_size = SMALL_TASK * samples.n_chunks // samples.bytes_read
    sketch_bytes = 32 * feature_map.n_frequencies
    return max(min(by_size, RESULT_BYTES // sketch_bytes, MOST_IN_RUN), 1)


def _require(
    samples: Samples,
    chosen: Sequence[int],
    feature_map: FeatureMap,
    nan_policy: str,
    attempts: int,
    backoff: float,
    in_flight: int | None,
) -> None:
    samples.require_features(feature_map.n_features, "the feature map", feature_map.feature_names)
    require_nan_policy(nan_policy)
    if attempts < 1 or not 0 <= backoff < float("inf"):
        raise InputError(
            f"attempts={attempts!r}, backoff={backoff!r}: give at least one attempt, and seconds "
            "of pause that are not negative."
        )
    if in_flight is not None and in_flight < 1:
        raise InputError(f"in_flight={in_flight!r}: give at least one partition.")
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(samples.n_chunks)):
        raise InputError(
            f"chosen must be different numbers of chunks, 0 to {samples.n_chunks - 1} for "
            f"{samples.label}."
        )


class _Pass:
    """One pass: what is under way, what is to be tried again, and what is left."""

    def __init__(
        self,
        samples: Samples,
        chosen: list[int],
        where: Threads | Cluster,
        task: Callable[..., list[Sketch | Failed]],
        attempts: int,
        backoff: float,
    ):
        self._label = samples.label
        self._total = self._left = len(chosen)  # in all, and not taken up yet
        self._readings = _readings(samples, chosen)
        self._where = where
        self._task = task
        self._attempts = attempts
        self._backoff = backoff
        self._under_way = 0  # partitions taken up and neither given nor suspected
        self._ready: deque[Run] = deque()  # to be sent
        self._later: list[tuple[float, int, Reading]] = []  # a heap, by the time they are due
        self._suspects: deque[Run] = deque()  # of killing workers: to be sent when all else is done
        self._sent: dict[Any, Run] = {}  # by future
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()  # futures
        self._failures: Counter[int] = Counter()  # of partitions
        self._losses = 0  # of the connection

    def results(
        self, length: int, in_flight: int | None, progress: bool
    ) -> Generator[tuple[int, Sketch | ChunkError], None, None]:
        given = 0
        try:
            with progress_bar(progress) as show:
                while given < self._total:
                    self._where.look()
                    self._take_up(length, in_flight)
                    self._send()
                    for result in self._receive():
                        self._under_way -= 1
                        given += 1
                        words = f"completed, {given:,} of {self._total:,} partitions"
                        show(given, self._total, words)
                        yield result
        except ClusterError as error:
            raise ClusterError(
                f"{error} {given:,} of {self._total:,} partitions of {self._label} were given "
                "before, and stay good. Start the cluster again, and sketch the others."
            ) from error
        finally:
            self._where.drop(list(self._sent))

    def _take_up(self, length: int, in_flight: int | None) -> None:
        """Make runs of what is left, as many as may be under way; and of what is due again."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            self._ready.append(Run((heapq.heappop(self._later)[2],)))
        threads = self._where.n_threads
        most = AHEAD * threads * length if in_flight is None else in_flight
        while self._left and self._under_way < most:
            # the last runs are shorter, so that no thread is left with a long one
            fair = min(most, self._left) // (AHEAD * threads)
            size = min(max(min(fair, length), 1), most - self._under_way)
            run = Run(tuple(islice(self._readings, size)))
            self._left -= size
            self._under_way += size
            self._ready.append(run)
        if self._suspects and not self._under_way:
            self._under_way = 1
            self._ready.append(self._suspects.popleft())

    def _send(self) -> None:
        try:
            while self._ready and self._where.ready:
                future = self._where.submit(self._task, self._ready[0])
                self._sent[future] = self._ready.popleft()
                future.add_done_callback(self._ended.put)
        except ConnectionLost:
            self._send_again()

    def _receive(self) -> Iterator[tuple[int, Sketch | ChunkError]]:
        """What the next task gave that ends; nothing, if there is something else to do first."""
        pause = WAIT
        if self._later:
            pause = min(max(self._later[0][0] - time.monotonic(), 0), WAIT)
        try:
            future = self._ended.get(timeout=pause)
        except queue.Empty:
            return
        run = self._sent.get(future)
        if run is None:  # given up when the connection was lost
            return
        try:
            found = self._where.result(future)
        except TimeoutError:  # lost after it had ended, and being made again
            future.add_done_callback(self._ended.put)
            return
        except ConnectionLost:
            self._send_again()
            return
        except TaskLost as error:
            found = self._suspect(run, error)
        del self._sent[future], future
        for reading, result in zip(run.readings, found, strict=False):
            judged = self._judge(reading, result) if isinstance(result, Failed) else result
            if judged is not None:
                yield reading.number, judged

    def _judge(self, reading: Reading, failed: Failed) -> ChunkError | None:
        """The error that a partition is given up with; none if it will be tried again."""
        self._failures[reading.number] += 1
        failures = self._failures[reading.number]
        if failed.again and failures < self._attempts:
            due = time.monotonic() + self._backoff * 2 ** (failures - 1)
            heapq.heappush(self._later, (due, reading.number, reading))
            return None
        tried = f" It was tried {failures} times." if failures > 1 else ""
        return ChunkError(failed.message + tried)

    def _suspect(self, run: Run, error: TaskLost) -> list[Failed]:
        """Find out whose fault it is that workers died: that takes any task that was on them."""
        if len(run.readings) > 1:
            self._ready.extend(Run((reading,)) for reading in run.readings)
            return []
        if not run.alone:
            self._under_way -= 1
            self._suspects.append(replace(run, alone=True))
            return []
        message = (
            f"chunk {run.readings[0].number} of {self._label}: workers died while they sketched "
            f"it, and nothing else ({error}). Most often that is memory: use fewer threads per "
            "worker, more memory, or store the data in smaller chunks."
        )
        return [Failed(message, again=False)]

    def _send_again(self) -> None:
        """Start all over with what was on a scheduler that has lost it."""
        self._losses += 1
        if self._losses > self._attempts:
            raise ClusterError(f"the connection to the scheduler was lost {self._losses} times.")
        self._where.drop(list(self._sent))
        self._ready.extend(self._sent.values())
        self._sent.clear()


def _readings(samples: Samples, chosen: list[int]) -> Iterator[Reading]:
    """How the chosen partitions are read, built in pages: far cheaper than one by one."""
    size, start = FIRST_PAGE, 0
    while start < len(chosen):
        stop = min(start + size, bisect_left(chosen, chosen[start] + SPAN))
        page = chosen[start:stop]
        for number, (graph, key) in zip(page, read_apart(samples, page), strict=True):
            yield Reading(number, graph, key)
        start, size = stop, min(2 * size, PAGE)
