"""Validate the arguments of feature maps, and read stored specifications."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import frozen

Array = NDArray[np.float64]
MAX_NUMBERS = 2**28  # numbers in the frequencies of one map, at most: 2 GiB
CATEGORICAL = ("sparse-radius", "gaussian")  # distributions that take categorical features
_DTYPES = ("float32", "float64")
_REAL = (int, float, np.integer, np.floating)
# Names of the fields of a feature map in stored specifications: digests depend on them.
STORED_NAMES = {
    **{name: name for name in ("n_features", "n_frequencies", "scale", "covariances", "seed")},
    **{name: name for name in ("dtype", "center", "whitening", "feature_names", "normalize")},
    "categories": "categories",
    "axes": "axes",
    "covariance_weights": "law_weights",
    "distribution": "law",
}


def parse_object(text: str) -> dict[str, Any]:
    """Parse JSON text of any origin that must be an object.

    Raises
    ------
    InputError
        If the text is not JSON, or not an object.
    """
    try:
        parsed = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:  # also numbers of too many digits
        raise InputError(f"it is not JSON: {type(error).__name__}: {error}") from error
    if not isinstance(parsed, dict):
        raise InputError(f"it is JSON of type {type(parsed).__name__}, not an object.")
    return parsed


def parse_specification(text: str) -> dict[str, Any]:
    """Parse the stored specification of a feature map.

    Returns
    -------
    arguments
        Arguments of :class:`~dask_sketch.FeatureMap`, whose values are not validated yet.

    Raises
    ------
    InputError
        If the text is not JSON, has unknown fields or no valid precision.
    """
    values = parse_object(text)
    unknown = values.keys() - set(STORED_NAMES.values())
    if unknown:
        raise InputError(f"it has fields that no feature map has: {sorted(unknown)}.")
    if values.get("dtype") not in _DTYPES:  # NumPy would interpret other text as a record type
        raise InputError("it has no precision, or another than float32 and float64.")
    return {name: values[key] for name, key in STORED_NAMES.items() if key in values}


def require_size(n_features: int, n_frequencies: int) -> None:
    """Refuse sizes for which there is not enough memory, before frequencies are sampled."""
    if n_features * n_frequencies > MAX_NUMBERS:
        raise InputError(
            f"n_frequencies={n_frequencies} with n_features={n_features}: the frequencies would be "
            f"over {MAX_NUMBERS:,} numbers. Give fewer."
        )


def precision(value: Any) -> str:
    """Validate ``dtype``: the name of a precision."""
    try:
        name = np.dtype(value).name
    except TypeError:
        name = ""
    if name not in _DTYPES:
        raise InputError(f"dtype={value!r}: choose 'float32' or 'float64'.")
    return name


def positive_scale(value: Any) -> float:
    """Validate ``scale``: a standard deviation whose square is a float64 number."""
    if not isinstance(value, _REAL) or not 1e-150 < value < 1e150:
        raise InputError(f"scale={value!r}: give a positive standard deviation.")
    return float(value)


def positive_scales(name: str, value: Any, n_features: int) -> Array:
    """Validate standard deviations: one for all features, or one for each."""
    out = _numbers(name, value)
    if out.shape not in ((), (n_features,)):
        raise InputError(
            f"{name} has shape {out.shape}; give one number, or {n_features} of them, one for each "
            "feature."
        )
    if not ((out > 1e-150) & (out < 1e150)).all():
        raise InputError(f"{name}={value!r}: give positive numbers, in the units of the data.")
    return np.broadcast_to(out, n_features)


def positive_variances(value: Any, n_features: int) -> Array:
    """Validate ``covariances``: variances of one distribution, or of several."""
    out = _numbers("covariances", value)
    if out.ndim not in (1, 2) or out.shape[-1] != n_features or not out.size:
        raise InputError(
            f"covariances has shape {out.shape}; for n_features={n_features} give ({n_features},) "
            f"or (n_distributions, {n_features})."
        )
    if not (np.isfinite(out).all() and (out > 0).all()):
        raise InputError(
            "covariances holds values that are not positive and finite: give variances."
        )
    return frozen(out)


def normalised_weights(value: Any, n_distributions: int) -> Array:
    """Validate ``covariance_weights``: one for each distribution; divide them by their sum."""
    out = _numbers("covariance_weights", value)
    valid = np.isfinite(out).all() and (out >= 0).all() and out.sum() > 0
    if out.shape != (n_distributions,) or not valid:
        raise InputError(
            f"covariance_weights={value!r}: give {n_distributions} weights, one for each row of "
            "covariances, none negative."
        )
    return frozen(out / out.sum())


def matrices_of_axes(value: Any, distribution: str, n_features: int) -> Array:
    """Validate ``axes``: invertible matrices, for ``"dense-sums"`` only."""
    if distribution != "dense-sums":
        raise InputError(
            f"axes with distribution={distribution!r}: only the base frequencies of 'dense-sums' "
            "have axes; leave axes out.",
            parameter="axes",
        )
    out = _numbers("axes", value)
    shape = (n_features, n_features)
    if out.ndim != 3 or out.shape[1:] != shape or not out.size or not np.isfinite(out).all():
        raise InputError(
            f"axes has shape {out.shape}; give finite numbers of shape (n_axes, {n_features}, "
            f"{n_features}).",
            parameter="axes",
        )
    if (np.linalg.matrix_rank(out) < n_features).any():
        raise InputError("axes holds a singular matrix: give matrices of full rank.")
    return frozen(out)


def finite_point(value: Any, n_features: int) -> Array:
    """Validate ``center``: a point, or the origin if it is None."""
    out = np.zeros(n_features) if value is None else _numbers("center", value)
    if out.shape != (n_features,) or not np.isfinite(out).all():
        raise InputError(f"center={value!r}: give {n_features} finite numbers.")
    return frozen(out)


def invertible_matrix(value: Any, n_features: int) -> Array:
    """Validate ``whitening``: a square matrix of full rank."""
    out = _numbers("whitening", value)
    if out.shape != (n_features, n_features) or not np.isfinite(out).all():
        raise InputError(
            f"whitening has shape {out.shape}; give ({n_features}, {n_features}), finite."
        )
    if np.linalg.matrix_rank(out) < n_features:
        raise InputError("whitening is singular; drop the features that do not vary.")
    return frozen(out)


def boolean(name: str, value: Any) -> bool:
    """Validate an argument that is true or false."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name}={value!r}: give True or False.", parameter=name)
    return bool(value)


def require_suited_to_categories(distribution: str, whitening: Any, normalize: bool) -> None:
    """Refuse arguments that mix features with others, which the codes of levels are not for."""
    if distribution not in CATEGORICAL:
        raise InputError(
            f"distribution={distribution!r} with categories: choose one of "
            f"{', '.join(CATEGORICAL)}, whose frequencies of a categorical feature are multiples "
            "of 2 pi / L."
        )
    if whitening is not None or normalize:
        name = "normalize" if normalize else "whitening"
        raise InputError(
            f"{name} with categories: codes of levels have no length and no direction. Leave "
            f"{name} out, and transform the numeric columns before.",
            parameter=name,
        )


def _numbers(name: str, value: Any) -> Array:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}={value!r}: give an array of numbers ({error}).") from error
