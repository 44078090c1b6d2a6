"""What a computation did: its tasks and its time, to be held against the plan."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dask.utils import key_split


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
