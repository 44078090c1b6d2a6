"""Mixtures from a finer density: fit more atoms than components, then reduce them.

If the data is a mixture of as many Gaussians as are asked for, least squares finds them. If it is
not, such as speech, least squares and maximum likelihood disagree about the components that
represent it best: least squares weighs errors of the density by its square, and puts atoms where
the data is densest; maximum likelihood weighs them by mass, and covers all of the data. The sketch
holds more about the data than either solution shows: on 64 generated voices (K = 64, d = 12, m =
10,000), the residual of 64 Gaussians is ten times the noise.

Therefore the number of atoms is doubled until noise explains the residual of the sketch. Each atom
has one parameter for its width, so that there can be many. The components have the greatest
likelihood for that density, by expectation-maximisation on points sampled from it. Many densities
explain a sketch: several replicates are pooled, since their random errors differ. A fit of 512
atoms takes 8 CPU seconds, and 22 by ``"splitting"`` into 64.
"""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.descent import coarse_objective, descend
from dask_sketch.decoders.greedy import hierarchical_splitting, n_levels
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.optimizers import StoppingRule
from dask_sketch.decoders.problem import Problem, Report, Solution, require_weight
from dask_sketch.features.pilot_fit import fit_pilot
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.validation.threads import Threads

_FINE = StoppingRule(tolerance=1e-5, n_iterations=100)
_POINTS = 60_000  # points that represent the density


def max_atoms(n_features: int, n_frequencies: int) -> int:
    """Number of atoms that have as many parameters as the sketch has numbers.

    Examples
    --------
    >>> max_atoms(n_features=12, n_frequencies=10_000)
    1428
    """
    return 2 * n_frequencies // (n_features + 2)


def fit_replicate(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Solution:
    """Density of one replicate; a row of :data:`dask_sketch.decoders.methods.TABLE`."""
    n_components = problem.required_size
    objective = Objective(
        problem.sketch,
        "scaled",
        box=problem.box,
        variance_floor=problem.variance_floor,
        threads=threads,
    )
    # as many atoms as components find all clusters, on a part of the frequencies
    coarse = coarse_objective(objective, n_components)
    fit = hierarchical_splitting(coarse, n_components, rng, report)
    fit = descend(objective, fit.theta, stop=_FINE)
    report(fit.cost)
    limit = max_atoms(problem.n_features, problem.n_frequencies)
    while fit.cost > objective.unit and 2 * len(fit.theta) <= limit:
        fit = descend(objective, objective.space.split(fit.theta), stop=_FINE)
        report(fit.cost)
    require_weight(fit.weights)
    means, variances = objective.space.to_data_units(fit.theta)
    evaluated = objective.n_evaluations
    return Solution(
        weights=fit.weights / fit.weights.sum(),
        means=means,
        variances=variances,
        cost=fit.cost,
        noise_level=objective.noise_level,
        converged=fit.converged,
        message=fit.message,
        n_evaluations=evaluated + (0 if coarse is objective else coarse.n_evaluations),
    )


def reduce_densities(
    problem: Problem, densities: list[Solution], threads: Threads, report: Report
) -> Solution:
    """Mixture of greatest likelihood for the pooled densities of all replicates."""
    n_components = problem.required_size
    each = -(-max(_POINTS, n_components) // len(densities))
    points = np.concatenate(
        [_sample(density, each, problem.seed + i) for i, density in enumerate(densities)]
    )
    reduced = fit_pilot(points, n_components, problem.seed)
    order = np.argsort(-reduced.weights, kind="stable")
    weights, means = reduced.weights[order], reduced.means[order]
    variances = reduced.variances[order]
    objective = Objective(
        problem.sketch, "gaussian", variance_floor=problem.variance_floor, threads=threads
    )
    cost = objective.cost(weights, objective.space.from_data_units(means, variances))
    best = min(densities, key=lambda density: density.cost)
    return Solution(
        weights=weights,
        means=means,
        variances=variances,
        cost=cost,
        noise_level=objective.noise_level,
        converged=best.converged,
        message=best.message,
        n_evaluations=sum(density.n_evaluations for density in densities),
    )


def _sample(density: Solution, n_samples: int, seed: int) -> Array:
    assert density.variances is not None  # atoms have a width
    mixture = GaussianMixture(density.weights, density.means, density.variances)
    return mixture.sample(n_samples, seed=seed)


def count_reports(problem: Problem) -> int:
    """Largest number of reports of one replicate."""
    n_components = problem.required_size
    doublings = max_atoms(problem.n_features, problem.n_frequencies) // n_components
    return n_levels(n_components) + max(doublings, 1).bit_length()
