"""Maximum likelihood without rows: on simulated rows whose weights agree with the sketch.

A mixture that is nearest to a sketch is not the likeliest one where the data is not such a mixture.
Rows that are simulated from several mixtures, with weights such that their weighted sketch and
moments are those of all rows (:mod:`~dask_sketch.decoders.calibrated_sample`), show more of its
density.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dask_sketch.decoders.calibrated_sample import (
    CalibratedSample,
    calibrate_rows,
    equally_weighted,
)
from dask_sketch.decoders.checks.expected_loss import gain_by_chance
from dask_sketch.decoders.checks.matrices import warn_of_pilot_matrices
from dask_sketch.decoders.checks.misfit import WARNED_NATS, is_suspect, mean_log_likelihood
from dask_sketch.decoders.checks.unlike_pilot import pilot_is_such_a_mixture
from dask_sketch.decoders.checks.unusual_rows import rows_remedy
from dask_sketch.decoders.likelihood import (
    LikelihoodCandidates,
    is_calibrated,
    likeliest_solution,
    mixture_of,
)
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.problem import Problem, Solution
from dask_sketch.decoders.starts import nearby_mixture, pilot_matrices, pilot_mixture
from dask_sketch.models.density import RowDensity
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import LIKELIEST
from dask_sketch.models.weighted_em import FittedMixture, fit_mixture
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.threads import Threads
from dask_sketch.validation.warn import warn_user

Parameters = tuple[Array, Array, Array]  # weights, means, and variances or matrices
_TINY = 1e-300
_N_ROWS = 21_000  # simulated rows, of all mixtures together
_MIN_GAIN = 0.01  # gain of likelihood from which such a mixture is preferred, in nats a sample
# The same for covariance matrices, on rows that are also simulated from the fit to the sketch,
# which has correlations that the others lack, and where the discrepancy at frequencies left out is
# below this many noise levels, or above. Gains of 1.0 to 30 were 1.7 to 20 on real rows, gains of
# 0.24 to 0.47 were 0.1 to -0.2 (colours of pixels); with discrepancies of 46 to 119, gains of 1.7
# to 5.3 were losses of 0.5 to 0.9, and one of 14 was one. Last the largest difference of a row.
_CLEAR_GAIN, _AGREES, _LARGE_GAIN, _MOST = 0.5, 25.0, 10.0, 30.0
# Smallest eigenvalue of a correlation matrix of features that do not nearly follow from others; the
# second one if the fit has axes as narrow as it may have
_COLLINEAR, _COLLINEAR_NARROW = 1e-3, 1e-2
SIMULATED = f"{LIKELIEST}simulated rows, calibrated to the sketch"
OF_PILOT = f"{LIKELIEST}the pilot rows of the feature map"
_STARTS = 2  # starts by k-means, beside the fit to the sketch and the mixture of the pilot


def likelier_on_simulated_rows(problem: Problem, solution: Solution, threads: Threads) -> Solution:
    """Likelier mixture than the nearest one to a sketch without rows, if the data has another form.

    Rows are simulated from the mixture of the pilot, from the fit to the sketch, and from one
    Gaussian of the mean and variances of the data, which a sketch holds exactly; then from the
    mixtures that are likeliest on these rows.

    Parameters
    ----------
    problem
        Problem that was solved with the default arguments.
    solution
        Its solution.
    threads
        Threads that work on blocks of frequencies.

    Returns
    -------
    solution
        The given one where noise explains it, or the likelihood gains little.
    """
    shapes = solution.shapes
    if shapes is None or not _is_doubtful(problem, solution):
        return solution
    if problem.family == "full":
        solution = _likelier_of_pilot(problem, solution, threads)
        if solution.message == OF_PILOT or solution.is_like_pilot:
            return solution
    if problem.has_matrices and not _may_simulate(problem, solution):
        return solution
    sketch, nearby = problem.sketch, nearby_mixture(problem.sketch)
    fit = solution.weights, solution.means, shapes
    one = np.ones(1), sketch.mean[None], np.maximum(sketch.variance, _TINY)[None]
    base = one
    if nearby is not None:
        base = nearby.weights, nearby.means, nearby.variances
    is_same = pilot_mixture(sketch) is not None  # a poor fit to the sketch then only disturbs
    found = [
        _fit_simulated(problem, sources)
        for sources in ([base] if is_same else [one, fit], [one, fit, base])
    ]
    mixtures = [mixture_of(each[0]) for each in found if each is not None]
    if problem.has_matrices and not _is_clear(problem, solution, [base, fit, *mixtures]):
        return solution
    last = _fit_simulated(problem, [base, *mixtures], [fit, *mixtures])
    if last is None:
        return solution
    fitted, calibrated = last
    rows, masses = calibrated.rows.astype(np.float64), calibrated.weights
    score = mean_log_likelihood(rows, masses, mixture_of(fitted))
    gain = score - mean_log_likelihood(rows, masses, fit)
    n_parameters = problem.required_size * problem.count_parameters() - 1
    enough = max(_MIN_GAIN, gain_by_chance(n_parameters) / calibrated.effective_count)
    if gain <= (_enough(calibrated, solution) if problem.has_matrices else enough):
        return solution
    best = LikelihoodCandidates(
        None, mixture_of(fitted), score, fitted.converged, calibrated,
        fitted.covariances if solution.factors is not None else None,
    )  # fmt: skip
    if problem.has_matrices:
        _warn(problem, gain, mean_log_likelihood(rows, masses, base) - score)
    made = likeliest_solution(problem, best, threads, solution.n_evaluations, gain)
    return replace(made, message=SIMULATED)


def _is_clear(problem: Problem, solution: Solution, sources: list[Parameters]) -> bool:
    """Whether rows that are also simulated from the fit with matrices show that it is unlikely.

    A few rows that the data has not, far from the components of the fit, count little.
    """
    found = _fit_simulated(problem, sources)
    if found is None:
        return False
    fitted, calibrated = found
    rows, fit = calibrated.rows.astype(np.float64), (solution.weights, solution.means)
    assert solution.shapes is not None
    likeliest = RowDensity(*mixture_of(fitted)).log_total(rows)
    nearest = RowDensity(*fit, solution.shapes).log_total(rows)
    gain = float(calibrated.weights @ np.clip(likeliest - nearest, -_MOST, _MOST))
    return gain > _enough(calibrated, solution)


def _enough(calibrated: CalibratedSample, solution: Solution) -> float:
    """Gain from which rows show that a fit with matrices is unlikely, in nats."""
    agrees = calibrated.discrepancy_after < _AGREES * solution.noise_level
    return _CLEAR_GAIN if agrees else _LARGE_GAIN


def _fit_simulated(
    problem: Problem, sources: list[Parameters], starts: Sequence[Parameters] = ()
) -> tuple[FittedMixture, CalibratedSample] | None:
    """Likeliest mixture of rows from these mixtures, and the rows; None if they do not agree."""
    sketch, k = problem.sketch, problem.required_size
    rows = simulated_rows(sketch, sources, problem.seed)
    calibrated = calibrate_rows(rows, equally_weighted(rows).weights, sketch)
    if not is_calibrated(calibrated):
        return None
    fitted = fit_mixture(
        calibrated.rows.astype(np.float64), calibrated.weights, k,
        starts=[each for each in (*sources, *starts) if len(each[0]) == k],
        n_starts=_STARTS, covariance_type=problem.covariance_type, seed=problem.seed,
    )  # fmt: skip
    return fitted, calibrated


def _is_doubtful(problem: Problem, solution: Solution) -> bool:
    """Whether noise does not explain the fit to a sketch without rows."""
    sketch = problem.sketch
    if sketch.sample is not None or sketch.privacy is not None or sketch.missing is not None:
        return False
    is_asked = not problem.is_default or problem.refine is not None
    if is_asked or problem.n_components is None or problem.n_components < 2:
        return False
    if problem.has_matrices:
        test = solution.overidentification  # None where the fit could not be refined
        return test is None or is_suspect(sketch, test)
    pilot = sketch.feature_map.pilot
    has_pilot = pilot is not None and pilot.mixture is not None and problem.model == "gaussian"
    is_other = has_pilot and pilot_mixture(sketch) is None
    return is_other and not pilot_is_such_a_mixture(sketch)


def _may_simulate(problem: Problem, solution: Solution) -> bool:
    """Whether features do not nearly follow from others, as they do not in simulated rows."""
    if not is_suspect(problem.sketch, solution.overidentification):
        return False
    narrow = not np.isfinite(solution.unresolved)
    return _smallest_eigenvalue(solution) > (_COLLINEAR_NARROW if narrow else _COLLINEAR)


def _likelier_of_pilot(problem: Problem, solution: Solution, threads: Threads) -> Solution:
    """Mixture with covariance matrices of the pilot rows, if it is likelier than the fit.

    Noise does not explain the fit to the sketch, so that the pilot rows say more than it.
    """
    record = problem.sketch.feature_map.pilot
    pilot = pilot_matrices(problem.sketch, problem.size)
    if pilot is None or record is None:
        return solution
    mixture = pilot.weights, pilot.means, pilot.variances
    simulated = equally_weighted(simulated_rows(problem.sketch, [mixture], problem.seed))
    rows, equal = simulated.rows.astype(np.float64), simulated.weights
    score = mean_log_likelihood(rows, equal, mixture)
    assert solution.shapes is not None
    fit = solution.weights, solution.means, solution.shapes
    gain = score - mean_log_likelihood(rows, equal, fit)
    n_parameters = problem.required_size * problem.count_parameters() - 1
    if gain <= gain_by_chance(n_parameters) / record.n_rows:
        return replace(solution, is_like_pilot=True)
    best = LikelihoodCandidates(None, mixture, score, True, simulated)
    warn_of_pilot_matrices(problem.sketch, record)
    made = likeliest_solution(problem, best, threads, solution.n_evaluations, gain)
    return replace(made, message=OF_PILOT)


def _smallest_eigenvalue(solution: Solution) -> float:
    """Smallest eigenvalue of the correlation matrix of a mixture with covariance matrices."""
    weights, matrices = solution.weights, solution.matrices
    assert matrices is not None
    offsets = solution.means - weights @ solution.means
    total = np.einsum("k,kij->ij", weights, matrices) + (weights[:, None] * offsets).T @ offsets
    unit = np.sqrt(np.diagonal(total))
    return float(np.linalg.eigvalsh(total / np.outer(unit, unit))[0])


def simulated_rows(sketch: Sketch, mixtures: list[Parameters], seed: int) -> Array:
    """Rows of several mixtures, as many of each, within the range of the data.

    Parameters
    ----------
    sketch
        Sketch, which knows the range.
    mixtures
        Weights, means and variances or matrices of each mixture.
    seed
        Seed, ``>= 0``.

    Returns
    -------
    rows
        Shape (n_rows, n_features).
    """
    parts = []
    for number, (weights, means, shapes) in enumerate(mixtures):
        kind = "full" if shapes.ndim == 3 else "diag"
        model = GaussianMixture(weights, means, shapes, covariance_type=kind)
        parts.append(model.sample(_N_ROWS // len(mixtures), seed=seed + number))
    rows = np.concatenate(parts)
    inside = ((rows >= sketch.minimum) & (rows <= sketch.maximum)).all(axis=1)
    return rows[inside] if inside.mean() > 0.5 else rows


def _warn(problem: Problem, gain: float, of_pilot: float) -> None:
    """Warn of a mixture with covariance matrices, and of a likelier one without."""
    diagonal = ""
    if of_pilot > WARNED_NATS:
        diagonal = (
            f", and the mixture of the pilot rows, with covariance_type='diag', {of_pilot:.2g}"
        )
    warn_user(
        f"the data is not a mixture of n_components={problem.n_components} such Gaussians: the "
        "mixture is the likeliest one of simulated rows, whose weights agree with the sketch. EM "
        "on rows may be tenths of a nat a sample likelier, or many nats where clusters are far "
        "narrower than the frequencies resolve, or where there are more parameters than rows"
        f"{diagonal}. To fit rows, {rows_remedy(problem.sketch)}. The mixture nearest to the "
        f"sketch would be {gain:.2g} nats less likely."
    )
