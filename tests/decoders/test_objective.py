from __future__ import annotations

from copy import copy

import numpy as np
import pytest
from decoders.reference import Reference, numerical_gradient

from dask_sketch import partial_sketch
from dask_sketch.decoders import atom_kernels as kernels
from dask_sketch.decoders.atoms import MODELS, VARIANCE_FLOOR
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.threads import Threads
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture

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


@pytest.fixture(scope="module", params=MODELS)
def every(request, data):
    """An objective of each family."""
    return make(data, request.param)


def draw(objective, n_atoms=4):
    rng = np.random.default_rng(2)
    weights = rng.uniform(0.1, 1.0, n_atoms)
    shapes = rng.uniform(0.2, 2.0, (n_atoms, objective.n_shapes))
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


@pytest.mark.parametrize("model", MODELS)
def test_atoms_are_characteristic_functions_in_data_units(data, model):
    # the mean of exp(-i w.x) over a component's own samples, but for the shift of coordinates
    objective = make(data, model)
    _, theta = draw(objective, 2)
    means, variances = objective.to_data_units(theta)
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
        exponent = -1j * (mean - objective.shift) @ omega
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
    shift = np.exp(1j * objective.shift @ feature_map.frequencies)
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


def test_waves_over_their_whole_range():
    rng = np.random.default_rng(0)
    exponents = np.concatenate([rng.uniform(-60, 60, 4000), [0.0, -1020.0, 0.5, -0.5, 1000.0]])
    turns = np.concatenate([rng.uniform(-20, 20, 4000), [0.0, 0.25, -0.5, 0.75, 1e6 + 0.25]])
    real, imag = exponents[None].copy(), turns[None].copy()
    kernels.waves(real, imag, np.zeros(exponents.size), np.zeros(1))
    amplitude = np.exp2(exponents)
    angle = 2 * np.pi * (turns - np.rint(turns))
    np.testing.assert_allclose(real[0] / amplitude, np.cos(angle), atol=1e-15)
    np.testing.assert_allclose(imag[0] / amplitude, np.sin(angle), atol=1e-15)


def test_waves_underflow_without_a_sign_of_it():
    real, imag = np.full((1, 9), -1e9), np.zeros((1, 9))
    kernels.waves(real, imag, np.zeros(9), np.zeros(1))
    assert (real > 0).all()
    assert (real < 1e-300).all()


def test_blocks_do_not_matter(every, monkeypatch):
    weights, theta = draw(every)

    def everything():
        residual = every.residual(weights, theta)
        return (
            *every.cost_gradient(weights, theta),
            every.gram(weights, theta),
            *every.correlation_gradients(theta, residual),
            every.correlations(theta, residual),
            every.atoms(theta),
            *residual,
        )

    whole = everything()
    monkeypatch.setattr("dask_sketch.decoders.atoms._BLOCK", 512)
    monkeypatch.setattr("dask_sketch.decoders.objective._GRAM_BLOCK", 300)
    monkeypatch.setattr("dask_sketch.decoders.normal_equations._FREQUENCIES", 50)
    monkeypatch.setattr("dask_sketch.decoders.normal_equations._PAIRS", 3)
    assert len(list(every._slices(4))) > 4
    for one, other in zip(whole, everything(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


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
    real, imag = every.residual(np.empty(0), np.empty((0, every.n_parameters)))
    np.testing.assert_array_equal((real, imag), every.target)


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
    np.testing.assert_allclose(single, gram, atol=1e-6 * np.abs(gram).max())
    np.testing.assert_array_equal(single, single.T)
    assert not (single == gram).all()


def test_cost_gradient_is_the_residual_s_along_the_jacobian(every):
    weights, theta = draw(every)
    _, by_weight, by_theta = every.cost_gradient(weights, theta)
    residual = np.concatenate(every.residual(weights, theta))
    expected = -2.0 * every.jacobian(weights, theta) @ residual
    np.testing.assert_allclose(np.append(by_weight, by_theta), expected, atol=1e-13)


def test_thinned_is_the_objective_of_fewer_frequencies(every):
    weights, theta = draw(every)
    fewer = every.thinned(100)
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
    assert set(map(tuple, fewer.thinned(50).omega.T)) < set(map(tuple, every.omega.T))


@pytest.mark.parametrize("n_threads", [2, 3])
def test_threads_change_no_bit(every, monkeypatch, n_threads):
    monkeypatch.setattr("dask_sketch.decoders.atoms._BLOCK", 512)
    monkeypatch.setattr("dask_sketch.decoders.normal_equations._PAIRS", 3)
    weights, theta = draw(every)

    def everything(objective):
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

    alone = everything(every)
    with Threads(n_threads) as threads:
        together = copy(every)
        together.threads = threads
        for one, other in zip(alone, everything(together), strict=True):
            np.testing.assert_array_equal(one, other)


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


def test_units_come_back_exactly(objective):
    rng = np.random.default_rng(3)
    means, variances = rng.normal(size=(5, 3)) * 100, rng.uniform(0.1, 10, (5, 3))
    back = objective.to_data_units(objective.from_data_units(means, variances))
    np.testing.assert_allclose(back[0], means, rtol=1e-13, atol=1e-12)
    np.testing.assert_allclose(back[1], variances, rtol=1e-14)


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e4, 1e-3), (-1e4, 1e3)])
def test_the_true_mixture_costs_nothing(exact_sketch, offset, scale):
    truth = random_mixture(3, 2, seed=0)
    means, variances = truth.means * scale + offset, truth.covariances * scale**2
    moved = type(truth)(truth.weights, means, variances)
    center = None if offset == 0 else moved.mean + 0.1 * scale
    feature_map = FeatureMap(2, 80, scale=scale, seed=1, dtype="float64", center=center)
    objective = Objective(exact_sketch(moved, feature_map))
    theta = objective.from_data_units(means, variances)
    # phases of 1e7 radians are rounded to 1e-9
    assert objective.cost(truth.weights, theta) < (1e-30 if offset == 0 else 1e-16)


def test_bounds_on_variances_follow_the_distribution_and_narrow_data():
    x = np.zeros((10, 3))
    x[:, 0] = np.linspace(-100, 100, 10)
    x[:, 1] = x[:, 0] / 1000
    sketch = partial_sketch(x, FeatureMap(3, 20, scale=4.0, dtype="float64"))
    bound = Objective(sketch).lower[3:] * 16.0
    # a variance is known to the step of the sums, in units of the distribution's
    expected = VARIANCE_FLOOR * np.array([16.0, x[:, 1].var()])
    np.testing.assert_allclose(bound[:2], expected, atol=VARIANCE_FLOOR * 16.0 * 2.0**-30)
    assert 0 < bound[2] < 1e-12  # a feature that does not vary
    np.testing.assert_allclose(
        Objective(sketch, variance_floor=0.01).lower[3:5] * 16.0, 0.01 / VARIANCE_FLOOR * bound[:2]
    )


def test_starting_atoms(objective):
    atoms = objective.random_atoms(np.random.default_rng(0), 200)
    means, variances = objective.to_data_units(atoms)
    np.testing.assert_allclose(means, np.tile(objective.shift, (200, 1)))
    ratio = variances / objective.scale**2
    np.testing.assert_allclose(ratio[:, 0], ratio[:, 2])
    assert 0.5 <= ratio.min() < 0.55
    assert 1.45 < ratio.max() <= 1.5


def test_starting_atoms_away_from_the_centre(objective):
    rng = np.random.default_rng(0)
    atoms = objective.random_atoms(rng, 2000, away=True)
    means, _ = objective.to_data_units(atoms)
    np.testing.assert_allclose(
        (means.mean(axis=0) - objective.shift) / means.std(axis=0), 0, atol=0.1
    )
    np.testing.assert_allclose(means.std(axis=0), [1.0, 5.0, 0.2], rtol=0.15)


def test_split(objective):
    theta = np.array([[0.0, 1.0, 2.0, 0.25, 4.0, 1.0], [5.0, 5.0, 5.0, 9.0, 1.0, 9.0]])
    halves = objective.split(theta)
    expected = np.array(
        [
            [0.0, -1.0, 2.0, 0.25, 4.0, 1.0],
            [0.0, 3.0, 2.0, 0.25, 4.0, 1.0],
            [2.0, 5.0, 5.0, 9.0, 1.0, 9.0],
            [8.0, 5.0, 5.0, 9.0, 1.0, 9.0],
        ]
    )
    np.testing.assert_array_equal(halves, expected)


def test_split_stays_in_the_box():
    x = np.random.default_rng(0).normal(size=(100, 1))
    sketch = partial_sketch(x, FeatureMap(1, 20, scale=1.0, dtype="float64"))
    objective = Objective(sketch, box=np.array([[-0.5], [0.5]]))
    means, _ = objective.to_data_units(
        objective.split(objective.from_data_units(np.zeros((1, 1)), np.ones((1, 1))))
    )
    np.testing.assert_allclose(means, [[-0.5], [0.5]])


def test_split_of_points_goes_along_the_widest_feature(data):
    halves = make(data, "dirac").split(np.array([[0.0, 1.0, 2.0]]))
    widest = int((data.variance / data.feature_map.mean_variances).argmax())
    np.testing.assert_array_equal(halves[1] - halves[0], 2.0 * np.eye(3)[widest])


def test_split_of_known_components_goes_by_their_deviation(data):
    objective = make(data, "known")
    means, _ = objective.to_data_units(objective.split(np.zeros((1, 3))))
    widest = int((np.diagonal(KNOWN) / data.feature_map.mean_variances).argmax())
    np.testing.assert_allclose(
        means[1] - means[0], 2 * np.sqrt(KNOWN[widest, widest]) * np.eye(3)[widest], atol=1e-12
    )


def test_isotropic_shapes_are_mean_variances(data):
    objective = make(data, "isotropic")
    theta = objective.from_data_units(np.zeros((1, 3)), np.array([[1.0, 2.0, 6.0]]))
    np.testing.assert_allclose(objective.to_data_units(theta)[1], [[3.0, 3.0, 3.0]])
    one = objective.to_data_units(np.array([[0.0, 0.0, 0.0, 1.0]]))[1]
    np.testing.assert_allclose(one, data.feature_map.mean_variances.mean())
    ratio = (data.variance / data.feature_map.mean_variances.mean()).mean()
    np.testing.assert_allclose(objective.lower[3], VARIANCE_FLOOR * min(ratio, 1.0))


def test_known_variances_may_be_a_vector(data):
    one = Objective(data, "known", covariance=[0.5, 4.0, 0.05])
    other = Objective(data, "known", covariance=np.diag([0.5, 4.0, 0.05]))
    np.testing.assert_array_equal(one.atoms(np.ones((1, 3))), other.atoms(np.ones((1, 3))))


@pytest.mark.parametrize(
    ("model", "covariance", "message"),
    [
        ("full", None, "model='full' is unknown; choose one of gaussian, isotropic, known, dirac"),
        ("known", None, 'model="known" needs covariance'),
        ("dirac", np.eye(3), "covariance is given, but model='dirac'"),
        ("known", "wide", "covariance='wide' is not an array"),
        ("known", np.eye(2), r"covariance has shape \(2, 2\).*give \(3,\) or \(3, 3\)"),
        ("known", [1.0, np.nan, 1.0], "covariance holds NaN"),
        ("known", np.triu(np.ones((3, 3))), "covariance is not symmetric"),
        ("known", [1.0, -2.0, 1.0], "covariance has the eigenvalue -2"),
    ],
)
def test_refuses_families_that_are_none(data, model, covariance, message):
    with pytest.raises(DecodeError, match=message):
        Objective(data, model, covariance=covariance)
