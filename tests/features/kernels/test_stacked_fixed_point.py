"""Stacked sums are added as integers, with any number of words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_sketch.errors import (
    CapacityError,
)
from dask_sketch.features.kernels.fixed_point import LOW_BITS
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint, add_stacked


def numbers(words, shift=0):
    """Python integers that words represent."""
    return sum(word.astype(object) << LOW_BITS * k + shift for k, word in enumerate(words))


@given(
    seed=st.integers(0, 2**32 - 1),
    n_words=st.integers(1, 4),
    n_given=st.integers(1, 4),
    n_rows=st.integers(0, 9),
)
def test_sums_are_those_of_whole_numbers(seed, n_words, n_given, n_rows):
    rng, n_given = np.random.default_rng(seed), min(n_given, n_words)
    words = rng.integers(0, 2**LOW_BITS, size=(n_given, n_rows, 3))
    # the result fits: 62 bits in its last word, for ten rows and more
    room = 56 + LOW_BITS * (n_words - 1)
    bits = int(rng.integers(1, min(room - LOW_BITS * (n_given - 1), 60) + 1))
    words[-1] = rng.integers(-(2**bits), 2**bits, size=(n_rows, 3))
    shift = int(rng.integers(0, room - bits - LOW_BITS * (n_given - 1) + 1))
    places = np.sort(rng.integers(0, 4, size=n_rows))
    out = np.zeros((n_words, 4, 3), dtype=np.int64)
    add_stacked(out, words, places, shift)
    wanted = np.zeros((4, 3), dtype=object)
    np.add.at(wanted, places, numbers(words, shift) if n_rows else np.zeros((0, 3), dtype=object))
    assert (numbers(out) == wanted).all()
    assert ((out[:-1] >= 0) & (out[:-1] < 2**LOW_BITS)).all()


@pytest.mark.parametrize("shift", [0, 1, 4])
@pytest.mark.parametrize("kinds", [(np.int32, np.int32), (np.int64, np.int32)])
def test_short_words(kinds, shift):
    out, words = np.ones((1, 3, 2), kinds[0]), np.array([[[1, -2], [3, 4]]], dtype=kinds[1])
    words.flags.writeable = False
    add_stacked(out, words[:, ::-1], np.array([0, 2]), shift)
    added = np.array([[3, 4], [0, 0], [1, -2]]) * 2**shift
    np.testing.assert_array_equal(out[0], 1 + added)


def test_stacked_quanta_hold_any_integers():
    rng = np.random.default_rng(0)
    total = np.zeros((6, 3), dtype=object)
    parts, places = [], []
    for bits, shift in ((20, 0), (31, 49), (40, 3), (61, 21), (62, 56), (10, 100)):
        values = rng.integers(-(2**bits) + 1, 2**bits, size=(4, 3))
        place = np.sort(rng.integers(0, 6, 4))
        parts.append(StackedFixedPoint.of(values, shift))
        places.append(place)
        np.add.at(total, place, values.astype(object) << shift)
    summed = StackedFixedPoint.sum(parts, places, 6, max_bits=None)
    assert summed.integers() == total.tolist()
    again = StackedFixedPoint.sum(parts[::-1], places[::-1], 6, max_bits=None)
    assert again == summed
    assert again.rows(np.array([3, 1])).integers() == total[[3, 1]].tolist()
    assert summed.fixed_point(2).integers().tolist() == total[2].tolist()
    small = StackedFixedPoint.of(np.array([[1, -1]]), 5)
    assert small == StackedFixedPoint.of(np.array([[32, -32]]))
    assert small != StackedFixedPoint.of(np.array([[32, -31]]))
    shifted, plain = (
        StackedFixedPoint.of(np.array([3]), 112),
        StackedFixedPoint.from_integers([3 << 112]),
    )
    assert shifted == plain
    for parts in (
        [shifted, StackedFixedPoint.of(np.array([7]))],
        [StackedFixedPoint.of(np.array([7])), plain],
    ):
        added = StackedFixedPoint.sum(parts, [np.array([0])] * 2, 1)
        assert added.integers() == [3 * 2**112 + 7]
    with pytest.raises(CapacityError, match="smaller factor"):
        StackedFixedPoint.sum(
            [StackedFixedPoint.of(np.array([[2**61]]), 56)] * 3, [np.array([0])] * 3, 1
        )
