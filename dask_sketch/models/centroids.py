"""Centroids: a weight and a centre for each cluster, as k-means has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.models.artifact import CENTROIDS
from dask_sketch.models.model import SHOWN_FEATURES, Model, in_memory, row_blocks, weighted_mean
from dask_sketch.validation.lazy_input import apply_lazily

if TYPE_CHECKING:
    from dask_sketch.models.model import Decoding

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Centroids(Model):
    """Centres of clusters, each with its share of the samples.

    Methods that take samples accept an array in memory, (n, n_features), and answer at once; given
    anything lazy (Dask, Zarr, a path, ...) they answer with something lazy, one task per chunk.

    Parameters
    ----------
    weights
        Shape (n_components,), not negative, summing to one.
    centers
        Shape (n_components, n_features).
    decoding
        How the centroids were decoded, if they were.

    Raises
    ------
    InputError
        If shapes or values are not those of centroids.

    Examples
    --------
    >>> centroids = Centroids([0.5, 0.5], [[-3.0], [3.0]])
    >>> centroids.predict([[-2.0], [4.0]])
    array([0, 1])
    >>> centroids.inertia([[-2.0], [5.0]])
    2.5
    """

    _arrays = ("weights", "centers")
    _schema = CENTROIDS

    weights: Array
    centers: Array
    decoding: Decoding | None = None

    def characteristic(self, frequencies: ArrayLike) -> NDArray[np.complex128]:
        """Characteristic function ``E exp(-i omega . x)`` of the weighted centres, as points.

        Parameters
        ----------
        frequencies
            ``omega``, shape (n_features, m), radians per unit of the data.

        Returns
        -------
        psi
            Shape (m,), complex128, at most one in modulus.

        Raises
        ------
        InputError
            If the frequencies have another number of features.
        """
        omega = self._omega(frequencies)
        return np.asarray(self.weights @ np.exp(-1j * (self.centers @ omega)))

    def predict(self, x: Any) -> Any:
        """Nearest centroid of each sample.

        Parameters
        ----------
        x
            Samples, shape (n, n_features), or anything lazy.

        Returns
        -------
        component
            Shape (n,), from 0 to n_components - 1; lazy if ``x`` is.

        Raises
        ------
        InputError
            If the number of features is wrong or a value is not finite.
        """
        if not in_memory(x):
            return apply_lazily(self, "predict", x)
        blocks = row_blocks(x, self.n_features, self.n_components, self.feature_names)
        labels = [self._nearest(block) for block in blocks]
        return np.concatenate([np.empty(0, dtype=np.intp), *labels])

    def squared_distances(self, x: Any) -> Any:
        """Squared Euclidean distance of each sample to its nearest centroid.

        Parameters
        ----------
        x
            Samples, shape (n, n_features), or anything lazy.

        Returns
        -------
        squared_distances
            Shape (n,), float64, in squared units of the data; lazy if ``x`` is.

        Raises
        ------
        InputError
            As for :meth:`predict`.
        """
        if not in_memory(x):
            return apply_lazily(self, "squared_distances", x)
        out = [np.empty(0)]
        for block in row_blocks(x, self.n_features, self.n_components, self.feature_names):
            away = block - self.centers[self._nearest(block)]
            out.append(np.einsum("ij,ij->i", away, away))
        return np.concatenate(out)

    def distances(self, x: Any) -> Any:
        """Euclidean distance of each sample to every centroid.

        Parameters
        ----------
        x
            Samples, shape (n, n_features), or anything lazy.

        Returns
        -------
        distances
            Shape (n, n_components), float64, in units of the data; lazy if ``x`` is.

        Raises
        ------
        InputError
            As for :meth:`predict`.
        """
        if not in_memory(x):
            return apply_lazily(self, "distances", x)
        out = [np.empty((0, self.n_components))]
        for block in row_blocks(x, self.n_features, self.n_components, self.feature_names):
            away = block[:, None, :] - self.centers
            out.append(np.sqrt(np.einsum("nkd,nkd->nk", away, away)))
        return np.concatenate(out)

    def inertia(self, x: Any, weights: Any = None) -> Any:
        """Mean squared distance of the samples to their nearest centroids; lower is better.

        The mean, not the sum that scikit-learn calls by this name, so that it does not grow with
        the number of samples: the k-means risk, eq. (37) of Gribonval et al. (2017) with ``p = 2``.

        Parameters
        ----------
        x
            Samples, shape (n, n_features), or anything lazy.
        weights
            Weights of the samples, shape (n,), not negative; all one when not given.

        Returns
        -------
        inertia
            A number, in squared units of the data; lazy if ``x`` is.

        Raises
        ------
        InputError
            As for :meth:`predict`, and if there are no samples or the weights do not fit.
        """
        if not in_memory(x):
            return apply_lazily(self, "inertia", x, weights)
        return weighted_mean(self.squared_distances(x), weights)

    def _nearest(self, block: Array) -> NDArray[np.intp]:
        # relative to the mean, so that data far from the origin keeps its digits
        origin = self.weights @ self.centers
        places = self.centers - origin
        products = (block - origin) @ places.T
        products -= 0.5 * np.einsum("ij,ij->i", places, places)
        return np.asarray(products.argmax(axis=1))

    def _repr_html_(self) -> str:
        rows = [
            [str(k), f"{self.weights[k]:.4g}", *(f"{x:.4g}" for x in center[:SHOWN_FEATURES])]
            for k, center in enumerate(self.centers)
        ]
        return self._card("centroids", ["centroid", "weight", *self._feature_header()], rows)
