"""Matching pursuit of unknown size, warm start, and the baseline."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import partial_sketch
from dask_sketch.decoders.greedy import N_ITERATIONS, grow_until_explained, hard_thresholding
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.replicates import resume
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture


@pytest.fixture
def objective(sketch):
    return Objective(sketch)


@pytest.fixture
def true_theta(objective, truth):
    return objective.from_data_units(truth.means, truth.covariances)


def assert_matches(fit, true_theta, atol=0.1):
    order = [int(np.abs(fit.theta - row).sum(axis=1).argmin()) for row in true_theta]
    assert sorted(order) == list(range(len(true_theta)))
    np.testing.assert_allclose(fit.theta[order], true_theta, atol=atol)


@pytest.mark.parametrize("n_components", [1, 3, 5])
def test_growth_stops_at_the_number_of_components(n_components):
    truth = random_mixture(n_components, 4, seed=n_components)
    feature_map = FeatureMap(4, 400, scale=1.0, seed=1)
    objective = Objective(partial_sketch(truth.sample(100_000, seed=2), feature_map))
    trace = []
    fit = grow_until_explained(objective, 9, np.random.default_rng(0), trace.append)
    assert len(fit.theta) == n_components
    assert trace[-1] == fit.cost
    assert_matches(fit, objective.from_data_units(truth.means, truth.covariances), atol=0.3)


def test_growth_stops_at_the_most_it_may(objective):
    fit = grow_until_explained(objective, 2, np.random.default_rng(0), lambda cost: None)
    assert len(fit.theta) == 2
    assert fit.cost > objective.noise_level


def test_warm_start_from_the_same_model_stays(objective, true_theta, truth):
    rng = np.random.default_rng(0)
    fit = resume(objective, truth.weights, true_theta, 3, rng)
    again = resume(objective, fit.weights, fit.theta, 3, rng)
    assert again.cost == pytest.approx(fit.cost, rel=1e-4)
    np.testing.assert_allclose(again.theta, fit.theta, atol=1e-3)


@pytest.mark.parametrize("known", [1, 2, 3])
def test_warm_start_adds_what_is_missing(objective, true_theta, truth, known):
    fit = resume(objective, truth.weights[:known], true_theta[:known], 3, np.random.default_rng(0))
    assert_matches(fit, true_theta)


def test_warm_start_removes_what_is_too_much(objective, true_theta):
    theta = np.vstack([true_theta, true_theta[:2] + 0.05])
    fit = resume(objective, np.full(5, 0.2), theta, 3, np.random.default_rng(0))
    assert_matches(fit, true_theta)


def test_warm_start_replaces_what_no_longer_fits(objective, true_theta):
    theta = np.vstack([true_theta[:2], [[30.0, 30.0, 1.0, 1.0]]])
    fit = resume(objective, np.full(3, 1 / 3), theta, 3, np.random.default_rng(0))
    assert fit.cost < objective.noise_level
    assert_matches(fit, true_theta)


def test_hard_thresholding(objective):
    trace = []
    fit = hard_thresholding(objective, 3, np.random.default_rng(0), trace.append)
    assert len(trace) == N_ITERATIONS
    assert fit.theta.shape == (3, 4)
    assert fit.cost == trace[-1]
    assert fit.cost < objective.cost(np.array([1.0]), np.array([[0.0, 0.0, 3.0, 3.0]]))


def test_hard_thresholding_finds_one_component():
    x = np.random.default_rng(0).normal(size=(20_000, 2)) + 3.0
    objective = Objective(partial_sketch(x, FeatureMap(2, 60, scale=1.0, seed=1)))
    fit = hard_thresholding(objective, 1, np.random.default_rng(0), lambda cost: None)
    np.testing.assert_allclose(fit.theta, [[0.0, 0.0, 1.0, 1.0]], atol=0.1)
