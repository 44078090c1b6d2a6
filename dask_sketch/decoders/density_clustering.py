"""Centroids from a density: fit more atoms than centroids, then partition them by k-means.

This method is in none of the papers. Points are biased if clusters have width, and one atom for
each centroid is not enough if clusters are not Gaussian: the risk of k-means depends on long tails
and local concentrations, which a mixture of as many atoms as centroids cannot follow. Therefore a
density of three Gaussian atoms for each centroid is fitted to the sketch and to the moments of the
data that it carries, and the centroids are found by k-means on that density. Variances of an atom
are a multiple of those that the frequency distribution expects in each feature. On MNIST's spectral
features (k = 10, m = 500, scale 2) one, two, three and four atoms for each centroid have a median
risk of 1.58, 1.10, 1.07 and 1.05 times that of Lloyd's algorithm on all samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_sketch.decoders.descent import Fit, converge, empty_fit, fit_weights
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.optimizers import StoppingRule
from dask_sketch.decoders.problem import Problem, Report, Solution, require_weight
from dask_sketch.decoders.sketch_and_shift import find_maxima
from dask_sketch.errors import DecodeError
from dask_sketch.features.pilot import PilotMixture
from dask_sketch.models.clusters import kmeans
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.threads import SERIAL, Threads

# Atoms for each centroid, and their smallest number, if the sketch can distinguish them; and the
# number beyond which there is one for each: 64 centroids (d = 12, m = 3840) took 4, 31 and 68 CPU
# seconds with 64, 128 and 192 atoms, for the same risk.
_ATOMS, _MIN_ATOMS, _MAX_ATOMS = 3, 10, 60
_ASCENTS = 30  # starting points, of largest correlation, that move to maxima
# Cost of a density, in noise levels, up to which noise explains it: its centroids then had up to
# 1.09 times the squared error of k-means on 30 sets, unless the frequencies were too low for the
# data; and 1.02 to 3.6 times beyond it.
EXPLAINED = 2.0
_BELOW_NOISE = 0.1  # cost in noise levels, from which more atoms would be fitted to noise
_FAR = 6.0  # standard deviations of the data beyond which points of its Gaussian are too few
_NEW, _NARROWEST = 0.1, 1e-3  # first and smallest variance of an atom, in squared scales
_GROWTH = 1.25  # growth of the number of atoms after which all of them descend together
_INTERMEDIATE = StoppingRule(tolerance=1e-3, n_iterations=10)
_FINAL = StoppingRule(tolerance=1e-5, n_iterations=50)
_PAIRS = 5000  # mirrored pairs of points that represent the density
# Weight of the moments beside a sketch, whose squared norm is at most one: an error of one standard
# deviation in all of them costs twice the square of this. Median RSE of centroids on MNIST's
# spectral features (m = 500, 8 seeds) with weights 0, 0.1, 0.3, 1 and 3: 2.06, 1.33, 1.15, 1.12 and
# 1.12 at scale 1, and 1.07, 1.07, 1.07, 1.07 and 1.06 at scale 2. On 20 clusters with tails in 5
# features and on MNIST's pixels in 20, a weight of 1 costs 0.02 more than 0.3.
_MOMENT_WEIGHT = 0.3


class MomentObjective(Objective):
    """Objective whose cost includes the errors of the first two moments of the mixture.

    The residual is extended by the total weight less one, the mean of the mixture less that of
    the data in standard deviations, and its variance less that of the data in variances, for each
    feature, all multiplied by one weight. The moments of the data are sums that every sketch
    carries (:attr:`dask_sketch.Sketch.mean` and ``variance``). They determine the reach of long
    tails, about which the frequencies say least.

    Parameters
    ----------
    sketch, model, box, threads
        Arguments of :class:`~dask_sketch.decoders.objectives.objective.Objective`.
    """

    def __init__(
        self,
        sketch: Sketch,
        model: str,
        *,
        box: Array | None = None,
        threads: Threads = SERIAL,
    ) -> None:
        super().__init__(sketch, model, box=box, threads=threads)
        variance = sketch.extent[1] / self.space.scale**2
        self.data_variance = variance
        # for a feature that does not vary, the unit is the variance of the frequency distribution
        self._variance = np.where(variance > 0.0, variance, 1.0)
        # a private sketch holds no moments
        weight = _MOMENT_WEIGHT if sketch.privacy is None else 0.0
        self._row_weight = weight / np.sqrt(self.space.n_features)

    def cost(self, weights: Array, theta: Array) -> float:
        """Cost of the sketch and of the moments."""
        moments = self.moments(weights, theta)
        return super().cost(weights, theta) + float(moments @ moments)

    def sketch_cost(self, weights: Array, theta: Array) -> float:
        """Cost of the sketch alone."""
        return super().cost(weights, theta)

    def cost_gradient(self, weights: Array, theta: Array) -> tuple[float, Array, Array]:
        """Cost and its gradient, as in the base class."""
        cost, by_weight, by_theta = super().cost_gradient(weights, theta)
        moments = self.moments(weights, theta)
        right = -2.0 * self.moment_jacobian(weights, theta) @ moments
        n_atoms = len(theta)
        by_weight = by_weight + right[:n_atoms]
        by_theta = by_theta + right[n_atoms:].reshape(by_theta.shape)
        return cost + float(moments @ moments), by_weight, by_theta

    def gram(self, weights: Array, theta: Array) -> Array:
        """Gram matrix of the sketch and of the moments, as in the base class."""
        jacobian = self.moment_jacobian(weights, theta)
        return super().gram(weights, theta) + jacobian @ jacobian.T

    def moments(self, weights: Array, theta: Array) -> Array:
        """Residual of the moments (1 + 2 n_features,); the mean of the data is the origin."""
        means = theta[:, : self.space.n_features]
        squares = means**2 + self.space.variances(theta)
        return self._row_weight * np.concatenate(
            [
                [1.0 - weights.sum()],
                -(weights @ means) / np.sqrt(self._variance),
                (self.data_variance - weights @ squares) / self._variance,
            ]
        )

    def moment_jacobian(self, weights: Array, theta: Array) -> Array:
        """Derivative (P, 1 + 2 n_features) of the moments, with the rows of the Jacobian."""
        d, n_atoms = self.space.n_features, len(theta)
        means = theta[:, :d]
        deviation = np.sqrt(self._variance)
        squares = means**2 + self.space.variances(theta)
        by_weight = np.concatenate(
            [np.ones((n_atoms, 1)), means / deviation, squares / self._variance], axis=1
        )
        by_theta = np.zeros((n_atoms, self.space.n_parameters, 1 + 2 * d))
        features = np.arange(d)
        by_theta[:, features, 1 + features] = 1.0 / deviation
        by_theta[:, features, 1 + d + features] = 2.0 * means / self._variance
        by_theta[:, d:, 1 + d :] = self.space.family.spread / self._variance
        by_theta *= weights[:, None, None]
        return self._row_weight * np.concatenate([by_weight, by_theta.reshape(-1, 1 + 2 * d)])


@dataclass(frozen=True, kw_only=True)
class Division(Solution):
    """Centroids and the density that they partition, in the units of the data.

    Weights are proportions of the density, and the cost belongs to the density, not to the
    centroids.

    Attributes
    ----------
    atom_weights, atom_means, atom_variances
        Density: weights (n_candidates,) that sum to one, means and variances
        (n_candidates, n_features).
    """

    atom_weights: Array
    atom_means: Array
    atom_variances: Array


def default_n_candidates(n_components: int, n_features: int, n_frequencies: int) -> int:
    """Number of atoms: three for each centroid, from ten to sixty, if the sketch is long enough.

    It is long enough if it has twice as many numbers as these atoms have parameters; otherwise
    there are fewer atoms, down to one for each centroid.

    Examples
    --------
    >>> default_n_candidates(10, n_features=10, n_frequencies=500)
    30
    >>> default_n_candidates(3, n_features=2, n_frequencies=30)
    7
    """
    n_atoms = min(max(_ATOMS * n_components, _MIN_ATOMS), _MAX_ATOMS)
    return max(n_components, min(n_atoms, n_frequencies // (n_features + 2)))


def divide_density(
    sketch: Sketch,
    n_components: int,
    rng: np.random.Generator,
    report: Report,
    *,
    box: Array | None = None,
    maxima: str = "shift",
    n_starts: int = 1000,
    n_candidates: int | None = None,
    threads: Threads = SERIAL,
) -> Division:
    """Fit a density of Gaussian atoms to a sketch, and partition it by k-means.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    n_components
        Number of centroids ``k``.
    rng
        Random number generator.
    report
        Function called with the cost after each atom, and at the end.
    box
        Lowest and highest value of each mean, shape (2, n_features), in data units; by default the
        range of the data.
    maxima
        Argument of :func:`dask_sketch.decoders.sketch_and_shift.find_maxima`.
    n_starts
        Number of starting points of each atom.
    n_candidates
        Number of atoms, at least ``k``; see :func:`default_n_candidates`.
    threads
        Threads that work on blocks of frequencies.

    Returns
    -------
    division
        Centroids by decreasing weight, and the density.

    Raises
    ------
    DecodeError
        If an argument is out of range, or no atom explains the sketch.
    """
    features = sketch.feature_map
    if n_candidates is None:
        n_candidates = default_n_candidates(
            n_components, features.n_features, features.n_frequencies
        )
    if n_candidates < n_components:
        raise DecodeError(
            f"n_candidates={n_candidates!r}: give at least n_components={n_components}."
        )
    require_integer("n_starts", n_starts, 1, DecodeError)
    box = np.stack([sketch.minimum, sketch.maximum]) if box is None else box
    points = Objective(sketch, "dirac", box=box, threads=threads)
    objective = MomentObjective(sketch, "scaled", box=box, threads=threads)
    pilot = None if sketch.privacy is not None else sketch.feature_map.pilot
    start = None if pilot is None else pilot.mixture
    fit = _fit_density(
        points, objective, n_components, n_candidates, n_starts, maxima, rng, report, start
    )
    require_weight(fit.weights)
    atom_weights = fit.weights / fit.weights.sum()
    means, variances = objective.space.to_data_units(fit.theta)
    cloud, cloud_weights = _cloud(atom_weights, means, variances, rng)
    part = kmeans(cloud, n_components, weights=cloud_weights, seed=int(rng.integers(2**32)))
    order = np.argsort(-part.weights, kind="stable")
    return Division(
        weights=part.weights[order],
        means=part.centers[order],
        variances=None,
        atom_weights=atom_weights,
        atom_means=means,
        atom_variances=variances,
        cost=objective.sketch_cost(atom_weights, fit.theta),
        noise_level=objective.noise_level,
        converged=fit.converged,
        message=fit.message,
        n_evaluations=points.n_evaluations + objective.n_evaluations,
    )


def _fit_density(
    points: Objective,
    objective: MomentObjective,
    n_needed: int,
    n_atoms: int,
    n_starts: int,
    maxima: str,
    rng: np.random.Generator,
    report: Report,
    start: PilotMixture | None,
) -> Fit:
    """Density of atoms that are added one by one where the residual correlates most with a point.

    The first atoms are the components of the pilot mixture that explain part of the sketch: they
    know of clusters so far apart that a point hardly finds them.

    Atoms differ from the candidates of sketch-and-shift in three ways. Starting points are sampled
    from the Gaussian with the mean and variance of the data, and only the best of them move:
    sampled uniformly in the box of ten features, hardly any is near a cluster. Atoms have a
    variance, so that the residual forgets a cluster that is accounted for. And all weights, means
    and variances descend together, so that the order of the atoms biases nothing.
    """
    d = objective.space.n_features
    # no atom is wider than the data: one wide atom would cover the samples far from all others
    widest = float(np.max(objective.data_variance))
    objective.space.lower[d:] = _NARROWEST
    objective.space.upper[d:] = max(widest, 2.0 * _NARROWEST)
    reach = np.maximum(-points.space.lower[:d], points.space.upper[:d])
    is_wide = bool((reach > _FAR * np.sqrt(objective.data_variance)).any())
    fit = empty_fit(objective)
    converged = 0  # number of atoms of the last descent
    if start is not None:
        first = np.argsort(-start.weights, kind="stable")[:n_atoms]
        theta = objective.space.from_data_units(start.means[first], start.variances[first])
        theta = objective.space.clip(theta)
        weights = fit_weights(objective, theta)
        theta, weights = theta[weights > 0.0], weights[weights > 0.0]
        if len(theta):
            fit = Fit(weights, theta, objective.cost(weights, theta), converged=False)
            report(objective.sketch_cost(fit.weights, fit.theta))
    while len(fit.theta) < n_atoms:
        if len(fit.theta) >= n_needed and fit.cost <= _BELOW_NOISE * objective.noise_level:
            break  # more atoms would be fitted to noise
        residual = objective.residual(fit.weights, fit.theta)
        starts = points.space.random_atoms(rng, n_starts, spread_out=True)
        if is_wide:
            starts = np.concatenate([starts, points.space.atoms_in_range(rng, n_starts)])
        best = np.argsort(-points.correlations(starts, residual), kind="stable")[:_ASCENTS]
        ends, values = find_maxima(points, residual, starts[best], maxima)
        atom = np.append(ends[values.argmax()], _NEW)
        theta = objective.space.clip(np.vstack([fit.theta, atom]))
        weights = fit_weights(objective, theta)
        fit = Fit(weights, theta, objective.cost(weights, theta), converged=False)
        if len(theta) >= _GROWTH * converged:
            fit = converge(objective, fit, _INTERMEDIATE)
            converged = len(theta)
        report(objective.sketch_cost(fit.weights, fit.theta))
    fit = converge(objective, fit, _FINAL)
    report(objective.sketch_cost(fit.weights, fit.theta))
    return fit


def _cloud(
    weights: Array, means: Array, variances: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Weighted points of a mixture, equally many of each atom and mirrored about its mean.

    An atom that belongs to one centroid as a whole then has exactly its mean there.
    """
    n_atoms, d = means.shape
    each = -(-_PAIRS // n_atoms)
    away = rng.standard_normal((n_atoms, each, d)) * np.sqrt(variances)[:, None, :]
    cloud = means[:, None, :] + np.concatenate([away, -away], axis=1)
    return cloud.reshape(-1, d), np.repeat(weights, 2 * each)


def fit_replicate(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Solution:
    """Solution of one replicate; see :data:`dask_sketch.decoders.methods.TABLE`."""
    return divide_density(
        problem.sketch,
        problem.required_size,
        rng,
        report,
        box=problem.box,
        maxima=problem.maxima,
        threads=threads,
    )


def count_reports(problem: Problem) -> int:
    """Number of reports of one replicate."""
    n_atoms = default_n_candidates(problem.required_size, problem.n_features, problem.n_frequencies)
    return n_atoms + 1
