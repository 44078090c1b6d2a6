"""Stacked sums are added as integers, with any number of words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_sketch.features.kernels.fixed_point import LOW_BITS
from dask_sketch.features.kernels.stacked_fixed_point import add_stacked


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


@pytest.mark.parametrize("kinds", [(np.int32, np.int32), (np.int64, np.int32)])
def test_short_words(kinds):
    out, words = np.ones((1, 3, 2), kinds[0]), np.array([[[1, -2], [3, 4]]], dtype=kinds[1])
    words.flags.writeable = False
    add_stacked(out, words[:, ::-1], np.array([0, 2]), 4)
    np.testing.assert_array_equal(out[0], [[49, 65], [1, 1], [17, -31]])
