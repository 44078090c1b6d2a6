"""Show the progress of computations: on the schedulers of this process, and on clusters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from dask.callbacks import Callback

from dask_sketch.display.progress import progress_bar
from dask_sketch.graph.telemetry import TaskSpan

POLL_SECONDS = 0.2  # between two questions to a scheduler
# states of tasks that are still to be done, on clusters and here
_TODO = ("waiting", "no-worker", "queued", "processing")
_TODO_HERE = ("waiting", "ready", "running")
_WORDS = "completed"


def wait_for(client: Any, future: Any, span: TaskSpan, progress: bool) -> Any:
    """Result of a future, or results of a list of futures.

    Parameters
    ----------
    client
        Client that sent the tasks.
    future
        Future, or list of futures.
    span
        Span of all tasks of the futures.
    progress
        Whether to show a bar, in a notebook or on the standard error stream.
    """
    if progress:
        from distributed import wait

        count_states = _states_of(span.number)
        with progress_bar(True) as show:
            while True:
                states = client.run_on_scheduler(count_states)
                total = sum(states.values())
                show(total - sum(states.get(state, 0) for state in _TODO), total, _WORDS)
                try:
                    wait(future, timeout=POLL_SECONDS)
                    break
                except TimeoutError:
                    continue
    if isinstance(future, list):
        return [one.result() for one in future]
    return future.result()


def _states_of(number: str) -> Callable[..., dict[str, int]]:
    # a nested function is pickled by value: the scheduler need not have this package
    def count_states(dask_scheduler: Any) -> dict[str, int]:
        found = dask_scheduler.extensions["spans"].spans.get(number)
        return {} if found is None else {str(state): n for state, n in found.states.items()}

    return count_states


@contextlib.contextmanager
def local_progress(progress: bool) -> Iterator[None]:
    """Show a bar of the tasks that the schedulers of this process run inside the context."""
    if not progress:
        yield
        return
    with progress_bar(True) as show:

        def update(state: dict[str, Any]) -> None:
            done = len(state["finished"])
            show(done, done + sum(len(state[todo]) for todo in _TODO_HERE), _WORDS)

        with Callback(
            start_state=lambda graph, state: update(state),
            posttask=lambda key, result, graph, state, worker: update(state),
        ):
            yield
