"""Run collections: on a client if there is one, on the schedulers of this process otherwise."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import dask
from dask.base import is_dask_collection
from dask.callbacks import Callback

from dask_sketch.display.progress import Show, progress_bar
from dask_sketch.errors import ChunkError, ClusterError, InputError, SketchError
from dask_sketch.graph.patience import Patience
from dask_sketch.graph.reduction import Combine, Reduction
from dask_sketch.graph.telemetry import TaskSpan, log_pass, open_span
from dask_sketch.sources.samples import Samples

if TYPE_CHECKING:
    from distributed import Client, KilledWorker

AHEAD = 2  # batches on a cluster at a time: workers have tasks while the next graph is built
_PREPARE_TIMEOUT = 300.0  # seconds for workers to compile; a stopped worker never answers
_MAX_LOST = 5  # attempts to prepare all workers, if workers are lost
logger = logging.getLogger(__name__)
POLL_SECONDS = 0.2  # time between two requests to a scheduler
WORKERS_SECONDS = 2.0  # time between two counts of the workers
# states of tasks that are still to be done, on clusters and here
_PENDING = ("waiting", "no-worker", "queued", "processing")
_LOCAL_PENDING = ("waiting", "ready", "running")
_WORDS = "completed"
WORKERS_DIED = (  # the remedy
    "The cause is most often lack of memory: use fewer threads per worker, more memory, or store "
    "the data in smaller chunks."
)


def active_client() -> Client | None:
    """Distributed client that a computation would use now, or ``None``.

    Raises
    ------
    InputError
        If the client is asynchronous, since it would return coroutines rather than results.
    """
    if dask.config.get("scheduler", None) not in (None, "dask.distributed", "distributed"):
        return None
    if "distributed" not in sys.modules:  # then nobody can have made a client
        return None
    from distributed import default_client

    try:
        client = default_client()
    except ValueError:
        return None
    if client.asynchronous:
        raise InputError(
            "the active client is asynchronous (asynchronous=True, or used on its event loop), and "
            "this call waits for results: use `await client.compute(lazy)` for a lazy sketch, a "
            "client with asynchronous=False, or dask.config.set(scheduler='threads').",
            parameter="client",
        )
    return client


@contextlib.contextmanager
def cluster_errors(client: Client | None, collections: Sequence[Any] = ()) -> Iterator[None]:
    """Turn errors of a lost cluster, or of workers that die, into errors of the package.

    Errors of tasks are raised as they are.

    Parameters
    ----------
    client
        Client of the cluster; ``None`` if it is not known whether the computation was sent to a
        cluster.
    collections
        Collections that are computed; those with ``chunk_of`` name the chunk of a task.

    Raises
    ------
    ChunkError
        If workers died of a task; the message names its chunk, where it is known.
    ClusterError
        If the client was closed, the scheduler was lost, or the tasks were cancelled.
    """
    try:
        yield
    except SketchError:
        raise
    except Exception as error:
        if "distributed" not in sys.modules:
            raise
        from distributed import CancelledError, KilledWorker
        from distributed.comm import CommClosedError

        if isinstance(error, KilledWorker):
            raise ChunkError(_describe_killer(error, collections)) from error
        status = "running" if client is None else client.status
        reason = f"({type(error).__name__}: {error})"
        if status == "running" and isinstance(error, CancelledError):
            raise ClusterError(
                f"tasks were cancelled while the cluster computed {reason}: another client, or a "
                "restart, has taken them away. Compute again."
            ) from error
        if status == "running" and not isinstance(error, CommClosedError):
            raise
        lost = f"the client is {status}" if status.startswith("clos") else "the scheduler is lost"
        raise ClusterError(
            f"{lost}, and the computation with it {reason}: connect to a cluster, and compute "
            "again."
        ) from error


def compute_plain(*collections: Any) -> tuple[Any, ...]:
    """Compute Dask collections like ``dask.compute``, with the errors of :func:`cluster_errors`.

    Parameters
    ----------
    collections
        Dask collections, or nested lists of them.

    Returns
    -------
    results
        Result of each collection.

    Raises
    ------
    ChunkError, ClusterError
        If workers died of a task, or the cluster is lost.

    Examples
    --------
    >>> compute_plain(dask.delayed(sum)([1, 2]))
    (3,)
    """
    client = active_client()
    if client is not None and all(map(is_dask_collection, collections)):
        return tuple(compute_together(collections, client, progress=False, span="compute"))
    with cluster_errors(None, collections):
        return tuple(dask.compute(*collections))


def _describe_killer(error: KilledWorker, collections: Sequence[Any]) -> str:
    named = (one.chunk_of(error.task) for one in collections if hasattr(one, "chunk_of"))
    chunk = next((name for name in named if name is not None), f"task {error.task!r}")
    return (
        f"{chunk}: {error.allowed_failures + 1} worker(s) died with it among their tasks, the last "
        f"one at {error.last_worker.address}. {WORKERS_DIED} Their logs may have the reason."
    )


def start_pass(
    samples: Samples, reduction: Reduction, split_every: int, client: Client | None
) -> TaskSpan:
    """Check that a reduction fits in memory, prepare the workers, and report the pass.

    Parameters
    ----------
    samples, reduction, split_every
        Computation that begins.
    client
        Client of the cluster that computes; ``None`` for the schedulers of this process.

    Returns
    -------
    span
        Span of the tasks that are sent.

    Raises
    ------
    PlanError
        If the computation cannot fit in memory.
    ArtifactError
        If a worker samples other frequencies than the client, or has different kernels.
    ClusterError
        If the client was closed, or the scheduler is lost.
    """
    with cluster_errors(client):
        if reduction.require_fit is not None:
            reduction.require_fit(samples, split_every, client)
        if client is not None and reduction.prepare is not None:
            _prepare_workers(client, reduction)
        if reduction.feature_map is None:
            return open_span(client, reduction.name)
        span = open_span(client)
        log_pass(client, span, samples, reduction.feature_map)
    return span


def _prepare_workers(client: Client, reduction: Reduction) -> None:
    """Sample the frequencies and compile on every worker that answers, before data is read."""
    for _ in range(_MAX_LOST):
        try:
            answers = client.run(
                reduction.prepare_worker, on_error="return", callback_timeout=_PREPARE_TIMEOUT
            )
            break
        except TimeoutError:
            logger.warning(
                "not every worker was prepared within %.0f s: a worker may have stopped",
                _PREPARE_TIMEOUT,
            )
            return
        except OSError as error:  # a worker was lost meanwhile: try again with the others
            logger.warning("a worker was lost while workers were prepared: %s", error)
    else:
        return  # each worker compiles with its first chunk
    for answer in answers.values():
        if isinstance(answer, Exception) and not isinstance(answer, OSError):
            raise answer  # an OSError only says that this worker was lost just now


def compute_together(
    collections: Sequence[Any],
    client: Client | None,
    progress: bool | Show,
    span: TaskSpan | str,
    **options: Any,
) -> list[Any]:
    """Compute collections together.

    Parameters
    ----------
    collections
        Dask collections.
    client
        Client of the cluster that computes; ``None`` for the schedulers of this process.
    progress
        Whether to show a bar, in a notebook or on the standard error stream; or a function that
        shows the progress in its place.
    span
        Span of the tasks on a cluster, or the name of a new one.
    options
        Keyword arguments of ``dask.compute``, or with a client, of ``Client.compute``.

    Raises
    ------
    ChunkError, ClusterError
        If workers died of a task, or the cluster is lost; see :func:`cluster_errors`.

    Examples
    --------
    >>> import dask.array as da
    >>> float(compute_together([da.ones(3, chunks=1).sum()], None, progress=False, span="sum")[0])
    3.0
    """
    if client is None:
        with local_progress(progress), cluster_errors(None, collections):
            return list(dask.compute(*collections, **options))
    if isinstance(span, str):
        span = open_span(client, span)
    sent = collections
    if options.pop("optimize_graph", True):
        # optimised before: tasks inside a span are not fused with tasks outside
        sent = dask.optimize(*collections)
    with cluster_errors(client, collections):
        with span.mark():
            futures = client.compute(list(sent), optimize_graph=False, **options)
        return list(wait_for(client, futures, span, progress))


def compute_in_batches(
    batches: Iterable[Any],
    n_batches: int,
    combine: Combine,
    client: Client | None,
    span: TaskSpan,
    progress: bool | Show,
    options: dict[str, Any],
) -> Any:
    """Compute batches of chunks, one graph after another, and combine their results here.

    The graph of each batch is built when it is needed. At most two batches are on the cluster: the
    result of a batch leaves it and is added to one running sum before another batch is sent. After
    an error or an interrupt, no task of the computation is left on the cluster.

    Parameters
    ----------
    batches
        Dask collections with one partial result each, or ``None``.
    n_batches
        Number of batches.
    combine
        Function of a list of partial results.
    client
        Client of a cluster, ``None`` for the schedulers of this process.
    span
        Span of the tasks on a cluster.
    progress
        Whether to show a bar, in a notebook or on the standard error stream; or a function that
        shows the progress in its place.
    options
        Keyword arguments of ``Client.compute`` or ``dask.compute``.

    Returns
    -------
    total
        Combined partial result; ``None`` if all results are ``None``.

    Raises
    ------
    ChunkError, ClusterError
        If workers died of a task, or the cluster is lost; see :func:`cluster_errors`.
    """
    total = None
    run = _local(batches, options) if client is None else _on(client, batches, span, options)
    with progress_bar(progress) as show, contextlib.closing(run) as results:
        for done, result in enumerate(results, 1):
            if result is not None:
                total = result if total is None else combine([total, result])
            show(done, n_batches, f"completed, {done:,} of {n_batches:,} batches")
    return total


def _local(batches: Iterable[Any], options: dict[str, Any]) -> Generator[Any, None, None]:
    for batch in batches:
        with cluster_errors(None, [batch]):
            result = dask.compute(batch, **options)[0]
        yield result


def _on(
    client: Client, batches: Iterable[Any], span: TaskSpan, options: dict[str, Any]
) -> Generator[Any, None, None]:
    waiting: deque[tuple[Any, Any]] = deque()  # futures, and the collections that they compute
    try:
        for batch in batches:
            # optimise in this process: the scheduler is busy, and should get only the tasks of
            # this batch, and not all layers of the input
            (optimised,) = dask.optimize(batch)
            with cluster_errors(client), span.mark():
                future = client.compute(optimised, optimize_graph=False, **options)
            waiting.append((future, batch))
            del batch, optimised, future
            if len(waiting) == AHEAD:
                yield _result_of(client, *waiting[0])
                waiting.popleft()
        while waiting:
            yield _result_of(client, *waiting[0])
            waiting.popleft()
    finally:
        if client.status == "running":
            client.cancel([future for future, _ in waiting])


def _result_of(client: Client, future: Any, batch: Any) -> Any:
    with cluster_errors(client, [batch]):
        _wait(client, future, WORKERS_SECONDS)
        return future.result()


# Progress of tasks.


def wait_for(client: Client, future: Any, span: TaskSpan, progress: bool | Show) -> Any:
    """Wait for a future, or a list of futures, and return the results.

    Parameters
    ----------
    client
        Client that sent the tasks.
    future
        Future, or list of futures.
    span
        Span of all tasks of the futures.
    progress
        Whether to show a bar, in a notebook or on the standard error stream; or a function that
        shows the progress in its place.
    """
    if progress:
        count_states = _states_of(span.number)
        with progress_bar(progress) as show:

            def show_states() -> None:
                states = client.run_on_scheduler(count_states)
                total = sum(states.values())
                show(total - sum(states.get(state, 0) for state in _PENDING), total, _WORDS)

            show_states()
            _wait(client, future, POLL_SECONDS, show_states)
            show_states()
    else:
        _wait(client, future, WORKERS_SECONDS)
    if isinstance(future, list):
        return [each.result() for each in future]
    return future.result()


def _wait(
    client: Client, future: Any, seconds: float, report: Callable[[], None] = lambda: None
) -> None:
    """Wait for a future or futures; cancel them if there are no workers for too long."""
    patience, checked = Patience("compute-timeout"), time.monotonic()
    for each in future if isinstance(future, list) else [future]:
        # Not by `distributed.wait` with a timeout: its error holds futures, and so their results on
        # the cluster, until garbage is collected.
        ended = threading.Event()
        each.add_done_callback(partial(_set, ended))
        while not ended.wait(seconds):
            report()
            if client.status == "running" and time.monotonic() > checked + WORKERS_SECONDS:
                checked = time.monotonic()
                try:
                    patience.count_threads(client)
                except ClusterError:
                    client.cancel(future)
                    raise


def _set(event: threading.Event, future: Any) -> None:
    """Callback of a future that has ended."""
    del future
    event.set()


def _states_of(number: str) -> Callable[..., dict[str, int]]:
    # a nested function is pickled by value, so that the scheduler does not need this package
    def count_states(dask_scheduler: Any) -> dict[str, int]:
        span = dask_scheduler.extensions["spans"].spans.get(number)
        return {} if span is None else {str(state): n for state, n in span.states.items()}

    return count_states


@contextlib.contextmanager
def local_progress(progress: bool | Show) -> Iterator[None]:
    """Show a bar of the tasks that the schedulers of this process run inside the context."""
    if not progress:
        yield
        return
    with progress_bar(progress) as show:

        def update(state: dict[str, Any]) -> None:
            done = len(state["finished"])
            show(done, done + sum(len(state[name]) for name in _LOCAL_PENDING), _WORDS)

        with Callback(
            start_state=lambda graph, state: update(state),
            posttask=lambda key, result, graph, state, worker: update(state),
        ):
            yield
