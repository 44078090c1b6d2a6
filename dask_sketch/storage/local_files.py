"""Read local files that may be pipes or devices, and replace files and folders at once."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dask_sketch.errors import ArtifactError

_OLD_AFTER = 3600.0  # seconds after which the scratch folder of another process is swept
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # constants of <fcntl.h> and <linux/fs.h>


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file or folder by what is written within a ``with`` block.

    A reader that opens the path sees the earlier content or the new one. Where the file system
    cannot exchange two folders, there is none for a moment between two renames. If the block
    raises an error, the earlier content stays.

    Parameters
    ----------
    path
        Path to replace, or a symbolic link to it; missing parents are made.

    Yields
    ------
    new
        Path beside it to write to.

    Raises
    ------
    ArtifactError
        If the path is a device, pipe or socket, or leads to something else through ``..`` behind a
        folder that does not exist.

    Examples
    --------
    >>> path = Path(tempfile.mkdtemp()) / "page.html"
    >>> with replacing(path) as new:
    ...     _ = new.write_text("<!doctype html>")
    >>> path.read_text(), [found.name for found in path.parent.iterdir()]
    ('<!doctype html>', ['page.html'])
    """
    given, path = path, path.resolve()
    if os.path.lexists(path) and not os.path.lexists(given):
        raise ArtifactError(
            f"path={str(given)!r} leads through a folder that does not exist: give "
            f"{str(path)!r}, if that is to be replaced."
        )
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ArtifactError(
            f"path={str(path)!r} is a device, pipe or socket, which is not replaced. Choose "
            "another path."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield scratch / "new"
        _move(scratch / "new", path, scratch / "old")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise errors of the file system, such as a full disk, as errors of the package.

    Parameters
    ----------
    path
        Path or URL that is written within the ``with`` block.

    Raises
    ------
    ArtifactError
        If it cannot be written; the message names it.
    """
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"path={os.fspath(path)!r} cannot be written: {error.strerror or error} "
            f"({type(error).__name__}). Free space there, or choose another path."
        ) from error


def _move(new: Path, path: Path, old: Path) -> None:
    if not (new.is_dir() and path.is_dir()):
        new.replace(path)
        return
    if _exchange(new, path):
        return
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths at once; False where the system or the file system cannot."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # another system than Linux
        return False
    paths = os.fsencode(one), os.fsencode(other)
    return bool(exchange(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0)


def scratch_folders(path: Path) -> Iterator[Path]:
    """Scratch folders of all processes that are replacing a path, or were killed while doing so."""
    name = re.compile(rf"\.{re.escape(path.resolve().name)}-[a-z0-9_]{{8}}")
    with contextlib.suppress(OSError):
        for folder in path.resolve().parent.iterdir():
            if name.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
                yield folder


def _sweep(path: Path) -> None:
    """Remove old scratch folders."""
    for folder in scratch_folders(path):
        with contextlib.suppress(OSError):
            ours = {entry.name for entry in folder.iterdir()} <= {"new", "old"}
            if ours and time.time() - folder.stat().st_mtime > _OLD_AFTER:
                shutil.rmtree(folder)


def read_regular_file(path: Path, limit: int) -> bytes:
    """Read at most ``limit`` bytes of a file; pipes and devices, which may never end, are refused.

    Parameters
    ----------
    path
        Path of the file. Symbolic links are followed.
    limit
        Largest number of bytes.

    Raises
    ------
    OSError
        If the file cannot be read, is not a regular file, or no file can have this name.

    Examples
    --------
    >>> len(read_regular_file(Path(__file__), 3))
    3
    >>> read_regular_file(Path("/dev/zero"), 3)
    Traceback (most recent call last):
    OSError: [Errno 22] not a regular file: '/dev/zero'
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer would block
    except ValueError as error:  # a zero byte, or text that no file system has
        raise OSError(errno.EINVAL, "no file has this name") from error
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(limit)
