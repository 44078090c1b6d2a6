"""What the rows of each group of a chunk sum to, in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.kernels.fixed_point import (
    BINADES,
    FRACTION,
    LEAST,
    LOW_BITS,
    SQUARED_FRACTION,
    WEIGHT_BITS,
    WEIGHT_FRACTION,
)
from dask_sketch.features.kernels.grouped_code import STEPS, lanes_of, longest_segment, pitch_of
from dask_sketch.features.kernels.grouped_loops import batch_summer
from dask_sketch.features.kernels.grouped_reading import NOT_FINITE, batch_reading
from dask_sketch.features.kernels.prepared import PreparedKernel
from dask_sketch.features.kernels.row_loop import GROUPS, ROOT, split_weights
from dask_sketch.features.kernels.row_reader import native_type
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.features.kernels.whitened_rows import RowWhitener

# Rows of a chunk in the order of their groups: where they are, and in which segments.

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


_ONE = -LEAST // BINADES  # the exponent of weight one
_SMALL = 2**5  # high words, of numbers that fit in one word
_SLACK = 16  # steps that one row adds to a moment beyond its weight, at most, by its roundings


@dataclass(frozen=True)
class Shares:
    """Weights of the rows of a chunk, split as ``parts * 2**(4 kind - 32)``.

    Attributes
    ----------
    parts
        In (1/16, 1], shape (n,).
    kinds
        Exponents, shape (n,); GROUPS for weights of zero.
    fine
        Whether all weights are in range.
    """

    parts: NDArray[np.float64]
    kinds: NDArray[np.int8]
    fine: bool

    @classmethod
    def of(cls, weights: NDArray[np.float64], prepared: PreparedKernel) -> Shares:
        """Split weights, with as many bits as the precision of the kernel holds."""
        fraction = prepared.kernel.fraction
        least = -(-max(fraction - FRACTION - LEAST, 0) // BINADES)
        grid = min(WEIGHT_BITS - BINADES + 1, int(np.finfo(prepared.dtype).nmant) + 1)
        parts, kinds = np.empty(len(weights)), np.empty(len(weights), np.int8)
        fine = split_weights(weights, least, grid, parts, kinds)
        return cls(parts, kinds, bool(fine))


@dataclass(frozen=True)
class GroupSums:
    """Sums over the rows of each group, those of weight zero and those left out aside.

    Attributes
    ----------
    moments, first, second, weights, squared_weights
        As a sketch has them, with a leading axis of groups.
    minimum, maximum
        Bounds, shape (n_groups, n_features).
    count
        Rows, those of weight zero included, shape (n_groups,).
    """

    moments: StackedFixedPoint
    first: StackedFixedPoint
    second: StackedFixedPoint
    weights: StackedFixedPoint
    squared_weights: StackedFixedPoint
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    count: Whole


class NotSummed(Exception):
    """A row cannot be summed.

    Attributes
    ----------
    row
        The first that is too far from the center; -1 if a row is not finite; OVERFLOW if the
        moments are too large.
    """

    def __init__(self, row: int):
        super().__init__(row)
        self.row = row


def sum_groups(
    raw: NDArray[Any], prepared: PreparedKernel, codes: Whole, n_groups: int, shares: Shares | None
) -> GroupSums:
    """Sum rows by groups.

    Parameters
    ----------
    raw
        Shape (n, n_features), any real dtype.
    prepared
        Kernel of the feature map.
    codes
        Group of each row, from 0 on; -1 for rows that are left out.
    n_groups
        Number of groups.
    shares
        Weights, or none.

    Raises
    ------
    NotSummed
        If there is a row that cannot be.
    """
    raw = np.ascontiguousarray(raw, dtype=native_type(raw.dtype))
    kernel, dtype = prepared.kernel, prepared.dtype
    kinds, keys, totals = np.array([_ONE]), codes, None
    if shares is not None:
        kinds = np.flatnonzero(np.bincount(shares.kinds, minlength=GROUPS + 1)[:GROUPS])
        kinds = kinds if len(kinds) else np.array([_ONE])
        numbers = np.full(GROUPS + 2, -1)
        numbers[kinds] = np.arange(len(kinds))
        keys, totals = (
            np.empty(len(codes), np.int64),
            np.zeros((4, n_groups * len(kinds)), np.int64),
        )
        weigh(codes, shares.kinds, shares.parts, numbers, len(kinds), keys, totals)
    segments, counts = segments_of(
        keys, n_groups * len(kinds), longest_segment(prepared.n_features, dtype), lanes_of(dtype)
    )
    fraction = kernel.fraction if shares is not None else kernel.plain_fraction
    least = int(kinds[0])
    shifts = BINADES * (kinds - least)
    rows = (counts.reshape(n_groups, -1) * np.ldexp(1.0, shifts)).sum(axis=1).max(initial=0.0)
    step = (1 << fraction) + (_SLACK << fraction - kernel.plain_fraction)
    most = min(int(rows * 1.000001) * step, 2**118 - 1)
    run = _Run(raw, prepared, segments, shifts, shares, n_groups, most)
    run.run()
    shift = BINADES * least
    moments = StackedFixedPoint(run.moments(), FRACTION - fraction + shift + LEAST, most)
    first, second = (_moments(words, shift) for words in (run.first, run.second))
    count = counts
    if totals is None:
        weights, squares = (
            StackedFixedPoint.of(counts, shift) for shift in (WEIGHT_FRACTION, SQUARED_FRACTION)
        )
    else:
        count = count_groups(codes, n_groups)
        weights, squares = (
            _total(totals[2 * n : 2 * n + 2].reshape(2, n_groups, -1), (n + 1) * BINADES * kinds)
            for n in range(2)
        )
    for bounds in (run.low, run.high):
        bounds += 0.0  # zero has no sign
    return GroupSums(moments, first, second, weights, squares, run.low, run.high, count)


def _moments(words: Whole, shift: int) -> StackedFixedPoint:
    """Moments of the features, of shape (n_groups, 2, n_features): the high words first."""
    high, low = words[:, 0], words[:, 1]
    if max(int(high.max(initial=0)), -int(high.min(initial=0))) < _SMALL:
        whole = high << LOW_BITS
        whole += low
        return StackedFixedPoint.of(whole, shift)
    return StackedFixedPoint(np.stack([low, high]), shift, 2**118 - 1).tight()


def _total(digits: Whole, shifts: Whole) -> StackedFixedPoint:
    """Totals of the weights of all exponents, of which there are a few."""
    n_groups = digits.shape[1]
    parts = [
        StackedFixedPoint.of(
            np.ascontiguousarray(digits[place, :, k]), int(shift) + DIGIT * (1 - place)
        )
        for k, shift in enumerate(shifts)
        for place in range(2)
    ]
    return StackedFixedPoint.sum(
        parts, [np.arange(n_groups)] * len(parts), n_groups, most_bits=None
    )


class _Run:
    """Batch by batch, read and summed."""

    def __init__(
        self,
        raw: NDArray[Any],
        prepared: PreparedKernel,
        segments: Segments,
        shifts: Whole,
        shares: Shares | None,
        n_groups: int,
        most: int,
    ):
        d, m, dtype = prepared.n_features, prepared.n_frequencies, prepared.dtype
        self._raw, self._prepared, self._segments = raw, prepared, segments
        self._groups = segments.keys // len(shifts)
        self._shifts = shifts[segments.keys % len(shifts)]
        self._weighted = shares is not None
        self._shares = np.empty(0, dtype)
        if shares is not None:
            self._shares = shares.parts[segments.order].astype(dtype)
        narrow, words = most < 2**31 and not self._weighted, 1 + (most >= 2**62)
        self._narrow = np.empty((n_groups if narrow else 0, 2 * m), np.int32)
        self._low = np.empty((0 if narrow else n_groups, 2 * m), np.int64)
        self._high = np.zeros((n_groups if words > 1 else 0, 2 * m), np.int64)
        self.low, self.high = np.full((n_groups, d), np.inf), np.full((n_groups, d), -np.inf)
        self.first, self.second = np.zeros((2, n_groups, 2, d), np.int64)

    def moments(self) -> NDArray[Any]:
        """Words, shape (n_words, n_groups, 2, n_frequencies)."""
        words: NDArray[Any]
        if self._narrow.size:
            words = self._narrow[np.newaxis]
        elif self._high.size:
            words = np.stack([self._low, self._high])
        else:
            words = self._low[np.newaxis]
        return words.reshape(*words.shape[:2], 2, -1)

    def _first_segments(self) -> NDArray[np.bool_]:
        """Which segments are the first of their group; groups without any are set to zero."""
        n = int(np.count_nonzero(self._segments.lengths))
        first = np.full(len(self.low), -1)
        first[self._groups[:n][::-1]] = np.arange(n)[::-1]
        nothing = first < 0
        self._narrow[nothing[: len(self._narrow)]] = 0
        self._low[nothing[: len(self._low)]] = 0
        fresh = np.zeros(len(self._groups), dtype=bool)
        fresh[first[~nothing]] = True
        if len(self._high):
            self._low.fill(0)
        return fresh

    def run(self) -> None:
        """Fill the sums."""
        segments, prepared = self._segments, self._prepared
        d, dtype = prepared.n_features, prepared.dtype
        lanes, pitch = lanes_of(dtype), pitch_of(dtype)
        n_blocks = -(-int(segments.lengths.max(initial=0)) // STEPS)
        columns = np.zeros(n_blocks * d * pitch, dtype)
        scratch = np.empty(n_blocks * (d + 1) * pitch, self._raw.dtype).view(np.uint8)
        share = np.zeros(n_blocks * STEPS * lanes if self._weighted else 0, dtype)
        white = prepared.row_whitening
        matrix = np.empty((0, 0, 0), dtype)
        if white is not None:
            matrix = RowWhitener(white, dtype).matrix
        reading = batch_reading(self._raw.dtype.name, dtype, white is not None)
        status, row = batch_summer(prepared.kernel)(
            *reading, self._raw.reshape(-1).view(np.uint8),
            d * self._raw.itemsize, scratch, segments.order, self._shares,
            self._weighted, segments.starts, segments.lengths, self._groups,
            self._first_segments(), self._shifts, prepared.center, ROOT / prepared.units,
            columns, share, matrix, prepared.packed, prepared.n_frequencies, self.low, self.high,
            self.first, self.second, self._narrow, self._low, self._high,
        )  # fmt: skip
        if status:
            raise NotSummed(-1 if status == NOT_FINITE else int(row))
