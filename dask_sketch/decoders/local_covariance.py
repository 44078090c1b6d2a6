"""Covariance of the cluster around a point, from the Hessian of the correlation there.

Appendix B of the sketch-and-shift paper: where the kernel of the features is Gaussian, of
bandwidth ``B``, the correlation of the sketch with a point near the mean of a Gaussian cluster of
covariance ``S`` is, up to noise and other clusters, proportional to
``exp(-(c - mean)' (S + B)**-1 (c - mean) / 2)``, so that the Hessian of minus its logarithm
tells ``S``.
"""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.families import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap


def kernel_bandwidth(feature_map: FeatureMap) -> Array:
    """Covariance matrix ``B`` (n_features, n_features) of a map's Gaussian kernel, in data units.

    Raises
    ------
    DecodeError
        If the kernel is not Gaussian.

    Examples
    --------
    >>> kernel_bandwidth(FeatureMap(2, 10, scale=3.0, law="gaussian"))
    array([[9., 0.],
           [0., 9.]])
    """
    if feature_map.law not in ("gaussian", "clustering") or len(feature_map.law_variances) > 1:
        raise DecodeError(
            f"law={feature_map.law!r} with {len(feature_map.law_variances)} covariance(s): local "
            "covariances are read off a Gaussian kernel. Sketch with law='gaussian' and one "
            "covariance, or fit points."
        )
    variances = feature_map.law_variances[0]
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
