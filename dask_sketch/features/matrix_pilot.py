"""Mixture of pilot rows with covariance matrices, and frequencies that are adapted to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.design import default_n_pilot
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.pilot import MatrixMixture, Pilot
from dask_sketch.features.pilot_fit import sampling_loss
from dask_sketch.models.density import RowDensity
from dask_sketch.models.low_rank import covariances_of
from dask_sketch.models.weighted_em import fit_mixture
from dask_sketch.validation.choices import MAX_SOLVABLE

Array = NDArray[np.float64]
# Features up to which frequencies of all of them are fitted nearly as fast as those of four: one
# gradient takes 1.2 times as long as with variances in 8 features, and 4 times in 20.
_MAX_FEATURES = 12
# Pilot rows for each parameter: fewer lose over 0.1 nats, and say little about directions.
_MIN_ROWS = 5
# Factor of frequencies whose radii are adapted to one component: low frequencies tell most about
# components that do not overlap, and with components that do they tell too little. In 20 mixtures
# (d = 2 to 12, K = 3 to 20) the best of six factors was 0.25 to 0.4 where the overlap is below
# 0.001, 0.4 to 0.6 below 0.04, and 0.9 to 1.3 from 0.14.
_LOWEST, _SLOPE, _HIGHEST = 0.35, 1.5, 1.0
# Smallest variance in any direction that frequencies are adapted to, as a fraction of the variance
# of the rows in standard units: narrower components are mostly values that many rows share.
_NARROWEST = 1e-4
_DIGITS = 3  # digits of axes, which every task of a cluster receives


def n_pilot_of_type(
    covariance_type: str | None,
    n_features: int | None,
    n_components: int | None,
    task: str = "mixture",
) -> int:
    """Default number of pilot rows, by the number of parameters of the type of covariances.

    Parameters
    ----------
    covariance_type
        Name of the type, or None.
    n_features, n_components, task
        Arguments of :func:`~dask_sketch.features.design.default_n_pilot`.

    Examples
    --------
    >>> n_pilot_of_type(None, 8, 10), n_pilot_of_type("full", 8, 10)
    (6800, 18000)
    """
    default = default_n_pilot(n_features, n_components, task)
    if covariance_type != "full" or n_features is None or n_components is None:
        return default
    n_parameters = _n_parameters(n_components, n_features)
    if n_parameters > MAX_SOLVABLE:
        return default
    # a mixture with as many parameters, and no covariances
    return max(default, default_n_pilot(n_features, n_parameters // (n_features + 1), "clustering"))


def _n_parameters(n_components: int, n_features: int) -> int:
    """Number of parameters of a mixture with covariance matrices."""
    n_matrices = covariances_of("full").n_parameters(n_components, n_features)
    return n_components * (1 + n_features) + n_matrices


def with_matrices(pilot: Pilot, rows: Array, seed: int = 0) -> Pilot:
    """Record with a mixture with covariance matrices, if the rows determine one.

    Parameters
    ----------
    pilot
        Record of the rows, with a mixture.
    rows
        Finite rows, shape (n, n_features).
    seed
        Seed of the starts, ``>= 0``.

    Examples
    --------
    >>> from dask_sketch.features.pilot_fit import record_pilot, rough_mixture
    >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
    >>> pilot = record_pilot(rows, rough_mixture(rows, n_components=2))
    >>> with_matrices(pilot, rows).matrix_mixture.covariances.shape
    (2, 2, 2)
    """
    mixture, d = pilot.mixture, rows.shape[1]
    if mixture is None or d < 2 or not (np.ptp(rows, axis=0) > 0).all():
        return pilot
    k = len(mixture.weights)
    n_parameters = _n_parameters(k, d)
    if n_parameters > MAX_SOLVABLE or len(rows) < _MIN_ROWS * n_parameters:
        return pilot
    start = mixture.weights, mixture.means, mixture.variances
    fitted = fit_mixture(rows, None, k, starts=[start], seed=seed, covariance_type="full")
    matrices = 0.5 * (fitted.covariances + fitted.covariances.transpose(0, 2, 1))
    found = fitted.weights, fitted.means, matrices
    loss = sampling_loss(rows, found, seed, "full")
    return replace(pilot, matrix_mixture=MatrixMixture(*found, fitted.log_likelihood, loss))


def adapted_to_matrices(feature_map: FeatureMap, rows: Array) -> FeatureMap:
    """Feature map with frequencies of all features, adapted to the matrices of its pilot.

    The map is returned as it is where it has many features or no such mixture.

    Parameters
    ----------
    feature_map
        Map with the distribution ``"sparse-sums"``.
    rows
        Pilot rows, shape (n, n_features).
    """
    pilot = feature_map.pilot
    mixture = None if pilot is None else pilot.matrix_mixture
    if mixture is None or not 1 < feature_map.n_features <= _MAX_FEATURES:
        return feature_map
    factor = _factor(mixture, rows)
    unit = rows.std(axis=0)
    values, vectors = np.linalg.eigh(mixture.covariances / np.outer(unit, unit))
    widened = vectors * np.maximum(values, _NARROWEST)[:, None] @ vectors.transpose(0, 2, 1)
    roots = np.linalg.inv(np.linalg.cholesky(widened)).transpose(0, 2, 1)
    axes = _rounded(factor * roots / unit[:, None])
    return replace(feature_map, distribution="dense-sums", axes=axes)


def _factor(mixture: MatrixMixture, rows: Array) -> float:
    """Factor of the frequencies, which grows with the overlap of the components."""
    posterior = RowDensity(mixture.weights, mixture.means, mixture.covariances).posterior(rows)
    overlap = 1.0 - float(np.square(posterior).sum(axis=1).mean())
    return min(_LOWEST + _SLOPE * float(np.sqrt(max(overlap, 0.0))), _HIGHEST)


def _rounded(values: Array) -> Array:
    """Values of few digits, for short specifications."""
    scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.maximum(np.abs(values), 1e-300))))
    rounded = np.round(values * scale) / scale
    return np.where(values == 0.0, 0.0, rounded)
