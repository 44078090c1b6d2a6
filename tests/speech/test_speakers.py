"""The whole of `make speaker`, on voices made of harmonics and on two of espeak-ng's."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("librosa")
pytest.importorskip("sklearn")

from dask_sketch.cli.speech import main as verify
from dask_sketch.errors import (
    ArtifactError,
    InputError,
)
from dask_sketch.speech import (
    enrol,
    error_rates,
    open_frames,
    read_trials,
    score_trials,
    write_features,
    write_trials,
)
from dask_sketch.speech.ubm import universal_model
from tests.benchmarks.speech import contest, speakers, voices
from tests.benchmarks.speech.speakers import (
    main,
    run_speakers,
)
from tests.benchmarks.speech.voices import generate_voices

NEEDS_ESPEAK = pytest.mark.skipif(voices.synthesiser() is None, reason="espeak-ng is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write six recordings of each of three speakers: harmonics under a formant, and noise."""
    path = tmp_path_factory.mktemp("speakers")
    rng = np.random.default_rng(0)
    time = np.arange(3200) / 8000
    for speaker, (pitch, formant) in {
        "ann": (220, 900),
        "ben": (110, 500),
        "cat": (180, 2000),
    }.items():
        for index in range(6):
            own = pitch * rng.uniform(0.95, 1.05)
            harmonics = own * np.arange(1, 3500 // own)
            loud = np.exp(-(((harmonics - formant) / 400) ** 2))
            tone = (loud[:, None] * np.sin(2 * np.pi * harmonics[:, None] * time)).sum(axis=0)
            signal = 0.1 * tone + rng.normal(0, 0.01, len(time))
            soundfile.write(path / f"{index}_{speaker}_0.wav", signal, 8000)
    return path


@pytest.mark.slow
def test_a_table_of_errors_time_and_bytes(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(contest, "error_rates", partial(error_rates, n_draws=50))
    said = []
    found = run_speakers(
        folder, n_voices=0, pictures=tmp_path, n_components=2, sizes=(250,), n_splits=2,
        say=said.append,
    )  # fmt: skip
    table = found["recordings"]
    assert [entry.name for entry in table.entries] == [
        "sketch, m=250", "sketch, m=250, and one step of EM", "scikit-learn EM",
    ]  # fmt: skip
    assert (table.n_speakers, table.n_trials) == (3, 27)
    for entry in table.entries:
        assert len(entry.rates) == len(entry.seconds) == 2
        assert entry.equal_error_rate < 0.4  # chance is a half
    assert table.entries[0].n_bytes < table.entries[-1].n_bytes
    assert table.entries[0].seconds < table.entries[1].seconds
    assert "above EM" in str(table)
    assert str(table) in said[-1]
    assert (tmp_path / "det-recordings.png").stat().st_size > 1000
    json.dumps(table.as_dict())


@pytest.mark.slow
def test_lists_in_and_scores_out(folder, tmp_path):
    write_features(folder, tmp_path / "frames.zarr")
    (tmp_path / "trials.csv").write_text("model,test\nann,4_ann_0.wav\nben,4_ann_0.wav\n")
    frames = open_frames(tmp_path / "frames.zarr")
    assert len(frames.recordings) == 18
    universal = universal_model(frames, n_components=2, n_frequencies=250).mixture
    enrolment = {name: [f"0_{name}_0.wav", f"1_{name}_0.wav"] for name in ("ann", "ben")}
    models = enrol(frames, enrolment, universal).compute()
    trials = read_trials(tmp_path / "trials.csv")
    scores = score_trials(frames, models, trials).compute()
    assert scores[0] > max(scores[1], 0.0)
    write_trials(tmp_path / "scores.csv", trials, scores)
    lines = (tmp_path / "scores.csv").read_text().splitlines()
    assert lines[0] == "model,test,score"
    assert [float(line.split(",")[2]) for line in lines[1:]] == list(scores)


@pytest.mark.filterwarnings("ignore:.* expected to lose")  # with so few frames
@pytest.mark.slow
def test_one_command(folder, tmp_path):
    write_features(folder, tmp_path / "frames.zarr")
    enrolment, trials = tmp_path / "enrolment.txt", tmp_path / "trials.txt"
    enrolment.write_text("ann 0_ann_0.wav\nann 1_ann_0.wav\nben 0_ben_0.wav\nben 1_ben_0.wav\n")
    trials.write_text(
        "".join(
            f"{model} {i}_{name}_0.wav {'target' if model == name else 'nontarget'}\n"
            for model in ("ann", "ben")
            for name in ("ann", "ben")
            for i in (2, 3)
        )
    )
    scores = tmp_path / "scores.csv"
    places = map(str, (tmp_path / "frames.zarr", enrolment, trials))
    command = [*places, "-k", "2", "-o", str(scores)]
    result = CliRunner().invoke(verify, [*command, "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["models"], told["trials"], told["components"]) == (2, 8, 2)
    assert told["equal_error_rate"] < 0.5
    assert len(scores.read_text().splitlines()) == 9
    again = CliRunner().invoke(verify, command)
    assert again.exit_code == 1
    assert str(scores) in again.stderr
    trials.write_text("eve 2_ann_0.wav target\n")
    refused = CliRunner().invoke(verify, [*command, "--overwrite"])
    assert "'eve'" in refused.stderr


def test_without_espeak(monkeypatch, tmp_path):
    monkeypatch.setattr(voices, "synthesiser", lambda: None)
    monkeypatch.setattr(speakers, "synthesiser", lambda: None)
    result = CliRunner().invoke(main, ["--pictures", str(tmp_path)])
    assert result.exit_code == 0
    assert "skipped: espeak-ng is not installed" in result.output
    with pytest.raises(InputError, match="install the package espeak-ng"):
        generate_voices(tmp_path / "voices", 2)


def test_voices_are_drawn():
    assert voices.draw_voices(5, seed=1) == voices.draw_voices(5, seed=1)
    assert voices.draw_voices(5, seed=1) != voices.draw_voices(5, seed=2)
    with pytest.raises(InputError, match="from 2 to 72"):
        voices.draw_voices(100)


@NEEDS_ESPEAK
def test_voices_are_spoken_and_kept(tmp_path):
    place = tmp_path / "voices"
    generate_voices(place, n_voices=2, n_repeats=1, seed=3)
    files = sorted(place.glob("*.wav"))
    assert len(files) == 20
    assert files[0].name == "0_v00_0.wav"
    signal, rate = soundfile.read(files[0])
    assert rate >= 8000
    assert np.abs(signal).max() > 0.05
    files[0].unlink()  # would come back if the voices were spoken again
    generate_voices(place, n_voices=2, n_repeats=1, seed=3)
    assert not files[0].exists()
    with pytest.raises(ArtifactError, match="voices of other settings"):
        generate_voices(place, n_voices=3, n_repeats=1, seed=3)
    again = generate_voices(tmp_path / "again", n_voices=2, n_repeats=1, seed=3)
    assert all((again / file.name).read_bytes() == file.read_bytes() for file in files[1:])
