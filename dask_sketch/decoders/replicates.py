"""Independent fits of one sketch: one after the other here, or wherever an executor runs them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from threadpoolctl import threadpool_limits

from dask_sketch.decoders.reporter import Reporter
from dask_sketch.decoders.threads import SERIAL, Threads

Found = TypeVar("Found")
Task = Callable[[int, Callable[[float], None], Threads], Found]


def fit_all(
    task: Task[Found],
    replicates: int,
    executor: Executor | None,
    threads: Threads,
    reporter: Reporter,
) -> list[tuple[Found, list[float]]]:
    """What all replicates find, with the trace of each, in their order.

    Parameters
    ----------
    task
        Called with the number of a replicate, what it reports costs to, and threads to use; for an
        executor of processes it must pickle.
    replicates
        How many.
    executor
        Runs each replicate in one thread; they run here, on ``threads``, when not given.
    threads
        What shares the work here.
    reporter
        Told of costs; with an executor when a replicate has ended.
    """
    found = []
    if executor is None:
        for replicate in range(replicates):
            reporter.begin()
            found.append((task(replicate, reporter, threads), reporter.trace))
        return found
    running = [executor.submit(_apart, task, replicate) for replicate in range(replicates)]
    try:
        for future in running:
            result, costs = future.result()
            reporter.begin()
            for cost in costs:
                reporter(cost)
            found.append((result, reporter.trace))
    finally:
        for future in running:
            future.cancel()
    return found


def _apart(task: Task[Found], replicate: int) -> tuple[Found, list[float]]:
    trace: list[float] = []
    with threadpool_limits(1, user_api="blas"):
        return task(replicate, trace.append, SERIAL), trace
