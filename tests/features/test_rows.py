"""Rows read in runs give what rows read one by one give, wherever the bad ones are."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.features.rows import RUN, RowReader


def reader(d, block):
    center = np.linspace(-1, 1, d)
    return RowReader(center, np.empty((block, d), np.float32), np.empty(block, np.float32))


def same(got, expected, taken):
    np.testing.assert_array_equal(got.minimum, expected.minimum)
    np.testing.assert_array_equal(got.maximum, expected.maximum)
    np.testing.assert_array_equal(got.rows[:taken], expected.rows[:taken])
    tolerance = {"rtol": 1e-13, "atol": 1e-12 * max(taken, 1)}
    np.testing.assert_allclose(got.first_moment, expected.first_moment, **tolerance)
    np.testing.assert_allclose(got.second_moment, expected.second_moment, **tolerance)


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
        assert (got.taken, got.count, got.omitted) == (n, n, 0)
        exact = x.astype(np.float64)
        centred = exact - got.center
        np.testing.assert_array_equal(got.rows, centred.astype(np.float32))
        np.testing.assert_array_equal(got.minimum, exact.min(axis=0, initial=np.inf))
        np.testing.assert_array_equal(got.maximum, exact.max(axis=0, initial=-np.inf))
        np.testing.assert_allclose(got.first_moment, centred.sum(axis=0), atol=1e-9)
        np.testing.assert_allclose(got.second_moment, np.square(centred).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("d", [12, 300])
def test_a_bad_row_anywhere_in_a_run_is_refused_or_left_out(d, value, rng):
    n = 2 * pair(d) + 3
    x = rng.normal(size=(n, d)).astype(np.float32)
    for row in range(n):
        bad = x.copy()
        bad[row, row % d] = value
        refusing = reader(d, n)
        assert refusing.take(bad, None, False) == row
        assert (refusing.taken, refusing.omitted) == (row, 0)
        omitting, one_by_one = reader(d, n), reader(d, n)
        assert omitting.take(bad, None, True) == -1
        assert (omitting.taken, omitting.omitted) == (n - 1, 1)
        assert one_by_one.take(bad, np.ones(n), True) == -1  # rows with weights are no runs
        same(omitting, one_by_one, n - 1)


def test_blocks_add_up_and_the_same_rows_give_the_same_bits(rng):
    x = rng.normal(size=(500, 12))
    readers = [reader(12, 200) for _ in range(2)]
    whole = reader(12, 500)
    for made in readers:
        for start in range(0, 500, 200):
            made.take(x[start : start + 200], None, False)
    whole.take(x, np.ones(500), False)
    for name in ("minimum", "maximum", "first_moment", "second_moment"):
        one, other = (getattr(made, name) for made in readers)
        assert one.tobytes() == other.tobytes()
        np.testing.assert_allclose(one, getattr(whole, name), rtol=1e-12, atol=1e-10)
    assert readers[0].count == whole.count == 500


def test_a_bound_of_zero_has_no_sign():
    zeros = np.array([[-0.0], [0.0]])
    for raw in (zeros, zeros[::-1], np.tile(zeros, (400, 1))):
        reader = RowReader(np.zeros(1), np.empty((len(raw), 1)), np.empty(len(raw)))
        assert reader.take(raw, None, False) == -1
        assert not np.signbit([reader.minimum, reader.maximum]).any()
