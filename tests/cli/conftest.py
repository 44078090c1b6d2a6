from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from cli.commands import answer


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of 6000 samples of two well separated Gaussians, in chunks of 500."""
    path = tmp_path_factory.mktemp("data") / "data.zarr"
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 2)) + np.where(rng.random((6000, 1)) < 0.5, 5.0, -5.0)
    store = zarr.create_array(str(path), shape=rows.shape, chunks=(500, 2), dtype="float64")
    store[:] = rows
    return str(path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def sketch_of_data(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sketch") / "sketch.zarr"
    answer("sketch", data, "-k", 2, "-o", path)
    return path


@pytest.fixture
def sketched(sketch_of_data: Path, here: Path) -> Path:
    """A folder with a sketch of all the data, for two components."""
    shutil.copytree(sketch_of_data, here / "sketch.zarr")
    return here
