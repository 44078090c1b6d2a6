"""Validate arrays and integers: no masks, no lazy arrays, sums with weights."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError, InputError, SketchError

_REMEDIES = {
    "samples": "Give x.filled(np.nan), and nan_policy='omit' to omit those rows.",
    "weights": "Give weights.filled(0) to omit those rows from all sums.",
    "rows": "Leave those rows out, or give x.filled(np.nan) where values may be missing.",
    "groups": "Give labels for these rows, or None, and nan_policy='omit' to omit them.",
}


def package_of(x: Any) -> str:
    """Name of the package that defines the type of an object, which is not imported for that.

    Examples
    --------
    >>> package_of(np.zeros(3)), package_of("text")
    ('numpy', 'builtins')
    """
    return type(x).__module__.partition(".")[0]


def require_unmasked(values: Any, kind: str, name: str) -> None:
    """Raise if an array has masked values, which conversions of NumPy would silently restore.

    Parameters
    ----------
    values
        Any object; only masked arrays of NumPy with masked values are refused.
    kind
        Content: ``"samples"``, ``"weights"``, ``"groups"``, or ``"rows"`` for a model.
    name
        Name of the values in the message.

    Raises
    ------
    InputError
        If a value is masked; the message has their number and the remedy.

    Examples
    --------
    >>> require_unmasked(np.ma.masked_array([1.0, 2.0]), "weights", "weights")
    """
    # masked arrays of pandas convert their missing values to NaN themselves
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InputError(
            f"{name} hold {np.ma.count_masked(values):,} masked values, whose content would be "
            f"used. {_REMEDIES[kind]}"
        )


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy."""
    out = np.array(array, order="C")
    out.flags.writeable = False
    return out


def require_integer(
    name: str, value: object, minimum: int, error: type[SketchError] = InputError
) -> int:
    """Validate an integer argument, of Python or NumPy.

    Parameters
    ----------
    name
        Name of the argument.
    value
        Value of the argument.
    minimum
        Smallest value.
    error
        Type of the error.

    Raises
    ------
    SketchError
        If the value is not an integer, or too small.

    Examples
    --------
    >>> require_integer("n_features", np.int32(3), 1)
    3
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum:
        raise error(f"{name}={value!r}: give an integer of at least {minimum}.")
    return int(value)


def require_number(
    name: str, value: object, low: float, high: float, *, strict: bool = False
) -> float:
    """Validate a number of Python or NumPy that lies between two bounds.

    Parameters
    ----------
    name
        Name of the argument.
    value
        Value of the argument.
    low, high
        Bounds.
    strict
        Whether the bounds themselves are refused.

    Raises
    ------
    InputError
        If the value is not a number, or out of bounds.

    Examples
    --------
    >>> require_number("level", 0.05, 0.0, 1.0, strict=True)
    0.05
    """
    if not isinstance(value, bool) and isinstance(value, (int, float, np.integer, np.floating)):
        number = float(value)
        if low < number < high or (not strict and number in (low, high)):
            return number
    bounds = f"above {low:g} and below {high:g}" if strict else f"from {low:g} to {high:g}"
    raise InputError(f"{name}={value!r}: give a number {bounds}.", parameter=name)


def require_random_state(value: Any) -> np.random.RandomState:
    """Convert a ``random_state`` of scikit-learn to a generator, or raise.

    Parameters
    ----------
    value
        Seed, instance of ``RandomState``, or None.

    Raises
    ------
    InputError
        If the value is something else.

    Examples
    --------
    >>> require_random_state(0).randint(10)
    5
    """
    # imported here because the import takes a second, and few callers need it
    from sklearn.utils import check_random_state

    try:
        state: np.random.RandomState = check_random_state(value)
    except ValueError as error:
        raise InputError(
            f"random_state={value!r}: give an integer from 0 to 4,294,967,295, an instance of "
            "RandomState, or None.",
            parameter="random_state",
        ) from error
    return state


def require_classes(name: str, values: NDArray[Any], regressor: str) -> None:
    """Raise unless values are classes, and not numbers of a regression.

    Parameters
    ----------
    name
        Name of the argument for the message.
    values
        Values, shape (n_samples,).
    regressor
        Name of the estimator for numbers.

    Raises
    ------
    InputError
        If they are of no type that scikit-learn classifies.

    Examples
    --------
    >>> require_classes("y", np.array([0.5, 1.5]), "Regressor")
    Traceback (most recent call last):
    dask_sketch.errors.InputError: y holds no classes (Unknown label type: continuous): give ...
    """
    from sklearn.utils.multiclass import check_classification_targets

    try:
        check_classification_targets(values)
    except ValueError as error:
        reason = str(error).partition(".")[0]
        raise InputError(
            f"{name} holds no classes ({reason}): give classes, or take {regressor} for numbers.",
            parameter=name,
        ) from error


def require_memory(x: Any, name: str, remedy: str) -> None:
    """Raise for lazy arrays, which conversions of NumPy would silently compute.

    Examples
    --------
    >>> require_memory(np.zeros(3), "samples", "Give a chunk.")
    """
    if hasattr(x, "__dask_graph__") and x.__dask_graph__() is not None:
        raise InputError(f"{name} of type {type(x).__name__} is lazy. {remedy}")


class FrozenDataclass:
    """Base of frozen dataclasses that stay frozen after pickling.

    Only the fields are pickled, and ``__post_init__`` runs again: arrays of NumPy are writeable
    after a pickle, and if one of them changed, a sketch would not be that of its samples any more.
    Cached values are not pickled. A pickle of other fields, by another version, is refused.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        names = _fields_of(type(self))
        return _restored, (type(self), names, tuple(getattr(self, name) for name in names))


def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _restored(kind: type, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Rebuild a frozen dataclass from its pickled fields."""
    if names != _fields_of(kind):
        different = sorted({*names} ^ {*_fields_of(kind)})
        raise ArtifactError(
            f"this pickle of {kind.__name__} is of another version of dask-sketch, which differs "
            f"in {', '.join(different) or 'the order of its fields'}: read it with that version, "
            "and store what lasts by to_zarr or to_bytes."
        )
    return kind(*values)


def unit_rows(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Divide rows by their Euclidean lengths, each by arithmetic of that row alone.

    Products of a library would be rounded by the number of rows, or by the processor.

    Parameters
    ----------
    rows
        Rows, shape (n, n_features).

    Returns
    -------
    directions
        Rows of length one, float64, of the same shape. Rows of zeros, and with NaN or infinite
        values, are NaN.

    Examples
    --------
    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [nan, nan]])
    """
    columns = np.array(rows.T, dtype=np.float64, order="C")
    with np.errstate(invalid="ignore", divide="ignore"):
        columns /= np.abs(columns).max(axis=0, initial=0.0)  # so that squares are in the range
        squares = np.zeros(columns.shape[1])
        for column in columns:
            squares += column * column
        columns /= np.sqrt(squares)
    columns[:, ~np.isfinite(squares)] = np.nan
    return np.ascontiguousarray(columns.T)


def weighted_sum(values: NDArray[np.float64], weights: Any, label: str) -> tuple[float, float]:
    """Sum values times weights, and the weights.

    Parameters
    ----------
    values
        One value for each sample, shape (n,).
    weights
        Weights of the samples, shape (n,); all one if None.
    label
        Name of the samples for messages.

    Raises
    ------
    InputError
        If there is another number of weights, or weights are negative or not finite.

    Examples
    --------
    >>> weighted_sum(np.array([1.0, 5.0]), [3, 1], "x")
    (8.0, 4.0)
    """
    if weights is None:
        return float(values.sum()), float(len(values))
    require_unmasked(weights, "weights", f"weights of {label}")
    try:
        numbers = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"weights of {label}: give real numbers ({error}).") from error
    if numbers.shape != values.shape:
        raise InputError(
            f"weights has shape {numbers.shape}: give ({len(values)},), for the samples of {label}."
        )
    if not (numbers >= 0).all() or not numbers.sum() < np.inf:
        raise InputError(
            f"weights of {label} hold negative or infinite ones: give finite weights of at least 0."
        )
    return float(numbers @ values), float(numbers.sum())
