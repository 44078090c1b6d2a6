"""Independent fits of one problem: one after the other in this process, or in an executor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

import numpy as np

from dask_sketch.decoders.problem import Problem, Report
from dask_sketch.display.progress import progress_bar
from dask_sketch.errors import DecodeError
from dask_sketch.validation.threads import SERIAL, Threads, one_blas_thread
from dask_sketch.validation.warn import collect_warnings, issue_warnings

Progress = Callable[[int, int, float], None]
Result = TypeVar("Result")
Fitter = Callable[[Problem, np.random.Generator, Report, Threads], Result]


def require_callables(executor: object, progress: object) -> None:
    """Raise an error for an executor that takes no tasks, or a progress that cannot be called."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise DecodeError(
            f"executor={executor!r}: give a concurrent.futures.Executor, such as "
            "client.get_executor() of a Dask client, or leave it out."
        )
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise DecodeError(
            f"progress={progress!r}: give True for a bar, a function, called as progress(done, "
            "total, cost), or leave it out."
        )


@contextlib.contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """Function of the iterations done, their total, and the cost: the given one, or a bar."""
    if not isinstance(progress, bool):
        yield progress
        return
    with progress_bar(progress) as show:
        yield lambda done, total, cost: show(done, total, f"decoded, cost {cost:.3e}")


class Reporter:
    """Record of the costs after each iteration, which are also shown.

    Parameters
    ----------
    progress
        Function called as ``progress(done, total, cost)``, if any.
    total
        Largest number of iterations.

    Attributes
    ----------
    trace
        Costs of the current replicate.
    """

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.trace: list[float] = []
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, cost: float) -> None:
        """Record a cost."""
        self.trace.append(cost)
        self._done += 1
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total, cost)


def fit_replicates(
    fit: Fitter[Result],
    problem: Problem,
    threads: Threads,
    reporter: Reporter,
    executor: Executor | None = None,
) -> list[tuple[Result, list[float]]]:
    """Results of all replicates with the trace of each, in their order.

    Parameters
    ----------
    fit
        Function ``(problem, rng, report, threads)`` that fits one replicate. For an executor of
        processes it must pickle.
    problem
        Sketch and arguments.
    threads
        Threads that share the work in this process.
    reporter
        Record of costs; with an executor, the costs of a replicate are reported when it has ended.
    executor
        Executor that runs each replicate in one thread; by default they run here.
    """
    results = []
    if executor is None:
        for replicate in range(problem.replicates):
            reporter.trace = []
            result = fit(problem, _generator(problem, replicate), reporter, threads)
            results.append((result, reporter.trace))
        return results
    running = [
        executor.submit(_fit_alone, fit, problem, replicate)
        for replicate in range(problem.replicates)
    ]
    try:
        for future in running:
            result, costs, collected = future.result()
            issue_warnings(collected)
            reporter.trace = []
            for cost in costs:
                reporter(cost)
            results.append((result, reporter.trace))
    finally:
        for future in running:
            future.cancel()
    return results


def _fit_alone(
    fit: Fitter[Result], problem: Problem, replicate: int
) -> tuple[Result, list[float], list[Warning]]:
    """Result, trace and warnings of one replicate, in the process and thread of an executor."""
    trace: list[float] = []
    with one_blas_thread(), collect_warnings() as collected:
        result = fit(problem, _generator(problem, replicate), trace.append, SERIAL)
    return result, trace, collected


def _generator(problem: Problem, replicate: int) -> np.random.Generator:
    return np.random.default_rng((problem.seed, replicate))
