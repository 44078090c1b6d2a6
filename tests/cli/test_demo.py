"""The demo on little data: its files, its story, its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import dask_sketch as ds
from dask_sketch.cli import demo
from dask_sketch.cli.main import cli

SMALL = ("--n-frames", "20000", "--n-components", "2", "--n-frequencies", "300")


def test_demo_from_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forked_workers: None,
    short_calibration: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "N_HELDOUT", 5000)
    result = CliRunner().invoke(cli, ["demo", *SMALL, "--json", "--directory", "kept"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    scores = {entry["name"]: entry["score"] for entry in told["contenders"]}
    assert scores["ours"] == pytest.approx(scores["the truth"], abs=0.02)
    assert set(scores) == {"the truth", "ours", "scikit-learn"}
    assert told["store_bytes"] > told["sketch_bytes"] > 0
    assert "passes over the data  1" in result.stderr
    assert "bound by" in result.stderr
    assert re.search(r"dashboard: http\S+/sketch$", result.stderr, re.M)
    assert ds.open("kept/sketch.zarr").count == 20_000
    assert ds.open("kept/model.zarr").n_components == 2
    command = "dask-sketch demo --n-frames 20000 --seed 0 --report .demo/report.html"
    small = "--directory kept --n-components 2 --n-frequencies 300"
    assert f"<pre>{command} {small}</pre>" in Path(told["report"]).read_text()
    again = CliRunner().invoke(cli, ["demo", *SMALL, "--directory", "kept"])
    assert again.exit_code == 1
    assert "earlier run" in again.stderr


def test_frames_are_the_same_on_any_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "CHUNK_FRAMES", 100)
    mixture = demo.speech_like_mixture(3, seed=1)
    for scheduler in ("threads", "sync"):
        lazy = demo.write_frames(tmp_path / scheduler, mixture, 1050, seed=5)
        with dask.config.set(scheduler=scheduler):
            lazy.compute()
    one, other = (np.asarray(zarr.open(tmp_path / name)[:]) for name in ("threads", "sync"))
    assert one.shape == (1050, demo.N_FEATURES)
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one, other)
    assert len(np.unique(one[:, 0])) == 1050  # every chunk has a stream of its own
    assert np.abs(one.mean(axis=0) - mixture.mean).max() < 0.3 * np.sqrt(mixture.variance).max()


def test_frames_are_written_chunk_by_chunk(tmp_path: Path) -> None:
    rows = 400 * demo.CHUNK_FRAMES - 1
    lazy = demo.write_frames(tmp_path / "frames", demo.speech_like_mixture(2), rows)
    written = zarr.open_array(tmp_path / "frames")
    assert written.chunks[0] == demo.CHUNK_FRAMES
    assert written.nchunks_initialized == 0  # lazy: nothing was drawn
    assert len(lazy.__dask_graph__()) < 4 * 400


def test_the_truth_is_a_mixture_of_unlike_features() -> None:
    mixture = demo.speech_like_mixture(64, seed=0)
    deviation = np.sqrt(mixture.variance)
    assert deviation[0] > 3 * deviation[-1]
    assert mixture.weights.min() > 0.2 / 64
    assert (mixture.means == demo.speech_like_mixture(64, seed=0).means).all()


def test_missing_packages_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import dask_sketch.diagnostics.comparison as comparison

    monkeypatch.setattr(comparison, "find_spec", lambda name: None)
    with pytest.raises(ds.SketchError, match=r"pip install 'matplotlib>="):
        demo.run_demo()
