from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.decoders.atoms import MODELS
from dask_sketch.decoders.descent import descend, descend_fully
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.optimizers import Effort, converge, descend_within
from dask_sketch.decoders.support import Fit, fit_weights


@pytest.fixture
def objective(sketch):
    return Objective(sketch)


@pytest.fixture
def true_theta(objective, truth):
    return objective.from_data_units(truth.means, truth.covariances)


def a_fit(objective, weights, theta):
    return Fit(weights, theta, objective.cost(weights, theta), False, "")


@pytest.mark.parametrize("descent", [descend, descend_fully])
def test_descent_goes_down_and_stays_in_bounds(objective, true_theta, descent):
    start = true_theta + 0.2
    fit = descent(objective, start)
    assert fit.converged
    assert fit.message
    assert fit.cost < objective.cost(fit_weights(objective, start), start)
    assert fit.cost == pytest.approx(objective.cost(fit.weights, fit.theta), rel=1e-9)
    assert fit.cost < objective.noise_level
    assert (fit.weights >= 0).all()
    assert (fit.theta >= objective.lower).all()


def test_descent_survives_an_atom_of_no_weight(objective, true_theta):
    far = objective.from_data_units(np.full((1, 2), 1e6), np.full((1, 2), 1e6))
    theta = np.vstack([true_theta, far])
    for descent in (descend, descend_fully):
        fit = descent(objective, theta, np.array([0.3, 0.3, 0.4, 0.0]))
        assert np.isfinite(fit.theta).all()
        assert fit.cost < objective.noise_level


@pytest.mark.parametrize("model", MODELS)
def test_the_end_of_a_descent_is_a_minimum(sketch, truth, model):
    covariance = np.array([0.8, 0.8]) if model == "known" else None
    objective = Objective(sketch, model, covariance=covariance)
    start = objective.from_data_units(truth.means + 0.1, truth.covariances)
    fit = descend_fully(objective, start)
    assert fit.converged
    cost, by_weight, by_theta = objective.cost_gradient(fit.weights, fit.theta)
    slope = np.concatenate([by_weight, by_theta.ravel()])
    gram = objective.gram(fit.weights, fit.theta)
    # what one more step could gain, in noise levels
    assert 0.25 * slope @ np.linalg.solve(gram, slope) < 1e-4 * max(cost, objective.unit)


def test_levenberg_marquardt_reaches_the_bottom_of_an_exact_sketch(exact_sketch, truth, sketch):
    objective = Objective(exact_sketch(truth, sketch.feature_map, 10**12))
    theta = objective.from_data_units(truth.means, truth.covariances)
    start = a_fit(objective, truth.weights * [1.1, 0.9, 1.0], theta + 0.1)
    fit = converge(objective, start, Effort(1e-9, 50))
    assert fit.converged
    np.testing.assert_allclose(fit.theta, theta, atol=1e-6)
    np.testing.assert_allclose(fit.weights, truth.weights, atol=1e-6)


def test_levenberg_marquardt_stays_within_a_box(sketch, truth):
    box = np.array([[-1.0, -1.0], [1.0, 1.0]])
    objective = Objective(sketch, box=box, variance_floor=0.3)
    theta = np.clip(
        objective.from_data_units(truth.means, truth.covariances), objective.lower, objective.upper
    )
    start = a_fit(objective, fit_weights(objective, theta), theta)
    fit = converge(objective, start, Effort(1e-8, 100))
    assert fit.cost < start.cost
    assert (fit.theta >= objective.lower).all()
    assert (fit.theta <= objective.upper).all()
    # on the bounds, the cost falls outwards only
    _, _, slope = objective.cost_gradient(fit.weights, fit.theta)
    inside = (fit.theta > objective.lower) & (fit.theta < objective.upper)
    assert not inside.all()
    assert np.abs(slope[inside]).max() < 1e-3 * np.abs(slope).max()
    assert (slope[fit.theta == objective.upper] <= 0).all()
    assert (slope[fit.theta == objective.lower] >= 0).all()


def test_levenberg_marquardt_says_when_it_is_cut_short(objective, true_theta):
    start = a_fit(objective, np.full(3, 0.3), true_theta + 0.5)
    fit = converge(objective, start, Effort(1e-12, 1))
    assert not fit.converged
    assert fit.message == "1 iterations were not enough"
    assert fit.cost <= start.cost


def test_coincident_atoms_leave_the_equations_solvable(objective, true_theta):
    theta = np.vstack([true_theta, true_theta])
    fit = converge(objective, a_fit(objective, np.full(6, 1 / 6), theta), Effort(1e-6, 50))
    assert np.isfinite(fit.theta).all()
    assert fit.cost < objective.noise_level


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
