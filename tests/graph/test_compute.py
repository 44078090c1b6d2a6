"""A pass in batches: the bits of one graph, and nothing left behind."""

from __future__ import annotations

import threading
import time
import weakref

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from strategies import draw_rows, feature_map

import dask_sketch as ds
from dask_sketch.errors import ChunkError, InputError
from dask_sketch.graph import LazyResult
from dask_sketch.graph.reduction import Reduction
from dask_sketch.graph.tree import batch_chunks, count_merges

FM = feature_map("float32")
X = draw_rows(0, 410, 3)
KINDS = ["zarr", "weighted zarr", "weighted array", "parquet", "masked", "grid", "features",
         "bag", "weighted bag"]  # fmt: skip


def small_batches(limit=20, tasks=10):
    return dask.config.set({"sketch.task-limit": limit, "sketch.batch-tasks": tasks})


def source(kind, place):
    weights = np.linspace(0, 1, len(X))
    if "zarr" in kind:
        group = zarr.open_group(place / "x.zarr", mode="w")
        group.create_array("x", data=X, chunks=(10, 3))
        group.create_array("w", data=weights, chunks=(10,))
        return place / "x.zarr", "w" if kind == "weighted zarr" else None, {"chunk_size": 1}
    if kind == "parquet":
        table = pd.DataFrame(X, columns=list("abc")).assign(w=weights)
        for i in range(41):
            table[10 * i : 10 * i + 10].to_parquet(place / f"{i:02}.parquet")
        return place, "w", {}
    lazy = da.from_array(X, chunks=(10, 1 if kind == "features" else 3))
    if kind == "masked":
        return lazy[lazy[:, 0] > 0], None, {}
    if kind == "grid":
        return lazy.reshape(41, 10, 3).rechunk((3, 4, 3)), None, {}
    if "bag" in kind:
        blocks = db.from_sequence([X[i : i + 10] for i in range(0, 410, 10)], npartitions=41)
        shares = [weights[i : i + 10] for i in range(0, 410, 10)]
        given = db.from_sequence(shares, npartitions=41) if "weighted" in kind else None
        return (
            blocks.filter(lambda block: block[0, 0] > -0.5) if given is None else blocks,
            given,
            {},
        )
    return lazy, weights if "weighted" in kind else None, {}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_those_of_one_graph(kind, tmp_path, counting):
    x, weights, options = source(kind, tmp_path)
    lazy = ds.sketch(x, FM, weights, split_every=3, **options)
    whole = lazy.compute()
    computes = 1
    for size in (1, 7, 40) if kind == "zarr" else (9, 16):
        with small_batches(tasks=size):
            parts = lazy.compute()
        computes += -(-lazy.samples.n_chunks // size)
        assert counting.computes == computes
        assert parts.identical(whole)


@given(n=st.integers(1, 10**7), split_every=st.integers(2, 10**5), most=st.integers(1, 10**5))
def test_the_size_of_a_batch(n, split_every, most):
    with dask.config.set({"sketch.task-limit": 1000, "sketch.batch-tasks": most}):
        size = batch_chunks(n, split_every)
    if size is None:
        assert n + count_merges(n, split_every) <= 1000 or n <= most
    else:
        assert n + count_merges(n, split_every) > 1000
        assert size == most < n


@pytest.mark.parametrize("key", ["task-limit", "batch-tasks"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "many"])
def test_settings_that_mean_nothing(key, value):
    lazy = ds.sketch(da.from_array(X, chunks=(10, 3)), FM)
    with (
        small_batches(),
        dask.config.set({f"sketch.{key}": value}),
        pytest.raises(InputError, match=f"sketch.{key} is {value!r}"),
    ):
        lazy.compute()


class Reads:
    """An array that says which rows were asked for, and how many of its blocks were built."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim
        self.rows = []

    def __getitem__(self, index):
        self.rows.append(index[0].start)
        return self.x[index]


def test_every_chunk_is_read_once():
    reads = Reads(X)
    lazy = ds.sketch(da.from_array(reads, chunks=(10, 3), inline_array=True), FM)
    reads.rows.clear()
    with small_batches():
        assert lazy.compute(scheduler="sync").count == 410
    assert sorted(reads.rows) == list(range(0, 410, 10))


@pytest.mark.parametrize("kind", ["zarr", "weighted zarr"])
def test_a_batch_of_a_store_has_nothing_of_the_others(kind, tmp_path):
    x, weights, options = source(kind, tmp_path)
    part = ds.sketch(x, FM, weights, split_every=3, **options).part(range(9, 18))
    assert len(part.__dask_graph__()) == sum(
        len(layer) for layer in part.__dask_graph__().layers.values()
    )
    (optimised,) = dask.optimize(part)
    assert len(dict(optimised.__dask_graph__())) == 9 + 3 + 1
    reading = [layer for name, layer in part.__dask_graph__().layers.items() if "array" in name]
    assert [len(layer) for layer in reading] == [9] * (1 + (weights is not None))


def test_blocks_that_are_read_by_one_task_still_are():
    x = da.ones((410, 3), chunks=(10, 3)) + 1
    (part,) = dask.optimize(ds.sketch(x, FM, split_every=3).part(range(9, 18)))
    assert len(dict(part.__dask_graph__())) == 9 + 3 + 1


@pytest.mark.parametrize("kind", ["zarr", "array", "grid", "bag"])
def test_errors_name_the_chunk_as_in_one_graph(kind, tmp_path):
    bad = X.copy()
    bad[333, 1] = np.nan
    if kind == "zarr":
        zarr.create_array(tmp_path / "x.zarr", data=bad, chunks=(10, 3))
        lazy = ds.sketch(tmp_path / "x.zarr", FM, chunk_size=1)
    elif kind == "bag":
        blocks = [bad[i : i + 10] for i in range(0, 410, 10)]
        lazy = ds.sketch(db.from_sequence(blocks, npartitions=41), FM)
    elif kind == "grid":
        rows = da.from_array(bad[:400].reshape(20, 20, 3), chunks=(1, 10, 3))
        lazy = ds.sketch(rows, FM)
    else:
        lazy = ds.sketch(da.from_array(bad, chunks=(10, 3)), FM)
    with pytest.raises(ChunkError, match="has nan in feature 1") as whole:
        lazy.compute(scheduler="sync")
    with small_batches(), pytest.raises(ChunkError) as parts:
        lazy.compute(scheduler="sync")
    assert str(parts.value) == str(whole.value)
    assert ("chunk (16, 1)" if kind == "grid" else "chunk 33") in str(parts.value)


def test_a_batch_may_be_empty_but_not_all_of_them():
    x = da.from_array(X, chunks=(10, 3))
    first = da.where(da.arange(410, chunks=10)[:, None] < 200, np.nan, x)
    with small_batches():
        assert ds.sketch(first, FM, nan_policy="omit").compute(scheduler="sync").omitted == 200
        with pytest.raises(InputError, match="all of its 410 rows"):
            ds.sketch(x * np.nan, FM, nan_policy="omit").compute(scheduler="sync")


def test_progress_is_one_bar(capsys):
    lazy = ds.sketch(da.from_array(X, chunks=(10, 3)), FM)
    with small_batches():
        lazy.compute(progress=True, scheduler="sync")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "5 of 5 batches" in err


def test_other_roads_are_one_graph(counting):
    lazy = ds.sketch(da.from_array(X, chunks=(10, 3)), FM)
    with small_batches():
        (got,) = dask.compute(lazy)
        kept = lazy.persist()
        assert counting.computes == 2
        assert kept.compute().identical(got)
        assert counting.computes == 3


# -- on a cluster ----------------------------------------------------------------------------


def keys_on(client):
    return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


def settled(client):
    deadline = time.monotonic() + 60
    while (left := keys_on(client)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_the_same_bits_on_a_cluster_and_nothing_left(thread_client, tmp_path):
    for kind in ("zarr", "weighted array", "bag"):
        x, weights, options = source(kind, tmp_path)
        lazy = ds.sketch(x, FM, weights, split_every=3, **options)
        expected = lazy.compute(scheduler="sync")
        with small_batches():
            assert lazy.compute().identical(expected)
        assert settled(thread_client) == 0


def test_no_more_than_two_batches_at_a_time(thread_client, monkeypatch):
    sent, held = [], []
    honest = Client.compute

    def counting(self, *args, **kwargs):
        held.append(1 + sum(future() is not None for future in sent))
        future = honest(self, *args, **kwargs)
        sent.append(weakref.ref(future))
        return future

    monkeypatch.setattr(Client, "compute", counting)
    lazy = ds.sketch(da.from_array(X, chunks=(5, 3)), FM, split_every=3)
    with small_batches(tasks=9):
        lazy.compute()
    assert (len(held), max(held)) == (10, 2)


def test_an_error_takes_its_batches_with_it(thread_client):
    bad = X.copy()
    bad[55] = np.nan
    lazy = ds.sketch(da.from_array(bad, chunks=(10, 3)), FM, split_every=3)
    with small_batches(), pytest.raises(ChunkError, match=r"chunk 5 of .*row 5"):
        lazy.compute(retries=0)
    assert settled(thread_client) == 0


def count_rows(rows, weights, label):
    return len(rows)


def interrupt_client(parts):
    if threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt
    return sum(parts)


def test_an_interrupt_takes_its_batches_with_it(thread_client):
    samples = ds.open_samples(da.from_array(X, chunks=(10, 3)))
    lazy = LazyResult(samples, Reduction("count", count_rows, interrupt_client), 3)
    with small_batches(), pytest.raises(KeyboardInterrupt):
        lazy.compute()
    assert settled(thread_client) == 0
