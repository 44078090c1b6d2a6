from __future__ import annotations

import os
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr
import zarr

librosa = pytest.importorskip("librosa")
soundfile = pytest.importorskip("soundfile")

from dask_sketch.errors import (
    ArtifactError,
    ChunkError,
    InputError,
)
from dask_sketch.speech import write
from dask_sketch.speech.mfcc import mfcc_of_file
from dask_sketch.speech.write import write_features

SMALL = {"chunk_frames": 16, "shard_frames": 64}


def opened(store):
    with xr.open_zarr(store) as dataset:
        return dataset.load()


@pytest.fixture
def store(tmp_path):
    return tmp_path / "features.zarr"


def test_rows_are_the_files_features_in_order(corpus, store):
    summary = write_features(corpus, store, **SMALL)
    paths = sorted(corpus.iterdir())
    features = [mfcc_of_file(path) for path in paths]
    counts = [len(rows) for rows in features]
    dataset = opened(store)

    assert dataset.features.dims == ("frame", "coefficient")
    assert dataset.features.dtype == np.float32
    np.testing.assert_array_equal(dataset.features, np.concatenate(features))
    np.testing.assert_array_equal(dataset.coefficient, np.arange(1, 13))
    np.testing.assert_array_equal(dataset.file, np.repeat(np.arange(7), counts))
    assert list(dataset.file_name.values) == [path.name for path in paths]
    names = np.array(dataset.speaker.names)
    assert list(names) == ["adam", "mia", "zoe"]
    spoken = np.repeat([path.name.split("_")[1] for path in paths], counts)
    np.testing.assert_array_equal(names[dataset.speaker], spoken)

    assert summary.n_files == 7
    assert summary.n_frames == sum(counts) == dataset.sizes["frame"]
    assert summary.n_speakers == 3
    assert summary.seconds == pytest.approx(
        sum(soundfile.info(str(path)).duration for path in paths)
    )
    assert 0 < summary.kept_fraction < 1
    assert summary.skipped == ()


def test_opens_lazily_with_its_labels(corpus, store):
    write_features(corpus, store, **SMALL)
    with xr.open_zarr(store) as dataset:
        assert set(dataset.data_vars) == {"features"}
        assert set(dataset.coords) == {"coefficient", "file", "file_name", "speaker"}
        assert dataset.features.chunksizes["frame"][0] == 16
        assert set(dataset.features.coords) == {"coefficient", "file", "speaker"}
        assert dataset.attrs["frame_seconds"] == 0.023


def test_tasks_write_whole_shards_and_never_the_same(corpus, store, monkeypatch):
    written = []
    original = write.write_rows

    def record(where, shard, *rest):
        written.append((shard.start, shard.stop))
        original(where, shard, *rest)

    monkeypatch.setattr(write, "write_rows", record)
    summary = write_features(corpus, store, **SMALL)
    group = zarr.open_group(store, mode="r")
    for name in ("features", "file", "speaker"):
        assert group[name].shards[0] == 64
        assert group[name].chunks[0] == 16
    assert sorted(written) == [
        (start, min(start + 64, summary.n_frames)) for start in range(0, summary.n_frames, 64)
    ]
    assert len(written) > 3


@pytest.mark.slow
def test_partitions_and_schedulers_do_not_matter(corpus, store, tmp_path):
    write_features(corpus, store, **SMALL)
    expected = opened(store)
    for scheduler, npartitions in (("synchronous", 1), ("threads", 3)):
        with dask.config.set(scheduler=scheduler):
            other = tmp_path / f"{scheduler}{npartitions}.zarr"
            write_features(corpus, other, npartitions=npartitions, **SMALL)
        xr.testing.assert_identical(opened(other), expected)
    layout = tmp_path / "layout.zarr"
    write_features(corpus, layout)
    xr.testing.assert_identical(opened(layout), expected)


@pytest.mark.slow
def test_distributed_workers_write(corpus, store, tmp_path, process_client):
    with dask.config.set(scheduler="threads"):
        write_features(corpus, store, **SMALL)
    (corpus / "bad_mia_0.wav").write_text("no audio")
    with pytest.raises(ChunkError, match=r"bad_mia_0\.wav"):
        write_features(corpus, tmp_path / "other.zarr", **SMALL)
    (corpus / "bad_mia_0.wav").unlink()
    write_features(corpus, tmp_path / "other.zarr", **SMALL)
    xr.testing.assert_identical(opened(tmp_path / "other.zarr"), opened(store))


def test_speaker_by_callable_or_none(corpus, store, tmp_path):
    summary = write_features(corpus, store, speaker=lambda path: path.parent.name)
    assert opened(store).speaker.names == ["audio"]
    assert summary.n_speakers == 1
    summary = write_features(corpus, tmp_path / "anonymous.zarr", speaker=None)
    assert "speaker" not in opened(tmp_path / "anonymous.zarr")
    assert summary.n_speakers == 0


def test_settings_reach_the_features(corpus, store):
    write_features(corpus, store, n_coefficients=5, frame_seconds=0.03, top_db=10)
    dataset = opened(store)
    assert dataset.features.shape[1] == 5
    assert dataset.attrs["top_db"] == 10
    assert dataset.attrs["frame_seconds"] == 0.03


def test_bad_files_are_all_named_and_nothing_is_written(corpus, store):
    (corpus / "8_mia_0.wav").write_text("no audio")
    soundfile.write(corpus / "9_mia_0.wav", np.zeros(8000), 8000)
    with pytest.raises(ChunkError, match=r"2 of 9 .*8_mia_0\.wav.*9_mia_0\.wav.*silent"):
        write_features(corpus, store)
    assert not store.exists()


@pytest.mark.slow
def test_bad_files_are_skipped_and_listed(corpus, store, tmp_path):
    write_features(corpus, store, **SMALL)
    (corpus / "0_new_1.wav").write_text("no audio")  # its speaker goes with it
    summary = write_features(corpus, tmp_path / "rest.zarr", on_error="skip", **SMALL)
    assert [path for path, _ in summary.skipped] == [str(corpus / "0_new_1.wav")]
    assert "cannot be read" in summary.skipped[0][1]
    assert (summary.n_files, summary.n_speakers) == (7, 3)
    xr.testing.assert_identical(opened(tmp_path / "rest.zarr"), opened(store))


def test_no_usable_file(tmp_path, store):
    (tmp_path / "0_new_1.wav").write_text("no audio")
    with pytest.raises(InputError, match=r"none of the 1 .*0_new_1\.wav"):
        write_features(tmp_path / "0_new_1.wav", store, on_error="skip")


@pytest.mark.slow
def test_existing_store_is_refused_then_overwritten(corpus, store):
    write_features(corpus, store, **SMALL)
    with pytest.raises(ArtifactError, match="overwrite=True"):
        write_features(corpus, store)
    (corpus / "0_zoe_0.wav").unlink()
    summary = write_features(corpus, store, overwrite=True, **SMALL)
    assert summary.n_files == 6
    assert opened(store).sizes["frame"] == summary.n_frames


def test_other_contents_are_never_overwritten(corpus, tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="not a Zarr group"):
        write_features(corpus, folder, overwrite=True)
    with pytest.raises(ArtifactError, match="not a Zarr group"):
        write_features(corpus, folder / "chapter.txt", overwrite=True)
    group = zarr.create_group(tmp_path / "group.zarr")
    group.create_array("other", data=np.arange(3))
    with pytest.raises(ArtifactError, match="other contents"):
        write_features(corpus, tmp_path / "group.zarr", overwrite=True)
    zarr.create_array(tmp_path / "array.zarr", data=np.arange(3))
    with pytest.raises(ArtifactError, match="not a Zarr group"):
        write_features(corpus, tmp_path / "array.zarr", overwrite=True)
    assert (folder / "chapter.txt").read_text() == "years of work"
    np.testing.assert_array_equal(group["other"], np.arange(3))


@pytest.mark.slow
def test_a_file_that_changes_between_the_passes(corpus, store, monkeypatch, utterance):
    original = write.create_store

    def change(*args, **settings):
        original(*args, **settings)
        soundfile.write(corpus / "3_zoe_0.wav", utterance(3, seconds=2), 8000)

    with monkeypatch.context() as patch:
        patch.setattr(write, "create_store", change)
        with pytest.raises(ChunkError, match=r"3_zoe_0\.wav.*changed"):
            write_features(corpus, store, **SMALL)
    assert zarr.open_group(store, mode="r").attrs["complete"] is False
    # what is not complete is not in the way
    assert write_features(corpus, store, **SMALL).n_files == 7
    assert opened(store).attrs["complete"] is True
    assert np.isfinite(opened(store).features).all()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"shard_frames": 10, "chunk_frames": 4}, "multiple"),
        ({"chunk_frames": 0}, "multiple"),
        ({"on_error": "ignore"}, "on_error"),
        ({"speaker": "(no such)"}, "speaker"),
        ({"sample_rate": -1}, "sample_rate"),
    ],
)
def test_bad_arguments(corpus, store, argument, message):
    with pytest.raises(InputError, match=message):
        write_features(corpus, store, **argument)
    assert not store.exists()


def digits() -> Path:
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    return Path(os.environ.get("DASK_SKETCH_DATA", beside)) / "fsdd"


@pytest.mark.skipif(
    not digits().is_dir(),
    reason="the Free Spoken Digit Dataset is not here; DASK_SKETCH_DATA names the folder above it",
)
def test_real_digits(store):
    summary = write_features(digits() / "*_4*.wav", store)
    dataset = opened(store)
    assert summary.n_files == 10 * 6 * 11  # the takes 4 and 40 to 49 of ten digits, six speakers
    assert dataset.speaker.names == ["george", "jackson", "lucas", "nicolas", "theo", "yweweler"]
    assert 0.6 < summary.kept_fraction < 0.95
    assert np.isfinite(dataset.features).all()
    # spectra of speech tilt and vary; the higher the coefficient, the smaller
    spread = dataset.features.std("frame").values
    assert 10 < spread[0] < 40
    assert 2 < spread[-1] < 8
