"""Labels of groups: one for each row, aligned with the samples, and made whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from dask.base import is_dask_collection, tokenize
from numpy.typing import NDArray

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.validation.arrays import require_unmasked
from dask_sketch.validation.device import on_device, on_host
from dask_sketch.validation.labels import MISSING, codes_of

if TYPE_CHECKING:
    import dask.bag as db

_SMALL_TABLE = 1024  # bytes; a larger one is sent as a task of its own, once for a worker


@dataclass(frozen=True)
class Groups:
    """Labels of groups, one for each row of some samples.

    Attributes
    ----------
    dim
        Their name: that of the column, variable, coordinate or field.
    labels
        Dask array like that of the weights, with axes of length 1 where the labels do not vary,
        and chunks of length 1 where they do not within a chunk; or a bag; or none, if they are
        where the rows are.
    names
        What the labels are numbers of, if they are: sorted, each once.
    n_groups
        How many different labels there are, at most; ``None`` where only the pass can tell.
    in_blocks
        Whether every chunk of the samples is a :class:`Labelled`.
    field
        Name of their field, in a bag of dictionaries.
    """

    dim: str = "group"
    labels: da.Array | db.Bag | None = None
    names: NDArray[Any] | None = None
    n_groups: int | None = None
    in_blocks: bool = False
    field: str | None = None


class Labelled(NamedTuple):
    """Rows, and the label of each: a chunk of a frame, whose labels may be text."""

    rows: NDArray[Any]
    labels: Any


def aligned_groups(
    groups: Any,
    blocks: da.Array,
    label: str,
    *,
    names: Sequence[Any] | None = None,
    axes: tuple[int, ...] | None = None,
    dim: str = "group",
) -> Groups:
    """Labels in the chunks of ``blocks``.

    Parameters
    ----------
    groups
        One label for each row: array-like, pandas Series, Dask array or Series, DataArray.
    blocks
        Samples, shape (..., n_features). They stay in their chunks, it is labels that are
        rechunked.
    label
        Name of the samples for messages.
    names
        What the labels are numbers of, where they are; a name may occur more than once.
    axes
        Leading axes of the samples that the labels have; all of them by default. The others are of
        length 1 in the result.
    dim
        Name of the labels.

    Returns
    -------
    groups
        Text in memory is numbered here, once. Other labels are as they are.

    Raises
    ------
    InputError
        If lengths or chunks do not fit, or the type of labels in memory does not do.

    Examples
    --------
    >>> groups = aligned_groups(["b", "a", "b"], da.zeros((3, 2), chunks=(2, 2)), "x")
    >>> groups.labels.compute().ravel(), groups.names
    (array([1, 0, 1], dtype=int32), array(['a', 'b'], dtype='<U1'))
    """
    if isinstance(groups, str):
        raise InputError(
            f"groups={groups!r} is a name, but {label} has no names of columns: give one label for "
            "each row."
        )
    every = range(blocks.ndim - 1)
    axes = tuple(every) if axes is None else axes
    rows, along = (tuple(sizes[axis] for axis in axes) for sizes in (blocks.shape, blocks.chunks))
    others = (*(axis for axis in every if axis not in axes), blocks.ndim - 1)
    given = groups.data if hasattr(groups, "coords") else groups
    if not is_dask_collection(given):
        codes, different = _in_memory(given, rows, label, names)
        n_groups = count_labels(codes) if different is None else len(different)
        column = np.expand_dims(codes, others)
        chunks = tuple(along[axes.index(i)] if i in axes else 1 for i in (*every, -1))
        lazy = da.from_array(column, chunks=chunks, inline_array=True, name=False)
        return Groups(dim, lazy, different, n_groups)
    if hasattr(given, "to_dask_array"):  # a Series
        given = given.map_partitions(labels_of_series, meta=np.empty(0, dtype=object))
    if not isinstance(given, da.Array):
        raise InputError(
            f"groups of type {type(groups).__name__} cannot be matched to the rows of {label}; "
            "give an array, a Series, or the name of a column."
        )
    known = not np.isnan([*map(float, given.shape), *map(float, rows)]).any()
    if given.ndim != len(rows) or (known and given.shape != rows):
        raise _misaligned(given.shape, rows, label)
    if known:
        given = given.rechunk(along)  # of labels alone, and only where chunks differ
    elif given.numblocks != tuple(map(len, along)):
        raise InputError(
            f"groups has {given.numblocks} chunks, {label} has {tuple(map(len, along))}; with "
            "chunks of unknown length they must correspond one to one."
        )
    different = None
    if names is not None:
        table, different = number_labels(names, f"the names of the groups of {label}")
        given = looked_up(given, sent_table(table), f"groups of {label}")
    # blockwise, where an index by None is not: reading the labels fuses with reading the rows
    column = da.map_blocks(
        _expanded,
        given,
        axes=others,
        new_axis=others,
        chunks=tuple(given.chunks[axes.index(i)] if i in axes else (1,) for i in (*every, -1)),
        dtype=given.dtype,
        meta=np.empty((0,) * blocks.ndim, dtype=given.dtype),
    )
    return Groups(dim, column, different, None if different is None else len(different))


def _in_memory(
    given: Any, rows: tuple[int, ...], label: str, names: Sequence[Any] | None
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Labels or their numbers, and the labels if they are numbers."""
    if np.isnan([*map(float, rows)]).any():
        raise InputError(
            f"groups is in memory, but {label} has chunks of unknown length, so its rows cannot be "
            "matched. Give groups as a Dask array or as the name of a column."
        )
    require_unmasked(given, "groups", f"groups of {label}")
    values = on_host(given) if on_device(given) else given
    shape = np.shape(values)
    if shape != rows:
        raise _misaligned(shape, rows, label)
    if names is not None:
        table, different = number_labels(names, f"the names of the groups of {label}")
        return _look_up(np.asarray(values), table, f"groups of {label}"), different
    plain = np.asarray(values) if isinstance(getattr(values, "dtype", None), np.dtype) else None
    if plain is not None and plain.dtype.kind not in "OUST":
        return plain, None
    # text is numbered once, and tasks get four bytes for each label
    different, codes = codes_of(_as_objects(values), int(np.prod(shape)), label)
    if (codes == MISSING).any():  # tasks say which row it is, or leave such rows out
        return np.asarray(values, dtype=object), None
    return codes.astype(np.int32).reshape(shape), different


def _misaligned(found: tuple[Any, ...], rows: tuple[Any, ...], label: str) -> InputError:
    return InputError(
        f"groups has shape {found}, {label} has {rows} samples; give one label for each row."
    )


def _expanded(values: Any, axes: tuple[int, ...]) -> NDArray[Any]:
    require_unmasked(values, "groups", "groups")  # before conversion, which drops the mask
    return np.expand_dims(np.asarray(values), axes)


def sent_table(table: NDArray[Any]) -> Any:
    """A table as it is put into tasks: a large one is a task of its own."""
    if table.nbytes <= _SMALL_TABLE:
        return table
    return dask.delayed(table, name=f"labels-{tokenize(table)}", traverse=False)


def looked_up(codes: da.Array, table: Any, label: str) -> da.Array:
    """Lazy entries of a table, by their numbers.

    Parameters
    ----------
    codes
        Whole numbers in ``range(len(table))``, of any shape.
    table
        From :func:`sent_table`.
    label
        Name of the labels for messages.

    Examples
    --------
    >>> codes = da.from_array(np.array([0, 2, 1]), chunks=2)
    >>> looked_up(codes, np.array([1, 0, 1], dtype=np.int32), "language").compute()
    array([1, 1, 0], dtype=int32)
    """
    return da.map_blocks(
        _look_up,
        codes,
        table=table,
        label=label,
        dtype=np.int32,
        meta=np.empty((0,) * codes.ndim, dtype=np.int32),
    )


def _look_up(codes: NDArray[Any], table: NDArray[Any], label: str) -> NDArray[Any]:
    if codes.size and (codes.min() < 0 or codes.max() >= len(table)):
        wrong = codes.min() if codes.min() < 0 else codes.max()
        raise ChunkError(
            f"{label}: {wrong} is not the number of a name, there are {len(table):,}. The labels "
            "of these rows were never written, or are of another store."
        )
    return table[codes]


def labels_of_series(series: Any) -> Any:
    """Labels of one partition: NumPy's where that is what a Series holds, else pandas' own array.

    What pandas knows of repeated text is of use when the labels are numbered.
    """
    return series.to_numpy() if isinstance(series.dtype, np.dtype) else series.array


def number_labels(values: Any, label: str) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Numbers of labels in sorted order, and the different labels.

    Parameters
    ----------
    values
        Labels, shape (n,).
    label
        Name of the labels for messages.

    Raises
    ------
    InputError
        If a label is missing, or their type does not do for labels.

    Examples
    --------
    >>> number_labels(["b", "a", "b"], "names")
    (array([1, 0, 1], dtype=int32), array(['a', 'b'], dtype='<U1'))
    """
    names, codes = codes_of(_as_objects(values), np.size(values), label)
    missing = codes == MISSING
    if missing.any():
        raise InputError(f"{label}: the one of number {int(missing.argmax())} is missing.")
    return codes.astype(np.int32), names


def _as_objects(values: Any) -> Any:
    """Text as Python's: pandas numbers it ten times as fast as NumPy sorts it.

    Lists too: NumPy would make text of numbers among text.
    """
    if isinstance(values, (list, tuple)):
        return np.array(values, dtype=object)
    return values.astype(object) if getattr(values, "dtype", np.dtype("O")).kind in "UT" else values


def count_labels(values: NDArray[Any]) -> int:
    """How many different ones there are among labels in memory.

    Examples
    --------
    >>> count_labels(np.array([7, 3, 7])), count_labels(np.array([0.5, 2.5]))
    (2, 2)
    """
    import pandas as pd

    if values.dtype.kind in "iu" and values.size:
        low, high = int(values.min()), int(values.max())
        if high - low <= 4 * values.size:  # a mark for each takes a tenth of the time of a table
            seen = np.zeros(high - low + 1, dtype=bool)
            seen[values.reshape(-1) - low] = True
            return int(seen.sum())
    return len(pd.unique(values.reshape(-1)))
