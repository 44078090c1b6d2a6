"""The unit of each feature in which a sketch counts its moments, and what float32 can hold."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.drawn import frozen
from dask_sketch.features.map import FeatureMap

_EXTREME = 400  # binary exponent: far inside of float64 also when squared


@lru_cache(maxsize=64)
def moment_units(feature_map: FeatureMap) -> NDArray[np.float64]:
    """Powers of two near the scale of the map in each feature, shape (n_features,).

    Within a factor of the square root of two of the standard deviation that the map expects of a
    component, so that whole numbers of them are as fine for every feature.

    Examples
    --------
    >>> moment_units(FeatureMap(2, 20, covariances=[1.0, 100.0]))
    array([1., 8.])
    """
    # 1.41, and not the square root of two: scales that are powers of two are far from an edge
    exponents = np.frexp(1.41 * np.sqrt(feature_map.mean_variances))[1] - 1
    return frozen(np.ldexp(1.0, np.clip(exponents, -_EXTREME, _EXTREME)))


@lru_cache(maxsize=64)
def _largest_turns(feature_map: FeatureMap) -> NDArray[np.float64]:
    return frozen(np.abs(feature_map.turns).max(axis=1).astype(np.float64))


def has_phases(
    feature_map: FeatureMap, minimum: NDArray[np.float64], maximum: NDArray[np.float64]
) -> bool:
    """Whether the phases of all samples within these bounds fit the precision of the map.

    Parameters
    ----------
    feature_map
        Whose frequencies and precision count.
    minimum, maximum
        Bounds of samples, shape (n_features,); the wrong way round if there are none.

    Examples
    --------
    >>> has_phases(FeatureMap(1, 20, scale=1.0), np.array([-1e39]), np.array([0.0]))
    False
    """
    reach = np.maximum(maximum - feature_map.center, feature_map.center - minimum)
    reach = np.maximum(reach, 0.0)
    if feature_map.row_whitening is not None:
        with np.errstate(over="ignore"):  # infinite is too far
            reach = np.maximum(reach, np.abs(feature_map.row_whitening) @ reach)
    largest = max(float(reach.max()), float(reach @ _largest_turns(feature_map)))
    return largest < float(np.finfo(feature_map.dtype).max) / 4
