"""Steps 3 to 5: choice of atoms, weights, descents, and the way from coarse to fine."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from dask_sketch import design, partial_sketch
from dask_sketch.decoders.descent import (
    Fit,
    coarse_objective,
    converge,
    converge_from_coarse,
    descend,
    descend_fully,
    empty_fit,
    fit_weights,
    non_negative_weights,
    threshold,
)
from dask_sketch.decoders.greedy import cl_ompr
from dask_sketch.decoders.names import ATOMS
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.optimizers import StoppingRule
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture


@pytest.fixture
def objective(sketch):
    return Objective(sketch)


@pytest.fixture
def true_theta(objective, truth):
    return objective.space.from_data_units(truth.means, truth.covariances)


def a_fit(objective, weights, theta):
    return Fit(weights, theta, objective.cost(weights, theta), False, "")


# -- weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_weights_meet_the_conditions_of_the_optimum(seed):
    rng = np.random.default_rng(seed)
    rows, target = rng.normal(size=(6, 40)), rng.normal(size=40)
    weights = non_negative_weights(rows, target)
    slopes = rows @ (target - weights @ rows)
    assert (weights >= 0).all()
    assert 0 < (weights > 0).sum() < 6
    np.testing.assert_allclose(slopes[weights > 0], 0.0, atol=1e-10)
    assert (slopes[weights == 0] <= 1e-10).all()


def test_equal_atoms_divide_their_weight():
    row = np.random.default_rng(1).normal(size=30)
    weights = non_negative_weights(np.tile(row, (4, 1)), 2.0 * row)
    assert weights.sum() == pytest.approx(2.0)


def test_a_cycle_of_the_active_set_ends(monkeypatch):
    rng = np.random.default_rng(2)
    rows, target = rng.normal(size=(6, 40)), rng.normal(size=40)
    expected = non_negative_weights(rows, target)

    def cycles(*args, **options):
        raise RuntimeError

    monkeypatch.setattr(optimize, "nnls", cycles)
    np.testing.assert_allclose(non_negative_weights(rows, target), expected, atol=1e-6)


def test_weights_are_the_non_negative_least_squares(objective, true_theta):
    far = objective.space.from_data_units(np.full((1, 2), 30.0), np.ones((1, 2)))
    theta = np.vstack([true_theta, far])
    expected = optimize.nnls(objective.atoms(theta).T, np.concatenate(objective.target))[0]
    weights = fit_weights(objective, theta)
    np.testing.assert_allclose(weights, expected, atol=1e-10)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights[:3], 1 / 3, atol=0.02)


def test_atoms_that_no_frequency_sees_weigh_nothing(objective):
    variances = np.geomspace(1.0, 1e6, 2000)  # so wide that some are seen at 1e-300
    stacked = np.stack([variances] * 2, axis=1)
    wide = objective.space.from_data_units(np.zeros((2000, 2)), stacked)
    largest = np.abs(objective.atoms(wide)).max(axis=1)
    unseen = wide[(largest > 0) & (largest < 1e-100)]
    assert len(unseen) > 2
    for theta in unseen:
        assert not fit_weights(objective, theta[None]).any()


def test_threshold_keeps_the_atoms_that_explain(objective, true_theta):
    means = np.array([[30.0, 0], [0, -30.0]])
    far = objective.space.from_data_units(means, np.ones((2, 2)))
    theta = np.vstack([far[:1], true_theta, far[1:]])
    np.testing.assert_array_equal(threshold(objective, theta, 3), true_theta)
    np.testing.assert_array_equal(threshold(objective, true_theta, 3), true_theta)
    equal = np.repeat(true_theta[:1], 4, axis=0)  # fewer explain as much; three are kept
    assert threshold(objective, equal, 3).shape == (3, 4)


def test_threshold_weighs_normalised_atoms(objective):
    # a wide atom has a small norm: its weight is large, its part of the sketch is not
    variances = np.array([[1.0, 1.0], [400.0, 400.0]])
    theta = objective.space.from_data_units(np.zeros((2, 2)), variances)
    rows = objective.atoms(theta).reshape(2, 2, -1)
    weights = np.array([0.3, 0.7])
    objective = objective.with_target((weights @ rows[:, 0], weights @ rows[:, 1]))
    np.testing.assert_allclose(fit_weights(objective, theta), weights, atol=1e-9)
    np.testing.assert_array_equal(threshold(objective, theta, 1), theta[:1])


def test_no_atoms_cost_the_whole_sketch(objective):
    fit = empty_fit(objective)
    z = np.concatenate(objective.target)
    assert fit.cost == pytest.approx(z @ z)
    assert fit.theta.shape == (0, 4)


# -- descents ---------------------------------------------------------------------------


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
    assert (fit.theta >= objective.space.lower).all()


@pytest.mark.parametrize("descent", [descend, descend_fully])
def test_descent_survives_an_atom_of_no_weight(objective, true_theta, descent):
    far = objective.space.from_data_units(np.full((1, 2), 1e6), np.full((1, 2), 1e6))
    theta = np.vstack([true_theta, far])
    fit = descent(objective, theta, np.array([0.3, 0.3, 0.4, 0.0]))
    assert np.isfinite(fit.theta).all()
    assert fit.cost < objective.noise_level


@pytest.mark.parametrize("model", ATOMS)
def test_the_end_of_a_descent_is_a_minimum(sketch, truth, model):
    covariance = np.array([0.8, 0.8]) if model == "known" else None
    objective = Objective(sketch, model, covariance=covariance)
    start = objective.space.from_data_units(truth.means + 0.1, truth.covariances)
    fit = descend_fully(objective, start)
    assert fit.converged
    cost, by_weight, by_theta = objective.cost_gradient(fit.weights, fit.theta)
    slope = np.concatenate([by_weight, by_theta.ravel()])
    gram = objective.gram(fit.weights, fit.theta)
    # gain of one more step, in noise levels
    assert 0.25 * slope @ np.linalg.solve(gram, slope) < 1e-4 * max(cost, objective.unit)


def test_without_normal_equations_the_end_is_the_same_minimum(objective, true_theta):
    expected = descend_fully(objective, true_theta + 0.1)
    objective.max_solvable = 10
    found = descend_fully(objective, true_theta + 0.1)
    assert not objective.is_solvable(3)
    np.testing.assert_allclose(found.theta, expected.theta, atol=0.01)


def test_levenberg_marquardt_reaches_the_bottom_of_an_exact_sketch(exact_sketch, truth, sketch):
    objective = Objective(exact_sketch(truth, sketch.feature_map, 10**12))
    theta = objective.space.from_data_units(truth.means, truth.covariances)
    start = a_fit(objective, truth.weights * [1.1, 0.9, 1.0], theta + 0.1)
    fit = converge(objective, start, StoppingRule(1e-9, 50))
    assert fit.converged
    np.testing.assert_allclose(fit.theta, theta, atol=1e-6)
    np.testing.assert_allclose(fit.weights, truth.weights, atol=1e-6)


def test_levenberg_marquardt_stays_within_a_box(sketch, truth):
    box = np.array([[-1.0, -1.0], [1.0, 1.0]])
    objective = Objective(sketch, box=box, variance_floor=0.3)
    space = objective.space
    theta = space.clip(space.from_data_units(truth.means, truth.covariances))
    start = a_fit(objective, fit_weights(objective, theta), theta)
    fit = converge(objective, start, StoppingRule(1e-8, 100))
    assert fit.cost < start.cost
    assert (fit.theta >= space.lower).all()
    assert (fit.theta <= space.upper).all()
    # on the bounds, the cost falls outwards only
    _, _, slope = objective.cost_gradient(fit.weights, fit.theta)
    inside = (fit.theta > space.lower) & (fit.theta < space.upper)
    assert not inside.all()
    assert np.abs(slope[inside]).max() < 1e-3 * np.abs(slope).max()
    assert (slope[fit.theta == space.upper] <= 0).all()
    assert (slope[fit.theta == space.lower] >= 0).all()


def test_levenberg_marquardt_tells_when_it_is_cut_short(objective, true_theta):
    start = a_fit(objective, np.full(3, 0.3), true_theta + 0.5)
    fit = converge(objective, start, StoppingRule(1e-12, 1))
    assert not fit.converged
    assert fit.message.startswith("1 iterations")
    assert fit.cost <= start.cost


def test_coincident_atoms_leave_the_equations_solvable(objective, true_theta):
    theta = np.vstack([true_theta, true_theta])
    fit = converge(objective, a_fit(objective, np.full(6, 1 / 6), theta), StoppingRule(1e-6, 50))
    assert np.isfinite(fit.theta).all()
    assert fit.cost < objective.noise_level


# -- coarse to fine ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_truth():
    return random_mixture(6, 3, seed=4)


@pytest.fixture(scope="module")
def long_objective(long_truth):
    feature_map = FeatureMap(3, 2600, scale=1.0, seed=1)
    return Objective(partial_sketch(long_truth.sample(50_000, seed=0), feature_map))


def test_as_many_frequencies_as_the_components_need(long_objective):
    assert coarse_objective(long_objective, 6).n_frequencies == 2000  # at least
    assert coarse_objective(long_objective, 145).n_frequencies == 2 * 145 * 7
    assert coarse_objective(long_objective, 160) is long_objective  # 2240: hardly any fewer
    assert coarse_objective(long_objective, 600) is long_objective  # without normal equations


def test_a_coarse_minimum_leads_to_the_minimum_of_all(long_objective, long_truth):
    objective = long_objective
    theta = objective.space.from_data_units(long_truth.means, long_truth.covariances)
    rough = descend_fully(objective.subsample(100), theta, long_truth.weights)
    fit = converge_from_coarse(objective, rough)
    best = descend_fully(objective, theta, long_truth.weights)
    assert objective.cost(rough.weights, rough.theta) > 1.02 * best.cost
    assert fit.cost == pytest.approx(best.cost, rel=1e-3)
    np.testing.assert_allclose(fit.theta, best.theta, atol=0.01)


def test_gram_matrices_of_part_of_the_frequencies_lead_to_the_minimum(long_objective, long_truth):
    theta = long_objective.space.from_data_units(long_truth.means, long_truth.covariances)
    fit = converge(long_objective, descend(long_objective, theta, long_truth.weights))
    assert fit.converged
    # gain of one more step with the Gram matrix of all 2600, where 6 * 42 are used
    cost, by_weight, by_theta = long_objective.cost_gradient(fit.weights, fit.theta)
    slope = np.concatenate([by_weight, by_theta.ravel()])
    gram = long_objective.gram(fit.weights, fit.theta)
    assert 0.25 * slope @ np.linalg.solve(gram, slope) < 1e-4 * cost


def test_weights_of_atoms_that_no_frequency_sees_are_bounded():
    """Places in degrees beside a speed: one variance is far too wide for some features."""
    rng = np.random.default_rng(2)
    places = np.array([[52.52, 13.4], [48.13, 11.57], [50.93, 6.95]])
    x = np.round(
        places[rng.choice(3, 20_000, p=[0.5, 0.3, 0.2])] + rng.normal(0, 0.02, (20_000, 2)), 4
    )
    speed = np.abs(rng.normal(0, 15, 20_000)) * (rng.random(20_000) < 0.7)
    x = np.column_stack([x, speed])
    feature_map = design(x, n_components=3, covariance_type="spherical")
    objective = Objective(partial_sketch(x, feature_map), model="isotropic")
    fit = cl_ompr(objective, 3, np.random.default_rng(0), lambda cost: None)
    assert fit.weights.max() <= 1e3
    assert np.isfinite(objective.gram(fit.weights, fit.theta)).all()
