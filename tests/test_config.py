from __future__ import annotations

import subprocess
import sys

import dask
import pytest

from dask_sketch import config


def test_defaults_can_be_changed_and_come_back():
    assert config.get("split-every") == 16
    with dask.config.set({"sketch.split-every": 4}):
        assert config.get("split-every") == 4
    assert config.get("split-every") == 16
    with pytest.raises(KeyError):
        config.get("colour")


def test_a_setting_made_before_anything_is_loaded():
    code = (
        "import dask, dask_sketch as ds, numpy as np\n"
        "with dask.config.set({'sketch.split-every': 3}):\n"
        "    assert ds.plan(np.zeros((9, 2)), ds.FeatureMap(2, 5, scale=1.0)).n_chunks == 1\n"
        "    from dask_sketch import config\n"
        "    assert config.get('split-every') == 3\n"
        "assert config.get('split-every') == 16\n"
        "ds.plan(np.zeros((9, 2)), ds.FeatureMap(2, 5, scale=1.0))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_environment_variables():
    code = "from dask_sketch import config; assert config.get('split-every') == 5"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, env={"DASK_SKETCH__SPLIT_EVERY": "5"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
