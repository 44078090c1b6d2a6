"""Counting components by what does not change when the plane is turned or mirrored.

Part of :mod:`tests.benchmarks.learning`. Kernels of groups add up if their features are side by
side, and a kernel is the same for a group and its mirror image if features are means over both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import StandardScaler

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.distributions import (
    DensityFeatures,
    DensityNodes,
    DistributionFeatures,
    mean_embedding,
)

Array = NDArray[np.float64]
Groups = list[Array]
_REACH, _WHITE_REACH = 11.0, 4.0  # of the nodes, for rows as they are and for whitened rows
_SIDE, _FINE_SIDE = 24, 44  # nodes along each side, of embedded densities and of entropies
_BANDWIDTH = 0.75  # of embedded densities, in units of Scott's rule
_BANDWIDTHS, _ORDERS = (0.35, 0.5, 0.75, 1.0, 1.5), (0.25, 0.5, 2.0, 4.0)  # of entropies
_LEAST_MAXIMUM = 0.004  # density of a maximum that counts
_FREQUENCIES, _RINGS = 504, 14
_SMOOTH = 4.0  # bandwidth of the kernel of invariants, in medians of their distances


def whitened(group: Array) -> Array:
    """Rows less their mean, in units in which their covariance is the identity."""
    centered = group - group.mean(axis=0)
    variances, axes = np.linalg.eigh(np.cov(centered.T))
    return np.asarray(centered @ axes / np.sqrt(variances) @ axes.T)


def orientations(grids: Array) -> list[Array]:
    """Functions on a square grid in its eight orientations, shape (n_groups, n_side**2) each."""
    side = round(np.sqrt(grids.shape[1]))
    squares = grids.reshape(-1, side, side)
    turned = [np.rot90(s, k, axes=(1, 2)) for s in (squares, squares[:, ::-1]) for k in range(4)]
    return [square.reshape(len(grids), -1) for square in turned]


def invariants(groups: Groups) -> Array:
    """Features of groups that do not depend on their position and orientation.

    They are logarithms of the variances along the principal axes; means and deviations of squared
    moduli of sketches, among frequencies of similar lengths; Rényi entropies of kernel densities,
    and the numbers of maxima of these.
    """
    variances = np.array([np.linalg.eigvalsh(np.cov(group.T)) for group in groups])
    sizes = np.array([len(group) for group in groups])
    feature_map = FeatureMap(2, _FREQUENCIES, scale=1.0, distribution="gaussian")
    labels = np.repeat(np.arange(len(groups)), sizes)
    sketches = partial_sketch(np.concatenate(groups), feature_map, groups=labels)
    parts = np.split(mean_embedding(sketches).to_numpy(), 2, axis=1)
    noise = 1.0 / sizes[:, None]
    moduli = (parts[0] ** 2 + parts[1] ** 2 - noise) / (1.0 - noise)
    order = np.argsort(np.linalg.norm(feature_map.frequencies, axis=0))
    rings = moduli[:, order].reshape(len(groups), _RINGS, -1)
    mean = np.log(np.maximum(rings.mean(axis=2), 0.0) + 0.002)
    columns = [np.log(variances), mean, rings.std(axis=2)]
    corner = np.full(2, _REACH)
    for bandwidth in _BANDWIDTHS:
        nodes = DensityNodes(-corner, corner, _FINE_SIDE, np.full(2, bandwidth))
        densities = nodes.densities(groups)
        shannon = -np.sum(densities * np.log(densities + 1e-12), axis=1) * nodes.cell
        renyi = [
            np.log(np.sum(densities**order, axis=1) * nodes.cell) / (1.0 - order)
            for order in _ORDERS
        ]
        grids = densities.reshape(len(groups), _FINE_SIDE, _FINE_SIDE)
        peaks = (grids == maximum_filter(grids, (0, 3, 3))) & (grids > _LEAST_MAXIMUM)
        columns.append(np.column_stack([shannon, *renyi, peaks.sum(axis=(1, 2))]))
    return np.hstack(columns)


class SymmetricFeatures(TransformerMixin, BaseEstimator):
    """Features of three kernels side by side, each the same in all orientations of a group.

    The points of the kernels are :func:`invariants`, and embeddings of Hellinger's distance of the
    rows as they are and of whitened rows. A linear model of these features is one of the sum of the
    kernels.

    Parameters
    ----------
    size
        Number of landmarks of each kernel.
    """

    def __init__(self, size: int = 1000):
        self.size = size

    def fit(self, X: Groups, y: object = None) -> SymmetricFeatures:
        """Choose units, bandwidths and landmarks."""
        self._fit(X)
        return self

    def fit_transform(self, X: Groups, y: object = None) -> Array:
        """Fit, and transform the same groups."""
        return self._transformed(*self._fit(X))

    def transform(self, X: Groups) -> Array:
        """Features of groups, shape (n_groups, at most 3 * size)."""
        roots = zip(self.densities_, _forms(X), strict=True)
        return self._transformed(
            self.scaler_.transform(invariants(X)), [one.transform(form) for one, form in roots]
        )

    def _fit(self, groups: Groups) -> tuple[Array, list[Array]]:
        self.scaler_ = StandardScaler()
        scaled = self.scaler_.fit_transform(invariants(groups))
        self.smooth_ = DistributionFeatures(self.size, bandwidth=_SMOOTH).fit(scaled)
        self.densities_ = [
            DensityFeatures(
                "squared-hellinger",
                bounds=([-reach, -reach], [reach, reach]),
                n_side=_SIDE,
                bandwidth=_BANDWIDTH,
            )
            for reach in (_REACH, _WHITE_REACH)
        ]
        roots = zip(self.densities_, _forms(groups), strict=True)
        made = [one.fit_transform(form) for one, form in roots]
        self.layers_ = [DistributionFeatures(self.size).fit(one) for one in made]
        return scaled, made

    def _transformed(self, scaled: Array, roots: list[Array]) -> Array:
        parts = [self.smooth_.transform(scaled)]
        for layer, given in zip(self.layers_, roots, strict=True):
            parts.append(np.mean([layer.transform(one) for one in orientations(given)], axis=0))
        return np.hstack(parts)


def _forms(groups: Groups) -> tuple[Groups, Groups]:
    return groups, [whitened(group) for group in groups]
