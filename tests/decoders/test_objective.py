from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.decoders.objective import VARIANCE_FLOOR, GaussianObjective
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture
from dask_sketch.sketching import partial_sketch


@pytest.fixture(scope="module")
def objective():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)) * [1.0, 5.0, 0.2] + [3.0, -40.0, 0.1]
    feature_map = FeatureMap(3, 700, covariances=[0.5, 9.0, 0.03], seed=1, dtype="float64")
    return GaussianObjective(partial_sketch(x, feature_map))


@pytest.fixture(scope="module")
def atoms():
    rng = np.random.default_rng(2)
    weights = rng.uniform(0.1, 1.0, 4)
    theta = np.concatenate([rng.normal(size=(4, 3)), rng.uniform(0.2, 2.0, (4, 3))], axis=1)
    return weights, theta


def complex_atoms(objective, theta):
    """Atoms by the formula of eq. (15), in the objective's coordinates."""
    omega = objective._basis[1:4]
    mean, variance = theta[:, :3], theta[:, 3:]
    exponent = -1j * mean @ omega - 0.5 * variance @ omega**2
    return np.exp(exponent) / np.sqrt(objective.n_frequencies)


def numerical_gradient(function, x, step=1e-6):
    out = np.empty(x.size)
    for i in range(x.size):
        moved = np.tile(x.ravel(), (2, 1))
        moved[0, i] += step
        moved[1, i] -= step
        ahead, behind = (function(row.reshape(x.shape)) for row in moved)
        out[i] = (ahead - behind) / (2 * step)
    return out.reshape(x.shape)


def test_atoms_are_the_formula(objective, atoms):
    rows = objective.atoms(atoms[1])
    expected = complex_atoms(objective, atoms[1])
    m = objective.n_frequencies
    np.testing.assert_allclose(rows[:, :m] + 1j * rows[:, m:], expected, atol=1e-15)


@pytest.mark.parametrize("distance", [1e3, 1e8])
def test_half_angle_holds_for_large_phases(objective, distance):
    theta = np.concatenate([np.full((1, 3), distance), np.full((1, 3), 1e-9)], axis=1)
    rows = objective.atoms(theta)
    expected = complex_atoms(objective, theta)
    m = objective.n_frequencies
    # the phase itself is rounded in proportion to its size
    atol = 1e-15 * distance
    np.testing.assert_allclose(rows[:, :m] + 1j * rows[:, m:], expected, atol=atol)


def test_half_angle_at_quarter_turns(objective):
    basis = np.stack([np.ones(9), np.arange(-4, 5) * np.pi / 2, np.zeros(9)])
    one = GaussianObjective.__new__(GaussianObjective)
    one.n_features, one._log_norm = 1, 0.0
    _, real, imag = one._evaluate(np.array([[1.0, 1.0]]), basis, 0.0)
    np.testing.assert_allclose(real[0] + 1j * imag[0], np.exp(-1j * basis[1]), atol=1e-15)


def test_blocks_do_not_matter(objective, atoms, monkeypatch):
    weights, theta = atoms
    whole = objective.cost_gradient(weights, theta)
    curvatures = objective.curvatures(weights, theta)
    residual = objective.residual(weights, theta)
    correlation = objective.correlation(theta[0], residual)
    monkeypatch.setattr("dask_sketch.decoders.objective._BLOCK", 512)
    assert len(list(objective._slices(4))) > 4
    for a, b in [
        (whole, objective.cost_gradient(weights, theta)),
        (curvatures, objective.curvatures(weights, theta)),
        (residual, objective.residual(weights, theta)),
        (correlation, objective.correlation(theta[0], residual)),
    ]:
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-14)


def test_cost_is_the_squared_distance(objective, atoms):
    weights, theta = atoms
    z = objective.target[0] + 1j * objective.target[1]
    expected = np.linalg.norm(z - weights @ complex_atoms(objective, theta)) ** 2
    assert objective.cost(weights, theta) == pytest.approx(expected, rel=1e-12)
    assert objective.cost_gradient(weights, theta)[0] == pytest.approx(expected, rel=1e-12)


def test_cost_gradient(objective, atoms):
    weights, theta = atoms
    _, by_weight, by_theta = objective.cost_gradient(weights, theta)
    np.testing.assert_allclose(
        by_weight, numerical_gradient(lambda w: objective.cost(w, theta), weights), atol=1e-8
    )
    np.testing.assert_allclose(
        by_theta, numerical_gradient(lambda t: objective.cost(weights, t), theta), atol=1e-8
    )


def test_correlation_and_its_gradient(objective, atoms):
    residual = objective.target
    r = residual[0] + 1j * residual[1]
    for theta in atoms[1]:
        value, gradient = objective.correlation(theta, residual)
        atom = complex_atoms(objective, theta[None])[0]
        assert value == pytest.approx((np.vdot(atom, r) / np.linalg.norm(atom)).real, rel=1e-12)
        expected = numerical_gradient(lambda t: objective.correlation(t, residual)[0], theta)
        np.testing.assert_allclose(gradient, expected, atol=1e-8)


def test_correlations_of_several_atoms(objective, atoms):
    expected = [objective.correlation(theta, objective.target)[0] for theta in atoms[1]]
    np.testing.assert_allclose(objective.correlations(atoms[1], objective.target), expected)
    assert objective.correlations(np.full((1, 6), 1e9), objective.target) == 0  # none, not NaN


def test_correlation_of_a_very_wide_atom_is_a_number(objective):
    value, gradient = objective.correlation(np.full(6, 1e9), objective.target)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_curvatures_are_the_gauss_newton_diagonal(objective, atoms):
    weights, theta = atoms
    by_weight, by_theta = objective.curvatures(weights, theta)
    rows = complex_atoms(objective, theta)
    omega = objective._basis[1:4]
    power = np.abs(rows) ** 2
    np.testing.assert_allclose(by_weight, power.sum(axis=1))
    expected = np.concatenate([power @ (omega**2).T, power @ (omega**4).T / 4], axis=1)
    np.testing.assert_allclose(by_theta, expected * weights[:, None] ** 2)


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
    objective = GaussianObjective(exact_sketch(moved, feature_map))
    theta = objective.from_data_units(means, variances)
    # phases of 1e7 radians are rounded to 1e-9
    assert objective.cost(truth.weights, theta) < (1e-30 if offset == 0 else 1e-16)


def test_bounds_on_variances_follow_the_data(objective):
    x = np.zeros((10, 2))
    x[:, 0] = np.linspace(-100, 100, 10)
    sketch = partial_sketch(x, FeatureMap(2, 20, scale=4.0, dtype="float64"))
    bound = GaussianObjective(sketch).lower[2:] * 16.0
    np.testing.assert_allclose(bound[0], VARIANCE_FLOOR * x[:, 0].var())
    assert bound[1] > 0  # a feature that does not vary
    np.testing.assert_allclose(
        GaussianObjective(sketch, variance_floor=0.1).lower[2] * 16.0, 0.1 * x[:, 0].var()
    )


def test_starting_atoms(objective):
    atoms = np.array([objective.random_atom(np.random.default_rng(s)) for s in range(200)])
    means, variances = objective.to_data_units(atoms)
    np.testing.assert_allclose(means, np.tile(objective.shift, (200, 1)))
    ratio = variances / objective.scale**2
    np.testing.assert_allclose(ratio[:, 0], ratio[:, 2])
    assert 0.5 <= ratio.min() < 0.55
    assert 1.45 < ratio.max() <= 1.5


def test_starting_atoms_away_from_the_centre(objective):
    rng = np.random.default_rng(0)
    atoms = np.array([objective.random_atom(rng, away=True) for _ in range(2000)])
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
    objective = GaussianObjective(sketch, np.array([[-0.5], [0.5]]))
    means, _ = objective.to_data_units(
        objective.split(objective.from_data_units(np.zeros((1, 1)), np.ones((1, 1))))
    )
    np.testing.assert_allclose(means, [[-0.5], [0.5]])
