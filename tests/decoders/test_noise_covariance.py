from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import partial_sketch
from dask_sketch.decoders.descent import descend_fully
from dask_sketch.decoders.noise_covariance import (
    expected_cost,
    feature_covariance,
    is_explained,
)
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.features import FeatureMap
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


@pytest.mark.parametrize("m", [40, 300])  # one tile, and three
def test_is_the_formula_of_the_characteristic_function(m):
    mixture = random_mixture(4, 3, seed=0)
    omega = np.random.default_rng(1).normal(size=(3, m))
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


def fits(n_features, n_components, n_frequencies, seeds, n_samples=20_000):
    """Objective and best fit, from the truth, for samples of one mixture after the other."""
    truth = random_mixture(n_components, n_features, seed=3)
    feature_map = FeatureMap(n_features, n_frequencies, scale=1.0, seed=1)
    for seed in seeds:
        objective = Objective(partial_sketch(truth.sample(n_samples, seed=seed), feature_map))
        theta = objective.space.from_data_units(truth.means, truth.covariances)
        yield objective, descend_fully(objective, theta, truth.weights)


def test_expected_cost_is_that_of_the_best_fits():
    costs, means, deviations = [], [], []
    for objective, fit in fits(1, 2, 40, range(30), n_samples=5000):
        mean, deviation = expected_cost(objective, fit.weights, fit.theta, np.random.default_rng(0))
        costs.append(fit.cost)
        means.append(mean)
        deviations.append(deviation)
    # 30 costs: their mean is known to a fifth of their deviation, the deviation to an eighth
    assert np.mean(costs) == pytest.approx(np.mean(means), abs=0.6 * np.mean(deviations))
    assert np.std(costs) == pytest.approx(np.mean(deviations), rel=0.4)
    assert np.mean(means) < 0.6 * objective.noise_level  # the noise is not white


def test_noise_explains_the_best_fit_and_no_poor_one():
    for objective, fit in fits(3, 3, 200, range(3)):
        assert is_explained(objective, fit, np.random.default_rng(0))
        theta = fit.theta.copy()
        theta[0, 0] += 0.3
        poor = descend_fully(objective, theta[1:])
        assert not is_explained(objective, poor, np.random.default_rng(0))


def test_nothing_explains_nothing():
    objective, fit = next(fits(1, 2, 40, [0]))
    empty = descend_fully(objective, fit.theta, fit.weights)
    empty.weights[:] = 0.0
    assert not is_explained(objective, empty, np.random.default_rng(0))
