"""Algorithm 2 of "Sketch and shift: a robust decoder for compressive clustering".

The correlation ``f_r(c) = Re <r, a(c)>`` of a sketch with a point ``c`` is an unbiased estimate of
a kernel density estimate of the data: with Gaussian frequencies, one whose bandwidth is the scale
of the map (eq. 8); with other distributions, one with another smooth kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_sketch.decoders.descent import non_negative_weights
from dask_sketch.decoders.names import MAXIMA
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.objective import Complex, Objective
from dask_sketch.decoders.problem import Problem, Report, Solution
from dask_sketch.errors import DecodeError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.threads import SERIAL, Threads

_N_STEPS = 50
_STILL = 1e-3  # a step below this fraction of the bandwidth is the last one
# Sketched mean shift divides by the correlation, which does vanish on some paths (15 to 60 % of
# them in two dimensions, although the paper saw none): it counts as at least this fraction of the
# largest correlation of all starts.
_SMALLEST = 1e-3
_LONGEST = 1.0  # longest step, in bandwidths times the root of the number of features
_TINY = float(np.finfo(float).tiny)


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
    kernels = feature_map.distribution_variances
    if feature_map.distribution not in ("gaussian", "clustering") or len(kernels) > 1:
        raise DecodeError(
            f"distribution={feature_map.distribution!r} with {len(kernels)} covariance(s): local "
            "covariances need a Gaussian kernel. Sketch with distribution='gaussian' and one "
            "covariance, or decode model='dirac'."
        )
    variances = kernels[0]
    if feature_map.whitening is None:
        return np.diag(variances)
    inverse = np.linalg.inv(feature_map.whitening)
    return np.asarray((inverse * variances) @ inverse.T)


def local_covariance(objective: Objective, point: Array, bandwidth: Array) -> Array:
    """Covariance of the cluster around a point, from the Hessian of the correlation there.

    Appendix B, Definition 2. If the kernel is Gaussian with bandwidth ``B``, the correlation of the
    sketch with a point near the mean of a Gaussian cluster of covariance ``S`` is, up to noise and
    other clusters, proportional to ``exp(-(c - mean)' (S + B)**-1 (c - mean) / 2)``, so that the
    Hessian of minus its logarithm determines ``S``. The estimate always uses the whole sketch, and
    not a residual.

    Equations (14) to (16) print a factor ``1 / sqrt(m)`` too many, which cancels in (13); the
    product of gradients in (13) is the outer product.

    Parameters
    ----------
    objective
        Objective of points.
    point
        Point, shape (n_features,), in the coordinates of the objective.
    bandwidth
        Covariance matrix of the kernel, in the same coordinates.

    Returns
    -------
    covariance
        Matrix (n_features, n_features), in the same coordinates. All zero, which represents a
        point, if the correlation is not positive or the estimate not positive definite.
    """
    d, omega = objective.space.n_features, objective.omega
    zero = np.zeros((d, d))
    rows = objective.atoms(point[None, :]).reshape(2, -1)
    real, imag = objective.target
    # conj(a) z, whose real part sums to f, with factors -i w and -w w' for gradient and Hessian
    same = rows[0] * real + rows[1] * imag
    cross = rows[0] * imag - rows[1] * real
    value, gradient = same.sum(), -(omega @ cross)
    if not value > 0.0:
        return zero
    hessian = -(omega * same) @ omega.T
    curvature = (np.outer(gradient, gradient) - hessian * value) / value**2
    values, axes = np.linalg.eigh(0.5 * (curvature + curvature.T))
    if not values[0] > 1e-12 * values[-1]:
        return zero
    covariance = (axes / values) @ axes.T - bandwidth
    positive = np.linalg.eigvalsh(covariance)[0] > 0.0
    return np.asarray(covariance) if positive else zero


def find_maxima(
    objective: Objective,
    residual: Complex,
    starts: Array,
    maxima: str = "shift",
    n_steps: int = _N_STEPS,
) -> tuple[Array, Array]:
    """GetLocalMaximum: move points to local maxima of their correlation, all together.

    Parameters
    ----------
    objective
        Objective of points.
    residual
        Real and imaginary part of the residual, shape (n_frequencies,) each.
    starts
        Starting points, shape (n, n_features), in the coordinates of the objective.
    maxima
        ``"shift"``: sketched mean shift, eq. (9), ``c + eta grad f / |f|``. The paper does not
        specify the step; ``eta`` is the squared bandwidth, with which the step becomes mean shift
        for infinitely many frequencies. ``"ascent"``: plain gradient ascent, ``c + eta grad f``
        with the same ``eta``, the paper's negative example: it hardly moves if the correlation is
        small. ``"discrete"``: points do not move.
    n_steps
        Largest number of steps.

    Returns
    -------
    points, values
        End points, shape (n, n_features), and their correlations, shape (n,).

    Raises
    ------
    DecodeError
        If ``maxima`` is unknown.
    """
    if maxima not in MAXIMA:
        raise DecodeError(f"maxima={maxima!r} is unknown: choose one of {', '.join(MAXIMA)}.")
    points = starts.copy()
    if maxima == "discrete":
        return points, objective.correlations(points, residual)
    moving = np.arange(len(points))
    longest = _LONGEST * np.sqrt(objective.space.n_features)
    for _ in range(n_steps):
        values, gradients = objective.correlation_gradients(points[moving], residual)
        steps = gradients
        if maxima == "shift":
            sizes = np.abs(values)
            steps = gradients / np.maximum(sizes, max(_SMALLEST * sizes.max(), _TINY))[:, None]
        lengths = np.linalg.norm(steps, axis=1)
        steps *= np.minimum(1.0, longest / np.maximum(lengths, _TINY))[:, None]
        moved = objective.space.clip(points[moving] + steps)
        far = np.abs(moved - points[moving]).max(axis=1) > _STILL
        points[moving] = moved
        moving = moving[far]
        if not len(moving):
            break
    return points, objective.correlations(points, residual)


@dataclass(frozen=True, kw_only=True)
class CandidateCentroids(Solution):
    """Result of Algorithm 2: the heaviest of the candidates, in the units of the data.

    The weights and the cost come from the fit of all candidates: weights are neither fitted again
    after pruning nor normalised.

    Attributes
    ----------
    covariances
        Covariances of the fitted atoms, shape (n_components, n_features, n_features); all zero for
        points.
    """

    covariances: Array


def sketch_and_shift(
    sketch: Sketch,
    n_components: int,
    rng: np.random.Generator,
    report: Report,
    *,
    model: str = "dirac",
    box: Array | None = None,
    maxima: str = "shift",
    n_starts: int = 100,
    n_candidates: int | None = None,
    threads: Threads = SERIAL,
) -> CandidateCentroids:
    """Collect local maxima of the residual's correlation, fit weights, keep the heaviest.

    Every candidate is the best of ``n_starts`` maxima from points sampled uniformly in the box; all
    weights are then fitted again, and the residual follows. The support is reduced, by weight, only
    after all candidates are found. Afterwards nothing moves and no weight is fitted again: this is
    the algorithm of the paper. Its centroids are biased if clusters have width and the bandwidth is
    large; :func:`dask_sketch.decoders.density_clustering.divide_density` has no such bias.

    Errata of the paper: the branches of the Gaussian model are exchanged in print, and its residual
    ignores that atoms may have become points again.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    n_components
        Number of centroids ``k``.
    rng
        Random number generator.
    report
        Function called with the cost after each candidate.
    model
        ``"dirac"``, or ``"gaussian"``: atoms with the covariance of :func:`local_covariance`, and
        points if there is none; for maps with a Gaussian kernel.
    box
        Domain ``Theta`` of the paper: lowest and highest value of each feature, shape
        (2, n_features), in data units; by default the range of the data.
    maxima
        Argument of :func:`find_maxima`.
    n_starts
        Number ``L`` of starting points of each candidate.
    n_candidates
        Number ``T >= k`` of candidates; by default ``2 k``, that of the paper.
    threads
        Threads that work on blocks of frequencies.

    Returns
    -------
    candidates
        Centroids by decreasing weight.

    Raises
    ------
    DecodeError
        If an argument is out of range, or the model is Gaussian and the kernel of the map is not.
    """
    if n_candidates is None:
        n_candidates = 2 * n_components
    if model not in ("dirac", "gaussian"):
        raise DecodeError(f"model={model!r}: give 'dirac' or 'gaussian' for sketch-and-shift.")
    require_integer("n_starts", n_starts, 1, DecodeError)
    if n_candidates < n_components:
        raise DecodeError(
            f"n_candidates={n_candidates!r}: give at least n_components={n_components}."
        )
    box = np.stack([sketch.minimum, sketch.maximum]) if box is None else box
    objective = Objective(sketch, "dirac", box=box, threads=threads)
    space = objective.space
    unit = np.outer(space.scale, space.scale)
    bandwidth = kernel_bandwidth(sketch.feature_map) / unit if model == "gaussian" else None
    d, target = space.n_features, np.concatenate(objective.target)
    points, covariances = np.empty((0, d)), np.empty((0, d, d))
    rows = np.empty((0, len(target)))
    residual = target
    for _ in range(n_candidates):
        starts = rng.uniform(space.lower, space.upper, (n_starts, d))
        parts = residual.reshape(2, -1)
        ends, values = find_maxima(objective, (parts[0], parts[1]), starts, maxima)
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
    return CandidateCentroids(
        weights=weights[heaviest],
        means=space.to_data_units(points[heaviest])[0],
        variances=None,
        covariances=covariances[heaviest] * unit,
        cost=float(residual @ residual),
        noise_level=objective.noise_level,
        converged=True,
        message="all candidates found",
        n_evaluations=objective.n_evaluations,
    )


def _atom(objective: Objective, point: Array, covariance: Array) -> Array:
    """Sketch of a Gaussian of any covariance, as real numbers (2m,)."""
    omega = objective.omega
    damping = np.exp(-0.5 * np.einsum("ij,ij->j", omega, covariance @ omega))
    return np.asarray(objective.atoms(point[None])[0] * np.tile(damping, 2))


def fit_replicate(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Solution:
    """Solution of one replicate; see :data:`dask_sketch.decoders.methods.TABLE`."""
    return sketch_and_shift(
        problem.sketch,
        problem.required_size,
        rng,
        report,
        model=problem.model,
        box=problem.box,
        maxima=problem.maxima,
        threads=threads,
    )


def count_reports(problem: Problem) -> int:
    """Number of reports of one replicate."""
    return 2 * (problem.required_size)
