"""Statistics of tests, for bands of frequencies: squared distances, plain and whitened."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dask_sketch.diagnostics.mmd import feature_scales
from dask_sketch.distributions.testing.row_covariance import pilot_mixture, row_covariance
from dask_sketch.distributions.testing.units import Units
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.frequency_pairs import FrequencyPairs

Array = NDArray[np.float64]

# Ridges of the statistics whitened by the covariance of units, relative to the largest eigenvalue,
# and of those whitened by the covariance of rows. On four clusters of 1000 rows, one of them 1.3
# times as wide, in 20 units a side, the power at a level of 5 % is 0.33 with the covariance of
# units, 0.47 with both, and 0.54 with the covariance of rows alone.
RIDGES = (0.1, 0.01)
ROW_RIDGES = (0.1, 0.01, 0.001)
MAX_BAND = 128  # frequencies of a band whose covariance is computed
_MAX_BANDS, _MIN_BAND = 8, 32  # number of bands, and frequencies of each
_TINY = 1e-12  # eigenvalues relative to the largest one that are rounding


def bands(feature_map: FeatureMap, variance: Array) -> Iterator[NDArray[np.intp]]:
    """Yield all tested frequencies, then bands of them by length in units of the data.

    The frequencies of one band see differences of about one size.

    Parameters
    ----------
    feature_map
        Feature map.
    variance
        Variance of each feature in the data, shape (n_features,).

    Yields
    ------
    columns
        Indices of the real parts of the frequencies, then of the imaginary ones, in vectors that
        have both side by side.
    """
    m, tested = feature_map.n_frequencies, tested_frequencies(feature_map)
    yield np.concatenate([tested, m + tested])
    n_bands = min(len(tested) // _MIN_BAND, _MAX_BANDS)
    if n_bands > 1:
        frequencies = feature_map.frequencies[:, tested]
        lengths = np.linalg.norm(frequencies * np.sqrt(variance)[:, None], axis=0)
        for part in np.array_split(tested[np.argsort(lengths, kind="stable")], n_bands):
            yield np.concatenate([part, m + part])


def tested_frequencies(feature_map: FeatureMap) -> NDArray[np.intp]:
    """Positions of the frequencies that tests compare.

    All of them, but of pairs the base frequencies: the others are there for the covariance of the
    features.

    Parameters
    ----------
    feature_map
        Feature map.
    """
    if feature_map.distribution == "gaussian-pairs":
        return FrequencyPairs.of(feature_map.n_frequencies).bases
    return np.arange(feature_map.n_frequencies)


def weighted_bases(units: Units) -> Iterator[tuple[Array, Array]]:
    """Yield coordinates of the units, and the weights of their squares in the statistics.

    Statistics use all frequencies, or one band of them. They are plain, or whitened: by the
    covariance of rows if the feature map has pairs of frequencies or a mixture of pilot rows,
    otherwise by the covariance of all units. No covariance depends on the sides of the units.

    Parameters
    ----------
    units
        Units of a comparison.

    Yields
    ------
    basis
        Coordinates of the units, shape (n_units, width), without the means of their strata.
    weights
        Weights of the squared coordinates in each statistic, shape (width, n_statistics).
    """
    feature_map, covariance = units.feature_map, _covariance_of_rows(units)
    scale = np.tile(feature_scales(feature_map), 2)
    for band in bands(feature_map, units.moments()[1]):
        vectors = units.centred(units.vectors[:, band])
        if covariance is None:
            yield whitened_basis(vectors)
            continue
        basis, values = _principal(vectors)
        yield basis, np.ones((len(values), 1))
        if len(band) <= 2 * MAX_BAND:
            scales = np.outer(scale[band], scale[band])
            eigenvalues, axes = np.linalg.eigh(covariance(band[: len(band) // 2]) * scales)
            eigenvalues = np.maximum(eigenvalues, 0.0)
            weights = [1.0 / (eigenvalues + ridge * eigenvalues[-1]) for ridge in ROW_RIDGES]
            yield vectors @ axes, np.column_stack(weights)


def _covariance_of_rows(units: Units) -> Callable[[NDArray[np.intp]], Array] | None:
    """Covariance of the features of some frequencies over rows; None if it is not known."""
    feature_map = units.feature_map
    if feature_map.distribution == "gaussian-pairs":
        pairs = FrequencyPairs.of(feature_map.n_frequencies)
        pooled = units.masses @ units.vectors / units.masses.sum()
        real, imaginary = pooled.reshape(2, -1) / feature_scales(feature_map)
        covariance = pairs.covariance(real + 1j * imaginary)

        def of_rows(chosen: NDArray[np.intp]) -> Array:
            order = np.searchsorted(pairs.bases, chosen)
            both = np.concatenate([order, len(pairs.bases) + order])
            return covariance[np.ix_(both, both)]

        return of_rows
    mixture = pilot_mixture(feature_map)
    if mixture is None:
        return None
    return lambda chosen: row_covariance(mixture, feature_map.frequencies[:, chosen])


def statistic_names(units: Units) -> list[str]:
    """Descriptions of the statistics, in the order of :func:`weighted_bases`.

    Parameters
    ----------
    units
        Units of a comparison.
    """
    feature_map, (_, variance) = units.feature_map, units.moments()
    m, pairs = feature_map.n_frequencies, feature_map.distribution == "gaussian-pairs"
    by_rows = pairs or pilot_mixture(feature_map) is not None
    lengths = np.linalg.norm(feature_map.frequencies * np.sqrt(variance)[:, None], axis=0)
    names = []
    for band in bands(feature_map, variance):
        inside = lengths[band[band < m]]
        name = (
            f"{len(inside):,} frequencies of lengths {inside.min():.2g} to {inside.max():.2g} "
            "per standard deviation"
        )
        names.append(name)
        if not by_rows:
            names += [f"{name}, whitened by units with a ridge of {ridge:g}" for ridge in RIDGES]
        elif len(band) <= 2 * MAX_BAND:
            names += [f"{name}, whitened by rows with a ridge of {r:g}" for r in ROW_RIDGES]
    return names


def whitened_basis(vectors: Array) -> tuple[Array, Array]:
    """Coordinates and weights of a plain statistic, and of those whitened by the units' covariance.

    Parameters
    ----------
    vectors
        Vectors of the units, minus their mean, shape (n_units, width).

    Returns
    -------
    basis, weights
        As :func:`weighted_bases` yields them.
    """
    basis, values = _principal(vectors)
    ridged = [1.0 / (values + ridge * values[-1]) for ridge in RIDGES]
    return basis, np.column_stack([np.ones(len(values)), *ridged])


def _principal(vectors: Array) -> tuple[Array, Array]:
    """Vectors of the units in the axes of their covariance, and its eigenvalues, ascending."""
    n_units, width = vectors.shape
    if n_units <= width:
        values, left = np.linalg.eigh(vectors @ vectors.T)
        basis = left * np.sqrt(np.maximum(values, 0.0))
    else:
        values, right = np.linalg.eigh(vectors.T @ vectors)
        basis = vectors @ right
    positive = values > _TINY * max(values[-1], 0.0)
    if not positive.any():
        return np.zeros((n_units, 1)), np.ones(1)
    return basis[:, positive], values[positive]
