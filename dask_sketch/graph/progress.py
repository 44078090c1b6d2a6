"""Bars for computations: on the schedulers of this process, and on clusters."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import dask
from dask.callbacks import Callback

from dask_sketch.display.notebook import in_notebook
from dask_sketch.display.progress import progress_bar


def computed(collections: Sequence[Any], client: Any, progress: bool, **options: Any) -> list[Any]:
    """Compute collections together, with a bar if asked for.

    Parameters
    ----------
    collections
        Of Dask.
    client
        Of the cluster that computes; ``None`` for the schedulers of this process.
    progress
        Whether to show a bar.
    options
        For ``dask.compute``, or with a client, ``Client.compute``.

    Examples
    --------
    >>> import dask.array as da
    >>> float(computed([da.ones(3, chunks=1).sum()], None, False)[0])
    3.0
    """
    if client is None:
        with local_progress(progress):
            return list(dask.compute(*collections, **options))
    return list(follow(client.compute(list(collections), **options), progress))


def follow(future: Any, progress: bool) -> Any:
    """Result of a future, or results of a list, with a bar of all tasks if asked for."""
    if progress:
        from distributed import progress as bar

        # results alone go to standard output; a notebook shows the standard error in red
        out = sys.stdout if in_notebook() else sys.stderr
        with contextlib.redirect_stdout(out):
            bar(future, notebook=False)
            out.write("\n")
    if isinstance(future, list):
        return [one.result() for one in future]
    return future.result()


@contextlib.contextmanager
def local_progress(progress: bool) -> Iterator[None]:
    """A bar of the tasks that the schedulers of this process run until the context ends."""
    if not progress:
        yield
        return
    with progress_bar(True) as show:

        def look(state: dict[str, Any]) -> None:
            done = len(state["finished"])
            left = sum(len(state[kind]) for kind in ("ready", "waiting", "running"))
            show(done, done + left, f"completed, {done:,} of {done + left:,} tasks")

        with Callback(
            start_state=lambda graph, state: look(state),
            posttask=lambda key, result, graph, state, worker: look(state),
        ):
            yield
