"""Convert tables of pandas to arrays of numbers, with NaN for missing values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def first_few(values: Iterable[object], most: int = 6) -> str:
    """Text of values for a message, with ``...`` in place of all but the first few.

    Examples
    --------
    >>> first_few(["a", "b", "c"], 2)
    'a, b, ...'
    """
    texts = [str(value) for value in values]
    return ", ".join(texts if len(texts) <= most else [*texts[:most], "..."])


def shorten(text: str, length: int = 80) -> str:
    """Text of at most ``length`` characters, of which the last are ``...`` if some are left out."""
    return text if len(text) <= length else text[: length - 3] + "..."


def common_dtype(dtypes: Sequence[Any]) -> np.dtype[Any]:
    """Common type of columns, of NumPy: float64 if a column may have missing values.

    Examples
    --------
    >>> common_dtype([np.dtype("bool"), np.dtype("float32")])
    dtype('float32')
    """
    if all(isinstance(dtype, np.dtype) for dtype in dtypes):
        return np.result_type(*dtypes)
    return np.dtype(np.float64)


def to_numpy(frame: pd.DataFrame, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert the numeric columns of a frame to one array.

    Parameters
    ----------
    frame
        Frame with at least one column, of types of NumPy, pandas or Arrow.
    dtype
        Type of the array; a larger one is used if the columns need it.
    """
    # partitions may hold other types than those that were announced
    require_numeric(frame.dtypes.items(), "a table", "Convert them to numbers, or leave them out.")
    # files of one source may differ in type: integers in one file, missing values in the next
    dtype = np.result_type(dtype, common_dtype(list(frame.dtypes)))
    # missing values of masked and Arrow columns become NaN, to which nan_policy applies
    if dtype.kind == "f":
        return frame.to_numpy(dtype=dtype, na_value=np.nan)
    return frame.to_numpy(dtype=dtype)


def names_of(labels: Iterable[Hashable]) -> tuple[str, ...] | None:
    """Names of columns; None if they are only numbered, or not distinct.

    Examples
    --------
    >>> names_of(["height", 2.5]), names_of(range(3))
    (('height', '2.5'), None)
    """
    found = list(labels)
    names = tuple(map(str, found))
    counted = all(isinstance(label, int | np.integer) for label in found)
    return None if counted or len(set(names)) < len(names) else names


def feature_title(number: int, names: Sequence[str] | None) -> str:
    """Describe a feature in a message: by its number, and by its name if there are names.

    Examples
    --------
    >>> feature_title(1, ("age", "income")), feature_title(1, None)
    ("feature 1 ('income')", 'feature 1')
    """
    return f"feature {number}" if names is None else f"feature {number} ({names[number]!r})"


def feature_labels(n_features: int, names: Sequence[str] | None) -> list[str]:
    """Labels of all features: their names, or their numbers if they have none.

    Examples
    --------
    >>> feature_labels(2, None)
    ['feature 0', 'feature 1']
    """
    return [f"feature {k}" for k in range(n_features)] if names is None else list(names)


def require_columns(columns: Iterable[Hashable], available: Sequence[Hashable], label: str) -> None:
    """Raise if columns are missing from a table.

    Parameters
    ----------
    columns
        Names of the columns.
    available
        Names of the columns of the table.
    label
        Name of the table in the message.

    Raises
    ------
    InputError
        If a column is missing; the message names those that are.
    """
    missing = [name for name in columns if name not in available]
    if missing:
        raise InputError(
            f"columns={missing}: choose some of the columns of {label}, {list(available)}."
        )


def require_numeric(
    dtypes: Iterable[tuple[Hashable, Any]], label: str, remedy: str, parameter: str = "columns"
) -> None:
    """Raise if columns are not real numbers.

    Parameters
    ----------
    dtypes
        Names and types of the columns, such as ``frame.dtypes.items()``.
    label
        Name of the table in the message.
    remedy
        Last sentence of the message.
    parameter
        Name of the argument that chose the columns.

    Raises
    ------
    InputError
        If a column holds text, dates or other values; the message names it.
    """
    import pandas.api.types as kinds

    dtypes = list(dtypes)
    wrong = [
        f"{name} ({dtype})"
        for name, dtype in dtypes
        if not kinds.is_numeric_dtype(dtype) or kinds.is_complex_dtype(dtype)
    ]
    if wrong:
        if any(str(dtype) == "object" for _, dtype in dtypes):
            remedy += " Decimals are numbers after .astype(float)."
        raise InputError(
            f"{parameter} of {label} are not numeric: {', '.join(wrong)}. {remedy}",
            parameter=parameter,
        )


def require_names(mine: tuple[str, ...] | None, label: str, names: Any, owner: str) -> None:
    """Raise if the names of the features of samples differ from the names in an object.

    Parameters
    ----------
    mine
        Names of the features of the samples, or None.
    label
        Name of the samples in the message.
    names
        Names of the features of the object, or None.
    owner
        Name of the object in the message.

    Raises
    ------
    InputError
        If both have names, and a name differs, is missing, or is in excess.

    Examples
    --------
    >>> require_names(("age", "income"), "the DataFrame", ("age", "income"), "the model")
    """
    names = None if names is None else tuple(names)
    if mine is None or names is None or mine == names:
        return
    if len(mine) == len(names):
        place = next(k for k, name in enumerate(names) if mine[k] != name)
        raise InputError(
            f"feature {place} of {label} is {mine[place]!r}; {owner} was made for "
            f"{names[place]!r} there. Give the columns in the order of its feature_names, or "
            "rename them."
        )
    missing = [name for name in names if name not in mine]
    extra = [name for name in mine if name not in names]
    remedies = [f"Add {first_few(map(repr, missing))}."] if missing else []
    remedies += [f"Leave out {first_few(map(repr, extra))}."] if extra else []
    raise InputError(
        f"{label} has {len(mine)} features: {owner} has n_features={len(names)}. "
        f"{' '.join(remedies)} Those of {owner} are its feature_names."
    )
