from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.decoders.descent import descend_fully
from dask_sketch.decoders.exchange import exchange, inverse_gram, prune, removal_costs
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import Fit, fit_weights


@pytest.fixture
def objective(sketch):
    return Objective(sketch)


@pytest.fixture
def true_theta(objective, truth):
    return objective.from_data_units(truth.means, truth.covariances)


def test_removal_costs_are_what_others_cannot_imitate(objective, true_theta):
    weights = np.array([0.3, 0.3, 0.4])
    inverse, rows, scale = inverse_gram(objective, weights, true_theta)
    costs = removal_costs(inverse, rows, weights / scale[:3])
    jacobian = objective.jacobian(weights, true_theta)
    p = objective.n_parameters
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


def test_pruning_survives_an_atom_of_no_weight(objective, true_theta):
    far = objective.from_data_units(np.full((1, 2), 1e6), np.full((1, 2), 1e6))
    fit = Fit(np.array([0.0, 0.3, 0.3, 0.4]), np.vstack([far, true_theta]), 0.0, True, "")
    np.testing.assert_array_equal(prune(objective, fit, 3), true_theta)


def test_exchange_leaves_a_minimum_of_two_that_share(objective, true_theta):
    # two atoms on the first component, one on the other two together
    middle = true_theta[1:].mean(axis=0)
    theta = np.vstack([true_theta[0] - 0.1, true_theta[0] + 0.1, middle])
    stuck = descend_fully(objective, theta, fit_weights(objective, theta))
    found = exchange(objective, stuck, np.random.default_rng(0))
    assert found.cost <= stuck.cost
    assert found.cost < objective.noise_level
    assert found.theta.shape == (3, 4)
    order = [int(np.abs(found.theta - row).sum(axis=1).argmin()) for row in true_theta]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(found.theta[order], true_theta, atol=0.1)


def test_exchange_leaves_the_best_fit_as_it_is(objective, true_theta):
    best = descend_fully(objective, true_theta)
    assert exchange(objective, best, np.random.default_rng(0)) is best
