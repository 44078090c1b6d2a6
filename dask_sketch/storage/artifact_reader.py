"""Read and verify the Zarr groups that :mod:`dask_sketch.storage.artifact` writes."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import psutil
import zarr
from numpy.typing import NDArray
from zarr.buffer import cpu
from zarr.errors import ContainsArrayError
from zarr.storage import MemoryStore

from dask_sketch.errors import ArtifactError
from dask_sketch.storage.artifact import (
    DOCUMENT,
    REPLACEMENT,
    ROOT,
    checksum,
    first_line,
    unpacked,
)
from dask_sketch.storage.local_files import scratch_folders
from dask_sketch.storage.overwrite import local_path, path_exists
from dask_sketch.storage.untrusted import guarded

if TYPE_CHECKING:
    import xarray as xr

Versions = Mapping[str, int | tuple[int, ...]]
MAX_BYTES = 4 * 2**30  # largest artifact: no file makes the reader allocate more
_ATTEMPTS = 20  # attempts to read a store that is replaced again and again
_REMOTE_ATTEMPTS = 3  # further attempts to read a store at a URL
_PAUSE = 0.02  # seconds for the moment of a replacement
_MAX_NAMED = 5  # kinds of artifacts that an error names
_REMEDIES = {
    "dask-sketch/sketch-group": "It holds a sketch for each of several groups: "
    "dask_sketch.open(store)[label] reads the sketch of one group, --group LABEL in the shell.",
    "dask-sketch/second-moments": "It holds second moments, of which SketchPCA and `dask-sketch "
    "pca` find principal components.",
    "dask-sketch/principal-components": "It holds principal components, along which `transform` "
    "and `dask-sketch predict` give coordinates; they have no likelihood.",
}


def read_dataset(
    store: Any,
    versions: Versions,
    *,
    storage_options: dict[str, Any] | None = None,
    max_bytes: int = MAX_BYTES,
) -> xr.Dataset:
    """Read a dataset written by :func:`~dask_sketch.storage.artifact.write_dataset`.

    If a store is replaced while it is read, it is read again. At a URL where a replacement was
    interrupted, the new artifact is read.

    Parameters
    ----------
    store
        Path, URL or Zarr store.
    versions
        Accepted schemas, and the version of each, or several; the attribute ``schema`` of the
        dataset names the one found.
    storage_options
        Options of the file system of a URL.
    max_bytes
        Largest accepted size in bytes, compared with the metadata before anything is loaded.

    Raises
    ------
    ArtifactError
        If the store does not exist, has another schema, is larger than ``max_bytes``, or was
        truncated or edited; the message says which.
    """
    path = local_path(store)
    if path is not None and "\0" in str(path):
        raise ArtifactError(f"store={str(store)!r} does not exist: no file has a zero byte in it.")
    for _ in range(_ATTEMPTS):
        before = _identity(path)
        try:
            return _read(store, versions, storage_options, max_bytes)
        except ArtifactError as error:
            if isinstance(store, str) and path is None:
                return _read_replaced(store, versions, storage_options, max_bytes, error)
            if not _is_replaced(path, before):
                raise
    return _read(store, versions, storage_options, max_bytes)


def unpacked_dataset(content: bytes, versions: Versions) -> xr.Dataset:
    """Read the bytes that ``to_bytes`` of an artifact returned.

    Parameters
    ----------
    content
        Bytes of an untrusted author.
    versions
        Accepted schemas, and the version of each.

    Raises
    ------
    ArtifactError
        If ``content`` is something else, or was truncated or edited.
    """
    import xarray as xr

    label = f"{len(content):,} bytes"
    objects = unpacked(content, f"store={label!r}")
    try:
        document = json.loads(objects[DOCUMENT])
        attrs, dims = dict(document["attrs"]), dict(document["dims"])
        arrays = {name: (dims[name], _array(objects[f"{name}.npy"])) for name in dims}
        dataset = xr.Dataset(arrays, attrs=attrs)
    except Exception as error:  # damaged bytes surface as errors of many types
        raise ArtifactError(
            f"store={label!r} is damaged, or not an artifact ({type(error).__name__}: "
            f"{first_line(error)}). Give the value that to_bytes returned."
        ) from error
    _require_schema(attrs.get("schema"), attrs.get("schema_version"), versions, label)
    _require_checksum(dataset, label)
    return dataset


def _array(content: bytes) -> NDArray[Any]:
    """Array of numbers in NumPy's format that is as long as it states."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"the format of an array has version {version}")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "fiubc" or fortran_order:
        raise ValueError(f"an array has dtype={dtype}")
    return np.frombuffer(content, dtype, offset=file.tell()).reshape(shape)


def _store_of(objects: Mapping[str, bytes]) -> MemoryStore:
    buffers = {key: cpu.Buffer.from_bytes(value) for key, value in objects.items()}
    return MemoryStore(dict(buffers), read_only=True)


def _identity(path: Path | None) -> tuple[int, ...] | None:
    """Numbers of a local folder, which change when it is replaced; None if there is none."""
    try:
        status = None if path is None else path.stat()
    except OSError:
        return None
    # the number of a removed folder may be that of the next one, made later
    return None if status is None else (status.st_dev, status.st_ino, status.st_ctime_ns)


def _is_replaced(path: Path | None, before: tuple[int, ...] | None) -> bool:
    """Whether a local folder was replaced since, or is missing for the moment of a replacement."""
    if path is None:
        return False
    now = _identity(path)
    if now is None and any(scratch_folders(path)):
        time.sleep(_PAUSE)
        return True
    return now != before


def _read_replaced(
    url: str,
    versions: Versions,
    storage_options: dict[str, Any] | None,
    max_bytes: int,
    error: ArtifactError,
) -> xr.Dataset:
    """Read a dataset at a URL again, which may be replaced at this time, or only in part."""
    for _ in range(_REMOTE_ATTEMPTS):
        if not _has_root(url, storage_options):
            break
        objects = _replacement(url, storage_options, max_bytes)
        store: Any = url
        if objects is not None:
            store = _store_of(objects)
        with contextlib.suppress(ArtifactError):
            return _read(store, versions, storage_options, max_bytes)
    raise error


def _has_root(url: str, storage_options: dict[str, Any] | None) -> bool:
    """Whether there is a group at a URL that can be written, and is not only served."""
    try:
        fs, root = fsspec.core.url_to_fs(url, **(storage_options or {}))
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        return not protocols & {"http", "https"} and path_exists(fs, f"{root.rstrip('/')}/{ROOT}")
    except Exception:  # file systems fail in many ways
        return False


def _replacement(
    url: str, storage_options: dict[str, Any] | None, max_bytes: int
) -> dict[str, bytes] | None:
    """Objects of the artifact by which the one at a URL is being replaced, None if there is none.

    A replacement that was left behind counts only as long as the group has its metadata, and
    hence its checksum.
    """
    try:
        fs, root = fsspec.core.url_to_fs(url, **(storage_options or {}))
        root = root.rstrip("/")
        fs.invalidate_cache()
        size = fs.info(f"{root}{REPLACEMENT}")["size"]
        if not 0 < size <= min(max_bytes, psutil.virtual_memory().available // 2):
            return None
        objects = unpacked(fs.cat_file(f"{root}{REPLACEMENT}", start=0, end=size))
        document = objects.get(ROOT, b"")
        same = fs.cat_file(f"{root}/{ROOT}", start=0, end=len(document) + 1) == document
    except Exception:  # file systems fail in many ways; the error of the group is raised
        return None
    return objects if same else None


def _read(
    store: Any,
    versions: Versions,
    storage_options: dict[str, Any] | None,
    max_bytes: int,
) -> xr.Dataset:
    """Read a dataset once."""
    noun = _nouns(versions)
    try:
        # Only format 3 is read: codecs of format 2 can hold pickle.
        source = guarded(store, storage_options)
        group = zarr.open_group(source, mode="r", zarr_format=3)
        schema, version = group.attrs.get("schema"), group.attrs.get("schema_version")
    except ContainsArrayError as error:
        raise ArtifactError(
            f"store={str(store)!r} holds an array, not {noun}. Use sketch() for samples."
        ) from error
    except Exception as error:  # file systems and damaged metadata fail in many ways
        raise _unreadable(store, noun, error) from error
    _require_schema(schema, version, versions, str(store))
    schema = str(schema)
    try:
        dataset = _load(store, group, max_bytes)
    except ArtifactError:
        raise
    except Exception as error:  # damaged bytes surface as errors of many types
        raise ArtifactError(
            f"store={str(store)!r}: the {_noun(schema)} is truncated or damaged "
            f"({first_line(error)}). Restore it from a copy, or make it again."
        ) from error
    _require_checksum(dataset, str(store))
    return dataset


def _unreadable(store: Any, noun: str, error: Exception) -> ArtifactError:
    """Error of a path, URL or store without a readable group."""
    path = local_path(store)
    state, remedy = f"cannot be read ({first_line(error)})", "Check the path or the URL."
    if path is None:
        if isinstance(error, TypeError) and not isinstance(store, str):
            state, remedy = f"is of type {type(store).__name__}", "Give a path, URL or Zarr store."
    elif not path.exists():
        state = "does not exist"
    elif not path.is_dir():
        state = "cannot be read (it is a file)"
    elif isinstance(error, FileNotFoundError):
        state = "cannot be read (it is a folder without a Zarr group of format 3)"
    return ArtifactError(f"store={str(store)!r} {state}, expected {noun}. {remedy}")


def _require_schema(schema: object, version: object, versions: Versions, store: str) -> None:
    """Refuse other artifacts and other versions."""
    if not isinstance(schema, str) or schema not in versions:
        raise ArtifactError(
            f"store={store!r} is not {_nouns(versions)}: schema={schema!r}. "
            + _REMEDIES.get(str(schema), "Give an artifact that this package wrote.")
        )
    readable = versions[schema]
    accepted = readable if isinstance(readable, tuple) else (readable,)
    if version not in accepted:
        raise ArtifactError(
            f"store={store!r} is a {_noun(schema)} of schema_version={version!r}; this "
            f"version of dask-sketch reads {' or '.join(map(str, accepted))}. Upgrade the older "
            "side."
        )


def _require_checksum(dataset: xr.Dataset, store: str) -> None:
    """Refuse content that was edited, and take the checksum out of the attributes."""
    schema = dataset.attrs["schema"]
    if dataset.attrs.pop("checksum", None) != checksum(dataset):
        raise ArtifactError(
            f"store={store!r}: the {_noun(schema)} does not match its checksum; it was "
            "truncated or edited. Restore it from a copy, or make it again."
        )


def _load(store: Any, group: zarr.Group, max_bytes: int) -> xr.Dataset:
    """Load a group whose arrays are small, numeric and of one chunk each."""
    import xarray as xr

    size = 0
    arrays = dict(group.arrays())
    for name, array in arrays.items():
        size += array.nbytes
        if array.dtype.kind not in "fiubc":
            raise ArtifactError(
                f"store={str(store)!r}: {name} has dtype={array.dtype}, expected numbers. Restore "
                "the store from a copy."
            )
        if array.chunks != tuple(max(n, 1) for n in array.shape):
            raise ArtifactError(
                f"store={str(store)!r}: {name} has chunks={array.chunks}, expected one chunk. "
                "Restore the store from a copy."
            )
    available = psutil.virtual_memory().available
    if size > min(max_bytes, available // 2):
        raise ArtifactError(
            f"store={str(store)!r} has {size:,} bytes of content, over the limit of "
            f"{max_bytes:,} or half of the {available:,} bytes of free memory. Free memory, or "
            "check that the store is what you expect."
        )
    return xr.Dataset(
        {name: _variable(array) for name, array in arrays.items()}, attrs=group.attrs.asdict()
    )


def _variable(array: zarr.Array[Any]) -> xr.Variable:
    """Variable of an array, without the fill value that xarray adds to the attributes."""
    import xarray as xr

    dims = getattr(array.metadata, "dimension_names", None) or ()
    attrs = {name: value for name, value in array.attrs.items() if name != "_FillValue"}
    return xr.Variable(dims, np.asarray(array[...]), attrs)


def _nouns(schemas: Iterable[str]) -> str:
    """Names of the kinds of artifacts that are accepted, with an article.

    Examples
    --------
    >>> _nouns(["dask-sketch/sketch", "dask-sketch/sketch-group"])
    'a sketch or sketch group'
    """
    nouns = [_noun(schema) for schema in schemas]
    if len(nouns) > _MAX_NAMED:
        n_others = len(nouns) - _MAX_NAMED
        return f"a {', '.join(nouns[:_MAX_NAMED])} or one of {n_others} other kinds of artifacts"
    return f"a {' or '.join(nouns)}"


def _noun(schema: str) -> str:
    """Name of the kind of artifact in words.

    Examples
    --------
    >>> _noun("dask-sketch/gaussian-mixture")
    'gaussian mixture'
    """
    return schema.rsplit("/", 1)[-1].replace("-", " ")
