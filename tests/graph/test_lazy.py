"""The pass on a distributed cluster: task counts, lost workers, refusals."""

from __future__ import annotations

import logging
import os
import signal
import time

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import SchedulerPlugin, wait
from distributed.comm import CommClosedError
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.errors import ArtifactError, ChunkError, InputError

logger = logging.getLogger(__name__)

FM = feature_map("float32")
X = draw_rows(0, 400, 3)


class Executed(SchedulerPlugin):
    """Keys that went into memory."""

    name = "executed"

    def __init__(self):
        self.keys = []

    def transition(self, key, start, finish, *args, **kwargs):
        if start == "processing" and finish == "memory":
            self.keys.append(key)


@pytest.fixture
def executed(thread_client):
    plugin = Executed()
    scheduler = thread_client.cluster.scheduler
    scheduler.add_plugin(plugin)
    yield plugin
    scheduler.remove_plugin("executed")


def sources(place, n_chunks=40):
    group = zarr.open_group(place / "x.zarr", mode="w")
    group.create_array("x", data=X, chunks=(10, 3))
    group.create_array("w", data=np.ones(len(X)), chunks=(10,))
    (place / "p").mkdir()
    table = pd.DataFrame(X, columns=list("abc")).assign(w=1.0)
    for i in range(n_chunks):
        table[10 * i : 10 * i + 10].to_parquet(place / "p" / f"{i:02}.parquet")
    return {
        "zarr": (place / "x.zarr", None, {"chunk_size": 1}),
        "weighted zarr": (place / "x.zarr", "w", {"chunk_size": 1}),
        "parquet": (place / "p", None, {"columns": list("abc")}),
        "weighted parquet": (place / "p", "w", {}),
        "numpy": (da.from_array(X, chunks=(10, 3)), None, {}),
        "bag": (db.from_sequence([X[i : i + 10] for i in range(0, 400, 10)]), None, {}),
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return sources(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("kind", ["zarr", "weighted zarr", "parquet", "weighted parquet", "numpy"])
@pytest.mark.few_cases(3)
def test_at_most_one_task_for_each_chunk_and_the_merges(kind, inputs, executed):
    x, weights, options = inputs[kind]
    plan = ds.plan(x, FM, weights, **options)
    assert (plan.n_chunks, plan.n_merges) == (40, 3 + 1)
    lazy = ds.sketch(x, FM, weights, **options)
    assert lazy.compute().count == 400
    # Where Dask fuses tasks that are not of its Blockwise layers, it leaves an alias in the place
    # of each: a second name of the same result, which is neither computed nor copied.
    (optimised,) = dask.optimize(lazy)
    graph = dict(optimised.__dask_graph__())
    aliases = {key for key, task in graph.items() if type(task).__name__ == "Alias"}
    worked = [key for key in executed.keys if key not in aliases]
    logger.info("%s: %d tasks", kind, len(worked))
    logger.info("%s: %d aliases", kind, len(executed.keys) - len(worked))
    # one more for the collection itself: it turns the last merge into a sketch
    assert len(worked) <= plan.n_tasks + 1
    if "zarr" in kind:
        assert worked == executed.keys


def test_a_bag_has_one_task_more_for_the_number_of_each_partition(inputs, executed):
    x, _, _ = inputs["bag"]
    assert ds.sketch(x, FM).compute().count == 400
    sketched = [key for key in executed.keys if "sketch-sketch-part" in str(key)]
    assert len(sketched) == 40


def test_persist_keeps_the_sketch_on_the_cluster(thread_client, inputs):
    x, _, options = inputs["zarr"]
    kept = ds.sketch(x, FM, **options).persist()
    wait(list(dict(kept.__dask_graph__()).values()))
    assert_same_sketch(kept.compute(), partial_sketch(X, FM))


@pytest.mark.slow
def test_a_client_can_compute_it_like_any_collection(thread_client):
    lazy = ds.sketch(da.from_array(X, chunks=(10, 3)), FM)
    assert thread_client.compute(lazy).result().identical(lazy.compute(scheduler="sync"))
    assert lazy.compute().identical(lazy.compute(scheduler="sync"))


def test_progress_goes_to_standard_error(thread_client, capsys):
    ds.sketch(da.from_array(X, chunks=(10, 3)), FM).compute(progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "100%" in err


@pytest.mark.slow
def test_errors_cross_to_the_client(thread_client):
    bad = X.copy()
    bad[123, 2] = np.nan
    lazy = da.from_array(bad, chunks=(10, 3))
    with pytest.raises(ChunkError, match=r"chunk 12 .* row 3 .* nan"):
        ds.sketch(lazy, FM).compute()
    with pytest.raises(InputError, match="all of its 400 rows"):
        ds.sketch(lazy * np.nan, FM, nan_policy="omit").compute()


@pytest.mark.slow
def test_process_workers_give_the_same_bits(process_client, inputs):
    for kind in ("weighted zarr", "parquet", "bag"):
        x, weights, options = inputs[kind]
        lazy = ds.sketch(x, FM, weights, split_every=3, **options)
        assert lazy.compute().identical(lazy.compute(scheduler="sync")), kind


def test_functions_that_only_cloudpickle_can_send(process_client):
    offset = 1.0
    lazy = da.from_array(X, chunks=(10, 3)).map_blocks(lambda block: block + offset)
    got = ds.sketch(lazy, FM).compute()
    assert_same_sketch(got, partial_sketch(X + 1.0, FM))


def test_a_large_feature_map_on_process_workers(process_client):
    fm = FeatureMap(3, 40, covariances=np.linspace(1, 2, 300).reshape(100, 3))
    assert len(fm.spec) > 1024
    got = ds.sketch(da.from_array(X, chunks=(10, 3)), fm).compute()
    assert_same_sketch(got, partial_sketch(X, fm))


def test_a_worker_that_draws_other_frequencies_stops_the_pass(process_client):
    def break_numpy():
        from dask_sketch.features import frequencies as drawn

        drawn.sample_frequencies, drawn.honest = (
            lambda *args, **kwargs: drawn.honest(*args, **kwargs) * 1.01,
            drawn.sample_frequencies,
        )

    def mend():
        from dask_sketch.features import frequencies as drawn

        drawn.sample_frequencies = drawn.honest

    fm = feature_map(seed=777)
    worker = min(process_client.scheduler_info(n_workers=-1)["workers"])
    process_client.run(break_numpy, workers=[worker])
    try:
        with pytest.raises(ArtifactError, match="run the same version"):
            ds.sketch(da.from_array(X, chunks=(10, 3)), fm).compute()
    finally:
        process_client.run(mend, workers=[worker])


def test_a_worker_with_other_kernels_stops_the_pass(process_client):
    def other(mark):
        from dask_sketch.graph import reduction

        before, reduction.SOURCE_MARK = reduction.SOURCE_MARK, mark
        return before

    worker = min(process_client.scheduler_info(n_workers=-1)["workers"])
    (mark,) = process_client.run(other, 12345, workers=[worker]).values()
    try:
        with pytest.raises(ArtifactError, match="12345|3039"):
            ds.sketch(da.from_array(X, chunks=(10, 3)), feature_map(seed=778)).compute()
    finally:
        process_client.run(other, mark, workers=[worker])


@pytest.mark.parametrize("error", [CommClosedError("a worker is gone"), TimeoutError()])
def test_workers_that_do_not_answer_do_not_stop_a_pass(error, thread_client, monkeypatch):
    run, asked = thread_client.run, []

    def lost_once(function, **options):
        asked.append(options["callback_timeout"])
        if len(asked) == 1:
            raise error
        return run(function, **options)

    monkeypatch.setattr(thread_client, "run", lost_once)
    lazy = ds.sketch(da.from_array(X, chunks=(10, 3)), feature_map(seed=779))
    assert lazy.compute().identical(ds.sketch(X, feature_map(seed=779)))
    assert len(asked) == (1 if isinstance(error, TimeoutError) else 2)
    assert max(asked) < 1000.0


def test_the_answer_of_a_client_may_be_limited_in_time(thread_client):
    with pytest.raises(TimeoutError):
        thread_client.run(time.sleep, 0.5, callback_timeout=0.01)


def test_a_lost_worker_changes_no_bit(process_client):
    def slow(block):
        time.sleep(0.04)
        return block

    client = process_client
    lazy = ds.sketch(
        da.from_array(X, chunks=(10, 3)).map_blocks(slow), feature_map("float32"), split_every=3
    )
    expected = lazy.compute(scheduler="sync")
    pids = client.run(os.getpid)
    future = client.compute(lazy, retries=2)
    while len(client.who_has()) < 2 and not future.done():
        time.sleep(0.02)
    assert not future.done()
    os.kill(min(pids.values()), signal.SIGKILL)
    got = future.result(timeout=120)
    assert set(client.run(os.getpid, on_error="ignore").values()) != set(pids.values())
    assert got.identical(expected)
