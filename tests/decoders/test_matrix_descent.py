from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.decoders.matrix_descent import descend_matrices
from dask_sketch.decoders.noise_covariance import feature_covariance
from dask_sketch.decoders.objectives.atoms import packed, unpacked
from dask_sketch.decoders.objectives.objective import Objective

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(3000, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 0.8, 0.3], [0.0, 0.0, 0.4]])
SKETCH = partial_sketch(ROWS, FeatureMap(3, 60, scale=0.8, seed=1))
THETA = np.concatenate(
    [RNG.normal(size=(2, 3)), packed(np.eye(3) * [[[1.0]], [[2.0]]] + 0.3)], axis=1
)
WEIGHTS = np.array([0.7, 0.4])


@pytest.fixture
def objective() -> Objective:
    return Objective(SKETCH, "full")


def test_atoms_are_characteristic_functions(objective):
    matrices = unpacked(THETA[:, 3:], 3)
    phases = THETA[:, :3] @ objective.omega
    squares = np.einsum("im,kij,jm->km", objective.omega, matrices, objective.omega)
    expected = np.exp(-1j * phases - 0.5 * squares) / np.sqrt(60)
    real, imag = np.split(objective.atoms(THETA), 2, axis=1)
    np.testing.assert_allclose(real + 1j * imag, expected, atol=1e-12)


def test_gradients_are_those_of_differences(objective):
    _, _, by_theta = objective.cost_gradient(WEIGHTS, THETA)
    step = 1e-6
    for k, parameter in np.ndindex(by_theta.shape):
        moved = np.array([THETA, THETA])
        moved[:, k, parameter] += [step, -step]
        costs = [objective.cost(WEIGHTS, theta) for theta in moved]
        assert by_theta[k, parameter] == pytest.approx(
            (costs[0] - costs[1]) / (2 * step), rel=1e-4, abs=1e-8
        )
    jacobian = objective.jacobian(WEIGHTS, THETA)
    np.testing.assert_allclose(objective.gram(WEIGHTS, THETA), jacobian @ jacobian.T, atol=1e-12)


@pytest.mark.parametrize("family", ["full", "tied"])
def test_the_descent_ends_at_a_minimum(family):
    objective = Objective(SKETCH, family)
    fit = descend_matrices(objective, WEIGHTS, THETA)
    assert fit.converged
    assert fit.weights.sum() == pytest.approx(1.0)
    matrices = unpacked(fit.theta[:, 3:], 3)
    assert np.linalg.eigvalsh(matrices).min() > 0
    if family == "tied":
        np.testing.assert_array_equal(matrices[0], matrices[1])
    noise = RNG.normal(size=(20, 2, 9))
    if family == "tied":
        noise[:, 1, 3:] = noise[:, 0, 3:]
    around = [objective.cost(fit.weights, fit.theta + 1e-3 * each) for each in noise]
    assert min(around) > fit.cost - 1e-9


def test_limited_steps_keep_matrices_positive_definite(objective):
    far = THETA + 50.0 * RNG.normal(size=THETA.shape)
    limited = objective.space.limit_step(THETA, far)
    before, after = unpacked(THETA[:, 3:], 3), unpacked(limited[:, 3:], 3)
    ratios = np.linalg.eigvals(np.linalg.solve(before, after))
    assert (ratios > 0.299).all()
    assert (ratios < 10.01).all()


def test_covariance_of_features_is_that_of_samples():
    matrices = np.array([[[1.0, 0.7], [0.7, 1.0]], [[0.5, -0.2], [-0.2, 2.0]]])
    weights, means = np.array([0.3, 0.7]), np.array([[0.0, 1.0], [2.0, 0.0]])
    frequencies = RNG.normal(size=(2, 4))
    found = feature_covariance(weights, means, matrices, frequencies)
    component = RNG.random(400_000) < 0.7
    factors = np.linalg.cholesky(matrices)[component.astype(int)]
    x = means[component.astype(int)] + np.einsum(
        "nij,nj->ni", factors, RNG.normal(size=(400_000, 2))
    )
    features = np.exp(-1j * x @ frequencies)
    expected = np.cov(np.concatenate([features.real, features.imag], axis=1).T)
    np.testing.assert_allclose(np.tril(found), np.tril(expected), atol=5e-3)
