"""Convert tables of pandas to arrays of numbers, with NaN for missing values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


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


def require_names(mine: tuple[str, ...] | None, label: str, names: Any, owner: str) -> None:
    """Raise if samples and an object have the same number of features, but other names.

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
        If both have names, and a name differs.
    """
    if mine is None or names is None or mine == names:
        return
    place = next(k for k, name in enumerate(names) if mine[k] != name)
    raise InputError(
        f"feature {place} of {label} is {mine[place]!r}; {owner} was made for {names[place]!r} "
        "there. Give the columns in the order of its feature_names, or rename them."
    )
