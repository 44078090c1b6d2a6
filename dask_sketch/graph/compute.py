"""Running a lazy sketch: on a client if there is one, on local threads otherwise."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import dask
from dask.base import DaskMethodsMixin

from dask_sketch import config
from dask_sketch.display.progress import progress_bar
from dask_sketch.errors import InputError
from dask_sketch.graph.executors import active_client
from dask_sketch.graph.progress import computed, follow, span_number
from dask_sketch.graph.telemetry import announce

if TYPE_CHECKING:
    from dask_sketch.graph.lazy import LazySketch

# A pass in batches: graphs that a scheduler can hold, one after the other, and one running sum.

AHEAD = 2  # batches on a cluster at a time: workers have tasks while the next graph is built


def batch_chunks(n_chunks: int, split_every: int) -> int | None:
    """Chunks of one batch, or ``None`` where all of them fit in one graph.

    As many as ``sketch.batch-tasks``: merges are exact, so that batches of any size have the bits
    of the pass in one graph.

    Parameters
    ----------
    n_chunks
        Chunks in all.
    split_every
        Fan-in of the merges.

    Raises
    ------
    InputError
        If ``sketch.task-limit`` or ``sketch.batch-tasks`` is not a positive whole number.

    Examples
    --------
    >>> batch_chunks(1000, 16), batch_chunks(10**6, 16), batch_chunks(10**6, 10)
    (None, 5000, 5000)
    """
    limit, most = (_positive(key) for key in ("task-limit", "batch-tasks"))
    if n_chunks + count_merges(n_chunks, split_every) <= limit:
        return None
    return most if most < n_chunks else None


def _positive(key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise InputError(f"sketch.{key} is {value!r}: set a whole number of at least 1.")
    return value


def count_merges(n_chunks: int, split_every: int) -> int:
    """Merge tasks of a tree over ``n_chunks`` leaves; there is one even over a single leaf.

    Examples
    --------
    >>> count_merges(40, 16), count_merges(1, 16)
    (4, 1)
    """
    total, width = 0, max(n_chunks, 1)
    while width > 1 or total == 0:
        width = -(-width // split_every)
        total += width
    return total


def compute_in_batches(
    lazy: LazySketch, size: int, client: Any, progress: bool, options: dict[str, Any]
) -> Any:
    """Compute a lazy sketch in batches of ``size`` chunks.

    Every batch is a graph of its own, built when its turn comes. Its result is merged here, into
    one running sum, and leaves the cluster, before the next but one is sent. After an error or an
    interrupt nothing of it is left on the cluster.

    Parameters
    ----------
    lazy
        What to compute.
    size
        From :func:`batch_chunks`.
    client
        Client of a cluster, ``None`` for the schedulers of this process.
    progress
        Show a bar, in a notebook or on the standard error stream.
    options
        For ``Client.compute`` or ``dask.compute``.

    Returns
    -------
    sketch
        Or sketches of groups, with the bits of a pass in one graph; of no samples, if there are
        none.
    """
    n_chunks = lazy.samples.n_chunks
    batches = [range(i, min(i + size, n_chunks)) for i in range(0, n_chunks, size)]
    total = lazy.merge([])
    run = _here(lazy, batches, options) if client is None else _on(client, lazy, batches, options)
    with progress_bar(progress) as show, contextlib.closing(run) as results:
        for done, result in enumerate(results, 1):
            total = lazy.merge([total, result])
            show(done, len(batches), f"completed, {done:,} of {len(batches):,} batches")
    return total


def _here(
    lazy: LazySketch, batches: list[range], options: dict[str, Any]
) -> Generator[Any, None, None]:
    for chosen in batches:
        # the method of the mixin, which LazySketch.compute stands before
        yield DaskMethodsMixin.compute(lazy.part(chosen), **options)


def _on(
    client: Any, lazy: LazySketch, batches: list[range], options: dict[str, Any]
) -> Generator[Any, None, None]:
    waiting: deque[Any] = deque()
    mark = announce(client, lazy.samples, lazy.feature_map)
    try:
        for chosen in batches:
            # optimised here: the scheduler, which has the most to do, gets the tasks of this batch
            # and not all layers of the input
            (part,) = dask.optimize(lazy.part(chosen))
            with mark():
                waiting.append(client.compute(part, optimize_graph=False, **options))
            del part
            if len(waiting) == AHEAD:
                yield waiting[0].result()
                waiting.popleft()
        while waiting:
            yield waiting[0].result()
            waiting.popleft()
    finally:
        client.cancel(list(waiting))


logger = logging.getLogger(__name__)


def run(lazy: LazySketch, *, progress: bool = False, **kwargs: Any) -> Any:
    """Compute a lazy sketch, after the plan agreed and the workers are ready.

    Raises
    ------
    PlanError
        If the largest chunk cannot fit.
    ArtifactError
        If a worker draws other frequencies than the client.

    Parameters
    ----------
    lazy
        What to compute.
    progress
        Show a bar, in a notebook or on the standard error stream.
    kwargs
        Passed on to ``Client.compute`` or ``dask.compute``.
    """
    from dask_sketch.graph.plan import make_plan

    client = None if "scheduler" in kwargs else active_client()
    make_plan(lazy.samples, lazy.feature_map, lazy.split_every, client=client).require_fit()
    if client is not None:
        # frequencies drawn, digest checked and kernels compiled on every worker before data is read
        client.run(lazy.prepare)
        # retries go to the client: as an annotation they are lost when the graph is optimised,
        # https://github.com/dask/dask/issues/7036
        kwargs.setdefault("retries", config.get("retries"))
    size = batch_chunks(lazy.samples.n_chunks, lazy.split_every)
    if size is not None and not lazy.rebuilt:
        return lazy.complete(compute_in_batches(lazy, size, client, progress, kwargs))
    if client is None:
        return computed([lazy], None, progress, "sketch", **kwargs)[0]
    if kwargs.pop("optimize_graph", True):
        (lazy,) = dask.optimize(lazy)
    with announce(client, lazy.samples, lazy.feature_map)():
        future = client.compute(lazy, optimize_graph=False, **kwargs)
        number = span_number()
    return follow(client, future, number, progress)
