"""Artifacts at URLs, where objects are written one by one and each write can fail."""

from __future__ import annotations

import io
import itertools
import zipfile

import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

from dask_sketch.errors import ArtifactError
from dask_sketch.storage.artifact import packed, unpacked, write_dataset
from dask_sketch.storage.artifact_reader import read_dataset

URL = "unreliable://bucket/s.zarr"
NEW = {"a": ("x", np.full(3, 2.0))}
OLD = {"a": ("x", np.full(3, 1.0)), "b": (("y", "x"), np.arange(6).reshape(2, 3))}


class Unreliable(MemoryFileSystem):
    """An object store in memory, one write of which fails, before or after it is done."""

    protocol = "unreliable"
    cachable = False

    def pipe_file(self, path, value, mode="overwrite", **options):
        return self.fault(lambda: MemoryFileSystem.pipe_file(self, path, value, mode=mode))

    def rm_file(self, path):
        return self.fault(lambda: MemoryFileSystem.rm_file(self, path))

    def fault(self, write):
        self.writes["left"] -= 1
        if self.writes["left"] or self.writes["after"]:
            write()
        if not self.writes["left"]:
            raise ConnectionResetError("the connection was reset")


@pytest.fixture
def writes():
    """Number of writes until one fails, and whether that one is done."""
    Unreliable.writes = {"left": 0, "after": False}
    Unreliable.store, Unreliable.pseudo_dirs = {}, [""]
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)
    return Unreliable.writes


def read(url=URL):
    found = read_dataset(url, {"test/thing": 1})
    return {name: found[name].values.tolist() for name in found}


def replace(url):
    write_dataset(xr.Dataset(NEW), url, "test/thing", 1, overwrite=True)


def failing(act):
    """Message of the error of a call, None if it succeeds."""
    try:
        act()
    except ArtifactError as error:
        return str(error)
    return None


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_replacement_leaves_the_earlier_or_the_new_artifact(after, writes):
    seen = set()
    for number in itertools.count(1):
        url = f"unreliable://bucket/{number}.zarr"
        writes |= {"left": 0, "after": after}
        write_dataset(xr.Dataset(OLD), url, "test/thing", 1)
        writes["left"] = number
        message = failing(lambda: replace(url))  # noqa: B023
        if writes["left"] > 0:
            break
        names = set(read(url))
        assert names in ({"a", "b"}, {"a"})
        assert message is not None or names == {"a"}
        seen |= {len(names)}
    assert seen == {1, 2}
    writes["left"] = 0
    replace(url)
    assert not any("replacement" in name for name in Unreliable.store if str(number) in name)


def test_readers_during_a_replacement(writes, monkeypatch):
    """A reader after each write, of which none finds anything between two artifacts."""
    write_dataset(xr.Dataset(OLD), URL, "test/thing", 1)
    found = []

    def fault(self, write):
        write()
        found.append(len(read()))

    monkeypatch.setattr(Unreliable, "fault", fault)
    replace(URL)
    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1], len(found) > 5) == (2, 1, True)


def test_a_replacement_of_another_artifact_is_not_read(writes):
    """It was left behind, and what it was to replace is gone."""
    fs = Unreliable()
    write_dataset(xr.Dataset(OLD), URL, "test/thing", 1)
    write_dataset(xr.Dataset(NEW), f"{URL}2", "test/thing", 1)
    whole = {
        name.removeprefix("/bucket/s.zarr2/"): fs.cat_file(name) for name in fs.find(f"{URL}2")
    }
    fs.pipe_file(f"{URL}.dask-sketch-replacement", packed(whole))
    assert set(read()) == {"a", "b"}
    fs.pipe_file(f"{URL}/a/c/0", b"damaged")
    with pytest.raises(ArtifactError, match="damaged"):
        read()


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 1000])
def test_what_is_no_replacement(content, writes):
    fs = Unreliable()
    write_dataset(xr.Dataset(OLD), URL, "test/thing", 1)
    fs.pipe_file(f"{URL}/a/c/0", b"damaged")
    fs.pipe_file(f"{URL}.dask-sketch-replacement", content)
    with pytest.raises(ArtifactError, match="damaged"):
        read()


def test_replacements_are_never_larger_than_their_file():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zarr.json", bytes(2**20))
    with pytest.raises(ArtifactError, match="larger"):
        unpacked(out.getvalue())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("earlier", [False, True])
def test_after_a_failed_write_the_next_one_succeeds(earlier, after, writes):
    for number in itertools.count(1):
        url = f"unreliable://bucket/{number}.zarr"
        writes |= {"left": 0, "after": after}
        if earlier:
            write_dataset(xr.Dataset(OLD), url, "test/thing", 1)
        writes["left"] = number
        message = failing(lambda: replace(url))  # noqa: B023
        if writes["left"] > 0:
            assert message is None
            break
        assert message is None or ("connection was reset" in message and url in message)
        replace(url)
        assert read(url) == {"a": [2.0] * 3}
    assert number > (5 if earlier else 3)


def test_what_exists_is_not_replaced_without_being_asked(writes):
    write_dataset(xr.Dataset(OLD), URL, "test/thing", 1)
    with pytest.raises(ArtifactError, match="overwrite=True"):
        write_dataset(xr.Dataset(NEW), URL, "test/thing", 1)
    assert set(read()) == {"a", "b"}


def test_a_lost_answer_to_the_first_write(writes):
    """The object is there, with the content that was to be written."""
    writes |= {"left": 1, "after": True}
    write_dataset(xr.Dataset(NEW), URL, "test/thing", 1)
    assert read() == {"a": [2.0] * 3}


def test_another_writer_at_the_same_time(writes, monkeypatch):
    """It was not there yet when its place was looked at."""
    write_dataset(xr.Dataset(OLD), URL, "test/thing", 1)
    exists, calls = Unreliable.exists, itertools.count()
    monkeypatch.setattr(
        Unreliable, "exists", lambda self, path: next(calls) > 0 and exists(self, path)
    )
    with pytest.raises(ArtifactError, match="overwrite=True"):
        write_dataset(xr.Dataset(NEW), URL, "test/thing", 1)
    assert set(read()) == {"a", "b"}
