"""Sketches of groups in one pass: the graph, its memory, and the bits of separate passes."""

from __future__ import annotations

import re

import cloudpickle
import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest
import xarray as xr
import zarr
from dask.system import CPU_COUNT
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import assert_same_sketch, chunk_sizes, draw_rows, feature_map, wild_rows

import dask_sketch as ds
from dask_sketch import SketchGroup, partial_sketch
from dask_sketch.errors import ChunkError, InputError, MergeError, PlanError
from dask_sketch.graph import LazyResult
from dask_sketch.graph.memory import FAN_IN, GROWTH, default_fan_in, group_bytes, thread_memory
from dask_sketch.graph.partitions import sketch_partitions

FM = feature_map(n_frequencies=20)
N, ROWS = 240, 15  # and rows of a chunk
X = draw_rows(0, N, 3)
LABELS = np.random.default_rng(1).integers(7, size=N)
W = np.random.default_rng(2).random(N)


def graph(lazy):
    """Tasks that the scheduler gets, without aliases and data."""
    (optimised,) = dask.optimize(lazy)
    tasks = dict(optimised.__dask_graph__())
    return {k: t for k, t in tasks.items() if type(t).__name__ not in ("Alias", "DataNode")}


def stores(place):
    group = zarr.open_group(place / "x.zarr", mode="w")
    group.create_array("x", data=X, chunks=(ROWS, 3))
    group.create_array("w", data=W, chunks=(ROWS,))
    group.create_array("speaker", data=LABELS, chunks=(20,)).attrs["names"] = list("abcdefg")
    (place / "p").mkdir()
    table = pd.DataFrame(X, columns=list("abc")).assign(w=W, speaker=LABELS)
    for i in range(0, N, ROWS):
        table[i : i + ROWS].to_parquet(place / "p" / f"{i:03}.parquet", index=False)
    return table


def sources(place):
    """(Input, weights, groups, options) of each kind; all of 16 chunks."""
    table = stores(place)
    x, w, labels = (da.from_array(v, chunks=(ROWS, *v.shape[1:])) for v in (X, W, LABELS))
    labelled = xr.DataArray(x, dims=("t", "f"), coords={"speaker": ("t", LABELS), "w": ("t", W)})
    return {
        "array": (x, W, LABELS, {}),
        "lazy": (x, w, labels, {}),
        "zarr": (place / "x.zarr", "w", "speaker", {"chunk_size": 1}),
        "parquet": (place / "p", "w", "speaker", {}),
        "frame": (dd.from_pandas(table, npartitions=16), "w", "speaker", {}),
        "labelled": (labelled, "w", "speaker", {}),
        "bag": (db.from_sequence(table.to_dict("records"), npartitions=16), "w", "speaker", {}),
    }


KINDS = ["array", "lazy", "zarr", "parquet", "frame", "labelled", "bag"]


def assert_separate(group, x=X, labels=LABELS, weights=None):
    """Each sketch has the bits of a pass over the samples of its group alone."""
    assert len(group) == len(np.unique(labels))
    for place, label in enumerate(group):
        rows = labels == (np.unique(labels)[place])
        alone = partial_sketch(
            x[rows],
            group.feature_map,
            None if weights is None else weights[rows],
            nan_policy="omit",
        )
        assert_same_sketch(group[label], alone)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few_cases(3)
def test_one_pass_gives_the_sketches_of_all_groups(kind, tmp_path, counting):
    x, weights, groups, options = sources(tmp_path)[kind]
    lazy = ds.sketch(x, FM, weights, groups=groups, **options)
    repr(lazy), lazy._repr_html_(), dask.base.tokenize(lazy)
    ds.plan(x, FM, weights, groups=groups, **options)
    assert isinstance(lazy, LazyResult)
    assert counting.computes == 0
    group = lazy.compute()
    assert counting.computes == 1
    assert_separate(group, weights=W)
    assert group.merged().identical(partial_sketch(X, FM, W))


@pytest.mark.parametrize("kind", ["zarr", "parquet", "labelled"])
def test_reading_and_sketching_are_one_task(kind, tmp_path):
    x, weights, groups, options = sources(tmp_path)[kind]
    plan = ds.plan(x, FM, weights, groups=groups, **options)
    lazy = ds.sketch(x, FM, weights, groups=groups, **options)
    assert (plan.n_chunks, plan.n_merges) == (16, 4 + 1)
    assert len(graph(lazy)) == plan.n_tasks
    taken = [len(t.dependencies) for k, t in graph(lazy).items() if "partial" in str(k)]
    assert max(taken) <= FAN_IN


class Reads:
    """An array that says which rows were asked for."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim
        self.rows = []

    def __getitem__(self, index):
        self.rows.append(index[0].start)
        return self.x[index]


def test_every_row_and_label_is_read_once(tmp_path):
    reads = [Reads(X), Reads(LABELS)]
    lazy = [
        da.from_array(each, chunks=(ROWS, *each.shape[1:]), inline_array=True, asarray=False,
                      meta=np.empty((0,) * each.ndim, dtype=each.dtype))
        for each in reads
    ]  # fmt: skip
    group = ds.sketch(lazy[0], FM, groups=lazy[1])
    for each in reads:
        each.rows.clear()
    assert_separate(group.compute(scheduler="threads"))
    assert all(sorted(each.rows) == list(range(0, N, ROWS)) for each in reads)


@settings(max_examples=12)
@given(rows=wild_rows(), data=st.data())
def test_any_cut_and_batches_have_the_bits_of_separate_sketches(rows, data):
    x, w = rows
    chunks = data.draw(chunk_sizes(len(x)))
    labels = np.random.default_rng(len(x)).integers(-3, 4, size=len(x))
    lazy = ds.sketch(
        da.from_array(x, chunks=(chunks, 3)), FM, w, groups=labels, nan_policy="omit", split_every=2
    )
    whole = lazy.compute(scheduler="sync")
    assert_separate(whole, x, labels, w)
    with dask.config.set({"sketch.task-limit": 1, "sketch.batch-tasks": 2}):
        assert lazy.compute(scheduler="sync").identical(whole)
    assert whole.identical(partial_sketch(x, FM, w, groups=labels, nan_policy="omit"))


@pytest.mark.parametrize("kind", ["zarr", "bag", "parquet"])
@pytest.mark.slow
def test_batches(kind, tmp_path, counting):
    x, weights, groups, options = sources(tmp_path)[kind]
    lazy = ds.sketch(x, FM, weights, groups=groups, **options)
    whole = lazy.compute()
    with dask.config.set({"sketch.task-limit": 10, "sketch.batch-tasks": 3}):
        parts = lazy.compute()
        assert ds.plan(x, FM, weights, groups=groups, **options).n_batches == 6
    assert counting.computes == 1 + 6
    assert parts.identical(whole)
    assert (list(parts), parts.dim) == (list(whole), "speaker")


def test_memory_follows_the_groups_of_a_chunk():
    labels = np.repeat(np.arange(24), 10)
    lazy = ds.sketch(da.from_array(X, chunks=(20, 3)), FM, groups=labels)
    part = lazy.part(range(3, 4)).compute(scheduler="sync")
    assert list(part) == [6, 7]
    assert len(lazy.part(range(3)).compute(scheduler="sync")) == 6
    assert_separate(lazy.compute(scheduler="sync"), labels=labels)


def test_it_is_a_collection():
    x = da.from_array(X, chunks=(50, 3))
    lazy = ds.sketch(x, FM, groups=LABELS)
    sketch, group = dask.compute(ds.sketch(x, FM), lazy, scheduler="sync")
    assert group.merged().identical(sketch)
    assert lazy.persist(scheduler="sync").compute(scheduler="sync").identical(group)
    with pytest.raises(AttributeError, match=r"select.*call .compute\(\)"):
        _ = lazy.select
    assert dask.base.tokenize(lazy) != dask.base.tokenize(ds.sketch(x, FM))
    in_memory = ds.sketch(X, FM, groups=LABELS)
    assert isinstance(in_memory, SketchGroup)
    assert in_memory.identical(group)


def test_groups_are_not_for_a_gpu():
    with pytest.raises(InputError, match="device='cuda'"):
        ds.sketch(X, FM, groups=LABELS, device="cuda")


def test_no_samples():
    x = da.from_array(np.full((20, 3), np.nan), chunks=(5, 3))
    lazy = ds.sketch(x, FM, groups=np.zeros(20, dtype=int), nan_policy="omit")
    with pytest.raises(InputError, match="all of its 20 rows have NaN"):
        lazy.compute(scheduler="sync")
    with pytest.raises(ChunkError, match=r"chunk \d of the Dask array"):
        ds.sketch(x, FM, groups=np.zeros(20, dtype=int)).compute(scheduler="sync")
    with pytest.raises(InputError, match="has no rows"):
        ds.sketch(x[:0], FM, groups=np.zeros(0, dtype=int)).compute(scheduler="sync")


def test_labels_of_different_chunks_must_be_of_one_kind():
    mixed = np.array(["a"] * 20 + [1] * 20, dtype=object)
    labels = da.from_array(mixed, chunks=20)
    with pytest.raises(MergeError, match="integers and strings"):
        ds.sketch(da.from_array(X[:40], chunks=(20, 3)), FM, groups=labels).compute(
            scheduler="sync"
        )


def test_the_plan_counts_the_groups():
    x = da.from_array(X, chunks=(100, 3))
    plan = ds.plan(x, FM, groups=LABELS)
    assert (plan.groups, plan.n_groups) == ("group", 7)
    assert plan.sketch_bytes == 7 * group_bytes(FM, weighted=False)
    assert plan.client_memory == 3 * plan.sketch_bytes
    assert "7, of group" in str(plan)
    assert plan.memory_per_thread > 5 * plan.sketch_bytes
    assert ds.plan(x, FM, W, groups=LABELS).sketch_bytes > plan.sketch_bytes
    unknown = ds.plan(x, FM, groups=da.from_array(LABELS, chunks=100))
    assert (unknown.n_groups, unknown.sketch_bytes, unknown.client_memory) == (None, None, None)
    assert any("only the pass can tell" in text for text in unknown.warnings)
    assert ds.plan(x, FM).client_memory is None
    assert default_fan_in(ds.open_samples(x, groups=LABELS)) == FAN_IN
    with dask.config.set({"sketch.split-every": 3}):
        assert default_fan_in(ds.open_samples(x, groups=LABELS)) == 3


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("m", [20, 300])
def test_the_bytes_of_a_group_are_those_of_the_plan(m, weighted):
    fm = feature_map("float32", n_features=12, n_frequencies=m)
    x = draw_rows(3, 4000, 12)
    labels = np.arange(4000) % 10
    w = np.random.default_rng(0).lognormal(sigma=2.0, size=4000) if weighted else None
    group = ds.sketch(x, fm, w, groups=labels)
    planned = 10 * group_bytes(fm, weighted=weighted)
    assert group.nbytes <= planned
    assert planned <= 3.5 * group.nbytes


@pytest.mark.parametrize("weighted", [False, True])
def test_the_plan_counts_the_counters_of_missing_values(weighted):
    fm = ds.FeatureMap(6, 100, scale=1.0, distribution="sparse-sums")
    x = draw_rows(3, 3000, 6)
    x[np.random.default_rng(1).random(x.shape) < 0.1] = np.nan
    w = np.random.default_rng(0).lognormal(sigma=2.0, size=3000) if weighted else None
    labels = np.arange(3000) % 10
    group = ds.sketch(x, fm, w, groups=labels, nan_policy="available")
    plan = ds.plan(x, fm, w, groups=labels, nan_policy="available")
    assert group.nbytes <= plan.sketch_bytes <= 2.0 * group.nbytes
    assert ds.plan(x, fm, w, groups=labels, nan_policy="omit").sketch_bytes < plan.sketch_bytes
    with pytest.raises(InputError, match="nan_policy"):
        ds.plan(x, fm, nan_policy="keep")


def test_what_cannot_fit_is_refused_before_anything_is_read():
    reads = Reads(X)
    x = da.from_array(
        reads, chunks=(ROWS, 3), inline_array=True, asarray=False, meta=np.empty((0, 3))
    )
    labels = np.arange(N)
    needed = ds.plan(x, FM, groups=labels).memory_per_thread
    with pytest.raises(PlanError, match=r"240 groups of group take .* split_every=2"):
        ds.plan(x, FM, groups=labels, memory_per_thread=needed - 1)
    assert ds.plan(x, FM, groups=labels, split_every=2).memory_per_thread < needed
    assert not reads.rows


def free_bytes(n):
    """Let about this many bytes of this machine count as free."""
    return dask.config.set({"sketch.memory-share": n / psutil.virtual_memory().available})


def test_a_client_that_cannot_hold_the_result():
    x = da.from_array(X, chunks=(ROWS, 3))
    lazy = ds.sketch(x, feature_map(n_frequencies=2000), groups=np.arange(N))
    with (
        free_bytes(10**6),
        pytest.raises(PlanError, match=r"240 groups .* client .*split_every=2"),
    ):
        lazy.compute(scheduler="sync")


def test_merges_without_room_are_refused():
    """A pass with an unknown number of groups."""
    labels = da.from_array(np.arange(N), chunks=ROWS)
    x, fm = da.from_array(X, chunks=(ROWS, 3)), feature_map(n_frequencies=5000)
    lazy = ds.sketch(x, fm, groups=labels)
    whole = lazy.compute(scheduler="sync")
    assert len(whole) == N
    room = GROWTH * 50 * whole.nbytes // N  # of each thread: for 50 groups
    with (
        free_bytes(room * CPU_COUNT),
        pytest.raises(PlanError, match=r" 60 groups .*split_every=2"),
    ):
        lazy.compute(scheduler="sync")


@pytest.mark.parametrize("kind", ["zarr", "parquet"])
def test_on_a_cluster(kind, thread_client, tmp_path):
    x, weights, groups, options = sources(tmp_path)[kind]
    lazy = ds.sketch(x, FM, weights, groups=groups, **options)
    group = lazy.compute()
    assert_separate(group, weights=W)
    with dask.config.set({"sketch.task-limit": 10, "sketch.batch-tasks": 8}):
        assert lazy.compute().identical(group)


def test_memory_on_a_worker_is_that_of_its_threads(thread_client):
    limit = thread_client.submit(thread_memory).result()
    worker = next(iter(thread_client.scheduler_info()["workers"].values()))
    share = dask.config.get("sketch.memory-share")
    assert limit == int(share * worker["memory_limit"] / worker["nthreads"])
    assert thread_memory() > 0


class Flaky:
    """An array of which every block fails once."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim
        self.failed = set()

    def __getitem__(self, index):
        start = index[0].start
        if start not in self.failed:
            self.failed.add(start)
            raise OSError("not now")
        return self.x[index]

    def __reduce__(self):
        return _flaky, ()


FLAKY = Flaky(X)


def _flaky():
    return FLAKY


def test_what_fails_is_tried_again(thread_client):
    x = da.from_array(FLAKY, chunks=(100, 3), inline_array=True, asarray=False,
                      meta=np.empty((0, 3)))  # fmt: skip
    FLAKY.failed.clear()
    assert_separate(ds.sketch(x, FM, groups=LABELS).compute())
    assert FLAKY.failed == {0, 100, 200}


def test_the_table_of_names_is_sent_once(tmp_path):
    names = np.array([f"speaker {i:06}" for i in range(5000)])
    dataset = xr.Dataset(
        {"x": (("frame", "feature"), X)},
        coords={
            "file": ("frame", LABELS * 700, {"instance_dimension": "recording"}),
            "speaker": ("recording", names.astype(object)),
        },
    )
    dataset.to_zarr(tmp_path / "x.zarr", consolidated=False, encoding={"x": {"chunks": (10, 3)}})
    lazy = ds.sketch(tmp_path / "x.zarr", FM, groups="speaker", chunk_size=1)
    reading = [t for k, t in graph(lazy).items() if re.search("sketch-groups-[0-9a-f]", str(k))]
    assert len(reading) >= 16
    assert max(len(cloudpickle.dumps(task)) for task in reading) < 5000 * 4
    found = lazy.compute(scheduler="sync")
    assert list(found) == [names[700 * i] for i in range(7)]


@pytest.mark.parametrize("kind", ["zarr", "parquet", "bag"])
def test_other_passes_leave_the_labels_out(kind, tmp_path):
    x, _, groups, options = sources(tmp_path)[kind]
    samples = ds.open_samples(x, weights="w", groups=groups, **options)
    done = dict(sketch_partitions(samples, [0, 3], FM))
    assert_same_sketch(done[3], partial_sketch(X[45:60], FM, W[45:60]))
