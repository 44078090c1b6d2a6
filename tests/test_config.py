from __future__ import annotations

import os
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


def test_settings_made_before_anything_is_loaded():
    """By ``dask.config.set``, and by a variable of the environment."""
    code = (
        "import dask\n"
        "with dask.config.set({'sketch.split-every': 3}):\n"
        "    from dask_sketch import config\n"
        "    assert config.get('split-every') == 3\n"
        "assert config.get('split-every') == 16\n"
        "assert config.get('retries') == 5\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, env=os.environ | {"DASK_SKETCH__RETRIES": "5"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
