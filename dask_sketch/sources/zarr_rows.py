"""Rows of an array in a Zarr store, in a form that Dask slices."""

from __future__ import annotations

import itertools
import math
import socket
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from dask.base import tokenize
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError, ChunkError
from dask_sketch.storage.read_only import CompleteStore

# Stored objects that are read at once: all of them are requested before one is found to be missing
_MAX_OBJECTS = 1024


class ZarrRowReader:
    """Rows of a stored array, in a form that Dask slices; errors name the store and the rows.

    Parameters
    ----------
    array
        Stored array. If it has one axis, weights, a last axis of length 1 is added.
    label
        Name of the array for messages.
    start, stop
        First row, and the row after the last.
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
        self._require_reachable()
        rows = range(self._start + start, self._start + stop, step)
        height = self._rows_at_once()
        first = self._read(rows[:height], index[1:])
        if len(rows) <= height:
            return first
        values = np.empty((len(rows), *first.shape[1:]), dtype=first.dtype)
        values[:height] = first
        for i in range(height, len(rows), height):
            values[i : i + height] = self._read(rows[i : i + height], index[1:])
        return values

    def _rows_at_once(self) -> int:
        """Number of rows in as many stored objects as are read at once."""
        stored = self._array.shards or self._array.chunks
        beside = count_chunks(self._array.shape[1:], stored[1:])
        return int(stored[0] * max(_MAX_OBJECTS // max(beside, 1), 1))

    def _read(self, given: range, columns: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        rows = slice(given.start, given.stop, given.step)
        column = self._array.ndim == 1
        try:
            index = rows if column else (rows, *columns)
            values = np.asarray(self._array[index])
            if self._may_lack_chunks(values, given, columns):
                self._require_no_fill_values(values, index)
        except Exception as error:  # decoders raise errors of many kinds
            raise ChunkError(
                f"rows {rows.start} to {rows.stop} of {self._label}{self._damaged(rows)} could not "
                f"be read: {type(error).__name__}: {str(error).rstrip('.')}. Restore the store, or "
                "leave these rows out."
            ) from error
        return values[..., None] if column else values

    def _may_lack_chunks(
        self, values: NDArray[Any], rows: range, columns: tuple[slice, ...]
    ) -> bool:
        """Whether all values of a chunk inside of a shard are the fill value."""
        array = self._array
        is_complete = isinstance(array.store, CompleteStore) and array.dtype.kind in "biuf"
        if array.shards is None or not is_complete or not values.size:
            return False
        starts = [
            np.unique(np.maximum(np.arange(-(first % size), n, size), 0))
            for first, size, n in zip(
                (rows.start, *(part.start or 0 for part in columns)),
                array.chunks if rows.step == 1 else (1, *array.chunks[1:]),
                values.shape,
                strict=False,  # a column of weights is given the columns of rows
            )
        ]
        if not (values[starts[0]] == array.fill_value).any():
            return False
        filled = values == array.fill_value
        for axis, first in enumerate(starts):
            filled = np.logical_and.reduceat(filled, first, axis=axis)
        return bool(filled.any())

    def _require_no_fill_values(self, values: NDArray[Any], index: Any) -> None:
        """Read again with another fill value: a chunk that a shard lacks then has other values."""
        array, metadata = self._array, self._array.metadata.to_dict()
        metadata["fill_value"] = array.dtype.type(not array.fill_value).item()
        other = zarr.Array(zarr.AsyncArray.from_dict(array.store_path, metadata))
        if not np.array_equal(np.asarray(other[index]), values, equal_nan=values.dtype.kind == "f"):
            raise ArtifactError(
                "a shard lacks chunks. Zarr would read fill values; if the chunks were never "
                'written because all their values are the fill value, pass missing_chunks="fill"'
            )

    def _damaged(self, rows: slice) -> str:
        """Name of the first stored object that cannot be read; empty if all can be read now."""
        array = self._array
        stored = array.shards or array.chunks
        counts = [range(-(-n // size)) for n, size in zip(array.shape, stored, strict=True)]
        counts[0] = range(rows.start // stored[0], -(-rows.stop // stored[0]))
        for position in itertools.product(*counts):
            try:
                array[
                    tuple(slice(i * k, (i + 1) * k) for i, k in zip(position, stored, strict=True))
                ]
            except Exception:  # the caller reports the error, this only finds the object
                key = array.metadata.encode_chunk_key(position)
                return f" (stored object {f'{array.path}/{key}'.lstrip('/')})"
        return ""

    def _require_reachable(self) -> None:
        """Check once in each process that the store can be reached.

        Zarr reads a missing chunk as fill values. A worker that cannot reach the store would read
        zeros without an error.
        """
        array = self._array
        key = tokenize(_identity(array))
        if key in REACHED:
            return
        try:
            opened = zarr.open_array(store=array.store, path=array.path, mode="r")
        except Exception as error:  # stores fail in many ways
            raise ChunkError(
                f"{self._label} cannot be reached by host {socket.gethostname()} from "
                f"{Path.cwd()}: {type(error).__name__}: {error}. Workers read the data "
                "themselves: use an absolute path or a URL that each of them can reach."
            ) from error
        # Only a part of the metadata is compared: a fill value of NaN is not equal to itself, and
        # rows may have been appended since, because a worker may start while the store grows.
        if _layout(opened) != _layout(array) or opened.shape[0] < array.shape[0]:
            raise ChunkError(
                f"{self._label} has changed since it was opened (now shape={opened.shape}), or "
                f"host {socket.gethostname()} has another store at this path. Open it again."
            )
        REACHED.add(key)

    def __dask_tokenize__(self) -> Any:
        return tokenize(_identity(self._array), self._start, self.shape)


def _identity(array: zarr.Array[Any]) -> tuple[Any, ...]:
    return str(array.store), array.path, array.shape, str(array.dtype)


def _layout(array: zarr.Array[Any]) -> tuple[Any, ...]:
    return array.shape[1:], array.dtype, array.chunks, array.shards


REACHED: set[Any] = set()  # identities of the arrays that this process has reached


def count_chunks(shape: tuple[int, ...], chunks: tuple[int, ...]) -> int:
    """Number of chunks of an array.

    Examples
    --------
    >>> count_chunks((10, 3), (4, 3))
    3
    """
    return math.prod(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))
