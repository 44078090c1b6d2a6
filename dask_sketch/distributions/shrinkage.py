"""Shrinkage of mean embeddings toward their mean, where their groups are small."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_sketch.diagnostics.mmd import feature_weights
from dask_sketch.features.feature_map import FeatureMap

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shrinkage:
    """Empirical Bayes estimate of mean embeddings without the noise of finite groups.

    The embedding of a group of ``n`` samples is that of its distribution plus noise, of the
    variance ``within / n``. It is replaced by ``center + s (embedding - center)`` with
    ``s = between / (between + within / n)``, the linear estimate with the smallest squared error.
    Features that differ little between groups, and small groups, are shrunk the most.

    Attributes
    ----------
    center
        Mean of the groups, shape (n_features,).
    between, within
        Variance of each feature between the distributions of groups, and of one sample within a
        group, shape (n_features,).

    References
    ----------
    Muandet, Sriperumbudur, Fukumizu, Gretton, Schölkopf (2016), Kernel mean shrinkage estimators.
    """

    center: Array
    between: Array
    within: Array

    @classmethod
    def fit(cls, values: Array, sizes: Array, feature_map: FeatureMap) -> Shrinkage:
        """Estimate the variances by the method of moments.

        Parameters
        ----------
        values
            Mean embeddings, shape (n_groups, 2 * n_frequencies).
        sizes
            Effective numbers of samples, shape (n_groups,).
        feature_map
            Feature map of the embeddings.
        """
        m = feature_map.n_frequencies
        # a single sample has a feature of length one, times the weight of the feature
        unit = feature_weights(feature_map) ** 2 / m
        missing = unit - np.mean(values[:, :m] ** 2 + values[:, m:] ** 2, axis=0)
        known = float(np.mean(1.0 - 1.0 / np.maximum(sizes, 1.0)))
        within = np.maximum(missing, 0.0) / (2.0 * known) if known > 0 else 0.5 * unit
        noise = float(np.sum(within)) * 2.0 / sizes
        spread = float(np.sum(values.var(axis=0))) - float(np.mean(noise))
        precision = _divided(np.ones(len(sizes)), max(spread, 0.0) + noise, 1.0)
        share = precision / precision.sum()
        center = share @ values
        total = share @ (values - center) ** 2 / max(1.0 - float(share @ share), 1e-12)
        total = 0.5 * (total[:m] + total[m:])
        between = np.maximum(total - within * float(share @ (1.0 / sizes)), 0.0)
        return cls(center, np.tile(between, 2), np.tile(within, 2))

    def apply(self, values: Array, sizes: Array) -> Array:
        """Shrink mean embeddings.

        Parameters
        ----------
        values
            Mean embeddings, shape (n_groups, n_features).
        sizes
            Effective numbers of samples, shape (n_groups,).
        """
        noise = self.within / sizes[:, None]
        kept = _divided(self.between, self.between + noise, 1.0)
        return np.asarray(self.center + kept * (values - self.center))


def _divided(values: Array, by: Array, otherwise: float) -> Array:
    out = np.full(by.shape, otherwise)
    return np.divide(np.broadcast_to(values, by.shape), by, out=out, where=by > 0)
