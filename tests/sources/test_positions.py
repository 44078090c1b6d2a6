"""Positions of rows do not depend on chunks where the sizes of all chunks are known."""

from __future__ import annotations

import dask.array as da
import dask.bag as db
import numpy as np
import pytest

from dask_sketch.sources.open import open_samples
from dask_sketch.sources.positions import Place, Positions

NUMBERS = np.arange(60.0).reshape(5, 4, 3)  # rows of axes (5, 4) with three features


@pytest.mark.parametrize("chunks", [(5, 4), (2, 4), (2, 3), ((1, 3, 1), (1, 2, 1))])
def test_positions_over_several_axes(chunks):
    x = da.from_array(NUMBERS, chunks=(*chunks, 3))
    positions = Positions.in_source(open_samples(x))
    for number in np.ndindex(*x.numblocks[:2]):
        block = x.blocks[(*number, 0)].compute()
        place = positions.of(number, block)
        assert place.stream == ()
        np.testing.assert_array_equal(place.positions, block[..., 0].ravel() / 3)


@pytest.mark.parametrize(("chunks", "start"), [((7,), 14), (((5, 9, 6),), 14)])
def test_positions_along_one_axis(chunks, start):
    x = da.zeros((20, 2), chunks=(*chunks, 2))
    positions = Positions.in_source(open_samples(x), 100)
    assert positions.of((2,), np.zeros((6, 2))) == Place((), start + 100)


def test_chunks_of_unknown_size_have_positions_of_their_own():
    x = da.from_array(np.zeros((20, 2)), chunks=(5, 2))
    unknown = x[x[:, 0] >= 0]
    bag = db.from_sequence([np.zeros((5, 2))] * 4, npartitions=2)
    for source in (unknown, bag):
        positions = Positions.in_source(open_samples(source))
        assert positions.of((1,), np.zeros((5, 2)), row=3) == Place((1,), 3)
