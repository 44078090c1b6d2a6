"""Only earlier results are overwritten."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
import zarr
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from dask_sketch.errors import ArtifactError
from dask_sketch.storage.artifact import write_dataset
from dask_sketch.storage.artifact_reader import read_dataset
from dask_sketch.storage.overwrite import path_exists, require_writable, require_writable_page


def dataset(value=1.0):
    return xr.Dataset(
        {"a": ("x", np.full(3, value)), "b": (("y", "x"), np.arange(6).reshape(2, 3))},
        attrs={"number": 0.1 + 0.2, "text": "é", "list": [1, 2], "nested": {"k": None}},
    )


def test_overwrite_replaces_artifacts_and_nothing_else(tmp_path):
    place = tmp_path / "thesis"
    place.mkdir()
    (place / "chapter.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="thesis"):
        write_dataset(dataset(), place, "test/thing", 1, overwrite=True)
    assert (place / "chapter.txt").read_text() == "years of work"
    (tmp_path / "file").write_text("text")
    with pytest.raises(ArtifactError, match="file"):
        write_dataset(dataset(), tmp_path / "file", "test/thing", 1, overwrite=True)
    assert (tmp_path / "file").read_text() == "text"


def foreign(where, store):
    """Samples or other work of somebody at a store, in a few forms."""
    if where == "array":
        zarr.create_array(store, data=np.ones((4, 2)))
    elif where == "group":
        zarr.create_group(store).create_array("frames", data=np.ones((4, 2)))
    else:
        zarr.create_group(store, zarr_format=2, attributes={"checksum": "of its own"})


@pytest.mark.parametrize("kind", ["path", "url", "store"])
@pytest.mark.parametrize("where", ["array", "group", "format 2"])
def test_samples_are_never_overwritten(where, kind, tmp_path):
    place = {
        "path": str(tmp_path / "x.zarr"),
        "url": f"memory://samples-{where.replace(' ', '-')}",
        "store": zarr.storage.MemoryStore(),
    }[kind]
    foreign(where, place)
    before = zarr.open(place, mode="r")
    with pytest.raises(ArtifactError, match="neither a sketch nor a model"):
        write_dataset(dataset(), place, "test/thing", 1, overwrite=True)
    assert zarr.open(place, mode="r") == before


@pytest.mark.parametrize("url", ["memory://written-twice", None])
def test_what_was_written_here_is_replaced_when_asked(url):
    place = url or zarr.storage.MemoryStore()
    write_dataset(dataset(), place, "test/thing", 1)
    with pytest.raises(ArtifactError, match="exists"):
        write_dataset(dataset(2.0), place, "test/thing", 1)
    write_dataset(dataset(2.0), place, "test/thing", 1, overwrite=True)
    assert read_dataset(place, {"test/thing": 1})["a"].values.tolist() == [2.0] * 3


def test_a_place_that_cannot_be_written_to_is_told_in_time(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for where in (tmp_path / "file" / "x.zarr", "/proc/x.zarr"):
        with pytest.raises(ArtifactError, match=r"store='.*x\.zarr' cannot be written"):
            require_writable(where)
    require_writable(tmp_path / "new" / "folder" / "x.zarr")
    assert not (tmp_path / "new").exists()


def test_only_pages_are_replaced_by_pages(tmp_path):
    page = tmp_path / "report.html"
    require_writable_page(page)
    page.write_text('<!DOCTYPE html><meta name="generator" content="dask-sketch">')
    require_writable_page(page)
    for text in ("year,month\n", "<!DOCTYPE html><title>of somebody else</title>"):
        page.write_text(text)
        for where in (page, tmp_path):
            with pytest.raises(ArtifactError, match="no page of dask-sketch"):
                require_writable_page(where)


@pytest.mark.parametrize("form", [lambda path: path, str, lambda path: f"file://{path}"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_missing_folder_does_not_lead_to_other_files(tmp_path, overwrite, form):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").write_text("of others")
    store = form(tmp_path / "new" / ".." / "data")
    with pytest.raises(ArtifactError, match="exists"):
        require_writable(store, overwrite=overwrite)
    with pytest.raises(ArtifactError, match="exists"):
        write_dataset(xr.Dataset(), store, "a", 1, overwrite=overwrite)
    assert (tmp_path / "data" / "precious").read_text() == "of others"
    with pytest.raises(ArtifactError, match="no page of dask-sketch"):
        require_writable_page(tmp_path / "new" / ".." / "data" / "precious")


def test_an_interruption_is_not_taken_for_a_file_that_does_not_exist(tmp_path, monkeypatch):
    local, memory = LocalFileSystem(), MemoryFileSystem()
    (tmp_path / "there").write_text("")
    memory.pipe_file("/overwrite/there", b"")
    for fs, folder in ((local, str(tmp_path)), (memory, "/overwrite")):
        assert path_exists(fs, f"{folder}/there")
        assert not path_exists(fs, f"{folder}/elsewhere")
        assert not path_exists(fs, f"{folder}/there/below")

    def stopped(self, path, **kwargs):
        raise SystemExit(143)  # as the handler of SIGTERM

    monkeypatch.setattr(LocalFileSystem, "info", stopped)
    with pytest.raises(SystemExit):
        path_exists(local, str(tmp_path / "there"))
