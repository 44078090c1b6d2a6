"""Zarr stores: one array of rows, read by whole chunks or shards."""

from __future__ import annotations

import itertools
import math
import os
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from dask.base import tokenize
from zarr.storage import LocalStore

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.sources.chunking import row_step
from dask_sketch.sources.group_labels import Groups, looked_up
from dask_sketch.sources.origin import StoredChunks
from dask_sketch.sources.samples import Cut, Samples, array_samples
from dask_sketch.sources.stored_labels import StoredGroups, named, stored_groups
from dask_sketch.storage.untrusted import LARGEST_CHUNK, GuardedStore, guarded

LARGEST_COUNT = 10**7  # tasks of one store: a few bytes of metadata can state any number of rows


class RowReader:
    """A stored array whose read errors name the store and the rows.

    Dask calls it like an array. One of a single axis, weights, gets a last axis of length 1.
    ``start`` and ``stop`` are the first row of the array that it shows, and the one after the last.
    """

    def __init__(self, array: zarr.Array[Any], label: str, start: int, stop: int):
        self._array = array
        self._label = label
        self._start = start
        self.dtype = array.dtype
        self.shape = (stop - start, *(array.shape[1:] or (1,)))
        self.ndim = len(self.shape)

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        start, stop, step = index[0].indices(self.shape[0])
        rows = slice(self._start + start, self._start + stop, step)
        self._require_reachable()
        column = self._array.ndim == 1
        try:
            values = np.asarray(self._array[rows if column else (rows, *index[1:])])
        except Exception as error:  # decoders raise errors of many kinds
            raise ChunkError(
                f"rows {rows.start} to {rows.stop} of {self._label}{self._culprit(rows)} could not "
                f"be read: {type(error).__name__}: {error}. It is damaged or out of reach; "
                "restore it, or leave these rows out."
            ) from error
        return values[..., None] if column else values

    def _culprit(self, rows: slice) -> str:
        """Which stored object is to blame: the first one that cannot be read by itself.

        Nothing, if each of them can be read by now.
        """
        array = self._array
        stored = array.shards or array.chunks
        counts = [range(-(-n // size)) for n, size in zip(array.shape, stored, strict=True)]
        counts[0] = range(rows.start // stored[0], -(-rows.stop // stored[0]))
        for place in itertools.product(*counts):
            try:
                array[tuple(slice(i * k, (i + 1) * k) for i, k in zip(place, stored, strict=True))]
            except Exception:  # the error is known already, this is about the place
                key = array.metadata.encode_chunk_key(place)
                return f" (stored object {f'{array.path}/{key}'.lstrip('/')})"
        return ""

    def _require_reachable(self) -> None:
        """See once in a process that the array is really there.

        Zarr takes a chunk that is missing for one of fill values. A worker that cannot see the
        store would read nothing but zeros, and not know.
        """
        array = self._array
        key = tokenize(_place(array))
        if key in _SEEN:
            return
        try:
            found = zarr.open_array(store=array.store, path=array.path, mode="r")
        except Exception as error:  # stores fail in many ways
            raise ChunkError(
                f"{self._label} is out of reach of host {socket.gethostname()}, in "
                f"{Path.cwd()}: {type(error).__name__}: {error}. Workers read the data themselves: "
                "use an absolute path or a URL that each of them can reach."
            ) from error
        # not all metadata: a fill value of NaN would not even be equal to itself. Rows that were
        # appended since are no matter: a worker may start while the store grows.
        if _layout(found) != _layout(array) or found.shape[0] < array.shape[0]:
            raise ChunkError(
                f"{self._label} has changed since it was opened (now shape {found.shape}), or "
                f"host {socket.gethostname()} sees another store at this path. Open it again."
            )
        _SEEN.add(key)

    def __dask_tokenize__(self) -> Any:
        return tokenize(_place(self._array), self._start, self.shape)


def _place(array: zarr.Array[Any]) -> tuple[Any, ...]:
    return str(array.store), array.path, array.shape, str(array.dtype)


def _layout(array: zarr.Array[Any]) -> tuple[Any, ...]:
    return array.shape[1:], array.dtype, array.chunks, array.shards


_SEEN: set[Any] = set()  # arrays that this process has found where they should be


def zarr_samples(
    store: Any,
    *,
    array: str | None = None,
    weights: Any = None,
    groups: Any = None,
    storage_options: dict[str, Any] | None = None,
    chunk_size: str | int | None = None,
    label: str | None = None,
) -> Samples:
    """Samples from a Zarr array, or from one array of a group.

    Parameters
    ----------
    store
        Path, URL, Zarr store, group or array; formats 2 and 3, sharded or not.
    array
        Name of the array in a group; not needed if only one is two-dimensional.
    weights
        Name of a one-dimensional array of the group, or array-like.
    groups
        The same, of labels of groups; see :mod:`dask_sketch.sources.stored_labels` for names.
    storage_options
        Options of the file system of a URL.
    chunk_size
        Target bytes of one task.
    label
        Name for messages.

    Raises
    ------
    InputError
        If there is no store, no such array, or the array is not two-dimensional.
    """
    label = label or _label(store)
    root = _open(store, storage_options, label)
    rows = _select(root, array, label)
    label = label if rows is root else f"{label.rstrip('/')}/{rows.path.split('/')[-1]}"
    if rows.ndim != 2:
        raise InputError(
            f"{label} has shape {rows.shape}: a store of samples must be two-dimensional, "
            "(samples, features)."
        )
    shards = getattr(rows, "shards", None)
    stored = (shards or rows.chunks)[0]
    n, d = rows.shape
    grouped = groups is not None
    nominal = row_step(n, stored, d * rows.dtype.itemsize, chunk_size, grouped=grouped)
    step = min(nominal, max(n, 1))
    every = range(max(-(-n // step), 1))
    if step * d * rows.dtype.itemsize > LARGEST_CHUNK:
        raise InputError(
            f"{label} states rows of {d:,} features, {step:,} of which are read at once: over the "
            f"limit of {LARGEST_CHUNK:,} bytes. Give a smaller chunk_size, or write the data again "
            "in smaller chunks."
        )
    if len(every) > LARGEST_COUNT:
        raise InputError(
            f"{label} states {n:,} rows, which are {len(every):,} tasks of {step:,} rows: over the "
            f"limit of {LARGEST_COUNT:,}. Give a larger chunk_size, if there really are as many."
        )
    pieces = math.prod(
        -(-size // chunk) for size, chunk in zip(rows.shape, rows.chunks, strict=True)
    )
    column = None
    if isinstance(weights, str):
        column = named(root, weights, label, "weights")
        if column.ndim != 1 or column.shape[0] != n:
            raise InputError(
                f"weights={weights!r} has shape {column.shape}, {label} has {n} rows; give one "
                "weight for each row."
            )
    labels = stored_groups(root, groups, n, label) if isinstance(groups, str) else None
    cut = partial(_cut, rows, column, labels, label, f"weights {weights!r} of {label}", step)
    blocks, lazy_weights, lazy_groups = cut(every)
    arrays = (rows,) if column is None else (rows, column)
    origin = StoredChunks(
        _files_of(store, root), storage_options, arrays, nominal, chunk_size is not None
    )
    known: dict[str, Any] = {"stored_chunks": pieces}
    given = [x for x in (weights, groups) if x is not None and not isinstance(x, str)]
    if not given:  # all of it is in the store, of which there are parts
        known |= {"cut": cut, "origin": origin}
    samples = array_samples(
        blocks,
        label,
        None if isinstance(weights, str) else weights,
        None if isinstance(groups, str) else groups,
        **known,
    )
    # what is stored is in the shape that Samples wants already
    if column is not None:
        samples = replace(samples, weights=lazy_weights)
    if labels is not None:
        n_groups = None if labels.names is None else len(labels.names)
        stored = Groups(str(groups), lazy_groups, labels.names, n_groups)
        samples = replace(samples, groups=stored)
    return samples


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
    """Lazy rows of some chunks of ``step`` rows each."""
    n = array.shape[0]
    reader = RowReader(array, label, chunks.start * step, min(chunks.stop * step, n))
    return da.from_array(
        # inlined, so that reading and sketching fuse into one task
        reader, chunks=(step, max(reader.shape[1], 1)), inline_array=True, asarray=False,
        meta=np.empty((0, 0), dtype=array.dtype),
    )  # fmt: skip


def _open(store: Any, storage_options: dict[str, Any] | None, label: str) -> Any:
    if isinstance(store, (zarr.Array, zarr.Group)):
        return store
    if isinstance(store, (str, os.PathLike)) and "://" not in str(store):
        store = Path(store).absolute()  # a worker stands in another folder
    try:
        # what somebody else wrote is read through a guard
        return zarr.open(guarded(store, storage_options), mode="r")
    except (OSError, ImportError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"no Zarr store at {label}: {type(error).__name__}: {error}. Check the path, and "
            "storage_options for a URL."
        ) from error


def _files_of(store: Any, root: Any) -> Path | str | None:
    """Path or URL under which the files of a store are found."""
    inner = root.store.store if isinstance(root.store, GuardedStore) else root.store
    if isinstance(inner, LocalStore):
        return Path(inner.root)
    return store if isinstance(store, str) else None


def _select(root: Any, name: str | None, label: str) -> Any:
    if isinstance(root, zarr.Array):
        if name is not None:
            raise InputError(f"array={name!r}, but {label} is a single array; leave it out.")
        return root
    if name is not None:
        return named(root, name, label, "array")
    found = {key: value for key, value in root.arrays() if value.ndim == 2}
    if len(found) == 1:
        return next(iter(found.values()))
    shapes = ", ".join(f"{key} {value.shape}" for key, value in root.arrays())
    raise InputError(
        f"{label} is a group with {len(found)} two-dimensional arrays ({shapes or 'it is empty'}); "
        "name the one that holds the samples with array=."
    )


def _label(store: Any) -> str:
    if isinstance(store, (zarr.Array, zarr.Group)):
        return str(store.store_path)
    return str(store)
