"""Run collections: on a client if there is one, on the schedulers of this process otherwise."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dask
from dask.callbacks import Callback

from dask_sketch.display.progress import Show, progress_bar
from dask_sketch.graph.reduction import Combine, Reduction
from dask_sketch.graph.telemetry import TaskSpan, log_pass, open_span
from dask_sketch.sources.samples import Samples

if TYPE_CHECKING:
    from distributed import Client

AHEAD = 2  # batches on a cluster at a time: workers have tasks while the next graph is built
_PREPARE_TIMEOUT = 300.0  # seconds for workers to compile; a stopped worker never answers
_MAX_LOST = 5  # attempts to prepare all workers, if workers are lost
logger = logging.getLogger(__name__)
POLL_SECONDS = 0.2  # between two questions to a scheduler
# states of tasks that are still to be done, on clusters and here
_PENDING = ("waiting", "no-worker", "queued", "processing")
_LOCAL_PENDING = ("waiting", "ready", "running")
_WORDS = "completed"


def active_client() -> Client | None:
    """Distributed client that a computation would use now, or ``None``."""
    if dask.config.get("scheduler", None) not in (None, "dask.distributed", "distributed"):
        return None
    if "distributed" not in sys.modules:  # then nobody can have made a client
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


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
    """
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

    Examples
    --------
    >>> import dask.array as da
    >>> float(compute_together([da.ones(3, chunks=1).sum()], None, progress=False, span="sum")[0])
    3.0
    """
    if client is None:
        with local_progress(progress):
            return list(dask.compute(*collections, **options))
    if isinstance(span, str):
        span = open_span(client, span)
    if options.pop("optimize_graph", True):
        # optimised before: tasks inside a span are not fused with tasks outside
        collections = dask.optimize(*collections)
    with span.mark():
        futures = client.compute(list(collections), optimize_graph=False, **options)
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
        yield dask.compute(batch, **options)[0]


def _on(
    client: Client, batches: Iterable[Any], span: TaskSpan, options: dict[str, Any]
) -> Generator[Any, None, None]:
    waiting: deque[Any] = deque()
    try:
        for batch in batches:
            # optimise in this process: the scheduler is busy, and should get only the tasks of
            # this batch, and not all layers of the input
            (optimised,) = dask.optimize(batch)
            with span.mark():
                waiting.append(client.compute(optimised, optimize_graph=False, **options))
            del batch, optimised
            if len(waiting) == AHEAD:
                yield waiting[0].result()
                waiting.popleft()
        while waiting:
            yield waiting[0].result()
            waiting.popleft()
    finally:
        client.cancel(list(waiting))


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
        from distributed import wait

        count_states = _states_of(span.number)
        with progress_bar(progress) as show:
            while True:
                states = client.run_on_scheduler(count_states)
                total = sum(states.values())
                show(total - sum(states.get(state, 0) for state in _PENDING), total, _WORDS)
                try:
                    wait(future, timeout=POLL_SECONDS)
                    break
                except TimeoutError:
                    continue
    if isinstance(future, list):
        return [one.result() for one in future]
    return future.result()


def _states_of(number: str) -> Callable[..., dict[str, int]]:
    # a nested function is pickled by value, so that the scheduler does not need this package
    def count_states(dask_scheduler: Any) -> dict[str, int]:
        found = dask_scheduler.extensions["spans"].spans.get(number)
        return {} if found is None else {str(state): n for state, n in found.states.items()}

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
