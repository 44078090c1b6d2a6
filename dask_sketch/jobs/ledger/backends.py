"""Storage backends of a ledger: small objects under one root, on a local disk or an fsspec URL.

An object is written completely or not at all. It never changes under its name (except the lock),
and is on the disk when the call returns. Reading takes a limit, so that nothing larger is
allocated. Names lead to objects below the root only, and symbolic links below the root are refused:
a ledger of another author must not lead readers, or the removal of old objects, to other places.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dask_sketch.errors import LedgerError, LedgerLocked
from dask_sketch.storage.local_files import read_regular_file
from dask_sketch.storage.overwrite import local_path, resolve_parents

MOMENT, _BETWEEN = 30.0, 0.02  # seconds until a lock of a moment is given up, and between tries


class FolderLocked(LedgerLocked):
    """Another process locks the folder of the ledger for longer than a moment."""


class Backend(Protocol):
    """Operations of a file system that a ledger needs.

    Names of objects are relative to the root, with ``/`` between folders.

    Attributes
    ----------
    label
        Path or URL of the root, for messages.
    """

    label: str

    def read(self, name: str, limit: int) -> bytes:
        """Read an object of at most ``limit`` bytes; ``FileNotFoundError`` if there is none."""

    def read_many(self, limits: Mapping[str, int]) -> dict[str, bytes]:
        """Read several objects by name, each with its limit; all must exist."""

    def write(self, objects: Mapping[str, bytes]) -> None:
        """Write objects under new names."""

    def write_new(self, name: str, content: bytes) -> None:
        """Write an object that must not exist yet; ``FileExistsError`` if it does."""

    def replace(self, name: str, content: bytes) -> None:
        """Replace an object."""

    def names(self, folder: str) -> list[str]:
        """List the names in a folder, sorted; none if the folder does not exist."""

    def find(self, folder: str) -> list[str]:
        """List the names of all objects below a folder, relative to it, sorted."""

    def remove(self, name: str) -> None:
        """Remove an object or a folder with its content, if it exists."""

    def require_no_links(self) -> None:
        """Refuse a root in which a folder is a symbolic link, if the file system has links."""

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Exclude other processes for a moment, if the file system can.

        Raises
        ------
        FolderLocked
            If another process excludes this one for half a minute.
        """

    def wait_until_visible(self, seconds: float) -> None:
        """Wait until a write is visible to others, if it is not at once."""


def open_backend(url: Any, storage_options: dict[str, Any] | None = None) -> Backend:
    """Open the backend at a path or URL.

    Parameters
    ----------
    url
        Path, or URL of any fsspec file system.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    backend
        Backend of a local folder, or of a root on another file system.

    Raises
    ------
    LedgerError
        If ``url`` is neither a path nor a URL, or its file system cannot be used.
    """
    path = local_path(url) if url else None
    if path is not None:
        return _Local(path.absolute())
    if not isinstance(url, str) or not url:
        raise LedgerError(f"url={url!r}: give the path or the URL of a ledger.")
    try:
        fs, root = fsspec.core.url_to_fs(url, **(storage_options or {}))
    except (OSError, ImportError, ValueError, TypeError) as error:
        raise LedgerError(
            f"url={url!r}: no file system ({type(error).__name__}: {error}). Check the URL and its "
            "options."
        ) from error
    if isinstance(fs, LocalFileSystem):
        return _Local(resolve_parents(Path(root)))
    return _Remote(fs, root.rstrip("/"), url)


@contextlib.contextmanager
def _errors(operation: str, label: str, kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of the file system as ``LedgerError``, except errors of existence."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, LedgerError):
        raise
    except kinds as error:
        raise LedgerError(
            f"{label} could not be {operation}: {type(error).__name__}: {error}. Commits are not "
            "affected; remove the cause and run again."
        ) from error


@contextlib.contextmanager
def _missing_folders() -> Iterator[None]:
    """Treat a path that leads through a file as one that does not exist."""
    try:
        yield
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, error.filename) from error


def _require_name(name: str, label: str) -> str:
    """Refuse a name that leads out of the ledger."""
    parts = name.split("/") if name else []
    if any(part in ("", ".", "..") or set(part) & {"\\", "\0"} for part in parts):
        raise LedgerError(f"{label} holds no object {name!r}: the name leads out of the ledger.")
    return name


def _require(content: bytes, limit: int, name: str) -> bytes:
    if len(content) > limit:
        raise LedgerError(f"{name} has more than the {limit:,} bytes that are expected.")
    return content


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


class _Local:
    """A folder of this machine."""

    def __init__(self, root: Path):
        self.root = root
        self.label = str(root)

    def _path(self, name: str) -> Path:
        """Path of an object, none of whose folders is a symbolic link."""
        path = str(self.root)
        with _errors("reached", path, OSError):
            for part in filter(None, _require_name(name, self.label).split("/")):
                path = f"{path.rstrip(os.sep)}{os.sep}{part}"
                if _is_link(path):
                    raise LedgerError(
                        f"{path} is a symbolic link, and a ledger holds none: it was edited. "
                        "Replace the link by what it leads to."
                    )
        return Path(path)

    def read(self, name: str, limit: int) -> bytes:
        path = self._path(name)
        with _errors("read", str(path), OSError), _missing_folders():
            return _require(read_regular_file(path, limit + 1), limit, str(path))

    def read_many(self, limits: Mapping[str, int]) -> dict[str, bytes]:
        return {name: self.read(name, limit) for name, limit in limits.items()}

    def write(self, objects: Mapping[str, bytes]) -> None:
        folders: set[Path] = set()
        for name, content in objects.items():
            path = self._path(name)
            with _errors("written", str(path), OSError):
                folders |= _make_folders(path.parent)
                folders.add(path.parent)
                with _temporary(path, content) as scratch:
                    scratch.replace(path)
        for folder in sorted(folders):
            with _errors("written", str(folder), OSError):
                _sync_folder(folder)

    def write_new(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with _errors("written", str(path), OSError):
            folders = _make_folders(path.parent)
            with _temporary(path, content) as scratch:
                os.link(scratch, path)  # atomic, and refused if the path exists
            for folder in {path.parent, *folders}:
                _sync_folder(folder)

    def replace(self, name: str, content: bytes) -> None:
        self.write({name: content})

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        with _errors("listed", str(path), OSError):
            try:
                return sorted(entry.name for entry in path.iterdir())
            except FileNotFoundError:
                return []

    def find(self, folder: str) -> list[str]:
        path = self._path(folder)
        with _errors("listed", str(path), OSError):
            return sorted(
                file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()
            )

    def remove(self, name: str) -> None:
        path = self._path(name)
        with _errors("removed", str(path), OSError), contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def require_no_links(self) -> None:
        for name in self.names(""):
            self._path(name)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        try:
            handle = os.open(self.root, os.O_RDONLY)
        except OSError as error:
            raise LedgerError(
                f"{self.root} cannot be reached ({error}): check the disk."
            ) from error
        try:
            with contextlib.suppress(OSError):  # some network file systems have no such locks
                _lock_folder(handle, self.root)
            yield
        finally:
            os.close(handle)  # releases the lock

    def wait_until_visible(self, seconds: float) -> None:
        pass  # writes are visible at once


def _lock_folder(handle: int, folder: Path) -> None:
    """Lock a folder, which other processes do for a moment.

    The call that waits in the kernel would not end if another process was suspended at that moment.
    """
    end = time.monotonic() + MOMENT
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise FolderLocked(
                    f"{folder} is locked by a process that has not gone on for {MOMENT:.0f} s, "
                    f"such as a suspended one: `fuser {folder}` names it; continue or end it."
                ) from None
        time.sleep(_BETWEEN)


def _make_folders(path: Path) -> set[Path]:
    """Make a folder and its missing parents; return the folders with a new entry."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:  # would mean that the object exists
            raise NotADirectoryError(error.errno, "not a folder", str(folder)) from error
    return {folder.parent for folder in missing}


@contextlib.contextmanager
def _temporary(path: Path, content: bytes) -> Iterator[Path]:
    """Write the content to a temporary file in the folder of ``path``, and sync it to the disk."""
    scratch = path.parent / f".{path.name}-{secrets.token_hex(8)}"
    try:
        with scratch.open("xb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        yield scratch
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def _sync_folder(path: Path) -> None:
    """Sync the names in a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Remote:
    """A root on an fsspec file system that writes objects atomically.

    S3, Google Cloud Storage and Azure can create an object only if there is none, see
    https://github.com/fsspec/filesystem_spec/issues/1693. Other file systems check before they
    write, so that only the lock excludes a second writer in between.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem, root: str, label: str):
        self.fs = fs
        self.root = root
        self.label = label

    def _path(self, name: str) -> str:
        return f"{self.root}/{_require_name(name, self.label)}"

    def _label(self, name: str) -> str:
        return f"{self.label.rstrip('/')}/{name}"

    def read(self, name: str, limit: int) -> bytes:
        return self.read_many({name: limit})[name]

    def read_many(self, limits: Mapping[str, int]) -> dict[str, bytes]:
        names = list(limits)
        with _errors("read", self.label, Exception):
            # a range that is one byte longer than the limit detects larger objects
            contents = self.fs.cat_ranges(
                [self._path(name) for name in names],
                [0] * len(names),
                [limits[name] + 1 for name in names],
            )
        out = {}
        for name, content in zip(names, contents, strict=True):
            with _errors("read", self._label(name), Exception):
                if isinstance(content, Exception):
                    raise content
            out[name] = _require(bytes(content), limits[name], self._label(name))
        return out

    def write(self, objects: Mapping[str, bytes]) -> None:
        with _errors("written", self.label, Exception):
            self.fs.pipe({self._path(name): content for name, content in objects.items()})

    def write_new(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with _errors("written", self._label(name), Exception):
            try:
                self.fs.pipe_file(path, content, mode="create")
            except Exception as error:  # file systems raise many types if the object exists
                existing = self._found(path, len(content) + 1)
                if existing is None:
                    raise
                # a request may have been sent twice, or its answer lost
                if existing != content:
                    raise FileExistsError(path) from error

    def _found(self, path: str, limit: int) -> bytes | None:
        """The first bytes of an object, if it can be read."""
        self.fs.invalidate_cache(path)
        (content,) = self.fs.cat_ranges([path], [0], [limit])
        return None if isinstance(content, Exception) else bytes(content)

    def replace(self, name: str, content: bytes) -> None:
        self.write({name: content})

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        with _errors("listed", self._label(folder), Exception):
            self.fs.invalidate_cache(path)
            try:
                paths: Iterable[str] = self.fs.ls(path, detail=False)
            except FileNotFoundError:
                return []
        return sorted({name.rstrip("/").rsplit("/", 1)[-1] for name in paths})

    def find(self, folder: str) -> list[str]:
        path = self._path(folder)
        with _errors("listed", self._label(folder), Exception):
            self.fs.invalidate_cache(path)
            root = f"{path}/"
            return sorted(name.removeprefix(root) for name in self.fs.find(path))

    def remove(self, name: str) -> None:
        path = self._path(name)
        with (
            _errors("removed", self._label(name), Exception),
            contextlib.suppress(FileNotFoundError),
        ):
            self.fs.invalidate_cache(path)
            self.fs.rm(path, recursive=True)

    def require_no_links(self) -> None:
        pass  # object stores have none

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def wait_until_visible(self, seconds: float) -> None:
        time.sleep(seconds)
