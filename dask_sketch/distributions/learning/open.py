"""Read stored estimators of groups, as :func:`dask_sketch.open` does."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, RidgeCV

from dask_sketch.distributions.learning.artifact import CLASSIFIER, REGRESSOR, SHRINKAGE
from dask_sketch.distributions.learning.group_estimators import (
    DistributionClassifier,
    DistributionRegressor,
)
from dask_sketch.distributions.learning.group_features import (
    KERNELS,
    LAYERS,
    DistributionFeatures,
    LandmarkLayer,
    RandomLayer,
    Shrinkage,
)
from dask_sketch.distributions.learning.ridge_selection import ErrorVariance
from dask_sketch.errors import InputError
from dask_sketch.features.specification import parse_object
from dask_sketch.sketching.open import damaged_store, decode_labels, feature_map_of, stored_array

Array = NDArray[np.float64]
_CLASSES: dict[str, type[DistributionRegressor] | type[DistributionClassifier]] = {
    REGRESSOR: DistributionRegressor,
    CLASSIFIER: DistributionClassifier,
}
_MAX = 1e150  # bound of values that are squared
_DAMAGES = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


def read_estimator(
    dataset: xr.Dataset, store: object = "the dataset"
) -> DistributionRegressor | DistributionClassifier:
    """Rebuild a fitted regressor or classifier from its stored dataset.

    Parameters
    ----------
    dataset
        Stored arrays and attributes.
    store
        Name of the store for messages.

    Returns
    -------
    estimator
        Fitted estimator, whose predictions have the bits of the one that was stored.

    Raises
    ------
    ArtifactError
        If an array or attribute is missing, or does not fit such an estimator.
    """
    schema = str(dataset.attrs["schema"])
    try:
        return _estimator(dataset, _CLASSES[schema])
    except _DAMAGES as error:
        raise damaged_store(store, schema.rsplit("/", 1)[-1].replace("-", " "), error) from error


def _estimator(
    dataset: xr.Dataset, kind: type[DistributionRegressor] | type[DistributionClassifier]
) -> DistributionRegressor | DistributionClassifier:
    attrs = dataset.attrs
    estimator = kind(**_settings(attrs["settings"], kind))
    estimator.features_ = _features(dataset)
    estimator.n_features_in_ = estimator.features_.n_features_in_
    if "feature_names_in" in attrs:
        names = [str(name) for name in json.loads(attrs["feature_names_in"])]
        if len(names) != estimator.n_features_in_:
            raise InputError(f"feature_names_in has {len(names)} names.")
        estimator.feature_names_in_ = np.array(names, dtype=object)
    n_targets, n_inputs = dataset.sizes["target"], dataset.sizes["second_feature"]
    if n_inputs != estimator.features_._n_features_out:
        raise InputError(f"coefficients has {n_inputs} features of the second layer.")
    ridge = RidgeCV(estimator.alphas)
    ridge.coef_ = _finite(dataset, "coefficients", (n_targets, n_inputs))
    ridge.intercept_ = _finite(dataset, "intercept", (n_targets,))
    ridge.alpha_, ridge.best_score_ = _number(attrs, "alpha"), _number(attrs, "best_score")
    ridge.n_features_in_ = n_inputs
    estimator.ridge_, estimator.alpha_ = ridge, ridge.alpha_
    estimator.bandwidth_ = _number(attrs, "bandwidth")
    if isinstance(estimator, DistributionRegressor):
        _complete_regressor(estimator, dataset)
    else:
        _complete_classifier(estimator, dataset)
    return estimator


def _complete_regressor(estimator: DistributionRegressor, dataset: xr.Dataset) -> None:
    attrs, sizes = dataset.attrs, dataset.sizes
    estimator.leave_one_out_ = stored_array(
        dataset, "leave_one_out", (sizes["group"],), (np.float64,)
    )
    estimator._scores = _finite(dataset, "scores", (sizes["score"],))
    numbers = [_number(attrs, name) for name in ("error_constant", "error_per_sample")]
    if estimator.ridge_.coef_.shape[0] != 1 or not numbers[0] > 0 or numbers[1] < 0:
        raise InputError(f"error_constant={numbers[0]:g}, error_per_sample={numbers[1]:g}.")
    if (np.diff(estimator._scores) < 0).any():
        raise InputError("scores is not sorted.")
    estimator.error_variance_ = ErrorVariance(*numbers)
    known = "smallest_size" in attrs  # files of the first versions lack it
    estimator.smallest_size_ = _number(attrs, "smallest_size") if known else math.nan
    estimator.n_labels_ = int(_number(attrs, "n_labels")) if "n_labels" in attrs else None


def _complete_classifier(estimator: DistributionClassifier, dataset: xr.Dataset) -> None:
    attrs, sizes = dataset.attrs, dataset.sizes
    estimator.classes_ = decode_labels(dataset["classes"].values, str(attrs["class_type"]))
    n_classes, n_targets = len(estimator.classes_), estimator.ridge_.coef_.shape[0]
    squared = estimator.loss == "squared"
    n_inputs = n_targets if squared else estimator.ridge_.coef_.shape[1]
    logistic = LogisticRegression(C=_number(attrs, "logistic_penalty"), max_iter=1000)
    codes = stored_array(dataset, "logistic_classes", (sizes["logistic_class"],), (np.int64,))
    fine = n_classes >= 2 and n_targets == (1 if n_classes == 2 else n_classes)
    fine &= 2 <= len(codes) <= n_classes and (np.diff(codes) > 0).all()
    if not fine or codes[0] < 0 or codes[-1] >= n_classes:
        raise InputError(f"classes has {n_classes} values, logistic_classes {codes.tolist()}.")
    n_logits = 1 if len(codes) == 2 else len(codes)
    logistic.classes_ = codes
    logistic.coef_ = _finite(dataset, "logistic_coefficients", (n_logits, n_inputs))
    logistic.intercept_ = _finite(dataset, "logistic_intercept", (n_logits,))
    logistic.n_features_in_ = n_inputs
    estimator.logistic_ = logistic


def _features(dataset: xr.Dataset) -> DistributionFeatures:
    attrs, sizes = dataset.attrs, dataset.sizes
    features = DistributionFeatures(**_settings(attrs["features"], DistributionFeatures))
    if features.kernel not in KERNELS or features.layer not in LAYERS:
        raise InputError(f"kernel={features.kernel!r}, layer={features.layer!r}.")
    n = features.n_features_in_ = int(attrs["n_features_in"])
    features.feature_map_ = feature_map_of(dataset) if "feature_map" in attrs else None
    if features.feature_map_ is not None and n != 2 * features.feature_map_.n_frequencies:
        raise InputError(
            f"n_features_in={n}, but the feature map has {features.feature_map_.n_frequencies} "
            "frequencies."
        )
    features.shrinkage_ = None
    if "shrinkage_center" in dataset:
        arrays = [_finite(dataset, f"shrinkage_{name}", (n,)) for name in SHRINKAGE]
        if min(array.min() for array in arrays[1:]) < 0:
            raise InputError("shrinkage_between or shrinkage_within is negative.")
        features.shrinkage_ = Shrinkage(*arrays)
    features.layer_, features._n_features_out = None, n
    if features.kernel == "linear":
        return features
    bandwidth = features.bandwidth_ = _number(attrs, "kernel_bandwidth")
    if not 1.0 / _MAX < bandwidth < _MAX:
        raise InputError(f"kernel_bandwidth={bandwidth:g}.")
    if features.layer == "landmarks":
        shape = (sizes["landmark"], sizes["second_feature"])
        features.layer_ = LandmarkLayer(
            _finite(dataset, "landmarks", (shape[0], n)),
            _finite(dataset, "basis", shape),
            features.kernel,
            bandwidth,
        )
    else:
        frequencies = _finite(dataset, "layer_frequencies", (n, sizes["layer_frequency"]))
        features.layer_ = RandomLayer(frequencies)
    features._n_features_out = features.layer_.n_outputs
    return features


def _settings(text: str, kind: type) -> dict[str, Any]:
    """Parameters of an estimator; parameters that an older version did not have are defaults."""
    settings: dict[str, Any] = parse_object(text)
    expected = kind().get_params(deep=False)
    if not set(settings) <= set(expected):
        raise InputError(
            f"settings has the names {sorted(settings)}, expected some of {sorted(expected)}."
        )
    for name, value in settings.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(x, (int, float, str, type(None))) for x in numbers):
            raise InputError(f"settings: {name} has values of other types.")
        if isinstance(value, list):
            settings[name] = tuple(value)
    return settings


def _finite(dataset: xr.Dataset, name: str, shape: tuple[int, ...]) -> Array:
    values = stored_array(dataset, name, shape, (np.float64,))
    if not (np.abs(values) < _MAX).all():
        raise InputError(f"{name} has values that are not finite, or of {_MAX:g} and more.")
    return values


def _number(attrs: dict[str, Any], name: str) -> float:
    value = attrs[name]
    if type(value) not in (int, float) or not np.isfinite(value):
        raise InputError(f"{name}={value!r} is not a finite number.")
    return float(value)
