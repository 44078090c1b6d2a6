"""Arrays given to a feature map: checked, and made read-only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.drawn import frozen

Array = NDArray[np.float64]


def variances(value: Any, n_features: int) -> Array:
    """Argument ``covariances``: positive variances of one law or of several."""
    out = _numbers("covariances", value)
    if out.ndim not in (1, 2) or out.shape[-1] != n_features or not out.size:
        raise InputError(
            f"covariances has shape {out.shape}; for n_features={n_features} give ({n_features},) "
            f"or (n_laws, {n_features})."
        )
    if not (np.isfinite(out).all() and (out > 0).all()):
        raise InputError("covariances holds values that are not positive and finite.")
    return frozen(out)


def shares(value: Any, n_laws: int) -> Array:
    """Argument ``law_weights``: normalised, one for each law."""
    out = _numbers("law_weights", value)
    fine = np.isfinite(out).all() and (out >= 0).all() and out.sum() > 0
    if out.shape != (n_laws,) or not fine:
        raise InputError(
            f"law_weights={value!r}: give {n_laws} weights, one for each row of covariances, none "
            "negative."
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


def _numbers(name: str, value: Any) -> Array:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}={value!r} is not an array of numbers: {error}.") from error
