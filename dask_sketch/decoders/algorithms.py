"""Which search for atoms a method stands for, as a task that can be sent anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_sketch.decoders.clomp import grow_until_explained, matching_pursuit
from dask_sketch.decoders.coarse import coarsened, settle
from dask_sketch.decoders.families import Array
from dask_sketch.decoders.iht import N_ITERATIONS, hard_thresholding
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.splitting import hierarchical_splitting, n_levels
from dask_sketch.decoders.support import Fit
from dask_sketch.decoders.threads import Threads
from dask_sketch.decoders.warm import resume
from dask_sketch.features.size import default_n_frequencies
from dask_sketch.sketching.sketch import Sketch


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
