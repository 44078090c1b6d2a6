"""Lazy samples, the common form of every input: blocks of rows, weights, labels and sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.array as da
import fsspec
import numpy as np
from dask.utils import parse_bytes
from numpy.typing import NDArray

from dask_sketch import config
from dask_sketch.display.html import card, fields_table
from dask_sketch.display.text import counted, describe
from dask_sketch.errors import InputError
from dask_sketch.sources.group_labels import Groups, Labelled
from dask_sketch.validation.categories import Categories
from dask_sketch.validation.tables import require_names

if TYPE_CHECKING:
    import dask.bag as db
    import zarr

BUSY_TASKS = 64  # number of tasks of small data; more data is read by larger tasks
GROUPED_TASKS = 16  # the same for groups, where every task returns a sketch for each of its groups
# Bytes below which tasks are not divided: the scheduler takes a millisecond for each.
SMALL_TASK = 2**20
Cut = tuple[da.Array, "da.Array | None", "da.Array | None"]


@dataclass(frozen=True)
class StoredChunks:
    """Origin of the chunks of a Zarr source: rows of one array, and of one array of weights.

    Attributes
    ----------
    store
        Path or URL of the store, None if it has neither.
    storage_options
        Options of the file system of a URL.
    arrays
        Arrays of the samples and, if they are stored, of the weights.
    step
        Number of rows of each chunk but the last.
    is_lasting
        Whether the step stays when the store grows.
    """

    store: Path | str | None
    storage_options: Mapping[str, Any] | None
    arrays: tuple[zarr.Array[Any], ...]
    step: int
    is_lasting: bool


@dataclass(frozen=True)
class FilePart:
    """Row groups of one Parquet file that one task reads.

    Attributes
    ----------
    path
        Path on the file system.
    row_groups
        Numbers of the row groups, None for all.
    failure
        Message of the error of reading, for a file too large to be read without its footer, which
        could not be read; else None.
    """

    path: str
    row_groups: tuple[int, ...] | None
    failure: str | None = None


@dataclass(frozen=True)
class StoredFiles:
    """Origin of the chunks of a Parquet source.

    Attributes
    ----------
    fs, root
        File system, and the path, directory or glob on it.
    parts
        Part of each chunk.
    columns
        Columns that are read, in order.
    """

    fs: fsspec.AbstractFileSystem
    root: str
    parts: tuple[FilePart, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Samples:
    """Lazy samples, opened by :func:`~dask_sketch.open_samples`.

    Attributes
    ----------
    blocks
        Dask array of shape (..., n_features) whose leading axes are all samples, in chunks of any
        (also unknown) length; or a Dask bag of two-dimensional blocks or of records.
    label
        Name of the source for messages.
    n_features
        Number of features; None for a bag, where it is not known without reading.
    weights
        Dask array of the leading shape with an axis of length 1 added, a bag, or None.
    feature_names
        Names of the features, if the source has them.
    weight_column
        Whether the last column of ``blocks`` is the weight.
    groups
        Labels of the groups of the rows, or None.
    bytes_read, largest_chunk
        Bytes that one pass reads, and size of the largest chunk in memory; None if unknown.
    stored_chunks
        Number of stored chunks that a pass decodes: chunks of a Zarr array, those within its
        shards; None if unknown.
    copies
        Memory of a task that reads, in multiples of the largest chunk: the chunk and the stored
        forms that it is decoded from.
    lazy
        Whether the input was lazy, not in memory.
    dims
        Names of the leading axes of labelled input.
    coords
        Labels along those axes by name, of labelled input.
    record_fields
        Names of the fields that are features, for a bag of dictionaries.
    weight_field
        Name of the field that is the weight, for a bag of dictionaries.
    expected_names
        Names that dictionaries and tables in a bag must have, which are known when they are read.
    cut
        Function that builds ``blocks``, ``weights`` and labels of a range of chunks without the
        others, for sources that support it.
    origin
        Stored data of each chunk, for sources that have files; see
        ``dask_sketch.jobs.ledger.partitions.partitions_of``.
    categories
        Levels of categorical features, whose columns of ``blocks`` hold codes, or None.
    """

    blocks: da.Array | db.Bag
    label: str
    n_features: int | None
    weights: da.Array | db.Bag | None = None
    feature_names: tuple[str, ...] | None = None
    weight_column: bool = False
    groups: Groups | None = None
    bytes_read: int | None = None
    largest_chunk: int | None = None
    stored_chunks: int | None = None
    copies: int = 2
    lazy: bool = True
    dims: tuple[str, ...] | None = None
    coords: Mapping[Hashable, Any] | None = None
    record_fields: tuple[str, ...] | None = None
    weight_field: str | None = None
    expected_names: tuple[str, ...] | None = None
    cut: Callable[[range], Cut] | None = None
    origin: StoredChunks | StoredFiles | None = None
    categories: Categories | None = None

    @property
    def is_bag(self) -> bool:
        """Whether the blocks are a bag."""
        return not isinstance(self.blocks, da.Array)

    @property
    def is_weighted(self) -> bool:
        """Whether the rows have weights."""
        return bool(self.weights is not None or self.weight_column or self.weight_field)

    @property
    def plain_blocks(self) -> da.Array:
        """Dask array of rows, without the labels that some chunks contain."""
        assert isinstance(self.blocks, da.Array)
        if self.groups is None or not self.groups.in_blocks:
            return self.blocks
        return da.map_blocks(
            _rows_of_labelled,
            self.blocks,
            dtype=self.blocks.dtype,
            meta=np.empty((0,) * self.blocks.ndim, dtype=self.blocks.dtype),
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values; float64 for a bag, where it is not known without reading."""
        return np.dtype(self.blocks.dtype if isinstance(self.blocks, da.Array) else np.float64)

    @property
    def n_chunks(self) -> int:
        """Number of chunks, each read by one task."""
        if isinstance(self.blocks, da.Array):
            return int(np.prod(self.blocks.numblocks[:-1]))
        return int(self.blocks.npartitions)

    @property
    def n_samples(self) -> int | None:
        """Number of rows; None if it is not known without reading."""
        if not isinstance(self.blocks, da.Array):
            return None
        size = np.prod([float(n) for n in self.blocks.shape[:-1]])
        return None if np.isnan(size) else int(size)

    @property
    def chunk_rows(self) -> list[float]:
        """Number of rows of each chunk; NaN if it is not known without reading."""
        if not isinstance(self.blocks, da.Array):
            return [float("nan")] * self.n_chunks
        rows = np.ones(1)
        for sizes in self.blocks.chunks[:-1]:
            rows = np.multiply.outer(rows, np.asarray(sizes, dtype=float)).ravel()
        return [float(n) for n in rows]

    def __repr__(self) -> str:
        return f"<Samples: {self.label}, {self._summary()}>"

    def _summary(self) -> str:
        rows = "rows" if self.n_samples is None else f"{self.n_samples:,} rows"
        return f"{rows} of {'unknown' if self.n_features is None else self.n_features} features"

    def as_dict(self) -> dict[str, object]:
        """Source, sizes and types; None where they are not known without reading."""
        return {
            "kind": "data",
            "source": self.label,
            "n_samples": self.n_samples,
            "n_features": self.n_features,
            "feature_names": self.feature_names,
            "n_chunks": self.n_chunks,
            "dtype": None if self.is_bag else str(self.dtype),
            "weighted": self.is_weighted,
            "dims": self.dims,
            "bytes": self.bytes_read,
            "largest_chunk_bytes": self.largest_chunk,
        }

    def _repr_html_(self) -> str:
        names = self.feature_names or ()
        more = {
            "features": fields_table(dict(zip(map(str, range(len(names))), names, strict=True)))
        }
        fields = describe(self.as_dict() | {"kind": None})
        return card("Samples", fields, summary=self._summary(), more=more if names else None)

    def named_like(self, names: tuple[str, ...] | None, owner: str) -> Samples:
        """Samples of a bag whose records or tables must have the names of a map or a model.

        Parameters
        ----------
        names
            Its names of features, if it has them.
        owner
            Its name for messages.
        """
        if names is None or self.feature_names is not None:
            return self
        require_names(self.record_fields, self.label, names, owner)
        return replace(self, expected_names=tuple(names))

    def require_features(
        self, n_features: int, owner: str, names: tuple[str, ...] | None = None
    ) -> None:
        """Raise InputError unless the rows have the features of a feature map or a model.

        Parameters
        ----------
        n_features
            Number of its features.
        owner
            Its name for messages.
        names
            Names of its features, if it has them.
        """
        # by name first, since the message then tells which feature differs
        require_names(self.feature_names, self.label, names, owner)
        if self.n_features is not None and self.n_features != n_features:
            raise InputError(
                f"{self.label} has {counted(self.n_features, 'feature')}: {owner} has "
                f"n_features={n_features}. Give samples of the same features."
            )

    def require_categories(self, categories: Categories | None, owner: str) -> None:
        """Raise InputError unless the rows have the levels of a feature map or a model.

        Samples that were opened without levels are taken to hold codes.

        Parameters
        ----------
        categories
            Its levels, or None.
        owner
            Its name for messages.
        """
        mine = self.categories
        if mine is None or mine == categories:
            return
        stated = "none" if categories is None else categories.as_dict()
        raise InputError(
            f"{self.label} was opened with the categories {mine.as_dict()}; those of {owner} are "
            f"{stated}. Give the same, or data that was not opened before.",
            parameter="categories",
        )


def _rows_of_labelled(block: Labelled) -> np.ndarray[Any, Any]:
    return block.rows


def chunk_label(label: str, block_id: tuple[int, ...], step: int = 0) -> str:
    """Name of one chunk for messages.

    Parameters
    ----------
    label
        Name of the samples.
    block_id
        Number of the chunk along each axis.
    step
        Number of rows of each chunk before this one, for the number of its first row; 0 if the
        chunks differ in length.

    Examples
    --------
    >>> chunk_label("frames.zarr", (17,))
    'chunk 17 of frames.zarr'
    >>> chunk_label("frames.zarr", (17,), 100)
    'chunk 17 of frames.zarr, from row 1700'
    """
    number = block_id[0] if len(block_id) == 1 else block_id
    first = (
        "" if len(block_id) > 1 or not step * block_id[0] else f", from row {step * block_id[0]}"
    )
    return f"chunk {number} of {label}{first}"


def target_bytes(chunk_size: str | int | None) -> int:
    """Number of bytes that one task should read.

    Parameters
    ----------
    chunk_size
        Number or text; the setting ``sketch.chunk-size`` if None.

    Raises
    ------
    InputError
        If the size is not a positive number of bytes.

    Examples
    --------
    >>> target_bytes("1MiB")
    1048576
    """
    return n_bytes("chunk_size", config.get("chunk-size") if chunk_size is None else chunk_size)


def n_bytes(name: str, value: Any) -> int:
    """Parse a positive number of bytes, given as a number or as text.

    Parameters
    ----------
    name
        Name of the argument for messages.
    value
        Value of the argument.

    Raises
    ------
    InputError
        If the value is not a positive number of bytes.

    Examples
    --------
    >>> n_bytes("memory_per_thread", "1.5kB"), n_bytes("bandwidth", 1e9)
    (1500, 1000000000)
    """
    try:
        size = -1 if isinstance(value, bool) else int(parse_bytes(value))
    except (AttributeError, OverflowError, TypeError, ValueError):
        size = -1
    if size < 1:
        raise InputError(
            f"{name}={value!r}: give a positive number of bytes, or text such as '64MiB'."
        )
    return size


def row_step(
    n_rows: int,
    stored_rows: int,
    row_bytes: int,
    chunk_size: str | int | None = None,
    *,
    grouped: bool = False,
) -> int:
    """Number of rows of one task: a multiple of the stored rows, near the target size.

    A stored chunk (or a shard) is never split between tasks, because each task would read and
    decompress all of it. Without a given size, small data is divided into enough tasks to keep a
    cluster busy. Their number depends on the data alone, so it is the same on every machine.

    Parameters
    ----------
    n_rows
        Number of all rows.
    stored_rows
        Number of rows of one stored chunk or shard, ``>= 1``.
    row_bytes
        Size of one row in memory in bytes.
    chunk_size
        Target size; see :func:`target_bytes`.
    grouped
        Whether a sketch is made for each of many groups.

    Examples
    --------
    >>> row_step(10**9, 1000, 48, "1MiB")
    21000
    """
    target = target_bytes(chunk_size)
    if chunk_size is None:
        tasks = GROUPED_TASKS if grouped else BUSY_TASKS
        target = min(target, max(n_rows * row_bytes // tasks, SMALL_TASK))
    return stored_rows * max(1, target // max(1, stored_rows * row_bytes))


@dataclass(frozen=True)
class Place:
    """Place of the rows of one block in the source.

    Attributes
    ----------
    stream
        Numbers of the sequence of positions: empty for positions in the whole source, else the
        number of the chunk.
    start
        Position of the first row.
    positions
        Position of each row, shape (n,), if the positions are not consecutive; else None.
    """

    stream: tuple[int, ...]
    start: int
    positions: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Positions:
    """Positions of the rows of a source, for any chunk.

    Where the sizes of all chunks are known, the position of a row is its number in the source, in
    the order of its axes, whatever the chunks are. Elsewhere it is the number of the chunk together
    with the number of the row in the chunk.

    Parameters
    ----------
    starts
        For each leading axis, the number of rows of a chunk if all but the last have the same
        number, or the first index of each chunk. Empty if lengths of chunks are unknown.
    shape
        Lengths of the leading axes.
    offset
        Position of the first row, ``>= 0``.

    Examples
    --------
    >>> positions = Positions((100,), (1000,))
    >>> positions.of((3,), np.zeros((100, 2)), row=5)
    Place(stream=(), start=305, positions=None)
    """

    starts: tuple[int | tuple[int, ...], ...]
    shape: tuple[int, ...]
    offset: int = 0

    @classmethod
    def in_source(cls, samples: Samples, offset: int = 0) -> Positions:
        """Positions of the rows of samples, from ``offset`` on."""
        blocks = samples.blocks
        if not isinstance(blocks, da.Array) or samples.n_samples is None:
            return cls((), (), offset)
        shape = tuple(map(int, blocks.shape[:-1]))
        return cls(tuple(map(_starts, blocks.chunks[:-1])), shape, offset)

    def of(self, number: tuple[int, ...], rows: Any, row: int = 0) -> Place:
        """Place of the rows of one block.

        Parameters
        ----------
        number
            Number of the chunk, along each axis.
        rows
            Rows of the block, shape (..., n_features).
        row
            Number of its first row in the chunk.
        """
        if not self.starts:
            return Place(number, row + self.offset)
        first = [
            start * i if isinstance(start, int) else start[i]
            for start, i in zip(self.starts, number, strict=True)
        ]
        if len(first) == 1:
            return Place((), first[0] + row + self.offset)
        starts = np.zeros((1,) * len(first), dtype=np.int64)
        for axis, (start, n) in enumerate(zip(first, rows.shape[:-1], strict=True)):
            along = np.arange(start, start + n) * int(np.prod(self.shape[axis + 1 :]))
            starts = starts + along.reshape([-1 if i == axis else 1 for i in range(len(first))])
        return Place((), 0, starts.ravel() + self.offset)


def _starts(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    """Size of regular chunks, or the first index of each chunk."""
    if all(size == sizes[0] for size in sizes[:-1]):
        return int(sizes[0])
    return tuple(np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(int).tolist())
