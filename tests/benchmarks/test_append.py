"""The benchmark of a night after the first, in its smallest form."""

from __future__ import annotations

import pytest

from tests.benchmarks.append import N_FEATURES, text, two_runs


@pytest.mark.slow
def test_the_second_run_reads_the_new_partition_alone(tmp_path):
    n, rows = 12, 500
    runs = two_runs(tmp_path, n, rows, m=120, k=1)
    assert [run["samples"] for run in runs] == [n * rows, (n + 1) * rows]
    # the first reads some partitions for the design too
    assert n * rows * N_FEATURES * 4 <= runs[0]["bytes"] <= 2 * n * rows * N_FEATURES * 4
    assert runs[1]["bytes"] == rows * N_FEATURES * 4
    assert "second over first" in text(runs)
