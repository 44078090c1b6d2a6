"""Widths of covariance matrices along axes that the sketch hardly resolves."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from dask_sketch import GaussianMixture, decode, design, partial_sketch
from dask_sketch.decoders.narrow_axes import warn_of_narrow_axes, widened

TURNED = np.array([[0.6, -0.8], [0.8, 0.6]])


def test_variances_of_many_errors_stay_as_they_are():
    matrices = np.array([TURNED @ np.diag([2.0, 0.5]) @ TURNED.T])
    found = widened(matrices, [np.eye(3) * 1e-4], np.ones(1))
    np.testing.assert_allclose(found.matrices, matrices, rtol=1e-9)
    assert found.loss == 0.0


@pytest.mark.parametrize("variance", [1e-12, 0.05, 0.1, 0.2])
def test_narrow_axes_have_the_mean_of_the_variances_that_are_likely(variance):
    """Against draws of the variance, of which the best one for their densities is the mean."""
    matrices = np.array([TURNED @ np.diag([2.0, variance]) @ TURNED.T])
    found = widened(matrices, [np.eye(3) * 0.01], np.ones(1))
    u, v = TURNED[:, 1]
    error = 0.1 * np.sqrt(u**4 + v**4 + (2 * u * v) ** 2)
    draws = variance + error * np.random.default_rng(0).normal(size=400_000)
    draws = draws[draws > 0.0]
    expected = TURNED @ np.diag([2.0, draws.mean()]) @ TURNED.T
    np.testing.assert_allclose(found.matrices[0], expected, atol=2e-3)
    lost = 0.5 * (np.log(draws.mean()) - np.log(draws).mean())
    assert found.loss == pytest.approx(lost, rel=0.03)
    grid = np.linspace(0.5, 2.0, 61) * draws.mean()
    likelihoods = [-0.5 * (np.log(a) + draws.mean() / a) for a in grid]
    assert grid[np.argmax(likelihoods)] == pytest.approx(draws.mean(), rel=0.03)


def test_a_large_loss_is_warned_of():
    warn_of_narrow_axes(0.01, "sketch more")
    with pytest.warns(UserWarning, match=r"0\.2 nats.*; sketch more;"):
        warn_of_narrow_axes(0.2, "sketch more")


def test_narrow_components_of_few_complete_rows_are_not_too_narrow():
    """40 % of the values are missing: before, fits lost 4 to 6 nats a sample in silence."""
    rng = np.random.default_rng(11)
    means, roots = 2.5 * rng.normal(size=(5, 6)), 0.4 * rng.normal(size=(5, 6, 6)) + np.eye(6)
    covariances = np.einsum("kij,klj->kil", roots, roots)
    truth = GaussianMixture(np.full(5, 0.2), means, covariances, covariance_type="full")
    x, heldout = truth.sample(20_000, seed=1), truth.sample(20_000, seed=2)
    x[np.random.default_rng(3).random(x.shape) < 0.4] = np.nan
    feature_map = design(x, n_components=5, covariance_type="full", nan_policy="available")
    sketch = partial_sketch(x, feature_map, nan_policy="available")
    with pytest.warns(UserWarning, match="narrow along some axes"):
        model = decode(sketch, 5, covariance_type="full")
    assert truth.score(heldout) - model.score(heldout) < 0.8


@pytest.mark.parametrize(("covariance_type", "k"), [("tied", 2), ("full", 1)])
def test_axes_as_narrow_as_a_fit_allows_are_warned_of(covariance_type, k):
    """A feature that nearly follows from others: fits lost 2 nats to one Gaussian in silence."""
    rng = np.random.default_rng(102)
    x = rng.normal(size=(6000, 3))
    x[:, 2] = x[:, 0] + x[:, 1] + 1e-3 * x[:, 2]
    feature_map = design(x, n_components=k, covariance_type=covariance_type)
    sketch = partial_sketch(x, feature_map)
    with warnings.catch_warnings(record=True) as caught:  # also of the statistic
        warnings.simplefilter("always")
        decode(sketch, k, covariance_type=covariance_type)
    assert any("axes as variance_floor allows" in str(one.message) for one in caught)


def test_a_constant_feature_is_no_narrow_axis():
    x = np.random.default_rng(0).normal(size=(6000, 3))
    x[:, 2] = 1.0
    with pytest.warns(UserWarning, match="do not vary"):
        feature_map = design(x, n_components=1, covariance_type="full")
    decode(partial_sketch(x, feature_map), 1, covariance_type="full")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_tied_matrix_is_widened_along_narrow_axes(seed):
    """With a low floor, fits had variances of almost nothing, and lost up to 7e4 nats."""
    rng = np.random.default_rng(100 + seed)
    x = rng.normal(size=(12_000, 3))
    x[:, 2] = x[:, 0] + x[:, 1] + 1e-3 * x[:, 2]
    feature_map = design(x[:6000], n_components=2, covariance_type="tied", seed=seed)
    sketch = partial_sketch(x[:6000], feature_map)
    with warnings.catch_warnings(record=True) as caught:  # also of the statistic
        warnings.simplefilter("always")
        model = decode(sketch, 2, covariance_type="tied", variance_floor=1e-6, seed=seed)
    assert any("narrow along some axes" in str(one.message) for one in caught)
    rival = GaussianMixture(
        np.ones(1), x[:6000].mean(axis=0)[None], np.cov(x[:6000].T)[None], covariance_type="full"
    )
    assert rival.score(x[6000:]) - model.score(x[6000:]) < 20.0
