"""Arguments, checked: whole numbers of all kinds, and arrays of a feature map, made read-only."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import frozen

Array = NDArray[np.float64]
LARGEST = 2**28  # numbers in the frequencies of one map: 2 GiB, and nothing larger is drawn
# Names of the fields of a feature map in stored specifications: digests depend on them.
STORED_NAMES = {
    **{name: name for name in ("n_features", "n_frequencies", "scale", "covariances", "seed")},
    **{name: name for name in ("dtype", "center", "whitening", "feature_names")},
    "covariance_weights": "law_weights",
    "distribution": "law",
}


def parsed(text: str) -> dict[str, Any]:
    """A JSON object, whoever wrote it."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:  # also numbers of too many digits
        raise InputError(f"it is not JSON: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"it is JSON of type {type(found).__name__}, not an object.")
    return found


def specification(text: str) -> dict[str, Any]:
    """Arguments of :class:`FeatureMap` from its stored specification, with values unchecked."""
    found = parsed(text)
    if not found.keys() <= set(STORED_NAMES.values()):
        raise InputError("it has fields that no feature map has.")
    if found.get("dtype") not in ("float32", "float64"):  # NumPy would take this for a program
        raise InputError("it has no precision, or another than float32 and float64.")
    return {name: found[key] for name, key in STORED_NAMES.items() if key in found}


def require_drawable(n_features: int, n_frequencies: int) -> None:
    """Refuse more frequencies than there is ever memory for, before any is drawn."""
    if n_features * n_frequencies > LARGEST:
        raise InputError(
            f"n_frequencies={n_frequencies} with n_features={n_features}: the frequencies would be "
            f"over {LARGEST:,} numbers. Give fewer."
        )


def variances(value: Any, n_features: int) -> Array:
    """Argument ``covariances``: positive variances of one distribution or of several."""
    out = _numbers("covariances", value)
    if out.ndim not in (1, 2) or out.shape[-1] != n_features or not out.size:
        raise InputError(
            f"covariances has shape {out.shape}; for n_features={n_features} give ({n_features},) "
            f"or (n_distributions, {n_features})."
        )
    if not (np.isfinite(out).all() and (out > 0).all()):
        raise InputError("covariances holds values that are not positive and finite.")
    return frozen(out)


def shares(value: Any, n_distributions: int) -> Array:
    """Argument ``covariance_weights``: normalised, one for each distribution."""
    out = _numbers("covariance_weights", value)
    fine = np.isfinite(out).all() and (out >= 0).all() and out.sum() > 0
    if out.shape != (n_distributions,) or not fine:
        raise InputError(
            f"covariance_weights={value!r}: give {n_distributions} weights, one for each row of "
            "covariances, none negative."
        )
    return frozen(out / out.sum())


def point(value: Any, n_features: int) -> Array:
    """Argument ``center``: the origin when not given."""
    out = np.zeros(n_features) if value is None else _numbers("center", value)
    if out.shape != (n_features,) or not np.isfinite(out).all():
        raise InputError(f"center={value!r}: give {n_features} finite numbers.")
    return frozen(out)


def invertible(value: Any, n_features: int) -> Array:
    """Argument ``whitening``: a square matrix of full rank."""
    out = _numbers("whitening", value)
    if out.shape != (n_features, n_features) or not np.isfinite(out).all():
        raise InputError(
            f"whitening has shape {out.shape}; give ({n_features}, {n_features}), finite."
        )
    if np.linalg.matrix_rank(out) < n_features:
        raise InputError("whitening is singular; drop the features that do not vary.")
    return frozen(out)


def distinct_names(value: Any, n_features: int) -> tuple[str, ...]:
    """Argument ``feature_names``: one for each feature, no two alike."""
    names = () if isinstance(value, str) else tuple(value)
    if not all(isinstance(name, str) for name in names) or len(set(names)) != n_features:
        raise InputError(f"feature_names={value!r}: give {n_features} different names.")
    if len(names) != n_features:
        raise InputError(f"feature_names={value!r}: two are the same.")
    return names


def _numbers(name: str, value: Any) -> Array:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}={value!r} is not an array of numbers: {error}.") from error
