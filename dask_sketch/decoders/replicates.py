"""Independent fits of one sketch: one after the other here, or wherever an executor runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from dask_sketch.decoders.atom_search import find_atom
from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.descent import coarsened, descend, descend_fully, settle
from dask_sketch.decoders.exchange import exchange, prune
from dask_sketch.decoders.greedy import (
    N_ITERATIONS,
    grow_until_explained,
    hard_thresholding,
    matching_pursuit,
)
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.splitting import hierarchical_splitting, n_levels
from dask_sketch.decoders.support import Fit
from dask_sketch.decoders.threads import SERIAL, Threads
from dask_sketch.display.progress import progress_bar
from dask_sketch.features.design import default_n_frequencies
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.sketch import Sketch

# The cost after each iteration: kept as a trace, and passed on to whoever watches.

Progress = Callable[[int, int, float], None]


@contextlib.contextmanager
def watched(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """What to call with done, total and cost: what was given, or a bar for ``True``."""
    if not isinstance(progress, bool):
        yield progress
        return
    with progress_bar(progress) as show:
        yield lambda done, total, cost: show(done, total, f"decoded, cost {cost:.3e}")


class Reporter:
    """What decoders call with the cost after each iteration.

    Parameters
    ----------
    progress
        Called as ``progress(done, total, cost)``, if there is anyone to call.
    total
        Number of iterations to come, at most.

    Attributes
    ----------
    trace
        Costs since the last :meth:`begin`.
    """

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.trace: list[float] = []
        self._progress, self._total, self._done = progress, total, 0

    def begin(self) -> None:
        """A new trace, for the next replicate."""
        self.trace = []

    def __call__(self, cost: float) -> None:
        """Take note of a cost."""
        self.trace.append(cost)
        self._done += 1
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total, cost)


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


# Warm start: from the atoms of an earlier model, for a sketch that has grown (sec. 6.1).
#
# To exchange atoms takes far longer than the descent (64 on speech-like frames, m = 8000: 4.5 CPU
# seconds and 0.3), and a sketch that has grown by a thousandth tells nothing new. So it is tried only
# where the sketch has grown by a fifth since the last search, or the model fits worse than it did.

_GROWN = 1.2  # times the samples at the last search, from which they may show other components
_WORSE = 1.1  # times the excess cost of the earlier model
_NOISE = 0.1  # part of the noise level that the cost may move by itself


def worth_keeping(
    start: GaussianMixture | Centroids | None, noise_level: float
) -> tuple[float, float | None]:
    """Up to which cost the components of an earlier model are kept without a search for others.

    Parameters
    ----------
    start
        The earlier model.
    noise_level
        Of the sketch that is decoded.

    Returns
    -------
    excess
        Cost above the noise level; ``-inf`` where others are to be searched for in any case.
    searched
        Noise level at the search that this relies on; none if there is to be one.
    """
    before = None if start is None else start.decoding
    if before is None:
        return -np.inf, None
    searched = before.noise_level if before.searched is None else before.searched
    if searched > _GROWN * noise_level:
        return -np.inf, None
    excess = max(before.cost - before.noise_level, 0.0)
    return _WORSE * excess + _NOISE * noise_level, searched


def resume(
    objective: Objective,
    weights: Array,
    theta: Array,
    n_components: int,
    rng: np.random.Generator,
    excess: float = -np.inf,
) -> Fit:
    """Descend from given atoms, and exchange those that no longer fit.

    Parameters
    ----------
    objective
        Atoms and cost.
    weights
        Of the earlier model, shape (n,).
    theta
        Its atoms, shape (n, n_parameters), as ``objective.from_data_units`` gives them.
    n_components
        Number ``K`` of atoms; those that the earlier model lacks are found by Step 1, those that
        it has too many of are the ones missed least.
    rng
        Source of the starting points.
    excess
        Cost above the noise level, in the unit of the cost, up to which the atoms are taken to fit
        as they did, so that no exchange is tried.

    Returns
    -------
    fit
        Weights are not normalised.
    """
    theta = np.clip(theta, objective.lower, objective.upper)
    fit = descend(objective, theta, weights)
    while len(fit.theta) < n_components:
        atom = find_atom(objective, objective.residual(fit.weights, fit.theta), rng)
        fit = descend(objective, np.vstack([fit.theta, atom]))
    if len(fit.theta) > n_components:
        fit = descend_fully(objective, prune(objective, fit, n_components))
    else:
        fit = descend_fully(objective, fit.theta, fit.weights)
    if fit.cost - objective.unit <= excess:
        return fit
    return exchange(objective, fit, rng)


# Which search for atoms a method stands for, as a task that can be sent anywhere.


@dataclass(frozen=True)
class Search:
    """A search for the atoms of a sketch; replicates differ in their starting points.

    Attributes
    ----------
    sketch
        What is decoded.
    kind, options
        Class of the objective, and its arguments beside sketch and threads.
    n_components, method, seed
        As of :func:`dask_sketch.decode`.
    start
        Weights, places and variances of an earlier model, in place of a method.
    excess
        Cost above the noise level up to which the atoms of that model stay.
    """

    sketch: Sketch
    kind: type[Objective]
    options: Mapping[str, Any]
    n_components: int | None
    method: str
    start: tuple[Array, Array, Array] | None
    seed: int
    excess: float = -np.inf

    def __call__(
        self, replicate: int, report: Callable[[float], None], threads: Threads
    ) -> tuple[Fit, int]:
        """The fit of one replicate, and the evaluations that it took."""
        rng = np.random.default_rng((self.seed, replicate))
        objective = self.kind(self.sketch, threads=threads, **self.options)
        coarse = self._coarse(objective)
        fit = self._run(coarse, rng, report)
        if coarse is objective:
            return fit, objective.n_evaluations
        fit = settle(objective, fit)
        report(fit.cost)
        return fit, objective.n_evaluations + coarse.n_evaluations

    def n_iterations(self, objective: Objective) -> int:
        """How often each replicate reports, at most."""
        extra = int(self._coarse(objective) is not objective)
        if self.start is not None:
            return 1 + extra
        k = self.n_components
        if k is None:
            return _most_components(objective)
        return {
            "splitting": n_levels(k) + extra,
            "iht": N_ITERATIONS,
            "cl-ompr": 2 * k + extra,
        }.get(self.method, k + extra)

    def _coarse(self, objective: Objective) -> Objective:
        k = self.n_components
        if self.start is not None and k is None:
            k = len(self.start[0])
        # how many components noise leaves room for is a question to all of the sketch
        if k is None or self.method == "iht":
            return objective
        return coarsened(objective, k)

    def _run(
        self, objective: Objective, rng: np.random.Generator, report: Callable[[float], None]
    ) -> Fit:
        k = self.n_components
        if self.start is not None:
            weights, places, variances = self.start
            theta = objective.from_data_units(places, variances)
            fit = resume(objective, weights, theta, k or len(weights), rng, self.excess)
            report(fit.cost)
            return fit
        if k is None:
            return grow_until_explained(objective, _most_components(objective), rng, report)
        if self.method == "splitting":
            return hierarchical_splitting(objective, k, rng, report)
        if self.method == "iht":
            return hard_thresholding(objective, k, rng, report)
        n_iterations = 2 * k if self.method == "cl-ompr" else k
        return matching_pursuit(objective, k, n_iterations, rng, report)


def _most_components(objective: Objective) -> int:
    """The number of components that the frequencies are enough for."""
    return max(objective.n_frequencies // default_n_frequencies(objective.n_features, 1), 1)
