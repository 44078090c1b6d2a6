"""Open any supported input as lazy samples."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Sequence
from typing import Any

import dask.array as da
import fsspec
import numpy as np
from dask.base import is_dask_collection

from dask_sketch.errors import InputError
from dask_sketch.sources.array import array_samples, as_array, memory_samples
from dask_sketch.sources.bag import bag_samples
from dask_sketch.sources.dataframe import column_or_values, frame_samples, pandas_samples
from dask_sketch.sources.parquet import parquet_samples
from dask_sketch.sources.parquet_files import SUFFIXES, is_glob
from dask_sketch.sources.samples import Samples
from dask_sketch.sources.xarray import data_array_samples, dataset_samples
from dask_sketch.sources.zarr import zarr_samples
from dask_sketch.validation.device import device_array, on_device

_TYPES = (
    "a NumPy array, a pandas or Dask DataFrame, a Dask array or bag, an xarray DataArray or "
    "Dataset, a CuPy array, a Zarr store, or the path or URL of a Zarr store or of Parquet files"
)
_OTHER_SUFFIXES = (".csv", ".txt", ".json", ".npy", ".npz", ".h5", ".hdf5", ".feather")


def open_samples(
    x: Any,
    *,
    weights: Any = None,
    groups: Any = None,
    columns: Sequence[str] | None = None,
    array: str | None = None,
    feature_dim: str | None = None,
    storage_options: dict[str, Any] | None = None,
    chunk_size: str | int | None = None,
    missing_chunks: str | None = None,
) -> Samples:
    """Open any supported input as lazy samples.

    Nothing is computed, rows are not counted, and they are never rechunked.

    Parameters
    ----------
    x
        NumPy or CuPy array, pandas or Dask DataFrame, Dask array (chunks of unknown length, empty
        chunks and chunks along features are fine), Dask bag of blocks or records, xarray DataArray
        or Dataset, Zarr array, group or store, path or URL of a Zarr store or of a Parquet file,
        directory or glob.
    weights
        One weight for each sample: array-like, or the name of a column, variable, coordinate, array
        of the group, or field of the records.
    groups
        Label of the group of each sample, such as a speaker, a day or a file: integers, text, dates
        or booleans. Array-like (also a Series or a Dask array, whose chunks may differ from those
        of the samples), or a name as for the weights; a named column is not a feature. In a Zarr
        group and a Dataset, the name may also be that of an array of labels for each file or the
        like, if the samples have an array of indices of the files. Its attribute
        ``instance_dimension`` names the dimension of the labels, as in the climate and forecast
        (CF) conventions. Integers are indices into the attribute ``names``, if there is one.
    columns
        Names of the columns, variables or fields that are features; by default all but the weights
        and the labels, which must then be numeric.
    array
        Name of the array in a Zarr group.
    feature_dim
        Name of the dimension of the features, for xarray. It may be left out if it is the last one
        and text is its coordinate, it is named like one (``feature``, ``variable``, ``band``,
        ``channel``, ``dim_1`` and so on), or there are two dimensions and the last one is none of
        space or time.
    storage_options
        Options of the file system of a URL.
    chunk_size
        Number of bytes that one task reads, for stores and arrays in memory; the setting
        ``sketch.chunk-size`` by default.
    missing_chunks
        For Zarr stores, whether to ``"raise"`` an error where a chunk is not stored (default), or
        to ``"fill"`` in the fill value. Zarr leaves out chunks that hold only the fill value, but
        chunks are also missing from an unmounted disk or an incomplete copy. Dask arrays and
        xarray objects read missing chunks as they were opened.

    Returns
    -------
    samples
        Lazy samples.

    Raises
    ------
    InputError
        If the type of the input is unknown, the path does not exist, an argument has no effect on
        the input, or shapes, types or names are wrong.

    Examples
    --------
    >>> samples = open_samples(np.zeros((1000, 3)))
    >>> samples.n_features, samples.n_samples
    (3, 1000)
    """
    given = {
        key: value
        for key, value in (
            ("weights", weights), ("groups", groups), ("columns", columns), ("array", array),
            ("feature_dim", feature_dim), ("storage_options", storage_options),
            ("chunk_size", chunk_size), ("missing_chunks", missing_chunks),
        )
        if value is not None
    }  # fmt: skip
    if isinstance(columns, str):
        raise InputError(f"columns={columns!r}: give a list of names.")
    if columns is not None:
        names = list(columns)
        if len(set(names)) < len(names):
            raise InputError(f"columns={names!r}: give each name once.")
        given["columns"] = names
    if isinstance(x, Samples):
        _require_effect(given, "samples that are open already", ())
        return x
    if isinstance(x, (str, os.PathLike)):
        return _path_samples(os.fspath(x), given)
    opened = _collection_samples(x, given)
    if opened is None:
        opened = _memory_samples(x, given)
    if opened is None:
        raise InputError(
            f"x of type {type(x).__module__}.{type(x).__name__} is not supported: give {_TYPES}.",
            parameter="x",
        )
    return opened


_OPTIONS = inspect.signature(open_samples).parameters.keys() - {"x"}


def require_options(function: str, options: Iterable[str]) -> None:
    """Raise TypeError for keywords that :func:`open_samples` does not have.

    Parameters
    ----------
    function
        Name of the function that was called with them.
    options
        Names of the keywords.
    """
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(
                f"{function}() got an unexpected keyword argument {name!r}; those for opening the "
                f"input are {', '.join(sorted(_OPTIONS))}"
            )


def _require_effect(given: dict[str, Any], noun: str, accepted: tuple[str, ...]) -> None:
    """Refuse an argument that would have no effect."""
    for name in given:
        if name not in accepted:
            raise InputError(f"{name} has no effect on {noun}; leave it out.", parameter=name)


def _collection_samples(x: Any, given: dict[str, Any]) -> Samples | None:
    """Open a Dask, xarray or Zarr object; None for other types."""
    module, name = type(x).__module__.split(".")[0], type(x).__name__
    if isinstance(x, da.Array):
        _require_effect(given, "a Dask array", ("weights", "groups"))
        return array_samples(x, f"the Dask array {x.name}", **given)
    if module == "xarray" and name == "DataArray":
        _require_effect(given, "a DataArray", ("weights", "groups", "feature_dim"))
        return data_array_samples(x, **given)
    if module == "xarray" and name == "Dataset":
        _require_effect(given, "a Dataset", ("weights", "groups", "columns", "feature_dim"))
        return dataset_samples(x, **given)
    if module == "zarr" or name in ("LocalStore", "FsspecStore", "MemoryStore", "ObjectStore"):
        options = ("weights", "groups", "array", "chunk_size", "missing_chunks")
        _require_effect(given, "a Zarr store", options)
        return zarr_samples(x, **given)
    if not is_dask_collection(x) or not hasattr(x, "npartitions"):
        return None
    _require_effect(given, "a Dask DataFrame or bag", ("weights", "groups", "columns"))
    if hasattr(x, "columns"):
        weight, weights = column_or_values(given.get("weights"), x.columns, "weights")
        group, groups = column_or_values(given.get("groups"), x.columns, "groups")
        return frame_samples(
            x, "the Dask DataFrame", weight=weight, weights=weights, group=group, groups=groups,
            columns=given.get("columns"),
        )  # fmt: skip
    if hasattr(x, "map_partitions") and not hasattr(x, "dtype"):
        return bag_samples(x, **given)
    return None


def _memory_samples(x: Any, given: dict[str, Any]) -> Samples | None:
    """Open data in the memory of the host or of a GPU; None for other types."""
    if type(x).__module__.split(".")[0] == "pandas" and hasattr(x, "columns"):
        _require_effect(given, "a DataFrame", ("weights", "groups", "columns", "chunk_size"))
        return pandas_samples(x, **given)
    if isinstance(x, (np.ndarray, list, tuple)):
        _require_effect(given, "an array", ("weights", "groups", "chunk_size"))
        return memory_samples(as_array(x), "the array", **given)
    if on_device(x):
        _require_effect(given, "an array on a GPU", ("weights", "groups", "chunk_size"))
        return memory_samples(device_array(x), "the array on the GPU", **given)
    return None


def _path_samples(path: str, given: dict[str, Any]) -> Samples:
    options = (
        "weights", "groups", "columns", "array", "storage_options", "chunk_size", "missing_chunks",
    )  # fmt: skip
    _require_effect(given, "a path", options)
    plain = path.rstrip("/").lower()
    if not plain:
        raise InputError(f"x={path!r}: give the path of a Zarr store or of Parquet files.")
    if plain.endswith(_OTHER_SUFFIXES):
        raise InputError(
            f"x={path!r}: only Zarr and Parquet are read by path. Read other files with pandas, "
            "dask.dataframe or xarray, and give the result."
        )
    if not is_parquet(path, given.get("storage_options")):
        if "columns" in given:
            raise InputError(
                f"columns={given['columns']!r}: {path} is a Zarr store; name an array with array=."
            )
        return zarr_samples(path, **given)
    if "array" in given:
        raise InputError(
            f"array={given['array']!r}: {path} has Parquet files; name columns with columns=."
        )
    if given.pop("missing_chunks", "raise") == "fill":
        raise InputError(f"missing_chunks='fill': {path} has Parquet files; leave it out.")
    return parquet_samples(path, **given)


def is_parquet(path: str, storage_options: dict[str, Any] | None = None) -> bool:
    """Whether a path is read as Parquet files, which have named columns, not as a Zarr store.

    Parameters
    ----------
    path
        Path, URL, glob or directory.
    storage_options
        Options of the file system of a URL.

    Raises
    ------
    InputError
        If the path does not exist or cannot be listed.

    Examples
    --------
    >>> is_parquet("part-0.parquet"), is_parquet("frames.zarr/")
    (True, False)
    """
    plain = path.rstrip("/").lower()
    if plain.endswith((*SUFFIXES, ".zarr")):
        return plain.endswith(SUFFIXES)
    return _has_parquet(path, storage_options)


def _has_parquet(path: str, storage_options: dict[str, Any] | None) -> bool:
    """Whether a path without a known suffix is a glob, or a directory of Parquet files."""
    try:
        fs, found = fsspec.core.url_to_fs(path, **(storage_options or {}))
        fs.invalidate_cache()
        if is_glob(fs, found):
            return True
        if not fs.exists(found):
            raise InputError(f"x={path!r} does not exist. Check the path.")
        names = [name.rsplit("/", 1)[-1] for name in fs.ls(found, detail=False)]
    except InputError:
        raise
    except Exception as error:  # file systems fail in many ways
        raise InputError(
            f"x={path!r} could not be listed: {type(error).__name__}: {error}. Check the path, and "
            "storage_options for a URL."
        ) from error
    if any(name in ("zarr.json", ".zarray", ".zgroup") for name in names):
        return False
    return any(name.lower().endswith(SUFFIXES) for name in names) or any(
        "=" in name or fs.isdir(f"{found.rstrip('/')}/{name}") for name in names
    )
