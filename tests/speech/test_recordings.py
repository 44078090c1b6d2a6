"""Recordings to a mixture, on tones in noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dask_sketch.errors import InputError
from tests.benchmarks.speech.recordings import main, run_recordings

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("librosa")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audio")
    rng = np.random.default_rng(0)
    time = np.arange(8000) / 8000
    for number in range(10):
        tone = 0.3 * np.sin(2 * np.pi * rng.uniform(200, 2000) * time)
        soundfile.write(path / f"{number}.wav", tone + rng.normal(0, 0.05, 8000), 8000)
    return path


@pytest.mark.slow
def test_every_fifth_is_held_out(folder: Path, tmp_path: Path) -> None:
    result = run_recordings(
        folder,
        directory=tmp_path / "kept",
        report=tmp_path / "report.html",
        n_components=2,
    )
    assert [entry.name for entry in result.contenders] == ["ours", "scikit-learn", "one Gaussian"]
    assert result.n_heldout == pytest.approx(2 * 85, abs=4)
    assert np.isfinite([entry.score for entry in result.contenders]).all()
    assert (tmp_path / "kept" / "model.zarr").exists()
    assert "10 recordings to 2 Gaussians" in (tmp_path / "report.html").read_text()


def test_too_few(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    (tmp_path / "audio" / "0.wav").write_bytes((folder / "0.wav").read_bytes())
    with pytest.raises(InputError, match="at least 5"):
        run_recordings(tmp_path / "audio")
    result = CliRunner().invoke(main, [str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
