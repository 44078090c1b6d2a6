"""The one door that every input comes through."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import dask.array as da
import fsspec
import numpy as np
from dask.base import is_dask_collection

from dask_sketch.errors import InputError
from dask_sketch.sources.chunking import row_step
from dask_sketch.sources.samples import Samples, array_samples
from dask_sketch.validation.arrays import require_unmasked
from dask_sketch.validation.device import device_array, on_device

_KINDS = (
    "a NumPy array, a pandas or Dask DataFrame, a Dask array or bag, an xarray DataArray or "
    "Dataset, a CuPy array, a Zarr store, or the path or URL of a Zarr store or of Parquet files"
)


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
) -> Samples:
    """Open any supported input as lazy samples.

    Nothing is computed, no lengths are counted, rows are never rechunked.

    Parameters
    ----------
    x
        NumPy or CuPy array, pandas or Dask DataFrame, Dask array (chunks of unknown length, empty
        chunks and chunks along features are fine), Dask bag of blocks or records, xarray DataArray
        or Dataset, Zarr array, group or store, path or URL of a Zarr store or of a Parquet file,
        directory or glob.
    weights
        One weight for each sample: array-like, or the name of a column, variable, coordinate,
        array of the group, or field of the records, as the input has them.
    groups
        Label of the group of each sample, such as a speaker, a day or a file: array-like (also a
        Series or a Dask array, whose chunks may differ from those of the samples), or a name as
        for the weights. Whole numbers, text, dates or true and false. What is labelled so is no
        feature. In a Zarr group and a Dataset the name may also be that of labels for each file
        or the like, where an array of the samples has the numbers of the files: one whose
        attribute ``instance_dimension`` names the dimension of the labels, as in the climate and
        forecast conventions. Numbers stand for names where the attribute ``names`` lists those.
    columns
        Columns, variables or fields that are features; all numeric ones by default.
    array
        Name of the array in a Zarr group.
    feature_dim
        Dimension of the features, for xarray; the last one by default.
    storage_options
        Options of the file system of a URL.
    chunk_size
        Bytes that one task reads, for stores and arrays in memory; the setting
        ``sketch.chunk-size`` by default.

    Returns
    -------
    samples
        Lazy.

    Raises
    ------
    InputError
        If the kind of input is unknown, nothing is there, or shapes, types or names are wrong.

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
            ("chunk_size", chunk_size),
        )
        if value is not None
    }  # fmt: skip
    columns = _listed(columns)
    if isinstance(x, Samples):
        _require_used(given, "samples that are open already", ())
        return x
    name = type(x).__name__
    module = type(x).__module__.split(".")[0]
    if isinstance(x, (str, os.PathLike)):
        _require_used(
            given, "a path",
            ("weights", "groups", "columns", "array", "storage_options", "chunk_size"),
        )  # fmt: skip
        return _path_samples(
            os.fspath(x), weights=weights, groups=groups, columns=columns, array=array,
            storage_options=storage_options, chunk_size=chunk_size,
        )  # fmt: skip
    if isinstance(x, da.Array):
        _require_used(given, "a Dask array", ("weights", "groups"))
        return array_samples(x, f"the Dask array {x.name}", weights, groups)
    if module == "xarray" and name in ("DataArray", "Dataset"):
        from dask_sketch.sources.xarray import data_array_samples, dataset_samples

        if name == "DataArray":
            _require_used(given, "a DataArray", ("weights", "groups", "feature_dim"))
            return data_array_samples(x, feature_dim=feature_dim, weights=weights, groups=groups)
        _require_used(given, "a Dataset", ("weights", "groups", "columns", "feature_dim"))
        return dataset_samples(
            x, columns=columns, feature_dim=feature_dim, weights=weights, groups=groups
        )
    if module == "zarr" or name in ("LocalStore", "FsspecStore", "MemoryStore", "ObjectStore"):
        from dask_sketch.sources.zarr import zarr_samples

        _require_used(given, "a Zarr store", ("weights", "groups", "array", "chunk_size"))
        return zarr_samples(x, array=array, weights=weights, groups=groups, chunk_size=chunk_size)
    if is_dask_collection(x) and hasattr(x, "npartitions"):
        _require_used(given, "a Dask DataFrame or bag", ("weights", "groups", "columns"))
        if hasattr(x, "columns"):
            from dask_sketch.sources.dataframe import frame_samples

            weight, weights = _column_or_values(weights, x.columns, "weights")
            group, groups = _column_or_values(groups, x.columns, "groups")
            return frame_samples(
                x, "the Dask DataFrame", weight=weight, weights=weights, group=group,
                groups=groups, columns=columns,
            )  # fmt: skip
        if hasattr(x, "map_partitions") and not hasattr(x, "dtype"):
            from dask_sketch.sources.bag import bag_samples

            return bag_samples(x, columns=columns, weights=weights, groups=groups)
    if module == "pandas" and hasattr(x, "columns"):
        _require_used(given, "a DataFrame", ("weights", "groups", "columns", "chunk_size"))
        return _pandas_samples(x, weights, groups, columns, chunk_size)
    if isinstance(x, (np.ndarray, list, tuple)):
        _require_used(given, "an array", ("weights", "groups", "chunk_size"))
        return _memory_samples(_as_array(x), "the array", weights, groups, chunk_size)
    if on_device(x):
        _require_used(given, "an array on a GPU", ("weights", "groups", "chunk_size"))
        return _memory_samples(device_array(x), "the array on the GPU", weights, groups, chunk_size)
    raise InputError(f"x of type {type(x).__module__}.{name} is not understood; give {_KINDS}.")


_OPTIONS = inspect.signature(open_samples).parameters.keys() - {"x"}


def require_options(function: str, options: Iterable[str]) -> None:
    """Refuse keywords that :func:`open_samples` does not know, in the name of who was called."""
    for name in options:
        if name not in _OPTIONS:
            known = ", ".join(sorted(_OPTIONS))
            raise TypeError(
                f"{function}() got an unexpected keyword argument {name!r}; those that say how to "
                f"open the input are {known}"
            )


def _require_used(given: dict[str, Any], kind: str, taken: tuple[str, ...]) -> None:
    """Refuse an option that would change nothing: somebody expects it to."""
    for name in given:
        if name not in taken:
            raise InputError(f"{name} has no effect on {kind}; leave it out.")


def _as_array(x: Any) -> np.ndarray[Any, Any]:
    require_unmasked(x, "samples", "the values of the array")
    try:
        return np.asarray(x)
    except ValueError as error:
        raise InputError(f"x is not an array: {error}") from error


def _path_samples(path: str, *, columns: Any, array: Any, **options: Any) -> Samples:
    from dask_sketch.sources.parquet import SUFFIXES, parquet_samples

    plain = path.rstrip("/").lower()
    if not plain:
        raise InputError(f"x={path!r}: give the path of a Zarr store or of Parquet files.")
    if plain.endswith((".csv", ".txt", ".json", ".npy", ".npz", ".h5", ".hdf5", ".feather")):
        raise InputError(
            f"x={path!r}: only Zarr and Parquet are read by path. Read other files with pandas, "
            "dask.dataframe or xarray, and give the result."
        )
    is_parquet = plain.endswith(SUFFIXES)
    if not is_parquet and not plain.endswith(".zarr"):
        is_parquet = _holds_parquet(path, options["storage_options"], SUFFIXES)
    if is_parquet:
        if array is not None:
            raise InputError(f"array={array!r}: {path} is Parquet; name its columns= instead.")
        return parquet_samples(path, columns=columns, **options)
    if columns is not None:
        raise InputError(f"columns={columns!r}: {path} is a Zarr store; name an array with array=.")
    from dask_sketch.sources.zarr import zarr_samples

    return zarr_samples(path, array=array, **options)


def _holds_parquet(
    path: str, storage_options: dict[str, Any] | None, suffixes: tuple[str, ...]
) -> bool:
    """Whether an undecided path means Parquet: a glob, or a directory with such files."""
    from dask_sketch.sources.parquet import is_glob

    try:
        fs, found = fsspec.core.url_to_fs(path, **(storage_options or {}))
        if is_glob(fs, found):
            return True
        if not fs.exists(found):
            raise InputError(f"x={path!r}: there is nothing at this path. Check it.")
        names = [name.rsplit("/", 1)[-1] for name in fs.ls(found, detail=False)]
    except (OSError, ImportError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"x={path!r} could not be listed: {type(error).__name__}: {error}"
        ) from error
    if any(name in ("zarr.json", ".zarray", ".zgroup") for name in names):
        return False
    return any(name.lower().endswith(suffixes) for name in names) or any(
        "=" in name or fs.isdir(f"{found.rstrip('/')}/{name}") for name in names
    )


def _memory_samples(
    x: np.ndarray[Any, Any],
    label: str,
    weights: Any,
    groups: Any,
    chunk_size: Any,
    **known: Any,
) -> Samples:
    if x.dtype.kind in "US":
        raise InputError(
            f"x holds text of type {x.dtype}, not real numbers. If these are paths, give one at a "
            "time: a glob or a folder for many Parquet files."
        )
    if x.ndim != 2:
        way = "For a single feature, use x[:, None]." if x.ndim == 1 else "Reshape it to two axes."
        raise InputError(f"x has shape {x.shape}; samples must be rows of features. {way}")
    if x.dtype.kind not in "fiub":
        raise InputError(f"x holds values of type {x.dtype}, which are not real numbers.")
    if x.shape[1] == 0:
        raise InputError(f"x has shape {x.shape}: there are no features.")
    step = row_step(len(x), 1, x.itemsize * x.shape[1], chunk_size, grouped=groups is not None)
    rows = min(step, max(len(x), 1))
    blocks = da.from_array(x, chunks=(rows, x.shape[1]), inline_array=True, name=False)
    return array_samples(blocks, label, weights, groups, lazy=False, **known)


def _pandas_samples(x: Any, weights: Any, groups: Any, columns: Any, chunk_size: Any) -> Samples:
    from dask_sketch.sources.dataframe import feature_columns
    from dask_sketch.validation.tables import common_dtype, names_of, to_numpy

    weight, weights = _column_or_values(weights, x.columns, "weights")
    group, groups = _column_or_values(groups, x.columns, "groups")
    names = feature_columns(columns, x.dtypes, weight, "the DataFrame", group)
    values = to_numpy(x[list(names)], common_dtype([x.dtypes[name] for name in names]))
    weights = weights if weight is None else x[weight]
    samples = _memory_samples(
        values,
        "the DataFrame",
        weights,
        groups if group is None else x[group],
        chunk_size,
        feature_names=names_of(names),
    )
    if group is None or samples.groups is None:
        return samples
    return replace(samples, groups=replace(samples.groups, dim=group))


def _column_or_values(given: Any, available: Any, argument: str) -> tuple[str | None, Any]:
    """The name of a column, and none; or none, and what is not a name."""
    if not isinstance(given, str):
        return None, given
    if given not in available:
        raise InputError(f"{argument}={given!r} is not a column; there are {list(available)}.")
    return given, None


def _listed(columns: Sequence[str] | None) -> list[str] | None:
    if isinstance(columns, str):
        raise InputError(f"columns={columns!r}: give a list of names.")
    return None if columns is None else list(columns)
