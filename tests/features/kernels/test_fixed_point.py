"""Fixed-point numbers of two words equal Python integers, bit for bit, or raise an error."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_sketch.errors import CapacityError
from dask_sketch.features.kernels.fixed_point import MAX_TOTAL_WEIGHT, FixedPoint, is_weight

LARGEST = 2**118
whole = st.one_of(
    st.integers(-LARGEST, LARGEST - 1),
    st.integers(-(2**60), 2**60),
    st.builds(lambda power, off: 2**power + off, st.integers(0, 117), st.integers(-2, 2)),
    st.builds(lambda power, off: off - 2**power, st.integers(0, 117), st.integers(0, 2)),
)
words = st.integers(-(2**63), 2**63 - 1)
TOO_LARGE = pytest.raises(CapacityError, match=f"{MAX_TOTAL_WEIGHT:.3g}".replace("+", r"\+"))


def made(*numbers):
    return FixedPoint.from_integers(list(numbers))


def check(got, expected):
    """These numbers, in canonical words."""
    assert got.integers().tolist() == expected
    assert got.is_canonical()
    assert got.high.dtype == got.low.dtype == np.int64
    assert got == made(*expected)


def fits(number):
    return -LARGEST <= number < LARGEST


@given(st.lists(whole, max_size=5))
def test_there_and_back(numbers):
    got = made(*numbers)
    check(got, numbers)
    assert got.any() == any(numbers)
    assert pickle.loads(pickle.dumps(got)) == got


@given(a=whole, b=whole)
def test_addition_and_subtraction(a, b):
    for expected, combine in ((a + b, "__add__"), (a - b, "__sub__")):
        if fits(expected):
            check(getattr(made(a, 0), combine)(made(b, 0)), [expected, 0])
        else:
            with TOO_LARGE:
                getattr(made(a, 0), combine)(made(b, 0))
    if fits(a + b):
        assert (made(a) + made(b)) - made(b) == made(a)


@given(numbers=st.lists(whole, min_size=1, max_size=5), times=st.sampled_from([1, 40, 64, 65, 200]))
def test_sums_of_many(numbers, times):
    parts = [made(number, -1, 2**56 - 1) for number in numbers] * times
    partial = np.cumsum(np.array(numbers * times, dtype=object))
    if all(map(fits, partial)):
        n = len(parts)
        check(FixedPoint.sum(parts), [partial[-1], -n, n * (2**56 - 1)])
    elif not fits(partial[-1]):
        with TOO_LARGE:
            FixedPoint.sum(parts)


def test_a_sum_does_not_wrap_around():
    most, least = made(LARGEST - 1), made(-LARGEST)
    for extreme in (most, least):
        for count in (2, 3, 4, 5, 8, 64, 65, 128, 1000):
            with TOO_LARGE:
                FixedPoint.sum([extreme] * count)
    check(most + least, [-1])


@given(value=words, shift=st.integers(0, 130))
def test_shifted_words(value, shift):
    values = np.array([value, 0], dtype=np.int64)
    if fits(value << shift):
        check(FixedPoint.from_int64(values, shift), [value << shift, 0])
    else:
        with TOO_LARGE:
            FixedPoint.from_int64(values, shift)


@given(value=st.floats(allow_nan=False, allow_infinity=False), fraction=st.integers(0, 112))
def test_floats_are_rounded_to_the_nearest(value, fraction):
    exact = Fraction(value) * 2**fraction
    if abs(exact) < LARGEST:
        got = FixedPoint.from_float(np.array([value]), fraction)
        check(got, [round(exact)])  # ties to even, both
        back = got.to_float(fraction)[0]
        assert abs(Fraction(back) - Fraction(round(exact), 2**fraction)) <= Fraction(math.ulp(back))
    else:
        with TOO_LARGE:
            FixedPoint.from_float(np.array([value]), fraction)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(value):
    with TOO_LARGE:
        FixedPoint.from_float(np.array([0.0, value]), 71)


@given(number=whole, fraction=st.integers(0, 112))
def test_to_float_is_within_one_unit_in_the_last_place(number, fraction):
    one, other = made(number, -number if number > -LARGEST else 0).to_float(fraction)
    exact = Fraction(number, 2**fraction)
    assert abs(Fraction(one) - exact) <= Fraction(math.ulp(one))
    if number > -LARGEST:
        assert one == -other
    if abs(number) < 2**53:
        assert one == exact


@given(number=whole, factor=st.floats(-(2.0**40), 2.0**40))
def test_a_product_is_rounded_once(number, factor):
    exact = number * Fraction(factor)
    expected = math.floor(exact + Fraction(1, 2))
    if fits(expected):
        check(made(number).times(factor), [expected])
    else:
        with TOO_LARGE:
            made(number).times(factor)


def test_words_that_are_not_canonical():
    for high, low in ((0, -1), (0, 2**56), (2**62, 0), (-(2**62) - 1, 0)):
        words = (np.array([0, number], dtype=np.int64) for number in (high, low))
        assert not FixedPoint(*words).is_canonical()
    assert made(LARGEST - 1, -LARGEST).is_canonical()


def test_an_array_is_not_changed_and_has_a_size():
    a = FixedPoint.zeros((2, 5))
    assert (a.shape, a.nbytes, a.any()) == ((2, 5), 160, False)
    total = a + a
    with pytest.raises(ValueError, match="read-only"):
        total.high[0, 0] = 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(a)
    assert a != 0
    assert a != FixedPoint.zeros((2, 4))


def test_range_of_weights():
    weights = {0.0: True, 2.0**-32: True, 1.0: True, 2.0**32: True, 2.0**-33: False, 2.0**33: False}
    assert {weight: is_weight(weight) for weight in weights} == weights
