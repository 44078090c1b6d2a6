import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.distributions.testing.effect import effect_of
from dask_sketch.distributions.testing.units import units_of

MAP = FeatureMap(2, 40, scale=1.0)


def group_of(rng, n_units, shift=0.0, spread=0.3, n=20):
    """Sketches of units whose means differ."""
    x = shift + spread * rng.normal(size=(n_units, 1, 2)) + rng.normal(size=(n_units, n, 2))
    return partial_sketch(x.reshape(-1, 2), MAP, groups=np.repeat(np.arange(n_units), n))


def test_the_noise_that_is_taken_off_is_that_between_units():
    rng = np.random.default_rng(0)
    sides = group_of(rng, 7), group_of(rng, 12, shift=0.5)
    found = effect_of(units_of(*sides))
    vectors = [np.concatenate([s.z.real, s.z.imag], axis=1) for s in sides]
    noise = sum(v.var(axis=0, ddof=1).sum() / len(v) for v in vectors)
    distance = np.sum((vectors[0].mean(axis=0) - vectors[1].mean(axis=0)) ** 2)
    np.testing.assert_allclose(found.squared, distance - noise, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(10, 10), (6, 20)])
def test_unbiased_with_the_stated_variance_and_coverage(counts):
    rng = np.random.default_rng(0)
    found = [effect_of(units_of(*(group_of(rng, b) for b in counts))) for _ in range(150)]
    squares = np.array([one.squared for one in found])
    stated = np.mean([one.noise_variance for one in found])
    assert abs(squares.mean()) < 3 * squares.std() / np.sqrt(len(squares))
    assert 0.6 < stated / squares.var() < 1.6
    assert np.mean([one.interval(0.05)[0] == 0.0 for one in found]) > 0.9
    assert np.mean([one.p_value_above(0.0) <= 0.05 for one in found]) < 0.13


@pytest.mark.slow
def test_variance_has_the_corrected_moments_of_the_u_statistic():
    # eq. (6.6) of Sutherland (2016), of rows with few values, whose moments are sums
    rng, n = np.random.default_rng(0), 10
    values = [
        np.array([[0.0, 0.0], [0.4, 0.0], [0.0, 0.3]]),
        np.array([[2.0, 1.0], [2.4, 1.0], [1.8, 1.4], [2.2, 0.6]]),
    ]
    groups = [partial_sketch(x, MAP, groups=np.arange(len(x))) for x in values]
    p, q = (np.concatenate([one.z.real, one.z.imag], axis=1) for one in groups)
    pairs = (p[:, None] - q).reshape(-1, p.shape[1])
    h = pairs @ pairs.T
    square = h.mean()

    def variance(zeta_1, zeta_2):
        return (4 * (n - 2) * zeta_1 + 2 * zeta_2) / (n * (n - 1))

    zeta_1, zeta_2 = h.mean(axis=1).var(), h.var()
    exact = variance(zeta_1, zeta_2)
    draws = [[x[rng.integers(len(x), size=n)] for x in values] for _ in range(100)]
    found = [
        effect_of(units_of(*(partial_sketch(x, MAP, groups=np.arange(n)) for x in sides)))
        for sides in draws
    ]
    squares = np.array([one.squared for one in found])
    assert squares.mean() == pytest.approx(square, abs=4 * squares.std() / np.sqrt(100))
    assert squares.var() == pytest.approx(exact, rel=0.4)
    assert np.mean([one.variance(square) for one in found]) == pytest.approx(exact, rel=0.4)
    # in print, zeta_1 is less the discrepancy squared, not less the square of that, and the
    # estimate of zeta_2 is a second moment
    first = np.mean(h.mean(axis=1) ** 2) - square
    assert abs(variance(first, zeta_2)) > 10 * exact
    assert variance(zeta_1, np.mean(h**2)) > 10 * exact


@pytest.mark.slow
def test_the_lower_end_is_what_the_estimate_is_significantly_above():
    rng = np.random.default_rng(3)
    for shift in (0.0, 0.6, 2.0):
        found = effect_of(units_of(group_of(rng, 5), group_of(rng, 6, shift)))
        low, high = found.interval(0.1)
        assert low <= np.sqrt(max(found.squared, 0.0)) <= high
        if low > 0.0:
            assert found.p_value_above(low) <= 0.05 + 1e-6
            assert found.p_value_above(min(1.02 * low, 2.0)) > 0.05 - 1e-6


def test_intervals_cover_a_difference():
    rng = np.random.default_rng(0)
    # normal distributions of variance 1.09, shifted by 0.8 in both features
    squared_lengths = (MAP.frequencies**2).sum(axis=0)
    phase = 0.8 * MAP.frequencies.sum(axis=0)
    gap = np.exp(-0.5 * 1.09 * squared_lengths) * np.abs(1.0 - np.exp(-1j * phase))
    truth = np.sqrt(np.mean(gap**2))
    covered = []
    for _ in range(100):
        low, high = effect_of(units_of(group_of(rng, 10), group_of(rng, 14, 0.8))).interval(0.1)
        covered.append(low <= truth <= high)
    assert 0.8 <= np.mean(covered) <= 0.98


def serial_group(rng, n_units, correlation):
    """Sketches of units whose means are autoregressive, with both sides in one sequence."""
    offset = rng.normal(size=(n_units, 2))
    for t in range(1, n_units):
        new = np.sqrt(1.0 - correlation**2) * offset[t]
        offset[t] = correlation * offset[t - 1] + new
    x = 0.3 * offset[:, None] + rng.normal(size=(n_units, 20, 2))
    group = partial_sketch(x.reshape(-1, 2), MAP, groups=np.repeat(np.arange(n_units), 20))
    newest = group.labels >= n_units - 20
    return units_of(group.select(newest), group.select(~newest))


@pytest.mark.slow
def test_neighbouring_units_that_depend_widen_the_interval():
    rng = np.random.default_rng(0)
    units = [serial_group(rng, 120, 0.7) for _ in range(100)]
    excluded = {
        serial: np.mean([effect_of(one, serial=serial).interval(0.05)[0] > 0 for one in units])
        for serial in (False, True)
    }
    assert excluded[True] <= 0.1 < 0.2 < excluded[False]


def test_strata_are_taken_off():
    rng = np.random.default_rng(0)
    shifted = np.arange(8) % 2
    x = 4.0 * shifted[:, None, None] + rng.normal(size=(8, 50, 2))
    sides = [
        partial_sketch(x.reshape(-1, 2), MAP, groups=np.repeat(np.arange(8), 50)) for _ in range(2)
    ]
    plain = effect_of(units_of(*sides))
    found = effect_of(units_of(*sides, strata=np.tile(shifted, 2)))
    assert found.noise_variance < 0.01 * plain.noise_variance
    assert abs(found.squared) < 0.1 * abs(plain.squared)


def test_two_units_a_side_have_no_interval():
    rng = np.random.default_rng(0)
    found = effect_of(units_of(group_of(rng, 2), group_of(rng, 2)))
    assert np.isnan(found.noise_variance)
    assert found.interval(0.05) == (0.0, 2.0)
    assert found.p_value_above(0.1) == 1.0


def test_equal_units_have_no_effect():
    group = partial_sketch(np.ones((9, 2)), MAP, groups=np.arange(9) % 3)
    found = effect_of(units_of(group, group))
    assert found.interval(0.05) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert found.p_value_above(0.0) == 1.0


def test_a_unit_with_most_of_the_rows_widens_the_interval():
    rng, excluded = np.random.default_rng(0), 0
    for _ in range(30):
        sides = []
        for sizes in ([20] * 8, [5000] + [20] * 7):
            label = np.repeat(np.arange(8), sizes)
            x = rng.normal(size=(len(label), 2)) + 0.5 * rng.normal(size=(8, 2))[label]
            sides.append(partial_sketch(x, FeatureMap(2, 20, scale=1.0), groups=label))
        excluded += effect_of(units_of(*sides)).interval(0.05)[0] > 0.0
    assert excluded <= 6  # about five standard errors above a share of 0.05
