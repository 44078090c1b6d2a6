"""Write small datasets as Zarr groups with a schema and a checksum over all content."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
from zarr.storage import MemoryStore

from dask_sketch.errors import ArtifactError
from dask_sketch.storage.local_files import replacing
from dask_sketch.storage.overwrite import local_path, path_exists, require_writable

if TYPE_CHECKING:
    import xarray as xr

OUTPUT = "job"  # attribute of outputs of jobs: the name of the job
ROOT = "zarr.json"  # metadata of a group
DOCUMENT = "dataset.json"  # attributes and dimensions of a packed dataset
# End of the name of the object that holds a whole artifact while another one is replaced by it.
REPLACEMENT = ".dask-sketch-replacement"
_MEMORY = (
    2**25
)  # bytes of content up to which all objects of a group are held before they are written


class Storable(ABC):
    """Object that is stored as a Zarr group with a schema, conventions and a checksum."""

    @abstractmethod
    def _stored(self) -> tuple[xr.Dataset, str, int]:
        """Dataset to store, name of its schema, and version of the schema."""

    def to_zarr(
        self, store: Any, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Store this as a Zarr group with a schema, conventions and a checksum.

        :func:`dask_sketch.open` reads it back with the same bits.

        Parameters
        ----------
        store
            Path, URL or Zarr store.
        overwrite
            Replace an earlier artifact of this package, with all that its folder holds. Anything
            else is never replaced.
        storage_options
            Options of the file system of a URL.

        Raises
        ------
        ArtifactError
            If something is stored there that may not be replaced, it cannot be written, or an
            array is over 2 GiB: store parts of a group of sketches then.
        """
        dataset, schema, number = self._stored()
        write_dataset(
            dataset, store, schema, number, overwrite=overwrite, storage_options=storage_options
        )

    def replace_output(
        self, store: Any, job: str, *, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Store this as an output of a job, in place of an earlier one.

        Parameters
        ----------
        store
            Path, URL or Zarr store.
        job
            Name of the job, kept as an attribute by which later runs know their outputs.
        storage_options
            Options of the file system of a URL.

        Raises
        ------
        ArtifactError
            As :meth:`to_zarr`.
        """
        dataset, schema, number = self._stored()
        marked = dataset.assign_attrs({OUTPUT: job})
        write_dataset(
            marked, store, schema, number, overwrite=True, storage_options=storage_options
        )

    def to_bytes(self) -> bytes:
        """Return one value for a column of a database, a message or a cache.

        :func:`dask_sketch.open` reads the value back with the same bits, and accepts values from
        others as it accepts their files. The value is an uncompressed ZIP file of arrays in NumPy's
        format and of a document in JSON. Frequencies are left out: they follow from the document.

        Examples
        --------
        >>> import dask_sketch as ds
        >>> sketch = ds.partial_sketch([[0.0, 1.0]], ds.FeatureMap(2, 20, scale=1.0))
        >>> value = sketch.to_bytes()
        >>> ds.open(value).identical(sketch)
        True
        """
        dataset, schema, number = self._stored()
        compact = dataset.drop_vars("frequencies", errors="ignore")
        return packed_dataset(_complete(compact, schema, number))


def _complete(dataset: xr.Dataset, schema: str, schema_version: int) -> xr.Dataset:
    """Add the schema and the checksum."""
    dataset = dataset.assign_attrs(
        schema=schema,
        schema_version=schema_version,
        written_by=f"dask-sketch {version('dask-sketch')}",
    )
    return dataset.assign_attrs(checksum=checksum(dataset))


def write_dataset(
    dataset: xr.Dataset,
    store: Any,
    schema: str,
    schema_version: int,
    *,
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> None:
    """Write ``dataset`` as a Zarr group with its schema and a checksum over all content.

    On a local path the group is written to a temporary folder beside the path, and then takes its
    place at once. Readers that began with the old group begin again, see
    :func:`~dask_sketch.storage.artifact_reader.read_dataset`.

    At a URL objects are replaced one by one. Before that, all of them are written as one object
    beside the group, which is removed at the end. Readers that find old and new objects, or an
    interrupted replacement, read that one. Only one process may write to a URL at a time. If the
    first write to a URL fails, readers find a damaged artifact, which can be overwritten.

    Parameters
    ----------
    dataset
        Variables and JSON-like attributes.
    store
        Path, URL or Zarr store.
    schema, schema_version
        Name of the schema and its version, stored and checked by
        :func:`~dask_sketch.storage.artifact_reader.read_dataset`.
    overwrite
        Replace an earlier artifact. Samples, a ledger or other files are never replaced.
    storage_options
        Options of the file system of a URL.

    Raises
    ------
    ArtifactError
        If the store exists and may not be replaced, or cannot be written.
    """
    if store is None:  # Zarr would write to memory, and the result would be lost
        raise ArtifactError("store=None: give a path, a URL or a Zarr store.")
    dataset = _complete(dataset, schema, schema_version)
    require_writable(store, overwrite=overwrite, storage_options=storage_options)
    path = local_path(store)
    try:
        if path is not None:
            with replacing(path) as new:
                if dataset.nbytes > _MEMORY:
                    _write(dataset, str(new), "w")
                else:  # Zarr takes as long again to write each file on another thread
                    _write_files(_objects(dataset), Path(new))
        elif isinstance(store, str):
            _write_objects(_objects(dataset), store, overwrite, storage_options or {})
        else:
            _write(dataset, store, "w" if overwrite else "w-")
    except OSError as error:
        raise ArtifactError(
            f"store={str(store)!r} cannot be written: {error.strerror or first_line(error)} "
            f"({type(error).__name__}). Free space there, or choose another path."
        ) from error


def _write(dataset: xr.Dataset, store: Any, mode: str) -> None:
    from zarr.errors import ContainsGroupError

    # one chunk for each variable: an artifact is small and read as a whole
    encoding = {name: {"chunks": v.shape} for name, v in dataset.variables.items() if v.size}
    try:
        dataset.to_zarr(
            store,
            mode=mode,  # type: ignore[call-overload]
            encoding=encoding,
            zarr_format=3,
            consolidated=False,
        )
    except (ContainsGroupError, FileExistsError) as error:
        raise _exists(store) from error


def _objects(dataset: xr.Dataset) -> dict[str, bytes]:
    """Objects of the Zarr group of a dataset, by name."""
    objects: dict[str, Any] = {}
    _write(dataset, MemoryStore(objects), "w")
    return {key: value.to_bytes() for key, value in objects.items()}


def _write_files(contents: Mapping[str, bytes], folder: Path) -> None:
    """Write the objects of a group to files."""
    for key, value in contents.items():
        file = folder / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(value)


def _write_objects(
    contents: dict[str, bytes], url: str, overwrite: bool, storage_options: dict[str, Any]
) -> None:
    """Write the objects of a group to a URL.

    The metadata of the group is the first object. After a failure in between, the URL still holds
    an artifact and not a folder of unknown files, which would never be overwritten.
    """
    try:
        if "://" not in url:  # fsspec would write to a part of it
            raise ValueError("a path with :: is taken for a chain of URLs")
        fs, root = fsspec.core.url_to_fs(url, **storage_options)
        root = root.rstrip("/")
        objects = {f"{root}/{key}": value for key, value in contents.items()}
        first = f"{root}/{ROOT}"
        fs.invalidate_cache()
        _make_folders(fs, [first])
        replaces = overwrite and path_exists(fs, first)
        if replaces:
            fs.pipe_file(f"{root}{REPLACEMENT}", packed(contents))
        if overwrite:
            fs.pipe_file(first, objects[first])
        else:
            _create(fs, first, objects[first], url)
        for name in fs.ls(root, detail=False):
            array = name.rstrip("/").rpartition("/")[2]
            # the array is of an earlier artifact
            if not any(key.split("/")[0] == array for key in contents):
                fs.rm(f"{root}/{array}", recursive=True)
        rest = {name: value for name, value in objects.items() if name != first}
        _make_folders(fs, rest)
        fs.pipe(rest)
        if replaces:
            with contextlib.suppress(Exception):  # what stays is the same artifact once more
                fs.rm_file(f"{root}{REPLACEMENT}")
    except ArtifactError:
        raise
    except Exception as error:  # file systems fail in many ways
        raise ArtifactError(
            f"store={url!r} cannot be written: {type(error).__name__}: {first_line(error)}. Check "
            "the URL, and that the package for it is installed; write again with overwrite=True."
        ) from error


def packed(contents: Mapping[str, bytes]) -> bytes:
    """Pack the objects of a group into one object.

    Examples
    --------
    >>> unpacked(packed({"zarr.json": b"{}", "z/c/0": b"123"}))
    {'zarr.json': b'{}', 'z/c/0': b'123'}
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        for name, content in contents.items():
            file.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def packed_dataset(dataset: xr.Dataset) -> bytes:
    """Pack a dataset into one object: arrays in NumPy's format, and a document."""
    dims = {str(name): list(variable.dims) for name, variable in dataset.variables.items()}
    objects = {DOCUMENT: json.dumps({"attrs": dataset.attrs, "dims": dims}).encode()}
    for name in dims:
        file = io.BytesIO()
        values = np.ascontiguousarray(dataset[name].values).reshape(dataset[name].shape)
        np.lib.format.write_array(file, values, allow_pickle=False)
        objects[f"{name}.npy"] = file.getvalue()
    return packed(objects)


def unpacked(content: bytes, label: str = "the replacement") -> dict[str, bytes]:
    """Unpack what :func:`packed` wrote; the objects are never larger than ``content`` together.

    Parameters
    ----------
    content
        Bytes to unpack.
    label
        Name of the bytes for messages.

    Raises
    ------
    ArtifactError
        If ``content`` is something else.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            members = file.infolist()
            stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
            if not stored or sum(member.file_size for member in members) > len(content):
                raise zipfile.BadZipFile("its parts are larger than the whole")
            return {member.filename: file.read(member) for member in members}
    except (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, OSError) as error:
        raise ArtifactError(
            f"{label} is damaged ({first_line(error)}). Restore it from a copy, or make it again."
        ) from error


def _make_folders(fs: fsspec.AbstractFileSystem, names: Iterable[str]) -> None:
    """Make the folders of objects, where the file system has folders."""
    if not fs.async_impl:  # an object store
        for folder in {name.rpartition("/")[0] for name in names}:
            fs.makedirs(folder, exist_ok=True)


def _create(fs: fsspec.AbstractFileSystem, name: str, content: bytes, url: str) -> None:
    """Write an object that must not exist yet."""
    try:
        fs.pipe_file(name, content, mode="create")
    except Exception as error:  # file systems raise many types if the object exists
        fs.invalidate_cache()
        if not path_exists(fs, name):
            raise
        # a request may have been sent twice, or its answer lost
        if fs.cat_file(name, end=len(content) + 1) != content:
            raise _exists(url) from error


def _exists(store: Any) -> ArtifactError:
    return ArtifactError(
        f"{store} exists: choose another path, or pass overwrite=True.", parameter="overwrite"
    )


def checksum(dataset: xr.Dataset) -> str:
    """Return the SHA-256 over names, shapes, types, values and attributes."""
    total = hashlib.sha256(json.dumps(dataset.attrs, sort_keys=True, default=str).encode())
    for name in sorted(map(str, dataset.variables)):
        values = np.ascontiguousarray(dataset[name].values)
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
        dims = [str(dim) for dim in dataset[name].dims]
        head = json.dumps([name, dims, list(values.shape), values.dtype.kind])
        total.update(head.encode())
        total.update(values.tobytes())
    return total.hexdigest()


def first_line(error: BaseException) -> str:
    """First line of the message of an error, or the name of its type."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
