"""The benchmarks of graphs and of the scheduler still run, in a tiny form, and add up."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from dask_sketch.graph.calibration import Calibration
from tests.benchmarks import estimates, million


@pytest.mark.parametrize(("sharded", "n_chunks"), [(False, 300), (True, million.IN_SHARD + 1)])
@pytest.mark.slow
def test_the_store_is_one_that_zarr_reads(sharded, n_chunks, tmp_path):
    path = str(tmp_path / "x.zarr")
    million.write_store(path, n_chunks, sharded)
    found = zarr.open_array(path, mode="r")
    assert found.chunks == (million.ROWS, million.FEATURES)
    rows = np.asarray(found[:])
    assert rows.shape == (n_chunks * million.ROWS, million.FEATURES)
    assert abs(rows.mean()) < 0.01
    assert abs(rows.std() - 1) < 0.01
    assert np.abs(rows).sum(axis=1).min() > 0  # no chunk is missing


@pytest.mark.slow
def test_a_pass_with_processes_of_its_own(tmp_path):
    cost = million.measured("array", 300, tmp_path)
    assert cost["tasks"] == 300 + 19 + 2 + 1
    assert cost["batches"] == 1
    for key in ("wall s", "client s", "scheduler s", "workers s"):
        assert 0 <= cost[key] < 60
    assert "array            300 chunks" in million.table([cost])


RATES = Calibration(
    pairs_per_second=1e9,
    read_seconds=0.02,
    rows_per_chunk=699_048,
    merge_seconds=1e-4,
    task_seconds=1e-3,
    on_cluster=True,
)


def test_the_bottleneck_moves_with_the_cores():
    def bound(n_samples, m, cores, **more):
        made = estimates.at_size(RATES, RATES.rows_per_chunk, n_samples, m, cores, **more)
        return made.bottleneck

    assert bound(10**8, 1000, 2) == "kernel"
    assert bound(10**8, 1000, 2000) == "chunks"
    assert bound(10**12, 1000, 200) == "kernel"
    assert bound(10**10, 1000, 2000) == "scheduler"
    assert bound(10**10, 8000, 2000) == "kernel"
    assert bound(10**12, 1000, 2000) == "scheduler"
    assert bound(10**12, 1000, 2000, chunk_size="256MiB") == "kernel"


def test_the_table_has_every_size_and_the_papers():
    calibrations = dict.fromkeys((*estimates.FREQUENCIES, 100_000), RATES)
    lines = estimates.table(calibrations).splitlines()
    assert len(lines) == 2 + 2 * 3 * 3 + 1 + 1
    assert lines[-1].split()[:3] == ["200,000,000", "100,000", "200"]
    # 10^6 rows of a part, at 10^9 pairs in a second
    assert "100.00 s" in lines[-1]


@pytest.mark.slow  # times rates
def test_an_estimate_beside_its_pass(tmp_path, thread_client):
    path = str(tmp_path / "x.zarr")
    estimates.write_store(path, 200_000)
    found = estimates.validate(path, 100)
    assert found.n_samples == 200_000
    assert found.n_cores == 2
    assert found.actual > 0
    assert found.estimate.seconds > 0
    text = estimates.validation_table([found]).splitlines()
    assert len(text) == 3
    assert "measured (m=1,000)" in estimates.assumptions(RATES)


@pytest.mark.slow
def test_rates_by_the_clock_of_the_processor(tmp_path):
    path = str(tmp_path / "x.zarr")
    estimates.write_store(path, 200_000)
    rates = estimates.cpu_rates(path, 100, per_task=0.002)
    assert rates.rows_per_chunk == estimates.STORED_ROWS
    assert 1e7 < rates.pairs_per_second < 1e11
    assert 0 < rates.read_seconds < 5
    assert rates.task_seconds == 0.002
