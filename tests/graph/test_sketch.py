"""Nothing is computed before it is asked for, and everything is computed once."""

from __future__ import annotations

import re

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import dask.threaded
import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
from dask_sketch import partial_sketch
from dask_sketch.errors import ChunkError, InputError, SketchError
from dask_sketch.graph import LazyResult

FM = feature_map()
X = draw_rows(0, 100, 3)


def inputs(place):
    table = pd.DataFrame(X, columns=list("abc"))
    zarr.create_array(str(place / "x.zarr"), data=X, chunks=(10, 3))
    (place / "p").mkdir()
    for i in range(5):
        table[20 * i : 20 * i + 20].to_parquet(place / "p" / f"{i}.parquet")
    lazy = da.from_array(X, chunks=(10, 3))
    return {
        "array": lazy,
        "masked": lazy[da.from_array(np.ones(100, dtype=bool), chunks=10)],
        "frame": dd.from_pandas(table, npartitions=4),
        "bag": db.from_sequence([X[:50], X[50:]]),
        "records": db.from_sequence(table.to_dict("records"), npartitions=3),
        "labelled": xr.DataArray(lazy, dims=("t", "f")),
        "zarr": place / "x.zarr",
        "parquet": place / "p",
    }


KINDS = ["array", "masked", "frame", "bag", "records", "labelled", "zarr", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_building_computes_nothing_and_running_computes_once(kind, tmp_path, counting):
    x = inputs(tmp_path)[kind]
    samples = ds.open_samples(x)
    lazy = ds.sketch(samples, FM)
    ds.plan(samples, FM)
    repr(lazy), lazy._repr_html_(), lazy.__dask_graph__(), dask.base.tokenize(lazy)
    assert isinstance(lazy, LazyResult)
    assert counting.computes == 0
    assert lazy.compute().count == 100
    assert counting.computes == 1


@pytest.mark.parametrize("kind", KINDS)
def test_design_reads_in_one_run(kind, tmp_path, counting):
    x = inputs(tmp_path)[kind]
    ds.design(x, n_components=1, n_pilot=50)
    assert counting.computes == 1


class CountingArray:
    """An array that counts how often each of its blocks is read."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim
        self.reads = []

    def __getitem__(self, index):
        self.reads.append(index[0].start)
        return self.x[index]


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_two_sketches_of_one_source_read_it_once(scheduler):
    counted = CountingArray(X)
    lazy = da.from_array(counted, chunks=(10, 3), inline_array=True)
    a, b = ds.sketch(lazy, FM), ds.sketch(lazy, feature_map(seed=1))
    counted.reads.clear()
    one, two = dask.compute(a, b, scheduler=scheduler)
    assert sorted(counted.reads) == list(range(0, 100, 10))
    assert_same_sketch(one, partial_sketch(X, FM))
    assert_same_sketch(two, partial_sketch(X, feature_map(seed=1)))


def test_two_sketches_of_one_store_read_it_once(tmp_path, monkeypatch):
    reads = []
    honest = zarr.storage.LocalStore.get

    async def counting(self, key, *args, **kwargs):
        reads.append(key)
        return await honest(self, key, *args, **kwargs)

    x = inputs(tmp_path)["zarr"]
    sketches = [ds.sketch(x, feature_map(seed=s), chunk_size=240) for s in (0, 1)]
    monkeypatch.setattr(zarr.storage.LocalStore, "get", counting)
    got = dask.compute(*sketches, scheduler="sync")
    assert [g.count for g in got] == [100, 100]
    chunks = [key for key in reads if "c/" in key]
    assert len(chunks) == len(set(chunks)) == 10


def test_two_sketches_of_one_folder_read_it_once(tmp_path, monkeypatch):
    reads = []
    honest = fsspec.AbstractFileSystem.open

    def counting(self, path, *args, **kwargs):
        reads.append(path)
        return honest(self, path, *args, **kwargs)

    x = inputs(tmp_path)["parquet"]
    sketches = [ds.sketch(x, feature_map(seed=s)) for s in (0, 1)]
    monkeypatch.setattr(fsspec.AbstractFileSystem, "open", counting)
    got = dask.compute(*sketches, scheduler="sync")
    assert [g.count for g in got] == [100, 100]
    assert len(reads) == len(set(reads)) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_persist_and_compute(kind, tmp_path):
    lazy = ds.sketch(inputs(tmp_path)[kind], FM)
    kept = lazy.persist(scheduler="sync")
    assert isinstance(kept, LazyResult)
    assert len(dict(kept.__dask_graph__())) == 1
    assert kept.compute(scheduler="sync").identical(lazy.compute(scheduler="sync"))
    (both,) = dask.compute([kept, {"a": lazy}], scheduler="sync")
    assert both[0].identical(both[1]["a"])
    (optimised,) = dask.optimize(lazy)
    assert_same_sketch(optimised.compute(scheduler="sync"), kept.compute(scheduler="sync"))


def test_visualize(tmp_path):
    pytest.importorskip("graphviz")
    ds.sketch(da.from_array(X, chunks=(50, 3)), FM).visualize(str(tmp_path / "graph.svg"))
    assert (tmp_path / "graph.svg").exists()


def test_the_plan_is_asked_before_running(counting):
    huge = da.zeros((2**40, 3), chunks=(2**40, 3))
    lazy = ds.sketch(huge, FM)
    with pytest.raises(ds.SketchError, match="available"):
        lazy.compute()
    assert counting.computes == 0


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_reruns_give_the_same_bits(scheduler):
    lazy = ds.sketch(da.from_array(X, chunks=(7, 3)), feature_map("float32"), split_every=3)
    first = lazy.compute(scheduler="sync")
    for _ in range(3):
        assert lazy.compute(scheduler=scheduler).identical(first)


@pytest.mark.slow
def test_process_workers():
    lazy = ds.sketch(da.from_array(X, chunks=(50, 3)), FM)
    got = lazy.compute(scheduler="processes", num_workers=1)
    assert got.identical(lazy.compute(scheduler="sync"))


def test_input_in_memory_is_sketched_at_once(counting):
    got = ds.sketch(X, FM)
    assert isinstance(got, ds.Sketch)
    assert counting.computes == 0  # on threads of its own


def test_large_input_in_memory_fills_the_cores():
    x = np.ones((100_000, 3), dtype=np.float32)
    n_chunks = ds.open_samples(x).n_chunks
    assert n_chunks >= min(__import__("os").cpu_count(), 12)
    assert ds.sketch(x, FM).count == 100_000


def test_texts():
    lazy = ds.sketch(da.from_array(X, chunks=(10, 3)), FM)
    assert "10 chunks" in repr(lazy)
    assert "lazy" in lazy._repr_html_()


@pytest.mark.parametrize("feature_map", [None, 3, "map", np.zeros((3, 4))])
def test_what_is_not_a_feature_map(feature_map):
    for function in (ds.sketch, ds.plan):
        with pytest.raises(InputError, match=r"feature_map of type .*design"):
            function(X, feature_map)


@pytest.mark.parametrize("policy", ["skip", None, True])
def test_an_unknown_policy_is_refused_before_anything_runs(policy, counting):
    with pytest.raises(InputError, match="nan_policy="):
        ds.sketch(da.from_array(X), FM, nan_policy=policy)
    assert counting.computes == 0


def test_unknown_options_are_an_error():
    with pytest.raises(TypeError, match="colums"):
        ds.sketch(X, FM, colums=["a"])


def test_progress_goes_to_standard_error(capsys):
    lazy = ds.sketch(da.from_array(X, chunks=(10, 3)), FM)
    lazy.compute(progress=True, scheduler="sync")
    out, err = capsys.readouterr()
    assert out == ""
    assert "100%" in err


def test_a_bag_needs_no_processes():
    records = [(0.0, 1.0), (1.0, 0.0)] * 50
    lazy = ds.sketch(db.from_sequence(records, npartitions=3), ds.FeatureMap(2, 9, scale=1.0))
    assert lazy.__dask_scheduler__ is dask.threaded.get


def test_what_a_sketch_has_and_a_lazy_one_has_not():
    lazy = ds.sketch(da.zeros((10, 2), chunks=5), ds.FeatureMap(2, 9, scale=1.0))
    with pytest.raises(AttributeError, match=r"to_zarr.*call .compute\(\)"):
        lazy.to_zarr("x.zarr")
    with pytest.raises(AttributeError, match="'_nothing'"):
        _ = lazy._nothing


def test_the_random_rows_are_the_same_for_any_input_and_chunks(tmp_path):
    x = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    made = ds.design(x, n_components=2)
    found = ds.sketch(x, made, sample=300)
    zarr.save_array(tmp_path / "x.zarr", x)
    lazy = [
        da.from_array(x, chunks=(700, 3)),
        da.from_array(x, chunks=((10, 2990, 2000), (1, 2))),
        da.from_array(x.reshape(50, 100, 3), chunks=(7, 30, 3)),
        str(tmp_path / "x.zarr"),
    ]
    for one in lazy:
        other = ds.sketch(one, made, sample=300).compute()
        assert other.sample.identical(found.sample)
        assert other.identical(found)
    halves = [
        ds.sketch(x[:2000], made, sample=300),
        ds.sketch(x[2000:], made, sample=300, position=2000),
    ]
    assert ds.merge(halves).sample.identical(found.sample)
    for none in (False, 0):
        assert ds.sketch(x, made, sample=none).sample is None
    assert len(ds.sketch(x, made).sample) == 5000  # all rows, up to 20,000


@pytest.mark.parametrize("groups", [None, np.arange(100) % 3])
@pytest.mark.parametrize("fault", ["nan", "far", "weight"])
def test_the_same_row_is_named_for_all_chunks(fault, groups):
    x, w = X.copy(), np.ones(100)
    x[63, 1] = {"nan": np.nan, "far": 1e12}.get(fault, 0.0)
    w[63] = -1.0 if fault == "weight" else 1.0
    for n_rows in (100, 33, 10, 7):
        size = {"chunk_size": n_rows * x.itemsize * 3}
        for given, options in ((da.from_array(x, chunks=(n_rows, 3)), {}), (x, size)):
            with pytest.raises(ChunkError) as caught:
                dask.compute(ds.sketch(given, FM, w, groups=groups, **options), scheduler="sync")
            found = re.search(r"(?:, from row (\d+))?: row (\d+) ", str(caught.value))
            assert found is not None
            assert sum(int(number or 0) for number in found.groups()) == 63


def test_the_limit_of_sums_is_that_of_all_chunks():
    x = np.full((60, 3), 6e7)  # more than 20 such rows are too many
    for rows, refused in ((x, True), (x[:15], False)):
        for groups in (None, np.zeros(len(rows), int)):
            for n_rows in (60, 7, 1):
                found = ds.sketch(da.from_array(rows, chunks=(n_rows, 3)), FM, groups=groups)
                if refused:
                    with pytest.raises(SketchError, match="larger than a sketch holds"):
                        found.compute(scheduler="sync")
                else:
                    assert found.compute(scheduler="sync").mean == pytest.approx(6e7)
