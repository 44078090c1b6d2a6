"""Every kind of input gives the same sketch, with weights in every form."""

from __future__ import annotations

import os

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from inputs import BUILDERS, IN_MEMORY, NAMES, N, chunked, frame, labelled, store
from scipy.sparse import coo_array
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
from dask_sketch import partial_sketch
from dask_sketch.errors import ChunkError, InputError
from dask_sketch.graph.lazy import LazyResult


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
@pytest.mark.few_cases(12)
def test_every_input_without_weights(kind, tmp_path):
    x, fm = draw_rows(1, N, 3), feature_map()
    source, _, options = BUILDERS[kind](x, np.random.default_rng(2).random(N), tmp_path)
    if any(word in kind for word in ("dicts", "frame", "pandas", "parquet", "dataset", "table")):
        options.setdefault("columns", NAMES)
    got = ds.sketch(source, fm, **options)
    assert_same_sketch(partial_sketch(x, fm), computed(got))


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.few_cases(12)
def test_every_input_with_weights_groups_and_missing_values(kind, tmp_path):
    x, fm = draw_rows(1, N, 3), feature_map(distribution="sparse-sums")
    x[np.random.default_rng(3).random(x.shape) < 0.1] = np.nan
    w = np.random.default_rng(2).integers(1, 5, N) / 2.0
    source, column, options = BUILDERS[kind](x, w, tmp_path)  # one column is both
    got = ds.sketch(source, fm, column, groups=column, nan_policy="available", **options)
    got = got.compute(scheduler="sync") if isinstance(got, LazyResult) else got
    expected = partial_sketch(x, fm, w, groups=w, nan_policy="available")
    assert got.labels.tolist() == [0.5, 1.0, 1.5, 2.0]
    assert got.identical(expected)


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.few_cases(20)
def test_every_input_tells_its_features_and_its_size(kind, tmp_path):
    x = draw_rows(1, N, 3)
    source, weights, options = BUILDERS[kind](x, np.ones(N), tmp_path)
    samples = ds.open_samples(source, weights=weights, **options)
    assert samples.n_features == (None if "bag" in kind else 3)
    assert samples.n_samples in (None, N)
    assert samples.n_chunks >= 1
    assert samples.label
    if any(word in kind for word in ("zarr", "numpy", "data array", "list", "npy", "hdf5")):
        assert samples.n_samples == N
        assert samples.bytes_read == N * 3 * 8
    if any(word in kind for word in ("pandas", "frame", "dataset of var", "parquet", "table")):
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
@pytest.mark.few_cases(4)
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
    for name in ("x.h5", "x.json"):
        (tmp_path / name).write_text("a,b\n1,2\n")
        with pytest.raises(InputError, match=name):
            ds.open_samples(tmp_path / name)
    (tmp_path / "x.parquet").write_text("not Parquet")
    with pytest.raises(ChunkError, match=r"x\.parquet could not be read"):
        ds.open_samples(tmp_path / "x.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty"):
        ds.open_samples(tmp_path / "empty")


@pytest.mark.parametrize(
    "x", [None, 3, object(), {"a": 1}, {1, 2}, coo_array(np.eye(2)), b"x.zarr"]
)
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
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got .*'colums'.*'columns'"):
        function(X, *([] if function is ds.design else [FM]), colums=NAMES)


@pytest.mark.parametrize("columns", [5, "ab", np.zeros((2, 2)), object()])
def test_columns_that_are_no_list_of_names(columns):
    with pytest.raises(InputError, match="columns="):
        ds.open_samples(np.zeros((3, 2)), columns=columns)


@pytest.mark.parametrize("name", ["x", "weights", "groups"])
@pytest.mark.parametrize("form", [lambda value: value, lambda value: [value, value]])
def test_delayed_objects_name_the_remedy(name, form):
    x = draw_rows(1, 30, 3)
    value = dask.delayed(x if name == "x" else np.ones(30))
    given = {"x": x, name: form(value)}
    with pytest.raises(InputError, match=r"Delayed .*dask\.array\.from_delayed") as caught:
        ds.sketch(feature_map=feature_map(), **given)
    assert caught.value.parameter == name


def test_a_model_refuses_delayed_objects_and_takes_arrays_of_them():
    x = draw_rows(1, 30, 3)
    model = ds.GaussianMixture([1.0], [[0.0] * 3], [[1.0] * 3])
    value = dask.delayed(x)
    with pytest.raises(InputError, match=r"Delayed .*dask\.array\.from_delayed"):
        model.score(value)
    lazy = da.from_delayed(value, shape=(np.nan, 3), dtype=x.dtype)
    assert float(model.score(lazy).compute(scheduler="sync")) == pytest.approx(model.score(x))


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.npy", "rows.nc", "rows.zarr"])
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_pipes_are_refused_at_once(name, prefix, tmp_path):
    """A reader waits for a writer that never comes, and said nothing."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=rf"{name}.*pipe") as caught:
        ds.open_samples(f"{prefix}{tmp_path / name}")
    assert caught.value.parameter == "x"


def test_categories_of_samples_that_are_open_already():
    codes = ds.open_samples(np.array([[0.0, 1.0], [2.0, 0.0]]))
    levels = {1: ["red", "blue"]}
    opened = ds.open_samples(codes, categories=levels)
    assert opened.categories.levels == (None, ("red", "blue"))
    assert ds.open_samples(opened) is opened
    assert ds.open_samples(opened, categories=levels).categories == opened.categories
    with pytest.raises(InputError, match="opened with the categories"):
        ds.open_samples(opened, categories={1: ["red", "green"]})
    with pytest.raises(InputError, match=r"categories=\[1\] has no effect"):
        ds.open_samples(opened, categories=[1])
