"""Algorithm 2 of "Sketch and shift: a robust decoder for compressive clustering"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import non_negative_weights
from dask_sketch.decoders.threads import SERIAL, Threads
from dask_sketch.errors import DecodeError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer

# Covariance of the cluster around a point, from the Hessian of the correlation there.
#
# Appendix B of the sketch-and-shift paper: where the kernel of the features is Gaussian, of
# bandwidth ``B``, the correlation of the sketch with a point near the mean of a Gaussian cluster of
# covariance ``S`` is, up to noise and other clusters, proportional to
# ``exp(-(c - mean)' (S + B)**-1 (c - mean) / 2)``, so that the Hessian of minus its logarithm
# tells ``S``.


def kernel_bandwidth(feature_map: FeatureMap) -> Array:
    """Covariance matrix ``B`` (n_features, n_features) of a map's Gaussian kernel, in data units.

    Raises
    ------
    DecodeError
        If the kernel is not Gaussian.

    Examples
    --------
    >>> kernel_bandwidth(FeatureMap(2, 10, scale=3.0, distribution="gaussian"))
    array([[9., 0.],
           [0., 9.]])
    """
    if (
        feature_map.distribution not in ("gaussian", "clustering")
        or len(feature_map.distribution_variances) > 1
    ):
        raise DecodeError(
            f"distribution={feature_map.distribution!r} with "
            f"{len(feature_map.distribution_variances)} covariance(s): local "
            "covariances are read off a Gaussian kernel. Sketch with distribution='gaussian' and one "
            "covariance, or fit points."
        )
    variances = feature_map.distribution_variances[0]
    if feature_map.whitening is None:
        return np.diag(variances)
    inverse = np.linalg.inv(feature_map.whitening)
    return np.asarray((inverse * variances) @ inverse.T)


def local_covariance(objective: Objective, point: Array, bandwidth: Array) -> Array:
    """Estimate of Definition 2, always from the whole sketch and not from a residual.

    Equations (14) to (16) print a factor ``1 / sqrt(m)`` too many, which cancels in (13); the
    gradient's product in (13) is the outer product.

    Parameters
    ----------
    objective
        Of the family of points.
    point
        Shape (n_features,), in the objective's coordinates.
    bandwidth
        Covariance matrix of the kernel, in the same coordinates.

    Returns
    -------
    covariance
        Shape (n_features, n_features), in the same coordinates. All zero, which stands for a
        point, where the correlation is not positive or the estimate is not positive definite.
    """
    d, omega = objective.n_features, objective.omega
    nothing = np.zeros((d, d))
    rows = objective.atoms(point[None, :]).reshape(2, -1)
    real, imag = objective.target
    # conj(a) z, whose real part sums to f, with factors -i w and -w w' to gradient and Hessian
    same = rows[0] * real + rows[1] * imag
    cross = rows[0] * imag - rows[1] * real
    value, gradient = same.sum(), -(omega @ cross)
    if not value > 0.0:
        return nothing
    hessian = -(omega * same) @ omega.T
    curvature = (np.outer(gradient, gradient) - hessian * value) / value**2
    values, axes = np.linalg.eigh(0.5 * (curvature + curvature.T))
    if not values[0] > 1e-12 * values[-1]:
        return nothing
    covariance = (axes / values) @ axes.T - bandwidth
    positive = np.linalg.eigvalsh(covariance)[0] > 0.0
    return np.asarray(covariance) if positive else nothing


# GetLocalMaximum of the sketch-and-shift paper: local maxima of the correlation with points.
#
# For the distribution ``"gaussian"`` the correlation ``f_r(c) = Re <r, a(c)>`` of the sketch with a
# point ``c`` is an unbiased estimate of a kernel density estimate of the data, of the map's scale
# as its bandwidth (eq. 8); for other distributions it is one with another smooth kernel.

Maxima = Literal["shift", "discrete", "ascent"]
MAXIMA: tuple[str, ...] = get_args(Maxima)
_N_ITERATIONS = 50  # steps of a start at most
_STILL = 1e-3  # of the bandwidth: a shorter step is the last one
# Sketched mean shift divides by the correlation, which does vanish on the way (in 15 to 60 % of
# the paths in two dimensions, for all that the paper saw none).
_SMALLEST = 1e-3  # of the largest correlation of all starts
_TINY = float(np.finfo(float).tiny)
_LONGEST = 1.0  # step in bandwidths times the root of the number of features


def climb(
    objective: Objective, residual: tuple[Array, Array], starts: Array, maxima: str = "shift"
) -> tuple[Array, Array]:
    """Move points towards local maxima of their correlation with a residual, all together.

    Parameters
    ----------
    objective
        Of the family of points.
    residual
        Real and imaginary part of the residual, shape (n_frequencies,) each.
    starts
        Starting points, shape (n, n_features), in the objective's coordinates.
    maxima
        ``"shift"``: sketched mean shift, eq. (9), ``c + eta grad f / |f|``. The paper leaves the
        step open; ``eta`` is the squared bandwidth, with which the step is that of mean shift
        for infinitely many frequencies. ``"ascent"``: plain gradient ascent, ``c + eta grad f``
        with the same ``eta``, the paper's negative example: it hardly moves where the correlation
        is small. ``"discrete"``: the points stay where they are.

    Returns
    -------
    points, values
        Where they ended, shape (n, n_features), and the correlations there, shape (n,).

    Raises
    ------
    DecodeError
        If the way to find maxima is unknown.
    """
    if maxima not in MAXIMA:
        raise DecodeError(f"maxima={maxima!r} is unknown; choose one of {', '.join(MAXIMA)}.")
    points = starts.copy()
    if maxima == "discrete":
        return points, objective.correlations(points, residual)
    lower, upper = objective.lower, objective.upper
    moving = np.arange(len(points))
    longest = _LONGEST * np.sqrt(objective.n_features)
    for _ in range(_N_ITERATIONS):
        values, gradients = objective.correlation_gradients(points[moving], residual)
        steps = gradients
        if maxima == "shift":
            sizes = np.abs(values)
            steps = gradients / np.maximum(sizes, max(_SMALLEST * sizes.max(), _TINY))[:, None]
        lengths = np.linalg.norm(steps, axis=1)
        steps *= np.minimum(1.0, longest / np.maximum(lengths, _TINY))[:, None]
        moved = np.clip(points[moving] + steps, lower, upper)
        far = np.abs(moved - points[moving]).max(axis=1) > _STILL
        points[moving] = moved
        moving = moving[far]
        if not len(moving):
            break
    return points, objective.correlations(points, residual)


@dataclass(frozen=True)
class Candidates:
    """What Algorithm 2 returns, in the units of the data.

    Attributes
    ----------
    weights
        Of the fit of all candidates, neither fitted again after pruning nor normalised, shape
        (n_components,), decreasing.
    centers
        Shape (n_components, n_features).
    covariances
        Of the atoms that were fitted, shape (n_components, n_features, n_features); all zero for
        points.
    cost
        ``||z - sum_i alpha_i a_i||**2`` with all candidates.
    n_evaluations
        Evaluations of correlation.
    converged, message
        How it ended, which is always the same.
    """

    weights: Array
    centers: Array
    covariances: Array
    cost: float
    n_evaluations: int
    converged: bool = True
    message: str = "all candidates found"


def sketch_and_shift(
    sketch: Sketch,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
    *,
    model: str = "dirac",
    box: Array | None = None,
    maxima: str = "shift",
    n_starts: int = 100,
    n_candidates: int | None = None,
    threads: Threads = SERIAL,
) -> Candidates:
    """Collect local maxima of the residual's correlation, weigh them, keep the heaviest.

    Every candidate is the best of ``n_starts`` climbs from points drawn evenly in the box; all
    weights are then fitted anew, and the residual follows. Only when all candidates are found is
    the support reduced, by weight. Nothing is moved afterwards and no weight fitted again: that is
    the paper's algorithm. Its centres are biased where clusters have width and the bandwidth is
    large; :func:`dask_sketch.decoders.density_clustering.divide_density` is not.

    Errata of the paper: the branches of the Gaussian model are swapped in print, and its residual
    forgets that atoms may have gone back to points.

    Parameters
    ----------
    sketch
        Of at least one sample.
    n_components
        Number of centroids ``k``.
    rng
        Source of the starting points.
    report
        Called with the cost after each candidate.
    model
        ``"dirac"``, or ``"gaussian"``: atoms with the covariance of :func:`local_covariance`, and
        points where there is none; for maps whose kernel is Gaussian.
    box
        The paper's domain ``Theta``: lowest and highest value of each feature, shape
        (2, n_features), in data units; the data's own when not given.
    maxima
        How local maxima are found: see :func:`dask_sketch.decoders.sketch_and_shift.climb`.
    n_starts
        Number ``L`` of starting points of each candidate.
    n_candidates
        Number ``T >= k`` of candidates; ``2 k``, the paper's, when not given.
    threads
        What works on the blocks of frequencies.

    Returns
    -------
    candidates

    Raises
    ------
    DecodeError
        If an argument is out of range, or the model is Gaussian and the map's kernel is not.
    """
    if n_candidates is None:
        n_candidates = 2 * n_components
    if model not in ("dirac", "gaussian"):
        raise DecodeError(f"model={model!r}: sketch-and-shift fits 'dirac' or 'gaussian'.")
    require_integer("n_starts", n_starts, 1, DecodeError)
    if n_candidates < n_components:
        raise DecodeError(
            f"n_candidates={n_candidates!r}: give at least n_components={n_components}."
        )
    box = np.stack([sketch.minimum, sketch.maximum]) if box is None else box
    objective = Objective(sketch, "dirac", box=box, threads=threads)
    unit = np.outer(objective.scale, objective.scale)
    bandwidth = kernel_bandwidth(sketch.feature_map) / unit if model == "gaussian" else None
    d, target = objective.n_features, np.concatenate(objective.target)
    points, covariances = np.empty((0, d)), np.empty((0, d, d))
    rows = np.empty((0, len(target)))
    residual = target
    for _ in range(n_candidates):
        starts = rng.uniform(objective.lower, objective.upper, (n_starts, d))
        parts = residual.reshape(2, -1)
        ends, values = climb(objective, (parts[0], parts[1]), starts, maxima)
        point = ends[values.argmax()]
        covariance = np.zeros((d, d))
        if bandwidth is not None:
            covariance = local_covariance(objective, point, bandwidth)
        points = np.concatenate([points, point[None]])
        covariances = np.concatenate([covariances, covariance[None]])
        rows = np.concatenate([rows, _atom(objective, point, covariance)[None]])
        weights = non_negative_weights(rows, target)
        residual = target - weights @ rows
        report(float(residual @ residual))
    heaviest = np.argsort(-weights, kind="stable")[:n_components]
    return Candidates(
        weights=weights[heaviest],
        centers=objective.to_data_units(points[heaviest])[0],
        covariances=covariances[heaviest] * unit,
        cost=float(residual @ residual),
        n_evaluations=objective.n_evaluations,
    )


def _atom(objective: Objective, point: Array, covariance: Array) -> Array:
    """Sketch of a Gaussian of any covariance, as real numbers (2m,)."""
    omega = objective.omega
    damping = np.exp(-0.5 * np.einsum("ij,ij->j", omega, covariance @ omega))
    return np.asarray(objective.atoms(point[None])[0] * np.tile(damping, 2))
