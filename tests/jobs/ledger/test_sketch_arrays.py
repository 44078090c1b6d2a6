"""Sketches as rows of a stored batch."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import partial_sketch
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.sketch_arrays import BOUNDS, WORDS, stack, unstack


@pytest.fixture
def stacked(world, feature_map):
    sketches = [world.sketch(key) for key in "ab"]
    return sketches, stack(sketches, feature_map, with_rows=False)


def test_rows_come_back(stacked, feature_map):
    sketches, arrays = stacked
    for row, sketch in enumerate(sketches):
        assert unstack(arrays, row, feature_map, "batch").identical(sketch)


# the last two: squared weights of more than the squared weight, and more than one sample has
@pytest.mark.parametrize(("word", "value"), [(0, -1), (1, -1), (2, 2), (2, -1), (8, 2**60), (0, 1)])
def test_impossible_numbers_are_refused(word, value, stacked, feature_map):
    arrays = {WORDS: stacked[1][WORDS].copy(), BOUNDS: stacked[1][BOUNDS]}
    arrays[WORDS][1, word] = value
    assert unstack(arrays, 0, feature_map, "batch").count == stacked[0][0].count
    with pytest.raises(LedgerError, match="batch holds impossible"):
        unstack(arrays, 1, feature_map, "batch")


def test_words_that_are_not_canonical_are_refused(stacked, feature_map):
    arrays = {WORDS: stacked[1][WORDS].copy(), BOUNDS: stacked[1][BOUNDS]}
    arrays[WORDS][0, -1] = np.iinfo(np.int64).max
    with pytest.raises(LedgerError, match="batch holds impossible"):
        unstack(arrays, 0, feature_map, "batch")


def test_sums_of_weights_that_take_too_many_bytes_are_refused(feature_map):
    sketch = partial_sketch(np.zeros((1, 2)), feature_map).scale(2.0**32).scale(2.0**14)
    with pytest.raises(LedgerError, match="weights"):
        stack([sketch], feature_map, with_rows=False)
