"""A worker that does not see the store must not sketch zeros."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from dask_sketch import FeatureMap, sketch
from dask_sketch.errors import ChunkError


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A store opened by a relative path, from a folder that is then left."""
    monkeypatch.setattr("dask_sketch.sources.zarr.REACHED", set())
    monkeypatch.chdir(tmp_path)
    array = zarr.create_array("x.zarr", shape=(100, 2), chunks=(50, 2), dtype="f4")
    array[:] = np.ones((100, 2))
    (tmp_path / "other").mkdir()
    return tmp_path


def test_a_relative_path_is_made_absolute(elsewhere, monkeypatch):
    lazy = sketch("x.zarr", FeatureMap(2, 10, scale=1.0))
    monkeypatch.chdir(elsewhere / "other")
    np.testing.assert_array_equal(lazy.compute().minimum, 1.0)


def test_an_array_out_of_reach_is_an_error(elsewhere, monkeypatch):
    lazy = sketch(zarr.open_array("x.zarr", mode="r"), FeatureMap(2, 10, scale=1.0))
    monkeypatch.chdir(elsewhere / "other")
    with pytest.raises(ChunkError, match="cannot be reached by host"):
        lazy.compute()


def test_a_store_that_changed_is_an_error(elsewhere):
    lazy = sketch("x.zarr", FeatureMap(2, 10, scale=1.0))
    zarr.open_array("x.zarr", mode="a").resize((50, 2))
    with pytest.raises(ChunkError, match=r"shape=\(50, 2\)"):
        lazy.compute()
