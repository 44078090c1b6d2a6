"""Refuse to overwrite anything but an earlier result."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from dask_sketch.errors import ArtifactError


class OccupiedError(ArtifactError):
    """A path that holds something else, which is not replaced."""


_MAX_METADATA = 2**20  # bytes of metadata that are read to recognise an artifact
# text in the first bytes of a page of ours
_PAGE = b'<meta name="generator" content="dask-sketch">'
_PAGE_BYTES, _MAX_PAGE = 512, 2**26


def local_path(store: Any) -> Path | None:
    """Path of a store on this machine; None for URLs and Zarr stores.

    ``~`` at the beginning is the home of the user, as for the paths of samples.
    """
    if isinstance(store, str) and store.startswith("file://"):
        return resolve_parents(Path(url2pathname(urlsplit(store).path)))
    if isinstance(store, os.PathLike) or (
        isinstance(store, str) and "://" not in store and "::" not in store
    ):
        try:
            return resolve_parents(Path(store).expanduser())
        except RuntimeError:  # there is no such user
            return resolve_parents(Path(store))
    return None


def path_exists(fs: Any, path: str) -> bool:
    """Whether a file system has a file or folder.

    The default method of fsspec takes any exception for a file that does not exist, also the one
    by which SIGTERM or Ctrl-C ends the process. Here, such an exception is raised.

    Parameters
    ----------
    fs
        File system of fsspec.
    path
        Path on it, without its protocol.

    Raises
    ------
    Exception
        Errors of a server, where the file system tells them from a file that does not exist.
    """
    from fsspec import AbstractFileSystem

    if type(fs).exists is not AbstractFileSystem.exists:
        return bool(fs.exists(path))
    try:
        fs.info(path)
    except Exception:  # the same clause as in fsspec: file systems fail in many ways
        return False
    return True


def resolve_parents(path: Path) -> Path:
    """Resolve the parts ``..`` of a path.

    Behind a folder that does not exist yet, they name a path that does not exist either, and
    another one as soon as the folder is made.

    Examples
    --------
    >>> resolve_parents(Path("/missing/../folder"))
    PosixPath('/folder')
    """
    return path.resolve() if ".." in path.parts else path


def require_writable(
    store: Any,
    *,
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
    accepts: Callable[[Mapping[str, Any]], bool] | None = None,
) -> None:
    """Raise unless an artifact may be written to ``store``; also used before a long run.

    Parameters
    ----------
    store
        Path, URL or Zarr store.
    overwrite
        Replace an earlier artifact. Samples, ledgers and other files are never replaced.
    storage_options
        Options of the file system of a URL.
    accepts
        Whether an artifact with these attributes may be replaced; by default each may.

    Raises
    ------
    ArtifactError
        If the store holds something that may not be replaced, or its folder cannot be written.
    """
    path = local_path(store)
    if path is not None:
        _require_local(path, overwrite, accepts)
    elif isinstance(store, str):
        _require_remote(store, overwrite, storage_options, accepts)
    elif overwrite:
        import zarr

        try:
            attributes = zarr.open(store, mode="r").attrs.asdict()
        except (OSError, KeyError):  # the store is empty
            return
        _require_replaceable(attributes, str(store), accepts)


def require_writable_page(path: Path, mark: str | None = None) -> None:
    """Raise unless a page may be written to ``path``, in place of a page of dask-sketch or nothing.

    Parameters
    ----------
    path
        Path of the page.
    mark
        Text that a page must hold to be replaced; by default each page of dask-sketch may be.

    Raises
    ------
    ArtifactError
        If the path holds something else, or the folder cannot be written.
    """
    path = resolve_parents(path)
    if path.exists():
        start, rest = b"not a file", b""
        if path.is_file():
            with path.open("rb") as file:
                start = file.read(_PAGE_BYTES)
                rest = file.read(_MAX_PAGE) if mark is not None and _PAGE in start else b""
        if start and (_PAGE not in start or (mark is not None and mark.encode() not in rest)):
            kind = "page of dask-sketch" if mark is None else "report of a job"
            raise OccupiedError(
                f"path={str(path)!r} exists and is no {kind}, so it is not overwritten. Choose "
                "another path, or remove it."
            )
    _require_writable(path)


def require_earlier_text(path: Path, kind: str, marks: Sequence[str]) -> None:
    """Raise unless a text file may be written to ``path``, replacing an earlier one of its kind.

    Parameters
    ----------
    path
        Path of the file.
    kind
        Kind of the file, for the message.
    marks
        Texts of which an earlier file holds one in its first 4096 bytes.

    Raises
    ------
    OccupiedError
        If the path holds something else.
    """
    path = resolve_parents(path)
    if not path.exists():
        return
    start = b"not a file\0"
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(4096)
    if start and (b"\0" in start or not any(mark.encode() in start for mark in marks)):
        raise OccupiedError(
            f"path={str(path)!r} exists and is not {kind}, so it is not overwritten. Choose "
            "another path, or remove it."
        )


def _require_local(
    path: Path, overwrite: bool, accepts: Callable[[Mapping[str, Any]], bool] | None
) -> None:
    if path.exists():
        if not overwrite:
            raise ArtifactError(
                f"{path} exists: choose another path, or pass overwrite=True.",
                parameter="overwrite",
            )
        empty = path.is_dir() and not any(path.iterdir())
        if not empty:
            _require_replaceable(_attributes(path / "zarr.json"), str(path), accepts)
    _require_writable(path)


def require_writable_folder(path: Path) -> None:
    """Write a scratch folder beside ``path``: permissions alone do not tell about mounts.

    Parameters
    ----------
    path
        Path of a file or folder to write, in the nearest folder that exists.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=folder):
        pass


def _require_writable(path: Path) -> None:
    try:
        require_writable_folder(path)
    except OSError as error:
        raise ArtifactError(
            f"store={str(path)!r} cannot be written: {error.strerror or error} "
            f"({type(error).__name__}). Check the disk, its free space and the permissions of the "
            "user, or choose another path."
        ) from error


def _require_remote(
    url: str,
    overwrite: bool,
    storage_options: dict[str, Any] | None,
    accepts: Callable[[Mapping[str, Any]], bool] | None,
) -> None:
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(url, **(storage_options or {}))
        fs.invalidate_cache()
        if not path_exists(fs, root):
            return
        if not overwrite:
            raise ArtifactError(
                f"store={url!r} exists. Choose another path, or pass overwrite=True."
            )
        if fs.isdir(root) and not fs.ls(root):
            return
        try:
            document = fs.cat_file(f"{root.rstrip('/')}/zarr.json", end=_MAX_METADATA)
        except (FileNotFoundError, NotADirectoryError):
            document = b""
    except ArtifactError:
        raise
    except Exception as error:  # file systems fail in many ways
        raise ArtifactError(
            f"store={url!r} cannot be written: {error} ({type(error).__name__}). Check the URL, "
            "and that the package for it is installed."
        ) from error
    _require_replaceable(_parsed_attributes(document), url, accepts)


def _attributes(document: Path) -> Any:
    try:
        with document.open("rb") as file:
            return _parsed_attributes(file.read(_MAX_METADATA))
    except OSError:
        return {}


def _parsed_attributes(document: bytes) -> Any:
    """Parse the attributes of a Zarr document."""
    try:
        return json.loads(document)["attributes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _is_artifact(attributes: Any) -> bool:
    """Whether the attributes belong to an artifact of this package."""
    if not isinstance(attributes, dict) or "checksum" not in attributes:
        return False
    return str(attributes.get("written_by")).startswith("dask-sketch")


def _require_replaceable(
    attributes: Any, store: str, accepts: Callable[[Mapping[str, Any]], bool] | None
) -> None:
    """Raise unless attributes belong to an artifact that may be replaced."""
    if not _is_artifact(attributes):
        raise OccupiedError(
            f"store={store!r} exists and is neither a sketch nor a model, so it is not "
            "overwritten. Choose another path, or remove it."
        )
    if accepts is not None and not accepts(attributes):
        kind = str(attributes.get("schema")).rpartition("/")[2].replace("-", " ")[:80]
        raise OccupiedError(
            f"store={store!r} holds a {kind} that is not an earlier output of a job, so it is not "
            "overwritten. Choose another path, or remove it."
        )
