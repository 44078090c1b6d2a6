"""Masked arrays are refused: what a mask hides would be used like everything else."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError, SketchError

_WAYS = {
    "samples": "Give x.filled(np.nan), and nan_policy='omit' to leave those rows out.",
    "weights": "Give weights.filled(0) to leave those rows out of all sums.",
    "rows": "Leave those rows out.",
    "groups": "Give labels for these rows too, or None, and nan_policy='omit' to leave them out.",
}


def require_unmasked(values: Any, kind: str, name: str) -> None:
    """Raise if an array hides values, which NumPy's conversions would silently bring back.

    Parameters
    ----------
    values
        Anything; only masked arrays of NumPy are judged, and those that hide nothing are fine.
    kind
        What it holds: ``"samples"``, ``"weights"``, ``"groups"``, or ``"rows"`` for a model.
    name
        What it is called in the message.

    Raises
    ------
    InputError
        If a value is masked; the message says how many, and what to give instead.

    Examples
    --------
    >>> require_unmasked(np.ma.masked_array([1.0, 2.0]), "weights", "weights")
    """
    # of NumPy only: pandas' arrays have masks too, and turn what is missing into NaN themselves
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InputError(
            f"{name} hold {np.ma.count_masked(values):,} masked values, and what a mask hides "
            f"would be used. {_WAYS[kind]}"
        )


# SampledFrequencies frequencies: one draw for each specification and process, held against its
# digest.


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy."""
    out = np.array(array, order="C")
    out.flags.writeable = False
    return out


# Arguments, checked: whole numbers of all kinds, and arrays of a feature map, made read-only.


def require_integer(
    name: str, value: object, least: int, error: type[SketchError] = InputError
) -> int:
    """Argument ``name``, which must be a whole number of at least ``least``, of Python or NumPy.

    Examples
    --------
    >>> require_integer("n_features", np.int32(3), 1)
    3
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise error(f"{name}={value!r}: give a whole number of at least {least}.")
    return int(value)


# Where arrays lie, and whether there is a GPU: the one place that imports CuPy.


def require_memory(x: Any, name: str, way: str) -> None:
    """Raise for what is lazy: NumPy's conversion would silently gather all of it.

    Examples
    --------
    >>> require_memory(np.zeros(3), "samples", "Give a chunk.")
    """
    if hasattr(x, "__dask_graph__") and x.__dask_graph__() is not None:
        raise InputError(f"{name} of type {type(x).__name__} is lazy. {way}")


# Frozen dataclasses that are frozen after a pickle too.


class Rebuilt:
    """Base of dataclasses that travel as their fields, and are made anew from these.

    What ``__post_init__`` does holds again on the other side: NumPy's arrays come out of a pickle
    writeable, and with a change of one of them a sketch would no longer be that of its samples.
    What is cached stays here, too.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        own: Any = self  # each subclass is a dataclass
        return type(self), tuple(getattr(self, field.name) for field in fields(own))


# Sums of values with the weights of their samples.


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
