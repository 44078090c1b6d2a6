"""Bands of frequencies, each of which sees differences of one size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.feature_map import FeatureMap

_MAX_BANDS = 8  # bands of frequencies by their length,
_BAND = 32  # of at least as many frequencies each


def bands(feature_map: FeatureMap, variance: NDArray[np.float64]) -> Iterator[NDArray[np.intp]]:
    """Yield all frequencies, then bands of them by length in units of the data.

    Parameters
    ----------
    feature_map
        Feature map.
    variance
        Variance of each feature in the data, shape (n_features,).

    Yields
    ------
    columns
        Indices of real and imaginary parts in vectors that have them side by side.
    """
    m = feature_map.n_frequencies
    columns = np.arange(2 * m)
    yield columns
    n_bands = min(m // _BAND, _MAX_BANDS)
    if n_bands > 1:
        lengths = np.linalg.norm(feature_map.frequencies * np.sqrt(variance)[:, None], axis=0)
        for part in np.array_split(np.argsort(lengths, kind="stable"), n_bands):
            yield np.concatenate([part, m + part])
