from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.decoders import noise_covariance as covariance
from dask_sketch.decoders.noise_covariance import feature_covariance
from dask_sketch.models import random_mixture


def by_definition(mixture, omega):
    """psi(w_i - w_j) - psi_i conj psi_j and psi(w_i + w_j) - psi_i psi_j, as real and imaginary."""
    m = omega.shape[1]
    pairs = omega[:, :, None], omega[:, None, :]
    psi = mixture.characteristic(omega)
    hermitian = mixture.characteristic((pairs[0] - pairs[1]).reshape(len(omega), -1))
    hermitian = hermitian.reshape(m, m) - np.outer(psi, psi.conj())
    pseudo = mixture.characteristic((pairs[0] + pairs[1]).reshape(len(omega), -1))
    pseudo = pseudo.reshape(m, m) - np.outer(psi, psi)
    return (
        np.block(
            [
                [(hermitian + pseudo).real, (pseudo - hermitian).imag],
                [(hermitian + pseudo).imag, (hermitian - pseudo).real],
            ]
        )
        / 2
    )


@pytest.mark.parametrize("tile", [256, 7])
def test_is_the_formula_of_the_characteristic_function(tile, monkeypatch):
    monkeypatch.setattr(covariance, "_TILE", tile)
    mixture = random_mixture(4, 3, seed=0)
    omega = np.random.default_rng(1).normal(size=(3, 40))
    found = feature_covariance(mixture.weights, mixture.means, mixture.covariances, omega)
    expected = by_definition(mixture, omega)
    np.testing.assert_allclose(expected, expected.T, atol=1e-15)
    np.testing.assert_allclose(np.tril(found), np.tril(expected), atol=1e-14)


def test_is_the_covariance_of_samples():
    mixture = random_mixture(3, 2, seed=5)
    omega = np.random.default_rng(2).normal(size=(2, 6))
    phase = mixture.sample(400_000, seed=3) @ omega
    sampled = np.cov(np.hstack([np.cos(phase), -np.sin(phase)]).T)
    found = feature_covariance(mixture.weights, mixture.means, mixture.covariances, omega)
    np.testing.assert_allclose(np.tril(found), np.tril(sampled), atol=0.004)


def test_far_frequencies_do_not_overflow():
    mixture = random_mixture(2, 2, seed=1)
    omega = np.array([[1e3, -2e3, 0.0], [0.0, 5e2, 1e-8]])
    found = feature_covariance(mixture.weights, mixture.means, mixture.covariances, omega)
    assert np.isfinite(found).all()
    # cosine and sine of a phase that is uniform
    np.testing.assert_allclose(found.diagonal()[[0, 1, 3, 4]], 0.5)
