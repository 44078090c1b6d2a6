"""Conventions of second moments: specification and sizes."""

from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch.errors import InputError
from dask_sketch.sketching.moment_grid import MomentGrid, default_n_columns

GRID = MomentGrid([1 / 3, -7.0], [0.5, 4.0], None, 3, ("a", "b"), True)


def test_default_n_columns():
    assert default_n_columns(10_000, 3) == 80
    assert default_n_columns(50, 20) == 50


@pytest.mark.parametrize("offset", [2**53, 2**57])
def test_numbers_that_float64_rounds_are_warned_of(offset):
    x = np.random.default_rng(0).integers(0, 50, (3000, 2)) + offset
    with pytest.warns(UserWarning, match="float64 are"):
        ds.second_moments(x)
    with pytest.warns(UserWarning, match="float64 are"):
        ds.design(x, task="pca")


def test_specification_restores_the_grid():
    for grid in (GRID, MomentGrid([0.1], [2.0**-40], 1)):
        again = MomentGrid.from_spec(grid.spec)
        assert again == grid
        assert hash(again) == hash(grid)
        assert (again.center == grid.center).all()
        assert again.feature_names == grid.feature_names
    assert pickle.loads(pickle.dumps(GRID)) == GRID
    assert GRID.spec != GRID


def test_digest_is_that_of_all_versions():
    # stored in ledgers
    assert GRID.digest == "b04f2de294a0c548f36db97425417b94b8ad392c91b52e436db8b10f79b5a376"


@pytest.mark.parametrize(
    "change",
    [{"center": [0.0, 0.0]}, {"unit": [1.0, 1.0]}, {"seed": 4}, {"pairwise": False},
     {"feature_names": None}],
)  # fmt: skip
def test_digest_covers_every_field(change):
    assert dataclasses.replace(GRID, **change) != GRID


@pytest.mark.parametrize(
    "change",
    [{"unit": [0.3, 4.0]}, {"feature_names": ["a"]}, {"pairwise": 1}, {"other": 1}, {"seed": -1},
     {"center": None}, {"n_columns": "many"}],
)  # fmt: skip
def test_other_texts_are_refused(change):
    with pytest.raises(InputError):
        MomentGrid.from_spec(json.dumps(json.loads(GRID.spec) | change))
    with pytest.raises(InputError, match="spec="):
        MomentGrid.from_spec("[]")


@pytest.mark.parametrize(
    ("name", "value"),
    [("center", ["x", 0.0]), ("center", [0.0, []]), ("unit", [1.0, "b"]),
     ("feature_names", ("a", "a")), ("feature_names", "ab"), ("feature_names", 1.5),
     ("feature_names", ("a", None)), ("pairwise", "no"), ("seed", 1.5), ("n_columns", "x")],
)  # fmt: skip
def test_what_is_no_grid_is_refused(name, value):
    with pytest.raises(InputError) as caught:
        dataclasses.replace(GRID, **{name: value})
    assert caught.value.parameter == name


def test_description():
    values = GRID.as_dict()
    assert (values["n_features"], values["n_sums"], values["bytes"]) == (2, 15, 240)
    np.testing.assert_array_equal(values["center"], GRID.center)
    assert GRID.digest[:12] in repr(GRID)


def test_functions_of_sketches_refuse_a_grid():
    with pytest.raises(InputError, match="feature_map of type MomentGrid"):
        ds.partial_sketch(np.zeros((3, 2)), GRID)
