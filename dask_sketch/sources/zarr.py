"""Zarr stores as samples: one array of rows, read by whole chunks or shards."""

from __future__ import annotations

import itertools
import os
import struct
from base64 import b64decode
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore

from dask_sketch.errors import InputError
from dask_sketch.sources.array import array_samples
from dask_sketch.sources.group_labels import (
    INDEX_OF,
    NAMES,
    Groups,
    looked_up,
    number_labels,
    sent_table,
)
from dask_sketch.sources.samples import Cut, Samples, StoredChunks, row_step
from dask_sketch.sources.zarr_rows import ZarrRowReader, count_chunks
from dask_sketch.storage.chunk_layout import MAX_CHUNK
from dask_sketch.storage.overwrite import local_path
from dask_sketch.storage.read_only import CompleteStore, ReadOnlyStore, is_document
from dask_sketch.storage.untrusted import guarded
from dask_sketch.validation.warn import warn_user

_MAX_LISTED = 100_000  # files of a local store that are counted
_FEW = 0.1  # fraction of the stored objects; if fewer exist, a warning says so
# Attributes of packed and missing values, and the value of each that changes no stored value.
_PACKING = {"scale_factor": 1, "add_offset": 0, "_FillValue": None, "missing_value": None}
MAX_TASKS = 10**7  # tasks of one store: a few bytes of metadata can state any number of rows


def zarr_samples(
    store: Any,
    *,
    array: str | None = None,
    weights: Any = None,
    groups: Any = None,
    storage_options: dict[str, Any] | None = None,
    chunk_size: str | int | None = None,
    missing_chunks: str = "raise",
    label: str | None = None,
) -> Samples:
    """Make samples of a Zarr array, or of one array of a group.

    Parameters
    ----------
    store
        Path, URL, Zarr store, group or array; formats 2 and 3, sharded or not.
    array
        Name of the array in a group; not needed if only one array is two-dimensional.
    weights
        Name of a one-dimensional array of the group, or array-like.
    groups
        Name of an array of labels in the group, see :func:`stored_groups`; or array-like.
    storage_options
        Options of the file system of a URL.
    chunk_size
        Target size of one task in bytes.
    missing_chunks
        Treatment of chunks that are not stored: ``"raise"`` stops with an error, ``"fill"`` reads
        the fill value.
    label
        Name of the samples for messages.

    Raises
    ------
    InputError
        If there is no store, no such array, or the array is not two-dimensional; or with
        ``missing_chunks="fill"``, if a local store holds no chunk.

    Warns
    -----
    UserWarning
        If with ``missing_chunks="fill"`` fewer than a tenth of the chunks of a local store exist.
    """
    label = label or _label(store)
    if missing_chunks not in ("raise", "fill"):
        raise InputError(f"missing_chunks={missing_chunks!r}: choose 'raise' or 'fill'.")
    root = _open(store, storage_options, label, missing_chunks == "raise")
    rows = _select(root, array, label)
    label = label if rows is root else f"{label.rstrip('/')}/{rows.path.split('/')[-1]}"
    if rows.ndim != 2:
        raise InputError(
            f"{label} has shape={rows.shape}: give a two-dimensional array, (samples, features)."
        )
    _require_values(rows, label)
    shards = getattr(rows, "shards", None)
    stored = (shards or rows.chunks)[0]
    n, d = rows.shape
    grouped = groups is not None
    nominal = row_step(n, stored, d * rows.dtype.itemsize, chunk_size, grouped=grouped)
    step = min(nominal, max(n, 1))
    every = range(max(-(-n // step), 1))
    _require_feasible(rows, step, len(every), chunk_size, label)
    if missing_chunks == "fill":
        _require_stored(_files_of(store, root), rows, label)
    column = _weights_column(root, weights, n, label) if isinstance(weights, str) else None
    labels = stored_groups(root, groups, n, label) if isinstance(groups, str) else None
    cut = partial(_cut, rows, column, labels, label, f"weights {weights!r} of {label}", step)
    blocks, lazy_weights, lazy_groups = cut(every)
    arrays = (rows,) if column is None else (rows, column)
    origin = StoredChunks(
        _files_of(store, root), storage_options, arrays, nominal, chunk_size is not None
    )
    known: dict[str, Any] = {"stored_chunks": count_chunks(rows.shape, rows.chunks)}
    given = [x for x in (weights, groups) if x is not None and not isinstance(x, str)]
    if not given:  # all data are in the store, so chunks can be read without the others
        known |= {"cut": cut, "origin": origin}
    samples = array_samples(
        blocks,
        label,
        None if isinstance(weights, str) else weights,
        None if isinstance(groups, str) else groups,
        **known,
    )
    # stored weights and labels have the shape of the attributes of Samples already
    if column is not None:
        samples = replace(samples, weights=lazy_weights)
    if labels is not None:
        n_groups = None if labels.names is None else len(labels.names)
        stored = Groups(str(groups), lazy_groups, labels.names, n_groups)
        samples = replace(samples, groups=stored)
    return samples


def _require_feasible(
    rows: zarr.Array[Any], step: int, n_tasks: int, chunk_size: Any, label: str
) -> None:
    """Raise InputError for chunks too large for memory, or too many tasks."""
    n, d = rows.shape
    if step * d * rows.dtype.itemsize > MAX_CHUNK:
        raise InputError(
            f"chunk_size={chunk_size!r}: {label} states rows of {d:,} features, {step:,} of which "
            f"are read at once, over the limit of {MAX_CHUNK:,} bytes. Give a smaller "
            "chunk_size, or write the data again in smaller chunks."
        )
    if n_tasks > MAX_TASKS:
        raise InputError(
            f"chunk_size={chunk_size!r}: {label} states {n:,} rows, {n_tasks:,} tasks of "
            f"{step:,} rows, over the limit of {MAX_TASKS:,}. Give a larger chunk_size, if there "
            "really are so many rows."
        )


def _weights_column(root: Any, name: str, n_rows: int, label: str) -> Any:
    """Array of a group that has one weight for each row."""
    column = select_array(root, name, label, "weights")
    if column.ndim != 1 or column.shape[0] != n_rows:
        raise InputError(
            f"weights={name!r} has shape={column.shape}: give one weight for each of the "
            f"{n_rows} rows of {label}."
        )
    _require_values(column, f"weights {name!r} of {label}")
    return column


def _require_values(array: zarr.Array[Any], label: str) -> None:
    """Raise InputError for packed values, by the attributes that xarray and netCDF use for them."""
    attributes = _attributes(array)
    packing = {name: attributes[name] for name in _PACKING if name in attributes}
    if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attributes:
        packing.setdefault("_FillValue", array.fill_value or None)  # zero is Zarr's own default
    changing = {
        name: value
        for name, value in packing.items()
        if value is not None and value != _PACKING[name] and not _is_nan(value)
    }
    if changing:
        shown = ", ".join(f"{name}={str(value)[:50]}" for name, value in changing.items())
        raise InputError(
            f"{label} has the attributes {shown}: its stored values stand for others. Open the "
            "store with xarray, which decodes them, and pass the variable, as in "
            "xr.open_zarr(path)['name'], or store the decoded values.",
            parameter="x",
        )


def _attributes(node: Any) -> dict[str, Any]:
    """Attributes of an array or a group; damaged metadata may have any JSON in their place."""
    try:
        return dict(node.attrs)
    except (TypeError, ValueError, LookupError) as error:
        raise InputError(
            f"{node.store_path}: its attributes are no JSON object ({error}): the metadata was "
            "edited or is damaged. Restore it from a copy.",
            parameter="x",
        ) from error


def _is_nan(value: Any) -> bool:
    """Whether a fill value is NaN; xarray writes floating ones as base64 in Zarr format 3."""
    try:
        if isinstance(value, str):
            return value == "NaN" or bool(np.isnan(struct.unpack("<d", b64decode(value))[0]))
        return bool(np.isnan(value))
    except (ValueError, TypeError, struct.error):
        return False


@dataclass(frozen=True)
class StoredGroups:
    """Labels of rows in a Zarr group.

    Attributes
    ----------
    array
        Array of one axis, the rows: labels, or indices into the table.
    label
        Name of the labels for messages.
    table
        Position of each entry among the sorted names, by its index; or None.
    names
        Sorted names of the table, or None.
    """

    array: zarr.Array[Any]
    label: str
    table: Any = None
    names: NDArray[Any] | None = None


def stored_groups(root: Any, name: str, n_rows: int, label: str) -> StoredGroups:
    """Find labels in a Zarr group by the name of their array.

    Parameters
    ----------
    root
        Zarr group.
    name
        Name of an array with a label for each row; or with one for each file or speaker, if the
        attribute ``instance_dimension`` of an array of indices, one for each row, is the name of
        its dimension.
    n_rows
        Number of samples.
    label
        Name of the samples for messages.

    Raises
    ------
    InputError
        If there is no such array, or it does not fit the rows.
    """
    labels = select_array(root, name, label, "groups")
    shown = f"groups {name!r} of {label}"
    if labels.ndim == 1 and labels.shape[0] == n_rows:
        names = _attributes(labels).get(NAMES)
        if names is None or labels.dtype.kind not in "iu":
            return StoredGroups(labels, shown)
        return _indexed(labels, names, shown)
    dims = dimensions(labels)
    indices = [
        array
        for _, array in root.arrays()
        if array.shape == (n_rows,) and (_attributes(array).get(INDEX_OF),) == dims
    ]
    if len(indices) == 1:
        entries = labels[:]
        names = _attributes(labels).get(NAMES)
        if names is not None and labels.dtype.kind in "iu":
            entries = np.asarray(names)[entries]
        return _indexed(indices[0], entries, shown)
    raise InputError(
        f"groups={name!r} has shape={labels.shape}: give one label for each of the {n_rows} rows "
        f"of {label}, or add an array of indices with the attribute {INDEX_OF!r}."
    )


def _indexed(array: zarr.Array[Any], names: Any, label: str) -> StoredGroups:
    table, sorted_names = number_labels(names, f"the names of {label}")
    return StoredGroups(array, label, sent_table(table), sorted_names)


def dimensions(array: zarr.Array[Any]) -> tuple[str, ...]:
    """Names of the axes of a stored array of Zarr format 2 or 3; empty if it has none."""
    stated: Any = getattr(array.metadata, "dimension_names", None)
    if stated is None:
        stated = _attributes(array).get("_ARRAY_DIMENSIONS") or ()
    return tuple(map(str, stated))


def select_array(root: Any, name: str, label: str, argument: str) -> Any:
    """Select the array of a group that an argument names.

    Raises
    ------
    InputError
        If there is no such array.
    """
    if isinstance(root, zarr.Group):
        arrays = dict(root.arrays())
        if name in arrays:
            return arrays[name]
        raise InputError(
            f"{argument}={name!r}: choose one of the arrays of {label}: "
            f"{', '.join(arrays) or 'there are none'}."
        )
    raise InputError(
        f"{argument}={name!r} names an array, but {label} is a single array: leave it out."
    )


def _cut(
    rows: zarr.Array[Any],
    column: zarr.Array[Any] | None,
    labels: StoredGroups | None,
    label: str,
    column_label: str,
    step: int,
    chunks: range,
) -> Cut:
    weights = None if column is None else _blocks(column, column_label, step, chunks)
    groups = None
    if labels is not None:
        groups = _blocks(labels.array, labels.label, step, chunks)
        if labels.table is not None:
            groups = looked_up(groups, labels.table, labels.label)
    return _blocks(rows, label, step, chunks), weights, groups


def _blocks(array: zarr.Array[Any], label: str, step: int, chunks: range) -> da.Array:
    """Lazy rows of some chunks, of ``step`` rows each."""
    n = array.shape[0]
    reader = ZarrRowReader(array, label, chunks.start * step, min(chunks.stop * step, n))
    return da.from_array(
        # inlined, so that reading and sketching become one task
        reader, chunks=(step, max(reader.shape[1], 1)), inline_array=True, asarray=False,
        meta=np.empty((0, 0), dtype=array.dtype),
    )  # fmt: skip


def _open(store: Any, storage_options: dict[str, Any] | None, label: str, complete: bool) -> Any:
    is_open = isinstance(store, (zarr.Array, zarr.Group))
    if is_open and not complete:
        return store
    if isinstance(store, (str, os.PathLike)) and "://" not in str(store):
        store = (local_path(store) or Path(store)).absolute()  # workers run in other folders
    try:
        # an open array is as trusted as it was opened
        path, source = (
            (store.path, store.store) if is_open else ("", guarded(store, storage_options))
        )
        return zarr.open(CompleteStore(source) if complete else source, path=path, mode="r")
    except Exception as error:  # file systems and damaged metadata fail in many ways
        if isinstance(store, Path) and store.is_file() and store.suffix != ".zip":
            raise InputError(
                f"x={label!r} is a file of no known format: give a Zarr store, or a file that ends "
                "in .parquet, .csv, .npy or .nc; decompress it first if it is compressed."
            ) from error
        if isinstance(error, TimeoutError):
            raise InputError(
                f"x={label!r}: the server did not answer in time. Check that it is up, or give the "
                "limit of its file system in storage_options."
            ) from error
        raise InputError(
            f"x={label!r} is not a Zarr store: {type(error).__name__}: {error}. Check the path; "
            "for a URL also storage_options, and that the credentials are valid."
        ) from error


def _files_of(store: Any, root: Any) -> Path | str | None:
    """Path or URL of the files of a store, or None."""
    inner = root.store
    while isinstance(inner, ReadOnlyStore):
        inner = inner.store
    if isinstance(inner, LocalStore):
        return Path(inner.root)
    return store if isinstance(store, str) else None


def _require_stored(folder: Any, rows: zarr.Array[Any], label: str) -> None:
    """Raise InputError for a local store without any chunk, and warn if most are missing.

    A few bytes of metadata can state any number of rows, all of which would be fill values.
    """
    if not isinstance(folder, Path):
        return
    total = count_chunks(rows.shape, rows.shards or rows.chunks)
    files = (
        name
        for _, _, names in os.walk(folder / rows.path)
        for name in names
        if not is_document(name)
    )
    n_stored = sum(1 for _ in itertools.islice(files, min(_MAX_LISTED, total)))
    if n_stored >= min(_MAX_LISTED, _FEW * total):
        return
    text = (
        f"missing_chunks='fill': {label} states {rows.shape[0]:,} rows in {total:,} stored "
        f"objects, of which {n_stored:,} exist; the others would be read as {rows.fill_value}."
    )
    if not n_stored:
        raise InputError(f"{text} Check the path, or write the data.")
    warn_user(f"{text} Select the rows that were written, if these are all.")


def _select(root: Any, name: str | None, label: str) -> Any:
    if isinstance(root, zarr.Array):
        if name is not None:
            raise InputError(f"array={name!r}: {label} is a single array; leave it out.")
        return root
    if name is not None:
        return select_array(root, name, label, "array")
    schema = str(_attributes(root).get("schema", ""))
    # features of recordings are samples
    if schema.startswith("dask-sketch/") and not schema.startswith("dask-sketch/speech-features"):
        reader = "open_ledger" if schema == "dask-sketch/ledger" else "open"
        raise InputError(
            f"array=None: {label} has schema={schema!r}, a result of this package. Give the "
            f"samples; dask_sketch.{reader} reads the result."
        )
    arrays = {key: value for key, value in root.arrays() if value.ndim == 2}
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    shapes = ", ".join(f"{key} {value.shape}" for key, value in root.arrays())
    raise InputError(
        f"array=None: {label} is a group with {len(arrays)} two-dimensional arrays "
        f"({shapes or 'it is empty'}). Name the array of the samples."
    )


def _label(store: Any) -> str:
    if isinstance(store, (zarr.Array, zarr.Group)):
        return str(store.store_path)
    return str(store)
