"""Search for the atoms of a sketch, coarse to fine, scale by scale, or near an earlier model.

The atoms that are found are merged, refined and ordered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from dask_sketch.decoders.checks.misfit import is_suspect
from dask_sketch.decoders.checks.simulated_loss import warn_of_noise
from dask_sketch.decoders.checks.unusual_rows import warn_of_small_components
from dask_sketch.decoders.descent import (
    Fit,
    coarse_objective,
    converge,
    converge_from_coarse,
    descend,
    descend_fully,
    n_coarse_frequencies,
)
from dask_sketch.decoders.efficient import RefinedFit, refine_efficiently
from dask_sketch.decoders.greedy import Algorithm, cl_ompr, n_resolvable
from dask_sketch.decoders.noise_covariance import is_explained
from dask_sketch.decoders.objectives.atoms import VARIANCE_FLOOR, Array
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.optimizers import StoppingRule
from dask_sketch.decoders.problem import Problem, Report, Solution, require_weight
from dask_sketch.decoders.scale_search import locate_components, search_scales
from dask_sketch.decoders.starts import Start, find_atom, pilot_start
from dask_sketch.decoders.swap_moves import merge_coincident, prune, swap_atoms
from dask_sketch.decoders.unresolved_variances import off_bounds, with_known_variances
from dask_sketch.decoders.window_search import locate_by_windows
from dask_sketch.errors import DecodeError
from dask_sketch.validation.threads import Threads
from dask_sketch.validation.warn import warn_user

# Fraction of the variance of the data, or of that many times the variance of expected components,
# below which a component has almost no width
_THIN, _WIDE = 1e-5, 100.0
# CPU seconds for each parameter and frequency of a search, and of a descent from what it found; and
# for each product of a refinement.
_SEARCH_SECONDS = {"splitting": 1.5e-6, "iht": 2e-6}
_OTHER_SEARCH_SECONDS, _CONVERGENCE_SECONDS, _REFINE_SECONDS = 5e-6, 1e-7, 1.2e-10
_WINDOW_SECONDS = 1e-6  # the same of a search window by window
_GROWN = 1.2  # growth of the sketch since the last search that may reveal other components
_WORSE = 1.1  # growth of the excess cost of the model beyond which it fits worse
_NEAR = 3.0  # cost in noise levels, above which components are far from the sketch
_FEW_STEPS = StoppingRule(tolerance=1e-3, n_iterations=30)
_SCALE_TIME = 3.0  # time of searches for maps of several scales, in that of others
_AFFORDABLE_SECONDS = 20.0  # expected CPU seconds of a refinement that nobody has asked for
_STARTS = 6  # searches scale by scale at most, as long as the refined fit is suspect
# Weights and means that are found at once, without a search window by window before, and at most:
# 32 clusters of 50 features took 21 CPU seconds by windows, and over 400 at once.
_FEW_LOCATED, _MAX_LOCATED = 500, 2000
_SAME = 0.01  # relative difference of the statistics of fits that are the same
_TRUSTED = 0.5  # loss by the statistic, in nats a sample, below which a refined fit is better
_NOISE = 0.1  # fraction of the noise level by which the cost may change by chance


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
        fits = []
        if coarse and _has_scales(problem):
            fits.append(_by_scales(problem, used, rng.spawn(1)[0]))
            report(fits[0].cost)
            if is_explained(used, fits[0], rng.spawn(1)[0]):
                return fits[0]
        fits.append(algorithm(used, problem.n_components, rng, report))
        return min(fits, key=lambda each: each.cost)

    objective = problem.objective(threads)
    located = None
    if coarse and _finds_means_first(problem):
        located = _locate(problem, objective, threads, rng.spawn(1)[0])
        report(located.cost)
        if _is_large(problem) or is_explained(objective, located, rng.spawn(1)[0]):
            return located
    fit = _coarse_to_fine(objective, problem.size if coarse else None, run, report)
    if located is not None:
        fit = min(located, fit, key=lambda each: each.cost)
    return _from_pilot(problem, objective, fit) if from_pilot else fit


def _has_scales(problem: Problem) -> bool:
    """Whether the map has several scales, and no pilot that says where components are."""
    features = problem.sketch.feature_map
    several = len(features.distribution_variances) > 1 and features.whitening is None
    is_search = problem.start is None and problem.n_components is not None
    return several and features.pilot is None and is_search


def _by_scales(problem: Problem, objective: Objective, rng: np.random.Generator) -> Fit:
    variances = problem.sketch.feature_map.distribution_variances / objective.space.scale**2
    return search_scales(objective, variances, problem.required_size, rng)


def _finds_means_first(problem: Problem) -> bool:
    """Whether means are found before variances, at once or window by window."""
    return _has_scales(problem) and (_has_windows(problem) or not _is_large(problem))


def _has_windows(problem: Problem) -> bool:
    return problem.sketch.feature_map.distribution == "sparse-windows"


def _count_located(problem: Problem) -> int:
    """Number of weights and means."""
    return problem.required_size * (1 + problem.n_features)


def _is_large(problem: Problem) -> bool:
    """Whether means are too many to be found at once; 64 of 50 features took 800 CPU seconds."""
    return _count_located(problem) > _MAX_LOCATED


def _locate(
    problem: Problem, objective: Objective, threads: Threads, rng: np.random.Generator
) -> Fit:
    features, covariance = problem.sketch.feature_map, problem.covariance
    if problem.model != "known":
        covariance = np.diag(features.min_variances)
    narrow = replace(problem, model="known", covariance_type="diag", covariance=covariance)
    variances = features.distribution_variances / objective.space.scale**2
    arguments = objective, narrow.objective(threads), variances, problem.required_size, rng
    fit = None
    if _count_located(problem) > _FEW_LOCATED and _has_windows(problem):
        fit = locate_by_windows(*arguments)
        if _is_large(problem) or is_explained(objective, fit, rng):
            return fit
    located = locate_components(*arguments)
    return located if fit is None else min(fit, located, key=lambda each: each.cost)


def _from_pilot(problem: Problem, objective: Objective, fit: Fit) -> Fit:
    """The better of a fit and the descent from the components of the pilot.

    A search finds clusters far apart only by chance: the atoms of one are almost orthogonal to the
    sketch of the others. The pilot has seen them.
    """
    start = pilot_start(problem.sketch, problem.size, problem.seed)
    if start is None or problem.model == "known":
        return fit
    before = objective.n_evaluations
    descended = descend_fully(
        objective, objective.space.clip(start.atoms(objective)), start.weights
    )
    best = descended if descended.cost < fit.cost else fit
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
    fewer, by_windows = None, _finds_means_first(problem) and _is_large(problem)
    if problem.size is not None and problem.method != "iht":
        fewer = n_coarse_frequencies(problem.n_frequencies, n_parameters)
    seconds = _SEARCH_SECONDS.get(problem.method, _OTHER_SEARCH_SECONDS) * n_parameters
    seconds *= fewer or problem.n_frequencies
    if by_windows and problem.method != "iht":
        seconds = _WINDOW_SECONDS * n_parameters * problem.n_frequencies
    elif fewer is not None:
        seconds += _CONVERGENCE_SECONDS * n_parameters * problem.n_frequencies
    seconds *= problem.replicates
    seconds *= _SCALE_TIME if _has_scales(problem) and not by_windows else 1.0
    if problem.refine is not None:
        seconds += _refinement_seconds(problem)
    return seconds


def conclude_search(
    problem: Problem, fits: list[Fit], threads: Threads, report: Report
) -> Solution:
    """Solution of the fit of lowest cost: merged, refined, and ordered by decreasing weight.

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
    refined = None
    if _is_refined(problem) and _is_affordable(problem):
        fit, refined = _refined_by_scales(problem, fit, threads, report)
        if _has_scales(problem):
            fractions = fit.weights / fit.weights.sum()
            warn_of_small_components(problem.sketch, fractions, problem.count_parameters())
    elif problem.refine is not None:
        released = problem.released_objective(threads)
        refined = refine_efficiently(released, fit, report)
        fit = refined.fit
    elif _has_scales(problem) and _is_unchecked(problem):
        warn_of_noise(problem, objective, fit, threads)
    errors = None if refined is None else refined.standard_errors
    order = np.argsort(-fit.weights, kind="stable")
    if errors is not None:
        errors = (errors[0][order], errors[1][order], errors[2][order])
    theta, weights = fit.theta[order], fit.weights[order] / fit.weights.sum()
    means, variances = objective.space.to_data_units(theta)
    _, searched = acceptable_cost(problem.start, problem.n_components, objective.noise_level)
    if objective.space.n_shapes and problem.sketch.sample is None:  # rows show more
        expected = _WIDE * problem.sketch.feature_map.min_variances  # far rows widen the data
        _warn_of_thin_components(variances, np.minimum(problem.sketch.extent[1], expected))
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
        overidentification=None if refined is None else refined.test,
    )


def _is_refined(problem: Problem) -> bool:
    """Whether nothing but the sketch shows components, and the user leaves the method to us."""
    sketch = problem.sketch
    alone = sketch.feature_map.pilot is None and sketch.sample is None
    is_search = problem.start is None and problem.n_components is not None
    return _has_scales(problem) or (alone and is_search and problem.is_default)


def _is_unchecked(problem: Problem) -> bool:
    """Whether neither rows nor the noise that was added say how much a mixture loses."""
    alone = problem.sketch.sample is None and problem.sketch.privacy is None
    return alone and problem.model != "dirac" and not problem.merge


def _is_affordable(problem: Problem) -> bool:
    """Whether a fit has variances to refine, in a second or, by several scales, some seconds."""
    has_shapes = problem.model in ("gaussian", "isotropic") and not problem.merge
    affordable = _has_scales(problem) and _refinement_seconds(problem) <= _AFFORDABLE_SECONDS
    return has_shapes and (affordable or _is_comparable(problem))


def _is_comparable(problem: Problem) -> bool:
    """Whether fits are refined in about a second, to compare those of several searches."""
    n_parameters = problem.required_size * problem.count_parameters()
    return max(n_parameters / 500, problem.n_frequencies / 2500) <= 1.0


def _refinement_seconds(problem: Problem) -> float:
    n_parameters = problem.required_size * problem.count_parameters()
    return _REFINE_SECONDS * n_parameters * problem.n_frequencies * (n_parameters + 4096)


def _refined_by_scales(
    problem: Problem, fit: Fit, threads: Threads, report: Report
) -> tuple[Fit, RefinedFit | None]:
    """Refined fit of the least overidentification statistic, of several searches while suspect.

    Noise explains the cost of a fit without rare clusters, but not this statistic: of eight
    clusters of 25 to 2500 rows it was 50 to 10^5 standard deviations too large if any was missing.
    A search that finds the same fit again is the last one. Where the data is not such a mixture,
    refinement may make a fit far worse: it is then left out, unless the user asks for it.
    """
    objective, first = problem.objective(threads), fit
    asked = problem.refine is not None
    released = problem.released_objective(threads)
    free = problem.variance_floor == VARIANCE_FLOOR  # else the user has set it
    fits: list[tuple[Fit, RefinedFit]] = []
    for number in range(_STARTS if _is_comparable(problem) else 1):
        if number:
            rng = np.random.default_rng((problem.seed, problem.replicates + number - 1))
            if number % 2 == 0 and _finds_means_first(problem):
                fit = _locate(problem, objective, threads, rng)
            else:
                run = partial(_by_scales, problem, rng=rng)
                if number == 1:  # all scales at once
                    run = partial(cl_ompr, n_components=len(first.theta), rng=rng, report=report)
                fit = _coarse_to_fine(objective, problem.size, run, report)
        if free and fit.cost > _NEAR * objective.noise_level:  # the floor may be too high
            freed = descend_fully(released, fit.theta, fit.weights)
            fit = min(fit, freed, key=lambda each: each.cost)
        if fit.cost <= _NEAR * objective.noise_level:
            with contextlib.suppress(DecodeError):  # no metric: a component is far too wide
                refined = _refined(objective, released, fit, report)
                known, last = [_statistic(each) for _, each in fits], _statistic(refined)
                fits.append((fit, refined))
                if any(abs(each - last) <= _SAME * last for each in known):
                    break
        if not fits or not is_suspect(problem.sketch, fits[-1][1].test):
            break
    if not fits and not asked:
        return first, None
    if not fits:
        fits.append((first, refine_efficiently(released, first, report, test=True)))
    fit, refined = min(fits, key=lambda each: _statistic(each[1]))
    if asked:
        return refined.fit, refined
    theta = refined.fit.theta
    if free:
        several = _has_scales(problem)
        theta = with_known_variances(objective, refined, several_scales=several)
    else:
        theta = objective.space.clip(theta)
    clipped = replace(refined.fit, theta=theta)
    assert refined.overidentification is not None  # it was asked for
    excess = refined.overidentification.statistic - refined.overidentification.freedom
    loss = 0.5 * excess / objective.effective_count
    refined = replace(refined, standard_errors=None)
    return (clipped if loss < _TRUSTED else fit), refined


def _refined(objective: Objective, released: Objective, fit: Fit, report: Report) -> RefinedFit:
    """Refined fit, the best one of several if least squares or it leave variances at a bound."""
    found = [refine_efficiently(released, fit, report, errors=True, test=True)]
    for space, held in ((objective, fit), (released, found[0].fit)):
        start = off_bounds(space, held)
        if start is not held:
            found.append(refine_efficiently(released, start, report, errors=True, test=True))
    return min(found, key=_statistic)


def _statistic(refined: RefinedFit) -> float:
    assert refined.overidentification is not None  # it was asked for
    return refined.overidentification.statistic


def _warn_of_thin_components(variances: Array, data: Array) -> None:
    """Warn of components with almost no width, which cost nothing in the sketch."""
    thin = int((variances < _THIN * data).any(axis=1).sum())
    if thin:
        warn_user(
            f"{thin} of {len(variances)} components are thinner than {_THIN:g} of the data's "
            "variance in some feature, as fits to data that is not a mixture of Gaussians of the "
            "map's scale are. Likelihoods will be poor: sketch with sample=True and decode without "
            "method, or decode with a larger variance_floor."
        )


def acceptable_cost(
    start: Start | None, n_components: int | None, noise_level: float
) -> tuple[float, float | None]:
    """Cost up to which the components of an earlier model are kept without a search for others.

    Parameters
    ----------
    start
        Components of the earlier model, with its record.
    n_components
        Number of components to decode; None for as many as the model has.
    noise_level
        Noise level of the sketch that is decoded.

    Returns
    -------
    excess
        Cost above the noise level; ``-inf`` if other components are to be searched for anyway.
    searched
        Noise level at the last search for other components; None if there is to be one.
    """
    if start is None or start.decoding is None or n_components not in (None, len(start.weights)):
        return -np.inf, None
    earlier = start.decoding
    searched = earlier.noise_level if earlier.searched is None else earlier.searched
    if searched > _GROWN * noise_level:
        return -np.inf, None
    excess = max(earlier.cost - earlier.noise_level, 0.0)
    return _WORSE * excess + _NOISE * noise_level, searched


def converge_nearby(
    objective: Objective, start: Start, n_components: int | None, excess: float
) -> Fit | None:
    """Minimum next to given components that noise tells little from the sketch, in a few steps.

    At 64 components of 12 features (m = 8000), for a window that has moved on by a thirtieth, two
    steps of Levenberg-Marquardt end within 1e-4 noise levels of the minimum.

    Parameters
    ----------
    objective, start, n_components, excess
        Arguments of :func:`warm_start`.

    Returns
    -------
    fit
        None if the components are far from the sketch, or others are to be searched for.
    """
    k = len(start.weights)
    if n_components not in (None, k) or excess == -np.inf or not objective.is_solvable(k):
        return None
    theta, weights = objective.space.clip(start.atoms(objective)), np.array(start.weights)
    cost = objective.cost(weights, theta)
    if not cost < _NEAR * objective.unit:
        return None
    fit = converge(objective, Fit(weights, theta, cost, converged=False), _FEW_STEPS)
    return fit if fit.cost - objective.unit <= excess else None


def warm_start(
    objective: Objective,
    start: Start,
    n_components: int | None,
    rng: np.random.Generator,
    report: Callable[[float], None],
    excess: float = -np.inf,
) -> Fit:
    """Descend from given components, and swap those that no longer fit.

    Sec. 6.1 of Keriven et al. (2018). Swap moves take far longer than the descent (64 components of
    speech-like frames, m = 8000: 4.5 and 0.3 CPU seconds), and a sketch that has grown by a
    thousandth says nothing new. They are therefore tried only if the sketch has grown by a fifth
    since the last search for other components, or if the model fits worse than it did.

    Parameters
    ----------
    objective
        Atoms and cost.
    start
        Components to start from.
    n_components
        Number ``K`` of atoms, by default as many as the start has. Missing atoms are found by Step
        1; of too many atoms, the least needed are removed.
    rng
        Random number generator.
    report
        Function called with the cost at the end.
    excess
        Cost above the noise level, in the unit of the cost, up to which no swap is tried.

    Returns
    -------
    fit
        Fit whose weights are not normalised.
    """
    n_components = n_components or len(start.weights)
    fit = descend(objective, objective.space.clip(start.atoms(objective)), start.weights)
    while len(fit.theta) < n_components:
        atom = find_atom(objective, objective.residual(fit.weights, fit.theta), rng)
        fit = descend(objective, np.vstack([fit.theta, atom]))
    if len(fit.theta) > n_components:
        fit = descend_fully(objective, prune(objective, fit, n_components))
    else:
        fit = descend_fully(objective, fit.theta, fit.weights)
    if fit.cost - objective.unit > excess:
        fit = swap_atoms(objective, fit, rng)
    report(fit.cost)
    return fit
