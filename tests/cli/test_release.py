"""The command that releases a private sketch."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import dask_sketch as ds
from dask_sketch.models import random_mixture

TRUTH = random_mixture(3, 2, seed=5)


MAP = ds.FeatureMap(2, 200, scale=1.0, seed=1)


@pytest.fixture(scope="module")
def sketch():
    return ds.partial_sketch(TRUTH.sample(20_000, seed=2), MAP)


def test_the_command(sketch, tmp_path):
    from dask_sketch.cli.main import cli

    sketch.to_zarr(tmp_path / "s.zarr")

    def call(*arguments):
        return CliRunner().invoke(
            cli, ["privatise", str(tmp_path / "s.zarr"), *map(str, arguments)]
        )

    out = tmp_path / "p.zarr"
    done = call("-o", out, "--epsilon", 1, "--delta", 1e-6, "--low=-9", "--high", "9,10", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["privacy"]["epsilon"] == 1.0
    assert answer["mean"] is None
    found = ds.open(out)
    assert found.privacy.mechanism == "gaussian"
    assert not found.privacy.seeded
    np.testing.assert_array_equal([found.minimum, found.maximum], [[-9, -9], [9, 10]])
    done = call("-o", out, "--epsilon", 1)
    assert done.exit_code == 1
    assert "exists" in done.output
    done = call("-o", out, "--overwrite", "--epsilon", 1, "--seed", 3)
    assert done.exit_code == 0
    assert "not private" in done.output
    assert "knows the seed" in done.output
    for wrong in (["--low", 1], ["--low", "1,2,3", "--high", 5], ["--low", "a", "--high", 5]):
        assert call("-o", tmp_path / "x", "--epsilon", 1, *wrong).exit_code == 2
    assert call("-o", tmp_path / "x", "--epsilon", 0).exit_code == 1
    assert CliRunner().invoke(cli, ["info", str(out)]).exit_code == 0
