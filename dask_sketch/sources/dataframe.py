"""Data frames: which columns are features, and their values as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.sources.group_labels import Groups, Labelled, labels_of_series
from dask_sketch.sources.samples import Samples, array_samples
from dask_sketch.validation.tables import common_dtype, names_of, to_numpy

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
    **known: Any,
) -> Samples:
    """Samples from a Dask DataFrame, whose partitions may be of unknown length.

    Parameters
    ----------
    frame
        Dask DataFrame.
    label
        Name for messages.
    weight
        Column of weights.
    weights
        Weights that are not a column.
    group
        Column of labels of groups.
    groups
        Labels that are not a column.
    columns
        Columns that are features; all but the weights and the labels by default.
    known
        Further fields of :class:`Samples`.
    """
    dtypes = frame.dtypes
    names = feature_columns(columns, dtypes, weight, label, group)
    chosen = [*names, *([weight] if weight else [])]
    dtype = common_dtype([dtypes[name] for name in chosen])
    meta = np.empty((0, len(chosen)), dtype=dtype)
    if group is None:
        blocks = frame[chosen].map_partitions(to_numpy, dtype, meta=meta)
    else:
        # by one function, as two that take columns of one frame would each have it read
        needed = list(dict.fromkeys([*chosen, group]))
        blocks = frame[needed].map_partitions(_to_labelled, chosen, dtype, group, meta=meta)
        groups = Groups(group, in_blocks=True)
    return array_samples(
        blocks,
        label,
        weights,
        groups,
        feature_names=names_of(names),
        weight_column=weight is not None,
        **known,
    )


def _to_labelled(
    frame: pd.DataFrame, columns: list[str], dtype: np.dtype[Any], group: str
) -> Labelled:
    return Labelled(to_numpy(frame[columns], dtype), labels_of_series(frame[group]))


def feature_columns(
    columns: Sequence[str] | None,
    dtypes: pd.Series[Any],
    weight: str | None,
    label: str,
    group: str | None = None,
) -> tuple[str, ...]:
    """Columns that are features, all numeric, of a frame with these dtypes.

    Raises
    ------
    InputError
        If a column is missing or not numeric, or none is left.
    """
    available = list(dtypes.index)
    if columns is not None:
        missing = [name for name in columns if name not in available]
        if missing:
            raise InputError(f"columns {missing} are not in {label}, which has {available}.")
        chosen = list(columns)
    else:
        chosen = [name for name in available if name not in (weight, group)]
    if not chosen:
        raise InputError(f"{label} has no columns to use as features.")
    names = [*chosen, *([weight] if weight else [])]
    every = [*names, *([group] if group else [])]
    twice = sorted({str(name) for name in every if available.count(name) > 1})
    if twice:
        raise InputError(
            f"{label} has several columns of the name {', '.join(twice)}; rename them."
        )
    import pandas.api.types as kinds

    wrong = [
        f"{name} ({dtypes[name]})"
        for name in names
        if not kinds.is_numeric_dtype(dtypes[name]) or kinds.is_complex_dtype(dtypes[name])
    ]
    if wrong:
        raise InputError(
            f"columns of {label} are not numeric: {', '.join(wrong)}. Name the numeric ones with "
            "columns=[...]."
        )
    return tuple(chosen)
