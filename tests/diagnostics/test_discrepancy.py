"""Discrepancy from a held-out sketch: unbiased, and as spread as it says."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import Centroids, FeatureMap, partial_sketch
from dask_sketch.diagnostics.mmd import data_distribution, discrepancy
from dask_sketch.errors import InputError
from dask_sketch.models import GaussianMixture, random_mixture
from dask_sketch.sketching import Sketch

TRUTH = random_mixture(3, 2, seed=1)
MAP = FeatureMap(2, 200, scale=1.0, dtype="float64")


@pytest.mark.parametrize("off", [0.0, 0.15, 1.0])
@pytest.mark.parametrize("distribution", ["adapted-radius", "clustering"])
def test_it_is_unbiased_and_its_deviation_right(off: float, distribution: str) -> None:
    feature_map = FeatureMap(2, 200, scale=1.0, distribution=distribution, dtype="float64")
    model = GaussianMixture(TRUTH.weights, TRUTH.means + off, TRUTH.covariances)
    weights = feature_map.feature_weights
    gap = model.characteristic(feature_map.frequencies)
    gap = np.abs(gap - TRUTH.characteristic(feature_map.frequencies)) ** 2
    exact = np.mean(gap if weights is None else weights**2 * gap)
    found = [
        discrepancy(model, partial_sketch(TRUTH.sample(1000, seed=seed), feature_map))
        for seed in range(80)
    ]
    squared = np.array([one.squared for one in found])
    assert squared.mean() == pytest.approx(exact, abs=4 * squared.std() / np.sqrt(80))
    ratio = np.mean([one.deviation for one in found]) / squared.std()
    assert 0.7 < ratio < 1.5


def test_law_of_centroids_has_the_variance_of_the_data() -> None:
    sketch = partial_sketch(TRUTH.sample(20_000, seed=0), MAP)
    distribution = data_distribution(Centroids(TRUTH.weights, TRUTH.means), sketch)
    np.testing.assert_allclose(distribution.variance, sketch.variance, rtol=0.05)
    assert data_distribution(TRUTH, sketch) is TRUTH


def test_points_on_their_centroids_are_no_distance_away() -> None:
    x = np.repeat([[0.0, 1.0], [4.0, 4.0]], 50, axis=0)
    sketch = partial_sketch(x, MAP)
    found = discrepancy(Centroids([0.5, 0.5], [[0.0, 1.0], [4.0, 4.0]]), sketch)  # type: ignore[arg-type]
    assert found.cost < 1e-20
    assert found.noise_level > 0


def test_bad_input() -> None:
    with pytest.raises(InputError, match="less than two"):
        discrepancy(TRUTH, Sketch.empty(MAP))
    sketch = partial_sketch(TRUTH.sample(10, seed=0), MAP)
    with pytest.raises(InputError, match="frequencies"):
        discrepancy(random_mixture(2, 3), sketch)
