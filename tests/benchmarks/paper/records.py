"""One record per fit, and the fits of an experiment spread over processes."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median
from typing import Any, TypeVar

import numpy as np

from dask_sketch import FeatureMap, decode, sketch

T = TypeVar("T")

Setting = dict[str, Any]  # the columns that tell one line of a table from another
REFERENCES = ("EM", "EM from the truth", "EM of factor analysers", "Lloyd")


@dataclass(frozen=True)
class Run:
    """One figure of one method on one draw.

    ``paper`` is the number that the paper prints for this line, if it prints one, and ``bound``
    what no estimator is expected to beat. ``seconds`` is the process CPU time of the fit alone.
    The setting of a reference has only what it depends on: EM knows nothing of frequencies.
    """

    setting: Setting
    method: str
    seed: int
    value: float
    seconds: float | None = None
    paper: float | None = None
    bound: float | None = None


Job = Callable[[], list[Run]]


@dataclass(frozen=True)
class Line:
    """All draws of one method in one setting."""

    setting: Setting
    method: str
    runs: tuple[Run, ...]

    @property
    def values(self) -> list[float]:
        return [run.value for run in self.runs]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def highest(self) -> float:
        return max(self.values)

    @property
    def nine_of_ten(self) -> float:
        """Smallest value that nine of ten draws do not exceed."""
        return sorted(self.values)[-(-9 * len(self.values) // 10) - 1]

    @property
    def seconds(self) -> float | None:
        """Mean CPU seconds of a fit."""
        spent = [run.seconds for run in self.runs if run.seconds is not None]
        return fmean(spent) if spent else None

    @property
    def bound(self) -> float | None:
        bounds = [run.bound for run in self.runs if run.bound is not None]
        return fmean(bounds) if bounds else None

    @property
    def paper(self) -> float | None:
        return self.runs[0].paper


def lines(runs: Iterable[Run]) -> list[Line]:
    """Records grouped by setting and method, in the order in which each first appears."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault((*run.setting.items(), run.method), []).append(run)
    return [Line(group[0].setting, group[0].method, tuple(group)) for group in groups.values()]


def select(runs: Iterable[Run], **setting: Any) -> list[Run]:
    """The records whose setting has these values."""
    return [run for run in runs if setting.items() <= run.setting.items()]


def timed(fit: Callable[[], T]) -> tuple[T, float]:
    """Call ``fit``; return its result and the process CPU seconds that it took."""
    start = time.process_time()
    result = fit()
    return result, time.process_time() - start


def perform(jobs: Iterable[Job], workers: int) -> Iterator[list[Run]]:
    """The records of each job, in order; ``workers=0`` runs them in this process."""
    compile_once()
    if not workers:
        yield from (job() for job in jobs)
        return
    # spawned, since NumPy and numba have threads by now
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare) as pool:
        yield from pool.map(_call, jobs)


def _call(job: Job) -> list[Run]:
    return job()


def _prepare() -> None:
    # poor fits and few frequencies, which the library warns of, are what is measured here
    warnings.simplefilter("ignore", UserWarning)
    compile_once()


@cache
def compile_once() -> None:
    """Have the compiled code ready, so that no fit is charged for it."""
    x = np.random.default_rng(0).normal(size=(2000, 2))
    x[1000:] += 8.0
    summary = sketch(x, FeatureMap(2, 40, scale=1.0, distribution="gaussian"))
    decode(summary, 2, refine="efficient")
    decode(summary, 2, model="dirac")
    decode(summary, 2, method="sketch-shift")
