from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from dask_sketch.decoders import refine
from dask_sketch.decoders.lbfgs import Effort, descend_within
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.search import find_atom


@pytest.fixture
def objective(sketch):
    return Objective(sketch)


@pytest.fixture
def true_theta(objective, truth):
    return objective.from_data_units(truth.means, truth.covariances)


def test_weights_are_the_non_negative_least_squares(objective, true_theta):
    far = objective.from_data_units(np.full((1, 2), 30.0), np.ones((1, 2)))
    theta = np.vstack([true_theta, far])
    expected = nnls(objective.atoms(theta).T, np.concatenate(objective.target))[0]
    weights = refine.fit_weights(objective, theta)
    np.testing.assert_allclose(weights, expected, atol=1e-10)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights[:3], 1 / 3, atol=0.02)


def test_weights_when_the_active_set_cycles(objective, true_theta, monkeypatch):
    expected = refine.fit_weights(objective, true_theta)

    def fails(*args, **kwargs):
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(refine, "nnls", fails)
    np.testing.assert_allclose(refine.fit_weights(objective, true_theta), expected, atol=1e-7)


def test_threshold_keeps_the_atoms_that_explain(objective, true_theta):
    far = objective.from_data_units(np.array([[30.0, 0], [0, -30.0]]), np.ones((2, 2)))
    theta = np.vstack([far[:1], true_theta, far[1:]])
    np.testing.assert_array_equal(refine.threshold(objective, theta, 3), true_theta)
    np.testing.assert_array_equal(refine.threshold(objective, true_theta, 3), true_theta)


def test_threshold_keeps_k_atoms_though_fewer_explain(objective, true_theta):
    theta = np.repeat(true_theta[:1], 4, axis=0)  # three at least are redundant
    assert refine.threshold(objective, theta, 3).shape == (3, 4)


def test_threshold_weighs_normalised_atoms(objective):
    # a wide atom has a small norm: its weight is large, its share of the sketch is not
    theta = objective.from_data_units(np.zeros((2, 2)), np.array([[1.0, 1.0], [400.0, 400.0]]))
    rows = objective.atoms(theta)
    objective.target = tuple(
        np.array([0.3, 0.7]) @ rows.reshape(2, 2, -1).swapaxes(0, 1)[i] for i in range(2)
    )
    np.testing.assert_allclose(refine.fit_weights(objective, theta), [0.3, 0.7], atol=1e-9)
    np.testing.assert_array_equal(refine.threshold(objective, theta, 1), theta[:1])


def test_descent_goes_down_and_stays_in_bounds(objective, true_theta):
    start = true_theta + 0.2
    weights = refine.fit_weights(objective, start)
    fit = refine.descend(objective, weights, start, refine.LAST)
    assert fit.converged
    assert fit.cost < objective.cost(weights, start)
    assert fit.cost == pytest.approx(objective.cost(fit.weights, fit.theta), rel=1e-9)
    assert fit.cost < objective.noise_level
    assert (fit.weights >= 0).all()
    assert (fit.theta >= objective.lower).all()


def test_descent_survives_an_atom_of_no_weight(objective, true_theta):
    far = objective.from_data_units(np.full((1, 2), 1e6), np.full((1, 2), 1e6))
    theta = np.vstack([true_theta, far])
    fit = refine.descend(objective, np.array([0.3, 0.3, 0.4, 0.0]), theta)
    assert np.isfinite(fit.theta).all()
    assert fit.cost < objective.noise_level


def test_search_finds_a_lone_component(objective, true_theta):
    rows = objective.atoms(true_theta)
    m = objective.n_frequencies
    residual = (rows[1, :m].copy(), rows[1, m:].copy())
    atom = find_atom(objective, residual, np.random.default_rng(0))
    np.testing.assert_allclose(atom, true_theta[1], atol=0.02)


def test_search_in_no_residual(objective):
    nothing = (np.zeros(objective.n_frequencies), np.zeros(objective.n_frequencies))
    atom = find_atom(objective, nothing, np.random.default_rng(0))
    np.testing.assert_array_equal(atom, objective.random_atoms(np.random.default_rng(0), 1)[0])


def test_descend_within_stops_at_bounds():
    def bowl(x):
        return float(((x - 3.0) ** 2).sum()), 2 * (x - 3.0)

    found = descend_within(
        bowl, np.zeros(2), np.array([-1.0, -np.inf]), np.array([1.0, np.inf]), Effort(1e-12, 50)
    )
    np.testing.assert_allclose(found.x, [1.0, 3.0], atol=1e-6)
    assert found.converged
    assert not descend_within(
        bowl, np.full(2, -9.0), np.full(2, -np.inf), np.full(2, np.inf), Effort(1e-12, 1)
    ).converged
