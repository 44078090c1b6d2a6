"""Untrusted names and paths at the command line."""

from __future__ import annotations

import json

import pytest
import zarr

import dask_sketch as ds
from dask_sketch.cli.open import open_any
from dask_sketch.errors import SketchError

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def spec(**changes):
    return json.loads(ds.FeatureMap(2, 10, scale=1.0).spec) | changes


def map_text(**changes):
    found = {"schema": "dask-sketch/feature-map", "version": 1, "digest": "0" * 64}
    return json.dumps(found | {"spec": spec(**changes)})


def test_names_at_the_command_line(tmp_path):
    from click.testing import CliRunner

    from dask_sketch.cli.main import cli

    root = zarr.open_group(tmp_path / "g.zarr", mode="w")
    for name in ("a", "b"):
        root.create_array(f"{name}{ESCAPE}".replace("/", ""), shape=(4, 2), dtype="f8")
    done = CliRunner().invoke(cli, ["info", str(tmp_path / "g.zarr")])
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert "\\x1b" in done.output
    (tmp_path / "map.json").write_text(map_text(law=ESCAPE))
    done = CliRunner().invoke(cli, ["info", str(tmp_path / "map.json")])
    assert done.exit_code == 1
    assert "\x1b" not in done.output


def test_what_stands_at_a_path_may_be_anything(tmp_path, rng):
    for number in range(50):
        path = tmp_path / f"{number}.zarr"
        path.mkdir()
        (path / "zarr.json").write_bytes(rng.bytes(int(rng.integers(0, 200))))
        with pytest.raises(SketchError):
            open_any(str(path))
