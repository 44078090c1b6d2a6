"""Bad input: each kind has an error of its own that names the argument and the place."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from strategies import draw_rows, feature_map

import dask_sketch as ds
from dask_sketch.errors import ChunkError, InputError

FM = feature_map()
X = draw_rows(0, 60, 3)
NAMES = ["a", "b", "c"]


def run(x, weights=None, **options):
    found = ds.sketch(x, FM, weights, **options)
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


@pytest.mark.parametrize("name", ["x.zarr", "x.parquet", "x", "x-*.parquet", "x-*"])
def test_missing_store(name, tmp_path):
    with pytest.raises(InputError, match="x='.*x"):
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


@pytest.mark.filterwarnings("ignore:Object at c is not recognized")
@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"zarr_format": 3}'])
def test_damaged_metadata_of_a_store(text, tmp_path):
    zarr.create_array(str(tmp_path / "x.zarr"), data=X)
    (tmp_path / "x.zarr" / "zarr.json").write_text(text)
    with pytest.raises(InputError, match=r"x\.zarr"):
        ds.open_samples(tmp_path / "x.zarr")


@pytest.mark.parametrize("shape", [(60,), (5, 4, 3)])
def test_a_store_that_is_not_two_dimensional(shape, tmp_path):
    zarr.create_array(str(tmp_path / "x.zarr"), data=np.zeros(shape))
    with pytest.raises(InputError, match=r"shape=\(.*\): "):
        ds.open_samples(tmp_path / "x.zarr")


@pytest.mark.parametrize(
    "x",
    [
        np.zeros(5),
        np.zeros((2, 3, 4)),
        np.zeros((5, 0)),
        da.zeros(5),
        da.zeros((5, 0)),
        [1.0, 2.0],
        xr.DataArray(np.zeros(5), dims="t"),
    ],
)
def test_arrays_that_are_not_rows_of_features(x):
    with pytest.raises(InputError, match=r"shape=|dims="):
        ds.open_samples(x)


@pytest.mark.parametrize("x", [None, 3, object(), {"a": 1}, pd.Series([1.0]), {1, 2}, b"x.zarr"])
def test_unknown_kinds(x):
    with pytest.raises(InputError, match="x of type "):
        ds.open_samples(x)


def test_ragged_lists():
    with pytest.raises(InputError, match="x"):
        ds.open_samples([[1.0, 2.0], [3.0]])


def test_masked_arrays_are_not_read_through_their_mask():
    masked = np.ma.masked_array(X, mask=X > 1)
    with pytest.raises(InputError, match="mask"):
        ds.open_samples(masked)


def wrong_features(tmp_path):
    wide = np.zeros((6, 4))
    zarr.create_array(str(tmp_path / "x.zarr"), data=wide)
    pd.DataFrame(wide, columns=list("abcd")).to_parquet(tmp_path / "x.parquet")
    return {
        "numpy": wide,
        "dask": da.from_array(wide),
        "zarr": tmp_path / "x.zarr",
        "parquet": tmp_path / "x.parquet",
        "pandas": pd.DataFrame(wide),
        "bag": db.from_sequence([wide]),
        "labelled": xr.DataArray(wide, dims=("t", "f")).chunk(),
    }


@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr", "parquet", "pandas", "bag", "labelled"])
def test_wrong_number_of_features(kind, tmp_path):
    x = wrong_features(tmp_path)[kind]
    with pytest.raises(InputError, match="4 features: .* n_features=3|n_features=3"):
        run(x)
    if kind != "bag":
        with pytest.raises(InputError, match="4 features: .* n_features=3|n_features=3"):
            ds.plan(x, FM)


@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr", "labelled"])
@pytest.mark.parametrize("values", [np.array([["a", "b", "c"]]), np.zeros((4, 3), dtype=complex)])
def test_values_that_are_not_real_numbers(kind, values, tmp_path):
    if kind == "zarr" and values.dtype.kind == "U":
        values = values.astype("U1")
    sources = {
        "numpy": lambda: values,
        "dask": lambda: da.from_array(values),
        "labelled": lambda: xr.DataArray(values, dims=("t", "f")),
    }
    if kind == "zarr":
        if values.dtype.kind == "U":
            pytest.skip("Zarr warns of strings of fixed length")
        zarr.create_array(str(tmp_path / "x.zarr"), data=values)
        sources["zarr"] = lambda: tmp_path / "x.zarr"
    with pytest.raises(InputError, match="dtype="):
        ds.open_samples(sources[kind]())


@pytest.mark.parametrize("kind", ["pandas", "dask", "parquet"])
def test_non_numeric_columns_are_named(kind, tmp_path):
    table = pd.DataFrame(X, columns=NAMES).assign(speaker="ada", when=pd.Timestamp("2020-01-01"))
    table.to_parquet(tmp_path / "x.parquet")
    source = {
        "pandas": table,
        "dask": dd.from_pandas(table, npartitions=2),
        "parquet": tmp_path / "x.parquet",
    }[kind]
    with pytest.raises(InputError, match=r"speaker \(.*when .*columns=\["):
        run(source)
    assert run(source, columns=NAMES).count == 60
    with pytest.raises(InputError, match=r"columns=\['d'\]"):
        run(source, columns=["a", "d"])
    with pytest.raises(InputError, match="columns='a': give a list"):
        run(source, columns="a")
    with pytest.raises(InputError, match="weights='d'"):
        run(source, "d", columns=NAMES)
    with pytest.raises(InputError, match="speaker"):
        run(source, "speaker", columns=NAMES)


@pytest.mark.parametrize("kind", ["pandas", "dask"])
def test_two_columns_of_one_name(kind):
    table = pd.DataFrame(X, columns=["a", "b", "a"])
    source = table if kind == "pandas" else dd.from_pandas(table, npartitions=2)
    with pytest.raises(InputError, match="several columns named a"):
        run(source)


def empty(tmp_path):
    none = np.zeros((0, 3))
    zarr.create_array(str(tmp_path / "x.zarr"), data=none, chunks=(5, 3))
    frame = pd.DataFrame(none, columns=NAMES)
    frame.to_parquet(tmp_path / "x.parquet")
    lazy = da.from_array(X, chunks=(20, 3))
    return {
        "numpy": none,
        "dask": da.from_array(none),
        "filtered": lazy[lazy[:, 0] > 1e9],
        "zarr": tmp_path / "x.zarr",
        "pandas": frame,
        "parquet": tmp_path / "x.parquet",
        "bag": db.from_sequence([1, 2, 3], npartitions=2).filter(lambda item: item > 5),
        "blocks": db.from_sequence([none, none]),
        "labelled": xr.DataArray(none, dims=("t", "f")),
    }


EMPTY = ["numpy", "dask", "filtered", "zarr", "pandas", "parquet", "bag", "blocks", "labelled"]


@pytest.mark.parametrize("kind", EMPTY)
def test_empty_input(kind, tmp_path):
    with pytest.raises(InputError, match=r"gave no samples: it has no rows"):
        run(empty(tmp_path)[kind])


def bad_rows(kind, tmp_path, values):
    """Rows of which some are not finite, in chunks of 20, for each kind of input."""
    zarr.create_array(str(tmp_path / "x.zarr"), data=values, chunks=(20, 3))
    frame = pd.DataFrame(values, columns=NAMES)
    (tmp_path / "p").mkdir()
    for i in range(3):
        frame[20 * i : 20 * i + 20].to_parquet(tmp_path / "p" / f"{i}.parquet")
    return {
        "dask": lambda: (da.from_array(values, chunks=(20, 3)), {}),
        "joined features": lambda: (da.from_array(values, chunks=(20, 2)), {}),
        "zarr": lambda: (tmp_path / "x.zarr", {"chunk_size": 1}),
        "parquet": lambda: (tmp_path / "p", {}),
        "frame": lambda: (dd.from_pandas(frame, npartitions=3), {}),
        "bag": lambda: (db.from_sequence([values[:20], values[20:40], values[40:]]), {}),
        "labelled": lambda: (xr.DataArray(values, dims=("t", "f")).chunk(t=20), {}),
    }[kind]()


KINDS = ["dask", "joined features", "zarr", "parquet", "frame", "bag", "labelled"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_row_names_its_chunk_and_itself(kind, tmp_path):
    values = X.copy()
    values[47, 1] = np.nan
    source, options = bad_rows(kind, tmp_path, values)
    with pytest.raises(ChunkError, match="^chunk 2 of .*: row 7 of .* nan in feature 1"):
        run(source, **options)
    got = run(source, nan_policy="omit", **options)
    assert (got.count, got.omitted) == (59, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_weight_names_its_chunk_and_row(kind, tmp_path):
    values = X.copy()
    source, options = bad_rows(kind, tmp_path, values)
    w = np.ones(60)
    w[47] = -1.0
    weights = w
    if kind == "bag":
        weights = db.from_sequence([w[:20], w[20:40], w[40:]])
    if kind == "frame":
        weights = da.from_array(w, chunks=20)
    if kind == "parquet":
        for i in range(3):
            path = tmp_path / "p" / f"{i}.parquet"
            part = slice(20 * i, 20 * i + 20)
            pd.DataFrame(X[part], columns=NAMES).assign(w=w[part]).to_parquet(path)
        weights = "w"
    with pytest.raises(ChunkError, match=r"weights of chunk 2 of .*: row 7 has weight=-1\.0"):
        run(source, weights, **options)


def test_all_rows_bad():
    bad = np.full((60, 3), np.nan)
    with pytest.raises(InputError, match=r"gave no samples: all of its 60 rows have NaN"):
        run(bad, nan_policy="omit")
    with pytest.raises(ChunkError, match="row 0 of .* nan"):
        run(bad)


def test_labels_of_blocks_on_a_grid():
    cube = np.zeros((4, 4, 3))
    cube[3, 1, 2] = np.inf
    lazy = da.from_array(cube, chunks=(2, 2, 3))
    with pytest.raises(ChunkError, match=r"chunk \(1, 0\) of .* row 3 .* inf"):
        run(lazy)


@pytest.mark.parametrize("how", ["truncated", "emptied", "overwritten"])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_corrupt_chunk_names_its_rows_and_its_store(how, sharded, tmp_path):
    if sharded and how == "emptied":
        pytest.skip("Zarr takes an empty shard for one that was never written")
    path = tmp_path / "x.zarr"
    chunks = {"chunks": (5, 3), "shards": (20, 3)} if sharded else {"chunks": (20, 3)}
    zarr.create_array(str(path), data=X, **chunks)
    file = path / "c" / "1" / "0"
    raw = file.read_bytes()
    damaged = {"truncated": raw[: len(raw) // 2], "emptied": b"", "overwritten": b"x" * 300}
    file.write_bytes(damaged[how])
    with pytest.raises(ChunkError, match=r"rows 20 to 40 .*x\.zarr \(stored object c/1/0\)"):
        run(path, chunk_size=1)


def test_flipped_bytes_are_seen_where_the_store_has_checksums(tmp_path):
    from zarr.codecs import Crc32cCodec

    path = tmp_path / "x.zarr"
    zarr.create_array(str(path), data=X, chunks=(20, 3), compressors=[Crc32cCodec()])
    file = path / "c" / "2" / "0"
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)
    with pytest.raises(ChunkError, match=r"rows 40 to 60 .*x\.zarr \(stored object c/2/0\)"):
        run(path, chunk_size=1)


def test_corrupt_weights_name_themselves(tmp_path):
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("x", data=X, chunks=(20, 3))
    group.create_array("w", data=np.random.default_rng(0).random(60), chunks=(20,))
    file = tmp_path / "x.zarr" / "w" / "c" / "1"
    file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(ChunkError, match=r"rows 20 to 40 .*\(stored object w/c/1\)"):
        run(tmp_path / "x.zarr", "w", chunk_size=1)


@pytest.mark.parametrize("how", ["truncated", "flipped", "other columns"])
def test_a_corrupt_parquet_file_is_named(how, tmp_path):
    for i in range(3):
        pd.DataFrame(X, columns=NAMES).to_parquet(tmp_path / f"{i}.parquet")
    file: Path = tmp_path / "1.parquet"
    raw = bytearray(file.read_bytes())
    if how == "truncated":
        file.write_bytes(raw[: len(raw) // 2])
    elif how == "flipped":
        raw[4:200] = bytes(196)
        file.write_bytes(raw)
    else:
        pd.DataFrame(X, columns=["a", "b", "z"]).to_parquet(file)
    with pytest.raises(ChunkError, match=r"1\.parquet.* could not be read"):
        run(tmp_path)


def test_a_corrupt_parquet_file_is_named_when_it_is_to_be_split(tmp_path):
    for i in range(3):
        pd.DataFrame(X, columns=NAMES).to_parquet(tmp_path / f"{i}.parquet")
    (tmp_path / "2.parquet").write_bytes((tmp_path / "2.parquet").read_bytes()[:-20])
    with pytest.raises(ChunkError, match=r"2\.parquet could not be read"):
        ds.open_samples(tmp_path, chunk_size=10)


@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr", "labelled", "list"])
@pytest.mark.parametrize("n", [0, 1, 59, 61])
def test_weights_of_another_length(kind, n, tmp_path):
    w = np.ones(n)
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(20, 3))
    source = {
        "numpy": X,
        "dask": da.from_array(X, chunks=(20, 3)),
        "zarr": tmp_path / "x.zarr",
        "labelled": xr.DataArray(X, dims=("t", "f")),
        "list": X.tolist(),
    }[kind]
    for weights in (w, w.tolist(), da.from_array(w)):
        with pytest.raises(InputError, match="weights has shape=|weights of .* size="):
            ds.sketch(source, FM, weights)


def test_weights_of_another_length_in_frames_and_groups(tmp_path):
    table = pd.DataFrame(X, columns=NAMES)
    with pytest.raises(InputError, match="weights has shape="):
        run(table, np.ones(59))
    with pytest.raises(InputError, match="weights"):
        run(dd.from_pandas(table, npartitions=3), np.ones(59))
    with pytest.raises(InputError, match="weights"):
        run(dd.from_pandas(table, npartitions=3), da.ones(60, chunks=30))
    table.to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="weights of type "):
        run(tmp_path / "x.parquet", np.ones(60))
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("x", data=X)
    group.create_array("w", data=np.ones(59))
    with pytest.raises(InputError, match=r"weights='w' has shape=\(59,\)"):
        run(group, "w")
    with pytest.raises(InputError, match="weights='v'"):
        run(group, "v")
    with pytest.raises(InputError, match="array='v'"):
        run(group, array="v")


def test_weights_of_unknown_length_are_checked_chunk_by_chunk():
    lazy = da.from_array(X, chunks=(20, 3))
    mask = da.from_array(np.arange(60) % 2 == 0, chunks=20)
    with pytest.raises(InputError, match="size=20"):
        run(lazy[mask], da.ones(60, chunks=20))


def test_weights_of_bags():
    blocks = [X[:20], X[20:]]
    bag = db.from_sequence(blocks, npartitions=2)
    with pytest.raises(InputError, match="npartitions=2"):
        run(bag, np.ones(60))
    with pytest.raises(InputError, match="npartitions=2"):
        run(bag, db.from_sequence(range(3), npartitions=3))
    with pytest.raises(InputError, match="size=5"):
        run(bag, db.from_sequence([np.ones(5), np.ones(40)], npartitions=2))
    with pytest.raises(InputError, match="weights of "):
        run(
            db.from_sequence([X[:20], X[20:40], X[40:]], npartitions=1),
            db.from_sequence([np.ones(20), np.ones(20)], npartitions=1),
        )
    with pytest.raises(InputError, match="names fields"):
        run(bag, "w")


def test_a_bad_row_of_a_later_block_of_a_partition_is_named():
    values = X.copy()
    values[47, 1] = np.nan
    blocks = [values[:20], values[20:40], values[40:]]
    records = pd.DataFrame(np.tile(X, (100, 1)), columns=NAMES).to_dict("records")
    records[5000]["b"] = np.nan
    with pytest.raises(ChunkError, match="chunk 0 of .*, from row 40: row 7 "):
        run(db.from_sequence(blocks, npartitions=1))
    with pytest.raises(ChunkError, match="chunk 0 of .*, from row 4096: row 904 "):
        run(db.from_sequence(records, npartitions=1))


def test_columns_of_what_has_none():
    with pytest.raises(InputError, match=r"columns=\['a', 'b', 'c'\]"):
        run(db.from_sequence([(1.0, 2.0, 3.0)]), columns=NAMES)


def test_bad_bags():
    for items, message in [
        ([1.0, 2.0, 3.0], "elements of"),
        ([[1.0, 2.0, 3.0], [1.0]], "differ in length"),
        ([np.zeros((2, 2, 3))], "elements of"),
        ([{"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 1.0}], "no field 'b'"),
        (["text", "words"], "elements of|dtype="),
        ([("a", "b", "c")], "dtype="),
        ([{"a": 1.0, "b": 2.0, "c": "x"}], "dtype="),
    ]:
        with pytest.raises(InputError, match=message):
            run(db.from_sequence(items, npartitions=1))
    with pytest.raises(InputError, match="no field 'w'"):
        run(db.from_sequence([{"a": 1.0, "b": 2.0, "c": 3.0}]), "w")


def test_groups_must_be_told_which_array(tmp_path):
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    with pytest.raises(InputError, match="it is empty"):
        ds.open_samples(tmp_path / "x.zarr")
    group.create_array("x", data=X)
    group.create_array("y", data=X)
    with pytest.raises(InputError, match="array=None: .* 2 "):
        ds.open_samples(tmp_path / "x.zarr")
    with pytest.raises(InputError, match="array='x'"):
        ds.open_samples(tmp_path / "x.zarr" / "x", array="x")
    with pytest.raises(InputError, match="weights='w'"):
        ds.open_samples(group["x"], weights="w")


def test_labelled_names():
    cube = xr.DataArray(np.zeros((4, 5, 3)), dims=("t", "s", "f"))
    with pytest.raises(InputError, match="feature_dim='g'"):
        ds.open_samples(cube, feature_dim="g")
    with pytest.raises(InputError, match="weights='w'"):
        ds.open_samples(cube, weights="w")
    with pytest.raises(InputError, match="weights has dims="):
        ds.open_samples(cube, weights=xr.DataArray(np.ones(4), dims="t"))
    dataset = xr.Dataset({"a": ("t", np.zeros(4)), "b": (("t", "s"), np.zeros((4, 5)))})
    with pytest.raises(InputError, match="differ in dimensions"):
        ds.open_samples(dataset)
    with pytest.raises(InputError, match=r"columns=\['z'\]"):
        ds.open_samples(dataset, columns=["z"])
    with pytest.raises(InputError, match="weights='w'"):
        ds.open_samples(dataset, columns=["a"], weights="w")
    with pytest.raises(InputError, match="columns="):
        ds.open_samples(xr.Dataset())


@pytest.mark.parametrize("size", ["lots", "-1", 0, -5, "0 MiB", "1 parsec"])
def test_bad_chunk_sizes(size):
    with pytest.raises(InputError, match="chunk_size="):
        ds.open_samples(X, chunk_size=size)


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


HIDDEN = np.ma.masked_array(X, mask=np.arange(180).reshape(60, 3) == 100)
ONE_HIDDEN = np.ma.masked_array(np.ones(60), mask=np.arange(60) == 33)


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (HIDDEN, {}),
        (da.from_array(HIDDEN, chunks=(20, 3)), {}),
        (db.from_sequence([HIDDEN], npartitions=1), {}),
        (db.from_sequence(list(HIDDEN), npartitions=1), {}),
        (X, {"weights": ONE_HIDDEN}),
        (pd.DataFrame(X, columns=NAMES), {"weights": ONE_HIDDEN}),
        (da.from_array(X, chunks=(20, 3)), {"weights": da.from_array(ONE_HIDDEN, chunks=20)}),
        (X, {"groups": ONE_HIDDEN}),
        (da.from_array(X, chunks=(20, 3)), {"groups": da.from_array(ONE_HIDDEN, chunks=20)}),
    ],
)
def test_what_a_mask_hides_is_not_used(x, options):
    with pytest.raises(InputError, match="1 masked values"):
        run(x, **options)
    if "groups" not in options:
        with pytest.raises(InputError, match="1 masked values"):
            ds.design(x, 20, **options)


def test_a_mask_that_hides_nothing_is_fine():
    assert run(np.ma.masked_array(X)).identical(run(X))


@pytest.mark.parametrize("function", [ds.sketch, ds.plan, ds.design])
def test_unknown_options_are_refused_in_the_name_of_the_function(function):
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got .*'colums'.* columns, "):
        function(X, *([] if function is ds.design else [FM]), colums=NAMES)


def test_none_in_a_record_is_a_missing_number():
    records = db.from_sequence([[1.0, None, 2.0], [3.0, 4.0, 5.0]], npartitions=1)
    with pytest.raises(ChunkError, match="row 0 .* nan in feature 1"):
        run(records)
    found = run(records, nan_policy="omit")
    assert found.identical(run(np.array([[1.0, np.nan, 2.0], [3.0, 4.0, 5.0]]), nan_policy="omit"))
    with pytest.raises(InputError, match="dtype="):
        run(db.from_sequence([["1", None, "2"]], npartitions=1))


def test_a_name_of_weights_needs_columns():
    with pytest.raises(InputError, match="weights='w' is a name"):
        run(X, "w")
