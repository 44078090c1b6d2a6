"""Artifacts: round trips, checksums, and writes that fail."""

from __future__ import annotations

import ctypes
import io
import os
import queue
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import dask_sketch as ds
from dask_sketch.errors import ArtifactError
from dask_sketch.storage.artifact import checksum, write_dataset
from dask_sketch.storage.artifact_reader import read_dataset


def dataset(value=1.0):
    return xr.Dataset(
        {"a": ("x", np.full(3, value)), "b": (("y", "x"), np.arange(6).reshape(2, 3))},
        attrs={"number": 0.1 + 0.2, "text": "é", "list": [1, 2], "nested": {"k": None}},
    )


def test_round_trip(tmp_path):
    write_dataset(dataset(), tmp_path / "d", "test/thing", 3)
    again = read_dataset(tmp_path / "d", {"test/thing": 3})
    xr.testing.assert_equal(again, dataset())
    for name, value in dataset().attrs.items():
        assert again.attrs[name] == value
    assert again.attrs["schema_version"] == 3
    assert again.attrs["written_by"].startswith("dask-sketch ")


def artifacts():
    feature_map = ds.FeatureMap(2, 20, scale=1.0, seed=3, feature_names=("a", "b"))
    x = np.random.default_rng(0).normal(size=(50, 2))
    return {
        "sketch": ds.sketch(x, feature_map, sample=10),
        "group": ds.sketch(x, feature_map, groups=np.resize(["é", "b"], 50)),
        "mixture": ds.GaussianMixture([0.5, 0.5], [[0.0, 1.0], [2.0, 3.0]], [[1.0, 2.0]] * 2),
        "centroids": ds.Centroids([1.0], [[0.0, 1.0]]),
    }


@pytest.mark.parametrize("kind", artifacts())
def test_bytes_hold_what_a_file_holds(kind, tmp_path):
    one = artifacts()[kind]
    value = one.to_bytes()
    assert isinstance(value, bytes)
    assert value == one.to_bytes()
    again = ds.open(value)
    one.to_zarr(tmp_path / "d")
    assert type(again) is type(ds.open(tmp_path / "d")) is type(one)
    assert again.to_bytes() == value == ds.open(memoryview(value)).to_bytes()
    assert str(again.as_dict()) == str(ds.open(tmp_path / "d").as_dict())


def test_edited_bytes_are_refused():
    value = artifacts()["sketch"].to_bytes()
    for place in range(0, len(value), 97):
        edited = bytearray(value)
        edited[place] ^= 0x20
        try:  # most of it is covered by the checksums of the ZIP file and of the content
            found = ds.open(edited)
        except ArtifactError:
            continue
        assert found.identical(ds.open(value))
    for cut in (0, 10, len(value) - 1):
        with pytest.raises(ArtifactError, match=f"{cut:,} bytes"):
            ds.open(value[:cut])


def test_bytes_that_unpack_to_more_are_refused():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zarr.json", b" " * 10**6)
    with pytest.raises(ArtifactError, match="bytes"):
        ds.open(out.getvalue())


def test_the_checksum_sees_names_shapes_types_values_and_attributes():
    base = dataset()
    others = [
        dataset(2.0),
        base.rename(a="c"),
        base.rename(x="z"),
        base.assign(a=base["a"].astype(np.int64)),
        base.assign(b=("z", np.arange(6))),
        base.assign_attrs(number=0.3),
        base.assign_attrs(more=1),
        base.drop_vars("a"),
    ]
    sums = {checksum(d) for d in [base, *others]}
    assert len(sums) == len(others) + 1
    assert checksum(dataset()) == checksum(base)
    swapped = base.assign(a=base["a"].astype(">f8"))
    assert checksum(swapped) == checksum(base)


def test_a_failed_write_keeps_what_was_there(tmp_path, monkeypatch):
    place = tmp_path / "d"
    write_dataset(dataset(1.0), place, "test/thing", 1)

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(xr.Dataset, "to_zarr", fail)
    with pytest.raises(ArtifactError, match=r"store='.*/d' cannot be written: disk full"):
        write_dataset(dataset(2.0), place, "test/thing", 1, overwrite=True)
    assert read_dataset(place, {"test/thing": 1})["a"].values.tolist() == [1.0] * 3
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def without_exchange(*args, **kwargs):
    """No library, as on another system than Linux."""
    raise OSError("no such library")


@pytest.mark.slow
@pytest.mark.parametrize("can_exchange", [True, False])
def test_readers_see_the_old_or_the_new_group_while_it_is_replaced(
    can_exchange, tmp_path, monkeypatch
):
    place = tmp_path / "d"
    if not can_exchange:
        monkeypatch.setattr(ctypes, "CDLL", without_exchange)
    write_dataset(dataset(0.0), place, "test/thing", 1)
    reads = queue.SimpleQueue()

    def overwrite():  # once while each value is read
        for value in iter(reads.get, None):
            write_dataset(dataset(value), place, "test/thing", 1, overwrite=True)

    writer = threading.Thread(target=overwrite)
    writer.start()
    seen = []
    try:
        for value in np.arange(1.0, 31.0):
            reads.put(value)
            seen.append(float(read_dataset(place, {"test/thing": 1})["a"][0]))
    finally:
        reads.put(None)
        writer.join()
    assert seen == sorted(seen)
    assert float(read_dataset(place, {"test/thing": 1})["a"][0]) == 30.0
    assert [found.name for found in tmp_path.iterdir()] == ["d"]


def test_old_scratch_folders_are_swept(tmp_path):
    place = tmp_path / "d"
    hours_ago = time.time() - 7200
    old, recent = tmp_path / ".d-ab12_xyz", tmp_path / ".d-ab12_xyw"
    foreign, other, file = (
        tmp_path / ".d-ab12_abc",
        tmp_path / ".e-ab12_xyz",
        tmp_path / ".d-notes1",
    )
    for folder, name in ((old, "new"), (recent, "new"), (foreign, "thesis"), (other, "new")):
        (folder / name).mkdir(parents=True)
    file.write_text("notes")
    linked = tmp_path / ".d-ab12_lnk"
    linked.symlink_to(foreign)
    for path in (old, foreign, other, file):
        os.utime(path, (hours_ago, hours_ago))
    write_dataset(dataset(), place, "test/thing", 1)
    names = {found.name for found in tmp_path.iterdir()}
    assert names == {"d", recent.name, foreign.name, other.name, file.name, linked.name}
    assert (foreign / "thesis").exists()


def test_a_failed_move_keeps_what_was_there(tmp_path, monkeypatch):
    place = tmp_path / "d"
    write_dataset(dataset(1.0), place, "test/thing", 1)
    honest = Path.rename
    monkeypatch.setattr(ctypes, "CDLL", without_exchange)

    def fail(self, target):
        if self.name == "new":
            raise OSError("device busy")
        return honest(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(ArtifactError, match="device busy"):
        write_dataset(dataset(2.0), place, "test/thing", 1, overwrite=True)
    assert read_dataset(place, {"test/thing": 1})["a"].values.tolist() == [1.0] * 3


def test_the_limit_is_read_from_the_metadata(tmp_path):
    write_dataset(dataset(), tmp_path / "d", "test/thing", 1)
    with pytest.raises(ArtifactError, match=r"72 bytes .* 50"):
        read_dataset(tmp_path / "d", {"test/thing": 1}, max_bytes=50)


def test_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(dataset(), "d.zarr", "test/thing", 1)
    assert (tmp_path / "d.zarr" / "zarr.json").exists()
    xr.testing.assert_equal(read_dataset("d.zarr", {"test/thing": 1}), dataset())


def test_nowhere_is_not_a_place():
    with pytest.raises(ArtifactError, match="store=None: give a path"):
        write_dataset(dataset(), None, "test/thing", 1)


def test_a_path_that_looks_like_a_chain_of_urls(tmp_path):
    with pytest.raises(ArtifactError, match="a::b.*cannot be written"):
        write_dataset(dataset(), f"{tmp_path}/a::b.zarr", "test/thing", 1)


def test_a_url_of_an_unknown_kind():
    with pytest.raises(ArtifactError, match=r"gopher.*cannot be written"):
        write_dataset(dataset(), "gopher://x/y.zarr", "test/thing", 1)
