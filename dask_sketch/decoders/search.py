"""Search for the atoms of a sketch, coarse to fine; then merge, refine and order them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.descent import (
    Fit,
    coarse_objective,
    converge_from_coarse,
    descend_fully,
    n_coarse_frequencies,
)
from dask_sketch.decoders.efficient import refine_efficiently
from dask_sketch.decoders.greedy import n_resolvable
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.pilot_start import pilot_start
from dask_sketch.decoders.problem import Problem, Report, Solution, require_weight
from dask_sketch.decoders.swap_moves import merge_coincident
from dask_sketch.decoders.threads import Threads
from dask_sketch.decoders.warm_start import acceptable_cost, converge_nearby, warm_start
from dask_sketch.validation.warn import warn_user

# Fraction of the variance floor down to which efficient refinement may lower variances.
_REFINED_FLOOR = 0.1
_THIN = 1e-5  # fraction of the variance of the data below which a component has almost no width
# CPU seconds for each parameter and frequency of a search, and for each product of a refinement.
_SEARCH_SECONDS, _REFINE_SECONDS = 2e-6, 1.2e-10
Algorithm = Callable[[Objective, Any, np.random.Generator, Report], Fit]


def search_atoms(
    problem: Problem,
    rng: np.random.Generator,
    report: Report,
    threads: Threads,
    *,
    algorithm: Algorithm,
    coarse: bool = True,
    from_pilot: bool = True,
) -> Fit:
    """Fit of one replicate by an algorithm that searches for atoms.

    Parameters
    ----------
    problem
        Sketch and arguments.
    rng
        Random number generator of the replicate.
    report
        Function called with the cost after each iteration.
    threads
        Threads that work on blocks of frequencies.
    algorithm
        Function ``(objective, n_components, rng, report)`` that returns a fit.
    coarse
        Whether the algorithm runs on part of the frequencies if there are many.
    from_pilot
        Whether the components of the pilot are a start as well.
    """

    def run(used: Objective) -> Fit:
        return algorithm(used, problem.n_components, rng, report)

    objective = problem.objective(threads)
    fit = _coarse_to_fine(objective, problem.size if coarse else None, run, report)
    return _from_pilot(problem, objective, fit) if from_pilot else fit


def _from_pilot(problem: Problem, objective: Objective, fit: Fit) -> Fit:
    """The better of a fit and the descent from the components of the pilot.

    A search finds clusters far apart only by chance: the atoms of one are almost orthogonal to the
    sketch of the others. The pilot has seen them.
    """
    start = pilot_start(problem.sketch, problem.size, problem.seed)
    if start is None or problem.model == "known":
        return fit
    before = objective.n_evaluations
    found = descend_fully(objective, objective.space.clip(start.atoms(objective)), start.weights)
    best = found if found.cost < fit.cost else fit
    more = objective.n_evaluations - before
    return replace(best, n_evaluations=fit.n_evaluations + more)


def search_from_start(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Fit:
    """Fit of one replicate from the components of an earlier model; see :func:`search_atoms`."""
    start, objective = problem.start, problem.objective(threads)
    assert start is not None  # the row "start" of the table is for problems that have one
    excess, _ = acceptable_cost(start, problem.n_components, objective.noise_level)
    near = converge_nearby(objective, start, problem.n_components, excess)
    if near is not None:
        report(near.cost)
        return replace(near, n_evaluations=objective.n_evaluations)

    def run(used: Objective) -> Fit:
        return warm_start(used, start, problem.n_components, rng, report, excess)

    return _coarse_to_fine(objective, problem.size, run, report)


def _coarse_to_fine(
    objective: Objective, size: int | None, run: Callable[[Objective], Fit], report: Report
) -> Fit:
    """Fit found on part of the frequencies if there are many, and converged on all of them.

    An unknown number of components needs all of them: only then can it be told from noise.
    """
    used = objective if size is None else coarse_objective(objective, size)
    fit = run(used)
    if used is objective:
        return replace(fit, n_evaluations=objective.n_evaluations)
    fit = converge_from_coarse(objective, fit)
    report(fit.cost)
    return replace(fit, n_evaluations=objective.n_evaluations + used.n_evaluations)


def count_reports(
    problem: Problem, *, n_iterations: Callable[[int], int], coarse: bool = True
) -> int:
    """Largest number of reports of a replicate.

    Parameters
    ----------
    problem
        Sketch and arguments.
    n_iterations
        Number of iterations of the algorithm, for a number of components.
    coarse
        Argument of :func:`search_atoms`.
    """
    if problem.size is None:
        return n_resolvable(problem.n_frequencies, problem.n_features)
    n_parameters = problem.size * problem.count_parameters()
    fewer = n_coarse_frequencies(problem.n_frequencies, n_parameters) if coarse else None
    return n_iterations(problem.size) + int(fewer is not None)


def expected_seconds(problem: Problem) -> float:
    """Expected CPU seconds of a search and of its refinement, within a factor of five.

    Measured for 5 to 100 components of 10 to 64 features; searches of mixtures with components of
    equal width take a quarter. The number of components must be known.

    Parameters
    ----------
    problem
        Sketch and arguments.
    """
    n_parameters = problem.required_size * problem.count_parameters()
    seconds = _SEARCH_SECONDS * n_parameters * problem.n_frequencies * problem.replicates
    if problem.refine is not None:
        products = n_parameters * problem.n_frequencies * (n_parameters + 4096)
        seconds += _REFINE_SECONDS * products
    return seconds


def conclude_search(
    problem: Problem, fits: list[Fit], threads: Threads, report: Report
) -> Solution:
    """Solution of the fit of lowest cost: merged, refined, and ordered by decreasing weight.

    Parameters
    ----------
    problem
        Sketch and arguments.
    fits
        Fits of all replicates.
    threads
        Threads that work on blocks of frequencies.
    report
        Function called with the cost after each round of refinement.

    Raises
    ------
    DecodeError
        If all weights are zero.
    """
    fit = min(fits, key=lambda each: each.cost)
    require_weight(fit.weights)
    objective = problem.objective(threads)
    if problem.merge:
        fit = merge_coincident(objective, fit)
    errors = None
    if problem.refine is not None:
        released = problem.objective(threads, _REFINED_FLOOR * problem.variance_floor)
        refined = refine_efficiently(released, fit, report)
        fit, errors = refined.fit, refined.standard_errors
    order = np.argsort(-fit.weights, kind="stable")
    if errors is not None:
        errors = (errors[0][order], errors[1][order], errors[2][order])
    theta, weights = fit.theta[order], fit.weights[order] / fit.weights.sum()
    means, variances = objective.space.to_data_units(theta)
    _, searched = acceptable_cost(problem.start, problem.n_components, objective.noise_level)
    if objective.space.n_shapes and problem.sketch.sample is None:  # rows tell more
        _warn_of_thin_components(variances, problem.sketch.extent[1])
    is_mixture = problem.model != "dirac" and objective.space.family.diagonal
    return Solution(
        weights=weights,
        means=means,
        variances=variances if is_mixture else None,
        cost=objective.cost(weights, theta),
        noise_level=objective.noise_level,
        converged=fit.converged,
        message=fit.message,
        n_evaluations=sum(each.n_evaluations for each in fits) + objective.n_evaluations,
        standard_errors=errors,
        searched=searched,
    )


def _warn_of_thin_components(variances: Array, data: Array) -> None:
    """Warn of components with almost no width, which cost nothing in the sketch."""
    thin = int((variances < _THIN * data).any(axis=1).sum())
    if thin:
        warn_user(
            f"{thin} of {len(variances)} components are thinner than {_THIN:g} of the data's "
            "variance in some feature, as fits to data that is no mixture of Gaussians of the "
            "map's scale are. Likelihoods will be poor: sketch with sample=True and decode without "
            "method, or decode with a larger variance_floor."
        )
