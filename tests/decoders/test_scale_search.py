"""Searches scale by scale, on maps without data: clusters far apart, many of them, rare ones."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, GaussianMixture, decode, partial_sketch
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.scale_search import locate_components, search_scales


def sketch_of(centers, weights, n_frequencies, n_rows=20_000, largest=64.0):
    """Sketch of clusters of standard deviation one by a map of several scales."""
    truth = GaussianMixture(weights, centers, np.ones_like(centers))
    feature_map = FeatureMap.from_scales(
        centers.shape[1], n_frequencies, smallest=1.0, largest=largest
    )
    return partial_sketch(truth.sample(n_rows, seed=1), feature_map)


def scales_of(sketch, objective):
    return sketch.feature_map.distribution_variances / objective.space.scale**2


def assert_found(fit, objective, centers, within=0.5):
    means, _ = objective.space.to_data_units(fit.theta)
    away = np.linalg.norm(means[:, None] - centers, axis=2)
    assert sorted(away.argmin(axis=1)) == list(range(len(centers)))
    assert away.min(axis=1).max() < within


def narrow_objective(sketch):
    covariance = np.diag(sketch.feature_map.min_variances)
    return Objective(sketch, "known", covariance=covariance)


def test_a_search_ends_with_the_number_of_atoms_at_a_minimum():
    centers = 100.0 * np.random.default_rng(0).normal(size=(5, 6))
    sketch = sketch_of(centers, np.full(5, 0.2), 325)
    objective = Objective(sketch)
    fit = search_scales(objective, scales_of(sketch, objective), 5, np.random.default_rng(0))
    assert_found(fit, objective, centers)
    assert fit.cost < objective.noise_level


@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_that_a_search_of_all_parameters_misses_are_located(seed):
    centers = np.random.default_rng(seed).uniform(-150.0, 150.0, size=(8, 16))
    sketch = sketch_of(centers, np.full(8, 1 / 8), 8 * 165, largest=1000.0)
    objective = Objective(sketch)
    variances, rng = scales_of(sketch, objective), np.random.default_rng(seed)
    fit = locate_components(objective, narrow_objective(sketch), variances, 8, rng)
    assert_found(fit, objective, centers)
    assert fit.cost < objective.noise_level


def test_many_clusters_are_located():
    centers = np.random.default_rng(1).uniform(-60.0, 60.0, size=(32, 12))
    sketch = sketch_of(centers, np.full(32, 1 / 32), 32 * 125)
    objective = Objective(sketch)
    variances, rng = scales_of(sketch, objective), np.random.default_rng(1)
    fit = locate_components(objective, narrow_objective(sketch), variances, 32, rng)
    assert_found(fit, objective, centers)


@pytest.mark.parametrize("n_components", [1, 2])
def test_few_components_are_located(n_components):
    centers = np.array([[0.0, 0.0, 0.0], [70.0, 0.0, -20.0]])[:n_components]
    sketch = sketch_of(centers, np.full(n_components, 1 / n_components), 100)
    objective, rng = Objective(sketch), np.random.default_rng(0)
    variances = scales_of(sketch, objective)
    fit = locate_components(objective, narrow_objective(sketch), variances, n_components, rng)
    assert_found(fit, objective, centers)


def test_rare_clusters_are_located_beside_heavy_ones():
    """Two components that share a heavy cluster are replaced by a rare cluster."""
    rng = np.random.default_rng(4)
    centers = rng.uniform(-100.0, 100.0, size=(8, 20))
    weights = np.array([1.0, 0.01] * 4)
    sketch = sketch_of(centers, weights / weights.sum(), 8 * 205, n_rows=40_000)
    objective = Objective(sketch)
    variances = scales_of(sketch, objective)
    fit = locate_components(objective, narrow_objective(sketch), variances, 8, rng)
    assert_found(fit, objective, centers, within=5.0)


def test_fewer_frequencies_than_means_leave_the_search_of_all_parameters():
    centers = np.array([[0.0], [20.0], [50.0]])
    sketch = sketch_of(centers, np.full(3, 1 / 3), 4)
    objective, rng = Objective(sketch), np.random.default_rng(0)
    variances = scales_of(sketch, objective)
    narrow = narrow_objective(sketch)
    fit = locate_components(objective, narrow.select(np.arange(2)), variances, 3, rng)
    assert len(fit.theta) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("default:32 of 64 components have about")
@pytest.mark.parametrize("ratio", [1.0, 0.01])
def test_64_clusters_of_twelve_features_are_found(ratio):
    rng = np.random.default_rng(0)
    centers = rng.uniform(-60.0, 60.0, size=(64, 12))
    weights = np.where(np.arange(64) % 2, ratio, 1.0)
    truth = GaussianMixture(weights / weights.sum(), centers, np.ones_like(centers))
    sketch = sketch_of(truth.means, truth.weights, 8000, n_rows=100_000)
    found = decode(sketch, 64)
    heldout = truth.sample(20_000, seed=2)
    assert found.score(heldout) > truth.score(heldout) - 0.05
