from __future__ import annotations

from copy import copy

import numpy as np
import pytest
from decoders.reference import Reference, numerical_gradient

from dask_sketch import partial_sketch
from dask_sketch.decoders.names import ATOMS
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture
from dask_sketch.validation.threads import Threads

KNOWN = np.array([[0.5, -0.3, 0.02], [-0.3, 4.0, 0.1], [0.02, 0.1, 0.05]])


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)) * [1.0, 5.0, 0.2] + [3.0, -40.0, 0.1]
    feature_map = FeatureMap(3, 700, covariances=[0.5, 9.0, 0.03], seed=1, dtype="float64")
    return partial_sketch(x, feature_map)


def make(data, model):
    return Objective(data, model, covariance=KNOWN if model == "known" else None)


@pytest.fixture(scope="module")
def objective(data):
    return make(data, "gaussian")


@pytest.fixture(scope="module", params=ATOMS)
def every(request, data):
    """An objective of each family."""
    return make(data, request.param)


def draw(objective, n_atoms=4):
    rng = np.random.default_rng(2)
    weights = rng.uniform(0.1, 1.0, n_atoms)
    shapes = rng.uniform(0.2, 2.0, (n_atoms, objective.space.n_shapes))
    return weights, np.concatenate([rng.normal(size=(n_atoms, 3)), shapes], axis=1)


@pytest.fixture
def atoms(objective):
    return draw(objective)


def as_complex(rows):
    real, imag = np.split(rows, 2, axis=-1)
    return real + 1j * imag


def test_atoms_are_the_formula(every):
    _, theta = draw(every)
    expected = Reference(every).atoms(theta)
    np.testing.assert_allclose(as_complex(every.atoms(theta)), expected, atol=1e-15)


def test_points_are_atoms_without_width(data):
    objective = make(data, "dirac")
    points = np.random.default_rng(3).normal(size=(5, 3))
    np.testing.assert_allclose(objective.points(points), objective.atoms(points), atol=1e-14)


@pytest.mark.parametrize("model", ATOMS)
def test_atoms_are_characteristic_functions_in_data_units(data, model):
    # the mean of exp(-i w.x) over a component's own samples, but for the shift of coordinates
    objective = make(data, model)
    _, theta = draw(objective, 2)
    means, variances = objective.space.to_data_units(theta)
    omega = data.feature_map.frequencies
    matrices = [KNOWN] * 2 if model == "known" else [np.diag(row) for row in variances]
    if model == "isotropic":
        np.testing.assert_allclose(variances[:, 1:], variances[:, :1] * [1.0, 1.0])
    if model == "dirac":
        np.testing.assert_array_equal(variances, 0.0)
    for row, mean, matrix in zip(objective.atoms(theta), means, matrices, strict=True):
        np.testing.assert_allclose(
            np.diagonal(matrix), variances[0] if model == "known" else np.diagonal(matrix)
        )
        exponent = -1j * (mean - objective.space.shift) @ omega
        exponent = exponent - 0.5 * np.einsum("ij,ij->j", omega, matrix @ omega)
        expected = np.exp(exponent) / np.sqrt(omega.shape[1])
        np.testing.assert_allclose(as_complex(row), expected, atol=1e-14)


def test_feature_weights_multiply_sketch_and_atoms():
    x = np.random.default_rng(0).normal(size=(400, 3)) + 2.0
    feature_map = FeatureMap(3, 90, scale=1.0, distribution="clustering", seed=1, dtype="float64")
    sketch = partial_sketch(x, feature_map)
    objective = Objective(sketch, "dirac")
    weights = feature_map.feature_weights
    assert weights.std() > 0.01
    shift = np.exp(1j * objective.space.shift @ feature_map.frequencies)
    target = objective.target[0] + 1j * objective.target[1]
    np.testing.assert_allclose(target, weights * shift * sketch.z, atol=1e-15)
    points = np.random.default_rng(1).normal(size=(4, 3))
    expected = weights * np.exp(-1j * points @ objective.omega) / np.sqrt(90)
    np.testing.assert_allclose(as_complex(objective.atoms(points)), expected, atol=1e-15)
    noise = np.sum(weights**2 * (1 / 90 - np.abs(sketch.z) ** 2)) / 400
    assert objective.noise_level == pytest.approx(noise)


@pytest.mark.parametrize("distance", [1e3, 1e8])
def test_large_phases(objective, distance):
    theta = np.concatenate([np.full((1, 3), distance), np.full((1, 3), 1e-9)], axis=1)
    # the phase itself is rounded in proportion to its size
    np.testing.assert_allclose(
        as_complex(objective.atoms(theta)), Reference(objective).atoms(theta), atol=1e-15 * distance
    )


@pytest.fixture(scope="module", params=ATOMS)
def large(request):
    """An objective of each family with several blocks of frequencies and of pairs of 16 atoms."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)) * [1.0, 5.0, 0.2] + [3.0, -40.0, 0.1]
    feature_map = FeatureMap(3, 8500, covariances=[0.5, 9.0, 0.03], seed=1, dtype="float64")
    return make(partial_sketch(x, feature_map), request.param)


def everything(objective):
    """All results that are sums over blocks, of 16 atoms."""
    weights, theta = draw(objective, 16)
    residual = objective.residual(weights, theta)
    return (
        *objective.cost_gradient(weights, theta),
        objective.gram(weights, theta),
        *objective.curvatures(weights, theta),
        *objective.correlation_gradients(theta, residual),
        objective.correlations(theta, residual),
        objective.atoms(theta),
        *residual,
    )


def test_blocks_do_not_matter(large):
    small = copy(large)
    small.block_size = 10**7
    jacobian = small.jacobian(*draw(large, 16))
    for one, other in zip(everything(large), everything(small), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(large.jacobian(*draw(large, 16)), jacobian, atol=1e-15)
    np.testing.assert_allclose(everything(large)[3], jacobian @ jacobian.T, atol=1e-12)


def test_threads_change_no_bit(large):
    alone = everything(large)
    with Threads(3) as threads:
        together = copy(large)
        together.threads = threads
        for one, other in zip(alone, everything(together), strict=True):
            np.testing.assert_array_equal(one, other)


def test_cost_is_the_squared_distance(every):
    weights, theta = draw(every)
    expected = Reference(every).cost(weights, theta)
    assert every.cost(weights, theta) == pytest.approx(expected, rel=1e-12)
    assert every.cost_gradient(weights, theta)[0] == pytest.approx(expected, rel=1e-12)
    real, imag = every.residual(weights, theta)
    np.testing.assert_allclose(
        real + 1j * imag, Reference(every).residual(weights, theta), atol=1e-14
    )


def test_nothing_leaves_the_whole_sketch(every):
    real, imag = every.residual(np.empty(0), np.empty((0, every.space.n_parameters)))
    np.testing.assert_array_equal((real, imag), every.target)


def test_work_of_a_gram_matrix(objective):
    # pairs of atoms, of their derivatives, and of each with itself, at every frequency
    pairs, derivatives = 4 * 5 / 2, 1 + objective.space.n_parameters
    products = pairs * derivatives * (derivatives + 1) / 2
    assert objective.gram_work(4) == products * objective.n_frequencies


def test_cost_gradient(every):
    weights, theta = draw(every)
    reference = Reference(every)
    _, by_weight, by_theta = every.cost_gradient(weights, theta)
    expected = numerical_gradient(lambda w: reference.cost(w, theta), weights)
    np.testing.assert_allclose(by_weight, expected, atol=1e-8)
    expected = numerical_gradient(lambda t: reference.cost(weights, t), theta)
    np.testing.assert_allclose(by_theta, expected, atol=1e-8)


def test_jacobian(every):
    weights, theta = draw(every)
    jacobian = as_complex(every.jacobian(weights, theta))
    np.testing.assert_allclose(jacobian, Reference(every).jacobian(weights, theta), atol=1e-14)

    def model(x):
        return x[:4] @ every.atoms(x[4:].reshape(theta.shape))

    x = np.concatenate([weights, theta.ravel()])
    for column in range(0, 1400, 173):
        expected = numerical_gradient(lambda v, j=column: model(v)[j], x)
        np.testing.assert_allclose(every.jacobian(weights, theta)[:, column], expected, atol=1e-9)


def test_gram(every):
    weights, theta = draw(every)
    gram = every.gram(weights, theta)
    jacobian = every.jacobian(weights, theta)
    np.testing.assert_allclose(gram, jacobian @ jacobian.T, atol=1e-13)
    np.testing.assert_array_equal(gram, gram.T)
    every = copy(every)
    every.gram_dtype = np.float32
    single = every.gram(weights, theta)
    assert single.dtype == np.float64
    np.testing.assert_allclose(single, gram, atol=1e-5 * np.abs(gram).max())  # rounding
    np.testing.assert_array_equal(single, single.T)
    assert not (single == gram).all()


def test_cost_gradient_is_the_residual_s_along_the_jacobian(every):
    weights, theta = draw(every)
    _, by_weight, by_theta = every.cost_gradient(weights, theta)
    residual = np.concatenate(every.residual(weights, theta))
    expected = -2.0 * every.jacobian(weights, theta) @ residual
    np.testing.assert_allclose(np.append(by_weight, by_theta), expected, atol=1e-13)


def test_a_subsample_is_the_objective_of_fewer_frequencies(every):
    weights, theta = draw(every)
    fewer = every.subsample(100)
    assert fewer.n_frequencies == 100
    assert every.n_frequencies == 700
    chosen = [
        int(np.flatnonzero((every.omega == w[:, None]).all(axis=0))[0]) for w in fewer.omega.T
    ]
    assert len(set(chosen)) == 100
    columns = np.concatenate([chosen, 700 + np.array(chosen)])
    stretch = np.sqrt(7.0)
    np.testing.assert_allclose(
        fewer.atoms(theta), stretch * every.atoms(theta)[:, columns], atol=1e-14
    )
    np.testing.assert_allclose(
        np.concatenate(fewer.residual(weights, theta)),
        stretch * np.concatenate(every.residual(weights, theta))[columns],
        atol=1e-14,
    )
    np.testing.assert_allclose(
        fewer.jacobian(weights, theta),
        stretch * every.jacobian(weights, theta)[:, columns],
        atol=1e-13,
    )
    points = theta[:, :3]
    np.testing.assert_allclose(
        fewer.points(points), stretch * every.points(points)[:, columns], atol=1e-14
    )
    assert fewer.noise_level == pytest.approx(every.noise_level, rel=0.2)
    assert set(map(tuple, fewer.subsample(50).omega.T)) < set(map(tuple, every.omega.T))


def test_correlations_and_their_gradients(every):
    _, theta = draw(every)
    residual = every.target
    reference = Reference(every)
    r = residual[0] + 1j * residual[1]
    values, gradients = every.correlation_gradients(theta, residual)
    np.testing.assert_allclose(values, every.correlations(theta, residual), rtol=1e-12)
    for row, value, gradient in zip(theta, values, gradients, strict=True):
        assert value == pytest.approx(reference.correlation(row, r), rel=1e-12)
        expected = numerical_gradient(lambda t: reference.correlation(t, r), row)
        np.testing.assert_allclose(gradient, expected, atol=1e-8)


def test_correlation_of_a_very_wide_atom_is_a_number(objective):
    wide = np.full((1, 6), 1e9)
    values, gradients = objective.correlation_gradients(wide, objective.target)
    assert np.isfinite(values).all()
    assert np.isfinite(gradients).all()
    np.testing.assert_allclose(objective.correlations(wide, objective.target), values)


def test_the_noise_level_is_the_sketch_s(data, objective):
    assert objective.noise_level == pytest.approx(data.noise_level)


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e4, 1e-3), (-1e4, 1e3)])
def test_the_true_mixture_costs_nothing(exact_sketch, offset, scale):
    truth = random_mixture(3, 2, seed=0)
    means, variances = truth.means * scale + offset, truth.covariances * scale**2
    moved = type(truth)(truth.weights, means, variances)
    center = None if offset == 0 else moved.mean + 0.1 * scale
    feature_map = FeatureMap(2, 80, scale=scale, seed=1, dtype="float64", center=center)
    objective = Objective(exact_sketch(moved, feature_map))
    theta = objective.space.from_data_units(means, variances)
    # phases of 1e7 radians are rounded to 1e-9
    assert objective.cost(truth.weights, theta) < (1e-30 if offset == 0 else 1e-16)


def test_an_objective_of_some_features_is_that_of_their_frequencies():
    variances = np.array([0.5, 9.0, 0.03, 2.0, 1.0])
    feature_map = FeatureMap(
        5, 900, covariances=[variances, 4 * variances], distribution="sparse-radius", seed=1
    )
    x = np.random.default_rng(0).normal(size=(500, 5)) * np.sqrt(variances) + 3.0
    whole = Objective(partial_sketch(x, feature_map), "known", covariance=variances)
    features = np.array([0, 2, 3, 4])
    inside = np.flatnonzero(whole.omega[1] == 0.0)
    selected, restricted = whole.select(inside), whole.restrict(features)
    assert 100 < restricted.n_frequencies == len(inside)
    weights, theta = np.array([0.3, 0.7]), np.random.default_rng(1).normal(size=(2, 5))
    value, by_weight, by_theta = selected.cost_gradient(weights, theta)
    found = restricted.cost_gradient(weights, theta[:, features])
    np.testing.assert_allclose(found[0], value, rtol=1e-12)
    np.testing.assert_allclose(found[1], by_weight, rtol=1e-9)
    np.testing.assert_allclose(found[2], by_theta[:, features], rtol=1e-9, atol=1e-12)
    rows = selected.jacobian(weights, theta).reshape(-1, 2 * len(inside))
    kept = np.r_[0, 1, np.r_[2:12].reshape(2, 5)[:, features].ravel()]
    np.testing.assert_allclose(
        restricted.jacobian(weights, theta[:, features]), rows[kept], atol=1e-12
    )
    means, _ = restricted.space.to_data_units(theta[:, features])
    np.testing.assert_allclose(means, whole.space.to_data_units(theta)[0][:, features])
    assert restricted.noise_level == selected.noise_level
