"""Centroids with weights, as found by k-means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.models.artifact import CENTROIDS
from dask_sketch.models.model import (
    SHOWN_FEATURES,
    Model,
    check_directions,
    in_memory,
    row_blocks,
    unit_blocks,
    weighted_mean,
)
from dask_sketch.validation.registry import apply_lazily

if TYPE_CHECKING:
    from dask_sketch.models.model import Decoding, Polishing

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Centroids(Model):
    """Centers of clusters with the fraction of the samples in each.

    Methods accept samples as an array in memory, shape (n_samples, n_features), or as lazy input
    (Dask, Zarr, a path, ...), for which their result is lazy, with one task per chunk.

    Parameters
    ----------
    weights
        Non-negative weights that sum to one, shape (n_components,).
    centers
        Centers, shape (n_components, n_features).
    normalize
        Whether methods divide rows by their Euclidean length first, as a feature map with
        ``normalize=True`` does (spherical k-means). Centers then have length one, the nearest
        centroid has the greatest cosine, and squared distances are ``2 (1 - cosine)``. Rows of
        zeros have no direction, and are refused.
    decoding
        Record of the decoding, if the centroids were decoded.
    polishing
        Record of the passes of :func:`dask_sketch.polish`, if there were any. ``decoding`` is then
        the record of the model before these passes.
    feature_names
        Names of the features; by default those in the record of the decoding. Samples with other
        names, or another order of the names, are refused.

    Raises
    ------
    InputError
        If a shape or value is invalid.

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
    _kind = "centroids"

    weights: Array
    centers: Array
    decoding: Decoding | None = None
    polishing: Polishing | None = None
    normalize: bool = False
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.normalize, (bool, np.bool_)):
            raise InputError(f"normalize={self.normalize!r}: give True or False.")
        if self.normalize:
            check_directions("centers", self.centers)

    def characteristic(self, frequencies: ArrayLike) -> NDArray[np.complex128]:
        """Characteristic function ``E exp(-i omega . x)`` of the weighted centers, as points.

        Parameters
        ----------
        frequencies
            Frequencies ``omega``, shape (n_features, n_frequencies), in radians per unit of the
            data.

        Returns
        -------
        psi
            Values, shape (n_frequencies,), complex128, at most one in modulus.

        Raises
        ------
        InputError
            If the frequencies have another number of features.
        """
        omega = self._omega(frequencies)
        return np.asarray(self.weights @ np.exp(-1j * (self.centers @ omega)))

    def predict(self, x: Any) -> Any:
        """Predict the nearest centroid of each sample.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features), or lazy input.

        Returns
        -------
        component
            Index from 0 to n_components - 1, shape (n_samples,); lazy if ``x`` is.

        Raises
        ------
        InputError
            If the number of features is wrong or a value is not finite.
        """
        if not in_memory(x):
            return apply_lazily(self, "predict", x)
        labels = [self._nearest(block) for block in self._blocks(x)]
        return np.concatenate([np.empty(0, dtype=np.intp), *labels])

    def squared_distances(self, x: Any) -> Any:
        """Compute the squared Euclidean distance of each sample to its nearest centroid.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features), or lazy input.

        Returns
        -------
        squared_distances
            Squared distances, shape (n_samples,), float64, in squared units of the data; lazy if
            ``x`` is.

        Raises
        ------
        InputError
            As for :meth:`predict`.
        """
        if not in_memory(x):
            return apply_lazily(self, "squared_distances", x)
        out = [np.empty(0)]
        for block in self._blocks(x):
            away = block - self.centers[self._nearest(block)]
            out.append(np.einsum("ij,ij->i", away, away))
        return np.concatenate(out)

    def distances(self, x: Any) -> Any:
        """Compute the Euclidean distance of each sample to every centroid.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features), or lazy input.

        Returns
        -------
        distances
            Distances, shape (n_samples, n_components), float64, in units of the data; lazy if
            ``x`` is.

        Raises
        ------
        InputError
            As for :meth:`predict`.
        """
        if not in_memory(x):
            return apply_lazily(self, "distances", x)
        out = [np.empty((0, self.n_components))]
        for block in self._blocks(x):
            squares = np.empty((len(block), self.n_components))
            for k, center in enumerate(self.centers):
                away = block - center
                squares[:, k] = np.einsum("ij,ij->i", away, away)
            out.append(np.sqrt(squares))
        return np.concatenate(out)

    def inertia(self, x: Any, weights: Any = None) -> Any:
        """Mean squared distance of the samples to their nearest centroids; lower is better.

        Unlike in scikit-learn, the mean rather than the sum, so that it does not grow with the
        number of samples: the k-means risk, eq. (37) of Gribonval et al. (2017) with ``p = 2``.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features), or lazy input.
        weights
            Non-negative weights of the samples, shape (n_samples,); equal by default. A Series of
            pandas must have the index of ``x``.

        Returns
        -------
        inertia
            Mean squared distance, in squared units of the data; lazy if ``x`` is.

        Raises
        ------
        InputError
            As for :meth:`predict`, and if there are no samples or the weights are invalid.
        """
        if not in_memory(x):
            return apply_lazily(self, "inertia", x, weights)
        return weighted_mean(self.squared_distances(x), weights, x)

    def _blocks(self, x: Any) -> Iterator[Array]:
        """Validated blocks of rows, of length one where the model normalizes."""
        blocks = unit_blocks if self.normalize else row_blocks
        return blocks(x, self.n_features, self.n_components, self.feature_names)

    def _nearest(self, block: Array) -> NDArray[np.intp]:
        # relative to the mean, which preserves precision for data far from the origin
        origin = self.weights @ self.centers
        locations = self.centers - origin
        products = (block - origin) @ locations.T
        products -= 0.5 * np.einsum("ij,ij->i", locations, locations)
        return np.asarray(products.argmax(axis=1))

    def _repr_html_(self) -> str:
        rows = [
            [str(k), f"{self.weights[k]:.4g}", *(f"{x:.4g}" for x in center[:SHOWN_FEATURES])]
            for k, center in enumerate(self.centers)
        ]
        return self._card("centroids", ["centroid", "weight", *self._feature_header()], rows)
