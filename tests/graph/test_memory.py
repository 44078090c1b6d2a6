"""The peak memory of a worker, measured from outside the arithmetic: resident bytes."""

from __future__ import annotations

import logging

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, LocalCluster

import dask_sketch as ds
from dask_sketch import FeatureMap

logger = logging.getLogger(__name__)


def write(path, n_bytes, chunk_bytes):
    row = 12 * 4
    rows, n = chunk_bytes // row, n_bytes // row
    array = zarr.create_array(path, shape=(n, 12), chunks=(rows, 12), dtype="f4", compressors=None)
    rng = np.random.default_rng(0)
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        array[start:stop] = rng.standard_normal((stop - start, 12), dtype=np.float32)
    return n


def watch(dask_worker):
    """Sample the resident size every few milliseconds; the first one is the idle worker's."""
    import threading
    import time

    import psutil

    process = psutil.Process()
    seen = dask_worker.seen = {"idle": process.memory_info().rss, "peak": 0}
    stop = dask_worker.stop_watching = threading.Event()

    def loop():
        while not stop.is_set():
            seen["peak"] = max(seen["peak"], process.memory_info().rss)
            time.sleep(0.005)

    threading.Thread(target=loop, daemon=True).start()


def report(dask_worker):
    dask_worker.stop_watching.set()
    return dask_worker.seen


def peak_over_idle(path, feature_map, warm=None):
    """Bytes over those of an idle worker of two threads.

    Such a worker has not even loaded the library, unless it sketches ``warm`` first.
    """
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=True,
            memory_limit="4GB",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        if warm is not None:
            ds.sketch(warm, feature_map).compute()
        client.run(watch)
        sketch = ds.sketch(path, feature_map).compute()
        (seen,) = client.run(report).values()
    return sketch, seen["peak"] - seen["idle"]


def test_a_pass_holds_a_few_chunks(tmp_path, forked_workers):
    path, small = str(tmp_path / "x.zarr"), str(tmp_path / "small.zarr")
    chunk = 4 * 2**20
    n = write(path, 100_000_000, chunk)
    write(small, 100_000, 10_000)
    with dask.config.set({"sketch.chunk-size": chunk}):
        sketch, peak = peak_over_idle(path, FeatureMap(12, 32, scale=1.0), warm=small)
    assert sketch.count == n
    logger.info("peak %.0f MB over idle", peak / 1e6)
    assert peak < 2 * 4 * chunk + 40e6


@pytest.mark.slow
def test_parquet_holds_what_the_plan_says(tmp_path):
    path = str(tmp_path / "x.parquet")
    rows = np.random.default_rng(0).standard_normal((1_400_000, 12), dtype=np.float32)
    frame = pd.DataFrame(rows, columns=[f"feature {i}" for i in range(12)])
    frame.to_parquet(path, row_group_size=1_000_000)
    frame[:100].to_parquet(tmp_path / "small.parquet")
    feature_map = FeatureMap(12, 32, scale=1.0)
    projected = ds.plan(path, feature_map).memory_per_thread
    sketch, peak = peak_over_idle(path, feature_map, warm=tmp_path / "small.parquet")
    assert sketch.count == len(rows)
    logger.info("peak %.0f MB over idle, projected %.0f MB", peak / 1e6, projected / 1e6)
    assert rows.nbytes < peak < 2 * projected + 40e6  # of two threads


@pytest.mark.slow
def test_two_gigabytes_in_chunks_of_32_megabytes(tmp_path):
    path = str(tmp_path / "x.zarr")
    n = write(path, 2_000_000_000, 32 * 2**20)
    feature_map = FeatureMap(12, 2000, scale=1.0)
    sketch, peak = peak_over_idle(path, feature_map)
    assert sketch.count == n
    logger.info("peak %.0f MB over idle", peak / 1e6)
    assert peak < 400e6
