"""Tables of pandas as arrays of numbers, with NaN where a value is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
