"""Parquet files as samples: one task for each file, or for each run of row groups.

A folder that cannot be listed is an error. ``find`` and ``glob`` of fsspec leave out such folders,
whose files a job would take for deleted ones.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import dask.array as da
import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from dask_sketch.errors import ChunkError, InputError, install_command
from dask_sketch.sources.arrow import empty_frame, to_frame
from dask_sketch.sources.dataframe import feature_columns, frame_samples
from dask_sketch.sources.group_labels import Groups, number_labels
from dask_sketch.sources.samples import FilePart, Samples, StoredFiles, target_bytes
from dask_sketch.storage.overwrite import path_exists
from dask_sketch.storage.untrusted import with_time_limits
from dask_sketch.validation.tables import common_dtype, first_few, require_numeric
from dask_sketch.validation.warn import warn_user

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".parquet", ".parq", ".pq")
# `find` is one listing without folders, which fails as a whole
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
Infos = dict[str, dict[str, Any]]
# Largest size of the rows of one part in bytes: a few bytes on disk can state any number of rows.
MAX_BYTES = 2**32
# Largest assumed ratio of the decoded size of a file to its stored size: footers are not read of
# files that are then smaller than a task.
_GROWTH = 8
_MAX_READ = 3  # files that can be read, of which one must have the columns
_MAX_OPENED = 100  # largest files, of which one must be readable
_READERS = 16  # folders that are listed at once, or footers that are read
_CONVERT = "Convert them to numbers, or leave out the columns, or the file."
_LABEL_BYTES = 16  # size of one label in memory: repeated text is stored once


def is_glob(fs: Any, path: str) -> bool:
    """Whether a path is a pattern, not the name of a file with such characters."""
    return any(sign in path for sign in "*?[") and not path_exists(fs, path)


def list_parquet_files(fs: Any, location: str) -> dict[str, int]:
    """Sizes of the Parquet files at a path, sorted by path.

    Below a folder, files whose names or folders begin with a dot or an underscore are left out
    with a warning: other programs keep unfinished and removed files there. A pattern with a step
    that begins like that finds them, and folders such as ``_day=1`` are not such folders.

    Parameters
    ----------
    fs
        File system.
    location
        Path of a file or folder, or a pattern, without the protocol.

    Raises
    ------
    InputError
        If there is a symbolic link or a special file among them, which listings leave out.
    OSError
        If a folder cannot be listed. Errors of file systems may be of other types.

    Examples
    --------
    >>> from fsspec.implementations.memory import MemoryFileSystem
    >>> fs = MemoryFileSystem()
    >>> fs.pipe({"/days/day=1/0.parquet": b"123", "/days/day=2/0.parquet": b"4"})
    >>> list_parquet_files(fs, "/days/day=*/*.parquet")
    {'/days/day=1/0.parquet': 3, '/days/day=2/0.parquet': 1}
    """
    fs.invalidate_cache()  # object stores keep listings, and each call needs a new one
    left_out: list[str] = []
    root, marks = location, {".", "_"}
    if is_glob(fs, location):
        root = _folder_of(location, fs.root_marker)
        marks -= {step[:1] for step in location.removeprefix(root).split("/")}
        listed = _matching(fs, location)
        if isinstance(fs, LocalFileSystem):  # this follows links to folders
            left_out += set(glob.glob(location, recursive=True)) - set(listed)  # noqa: PTH207
    elif fs.isdir(location):
        listed = _below(fs, location)
    else:
        return {location: int(fs.info(location)["size"])}
    hidden = {name for name in (*listed, *left_out) if _is_hidden(name, root, marks)}
    special = [name for name, info in listed.items() if info["type"] not in ("file", "directory")]
    left_out = [name for name in left_out if _is_data(name)]
    left_out += [name for name in special if _is_data(name) or fs.isdir(name)]
    left_out = [name for name in left_out if name not in hidden]
    if left_out:
        raise InputError(
            f"x={location!r}: {min(left_out)} is, or lies below, a symbolic link or a special "
            f"file, {len(left_out):,} in all, and these are not followed: put the files themselves "
            "there, or give the folder to which the link leads."
        )
    files = {
        name: int(info["size"])
        for name, info in sorted(listed.items())
        if info["type"] == "file" and _is_data(name)
    }
    skipped = [name for name in files if name in hidden]
    if skipped:
        warn_user(
            f"x={location!r}: {len(skipped):,} of {len(files):,} Parquet files are left out, "
            f"because their names or folders begin with a dot or an underscore: {skipped[0]}. If "
            "they are data, rename them, or give a pattern that begins like that."
        )
    return {name: size for name, size in files.items() if name not in hidden}


def _matching(fs: Any, pattern: str) -> Infos:
    """Files and folders that match a pattern; only folders that match its steps are listed."""
    root = _folder_of(pattern, fs.root_marker)
    if "**" in pattern:
        return {name: info for name, info in _below(fs, root).items() if _matches(pattern)(name)}
    listed: Infos = {root: {"name": root, "type": "directory"}}
    steps = pattern.split("/")
    for last in range(_n_plain(steps), len(steps)):
        fits = _matches("/".join(steps[: last + 1]))
        contents = _contents(fs, _folders(listed))
        listed = {name: info for name, info in contents.items() if fits(name)}
    return listed


def _n_plain(steps: list[str]) -> int:
    """Number of steps of a pattern before the first one with a wildcard."""
    return next(i for i, step in enumerate(steps) if set(step) & set("*?["))


def _folder_of(pattern: str, root_marker: str) -> str:
    """Folder below which a pattern matches."""
    steps = pattern.split("/")
    return "/".join(steps[: _n_plain(steps)]) or root_marker


def _matches(pattern: str) -> Callable[[str], object]:
    return re.compile(glob_translate(pattern)).match


def _below(fs: Any, root: str) -> Infos:
    """All files and folders below a folder; of an object store the files alone."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & _OBJECT_STORES:
        files: Infos = fs.find(root, detail=True)
        return files
    out: Infos = {}
    folders = [root]
    while folders:
        new = _contents(fs, folders)
        folders = [name for name in _folders(new) if name not in out]  # web pages link to others
        out |= new
    return out


def _folders(infos: Infos) -> list[str]:
    return [name for name, info in infos.items() if info["type"] == "directory"]


def _contents(fs: Any, folders: Iterable[str]) -> Infos:
    """Files and folders in several folders, by their paths."""
    out: Infos = {}
    with ThreadPoolExecutor(_READERS) as pool:
        folders = list(folders)
        for folder, infos in zip(folders, pool.map(partial(_list, fs), folders), strict=True):
            named = {info["name"].rstrip("/"): info for info in infos}
            # object stores may list a folder in itself
            out |= {name: info for name, info in named.items() if name != folder.rstrip("/")}
    return out


def _list(fs: Any, folder: str) -> list[dict[str, Any]]:
    try:
        entries: list[dict[str, Any]] = fs.ls(folder, detail=True)
    except FileNotFoundError:  # removed since its parent was listed
        return []
    return entries


def _is_hidden(name: str, root: str, marks: set[str]) -> bool:
    """Whether a step below the root begins with a mark; ``_day=1`` is the folder of a partition."""
    steps = name.removeprefix(root).split("/")
    return any(step[:1] in marks and not (step[0] == "_" and "=" in step) for step in steps)


def _is_data(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


@dataclass(frozen=True)
class PartReader:
    """Read one part of the files; errors name the file and the row groups.

    Attributes
    ----------
    columns
        Columns to read, in order.
    fs
        File system.
    numeric
        Columns that must be numbers: the features and the weights.
    """

    columns: tuple[str, ...]
    fs: fsspec.AbstractFileSystem
    numeric: tuple[str, ...] = ()

    def __call__(self, part: FilePart) -> pd.DataFrame:
        """Return the columns of one part as a frame."""
        import pyarrow.parquet as pq

        if part.failure is not None:
            raise ChunkError(part.failure)
        try:
            with (
                self.fs.open(part.path, "rb") as handle,
                pq.ParquetFile(handle, page_checksum_verification=True) as parquet,
            ):
                _require_columns(parquet.schema_arrow.names, self.columns, part.path)
                groups = range(parquet.num_row_groups)
                chosen = list(groups if part.row_groups is None else part.row_groups)
                _require_small(parquet.metadata, chosen, len(self.columns))
                table = parquet.read_row_groups(
                    chosen, columns=list(self.columns), use_threads=False
                )
                # each column is freed as it is converted, so that memory holds one table
                table = table.select(list(self.columns))
                frame = to_frame(table, self_destruct=True)
        except ChunkError:
            raise
        except Exception as error:  # decoders raise errors of many kinds
            where = "" if part.row_groups is None else f" (row groups {list(part.row_groups)})"
            raise ChunkError(
                f"{part.path}{where} could not be read: {type(error).__name__}: {_plain(error)}. "
                "Restore the file, check that it has the same columns, or leave it out."
            ) from error
        try:
            dtypes = [(name, frame.dtypes[name]) for name in self.numeric]
            require_numeric(dtypes, part.path, _CONVERT)
        except InputError as error:
            raise ChunkError(str(error)) from error
        return frame


def _require_columns(present: Sequence[str], wanted: Sequence[str], path: str) -> None:
    """Raise ChunkError for a file that lacks a column that other files have."""
    missing = [name for name in wanted if name not in present]
    if missing:
        others = [name for name in present if name not in wanted]
        raise ChunkError(
            f"{path} could not be read: it lacks the columns {first_few(map(repr, missing))}"
            + (f", and has {first_few(map(repr, others))} beside the others" if others else "")
            + ". Restore or rename the columns, or leave out the file."
        )


def _require_small(metadata: Any, row_groups: list[int], n_columns: int) -> None:
    """Raise InputError, before they are decoded, for rows that are too large by their footer."""
    stated = [metadata.row_group(group) for group in row_groups]
    size = sum(max(group.num_rows * n_columns * 8, group.total_byte_size) for group in stated)
    if size > MAX_BYTES:
        raise InputError(
            f"its rows have {size:,} bytes, over the limit of {MAX_BYTES:,} for one task: write it "
            "with smaller row groups"
        )


def parquet_samples(
    path: str,
    *,
    columns: Sequence[str] | None = None,
    weights: Any = None,
    groups: Any = None,
    storage_options: dict[str, Any] | None = None,
    chunk_size: str | int | None = None,
    categories: Any = None,
) -> Samples:
    """Make samples of a Parquet file, a directory of files or a glob.

    Files are not opened to count rows: only the footer of the largest file is read, for the
    columns, and the footers of files that may be larger than a task. Such a file is divided between
    row groups. The division depends on that file alone, so that keys of partitions last. A file
    whose footer cannot be read is one part, whose task fails.

    Parameters
    ----------
    path
        Path, URL, glob or directory (searched at all depths).
    columns
        Columns that are features, in this order; all but the weights, the labels and the index by
        default.
    weights, groups
        Names of the columns of weights and of labels; for labels also the name of a key in the
        paths, such as ``day`` in ``day=1/0.parquet``.
    storage_options
        Options of the file system of a URL.
    chunk_size
        Target size of one task in bytes.
    categories
        Argument of :func:`dask_sketch.open_samples`.

    Raises
    ------
    InputError
        If there is no file, a file of a folder or glob is a symbolic link, or a column is missing
        or not numeric.
    """
    try:
        import dask.dataframe as dd
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise InputError(f"x={path!r} needs pyarrow: {install_command('parquet')}.") from error
    fs, location, sizes = _find_files(path, storage_options)
    first, meta, n_rows = _largest_with_columns(fs, sizes, columns)
    weight = _column(weights, meta, path, "weights")
    group = None
    if not isinstance(groups, str) or groups in meta or not _has_key(sizes, groups):
        group = _column(groups, meta, path, "groups")
    names, levels = feature_columns(columns, meta.dtypes, weight, path, group, categories)
    chosen = (*names, *([weight] if weight else []))
    width = _row_bytes(meta, chosen, group is not None)
    needed = tuple(dict.fromkeys([*chosen, *([group] if group else [])]))
    # ratio of decoded to stored size; sizes in the footer are of encoded columns
    growth = max(n_rows * width, 1) / max(sizes[first], 1)
    target = target_bytes(chunk_size)
    parts: list[FilePart] = []
    largest = 0
    long = [file for file, size in sizes.items() if size * _GROWTH > target]
    split = partial(_split, fs, target, chosen, group is not None)
    with ThreadPoolExecutor(_READERS) as pool:
        pieces_of = dict(zip(long, pool.map(split, long, map(sizes.get, long)), strict=True))
    for file, size in sizes.items():
        pieces = pieces_of.get(file, {FilePart(file, None): int(size * growth)})
        parts += pieces
        largest = max(largest, *pieces.values())
    reader = PartReader(needed, fs, tuple(name for name in chosen if name not in levels))
    frame = dd.from_map(reader, parts, meta=meta[list(needed)], label="read-parquet")
    return frame_samples(
        frame,
        path,
        weight=weight,
        group=group,
        groups=None if groups is None or group else _groups_of_paths(parts, groups),
        columns=list(names),
        categories=levels or None,
        bytes_read=sum(sizes.values()),
        largest_chunk=largest,
        origin=StoredFiles(fs, location, tuple(parts), needed),
        copies=4,  # bytes of the file, columns of Arrow, columns of pandas and the block
    )


def _find_files(
    path: str, storage_options: dict[str, Any] | None
) -> tuple[fsspec.AbstractFileSystem, str, dict[str, int]]:
    """File system of a path, the path on it, and the sizes of its files, at least one."""
    try:
        fs, location = fsspec.core.url_to_fs(path, **with_time_limits(path, storage_options))
        sizes = list_parquet_files(fs, location)
    except InputError:
        raise
    except Exception as error:  # file systems fail in many ways
        raise InputError(
            f"x={path!r} could not be listed: {type(error).__name__}: {_plain(error)}. Check the "
            "path; for a URL also storage_options, and that the credentials are valid."
        ) from error
    if not sizes:
        raise InputError(
            f"x={path!r} has no Parquet data: no file ends in {', '.join(SUFFIXES)}. Check the "
            "path."
        )
    return fs, location, sizes


def _largest_with_columns(
    fs: Any, sizes: dict[str, int], columns: Sequence[str] | None
) -> tuple[str, pd.DataFrame, int]:
    """Find the largest file that has the columns as numbers; return its path, columns and rows.

    The columns are those of a frame without rows, and the rows are counted. The largest file is
    taken because sizes are extrapolated from it, which an empty one would not allow. A damaged
    file, or one without the columns, is an error of the task that reads it.
    """
    import pyarrow.parquet as pq

    read: list[tuple[str, pd.DataFrame, int]] = []
    failure: ChunkError | None = None
    for name in sorted(sizes, key=lambda name: -sizes[name])[:_MAX_OPENED]:
        try:
            with fs.open(name, "rb") as handle, pq.ParquetFile(handle) as parquet:
                meta, n_rows = empty_frame(parquet.schema_arrow), parquet.metadata.num_rows
        except Exception as error:  # damaged metadata of pandas raises errors of many kinds
            failure = failure or ChunkError(_failure(name, error))
            continue
        read.append((name, meta, n_rows))
        if columns is None or _has_numbers(meta, columns):
            return read[-1]
        if len(read) == _MAX_READ:
            break
    if not read:
        assert failure is not None
        raise failure
    return read[0]


def _has_numbers(meta: pd.DataFrame, columns: Sequence[str]) -> bool:
    """Whether a frame has all columns, and they are numeric."""
    from pandas.api.types import is_numeric_dtype

    return set(columns) <= set(meta) and all(is_numeric_dtype(meta.dtypes[c]) for c in columns)


def _plain(error: Exception) -> str:
    """Text of an error without the full stop at its end."""
    return str(error).strip().rstrip(".")


def _failure(file: str, error: Exception) -> str:
    """Message for a file that cannot be read, with the text of the error and a remedy."""
    text, remedy = _plain(error), "Restore it."
    if "range requests" in text:
        remedy = "Copy it here, or take a server that answers requests for ranges of bytes."
    return f"{file} could not be read: {type(error).__name__}: {text}. {remedy}"


def _row_bytes(meta: pd.DataFrame, chosen: Sequence[str], labelled: bool) -> int:
    """Size of one row in memory in bytes."""
    size = common_dtype([meta.dtypes[name] for name in chosen]).itemsize * len(chosen)
    return size + _LABEL_BYTES * labelled


def _split(
    fs: Any, target: int, chosen: Sequence[str], labelled: bool, file: str, stored: int
) -> dict[FilePart, int]:
    """Divide one large file into runs of row groups near the target size; return their sizes."""
    import pyarrow.parquet as pq

    try:
        with fs.open(file, "rb") as handle, pq.ParquetFile(handle) as parquet:
            meta = empty_frame(parquet.schema_arrow)
            # a file without these columns is an error of the task that reads it
            readable = set(chosen) <= set(meta)
            width = _row_bytes(meta, chosen, labelled) if readable else 8 * len(chosen)
            sizes = [
                parquet.metadata.row_group(g).num_rows * width
                for g in range(parquet.metadata.num_row_groups)
            ]
    except Exception as error:
        # its task reports the error, so that all other files can be read
        if stored <= target:  # hardly ever divided
            return {FilePart(file, None): stored}
        return {FilePart(file, None, _failure(file, error)): 0}
    if sum(sizes) <= target:
        return {FilePart(file, None): sum(sizes)}
    parts: dict[FilePart, int] = {}
    run: list[int] = []
    held = 0
    for group, size in enumerate(sizes):
        if run and held + size > target:
            parts[FilePart(file, tuple(run))] = held
            run, held = [], 0
        run.append(group)
        held += size
    parts[FilePart(file, tuple(run))] = held
    return parts


def _has_key(paths: Iterable[str], key: str) -> bool:
    return all(f"/{key}=" in path for path in paths)


def _groups_of_paths(parts: Sequence[FilePart], key: str) -> Groups:
    """Labels in the paths: one for all rows of a part."""
    texts = [part.path.split(f"/{key}=", 1)[1].split("/", 1)[0] for part in parts]
    integers = all(text.isdecimal() and text == str(int(text)) for text in texts)
    labels = list(map(int, texts)) if integers else texts
    codes, names = number_labels(labels, f"the values of {key} in the paths")
    lazy = da.from_array(codes[:, None], chunks=1, inline_array=True, name=False)
    return Groups(key, lazy, names, len(names))


def _column(name: Any, meta: Any, label: str, argument: str) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise InputError(
            f"{argument} of type {type(name).__name__} cannot be matched to the rows of {label}: "
            "give the name of a column.",
            parameter=argument,
        )
    if name not in meta:
        raise InputError(
            f"{argument}={name!r}: choose one of the columns of {label}, {list(meta)}."
        )
    return name
