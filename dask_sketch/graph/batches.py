"""A pass in batches: graphs that a scheduler can hold, one after the other, and one running sum."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import dask
from dask.base import DaskMethodsMixin

from dask_sketch import config
from dask_sketch.announcing import announce
from dask_sketch.display.progress import progress_bar
from dask_sketch.errors import InputError

if TYPE_CHECKING:
    from dask_sketch.graph.one_pass import LazySketch

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
