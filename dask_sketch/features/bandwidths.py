"""Bandwidths of a feature map that compares distributions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

Array = NDArray[np.float64]
N_BANDWIDTHS = 8
N_FREQUENCIES = 64  # of one bandwidth
# Components of the mixture of the pilot rows, by which tests whiten the features.
N_COMPONENTS = 8
_N_ROWS = 1000  # whose distances are computed
_QUANTILES = 0.05, 0.95
_NORMAL = 1.349  # interquartile range of a standard normal distribution


def comparison_covariances(rows: Array, seed: int) -> Array:
    """Variances of Gaussian kernels that see differences of all sizes.

    A difference of two distributions is seen by kernels about as wide as it is, so that the
    bandwidths go from half of the small distances between rows to twice the large ones. A single
    bandwidth, such as the median distance, misses what is much narrower. Each feature is
    measured in its own deviation, by quartiles, which outliers do not change.

    Parameters
    ----------
    rows
        Pilot rows, shape (n_samples, n_features).
    seed
        Seed of the choice of rows whose distances are computed.

    Returns
    -------
    covariances
        Variance of each feature for each bandwidth, shape (8, n_features).

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(2000, 2)) * [1.0, 100.0]
    >>> found = comparison_covariances(rows, seed=0)
    >>> found.shape, bool(np.allclose(np.sqrt(found[:, 1] / found[:, 0]), 100.0, rtol=0.1))
    ((8, 2), True)
    """
    scale = np.subtract(*np.quantile(rows, [0.75, 0.25], axis=0)) / _NORMAL
    deviation = rows.std(axis=0)
    # over half of the values are equal
    scale = np.where(scale > 0, scale, deviation)
    varies = scale > 0
    scale[~varies] = scale[varies].mean() if varies.any() else 1.0
    chosen = rows
    if len(rows) > _N_ROWS:
        chosen = rows[np.random.default_rng(seed).choice(len(rows), _N_ROWS, replace=False)]
    distances = pdist(chosen[:, varies] / scale[varies])
    distances = distances[distances > 0]
    low, high = np.quantile(distances, _QUANTILES) if len(distances) else (1.0, 1.0)
    bandwidths = np.geomspace(0.5 * low, 2.0 * high, N_BANDWIDTHS)
    covariances = (bandwidths[:, None] * scale) ** 2
    # rounded, so that the digest does not depend on the machine
    return np.array([[float(f"{value:.4g}") for value in one] for one in covariances])
