"""k-means from a sketch, with the interface of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin

from dask_sketch.estimators.fitting import SketchEstimator, number
from dask_sketch.models import Centroids


class SketchKMeans(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, SketchEstimator
):
    """Centroids of data of any size, from one pass over it.

    Parameters
    ----------
    n_clusters
        Number of centroids.
    n_frequencies
        Size of the sketch; ``5 (d + 1) n_clusters`` by default.
    scale
        Deviation within a cluster, in units of the data; found by default.
    method
        Decoder, as of :func:`dask_sketch.decode`.
    n_init
        Independent decodings, of which the best is kept.
    random_state
        Seed, or an instance of ``RandomState``; the same seed gives the same result.

    Attributes
    ----------
    cluster_centers_
        Shape (n_clusters, n_features), by decreasing weight.
    weights_
        Share of each cluster, shape (n_clusters,).
    labels_
        Cluster of each sample given to the last fit; lazy for lazy input.
    sketch_
        All that was kept of the samples, a :class:`dask_sketch.Sketch`.
    feature_map_, model_
        What was averaged, and the :class:`dask_sketch.Centroids` decoded.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> x = np.concatenate([np.random.default_rng(0).normal(c, 1, (500, 2)) for c in (-9, 0, 9)])
    >>> found = SketchKMeans(3).fit(x)
    >>> np.sort(found.cluster_centers_[:, 0]).round().astype(int)
    array([-9,  0,  9])
    """

    _task = "clustering"
    _size = "n_clusters"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_frequencies: int | None = None,
        scale: float | None = None,
        method: str = "density",
        n_init: int = 1,
        random_state: Any = 0,
    ):
        self.n_clusters = n_clusters
        self.n_frequencies = n_frequencies
        self.scale = scale
        self.method = method
        self.n_init = n_init
        self.random_state = random_state

    def predict(self, X: Any) -> Any:
        """Nearest centroid of each sample.

        Parameters
        ----------
        X
            Samples, in memory or lazy.

        Returns
        -------
        labels
            Shape (n_samples,), int32; lazy if ``X`` is.
        """
        rows = self._given(X)
        return self.model_.predict(rows).astype(np.int32)

    def transform(self, X: Any) -> Any:
        """Distance of each sample to every centroid.

        Parameters
        ----------
        X
            Samples, in memory or lazy.

        Returns
        -------
        distances
            Shape (n_samples, n_clusters); lazy if ``X`` is.
        """
        rows = self._given(X)
        return self.model_.distances(rows)

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Minus the sum of squared distances to the nearest centroids, as in scikit-learn.

        Parameters
        ----------
        X
            Samples, in memory or lazy.
        y
            Ignored.
        sample_weight
            Weight of each sample.

        Returns
        -------
        score
            A number, in squared units of the data; lazy samples are passed over at once.
        """
        rows = self._given(X)
        values = self.model_.squared_distances(rows)
        return -number((values if sample_weight is None else values * sample_weight).sum())

    def _design(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def _decoding(self) -> dict[str, Any]:
        return {"method": self.method, "model": "dirac"}

    def _told(self, model: Any, x: Any) -> None:
        assert isinstance(model, Centroids)
        self.cluster_centers_, self.weights_ = model.centers, model.weights
        self._n_features_out = model.n_components
        self.labels_ = model.predict(x).astype(np.int32)
