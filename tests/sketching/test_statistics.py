"""The sketch as an estimate: its error is what the theory says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dask_sketch import FeatureMap, partial_sketch


def characteristic(weights, means, variances, omega):
    """Eq. (15), summed over the components of a diagonal mixture."""
    phase = means @ omega
    decay = np.exp(-0.5 * (variances @ omega**2))
    return weights @ (np.exp(-1j * phase) * decay)


def draw(rng, n, weights, means, variances):
    labels = rng.choice(len(weights), size=n, p=weights)
    return means[labels] + rng.normal(size=(n, means.shape[1])) * np.sqrt(variances[labels])


MIXTURES = {
    "one": ([1.0], [[0.5, -1.0]], [[1.0, 0.5]]),
    "three": (
        [0.2, 0.5, 0.3],
        [[-4.0, 0.0], [3.0, 3.0], [0.0, -5.0]],
        [[1.0, 0.5], [0.3, 1.5], [1.0, 1.0]],
    ),
    "five features": (
        [0.5, 0.5],
        [[0.0, 1.0, 2.0, 3.0, 4.0], [5.0, -1.0, 0.0, 0.0, 2.0]],
        [[1.0] * 5, [0.5] * 5],
    ),
}


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("n", [50, 2000])
@pytest.mark.parametrize("weighted", [False, True])
def test_mean_squared_error_is_the_variance_over_n(name, n, weighted, rng):
    weights, means, variances = map(np.array, MIXTURES[name])
    fm = FeatureMap(means.shape[1], 60, scale=1.0, seed=3)
    z = characteristic(weights, means, variances, fm.frequencies) / np.sqrt(60)
    errors, levels = [], []
    for _ in range(200):
        w = rng.integers(1, 4, size=n).astype(float) if weighted else None
        got = partial_sketch(draw(rng, n, weights, means, variances), fm, w)
        errors.append(np.linalg.norm(got.z - z) ** 2)
        levels.append(got.noise_level)
    effective = n if not weighted else n * 2.0**2 / np.mean([1, 4, 9])
    expected = (1 - np.linalg.norm(z) ** 2) / effective
    # the errors of repeated draws are independent: a t-test at one in a hundred thousand
    assert stats.ttest_1samp(errors, expected).pvalue > 1e-5
    assert np.mean(errors) == pytest.approx(expected, rel=0.15)
    assert np.mean(levels) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", MIXTURES)
def test_the_estimate_is_unbiased(name, rng):
    weights, means, variances = map(np.array, MIXTURES[name])
    fm = FeatureMap(means.shape[1], 40, scale=1.0, seed=1)
    z = characteristic(weights, means, variances, fm.frequencies) / np.sqrt(40)
    n = 200_000
    got = partial_sketch(draw(rng, n, weights, means, variances), fm)
    # chi-squared with about 80 degrees of freedom, of correlated terms: ten times its mean never
    assert np.linalg.norm(got.z - z) ** 2 < 4 * (1 - np.linalg.norm(z) ** 2) / n
    assert np.linalg.norm(got.z) <= 1
    np.testing.assert_allclose(got.mean, weights @ means, atol=6 * np.sqrt(20 / n))
    total = weights @ (variances + means**2) - (weights @ means) ** 2
    np.testing.assert_allclose(got.variance, total, rtol=0.03)


def test_mean_and_variance_are_those_of_the_data(rng):
    x = 1e5 + rng.normal(size=(3000, 3)) * [1.0, 10.0, 0.1]
    w = rng.random(3000)
    fm = FeatureMap(3, 5, scale=1.0, center=x[:10].mean(axis=0))
    got = partial_sketch(x, fm, w)
    w = w.astype(np.float32).astype(float)  # as the float32 kernel has it
    mean = np.average(x, axis=0, weights=w)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-14)
    np.testing.assert_allclose(
        got.variance, np.average((x - mean) ** 2, axis=0, weights=w), rtol=1e-9
    )
    assert got.effective_count == pytest.approx(w.sum() ** 2 / (w**2).sum())
    np.testing.assert_array_equal(got.minimum, x.min(axis=0))
    np.testing.assert_array_equal(got.maximum, x.max(axis=0))


def test_one_row_has_modulus_one():
    got = partial_sketch([[3.0, 4.0]], FeatureMap(2, 100, scale=1.0))
    assert np.linalg.norm(got.z) == pytest.approx(1.0, abs=1e-6)
    assert got.noise_level == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_array_equal(got.variance, 0.0)
