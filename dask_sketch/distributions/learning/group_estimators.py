"""Regression and classification of groups of samples, from their sketches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from dask_sketch.distributions.learning.artifact import (
    CLASSIFIER,
    REGRESSOR,
    VERSION,
    stored_estimator,
)
from dask_sketch.distributions.learning.class_probabilities import fit_logistic
from dask_sketch.distributions.learning.embeddings import Embeddings, embeddings_of
from dask_sketch.distributions.learning.group_features import DistributionFeatures
from dask_sketch.distributions.learning.interval_warnings import (
    warn_of_few_labels,
    warn_of_small_groups,
)
from dask_sketch.distributions.learning.lazy_ridge import Targets, fit_lazily, labelled_targets
from dask_sketch.distributions.learning.ridge_selection import (
    ErrorVariance,
    SelectedRidge,
    codes_left_out,
    select_ridge,
)
from dask_sketch.errors import InputError
from dask_sketch.estimators.conventions import VersionedPickle
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.storage.artifact import Storable
from dask_sketch.validation.arrays import require_classes, require_number, require_random_state
from dask_sketch.validation.labels import values_by_label
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
BANDWIDTHS = (0.5, 1.0, 2.0)
ALPHAS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
_SOLVERS = ("auto", "svd", "normal")
_IN_MEMORY = 2**25  # features of all groups that a fit holds by default
_LOSSES = ("squared", "logistic")
# inverse penalties tried for the logistic regression on the features
_INVERSE_PENALTIES = (1.0, 10.0, 100.0, 1e3, 1e4)
_FOLDS = 5  # folds, in which groups of one label are left out together
_NUMBERS = 2**24  # features in memory at once, in predictions


class DistributionEstimator(Storable, VersionedPickle, BaseEstimator):
    """Base class of the regressor and the classifier: ridge regression on features of groups."""

    features_: DistributionFeatures
    ridge_: RidgeCV

    def __init__(
        self,
        size: int = 1000,
        *,
        solver: Literal["auto", "svd", "normal"] = "auto",
        kernel: Literal["matern", "rbf", "linear"] = "matern",
        layer: Literal["landmarks", "random"] = "landmarks",
        bandwidths: Sequence[float] = BANDWIDTHS,
        alphas: Sequence[float] = ALPHAS,
        shrink: bool = True,
        weight_sizes: bool = True,
        random_state: Any = 0,
    ):
        self.size = size
        self.solver = solver
        self.kernel = kernel
        self.layer = layer
        self.bandwidths = bandwidths
        self.alphas = alphas
        self.shrink = shrink
        self.weight_sizes = weight_sizes
        self.random_state = random_state

    def _select(
        self,
        opened: Embeddings,
        targets: Array,
        weights: Array,
        left_out: NDArray[np.intp] | None,
    ) -> SelectedRidge:
        """Select bandwidth and ridge, and set the fitted attributes of both estimators."""
        selected = select_ridge(
            opened,
            targets,
            weights,
            self._features(),
            self.bandwidths,
            self.alphas,
            weight_sizes=self.weight_sizes,
            left_out=left_out,
        )
        return self._set(selected)

    def _is_normal(self, x: Any, y: Any, left_out: Any) -> bool:
        """Whether normal equations are added over the chunks of a lazy input."""
        if self.solver not in _SOLVERS:
            raise InputError(f"solver={self.solver!r}: choose 'auto', 'svd' or 'normal'.")
        lazy = isinstance(x, LazyResult) and x.reduction.uses_groups
        if self.solver == "normal" and not lazy:
            raise InputError(
                f"solver='normal' with X of type {type(x).__name__}: give lazy sketches of groups, "
                "or solver='svd'.",
                parameter="solver",
            )
        labelled = isinstance(y, Mapping) or hasattr(y, "reindex")
        large = lazy and labelled and len(y) * self.size > _IN_MEMORY
        normal = self.solver == "normal" or (self.solver == "auto" and large)
        if normal and left_out is not None:
            raise InputError(
                "groups: normal equations do not tell the errors of fits without some groups of "
                "samples. Give solver='svd', which holds the sketches of all in memory.",
                parameter="groups",
            )
        return normal

    def _select_lazily(
        self, lazy: LazyResult, y: Any, weights: Any, encode: Callable[[NDArray[Any], Array], Array]
    ) -> tuple[SelectedRidge, Targets, Array]:
        """Select bandwidth and ridge in one pass over lazy groups; also targets and sizes."""
        groups = lazy.samples.groups
        targets = labelled_targets(y, weights, None if groups is None else groups.names, encode)
        selected, sizes = fit_lazily(
            lazy,
            targets,
            self._features(),
            self.bandwidths,
            self.alphas,
            weight_sizes=self.weight_sizes,
        )
        self.n_features_in_ = selected.features.n_features_in_
        return self._set(selected), targets, sizes

    def _features(self) -> DistributionFeatures:
        # one seed for all bandwidths, also from an instance of RandomState
        seed = int(require_random_state(self.random_state).randint(2**31 - 1))
        return DistributionFeatures(
            self.size,
            kernel=self.kernel,
            layer=self.layer,
            shrink=self.shrink,
            random_state=seed,
        )

    def _set(self, selected: SelectedRidge) -> SelectedRidge:
        self.features_, self.ridge_ = selected.features, selected.ridge
        self.bandwidth_, self.alpha_ = selected.bandwidth, float(selected.ridge.alpha_)
        return selected

    def _stored(self) -> tuple[xr.Dataset, str, int]:
        schema = CLASSIFIER if isinstance(self, ClassifierMixin) else REGRESSOR
        return stored_estimator(self), schema, VERSION

    def as_dict(self) -> dict[str, Any]:
        """Settings; for a fitted estimator also its choices, error and feature map, for JSON."""
        name = "classifier" if isinstance(self, ClassifierMixin) else "regressor"
        values: dict[str, Any] = {"kind": f"distribution {name}"} | self.get_params(deep=False)
        if hasattr(self, "ridge_"):
            values |= {
                "n_features_in": int(self.n_features_in_),
                "bandwidth": float(self.bandwidth_),
                "alpha": float(self.alpha_),
                "mean_squared_error": -float(self.ridge_.best_score_),
            }
            feature_map = self.features_.feature_map_
            values["feature_map"] = None if feature_map is None else feature_map.as_dict()
        return values

    def _opened(self, x: Any, groups: Any) -> Embeddings:
        check_is_fitted(self)
        opened = embeddings_of(x, groups, self.features_.feature_map_)
        values = validate_data(self, opened.values, dtype=np.float64, reset=False)
        return replace(opened, values=values)

    def _predictions(self, opened: Embeddings, model: Any, method: str) -> Array:
        """Results of a method of a fitted model, for the features of groups in blocks."""
        step = max(_NUMBERS // len(self.features_.get_feature_names_out()), 1)
        with one_blas_thread():
            parts = [
                getattr(model, method)(
                    self.features_.transformed(opened.block(slice(start, start + step)))
                )
                for start in range(0, len(opened.values), step)
            ]
        return np.concatenate(parts)


def _as_columns(targets: NDArray[Any], weights: Array) -> Array:
    """Convert the targets of a regression to numbers of shape (n_groups, 1)."""
    return targets.astype(np.float64)[:, None]


def _labelled(name: str, values: Any, opened: Embeddings) -> Any:
    """Values in the order of the labels of the groups, if both have labels."""
    if opened.labels is None or values is None:
        return values
    return values_by_label(values, opened.labels, name)


def _group_weights(weights: Any, n_groups: int) -> Array:
    if weights is None:
        return np.ones(n_groups)
    checked: Array = check_array(
        weights, ensure_2d=False, dtype=np.float64, input_name="sample_weight",
        ensure_non_negative=True,
    )  # fmt: skip
    if checked.shape != (n_groups,):
        raise InputError(
            f"sample_weight has shape {checked.shape} for {n_groups} groups: give one for each."
        )
    if not checked.any():
        raise InputError("sample_weight is zero for all groups: give weights above 0.")
    return checked


class DistributionRegressor(RegressorMixin, DistributionEstimator):
    """Regression on groups of samples: each group is one observation, known by its sketch.

    The estimator is a ridge regression on :class:`DistributionFeatures`. Its bandwidth and ridge
    have the smallest leave-one-out error, in closed form. Groups of different sizes have weights
    ``1 / (constant + per_sample / size)``, the inverse of their error variance, which is estimated
    from the leave-one-out errors. Intervals of predictions follow from the same errors.

    Parameters
    ----------
    size
        Number of landmarks, or of random frequencies, of the second layer, ``>= 1``. With at least
        as many landmarks as groups, the kernel is exact. The time grows with the square of
        ``size``.
    solver
        ``"svd"`` holds the sketches of all groups in memory, and their leave-one-out errors choose
        bandwidth and ridge. ``"normal"`` is for lazy sketches of groups whose rows are consecutive.
        It adds the normal equations of the ridge regression over the chunks, so that each thread
        holds the groups of one chunk. About 2,000 groups, from chunks that are read before, choose
        the bandwidth. Their leave-one-out errors in the fit to all groups choose the ridge. The
        last digits depend on the chunks. ``"auto"`` takes ``"normal"`` for lazy sketches if all
        features would take over 256 MiB, by the number of targets.
    kernel, layer
        Kernel of the discrepancy and kind of the second layer, see :class:`DistributionFeatures`.
    bandwidths
        Bandwidths to choose from, above 0, relative to the median discrepancy of the groups.
    alphas
        Ridges to choose from, above 0; the features of a group have at most length one.
    shrink
        Whether to shrink the embeddings of small groups, see :class:`DistributionFeatures`.
    weight_sizes
        Whether to weight groups by their sizes.
    random_state
        Seed, or an instance of ``RandomState``; the same seed gives the same result.

    Attributes
    ----------
    features_
        Fitted transformer, a :class:`DistributionFeatures`.
    ridge_
        Fitted regression, of scikit-learn.
    bandwidth_, alpha_
        Chosen relative bandwidth, and chosen ridge.
    leave_one_out_
        Prediction for each group by a fit to all others, or to all of other labels if ``groups``
        were given, shape (n_groups,); NaN for groups of weight zero. With ``solver="normal"`` they
        are in the order of the labels of the targets, and NaN for all groups except those that
        chose the bandwidth.
    error_variance_
        Error variance ``constant + per_sample / size`` of a group, with both as attributes.
    smallest_size_
        Number of samples of the smallest group of the fit; NaN if the sizes are not known.
    n_labels_
        Number of labels whose groups were left out together; None if each was left out alone.
    n_features_in_, feature_names_in_
        Number and names of the features of the embeddings, as in scikit-learn.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, chapters 2 and 4.
    Lei, G'Sell, Rinaldo, Tibshirani, Wasserman (2018), Distribution-free predictive inference for
    regression.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> rng, day = np.random.default_rng(0), np.repeat(np.arange(100), 100)
    >>> width = rng.uniform(0.5, 2.0, 100)
    >>> x = rng.normal(size=(10_000, 2)) * width[day, None]
    >>> group = partial_sketch(x, FeatureMap(2, 50, scale=1.0), groups=day)
    >>> early, late = group.select(np.arange(80)), group.select(np.arange(80, 100))
    >>> model = DistributionRegressor(size=100).fit(early, width[:80])
    >>> bool(model.score(late, width[80:]) > 0.9)
    True
    >>> low, high = model.predict_interval(late, level=0.1).T
    >>> bool(np.mean((low < width[80:]) & (width[80:] < high)) > 0.7)
    True

    Rows with groups are sketched in one pass:

    >>> bool(np.allclose(model.predict(x, groups=day)[80:], model.predict(late)))
    True

    Millions of groups with consecutive rows, in one pass and bounded memory:

    >>> import dask.array as da
    >>> from dask_sketch import sketch
    >>> lazy = sketch(da.from_array(x, chunks=(2500, 2)), group.feature_map, groups=day)
    >>> model = DistributionRegressor(size=50, solver="normal").fit(lazy, dict(enumerate(width)))
    >>> bool(model.score(late, width[80:]) > 0.9)
    True
    """

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
    ) -> DistributionRegressor:
        """Fit to sketches of groups.

        Parameters
        ----------
        X
            Sketches of groups, in memory or lazy, which takes one pass;
            :func:`mean_embedding`; or any array of shape (n_groups, n_features).
        y
            Target of each group: a mapping from labels, a series of pandas with labels as its
            index, or an array in the order of the sorted labels.
        sample_weight
            Weight of each group, ``>= 0``, shape (n_groups,).
        groups
            Label of each group of samples, such as the speaker of each recording, in a form like
            that of ``y``. Groups of one label are left out together: bandwidth, ridge and intervals
            are then those for groups of new labels, in closed form as well. By default, groups
            are left out one by one. Not with ``solver="normal"``.

        Returns
        -------
        self
            Fitted estimator.

        Raises
        ------
        ValueError
            If an argument is out of range, a group has no samples or no target, or there are
            fewer than two groups.
        """
        if self._is_normal(X, y, groups):
            selected, labelled, known = self._select_lazily(X, y, sample_weight, _as_columns)
            return self._set_errors(selected, labelled.values[:, 0], known)
        opened = embeddings_of(X)
        values, targets = validate_data(
            self, opened.values, _labelled("y", y, opened), dtype=np.float64, y_numeric=True
        )
        targets = np.asarray(targets, dtype=np.float64)
        weights = _group_weights(_labelled("sample_weight", sample_weight, opened), len(targets))
        codes = codes_left_out(groups, opened.labels, len(targets))
        selected = self._select(replace(opened, values=values), targets[:, None], weights, codes)
        sizes = None if opened.sizes is None else opened.sizes[weights > 0]
        return self._set_errors(selected, targets, sizes, codes)

    def _set_errors(
        self,
        selected: SelectedRidge,
        targets: Array,
        sizes: Array | None,
        left_out: NDArray[np.intp] | None = None,
    ) -> DistributionRegressor:
        """Set the attributes that intervals need; the sizes are of the groups with a prediction."""
        self.leave_one_out_: Array = selected.predictions[:, 0]
        self.error_variance_: ErrorVariance = selected.error_variance
        self.n_labels_: int | None = None if left_out is None else len(np.unique(left_out))
        predicted = np.isfinite(self.leave_one_out_)
        errors = np.abs(targets[predicted] - self.leave_one_out_[predicted])
        self._scores = np.sort(errors / np.sqrt(self.error_variance_.of(sizes)))
        self.smallest_size_: float = math.nan if sizes is None else float(np.min(sizes))
        return self

    def predict(self, X: Any, groups: Any = None) -> Array:
        """Predict the target of each group.

        Parameters
        ----------
        X
            Groups as for :meth:`fit`, of the same feature map; or, with ``groups``, rows in any
            form that :func:`dask_sketch.sketch` takes, which are sketched in one pass.
        groups
            Label of the group of each row: array-like or a name, see
            :func:`dask_sketch.open_samples`.

        Returns
        -------
        target
            Predicted targets, shape (n_groups,), in the order of the sorted labels.

        Raises
        ------
        MergeError
            If the sketches have another feature map than the sketches of the fit.
        """
        return self._predictions(self._opened(X, groups), self.ridge_, "predict").reshape(-1)

    def predict_interval(self, X: Any, groups: Any = None, *, level: float = 0.05) -> Array:
        """Predict an interval for the target of each group.

        The width follows from the leave-one-out errors of groups of the same size, by
        split-conformal quantiles with these errors (the jackknife). The level holds on average over
        groups that are drawn from the same population as the groups of the fit. Groups of far fewer
        samples than any group of the fit have larger errors than it has seen, and are warned of.
        So are intervals for groups of new labels by a fit to few labels: at a level of 5 %, targets
        were inside in 67 to 74 % with 2 and 3 labels, in 83 to 91 % with 4 to 10, and 93 % with 20.

        Parameters
        ----------
        X, groups
            Groups as for :meth:`predict`.
        level
            Probability that a target lies outside of its interval, in (0, 1).

        Returns
        -------
        interval
            Lower and upper bounds, shape (n_groups, 2).

        Raises
        ------
        InputError
            If the level is out of range, or needs more groups than the fit had.
        """
        level = require_number("level", level, 0.0, 1.0, strict=True)
        opened = self._opened(X, groups)
        reach = self._reach(opened.sizes, level)
        warn_of_small_groups(opened.sizes, self.smallest_size_)
        warn_of_few_labels(self.n_labels_, level)
        center = self._predictions(opened, self.ridge_, "predict").reshape(-1)
        return np.stack([center - reach, center + reach], axis=1)

    def _reach(self, sizes: Array | None, level: float) -> Array | float:
        """Half of the width of the interval of groups of given sizes."""
        rank = math.ceil((1.0 - level) * (len(self._scores) + 1))
        if rank > len(self._scores):
            raise InputError(
                f"level={level:g} needs a fit to {math.ceil(1.0 / level) - 1:,} groups or more; "
                f"this one had {len(self._scores):,}. Give a larger level.",
                parameter="level",
            )
        return self._scores[rank - 1] * np.sqrt(self.error_variance_.of(sizes))


def _log_likelihood(
    model: LogisticRegression,
    values: Array,
    codes: NDArray[np.intp],
    sample_weight: Array | None = None,
) -> float:
    """Mean log-probability of the classes, some of which the fit may not have seen."""
    probability = model.predict_proba(values)
    position = np.minimum(np.searchsorted(model.classes_, codes), len(model.classes_) - 1)
    seen = model.classes_[position] == codes
    likelihoods = np.where(seen, probability[np.arange(len(codes)), position], 0.0)
    logs = np.log(np.maximum(likelihoods, np.finfo(np.float64).eps))
    return float(np.average(logs, weights=sample_weight))


def _codes(targets: Array) -> NDArray[np.intp]:
    """Codes of the classes from their indicators, see :meth:`DistributionClassifier._encode`."""
    return targets.argmax(axis=1) if targets.shape[1] > 1 else targets[:, 0].astype(np.intp)


class DistributionClassifier(ClassifierMixin, DistributionEstimator):
    """Classification of groups of samples: each group is one observation, known by its sketch.

    The estimator is a ridge regression of the classes on :class:`DistributionFeatures`. Its
    bandwidth and ridge have the smallest leave-one-out error, in closed form. A logistic regression
    on the leave-one-out predictions turns predictions into probabilities. Groups of different sizes
    are weighted as in :class:`DistributionRegressor`.

    Parameters
    ----------
    size
        Number of landmarks, or of random frequencies, of the second layer, ``>= 1``.
    loss
        ``"squared"``; or ``"logistic"`` for a logistic regression on the features of the chosen
        bandwidth, with a penalty chosen by cross-validation. It takes much longer, and is not
        available with ``solver="normal"``.
    solver
        ``"svd"`` holds the sketches of all groups in memory; ``"normal"`` adds normal equations
        over the chunks of lazy groups; see :class:`DistributionRegressor`.
    kernel, layer
        Kernel of the discrepancy and kind of the second layer, see :class:`DistributionFeatures`.
    bandwidths
        Bandwidths to choose from, above 0, relative to the median discrepancy of the groups.
    alphas
        Ridges to choose from, above 0; the features of a group have at most length one.
    shrink
        Whether to shrink the embeddings of small groups, see :class:`DistributionFeatures`.
    weight_sizes
        Whether to weight groups by their sizes.
    random_state
        Seed, or an instance of ``RandomState``; the same seed gives the same result.

    Attributes
    ----------
    classes_
        Sorted classes, shape (n_classes,).
    features_
        Fitted transformer, a :class:`DistributionFeatures`.
    ridge_
        Fitted regression of the classes, of scikit-learn.
    logistic_
        Fitted logistic regression, of scikit-learn: on predictions of the ridge regression; with
        ``loss="logistic"``, on the features.
    bandwidth_, alpha_
        Chosen relative bandwidth, and chosen ridge.
    n_features_in_, feature_names_in_
        Number and names of the features of the embeddings, as in scikit-learn.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, chapters 2 and 4.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> rng, word = np.random.default_rng(0), np.repeat(np.arange(60), 100)
    >>> kind = np.array(["narrow", "two", "wide"])[np.arange(60) % 3]
    >>> x = rng.normal(size=(6000, 1)) * np.where(kind == "wide", 1.5, 1.0)[word, None]
    >>> x += 1.5 * rng.choice([-1.0, 1.0], (6000, 1)) * (kind == "two")[word, None]
    >>> group = partial_sketch(x, FeatureMap(1, 50, scale=0.5), groups=word)
    >>> model = DistributionClassifier(size=100).fit(group, dict(enumerate(kind)))
    >>> new = rng.normal(size=(100, 1))
    >>> model.predict(new, groups=np.zeros(100))
    array(['narrow'], dtype='<U6')
    """

    def __init__(
        self,
        size: int = 1000,
        *,
        loss: Literal["squared", "logistic"] = "squared",
        solver: Literal["auto", "svd", "normal"] = "auto",
        kernel: Literal["matern", "rbf", "linear"] = "matern",
        layer: Literal["landmarks", "random"] = "landmarks",
        bandwidths: Sequence[float] = BANDWIDTHS,
        alphas: Sequence[float] = ALPHAS,
        shrink: bool = True,
        weight_sizes: bool = True,
        random_state: Any = 0,
    ):
        super().__init__(
            size,
            solver=solver,
            kernel=kernel,
            layer=layer,
            bandwidths=bandwidths,
            alphas=alphas,
            shrink=shrink,
            weight_sizes=weight_sizes,
            random_state=random_state,
        )
        self.loss = loss

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
    ) -> DistributionClassifier:
        """Fit to sketches of groups.

        Parameters
        ----------
        X
            Groups as for :meth:`DistributionRegressor.fit`.
        y
            Class of each group: a mapping from labels, a series of pandas with labels as its
            index, or an array in the order of the sorted labels.
        sample_weight
            Weight of each group, ``>= 0``, shape (n_groups,).
        groups
            Label of each group of samples, such as the speaker of each recording: those of one
            label are left out together, see :meth:`DistributionRegressor.fit`.

        Returns
        -------
        self
            Fitted estimator.

        Raises
        ------
        ValueError
            If an argument is out of range, a group has no samples or no class, or there are less
            than two classes.
        """
        if self.loss not in _LOSSES:
            raise InputError(f"loss={self.loss!r}: choose 'squared' or 'logistic'.")
        self._left_out: NDArray[np.intp] | None = None
        if self._is_normal(X, y, groups) and self.loss == "squared":
            selected, labelled, _ = self._select_lazily(X, y, sample_weight, self._encode)
            return self._calibrate(selected, labelled.values, labelled.weights)
        if self.solver == "normal":
            raise InputError(
                f"loss={self.loss!r} with solver='normal': give loss='squared', or solver='svd'.",
                parameter="loss",
            )
        opened = embeddings_of(X)
        values, labels = validate_data(
            self, opened.values, _labelled("y", y, opened), dtype=np.float64
        )
        weights = _group_weights(_labelled("sample_weight", sample_weight, opened), len(labels))
        opened, targets = replace(opened, values=values), self._encode(labels, weights)
        self._left_out = codes = codes_left_out(groups, opened.labels, len(labels))
        if codes is not None:
            self._require_several_labels(targets, weights, codes)
        selected = self._select(opened, targets, weights, codes)
        if self.loss == "squared":
            return self._calibrate(selected, targets, weights)
        weighted = weights > 0
        folds, left_out = None, None
        if codes is not None:
            left_out = codes[weighted]
            folds = GroupKFold(min(_FOLDS, len(np.unique(left_out))))
        with one_blas_thread(), config_context(enable_metadata_routing=False):
            search = GridSearchCV(
                LogisticRegression(max_iter=1000),
                {"C": _INVERSE_PENALTIES},
                scoring=_log_likelihood,
                cv=folds,
            )
            search.fit(
                self.features_.transformed(opened.block(np.flatnonzero(weighted))),
                _codes(targets[weighted]),
                groups=left_out,
                sample_weight=selected.weights[weighted],
            )
        return self._set_logistic(search.best_estimator_)

    def _encode(self, labels: NDArray[Any], weights: Array) -> Array:
        """Set the classes, and return their indicators: the second one alone if there are two."""
        require_classes("y", labels, "DistributionRegressor")
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(np.unique(codes[weights > 0])) < 2:
            raise InputError(
                "y has 1 class: give groups of weight above 0 in two classes or more.",
                parameter="y",
            )
        targets = np.eye(len(self.classes_))[codes]
        return targets[:, 1:] if len(self.classes_) == 2 else targets

    def _require_several_labels(
        self, targets: Array, weights: Array, left_out: NDArray[np.intp]
    ) -> None:
        """Require that fits without the groups of one label have seen all classes."""
        classes = _codes(targets)
        for code in np.unique(classes[weights > 0]):
            if len(np.unique(left_out[(weights > 0) & (classes == code)])) < 2:
                raise InputError(
                    f"groups: class {self.classes_[code]!s} has groups of samples of one label "
                    "alone, so that fits without them do not know the class. Give labels that "
                    "have several classes, or leave out groups.",
                    parameter="groups",
                )

    def _calibrate(
        self, selected: SelectedRidge, targets: Array, weights: Array
    ) -> DistributionClassifier:
        """Fit the logistic regression on leave-one-out predictions."""
        predicted = np.isfinite(selected.predictions[:, 0])
        codes = _codes(targets)
        missing = np.setdiff1d(codes[weights > 0], codes[predicted])
        if len(np.unique(codes[predicted])) < 2:
            raise InputError(
                f"X: the {predicted.sum():,} groups that choose the bandwidth are in one class. "
                "Give solver='svd', or a larger size, for which more groups are read.",
                parameter="X",
            )
        if len(missing):
            warn_user(
                f"y: class {self.classes_[missing[0]]!s} has none of the {predicted.sum():,} "
                "groups that choose the bandwidth, so that it is never predicted. Give "
                "solver='svd', or a larger size, for which more groups are read."
            )
        return self._set_logistic(fit_logistic(selected, targets, codes, weights, self._left_out))

    def _set_logistic(self, logistic: LogisticRegression) -> DistributionClassifier:
        # coefficients are stored in this order
        logistic.coef_ = np.ascontiguousarray(logistic.coef_)
        self.logistic_: LogisticRegression = logistic
        return self

    def decision_function(self, X: Any, groups: Any = None) -> Array:
        """Compute the logits of the classes, from which probabilities follow.

        Parameters
        ----------
        X, groups
            Groups as for :meth:`predict`.

        Returns
        -------
        logits
            Logits, shape (n_groups, n_classes); for two classes, the logit of the second class,
            shape (n_groups,).
        """
        return self._logistic_results(X, groups, "decision_function")

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """Compute the probability of each class.

        Parameters
        ----------
        X, groups
            Groups as for :meth:`predict`.

        Returns
        -------
        probability
            Probabilities, shape (n_groups, n_classes).
        """
        return self._logistic_results(X, groups, "predict_proba")

    def predict(self, X: Any, groups: Any = None) -> NDArray[Any]:
        """Predict the class of each group.

        Parameters
        ----------
        X
            Groups as for :meth:`fit`, of the same feature map; or, with ``groups``, rows in any
            form that :func:`dask_sketch.sketch` takes, which are sketched in one pass.
        groups
            Label of the group of each row: array-like or a name, see
            :func:`dask_sketch.open_samples`.

        Returns
        -------
        class
            Predicted classes, shape (n_groups,), in the order of the sorted labels.

        Raises
        ------
        MergeError
            If the sketches have another feature map than the sketches of the fit.
        """
        codes: Any = self._logistic_results(X, groups, "predict")
        return np.asarray(self.classes_[codes])

    def _logistic_results(self, x: Any, groups: Any, method: str) -> Array:
        opened = self._opened(x, groups)
        if self.loss == "logistic":
            return self._predictions(opened, self.logistic_, method)
        predictions = self._predictions(opened, self.ridge_, "predict")
        predictions = predictions.reshape(len(predictions), -1)
        return np.asarray(getattr(self.logistic_, method)(predictions))
