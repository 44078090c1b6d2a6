"""Estimators with the interface of scikit-learn: k-means and Gaussian mixtures from a sketch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    DensityMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted

from dask_sketch.decoders.calibrated_sample import calibrate
from dask_sketch.decoders.decode import decode
from dask_sketch.diagnostics.model_selection import ModelSelection, select_model
from dask_sketch.errors import InputError
from dask_sketch.estimators.conventions import (
    LazyOutput,
    VersionedPickle,
    is_lazy,
    open_lazy,
    restores_on_error,
    validate_rows,
    validate_weights,
)
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.apply import sum_over_rows
from dask_sketch.graph.compute import compute_plain
from dask_sketch.graph.design import design
from dask_sketch.graph.sketch import sketch
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.clusters import kmedians
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.open import gaussian_or_centroids
from dask_sketch.sketching.arguments import require_nan_policy
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.open import open_samples
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import (
    require_integer,
    require_random_state,
    weighted_sum,
)
from dask_sketch.validation.choices import Task, rank_of, uses_matrices
from dask_sketch.validation.tables import names_of
from dask_sketch.validation.warn import warn_user

_MAX_AUTO = 20  # components that the feature map of "auto" is designed for


def number(value: Any) -> float:
    """Compute a score, which is lazy for lazy samples, as a number."""
    return float(compute_plain(value)[0])


def _as_int32(labels: Any) -> Any:
    """Convert labels to the type of scikit-learn; lazy labels stay lazy."""
    return labels.astype(np.int32) if hasattr(labels, "astype") else labels.map(np.int32)


@dataclass(frozen=True)
class _Losses:
    """Losses of rows, whose sum is ``inertia_``: powers of distances to the nearest centroids."""

    model: Centroids
    power: int

    def of_rows(self, rows: Any) -> NDArray[np.float64]:
        squares = self.model.squared_distances(rows)
        return np.asarray(squares if self.power == 2 else np.sqrt(squares))


class SketchEstimator(VersionedPickle, BaseEstimator, ABC):
    """Base class of the estimators: a mergeable sketch, and a model decoded from it.

    Input in memory is validated by scikit-learn. Lazy input (Dask array, DataFrame or bag, xarray,
    Zarr, a path) is sketched in one pass without gathering it.
    """

    _task: ClassVar[Task]
    _size: ClassVar[str]  # name of the parameter that holds the number of components
    _predicts_missing: ClassVar[bool] = False  # whether predictions take missing values
    _selects: ClassVar[bool] = False  # whether the number of components may be "auto"
    sample_size: int | bool | None
    nan_policy: str
    columns: Sequence[str] | None

    feature_map_: FeatureMap
    sketch_: Sketch
    selection_: ModelSelection
    model_: Any

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Any:
        """Sketch ``X`` in one pass and decode.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features), or anything that :func:`dask_sketch.sketch`
            takes. Options for opening the input, such as ``array`` of a Zarr group, are given
            through :func:`dask_sketch.open_samples`, as in ``fit(open_samples(path, array="x"))``.
        y
            Ignored.
        sample_weight
            Non-negative weight of each sample; for lazy input also lazy, or the name of a column.

        Returns
        -------
        self
            Fitted estimator.

        Raises
        ------
        ValueError
            If an argument or a sample is invalid, such as NaN with ``nan_policy="raise"``.
        """
        return self._learn(X, sample_weight, fresh=True)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Any:
        """Add samples to the sketch and decode again.

        The first call designs the feature map, so its samples should be representative. The sketch,
        and hence the model, does not depend on the division of the samples into later batches.

        Parameters
        ----------
        X, y, sample_weight
            Samples and weights, as for :meth:`fit`.

        Returns
        -------
        self
            Fitted estimator.
        """
        return self._learn(X, sample_weight, fresh=not hasattr(self, "sketch_"))

    @restores_on_error
    def _learn(self, x: Any, sample_weight: Any, *, fresh: bool) -> Any:
        size = getattr(self, self._size)
        auto = self._selects and size == "auto"
        if self._selects and isinstance(size, str) and not auto:
            raise InputError(
                f"{self._size}={size!r}: give a number, or 'auto'.", parameter=self._size
            )
        n_components = _MAX_AUTO if auto else require_integer(self._size, size, 1)
        require_nan_policy(self.nan_policy)
        if is_lazy(x):
            rows = weights = None
            samples = open_samples(x, weights=sample_weight, columns=self.columns)
        else:
            n_min = 1 if auto else n_components
            rows, weights = self._checked(x, sample_weight, n_min, reset=fresh)
            # with names, so that lazy tables are compared with them later
            names = names_of(getattr(self, "feature_names_in_", []))
            samples = replace(open_samples(rows, weights=weights), feature_names=names)
        seed = int(require_random_state(self.random_state).randint(2**31 - 1))
        if fresh:
            self.feature_map_ = design(
                samples, n_frequencies=self.n_frequencies, n_components=n_components,
                task=self._task, seed=seed, nan_policy=self.nan_policy, **self._design(),
            )  # fmt: skip
        position = 0 if fresh else self.sketch_.count + self.sketch_.omitted
        part = sketch(
            samples, self.feature_map_, sample=self.sample_size, position=position,
            nan_policy=self.nan_policy,
        )  # fmt: skip
        new = part if isinstance(part, Sketch) else part.compute()
        if not fresh:
            new = self.sketch_ + new
        settings = {"seed": seed, "replicates": self.n_init, **self._decoding()}
        if auto:
            types = (settings.pop("covariance_type", "diag"),)
            self.selection_ = select_model(new, covariance_types=types, **settings)
            decoded = self.selection_.model
        else:
            decoded = decode(new, n_components, **settings)
        decoded = gaussian_or_centroids(type(self).__name__, decoded)
        model = self._finished(decoded, new, seed)
        self.sketch_, self.model_ = new, model
        self.n_features_in_ = self.feature_map_.n_features
        if fresh and rows is None:
            self.__dict__.pop("feature_names_in_", None)
            if samples.feature_names is not None:
                self.feature_names_in_ = np.array(samples.feature_names, dtype=object)
        self._set_fitted(model, samples, rows, weights)
        return self

    def _checked(
        self, x: Any, weights: Any, n_components: int, *, reset: bool
    ) -> tuple[NDArray[np.floating], NDArray[np.float64] | None]:
        """Validate the samples of a fit in memory, and their weights."""
        policies = "'omit' or 'available'" if self._predicts_missing else "'omit'"
        rows = validate_rows(
            self, x, reset=reset, finite=self.nan_policy == "raise",
            remedy=f"give nan_policy={policies}, or fill them",
        )  # fmt: skip
        if reset and len(rows) < max(n_components, 2):
            raise InputError(
                f"n_samples={len(rows)} is too few for {self._size}={n_components}: give at least "
                f"{max(n_components, 2)}."
            )
        if weights is None:
            return rows, None
        return rows, validate_weights(weights, len(rows), x)

    def _validated_input(self, x: Any) -> Any:
        """Validate the input of a method that needs the fitted model."""
        check_is_fitted(self)
        if is_lazy(x):
            return x if self.columns is None else open_lazy(x, self.columns)
        if self._predicts_missing and self.nan_policy == "available":
            return validate_rows(self, x, finite="allow-nan", remedy="set them to NaN")
        remedy = "leave out such rows, or fill them"
        if self._predicts_missing:
            remedy += "; fitted with nan_policy='available', predictions take NaN"
        return validate_rows(self, x, remedy=remedy)

    def _scored_input(self, x: Any, sample_weight: Any) -> tuple[Any, Any]:
        """Validate samples to be scored and their weights; those of lazy samples are in them."""
        check_is_fitted(self)
        if is_lazy(x):
            return open_lazy(x, self.columns, sample_weight), None
        rows = self._validated_input(x)
        return rows, None if sample_weight is None else validate_weights(
            sample_weight, len(rows), x
        )

    @abstractmethod
    def _design(self) -> dict[str, Any]:
        """Additional arguments of :func:`dask_sketch.design`."""

    @abstractmethod
    def _decoding(self) -> dict[str, Any]:
        """Additional arguments of :func:`dask_sketch.decode`."""

    def _finished(
        self, model: GaussianMixture | Centroids, sketch: Sketch, seed: int
    ) -> GaussianMixture | Centroids:
        """Refine the decoded model; nothing by default."""
        return model

    @abstractmethod
    def _set_fitted(
        self,
        model: GaussianMixture | Centroids,
        samples: Samples,
        rows: NDArray[np.floating] | None,
        weights: NDArray[np.float64] | None,
    ) -> None:
        """Set the fitted attributes.

        Parameters
        ----------
        model
            Decoded model.
        samples
            Samples of the last fit.
        rows, weights
            The same in memory; None where they are lazy, or have no weights.
        """


class SketchKMeans(
    LazyOutput, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, SketchEstimator
):
    """K-means clustering from a sketch, in one pass over data of any size.

    Parameters
    ----------
    n_clusters
        Number of centroids.
    n_frequencies
        Number of frequencies of the feature map; ``5 (d + 1) n_clusters`` by default.
    scale
        Standard deviation within a cluster, in units of the data; estimated by default.
    method
        Decoder, see :func:`dask_sketch.decode`. The default is the most accurate decoder for the
        contents of the sketch.
    sample_size
        Number of random rows that the sketch carries, see :func:`dask_sketch.sketch`; False or 0
        for none.
    nan_policy
        Treatment of rows with NaN or infinite values in a fit: ``"raise"``, or ``"omit"`` to leave
        them out; their number is ``sketch_.omitted``. Predictions refuse such rows.
    columns
        Names of the columns of tables that are features, in fits and predictions; all by default,
        which must then be numeric. Arrays to be predicted hold these features.
    n_init
        Number of independent decodings; the best one is kept.
    random_state
        Seed, or an instance of ``RandomState``; the same seed gives the same result.
    normalize
        Whether rows are divided by their Euclidean lengths, in fits and predictions: spherical
        k-means, whose centroids have length one, and whose squared distances are
        ``2 (1 - cosine)``. Rows of zeros are treated as rows with NaN.

    Attributes
    ----------
    cluster_centers_
        Centroids, shape (n_clusters, n_features), by decreasing weight.
    weights_
        Fraction of the samples in each cluster, shape (n_clusters,).
    labels_
        Cluster of each sample of the last fit, -1 for rows that were left out; lazy for lazy input.
    inertia_
        Sum of the weighted squared distances of these samples to their centroids, as in
        scikit-learn. Only for input in memory; for lazy samples use ``-score(X)``.
    sketch_
        Sketch of the samples, a :class:`dask_sketch.Sketch`.
    feature_map_, model_
        Feature map of the sketch, and the decoded :class:`dask_sketch.Centroids`.
    n_features_in_, feature_names_in_
        Number and names of the features, as in scikit-learn.

    Examples
    --------
    >>> x = np.concatenate([np.random.default_rng(0).normal(c, 1, (500, 2)) for c in (-9, 0, 9)])
    >>> found = SketchKMeans(3).fit(x)
    >>> np.sort(found.cluster_centers_[:, 0]).round().astype(int)
    array([-9,  0,  9])
    """

    _task = "clustering"
    _size = "n_clusters"
    _power = 2  # power of the distances in a score

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_frequencies: int | None = None,
        scale: float | None = None,
        method: str | None = None,
        sample_size: int | bool | None = None,
        nan_policy: str = "raise",
        columns: Sequence[str] | None = None,
        n_init: int = 1,
        random_state: Any = 0,
        normalize: bool = False,
    ):
        self.n_clusters = n_clusters
        self.normalize = normalize
        self.n_frequencies = n_frequencies
        self.scale = scale
        self.method = method
        self.sample_size = sample_size
        self.nan_policy = nan_policy
        self.columns = columns
        self.n_init = n_init
        self.random_state = random_state

    def predict(self, X: Any) -> Any:
        """Predict the nearest centroid of each sample.

        Parameters
        ----------
        X
            Samples, in memory or lazy.

        Returns
        -------
        labels
            Index of the centroid, shape (n_samples,), int32; lazy if ``X`` is.
        """
        rows = self._validated_input(X)
        return _as_int32(self.model_.predict(rows))

    def transform(self, X: Any) -> Any:
        """Compute the distance of each sample to every centroid.

        Parameters
        ----------
        X
            Samples, in memory or lazy.

        Returns
        -------
        distances
            Euclidean distances, shape (n_samples, n_clusters); lazy if ``X`` is.
        """
        rows = self._validated_input(X)
        return self.model_.distances(rows)

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Negative sum of squared distances to the nearest centroids, as in scikit-learn.

        Parameters
        ----------
        X
            Samples, in memory or lazy.
        y
            Ignored.
        sample_weight
            Non-negative weight of each sample; for lazy input also lazy, or the name of a column.

        Returns
        -------
        score
            Score in squared units of the data; for lazy samples, computed immediately.
        """
        rows, weights = self._scored_input(X, sample_weight)
        losses = _Losses(self.model_, self._power)
        if not isinstance(rows, Samples):
            return -weighted_sum(losses.of_rows(rows), weights, "X")[0]
        samples = rows.named_like(self.model_.feature_names, "the model")
        samples.require_features(self.n_features_in_, "the model", self.model_.feature_names)
        return -float(sum_over_rows(losses, "of_rows", samples).compute())

    def _design(self) -> dict[str, Any]:
        return {"scale": self.scale, "normalize": self.normalize}

    def _decoding(self) -> dict[str, Any]:
        return {"method": self.method, "model": "dirac"}

    def _set_fitted(
        self,
        model: GaussianMixture | Centroids,
        samples: Samples,
        rows: NDArray[np.floating] | None,
        weights: NDArray[np.float64] | None,
    ) -> None:
        assert isinstance(model, Centroids)
        self.cluster_centers_, self.weights_ = model.centers, model.weights
        self._n_features_out = model.n_components
        if rows is None:
            self.__dict__.pop("inertia_", None)  # it takes another pass
            self.labels_ = _as_int32(model.predict(samples))
            return
        finite = np.isfinite(rows).all(axis=1)
        if self.normalize:
            finite &= rows.any(axis=1)
        self.labels_ = np.full(len(rows), -1, dtype=np.int32)
        used = rows if finite.all() else rows[finite]
        self.labels_[finite] = model.predict(used)
        distances = _Losses(model, self._power).of_rows(used)
        self.inertia_ = float(distances.sum() if weights is None else distances @ weights[finite])


class SketchKMedians(SketchKMeans):
    """K-medians clustering from a sketch, in one pass over data of any size.

    The centers minimise the mean distance to the samples rather than the mean squared distance, so
    that distant samples hardly move them. The sketch and its decoder are the same as for k-means
    (Gribonval et al. 2017, section 4); then the centers move to the geometric medians of the random
    rows that the sketch carries, with weights that agree with the sketch. Without such rows
    (``sample_size=False``) the decoded centers are kept, with a warning.

    Parameters
    ----------
    n_clusters, n_frequencies, scale, method, sample_size, nan_policy, columns, n_init, \
    random_state, normalize
        Parameters of :class:`SketchKMeans`; ``normalize=True`` is refused, as medians of directions
        are not implemented.

    Attributes
    ----------
    inertia_
        Sum of the weighted distances of the samples of the last fit to their centers. Only for
        input in memory; for lazy samples use ``-score(X)``.
    cluster_centers_, weights_, labels_, sketch_, feature_map_, model_, n_features_in_, \
    feature_names_in_
        Attributes of :class:`SketchKMeans`.

    References
    ----------
    Gribonval, Blanchard, Keriven, Traonmilin (2017), Compressive statistical learning with random
    feature moments, hal-01544609v2, section 4.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_t(1.5, size=(5000, 2)) + [3.0, 7.0]
    >>> SketchKMedians(1).fit(x).cluster_centers_.round()
    array([[3., 7.]])
    """

    _power = 1

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Negative sum of distances to the nearest centers.

        Parameters
        ----------
        X
            Samples, in memory or lazy.
        y
            Ignored.
        sample_weight
            Non-negative weight of each sample; for lazy input also lazy, or the name of a column.

        Returns
        -------
        score
            Score in units of the data; for lazy samples, computed immediately.
        """
        return super().score(X, y, sample_weight)

    def _design(self) -> dict[str, Any]:
        if self.normalize:
            raise InputError("normalize=True: use SketchKMeans, which clusters directions.")
        return super()._design()

    def _finished(
        self, model: GaussianMixture | Centroids, sketch: Sketch, seed: int
    ) -> GaussianMixture | Centroids:
        assert isinstance(model, Centroids)
        if sketch.sample is None or not len(sketch.sample):
            warn_user(
                "sample_size=False: the centers match the sketch, and are not refined to medians. "
                "In nine cases with distant samples their mean distance was 15 to 54 % above that "
                "of medians. Let the sketch carry random rows, sample_size=None."
            )
            return model
        rows = calibrate(sketch)
        clusters = kmedians(
            np.asarray(rows.rows, dtype=np.float64), model.n_components, weights=rows.weights,
            starts=[model.centers], seed=seed,
        )  # fmt: skip
        order = np.argsort(-clusters.weights, kind="stable")
        return replace(model, weights=clusters.weights[order], centers=clusters.centers[order])


class SketchGaussianMixture(DensityMixin, SketchEstimator):
    """Gaussian mixture from a sketch, in one pass over data of any size.

    Parameters
    ----------
    n_components
        Number of components, or ``"auto"`` for the number that :func:`dask_sketch.select_model`
        finds; its ranking is ``selection_``.
    n_frequencies
        Number of frequencies of the feature map; by default five for each parameter, such as
        ``5 (2 d + 1) n_components`` for diagonal covariances. With ``"auto"``, this is the number
        for 20 components, which is enough to find up to 50.
    scale
        Standard deviation of a component, in units of the data; estimated for each feature by
        default.
    covariance_type
        ``"diag"``, ``"spherical"``, ``"tied"`` or ``"full"``, as in scikit-learn, where ``"full"``
        is the default; or ``("low-rank", r)``; see :func:`dask_sketch.decode`.
    method, refine, variance_floor
        Arguments of the decoder, see :func:`dask_sketch.decode`.
    sample_size
        Number of random rows that the sketch carries, see :func:`dask_sketch.sketch`; False or 0
        for none.
    nan_policy
        Treatment of rows with NaN or infinite values in a fit: ``"raise"``, or ``"omit"`` to leave
        them out; their number is ``sketch_.omitted``. Predictions refuse such rows. ``"available"``
        takes these values as missing, completely at random, in fits (see :func:`sketch`) and
        predictions, which use the other values of the row; ``model_.impute(X)`` fills NaN in.
    columns
        Names of the columns of tables that are features, in fits and predictions; all by default,
        which must then be numeric. Arrays to be predicted hold these features.
    n_init
        Number of independent decodings; the best one is kept.
    random_state
        Seed, or an instance of ``RandomState``; the same seed gives the same result.

    Attributes
    ----------
    weights_, means_, covariances_
        Weights (n_components,), means (n_components, n_features) and covariances of the components,
        of the shape of ``covariance_type``: by default variances (n_components, n_features).
    precisions_
        Inverses of the variances, or of the covariance matrices.
    converged_
        Whether the decoder converged.
    sketch_
        Sketch of the samples, a :class:`dask_sketch.Sketch`.
    feature_map_, model_
        Feature map of the sketch, and the decoded :class:`dask_sketch.GaussianMixture`.
    n_features_in_, feature_names_in_
        Number and names of the features, as in scikit-learn.

    Notes
    -----
    Like mixtures of scikit-learn, this estimator has no ``labels_``; ``predict(X)`` returns the
    components of rows.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.concatenate([np.random.default_rng(0).normal(c, 1, (2000, 2)) for c in (-5, 5)])
    >>> found = SketchGaussianMixture(2).fit(x)
    >>> np.sort(found.means_[:, 0]).round().astype(int)
    array([-5,  5])
    """

    _task = "mixture"
    _size = "n_components"
    _predicts_missing = _selects = True

    if not TYPE_CHECKING:  # misspelled attributes remain errors of the type checker

        def __getattr__(self, name: str) -> Any:
            remedy = ": predict(X) gives the components of rows" if name == "labels_" else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{remedy}",
                name=name,
                obj=self,
            )

    def __init__(
        self,
        n_components: int | str = 1,
        *,
        n_frequencies: int | None = None,
        scale: float | None = None,
        covariance_type: str | tuple[str, int] = "diag",
        method: str | None = None,
        refine: str | None = None,
        variance_floor: float = 0.1,
        sample_size: int | bool | None = None,
        nan_policy: str = "raise",
        columns: Sequence[str] | None = None,
        n_init: int = 1,
        random_state: Any = 0,
    ):
        self.n_components = n_components
        self.n_frequencies = n_frequencies
        self.scale = scale
        self.covariance_type = covariance_type
        self.method = method
        self.refine = refine
        self.variance_floor = variance_floor
        self.sample_size = sample_size
        self.nan_policy = nan_policy
        self.columns = columns
        self.n_init = n_init
        self.random_state = random_state

    def predict(self, X: Any) -> Any:
        """Predict the most probable component of each sample.

        Parameters
        ----------
        X
            Samples, in memory or lazy.

        Returns
        -------
        labels
            Index of the component, shape (n_samples,); lazy if ``X`` is.
        """
        rows = self._validated_input(X)
        return self.model_.predict(rows)

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit, and predict the most probable component of each sample."""
        return self.fit(X, y, sample_weight).predict(X)

    def predict_proba(self, X: Any) -> Any:
        """Compute the probability of each component given each sample.

        Parameters
        ----------
        X
            Samples, in memory or lazy.

        Returns
        -------
        probability
            Probabilities, shape (n_samples, n_components); lazy if ``X`` is.
        """
        rows = self._validated_input(X)
        return self.model_.predict_proba(rows)

    def score_samples(self, X: Any) -> Any:
        """Log-likelihood of each sample, shape (n_samples,), in nats; lazy if ``X`` is."""
        rows = self._validated_input(X)
        return self.model_.logpdf(rows)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean log-likelihood of the samples, in nats; for lazy samples, computed immediately.

        Parameters
        ----------
        X
            Samples, in memory or lazy.
        y
            Ignored.
        sample_weight
            Non-negative weight of each sample in the mean; for lazy input also lazy, or the name of
            a column.

        Returns
        -------
        score
            Weighted mean.
        """
        rows, weights = self._scored_input(X, sample_weight)
        return number(self.model_.score(rows, weights))

    def bic(self, X: Any) -> float:
        """Bayesian information criterion of the samples; see :meth:`GaussianMixture.bic`."""
        return number(self.model_.bic(self._validated_input(X)))

    def aic(self, X: Any) -> float:
        """Akaike information criterion of the samples; see :meth:`GaussianMixture.aic`."""
        return number(self.model_.aic(self._validated_input(X)))

    def sample(self, n_samples: int = 1) -> tuple[Any, Any]:
        """Sample from the fitted mixture.

        Parameters
        ----------
        n_samples
            Number of samples.

        Returns
        -------
        X, y
            Samples, shape (n_samples, n_features), and the most probable component of each.
        """
        check_is_fitted(self)
        seed = int(require_random_state(self.random_state).randint(2**31 - 1))
        drawn = self.model_.sample(n_samples, seed=seed)
        return drawn, self.model_.predict(drawn)

    def _design(self) -> dict[str, Any]:
        return {"scale": self.scale, "covariance_type": self.covariance_type}

    def _decoding(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "model": "isotropic" if self.covariance_type == "spherical" else "gaussian",
            "covariance_type": self.covariance_type,
            "refine": self.refine,
            "variance_floor": self.variance_floor,
        }

    def _set_fitted(
        self,
        model: GaussianMixture | Centroids,
        samples: Samples,
        rows: NDArray[np.floating] | None,
        weights: NDArray[np.float64] | None,
    ) -> None:
        assert isinstance(model, GaussianMixture)
        assert model.decoding is not None
        self.weights_, self.means_ = model.weights, model.means
        self.covariances_ = model.covariances
        if uses_matrices(model.covariance_type):
            self.precisions_ = np.linalg.inv(
                model.covariances
                if rank_of(model.covariance_type) is None
                else model.covariance_matrices
            )
        else:
            self.precisions_ = 1.0 / model.covariances
        self.converged_ = model.decoding.converged
