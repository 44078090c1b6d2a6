"""Centroids by way of a density: fit more atoms than centroids, then divide what they cover.

Ours, in none of the papers. Points are biased where clusters have width, and one atom for each
centroid is not enough where clusters are no Gaussians: the risk of k-means knows long tails and
lumps that a mixture of as many atoms as centroids cannot follow. So a density of three Gaussian
atoms for each centroid, as wide in each feature as the frequency distribution tells, times a
factor, is fitted to the sketch and to the moments that it carries, and the centroids are those of
k-means on that density. On MNIST's spectral features (k = 10, m = 500, scale 2) one, two, three and
four atoms for each centroid have a median risk of 1.58, 1.10, 1.07 and 1.05 times that of Lloyd's
algorithm on all samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dask_sketch.decoders.arguments import require_enough
from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.mixture_reduction import MomentObjective
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.optimizers import Effort, converge
from dask_sketch.decoders.replicates import Progress, Reporter, fit_all, watched
from dask_sketch.decoders.sketch_and_shift import Candidates, climb, sketch_and_shift
from dask_sketch.decoders.support import Fit, fit_weights, nothing
from dask_sketch.decoders.threads import SERIAL, Threads
from dask_sketch.errors import DecodeError
from dask_sketch.features.pilot import kmeans
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.model import Decoding
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer

# Atoms for each centroid, and at least, if the sketch tells them apart; and beyond which there is
# one for each: 64 centroids (d = 12, m = 3840) took 4, 31 and 68 CPU seconds with 64, 128 and 192
# atoms, for the same risk.
_ATOMS, _FEWEST, _MOST = 3, 10, 60
_CLIMBS = 30  # of the starting points, those of largest correlation
_NEW, _NARROWEST = 0.1, 1e-3  # variance of an atom at first and at least, in squared scales
_GROWTH = 1.25  # all atoms are descended on together when they are more by this factor
_SETTLE = Effort(tolerance=1e-3, n_iterations=10)
_CONVERGE = Effort(tolerance=1e-5, n_iterations=50)
_PAIRS = 5000  # mirrored pairs of points that stand for the density


@dataclass(frozen=True)
class Division:
    """Centroids, and the density that they divide, in the units of the data.

    Attributes
    ----------
    weights, centers
        Shares of the density, shape (n_components,), and shape (n_components, n_features).
    atom_weights, atom_means, atom_variances
        The density: weights (n_candidates,) that sum to one, means (n_candidates, n_features), and
        variances of the same shape.
    cost
        ``||z - A P||**2`` of the density.
    converged, message
        How the last descent ended.
    n_evaluations
        Evaluations of correlation or cost.
    """

    weights: Array
    centers: Array
    atom_weights: Array
    atom_means: Array
    atom_variances: Array
    cost: float
    converged: bool
    message: str
    n_evaluations: int


def default_n_candidates(n_components: int, n_features: int, n_frequencies: int) -> int:
    """Three atoms for each centroid, from ten to sixty, if the sketch has twice as many numbers.

    That is, twice as many as these atoms have parameters; otherwise fewer atoms, down to one for
    each centroid.

    Examples
    --------
    >>> default_n_candidates(10, n_features=10, n_frequencies=500)
    30
    >>> default_n_candidates(3, n_features=2, n_frequencies=30)
    7
    """
    wanted = min(max(_ATOMS * n_components, _FEWEST), _MOST)
    return max(n_components, min(wanted, n_frequencies // (n_features + 2)))


def divide_density(
    sketch: Sketch,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
    *,
    box: Array | None = None,
    maxima: str = "shift",
    n_starts: int = 1000,
    n_candidates: int | None = None,
    threads: Threads = SERIAL,
) -> Division:
    """Fit a density of Gaussian atoms to a sketch, and divide it by k-means.

    Atoms are added one by one where the residual correlates most with a point, by sketched mean
    shift. They differ from the candidates of :func:`sketch_and_shift` in three ways. Starting
    points come from the Gaussian of the data's mean and variances, and only the best of them
    climb: drawn evenly in the box of ten features, hardly any is near a cluster.
    Atoms have a variance, so that the residual forgets a cluster that is accounted for. And all
    weights, means and variances descend together on the way and at the end
    (:class:`MomentObjective`), so that nothing is biased by the order of arrival.

    Parameters
    ----------
    sketch
        Of at least one sample.
    n_components
        Number of centroids ``k``.
    rng
        Source of the starting points and of the points that stand for the density.
    report
        Called with the cost after each atom, and at the end.
    box
        Lowest and highest value of each mean, shape (2, n_features), in data units; the data's
        own when not given.
    maxima
        How local maxima are found: see :func:`dask_sketch.decoders.sketch_and_shift.climb`.
    n_starts
        Number of starting points of each atom.
    n_candidates
        Number of atoms, at least ``k``; see :func:`default_n_candidates`.
    threads
        What works on the blocks of frequencies.

    Returns
    -------
    division
        Centroids by decreasing weight.

    Raises
    ------
    DecodeError
        If an argument is out of range, or no atom explains the sketch.
    """
    d, m = sketch.feature_map.n_features, sketch.feature_map.n_frequencies
    if n_candidates is None:
        n_candidates = default_n_candidates(n_components, d, m)
    if n_candidates < n_components:
        raise DecodeError(
            f"n_candidates={n_candidates!r}: give at least n_components={n_components}."
        )
    require_integer("n_starts", n_starts, 1, DecodeError)
    box = np.stack([sketch.minimum, sketch.maximum]) if box is None else box
    points = Objective(sketch, "dirac", box=box, threads=threads)
    objective = MomentObjective(sketch, "scaled", box=box, threads=threads)
    # no atom is wider than the data: what is far from all others would be one wide atom's tail
    widest = float(np.max(sketch.extent[1] / objective.scale**2))
    objective.lower[d:] = _NARROWEST
    objective.upper[d:] = max(widest, 2.0 * _NARROWEST)

    fit = nothing(objective)
    settled = 0
    while len(fit.theta) < n_candidates:
        residual = objective.residual(fit.weights, fit.theta)
        starts = points.random_atoms(rng, n_starts, away=True)
        best = np.argsort(-points.correlations(starts, residual), kind="stable")[:_CLIMBS]
        ends, values = climb(points, residual, starts[best], maxima)
        atom = np.append(ends[values.argmax()], _NEW)
        theta = np.clip(np.vstack([fit.theta, atom]), objective.lower, objective.upper)
        weights = fit_weights(objective, theta)
        fit = Fit(weights, theta, objective.cost(weights, theta), False, "")
        if len(theta) >= _GROWTH * settled:
            fit = converge(objective, fit, _SETTLE)
            settled = len(theta)
        report(objective.sketch_cost(fit.weights, fit.theta))
    fit = converge(objective, fit, _CONVERGE)
    report(objective.sketch_cost(fit.weights, fit.theta))
    if not fit.weights.sum() > 0.0:
        raise DecodeError(
            "no atom explains the sketch: all weights are zero. The frequencies do not see the "
            "data; design the feature map on a sample of it."
        )
    atom_weights = fit.weights / fit.weights.sum()
    means, variances = objective.to_data_units(fit.theta)
    cloud, share = _cloud(atom_weights, means, variances, rng)
    part = kmeans(cloud, n_components, weights=share, seed=int(rng.integers(2**32)))
    order = np.argsort(-part.weights, kind="stable")
    return Division(
        weights=part.weights[order],
        centers=part.centers[order],
        atom_weights=atom_weights,
        atom_means=means,
        atom_variances=variances,
        cost=objective.sketch_cost(atom_weights, fit.theta),
        converged=fit.converged,
        message=fit.message,
        n_evaluations=points.n_evaluations + objective.n_evaluations,
    )


def _cloud(
    weights: Array, means: Array, variances: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Weighted points of a mixture, as many of each atom, mirrored about its mean.

    So that atoms which fall to one centroid whole have exactly their mean there.
    """
    n_atoms, d = means.shape
    each = -(-_PAIRS // n_atoms)
    away = rng.standard_normal((n_atoms, each, d)) * np.sqrt(variances)[:, None, :]
    cloud = means[:, None, :] + np.concatenate([away, -away], axis=1)
    return cloud.reshape(-1, d), np.repeat(weights, 2 * each)


# Decoding of centroids by the methods that are more than a search for atoms.

CENTROID_METHODS = ("sketch-shift", "density")


@dataclass(frozen=True)
class CentroidSearch:
    """A search for centroids; replicates differ in their starting points.

    Attributes
    ----------
    sketch, n_components, method, model, box, maxima, seed
        As of :func:`decode_centroids`.
    """

    sketch: Sketch
    n_components: int
    method: str
    model: str
    box: Array | None
    maxima: str
    seed: int

    def __call__(
        self, replicate: int, report: Callable[[float], None], threads: Threads
    ) -> Division | Candidates:
        """What one replicate finds."""
        rng = np.random.default_rng((self.seed, replicate))
        given: dict[str, Any] = {"box": self.box, "maxima": self.maxima, "threads": threads}
        if self.method == "density":
            return divide_density(self.sketch, self.n_components, rng, report, **given)
        return sketch_and_shift(
            self.sketch, self.n_components, rng, report, model=self.model, **given
        )


def decode_centroids(
    sketch: Sketch,
    n_components: int | None,
    method: str,
    model: str,
    box: Array | None,
    maxima: str,
    seed: int,
    replicates: int,
    progress: Progress | bool | None,
    n_threads: int,
    executor: Executor | None,
) -> Centroids:
    """Find centroids by sketch-and-shift or by way of a density.

    Parameters
    ----------
    sketch, n_components, method, model, maxima, seed, replicates, progress, executor
        As of :func:`dask_sketch.decode`.
    n_threads
        Number of threads.
    box
        Bounds on centroids, shape (2, n_features), in data units; the data's when not given.

    Returns
    -------
    centroids
        By decreasing weight; the replicate of lowest cost.

    Raises
    ------
    DecodeError
        If the model does not suit the method, or the sketch is too short.
    """
    begun = time.perf_counter()
    if model not in (("dirac", "gaussian") if method == "sketch-shift" else ("dirac",)):
        other = " or 'gaussian'" if method == "density" else ""
        raise DecodeError(f"method={method!r} finds centroids: give model='dirac'{other}.")
    assert n_components is not None  # only cl-omp does without
    features = sketch.feature_map
    d, m = features.n_features, features.n_frequencies
    require_enough(sketch, n_components, 1 + d)
    n_iterations = 2 * n_components
    if method == "density":
        n_iterations = default_n_candidates(n_components, d, m) + 1
    search = CentroidSearch(sketch, n_components, method, model, box, maxima, seed)
    with (
        threadpool_limits(1, user_api="blas"),
        Threads(n_threads) as threads,
        watched(progress) as show,
    ):
        reporter = Reporter(show, replicates * n_iterations)
        found = fit_all(search, replicates, executor, threads, reporter)
    best, trace = min(found, key=lambda each: each[0].cost)
    if not best.weights.sum() > 0:
        raise DecodeError(
            "no component explains the sketch: all weights are zero. The frequencies do not see "
            "the data; design the feature map on a sample of it."
        )
    record = Decoding(
        method=method,
        model=model,
        cost=best.cost,
        noise_level=Objective(sketch, "dirac").noise_level,
        trace=tuple(trace),
        seconds=time.perf_counter() - begun,
        seed=seed,
        replicates=replicates,
        n_evaluations=sum(each.n_evaluations for each, _ in found),
        converged=best.converged,
        message=best.message,
        feature_names=sketch.feature_map.feature_names,
    )
    return Centroids(best.weights / best.weights.sum(), best.centers, decoding=record)
