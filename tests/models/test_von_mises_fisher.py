"""Von Mises-Fisher mixtures: transforms, densities, samples, storage."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from scipy import special

from dask_sketch import open as open_artifact
from dask_sketch.errors import InputError
from dask_sketch.models import VonMisesFisherMixture
from dask_sketch.models.von_mises_fisher import (
    concentrations_of,
    fit_directions,
    log_bessel,
    resultant_lengths,
    transform_values,
)


@pytest.fixture
def mixture():
    directions = np.array([[0.6, 0.0, 0.8], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]])
    return VonMisesFisherMixture([0.5, 0.3, 0.2], directions, [3.0, 60.0, 0.0])


def sphere(d):
    """Points and masses of a quadrature of the circle or the sphere."""
    angles = 2 * np.pi * np.arange(400) / 400
    if d == 2:
        return np.stack([np.cos(angles), np.sin(angles)], axis=1), np.full(400, 2 * np.pi / 400)
    heights, masses = np.polynomial.legendre.leggauss(200)
    z, angle = (part.ravel() for part in np.meshgrid(heights, angles, indexing="ij"))
    r = np.sqrt(1 - z**2)
    masses = np.repeat(masses, 400) * 2 * np.pi / 400
    return np.stack([r * np.cos(angle), r * np.sin(angle), z], axis=1), masses


@pytest.mark.parametrize("d", [2, 3])
def test_density_and_transform_agree_with_quadrature(d):
    rng = np.random.default_rng(d)
    directions = rng.normal(size=(3, d))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    mixture = VonMisesFisherMixture([0.5, 0.3, 0.2], directions, [0.0, 2.5, 70.0])
    points, masses = sphere(d)
    density = masses * np.exp(mixture.logpdf(points))
    np.testing.assert_allclose(density.sum(), 1.0, rtol=1e-12)
    omega = rng.normal(size=(d, 30)) * np.geomspace(0.1, 30.0, 30)
    expected = np.exp(-1j * points @ omega).T @ density
    np.testing.assert_allclose(mixture.characteristic(omega), expected, atol=1e-12)


@pytest.mark.parametrize("d", [5, 40])
def test_transform_agrees_with_simulated_rows(d):
    rng = np.random.default_rng(d)
    direction = rng.normal(size=(1, d))
    mixture = VonMisesFisherMixture([1.0], direction / np.linalg.norm(direction), [4.0 * d])
    x, n = mixture.sample(40_000, seed=1), 40_000
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0)
    omega = rng.normal(size=(d, 20)) * np.geomspace(0.5, 8.0, 20)
    empirical = np.exp(-1j * x @ omega).mean(axis=0)
    assert np.abs(empirical - mixture.characteristic(omega)).max() < 4.0 / np.sqrt(n)


@pytest.mark.parametrize("order", [1.0, 1.5, 29.0, 119.5, 121.5, 400.0, 2000.0])
def test_bessel_functions_fulfil_their_recurrence(order):
    # near the origin, where power series meet other expansions, and far from it
    lengths = 2.0 * np.sqrt(order + 1.0) * np.array([1e-6, 0.3, 0.99, 1.01, 3.0, 50.0])
    roots = (lengths[:, None] * np.exp(1j * np.array([0.0, 0.4, 0.9, 1.3]))).ravel()
    below, at, above = (log_bessel(v, roots) for v in (order - 1, order, order + 1))
    last = np.exp(np.log(roots**2 / (4 * order * (order + 1))) + above - below)
    assert (np.abs(1.0 - last - np.exp(at - below)) < 1e-9 * (1.0 + np.abs(last))).all()


def test_concentrated_components_are_gaussian_in_the_tangent():
    d, k = 300, 1e6
    omega = np.random.default_rng(0).normal(size=(d, 10)) * 60.0
    direction = np.eye(1, d)
    values = transform_values(direction, np.array([k]), omega)[0]
    length = resultant_lengths(np.array([k]), d)[0]
    tangent = np.square(omega[1:]).sum(axis=0)
    expected = np.exp(-1j * length * omega[0] - 0.5 * tangent / k)
    np.testing.assert_allclose(values, expected, atol=1e-3)
    np.testing.assert_allclose(concentrations_of(np.array([length]), d), k, rtol=1e-6)


def test_a_uniform_component_has_the_transform_of_the_sphere():
    values = transform_values(np.eye(1, 3), np.zeros(1), np.diag([0.0, 1.0, 7.0]))
    np.testing.assert_allclose(values[0], np.sinc(np.array([0.0, 1.0, 7.0]) / np.pi), atol=1e-15)


def test_samples_have_the_mean_vectors(mixture):
    x = mixture.sample(60_000, seed=3)
    expected = (mixture.weights * mixture.resultants) @ mixture.directions
    np.testing.assert_allclose(x.mean(axis=0), expected, atol=0.01)
    np.testing.assert_array_equal(x[:7], mixture.sample(60_000, seed=3)[:7])
    assert mixture.sample(0).shape == (0, 3)
    narrow = VonMisesFisherMixture([1.0], np.eye(1, 4), [1e7]).sample(2000, seed=1)
    np.testing.assert_allclose(np.square(narrow[:, 1:]).sum(axis=1).mean(), 3e-7, rtol=0.1)


def test_probabilities_are_of_directions_and_lazy_for_lazy_input(mixture, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 3)) * 100.0
    unit = x / np.linalg.norm(x, axis=1)[:, None]
    each = [VonMisesFisherMixture([1.0], mixture.directions[[k]], mixture.concentrations[[k]])
            for k in range(3)]  # fmt: skip
    joint = mixture.weights * np.exp([one.logpdf(unit) for one in each]).T
    np.testing.assert_allclose(mixture.logpdf(x), np.log(joint.sum(axis=1)))
    np.testing.assert_allclose(mixture.predict_proba(x), joint / joint.sum(axis=1)[:, None])
    lazy = da.from_array(x, chunks=(20, 3))
    np.testing.assert_array_equal(mixture.predict(lazy).compute(), joint.argmax(axis=1))
    np.testing.assert_allclose(mixture.score(lazy).compute(), mixture.logpdf(x).mean())
    assert mixture.n_parameters == 3 * 3 + 2
    surface = np.log(2 * np.pi**1.5 / special.gamma(1.5))
    np.testing.assert_allclose(each[2].logpdf(x), -surface)
    mixture.to_zarr(tmp_path / "model.zarr")
    found = open_artifact(tmp_path / "model.zarr")
    for name in ("weights", "directions", "concentrations"):
        np.testing.assert_array_equal(getattr(found, name), getattr(mixture, name))
    assert found.as_dict()["kind"] == "von Mises-Fisher mixture"
    assert "concentration" in found._repr_html_()


def test_impossible_parameters_and_rows_are_refused(mixture):
    for directions, concentrations, message in (
        ([[0.6, 0.0]], [1.0], "direction 0 has length 0.6"),
        ([[1.0, 0.0]], [1.0, 2.0], "concentrations has shape"),
        ([[1.0, 0.0]], [-1.0], "concentrations range from -1"),
        ([[1.0, 0.0]], [1e9], "concentrations range from 1e"),
        ([[1.0]], [1.0], "directions have 1 feature"),
    ):
        with pytest.raises(InputError, match=message):
            VonMisesFisherMixture([1.0], directions, concentrations)
    with pytest.raises(InputError, match="row 1 of x is 0"):
        mixture.predict([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    with pytest.raises(InputError, match="frequencies has shape"):
        mixture.characteristic(np.ones((2, 4)))


def test_em_finds_the_mixture_of_the_points():
    truth = VonMisesFisherMixture([0.7, 0.3], np.eye(2, 3), [8.0, 30.0])
    x = truth.sample(20_000, seed=4)
    start = np.full(2, 0.5), np.array([[0.8, 0.6, 0.0], [0.0, 0.8, 0.6]]), np.ones(2)
    found = fit_directions(x, None, [start])
    assert found.log_likelihood >= truth.score(x)
    assert found.converged
    np.testing.assert_allclose(found.concentrations, truth.concentrations, rtol=0.05)
    np.testing.assert_allclose(found.weights, truth.weights, atol=0.02)
