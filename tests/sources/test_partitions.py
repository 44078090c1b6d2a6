"""Keys stay when a source grows; a fingerprint changes when, and only when, its content does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import dask.array as da
import fsspec
import numpy as np
import pandas as pd
import pytest
import zarr
from fsspec.implementations.local import LocalFileSystem

from dask_sketch import open_samples
from dask_sketch.errors import ChunkError, InputError
from dask_sketch.jobs.ledger.partitions import partitions_of

LAYOUTS = {
    "v2": {"zarr_format": 2, "chunks": (5, 2)},
    "v3": {"zarr_format": 3, "chunks": (5, 2)},
    "sharded": {"zarr_format": 3, "chunks": (5, 3), "shards": (10, 3)},
}
STEP = {"chunk_size": 10 * 3 * 4}  # ten rows of three float32


def write(place, layout, n=47, **more):
    x = np.random.default_rng(0).normal(size=(n, 3)).astype("f4")
    array = zarr.create_array(place, shape=x.shape, dtype="f4", **LAYOUTS[layout], **more)
    array[...] = x
    return x


def keys(found):
    return [partition.key for partition in found]


def marks(found):
    return {partition.key: partition.fingerprint for partition in found}


def changed(before, after):
    before, after = marks(before), marks(after)
    assert set(before) <= set(after)
    return sorted(key for key in after if after[key] != before.get(key))


def touch(path):
    """As a change does that leaves the size: the clock of the file system may be coarse."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**7))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fingerprint", ["auto", "checksum"])
def test_rows_of_an_array(layout, fingerprint, tmp_path):
    write(tmp_path / "x.zarr", layout)
    samples = open_samples(tmp_path / "x.zarr", **STEP)
    found = partitions_of(samples, "speech/", fingerprint)
    assert keys(found) == [f"speech/[{i}:{i + 10}]" for i in range(0, 50, 10)]
    assert [partition.rows for partition in found] == [10, 10, 10, 10, 7]
    assert len(found) == samples.n_chunks
    assert len(set(marks(found).values())) == 5
    files = [p for p in (tmp_path / "x.zarr").rglob("*") if p.is_file() and p.name[0] not in "z."]
    assert sum(partition.n_bytes for partition in found) == sum(p.stat().st_size for p in files)
    assert partitions_of(open_samples(tmp_path / "x.zarr", **STEP), "speech/", fingerprint) == found
    assert partitions_of(samples, "speech/", fingerprint, chunks=[4, 0]) == [found[4], found[0]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_partition_is_what_the_chunk_of_its_number_reads(layout, tmp_path):
    x = write(tmp_path / "x.zarr", layout)
    samples = open_samples(tmp_path / "x.zarr", **STEP)
    for number, partition in enumerate(partitions_of(samples)):
        rows = x[10 * number :][: partition.rows]
        np.testing.assert_array_equal(samples.blocks.blocks[number].compute(), rows)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [40, 47])
def test_appended_rows(layout, n, tmp_path):
    write(tmp_path / "x.zarr", layout, n=n)
    before = partitions_of(open_samples(tmp_path / "x.zarr", **STEP))
    array = zarr.open_array(tmp_path / "x.zarr")
    array.append(np.ones((30, 3), dtype="f4"))
    after = partitions_of(open_samples(tmp_path / "x.zarr", **STEP))
    fresh = [f"[{i}:{i + 10}]" for i in range(10 * (n // 10), n + 30, 10)]
    assert changed(before, after) == sorted(fresh)  # a last partition that was full is the same


def test_a_store_smaller_than_a_partition_keeps_its_key(tmp_path):
    write(tmp_path / "x.zarr", "v3", n=3)
    before = partitions_of(open_samples(tmp_path / "x.zarr", **STEP))
    assert keys(before) == ["[0:10]"]
    zarr.open_array(tmp_path / "x.zarr").append(np.ones((30, 3), dtype="f4"))
    after = partitions_of(open_samples(tmp_path / "x.zarr", **STEP))
    assert changed(before, after) == [f"[{i}:{i + 10}]" for i in (0, 10, 20, 30)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fingerprint", ["auto", "checksum"])
def test_changed_rows(layout, fingerprint, tmp_path):
    write(tmp_path / "x.zarr", layout)
    samples = open_samples(tmp_path / "x.zarr", **STEP)
    before = partitions_of(samples, fingerprint=fingerprint)
    time = {p: p.stat().st_mtime_ns for p in (tmp_path / "x.zarr").rglob("*")}
    zarr.open_array(tmp_path / "x.zarr")[23, 1] = 5.0
    for path, was in time.items():
        if path.stat().st_mtime_ns != was:
            touch(path)
    assert changed(before, partitions_of(samples, fingerprint=fingerprint)) == ["[20:30]"]
    same = partitions_of(samples, fingerprint=fingerprint, chunks=[2, 3])
    assert changed(before[2:4], same) == ["[20:30]"]


def test_a_checksum_sees_what_size_and_time_do_not_tell(tmp_path):
    write(tmp_path / "x.zarr", "v3", compressors=None)
    samples = open_samples(tmp_path / "x.zarr", **STEP)
    auto, sums = partitions_of(samples), partitions_of(samples, fingerprint="checksum")
    path = tmp_path / "x.zarr" / "c" / "0" / "0"
    stat = path.stat()
    raw = bytearray(path.read_bytes())
    raw[7] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert changed(auto, partitions_of(samples)) == []
    assert changed(sums, partitions_of(samples, fingerprint="checksum")) == ["[0:10]"]
    touch(path)
    assert changed(auto, partitions_of(samples)) == ["[0:10]"]
    assert not set(marks(auto).values()) & set(marks(sums).values())


def test_a_lost_chunk_is_a_change(tmp_path):
    write(tmp_path / "x.zarr", "v3")
    samples = open_samples(tmp_path / "x.zarr", **STEP)
    before = partitions_of(samples)
    (tmp_path / "x.zarr" / "c" / "9" / "1").unlink()
    assert changed(before, partitions_of(samples)) == ["[40:50]"]


def test_a_store_that_is_moved_is_the_same(tmp_path):
    write(tmp_path / "x.zarr", "v3")
    before = partitions_of(open_samples(tmp_path / "x.zarr", **STEP))
    shutil.copytree(tmp_path / "x.zarr", tmp_path / "else" / "where")  # which keeps times
    after = partitions_of(open_samples(tmp_path / "else" / "where", **STEP))
    assert after == before


def test_an_array_of_a_group_and_its_weights(tmp_path):
    root = zarr.create_group(tmp_path / "g.zarr")
    root.create_array("x", data=np.ones((40, 3), dtype="f4"), chunks=(10, 3))
    root.create_array("w", data=np.ones(40), chunks=(20,))
    root.create_array("other", data=np.ones(40), chunks=(20,))
    plain = open_samples(tmp_path / "g.zarr", array="x", **STEP)
    weighted = open_samples(tmp_path / "g.zarr", array="x", weights="w", **STEP)
    before = partitions_of(plain), partitions_of(weighted)
    assert keys(before[0]) == keys(before[1]) == [f"x[{i}:{i + 10}]" for i in range(0, 40, 10)]
    assert not set(marks(before[0]).values()) & set(marks(before[1]).values())
    touch(tmp_path / "g.zarr" / "w" / "c" / "1")
    touch(tmp_path / "g.zarr" / "other" / "c" / "0")
    assert changed(before[0], partitions_of(plain)) == []
    assert changed(before[1], partitions_of(weighted)) == ["x[20:30]", "x[30:40]"]


def test_urls(tmp_path):
    write(tmp_path / "x.zarr", "sharded")
    by_path = partitions_of(open_samples(tmp_path / "x.zarr", **STEP))
    assert partitions_of(open_samples(f"file://{tmp_path}/x.zarr", **STEP)) == by_path
    assert partitions_of(open_samples(zarr.open_array(tmp_path / "x.zarr"), **STEP)) == by_path
    try:
        x = write("memory://dask-sketch-partitions/x.zarr", "sharded")
        samples = open_samples("memory://dask-sketch-partitions/x.zarr", **STEP)
        before = partitions_of(samples)
        assert keys(before) == keys(by_path)
        assert [p.n_bytes for p in before] == [p.n_bytes for p in by_path]
        zarr.open_array("memory://dask-sketch-partitions/x.zarr")[:2] = x[:2] + 1
        assert changed(before, partitions_of(samples)) == ["[0:10]"]
    finally:
        fsspec.filesystem("memory").rm("/dask-sketch-partitions", recursive=True)


def test_a_store_that_can_no_longer_be_reached(tmp_path, monkeypatch):
    write(tmp_path / "x.zarr", "v3")
    samples = open_samples(tmp_path / "x.zarr", **STEP)

    def unreachable(self, path):
        raise RuntimeError("no route to host")  # of clients of servers, which is no OSError

    monkeypatch.setattr(LocalFileSystem, "exists", unreachable)
    with pytest.raises(ChunkError, match=r"x\.zarr.*no route to host"):
        partitions_of(samples)


def test_entity_tags_come_before_times(tmp_path, monkeypatch):
    write(tmp_path / "x.zarr", "v3")
    samples = open_samples(tmp_path / "x.zarr", **STEP)
    tags = {}
    honest = fsspec.implementations.local.LocalFileSystem.info

    def info(self, path, **kwargs):
        found = honest(self, path, **kwargs)
        return found | {"ETag": tags.get(Path(found["name"]).parent.name, "one")}

    monkeypatch.setattr(fsspec.implementations.local.LocalFileSystem, "info", info)
    before = partitions_of(samples)
    touch(tmp_path / "x.zarr" / "c" / "0" / "0")
    assert changed(before, partitions_of(samples)) == []
    tags["3"] = "two"
    assert changed(before, partitions_of(samples)) == ["[10:20]"]


def test_a_file_system_that_tells_nothing(tmp_path, monkeypatch):
    write(tmp_path / "x.zarr", "v3")
    samples = open_samples(tmp_path / "x.zarr", **STEP)

    def info(self, path, **kwargs):
        return {"name": path, "size": 3, "type": "file"}

    monkeypatch.setattr(fsspec.implementations.local.LocalFileSystem, "info", info)
    with pytest.raises(InputError, match="fingerprint='checksum'"):
        partitions_of(samples)
    assert len(partitions_of(samples, fingerprint="checksum")) == 5


def parquet(path, n=20, seed=0, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(seed).normal(size=(n, 2))
    pd.DataFrame(x, columns=["a", "b"]).assign(w=1.0).to_parquet(path, **more)


def test_parquet_files(tmp_path):
    for name in ("day=1/a.parquet", "day=1/b.parquet", "day=2/a.parquet"):
        parquet(tmp_path / "d" / name)
    samples = open_samples(tmp_path / "d", columns=["a", "b"])
    before = partitions_of(samples, "log/")
    names = ["log/day=1/a.parquet", "log/day=1/b.parquet", "log/day=2/a.parquet"]
    assert keys(before) == names
    assert [p.n_bytes for p in before] == [(tmp_path / "d" / n[4:]).stat().st_size for n in names]
    assert partitions_of(samples, "log/", chunks=[2]) == before[2:]
    parquet(tmp_path / "d" / "day=0" / "z.parquet")
    touch(tmp_path / "d" / "day=1" / "b.parquet")
    after = partitions_of(open_samples(tmp_path / "d", columns=["a", "b"]), "log/")
    assert changed(before, after) == ["log/day=0/z.parquet", "log/day=1/b.parquet"]
    # other columns make other samples of the same files
    others = partitions_of(open_samples(tmp_path / "d", columns=["b"], weights="w"), "log/")
    assert keys(others) == keys(after)
    assert not set(marks(after).values()) & set(marks(others).values())


def test_names_of_parquet_files(tmp_path, monkeypatch):
    for name in ("x/a.parquet", "x/deep/b.parquet", "y/c.parquet"):
        parquet(tmp_path / name)
    for source, names in {
        tmp_path / "x" / "a.parquet": ["a.parquet"],
        f"file://{tmp_path}/x/a.parquet": ["a.parquet"],
        tmp_path / "x": ["a.parquet", "deep/b.parquet"],
        f"{tmp_path}/x/": ["a.parquet", "deep/b.parquet"],
        f"{tmp_path}/*/*.parquet": ["x/a.parquet", "y/c.parquet"],
        f"{tmp_path}/x/*.parquet": ["a.parquet"],
        f"{tmp_path}/x/a*": ["a.parquet"],
    }.items():
        assert keys(partitions_of(open_samples(source))) == names, source
    monkeypatch.chdir(tmp_path)
    assert keys(partitions_of(open_samples("x"))) == ["a.parquet", "deep/b.parquet"]


@pytest.mark.parametrize("fingerprint", ["auto", "checksum"])
def test_row_groups(fingerprint, tmp_path):
    parquet(tmp_path / "a.parquet", n=100, row_group_size=10)
    samples = open_samples(tmp_path / "a.parquet", chunk_size=30 * 24)
    before = partitions_of(samples, fingerprint=fingerprint)
    names = ["a.parquet[0:3]", "a.parquet[3:6]", "a.parquet[6:9]", "a.parquet[9:10]"]
    assert keys(before) == names
    assert len(set(marks(before).values())) == 4
    parquet(tmp_path / "a.parquet", n=100, seed=1, row_group_size=10)
    touch(tmp_path / "a.parquet")
    after = partitions_of(open_samples(tmp_path / "a.parquet", chunk_size=30 * 24), "", fingerprint)
    assert changed(before, after) == names


def test_a_file_that_goes_meanwhile(tmp_path):
    for name in "ab":
        parquet(tmp_path / f"{name}.parquet")
    samples = open_samples(tmp_path)
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(ChunkError, match=r"b\.parquet was deleted"):
        partitions_of(samples)
    assert keys(partitions_of(samples, chunks=[0])) == ["a.parquet"]


def test_what_is_refused(tmp_path):
    x = np.zeros((10, 2))
    write(tmp_path / "x.zarr", "v3")
    for given, options in [
        (x, {}),
        (da.from_array(x), {}),
        (pd.DataFrame(x, columns=["a", "b"]), {}),
        (tmp_path / "x.zarr", {"weights": np.ones(47), **STEP}),
    ]:
        with pytest.raises(InputError, match="has no files"):
            partitions_of(open_samples(given, **options))
    memory = zarr.storage.MemoryStore()
    zarr.create_array(memory, data=x)
    with pytest.raises(InputError, match="Zarr object"):
        partitions_of(open_samples(memory, **STEP))
    with pytest.raises(InputError, match="chunk_size='64MiB'"):
        partitions_of(open_samples(tmp_path / "x.zarr"))
    samples = open_samples(tmp_path / "x.zarr", **STEP)
    with pytest.raises(InputError, match="fingerprint='md5'"):
        partitions_of(samples, fingerprint="md5")
    with pytest.raises(InputError, match="chunks=5"):
        partitions_of(samples, chunks=[0, 5])
    shutil.rmtree(tmp_path / "x.zarr")
    for fingerprint in ("auto", "checksum"):
        with pytest.raises(ChunkError, match=r"array .*x\.zarr"):
            partitions_of(samples, fingerprint=fingerprint)


def test_keys_of_a_file_do_not_depend_on_other_files(tmp_path):
    options = {"chunk_size": 300 * 24}
    for i in range(10):
        parquet(tmp_path / f"big{i}.parquet", n=200, seed=i, row_group_size=100)
    before = partitions_of(open_samples(tmp_path, **options))
    assert keys(before) == [f"big{i}.parquet" for i in range(10)]
    # a larger file, which is compressed better: ten times as many rows to a stored byte
    zeros = pd.DataFrame(np.zeros((50_000, 2)), columns=["a", "b"]).assign(w=1.0)
    pd.concat([zeros, zeros + np.random.default_rng(0).random((50_000, 1)).round(1)]).to_parquet(
        tmp_path / "large.parquet", row_group_size=10_000
    )
    after = partitions_of(open_samples(tmp_path, **options))
    assert changed(before, after) == [f"large.parquet[{i}:{i + 1}]" for i in range(10)]


def test_a_damaged_file_of_middle_size_is_one_partition(tmp_path):
    for i in range(3):
        parquet(tmp_path / f"{i}.parquet", n=200, seed=i)
    (tmp_path / "1.parquet").write_bytes((tmp_path / "1.parquet").read_bytes()[:-20])
    found = partitions_of(open_samples(tmp_path, chunk_size=300 * 24))
    assert keys(found) == ["0.parquet", "1.parquet", "2.parquet"]


def test_a_change_behind_a_link_is_a_change(tmp_path):
    parquet(tmp_path / "days" / "a.parquet")
    (tmp_path / "latest.parquet").symlink_to(tmp_path / "days" / "a.parquet")
    before = partitions_of(open_samples(tmp_path / "latest.parquet"))
    assert partitions_of(open_samples(tmp_path / "latest.parquet")) == before
    touch(tmp_path / "days" / "a.parquet")
    after = partitions_of(open_samples(tmp_path / "latest.parquet"))
    assert changed(before, after) == ["latest.parquet"]


def test_names_that_are_not_utf_8(tmp_path):
    table = pd.DataFrame(np.zeros((5, 2)), columns=["a", "b"])
    folder = tmp_path / os.fsdecode(b"data\xff")  # not part of a key
    folder.mkdir()
    (folder / "0.parquet").write_bytes(table.to_parquet())
    (partition,) = partitions_of(open_samples(folder))
    assert partition.key == "0.parquet"
    (folder / "0.parquet").rename(folder / os.fsdecode(b"1\xff.parquet"))
    assert open_samples(folder).n_chunks == 1
    with pytest.raises(InputError, match=r"'1\\udcff.parquet': rename"):
        partitions_of(open_samples(folder))
