"""Ridge regression on groups, with bandwidth, ridge and weights by leave-one-out errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn import config_context
from sklearn.linear_model import RidgeCV

from dask_sketch.distributions.learning.embeddings import Embeddings
from dask_sketch.distributions.learning.group_features import DistributionFeatures
from dask_sketch.distributions.learning.grouped_ridge import grouped_ridge
from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.labels import codes_of, values_by_label
from dask_sketch.validation.threads import one_blas_thread

Array = NDArray[np.float64]
_STEPS = 5  # steps of the reweighted fit of variances
_MAX_SELECTION = 1000  # landmarks or frequencies at most, in the fits that choose the bandwidth
_TINY = 1e-12  # variance relative to the mean square


@dataclass(frozen=True)
class ErrorVariance:
    """Variance of the errors of predictions: ``constant + per_sample / size`` of a group.

    Attributes
    ----------
    constant
        Error variance of a group of infinitely many samples, above 0.
    per_sample
        Further error variance because of the finite size of a group, times the size, ``>= 0``.

    Examples
    --------
    >>> rng, sizes = np.random.default_rng(0), np.repeat([10.0, 1000.0], 5000)
    >>> errors = rng.normal(size=10_000) * np.sqrt(1.0 + 50.0 / sizes)
    >>> found = ErrorVariance.fit(errors**2, sizes)
    >>> bool(abs(found.constant - 1.0) < 0.1), bool(abs(found.per_sample - 50.0) < 5.0)
    (True, True)
    """

    constant: float
    per_sample: float

    @classmethod
    def fit(cls, squared: Array, sizes: Array | None) -> ErrorVariance:
        """Estimate both parts from squared errors, by non-negative least squares.

        Parameters
        ----------
        squared
            Squared error of each group, shape (n_groups,).
        sizes
            Effective number of samples of each group, shape (n_groups,); None if unknown.

        Returns
        -------
        variance
            Error variance; ``per_sample`` is 0 if sizes are equal or unknown.
        """
        level = max(float(np.mean(squared)), float(np.finfo(float).tiny) / _TINY)
        if sizes is None or np.ptp(sizes) == 0:
            return cls(level, 0.0)
        columns = np.column_stack([np.ones(len(sizes)), np.min(sizes) / sizes])
        variance = np.full(len(sizes), level)
        coefficients = np.array([level, 0.0])
        for _ in range(_STEPS):  # the deviation of a squared error is in proportion to its mean
            coefficients, _ = nnls(columns / variance[:, None], squared / variance)
            variance = np.maximum(columns @ coefficients, _TINY * level)
        constant = max(float(coefficients[0]), _TINY * level)
        return cls(constant, float(coefficients[1] * np.min(sizes)))

    def of(self, sizes: Array | None) -> Array | float:
        """Error variances of groups of given sizes; of None, the constant."""
        return self.constant if sizes is None else self.constant + self.per_sample / sizes


@dataclass(frozen=True, eq=False)
class SelectedRidge:
    """Ridge regression with the smallest leave-one-out error.

    Attributes
    ----------
    features
        Fitted transformer.
    ridge
        Fitted regression.
    bandwidth
        Chosen relative bandwidth.
    predictions
        Prediction for each group by a fit to all others, shape (n_groups, n_targets); NaN for
        groups of weight zero. Groups that are left out together are predicted without each other.
    weights
        Weights of the fit, including the inverse error variances, shape (n_groups,).
    error_variance
        Error variance of the predictions.
    """

    features: DistributionFeatures
    ridge: RidgeCV
    bandwidth: float
    predictions: Array
    weights: Array
    error_variance: ErrorVariance


def select_ridge(
    opened: Embeddings,
    targets: Array,
    weights: Array,
    features: DistributionFeatures,
    bandwidths: Any,
    alphas: Any,
    *,
    weight_sizes: bool,
    left_out: NDArray[np.intp] | None = None,
) -> SelectedRidge:
    """Fit a ridge regression for each bandwidth and ridge, and keep the best one.

    The time grows with the cube of the size of the second layer. So bandwidths are compared with a
    second layer of at most 1,000 landmarks or frequencies.

    Parameters
    ----------
    opened
        Validated points of the groups.
    targets
        Targets, shape (n_groups, n_targets).
    weights
        Weight of each group, ``>= 0``.
    features
        Transformer with its other parameters set.
    bandwidths, alphas
        Relative bandwidths and ridges to choose from.
    weight_sizes
        Whether groups are weighted by the inverse of their error variance as well.
    left_out
        Codes of the groups, shape (n_groups,): those of one code are left out together. By default,
        groups are left out one by one.

    Returns
    -------
    selected
        Best fit, with its leave-one-out predictions.

    Raises
    ------
    InputError
        If a bandwidth or ridge is out of range, or there are fewer than two groups or codes.
    """
    bandwidths = positive_numbers("bandwidths", bandwidths)
    alphas = positive_numbers("alphas", alphas)
    weighted = weights > 0
    if weighted.sum() < 2:
        raise InputError(
            f"n_samples={int(weighted.sum())} is too few: give at least 2 groups of weight above 0."
        )
    used = opened if weighted.all() else opened.block(np.flatnonzero(weighted))
    y, w = targets[weighted], weights[weighted] / weights[weighted].mean()
    size = require_integer("size", features.size, 1)
    codes = None if left_out is None else np.unique(left_out[weighted], return_inverse=True)[1]
    if codes is not None and codes.max() == 0:
        raise InputError(
            "groups has one label: give two or more, so that one can be left out.",
            parameter="groups",
        )

    def fitted(bandwidth: float, size: int) -> tuple[DistributionFeatures, RidgeCV, Array]:
        settings = features.get_params() | {"bandwidth": bandwidth, "size": size}
        fitted_features = DistributionFeatures(**settings).fit_opened(used)
        return fitted_features, *_ridge(fitted_features.transformed(used), y, w, alphas, codes)

    if len(bandwidths) == 1 or features.kernel == "linear":
        bandwidth = float(bandwidths[0])
        selected = fitted(bandwidth, size)
    else:
        tried = {
            candidate: fitted(candidate, min(size, _MAX_SELECTION))
            for candidate in bandwidths.tolist()
        }
        bandwidth = max(tried, key=lambda candidate: tried[candidate][1].best_score_)
        selected = tried[bandwidth] if size <= _MAX_SELECTION else fitted(bandwidth, size)
    fitted_features, ridge, predictions = selected
    variance = ErrorVariance.fit(np.mean((predictions - y) ** 2, axis=1), used.sizes)
    if weight_sizes and variance.per_sample > 0:
        w = w / variance.of(used.sizes)
        w /= w.mean()
        ridge, predictions = _ridge(fitted_features.transformed(used), y, w, alphas, codes)
        variance = ErrorVariance.fit(np.mean((predictions - y) ** 2, axis=1), used.sizes)
    everywhere, masses = np.full(targets.shape, np.nan), np.zeros(len(weighted))
    everywhere[weighted], masses[weighted] = predictions, w
    return SelectedRidge(fitted_features, ridge, bandwidth, everywhere, masses, variance)


def _ridge(
    values: Array, y: Array, weights: Array, alphas: Array, codes: NDArray[np.intp] | None
) -> tuple[RidgeCV, Array]:
    """Ridge regression, and its leave-one-out predictions, shape (n_groups, n_targets)."""
    if codes is not None:
        with one_blas_thread():
            return grouped_ridge(values, y, weights, codes, alphas)
    ridge = RidgeCV(alphas, scoring="neg_mean_squared_error", store_cv_results=True)
    # equal weights are left out, since some releases of scikit-learn then compute differently
    sample_weight = None if np.ptp(weights) == 0 else weights
    # with metadata routing the scores would not be weighted, and users cannot request it here
    with one_blas_thread(), config_context(enable_metadata_routing=False):
        ridge.fit(values, y, sample_weight=sample_weight)
    chosen = int(np.flatnonzero(alphas == ridge.alpha_)[0])
    predictions = np.asarray(ridge.cv_results_)[..., chosen].reshape(y.shape).copy()
    del ridge.cv_results_
    ridge.coef_ = np.ascontiguousarray(ridge.coef_)  # coefficients are stored in this order
    return ridge, predictions


def positive_numbers(name: str, values: Any) -> Array:
    """Validate a list of numbers above 0, and return it as an array."""
    numbers = np.asarray(values)
    if numbers.ndim != 1 or not numbers.size:
        raise InputError(f"{name}={values!r}: give a list of one or more numbers.", parameter=name)
    for value in numbers.tolist():
        require_number(name, value, 0.0, math.inf, strict=True)
    return numbers.astype(np.float64)


def codes_left_out(groups: Any, labels: NDArray[Any] | None, n: int) -> NDArray[np.intp] | None:
    """Codes of the groups of samples that are left out together.

    Parameters
    ----------
    groups
        Mapping from labels, series of pandas with labels as its index, or array-like in the order
        of the labels; None to leave out groups one by one.
    labels
        Labels of the groups of samples; None if they are unknown.
    n
        Number of groups of samples.

    Returns
    -------
    codes
        Integers, shape (n,); None without ``groups``.

    Raises
    ------
    InputError
        If a group of samples has no label.
    """
    if groups is None:
        return None
    values = groups if labels is None else values_by_label(groups, labels, "groups")
    if isinstance(values, str) or np.shape(values) != (n,):
        raise InputError(
            f"groups has shape {np.shape(values)} for {n:,} groups of samples: give a label for "
            "each, such as the speaker of each recording.",
            parameter="groups",
        )
    codes = np.asarray(codes_of(values, n, "groups")[1], dtype=np.intp)
    if (codes < 0).any():
        raise InputError(
            f"groups[{int(np.argmax(codes < 0))}] is missing: give it a label.", parameter="groups"
        )
    return codes
