"""Write small datasets as Zarr groups with a schema and a checksum over all content."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.errors import ArtifactError
from dask_sketch.storage.overwrite import local_path, require_writable
from dask_sketch.storage.replace import replacing

if TYPE_CHECKING:
    import xarray as xr


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
    dataset = dataset.assign_attrs(
        schema=schema,
        schema_version=schema_version,
        written_by=f"dask-sketch {version('dask-sketch')}",
    )
    dataset = dataset.assign_attrs(checksum=checksum(dataset))
    require_writable(store, overwrite=overwrite, storage_options=storage_options)
    path = local_path(store)
    try:
        if path is None:
            _write(dataset, store, "w" if overwrite else "w-", storage_options)
            return
        with replacing(path) as new:
            _write(dataset, str(new), "w", None)
    except OSError as error:
        raise ArtifactError(
            f"store={str(store)!r} cannot be written: {error.strerror or first_line(error)} "
            f"({type(error).__name__}). Free space there, or choose another path."
        ) from error


def _write(
    dataset: xr.Dataset, store: Any, mode: str, storage_options: dict[str, Any] | None
) -> None:
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
            storage_options=storage_options,
        )
    except (ContainsGroupError, FileExistsError) as error:
        raise ArtifactError(
            f"{store} exists: choose another path, or pass overwrite=True.", parameter="overwrite"
        ) from error
    except (ImportError, ValueError) as error:  # fsspec does not know the protocol
        raise ArtifactError(
            f"store={str(store)!r} cannot be written: {first_line(error)}. Check the URL, and "
            f"that the "
            "package for it is installed."
        ) from error


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
