"""The numbers of the report."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.diagnostics.mmd import effective_components, feature_weights, noise_level
from dask_sketch.errors import InputError
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture
from dask_sketch.sketching import Sketch, partial_sketch

TRUTH = random_mixture(3, 2, seed=1)
MAP = FeatureMap(2, 200, scale=1.0, dtype="float64")


def test_noise_level_is_the_mean_of_the_noise() -> None:
    expected = TRUTH.characteristic(MAP.frequencies)
    draws = [partial_sketch(TRUTH.sample(50, seed=seed), MAP) for seed in range(400)]
    seen = np.mean([np.mean(np.abs(draw.characteristic - expected) ** 2) for draw in draws])
    assert np.mean([noise_level(draw) for draw in draws]) == pytest.approx(seen, rel=0.1)
    assert noise_level(draws[0]) == pytest.approx(draws[0].noise_level * 50 / 49)


def test_noise_level_has_the_weights_of_the_features() -> None:
    weighted = FeatureMap(2, 200, scale=1.0, distribution="clustering", dtype="float64")
    sketch = partial_sketch(TRUTH.sample(1000, seed=2), weighted)
    w = weighted.feature_weights
    assert w is not None
    np.testing.assert_array_equal(feature_weights(weighted), w)
    np.testing.assert_array_equal(feature_weights(MAP), np.ones(200))
    expected = np.mean(w**2) - np.linalg.norm(w * sketch.z) ** 2
    assert noise_level(sketch) == pytest.approx(expected / 999)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([1.0], 1.0), ([0.5, 0.5], 2.0), ([1.0, 0.0, 0.0], 1.0), ([3.0, 3.0, 3.0], 3.0)],
)
def test_effective_components(weights: list[float], expected: float) -> None:
    assert effective_components(weights) == pytest.approx(expected)


def test_bad_input() -> None:
    empty = Sketch.empty(MAP)
    with pytest.raises(InputError, match="empty"):
        _ = empty.noise_modulus
    for little in (empty, partial_sketch([[0.0, 1.0]], MAP)):
        with pytest.raises(InputError, match="less than two"):
            noise_level(little)


@pytest.mark.parametrize(
    "choices",
    [
        {"scale": 2.0},
        {"scale": 2.0, "whitening": [[2.0, 0.5], [0.0, 1.0]]},
        {"covariances": [[1.0, 9.0]]},
        {"covariances": [[1.0, 9.0], [4.0, 1.0]], "covariance_weights": [0.25, 0.75]},
    ],
)
def test_scaled_radii_give_the_envelope(choices: dict[str, object]) -> None:
    feature_map = FeatureMap(2, 50, **choices)  # type: ignore[arg-type]
    radii = feature_map.scaled_radii
    variances = np.atleast_2d(choices.get("covariances", np.full(2, 4.0)))
    mean = np.average(variances, axis=0, weights=feature_map.covariance_weights)
    back = np.linalg.inv(feature_map.whitening) if feature_map.whitening is not None else np.eye(2)
    covariance = back @ np.diag(mean) @ back.T
    omega = feature_map.frequencies
    assert radii**2 == pytest.approx(np.einsum("im,ij,jm->m", omega, covariance, omega))
