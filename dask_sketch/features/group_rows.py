"""Rows of a chunk in the order of their groups: where they are, and in which segments."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.fixed_point import WEIGHT_BITS

DIGIT = 24  # bits of the totals that are kept apart: sums of very many rows fit
_GRID = 2.0**WEIGHT_BITS
_DIGIT_MASK = 2**DIGIT - 1

Whole = NDArray[np.int64]


@numba.njit("void(int64[::1], int64[::1])", nogil=True, cache=True)
def _count(codes, counts):  # type: ignore[no-untyped-def]
    """Count codes from -1 on, that of -1 first."""
    for code in codes:
        counts[code + 1] += 1


@numba.njit(
    "void(int64[::1], int64[::1], int64[::1], int64[::1], uint32[::1])", nogil=True, cache=True
)
def _place(keys, places, ends, rests, order):  # type: ignore[no-untyped-def]
    """Put rows where their key says: from ``places`` to ``ends``, and then from ``rests`` on."""
    if not ends.size:  # no key has a whole segment
        for i in range(keys.size):
            key = keys[i]
            if key >= 0:
                order[rests[key]] = i
                rests[key] += 1
        return
    for i in range(keys.size):
        key = keys[i]
        if key >= 0:
            place = places[key]
            if place == ends[key]:
                place = rests[key]
            order[place] = i
            places[key] = place + 1


@numba.njit(
    "void(int64[::1], int8[::1], float64[::1], int64[::1], int64, int64[::1], int64[:, ::1])",
    nogil=True,
    cache=True,
)
def weigh(codes, kinds, parts, numbers, n_kinds, keys, totals):  # type: ignore[no-untyped-def]
    """Code and exponent of each row as one key, and the totals of the weights of each key.

    Rows of weight zero have the key -1. The totals are those of weights and of their squares, each
    as the digits above DIGIT bits and those below.
    """
    for i in range(codes.size):
        number = numbers[kinds[i]]
        keys[i] = -1
        if codes[i] >= 0 and number >= 0:
            key = codes[i] * n_kinds + number
            keys[i] = key
            f = parts[i]
            weight, square = np.int64(np.rint(f * _GRID)), np.int64(np.rint(f * f * _GRID))
            totals[0, key] += weight >> DIGIT
            totals[1, key] += weight & _DIGIT_MASK
            totals[2, key] += square >> DIGIT
            totals[3, key] += square & _DIGIT_MASK


@dataclass(frozen=True)
class Segments:
    """Rows in the order of their keys, cut into segments of about one length side by side.

    Attributes
    ----------
    order
        Numbers of the rows, uint32, segment by segment; and one more, for lanes that are empty.
    starts, lengths
        Of each segment in ``order``, the longest first; then empty ones, to fill the lanes. There
        are as many starts more as there are lanes.
    keys
        Of each segment.
    """

    order: NDArray[np.uint32]
    starts: Whole
    lengths: NDArray[np.int32]
    keys: Whole


def count_groups(codes: Whole, n_groups: int) -> Whole:
    """Rows of each group, shape (n_groups,), those of code -1 left out."""
    counts = np.zeros(n_groups + 1, dtype=np.int64)
    _count(codes, counts)
    return counts[1:]


def segments_of(keys: Whole, n_keys: int, longest: int, lanes: int) -> tuple[Segments, Whole]:
    """Sort rows by their keys, those of key -1 left out, and count them.

    Examples
    --------
    >>> segments, counts = segments_of(np.array([1, 0, 1, -1, 1]), 2, longest=2, lanes=4)
    >>> counts, segments.order, segments.lengths, segments.keys
    (array([1, 3]), array([0, 2, 1, 4, 0], dtype=uint32), array([2, 1, 1, 0], dtype=int32),
     array([1, 0, 1, 0]))
    """
    counts = count_groups(keys, n_keys)
    # whole segments first, those of a key side by side, then what is left of each
    whole = counts // longest
    rest = counts - whole * longest
    left = np.flatnonzero(rest)
    left = left[np.argsort(-rest[left].astype(np.int16), kind="stable")]
    key = np.concatenate([np.repeat(np.arange(n_keys), whole), left])
    filled = -(-len(key) // lanes) * lanes
    segments = Segments(
        np.empty(int(counts.sum()) + 1, dtype=np.uint32),
        np.zeros(filled + lanes, dtype=np.int64),
        np.zeros(filled, dtype=np.int32),
        np.zeros(filled, dtype=np.int64),
    )
    segments.order[-1] = 0
    segments.keys[: len(key)] = key
    segments.lengths[: len(key) - len(left)] = longest
    segments.lengths[len(key) - len(left) : len(key)] = rest[left]
    np.cumsum(segments.lengths, out=segments.starts[1 : filled + 1])
    segments.starts[filled + 1 :] = segments.starts[filled]
    ends = np.cumsum(whole) * longest if whole.any() else whole[:0]
    rests = np.zeros(n_keys, dtype=np.int64)
    rests[left] = segments.starts[len(key) - len(left) : len(key)]
    _place(keys, ends - whole[: len(ends)] * longest, ends, rests, segments.order)
    return segments, counts
