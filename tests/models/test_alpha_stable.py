"""Mixtures of alpha-stable distributions: densities by quadrature, samples, storage."""

from __future__ import annotations

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from scipy import integrate

from dask_sketch import open as open_artifact
from dask_sketch.errors import InputError
from dask_sketch.models import AlphaStableMixture, GaussianMixture
from dask_sketch.models.alpha_stable import log_radial


@pytest.fixture
def mixture():
    return AlphaStableMixture(
        [0.6, 0.4], [[0.0, 1.0], [5.0, -2.0]], [[1.0, 2.0], [0.5, 0.3]], [1.3, 1.8]
    )


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.55, 0.8, 1.2, 1.7, 1.97, 1.9985])
def test_density_inverts_the_characteristic_function(alpha):
    t = np.linspace(0.0, 1.0, 400_001)[1:] ** 2 * (2.0 * 36.0 ** (2.0 / alpha)) ** 0.5
    psi = np.exp(-((t**2 / 2.0) ** (alpha / 2.0)))
    for x in (0.2, 1.0, 4.0):
        start = (1.0 + np.cos(t[0] * x)) * t[0] / 2.0
        density = (integrate.trapezoid(np.cos(t * x) * psi, t) + start) / np.pi
        np.testing.assert_allclose(np.exp(log_radial(np.array([x]), alpha, 1)), density, rtol=2e-4)


def test_density_is_that_of_cauchy_and_gauss_in_any_dimension():
    r = np.array([0.0, 0.4, 3.0, 200.0, 1e12])
    half = 2.0**-0.5
    expected = np.log(half / (2.0 * np.pi)) - 1.5 * np.log(r**2 + half**2)
    np.testing.assert_allclose(log_radial(r, 1.0, 2), expected, atol=2e-5)
    gaussian = -0.5 * r[:3] ** 2 - 1.5 * np.log(2.0 * np.pi)
    np.testing.assert_allclose(log_radial(r[:3], 2.0, 3), gaussian)


def test_radial_density_integrates_to_one_in_many_dimensions():
    d, u = 20, np.arange(-8.0, 25.0, 0.01)
    surface = np.log(2.0) + 0.5 * d * np.log(np.pi) - np.log(362880.0)  # gamma(10)
    total = np.exp(log_radial(np.exp(u), 1.5, d) + surface + d * u).sum() * 0.01
    np.testing.assert_allclose(total, 1.0, rtol=1e-5)


def test_samples_have_the_characteristic_function(mixture):
    x, n = mixture.sample(100_000, seed=2), 100_000
    omega = np.random.default_rng(0).normal(size=(2, 30))
    empirical = np.exp(-1j * x @ omega).mean(axis=0)
    assert np.abs(empirical - mixture.characteristic(omega)).max() < 4.0 / np.sqrt(n)
    np.testing.assert_array_equal(x[:9], mixture.sample(n, seed=2)[:9])
    heavy = AlphaStableMixture([1.0], [[0.0]], [[1.0]], [0.6]).sample(20_000, seed=1)
    assert np.isfinite(heavy).all()
    assert abs(np.mean(np.cos(heavy)) - np.exp(-(0.5**0.3))) < 0.02


def test_alpha_two_is_a_gaussian_mixture(mixture):
    weights, locations, scales = mixture.weights, mixture.locations, mixture.scales
    stable = AlphaStableMixture(weights, locations, scales, [2.0, 2.0])
    gaussian = GaussianMixture(weights, locations, scales**2)
    x = gaussian.sample(100, seed=1)
    np.testing.assert_allclose(stable.logpdf(x), gaussian.logpdf(x))
    np.testing.assert_allclose(stable.characteristic(np.eye(2)), gaussian.characteristic(np.eye(2)))


def test_predictions_marginals_and_storage(mixture, tmp_path):
    x = mixture.sample(300, seed=6)
    proba = mixture.predict_proba(x)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    lazy = da.from_array(x, chunks=(100, 2))
    np.testing.assert_array_equal(mixture.predict(lazy).compute(), proba.argmax(axis=1))
    np.testing.assert_allclose(mixture.score(lazy).compute(), mixture.logpdf(x).mean())
    one = mixture.marginal(1)
    omega = np.array([[0.7, 1.9]])
    both = mixture.characteristic(np.concatenate([np.zeros((1, 2)), omega]))
    np.testing.assert_allclose(one.characteristic(omega), both)
    np.testing.assert_array_equal(mixture.marginal([1, 0]).locations, mixture.locations[:, ::-1])
    assert mixture.n_parameters == 2 * 6 - 1
    shared = replace(mixture, alphas=np.full(2, 1.5), decoding=None)
    assert shared.n_parameters == 2 * 5 - 1 + 1
    mixture.to_zarr(tmp_path / "model.zarr")
    found = open_artifact(tmp_path / "model.zarr")
    for name in ("weights", "locations", "scales", "alphas"):
        np.testing.assert_array_equal(getattr(found, name), getattr(mixture, name))
    assert found.as_dict()["kind"] == "alpha-stable mixture"
    assert "alpha" in found._repr_html_()


def test_impossible_parameters_are_refused(mixture):
    for scales, alphas, message in (
        ([[1.0]], [2.1], "alphas range from 2.1"),
        ([[1.0]], [0.5], "alphas range from 0.5"),
        ([[0.0]], [1.0], "scales: .*positive"),
        ([[1.0, 1.0]], [1.0], "scales has shape"),
        ([[1.0]], [1.0, 1.0], "alphas has shape"),
    ):
        with pytest.raises(InputError, match=message):
            AlphaStableMixture([1.0], [[0.0]], scales, alphas)
    for features in (2, -1, [0, 0], [], "a", 0.5):
        with pytest.raises(InputError, match="features="):
            mixture.marginal(features)
