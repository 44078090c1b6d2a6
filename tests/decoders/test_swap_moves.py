from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import partial_sketch
from dask_sketch.decoders.descent import Fit, descend_fully, fit_weights
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.swap_moves import (
    coincident,
    inverse_gram,
    merge_coincident,
    prune,
    removal_costs,
    swap_atoms,
)
from dask_sketch.features import FeatureMap


@pytest.fixture
def objective(sketch):
    return Objective(sketch)


@pytest.fixture
def true_theta(objective, truth):
    return objective.space.from_data_units(truth.means, truth.covariances)


def test_removal_costs_are_the_energy_that_others_cannot_replace(objective, true_theta):
    weights = np.array([0.3, 0.3, 0.4])
    inverse, rows, scale = inverse_gram(objective, weights, true_theta)
    costs = removal_costs(inverse, rows, weights / scale[:3])
    jacobian = objective.jacobian(weights, true_theta)
    p = objective.space.n_parameters
    for k in range(3):
        others = np.delete(jacobian, [k, *range(3 + k * p, 3 + (k + 1) * p)], axis=0)
        own = weights[k] * jacobian[k]
        left = own - others.T @ np.linalg.lstsq(others.T, own, rcond=None)[0]
        assert costs[k] == pytest.approx(left @ left, rel=1e-3)


def test_pruning_removes_one_of_two_that_coincide(objective, true_theta):
    theta = np.vstack([true_theta, true_theta[1] + 1e-3])
    weights = np.array([0.3, 0.15, 0.3, 0.15])
    kept = prune(objective, Fit(weights, theta, 0.0, True, ""), 3)
    assert kept.shape == (3, 4)
    assert len(np.unique(kept.round(2), axis=0)) == 3
    np.testing.assert_array_equal(kept[0], true_theta[0])


def test_pruning_survives_an_atom_without_weight(objective, true_theta):
    far = objective.space.from_data_units(np.full((1, 2), 1e6), np.full((1, 2), 1e6))
    fit = Fit(np.array([0.0, 0.3, 0.3, 0.4]), np.vstack([far, true_theta]), 0.0, True, "")
    np.testing.assert_array_equal(prune(objective, fit, 3), true_theta)


def test_swaps_leave_a_minimum_of_two_atoms_on_one_component(objective, true_theta):
    # two atoms on the first component, one on the other two together
    middle = true_theta[1:].mean(axis=0)
    theta = np.vstack([true_theta[0] - 0.1, true_theta[0] + 0.1, middle])
    stuck = descend_fully(objective, theta, fit_weights(objective, theta))
    found = swap_atoms(objective, stuck, np.random.default_rng(0))
    assert found.cost <= stuck.cost
    assert found.cost < objective.noise_level
    assert found.theta.shape == (3, 4)
    order = [int(np.abs(found.theta - row).sum(axis=1).argmin()) for row in true_theta]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(found.theta[order], true_theta, atol=0.1)


def test_swaps_do_not_change_the_best_fit(objective, true_theta):
    best = descend_fully(objective, true_theta)
    assert swap_atoms(objective, best, np.random.default_rng(0)) is best


def test_without_normal_equations_there_are_no_swaps(objective, true_theta):
    stuck = descend_fully(objective, np.vstack([true_theta[:2], true_theta[:1] + 0.1]))
    objective.max_solvable = 10
    assert swap_atoms(objective, stuck, np.random.default_rng(0)) is stuck
    fit = swap_atoms(objective, stuck, np.random.default_rng(0), converged=False)
    assert fit.cost <= stuck.cost * 1.001


def test_half_a_deviation_is_where_two_become_one():
    means = np.array([[0.0, 0.0], [0.45, 0.0], [0.55, 0.0]])
    found = coincident(means, np.ones((3, 2)))
    assert found[0, 1]
    assert not found[0, 2]
    wide = coincident(np.zeros((2, 2)), np.array([[1.0, 1.0], [9.0, 9.0]]))
    assert not wide[0, 1]  # one inside the other is no coincidence
    points = coincident(means, np.zeros((3, 2)))
    assert points[0, 1]
    assert not points[0, 2]


def test_a_pair_becomes_one_with_its_moments():
    x = np.random.default_rng(0).normal(size=(50_000, 2))
    sketch = partial_sketch(x, FeatureMap(2, 100, scale=1.0, seed=1, dtype="float64"))
    objective = Objective(sketch)
    theta = np.array([[0.2, 0.0, 1.0, 1.0], [-0.2, 0.0, 1.0, 1.0], [6.0, 6.0, 1.0, 1.0]])
    weights = np.array([0.5, 0.5, 0.0])
    fit = Fit(weights, theta, objective.cost(weights, theta), True, "")
    merged = merge_coincident(objective, fit)
    assert len(merged.theta) == 2
    heavy = merged.weights.argmax()
    np.testing.assert_allclose(merged.theta[heavy], [0.0, 0.0, 1.0, 1.0], atol=0.03)
    assert merged.cost < fit.cost
    alone = Fit(weights[:1], theta[:1], 1.0, True, "")
    assert merge_coincident(objective, alone) is alone
