"""Variances of components of few rows, which least squares may leave at their smallest value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dask_sketch import FeatureMap, GaussianMixture, decode, partial_sketch
from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.efficient import refine_efficiently
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.unresolved_variances import off_bounds, with_known_variances


@pytest.mark.parametrize(
    ("seed", "refine"), [(4, None), (7, None), (4, "efficient"), (7, "efficient")]
)
def test_rare_clusters_are_no_narrower_than_they_are(seed, refine):
    """The map says 0.3 for the narrowest; least squares leave a variance of 0.01 of its scale."""
    centers = np.random.default_rng(seed).uniform(-30.0, 30.0, (4, 6))
    weights = np.array([1.0, 0.01, 1.0, 0.01])
    truth = GaussianMixture(weights / weights.sum(), centers, np.ones_like(centers))
    feature_map = FeatureMap.from_scales(6, 260, smallest=0.3, largest=100.0, seed=seed)
    found = decode(partial_sketch(truth.sample(20_000, seed=seed), feature_map), 4, refine=refine)
    heldout = truth.sample(20_000, seed=99)
    assert found.score(heldout) > truth.score(heldout) - 0.01
    assert found.variances.min() > 0.2


@pytest.fixture(scope="module")
def objective():
    truth = GaussianMixture([0.5, 0.5], [[0.0, 0.0], [9.0, 0.0]], np.ones((2, 2)))
    return Objective(partial_sketch(truth.sample(2000, seed=0), FeatureMap(2, 100, scale=1.0)))


@pytest.fixture
def fit(objective):
    theta = objective.space.from_data_units(
        np.array([[0.0, 0.0], [9.0, 0.0]]), np.array([[1.0, 1.2], [0.8, 1.0]])
    )
    weights = np.array([0.75, 0.25])
    return Fit(weights, theta, objective.cost(weights, theta), converged=True)


def test_only_variances_at_the_bound_are_replaced(objective, fit):
    assert off_bounds(objective, fit) is fit
    theta = fit.theta.copy()
    theta[1, 2] = objective.space.lower[2]
    held = replace(fit, theta=theta)
    moved = off_bounds(objective, held)
    expected = 0.75 * theta[0, 2] + 0.25 * theta[1, 2]
    np.testing.assert_allclose(moved.theta[1, 2], expected)
    moved.theta[1, 2] = theta[1, 2]
    np.testing.assert_array_equal(moved.theta, theta)
    assert moved.cost != held.cost


def test_points_stay_points(objective, fit):
    theta = fit.theta.copy()
    theta[:, 2:] = objective.space.lower[2:]
    held = replace(fit, theta=theta)
    assert off_bounds(objective, held) is held


def test_variances_without_an_error_are_raised_and_known_ones_stay(objective, fit):
    refined = refine_efficiently(objective, fit, lambda cost: None, errors=True, test=True)
    weights, means, errors = refined.standard_errors
    assert (errors < 0.3).all()  # all are known
    known = with_known_variances(objective, refined, several_scales=False)
    np.testing.assert_array_equal(known, refined.fit.theta)
    theta = refined.fit.theta.copy()
    theta[1, 3] = objective.space.lower[3]
    held = np.where([[False, False], [False, True]], 0.0, errors)
    refined = replace(
        refined, fit=replace(refined.fit, theta=theta), standard_errors=(weights, means, held)
    )
    raised = with_known_variances(objective, refined, several_scales=True)
    assert 0.4 * theta[0, 3] < raised[1, 3] < 1.1 * theta[0, 3]
    np.testing.assert_array_equal(np.delete(raised, 3, 1), np.delete(theta, 3, 1))
    plain = with_known_variances(objective, refined, several_scales=False)
    np.testing.assert_array_equal(plain, theta)


@pytest.mark.filterwarnings("ignore:the mixture has .* in feature 2")
@pytest.mark.parametrize("deviation", [0.0, 0.01])
def test_a_feature_far_thinner_than_the_narrowest_scale_stays_thin(deviation):
    rng = np.random.default_rng(0)
    centers = rng.uniform(-40.0, 40.0, (3, 2))
    x = centers[rng.integers(3, size=3000)] + rng.normal(size=(3000, 2))
    x = np.column_stack([x, 3.0 + deviation * rng.normal(size=3000)])
    feature_map = FeatureMap.from_scales(3, 210, smallest=1.0, largest=150.0)
    found = decode(partial_sketch(x, feature_map), 3)
    assert found.decoding.cost < found.decoding.noise_level
