from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import partial_sketch
from dask_sketch.decoders.descent import descend_fully
from dask_sketch.decoders.noise_covariance import expected_cost, is_explained
from dask_sketch.decoders.objective import Objective
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture


def fits(n_features, n_components, n_frequencies, seeds, n_samples=20_000):
    """Objective and best fit, from the truth, for samples of one mixture after the other."""
    truth = random_mixture(n_components, n_features, seed=3)
    feature_map = FeatureMap(n_features, n_frequencies, scale=1.0, seed=1)
    for seed in seeds:
        objective = Objective(partial_sketch(truth.sample(n_samples, seed=seed), feature_map))
        theta = objective.from_data_units(truth.means, truth.covariances)
        yield objective, descend_fully(objective, theta, truth.weights)


@pytest.mark.parametrize(("d", "k", "m"), [(1, 2, 40), (3, 3, 200)])
def test_expected_cost_is_that_of_the_best_fits(d, k, m):
    costs, means, deviations = [], [], []
    for objective, fit in fits(d, k, m, range(30)):
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


def test_points_are_features(sketch):
    objective = Objective(sketch)
    x = np.random.default_rng(0).normal(size=(5, 2))
    real, imag = np.split(objective.points(x), 2, axis=1)
    expected = np.exp(-1j * x @ objective.omega) / np.sqrt(objective.n_frequencies)
    np.testing.assert_allclose(real + 1j * imag, expected, atol=1e-15)
