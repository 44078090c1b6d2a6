"""The shape of the graph: one fused task for each chunk, and a tree of bounded fan-in."""

from __future__ import annotations

import logging
import re
import tempfile
from collections import Counter
from pathlib import Path

import cloudpickle
import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from dask.base import tokenize
from hypothesis import given
from hypothesis import strategies as st
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.errors import InputError

logger = logging.getLogger(__name__)

FM = feature_map()


def graph(lazy):
    """Tasks that the scheduler gets: optimised, without aliases."""
    (optimised,) = dask.optimize(lazy)
    tasks = dict(optimised.__dask_graph__())
    return {key: task for key, task in tasks.items() if type(task).__name__ != "Alias"}


def name(key):
    text = key if isinstance(key, str) else key[0]
    return re.sub(r"-[0-9a-f]{32}.*", "", text)


def merges(tasks):
    """Number of partial sketches that each merge takes, where it is not fused with a chunk."""
    return [
        len(task.dependencies)
        for key, task in tasks.items()
        if re.fullmatch("sketch-(partial|aggregate)-?", name(key)) and task.dependencies
    ]


@given(
    n_chunks=st.integers(1, 30),
    split_every=st.integers(2, 20),
    kind=st.sampled_from(["array", "features", "grid", "bag"]),
)
@pytest.mark.slow
def test_no_merge_takes_more_than_split_every(n_chunks, split_every, kind):
    if kind == "bag":
        x = db.from_sequence(range(n_chunks), npartitions=n_chunks).map(lambda i: np.ones((2, 3)))
    elif kind == "grid":
        x = da.ones((n_chunks, 3, 2, 3), chunks=(1, 1, 1, 3))
    else:
        x = da.ones((2 * n_chunks, 3), chunks=(2, 1 if kind == "features" else 3))
    lazy = ds.sketch(x, FM, split_every=split_every)
    tasks = graph(lazy)
    taken = merges(tasks)
    assert max(taken, default=1) <= split_every
    plan = ds.plan(x, FM, split_every=split_every)
    assert len(taken) <= plan.n_merges  # a chunk that is merged alone is fused with its merge
    if kind == "array":
        assert len(tasks) <= plan.n_tasks
    assert lazy.compute(scheduler="sync").count == 2 * n_chunks * (3 if kind == "grid" else 1)


@pytest.mark.parametrize("split_every", [1, 0, -1, 2.5, "16"])
def test_bad_fan_in(split_every):
    for function in (ds.sketch, ds.plan):
        with pytest.raises(InputError, match=r"split_every=.*at least 2"):
            function(np.zeros((4, 3)), FM, split_every=split_every)


def stores(place, n_chunks):
    rows = 10 * n_chunks
    x = np.zeros((rows, 3))
    group = zarr.open_group(place / "x.zarr", mode="w")
    group.create_array("x", data=x, chunks=(10, 3))
    group.create_array("w", data=np.ones(rows), chunks=(10,))
    (place / "p").mkdir()
    table = pd.DataFrame(x, columns=list("abc")).assign(w=1.0)
    for i in range(n_chunks):
        table[10 * i : 10 * i + 10].to_parquet(place / "p" / f"{i:03}.parquet")
    return {
        "zarr": (place / "x.zarr", {"chunk_size": 1}, "w"),
        "parquet": (place / "p", {}, "w"),
        "random": (da.random.default_rng(0).random((rows, 3), chunks=(10, 3)), {}, None),
    }


@pytest.mark.parametrize("kind", ["zarr", "parquet", "random"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.few_cases(3)
def test_reading_and_sketching_are_one_task(kind, weighted, tmp_path):
    source, options, weights = stores(tmp_path, 40)[kind]
    if kind == "parquet" and not weighted:
        options = options | {"columns": list("abc")}
    if weighted and weights is None:
        pytest.skip("weights are an array of their own")
    lazy = ds.sketch(source, FM, weights if weighted else None, **options)
    tasks = graph(lazy)
    plan = ds.plan(source, FM, weights if weighted else None, **options)
    assert plan.n_chunks == 40
    assert plan.n_tasks == 40 + 3 + 1
    assert len(tasks) == plan.n_tasks


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    """A store of xarray, with several variables in 40 chunks."""
    path = tmp_path_factory.mktemp("xarray") / "x.zarr"
    columns = {name: ("t", np.arange(400.0)) for name in "abcw"}
    columns["x"] = (("t", "f"), np.ones((400, 3)))
    xr.Dataset(columns).chunk(t=10).to_zarr(path, consolidated=False)
    return path


@pytest.mark.parametrize("kind", ["array", "array and weights", "variables and weights"])
@pytest.mark.slow
def test_an_xarray_of_a_store_is_read_by_the_task_that_sketches_it(kind, variables):
    with xr.open_zarr(variables, consolidated=False) as dataset:
        lazy = {
            "array": lambda: ds.sketch(dataset["x"], FM),
            "array and weights": lambda: ds.sketch(dataset, FM, "w", columns=["x"]),
            "variables and weights": lambda: ds.sketch(dataset, FM, "w", columns=list("abc")),
        }[kind]()
        tasks = [task for task in graph(lazy).values() if type(task).__name__ != "DataNode"]
        assert len(tasks) == 40 + 3 + 1
        assert lazy.compute(scheduler="sync").count == 400


def test_keys_are_readable():
    lazy = ds.sketch(da.ones((400, 3), chunks=(10, 3)), FM)
    assert all("sketch" in name(key) for key in graph(lazy))
    merged = Counter(name(key) for key in graph(lazy) if merges({key: graph(lazy)[key]}))
    assert merged == {"sketch-partial": 3, "sketch-aggregate": 1}
    bag = db.from_sequence(range(8), npartitions=8).map(lambda i: np.ones((2, 3)))
    ours = [key for key in graph(ds.sketch(bag, FM)) if "sketch" in name(key)]
    assert len(ours) == 8 + 1


def pickled_bytes(lazy):
    """Graph as one pickle, and the sum of every task pickled alone, which shares nothing."""
    tasks = graph(lazy)
    return len(cloudpickle.dumps(tasks)), sum(len(cloudpickle.dumps(t)) for t in tasks.values())


def array_of(n_chunks, place):
    path = str(place / f"{n_chunks}.zarr")
    zarr.create_array(path, shape=(10 * n_chunks, 12), chunks=(10, 12), dtype="f4")
    return ds.open_samples(path, chunk_size=1), None


def weighted_array_of(n_chunks, place):
    group = zarr.open_group(place / f"{n_chunks}", mode="w")
    group.create_array("x", shape=(10 * n_chunks, 12), chunks=(10, 12), dtype="f4")
    group.create_array("w", shape=(10 * n_chunks,), chunks=(10,), dtype="f4")
    return ds.open_samples(place / f"{n_chunks}", weights="w", chunk_size=1), "w"


def parquet_of(n_chunks, place):
    folder = place / f"parquet-{n_chunks}"
    folder.mkdir()
    table = pd.DataFrame(np.zeros((10, 12)), columns=[f"feature {i}" for i in range(12)])
    table.to_parquet(folder / "0000.parquet")
    first = (folder / "0000.parquet").read_bytes()
    for i in range(1, n_chunks):
        (folder / f"{i:04}.parquet").write_bytes(first)
    return ds.open_samples(folder), None


@pytest.mark.parametrize("kind", [array_of, weighted_array_of, parquet_of])
def test_the_graph_grows_by_less_than_two_kilobytes_a_chunk(kind):
    fm = FeatureMap(12, 2000, scale=1.0, center=np.linspace(0, 1, 12))
    # the path is part of each task, and that of tmp_path depends on how the tests are run
    with tempfile.TemporaryDirectory() as folder:
        small, large = (pickled_bytes(ds.sketch(kind(n, Path(folder))[0], fm)) for n in (50, 250))
    together, apart = ((b - a) / 200 for a, b in zip(small, large, strict=True))
    logger.info("%s: %.0f bytes a chunk in one pickle", kind.__name__, together)
    logger.info("%s: %.0f bytes a chunk task by task", kind.__name__, apart)
    assert together < 2000
    assert apart < 4500  # a bound on what any scheduler could send; Zarr 3.4 takes 400 of them


def test_frequencies_are_not_in_the_tasks():
    x = da.ones((400, 3), chunks=(10, 3))
    sizes = [pickled_bytes(ds.sketch(x, feature_map(n_frequencies=m)))[1] for m in (10, 10_000)]
    assert abs(sizes[1] - sizes[0]) < 40 * 20  # the digits of m


def test_a_large_specification_is_sent_once():
    x = da.ones((160, 100), chunks=(10, 100))
    fm = FeatureMap(100, 50, scale=1.0, distribution="sparse-sums", whitening=np.eye(100) + 0.001)
    assert len(fm.spec) > 70_000
    tasks = graph(ds.sketch(x, fm))
    heavy = [key for key, task in tasks.items() if len(cloudpickle.dumps(task)) > 50_000]
    assert [name(key) for key in heavy] == ["sketch-shared"]
    expected = partial_sketch(np.ones((160, 100)), fm)
    assert_same_sketch(ds.sketch(x, fm).compute(scheduler="sync"), expected)
    bag = db.from_sequence([np.ones((80, 100))] * 2, npartitions=2)
    tasks = graph(ds.sketch(bag, fm))
    assert sum(len(cloudpickle.dumps(task)) > 50_000 for task in tasks.values()) == 1 + 2
    assert_same_sketch(ds.sketch(bag, fm).compute(scheduler="sync"), expected)


@pytest.mark.parametrize("kind", ["zarr", "parquet", "array", "masked", "bag"])
def test_tokens_are_deterministic(kind, tmp_path):
    x = draw_rows(0, 60, 3)
    found = stores(tmp_path, 4)

    def build():
        lazy = da.from_array(x, chunks=(20, 3))
        source, options = {
            "zarr": lambda: found["zarr"][:2],
            "parquet": lambda: (found["parquet"][0], {"columns": list("abc")}),
            "array": lambda: (lazy, {}),
            "masked": lambda: (lazy[lazy[:, 0] > 0], {}),
            "bag": lambda: (db.from_sequence([x[:20], x[20:]]), {}),
        }[kind]()
        return ds.sketch(source, feature_map(), **options)

    with dask.config.set({"tokenize.ensure-deterministic": True}):
        a, b = build(), build()
        assert tokenize(a) == tokenize(b)
        assert a.__dask_keys__() == b.__dask_keys__()
        assert set(graph(a)) == set(graph(b))


def test_tokens_tell_maps_and_policies_apart():
    x = da.ones((40, 3), chunks=(10, 3))
    sketches = [
        ds.sketch(x, FM),
        ds.sketch(x, feature_map(seed=1)),
        ds.sketch(x, FM, nan_policy="omit"),
        ds.sketch(x, FM, split_every=2),
        ds.sketch(x, FM, np.ones(40)),
        ds.sketch(x + 1, FM),
    ]
    assert len({tokenize(lazy) for lazy in sketches}) == len(sketches)
    keys = {str(lazy.__dask_keys__()) for lazy in sketches}
    assert len(keys) == len(sketches)


def test_a_rewritten_store_has_another_token(tmp_path):
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=np.zeros((40, 3)), chunks=(10, 3))
    before = ds.sketch(path, FM)
    zarr.create_array(path, data=np.zeros((50, 3)), chunks=(10, 3), overwrite=True)
    assert tokenize(before) != tokenize(ds.sketch(path, FM))
