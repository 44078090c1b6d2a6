"""Labels of groups, one for each row: aligned with the samples and encoded as integers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import pandas as pd
from dask.base import is_dask_collection, tokenize
from numpy.typing import NDArray

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.validation.arrays import require_unmasked
from dask_sketch.validation.device import on_device, on_host
from dask_sketch.validation.labels import MISSING, codes_of

if TYPE_CHECKING:
    import dask.bag as db

# Attribute of an array of integers: name of the dimension whose entries they index. The climate and
# forecast (CF) conventions define it, section H.2.5 (indexed ragged arrays).
INDEX_OF = "instance_dimension"
NAMES = "names"  # attribute of an array of integers: the names that they index, as in speech stores
_SMALL_TABLE = 1024  # bytes; a larger table is a task of its own, sent once to each worker


@dataclass(frozen=True)
class Groups:
    """Labels of the groups of some samples, one for each row.

    Attributes
    ----------
    dim
        Name of the labels: the column, variable, coordinate or field.
    labels
        Dask array of as many axes as the samples, the last of length 1: of length 1 also along
        axes with equal labels, and in chunks of length 1 where each chunk of the samples has one
        label. Or a bag; or None if the chunks of the samples contain the labels.
    names
        Sorted, distinct names if the labels are indices into them; else None.
    n_groups
        Largest possible number of groups; None if it is not known without reading.
    in_blocks
        Whether every chunk of the samples is a :class:`Labelled`.
    field
        Name of the field of the labels, in a bag of dictionaries.
    """

    dim: str = "group"
    labels: da.Array | db.Bag | None = None
    names: NDArray[Any] | None = None
    n_groups: int | None = None
    in_blocks: bool = False
    field: str | None = None


class Labelled(NamedTuple):
    """Chunk of a data frame: rows, and the label of each row, which may be text."""

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
    """Align labels with the chunks of samples.

    Parameters
    ----------
    groups
        One label for each row: array-like, pandas Series, Dask array or Series, or DataArray.
    blocks
        Samples, shape (..., n_features). Labels are rechunked, samples are not.
    label
        Name of the samples for messages.
    names
        Names that the labels index, if they do; a name may occur more than once.
    axes
        Leading axes of the samples that the labels have, all by default; the others have length 1
        in the result.
    dim
        Name of the labels.

    Returns
    -------
    groups
        Labels in the chunks of the samples. Text in memory is encoded; other labels are unchanged.

    Raises
    ------
    InputError
        If lengths or chunks do not fit, or labels in memory have an unsuitable type.

    Examples
    --------
    >>> groups = aligned_groups(["b", "a", "b"], da.zeros((3, 2), chunks=(2, 2)), "x")
    >>> groups.labels.compute().ravel(), groups.names
    (array([1, 0, 1], dtype=int32), array(['a', 'b'], dtype='<U1'))
    """
    if isinstance(groups, str):
        raise InputError(
            f"groups={groups!r} is a name, but {label} has no names of columns. Give one label for "
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
    given = _lazy_labels(given, rows, along, label)
    different = None
    if names is not None:
        table, different = number_labels(names, f"the names of the groups of {label}")
        given = looked_up(given, sent_table(table), f"groups of {label}")
    if any(blocks.numblocks[axis] > 1 for axis in others[:-1]):
        # one chunk of labels is for many of the samples: fused with each, its keys would be wrong
        meta = np.empty((0,) * given.ndim, dtype=given.dtype)
        plain = da.map_blocks(_expand, given, axes=(), dtype=given.dtype, meta=meta)
        column = plain[tuple(slice(None) if axis in axes else None for axis in (*every, -1))]
        return Groups(dim, column, different, None if different is None else len(different))
    # unlike an index by None, this is blockwise: reading labels fuses with reading rows
    column = da.map_blocks(
        _expand,
        given,
        axes=others,
        new_axis=others,
        chunks=tuple(given.chunks[axes.index(i)] if i in axes else (1,) for i in (*every, -1)),
        dtype=given.dtype,
        meta=np.empty((0,) * blocks.ndim, dtype=given.dtype),
    )
    return Groups(dim, column, different, None if different is None else len(different))


def _lazy_labels(given: Any, rows: tuple[int, ...], along: tuple[Any, ...], label: str) -> da.Array:
    """Dask array of lazy labels in the chunks ``along`` of the rows."""
    if hasattr(given, "to_dask_array"):  # a Series
        given = given.map_partitions(labels_of_series, given.dtype, meta=np.empty(0, dtype=object))
    if not isinstance(given, da.Array):
        raise InputError(
            f"groups of type {type(given).__name__} cannot be matched to the rows of {label}: "
            "give an array, a Series, or the name of a column.",
            parameter="groups",
        )
    known = not np.isnan([*map(float, given.shape), *map(float, rows)]).any()
    if given.ndim != len(rows) or (known and given.shape != rows):
        raise _misaligned(given.shape, rows, label)
    if known:
        return given.rechunk(along)  # labels only, and only if chunks differ
    if given.numblocks != tuple(map(len, along)):
        raise InputError(
            f"groups has {given.numblocks} chunks, {label} has {tuple(map(len, along))}: give "
            "labels in the same chunks, because these have unknown lengths.",
            parameter="groups",
        )
    return given


def _in_memory(
    given: Any, rows: tuple[int, ...], label: str, names: Sequence[Any] | None
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Encode labels in memory, and return their names; None for labels that are unchanged."""
    if np.isnan([*map(float, rows)]).any():
        raise InputError(
            f"groups is in memory, but {label} has chunks of unknown length, so rows cannot be "
            "matched. Give groups as a Dask array or as the name of a column.",
            parameter="groups",
        )
    require_unmasked(given, "groups", f"groups of {label}")
    values = on_host(given) if on_device(given) else _without_foreign_type(given)
    shape = np.shape(values)
    if shape != rows:
        raise _misaligned(shape, rows, label)
    if names is not None:
        table, different = number_labels(names, f"the names of the groups of {label}")
        return _look_up(np.asarray(values), table, f"groups of {label}"), different
    plain = np.asarray(values) if isinstance(getattr(values, "dtype", None), np.dtype) else None
    if plain is not None and plain.dtype.kind not in "OUST":
        return plain, None
    # text is encoded once, so that tasks receive four bytes for each label
    different, codes = codes_of(_as_objects(values), int(np.prod(shape)), label)
    if (codes == MISSING).any():  # tasks name the row, or leave it out
        return np.asarray(values, dtype=object), None
    return codes.astype(np.int32).reshape(shape), different


def _without_foreign_type(values: Any) -> Any:
    """Convert arrays of other packages, such as tensors, whose types are not those of NumPy."""
    kind = getattr(values, "dtype", None)
    is_known = kind is None or isinstance(kind, (np.dtype, pd.api.extensions.ExtensionDtype))
    return values if is_known else np.asarray(values)


def _misaligned(shape: tuple[Any, ...], rows: tuple[Any, ...], label: str) -> InputError:
    return InputError(
        f"groups has shape={shape}: give one label for each of the {rows} samples of {label}.",
        parameter="groups",
    )


def _expand(values: Any, axes: tuple[int, ...]) -> NDArray[Any]:
    require_unmasked(values, "groups", "groups")  # before the conversion, which drops the mask
    masked = not isinstance(values, np.ndarray) and pd.isna(values).any()
    # pandas would make real numbers of integers beside missing ones
    return np.expand_dims(np.asarray(values, dtype=object if masked else None), axes)


def sent_table(table: NDArray[Any]) -> Any:
    """Prepare a table for a graph: a large one becomes a task of its own.

    Parameters
    ----------
    table
        Array that tasks index.
    """
    if table.nbytes <= _SMALL_TABLE:
        return table
    return dask.delayed(table, name=f"labels-{tokenize(table)}", traverse=False)


def looked_up(codes: da.Array, table: Any, label: str) -> da.Array:
    """Look up entries of a table lazily.

    Parameters
    ----------
    codes
        Indices in ``range(len(table))``, of any shape.
    table
        Result of :func:`sent_table`.
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
            f"{label}: {wrong} is not an index of the {len(table):,} names. The labels of these "
            "rows were never written, or belong to another store: write them again."
        )
    return table[codes]


def labels_of_series(series: Any, announced: Any = None) -> Any:
    """Return the labels of one partition as a NumPy array, or as an array of pandas.

    Arrays of pandas keep categories, which makes encoding the labels cheap.

    Parameters
    ----------
    series
        Labels of the partition.
    announced
        Type of the labels of all partitions: integers that pandas made real numbers, because some
        are missing in this partition, become integers again.
    """
    kinds = pd.api.types
    converted = kinds.is_integer_dtype(announced) and kinds.is_float_dtype(series.dtype)
    # integers of 2**53 or more are rounded, which is an error of the labels
    if converted and not series.abs().max() >= 2**53:
        with suppress(TypeError, ValueError):  # decimals
            series = series.astype("Int64")
    return series.to_numpy() if isinstance(series.dtype, np.dtype) else series.array


def number_labels(values: Any, label: str) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Encode labels as indices into the sorted, distinct labels.

    Parameters
    ----------
    values
        Labels, shape (n,).
    label
        Name of the labels for messages.

    Raises
    ------
    InputError
        If a label is missing, or the labels have an unsuitable type.

    Examples
    --------
    >>> number_labels(["b", "a", "b"], "names")
    (array([1, 0, 1], dtype=int32), array(['a', 'b'], dtype='<U1'))
    """
    names, codes = codes_of(_as_objects(values), np.size(values), label)
    missing = codes == MISSING
    if missing.any():
        raise InputError(f"{label}: label {int(missing.argmax())} is missing. Give all labels.")
    return codes.astype(np.int32), names


def _as_objects(values: Any) -> Any:
    """Convert text to Python strings, which pandas encodes ten times as fast as NumPy sorts text.

    Lists are converted too: NumPy would convert numbers among text to text.
    """
    if isinstance(values, (list, tuple)):
        return np.array(values, dtype=object)
    return values.astype(object) if getattr(values, "dtype", np.dtype("O")).kind in "UT" else values


def count_labels(values: NDArray[Any]) -> int:
    """Count the distinct labels in memory.

    Examples
    --------
    >>> count_labels(np.array([7, 3, 7])), count_labels(np.array([0.5, 2.5]))
    (2, 2)
    """
    if values.dtype.kind in "iu" and values.size:
        low, high = int(values.min()), int(values.max())
        if high - low <= 4 * values.size:  # a flag for each is ten times as fast as a hash table
            seen = np.zeros(high - low + 1, dtype=bool)
            seen[values.reshape(-1) - low] = True
            return int(seen.sum())
    return len(pd.unique(values.reshape(-1)))
