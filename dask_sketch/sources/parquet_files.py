"""Parquet files at a path or URL; a folder that cannot be listed is an error.

``find`` and ``glob`` of fsspec leave out folders that they cannot list. A job would take the files
of such a folder for deleted ones.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from dask_sketch.errors import InputError
from dask_sketch.validation.warn import warn_user

SUFFIXES = (".parquet", ".parq", ".pq")
_READERS = 16  # folders that are listed at once
# `find` is one listing without folders, which fails as a whole
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
Infos = dict[str, dict[str, Any]]


def is_glob(fs: Any, found: str) -> bool:
    """Whether a path is a pattern, not the name of a file with such characters."""
    return any(sign in found for sign in "*?[") and not fs.exists(found)


def list_parquet_files(fs: Any, found: str) -> dict[str, int]:
    """Sizes of the Parquet files at a path, sorted by path.

    Below a folder, files whose names or folders begin with a dot or an underscore are left out
    with a warning: other programs keep unfinished and removed files there. A pattern with a step
    that begins like that finds them, and folders such as ``_day=1`` are no such folders.

    Parameters
    ----------
    fs
        File system.
    found
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
    fs.invalidate_cache()  # object stores keep listings, of which each call needs a new one
    left_out: list[str] = []
    root, marks = found, {".", "_"}
    if is_glob(fs, found):
        root = _folder_of(found, fs.root_marker)
        marks -= {step[:1] for step in found.removeprefix(root).split("/")}
        listed = _matching(fs, found)
        if isinstance(fs, LocalFileSystem):  # this follows links to folders
            left_out += set(glob.glob(found, recursive=True)) - set(listed)  # noqa: PTH207
    elif fs.isdir(found):
        listed = _below(fs, found)
    else:
        return {found: int(fs.info(found)["size"])}
    hidden = {name for name in (*listed, *left_out) if _is_hidden(name, root, marks)}
    other = [name for name, info in listed.items() if info["type"] not in ("file", "directory")]
    left_out = [name for name in left_out if _is_data(name)]
    left_out += [name for name in other if _is_data(name) or fs.isdir(name)]
    left_out = [name for name in left_out if name not in hidden]
    if left_out:
        raise InputError(
            f"x={found!r}: {min(left_out)} is, or lies below, a symbolic link or a special file, "
            f"{len(left_out):,} in all, and these are not followed: put the files themselves "
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
            f"x={found!r}: {len(skipped):,} of {len(files):,} Parquet files are left out, because "
            f"their names or folders begin with a dot or an underscore: {skipped[0]}. If they are "
            "data, rename them, or give a pattern that begins like that."
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
        found = _contents(fs, _folders(listed))
        listed = {name: info for name, info in found.items() if fits(name)}
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
        found: Infos = fs.find(root, detail=True)
        return found
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
        found: list[dict[str, Any]] = fs.ls(folder, detail=True)
    except FileNotFoundError:  # removed since its parent was listed
        return []
    return found


def _is_hidden(name: str, root: str, marks: set[str]) -> bool:
    """Whether a step below the root begins with a mark; ``_day=1`` is the folder of a partition."""
    steps = name.removeprefix(root).split("/")
    return any(step[:1] in marks and not (step[0] == "_" and "=" in step) for step in steps)


def _is_data(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)
