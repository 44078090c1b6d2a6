"""Mixtures with covariance matrices from a sketch: starts, moves of components, and refinement.

The search starts from mixtures with diagonal covariances of the same sketch: one of as many
components, and one of several times as many, which are merged. From each,
:mod:`~dask_sketch.decoders.matrix_descent` descends. While noise does not explain the cost, an atom
is added where the residual is largest, and components are removed or merged again. The last stage
weights the entries of the sketch by their noise (:mod:`~dask_sketch.decoders.efficient`), without
which correlations are poorly resolved, and tests the fit by the overidentification statistic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dask_sketch.decoders.checks.misfit import is_suspect
from dask_sketch.decoders.descent import Fit, non_negative_weights
from dask_sketch.decoders.efficient import RefinedFit, refine_efficiently
from dask_sketch.decoders.factor_descent import (
    FactorObjective,
    FactorSpace,
    data_factors,
    descend_factors,
    descend_from_diagonal,
)
from dask_sketch.decoders.greedy import Algorithm, hierarchical_splitting, search_of_size
from dask_sketch.decoders.matrix_descent import descend_matrices, step_work
from dask_sketch.decoders.noise_covariance import is_explained
from dask_sketch.decoders.objectives.atoms import Array, packed, unpacked
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.problem import Problem, Report, Solution, require_weight
from dask_sketch.decoders.rare_components import keep_rare_components
from dask_sketch.decoders.search import search_atoms
from dask_sketch.decoders.starts import (
    Start,
    find_atom,
    pilot_matrices,
    pilot_mixture,
    pilot_start,
)
from dask_sketch.models.covariances import COVARIANCES, Components
from dask_sketch.models.relocation import agglomerate
from dask_sketch.validation.threads import Threads

_FULL = COVARIANCES["full"]
_FINER = 3  # components of a diagonal mixture for each component, before they are merged
_SHORT, _SHORT_FACTORS = 30, 150  # steps of a descent whose end decides about a move
_MAX_MOVES, _MAX_FAILED = 12, 3  # moves of components, in all and in a row without gain
# Cost of a reduced mixture that ends a move, relative to that before it was reduced, and to that
# before the move.
_NEAR, _LARGE = 1.1, 0.7
_TRIALS = 4  # reduced mixtures of a move from which there is a descent
# Parameters beyond which the refinement is in one round, in float32: correlations need the digits
# more than variances do. At K = 20, d = 6 and m = 2795 the fit lost .0026 nats in float32, .0020 in
# float64, and took 5 CPU seconds more.
_MANY_PARAMETERS = 1500
# Frequencies that are weighted together for components with factors. With d = 64, K = 10, r = 3 and
# m = 6450, blocks of 2048 lost 0.030 nats in 13 CPU seconds, and of 4096 0.025 in 18.
_FACTOR_BLOCK = 4096
# Multiplications of all moves of a search at most, some 30 CPU seconds, and of one step of a
# descent up to which there are restarts.
_MOVE_WORK, _RESTART_WORK = 2e11, 3e8
# Cost that an atom explains of a residual of noise alone, as a multiple of its share of the
# parameters, above which components with factors are moved: 0.4 to 0.7 at the minima (d = 12 and
# 64), 5 or more elsewhere.
_CHANCE = 2.0
_FIRST_LOADING = 0.1  # size of the first loadings of an added component, in standard deviations
_RESTARTS = 2  # further searches where the statistic of the refined fit is too large
_GAIN = 0.01  # smallest relative gain of a move
N_REPORTS = 2 * _MAX_MOVES + 40  # largest number of reports of a search, roughly


def search_matrices(
    problem: Problem,
    rng: np.random.Generator,
    report: Report,
    threads: Threads,
    known: float | None = None,
) -> Fit:
    """Fit of one replicate, from the mixture of the pilot, or diagonal mixtures of the same sketch.

    Parameters
    ----------
    problem
        Sketch and arguments, with matrices to fit.
    rng
        Random number generator of the replicate.
    report
        Function called with the cost after each descent.
    threads
        Threads that work on blocks of frequencies.
    known
        Cost that an earlier search found, at which this one ends.
    """
    objective, k = problem.objective(threads), problem.required_size
    diagonal = replace(problem, covariance_type="diag")
    if isinstance(objective, FactorObjective):
        return _search_factors(problem, objective, rng, report, threads)
    of_pilot = pilot_matrices(problem.sketch, k) if problem.family == "full" else None
    if of_pilot is not None:
        near_pilot = fit_matrices(problem, of_pilot, report, threads)
        if is_explained(objective, near_pilot, rng.spawn(1)[0]):
            return near_pilot
        near_pilot = _moved(problem, objective, near_pilot, rng, report, threads)
        if is_explained(objective, near_pilot, rng.spawn(1)[0]):
            return near_pilot
    searched = search_atoms(diagonal, rng, report, threads, algorithm=_algorithm(problem, k))
    if not searched.weights.any():  # no diagonal mixture has anything of the sketch
        return _matrices_of(objective, searched) if of_pilot is None else near_pilot
    fit = _moved(problem, objective, _matrices_of(objective, searched), rng, report, threads)
    if of_pilot is not None:  # the data is hardly such a mixture: further searches take time only
        return min(near_pilot, fit, key=lambda each: each.cost)
    affordable = step_work(objective, k) < _MOVE_WORK / _SHORT / (1 + _TRIALS)
    affordable &= not _has_few_rows(problem)
    if is_explained(objective, fit, rng.spawn(1)[0]) or k < 2 or not affordable:
        return fit
    if known is not None and abs(fit.cost - known) <= _GAIN * known:
        return fit
    n_finer = min(_FINER * k, objective.n_frequencies // (1 + 2 * problem.n_features))
    if n_finer <= k:
        return fit
    finer = replace(diagonal, n_components=n_finer)
    searched = search_atoms(
        finer, rng, report, threads, algorithm=_algorithm(problem, n_finer), from_pilot=False
    )
    many = _matrices_of(objective, searched)
    merged = _merged(objective, many.weights, many.theta, k)
    other = _moved(
        problem, objective, replace(many, weights=merged[0], theta=merged[1]), rng, report, threads
    )
    return min(fit, other, key=lambda each: each.cost)


def _search_factors(
    problem: Problem,
    objective: FactorObjective,
    rng: np.random.Generator,
    report: Report,
    threads: Threads,
) -> Fit:
    """Descent and moves from the mixture of the pilot, and from a search where these fail."""
    k, space = problem.required_size, objective.space
    diagonal = replace(problem, covariance_type="diag")
    pilot = pilot_start(problem.sketch, k, int(rng.integers(2**31)))
    fits = []
    if pilot is not None:
        means = (pilot.means - space.shift) / space.scale
        theta = np.concatenate([means, pilot.variances / space.scale**2], axis=1)
        descended = descend_from_diagonal(objective, pilot.weights, theta)
        fits.append(_moved(problem, objective, descended, rng, report, threads))
    points = rng.spawn(1)[0]
    if pilot is None or not _is_explained(objective, diagonal.objective(threads), fits[0], points):
        searched = search_atoms(diagonal, rng, report, threads, algorithm=_algorithm(diagonal, k))
        descended = descend_from_diagonal(objective, searched.weights, searched.theta)
        fits.append(_moved(problem, objective, descended, rng, report, threads))
    return min(fits, key=lambda each: each.cost)


def _algorithm(problem: Problem, n_components: int) -> Algorithm:
    splits = problem.method == "splitting"
    return hierarchical_splitting if splits else search_of_size(n_components)


def fit_matrices(problem: Problem, start: Start, report: Report, threads: Threads) -> Fit:
    """Descend from given components.

    Parameters
    ----------
    problem
        Sketch and arguments, with matrices to fit.
    start
        Components to start from.
    report
        Function called with the cost.
    threads
        Threads that work on blocks of frequencies.
    """
    objective = problem.objective(threads)
    fit = _descend(objective, start.weights, objective.space.clip(start.atoms(objective)))
    report(fit.cost)
    return fit


def fit_from_start(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Fit:
    """Fit of one replicate from the components of an earlier model, moved if they fit poorly."""
    del rng
    assert problem.start is not None  # the row "start" is for problems that have one
    return fit_matrices(problem, problem.start, report, threads)


def _matrices_of(objective: Objective, diagonal: Fit) -> Fit:
    """Fit with the matrices of a diagonal one, in the same coordinates."""
    theta = np.zeros((len(diagonal.theta), objective.space.n_parameters))
    theta[:, : diagonal.theta.shape[1]] = diagonal.theta
    return replace(diagonal, theta=theta)


def _descend(objective: Objective, weights: Array, theta: Array, *, is_short: bool = False) -> Fit:
    """Descent to a minimum, or a few steps that decide about a move."""
    if isinstance(objective, FactorObjective):
        steps = {"n_iterations": _SHORT_FACTORS} if is_short else {}
        return descend_factors(objective, weights, theta, **steps)
    return descend_matrices(objective, weights, theta, _SHORT if is_short else None)


def _is_explained(
    objective: Objective, diagonal: Objective, fit: Fit, rng: np.random.Generator
) -> bool:
    """Whether noise explains the residual, so that no component need be moved."""
    if not isinstance(objective, FactorObjective):
        return is_explained(objective, fit, rng)
    residual = objective.residual(fit.weights, fit.theta)
    atom = find_atom(diagonal, residual, rng)
    gain = float(diagonal.correlations(atom[None], residual)[0]) ** 2
    fraction = (1 + len(atom)) / (2 * objective.n_frequencies)
    return gain <= _CHANCE * fraction * objective.unit


def _moved(
    problem: Problem,
    objective: Objective,
    start: Fit,
    rng: np.random.Generator,
    report: Report,
    threads: Threads,
) -> Fit:
    """Descent from a start, then moves of components until noise explains the cost."""
    first = fit = _descend(objective, start.weights, objective.space.clip(start.theta))
    report(fit.cost)
    points = rng.spawn(1)[0]
    diagonal = replace(problem, covariance_type="diag").objective(threads)
    failed, n_moves = 0, _MAX_MOVES
    if not isinstance(objective, FactorObjective):
        work = (1 + _TRIALS) * _SHORT * step_work(objective, len(fit.theta))
        n_moves = min(n_moves, int(_MOVE_WORK / work))
        if _has_few_rows(problem):
            n_moves = 0
    for _ in range(n_moves):
        if failed == _MAX_FAILED or len(fit.theta) < 2:
            break
        if _is_explained(objective, diagonal, fit, points):
            break
        moved = _move(objective, diagonal, fit, 1 + failed, rng)
        report(moved.cost)
        if moved.cost < (1.0 - _GAIN) * fit.cost:
            fit, failed = moved, 0
        else:
            failed += 1
    return fit if fit is first else _descend(objective, fit.weights, fit.theta)


def _has_few_rows(problem: Problem) -> bool:
    """Whether there are more parameters than rows, so that noise determines every fit."""
    n_parameters = problem.required_size * problem.count_parameters()
    return problem.sketch.effective_count < n_parameters


def _move(
    objective: Objective, diagonal: Objective, fit: Fit, n_added: int, rng: np.random.Generator
) -> Fit:
    """Best fit after atoms are added at the residual, and as many components are removed."""
    k, space = len(fit.theta), objective.space
    weights, theta = fit.weights, fit.theta
    for _ in range(n_added):
        atom = find_atom(diagonal, objective.residual(weights, theta), rng)
        wide = np.zeros((1, space.n_parameters))
        wide[0, : len(atom)] = atom
        if isinstance(objective, FactorObjective):  # no step leaves loadings of zero
            n_loadings = space.n_parameters - len(atom)
            wide[0, len(atom) :] = _FIRST_LOADING * rng.standard_normal(n_loadings)
        theta = space.clip(np.vstack([theta, wide]))
        weights = _weights(objective, theta, weights)
    grown = _descend(objective, weights, theta, is_short=True)
    trials = []
    for reduced, atoms in _reduced(objective, grown, k):
        weights = _weights(objective, atoms, reduced)
        trials.append((objective.cost(weights, atoms), weights, atoms))
    trials.sort(key=lambda each: each[0])
    fits = []
    for _, weights, atoms in trials[:_TRIALS]:
        fits.append(_descend(objective, weights, atoms, is_short=True))
        if fits[-1].cost < min(_NEAR * grown.cost, _LARGE * fit.cost):  # hard to be bettered
            break
    return min(fits, key=lambda each: each.cost)


def _weights(objective: Objective, theta: Array, weights: Array) -> Array:
    """Weights that sum to one and fit the sketch best; those given where all would be zero."""
    fitted = non_negative_weights(objective.atoms(theta), np.concatenate(objective.target))
    if not fitted.any():
        fitted = np.append(weights, np.full(len(theta) - len(weights), weights.mean()))
    fitted = np.maximum(fitted, 1e-3 * fitted.mean())
    return np.asarray(fitted / fitted.sum())


def _reduced(objective: Objective, grown: Fit, k: int) -> Iterator[tuple[Array, Array]]:
    """Mixtures of ``k`` of the components: merged in pairs, and each of some left out."""
    weights, theta = grown.weights, grown.theta
    yield _merged(objective, weights, theta, k)
    lightest = np.argsort(weights, kind="stable")
    n_left_out = len(theta) - k
    if n_left_out > 1:
        heaviest = np.sort(lightest[n_left_out:])
        yield weights[heaviest], theta[heaviest]
        return
    for left_out in lightest:
        yield np.delete(weights, left_out), np.delete(theta, left_out, axis=0)


def _merged(objective: Objective, weights: Array, theta: Array, k: int) -> tuple[Array, Array]:
    """Components merged in pairs of least loss of likelihood until ``k`` are left."""
    d, space = objective.space.n_features, objective.space
    fractions = weights / weights.sum()
    if isinstance(space, FactorSpace):
        components = Components(fractions, theta[:, :d], space.factors(theta))
        merged = agglomerate(space.covariances, components, k)
        return merged.weights / merged.weights.sum(), space.packed(merged.means, merged.covariances)
    components = Components(fractions, theta[:, :d], unpacked(theta[:, d:], d))
    merged = agglomerate(_FULL, components, k)
    atoms = np.concatenate([merged.means, packed(merged.covariances)], axis=1)
    return merged.weights / merged.weights.sum(), atoms


def _refined(problem: Problem, fit: Fit, report: Report, threads: Threads) -> RefinedFit:
    """Fit weighted by the noise of the sketch, with its overidentification statistic."""
    n_parameters = len(fit.theta) * problem.count_parameters()
    released = problem.released_objective(threads)
    is_factors = isinstance(released, FactorObjective)
    return refine_efficiently(
        released,
        fit,
        report,
        single=None if is_factors else n_parameters > _MANY_PARAMETERS,
        block_size=_FACTOR_BLOCK if is_factors else None,
        errors=problem.refine is not None,
        test=True,
        widen=problem.covariance_type in ("full", "tied"),
    )


def _statistic(refined: RefinedFit) -> float:
    assert refined.overidentification is not None  # it was asked for
    return refined.overidentification.statistic


def _with_rare_components(problem: Problem, objective: Objective, fit: Fit) -> Fit:
    """Fit with the components that only the pilot rows show, where there are no others."""
    pilot, record = pilot_mixture(problem.sketch), problem.sketch.feature_map.pilot
    if (
        pilot is None
        or record is None
        or problem.sketch.sample is not None
        or problem.family != "full"
        or len(pilot.weights) != len(fit.weights)
    ):
        return fit
    start = Start(pilot.weights, pilot.means, pilot.variances)

    def descend(rest: Objective, theta: Array, weights: Array) -> Fit:
        total = weights.sum()  # the weights of a descent sum to one
        scaled = rest.with_target((rest.target[0] / total, rest.target[1] / total))
        fit = _descend(scaled, weights / total, theta)
        return replace(fit, weights=fit.weights * total, cost=fit.cost * total**2)

    return keep_rare_components(objective, fit, start, record.n_rows, descend=descend)


def conclude_matrices(
    problem: Problem, fits: list[Fit], threads: Threads, report: Report
) -> Solution:
    """Solution of the fit of lowest cost, refined, and ordered by decreasing weight.

    Where noise does not explain its overidentification statistic, the search starts again with
    another seed, up to twice, and the fit of the least statistic is returned. A search that finds
    the same fit again is the last one: the data is then no such mixture, as of few different values
    or bounds, and further searches would only take time.

    Raises
    ------
    DecodeError
        If all weights are zero.
    """
    objective = problem.objective(threads)
    best = min(fits, key=lambda each: each.cost)
    require_weight(best.weights)
    refined = _refined(problem, best, report, threads)
    searched = problem.method in ("cl-ompr", "splitting")  # rows and a start are good starts
    if searched and len(best.theta) > 1:
        again = step_work(objective, len(best.theta)) < _RESTART_WORK
        if problem.family == "full" and pilot_matrices(problem.sketch, len(best.theta)) is not None:
            again = False  # it was searched from them as well
        for number in range(_RESTARTS if again else 0):
            if not is_suspect(problem.sketch, refined.test):
                break
            rng = np.random.default_rng((problem.seed, problem.replicates + number))
            other = search_matrices(problem, rng, report, threads, known=best.cost)
            if not other.weights.any():
                break
            fits = [*fits, other]
            other_refined = _refined(problem, other, report, threads)
            before, refined = refined, min(refined, other_refined, key=_statistic)
            if abs(_statistic(other_refined) - _statistic(before)) <= _GAIN * _statistic(before):
                break
    fit = _with_rare_components(problem, objective, refined.fit)
    if fit is not refined.fit:
        refined = replace(refined, fit=fit, standard_errors=None, overidentification=None)
    order = np.argsort(-fit.weights, kind="stable")
    theta, weights = fit.theta[order], fit.weights[order] / fit.weights.sum()
    means, variances = objective.space.to_data_units(theta)
    errors = refined.standard_errors
    if errors is not None:
        errors = tuple(each[order] for each in errors)
    return Solution(
        weights=weights,
        means=means,
        variances=variances,
        matrices=objective.space.matrices(theta),
        factors=data_factors(objective, theta),
        cost=objective.cost(weights, theta),
        noise_level=objective.noise_level,
        converged=fit.converged,
        message=fit.message,
        n_evaluations=sum(each.n_evaluations for each in fits),
        standard_errors=errors,
        overidentification=refined.test,
        unresolved=refined.unresolved,
    )
