"""A pass in batches: the bits of one graph, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
import weakref
from types import SimpleNamespace

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import CancelledError, Client, KilledWorker, LocalCluster, get_worker
from distributed.comm import CommClosedError
from hypothesis import given
from hypothesis import strategies as st
from strategies import draw_rows, feature_map

import dask_sketch as ds
from dask_sketch.errors import ChunkError, ClusterError, InputError
from dask_sketch.graph import LazyResult
from dask_sketch.graph.compute import compute_together
from dask_sketch.graph.patience import Patience
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
@pytest.mark.few_cases(4)
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


def late(block):
    time.sleep(0.05)
    return block


def test_counts_of_the_workers_meanwhile_leave_nothing_behind(thread_client, monkeypatch):
    monkeypatch.setattr("dask_sketch.graph.compute.WORKERS_SECONDS", 0.01)
    x = da.from_array(X, chunks=(100, 3)).map_blocks(late, dtype=X.dtype, meta=X[:0])
    lazy = ds.sketch(x, FM, split_every=3)
    with small_batches(1, 2):
        lazy.compute()
    lazy.compute()
    assert settled(thread_client) == 0


@pytest.mark.slow
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


@pytest.mark.slow
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


# -- a cluster that is lost --------------------------------------------------------------------

MIXTURE = ds.GaussianMixture([0.5, 0.5], [[-1.0] * 3, [1.0] * 3], [[1.0] * 3] * 2)


def raises_killed(block, number):
    """End as a task that has killed its workers: with the error of the scheduler."""
    if (block[0] == X[20 * number]).all():
        key = get_worker().get_current_task()
        raise KilledWorker(key, SimpleNamespace(address="tcp://gone:1"), allowed_failures=3)
    return block


def deadly(number):
    """A Dask array of 20 chunks, of which one kills the workers that read it."""
    rows = da.from_array(X[:400], chunks=(20, 3))
    return rows.map_blocks(raises_killed, number, meta=X[:0], dtype=X.dtype)


PASSES = {
    "sketch": lambda x: ds.sketch(x, FM).compute(),
    "groups": lambda x: ds.sketch(x, FM, groups=np.arange(400) % 3).compute(),
    "moments": lambda x: ds.second_moments(x, like=ds.second_moments(X)).compute(),
    "polish": lambda x: ds.polish(MIXTURE, x),
    "design": lambda x: ds.design(x, n_components=2, n_pilot=4000),
    "batches": lambda x: in_batches(ds.sketch(x, FM)),
}


def in_batches(lazy):
    with small_batches(tasks=3):
        return lazy.compute()


def bag_of(x):
    """A bag of the chunks, read by other tasks than those that sketch them."""
    blocks = [blocks[0] for blocks in x.to_delayed(optimize_graph=False)]
    return db.from_delayed([dask.delayed(list)([block]) for block in blocks])


DEADLY = PASSES | {
    "last": lambda x: ds.sketch(x[-20:], FM).compute(),  # reading and merging are one task
    "bag": lambda x: ds.sketch(bag_of(x), FM).compute(),
    "grid": lambda x: ds.sketch(x.reshape(20, 20, 3), FM).compute(),
}


@pytest.mark.parametrize("number", [0, 19])
@pytest.mark.parametrize("kind", DEADLY)
@pytest.mark.few_cases(5)
def test_workers_that_die_name_the_chunk(kind, number, thread_client):
    if kind == "last" and not number:
        pytest.skip("the first chunk is not read")
    with pytest.raises(ChunkError, match=r"4 worker\(s\) died .* tcp://gone:1") as caught:
        DEADLY[kind](deadly(number))
    place = f"({number}, 0)" if kind == "grid" else 0 if kind == "last" else number
    assert str(caught.value).startswith(f"chunk {place} of ")


def test_two_sketches_of_one_computation_name_their_own_chunks(thread_client):
    whole = ds.sketch(da.from_array(X, chunks=(10, 3), name="whole"), FM)
    with pytest.raises(ChunkError, match=r"chunk 7 of the Dask array raises_killed-"):
        compute_together([whole, ds.sketch(deadly(7), FM)], thread_client, False, "sketch")


def test_workers_that_die_of_the_score_of_an_estimator(thread_client):
    found = ds.SketchGaussianMixture(2).fit(X)
    with pytest.raises(ChunkError, match=r"4 worker\(s\) died"):
        found.score(deadly(7))


def test_workers_that_die_of_another_task_name_the_task(thread_client):
    with pytest.raises(ChunkError, match=r"task .*raises_killed.*, 7, 0\)"):
        compute_together([deadly(7)], thread_client, False, "sum")


def kills(block):
    os.kill(os.getpid(), signal.SIGKILL)


kills.__module__ = "__main__"  # by value: a worker process cannot import this file


def test_a_chunk_that_kills_its_workers(process_client, monkeypatch):
    monkeypatch.setattr(process_client.cluster.scheduler, "allowed_failures", 0)
    x = da.from_array(X, chunks=(410, 3)).map_blocks(kills, meta=X[:0], dtype=X.dtype)
    with pytest.raises(ChunkError, match=r"chunk 0 of .*: 1 worker\(s\) died"):
        ds.polish(MIXTURE, x)


CLIENTS = []


def closes_client(block):
    """Close the client of the test, in the midst of its computation."""
    if CLIENTS:
        CLIENTS.pop().close(timeout=1)
    return block


@pytest.fixture
def doomed():
    """A client that the first chunk closes: its worker is in this process."""
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(dashboard_address=":0", **options) as cluster,
        Client(cluster) as client,
    ):
        CLIENTS.append(client)
        yield client
        CLIENTS.clear()


CLOSED = {kind: PASSES[kind] for kind in ("sketch", "polish", "design", "batches")} | {
    "progress": lambda x: ds.sketch(x, FM).compute(progress=lambda *_: None),
    "calibrate": lambda x: ds.plan(x, FM, calibrate=True),
}


@pytest.mark.parametrize("kind", CLOSED)
@pytest.mark.few_cases(3)
def test_a_client_that_is_closed_meanwhile(kind, doomed):
    x = da.from_array(X[:400], chunks=(20, 3))
    x = x.map_blocks(closes_client, meta=X[:0], dtype=X.dtype)
    with pytest.raises(ClusterError, match="client is clos"):
        CLOSED[kind](x)


def test_a_client_that_was_closed_before(thread_client):
    lazy = ds.sketch(da.from_array(X, chunks=(10, 3)), FM)
    with Client(thread_client.cluster) as client, client.as_current():
        client.close()
        with pytest.raises(ClusterError, match="client is closed"):
            lazy.compute()


@pytest.mark.parametrize(
    "error", [CommClosedError("gone"), CancelledError("gone"), FileNotFoundError("x.npy")]
)
def test_only_errors_of_the_connection_are_turned_into_one(error, thread_client, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(Client, "compute", fail)
    lost = not isinstance(error, FileNotFoundError)
    with pytest.raises(ClusterError if lost else FileNotFoundError, match=str(error)):
        ds.sketch(da.from_array(X, chunks=(10, 3)), FM).compute()


ASYNCHRONOUS = PASSES | {
    "plan": lambda x: ds.plan(x, FM),
    "grid": lambda x: ds.design(x, task="pca"),
}


@pytest.mark.parametrize("kind", ASYNCHRONOUS)
def test_an_asynchronous_client_is_refused_where_results_are_waited_for(kind):
    x = da.from_array(X[:400], chunks=(20, 3))

    async def run():
        options = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
        async with (
            LocalCluster(asynchronous=True, dashboard_address=":0", **options) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            with pytest.raises(InputError, match="asynchronous") as caught:
                ASYNCHRONOUS[kind](x)
            assert caught.value.parameter == "client"
            return await client.compute(ds.sketch(x, FM)) if kind == "sketch" else None

    found = asyncio.run(run())
    if kind == "sketch":
        assert found.identical(ds.sketch(x, FM).compute(scheduler="sync"))


@pytest.mark.slow
@pytest.mark.parametrize("progress", [False, lambda done, total, words: None])
def test_a_cluster_without_workers_is_given_up(progress):
    x = da.from_array(X, chunks=(100, 3))
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster),
        dask.config.set({"sketch.compute-timeout": "1s"}),
    ):
        with pytest.raises(ClusterError, match=r"1 s .setting sketch\.compute-timeout"):
            ds.sketch(x, FM).compute(progress=progress)
        with pytest.raises(ClusterError, match="1 s"), small_batches(1, 1):
            ds.sketch(x, FM).compute()
        with pytest.raises(ClusterError, match="1 s"):
            ds.design(x, n_components=2)
    with dask.config.set({"sketch.compute-timeout": "soon"}), pytest.raises(InputError) as error:
        Patience("compute-timeout")
    assert "sketch.compute-timeout is 'soon'" in str(error.value)


def test_missing_workers_are_logged_while_they_are_waited_for(monkeypatch, caplog):
    monkeypatch.setattr("dask_sketch.graph.patience.SILENT_SECONDS", 0.0)
    patience = Patience("compute-timeout")
    assert patience.seconds == np.inf
    counts = [{}, {}, {"a": {"nthreads": 2}}]
    client = SimpleNamespace(scheduler_info=lambda n_workers: {"workers": counts.pop(0)})
    assert [patience.count_threads(client) for _ in range(3)] == [0, 0, 2]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("silent", "text"),
    [
        ({"status": "running", "last_seen": 1.0}, "no worker has been heard of"),
        ({"status": "paused", "last_seen": 3.0}, "no worker has taken tasks for .*paused"),
    ],
)
def test_workers_that_take_no_tasks_are_logged_once(silent, text, monkeypatch, caplog):
    patience = Patience("compute-timeout")
    running = {"status": "running", "last_seen": 1.0}
    states = [running, silent, silent, running | {"last_seen": 4.0}]
    client = SimpleNamespace(
        scheduler_info=lambda n_workers: {"workers": {"a": {"nthreads": 2} | states.pop(0)}}
    )
    monkeypatch.setattr("dask_sketch.graph.patience.SILENT_SECONDS", 60.0)
    assert patience.count_threads(client) == 2
    assert not caplog.records
    monkeypatch.setattr("dask_sketch.graph.patience.SILENT_SECONDS", -1.0)
    assert [patience.count_threads(client) for _ in range(2)] == [2, 2]
    assert len(caplog.records) == 1
    assert re.search(text, caplog.text)
