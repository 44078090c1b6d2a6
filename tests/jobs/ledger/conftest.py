from __future__ import annotations

import itertools

import fsspec
import pytest
from jobs.ledger.world import World

from dask_sketch import FeatureMap, create_ledger

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def feature_map():
    return FeatureMap(2, 20, scale=1.0, seed=3)


@pytest.fixture(scope="session")
def sparse_map():
    """A map for rows with missing values."""
    return FeatureMap(5, 20, scale=1.0, seed=3, distribution="sparse-sums")


@pytest.fixture
def world(feature_map):
    return World(feature_map)


@pytest.fixture
def rows_world(feature_map):
    """Partitions of which a ledger keeps random rows."""
    return World(feature_map, sample=5)


@pytest.fixture(params=["path", "file", "memory"])
def url(request, tmp_path):
    if request.param == "path":
        yield tmp_path / "ledger.zarr"
    elif request.param == "file":
        yield f"file://{tmp_path}/deep/er/ledger.zarr"
    else:
        root = f"dask-sketch-ledger-{next(NUMBERS)}"
        yield f"memory://{root}/ledger.zarr"
        fs = fsspec.filesystem("memory")
        if fs.exists(root):
            fs.rm(root, recursive=True)


@pytest.fixture
def ledger(url, feature_map):
    return create_ledger(url, feature_map)


@pytest.fixture
def in_memory(feature_map):
    """A ledger that waits for no disk."""
    root = f"dask-sketch-ledger-{next(NUMBERS)}"
    yield create_ledger(f"memory://{root}/ledger.zarr", feature_map)
    fsspec.filesystem("memory").rm(root, recursive=True)


@pytest.fixture
def local(tmp_path, feature_map):
    return create_ledger(tmp_path / "ledger.zarr", feature_map)
