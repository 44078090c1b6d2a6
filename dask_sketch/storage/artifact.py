"""Small datasets on disk that prove themselves: one Zarr group, a schema and a checksum."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from dask_sketch.errors import ArtifactError
from dask_sketch.storage.overwrite import local_path, require_place

if TYPE_CHECKING:
    import xarray as xr

_WAYS = {
    "dask-sketch/sketch-group": " It holds a sketch for each of several groups: open_group() reads "
    "it; of one group, take group[label], in the shell --group LABEL.",
}
MAX_BYTES = 4 * 2**30  # of one artifact: nothing larger is allocated because a file says so


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

    On a local path the group is written beside its place and moved there whole, so that a reader
    sees the old one or the new one and never a part.

    Parameters
    ----------
    dataset
        Variables and JSON-like attributes.
    store
        Path, URL or Zarr store.
    schema, schema_version
        What it is; checked by :func:`read_dataset`.
    overwrite
        Replace what was written there before; samples, a ledger or other files never.
    storage_options
        Options of the file system of a URL.

    Raises
    ------
    ArtifactError
        If the store exists and may not be replaced, or cannot be written to.
    """
    if store is None:  # Zarr would write to memory, and forget it
        raise ArtifactError("store=None: give a path, a URL or a Zarr store.")
    dataset = dataset.assign_attrs(
        schema=schema, schema_version=schema_version, written_by=f"dask-sketch {_version()}"
    )
    dataset = dataset.assign_attrs(checksum=_checksum(dataset))
    require_place(store, overwrite=overwrite, storage_options=storage_options)
    path = local_path(store)
    if path is None:
        _write(dataset, store, "w" if overwrite else "w-", storage_options)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        _write(dataset, str(scratch / "new"), "w", None)
        old = scratch / "old"
        if path.exists():
            path.rename(old)
        try:
            (scratch / "new").rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class Stored(ABC):
    """What can be stored as one artifact: sketches and models."""

    @abstractmethod
    def _artifact(self) -> tuple[xr.Dataset, str, int]:
        """The content, its schema and the version of that."""

    def to_zarr(
        self, store: Any, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Store it as a Zarr group that proves itself: schema, conventions and a checksum.

        To be read by :func:`dask_sketch.open_sketch`, :func:`dask_sketch.open_group` or
        :func:`dask_sketch.open_model`, whose result has the same bits.

        Parameters
        ----------
        store
            Path, URL or Zarr store.
        overwrite
            Replace a sketch or a model that stands there. Anything else is an error.
        storage_options
            Options of the file system of a URL.

        Raises
        ------
        ArtifactError
            If something stands there; or for sketches of groups, if an array is over 2 GiB:
            ``select`` groups, and store them apart.
        """
        dataset, schema, version = self._artifact()
        write_dataset(
            dataset, store, schema, version, overwrite=overwrite, storage_options=storage_options
        )


def _write(
    dataset: xr.Dataset, store: Any, mode: str, storage_options: dict[str, Any] | None
) -> None:
    from zarr.errors import ContainsGroupError

    # one chunk for each variable: an artifact is small, and read whole
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
            f"{store} exists: choose another path, or pass overwrite=True.",
            parameter="overwrite",
        ) from error
    except (ImportError, ValueError) as error:  # of a protocol that fsspec does not know
        raise ArtifactError(
            f"store={store!r} cannot be written: {_first_line(error)}. Check the URL, and that the "
            "package for it is installed."
        ) from error


def read_dataset(
    store: Any,
    schemas: tuple[str, ...],
    schema_version: int,
    *,
    storage_options: dict[str, Any] | None = None,
    max_bytes: int = MAX_BYTES,
) -> xr.Dataset:
    """Read what :func:`write_dataset` wrote, and refuse anything else.

    Parameters
    ----------
    store
        Path, URL or Zarr store.
    schemas, schema_version
        What may stand there; the attribute ``schema`` of the dataset says which it was.
    storage_options
        Options of the file system of a URL.
    max_bytes
        Size beyond which nothing is loaded; the sizes are read from the metadata first.

    Raises
    ------
    ArtifactError
        If there is no such store, it is of another schema, larger than ``max_bytes``, truncated
        or edited. The message says which.
    """
    import xarray as xr
    import zarr
    from zarr.errors import ContainsArrayError

    from dask_sketch.storage.untrusted import guarded

    kind = " or ".join(schema.rsplit("/", 1)[-1].replace("-", " ") for schema in schemas)
    try:
        # read through the guard, and only as it was written: codecs of format 2 can hold pickle
        source = guarded(store, storage_options)
        group = zarr.open_group(source, mode="r", zarr_format=3)
        found, number = group.attrs.get("schema"), group.attrs.get("schema_version")
    except ContainsArrayError as error:
        raise ArtifactError(
            f"{store} holds an array, not a {kind}. Of samples, sketch() makes a sketch."
        ) from error
    except (OSError, ImportError, ValueError, KeyError, TypeError, AttributeError) as error:
        path = local_path(store)
        state = "does not exist" if path is not None and not path.exists() else "cannot be read"
        raise ArtifactError(f"no {kind} at {store}: it {state} ({_first_line(error)}).") from error
    if found not in schemas:
        expected = " or ".join(map(repr, schemas))
        raise ArtifactError(
            f"{store} is not a {kind}: its schema is {found!r}, expected {expected}."
            + (_WAYS.get(str(found), "") if found is not None else " It was not written here.")
        )
    if number != schema_version:
        raise ArtifactError(
            f"{store} is a {kind} of schema version {number!r}; this version of dask-sketch reads "
            f"version {schema_version}. Upgrade the older side."
        )
    try:
        size = 0
        for name, array in group.arrays():
            size += array.nbytes
            if array.dtype.kind not in "fiubc":
                raise ArtifactError(f"{store}: {name} is of type {array.dtype}, not of numbers.")
            if array.chunks != tuple(max(n, 1) for n in array.shape):
                raise ArtifactError(f"{store}: {name} is not in one chunk, as it was written.")
        if size > max_bytes:
            raise ArtifactError(
                f"{store} states {size:,} bytes of content, over the limit of {max_bytes:,}."
            )
        available = psutil.virtual_memory().available
        if size > available // 2:
            raise ArtifactError(
                f"{store} states {size:,} bytes of content, over half of the {available:,} bytes "
                "of memory that there are."
            )
        with xr.open_zarr(
            source,
            chunks=None,
            consolidated=False,
            zarr_format=3,
            mask_and_scale=False,
            decode_times=False,
        ) as opened:
            dataset = opened.load()
    except ArtifactError:
        raise
    except Exception as error:  # damaged bytes surface as errors of many kinds
        raise ArtifactError(
            f"the {kind} at {store} is truncated or damaged: {_first_line(error)}"
        ) from error
    stated = dataset.attrs.pop("checksum", None)
    if stated != _checksum(dataset):
        raise ArtifactError(
            f"the {kind} at {store} does not match its checksum: it was truncated or edited. "
            "Restore it from a copy, or make it again."
        )
    return dataset


def _checksum(dataset: xr.Dataset) -> str:
    """SHA-256 over names, shapes, types, values and attributes."""
    total = hashlib.sha256(json.dumps(dataset.attrs, sort_keys=True, default=str).encode())
    for name in sorted(map(str, dataset.variables)):
        values = np.ascontiguousarray(dataset[name].values)
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
        dims = [str(dim) for dim in dataset[name].dims]
        head = json.dumps([name, dims, list(values.shape), values.dtype.kind])
        total.update(head.encode())
        total.update(values.tobytes())
    return total.hexdigest()


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _version() -> str:
    return version("dask-sketch")
