"""Coordinates, bounds, starting points and splits of the atoms of each family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dask_sketch import partial_sketch
from dask_sketch.decoders.names import ATOMS
from dask_sketch.decoders.objectives.atoms import (
    VARIANCE_FLOOR,
    Family,
    ParameterSpace,
    count_shapes,
)
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap

KNOWN = np.array([[0.5, -0.3, 0.02], [-0.3, 4.0, 0.1], [0.02, 0.1, 0.05]])


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)) * [1.0, 5.0, 0.2] + [3.0, -40.0, 0.1]
    feature_map = FeatureMap(3, 70, covariances=[0.5, 9.0, 0.03], seed=1, dtype="float64")
    return partial_sketch(x, feature_map)


def space_of(sketch, model="gaussian", box=None, variance_floor=VARIANCE_FLOOR, covariance=None):
    if model == "known" and covariance is None:
        covariance = KNOWN
    return ParameterSpace(sketch, model, box, variance_floor, covariance)


@pytest.fixture(scope="module")
def space(data):
    return space_of(data)


@pytest.mark.parametrize("model", ATOMS)
def test_shapes_are_counted(data, model):
    assert space_of(data, model).n_shapes == count_shapes(model, 3)


def test_units_come_back_exactly(space):
    rng = np.random.default_rng(3)
    means, variances = rng.normal(size=(5, 3)) * 100, rng.uniform(0.1, 10, (5, 3))
    back = space.to_data_units(space.from_data_units(means, variances))
    np.testing.assert_allclose(back[0], means, rtol=1e-13, atol=1e-12)
    np.testing.assert_allclose(back[1], variances, rtol=1e-14)


def test_of_matrices_other_families_take_the_diagonals(space):
    matrices = np.stack([KNOWN, 2.0 * KNOWN])
    variances = np.diagonal(matrices, axis1=1, axis2=2)
    means = np.array([[3.0, -40.0, 0.1], [4.0, -30.0, 0.2]])
    found = space.from_data_units(means, matrices)
    np.testing.assert_array_equal(found, space.from_data_units(means, variances))


def test_no_variance_falls_far_in_one_step(space):
    theta = np.array([[0.0, 0.0, 0.0, 2.0, 1.0, 4.0]])
    trial = np.array([[0.5, 0.0, 0.0, 1e-9, 0.9, 8.0]])
    limited = space.limit_step(theta, trial)
    np.testing.assert_array_equal(limited[0, :3], space.clip(trial)[0, :3])
    assert 0.1 < limited[0, 3] / theta[0, 3] < 1.0
    np.testing.assert_array_equal(limited[0, 4:], [0.9, 8.0])


def test_bounds_on_variances_follow_the_distribution_and_narrow_data():
    x = np.zeros((10, 3))
    x[:, 0] = np.linspace(-100, 100, 10)
    x[:, 1] = x[:, 0] / 1000
    sketch = partial_sketch(x, FeatureMap(3, 20, scale=4.0, dtype="float64"))
    bound = space_of(sketch).lower[3:] * 16.0
    # a variance is exact to one quantum of the sums, in units of that of the distribution
    expected = VARIANCE_FLOOR * np.array([16.0, x[:, 1].var()])
    np.testing.assert_allclose(bound[:2], expected, atol=VARIANCE_FLOOR * 16.0 * 2.0**-30)
    assert 0 < bound[2] < 1e-12  # a feature that does not vary
    lower = space_of(sketch, variance_floor=0.01).lower[3:5] * 16.0
    np.testing.assert_allclose(lower, 0.01 / VARIANCE_FLOOR * bound[:2])


def test_starting_atoms(space):
    atoms = space.random_atoms(np.random.default_rng(0), 200)
    means, variances = space.to_data_units(atoms)
    np.testing.assert_allclose(means, np.tile(space.shift, (200, 1)))
    ratio = variances / space.scale**2
    np.testing.assert_allclose(ratio[:, 0], ratio[:, 2])
    assert 0.5 <= ratio.min() < 0.55
    assert 1.45 < ratio.max() <= 1.5


def test_starting_atoms_away_from_the_centre(space):
    rng = np.random.default_rng(0)
    atoms = space.random_atoms(rng, 2000, spread_out=True)
    means, _ = space.to_data_units(atoms)
    np.testing.assert_allclose((means.mean(axis=0) - space.shift) / means.std(axis=0), 0, atol=0.1)
    np.testing.assert_allclose(means.std(axis=0), [1.0, 5.0, 0.2], rtol=0.15)


def test_atoms_in_the_range_have_all_its_means_and_widths(data, space):
    theta = space.atoms_in_range(np.random.default_rng(0), 400)
    means, variances = space.to_data_units(theta)
    width = data.maximum - data.minimum
    assert (means >= data.minimum).all()
    assert (means <= data.maximum).all()
    np.testing.assert_array_less(0.9 * width, np.ptp(means, axis=0))
    assert variances.max() > 3.0 * variances.min()


def test_without_bounds_the_range_is_three_deviations(data):
    infinite = np.full(3, np.inf)
    space = space_of(replace(data, minimum=-infinite, maximum=infinite, tight_bounds=False))
    means, _ = space.to_data_units(space.atoms_in_range(np.random.default_rng(0), 400))
    within = 3.0 * np.sqrt(data.variance)
    assert (np.abs(means - data.mean) <= within + 1e-9).all()
    assert (np.abs(means - data.mean).max(axis=0) > 0.9 * within).all()


def test_a_range_that_no_number_of_atoms_covers_has_no_places():
    x = np.random.default_rng(0).uniform(0.0, 1000.0, (500, 6))
    narrow = FeatureMap(6, 70, scale=1.0, seed=1)
    assert space_of(partial_sketch(x, narrow)).n_places == 0
    x = np.random.default_rng(0).uniform(0.0, 5.0, (500, 2))
    assert 4 <= space_of(partial_sketch(x, FeatureMap(2, 70, scale=1.0, seed=1))).n_places <= 7
    # a feature whose range one atom covers adds none
    flat = np.column_stack([x, 0.01 * x[:, 0]])
    both = [space_of(partial_sketch(y, FeatureMap(y.shape[1], 70, scale=1.0))) for y in (x, flat)]
    assert both[0].n_places == both[1].n_places


def test_split(space):
    theta = np.array([[0.0, 1.0, 2.0, 0.25, 4.0, 1.0], [5.0, 5.0, 5.0, 9.0, 1.0, 9.0]])
    halves = space.split(theta)
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
    space = space_of(sketch, box=np.array([[-0.5], [0.5]]))
    atom = space.from_data_units(np.zeros((1, 1)), np.ones((1, 1)))
    means, _ = space.to_data_units(space.split(atom))
    np.testing.assert_allclose(means, [[-0.5], [0.5]])


def test_split_of_points_goes_along_the_widest_feature(data):
    halves = space_of(data, "dirac").split(np.array([[0.0, 1.0, 2.0]]))
    widest = int((data.variance / data.feature_map.mean_variances).argmax())
    np.testing.assert_array_equal(halves[1] - halves[0], 2.0 * np.eye(3)[widest])


def test_split_of_known_components_goes_by_their_deviation(data):
    space = space_of(data, "known")
    means, _ = space.to_data_units(space.split(np.zeros((1, 3))))
    widest = int((np.diagonal(KNOWN) / data.feature_map.mean_variances).argmax())
    np.testing.assert_allclose(
        means[1] - means[0], 2 * np.sqrt(KNOWN[widest, widest]) * np.eye(3)[widest], atol=1e-12
    )


def test_isotropic_shapes_are_mean_variances(data):
    space = space_of(data, "isotropic")
    theta = space.from_data_units(np.zeros((1, 3)), np.array([[1.0, 2.0, 6.0]]))
    np.testing.assert_allclose(space.to_data_units(theta)[1], [[3.0, 3.0, 3.0]])
    one = space.to_data_units(np.array([[0.0, 0.0, 0.0, 1.0]]))[1]
    np.testing.assert_allclose(one, data.feature_map.mean_variances.mean())
    ratio = (data.variance / data.feature_map.mean_variances.mean()).mean()
    np.testing.assert_allclose(space.lower[3], VARIANCE_FLOOR * min(ratio, 1.0))


def test_known_variances_may_be_a_vector(data):
    scale, omega = np.ones(3), data.feature_map.frequencies
    one = Family.build("known", scale, omega, [0.5, 4.0, 0.05])
    other = Family.build("known", scale, omega, np.diag([0.5, 4.0, 0.05]))
    np.testing.assert_array_equal(one.log_envelope, other.log_envelope)
    assert one.diagonal
    assert not Family.build("known", scale, omega, KNOWN).diagonal


@pytest.mark.parametrize(
    ("model", "covariance", "message"),
    [
        ("oval", None, "model='oval'.* gaussian, isotropic, known, dirac"),
        ("known", None, "covariance=None with model='known'"),
        ("dirac", np.eye(3), "covariance .* model='dirac'"),
        ("known", "wide", "covariance='wide'"),
        ("known", np.eye(2), r"covariance has shape \(2, 2\).* \(3,\) or \(3, 3\)"),
        ("known", [1.0, np.nan, 1.0], "covariance .* NaN"),
        ("known", np.triu(np.ones((3, 3))), "covariance .* symmetric"),
        ("known", [1.0, -2.0, 1.0], "covariance .* -2"),
    ],
)
def test_refuses_unknown_models_and_invalid_covariances(data, model, covariance, message):
    with pytest.raises(DecodeError, match=message):
        Family.build(model, np.ones(3), data.feature_map.frequencies, covariance)
