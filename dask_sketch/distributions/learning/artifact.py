"""Write fitted estimators of groups as datasets; the reader is :func:`dask_sketch.open`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dask_sketch.errors import ArtifactError
from dask_sketch.sketching.artifact import encode_labels

REGRESSOR = "dask-sketch/distribution-regressor"
CLASSIFIER = "dask-sketch/distribution-classifier"
VERSION = 1
SHRINKAGE = ("center", "between", "within")
# The text is stored and covered by checksums: a change of it changes stored files.
_CONVENTION = (
    "x is the mean embedding of a group of effective size n: real and imaginary parts of its "
    "sketch vector, times the weights of the features if the map has them. With shrinkage_*, x is "
    "replaced by center + between / (between + within / n) * (x - center). Features: x itself; "
    "with landmarks, kernel(|x - landmark| / kernel_bandwidth) @ basis; with layer_frequencies, "
    "cos and sin of x @ layer_frequencies, over the root of their number. Predictions of the "
    "ridge regression are features @ coefficients.T + intercept. Classes are those of the largest "
    "logit, logistic_inputs @ logistic_coefficients.T + logistic_intercept, where the inputs are "
    "these predictions, or the features with the loss logistic; a single logit is that of the "
    "second class."
)


def stored_estimator(estimator: Any) -> xr.Dataset:
    """Return the stored content of a fitted regressor or classifier.

    Parameters
    ----------
    estimator
        Fitted :class:`DistributionRegressor` or :class:`DistributionClassifier`.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    ArtifactError
        If the classes are neither numbers, text nor times.
    """
    check_is_fitted(estimator)
    features, ridge = estimator.features_, estimator.ridge_
    variables: dict[str, Any] = {
        "coefficients": (("target", "second_feature"), np.atleast_2d(ridge.coef_)),
        "intercept": ("target", np.atleast_1d(ridge.intercept_)),
    }
    attrs: dict[str, Any] = {
        "convention": _CONVENTION,
        "settings": _settings(estimator),
        "features": _settings(features),
        "n_features_in": int(features.n_features_in_),
        "bandwidth": float(estimator.bandwidth_),
        "alpha": float(ridge.alpha_),
        "best_score": float(ridge.best_score_),
    }
    if hasattr(estimator, "feature_names_in_"):
        attrs["feature_names_in"] = json.dumps(list(map(str, estimator.feature_names_in_)))
    if features.feature_map_ is not None:
        variables["frequencies"] = (("feature", "frequency"), features.feature_map_.frequencies)
        attrs["feature_map"] = features.feature_map_.spec
        attrs["digest"] = features.feature_map_.digest
    if features.shrinkage_ is not None:
        for name in SHRINKAGE:
            values = getattr(features.shrinkage_, name)
            variables[f"shrinkage_{name}"] = ("random_feature", values)
    if features.layer_ is not None:
        attrs["kernel_bandwidth"] = float(features.bandwidth_)
        if features.layer == "landmarks":
            layer = features.layer_
            variables["landmarks"] = (("landmark", "random_feature"), layer.landmarks)
            variables["basis"] = (("landmark", "second_feature"), layer.basis)
        else:
            variables["layer_frequencies"] = (
                ("random_feature", "layer_frequency"), features.layer_.frequencies
            )  # fmt: skip
    more = _classifier if hasattr(estimator, "classes_") else _regressor
    arrays, numbers = more(estimator)
    return xr.Dataset(variables | arrays, attrs=attrs | numbers)


def _regressor(estimator: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    variance = estimator.error_variance_
    arrays = {
        "leave_one_out": ("group", estimator.leave_one_out_),
        "scores": ("score", estimator._scores),
    }
    numbers = {"error_constant": variance.constant, "error_per_sample": variance.per_sample}
    if np.isfinite(estimator.smallest_size_):
        numbers["smallest_size"] = estimator.smallest_size_
    if estimator.n_labels_ is not None:
        numbers["n_labels"] = estimator.n_labels_
    return arrays, {name: float(value) for name, value in numbers.items()}


def _classifier(estimator: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    classes, class_type = encode_labels(_plain(estimator.classes_))
    logistic = estimator.logistic_
    arrays = {
        "classes": (("class", "character")[: classes.ndim], classes),
        "logistic_classes": ("logistic_class", np.asarray(logistic.classes_, dtype=np.int64)),
        "logistic_coefficients": (("logit", "logistic_input"), logistic.coef_),
        "logistic_intercept": ("logit", logistic.intercept_),
    }
    return arrays, {"class_type": class_type, "logistic_penalty": float(logistic.C)}


def _plain(classes: NDArray[Any]) -> NDArray[Any]:
    """Convert classes to one of the types that are stored."""
    kind = classes.dtype.kind
    if kind == "O" and all(isinstance(value, str) for value in classes):
        return classes.astype(str)
    types: dict[str, type] = {"i": np.int64, "u": np.int64, "f": np.float64}
    if kind in types:
        return classes.astype(types[kind])
    if kind not in "bUSmM":
        raise ArtifactError(
            f"classes_ of dtype={classes.dtype} cannot be stored: fit to classes that are numbers, "
            "text or times.",
            parameter="classes_",
        )
    return classes


def _settings(estimator: Any) -> str:
    """Parameters of an estimator as JSON text; an instance of ``RandomState`` becomes null."""
    settings = {
        name: np.asarray(value).tolist() if isinstance(value, (np.ndarray, np.generic, tuple, list))
        else value
        for name, value in estimator.get_params(deep=False).items()
    }  # fmt: skip
    if not isinstance(settings["random_state"], int):
        settings["random_state"] = None
    return json.dumps(settings, sort_keys=True)
