"""Sum the rows of each group of a chunk, in fixed point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError
from dask_sketch.features.kernels.fixed_point import (
    BINADES,
    FRACTION,
    LOW_BITS,
    MIN_EXPONENT,
    SQUARED_FRACTION,
    WEIGHT_BITS,
    WEIGHT_FRACTION,
)
from dask_sketch.features.kernels.grouped_code import STEPS, elements_of, longest_segment, pitch_of
from dask_sketch.features.kernels.grouped_loops import batch_summer
from dask_sketch.features.kernels.grouped_reading import NOT_FINITE, batch_reading
from dask_sketch.features.kernels.incomplete import IncompleteKernel
from dask_sketch.features.kernels.prepared import PreparedKernel
from dask_sketch.features.kernels.row_loop import N_EXPONENTS, OVERFLOW, ROOT, split_weights
from dask_sketch.features.kernels.row_reader import native_type
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.features.kernels.whitened_rows import RowWhitener
from dask_sketch.validation.compilation import cached_njit

DIGIT = 24  # low bits of total weights that are summed separately, so that sums do not overflow
_GRID = 2.0**WEIGHT_BITS
_DIGIT_MASK = 2**DIGIT - 1
_LOW_MASK = 2**LOW_BITS - 1
Whole = NDArray[np.int64]


@cached_njit("void(int64[::1], int64[::1])", nogil=True)
def _count(codes, counts):  # type: ignore[no-untyped-def]
    """Count codes, which start at -1; that of -1 is first."""
    for code in codes:
        counts[code + 1] += 1


@cached_njit(
    "void(int64[::1], int64[::1], int64[::1], int64[::1], uint32[::1])",
    nogil=True,
)
def _place(keys, places, ends, rests, order):  # type: ignore[no-untyped-def]
    """Sort rows by key: from ``places`` to ``ends``, and then from ``rests`` on."""
    if not ends.size:  # no key has a full segment
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


@cached_njit(
    "void(int64[::1], int8[::1], float64[::1], int64[::1], int64, int64[::1], int64[:, ::1])",
    nogil=True,
)
def sum_weights(codes, exponents, mantissas, numbers, n_exponents, keys, totals):  # type: ignore[no-untyped-def]
    """Combine code and exponent of each row to a key, and sum the weights of each key.

    Rows of weight zero have the key -1. The totals are those of weights and of their squares, each
    split into the bits above and below DIGIT.
    """
    for i in range(codes.size):
        number = numbers[exponents[i]]
        keys[i] = -1
        if codes[i] >= 0 and number >= 0:
            key = codes[i] * n_exponents + number
            keys[i] = key
            f = mantissas[i]
            weight, square = np.int64(np.rint(f * _GRID)), np.int64(np.rint(f * f * _GRID))
            totals[0, key] += weight >> DIGIT
            totals[1, key] += weight & _DIGIT_MASK
            totals[2, key] += square >> DIGIT
            totals[3, key] += square & _DIGIT_MASK


@dataclass(frozen=True)
class Segments:
    """Rows sorted by key, in segments; segments of similar length are adjacent.

    Attributes
    ----------
    order
        Numbers of the rows, uint32, segment by segment; and one more, for empty vector elements.
    starts, lengths
        Start and length of each segment in ``order``, the longest first, followed by empty segments
        up to a multiple of the vector width. There are ``width`` more starts than lengths.
    keys
        Key of each segment.
    """

    order: NDArray[np.uint32]
    starts: Whole
    lengths: NDArray[np.int32]
    keys: Whole


def count_groups(codes: Whole, n_groups: int) -> Whole:
    """Count the rows of each group, shape (n_groups,), without those of code -1."""
    counts = np.zeros(n_groups + 1, dtype=np.int64)
    _count(codes, counts)
    return counts[1:]


def segments_of(keys: Whole, n_keys: int, longest: int, width: int) -> tuple[Segments, Whole]:
    """Sort rows by key, without those of key -1, and count them.

    Examples
    --------
    >>> segments, counts = segments_of(np.array([1, 0, 1, -1, 1]), 2, longest=2, width=4)
    >>> counts, segments.order, segments.lengths, segments.keys
    (array([1, 3]), array([0, 2, 1, 4, 0], dtype=uint32), array([2, 1, 1, 0], dtype=int32),
     array([1, 0, 1, 0]))
    """
    counts = count_groups(keys, n_keys)
    # full segments first, those of a key adjacent, then the remainder of each key
    whole = counts // longest
    rest = counts - whole * longest
    left = np.flatnonzero(rest)
    left = left[np.argsort(-rest[left].astype(np.int16), kind="stable")]
    key = np.concatenate([np.repeat(np.arange(n_keys), whole), left])
    filled = -(-len(key) // width) * width
    segments = Segments(
        np.empty(int(counts.sum()) + 1, dtype=np.uint32),
        np.zeros(filled + width, dtype=np.int64),
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


_ONE = -MIN_EXPONENT // BINADES  # the exponent of weight one
_SMALL = 2**5  # bound of high words of numbers that fit in one word
_SLACK = 16  # largest excess of one row over its weight in a moment, in quanta, due to rounding


@dataclass(frozen=True)
class SplitWeights:
    """Weights of the rows of a chunk as ``mantissas * 2**(4 exponents - 32)``.

    Attributes
    ----------
    mantissas
        Mantissas in (1/16, 1], shape (n,).
    exponents
        Exponents in units of four powers of two, shape (n,); N_EXPONENTS for weights of zero.
    valid
        Whether all weights are in range.
    """

    mantissas: NDArray[np.float64]
    exponents: NDArray[np.int8]
    valid: bool

    @classmethod
    def of(cls, weights: NDArray[np.float64], prepared: PreparedKernel) -> SplitWeights:
        """Split weights, with as many bits as the precision of the kernel holds."""
        fraction = prepared.kernel.fraction
        least = -(-max(fraction - FRACTION - MIN_EXPONENT, 0) // BINADES)
        grid = min(WEIGHT_BITS - BINADES + 1, int(np.finfo(prepared.dtype).nmant) + 1)
        mantissas, exponents = np.empty(len(weights)), np.empty(len(weights), np.int8)
        valid = split_weights(weights, least, grid, mantissas, exponents)
        return cls(mantissas, exponents, bool(valid))


@dataclass(frozen=True)
class MissingSums:
    """Counters and moments of the rows of each group that have missing values.

    Attributes
    ----------
    frequencies, pairs
        Weights of the rows that miss a feature of each frequency, and of each pair, in quanta of
        ``2**-71``, with a leading axis of groups.
    first, second, weights
        Sums of a sketch over these rows, in quanta, with a leading axis of groups.
    """

    frequencies: StackedFixedPoint
    pairs: StackedFixedPoint
    first: StackedFixedPoint
    second: StackedFixedPoint
    weights: StackedFixedPoint


@dataclass(frozen=True)
class GroupSums:
    """Sums over the rows of each group.

    Attributes
    ----------
    moments, first, second, weights, squared_weights
        Sums of a sketch in quanta, with a leading axis of groups.
    minimum, maximum
        Bounds of the rows with positive weight, shape (n_groups, n_features).
    count
        Number of rows, including rows of weight zero, shape (n_groups,).
    missing
        Counters and moments of the rows with missing values; None where there may be none.
    """

    moments: StackedFixedPoint
    first: StackedFixedPoint
    second: StackedFixedPoint
    weights: StackedFixedPoint
    squared_weights: StackedFixedPoint
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    count: Whole
    missing: MissingSums | None = None


class RowError(Exception):
    """Rows that cannot be summed.

    Attributes
    ----------
    row
        Number of the first row that is too far from the center; -1 if a row is not finite; OVERFLOW
        if the moments are too large.
    """

    def __init__(self, row: int):
        super().__init__(row)
        self.row = row


@dataclass(frozen=True)
class IncompleteGroupRows:
    """Rows of a chunk with missing values.

    Attributes
    ----------
    kernel
        Kernel of the feature map for such rows.
    codes
        Group of each row, from 0 on, shape (n,); -1 for complete rows and omitted ones.
    missing
        Missing values of each row, from :func:`missing_values`.
    """

    kernel: IncompleteKernel
    codes: Whole
    missing: NDArray[np.uint64]


def sum_groups(
    raw: NDArray[Any],
    prepared: PreparedKernel,
    codes: Whole,
    n_groups: int,
    split: SplitWeights | None,
    incomplete: IncompleteGroupRows | None = None,
) -> GroupSums:
    """Sum rows by groups.

    Parameters
    ----------
    raw
        Raw rows, shape (n, n_features), any real dtype.
    prepared
        Kernel of the feature map.
    codes
        Group of each complete row, from 0 on; -1 for rows that are omitted.
    n_groups
        Number of groups.
    split
        Weights of the rows, or None.
    incomplete
        Rows with missing values, each of which counts for the frequencies that it observes.

    Raises
    ------
    RowError
        If a row cannot be summed.
    """
    raw = np.ascontiguousarray(raw, dtype=native_type(raw.dtype))
    kernel = prepared.kernel
    exponents = np.array([_ONE])
    if split is not None:
        counts = np.bincount(split.exponents, minlength=N_EXPONENTS + 1)[:N_EXPONENTS]
        exponents = np.flatnonzero(counts) if counts.any() else exponents
    rows = _KeyedRows(codes, n_groups, split, exponents, prepared)
    counted, more = rows.counts, None
    if incomplete is not None:
        more = _KeyedRows(incomplete.codes, n_groups, split, exponents, prepared)
        counted = counted + more.counts
    fraction = kernel.fraction if split is not None else kernel.plain_fraction
    least = int(exponents[0])
    shifts = BINADES * (exponents - least)
    held = (counted.reshape(n_groups, -1) * np.ldexp(1.0, shifts)).sum(axis=1).max(initial=0.0)
    step = (1 << fraction) + (_SLACK << fraction - kernel.plain_fraction)
    most = min(int(held * 1.000001) * step, 2**118 - 1)
    run, shift = _Run(raw, prepared, shifts, split, n_groups, most), BINADES * least
    first, second = (_moments(words, shift) for words in run.add(rows.segments))
    weights, squares = rows.weights()
    count, missing = rows.n_rows, None
    if incomplete is not None and more is not None:
        gaps = [_moments(words, shift) for words in run.add(more.segments, incomplete.kernel)]
        more_weights, more_squares = more.weights()
        places = [np.arange(n_groups)] * 2
        try:
            counters = more.missing(incomplete)
            first, second, weights, squares = (
                StackedFixedPoint.sum(pair, places, n_groups, max_bits=bits)
                for pair, bits in (
                    ((first, gaps[0]), 118), ((second, gaps[1]), 118),
                    ((weights, more_weights), None), ((squares, more_squares), None),
                )
            )  # fmt: skip
        except CapacityError:
            raise RowError(OVERFLOW) from None
        missing = MissingSums(*counters, gaps[0], gaps[1], more_weights)
        count = count + more.n_rows
    if not (first.fits(118) and second.fits(118)):  # the limit is that of merged chunks
        raise RowError(OVERFLOW)
    moments = StackedFixedPoint(run.moments(), FRACTION - fraction + shift + MIN_EXPONENT, most)
    for bounds in (run.low, run.high):
        bounds += 0.0  # zero has no sign
    return GroupSums(moments, first, second, weights, squares, run.low, run.high, count, missing)


class _KeyedRows:
    """Rows sorted by group and exponent of the weight, with their total weights.

    Attributes
    ----------
    counts
        Number of rows of each key, which is the group times the number of exponents, plus the
        number of the exponent.
    n_rows
        Number of rows of each group, including rows of weight zero.
    segments
        The rows, sorted by key.
    """

    def __init__(
        self,
        codes: Whole,
        n_groups: int,
        split: SplitWeights | None,
        exponents: Whole,
        prepared: PreparedKernel,
    ):
        self._n_groups, self._split, self._exponents = n_groups, split, exponents
        self._keys, n_keys = codes, n_groups * len(exponents)
        if split is not None:
            numbers = np.full(N_EXPONENTS + 2, -1)
            numbers[exponents] = np.arange(len(exponents))
            self._keys, self._totals = np.empty(len(codes), np.int64), np.zeros((4, n_keys), int)
            sum_weights(
                codes, split.exponents, split.mantissas, numbers, len(exponents), self._keys,
                self._totals,
            )  # fmt: skip
        longest = longest_segment(prepared.n_features, prepared.dtype)
        self.segments, self.counts = segments_of(
            self._keys, n_keys, longest, elements_of(prepared.dtype)
        )
        self.n_rows = self.counts if split is None else count_groups(codes, n_groups)

    def weights(self) -> tuple[StackedFixedPoint, StackedFixedPoint]:
        """Total weight of each group, and that of squared weights."""
        if self._split is None:
            weights, squares = (
                StackedFixedPoint.of(self.counts, shift)
                for shift in (WEIGHT_FRACTION, SQUARED_FRACTION)
            )
            return weights, squares
        weights, squares = (
            _total(
                self._totals[2 * n : 2 * n + 2].reshape(2, self._n_groups, -1),
                (n + 1) * BINADES * self._exponents,
            )
            for n in range(2)
        )
        return weights, squares

    def missing(self, rows: IncompleteGroupRows) -> tuple[StackedFixedPoint, StackedFixedPoint]:
        """Weights of the rows of each group that miss each frequency, and each pair of features."""
        n, quanta = len(self._exponents), None
        if self._split is not None:
            quanta = np.rint(self._split.mantissas * _GRID).astype(np.int64)
        ends = np.cumsum(self.counts)
        starts = ends - self.counts
        order = np.empty(len(self._keys), np.uint32)
        _place(self._keys, starts[:0], starts[:0], starts.copy(), order)
        places, total = [np.arange(self._n_groups)] * 2, None
        for k, exponent in enumerate(self._exponents.tolist()):
            counters = rows.kernel.count_missing(
                rows.missing, order, starts[k::n], ends[k::n], quanta
            )
            if quanta is not None:
                shift = FRACTION - WEIGHT_BITS + BINADES * exponent + MIN_EXPONENT
                counters = _shifted(counters[0], shift), _shifted(counters[1], shift)
            if total is not None:
                counters = (
                    StackedFixedPoint.sum([total[0], counters[0]], places, self._n_groups),
                    StackedFixedPoint.sum([total[1], counters[1]], places, self._n_groups),
                )
            total = counters
        assert total is not None
        return total


def _shifted(stack: StackedFixedPoint, shift: int) -> StackedFixedPoint:
    """Multiply integers by a power of two, which divides them if it is less than one."""
    if shift >= 0:
        return StackedFixedPoint(stack.words, shift, stack.largest)
    low = stack.words[0] >> -shift  # mantissas have at most 24 bits there
    if len(stack.words) == 1:
        return StackedFixedPoint.of(low)
    low, high = low + ((stack.words[1] << LOW_BITS + shift) & _LOW_MASK), stack.words[1] >> -shift
    return StackedFixedPoint(np.stack([low, high]), 0, stack.largest)


def _moments(words: Whole, shift: int) -> StackedFixedPoint:
    """Convert moments of features, shape (n_groups, 2, n_features), high words first."""
    high, low = words[:, 0], words[:, 1]
    if max(int(high.max(initial=0)), -int(high.min(initial=0))) < _SMALL:
        whole = high << LOW_BITS
        whole += low
        return StackedFixedPoint.of(whole, shift)
    return StackedFixedPoint(np.stack([low, high]), shift, 2**118 - 1).tight()


def _total(digits: Whole, shifts: Whole) -> StackedFixedPoint:
    """Add the total weights of all exponents."""
    n_groups = digits.shape[1]
    parts = [
        StackedFixedPoint.of(
            np.ascontiguousarray(digits[place, :, k]), int(shift) + DIGIT * (1 - place)
        )
        for k, shift in enumerate(shifts)
        for place in range(2)
    ]
    return StackedFixedPoint.sum(parts, [np.arange(n_groups)] * len(parts), n_groups, max_bits=None)


class _Run:
    """Sums of all batches of a chunk."""

    def __init__(
        self,
        raw: NDArray[Any],
        prepared: PreparedKernel,
        shifts: Whole,
        split: SplitWeights | None,
        n_groups: int,
        most: int,
    ):
        d, m = prepared.n_features, prepared.n_frequencies
        self._raw, self._prepared, self._shifts, self._split = raw, prepared, shifts, split
        narrow, words = most < 2**31 and split is None, 1 + (most >= 2**62)
        self._narrow = np.empty((n_groups if narrow else 0, 2 * m), np.int32)
        self._low = np.empty((0 if narrow else n_groups, 2 * m), np.int64)
        self._high = np.zeros((n_groups if words > 1 else 0, 2 * m), np.int64)
        if len(self._high):
            self._low.fill(0)
        self._begun = np.zeros(n_groups, dtype=bool)
        self.low, self.high = np.full((n_groups, d), np.inf), np.full((n_groups, d), -np.inf)

    def moments(self) -> NDArray[Any]:
        """Words of the moments, shape (n_words, n_groups, 2, n_frequencies)."""
        words: NDArray[Any]
        empty = ~self._begun
        self._narrow[empty[: len(self._narrow)]] = 0
        self._low[empty[: len(self._low)]] = 0
        if self._narrow.size:
            words = self._narrow[np.newaxis]
        elif self._high.size:
            words = np.stack([self._low, self._high])
        else:
            words = self._low[np.newaxis]
        return words.reshape(*words.shape[:2], 2, -1)

    def _first_segments(self, groups: Whole, n: int) -> NDArray[np.bool_]:
        """Mark the first segment of each group without sums; there are ``n`` segments with rows."""
        first = np.full(len(self.low), -1)
        first[groups[:n][::-1]] = np.arange(n)[::-1]
        first[self._begun] = -1
        is_new = first >= 0
        fresh = np.zeros(len(groups), dtype=bool)
        fresh[first[is_new]] = True
        self._begun |= is_new
        return fresh

    def add(self, segments: Segments, incomplete: IncompleteKernel | None = None) -> Whole:
        """Read and sum all batches of segments, of rows with missing values if there is a kernel.

        Returns
        -------
        words
            First and second moments of the features, shape (2, n_groups, 2, n_features).
        """
        prepared, split, gaps = self._prepared, self._split, incomplete is not None
        d, dtype = prepared.n_features, prepared.dtype
        elements, pitch = elements_of(dtype), pitch_of(dtype)
        groups = segments.keys // len(self._shifts)
        n_blocks = -(-int(segments.lengths.max(initial=0)) // STEPS)
        columns = np.zeros(n_blocks * d * pitch, dtype)
        packed = prepared.packed
        if incomplete is not None:
            indicators = np.ones(n_blocks * (d + 1) * pitch, dtype)
            columns, packed = np.concatenate([columns, indicators]), incomplete.packed
        scratch = np.empty(n_blocks * (d + 1) * pitch, self._raw.dtype).view(np.uint8)
        weights = np.zeros(0 if split is None and not gaps else n_blocks * STEPS * elements, dtype)
        weights += split is None
        mantissas = np.empty(0, dtype)
        if split is not None:
            mantissas = split.mantissas[segments.order].astype(dtype)
        white = prepared.row_whitening
        matrix = np.empty((0, 0, 0), dtype)
        if white is not None:
            matrix = RowWhitener(white, dtype).matrix
        reading = batch_reading(self._raw.dtype.name, dtype, white is not None, gaps)
        fresh = self._first_segments(groups, int(np.count_nonzero(segments.lengths)))
        moments = np.zeros((2, len(self.low), 2, d), np.int64)
        status, row = batch_summer(prepared.kernel, gaps)(
            *reading, self._raw.reshape(-1).view(np.uint8),
            d * self._raw.itemsize, scratch, segments.order, mantissas,
            split is not None, segments.starts, segments.lengths, groups,
            fresh, self._shifts[segments.keys % len(self._shifts)], prepared.center,
            ROOT / prepared.units, columns, weights, matrix, packed, prepared.n_frequencies,
            self.low, self.high, *moments, self._narrow, self._low, self._high,
        )  # fmt: skip
        if status:
            raise RowError(-1 if status == NOT_FINITE else int(row))
        return moments
