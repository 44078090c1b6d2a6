"""Levels of categorical columns: validation, codes of rows, and frames of codes."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.validation.tables import feature_title, shorten

if TYPE_CHECKING:
    import pandas as pd

Level = str | int | float | bool
Levels = tuple[Level, ...]
# levels of one column, at most: phases of codes are then accurate to 2e-4 in float32
MAX_LEVELS = 1024
FROM_DTYPES = "dtype"  # value of the argument ``categories``
_BLOCK = 65_536  # rows whose codes are checked together
_UNKNOWN = "__UNKNOWN_CATEGORIES__"  # category of a Dask column whose categories are not known


@dataclass(frozen=True)
class Categories:
    """Levels of the categorical columns among the features of rows.

    Rows in memory hold *codes*, the positions of the levels, ``0`` to ``L - 1``, in these columns;
    frames hold the levels themselves.

    Parameters
    ----------
    levels
        For each feature the levels in order, text, numbers or booleans; None for a numeric one.
    names
        Names of the features, if they have names; they have no effect on equality.

    Raises
    ------
    InputError
        If a column has fewer than 2 or more than 1024 levels, equal ones, or levels of another
        type; or if no column has levels.

    Examples
    --------
    >>> found = Categories((None, ("red", "green", "blue")))
    >>> found.columns, found.numeric, found.sizes
    (array([1]), array([0]), (3,))
    """

    levels: tuple[Levels | None, ...]
    names: tuple[str, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        checked = tuple(
            None if levels is None else _checked_levels(feature_title(number, self.names), levels)
            for number, levels in enumerate(self.levels)
        )
        if not any(checked):
            raise InputError("categories has no column with levels: leave it out.")
        object.__setattr__(self, "levels", checked)

    @property
    def n_features(self) -> int:
        """Number of features, numeric ones included."""
        return len(self.levels)

    @cached_property
    def columns(self) -> NDArray[np.intp]:
        """Numbers of the categorical features, ascending."""
        return np.flatnonzero([levels is not None for levels in self.levels])

    @cached_property
    def numeric(self) -> NDArray[np.intp]:
        """Numbers of the other features, ascending."""
        return np.flatnonzero([levels is None for levels in self.levels])

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of levels of each categorical feature."""
        return tuple(len(levels) for levels in self.levels if levels is not None)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Place of each categorical feature in an array of the probabilities of all levels."""
        ends = np.cumsum(self.sizes).tolist()
        return tuple(slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True))

    @property
    def n_levels(self) -> int:
        """Number of levels of all columns together."""
        return sum(self.sizes)

    def of_columns(self, columns: Sequence[Hashable]) -> dict[Hashable, Levels]:
        """Levels of the columns of a frame: by name, or by position without names."""
        mine = list(columns if self.names is None else self.names)
        by_name = zip(mine, self.levels, strict=False)
        levels = {
            name: column_levels for name, column_levels in by_name if column_levels is not None
        }
        if self.names is None:
            return levels
        return {name: levels[str(name)] for name in columns if str(name) in levels}

    def as_dict(self) -> dict[str, list[Level]]:
        """Levels by the name of the feature, or by its number as text."""
        names = self.names or [str(k) for k in range(self.n_features)]
        return {name: list(levels) for name, levels in self.of_columns(names).items()}  # type: ignore[misc]

    def require_codes(self, rows: Any, label: str) -> None:
        """Raise ChunkError unless the categorical columns hold codes, or are missing.

        Parameters
        ----------
        rows
            Rows, shape (n, n_features), in the memory of the host or of a GPU.
        label
            Name of the rows for messages.
        """
        for start in range(0, len(rows), _BLOCK):
            for column, size in zip(self.columns, self.sizes, strict=True):
                values = rows[start : start + _BLOCK, column]
                wrong = np.isfinite(values)  # others are left to nan_policy
                wrong &= (values < 0) | (values >= size) | (values != np.rint(values))
                if not wrong.any():
                    continue
                number = int(wrong.argmax())
                raise ChunkError(
                    f"{label}: row {start + number} of this chunk has {float(values[number]):g} "
                    f"in {feature_title(int(column), self.names)}, a column of {size} levels: give "
                    f"their codes, 0 to {size - 1}, or a frame of the levels.",
                    parameter="categories",
                )

    def frame(self, rows: NDArray[np.float64]) -> pd.DataFrame:
        """Frame of rows of codes: categorical columns, booleans, and float64.

        Parameters
        ----------
        rows
            Rows of codes, shape (n, n_features), without missing values in categorical columns.
        """
        import pandas as pd

        out: dict[Hashable, Any] = {}
        for k, levels in enumerate(self.levels):
            name = k if self.names is None else self.names[k]
            if levels is None:
                out[name] = rows[:, k]
            elif set(map(type, levels)) == {bool}:
                out[name] = np.array(levels)[rows[:, k].astype(np.intp)]
            else:
                codes = rows[:, k].astype(np.intp)
                index = pd.Index(list(levels))
                out[name] = pd.Categorical.from_codes(codes, categories=index)
        return pd.DataFrame(out)


def _checked_levels(title: str, given: Any) -> Levels:
    """Levels of one column as Python objects."""
    try:
        values = tuple(level.item() if isinstance(level, np.generic) else level for level in given)
    except TypeError as error:
        raise InputError(
            f"categories of {title} = {given!r}: give a sequence of levels."
        ) from error
    if isinstance(given, str) or not all(isinstance(level, (str, int, float)) for level in values):
        raise InputError(
            f"categories of {title} are {str(given)[:80]}: give a list of texts, numbers "
            "or booleans.",
            parameter="categories",
        )
    if not 2 <= len(values) <= MAX_LEVELS:
        raise InputError(
            f"categories of {title}: {len(values)} levels: give 2 to {MAX_LEVELS:,}. "
            "Leave the column out, or join rare levels.",
            parameter="categories",
        )
    if len(set(values)) < len(values) or any(level != level for level in values):
        raise InputError(
            f"categories of {title} are not distinct: {str(values)[:80]}. Missing values "
            "are not levels: leave NaN out.",
            parameter="categories",
        )
    return values


def stated_categories(
    given: Any, n_features: int, names: Sequence[Hashable] | None
) -> Categories | None:
    """Validate levels that are stated in full.

    Parameters
    ----------
    given
        :class:`Categories`; levels by the name or number of a column; or for each feature a
        sequence of levels or None. None for no categorical columns.
    n_features
        Number of features.
    names
        Names of the features, if they have names.

    Raises
    ------
    InputError
        If a column is unknown, or levels are invalid.

    Examples
    --------
    >>> stated_categories({"color": ["red", "blue"]}, 2, ("size", "color")).levels
    (None, ('red', 'blue'))
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        levels: list[Any] = [None] * n_features
        for key, column_levels in given.items():
            levels[_position(key, n_features, names)] = column_levels
        given = Categories(tuple(levels), _texts(names))
    elif not isinstance(given, Categories):
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise InputError(f"categories={given!r}: give a dictionary of levels by column.")
        given = Categories(tuple(given), _texts(names))
    if given.n_features != n_features:
        raise InputError(
            f"categories is for {given.n_features} features: give those of {n_features}.",
            parameter="categories",
        )
    return replace(given, names=_texts(names))


def _texts(names: Sequence[Hashable] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(map(str, names))


def _position(key: Hashable, n_features: int, names: Sequence[Hashable] | None) -> int:
    if names is not None and key in names:
        return list(names).index(key)
    counted = isinstance(key, (int, np.integer)) and not isinstance(key, bool)
    if names is None and counted and 0 <= int(key) < n_features:  # type: ignore[call-overload]
        return int(key)  # type: ignore[call-overload]
    known = f"numbers from 0 to {n_features - 1}" if names is None else f"columns {list(names)}"
    raise InputError(f"categories has the column {key!r}: choose among the {known}.")


def levels_of_columns(
    given: Any, columns: Sequence[Any], dtypes: pd.Series[Any], label: str
) -> dict[Hashable, Levels]:
    """Levels of the categorical columns of a frame, stated or taken from the types.

    Parameters
    ----------
    given
        Argument ``categories`` of :func:`dask_sketch.open_samples`.
    columns
        Columns that are features.
    dtypes
        Types of the columns of the frame.
    label
        Name of the frame for messages.

    Returns
    -------
    levels
        Levels by column, empty if all columns are numeric.

    Raises
    ------
    InputError
        If a column has neither levels nor a type with known categories.
    """
    import pandas as pd

    if given is None:
        return {}
    if isinstance(given, Categories):
        return given.of_columns(columns)
    is_text = isinstance(given, str)
    if given != FROM_DTYPES if is_text else not isinstance(given, Iterable):
        raise InputError(
            f"categories={given!r}: give 'dtype', a list of columns, or their levels.",
            parameter="categories",
        )
    if is_text:
        chosen = [name for name in columns if isinstance(dtypes[name], pd.CategoricalDtype)]
        given = dict.fromkeys(chosen)
    elif not isinstance(given, Mapping):
        given = dict.fromkeys(given)
    out: dict[Hashable, Levels] = {}
    for key, levels in given.items():
        _position(key, len(columns), columns)
        column_levels = _levels_of_type(dtypes[key], key, label) if levels is None else levels
        out[key] = _checked_levels(f"column {key!r} of {label}", column_levels)
    return out


def _levels_of_type(dtype: Any, name: Hashable, label: str) -> Any:
    """Levels that the type of a column states."""
    import pandas as pd

    if isinstance(dtype, pd.CategoricalDtype):
        levels = list(dtype.categories)
        if levels and _UNKNOWN not in levels:
            return levels
    elif pd.api.types.is_bool_dtype(dtype):
        return [False, True]
    raise InputError(
        f"categories: column {name!r} of {label} has the type {dtype}, which does not state its "
        f"levels. Give them in order, as in categories={{{name!r}: ['a', 'b', 'c']}}, or convert "
        "the column to a pandas.CategoricalDtype with known categories.",
        parameter="categories",
    )


def with_codes(frame: pd.DataFrame, levels: Mapping[Any, Levels]) -> pd.DataFrame:
    """Replace the levels in a frame by codes, float32 with NaN for missing values.

    Parameters
    ----------
    frame
        Frame in memory.
    levels
        Levels by column; columns that the frame does not have are left out.

    Raises
    ------
    ChunkError
        If a value is none of the levels; the message names the column and the value.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"color": ["red", None, "blue"]})
    >>> with_codes(frame, {"color": ("red", "blue")})["color"].tolist()
    [0.0, nan, 1.0]
    """
    import pandas as pd

    out = {}
    for name in frame.columns:
        column = frame[name]
        if name not in levels:
            out[name] = column
            continue
        if isinstance(column.dtype, pd.CategoricalDtype):
            # one look-up for each category, not for each row
            table = _codes_of(pd.Series(column.cat.categories), levels[name])
            stored_codes = column.cat.codes.to_numpy()
            codes = np.where(stored_codes >= 0, np.append(table, -1)[stored_codes], -1)
        else:
            codes = _codes_of(column, levels[name])
        missing = column.isna().to_numpy()
        unknown = (codes < 0) & ~missing
        if unknown.any():
            row = int(unknown.argmax())
            raise ChunkError(
                f"column {str(name)!r} has the value {column.iloc[row]!r}, which is none of its "
                f"{len(levels[name])} levels {shorten(json.dumps(levels[name]))}. State it in "
                "categories, or give it as missing.",
                parameter="categories",
            )
        values = codes.astype(np.float32)
        values[missing] = np.nan
        out[name] = pd.Series(values, index=frame.index)
    return pd.DataFrame(out, index=frame.index)


def _codes_of(column: pd.Series[Any], levels: Levels) -> NDArray[np.intp]:
    """Positions of values among the levels, -1 for others."""
    import pandas as pd

    values = column.astype(object).to_numpy()
    known, cells = (pd.Index(objects, dtype=object) for objects in (list(levels), values))
    codes = np.asarray(known.get_indexer(cells), dtype=np.intp)
    if pd.api.types.is_float_dtype(column.dtype):  # integers that may be rounded to a level
        codes[(column.abs() >= 2**53).to_numpy(dtype=bool, na_value=False)] = -1
    return codes
