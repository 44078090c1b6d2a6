"""Tables of pandas as arrays of numbers, with NaN where a value is missing."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def common_dtype(dtypes: Sequence[Any]) -> np.dtype[Any]:
    """The type that holds all columns: of NumPy, float64 if a column may miss values.

    Examples
    --------
    >>> common_dtype([np.dtype("bool"), np.dtype("float32")])
    dtype('float32')
    """
    if all(isinstance(dtype, np.dtype) for dtype in dtypes):
        return np.result_type(*dtypes)
    return np.dtype(np.float64)


def to_numpy(frame: pd.DataFrame, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values of a frame's columns, all numeric, as one array.

    Parameters
    ----------
    frame
        At least one column, of NumPy's types, pandas' own or Arrow's.
    dtype
        The type wanted, or a larger one if the columns need it.
    """
    # parts of one source may differ in type: whole numbers in one file, missing values in the next
    dtype = np.result_type(dtype, common_dtype(list(frame.dtypes)))
    # masked and Arrow columns turn their missing values into NaN, which the nan policy judges
    if dtype.kind == "f":
        return frame.to_numpy(dtype=dtype, na_value=np.nan)
    return frame.to_numpy(dtype=dtype)


def names_of(labels: Iterable[Hashable]) -> tuple[str, ...] | None:
    """What columns are called; none where they are only counted, or two are called the same.

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
    """Raise if both name the features, and not alike; they are as many.

    Parameters
    ----------
    mine
        Names of the features of samples.
    label
        Of the samples, for the message.
    names
        Those that ``owner`` was made for.
    owner
        For the message.
    """
    if mine is None or names is None or mine == names:
        return
    place = next(k for k, name in enumerate(names) if mine[k] != name)
    raise InputError(
        f"feature {place} of {label} is {mine[place]!r}; {owner} was made for {names[place]!r} "
        "there. Give the columns in the order of its feature_names, or rename them."
    )
