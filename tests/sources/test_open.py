"""Every kind of input gives the same sketch, with weights in every form."""

from __future__ import annotations

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
from dask_sketch import partial_sketch
from dask_sketch.errors import ChunkError, InputError
from dask_sketch.graph.lazy import LazyResult

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
    return lazy[lazy.a < 1e5], "w", {"columns": NAMES}


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


IN_MEMORY = {
    "numpy array",
    "nested list",
    "pandas column",
    "pandas array of weights",
    "pandas series of weights",
    "pandas reordered",
    "data array",
    "dataset in memory with array of weights",
}


def computed(found):
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_input_gives_the_same_sketch(kind, tmp_path):
    x, fm = draw_rows(1, N, 3), feature_map()
    w = np.random.default_rng(2).random(N)
    source, weights, options = BUILDERS[kind](x, w, tmp_path)
    got = ds.sketch(source, fm, weights, **options)
    assert isinstance(got, ds.Sketch if kind in IN_MEMORY else LazyResult)
    assert_same_sketch(partial_sketch(x, fm, w), computed(got))


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_input_without_weights(kind, tmp_path):
    x, fm = draw_rows(1, N, 3), feature_map()
    source, _, options = BUILDERS[kind](x, np.random.default_rng(2).random(N), tmp_path)
    if any(word in kind for word in ("dicts", "frame", "pandas", "parquet", "dataset")):
        options.setdefault("columns", NAMES)
    got = ds.sketch(source, fm, **options)
    assert_same_sketch(partial_sketch(x, fm), computed(got))


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_input_tells_its_features_and_its_size(kind, tmp_path):
    x = draw_rows(1, N, 3)
    source, weights, options = BUILDERS[kind](x, np.ones(N), tmp_path)
    samples = ds.open_samples(source, weights=weights, **options)
    assert samples.n_features == (None if "bag" in kind else 3)
    assert samples.n_samples in (None, N)
    assert samples.n_chunks >= 1
    assert samples.label
    if any(word in kind for word in ("zarr", "numpy", "data array", "list")):
        assert samples.n_samples == N
        assert samples.bytes_read == N * 3 * 8
    if any(word in kind for word in ("pandas", "frame", "dataset of var", "parquet")):
        assert samples.feature_names == tuple(NAMES)


def test_memory_url(rng):
    import fsspec

    x, w = draw_rows(1, N, 3), rng.random(N)
    try:
        store(x, w, "memory://dask-sketch-test/x.zarr")
        got = ds.sketch("memory://dask-sketch-test/x.zarr", feature_map(), "w")
        assert_same_sketch(partial_sketch(x, feature_map(), w), computed(got))
        with fsspec.open("memory://dask-sketch-test/x.parquet", "wb") as file:
            frame(x, w).to_parquet(file)
        got = ds.sketch("memory://dask-sketch-test/x.parquet", feature_map(), "w")
        assert_same_sketch(partial_sketch(x, feature_map(), w), computed(got))
    finally:
        fsspec.filesystem("memory").rm("/dask-sketch-test", recursive=True)


DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u4", "?"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_numeric_type(dtype, tmp_path, rng):
    values = rng.integers(0, 2 if dtype == "?" else 50, size=(N, 3))
    x, fm = values.astype(dtype), feature_map(scale=10.0)
    expected = partial_sketch(values.astype(float), fm)
    table = pd.DataFrame(x, columns=NAMES)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(20, 3))
    sources = [
        x,
        table,
        chunked(x),
        dd.from_pandas(table, npartitions=3),
        db.from_sequence([x[:40], x[40:]]),
        labelled(x, lazy=True),
        tmp_path / "x.zarr",
    ]
    if dtype != "f2":  # which Arrow writes, but pandas reads only in new versions
        table.to_parquet(tmp_path / "x.parquet")
        sources.append(tmp_path / "x.parquet")
    for source in sources:
        assert_same_sketch(expected, computed(ds.sketch(source, fm)))


def missing_values():
    return pd.DataFrame(
        {
            "a": pd.array([1, None, 3, 4], dtype="Int64"),
            "b": pd.array([1.0, 2.0, None, 4.0], dtype="Float64"),
            "c": [1, 2, 3, 4],
        }
    )


@pytest.mark.parametrize("kind", ["pandas", "dask", "parquet", "arrow"])
def test_missing_values_are_rows_to_omit(kind, tmp_path):
    table = missing_values()
    if kind == "arrow":
        table = table.convert_dtypes(dtype_backend="pyarrow")
    if kind == "parquet":
        table.to_parquet(tmp_path / "x.parquet")
    sources = {"dask": lambda: dd.from_pandas(table, npartitions=2)}
    sources |= {"parquet": lambda: tmp_path / "x.parquet"}
    source = sources.get(kind, lambda: table)()
    got = computed(ds.sketch(source, feature_map(), nan_policy="omit"))
    assert (got.count, got.omitted) == (2, 2)
    assert got.minimum.tolist() == [1.0, 1.0, 1.0]
    row = 0 if kind == "dask" else 1
    with pytest.raises(ds.SketchError, match=f"row {row} of .* nan"):
        computed(ds.sketch(source, feature_map()))


def test_an_opened_input_goes_through_the_door_again():
    x = draw_rows(1, N, 3)
    samples = ds.open_samples(chunked(x))
    assert ds.open_samples(samples) is samples
    got = computed(ds.sketch(samples, feature_map()))
    assert_same_sketch(partial_sketch(x, feature_map()), got)


FM = feature_map()


X = draw_rows(0, 60, 3)


@pytest.mark.parametrize("name", ["x.zarr", "x.parquet", "x", "x-*.parquet", "x-*"])
def test_missing_store(name, tmp_path):
    with pytest.raises(InputError, match=r"x='.*x"):
        ds.open_samples(str(tmp_path / name))


def test_a_url_of_an_unknown_kind():
    for url in ("gopher://x/y.zarr", "gopher://x/y", "gopher://x/y.parquet"):
        with pytest.raises(InputError, match="gopher"):
            ds.open_samples(url)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"x\.csv"):
        ds.open_samples(tmp_path / "x.csv")
    (tmp_path / "x.parquet").write_text("not Parquet")
    with pytest.raises(ChunkError, match=r"x\.parquet could not be read"):
        ds.open_samples(tmp_path / "x.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty"):
        ds.open_samples(tmp_path / "empty")


@pytest.mark.parametrize("x", [None, 3, object(), {"a": 1}, pd.Series([1.0]), {1, 2}, b"x.zarr"])
def test_unknown_kinds(x):
    with pytest.raises(InputError, match="x of type "):
        ds.open_samples(x)


@pytest.mark.parametrize(
    ("x", "options", "name"),
    [
        (X, {"columns": NAMES}, "columns"),
        (X, {"array": "x"}, "array"),
        (X, {"feature_dim": "f"}, "feature_dim"),
        (da.from_array(X), {"columns": NAMES}, "columns"),
        (da.from_array(X), {"storage_options": {"anon": True}}, "storage_options"),
        (xr.DataArray(X, dims=("t", "f")), {"columns": NAMES}, "columns"),
        (pd.DataFrame(X), {"feature_dim": "f"}, "feature_dim"),
        ("x.parquet", {"array": "x"}, "array"),
        ("x.zarr", {"columns": NAMES}, "columns"),
        ("x.zarr", {"feature_dim": "f"}, "feature_dim"),
        (ds.open_samples(X), {"weights": np.ones(60)}, "weights"),
        (ds.open_samples(X), {"columns": NAMES}, "columns"),
    ],
)
def test_options_without_an_effect_are_refused(x, options, name):
    with pytest.raises(InputError, match=name):
        ds.open_samples(x, **options)


@pytest.mark.parametrize("x", [pd.DataFrame(X, columns=NAMES), dict.fromkeys(NAMES, X[:, 0])])
def test_a_column_is_chosen_once(x):
    x = x if isinstance(x, pd.DataFrame) else xr.Dataset({k: ("t", v) for k, v in x.items()})
    with pytest.raises(InputError, match=r"columns=\['a', 'b', 'a'\]"):
        ds.open_samples(x, columns=["a", "b", "a"])


@pytest.mark.parametrize("function", [ds.sketch, ds.plan, ds.design])
def test_unknown_options_are_refused_in_the_name_of_the_function(function):
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got .*'colums'.* columns, "):
        function(X, *([] if function is ds.design else [FM]), colums=NAMES)
