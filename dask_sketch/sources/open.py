"""Open any supported input as lazy samples: a new kind of input is one module and one case here."""

from __future__ import annotations

import inspect
import os
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import dask.array as da
import fsspec
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import Delayed
from zarr.abc.store import Store

from dask_sketch.display.text import first_line
from dask_sketch.errors import ChunkError, InputError
from dask_sketch.sources.array import (
    NumpyFile,
    array_samples,
    as_array,
    memory_samples,
    stored_array_samples,
)
from dask_sketch.sources.arrow import (
    arrow_dataset_samples,
    arrow_samples,
    is_arrow,
    is_arrow_dataset,
)
from dask_sketch.sources.bag import bag_samples
from dask_sketch.sources.csv import csv_samples
from dask_sketch.sources.dataframe import (
    column_or_values,
    frame_samples,
    pandas_samples,
    require_divisions,
)
from dask_sketch.sources.parquet import SUFFIXES, is_glob, parquet_samples
from dask_sketch.sources.samples import Samples
from dask_sketch.sources.xarray import data_array_samples, dataset_samples
from dask_sketch.sources.zarr import zarr_samples
from dask_sketch.storage.overwrite import path_exists
from dask_sketch.validation.arrays import package_of
from dask_sketch.validation.categories import Categories, stated_categories
from dask_sketch.validation.choices import require_keywords
from dask_sketch.validation.device import device_array, on_device
from dask_sketch.validation.tables import require_same_index

_TYPES = (
    "an array (NumPy, CuPy, HDF5, PyTorch), a table (pandas, Arrow, Polars), a Dask array, "
    "DataFrame or bag, an xarray DataArray or Dataset, a Zarr store, or the path or URL of a Zarr "
    "store or of Parquet or CSV files"
)
_OTHER_SUFFIXES = (".txt", ".json", ".npz", ".h5", ".hdf5", ".feather", ".arrow")
_NETCDF = (".nc", ".nc4", ".cdf")
# packages whose arrays are read block by block
_STORED_ARRAYS = ("h5py", "netCDF4", "tensorstore")


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
    categories: Any = None,
) -> Samples:
    """Open any supported input as lazy samples.

    Nothing is computed, rows are not counted, and they are never rechunked.

    Parameters
    ----------
    x
        NumPy or CuPy array, or any object that NumPy takes as an array, such as a tensor of
        PyTorch; pandas or Dask DataFrame; table with the Arrow PyCapsule interface, such as those
        of pyarrow, Polars and DuckDB (in memory); dataset of ``pyarrow.dataset`` (lazy); Dask array
        (chunks of unknown length, empty chunks and chunks along features are fine); Dask bag of
        blocks or records; xarray DataArray or Dataset; dataset of an open HDF5 file (``h5py``);
        Zarr array, group or store; path or URL of a Zarr store, of a Parquet or CSV file,
        directory or glob; path of a NetCDF or ``.npy`` file. Streams of blocks, such as generators
        and readers of record batches, can be read once only: :func:`sketch` takes them, this
        function does not.
    weights
        One weight for each sample: array-like, or the name of a column, variable, coordinate, array
        of the group, or field of the records. Arrays are matched by position. A Series of pandas,
        or a DataArray, beside a DataFrame or xarray objects must have the same index. The
        partitions of a Dask Series are matched by position; known divisions must be the same.
    groups
        Label of the group of each sample, such as a speaker, a day or a file: integers, text, dates
        or booleans. Array-like (also a Series or a Dask array, whose chunks may differ from those
        of the samples), or a name as for the weights; a named column is not a feature. In a Zarr
        group and a Dataset, the name may also be of an array with one label for each file or the
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
        Treatment of chunks of a Zarr store that are not stored: ``"raise"`` stops with an error
        (default), ``"fill"`` reads the fill value. Zarr leaves out chunks that hold only the fill
        value, but chunks are also missing from an unmounted disk or an incomplete copy. Dask arrays
        and xarray objects read missing chunks as they were opened.
    categories
        Categorical features: a dictionary of the levels of columns, in order (text, numbers or
        booleans); in place of levels None, or a list of columns in place of the dictionary, for
        the categories of a pandas categorical column and for booleans; or ``"dtype"`` for all
        columns of a categorical type. By default all features are numbers. The rows then hold the
        codes of the levels, which each chunk of a frame (of pandas, Dask, Arrow, Polars, Parquet or
        CSV files) is converted to when it is read; arrays must hold codes, and their columns are
        named by their numbers. Bags cannot have categorical features.

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
    if columns is not None:
        several = isinstance(columns, Iterable) and not isinstance(columns, str)
        names = list(columns) if several else []
        if not several or not all(isinstance(name, Hashable) for name in names):
            raise InputError(f"columns={columns!r}: give a list of names.", parameter="columns")
        if len(set(names)) < len(names):
            raise InputError(f"columns={names!r}: give each name once.")
        given["columns"] = names
    if isinstance(x, Samples):
        _require_effect(given, "samples that are open already", ())
        return _with_categories(x, categories)
    _require_known_shapes({"x": x, "weights": weights, "groups": groups})
    # the chunks of frames are converted; other inputs hold codes
    if isinstance(x, (str, os.PathLike)):
        return _of_codes(_path_samples(os.fspath(x), given, categories), categories)
    opened = _collection_samples(x, given, categories)
    if opened is None:
        opened = _memory_samples(x, given, categories)
    if opened is None:
        module = type(x).__module__
        name = f"{'' if module == 'builtins' else f'{module}.'}{type(x).__name__}"
        raise InputError(
            f"x of type {name} is not supported: give {_TYPES}.",
            parameter="x",
        )
    return _of_codes(opened, categories)


def _with_categories(samples: Samples, categories: Any) -> Samples:
    """Samples that are open already, which hold codes unless they were opened with categories."""
    if categories is None or isinstance(categories, str):
        return samples
    if samples.categories is None:
        return _of_codes(samples, categories)
    stated = None
    if isinstance(categories, (Categories, Mapping)) and samples.n_features is not None:
        stated = stated_categories(categories, samples.n_features, samples.feature_names)
    if stated is None:
        raise InputError(
            f"categories={categories!r} has no effect on samples that are open already: give it to "
            "open_samples with the data, or leave it out.",
            parameter="categories",
        )
    samples.require_categories(stated, "this call")
    return samples


def _require_known_shapes(given: dict[str, Any]) -> None:
    """Refuse Delayed objects, alone or in a list: nothing is known of them before they are run."""
    for name, value in given.items():
        several = isinstance(value, (list, tuple))
        if any(isinstance(element, Delayed) for element in (value if several else [value])):
            kind = f"{type(value).__name__} of " if several else ""
            shape = "(n_samples, n_features)" if name == "x" else "(n_samples,)"
            raise InputError(
                f"{name} of type {kind}dask.delayed.Delayed has no known shape: make a Dask array "
                f"with dask.array.from_delayed(value, shape={shape}, dtype=float), where n_samples "
                "may be NaN, and join several by dask.array.concatenate; or make a DataFrame with "
                "dask.dataframe.from_delayed.",
                parameter=name,
            )


def _of_codes(samples: Samples, categories: Any) -> Samples:
    """Samples whose categorical columns hold codes already."""
    if samples.categories is not None or categories is None or isinstance(categories, str):
        return samples
    if samples.n_features is None:
        raise InputError(
            f"categories has no effect on {samples.label}, a bag; give a Dask DataFrame of it.",
            parameter="categories",
        )
    if not isinstance(categories, Categories) and not isinstance(categories, Mapping):
        raise InputError(
            f"categories={categories!r}: {samples.label} has no types of columns. Give a "
            "dictionary of levels by column.",
            parameter="categories",
        )
    stated = stated_categories(categories, samples.n_features, samples.feature_names)
    assert stated is not None
    for levels in stated.levels:
        numbers = levels is not None and not any(isinstance(level, str) for level in levels)
        if numbers and list(levels or ()) != list(range(len(levels or ()))):
            raise InputError(
                f"categories has the levels {str(levels)[:80]}, and {samples.label} is an array, "
                "which holds codes: 0 for the first level, 1 for the second. Give a DataFrame of "
                "the levels.",
                parameter="categories",
            )
    return replace(samples, categories=stated)


_OPTIONS = inspect.signature(open_samples).parameters.keys() - {"x"}


def require_options(function: str | Callable[..., Any], options: Iterable[str]) -> None:
    """Raise TypeError for keywords that :func:`open_samples` does not have.

    Parameters
    ----------
    function
        Function that was called with them, or its name.
    options
        Names of the keywords.
    """
    require_keywords(function, options, _OPTIONS, "opening the input")


def _require_effect(given: dict[str, Any], noun: str, accepted: tuple[str, ...]) -> None:
    """Raise InputError for an argument that would have no effect."""
    for name in given:
        if name not in accepted:
            raise InputError(f"{name} has no effect on {noun}; leave it out.", parameter=name)


def is_stream(x: Any) -> bool:
    """Whether an object gives blocks of rows one after the other, and has no rows itself.

    Examples are generators, readers of record batches, and loaders of PyTorch.

    Examples
    --------
    >>> is_stream(iter([[[1.0, 2.0]]])), is_stream([[1.0, 2.0]]), is_stream(np.zeros((2, 2)))
    (True, False, False)
    """
    if isinstance(x, Iterator):
        return True
    if not isinstance(x, Iterable) or isinstance(x, Set) or is_dask_collection(x):
        return False
    # sequences, arrays, tables and groups of arrays have items or a shape
    has_items = any(hasattr(x, name) for name in ("__getitem__", "__array__", "shape"))
    return not (has_items or is_arrow(x))


def streams_beside(beside: Mapping[str, Any]) -> dict[str, Iterable[Any]]:
    """Select the streams among weights and groups of a stream of blocks.

    Parameters
    ----------
    beside
        Arguments by name: None, names of columns, or streams of the values of each block.

    Returns
    -------
    streams
        Arguments that are streams, by name.

    Raises
    ------
    InputError
        If an argument is of another type.
    """
    streams = {key: value for key, value in beside.items() if is_stream(value)}
    for key, value in beside.items():
        if not (value is None or key in streams or isinstance(value, str)):
            raise InputError(
                f"{key} of type {type(value).__name__}: x is a stream of blocks; give the name of "
                f"a column, or a stream of the {key} of each block.",
                parameter=key,
            )
    return streams


def block_in_memory(samples: Samples, block: Any, number: int) -> Samples:
    """Name the samples of a block of a stream, which must be in memory.

    Parameters
    ----------
    samples
        Samples of the block.
    block
        Block as the stream gave it.
    number
        Number of the block, from 0.

    Raises
    ------
    InputError
        If the block is lazy.
    """
    if samples.lazy:
        raise InputError(
            f"x is a stream, and its block {number} of type {type(block).__name__} is lazy: "
            "give blocks in memory, or one lazy input in place of the stream.",
            parameter="x",
        )
    return replace(samples, label=f"block {number} of the stream")


def blocks_together(
    x: Iterable[Any], streams: dict[str, Iterable[Any]]
) -> Iterator[tuple[Any, ...]]:
    """Iterate over the blocks of several streams together.

    Parameters
    ----------
    x
        Stream of blocks of rows.
    streams
        Streams of values for each block, by the name of the argument.

    Yields
    ------
    blocks
        Block of rows, and its values from each stream.

    Raises
    ------
    InputError
        If a stream ends before the others.
    """
    end = object()
    for blocks in zip_longest(x, *streams.values(), fillvalue=end):
        missing = [
            name for name, block in zip(("x", *streams), blocks, strict=True) if block is end
        ]
        if missing:
            raise InputError(
                f"{missing[0]} is a stream of another length: give one block of each stream for "
                "each block of rows."
            )
        yield blocks


def _collection_samples(x: Any, given: dict[str, Any], categories: Any) -> Samples | None:
    """Open a Dask, xarray or Zarr object; None for other types."""
    module = package_of(x)
    if module == "dask_array" and is_dask_collection(x):  # the same graph as a plain Dask array
        x = da.Array(x.__dask_graph__(), x.name, x.chunks, dtype=x.dtype)
    if isinstance(x, da.Array):
        _require_effect(given, "a Dask array", ("weights", "groups"))
        return array_samples(x, f"the Dask array {x.name}", **given)
    name = _xarray_name(x)
    if name == "DataArray":
        _require_effect(given, "a DataArray", ("weights", "groups", "feature_dim"))
        return data_array_samples(x, **given)
    if name == "Dataset":
        _require_effect(given, "a Dataset", ("weights", "groups", "columns", "feature_dim"))
        return dataset_samples(x, **given)
    if name == "DataTree":
        raise InputError(
            f"x of type DataTree, with {sum(node.has_data for node in x.subtree)} datasets: sketch "
            "each by itself, as in {node.path: sketch(node.to_dataset(), feature_map) for node in "
            "x.subtree if node.has_data}; SketchGroup.from_sketches makes a group of the results.",
            parameter="x",
        )
    if module == "zarr" or isinstance(x, Store):
        options = ("weights", "groups", "array", "chunk_size", "missing_chunks")
        _require_effect(given, "a Zarr store", options)
        return zarr_samples(x, **given)
    if is_arrow_dataset(x):
        _require_effect(given, "an Arrow dataset", ("weights", "groups", "columns"))
        return arrow_dataset_samples(x, **given, categories=categories)
    if module in _STORED_ARRAYS and hasattr(x, "shape") and hasattr(x, "dtype"):
        _require_effect(given, "a stored array", ("weights", "groups", "chunk_size"))
        return stored_array_samples(x, **given)
    if not is_dask_collection(x) or not hasattr(x, "npartitions"):
        return None
    _require_effect(given, "a Dask DataFrame or bag", ("weights", "groups", "columns"))
    if hasattr(x, "columns"):
        return _dask_frame_samples(x, "the Dask DataFrame", given, categories)
    if hasattr(x, "map_partitions") and not hasattr(x, "dtype"):
        return bag_samples(x, **given)
    return None


def _xarray_name(x: Any) -> str | None:
    """Name of the class of xarray that an object has, itself or as a view or subclass."""
    names = (kind.__name__ for kind in type(x).__mro__ if kind.__module__.startswith("xarray."))
    return next((name for name in names if name in ("DataArray", "Dataset", "DataTree")), None)


def _dask_frame_samples(x: Any, label: str, given: dict[str, Any], categories: Any) -> Samples:
    """Open a Dask DataFrame, whose columns may be weights and labels."""
    weight, weights = column_or_values(given.get("weights"), x.columns, "weights")
    group, groups = column_or_values(given.get("groups"), x.columns, "groups")
    for name, series in (("weights", weights), ("groups", groups)):
        require_divisions(series, x.divisions, name)
    return frame_samples(
        x, label, weight=weight, weights=weights, group=group, groups=groups,
        columns=given.get("columns"), categories=categories,
    )  # fmt: skip


def _memory_samples(x: Any, given: dict[str, Any], categories: Any) -> Samples | None:
    """Open data in the memory of the host or of a GPU; None for other types."""
    module = package_of(x)
    if module == "polars" and hasattr(x, "collect"):  # a query, which is run
        x = x.collect()
    tabular = ("weights", "groups", "columns", "chunk_size")
    if module == "pandas" and hasattr(x, "columns"):
        _require_effect(given, "a DataFrame", tabular)
        for name in ("weights", "groups"):
            require_same_index(given.get(name), x, name)
        return pandas_samples(x, **given, categories=categories)
    if isinstance(x, (np.ndarray, list, tuple)):
        _require_effect(given, "an array", ("weights", "groups", "chunk_size"))
        return memory_samples(as_array(x), "the array", **given)
    if on_device(x):
        _require_effect(given, "an array on a GPU", ("weights", "groups", "chunk_size"))
        return memory_samples(device_array(x), "the array on the GPU", **given)
    if is_arrow(x) and module != "pandas":
        _require_effect(given, "a table", tabular)
        return arrow_samples(x, **given, categories=categories)
    if is_stream(x):
        raise InputError(
            f"x of type {type(x).__module__}.{type(x).__name__} is a stream, which can be read "
            "once only: dask_sketch.sketch takes it; give other functions an array or a table.",
            parameter="x",
        )
    if hasattr(x, "__array__"):
        _require_effect(given, "an array", ("weights", "groups", "chunk_size"))
        return memory_samples(as_array(x), "the array", **given)
    return None


def _path_samples(path: str, given: dict[str, Any], categories: Any) -> Samples:
    options = (
        "weights", "groups", "columns", "array", "storage_options", "chunk_size", "missing_chunks",
    )  # fmt: skip
    _require_effect(given, "a path", options)
    plain = path.rstrip("/").lower()
    if not plain:
        raise InputError(f"x={path!r}: give the path of a Zarr store or of Parquet files.")
    _require_no_special_file(path)
    if plain.endswith(_OTHER_SUFFIXES):
        raise InputError(
            f"x={path!r}: only Zarr, Parquet, CSV, NetCDF and .npy files are read by path. Read "
            "other files with h5py, pandas, dask.dataframe or xarray, and give the result."
        )
    if plain.endswith((*_NETCDF, ".csv", ".npy")):
        return _file_samples(path, plain.rpartition(".")[2], given, categories)
    kind = _format_of(path, given.get("storage_options"))
    if kind == "csv":
        return _file_samples(f"{path.rstrip('/')}/*.csv", "csv", given, categories)
    if kind == "zarr":
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
    return parquet_samples(path, **given, categories=categories)


def _require_no_special_file(path: str) -> None:
    """Raise InputError for a pipe, socket or device, of which readers would wait without an end."""
    protocol, _, location = path.rpartition("://")
    if protocol not in ("", "file", "local"):
        return
    try:
        mode = Path(location).stat().st_mode
    except (OSError, ValueError):  # other errors are those of the format
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(
            f"x={path!r} is a pipe, a socket or a device, and no file: write its content to a file "
            "first, or give record batches, which may be a stream.",
            parameter="x",
        )


def _file_samples(path: str, kind: str, given: dict[str, Any], categories: Any) -> Samples:
    """Open a file by the library that reads its format."""
    options = given.pop("storage_options", None)
    try:
        if kind == "csv":
            _require_effect(given, "a CSV file", ("weights", "groups", "columns", "chunk_size"))
            return csv_samples(path, **given, storage_options=options, categories=categories)
        if options:
            raise InputError(
                f"storage_options has no effect on {path!r}, a file of this machine; leave it out.",
                parameter="storage_options",
            )
        if kind == "npy":
            _require_effect(given, "a .npy file", ("weights", "groups", "chunk_size"))
            return stored_array_samples(NumpyFile.open(path), **given)
        import xarray as xr

        _require_effect(given, "a NetCDF file", ("weights", "groups", "columns", "feature_dim"))
        return dataset_samples(xr.open_dataset(path, chunks={}), **given)
    except (ChunkError, InputError):
        raise
    except Exception as error:  # libraries fail in many ways
        raise InputError(
            f"x={path!r} could not be opened: {type(error).__name__}: {error}. Check the path, "
            "that the file is complete, and that the package for this format is installed.",
            parameter="x",
        ) from error


def has_columns(path: str, storage_options: dict[str, Any] | None = None) -> bool:
    """Whether a path is read as Parquet or CSV files, which have named columns.

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
    >>> has_columns("part-0.parquet"), has_columns("frames.zarr/")
    (True, False)
    """
    return _format_of(path, storage_options) in ("parquet", "csv")


def _format_of(path: str, storage_options: dict[str, Any] | None) -> str:
    """Format of a path: Parquet, also for other globs; CSV for a folder of such files; or Zarr."""
    plain = path.rstrip("/").lower()
    if plain.endswith((*SUFFIXES, ".zarr")):
        return "parquet" if plain.endswith(SUFFIXES) else "zarr"
    try:
        fs, location = fsspec.core.url_to_fs(path, **(storage_options or {}))
        fs.invalidate_cache()
        if is_glob(fs, location):
            return "parquet"
        if not path_exists(fs, location):
            raise InputError(f"x={path!r} does not exist. Check the path.")
        names = [name.rsplit("/", 1)[-1] for name in fs.ls(location, detail=False)]
    except InputError:
        raise
    except Exception as error:  # file systems fail in many ways
        raise InputError(
            f"x={path!r} could not be listed: {first_line(error).rstrip('.')}. Check the path; for "
            "a URL also storage_options, and that the credentials are valid."
        ) from error
    if any(name in ("zarr.json", ".zarray", ".zgroup") for name in names):
        return "zarr"
    folders = (fs.isdir(f"{location.rstrip('/')}/{name}") for name in names if "=" not in name)
    if any("=" in name or name.lower().endswith(SUFFIXES) for name in names) or any(folders):
        return "parquet"
    return "csv" if any(name.endswith(".csv") for name in names) else "zarr"
