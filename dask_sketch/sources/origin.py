"""Stored files from which the chunks of a source are read, so that changes can be noticed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec

if TYPE_CHECKING:
    import zarr


@dataclass(frozen=True)
class StoredChunks:
    """Chunks of a Zarr source: rows of one array, and of one array of weights.

    Attributes
    ----------
    store
        Path or URL of the store, ``None`` for a store without files.
    storage_options
        Options of the file system of a URL.
    arrays
        Array of the samples, and that of the weights if they are stored.
    step
        Number of rows of each chunk but the last.
    is_lasting
        Whether the step stays the same when the store grows.
    """

    store: Path | str | None
    storage_options: Mapping[str, Any] | None
    arrays: tuple[zarr.Array[Any], ...]
    step: int
    is_lasting: bool


@dataclass(frozen=True)
class Part:
    """Some row groups of one Parquet file, or all of it, which one task reads.

    Attributes
    ----------
    path
        Path of the file.
    row_groups
        Numbers of the row groups, ``None`` for all.
    """

    path: str
    row_groups: tuple[int, ...] | None


@dataclass(frozen=True)
class StoredFiles:
    """Chunks of a Parquet source: one file each, or some row groups of one.

    Attributes
    ----------
    fs, root
        File system, and the path, folder or glob on it.
    parts
        Parts of files, one for each chunk.
    columns
        Names of the columns to read, in their order.
    """

    fs: fsspec.AbstractFileSystem
    root: str
    parts: tuple[Part, ...]
    columns: tuple[str, ...]
