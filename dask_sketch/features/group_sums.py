"""What the rows of each group of a chunk sum to, in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.fixed_point import (
    BINADES,
    FRACTION,
    LEAST,
    LOW_BITS,
    SQUARED_FRACTION,
    WEIGHT_BITS,
    WEIGHT_FRACTION,
)
from dask_sketch.features.group_kernel import batch_summer
from dask_sketch.features.group_reading import NOT_FINITE, batch_reading
from dask_sketch.features.group_rows import (
    DIGIT,
    Segments,
    Whole,
    count_groups,
    segments_of,
    weigh,
)
from dask_sketch.features.lane_operations import STEPS, lanes_of, longest_segment, pitch_of
from dask_sketch.features.map import FeatureMap
from dask_sketch.features.row_loop import GROUPS, ROOT, split_weights
from dask_sketch.features.rows import native_type
from dask_sketch.features.stacked_steps import StackedSteps
from dask_sketch.features.units import moment_units
from dask_sketch.features.whitened_rows import RowWhitener

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
    def of(cls, weights: NDArray[np.float64], feature_map: FeatureMap) -> Shares:
        """Split, with as many bits as the map's precision holds."""
        fraction = feature_map.kernel.fraction
        least = -(-max(fraction - FRACTION - LEAST, 0) // BINADES)
        grid = min(WEIGHT_BITS - BINADES + 1, int(np.finfo(feature_map.dtype).nmant) + 1)
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

    moments: StackedSteps
    first: StackedSteps
    second: StackedSteps
    weights: StackedSteps
    squared_weights: StackedSteps
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
    raw: NDArray[Any], feature_map: FeatureMap, codes: Whole, n_groups: int, shares: Shares | None
) -> GroupSums:
    """Sum rows by groups.

    Parameters
    ----------
    raw
        Shape (n, n_features), any real dtype.
    feature_map
        What to average.
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
    kernel, dtype = feature_map.kernel, feature_map.dtype
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
        keys, n_groups * len(kinds), longest_segment(feature_map.n_features, dtype), lanes_of(dtype)
    )
    fraction = kernel.fraction if shares is not None else kernel.plain_fraction
    least = int(kinds[0])
    shifts = BINADES * (kinds - least)
    rows = (counts.reshape(n_groups, -1) * np.ldexp(1.0, shifts)).sum(axis=1).max(initial=0.0)
    step = (1 << fraction) + (_SLACK << fraction - kernel.plain_fraction)
    most = min(int(rows * 1.000001) * step, 2**118 - 1)
    run = _Run(raw, feature_map, segments, shifts, shares, n_groups, most)
    run.run()
    shift = BINADES * least
    moments = StackedSteps(run.moments(), FRACTION - fraction + shift + LEAST, most)
    first, second = (_moments(words, shift) for words in (run.first, run.second))
    count = counts
    if totals is None:
        weights, squares = (
            StackedSteps.of(counts, shift) for shift in (WEIGHT_FRACTION, SQUARED_FRACTION)
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


def _moments(words: Whole, shift: int) -> StackedSteps:
    """Moments of the features, of shape (n_groups, 2, n_features): the high words first."""
    high, low = words[:, 0], words[:, 1]
    if max(int(high.max(initial=0)), -int(high.min(initial=0))) < _SMALL:
        whole = high << LOW_BITS
        whole += low
        return StackedSteps.of(whole, shift)
    return StackedSteps(np.stack([low, high]), shift, 2**118 - 1).tight()


def _total(digits: Whole, shifts: Whole) -> StackedSteps:
    """Totals of the weights of all exponents, of which there are a few."""
    n_groups = digits.shape[1]
    parts = [
        StackedSteps.of(np.ascontiguousarray(digits[place, :, k]), int(shift) + DIGIT * (1 - place))
        for k, shift in enumerate(shifts)
        for place in range(2)
    ]
    return StackedSteps.sum(parts, [np.arange(n_groups)] * len(parts), n_groups, most_bits=None)


class _Run:
    """Batch by batch, read and summed."""

    def __init__(
        self,
        raw: NDArray[Any],
        feature_map: FeatureMap,
        segments: Segments,
        shifts: Whole,
        shares: Shares | None,
        n_groups: int,
        most: int,
    ):
        d, m, dtype = feature_map.n_features, feature_map.n_frequencies, feature_map.dtype
        self._raw, self._map, self._segments = raw, feature_map, segments
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
        segments, d, dtype = self._segments, self._map.n_features, self._map.dtype
        lanes, pitch = lanes_of(dtype), pitch_of(dtype)
        n_blocks = -(-int(segments.lengths.max(initial=0)) // STEPS)
        columns = np.zeros(n_blocks * d * pitch, dtype)
        scratch = np.empty(n_blocks * (d + 1) * pitch, self._raw.dtype).view(np.uint8)
        share = np.zeros(n_blocks * STEPS * lanes if self._weighted else 0, dtype)
        white = self._map.row_whitening
        matrix = np.empty((0, 0, 0), dtype)
        if white is not None:
            matrix = RowWhitener(white, dtype).matrix
        reading = batch_reading(self._raw.dtype.name, dtype, white is not None)
        status, row = batch_summer(self._map)(
            *reading, self._raw.reshape(-1).view(np.uint8),
            d * self._raw.itemsize, scratch, segments.order, self._shares,
            self._weighted, segments.starts, segments.lengths, self._groups,
            self._first_segments(), self._shifts, self._map.center, ROOT / moment_units(self._map),
            columns, share, matrix, self._map.packed, self._map.n_frequencies, self.low, self.high,
            self.first, self.second, self._narrow, self._low, self._high,
        )  # fmt: skip
        if status:
            raise NotSummed(-1 if status == NOT_FINITE else int(row))
