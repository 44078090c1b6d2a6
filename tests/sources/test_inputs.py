"""Every kind of input gives the same sketch, with weights in the way that each takes them."""

from __future__ import annotations

import shutil

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
from dask_sketch.errors import InputError, MergeError
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


def test_big_endian_stores(tmp_path, rng):
    x, fm = rng.normal(size=(N, 3)).astype(">f4"), feature_map()
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(20, 3), zarr_format=2)
    for source in (x, tmp_path / "x.zarr", chunked(x)):
        assert_same_sketch(partial_sketch(x.astype(float), fm), computed(ds.sketch(source, fm)))


def test_columns_of_mixed_numeric_types(rng):
    table = pd.DataFrame(
        {
            "a": rng.integers(0, 9, size=N).astype("i8"),
            "b": rng.normal(size=N).astype("f4"),
            "c": rng.random(N) < 0.5,
        }
    )
    fm = feature_map()
    expected = partial_sketch(table.to_numpy(dtype=float), fm)
    for source in (table, dd.from_pandas(table, npartitions=3)):
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


@pytest.mark.parametrize("second", ["int with nulls", "float", "bool with nulls"])
def test_a_later_parquet_file_may_have_another_type_but_not_other_values(second, tmp_path):
    # whole numbers in the first file; the type of the block must not be taken for all of them
    first = {name: [0, 1, 1] for name in NAMES}
    later = {
        "int with nulls": pa.table({n: pa.array([1, None, 3]) for n in NAMES}),
        "float": pa.table({n: pa.array([0.5, 1.5, 2.5]) for n in NAMES}),
        "bool with nulls": pa.table({n: pa.array([True, None, False]) for n in NAMES}),
    }[second]
    if "bool" in second:
        first = {name: [False, True, True] for name in NAMES}
    pq.write_table(pa.table(first), tmp_path / "a.parquet")
    pq.write_table(later, tmp_path / "b.parquet")
    values = np.concatenate(
        [
            np.array(list(first.values()), dtype=float).T,
            later.to_pandas().astype(float).to_numpy(),
        ]
    )
    got = computed(ds.sketch(tmp_path, feature_map(), nan_policy="omit"))
    assert_same_sketch(partial_sketch(values, feature_map(), nan_policy="omit"), got)


def test_records_whose_fields_come_in_another_order():
    x = draw_rows(1, N, 3)
    straight = [dict(zip(NAMES, row, strict=True)) for row in x]
    turned = [dict(reversed(item.items())) for item in straight]
    mixed = db.from_sequence(straight[:40] + turned[40:], npartitions=6)
    got = computed(ds.sketch(mixed, feature_map()))
    assert_same_sketch(partial_sketch(x, feature_map()), got)


def test_an_opened_input_goes_through_the_door_again():
    x = draw_rows(1, N, 3)
    samples = ds.open_samples(chunked(x))
    assert ds.open_samples(samples) is samples
    got = computed(ds.sketch(samples, feature_map()))
    assert_same_sketch(partial_sketch(x, feature_map()), got)


def test_stored_chunks_are_joined_but_never_split(tmp_path):
    x = np.zeros((1000, 3), dtype=np.float32)
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(5, 3), shards=(20, 3))
    sizes = ds.open_samples(path, chunk_size=1000).blocks.chunks[0]
    assert set(sizes) == {80, 40}  # 960 bytes: four shards
    assert set(ds.open_samples(path, chunk_size=1).blocks.chunks[0]) == {20}
    assert ds.open_samples(path).n_chunks == 1


def test_an_empty_first_file_says_nothing_of_the_sizes(tmp_path):
    x = np.random.default_rng(0).normal(size=(20_000, 3))
    parquet(x[:0], x[:0, 0], tmp_path / "0.parquet")
    parquet(x, x[:, 0], tmp_path / "1.parquet", row_group_size=1000)
    samples = ds.open_samples(tmp_path, columns=NAMES, chunk_size="64KiB")
    assert samples.n_chunks > 5
    assert samples.largest_chunk > 24_000  # bytes of one row group


def test_the_largest_run_of_row_groups_is_known(tmp_path):
    x = np.random.default_rng(0).normal(size=(10_000, 3))
    parquet(x, x[:, 0], tmp_path / "x.parquet", row_group_size=8000)
    samples = ds.open_samples(tmp_path / "x.parquet", columns=NAMES, chunk_size="64KiB")
    assert samples.n_chunks == 2
    assert samples.largest_chunk == 8000 * 3 * 8


def test_the_largest_chunk_of_well_compressed_parquet_is_known(tmp_path):
    parquet(np.zeros((200_000, 3)), np.zeros(200_000), tmp_path / "x.parquet")
    samples = ds.open_samples(tmp_path / "x.parquet", columns=NAMES)
    assert samples.largest_chunk >= 200_000 * 3 * 8


def test_a_folder_that_moved_is_not_read_again(tmp_path):
    store(np.zeros((4, 3)), np.ones(4), str(tmp_path / "x.zarr"))
    samples = ds.open_samples(tmp_path / "x.zarr")
    shutil.rmtree(tmp_path / "x.zarr")
    assert samples.n_samples == 4


def test_features_keep_their_names_and_order():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(500, 3)), columns=list("abc"))
    feature_map = ds.design(frame, n_components=1)
    assert feature_map.feature_names == ("a", "b", "c")
    whole = ds.sketch(frame, feature_map)
    # what has no names is taken as it stands
    assert ds.sketch(frame.to_numpy(), feature_map).identical(whole)
    turned = frame[["c", "a", "b"]]
    assert ds.sketch(turned, feature_map, columns=["a", "b", "c"]).identical(whole)
    dataset = xr.Dataset({name: ("row", turned[name]) for name in turned})
    for given in (turned, dd.from_pandas(turned, npartitions=2), dataset):
        for use in (ds.sketch, ds.plan):
            with pytest.raises(InputError, match=r"feature 0 of .* is 'c'; the feature map .* 'a'"):
                use(given, feature_map)
    model = ds.decode(whole, 1)
    assert model.feature_names == ("a", "b", "c")
    scores = [model.score(frame), float(model.score(dd.from_pandas(frame, npartitions=2)))]
    assert scores == pytest.approx([model.score(frame.to_numpy())] * 2)
    for given in (turned, dd.from_pandas(turned, npartitions=2)):
        with pytest.raises(InputError, match=r"is 'c'; the model was made for 'a' there"):
            model.predict(given)
    named = {"n_features": 3, "n_frequencies": 10, "scale": 1.0}
    one = ds.sketch(turned, ds.FeatureMap(**named, feature_names=list("cab")))
    with pytest.raises(MergeError, match="differ in feature_names"):
        one + ds.sketch(frame, ds.FeatureMap(**named, feature_names=list("abc")))


def test_columns_that_are_only_counted_have_no_names():
    x = np.random.default_rng(0).normal(size=(50, 2))
    dataset = xr.DataArray(x, dims=("row", "feature")).to_dataset("feature")
    assert list(dataset) == [0, 1]
    for given in (pd.DataFrame(x), dataset):
        feature_map = ds.design(given, n_components=1)
        assert feature_map.feature_names is None
        assert ds.sketch(given, feature_map).identical(ds.sketch(x, feature_map))
