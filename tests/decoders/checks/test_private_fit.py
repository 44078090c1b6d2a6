"""Fits to private sketches, of noise and of bounds alone."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import dask_sketch as ds


def private(seed, n_features, n_components, n_samples, epsilon, noise_seed=1):
    """Mixture, and a private sketch whose bounds are far wider than the data."""
    rng = np.random.default_rng(seed)
    means = 5.0 * rng.normal(size=(n_components, n_features))
    variances = rng.uniform(0.5, 2.0, size=means.shape) ** 2
    truth = ds.GaussianMixture(rng.dirichlet(np.full(n_components, 5.0)), means, variances)
    x = truth.sample(n_samples, seed=2)
    sketch = ds.sketch(x, ds.design(x, n_components=n_components), sample=False)
    bounds = np.full((2, n_features), 60.0) * [[-1.0], [1.0]]
    return truth, ds.privatise(sketch, epsilon, 1e-6, bounds=bounds, seed=noise_seed)


def test_wide_bounds_hide_no_component():
    truth, sketch = private(26, 6, 4, 20_000, 2.0)
    rows = truth.sample(2000, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ds.decode(sketch, 4)
    assert truth.score(rows) - model.score(rows) < 0.01  # 137 nats from one range
    assert model.decoding.cost < model.decoding.noise_level
    np.testing.assert_array_equal(ds.decode(sketch, 4).means, model.means)


def test_components_that_noise_hides_are_warned_of():
    truth, sketch = private(101, 4, 3, 1000, 1.0, noise_seed=2)
    rows = truth.sample(2000, seed=3)
    with pytest.warns(UserWarning, match=r"noise of the private sketch .* nats a sample"):
        model = ds.decode(sketch, 3)
    assert truth.score(rows) - model.score(rows) > 1.0


@pytest.mark.slow
def test_poor_fits_are_warned_of():
    _, sketch = private(26, 6, 4, 20_000, 2.0)
    with pytest.warns(UserWarning, match="noise levels of the private sketch.*bounds="):
        ds.decode(sketch, 2)


@pytest.mark.slow
def test_stable_components_that_noise_hides_are_warned_of():
    _, sketch = private(101, 4, 3, 1000, 1.0, noise_seed=2)
    with pytest.warns(UserWarning, match=r"noise of the private sketch .* nats? a sample"):
        ds.decode(sketch, 3, model="alpha-stable")
