"""Covariance of the random features of single rows, from a mixture of pilot rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.frequency_pairs import product_covariance
from dask_sketch.models.gaussian_mixture import GaussianMixture

Array = NDArray[np.float64]


def pilot_mixture(feature_map: FeatureMap) -> GaussianMixture | None:
    """Mixture of the pilot rows of a feature map, or None.

    The mixture does not depend on the sides of units, so tests may whiten by it.

    Parameters
    ----------
    feature_map
        Feature map of the units.
    """
    pilot = feature_map.pilot
    if pilot is None or pilot.mixture is None:
        return None
    mixture = pilot.mixture
    return GaussianMixture(mixture.weights, mixture.means, mixture.variances)


def row_covariance(mixture: GaussianMixture, frequencies: Array) -> Array:
    """Covariance of ``exp(-i omega . x)`` for a row of a mixture, in closed form.

    Products of features are features again, at sums and differences of their frequencies.

    Parameters
    ----------
    mixture
        Distribution of the rows.
    frequencies
        Frequencies, shape (n_features, m).

    Returns
    -------
    covariance
        Covariance of real and imaginary parts side by side, shape (2 m, 2 m).

    Examples
    --------
    >>> mixture = GaussianMixture([1.0], [[0.3]], [[2.0]])
    >>> x = mixture.sample(100_000, seed=0)
    >>> features = np.exp(-1j * x @ np.array([[0.5, 1.0]]))
    >>> sampled = np.cov(np.concatenate([features.real, features.imag], axis=1).T)
    >>> bool(np.abs(sampled - row_covariance(mixture, np.array([[0.5, 1.0]]))).max() < 0.01)
    True
    """
    d, m = frequencies.shape
    sums = (frequencies[:, :, None] + frequencies[:, None, :]).reshape(d, m * m)
    differences = (frequencies[:, :, None] - frequencies[:, None, :]).reshape(d, m * m)
    above = mixture.characteristic(sums).reshape(m, m)
    below = mixture.characteristic(differences).reshape(m, m)
    return product_covariance(mixture.characteristic(frequencies), above, below)
