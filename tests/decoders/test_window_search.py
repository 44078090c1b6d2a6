"""Searches window by window, on maps without data: many clusters of many features."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, GaussianMixture, decode, partial_sketch
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.window_search import locate_by_windows


def clusters(n_components, n_features, width, seed=0):
    centers = np.random.default_rng(seed).uniform(-width, width, size=(n_components, n_features))
    weights = np.full(n_components, 1 / n_components)
    return GaussianMixture(weights, centers, np.ones_like(centers))


def problem(truth, n_frequencies, n_rows=20_000, largest=64.0):
    """Objective, narrow objective and variances of the scales of a sketch of clusters."""
    feature_map = FeatureMap.from_scales(
        truth.n_features, n_frequencies, smallest=1.0, largest=largest
    )
    sketch = partial_sketch(truth.sample(n_rows, seed=1), feature_map)
    objective = Objective(sketch)
    narrow = Objective(sketch, "known", covariance=np.diag(feature_map.min_variances))
    return objective, narrow, feature_map.distribution_variances / objective.space.scale**2


def assert_found(fit, objective, truth, within):
    means, _ = objective.space.to_data_units(fit.theta)
    away = np.linalg.norm(means[:, None] - truth.means, axis=2)
    assert sorted(away.argmin(axis=1)) == list(range(len(truth.means)))
    assert away.min(axis=1).max() < within


@pytest.mark.parametrize(
    ("n_components", "n_features", "width"), [(12, 22, 20.0), (12, 30, 60.0), (1, 16, 5.0)]
)
def test_clusters_are_found_window_by_window(n_components, n_features, width):
    truth = clusters(n_components, n_features, width)
    m = 5 * (1 + 2 * n_features) * n_components
    objective, narrow, variances = problem(truth, max(m, 1000), largest=6.0 * width)
    rng = np.random.default_rng(0)
    fit = locate_by_windows(objective, narrow, variances, n_components, rng)
    assert_found(fit, objective, truth, within=0.6)
    assert fit.cost < objective.noise_level


def test_clusters_that_coincide_in_features_of_later_windows_are_told_apart():
    means = np.array(clusters(8, 24, 20.0, seed=3).means)
    means[1::2, 12:] = means[::2, 12:]
    truth = GaussianMixture(np.full(8, 1 / 8), means, np.ones_like(means))
    objective, narrow, variances = problem(truth, 8 * 245)
    fit = locate_by_windows(objective, narrow, variances, 8, np.random.default_rng(0))
    assert_found(fit, objective, truth, within=0.6)


def test_pairs_that_coincide_in_the_first_window_part_in_later_ones():
    means = np.array(clusters(8, 40, 10.0).means)
    means[::2, :12] = means[1::2, :12]
    truth = GaussianMixture(np.full(8, 1 / 8), means, np.ones_like(means))
    objective, narrow, variances = problem(truth, 8 * 405)
    fit = locate_by_windows(objective, narrow, variances, 8, np.random.default_rng(0))
    assert_found(fit, objective, truth, within=0.8)


@pytest.mark.parametrize("constant", [slice(12, 16), slice(0, 12), slice(0, 16)])
def test_constant_features_are_no_obstacle(constant):
    x = clusters(3, 16, 20.0).sample(5_000, seed=1)
    x[:, constant] = 2.0
    feature_map = FeatureMap.from_scales(16, 1000, smallest=1.0, largest=64.0)
    sketch = partial_sketch(x, feature_map)
    objective = Objective(sketch)
    narrow = Objective(sketch, "known", covariance=np.diag(feature_map.min_variances))
    variances = feature_map.distribution_variances / objective.space.scale**2
    fit = locate_by_windows(objective, narrow, variances, 3, np.random.default_rng(0))
    means, _ = objective.space.to_data_units(fit.theta)
    assert np.isfinite(fit.cost)
    np.testing.assert_allclose(means[:, constant], 2.0, atol=0.5)


@pytest.mark.parametrize("n_frequencies", [60, 400])
def test_windows_of_few_frequencies_leave_the_search_of_all_features(n_frequencies):
    truth = clusters(3, 20, 20.0)
    objective, narrow, variances = problem(truth, n_frequencies)
    if n_frequencies > 100:  # the later windows have some frequencies, but too few
        used = (narrow.omega != 0.0)[:8].any(axis=0)
        keep = used | (np.random.default_rng(0).random(len(used)) < 0.05)
        narrow = narrow.select(np.flatnonzero(keep))
    fit = locate_by_windows(objective, narrow, variances, 3, np.random.default_rng(0))
    assert len(fit.theta) == 3
    assert np.isfinite(fit.cost)


@pytest.mark.slow
@pytest.mark.parametrize("width", [9.0, 30.0])
def test_64_clusters_of_40_features_are_found(width):
    truth = clusters(64, 40, width)
    x = truth.sample(100_000, seed=1)
    feature_map = FeatureMap.from_scales(40, 5 * 81 * 64, smallest=1.0, largest=64.0)
    found = decode(partial_sketch(x, feature_map), 64)
    heldout = truth.sample(20_000, seed=2)
    assert found.score(heldout) > truth.score(heldout) - 0.1
