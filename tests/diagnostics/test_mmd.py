"""Discrepancies from a sketch: unbiased, with the right standard deviation and noise level."""

from __future__ import annotations

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch import (
    Centroids,
    FeatureMap,
    Sketch,
    partial_sketch,
)
from dask_sketch.diagnostics.mmd import (
    data_distribution,
    discrepancy,
    effective_components,
    feature_weights,
    noise_level,
)
from dask_sketch.errors import (
    InputError,
)
from dask_sketch.models import GaussianMixture, random_mixture

TRUTH = random_mixture(3, 2, seed=1)
MAP = FeatureMap(2, 200, scale=1.0, dtype="float64")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("distribution", "off"),
    [("adapted-radius", 0.0), ("adapted-radius", 1.0), ("clustering", 0.15)],
)
def test_it_is_unbiased_and_its_deviation_right(distribution: str, off: float) -> None:
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
    with pytest.raises(InputError, match="0 samples"):
        discrepancy(TRUTH, Sketch.empty(MAP))
    sketch = partial_sketch(TRUTH.sample(10, seed=0), MAP)
    with pytest.raises(InputError, match="frequencies"):
        discrepancy(random_mixture(2, 3), sketch)


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


def test_bad_input_of_quality() -> None:
    empty = Sketch.empty(MAP)
    with pytest.raises(InputError, match="empty"):
        _ = empty.noise_modulus
    for little in (empty, partial_sketch([[0.0, 1.0]], MAP)):
        with pytest.raises(InputError, match="effective count"):
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


def test_discrepancies_are_unbiased_and_those_of_pairs(rng):
    fm = FeatureMap(2, 150, scale=1.0, distribution="gaussian")
    labels = np.arange(24_000) % 12
    x = rng.normal(size=(24_000, 2))
    x[labels == 11] += [3.0, 0.0]
    group = partial_sketch(x, fm, groups=labels)
    squared = ds.mmd(group, squared=True)
    a, b = group[0], group[11]
    level = sum((1 - np.vdot(s.z, s.z).real) / (s.count - 1) for s in (a, b))
    expected = np.linalg.norm(a.z - b.z) ** 2 - level
    np.testing.assert_allclose(squared.sel(group=0, other_group=11), expected, rtol=1e-10)
    np.testing.assert_array_equal(squared, squared.T)
    same = squared.values[:11, :11][np.triu_indices(11, 1)]
    assert abs(same.mean()) < 4 * same.std() / np.sqrt(len(same))
    assert (same < 0).any()
    mmd = ds.mmd(group)
    assert (mmd.name, mmd.dims) == ("mmd", ("group", "other_group"))
    np.testing.assert_allclose(mmd, np.sqrt(np.maximum(squared, 0.0)))
    assert mmd.sel(group=3).idxmax() == 11
    single = ds.mmd(partial_sketch(x[:3], fm, groups=[0, 1, 1]))
    assert np.isnan(single.sel(group=0)).all()
    assert single.sel(group=1, other_group=1) == 0.0


def test_discrepancies_in_blocks_and_with_weighted_features(rng, monkeypatch):
    fm = FeatureMap(2, 30, scale=1.0, distribution="clustering")
    group = partial_sketch(rng.normal(size=(700, 2)), fm, groups=np.arange(700) % 7)
    whole = ds.mmd(group, squared=True)
    z, w = group.z, fm.feature_weights
    noise = (np.mean(w**2) - (np.abs(w * z) ** 2).sum(axis=1)) / (group.count - 1)
    expected = np.linalg.norm(w * (z[1] - z[5])) ** 2 - noise[1] - noise[5]
    np.testing.assert_allclose(whole[1, 5], expected, rtol=1e-9)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("", (), {"available": 99}))
    with pytest.raises(InputError, match="7 by 7 "):
        ds.mmd(group)


def test_a_model_is_compared_by_a_test():
    sketch = partial_sketch(TRUTH.sample(10, seed=0), MAP)
    with pytest.raises(InputError, match="other of type GaussianMixture.*compare_model") as error:
        ds.mmd(sketch, TRUTH)
    assert error.value.parameter == "other"


def test_a_model_with_other_names_is_refused():
    truth = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]], feature_names=("a", "b"))
    for names, is_refused in ((None, False), (("a", "b"), False), (("b", "a"), True)):
        feature_map = FeatureMap(2, 20, scale=1.0, feature_names=names)
        found = partial_sketch(truth.sample(100, seed=0), feature_map)
        if not is_refused:
            discrepancy(truth, found)
            continue
        with pytest.raises(InputError, match="feature 0 of sketch is 'b'; .* 'a'"):
            discrepancy(truth, found)
