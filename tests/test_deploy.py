"""The commands of deploy/README.md, with the settings of that folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import dask.config
import numpy as np
import pytest
import yaml
import zarr

from dask_sketch import FeatureMap, open_sketch, sketch

DEPLOY = Path(__file__).parent.parent / "deploy"
BIN = Path(sys.executable).parent


def test_settings_are_ones_that_dask_knows():
    def keys(tree, prefix=""):
        for name, value in tree.items():
            path = f"{prefix}{name}"
            if isinstance(value, dict) and name != "pre-spawn-environ":
                yield from keys(value, f"{path}.")
            else:
                yield path

    import distributed  # noqa: F401  (registers its defaults)

    known = dask.config.config
    for path in keys(yaml.safe_load((DEPLOY / "dask.yaml").read_text())):
        assert dask.config.get(path, None, config=known) is not None, path


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and a worker process, started as the README says; gives the address."""
    environment = os.environ | {"DASK_CONFIG": str(DEPLOY)}
    contact = tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    scheduler = [BIN / "dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    with subprocess.Popen([*scheduler, "--scheduler-file", contact], **quiet) as first:
        try:
            deadline = time.monotonic() + 60
            while not contact.exists():
                assert first.poll() is None, "the scheduler ended"
                assert time.monotonic() < deadline, "the scheduler did not start"
                time.sleep(0.1)
            address = json.loads(contact.read_text())["address"]
            worker = [BIN / "dask", "worker", address, "--nthreads", "1", "--memory-limit", "2GiB"]
            with subprocess.Popen([*worker, "--no-dashboard"], **quiet) as second:
                try:
                    yield address
                finally:
                    second.terminate()
        finally:
            first.terminate()


def test_a_cluster_started_by_hand(cluster, tmp_path):
    x = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    store = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(1000, 3), dtype="f4")
    store[:] = x
    feature_map = FeatureMap(3, 50, scale=1.0)
    (tmp_path / "map.json").write_text(feature_map.to_json())
    command = [BIN / "dask-sketch", "sketch", "x.zarr", "--map", "map.json", "-o", "s.zarr"]
    done = subprocess.run(
        [*command, "--scheduler", cluster],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = open_sketch(tmp_path / "s.zarr")
    assert found.count == 5000
    np.testing.assert_allclose(found.z, sketch(x, feature_map).z, atol=1e-7)


def test_readme_names_files_that_exist():
    for name in re.findall(r"DASK_CONFIG=(\S+)", (DEPLOY / "README.md").read_text()):
        assert (DEPLOY.parent / name).is_dir()
