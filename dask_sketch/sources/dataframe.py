"""Data frames of pandas and Dask as samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.sources.array import array_samples, memory_samples
from dask_sketch.sources.group_labels import Groups, Labelled, labels_of_series
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.categories import Categories, Levels, levels_of_columns, with_codes
from dask_sketch.validation.tables import (
    common_dtype,
    first_few,
    is_real_type,
    names_of,
    require_columns,
    require_numeric,
    to_numpy,
)

if TYPE_CHECKING:
    import pandas as pd


def frame_samples(
    frame: Any,
    label: str,
    *,
    weight: str | None = None,
    weights: Any = None,
    group: str | None = None,
    groups: Any = None,
    columns: Sequence[str] | None = None,
    categories: Any = None,
    **known: Any,
) -> Samples:
    """Make samples of a Dask DataFrame, whose partitions may have unknown lengths.

    Parameters
    ----------
    frame
        Dask DataFrame.
    label
        Name of the samples for messages.
    weight
        Name of the column of weights.
    weights
        Weights that are not a column.
    group
        Name of the column of labels.
    groups
        Labels that are not a column.
    columns
        Columns that are features; all but the weights and the labels by default.
    categories
        Argument of :func:`dask_sketch.open_samples`.
    known
        Further attributes of :class:`Samples`.

    Raises
    ------
    InputError
        If a column is missing or neither numeric nor categorical, or weights or labels do not fit.
    """
    dtypes = frame.dtypes
    names, levels = feature_columns(columns, dtypes, weight, label, group, categories)
    chosen = [*names, *([weight] if weight else [])]
    dtype = _row_dtype(dtypes, chosen, levels)
    meta = np.empty((0, len(chosen)), dtype=dtype)
    if group is None:
        blocks = frame[chosen].map_partitions(
            _rows_of_partition, chosen, dtype, levels, label, meta=meta
        )
    else:
        # one function for both: two that take columns of one frame would each read it
        needed = list(dict.fromkeys([*chosen, group]))
        blocks = frame[needed].map_partitions(
            _labelled_partition, chosen, dtype, levels, label, group, dtypes[group], meta=meta
        )
        groups = Groups(group, in_blocks=True)
    return array_samples(
        blocks,
        label,
        weights,
        groups,
        feature_names=names_of(names),
        weight_column=weight is not None,
        categories=_categories_of(names, levels),
        **known,
    )


def pandas_samples(
    x: pd.DataFrame,
    *,
    label: str = "the DataFrame",
    weights: Any = None,
    groups: Any = None,
    columns: Sequence[str] | None = None,
    chunk_size: str | int | None = None,
    categories: Any = None,
) -> Samples:
    """Make samples of a pandas DataFrame.

    Parameters
    ----------
    x
        Data frame.
    label
        Name of the samples for messages.
    weights, groups
        Names of the columns of weights and of labels, or arrays.
    columns
        Columns that are features; all but the weights and the labels by default.
    chunk_size
        Target size of one task in bytes.
    categories
        Argument of :func:`dask_sketch.open_samples`.

    Raises
    ------
    InputError
        If a column is missing or neither numeric nor categorical, or weights or labels do not fit.
    """
    weight, weights = column_or_values(weights, x.columns, "weights")
    group, groups = column_or_values(groups, x.columns, "groups")
    names, levels = feature_columns(columns, x.dtypes, weight, label, group, categories)
    values = _to_rows(x[list(names)], _row_dtype(x.dtypes, names, levels), levels)
    if weight is not None:
        weights = to_numpy(x[[weight]], common_dtype([x.dtypes[weight]]))[:, 0]
    samples = memory_samples(
        values,
        label,
        weights,
        groups if group is None else x[group],
        chunk_size,
        feature_names=names_of(names),
    )
    samples = replace(samples, categories=_categories_of(names, levels))
    if group is None or samples.groups is None:
        return samples
    return replace(samples, groups=replace(samples.groups, dim=group))


def column_or_values(given: Any, available: Any, argument: str) -> tuple[str | None, Any]:
    """Return an argument as the name of a column, or as values; the other one is None."""
    if not isinstance(given, str):
        return None, given
    if given not in available:
        raise InputError(f"{argument}={given!r}: choose one of the columns {list(available)}.")
    return given, None


def require_divisions(given: Any, divisions: Sequence[Any], argument: str) -> None:
    """Raise if a Dask Series has other divisions than the frame; partitions are matched in order.

    Parameters
    ----------
    given
        Weights or labels; other values than a Series of Dask are not checked.
    divisions
        Divisions of the frame.
    argument
        Name of the argument.

    Raises
    ------
    InputError
        If both have known divisions that differ.
    """
    actual = getattr(given, "divisions", None)
    if actual is None or None in actual or None in divisions or tuple(actual) == tuple(divisions):
        return
    raise InputError(
        f"{argument} has the divisions {str(actual)[:80]}, and the DataFrame "
        f"{str(tuple(divisions))[:80]}: give a Series of the same partitions, as by "
        f"{argument}.repartition(divisions=x.divisions).",
        parameter=argument,
    )


def _row_dtype(dtypes: Any, columns: Sequence[Any], levels: Mapping[Any, Levels]) -> np.dtype[Any]:
    """Type of rows of numbers and codes."""
    codes = [np.dtype(np.float32)] if levels else []
    return common_dtype([*(dtypes[name] for name in columns if name not in levels), *codes])


def _categories_of(names: Sequence[Any], levels: Mapping[Any, Levels]) -> Categories | None:
    if not levels:
        return None
    return Categories(tuple(levels.get(name) for name in names), names_of(names))


def _to_rows(
    frame: pd.DataFrame, dtype: np.dtype[Any], levels: Mapping[Any, Levels]
) -> np.ndarray[Any, Any]:
    return to_numpy(with_codes(frame, levels) if levels else frame, dtype)


def _rows_of_partition(
    frame: pd.DataFrame,
    columns: list[Any],
    dtype: np.dtype[Any],
    levels: Mapping[Any, Levels],
    label: str,
) -> np.ndarray[Any, Any]:
    return _to_rows(_select_columns(frame, columns, label), dtype, levels)


def _labelled_partition(
    frame: pd.DataFrame,
    columns: list[Any],
    dtype: np.dtype[Any],
    levels: Mapping[Any, Levels],
    label: str,
    group: Any,
    announced: Any,
) -> Labelled:
    rows = _rows_of_partition(frame, columns, dtype, levels, label)
    labels = _select_columns(frame, [group], label)[group]
    return Labelled(rows, labels_of_series(labels, announced))


def _select_columns(frame: pd.DataFrame, columns: list[Any], label: str) -> pd.DataFrame:
    """Select columns of a partition by name: Dask does not check that it has those announced."""
    columns_of_frame = list(frame.columns)
    if columns_of_frame == columns:
        return frame
    wrong = [name for name in columns if columns_of_frame.count(name) != 1]
    if wrong:
        raise ChunkError(
            f"a partition of {label} has the columns {columns_of_frame[:6]}: {wrong[:6]} of "
            "the others are missing there, or not unique. Give all partitions columns of the same "
            "names."
        )
    return frame[columns]


def feature_columns(
    columns: Sequence[str] | None,
    dtypes: pd.Series[Any],
    weight: str | None,
    label: str,
    group: str | None = None,
    categories: Any = None,
) -> tuple[tuple[str, ...], dict[Any, Levels]]:
    """Find the columns that are features, all numeric or categorical.

    Parameters
    ----------
    columns
        Chosen columns; all but the weights and the labels if None.
    dtypes
        Types of the columns of the frame.
    weight, group
        Names of the columns of weights and of labels, or None.
    label
        Name of the frame for messages.
    categories
        Argument of :func:`dask_sketch.open_samples`.

    Returns
    -------
    names, levels
        Names of the columns, and the levels of those that are categorical.

    Raises
    ------
    InputError
        If a column is missing or neither numeric nor categorical, or none is left.
    """
    available = list(dtypes.index)
    if columns is not None:
        require_columns(columns, available, label)
        chosen = list(columns)
    else:
        chosen = [name for name in available if name not in (weight, group)]
    if not chosen:
        raise InputError(f"columns=None: {label} has no columns left as features. Give other data.")
    names = [*chosen, *([weight] if weight else [])]
    every = [*names, *([group] if group else [])]
    twice = sorted({str(name) for name in every if available.count(name) > 1})
    if twice:
        raise InputError(f"{label} has several columns named {', '.join(twice)}: rename them.")
    levels = levels_of_columns(categories, chosen, dtypes, label)
    numeric = first_few(repr(name) for name in chosen if is_real_type(dtypes[name]))
    remedy = (
        f"Choose numeric ones by columns=[{numeric or '...'}]; or state the levels of the others "
        "in design(x, categories={column: [...]}), and decode the sketch."
    )
    require_numeric([(name, dtypes[name]) for name in chosen if name not in levels], label, remedy)
    if weight is not None:
        require_numeric(
            [(weight, dtypes[weight])], label, "Give another column as weights.", "weights"
        )
    return tuple(chosen), levels
