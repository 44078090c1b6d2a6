"""Where a ledger lies: small objects under one root, on a local disk or at an fsspec URL.

An object is written whole or not at all, never changed under its name (but for the lock), and is
on the disk when the call returns. Reading takes a limit: nothing larger is allocated.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import fsspec

from dask_sketch.errors import LedgerError
from dask_sketch.storage.overwrite import local_path


class Place(Protocol):
    """What a ledger asks of its file system. Names are relative, with ``/`` between folders."""

    label: str

    def read(self, name: str, limit: int) -> bytes:
        """Content of an object; ``FileNotFoundError`` if there is none, refused over ``limit``."""

    def read_many(self, limits: Mapping[str, int]) -> dict[str, bytes]:
        """Contents of several objects by name, each with its limit; all must exist."""

    def write(self, objects: Mapping[str, bytes]) -> None:
        """Write objects under names that nothing refers to yet."""

    def write_new(self, name: str, content: bytes) -> None:
        """Write an object that must not exist; ``FileExistsError`` if it does."""

    def replace(self, name: str, content: bytes) -> None:
        """Write an object over the one that is there."""

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none if there is no such folder."""

    def find(self, folder: str) -> list[str]:
        """Names of all objects below a folder, relative to it, sorted."""

    def remove(self, name: str) -> None:
        """Remove an object or a folder with all that is in it; nothing if it is gone."""

    def guard(self) -> contextlib.AbstractContextManager[None]:
        """Keeps other processes out for a moment, where the file system can."""

    def settle(self, seconds: float) -> None:
        """Wait until a write can be seen, where it is not at once."""


def place_of(url: Any, storage_options: dict[str, Any] | None = None) -> Place:
    """The place at a path or URL.

    Parameters
    ----------
    url
        Path, or URL of any fsspec file system.
    storage_options
        Options of the file system of a URL.

    Raises
    ------
    LedgerError
        If it is neither, or the file system cannot be used.
    """
    path = local_path(url) if url else None
    if path is not None:
        return _Local(path.absolute())
    if not isinstance(url, str) or not url:
        raise LedgerError(f"url={url!r}: give the path or the URL of a ledger.")
    try:
        fs, root = fsspec.core.url_to_fs(url, **(storage_options or {}))
    except (OSError, ImportError, ValueError, TypeError) as error:
        raise LedgerError(f"no file system for {url}: {type(error).__name__}: {error}") from error
    return _Remote(fs, root.rstrip("/"), url)


@contextlib.contextmanager
def _told(what: str, label: str, kinds: type[Exception]) -> Iterator[None]:
    """Errors of the file system in words of ours; whether a thing exists is left to the caller."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, LedgerError):
        raise
    except kinds as error:
        raise LedgerError(
            f"{label} could not be {what}: {type(error).__name__}: {error}. What was committed "
            "stands as it is; put the cause right and run again."
        ) from error


def _require(content: bytes, limit: int, name: str) -> bytes:
    if len(content) > limit:
        raise LedgerError(f"{name} is larger than the {limit:,} bytes that it should have.")
    return content


class _Local:
    """A folder of this machine."""

    def __init__(self, root: Path):
        self.root = root
        self.label = str(root)

    def read(self, name: str, limit: int) -> bytes:
        path = self.root / name
        with _told("read", str(path), OSError), path.open("rb") as handle:
            return _require(handle.read(limit + 1), limit, str(path))

    def read_many(self, limits: Mapping[str, int]) -> dict[str, bytes]:
        return {name: self.read(name, limit) for name, limit in limits.items()}

    def write(self, objects: Mapping[str, bytes]) -> None:
        folders: set[Path] = set()
        for name, content in objects.items():
            path = self.root / name
            with _told("written", str(path), OSError):
                folders |= _make_folders(path.parent)
                folders.add(path.parent)
                with _beside(path, content) as scratch:
                    scratch.replace(path)
        for folder in sorted(folders):
            with _told("written", str(folder), OSError):
                _sync_folder(folder)

    def write_new(self, name: str, content: bytes) -> None:
        path = self.root / name
        with _told("written", str(path), OSError):
            folders = _make_folders(path.parent)
            with _beside(path, content) as scratch:
                os.link(scratch, path)  # whole at once, and refused where something stands
            for folder in {path.parent, *folders}:
                _sync_folder(folder)

    def replace(self, name: str, content: bytes) -> None:
        self.write({name: content})

    def names(self, folder: str) -> list[str]:
        path = self.root / folder
        with _told("listed", str(path), OSError):
            try:
                return sorted(entry.name for entry in path.iterdir())
            except FileNotFoundError:
                return []

    def find(self, folder: str) -> list[str]:
        path = self.root / folder
        with _told("listed", str(path), OSError):
            return sorted(
                found.relative_to(path).as_posix() for found in path.rglob("*") if found.is_file()
            )

    def remove(self, name: str) -> None:
        path = self.root / name
        with _told("removed", str(path), OSError), contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        try:
            handle = os.open(self.root, os.O_RDONLY)
        except OSError as error:
            raise LedgerError(f"{self.root} is out of reach: {error}") from error
        try:
            with contextlib.suppress(OSError):  # not on every network file system
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)  # which lets go

    def settle(self, seconds: float) -> None:
        pass  # guarded


def _make_folders(path: Path) -> set[Path]:
    """Make a folder and those above it; the folders that got a new entry."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
    return {folder.parent for folder in missing}


@contextlib.contextmanager
def _beside(path: Path, content: bytes) -> Iterator[Path]:
    """A file with this content, on the disk, beside the place where it will be."""
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
    """Names are part of a folder, which has to reach the disk as well."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Remote:
    """A root on an fsspec file system, where writing an object is atomic.

    S3, Google Cloud Storage and Azure create an object only if there is none when asked to, see
    https://github.com/fsspec/filesystem_spec/issues/1693. Elsewhere it is looked for before, and of
    two writers that come within that moment only the lock tells.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem, root: str, label: str):
        self.fs = fs
        self.root = root
        self.label = label

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _label(self, name: str) -> str:
        return f"{self.label.rstrip('/')}/{name}"

    def read(self, name: str, limit: int) -> bytes:
        return self.read_many({name: limit})[name]

    def read_many(self, limits: Mapping[str, int]) -> dict[str, bytes]:
        names = list(limits)
        with _told("read", self.label, Exception):
            # a range one byte longer than allowed tells what is too long, and reads no more of it
            found = self.fs.cat_ranges(
                [self._path(name) for name in names],
                [0] * len(names),
                [limits[name] + 1 for name in names],
            )
        out = {}
        for name, content in zip(names, found, strict=True):
            with _told("read", self._label(name), Exception):
                if isinstance(content, Exception):
                    raise content
            out[name] = _require(bytes(content), limits[name], self._label(name))
        return out

    def write(self, objects: Mapping[str, bytes]) -> None:
        with _told("written", self.label, Exception):
            self.fs.pipe({self._path(name): content for name, content in objects.items()})

    def write_new(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with _told("written", self._label(name), Exception):
            try:
                self.fs.pipe_file(path, content, mode="create")
            except Exception as error:  # file systems say in many ways that something is there
                found = self._found(path, len(content) + 1)
                if found is None:
                    raise
                # a request that was sent twice, or whose answer was lost, meets itself
                if found != content:
                    raise FileExistsError(path) from error

    def _found(self, path: str, limit: int) -> bytes | None:
        """The first bytes of what is there, if it can be read."""
        self.fs.invalidate_cache(path)
        (found,) = self.fs.cat_ranges([path], [0], [limit])
        return None if isinstance(found, Exception) else bytes(found)

    def replace(self, name: str, content: bytes) -> None:
        self.write({name: content})

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        with _told("listed", self._label(folder), Exception):
            self.fs.invalidate_cache(path)
            try:
                found: Iterable[str] = self.fs.ls(path, detail=False)
            except FileNotFoundError:
                return []
        return sorted({name.rstrip("/").rsplit("/", 1)[-1] for name in found})

    def find(self, folder: str) -> list[str]:
        path = self._path(folder)
        with _told("listed", self._label(folder), Exception):
            self.fs.invalidate_cache(path)
            root = f"{path}/"
            return sorted(name.removeprefix(root) for name in self.fs.find(path))

    def remove(self, name: str) -> None:
        path = self._path(name)
        with _told("removed", self._label(name), Exception), contextlib.suppress(FileNotFoundError):
            self.fs.invalidate_cache(path)
            self.fs.rm(path, recursive=True)

    def guard(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def settle(self, seconds: float) -> None:
        time.sleep(seconds)
