"""Ranges of rows: overlaps are found as by comparing every two of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_sketch.jobs.ledger.forgotten import RowRanges, file_of

FILES = st.sampled_from(["a", "b[0:1]x", "c"])
RANGES = st.tuples(FILES, st.integers(0, 9), st.integers(1, 5), st.booleans())


def key_of(file, start, length, whole):
    return file if whole else f"{file}[{start}:{start + length}]"


def rows_of(file, start, length, whole):
    return {(file, row) for row in (range(20) if whole else range(start, start + length))}


@given(st.lists(RANGES, max_size=6), RANGES)
def test_overlaps(partitions, other):
    rows = RowRanges({key_of(*one): () for one in partitions})
    held = set().union(*(rows_of(*one) for one in partitions))
    assert rows.overlap(key_of(*other)) == bool(held & rows_of(*other))
    assert file_of(key_of(*other)) == other[0]
