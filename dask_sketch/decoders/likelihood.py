"""Maximum likelihood on the calibrated rows of a sketch, beside the fit to the sketch (ours).

Real data is no mixture of a few Gaussians, and the mixture that is nearest in the distance of the
sketch is not the likeliest one. Expectation-maximisation on the calibrated rows is as good there as
on all rows. If the data is such a mixture, on the other hand, the sketch of all rows determines it
better than a sample can. Both are fitted, each is a start of the other, and the likelihood of the
calibrated rows decides.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.calibrated_sample import CalibratedSample, calibrate
from dask_sketch.decoders.descent import Fit, descend_fully
from dask_sketch.decoders.greedy import cl_ompr
from dask_sketch.decoders.misfit import mean_log_likelihood
from dask_sketch.decoders.pilot_start import pilot_start
from dask_sketch.decoders.problem import Problem, Report, Solution
from dask_sketch.decoders.search import conclude_search, search_atoms
from dask_sketch.decoders.splitting import hierarchical_splitting
from dask_sketch.decoders.starts import Start
from dask_sketch.decoders.threads import Threads
from dask_sketch.decoders.weighted_em import fit_centroids, fit_mixture

_MAX_GREEDY = 20  # components beyond which "splitting" searches, whose time grows less
_EXPLAINED = 2.0  # noise levels up to which the descent from EM's solution needs no search
_TYPES = {"gaussian": "diag", "isotropic": "spherical"}


@dataclass(frozen=True)
class Candidates:
    """Result of one replicate.

    Attributes
    ----------
    fit
        Fit to the sketch.
    likeliest
        Weights, means and variances of greatest likelihood.
    score
        Mean log-likelihood of the calibrated rows under them, in nats.
    converged
        Whether the iterations of EM converged.
    calibrated
        Calibrated rows.
    """

    fit: Fit
    likeliest: tuple[Array, Array, Array]
    score: float
    converged: bool
    calibrated: CalibratedSample

    @property
    def cost(self) -> float:
        """Cost of the fit to the sketch."""
        return self.fit.cost


def fit_replicate(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Candidates:
    """Fits of one replicate; a row of :data:`dask_sketch.decoders.methods.TABLE`."""
    k, seed = problem.required_size, int(rng.integers(2**31))
    calibrated = calibrate(problem.sketch)
    pilot = pilot_start(problem.sketch, k, seed)
    begun = [] if pilot is None else [(pilot.weights, pilot.means, pilot.variances)]
    kind = _TYPES[problem.model]
    rows, masses = calibrated.rows, calibrated.weights
    found = fit_mixture(rows, masses, k, starts=begun, seed=seed, covariance_type=kind)
    variances = _as_variances(found.covariances, found.means)
    objective = problem.objective(threads)
    start = Start(found.weights, found.means, variances)
    fit = descend_fully(objective, objective.space.clip(start.atoms(objective)), found.weights)
    report(fit.cost)
    if fit.cost > _EXPLAINED * objective.unit:
        algorithm = cl_ompr if k <= _MAX_GREEDY else hierarchical_splitting
        other = search_atoms(problem, rng, report, threads, algorithm=algorithm)
        fit = min(fit, other, key=lambda each: each.cost)
    fit = replace(fit, n_evaluations=fit.n_evaluations + objective.n_evaluations)
    # the fit to the sketch may lie in the basin of a better maximum of the likelihood
    means, shapes = objective.space.to_data_units(fit.theta)
    if fit.weights.sum() > 0 and len(fit.weights) == k:
        given = [(fit.weights / fit.weights.sum(), means, shapes)]
        again = fit_mixture(rows, masses, k, starts=given, n_starts=0, covariance_type=kind)
        if again.log_likelihood > found.log_likelihood:
            found, variances = again, _as_variances(again.covariances, again.means)
    likeliest = found.weights, found.means, variances
    return Candidates(fit, likeliest, found.log_likelihood, found.converged, calibrated)


def _as_variances(covariances: Array, means: Array) -> Array:
    """Variances (K, n_features) of diagonal or spherical covariances."""
    if covariances.ndim == 2:
        return covariances
    return np.repeat(covariances[:, None], means.shape[1], axis=1)


def conclude(
    problem: Problem, results: list[Candidates], threads: Threads, report: Report
) -> Solution:
    """The likelier of the fit to the sketch and of maximum likelihood, over all replicates.

    With ``p`` parameters and ``r`` effective rows, ``2 r`` times the likelihood of a maximum
    exceeds that of the truth by ``p`` on average, with a standard deviation of ``sqrt(2 p)``, and
    on other rows it falls short by as much (Akaike 1974). So the fit to the sketch of all rows is
    preferred unless it is less likely by the sum of both and four standard deviations; less so the
    larger the fraction of all rows that the sample holds, unless standard errors are asked for.

    Parameters
    ----------
    problem
        Sketch and arguments.
    results
        Results of all replicates.
    threads
        Threads that work on blocks of frequencies.
    report
        Function called with the cost after each round of refinement.
    """
    calibrated = results[0].calibrated
    nearest = conclude_search(problem, [result.fit for result in results], threads, report)
    assert nearest.variances is not None  # of the models in the table
    best = max(results, key=lambda result: result.score)
    mixture = nearest.weights, nearest.means, nearest.variances
    score = mean_log_likelihood(_rows(calibrated), calibrated.weights, mixture)
    n_parameters = problem.required_size * problem.count_parameters() - 1
    gain = best.score - score
    by_chance = n_parameters + 2.0 * np.sqrt(2.0 * n_parameters)
    if problem.refine is None:
        by_chance *= max(1.0 - len(calibrated.rows) / problem.sketch.count, 0.0)
    if not gain > by_chance / calibrated.effective_count:
        return replace(nearest, score=score, gain=-gain)
    if problem.refine is not None:
        warnings.warn(
            f"refine={problem.refine!r}: maximum likelihood on the rows of the sample is "
            f"{gain:.2g} nats a sample likelier than the refined fit, for the data is no mixture "
            f"of {problem.required_size} Gaussians. It is returned, without standard errors; "
            "method='cl-ompr' returns the refined fit.",
            UserWarning,
            stacklevel=5,
        )
    order = np.argsort(-best.likeliest[0], kind="stable")
    weights, means, variances = (part[order] for part in best.likeliest)
    objective = problem.objective(threads)
    theta = objective.space.from_data_units(means, variances)
    return replace(
        nearest,
        weights=weights,
        means=means,
        variances=variances,
        cost=objective.cost(weights, theta),
        converged=best.converged,
        message="maximum likelihood on the calibrated rows",
        standard_errors=None,
        score=best.score,
        gain=gain,
    )


def _rows(calibrated: CalibratedSample) -> Array:
    return np.asarray(calibrated.rows, dtype=np.float64)


def fit_points(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Solution:
    """Centroids of the calibrated rows; a row of the table for ``model="dirac"``."""
    calibrated = calibrate(problem.sketch)
    seed = int(rng.integers(2**31))
    pilot = pilot_start(problem.sketch, problem.required_size, seed)
    found = fit_centroids(
        calibrated.rows, calibrated.weights, problem.required_size,
        starts=[] if pilot is None else [pilot.means], seed=seed,
    )  # fmt: skip
    objective = problem.objective(threads)
    order = np.argsort(-found.weights, kind="stable")
    weights, means = found.weights[order], found.centers[order]
    theta = objective.space.from_data_units(means, np.zeros_like(means))
    cost = objective.cost(weights, theta)
    report(cost)
    return Solution(
        weights=weights,
        means=means,
        variances=None,
        cost=cost,
        noise_level=objective.noise_level,
        converged=True,
        message="k-means on the calibrated rows",
        n_evaluations=objective.n_evaluations,
        score=-found.inertia,
    )


def conclude_points(
    problem: Problem, results: list[Solution], threads: Threads, report: Report
) -> Solution:
    """Centroids of the replicate with the smallest mean squared error.

    Parameters
    ----------
    problem, threads, report
        Arguments of the ``conclude`` function of every method, unused here.
    results
        Solutions of all replicates.
    """
    return max(results, key=lambda each: each.score or -np.inf)
