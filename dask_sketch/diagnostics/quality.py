"""Small measures of sketches, weights and feature maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError

if TYPE_CHECKING:
    from dask_sketch.features import FeatureMap
    from dask_sketch.sketching import Sketch


def noise_level(sketch: Sketch) -> float:
    """Expected squared distance of a sketch from that of its samples' law, unbiased.

    ``(1 - |z|**2) / (n - 1)`` with the effective count as ``n``, or with the map's feature weights
    ``w``, ``(mean(w**2) - |w z|**2) / (n - 1)``; of a private sketch, and the noise added.

    Raises
    ------
    InputError
        If the sketch has less than two samples, so that there is no noise to be estimated.
    """
    n = sketch.effective_count
    if not n > 1.0 + 1e-9:
        raise InputError(
            f"the sketch is of {sketch.count} samples with effective count {n:g}: with less than "
            "two there is no saying what is noise."
        )
    weights = feature_weights(sketch.feature_map)
    added = 2.0 * sketch.private_variance
    energy = np.square(weights) * (1.0 + added - np.abs(sketch.characteristic) ** 2)
    private = added * float(np.mean(np.square(weights)))
    return max(float(np.mean(energy)), 0.0) / (n - 1.0) + private


def feature_weights(feature_map: FeatureMap) -> NDArray[np.float64]:
    """Weights that decoders give the features, shape (n_frequencies,); ones if the law has none."""
    weights = feature_map.feature_weights
    return np.ones(feature_map.n_frequencies) if weights is None else weights


def effective_components(weights: ArrayLike) -> float:
    """Exponential of the entropy of the weights: ``K`` when all are equal, 1 when one has all.

    Examples
    --------
    >>> round(effective_components([0.25, 0.25, 0.25, 0.25]), 6)
    4.0
    """
    share = np.asarray(weights, dtype=np.float64)
    share = share[share > 0] / share.sum()
    return float(np.exp(-(share * np.log(share)).sum()))
