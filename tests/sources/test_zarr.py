"""Zarr stores: damage is named, and a worker that cannot reach a store does not sketch zeros."""

from __future__ import annotations

import shutil

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
from dask_sketch import FeatureMap, partial_sketch, sketch
from dask_sketch.errors import ChunkError, InputError

FM = feature_map()


X = draw_rows(0, 60, 3)


NAMES = ["a", "b", "c"]


def run(x, weights=None, **options):
    found = ds.sketch(x, FM, weights, **options)
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


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


@pytest.mark.parametrize("how", ["truncated", "emptied", "overwritten"])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_corrupt_chunk_names_its_rows_and_its_store(how, sharded, tmp_path):
    path = tmp_path / "x.zarr"
    chunks = {"chunks": (5, 3), "shards": (20, 3)} if sharded else {"chunks": (20, 3)}
    zarr.create_array(str(path), data=X, **chunks)
    file = path / "c" / "1" / "0"
    raw = file.read_bytes()
    damaged = {"truncated": raw[: len(raw) // 2], "emptied": b"", "overwritten": b"x" * 300}
    file.write_bytes(damaged[how])
    with pytest.raises(ChunkError, match=r"rows 20 to 40 .*x\.zarr \(stored object c/1/0\)"):
        run(path, chunk_size=1)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("given", ["path", "store", "array", "group"])
@pytest.mark.few_cases(4)
def test_a_missing_chunk_is_an_error_and_not_zeros(given, sharded, tmp_path):
    path = tmp_path / "x.zarr"
    group = zarr.open_group(path, mode="w")
    chunks = {"chunks": (5, 3), "shards": (20, 3)} if sharded else {"chunks": (20, 3)}
    array = group.create_array("x", data=X, **chunks)
    (path / "x" / "c" / "1" / "0").unlink()
    x = {"path": path, "store": zarr.storage.LocalStore(path), "array": array, "group": group}
    with pytest.raises(ChunkError, match=r"object x/c/1/0\) .*missing_chunks=\"fill\""):
        run(x[given], chunk_size=1)
    with pytest.raises(ChunkError, match="missing_chunks"):
        ds.design(x[given], n_frequencies=8, n_components=2, chunk_size=1)
    filled = X.copy()
    filled[20:40] = 0
    assert_same_sketch(
        run(x[given], chunk_size=1, missing_chunks="fill"), partial_sketch(filled, FM)
    )


def test_missing_chunks_of_weights_and_labels(tmp_path):
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("x", data=X, chunks=(20, 3))
    group.create_array("w", data=np.zeros(60), chunks=(20,))  # zeros are not written
    group.create_array("g", data=np.zeros(60, int), chunks=(20,))
    with pytest.raises(ChunkError, match=r"w/c/0.*missing_chunks"):
        run(tmp_path / "x.zarr", "w")
    with pytest.raises(ChunkError, match=r"g/c/0.*missing_chunks"):
        ds.sketch(tmp_path / "x.zarr", FM, groups="g").compute(scheduler="sync")
    labelled = ds.sketch(tmp_path / "x.zarr", FM, groups="g", missing_chunks="fill")
    assert labelled.compute(scheduler="sync")[0].count == 60


def test_missing_chunks_are_refused_where_they_have_no_effect(tmp_path):
    with pytest.raises(InputError, match="missing_chunks"):
        ds.open_samples(X, missing_chunks="fill")
    zarr.create_array(str(tmp_path / "x.zarr"), data=X)
    with pytest.raises(InputError, match="missing_chunks='omit'"):
        ds.open_samples(tmp_path / "x.zarr", missing_chunks="omit")


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


def test_results_of_this_package_are_no_samples(tmp_path):
    feature_map = ds.FeatureMap(2, 20, scale=1.0)
    ds.Centroids([1.0], [[0.0, 1.0]]).to_zarr(tmp_path / "centroids.zarr")
    ds.create_ledger(tmp_path / "ledger.zarr", feature_map)
    for name, reader in (("centroids", r"\.open "), ("ledger", r"\.open_ledger ")):
        with pytest.raises(InputError, match=rf"{name}\.zarr has schema='dask-.*{reader}"):
            ds.sketch(tmp_path / f"{name}.zarr", feature_map)
    assert ds.open_samples(tmp_path / "centroids.zarr", array="centers").n_features == 2
    recordings = zarr.open_group(tmp_path / "features.zarr", mode="w")
    recordings.attrs["schema"] = "dask-sketch/speech-features/1"
    recordings.create_array("frames", data=X)
    assert ds.open_samples(tmp_path / "features.zarr").n_features == X.shape[1]


def test_groups_must_be_told_which_array(tmp_path):
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    with pytest.raises(InputError, match="it is empty"):
        ds.open_samples(tmp_path / "x.zarr")
    group.create_array("x", data=X)
    group.create_array("y", data=X)
    with pytest.raises(InputError, match=r"array=None: .* 2 "):
        ds.open_samples(tmp_path / "x.zarr")
    with pytest.raises(InputError, match="array='x'"):
        ds.open_samples(tmp_path / "x.zarr" / "x", array="x")
    with pytest.raises(InputError, match="weights='w'"):
        ds.open_samples(group["x"], weights="w")


@pytest.mark.parametrize("size", ["lots", "-1", 0, -5, "0 MiB", "1 parsec"])
def test_bad_chunk_sizes(size):
    with pytest.raises(InputError, match="chunk_size="):
        ds.open_samples(X, chunk_size=size)


N = 90


def chunked(x, rows=20):
    return da.from_array(x, chunks=(rows, x.shape[1] if x.ndim > 1 else 1)[: x.ndim])


def store(x, w, target, fmt=3, **options):
    group = zarr.open_group(target, mode="w", zarr_format=fmt)
    options.setdefault("chunks", (20, 3))
    group.create_array("frames", data=x, **options)
    group.create_array("w", data=w, chunks=(33,))
    return target


def computed(found):
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


def test_big_endian_stores(tmp_path, rng):
    x, fm = rng.normal(size=(N, 3)).astype(">f4"), feature_map()
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(20, 3), zarr_format=2)
    for source in (x, tmp_path / "x.zarr", chunked(x)):
        assert_same_sketch(partial_sketch(x.astype(float), fm), computed(ds.sketch(source, fm)))


def test_stored_chunks_are_joined_but_never_split(tmp_path):
    x = np.zeros((1000, 3), dtype=np.float32)
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(5, 3), shards=(20, 3))
    sizes = ds.open_samples(path, chunk_size=1000).blocks.chunks[0]
    assert set(sizes) == {80, 40}  # 960 bytes: four shards
    assert set(ds.open_samples(path, chunk_size=1).blocks.chunks[0]) == {20}
    assert ds.open_samples(path).n_chunks == 1


def test_a_folder_that_moved_is_not_read_again(tmp_path):
    store(np.zeros((4, 3)), np.ones(4), str(tmp_path / "x.zarr"))
    samples = ds.open_samples(tmp_path / "x.zarr")
    shutil.rmtree(tmp_path / "x.zarr")
    assert samples.n_samples == 4


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A store opened by a relative path, from a folder that is then left."""
    monkeypatch.setattr("dask_sketch.sources.zarr_rows.REACHED", set())
    monkeypatch.chdir(tmp_path)
    array = zarr.create_array("x.zarr", shape=(100, 2), chunks=(50, 2), dtype="f4")
    array[:] = np.ones((100, 2))
    (tmp_path / "other").mkdir()
    return tmp_path


def test_a_relative_path_is_made_absolute(elsewhere, monkeypatch):
    lazy = sketch("x.zarr", FeatureMap(2, 10, scale=1.0))
    monkeypatch.chdir(elsewhere / "other")
    np.testing.assert_array_equal(lazy.compute().minimum, 1.0)


def test_an_array_out_of_reach_is_an_error(elsewhere, monkeypatch):
    lazy = sketch(zarr.open_array("x.zarr", mode="r"), FeatureMap(2, 10, scale=1.0))
    monkeypatch.chdir(elsewhere / "other")
    with pytest.raises(ChunkError, match="cannot be reached by host"):
        lazy.compute()


def test_a_store_that_changed_is_an_error(elsewhere):
    lazy = sketch("x.zarr", FeatureMap(2, 10, scale=1.0))
    zarr.open_array("x.zarr", mode="a").resize((50, 2))
    with pytest.raises(ChunkError, match=r"shape=\(50, 2\)"):
        lazy.compute()


@pytest.fixture
def sparse(tmp_path):
    """A store of a few hundred bytes that states 2**31 rows."""
    return zarr.create_array(tmp_path / "s.zarr", shape=(2**31, 3), chunks=(2**20, 3), dtype="f8")


def test_a_store_that_only_states_rows_is_refused(sparse, tmp_path):
    with pytest.raises(ChunkError, match="missing_chunks="):
        run(tmp_path / "s.zarr")
    with pytest.raises(InputError, match=r"2,147,483,648 rows in 2,048 .* 0 exist.* 0.0"):
        ds.open_samples(tmp_path / "s.zarr", missing_chunks="fill")


def test_a_store_with_few_of_its_chunks_is_warned_of(sparse, tmp_path):
    sparse[:3] = 1.0
    with pytest.warns(UserWarning, match=r"in 2,048 .* 1 exist"):
        ds.open_samples(tmp_path / "s.zarr", missing_chunks="fill")
    small = zarr.create_array(tmp_path / "t.zarr", shape=(8, 3), chunks=(2, 3), dtype="f8")
    small[:2] = 1.0
    assert run(tmp_path / "t.zarr", missing_chunks="fill").count == 8


@pytest.mark.filterwarnings("ignore:.*consolidated", "ignore:.*Consolidated")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ({"dtype": "i2", "scale_factor": 0.01, "_FillValue": -9999}, "scale_factor=0.01"),
        ({"dtype": "f4", "add_offset": 5.0}, "add_offset=5"),
        ({"_FillValue": -9999.0}, "_FillValue="),
        ({}, None),
    ],
)
def test_values_that_stand_for_others_are_refused(encoding, named, zarr_format, tmp_path):
    x = np.random.default_rng(0).normal(size=(100, 3))
    variable = xr.Dataset({"v": (("time", "feature"), x)})
    path = str(tmp_path / "x.zarr")
    variable.to_zarr(path, encoding={"v": encoding}, zarr_format=zarr_format)
    if named is None:  # a fill value of NaN, which xarray states by default
        assert_same_sketch(run(path), partial_sketch(x, FM))
        return
    with pytest.raises(InputError, match=named) as caught:
        ds.open_samples(path)
    assert caught.value.parameter == "x"
    decoded = xr.open_zarr(path)["v"]
    expected = partial_sketch(decoded.to_numpy(), FM)
    assert_same_sketch(run(decoded, feature_dim="feature"), expected)


@pytest.mark.parametrize("text", ["1e999", "NaN", "[3]", '"text"'])
def test_attributes_that_are_no_object_are_named(text, tmp_path):
    """They were a raw error of a type."""
    zarr.save_array(str(tmp_path / "x.zarr"), np.ones((4, 2)), zarr_format=2)
    (tmp_path / "x.zarr" / ".zattrs").write_text(text)
    with pytest.raises(InputError, match=r"x\.zarr.*JSON"):
        ds.open_samples(str(tmp_path / "x.zarr"))
