from __future__ import annotations

import json
from dataclasses import replace

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pandas as pd
import psutil
import pytest
import zarr
from strategies import feature_map

import dask_sketch as ds
from dask_sketch import FeatureMap
from dask_sketch.errors import InputError, PlanError

FM = FeatureMap(12, 2000, scale=1.0)


@pytest.fixture
def store(tmp_path):
    path = str(tmp_path / "x.zarr")
    array = zarr.create_array(path, shape=(1_000_000, 12), chunks=(20_000, 12), dtype="f4")
    array[:100_000] = 1.0  # fewer chunks are warned of, where missing ones are filled
    return path


def test_the_fields(store):
    plan = ds.plan(store, FM, chunk_size="1MB")
    chunk = 20_000 * 12 * 4
    assert (plan.passes, plan.n_samples, plan.n_chunks) == (1, 1_000_000, 50)
    assert plan.n_merges == 4 + 1
    assert plan.n_tasks == 55
    assert plan.bytes_read == 1_000_000 * 12 * 4
    assert plan.largest_chunk == chunk
    assert chunk < plan.memory_per_thread < 2 * chunk + 9e6
    sums = ds.Sketch.empty(FM).moment_quanta.nbytes + 6 * 12 * 8
    assert plan.sketch_bytes == sums + 20_000 * (12 * 4 + 24)
    assert ds.plan(store, FM, chunk_size="1MB", sample=False).sketch_bytes == sums
    assert plan.n_threads >= 1
    assert plan.warnings == ()
    assert plan.source == store


def test_it_reads_nothing(store, counting):
    ds.plan(store, FM)
    assert counting.computes == 0


def test_as_text_and_as_json(store):
    plan = ds.plan(store, FM, memory_per_thread="1GiB")
    for part in ("1,000,000", "passes over the data  1", "1.00 GiB", store):
        assert part in str(plan)
    assert "memory per thread" in plan._repr_html_()
    again = json.loads(json.dumps(plan.as_dict()))
    assert again["n_tasks"] == plan.n_tasks
    assert again["memory_available"] == 2**30


@pytest.mark.parametrize("memory", ["1MiB", 2**20])
def test_it_refuses_with_both_numbers(store, memory):
    needed = ds.plan(store, FM, memory_per_thread="8GiB").memory_per_thread
    with pytest.raises(PlanError, match=r" MiB .* 1\.00 MiB"):
        ds.plan(store, FM, memory_per_thread=memory)
    fits = ds.plan(store, FM, memory_per_thread=needed)
    assert fits.memory_per_thread == needed
    with pytest.raises(PlanError):
        ds.plan(store, FM, memory_per_thread=needed - 1)


@pytest.mark.parametrize("memory", ["lots", "1 parsec", [], -1, 0])
def test_bad_memory(store, memory):
    with pytest.raises(InputError, match="memory_per_thread="):
        ds.plan(store, FM, memory_per_thread=memory)


def test_a_chunk_as_large_as_the_machine_is_refused():
    huge = da.zeros((2**40, 12), chunks=(2**39, 12), dtype="f4")
    for function in (lambda: ds.plan(huge, FM), lambda: ds.sketch(huge, FM).compute()):
        with pytest.raises(PlanError, match=r"needs 48\.00 TiB .*largest chunk 24\.00 TiB"):
            function()


def test_chunks_of_unknown_length_cannot_be_projected():
    x = da.ones((100, 3), chunks=(10, 3))
    for source in (x[x[:, 0] > 0], db.from_sequence([np.ones((5, 3))])):
        plan = ds.plan(source, feature_map())
        assert plan.largest_chunk is None
        assert plan.memory_per_thread is None
        assert plan.n_samples is None
        assert any("unknown" in warning for warning in plan.warnings)
        assert "unknown before the pass" in str(plan)


def test_one_chunk_is_singular():
    plan = ds.plan(np.ones((10, 3)), feature_map())
    assert f"{plan.n_tasks} (1 chunk, 1 merge)" in str(plan)


def test_above_the_task_limit_there_are_batches():
    x = da.ones((1000, 3), chunks=(1, 3))
    with dask.config.set({"sketch.task-limit": 100, "sketch.batch-tasks": 300}):
        plan = ds.plan(x, feature_map())
    assert plan.n_batches == 4
    assert plan.n_merges == 3 * (19 + 2 + 1) + (7 + 1)  # three of 300 chunks, one of 100
    assert "1,000 chunks, 74 merges; 4 batches" in str(plan)
    assert "1,000 chunks are of 24 B on average" in plan.warnings[0]
    whole = ds.plan(x, feature_map())
    assert (whole.n_batches, whole.n_merges, whole.warnings) == (1, 63 + 4 + 1, ())


def test_chunks_as_large_as_they_should_be_are_not_warned_of():
    x = da.ones((1000 * 10_000, 12), chunks=(10_000, 12), dtype="f8")
    with dask.config.set({"sketch.task-limit": 100, "sketch.batch-tasks": 300}):
        with_batches = ds.plan(x, FM)
    assert with_batches.n_batches == 4
    assert len(with_batches.warnings) == 1  # of 960 kB
    x = da.ones((1000 * 20_000, 12), chunks=(20_000, 12), dtype="f8")
    with dask.config.set({"sketch.task-limit": 100, "sketch.batch-tasks": 300}):
        assert ds.plan(x, FM).warnings == ()


STORED = {
    "v2": {"chunks": (32, 12), "zarr_format": 2},
    "v3": {"chunks": (32, 12)},
    "shards": {"chunks": (32, 12), "shards": (32_000, 12)},
    "features": {"chunks": (384, 1)},
    "both": {"chunks": (96, 4), "shards": (32_160, 12)},
}


@pytest.mark.parametrize("kind", STORED)
def test_a_million_stored_chunks_are_read_by_a_few_tasks(kind, tmp_path):
    path, layout = str(tmp_path / "x.zarr"), STORED[kind]
    n = 32_000_000
    zarr.create_array(path, shape=(n, 12), dtype="f4", **layout)
    plan = ds.plan(path, FM)
    whole = layout.get("shards", layout["chunks"])[0]
    rows = plan.largest_chunk // 48
    assert rows % whole == 0  # no stored chunk or shard is read by two tasks
    assert plan.n_chunks == -(-n // rows) < 80
    pieces = -(-n // layout["chunks"][0]) * (12 // layout["chunks"][1])
    assert f"{pieces:,} stored chunks are of 1.50 kiB" in plan.warnings[0]


def test_larger_stored_chunks_are_not_warned_of(tmp_path):
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, shape=(32_000_000, 12), chunks=(512, 12), dtype="f4")
    assert ds.plan(path, FM).warnings == ()


def test_small_data_stays_in_enough_tasks(store):
    assert ds.plan(store, FM).n_chunks == 50  # as stored, though all of it would fit in one task
    assert ds.plan(store, FM, chunk_size="32MiB").n_chunks == 2


def test_the_settings_count(store, monkeypatch):
    monkeypatch.setattr("dask_sketch.sources.samples.BUSY_TASKS", 1)
    with dask.config.set({"sketch.chunk-size": "2MB", "sketch.split-every": 2}):
        plan = ds.plan(store, FM)
    assert plan.n_chunks == 25
    assert plan.n_merges == 13 + 7 + 4 + 2 + 1
    with dask.config.set({"sketch.memory-share": 0.4}):
        half = ds.plan(store, FM).memory_available
    assert half == pytest.approx(ds.plan(store, FM).memory_available / 2, rel=0.2)


def test_parquet(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(5000, 3)), columns=list("abc"))
    for i in range(5):
        frame.to_parquet(tmp_path / f"{i}.parquet", row_group_size=500)
    plan = ds.plan(tmp_path, feature_map())
    assert plan.n_chunks == 5
    assert plan.bytes_read == sum(p.stat().st_size for p in tmp_path.iterdir())
    assert plan.largest_chunk == pytest.approx(5000 * 3 * 8, rel=0.01)
    small = ds.plan(tmp_path, feature_map(), chunk_size=500 * 3 * 8)
    assert small.n_chunks == 50
    assert small.largest_chunk == pytest.approx(500 * 3 * 8, rel=0.01)


def test_rates_are_measured_and_the_time_is_told(store, short_calibration):
    plain = ds.plan(store, FM)
    with pytest.raises(InputError, match="calibrate=True"):
        plain.estimate()
    plan = ds.plan(store, FM, calibrate=True, missing_chunks="fill")
    assert replace(plan, calibration=None) == replace(plain, memory_available=plan.memory_available)
    made = plan.estimate()
    assert made.n_cores == plan.n_threads
    assert made.seconds > 0
    for part in ("pairs/s a thread", f"on {plan.n_threads} core", "bound by"):
        assert part in str(plan)
        assert part in plan._repr_html_()
    again = json.loads(json.dumps(plan.as_dict()))
    assert again["calibration"]["pairs_per_second"] == plan.calibration.pairs_per_second
    assert again["estimate"]["seconds"] == made.seconds
    assert plain.as_dict()["estimate"] is None
    # 50 chunks: no more than 50 cores have anything to do, and the scheduler is one
    assert plan.estimate(50).working_seconds == plan.estimate(500).working_seconds
    assert plan.estimate(5000).bottleneck in ("chunks", "scheduler")
    slow = plan.estimate(n_cores=2, bandwidth=1e3)
    assert plan.estimate(n_cores=2, bandwidth="1kB") == slow
    with pytest.raises(InputError, match="bandwidth='fast'"):
        plan.estimate(bandwidth="fast")
    assert (slow.bottleneck, slow.seconds) == ("store", 48e3)


@pytest.mark.parametrize("kind", ["array", "unknown", "bag", "memory", "features", "empty"])
@pytest.mark.few_cases(3)
def test_any_input_can_be_estimated(kind, short_calibration):
    x = da.from_array(np.ones((500, 3)), chunks=(10, 1 if kind == "features" else 3))
    source = {
        "unknown": x[x[:, 0] > 0],
        "bag": db.from_sequence([np.ones((10, 3))] * 50, npartitions=50),
        "memory": np.ones((500, 3)),
        "empty": da.zeros((0, 3)),
    }.get(kind, x)
    plan = ds.plan(source, feature_map(), calibrate=True)
    rows = {"empty": 0, "memory": 500}.get(kind, 10)
    assert plan.calibration.rows_per_chunk == rows
    assert 0 < plan.estimate().seconds < 60


def test_a_cluster_measures_itself(store, thread_client, short_calibration):
    plan = ds.plan(store, FM, calibrate=True, missing_chunks="fill")
    assert plan.calibration.on_cluster
    assert plan.calibration.rows_per_chunk == 20_000
    more = plan.estimate(n_cores=1000)
    assert more.scheduler_seconds == pytest.approx(plan.n_tasks * plan.calibration.task_seconds)


def test_with_a_client(store, thread_client):
    (worker,) = thread_client.scheduler_info(n_workers=-1)["workers"].values()
    plan = ds.plan(store, FM)
    assert plan.n_threads == 2
    assert plan.memory_available == int(0.8 * worker["memory_limit"] / 2)


def test_with_workers_without_limits(store):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=4,
            processes=False,
            memory_limit=0,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        plan = ds.plan(store, FM)
    assert plan.n_threads == 4
    assert plan.memory_available == int(0.8 * psutil.virtual_memory().total / 4)


def test_with_a_client_that_has_too_little_memory(store):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            memory_limit="2MB",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        for refused in (lambda: ds.plan(store, FM), lambda: ds.sketch(store, FM).compute()):
            with pytest.raises(PlanError, match=r"781\.25 kiB .* 2 threads"):
                refused()
