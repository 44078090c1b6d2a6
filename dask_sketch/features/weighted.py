"""Sums of values with the weights of their samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.masked import require_unmasked


def weighted_sum(values: NDArray[np.float64], weights: Any, label: str) -> tuple[float, float]:
    """Sum of one value for each sample times its weight, and the sum of the weights.

    Parameters
    ----------
    values
        Shape (n,).
    weights
        Shape (n,), or none: all one.
    label
        Name of the samples for messages.

    Raises
    ------
    InputError
        If there are not as many weights, or they are not finite, not negative numbers.

    Examples
    --------
    >>> weighted_sum(np.array([1.0, 5.0]), [3, 1], "x")
    (8.0, 4.0)
    """
    if weights is None:
        return float(values.sum()), float(len(values))
    require_unmasked(weights, "weights", f"weights of {label}")
    try:
        share = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"weights of {label} are not real numbers: {error}.") from error
    if share.shape != values.shape:
        raise InputError(f"weights has shape {share.shape}; {label} has {len(values)} samples.")
    if not (share >= 0).all() or not share.sum() < np.inf:
        raise InputError(f"weights must be finite and not negative; those of {label} are not.")
    return float(share @ values), float(share.sum())
