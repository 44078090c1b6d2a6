"""Lists of Parquet files, where folders cannot be listed or listings are kept."""

from __future__ import annotations

import errno

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dask_sketch.sources.parquet_files import list_parquet_files


class Remote(MemoryFileSystem):
    """A file system that keeps its listings, and denies those of some folders."""

    cachable = False
    denied = ""
    error = PermissionError

    def __init__(self):
        super().__init__()
        self.store = {}
        self.pseudo_dirs = [""]
        self.listings = {}

    def ls(self, path, detail=True, **options):
        if self.denied and path.rstrip("/").endswith(self.denied):
            raise self.error(errno.EIO, f"no listing of {path}")
        if path not in self.listings:
            self.listings[path] = super().ls(path, detail=True, **options)
        return self.listings[path]

    def invalidate_cache(self, path=None):
        self.listings.clear()


@pytest.fixture
def remote():
    fs = Remote()
    fs.pipe({f"/days/day={day}/part={part}/0.parquet": b"x" for day in "12" for part in "ab"})
    fs.pipe({"/days/_metadata": b"x", "/days/day=1/about.txt": b"x"})
    return fs


ALL = [f"/days/day={day}/part={part}/0.parquet" for day in "12" for part in "ab"]
PATHS = ["/days", "/days/*/*/*.parquet", "/days/**/*.parquet", "/days/day=[12]/part=?/0.parquet"]


@pytest.mark.parametrize("path", PATHS)
def test_files_at_all_depths(path, remote):
    assert list_parquet_files(remote, path) == dict.fromkeys(ALL, 1)


def test_patterns_choose_among_folders(remote):
    remote.denied = "day=2"  # no step of the pattern needs it
    assert list(list_parquet_files(remote, "/days/day=1/*/0.parquet")) == ALL[:2]
    assert list(list_parquet_files(remote, "/days/*1/part=b/*")) == ALL[1:2]
    assert list_parquet_files(remote, "/days/day=3*/*/0.parquet") == {}


@pytest.mark.parametrize("error", [PermissionError, OSError, TimeoutError])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("denied", ["day=1", "day=2/part=b"])
def test_a_folder_that_cannot_be_listed_is_an_error(denied, path, error, remote):
    remote.denied, remote.error = denied, error
    with pytest.raises(error, match=denied):
        list_parquet_files(remote, path)


@pytest.mark.parametrize("path", PATHS)
def test_files_that_were_added_are_listed(path, remote):
    list_parquet_files(remote, path)
    remote.pipe("/days/day=2/part=c/0.parquet", b"xyz")
    assert list_parquet_files(remote, path)["/days/day=2/part=c/0.parquet"] == 3


HIDDEN = ["/days/.a.parquet", "/days/_a.parquet", "/days/.old/a.parquet", "/days/_delta_log/1/a.pq"]


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("path", ["/days", "/days/**/*.p*"])
def test_hidden_files_are_left_out_with_a_warning(path, hidden, remote):
    remote.pipe(hidden, b"x")
    with pytest.warns(UserWarning, match=rf"1 of 5 Parquet files .*{hidden}"):
        assert list_parquet_files(remote, path) == dict.fromkeys(ALL, 1)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_hidden_files_are_found_where_they_are_named(hidden, remote):
    remote.pipe(hidden, b"xy")
    folder = hidden.rpartition("/")[0]
    assert list_parquet_files(remote, hidden) == {hidden: 2}
    step = hidden.split("/")[2]
    assert list_parquet_files(remote, f"/days/{step[0]}*{hidden[len('/days/') + len(step) :]}") == {
        hidden: 2
    }
    if folder != "/days":
        assert list_parquet_files(remote, folder) == {hidden: 2}


def test_folders_of_partitions_may_begin_with_an_underscore(remote):
    remote.pipe("/days/day=1/_hour=3/0.parquet", b"x")
    assert "/days/day=1/_hour=3/0.parquet" in list_parquet_files(remote, "/days")
