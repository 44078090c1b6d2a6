"""Arrays that a model is made of: checked, and made read-only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError

Array = NDArray[np.float64]


def finite(name: str, value: Any) -> Array:
    """A read-only copy of an array of finite real numbers."""
    try:
        values = np.array(value, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array of real numbers: {error}.") from error
    if not np.isfinite(values).all():
        raise InputError(f"{name} holds values that are not finite.")
    values.flags.writeable = False
    return values


def check_places(name: str, places: Array, weights: Array) -> None:
    """Refuse means or centers that are no (n_components, n_features), and weights that do not fit.

    Raises
    ------
    InputError
        Naming the argument.
    """
    if places.ndim != 2 or not places.size:
        raise InputError(f"{name} has shape {places.shape}; give (n_components, n_features).")
    if weights.shape != places.shape[:1]:
        raise InputError(
            f"weights has shape {weights.shape}; for {len(places)} {name} give ({len(places)},)."
        )
    if (weights < 0).any() or abs(weights.sum() - 1.0) > 1e-8:
        raise InputError(
            f"weights must not be negative and sum to one: smallest {weights.min():g}, sum "
            f"{weights.sum():.10g}."
        )
