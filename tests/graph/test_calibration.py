"""The arithmetic of an estimate: what is largest bounds the pass."""

from __future__ import annotations

import pytest

from dask_sketch.errors import InputError
from dask_sketch.graph.calibration import Calibration, estimate_pass

RATES = Calibration(
    pairs_per_second=1e9,
    read_seconds=0.05,
    rows_per_chunk=1e6,
    merge_seconds=0.01,
    task_seconds=1e-3,
    on_cluster=True,
)


def of(n_samples, n_cores, m=1000, **more):
    n_chunks = -(-n_samples // 10**6)
    return estimate_pass(
        RATES,
        n_samples=n_samples,
        n_frequencies=m,
        n_chunks=n_chunks,
        n_tasks=n_chunks,
        n_cores=n_cores,
        bytes_read=48 * n_samples,
        **more,
    )


def test_one_core_does_everything():
    made = of(10**8, 1)
    assert made.kernel_seconds == pytest.approx(100)
    assert made.read_seconds == pytest.approx(5)
    assert made.merge_seconds == pytest.approx(1)
    assert made.seconds == made.working_seconds == pytest.approx(106)
    assert made.bottleneck == "kernel"
    assert made.scheduler_seconds == pytest.approx(0.1)
    assert "106.00 s on 1 core (" in str(made)


@pytest.mark.parametrize(
    ("n_samples", "n_cores", "more", "expected"),
    [
        (10**10, 200, {}, "kernel"),
        (10**10, 20, {"m": 10}, "read"),
        (10**8, 2000, {}, "chunks"),
        (10**12, 2000, {}, "scheduler"),
        (10**12, 2000, {"task_seconds": 1e-4}, "kernel"),
        (10**12, 2000, {"bandwidth": 1e9}, "store"),
        (10**12, 2000, {"bandwidth": 1e12}, "scheduler"),
    ],
)
def test_what_is_largest_bounds_the_pass(n_samples, n_cores, more, expected):
    made = of(n_samples, n_cores, **more)
    assert made.bottleneck == expected
    assert made.seconds == max(made.working_seconds, made.scheduler_seconds, made.store_seconds)


def test_chunks_that_do_not_divide_among_the_cores():
    assert of(3 * 10**6, 2).working_seconds == pytest.approx(2 * 1.06)
    assert of(3 * 10**6, 1000).working_seconds == pytest.approx(1.06)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_cores": 0},
        {"n_cores": 1.5},
        {"n_cores": True},
        {"bandwidth": True},
        {"bandwidth": 0},
        {"bandwidth": "1GB"},
        {"task_seconds": -1},
    ],
)
def test_numbers_that_mean_nothing(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        of(10**6, wrong.pop("n_cores", 1), **wrong)
