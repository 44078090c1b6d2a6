"""Where a result may be written: a place that is free, or holds what an earlier run left there."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from dask_sketch.errors import ArtifactError

_MOST_READ = 2**20  # bytes of metadata that tell whose an artifact is
_PAGE = b"<!doctype html"


def local_path(store: Any) -> Path | None:
    """The path that a store is at, ``None`` for what is no file of this machine."""
    if isinstance(store, os.PathLike):
        return Path(store)
    if isinstance(store, str) and store.startswith("file://"):
        return Path(url2pathname(urlsplit(store).path))
    if isinstance(store, str) and "://" not in store and "::" not in store:
        return Path(store)
    return None


def require_place(
    store: Any, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
) -> None:
    """Raise unless an artifact may be written to ``store``; to be asked before a long run too.

    Parameters
    ----------
    store
        Path, URL or Zarr store.
    overwrite
        Whether an artifact that stands there may be replaced. Anything else is never: neither
        samples, nor a ledger, nor somebody's other work.
    storage_options
        Options of the file system of a URL.

    Raises
    ------
    ArtifactError
        If something stands there that may not be replaced, or its folder cannot be written to.
    """
    path = local_path(store)
    if path is not None:
        _require_local(path, overwrite)
    elif isinstance(store, str):
        _require_remote(store, overwrite, storage_options)
    elif overwrite:
        import zarr

        try:
            stated = zarr.open(store, mode="r").attrs.asdict()
        except (OSError, KeyError):  # nothing there
            return
        if not _is_artifact(stated):
            raise _not_ours(str(store))


def require_page(path: Path) -> None:
    """Raise unless a page may be written to ``path``, in place of an earlier one.

    Raises
    ------
    ArtifactError
        If something else stands there, or the folder cannot be written to.
    """
    if path.exists():
        start = b"no file"
        if path.is_file():
            with path.open("rb") as file:
                start = file.read(len(_PAGE)).lower()
        if start not in (b"", _PAGE):
            raise ArtifactError(
                f"{path} exists and is no HTML page, so it is not overwritten. Choose another "
                "place, or remove it."
            )
    _require_writable(path)


def _require_local(path: Path, overwrite: bool) -> None:
    if path.exists():
        if not overwrite:
            raise ArtifactError(
                f"{path} exists: choose another path, or pass overwrite=True.",
                parameter="overwrite",
            )
        empty = path.is_dir() and not any(path.iterdir())
        if not empty and not _is_artifact(_attributes(path / "zarr.json")):
            raise _not_ours(str(path))
    _require_writable(path)


def _require_writable(path: Path) -> None:
    """Try the folder that ``path`` is to be in, or to be made in: rights and mounts mislead."""
    folder = next(place for place in path.absolute().parents if place.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=folder):
            pass
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be written: {error.strerror or error} ({type(error).__name__}). Choose "
            "another place."
        ) from error


def _require_remote(url: str, overwrite: bool, storage_options: dict[str, Any] | None) -> None:
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(url, **(storage_options or {}))
        if not fs.exists(root):
            return
        if not overwrite:
            raise ArtifactError(
                f"{url} exists: choose another path, or pass overwrite=True.",
                parameter="overwrite",
            )
        if fs.isdir(root) and not fs.ls(root):
            return
        try:
            document = fs.cat_file(f"{root.rstrip('/')}/zarr.json", end=_MOST_READ)
        except (FileNotFoundError, NotADirectoryError):
            document = b""
    except (OSError, ImportError, ValueError) as error:
        raise ArtifactError(
            f"{url} cannot be written: {error} ({type(error).__name__}). Check the URL, and that "
            "the package for it is installed."
        ) from error
    if not _is_artifact(_stated(document)):
        raise _not_ours(url)


def _attributes(document: Path) -> Any:
    try:
        with document.open("rb") as file:
            return _stated(file.read(_MOST_READ))
    except OSError:
        return {}


def _stated(document: bytes) -> Any:
    """The attributes that a Zarr document states."""
    try:
        return json.loads(document)["attributes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _is_artifact(attributes: Any) -> bool:
    """Whether these are of a sketch or a model: written here, with a checksum of all."""
    if not isinstance(attributes, dict) or "checksum" not in attributes:
        return False
    return str(attributes.get("written_by")).startswith("dask-sketch")


def _not_ours(place: str) -> ArtifactError:
    return ArtifactError(
        f"{place} exists and is neither a sketch nor a model, so it is not overwritten. Choose "
        "another place, or remove it."
    )
