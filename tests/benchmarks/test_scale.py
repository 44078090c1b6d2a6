"""The walk of `make scale`, on a few thousand samples and one small cluster for all of it."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr

import dask_sketch as ds
from tests.benchmarks.scale import contest, measuring, merging, passes, report, store, walk

CHUNK = 1000


@pytest.fixture(scope="module")
def client(preloaded):
    forked = dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    with forked, measuring.small_cluster() as client:
        yield client


@pytest.fixture
def tiny(client, monkeypatch, tmp_path):
    for module in (passes, merging, walk):
        monkeypatch.setattr(module, "small_cluster", lambda: contextlib.nullcontext(client))
    return walk.Walk(
        tmp_path,
        n_samples=4 * CHUNK,
        rivals=Path(sys.executable),
        chunk_rows=CHUNK,
        n_components=2,
        few=60,
        enough=250,
        smaller=(2,),
        n_parts=40,
        part_frequencies=30,
    )


@pytest.mark.slow
def test_an_interrupted_store_is_completed_chunk_by_chunk(client, tmp_path):
    path, written = store.write_store(tmp_path, 3500, 0, client, CHUNK)
    assert written == 4
    whole = zarr.open_array(str(path), mode="r")[:]
    (path / "c" / "1" / "0").unlink()
    with (path / "c" / "3" / "0").open("r+b") as file:
        file.truncate(100)
    assert store.missing_chunks(path) == [1, 3]
    assert store.write_store(tmp_path, 3500, 0, client, CHUNK) == (path, 2)
    np.testing.assert_array_equal(zarr.open_array(str(path), mode="r")[:], whole)


@pytest.mark.slow
def test_chunks_depend_on_seed_and_number_alone(client, tmp_path):
    small, _ = store.write_store(tmp_path, 2 * CHUNK, 0, client, CHUNK)
    large, _ = store.write_store(tmp_path, 3 * CHUNK, 0, client, CHUNK)
    first, more = (zarr.open_array(str(path), mode="r")[:] for path in (small, large))
    np.testing.assert_array_equal(more[: 2 * CHUNK], first)
    fresh = store.heldout(0, 50)
    assert not (more[:, None, 0] == fresh[None, :, 0]).any()
    with pytest.raises(SystemExit, match="holds other samples"):
        store.write_store(tmp_path, 2 * CHUNK, 1, client, CHUNK)


@pytest.mark.slow
def test_the_whole_walk(tiny):
    for part in walk.PARTS:
        tiny.do(part)
    held = json.loads(tiny.results.read_text())
    passed = held["sketch"]["entries"] + held["independent"]["entries"]
    assert [e["n_samples"] for e in passed] == [2 * CHUNK, *[4 * CHUNK] * 4]
    for entry in passed:
        assert 0 < entry["kernel_share"] < 1
        assert 0 < entry["peak"] < measuring.MEMORY_LIMIT
        assert entry["read"] >= entry["store_bytes"] == entry["n_samples"] * 48
        assert entry["n_tasks"] >= 2  # small chunks are read together
    truth, *ours = held["decode"]["entries"]
    assert len(ours) == 4
    assert all(e["distance"] > truth["distance"] for e in ours)  # 2 components of 64
    rivals = {e["name"]: e for e in held["rivals"]["entries"]}
    assert rivals["minibatch-kmeans"]["used"] == rivals["gaussian-mixture"]["used"] == 4 * CHUNK
    assert rivals["gaussian-mixture"]["nats"] < truth["nats"]
    (two,) = held["workers"]["entries"]
    assert two["speedup"] > 0
    assert two["machine"] > 0
    for merged in held["merge"]["entries"]:
        assert merged["count"] == 40 * merging.ROWS
    text = tiny.report()
    for name in ("minibatch-kmeans", "gaussian-mixture", "the truth", "two workers against one"):
        assert name in text
    assert not re.search(r"\bnan\b", text)


def test_a_rival_that_is_not_there_is_skipped_with_a_reason(tmp_path):
    heldout = store.heldout(0, 100)
    entries = contest.rival_entries(tmp_path / "none", tmp_path, 100, heldout, 1.0)
    assert all("skipped: no environment" in e["note"] for e in entries)
    assert "No module named" in contest.absent(Path(sys.executable), "no_such_package")


@pytest.mark.slow
def test_a_rival_that_is_stopped_says_so(client, tmp_path):
    path, _ = store.write_store(tmp_path, 4 * CHUNK, 0, client, CHUNK)
    python, heldout = Path(sys.executable), store.heldout(0, 100)
    entry = contest.run_rival(python, "minibatch-kmeans", path, 4 * CHUNK, 0.0, heldout)
    assert entry["used"] == CHUNK
    text = report.text({"decode": {"seconds": 0.0, "entries": [entry]}})
    assert "extrapolated to all" in text
    failed = contest.run_rival(python, "minibatch-kmeans", tmp_path / "none", 10, 1.0, heldout)
    assert "Error" in failed["note"]


@pytest.mark.slow  # a share of time, which other work on the machine changes
def test_what_is_timed_is_the_kernel(client):
    feature_map = ds.FeatureMap(12, 2000, scale=1.0)
    measuring.ready(client, feature_map)
    before = client.run(measuring.probe)
    client.run(passes.kernel_alone, feature_map, 4e8)
    after = client.run(measuring.probe)
    for name in before:
        kernel, cpu = (after[name][key] - before[name][key] for key in ("kernel", "cpu"))
        assert 0.5 < kernel / cpu < 1
