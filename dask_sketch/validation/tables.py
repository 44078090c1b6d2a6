"""Convert tables of pandas to arrays of numbers, with NaN for missing values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import package_of
from dask_sketch.validation.warn import warn_user

if TYPE_CHECKING:
    import pandas as pd

_COARSE = 0.01  # distance of neighbouring numbers of float64, in standard deviations of a feature


def first_few(values: Iterable[object], n_shown: int = 6) -> str:
    """Text of values for a message, with ``...`` in place of all but the first few.

    Examples
    --------
    >>> first_few(["a", "b", "c"], 2)
    'a, b, ...'
    """
    texts = [str(value) for value in values]
    return ", ".join(texts if len(texts) <= n_shown else [*texts[:n_shown], "..."])


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
    columns = list(labels)
    names = tuple(map(str, columns))
    counted = all(isinstance(label, int | np.integer) for label in columns)
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
    dtypes = list(dtypes)
    wrong = [f"{name} ({dtype})" for name, dtype in dtypes if not is_real_type(dtype)]
    if wrong:
        if any(str(dtype) == "object" for _, dtype in dtypes):
            remedy += " Decimals are numbers after .astype(float)."
        raise InputError(
            f"{parameter} of {label} are not numeric: {', '.join(wrong)}. {remedy}",
            parameter=parameter,
        )


def is_real_type(dtype: Any) -> bool:
    """Whether values of a type of NumPy or pandas are real numbers or booleans.

    Examples
    --------
    >>> [is_real_type(np.dtype(name)) for name in ("float32", "bool", "complex128", "O")]
    [True, True, False, False]
    """
    import pandas.api.types as kinds

    return kinds.is_numeric_dtype(dtype) and not kinds.is_complex_dtype(dtype)


def names_in(x: Any) -> tuple[str, ...] | None:
    """Names of the features in values in memory; None if they have none.

    Parameters
    ----------
    x
        Table of pandas, Polars or Arrow; Series of pandas with a value for each feature; DataArray
        whose last dimension is that of the features; or values without names.

    Examples
    --------
    >>> import pandas as pd
    >>> names_in(pd.DataFrame({"age": [30.0], "income": [1.0]})), names_in([[30.0, 1.0]])
    (('age', 'income'), None)
    """
    module = package_of(x)
    if module == "xarray":
        dims = getattr(x, "dims", ())
        last = dims[-1] if isinstance(dims, tuple) and dims else None
        return names_of(x.coords[last].values.tolist()) if last in x.coords else None
    if module == "pandas" and not hasattr(x, "columns"):
        return names_of(x.index) if hasattr(x, "index") and hasattr(x, "iloc") else None
    columns = getattr(x, "column_names", getattr(x, "columns", None))
    iterable = isinstance(columns, Iterable) and not isinstance(columns, (str, bytes))
    return names_of(columns) if iterable and len(columns) else None  # type: ignore[arg-type]


def require_names(
    mine: tuple[str, ...] | None,
    label: str,
    names: Any,
    owner: str,
    *,
    parameter: str | None = None,
) -> None:
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
    parameter
        Name of the argument that the error is about.

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
        position = next(k for k, name in enumerate(names) if mine[k] != name)
        raise InputError(
            f"feature {position} of {label} is {mine[position]!r}; {owner} was made for "
            f"{names[position]!r} there. Give the columns in the order of its feature_names, or "
            "rename them.",
            parameter=parameter,
        )
    missing = [name for name in names if name not in mine]
    extra = [name for name in mine if name not in names]
    remedies = [f"Add {first_few(map(repr, missing))}."] if missing else []
    remedies += [f"Leave out {first_few(map(repr, extra))}."] if extra else []
    raise InputError(
        f"{label} has {len(mine)} features: {owner} has n_features={len(names)}. "
        f"{' '.join(remedies)} Those of {owner} are its feature_names.",
        parameter=parameter,
    )


def has_more_names(found: Any, names: Iterable[str] | None) -> bool:
    """Whether a table has all of these names, and others as well.

    Parameters
    ----------
    found
        Names of the columns of a table; anything else has none.
    names
        Names of features, or None.

    Examples
    --------
    >>> has_more_names(["id", "age"], ("age",)), has_more_names(["age"], ("age",))
    (True, False)
    """
    try:
        return names is not None and set(names) < set(() if found is None else found)
    except TypeError:  # not the names of columns
        return False


def require_names_in(argument: str, value: Any, names: Any, owner: str) -> None:
    """Raise if values of an argument have names of features, and an object has others.

    Parameters
    ----------
    argument
        Name of the argument.
    value
        Values of the features, see :func:`names_in`, or a pair of such values.
    names, owner
        Names of the features of the object, and its name in the message.

    Raises
    ------
    InputError
        If both have names, and these differ.
    """
    for part in value if isinstance(value, (list, tuple)) and len(value) == 2 else [value]:
        require_names(names_in(part), argument, names, owner, parameter=argument)


def require_common_names(given: Mapping[str, tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Raise unless all arguments that have names of features have the same ones, in one order.

    Parameters
    ----------
    given
        Names of the features of each argument, or None, by the name of the argument.

    Returns
    -------
    names
        Names that they share, or None if no argument has names.

    Raises
    ------
    InputError
        If the names of an argument differ from those of an earlier one.

    Examples
    --------
    >>> require_common_names({"first": None, "second": ("age", "income")})
    ('age', 'income')
    """
    first: tuple[str, tuple[str, ...]] | None = None
    for argument, names in given.items():
        if first is not None:
            require_names(names, argument, first[1], first[0], parameter=argument)
        elif names is not None:
            first = argument, tuple(names)
    return None if first is None else first[1]


def require_index(given: Any, index: pd.Index[Any], argument: str) -> None:
    """Raise if weights or labels have another index than the rows; they are matched by position.

    Two numbered indexes of one step may differ in their first number: a slice of rows keeps its
    numbers.

    Parameters
    ----------
    given
        Weights or labels; other values than a Series or a frame of pandas, or a DataArray of one
        dimension that has an index, are not checked.
    index
        Index of the rows.
    argument
        Name of the argument.

    Raises
    ------
    InputError
        If the indexes differ.
    """
    module, dims = package_of(given), getattr(given, "dims", ())
    own: Any = None
    if module == "pandas" and hasattr(given, "iloc"):
        own = given.index
    elif module == "xarray" and isinstance(dims, tuple) and len(dims) == 1:
        own = given.indexes.get(dims[0])
    if own is None or len(own) != len(index) or own.equals(index):
        return  # other lengths have their own error
    import pandas as pd

    numbered = isinstance(own, pd.RangeIndex) and isinstance(index, pd.RangeIndex)
    if numbered and getattr(own, "step", 1) == getattr(index, "step", 1):
        return
    raise InputError(
        f"{argument} has another index than the rows: give {argument}.reindex(x.index), or "
        f"{argument}.to_numpy(), which is matched by position.",
        parameter=argument,
    )


def require_same_index(given: Any, x: Any, argument: str) -> None:
    """Raise if weights or labels have another index than rows in memory.

    Parameters
    ----------
    given, argument
        Arguments of :func:`require_index`.
    x
        Rows; other rows than a frame or Series of pandas, or a DataArray, have no index.

    Raises
    ------
    InputError
        If both have an index, and these differ.

    Examples
    --------
    >>> import pandas as pd
    >>> require_same_index([2.0, 1.0], pd.DataFrame({"age": [30.0, 40.0]}), "weights")
    """
    module, dims = package_of(x), getattr(x, "dims", ())
    if module == "pandas" and hasattr(x, "iloc"):
        require_index(given, x.index, argument)
    elif module == "xarray" and isinstance(dims, tuple) and dims and dims[0] in x.indexes:
        require_index(given, x.indexes[dims[0]], argument)


def distinct_names(value: Any, n_features: int) -> tuple[str, ...]:
    """Validate ``feature_names``: one for each feature, all different."""
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()
    if not all(isinstance(name, str) for name in names) or len(set(names)) != n_features:
        raise InputError(f"feature_names={value!r}: give {n_features} different names.")
    if len(names) != n_features:
        raise InputError(f"feature_names={value!r}: give {n_features} names, each once.")
    return names


def warn_of_coarse_numbers(
    rows: NDArray[np.float64],
    deviations: NDArray[np.float64],
    label: str,
    feature_names: tuple[str, ...] | None,
) -> None:
    """Warn of values so far from zero that float64 rounds them by much of their variation.

    Parameters
    ----------
    rows
        Finite rows, shape (n, n_features).
    deviations
        Their standard deviations, shape (n_features,).
    label
        Name of the data, for the message.
    feature_names
        Names of the features, for the message.
    """
    steps = np.spacing(np.abs(rows).max(axis=0))
    coarse = np.flatnonzero((np.ptp(rows, axis=0) > 0) & (steps > _COARSE * deviations))
    if len(coarse):
        first = int(coarse[0])
        warn_user(
            f"{label} has values near {rows[0, first]:.6g} in "
            f"{feature_title(first, feature_names)}, where numbers of float64 are "
            f"{steps[first]:g} apart, with a standard deviation of {deviations[first]:.3g}: they "
            "are rounded. Subtract a constant in the type of the data first."
        )
