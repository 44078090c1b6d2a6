from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dask_sketch import decode
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.starts import Start
from dask_sketch.decoders.warm_start import acceptable_cost, converge_nearby, warm_start


@pytest.fixture
def objective(sketch):
    return Objective(sketch)


def started(objective, weights, theta, n_components=None, **options):
    start = Start(weights, *objective.space.to_data_units(theta))
    rng = np.random.default_rng(0)
    return warm_start(objective, start, n_components, rng, lambda cost: None, **options)


@pytest.fixture
def true_theta(objective, truth):
    return objective.space.from_data_units(truth.means, truth.covariances)


def assert_matches(fit, true_theta):
    order = [int(np.abs(fit.theta - row).sum(axis=1).argmin()) for row in true_theta]
    assert sorted(order) == list(range(len(true_theta)))
    np.testing.assert_allclose(fit.theta[order], true_theta, atol=0.1)


def test_the_same_model_stays(objective, true_theta, truth):
    fit = started(objective, truth.weights, true_theta)
    again = started(objective, fit.weights, fit.theta)
    assert again.cost == pytest.approx(fit.cost, rel=1e-4)
    np.testing.assert_allclose(again.theta, fit.theta, atol=1e-3)


@pytest.mark.parametrize("known", [1, 2])
def test_missing_components_are_added(objective, true_theta, truth, known):
    assert_matches(started(objective, truth.weights[:known], true_theta[:known], 3), true_theta)


def test_superfluous_components_are_removed(objective, true_theta):
    theta = np.vstack([true_theta, true_theta[:2] + 0.05])
    assert_matches(started(objective, np.full(5, 0.2), theta, 3), true_theta)


def test_components_that_no_longer_fit_are_replaced(objective, true_theta):
    theta = np.vstack([true_theta[:2], [[30.0, 30.0, 1.0, 1.0]]])
    weights = np.full(3, 1 / 3)
    fit = started(objective, weights, theta)
    assert fit.cost < objective.noise_level
    assert_matches(fit, true_theta)
    kept = started(objective, weights, theta, excess=np.inf)
    assert kept.cost > objective.noise_level


def test_other_components_are_searched_for_if_there_is_a_reason(sketch):
    model = decode(sketch, 3)
    start = Start(model.weights, model.means, model.covariances, model.decoding)
    noise = model.decoding.noise_level
    excess, searched = acceptable_cost(start, None, 0.95 * noise)
    assert 0.0 < excess < noise
    assert searched == noise
    assert acceptable_cost(start, 3, 0.95 * noise) == (excess, searched)
    never = (-np.inf, None)
    assert acceptable_cost(start, 4, 0.95 * noise) == never  # another number of components
    assert acceptable_cost(start, None, 0.8 * noise) == never  # a sketch that has grown
    assert acceptable_cost(replace(start, decoding=None), None, noise) == never
    assert acceptable_cost(None, 3, noise) == never
    # the last search counts, not the last model
    earlier = replace(model.decoding, searched=1.3 * noise)
    assert acceptable_cost(replace(start, decoding=earlier), None, noise) == never


def test_near_components_take_few_steps(objective, true_theta, truth):
    full = started(objective, truth.weights, true_theta)
    near = Start(truth.weights, *objective.space.to_data_units(true_theta + 0.01))
    before = objective.n_evaluations
    found = converge_nearby(objective, near, None, np.inf)
    assert objective.n_evaluations - before < 10
    assert found.cost < full.cost + 0.01 * objective.unit
    far = Start(truth.weights, *objective.space.to_data_units(true_theta + 3.0))
    assert converge_nearby(objective, far, None, np.inf) is None
    for n_components, excess in ((2, np.inf), (None, -np.inf)):
        assert converge_nearby(objective, near, n_components, excess) is None
