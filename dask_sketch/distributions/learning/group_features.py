"""Features of groups of samples, for any estimator of scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.spatial.distance import pdist
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils.validation import check_is_fitted, validate_data

from dask_sketch.diagnostics.mmd import feature_weights
from dask_sketch.distributions.learning.embeddings import Embeddings, embeddings_of
from dask_sketch.errors import InputError
from dask_sketch.estimators.conventions import VersionedPickle
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.validation.arrays import require_integer, require_number, require_random_state
from dask_sketch.validation.threads import one_blas_thread

Array = NDArray[np.float64]
Kernel = Literal["matern", "rbf"]
KERNELS = ("matern", "rbf", "linear")
LAYERS = ("landmarks", "random")
_N_GROUPS = 500  # groups whose distances are computed
_RANK = 1e-10  # smallest eigenvalue of the kernel of the landmarks, relative to the largest
_ROOT = np.sqrt(3.0)


def _matern(squared: Array) -> Array:
    distance = _ROOT * np.sqrt(squared)
    return np.asarray((1.0 + distance) * np.exp(-distance))


def _rbf(squared: Array) -> Array:
    return np.asarray(np.exp(-0.5 * squared))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {"matern": _matern, "rbf": _rbf}
"""Kernels as functions of squared distances in units of the bandwidth."""


@dataclass(frozen=True, eq=False)
class RandomLayer:
    """Random Fourier features of points (Rahimi and Recht 2007).

    Attributes
    ----------
    frequencies
        Shape (n_inputs, n_frequencies).
    """

    frequencies: Array

    @classmethod
    def sample(
        cls,
        n_inputs: int,
        n_frequencies: int,
        kernel: Kernel,
        bandwidth: float,
        random: np.random.RandomState,
    ) -> RandomLayer:
        """Sample the frequencies.

        Parameters
        ----------
        n_inputs
            Number of features of a point.
        n_frequencies
            Number of frequencies.
        kernel
            Kernel that inner products of features approximate.
        bandwidth
            Bandwidth in units of the points.
        random
            Source of the random numbers.
        """
        frequencies = random.standard_normal((n_inputs, n_frequencies)) / bandwidth
        # Matern kernel of smoothness 3/2: Student's t with 3 degrees of freedom
        if kernel == "matern":
            frequencies *= np.sqrt(3.0 / random.chisquare(3.0, n_frequencies))
        return cls(frequencies)

    @property
    def n_outputs(self) -> int:
        """Number of features."""
        return 2 * self.frequencies.shape[1]

    def apply(self, points: Array) -> Array:
        """Features of points, shape (n_points, 2 * n_frequencies)."""
        angles = points @ self.frequencies
        n_frequencies = angles.shape[1]
        out = np.empty((len(angles), 2 * n_frequencies))
        np.cos(angles, out=out[:, :n_frequencies])
        np.sin(angles, out=out[:, n_frequencies:])
        out /= np.sqrt(n_frequencies)
        return out


@dataclass(frozen=True, eq=False)
class LandmarkLayer:
    """Features whose inner products are the exact kernel at landmarks (Nyström's method).

    Attributes
    ----------
    landmarks
        Some of the points, shape (n_landmarks, n_inputs).
    basis
        Map from values of the kernel to features, shape (n_landmarks, rank).
    kernel
        Kernel of two points.
    bandwidth
        Bandwidth in units of the points.
    """

    landmarks: Array
    basis: Array
    kernel: Kernel
    bandwidth: float

    @classmethod
    def fit(cls, landmarks: Array, kernel: Kernel, bandwidth: float) -> LandmarkLayer:
        """Compute the basis.

        Parameters
        ----------
        landmarks
            Landmarks, shape (n_landmarks, n_inputs).
        kernel
            Kernel of two points.
        bandwidth
            Bandwidth in units of the points.
        """
        squared = euclidean_distances(landmarks, squared=True) / bandwidth**2
        values, vectors = eigh(FUNCTIONS[kernel](squared))
        large = values > _RANK * values[-1]
        # in C order, as it is stored, so that a product has the same bits after reading
        basis = np.ascontiguousarray(vectors[:, large] / np.sqrt(values[large]))
        return cls(np.ascontiguousarray(landmarks), basis, kernel, bandwidth)

    @property
    def n_outputs(self) -> int:
        """Number of features."""
        return int(self.basis.shape[1])

    def apply(self, points: Array) -> Array:
        """Features of points, shape (n_points, rank)."""
        squared = euclidean_distances(points, self.landmarks, squared=True) / self.bandwidth**2
        return np.asarray(FUNCTIONS[self.kernel](squared) @ self.basis)


@dataclass(frozen=True, eq=False)
class Shrinkage:
    """Empirical Bayes estimate of mean embeddings without the noise of finite groups.

    The embedding of a group of ``n`` samples is the embedding of its distribution plus noise of
    variance ``within / n``. It is replaced by ``center + s (embedding - center)`` with
    ``s = between / (between + within / n)``, the linear estimate with the smallest squared error.
    Small groups are shrunk the most, and features that differ little between groups.

    Attributes
    ----------
    center
        Mean embedding of the groups, shape (n_features,).
    between
        Variance of each feature between the distributions of groups, shape (n_features,).
    within
        Variance of each feature of one sample within a group, shape (n_features,).

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
        fractions = precision / precision.sum()
        center = fractions @ values
        total = fractions @ (values - center) ** 2 / max(1.0 - float(fractions @ fractions), 1e-12)
        total = 0.5 * (total[:m] + total[m:])
        between = np.maximum(total - within * float(fractions @ (1.0 / sizes)), 0.0)
        return cls(center, np.tile(between, 2), np.tile(within, 2))

    def apply(self, values: Array, sizes: Array) -> Array:
        """Shrink mean embeddings.

        Parameters
        ----------
        values
            Mean embeddings, shape (n_groups, n_features).
        sizes
            Effective numbers of samples, shape (n_groups,).

        Returns
        -------
        embeddings
            Shrunk mean embeddings, shape (n_groups, n_features).
        """
        noise = self.within / sizes[:, None]
        factors = _divided(self.between, self.between + noise, 1.0)
        return np.asarray(self.center + factors * (values - self.center))


def _divided(values: Array, by: Array, otherwise: float) -> Array:
    out = np.full(by.shape, otherwise)
    return np.divide(np.broadcast_to(values, by.shape), by, out=out, where=by > 0)


class DistributionFeatures(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, VersionedPickle, BaseEstimator
):
    """Transform groups of samples to features, one row for each group.

    There are two layers of features. The first one is in the sketches: their mean embeddings. Inner
    products of the second layer approximate a kernel of the maximum mean discrepancy (MMD) of two
    groups, so that linear methods on these features learn any smooth function of a distribution.

    Parameters
    ----------
    size
        Number of landmarks, or of random frequencies, of the second layer, ``>= 1``.
    kernel
        ``"matern"``, the kernel ``(1 + t) exp(-t)`` with ``t = sqrt(3) MMD / bandwidth``;
        ``"rbf"``, ``exp(-MMD**2 / (2 bandwidth**2))``; or ``"linear"`` for the mean embeddings
        themselves, without a second layer.
    layer
        ``"landmarks"``: one feature for each of ``size`` random groups, from the exact kernel with
        these; or ``"random"``: random Fourier features, two for each frequency. Landmarks are more
        accurate. Random features depend on the groups only through the bandwidth.
    bandwidth
        Bandwidth of the kernel, above 0, relative to the median discrepancy of the groups of the
        fit.
    shrink
        Whether to shrink the embeddings toward their mean, each feature by its noise, so that
        groups of different sizes can be compared. Shrinkage needs sketches, whose sizes are known,
        and independent samples within each group.
    random_state
        Seed, or an instance of ``RandomState``; the same seed gives the same features.

    Attributes
    ----------
    bandwidth_
        Bandwidth in units of the discrepancy.
    layer_
        Second layer, with its landmarks or frequencies; None with the linear kernel.
    feature_map_
        Feature map of the sketches; None if the fit was to an array.
    shrinkage_
        Center and variances of the shrinkage; None without shrinkage.
    n_features_in_
        Number of features of the first layer.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, section 4.1.
    Rahimi and Recht (2007), Random features for large-scale kernel machines. Williams and Seeger
    (2001), Using the Nyström method to speed up kernel machines.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.svm import SVC
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> rng, speaker = np.random.default_rng(0), np.repeat(np.arange(40), 50)
    >>> wide = np.arange(40) % 2 == 1
    >>> x = rng.normal(size=(2000, 2)) * np.where(wide, 1.5, 1.0)[speaker, None]
    >>> group = partial_sketch(x, FeatureMap(2, 50, scale=1.0), groups=speaker)
    >>> model = make_pipeline(DistributionFeatures(), SVC()).fit(group, wide)
    >>> bool(model.score(group, wide) > 0.9)
    True

    For cross-validation, give the mean embedding, which can be divided by groups:

    >>> from sklearn.model_selection import GridSearchCV
    >>> from dask_sketch.distributions import mean_embedding
    >>> search = GridSearchCV(
    ...     make_pipeline(DistributionFeatures(size=20), SVC()),
    ...     {"distributionfeatures__bandwidth": [0.5, 1.0]},
    ... )
    >>> bool(search.fit(mean_embedding(group), wide).best_score_ > 0.8)
    True
    """

    def __init__(
        self,
        size: int = 1000,
        *,
        kernel: Literal["matern", "rbf", "linear"] = "matern",
        layer: Literal["landmarks", "random"] = "landmarks",
        bandwidth: float = 1.0,
        shrink: bool = True,
        random_state: Any = 0,
    ):
        self.size = size
        self.kernel = kernel
        self.layer = layer
        self.bandwidth = bandwidth
        self.shrink = shrink
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> DistributionFeatures:
        """Choose the bandwidth, and the landmarks or frequencies of the second layer.

        Parameters
        ----------
        X
            Sketches of groups, in memory or lazy, which takes one pass;
            :func:`mean_embedding`; or any array of shape (n_groups, n_features).
        y
            Ignored.

        Returns
        -------
        self
            Fitted transformer.

        Raises
        ------
        ValueError
            If an argument is out of range, or a group has no samples.
        """
        return self.fit_opened(embeddings_of(X))

    def fit_opened(self, opened: Embeddings) -> DistributionFeatures:
        """Fit to the result of :func:`embeddings_of`, see :meth:`fit`."""
        size = require_integer("size", self.size, 1)
        relative = require_number("bandwidth", self.bandwidth, 0.0, math.inf, strict=True)
        if self.kernel not in KERNELS:
            raise InputError(f"kernel={self.kernel!r}: choose 'matern', 'rbf' or 'linear'.")
        if self.layer not in LAYERS:
            raise InputError(f"layer={self.layer!r}: choose 'landmarks' or 'random'.")
        values: Array = validate_data(self, opened.values, dtype=np.float64)
        random = require_random_state(self.random_state)
        self.feature_map_: FeatureMap | None = opened.feature_map
        self.shrinkage_: Shrinkage | None = None
        self.layer_: LandmarkLayer | RandomLayer | None = None
        self._n_features_out = values.shape[1]
        with one_blas_thread():
            if self.shrink and opened.sizes is not None and opened.feature_map is not None:
                self.shrinkage_ = Shrinkage.fit(values, opened.sizes, opened.feature_map)
            if self.kernel == "linear":
                return self
            order = random.permutation(len(values))[: max(size, _N_GROUPS)]
            sizes = None if opened.sizes is None else opened.sizes[order]
            points = self._shrunk(values[order], sizes)
            distances = pdist(points[:_N_GROUPS])
            distances = distances[distances > 0]
            median = float(np.median(distances)) if len(distances) else 1.0
            self.bandwidth_ = relative * median
            if self.layer == "landmarks":
                self.layer_ = LandmarkLayer.fit(points[:size], self.kernel, self.bandwidth_)
            else:
                self.layer_ = RandomLayer.sample(
                    values.shape[1], size, self.kernel, self.bandwidth_, random
                )
        self._n_features_out = self.layer_.n_outputs
        return self

    def transform(self, X: Any, groups: Any = None) -> Array:
        """Compute the features of groups.

        Parameters
        ----------
        X
            Groups as for :meth:`fit`; or, with ``groups``, rows in any form that
            :func:`dask_sketch.sketch` takes, which are sketched in one pass.
        groups
            Label of the group of each row: array-like or a name, see
            :func:`dask_sketch.open_samples`.

        Returns
        -------
        features
            Features, shape (n_groups, n_features_out), in the order of the sorted labels; with the
            linear kernel, mean embeddings.

        Raises
        ------
        MergeError
            If the sketches have another feature map than the sketches of the fit.
        """
        check_is_fitted(self)
        return self.transformed(embeddings_of(X, groups, self.feature_map_))

    def transformed(self, opened: Embeddings) -> Array:
        """Compute the features for a result of :func:`embeddings_of`, see :meth:`transform`."""
        values: Array = validate_data(self, opened.values, dtype=np.float64, reset=False)
        with one_blas_thread():
            values = self._shrunk(values, opened.sizes)
            return values if self.layer_ is None else self.layer_.apply(values)

    def _shrunk(self, values: Array, sizes: Array | None) -> Array:
        if self.shrinkage_ is None:
            return values
        if sizes is None:
            raise InputError(
                "X is an array without the sizes of the groups, which shrink=True needs: give a "
                "SketchGroup or its mean_embedding(), as in the fit.",
                parameter="X",
            )
        return self.shrinkage_.apply(values, sizes)
