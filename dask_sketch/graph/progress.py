"""Bars for computations: on the schedulers of this process, and on clusters."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask
from dask.callbacks import Callback
from dask.utils import key_split

from dask_sketch.display.progress import progress_bar
from dask_sketch.graph.telemetry import SPAN

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


# What a computation did: its tasks and its time, to be held against the plan.


@dataclass
class Watch:
    """Filled in when the computation has ended.

    Attributes
    ----------
    tasks
        Number of tasks that ran, by name.
    seconds
        Wall time.
    busy_seconds
        Time that tasks ran, summed over threads.
    """

    tasks: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    busy_seconds: float = 0.0

    @property
    def n_tasks(self) -> int:
        """Number of tasks that ran."""
        return sum(self.tasks.values())

    def __str__(self) -> str:
        names = ", ".join(f"{count:,} {name}" for name, count in self.tasks.items())
        return f"{self.n_tasks:,} ({names})" if names else "0"


@contextlib.contextmanager
def watch(client: Any = None) -> Iterator[Watch]:
    """Count and time the tasks that run inside the ``with`` block.

    Parameters
    ----------
    client
        Client of the cluster that computes; none for the schedulers of this process.

    Examples
    --------
    >>> import dask.array as da
    >>> with watch() as seen:
    ...     _ = da.ones(10, chunks=5).sum().compute(scheduler="threads")
    >>> seen.n_tasks
    3
    """
    seen = Watch()
    start = time.perf_counter()
    if client is None:
        from dask.diagnostics import Profiler

        with Profiler() as profiler:
            yield seen
            seen.seconds = time.perf_counter() - start
        ran = [
            (task.key, task.end_time - task.start_time)
            for task in profiler.results
            if type(task.task).__name__ != "Alias"  # a second name of a task, and no work
        ]
    else:
        from distributed import get_task_stream

        with get_task_stream(client) as stream:
            yield seen
            seen.seconds = time.perf_counter() - start
        ran = [
            (
                task["key"],
                sum(s["stop"] - s["start"] for s in task["startstops"] if s["action"] == "compute"),
            )
            for task in stream.data
        ]
    # most frequent first
    seen.tasks = dict(Counter(_name(key) for key, _ in ran).most_common())
    seen.busy_seconds = float(sum(span for _, span in ran))


def _name(key: Any) -> str:
    name = str(key_split(key))
    return "finalize" if name.startswith("finalize") else name
