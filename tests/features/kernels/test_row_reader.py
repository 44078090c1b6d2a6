"""Rows read in any way have the same fixed-point sums, wherever bad and distant rows are."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dask_sketch.errors import CapacityError
from dask_sketch.features.kernels.row_loop import MAX_DISTANCE, RUN
from dask_sketch.features.kernels.row_reader import ChunkReader

FRACTIONS = {"float32": 22, "float64": 50}


def reader(d, block, dtype="float32", unit=1.0):
    center = np.linspace(-1, 1, d)
    rows, weights = np.empty((block, d), dtype), np.empty(block, dtype)
    return ChunkReader(center, np.full(d, unit), FRACTIONS[dtype], rows, weights)


def same(got, expected):
    assert (got.count, got.omitted) == (expected.count, expected.omitted)
    assert got.minimum.tobytes() == expected.minimum.tobytes()
    assert got.maximum.tobytes() == expected.maximum.tobytes()
    assert got.first_quanta == expected.first_quanta
    assert got.second_quanta == expected.second_quanta
    assert got.weight_quanta == expected.weight_quanta
    assert got.squared_weight_quanta == expected.squared_weight_quanta


def rounded(values):
    """Round to the nearest integer, like float64."""
    return [int(v) for v in np.rint(values)]


def steps(x, center, unit, weights=None):
    """Moments by the definition in FixedPoint, in Python integers."""
    y = (np.asarray(x, dtype=np.float64) - center) * (2.0**15 / unit)
    first, second = [0] * y.shape[1], [0] * y.shape[1]
    for row, weight in zip(y, np.ones(len(x)) if weights is None else weights, strict=True):
        part, exponent = split(weight)
        for sums, value in ((first, part * (row * 2.0**15)), (second, part * (row * row))):
            for k, step in enumerate(rounded(value)):
                sums[k] += step << (exponent + 32)
    return first, second


def split(weight):
    """As ``f * 2**e`` with f in (1/16, 1] and e a multiple of four."""
    exponent = -32
    while weight > 2.0**exponent:
        exponent += 4
    return weight / 2.0**exponent, exponent


def pair(d):
    """Rows that are read at once."""
    return 2 * max(RUN // d, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int64", ">f4"])
@pytest.mark.parametrize("d", [1, 2, 12, 20, 64, 300])
def test_runs_agree_with_plain_arithmetic(d, dtype, rng):
    for n in (0, 1, pair(d) - 1, pair(d), 3 * pair(d) + 1):
        x = rng.normal(0, 100, size=(n, d)).astype(dtype)
        got = reader(d, n)
        assert got.take(x, None, False) == -1
        assert (got.count, got.omitted) == (n, 0)
        assert got.groups == ([(0, slice(0, n))] if n else [])
        exact = x.astype(np.float64)
        np.testing.assert_array_equal(got.rows, (exact - got.center).astype(np.float32))
        np.testing.assert_array_equal(got.minimum, exact.min(axis=0, initial=np.inf))
        np.testing.assert_array_equal(got.maximum, exact.max(axis=0, initial=-np.inf))
        first, second = steps(x, got.center, got.unit)
        assert list(got.first_quanta.integers()) == first
        assert list(got.second_quanta.integers()) == second
        assert got.weight_quanta == n << 80
        assert got.squared_weight_quanta == n << 112


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("far", [0.0, 1e6, MAX_DISTANCE])
@pytest.mark.parametrize("unit", [1.0, 2.0**-60, 2.0**60])
def test_weights_and_far_rows_agree_with_plain_arithmetic(far, unit, dtype, rng):
    d, n = 5, 300
    x = rng.normal(size=(n, d)) * unit
    weights = np.ldexp(rng.integers(2**23, 2**24, size=n) / 2.0**24, rng.integers(-12, 20, size=n))
    weights[::7] = 0.0
    weights[::11] = 1.0
    got = reader(d, n, dtype, unit)
    got.center *= unit
    x += got.center
    x[50] = got.center + far * unit
    x[50, 2] = got.center[2] - far * unit
    weights[50] = 1.0
    assert got.take(x, weights, False) == -1
    first, second = steps(x, got.center, unit, weights)
    assert list(got.first_quanta.integers()) == first
    assert list(got.second_quanta.integers()) == second
    assert got.count == n
    assert got.weight_quanta == sum(map(Fraction, weights)) * 2**80
    parts = [split(w) for w in weights]
    assert got.squared_weight_quanta == sum(
        rounded([f * f * 2.0**48])[0] << 2 * (e + 32) for f, e in parts
    )
    found = {}
    assert [e for e, _ in got.groups] == sorted({e for f, e in parts if f})
    for exponent, rows in got.groups:
        for row, share in zip(got.rows[rows], got.weights[rows], strict=True):
            assert 1 / 16 < share <= 1
            found[row.tobytes()] = share * 2.0**exponent
    used = weights > 0
    assert found == {
        row.tobytes(): w
        for row, w in zip((x[used] - got.center).astype(dtype), weights[used], strict=True)
    }


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("d", [12, 300])
def test_a_bad_row_anywhere_in_a_run_is_refused_or_left_out(d, value, rng):
    n = 2 * pair(d) + 3
    x = rng.normal(size=(n, d)).astype(np.float32)
    for row in range(n):
        bad = x.copy()
        bad[row, row % d] = value
        assert reader(d, n).take(bad, None, False) == row
        assert reader(d, n).take(bad, np.ones(n), False) == row
        omitting, one_by_one, clean = reader(d, n), reader(d, n), reader(d, n)
        assert omitting.take(bad, None, True) == -1
        assert (omitting.count, omitting.omitted) == (n - 1, 1)
        assert one_by_one.take(bad, np.ones(n), True) == -1  # rows with weights are no runs
        same(omitting, one_by_one)
        np.testing.assert_array_equal(omitting.rows[: n - 1], one_by_one.rows[: n - 1])
        assert clean.take(np.delete(x, row, axis=0), None, False) == -1
        assert omitting.first_quanta == clean.first_quanta
        assert omitting.second_quanta == clean.second_quanta


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_blocks_in_any_order_give_the_same_bits(dtype, rng):
    x = rng.normal(size=(500, 12)) * np.exp(rng.normal(0, 3, size=(500, 1)))
    x[17], x[440, 3] = 1e6, -1e7
    whole = reader(12, 500, dtype)
    assert whole.take(x, np.ones(500), False) == -1
    for order in (np.arange(500), rng.permutation(500)):
        for step in (1, 7, 64, 200, 500):
            made = reader(12, step, dtype)
            for start in range(0, 500, step):
                assert made.take(x[order[start : start + step]], None, False) == -1
            same(made, whole)


def test_what_is_too_far_is_refused_by_row(rng):
    x = rng.normal(size=(100, 12))
    for place in (0, 50, 99):
        far = x.copy()
        far[place, 5] = 1.001 * MAX_DISTANCE
        for weights in (None, rng.random(100) + 0.1):
            assert reader(12, 100).take(far, weights, False) == place
        weightless = np.ones(100)
        weightless[place] = 0.0
        assert reader(12, 100).take(far, weightless, False) == -1


@pytest.mark.parametrize("weight", [-1e-9, np.nan, np.inf, -np.inf, 2.0**-33, 2.0**33, 1e-300])
def test_weights_out_of_range_are_refused_by_row(weight):
    weights = np.ones(20)
    weights[[4, 9]] = weight
    assert reader(3, 20).take(np.zeros((20, 3)), weights, True) == 4


def test_the_ends_of_the_range_of_weights():
    for dtype in FRACTIONS:
        for weight in (2.0**-32, 2.0**32, 2.0**-32 * 1.5, -0.0):
            got = reader(1, 2, dtype)
            assert got.take(np.array([[3.0], [3.0]]), np.full(2, weight), False) == -1
            assert got.weight_quanta == Fraction(2 * abs(weight)) * 2**80
            assert got.first_quanta.to_float(62)[0] == 2 * weight * 4.0


@pytest.mark.parametrize("dtype", FRACTIONS)
def test_every_weight_is_split_as_stated(dtype):
    bits = {"float32": 24, "float64": 45}[dtype]
    least = {"float32": -32, "float64": -20}[dtype]  # of steps of 2**-50 there are 2**21 in 2**-71
    powers = 2.0 ** np.arange(-32, 33)
    weights = np.concatenate(
        [powers, powers[1:] * (1 - 2.0 ** -(bits + 4)), powers[:-1] * (1 + 2.0 ** (1 - bits))]
    )
    got = reader(1, len(weights), dtype)
    x = np.arange(len(weights), dtype=float)[:, None]  # exact: each row tells which it is
    got.center[:] = 0.0
    assert got.take(x, weights, False) == -1
    found = np.zeros(len(weights))
    for exponent, rows in got.groups:
        assert exponent % 4 == 0
        assert exponent >= least
        share = got.weights[rows].astype(np.float64)
        assert (share <= 1).all()
        assert (share > 1 / 16).all() or exponent == least
        found[got.rows[rows, 0].astype(int)] = share * 2.0**exponent
    expected = weights.copy()
    expected[65:129] = powers[1:]  # so near that they are rounded to the power
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("omit", [0, 1, 5])
def test_rows_in_groups_are_those_given(n, omit, rng):
    x = np.arange(3.0 * n).reshape(n, 3)
    weights = 16.0 ** rng.integers(-3, 4, size=n)
    weights[::5] = 0.0
    bad = rng.permutation(n)[:omit]
    x[bad] = np.nan
    got = reader(3, max(n, 1), "float64")
    got.center[:] = 0.0
    assert got.take(x, weights, True) == -1
    kept = np.ones(n, dtype=bool)
    kept[bad] = False
    assert (got.count, got.omitted) == (kept.sum(), len(bad))
    exponents = np.log2(weights[kept & (weights > 0)]).astype(int)
    assert [e for e, _ in got.groups] == sorted(set(exponents))
    for exponent, rows in got.groups:
        mine = kept & (weights == 2.0**exponent)
        np.testing.assert_array_equal(np.sort(got.rows[rows], axis=0), x[mine])
        assert (got.weights[rows] == 1).all()


def test_moments_beyond_what_two_words_hold_are_refused():
    got = reader(1, 40)
    x = np.full((40, 1), 0.9 * MAX_DISTANCE)
    take_often(got, x, np.full(40, 2.0**-3), 1)
    with pytest.raises(CapacityError, match=r"2\*\*56"):
        take_often(got, x, np.full(40, 2.0**-3), 10)
    near, x = reader(1, 4000), np.full((4000, 1), 700.0)
    take_often(near, x, np.full(4000, 2.0**20), 1)
    with pytest.raises(CapacityError, match=r"2\*\*56"):
        take_often(near, x, np.full(4000, 2.0**20), 100)


def take_often(made, x, weights, times):
    for _ in range(times):
        made.take(x, weights, False)


def test_a_bound_of_zero_has_no_sign():
    zeros = np.array([[-0.0], [0.0]])
    for raw in (zeros, zeros[::-1], np.tile(zeros, (400, 1))):
        got = ChunkReader(np.zeros(1), np.ones(1), 50, np.empty((len(raw), 1)), np.empty(len(raw)))
        assert got.take(raw, None, False) == -1
        assert not np.signbit([got.minimum, got.maximum]).any()
