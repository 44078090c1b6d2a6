"""The moments of a mixture beside its sketch: values and derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from decoders.reference import numerical_gradient

from dask_sketch import partial_sketch
from dask_sketch.decoders.mixture_reduction import MomentObjective
from dask_sketch.decoders.objective import Objective
from dask_sketch.features import FeatureMap
from dask_sketch.models import GaussianMixture, random_mixture

MODELS = ["isotropic", "gaussian", "dirac", "scaled"]


@pytest.fixture(scope="module")
def a_sketch():
    truth = random_mixture(4, 3, seed=3)
    feature_map = FeatureMap(3, 40, covariances=[0.5, 2.0, 1.0], seed=1, dtype="float64")
    return partial_sketch(truth.sample(3000, seed=2) * 3 + 5, feature_map)


def atoms_of(objective, n=3, seed=4):
    rng = np.random.default_rng(seed)
    theta = rng.uniform(0.2, 1.0, (n, objective.n_parameters))
    theta[:, : objective.n_features] = rng.normal(size=(n, objective.n_features))
    return rng.uniform(0.2, 0.5, n), theta


@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_finite_differences(a_sketch, model):
    objective = MomentObjective(a_sketch, model)
    weights, theta = atoms_of(objective)
    cost, by_weight, by_theta = objective.cost_gradient(weights, theta)
    assert cost == pytest.approx(objective.cost(weights, theta), rel=1e-12)
    numeric = numerical_gradient(lambda a: objective.cost(a, theta), weights)
    np.testing.assert_allclose(by_weight, numeric, atol=1e-6)
    numeric = numerical_gradient(lambda t: objective.cost(weights, t), theta)
    np.testing.assert_allclose(by_theta, numeric, atol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_gram_is_that_of_all_rows(a_sketch, model):
    objective, plain = MomentObjective(a_sketch, model), Objective(a_sketch, model)
    weights, theta = atoms_of(objective)
    extra = objective.gram(weights, theta) - plain.gram(weights, theta)
    x = np.concatenate([weights, theta.ravel()])

    def moments(x):
        return objective._moments(x[:3], x[3:].reshape(3, -1))

    jacobian = np.stack(
        [numerical_gradient(lambda x, i=i: moments(x)[i], x) for i in range(7)], axis=1
    )
    np.testing.assert_allclose(extra, jacobian @ jacobian.T, atol=1e-7)


def test_only_the_sketch_counts_where_the_moments_are_right():
    x = random_mixture(3, 2, seed=0).sample(4000, seed=1)
    sketch = partial_sketch(x, FeatureMap(2, 30, scale=1.0))
    objective = MomentObjective(sketch, "gaussian")
    theta = objective.from_data_units(sketch.mean[None], sketch.variance[None])
    one = np.ones(1)
    assert objective.cost(one, theta) == pytest.approx(objective.sketch_cost(one, theta))
    wrong = objective.from_data_units(
        sketch.mean[None] + np.sqrt(sketch.variance), sketch.variance[None]
    )
    # off by one deviation in every mean, and by as much in every second moment
    expected = 0.3**2 * (1 + 1)
    extra = objective.cost(one, wrong) - objective.sketch_cost(one, wrong)
    assert extra == pytest.approx(expected)


def test_the_moments_are_those_of_the_data_units(a_sketch):
    objective = MomentObjective(a_sketch, "gaussian")
    weights, theta = atoms_of(objective)
    weights = weights / weights.sum()
    mixture = GaussianMixture(weights, *objective.to_data_units(theta))
    off_mean = (a_sketch.mean - mixture.mean) / np.sqrt(a_sketch.variance)
    second = mixture.variance + (mixture.mean - a_sketch.mean) ** 2
    off_square = (a_sketch.variance - second) / a_sketch.variance
    expected = 0.3**2 / 3 * (np.square(off_mean).sum() + np.square(off_square).sum())
    extra = objective.cost(weights, theta) - objective.sketch_cost(weights, theta)
    assert extra == pytest.approx(expected)


def test_a_feature_that_does_not_vary():
    x = np.random.default_rng(0).normal(size=(500, 2)) * [1.0, 0.0]
    objective = MomentObjective(partial_sketch(x, FeatureMap(2, 20, scale=1.0)), "isotropic")
    weights, theta = atoms_of(objective)
    assert np.isfinite(objective.cost(weights, theta))
    assert np.isfinite(objective.gram(weights, theta)).all()
