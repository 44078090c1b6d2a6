"""Von Mises-Fisher mixtures from a sketch of directions.

The search starts from centroids of the sketch, of the pilot of its feature map, or of its
calibrated rows. Where the sketch carries random rows, expectation-maximisation on them is a start
of the fit to the sketch, and its rival: the likelihood of the rows decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dask_sketch.decoders import density_clustering
from dask_sketch.decoders.calibrated_sample import CalibratedSample, calibrate
from dask_sketch.decoders.checks.expected_loss import gain_by_chance
from dask_sketch.decoders.checks.misfit import WARNED_LOSS
from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.problem import Problem, Report, Solution
from dask_sketch.decoders.starts import pilot_start
from dask_sketch.decoders.transform_fit import (
    Complex,
    Target,
    descend,
    descend_best,
    refine,
    refine_best,
    require_size,
    solution,
    warn_of_fit,
)
from dask_sketch.models.clusters import spherical_kmeans
from dask_sketch.models.model import LIKELIEST
from dask_sketch.models.von_mises_fisher import (
    MAX_CONCENTRATION,
    DirectionDensity,
    concentrations_of,
    fit_directions,
    resultant_lengths,
    transform_values,
    transforms,
)
from dask_sketch.models.weighted_em import fit_centroids
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import unit_rows
from dask_sketch.validation.threads import Threads
from dask_sketch.validation.warn import warn_user

_SHORTEST, _LONGEST = 0.05, 0.9999  # mean vectors of the starts
_FACTORS = (1.0, 0.25, 0.03)  # factors on the concentrations, one for each start
# Numbers of parameters times frequencies up to which there is a fit to the sketch of rows.
_MAX_DESCENT = 5_000_000
_RESOLVED = 10.0  # squared frequencies at which a concentration is as good as infinite
_N_STARTS = 3  # starts of spherical k-means on the rows


@dataclass(frozen=True)
class DirectionTransforms:
    """Characteristic functions of von Mises-Fisher distributions.

    The parameters of a component are its concentration times its mean direction.

    Attributes
    ----------
    limit
        Largest concentration.
    """

    limit: float = MAX_CONCENTRATION

    @classmethod
    def of(cls, frequencies: Array) -> DirectionTransforms:
        """Functions up to the concentration that frequencies can distinguish from points.

        Parameters
        ----------
        frequencies
            Frequencies, shape (n_features, m).
        """
        largest = float(np.square(frequencies).sum(axis=0).max())
        return cls(min(_RESOLVED * largest, MAX_CONCENTRATION))

    def values(self, theta: Array, frequencies: Array) -> Complex:
        """Values at the frequencies (n_features, m), shape (K, m)."""
        return transform_values(*split(theta), frequencies)

    def derivatives(self, theta: Array, frequencies: Array) -> tuple[Complex, Complex]:
        """Values, and derivatives by all parameters, shape (K, n_features, m)."""
        directions, k = split(theta)
        values, by_square = transforms(directions, k, frequencies)
        # s**2 is |theta|**2 - |w|**2 - 2 i theta . w, and the normaliser is of |theta|
        mean = resultant_lengths(k, theta.shape[1])[:, None] * directions
        out = 2.0 * by_square[:, None] * (theta[:, :, None] - 1j * frequencies)
        return values, out - values[:, None] * mean[:, :, None]

    def clip(self, theta: Array) -> Array:
        """Nearest possible parameters."""
        lengths = np.linalg.norm(theta, axis=1)[:, None]
        return np.asarray(theta * np.minimum(1.0, self.limit / np.maximum(lengths, self.limit)))


def split(theta: Array) -> tuple[Array, Array]:
    """Mean directions and concentrations of parameters.

    Parameters
    ----------
    theta
        Concentrations times mean directions, shape (K, n_features).
    """
    k = np.linalg.norm(theta, axis=1)
    first = np.eye(1, theta.shape[1])  # any direction, of a uniform component
    return np.where(k[:, None] > 0.0, theta / np.where(k > 0.0, k, 1.0)[:, None], first), k


@dataclass(frozen=True)
class DirectionCandidates:
    """Fit to the sketch and mixture of maximum likelihood of one replicate.

    Attributes
    ----------
    fit
        Fit to the sketch; None where it would take too long.
    likeliest
        Mixture of greatest likelihood for the rows, with its cost.
    score
        Mean log-likelihood of the calibrated rows under it, in nats.
    calibrated
        Calibrated rows.
    """

    fit: Fit | None
    likeliest: Fit
    score: float
    calibrated: CalibratedSample

    @property
    def cost(self) -> float:
        """Cost of the fit to the sketch; infinite if there is none."""
        return np.inf if self.fit is None else self.fit.cost


def _target(problem: Problem) -> Target:
    """Values of the sketch."""
    transforms = DirectionTransforms.of(problem.sketch.feature_map.frequencies)
    return Target.of(transforms, problem.sketch)


def _starts(weights: Array, means: Array) -> list[tuple[Array, Array]]:
    """Starts at mean vectors in the ball, whose lengths determine the concentrations."""
    lengths = np.linalg.norm(means, axis=1)
    divisors = np.where(lengths > 0.0, lengths, 1.0)[:, None]
    k = concentrations_of(np.clip(lengths, _SHORTEST, _LONGEST), means.shape[1])
    fractions = np.maximum(weights, 1e-3 / len(weights))
    return [(fractions, factor * k[:, None] * (means / divisors)) for factor in _FACTORS]


def fit_replicate(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Fit:
    """Fit of one replicate without rows; a row of :data:`dask_sketch.decoders.methods.TABLE`."""
    target = _target(problem)
    points = replace(problem, model="dirac")
    clusters = density_clustering.fit_replicate(points, rng, report, threads)
    starts = _starts(clusters.weights, clusters.means)
    pilot = pilot_start(problem.sketch, problem.size, problem.seed)
    if pilot is not None:
        starts += _starts(pilot.weights, pilot.means)
    return descend_best(target, starts, report)


def fit_from_start(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Fit:
    """Fit of one replicate from the components of an earlier model."""
    del rng, threads
    require_size(problem)
    start = problem.start
    assert start is not None and start.parameters is not None  # noqa: PT018
    theta = start.parameters["concentrations"][:, None] * start.means
    return descend_best(_target(problem), [(start.weights, theta)], report)


def conclude_from_start(
    problem: Problem, fits: list[Fit], threads: Threads, report: Report
) -> Solution:
    """Solution of the fit of lowest cost, refined; there is no search for other components."""
    del threads
    best = min(fits, key=lambda each: each.cost)
    fit, test = refine(_target(problem), problem.sketch, best, report)
    warn_of_fit(problem, fit.cost, test, {})
    return _solution(problem, fit, overidentification=test)


def fit_with_rows(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> DirectionCandidates:
    """Candidates of one replicate; a row of :data:`dask_sketch.decoders.methods.TABLE`."""
    sketch, k = problem.sketch, problem.required_size
    calibrated = calibrate(sketch)
    rows = unit_rows(calibrated.rows)  # those of the sketch are rounded to float32
    pilot = pilot_start(sketch, k, problem.seed)
    starts = [] if pilot is None else [pilot.means]
    for _ in range(_N_STARTS):
        seed = int(rng.integers(2**31))
        starts.append(fit_centroids(rows, calibrated.weights, k, seed=seed).centers)
    first = []
    for start in starts:
        clusters = spherical_kmeans(rows, weights=calibrated.weights, starts=[start])
        cosine = 1.0 - 0.5 * clusters.inertia
        common = concentrations_of(np.full(k, cosine), problem.n_features)
        first.append((np.maximum(clusters.weights, 1e-3 / k), clusters.centers, common))
    best = fit_directions(rows, calibrated.weights, first)
    theta = best.concentrations[:, None] * best.directions
    target = _target(problem)
    likeliest = Fit(best.weights, theta, np.inf, best.converged)
    likeliest = replace(likeliest, cost=target.cost(likeliest))
    report(likeliest.cost)
    fit = None
    if k * problem.count_parameters() * problem.n_frequencies <= _MAX_DESCENT:
        fit = descend_best(target, [(best.weights, theta)], report)
    return DirectionCandidates(fit, likeliest, best.log_likelihood, calibrated)


def conclude_with_rows(
    problem: Problem, results: list[DirectionCandidates], threads: Threads, report: Report
) -> Solution:
    """The likelier of the fit to the sketch and of maximum likelihood, over all replicates.

    As for Gaussian mixtures, the fit to the sketch of all rows is preferred unless it is less
    likely by more than fitted noise explains; see
    :func:`dask_sketch.decoders.likelihood.conclude`.
    """
    del threads
    best = max(results, key=lambda each: each.score)
    fits = [each.fit for each in results if each.fit is not None]
    calibrated, gain = best.calibrated, None
    n_parameters = problem.required_size * problem.count_parameters() - 1
    by_chance = gain_by_chance(n_parameters)
    by_chance *= max(1.0 - len(calibrated.rows) / problem.sketch.count, 0.0)
    by_chance /= calibrated.effective_count
    if fits:
        target = _target(problem)
        fit, test = refine_best(problem, target, fits, _parts, report)
        rows = unit_rows(calibrated.rows)
        density = DirectionDensity(fit.weights, *split(fit.theta))
        score = float(calibrated.weights @ density.log_total(rows))
        gain = best.score - score
        if gain <= by_chance:
            _warn_of_single(problem, score, calibrated)
            return _solution(problem, fit, overidentification=test, score=score, gain=-gain)
    _warn_of_single(problem, best.score, calibrated)
    likeliest = replace(best.likeliest, message=f"{LIKELIEST}the calibrated rows")
    return _solution(problem, likeliest, score=best.score, gain=gain)


def _warn_of_single(problem: Problem, score: float, calibrated: CalibratedSample) -> None:
    """Warn of a mixture that is less likely than one component."""
    rows = unit_rows(calibrated.rows)
    mean = calibrated.weights @ rows
    length = float(np.linalg.norm(mean))
    k = concentrations_of(np.array([length]), problem.n_features)
    direction = mean[None] / length if length > 0.0 else np.eye(1, len(mean))
    density = DirectionDensity(np.ones(1), direction, k)
    single = float(calibrated.weights @ density.log_total(rows))
    if single > score + WARNED_LOSS:
        warn_user(
            f"model={problem.model!r}: on the rows of the sketch, a single component is "
            f"{single - score:.2g} nats a sample likelier than the {problem.required_size} decoded "
            "ones. Decode fewer components, or with replicates=5."
        )


def _parts(theta: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Two narrower components in place of one, on opposite sides of it."""
    k = max(float(np.linalg.norm(theta)), 1e-3)
    mean = resultant_lengths(np.array([k]), len(theta))[0] * theta / k
    away = rng.standard_normal(len(theta))
    away *= np.sqrt((1.0 - mean @ mean) * 0.7) / np.linalg.norm(away)
    ends = np.stack([mean + away, mean - away])
    ends /= np.linalg.norm(ends, axis=1)[:, None]
    return 2.0 * k * ends[0], 2.0 * k * ends[1]


def count_reports(problem: Problem) -> int:
    """Number of reports of one replicate, roughly."""
    return density_clustering.count_reports(problem) + 2 * len(_FACTORS) + 2


def conclude(problem: Problem, fits: list[Fit], threads: Threads, report: Report) -> Solution:
    """Solution of the fit of lowest cost, refined; the search starts again where it is suspect."""
    target, sketch = _target(problem), problem.sketch
    search = partial(fit_replicate, problem, report=report, threads=threads)
    fit, test = refine_best(problem, target, fits, _parts, report, search)
    rivals = {"a single component": _single_cost(sketch, target)}
    uniform = Fit(np.ones(1), np.zeros((1, problem.n_features)), np.inf, converged=True)
    rivals["the uniform distribution"] = target.cost(uniform)
    warn_of_fit(problem, fit.cost, test, rivals)
    return _solution(problem, fit, overidentification=test)


def _single_cost(sketch: Sketch, target: Target) -> float:
    """Cost of one component."""
    start = np.full((1, len(sketch.feature_map.frequencies)), 0.1)
    if sketch.privacy is None:
        start = _starts(np.ones(1), sketch.mean[None])[0][1]
    return descend(target, np.ones(1), start).cost


def _solution(problem: Problem, fit: Fit, **more: object) -> Solution:
    directions, concentrations = split(fit.theta)
    return solution(problem, fit, directions, {"concentrations": concentrations}, **more)
