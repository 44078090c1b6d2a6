from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import rosen, rosen_der

from dask_sketch.decoders.atom_search import climb, find_atom
from dask_sketch.decoders.atoms import MODELS
from dask_sketch.decoders.objective import Objective

FREE = np.full(4, np.inf)


def hills(x):
    """Minus Rosenbrock's valley, for many points."""
    return -rosen(x.T), -np.array([rosen_der(row) for row in x])


def test_all_climbs_arrive():
    starts = np.random.default_rng(0).uniform(0.0, 2.0, (6, 4))
    points, values = climb(hills, starts, -FREE, FREE, 1e-12, 500)
    np.testing.assert_allclose(points, 1.0, atol=1e-4)
    np.testing.assert_allclose(values, 0.0, atol=1e-8)


def test_a_climb_does_not_depend_on_its_company():
    starts = np.random.default_rng(0).uniform(0.0, 2.0, (6, 4))
    together, _ = climb(hills, starts, -FREE, FREE, 1e-9, 40)
    for start, point in zip(starts, together, strict=True):
        alone, _ = climb(hills, start[None], -FREE, FREE, 1e-9, 40)
        np.testing.assert_allclose(alone[0], point, rtol=1e-6)


def test_climbs_stay_within_bounds_and_never_end_lower():
    starts = np.random.default_rng(1).uniform(-0.5, 0.5, (8, 4))
    low, high = np.full(4, -0.5), np.array([0.5, 0.5, np.inf, np.inf])
    points, values = climb(hills, starts, low, high, 1e-10, 300)
    assert (points >= low).all()
    assert (points <= high).all()
    assert (values >= hills(starts)[0]).all()
    np.testing.assert_allclose(values, hills(points)[0])
    np.testing.assert_allclose(points[:, :2], [[0.5, 0.25]] * 8, atol=0.05)


def test_climbs_start_at_a_summit():
    points, _ = climb(hills, np.ones((2, 4)), -FREE, FREE, 1e-9, 10)
    np.testing.assert_array_equal(points, 1.0)


@pytest.mark.parametrize("model", MODELS)
def test_search_finds_a_lone_component(sketch, truth, model):
    covariance = truth.covariances[1] if model == "known" else None
    objective = Objective(sketch, model, covariance=covariance)
    component = objective.from_data_units(truth.means[1:2], truth.covariances[1:2])
    residual = tuple(objective.atoms(component).reshape(2, -1))
    atom = find_atom(objective, residual, np.random.default_rng(0))
    np.testing.assert_allclose(atom, component[0], atol=0.02)


def test_search_in_no_residual(sketch):
    objective = Objective(sketch)
    nothing = (np.zeros(objective.n_frequencies), np.zeros(objective.n_frequencies))
    atom = find_atom(objective, nothing, np.random.default_rng(0))
    np.testing.assert_array_equal(atom, objective.random_atoms(np.random.default_rng(0), 1)[0])
