"""Bars for computations: on the schedulers of this process, and on clusters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dask
from dask.callbacks import Callback

from dask_sketch.announcing import SPAN
from dask_sketch.display.progress import progress_bar

LOOK = 0.2  # seconds between two looks at a scheduler
# states of tasks that are still to be done, on clusters and here
_LEFT = ("waiting", "no-worker", "queued", "processing")
_LEFT_HERE = ("waiting", "ready", "running")
_WORDS = "completed"


def computed(
    collections: Sequence[Any], client: Any, progress: bool, name: str, **options: Any
) -> list[Any]:
    """Compute collections together, with a bar if asked for.

    Parameters
    ----------
    collections
        Of Dask.
    client
        Of the cluster that computes; ``None`` for the schedulers of this process.
    progress
        Whether to show a bar, in a notebook or on the standard error stream.
    name
        Of the span of these tasks on a cluster, within ours.
    options
        For ``dask.compute``, or with a client, ``Client.compute``.

    Examples
    --------
    >>> import dask.array as da
    >>> float(computed([da.ones(3, chunks=1).sum()], None, False, "sum")[0])
    3.0
    """
    if client is None:
        with local_progress(progress):
            return list(dask.compute(*collections, **options))
    from distributed import span

    # optimised before: what a span marks is not fused with what it does not
    made = dask.optimize(*collections)
    with span(SPAN, name):
        futures = client.compute(list(made), optimize_graph=False, **options)
        number = span_number()
    return list(follow(client, futures, number, progress))


def span_number() -> str:
    """Identifier of the span that tasks sent now belong to."""
    return str(dask.get_annotations()["span"]["ids"][-1])


def follow(client: Any, future: Any, number: str, progress: bool) -> Any:
    """Result of a future, or results of a list, with a bar if asked for.

    Parameters
    ----------
    client
        That sent it.
    future
        What to wait for.
    number
        Of the span of all tasks that it takes, from :func:`span_number`.
    progress
        Whether to show a bar.
    """
    if progress:
        from distributed import wait

        look = _states_of(number)
        with progress_bar(True) as show:
            while True:
                states = client.run_on_scheduler(look)
                total = sum(states.values())
                show(total - sum(states.get(kind, 0) for kind in _LEFT), total, _WORDS)
                try:
                    wait(future, timeout=LOOK)
                    break
                except TimeoutError:
                    continue
    if isinstance(future, list):
        return [one.result() for one in future]
    return future.result()


def _states_of(number: str) -> Callable[..., dict[str, int]]:
    # a function within one travels by value: the scheduler need not have this package
    def look(dask_scheduler: Any) -> dict[str, int]:
        found = dask_scheduler.extensions["spans"].spans.get(number)
        return {} if found is None else {str(kind): n for kind, n in found.states.items()}

    return look


@contextlib.contextmanager
def local_progress(progress: bool) -> Iterator[None]:
    """A bar of the tasks that the schedulers of this process run until the context ends."""
    if not progress:
        yield
        return
    with progress_bar(True) as show:

        def look(state: dict[str, Any]) -> None:
            done = len(state["finished"])
            show(done, done + sum(len(state[kind]) for kind in _LEFT_HERE), _WORDS)

        with Callback(
            start_state=lambda graph, state: look(state),
            posttask=lambda key, result, graph, state, worker: look(state),
        ):
            yield
