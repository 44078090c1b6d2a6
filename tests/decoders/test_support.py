from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import fit_weights, nothing, threshold


@pytest.fixture
def objective(sketch):
    return Objective(sketch)


@pytest.fixture
def true_theta(objective, truth):
    return objective.from_data_units(truth.means, truth.covariances)


def test_weights_are_the_non_negative_least_squares(objective, true_theta):
    far = objective.from_data_units(np.full((1, 2), 30.0), np.ones((1, 2)))
    theta = np.vstack([true_theta, far])
    expected = nnls(objective.atoms(theta).T, np.concatenate(objective.target))[0]
    weights = fit_weights(objective, theta)
    np.testing.assert_allclose(weights, expected, atol=1e-10)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights[:3], 1 / 3, atol=0.02)


def test_atoms_that_no_frequency_sees_weigh_nothing(objective):
    variances = np.geomspace(1.0, 1e6, 2000)  # so wide that some are seen at 1e-300
    wide = objective.from_data_units(np.zeros((2000, 2)), np.stack([variances] * 2, axis=1))
    largest = np.abs(objective.atoms(wide)).max(axis=1)
    unseen = wide[(largest > 0) & (largest < 1e-100)]
    assert len(unseen) > 2
    for theta in unseen:
        assert not fit_weights(objective, theta[None]).any()


def test_threshold_keeps_the_atoms_that_explain(objective, true_theta):
    far = objective.from_data_units(np.array([[30.0, 0], [0, -30.0]]), np.ones((2, 2)))
    theta = np.vstack([far[:1], true_theta, far[1:]])
    np.testing.assert_array_equal(threshold(objective, theta, 3), true_theta)
    np.testing.assert_array_equal(threshold(objective, true_theta, 3), true_theta)


def test_threshold_keeps_k_atoms_though_fewer_explain(objective, true_theta):
    theta = np.repeat(true_theta[:1], 4, axis=0)  # three at least are redundant
    assert threshold(objective, theta, 3).shape == (3, 4)


def test_threshold_weighs_normalised_atoms(objective):
    # a wide atom has a small norm: its weight is large, its share of the sketch is not
    theta = objective.from_data_units(np.zeros((2, 2)), np.array([[1.0, 1.0], [400.0, 400.0]]))
    rows = objective.atoms(theta)
    objective.target = tuple(
        np.array([0.3, 0.7]) @ rows.reshape(2, 2, -1).swapaxes(0, 1)[i] for i in range(2)
    )
    np.testing.assert_allclose(fit_weights(objective, theta), [0.3, 0.7], atol=1e-9)
    np.testing.assert_array_equal(threshold(objective, theta, 1), theta[:1])


def test_nothing_costs_the_whole_sketch(objective):
    fit = nothing(objective)
    z = np.concatenate(objective.target)
    assert fit.cost == pytest.approx(z @ z)
    assert fit.theta.shape == (0, 4)
