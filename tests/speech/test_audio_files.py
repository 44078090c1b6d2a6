from __future__ import annotations

from pathlib import Path

import pytest

from dask_sketch.errors import InputError
from dask_sketch.speech.audio_files import SPEAKER_IN_NAME, Recording, list_recordings, speakers_of


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b_x_.wav", "a_y_.WAV", "notes.txt", "sub/c_z_.flac"):
        (tmp_path / name).touch()
    return tmp_path


def names(recordings):
    return [recording.name for recording in recordings]


def test_folder_is_searched_with_its_subfolders_in_order(folder):
    found = list_recordings(folder)
    assert names(found) == ["a_y_.WAV", "b_x_.wav", "sub/c_z_.flac"]
    assert [recording.path for recording in found] == [str(folder / n) for n in names(found)]


def test_glob(folder):
    assert names(list_recordings(f"{folder}/*.wav")) == ["b_x_.wav"]
    assert names(list_recordings(str(folder / "**" / "*.flac"))) == ["c_z_.flac"]


def test_list_keeps_its_order_and_a_single_file_is_a_list_of_one(folder):
    paths = [folder / "sub/c_z_.flac", str(folder / "a_y_.WAV")]
    assert names(list_recordings(paths)) == ["sub/c_z_.flac", "a_y_.WAV"]
    assert names(list_recordings(folder / "b_x_.wav")) == ["b_x_.wav"]


def test_relative_paths_are_made_absolute(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert list_recordings(["b_x_.wav"])[0].path == str(folder / "b_x_.wav")


def test_nothing_found(tmp_path):
    for files in (tmp_path, f"{tmp_path}/*.wav", tmp_path / "absent"):
        with pytest.raises(InputError, match="no audio file"):
            list_recordings(files)
    with pytest.raises(InputError, match="empty list"):
        list_recordings([])


def test_a_file_listed_twice_is_refused(folder):
    with pytest.raises(InputError, match=r"b_x_\.wav.*twice"):
        list_recordings([folder / "b_x_.wav", folder / "b_x_.wav"])


def test_speaker_by_expression_or_callable():
    recordings = [Recording("/my_own_data/7_jackson_32.wav", "7_jackson_32.wav")]
    assert speakers_of(recordings, SPEAKER_IN_NAME) == ["jackson"]
    assert speakers_of(recordings, r"^(\d)") == ["7"]
    assert speakers_of(recordings, lambda path: Path(path).parent.name) == ["my_own_data"]


@pytest.mark.parametrize(
    ("speaker", "message"),
    [
        (r"no such (name)", r"7_jackson_32\.wav"),
        (r"_([^_]*)_", r"gives ''"),
        (r"_[^_]+_", "0 groups"),
        (r"(_)([^_]+)_", "2 groups"),
        (r"_([", "speaker=.*regular expression"),
        (lambda path: None, "gives None"),
    ],
)
def test_bad_speaker(speaker, message):
    recordings = [
        Recording("/data/7_jackson_32.wav", "7_jackson_32.wav"),
        Recording("/data/7__32.wav", "7__32.wav"),
    ]
    with pytest.raises(InputError, match=message):
        speakers_of(recordings, speaker)
