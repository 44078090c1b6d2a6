"""Search scale by scale, for feature maps of several scales that were made without data."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from dask_sketch import FeatureMap, GaussianMixture, decode, partial_sketch
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.scale_search import search_scales

SCALES = np.array([1.0, 4.0, 16.0, 64.0])
N_ROWS = 10_000


def feature_map(d, n_frequencies, seed=0):
    return FeatureMap(
        d, n_frequencies, covariances=np.outer(SCALES**2, np.ones(d)), seed=seed,
        covariance_weights=[0.4, 0.2, 0.2, 0.2], distribution="sparse-radius",
    )  # fmt: skip


def clusters(centers, weights, seed):
    return GaussianMixture(weights, centers, np.ones_like(centers)).sample(N_ROWS, seed=seed)


@pytest.fixture(scope="module")
def rare():
    """Four clusters in the plane, two of them of fifty rows, at least 100 apart."""
    centers = np.array([[0.0, 0.0], [120.0, 30.0], [-40.0, 200.0], [150.0, -90.0]])
    weights = np.array([0.495, 0.495, 0.005, 0.005])
    return GaussianMixture(weights, centers, np.ones_like(centers))


def test_rare_clusters_are_found_and_refined(rare):
    x, other = rare.sample(N_ROWS, seed=1), rare.sample(N_ROWS, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = decode(partial_sketch(x, feature_map(2, 100)), 4)
    assert found.score(other) > rare.score(other) - 0.005
    np.testing.assert_allclose(np.sort(found.weights), np.sort(rare.weights), atol=0.015)
    record = found.decoding
    assert abs(record.overidentification - record.freedom) < 0.5 * record.freedom


def test_standard_errors_are_those_of_the_refined_fit(rare):
    sketch = partial_sketch(rare.sample(N_ROWS, seed=1), feature_map(2, 100))
    plain, asked = decode(sketch, 4), decode(sketch, 4, refine="efficient")
    np.testing.assert_allclose(asked.means, plain.means, atol=1e-6)
    assert plain.stderr is None
    nearest = np.linalg.norm(asked.means[:, None] - rare.means, axis=2).argmin(axis=1)
    errors = np.abs(asked.means - rare.means[nearest]) / asked.stderr.means
    assert errors.max() < 4.0


def test_fewer_components_than_clusters_are_warned_of(rare):
    sketch = partial_sketch(rare.sample(N_ROWS, seed=1), feature_map(2, 100))
    with pytest.warns(UserWarning, match=r"statistic of [\d,]+|noise levels"):
        decode(sketch, 3)


def test_a_search_ends_with_the_number_of_atoms_at_a_minimum():
    centers = 100.0 * np.random.default_rng(0).normal(size=(5, 6))
    sketch = partial_sketch(clusters(centers, np.full(5, 0.2), 1), feature_map(6, 325))
    objective = Objective(sketch)
    variances = np.outer(SCALES**2, np.ones(6)) / objective.space.scale**2
    fit = search_scales(objective, variances, 5, np.random.default_rng(0))
    means, _ = objective.space.to_data_units(fit.theta)
    away = np.linalg.norm(means[:, None] - centers, axis=2)
    assert sorted(away.argmin(axis=1)) == list(range(5))
    assert away.min(axis=1).max() < 0.5
    assert fit.cost < objective.noise_level
