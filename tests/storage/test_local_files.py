"""Replacements of files and folders: errors keep what was there."""

from __future__ import annotations

import os

import pytest

from dask_sketch.errors import ArtifactError
from dask_sketch.storage.local_files import replacing


def test_a_folder_is_never_replaced_by_a_file(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows").write_text("1 2 3")
    with pytest.raises(OSError, match="directory"), replacing(tmp_path / "data") as new:
        new.write_text("page")
    with pytest.raises(OSError, match="directory"), replacing(tmp_path / "data" / "rows") as new:
        new.mkdir()
    assert (tmp_path / "data" / "rows").read_text() == "1 2 3"
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "rows"]


def test_pipes_and_devices_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(ArtifactError, match="pipe"), replacing(tmp_path / name) as new:
            new.write_text("page")
    assert (tmp_path / "pipe").is_fifo()
    assert len(list(tmp_path.iterdir())) == 2


def test_an_error_keeps_the_earlier_file(tmp_path):
    (tmp_path / "page").write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(tmp_path / "page") as new:
        new.write_text("new \udc80", encoding="utf-8")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_link_leads_to_what_is_replaced(tmp_path):
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "page").write_text("old")
    (tmp_path / "page").symlink_to(tmp_path / "www" / "page")
    with replacing(tmp_path / "page") as new:
        new.write_text("new")
    assert (tmp_path / "www" / "page").read_text() == "new"
    assert (tmp_path / "page").is_symlink()


def test_a_missing_folder_does_not_lead_to_what_is_replaced(tmp_path):
    (tmp_path / "page").write_text("of others")
    for path in (tmp_path / "new" / ".." / "page", tmp_path / "a" / "b" / ".." / ".." / "page"):
        with pytest.raises(ArtifactError, match=str(tmp_path / "page")), replacing(path) as new:
            new.write_text("new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page", "of others")]
    with replacing(tmp_path / "new" / ".." / "other") as new:
        new.write_text("new")
    assert (tmp_path / "other").read_text() == "new"
