import contextlib
import sys
from pathlib import Path

import dask
import numpy as np
import pytest

from tests.benchmarks import large_comparison, two_sample
from tests.benchmarks.scale import measuring, store


@pytest.mark.slow
def test_rivals_that_are_missing_are_skipped_with_a_reason(tmp_path):
    stores = tmp_path / "first", tmp_path / "second"
    entries = list(large_comparison.rivals(tmp_path / "none", stores, 100, 1.0))
    assert all("skipped" in entry["note"] for entry in entries)
    case = two_sample.Case("two", lambda rng: two_sample.mixtures(rng, 20, 1.0), 1)
    found = two_sample.rival_rejections(case, Path(sys.executable))
    assert all("No module named" in note for note in found.values())


@pytest.mark.slow
def test_stores_are_compared(tmp_path, preloaded, monkeypatch):
    forked = dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    with forked, measuring.small_cluster() as client:
        monkeypatch.setattr(
            large_comparison, "small_cluster", lambda: contextlib.nullcontext(client)
        )
        first, _ = store.write_store(tmp_path, 20_000, 0, client, 1000)
        second, _ = store.write_store(tmp_path, 20_000, 0, client, 1000, widened=3.0)
        assert first != second
        both, halves = large_comparison.ours(first, second, 1000, 64)
    assert both["n"] == 20_000
    assert both["p_value"] <= 0.05 < halves["p_value"]
    assert np.isfinite(both["cpu"])
    assert 0 < both["peak"] < measuring.MEMORY_LIMIT
