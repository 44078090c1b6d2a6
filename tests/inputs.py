"""Inputs of every kind, with the same rows and weights, for tests."""

from __future__ import annotations

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr

NAMES = ["a", "b", "c"]


N = 90


def frame(x, w):
    return pd.DataFrame(x, columns=NAMES).assign(w=w)


def chunked(x, rows=20):
    return da.from_array(x, chunks=(rows, x.shape[1] if x.ndim > 1 else 1)[: x.ndim])


def records(x, w):
    return [dict(zip([*NAMES, "w"], [*row, v], strict=True)) for row, v in zip(x, w, strict=True)]


# Each builder gives (input, weights, options); ``place`` is an empty folder.
BUILDERS = {}


def builder(function):
    BUILDERS[function.__name__.replace("_", " ")] = function
    return function


@builder
def numpy_array(x, w, place):
    return x, w, {}


@builder
def nested_list(x, w, place):
    return x.tolist(), w.tolist(), {}


@builder
def pandas_column(x, w, place):
    return frame(x, w), "w", {}


@builder
def pandas_array_of_weights(x, w, place):
    return frame(x, w), w, {"columns": NAMES}


@builder
def pandas_series_of_weights(x, w, place):
    return frame(x, w)[NAMES], pd.Series(w, index=range(1000, 1000 + len(w))), {}


@builder
def pandas_reordered(x, w, place):
    return frame(x, w)[["w", "c", "a", "b"]].assign(extra="text"), "w", {"columns": NAMES}


@builder
def dask_array(x, w, place):
    return chunked(x), w, {}


@builder
def dask_array_lazy_weights(x, w, place):
    return chunked(x), chunked(w, 7), {}


@builder
def dask_array_feature_chunks(x, w, place):
    return da.from_array(x, chunks=(13, 2)), w, {}


@builder
def dask_array_unknown_chunks(x, w, place):
    keep = da.from_array(np.ones(len(x), dtype=bool), chunks=20)
    return chunked(x)[keep], chunked(w)[keep], {}


@builder
def dask_frame(x, w, place):
    return dd.from_pandas(frame(x, w), npartitions=4), "w", {}


@builder
def dask_frame_series_of_weights(x, w, place):
    lazy = dd.from_pandas(frame(x, w), npartitions=4)
    return lazy[NAMES], lazy["w"], {}


@builder
def dask_frame_filtered(x, w, place):
    more = pd.concat([frame(x, w), frame(x, w).assign(a=1e6)])
    lazy = dd.from_pandas(more.reset_index(drop=True), npartitions=5)
    return lazy[lazy.a != 1e6], "w", {"columns": NAMES}


@builder
def bag_of_blocks(x, w, place):
    edges = range(0, len(x), 7)
    blocks = db.from_sequence([x[i : i + 7] for i in edges], npartitions=4)
    shares = db.from_sequence([w[i : i + 7] for i in edges], npartitions=4)
    return blocks, shares, {}


@builder
def bag_of_dicts(x, w, place):
    return db.from_sequence(records(x, w), npartitions=4), "w", {}


@builder
def bag_of_dicts_chosen(x, w, place):
    items = [{"name": "text"} | item for item in records(x, w)]
    return db.from_sequence(items, npartitions=4), "w", {"columns": NAMES}


@builder
def bag_of_tuples(x, w, place):
    rows = db.from_sequence([tuple(row) for row in x], npartitions=4)
    return rows, db.from_sequence(w.tolist(), npartitions=4), {}


@builder
def bag_of_rows(x, w, place):
    rows = db.from_sequence(list(x), npartitions=4)
    return rows, db.from_sequence(list(w), npartitions=4), {}


def labelled(x, lazy=False):
    array = xr.DataArray(x, dims=("frame", "feature"), coords={"feature": NAMES}, name="x")
    return array.chunk({"frame": 20}) if lazy else array


@builder
def data_array(x, w, place):
    return labelled(x), w, {}


@builder
def data_array_weight_coordinate(x, w, place):
    return labelled(x, lazy=True).assign_coords(w=("frame", w)), "w", {}


@builder
def data_array_transposed(x, w, place):
    return labelled(x, lazy=True).T, xr.DataArray(w, dims="frame"), {"feature_dim": "feature"}


@builder
def data_array_of_three_dimensions(x, w, place):
    cube = xr.DataArray(x.reshape(9, 10, 3), dims=("t", "s", "feature")).chunk(t=2, s=4)
    return cube, xr.DataArray(w.reshape(9, 10).T, dims=("s", "t")), {}


@builder
def dataset_of_variables(x, w, place):
    columns = {name: ("frame", x[:, i]) for i, name in enumerate(NAMES)}
    return xr.Dataset(columns | {"w": ("frame", w)}).chunk(frame=20), "w", {}


@builder
def dataset_in_memory_with_array_of_weights(x, w, place):
    return xr.Dataset({name: ("frame", x[:, i]) for i, name in enumerate(NAMES)}), w, {}


@builder
def dataset_of_grids(x, w, place):
    grid = {name: (("t", "s"), x[:, i].reshape(9, 10)) for i, name in enumerate(NAMES)}
    dataset = xr.Dataset(grid | {"w": (("t", "s"), w.reshape(9, 10))})
    return dataset.chunk(t=2, s=4), "w", {"columns": NAMES}


@builder
def dataset_of_one_variable(x, w, place):
    dataset = xr.Dataset({"x": labelled(x, lazy=True), "w": ("frame", w)})
    return dataset, "w", {"columns": ["x"]}


def store(x, w, target, fmt=3, **options):
    group = zarr.open_group(target, mode="w", zarr_format=fmt)
    options.setdefault("chunks", (20, 3))
    group.create_array("frames", data=x, **options)
    group.create_array("w", data=w, chunks=(33,))
    return target


@builder
def zarr_group(x, w, place):
    return store(x, w, str(place / "x.zarr")), "w", {}


@builder
def zarr_group_pathlib(x, w, place):
    return store(x, w, place / "without suffix"), "w", {"array": "frames"}


@builder
def zarr_group_format_2(x, w, place):
    return store(x, w, str(place / "x.zarr"), fmt=2), "w", {"array": "frames"}


@builder
def zarr_sharded(x, w, place):
    path = store(x, w, str(place / "x.zarr"), chunks=(5, 3), shards=(20, 3))
    return path, "w", {"array": "frames"}


@builder
def zarr_feature_chunks(x, w, place):
    return store(x, w, str(place / "x.zarr"), chunks=(20, 2)), w, {"array": "frames"}


@builder
def zarr_array_path(x, w, place):
    return store(x, w, str(place / "x.zarr")) + "/frames", w, {}


@builder
def zarr_array_format_2(x, w, place):
    zarr.create_array(str(place / "x.zarr"), data=x, chunks=(20, 3), zarr_format=2)
    return str(place / "x.zarr"), w, {}


@builder
def zarr_array_object(x, w, place):
    return zarr.open_group(store(x, w, str(place / "x.zarr")), mode="r")["frames"], w, {}


@builder
def zarr_group_object(x, w, place):
    return zarr.open_group(store(x, w, str(place / "x.zarr")), mode="r"), "w", {}


@builder
def zarr_local_store(x, w, place):
    return zarr.storage.LocalStore(store(x, w, str(place / "x.zarr"))), "w", {}


@builder
def zarr_memory_store(x, w, place):
    return store(x, w, zarr.storage.MemoryStore()), "w", {}


@builder
def zarr_file_url(x, w, place):
    return "file://" + store(x, w, str(place / "x.zarr")), "w", {}


@builder
def zarr_zip_store(x, w, place):
    with zarr.storage.ZipStore(place / "x.zip", mode="w") as zipped:
        store(x, w, zipped)
    return zarr.storage.ZipStore(place / "x.zip", mode="r"), "w", {}


@builder
def zarr_written_by_xarray(x, w, place):
    dataset = xr.Dataset({"x": labelled(x), "w": ("frame", w)})
    dataset = dataset.drop_vars("feature")
    dataset.to_zarr(place / "x.zarr", consolidated=False)  # whose fill value is NaN
    return place / "x.zarr", "w", {}


def parquet(x, w, path, **options):
    pq.write_table(pa.Table.from_pandas(frame(x, w), preserve_index=False), path, **options)
    return path


@builder
def parquet_file(x, w, place):
    return parquet(x, w, place / "x.parquet"), "w", {}


@builder
def parquet_row_groups(x, w, place):
    path = parquet(x, w, str(place / "x.parquet"), row_group_size=11)
    return path, "w", {"chunk_size": 300, "columns": NAMES}


def parts(x, w, place):
    for i in range(0, len(x), 25):
        parquet(x[i : i + 25], w[i : i + 25], place / f"part-{i:03}.parquet")
    (place / "_SUCCESS").touch()


@builder
def parquet_directory(x, w, place):
    parts(x, w, place)
    return place, "w", {}


@builder
def parquet_glob(x, w, place):
    parts(x, w, place)
    return str(place / "part-*"), "w", {}


@builder
def parquet_nested_directories(x, w, place):
    for name, rows in (("day=1", slice(0, 40)), ("day=2", slice(40, None))):
        (place / "x" / name).mkdir(parents=True)
        parquet(x[rows], w[rows], place / "x" / name / "0.parquet")
    return str(place / "x"), "w", {}


@builder
def parquet_file_url(x, w, place):
    return f"file://{parquet(x, w, place / 'x.parquet')}", "w", {}


@builder
def parquet_with_an_index(x, w, place):
    frame(x, w).set_index(pd.Index(range(5, 5 + len(x)), name="key")).to_parquet(place / "x.pq")
    return place / "x.pq", "w", {}


@builder
def parquet_with_empty_parts(x, w, place):
    parquet(x[:0], w[:0], place / "a.parquet")
    parquet(x, w, place / "b.parquet")
    parquet(x[:0], w[:0], place / "c.parquet")
    return place, "w", {}


@builder
def parquet_in_a_folder_with_brackets(x, w, place):
    (place / "run [1]").mkdir()
    return parquet(x, w, place / "run [1]" / "x.parquet"), "w", {}


@builder
def arrow_table(x, w, place):
    return pa.Table.from_pandas(frame(x, w)), "w", {}


@builder
def arrow_batch(x, w, place):
    return pa.RecordBatch.from_pandas(frame(x, w)[NAMES]), w, {}


@builder
def arrow_dataset_frame(x, w, place):
    parts(x, w, place)
    parquet(x[:0], w[:0], place / "z.parquet")
    return pds.dataset(sorted(place.glob("*.parquet"))), "w", {}


@builder
def polars_table(x, w, place):
    return pytest.importorskip("polars").from_pandas(frame(x, w)), "w", {}


@builder
def polars_query_table(x, w, place):
    polars = pytest.importorskip("polars")
    lazy = polars.from_pandas(frame(x, w).assign(name="text")).lazy()
    return lazy.select(*NAMES, "w"), "w", {}


@builder
def duckdb_relation_table(x, w, place):
    duckdb = pytest.importorskip("duckdb")
    return duckdb.from_arrow(pa.Table.from_pandas(frame(x, w))).order("a"), "w", {}


@builder
def csv_frame(x, w, place):
    frame(x, w).to_csv(place / "x.csv", index=False)
    return place / "x.csv", "w", {"chunk_size": 2000}


@builder
def npy_file(x, w, place):
    np.save(place / "x.npy", x)
    return place / "x.npy", w, {"chunk_size": 20 * 24}


@builder
def netcdf_dataset_of_variables(x, w, place):
    columns = {name: ("frame", x[:, i]) for i, name in enumerate(NAMES)}
    xr.Dataset(columns | {"w": ("frame", w)}).to_netcdf(place / "x.nc", engine="scipy")
    return place / "x.nc", "w", {}


@builder
def hdf5_array(x, w, place):
    file = pytest.importorskip("h5py").File(place / "x.h5", "w")
    return file.create_dataset("x", data=x, chunks=(20, 3)), w, {}


@builder
def zarr_in_icechunk(x, w, place):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(place / "x")))
    session = repository.writable_session("main")
    store(x, w, session.store)
    session.commit("frames")
    return repository.readonly_session("main").store, "w", {}


@builder
def array_of_the_package_dask_array(x, w, place):
    package = pytest.importorskip("dask_array")
    return package.from_array(x, chunks=(20, 3)) + 0.0, w, {}


class Tensor:
    """An object that is an array for NumPy, as tensors of other packages are."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape
        self.dtype = f"tensor.{values.dtype}"  # is no type of NumPy's

    def __array__(self, dtype=None, copy=None):
        return self.values


@builder
def tensor_array(x, w, place):
    return Tensor(x), Tensor(w), {}


IN_MEMORY = {
    "arrow table",
    "arrow batch",
    "polars table",
    "polars query table",
    "duckdb relation table",
    "tensor array",
    "numpy array",
    "nested list",
    "pandas column",
    "pandas array of weights",
    "pandas series of weights",
    "pandas reordered",
    "data array",
    "dataset in memory with array of weights",
}

# Streams, which can be read once and by `sketch` alone; the same arguments and results.
STREAMS = {}


def cut(values):
    return (values[start : start + 7] for start in range(0, len(values), 7))


def stream(function):
    STREAMS[function.__name__.replace("_", " ")] = function
    return function


@stream
def generator_of_blocks(x, w, place):
    return cut(x), cut(w), {}


@stream
def stream_of_record_batches(x, w, place):
    return pa.Table.from_pandas(frame(x, w)).to_reader(max_chunksize=7), "w", {}


# Inputs of the table of README.md, and beginnings of the names of the builders of each.
DOORS = {
    "array of NumPy, PyTorch, HDF5; `.npy` file": ("numpy", "nested list", "tensor", "hdf5", "npy"),
    "table of pandas, Dask, Arrow, Polars, DuckDB; CSV file": (
        "pandas", "dask frame", "arrow table", "arrow batch", "polars", "duckdb", "csv",
    ),
    "Dask array": ("dask array", "array of the package dask array"),
    "Dask bag of 2-D blocks or of records": ("bag of blocks", "bag of dicts", "bag of"),
    "xarray DataArray": ("data array",),
    "xarray Dataset, NetCDF file": ("dataset", "netcdf"),
    "Zarr path, URL, store, array or group": (
        "zarr group", "zarr file url", "zarr array path", "zarr array object", "zarr",
    ),
    "Parquet file, folder or glob, local or URL; Arrow dataset": (
        "parquet file", "parquet directory", "parquet glob", "parquet file url", "parquet",
        "arrow dataset",
    ),
    "generator, stream of record batches (`sketch` only)": ("generator", "stream of"),
}  # fmt: skip
