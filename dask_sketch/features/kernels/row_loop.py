"""Compiled loop that reads the rows of a block: check, centre and group them, and sum moments.

The contribution of a row to the moments is an integer number of quanta (:class:`FixedPoint`).
Within one block contributions are added in float64, or in 64 bits, if the bounds of the block prove
that no sum is rounded; blocks with distant rows are read once more, in two words. The integers are
the same either way.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from dask_sketch.features.kernels.fixed_point import (
    BINADES,
    CONTRIBUTION,
    LOW_BITS,
    MAX_EXPONENT,
    MIN_EXPONENT,
    WEIGHT_BITS,
)
from dask_sketch.validation.compilation import cached_njit

RUN = 256  # largest number of values of a run of rows, which stays in the first-level cache
MAX_DISTANCE = 2.0**26  # largest distance from the center, in units
N_EXPONENTS = (MAX_EXPONENT - MIN_EXPONENT) // BINADES + 1
_ONE = -MIN_EXPONENT // BINADES  # exponent of weight one
_BINADES_BITS = BINADES.bit_length() - 1  # binary logarithm of BINADES
ROOT = 2.0 ** (CONTRIBUTION // 2)  # its square: quanta of a second moment in one squared unit
_DIGIT = 2.0**30
_MASK = 2**LOW_BITS - 1
_MAX_HIGH = 2**62  # bound of the high word, as in FixedPoint
_GRID = 2.0**WEIGHT_BITS
OVERFLOW = -2
DISTANT = -3


@numba.njit(nogil=True, error_model="numpy")
def all_finite(x):  # type: ignore[no-untyped-def]
    """Whether all values are finite; without a branch, so that the loop is vectorised."""
    fine = True
    for k in range(x.size):
        fine &= math.isfinite(x[k])
    return fine


@numba.njit(nogil=True, error_model="numpy")
def _take_two(x, y, center, scale, out_x, out_y, low, high, first, second):  # type: ignore[no-untyped-def]
    """Read two runs at once, so that the sums of each position are loaded half as often."""
    for k in range(center.size):
        a, b = np.float64(x[k]), np.float64(y[k])
        low[k] = min(low[k], min(a, b))
        high[k] = max(high[k], max(a, b))
    for k in range(center.size):
        a, b = np.float64(x[k]) - center[k], np.float64(y[k]) - center[k]
        out_x[k], out_y[k] = a, b
        a *= scale[k]
        b *= scale[k]
        first[k] += np.rint(a * ROOT) + np.rint(b * ROOT)
        second[k] += np.rint(a * a) + np.rint(b * b)


@numba.njit(nogil=True, error_model="numpy")
def _spread(values, rows):  # type: ignore[no-untyped-def]
    """Repeat the values of the features for adjacent rows."""
    d = values.size
    out = np.empty(rows * d)
    for start in range(0, rows * d, d):
        for f in range(d):  # compiling ``out[...] = values`` takes two seconds, for its error
            out[start + f] = values[f]
    return out


@numba.njit(nogil=True, error_model="numpy")
def _collect(sums, places):  # type: ignore[no-untyped-def]
    """Add the positions of a run, feature by feature, and reset them."""
    d = sums.size
    for start in range(0, places.size, d):
        for f in range(d):
            sums[f] += np.int64(places[start + f])
            places[start + f] = 0.0


@numba.njit(nogil=True, error_model="numpy")
def _bound(low, high, lows, highs):  # type: ignore[no-untyped-def]
    d = low.size
    for start in range(0, lows.size, d):
        for f in range(d):
            low[f] = min(low[f], lows[start + f])
            high[f] = max(high[f], highs[start + f])


@numba.njit(nogil=True, error_model="numpy")
def _take_runs(raw, center, scale, out, low, high, first, second):  # type: ignore[no-untyped-def]
    """Read rows of weight one in runs, up to an invalid row; return their number.

    Loops over a few features are mostly overhead, so that adjacent rows are read as one run of
    values: each position in it has its own bounds and moments, which are combined at the end.
    """
    n, d = raw.shape
    rows = max(RUN // d, 1)
    run = rows * d
    x, y = raw.reshape(-1), out.reshape(-1)
    if 2 * rows > n or not all_finite(x[: 2 * run]):
        return 0  # avoids the preparation if there are many invalid rows
    centers, scales = _spread(center, rows), _spread(scale, rows)
    lows, highs = np.full(run, np.inf), np.full(run, -np.inf)
    firsts, seconds = np.zeros(run), np.zeros(run)
    taken = 0
    while taken + 2 * rows <= n:
        i = taken * d
        j, end = i + run, i + 2 * run
        if not all_finite(x[i:end]):
            break
        _take_two(x[i:j], x[j:end], centers, scales, y[i:j], y[j:end], lows, highs, firsts, seconds)
        taken += 2 * rows
    _bound(low, high, lows, highs)
    _collect(first, firsts)
    _collect(second, seconds)
    return taken


@numba.njit(nogil=True, error_model="numpy")
def _gather(raw, mantissas, order, values, spread):  # type: ignore[no-untyped-def]
    """Copy rows in a given order, and the mantissa of each row once for each feature."""
    d = raw.shape[1]
    for r in range(order.size):
        i, mantissa = order[r], np.float64(mantissas[r])
        for f in range(d):
            values[r * d + f] = np.float64(raw[i, f])
            spread[r * d + f] = mantissa


@numba.njit(nogil=True, error_model="numpy")
def _take_pair(  # type: ignore[no-untyped-def]
    x, y, x_mantissas, y_mantissas, center, scale, out_x, out_y, low, high, first, second,
):  # fmt: skip
    """Read two runs of rows with weights at once, like _take_two."""
    for k in range(x.size):
        low[k] = min(low[k], min(x[k], y[k]))
        high[k] = max(high[k], max(x[k], y[k]))
    for k in range(x.size):
        a, b = x[k] - center[k], y[k] - center[k]
        out_x[k], out_y[k] = a, b
        a *= scale[k]
        b *= scale[k]
        first[k] += np.rint(x_mantissas[k] * (a * ROOT)) + np.rint(y_mantissas[k] * (b * ROOT))
        second[k] += np.rint(x_mantissas[k] * (a * a)) + np.rint(y_mantissas[k] * (b * b))


@numba.njit(nogil=True, error_model="numpy")
def _take_groups(raw, mantissas, order, counts, center, scale, out, low, high, firsts, seconds):  # type: ignore[no-untyped-def]  # fmt: skip
    """Read rows in a given order, ``counts`` rows of each exponent."""
    d = raw.shape[1]
    rows = max(RUN // d, 1)
    run = rows * d
    centers, scales = _spread(center, rows), _spread(scale, rows)
    lows, highs = np.full(run, np.inf), np.full(run, -np.inf)
    first, second = np.zeros(run), np.zeros(run)
    values, spread, nothing = np.empty(2 * run), np.empty(2 * run), np.zeros(d)
    y = out.reshape(-1)
    taken = 0
    for k in range(counts.size):
        stop = taken + counts[k]
        if taken == stop:
            continue
        while taken < stop:
            here = min(2 * rows, stop - taken)
            half, i = here // 2 * d, taken * d
            end = taken + here
            _gather(raw, mantissas[taken:end], order[taken:end], values, spread)
            if half:
                _take_pair(
                    values[:half], values[half : 2 * half], spread[:half], spread[half : 2 * half],
                    centers, scales, y[i : i + half], y[i + half : i + 2 * half], lows, highs,
                    first, second,
                )  # fmt: skip
            if here % 2:  # the last row goes with itself, without weight
                j = 2 * half
                last, place = values[j : j + d], y[i + j : i + j + d]
                _take_pair(
                    last, last, spread[j : j + d], nothing, centers, scales, place, place, lows,
                    highs, first, second,
                )  # fmt: skip
            taken = end
        _collect(firsts[k], first)
        _collect(seconds[k], second)
    _bound(low, high, lows, highs)


@cached_njit(nogil=True, error_model="numpy")
def find_refused(raw, weights, omit):  # type: ignore[no-untyped-def]
    """Return the first row with invalid values or weight; -1 if there is none."""
    for i in range(weights.size):
        if not all_finite(raw[i]):
            if not omit:
                return i
        elif not (
            weights[i] == 0.0
            or (weights[i] >= 2.0**MIN_EXPONENT and weights[i] <= 2.0**MAX_EXPONENT)
        ):
            return i
    return -1


@cached_njit(nogil=True, error_model="numpy")
def split_weights(weights, least, grid, unsorted, groups):  # type: ignore[no-untyped-def]
    """Split weights into ``f * 16**e``; return whether all are in range."""
    weight_bits, split_bits = weights.view(np.int64), unsorted.view(np.int64)
    fine = True
    for i in range(weights.size):
        w = weights[i]
        fine &= (w == 0.0) | ((w >= 2.0**MIN_EXPONENT) & (w <= 2.0**MAX_EXPONENT))
        # in the bits of a float64: rounded to ``grid`` bits; minus one, so that a power of two has
        # the exponent of the numbers below it
        bits = (weight_bits[i] + (1 << (52 - grid))) >> (53 - grid) << (53 - grid)
        above = ((bits - 1) >> 52) - 1022 - MIN_EXPONENT
        k = max((above + BINADES - 1) >> _BINADES_BITS, least)
        split_bits[i] = bits - ((BINADES * k + MIN_EXPONENT) << 52)
        groups[i] = N_EXPONENTS if w == 0.0 else k
    return fine


@numba.njit(nogil=True, error_model="numpy")
def _place(order, places, groups, i, half):  # type: ignore[no-untyped-def]
    k = groups[i]
    order[places[k, half]] = i
    places[k, half] += 1


def sort_rows(raw, weights, omit, least, grid, unsorted, order, groups, counts, totals):  # type: ignore[no-untyped-def]
    """Sort rows by exponent, followed by rows of weight zero and by omitted rows.

    Returns the number of omitted rows and the first refused row.
    """
    n = raw.shape[0]
    fine = split_weights(weights, least, grid, unsorted, groups)
    if not all_finite(raw.reshape(-1)) or not fine:
        refused = find_refused(raw, weights, omit)
        if refused >= 0:
            return 0, refused
        for i in range(n):
            if not all_finite(raw[i]):
                groups[i] = N_EXPONENTS + 1
    # two halves in parallel, because an increment waits for the previous one of the same count
    half = n // 2
    sizes = np.zeros((N_EXPONENTS + 2, 2), np.int64)
    for i in range(n - half):
        sizes[groups[i], 0] += 1
        if i < half:
            sizes[groups[n - half + i], 1] += 1
    places, before = np.empty_like(sizes), np.int64(0)
    for k in range(N_EXPONENTS + 2):
        for side in range(2):
            places[k, side] = before
            before += sizes[k, side]
    for i in range(n - half):
        _place(order, places, groups, i, 0)
        if i < half:
            _place(order, places, groups, n - half + i, 1)
    for k in range(N_EXPONENTS + 1):
        counts[k] = sizes[k, 0] + sizes[k, 1]
    taken = 0
    for k in range(N_EXPONENTS):
        weight = square = np.int64(0)
        for r in range(taken, taken + counts[k]):
            f = unsorted[order[r]]
            weight += np.int64(np.rint(f * _GRID))
            square += np.int64(np.rint(f * f * _GRID))
        totals[0, k], totals[1, k] = weight, square
        taken += counts[k]
    return sizes[N_EXPONENTS + 1, 0] + sizes[N_EXPONENTS + 1, 1], -1


@numba.njit(nogil=True, error_model="numpy")
def add_quanta(sums, f, value, shift):  # type: ignore[no-untyped-def]
    """Add ``value * 2**shift`` to one sum of two words; return whether it still fits."""
    if shift < LOW_BITS:
        high = value >> (LOW_BITS - shift)
        low = (value & ((np.int64(1) << (LOW_BITS - shift)) - 1)) << shift
    else:
        shift = min(shift - LOW_BITS, 62)
        high, low = value << shift, np.int64(0)
        if high >> shift != value or abs(high) >= _MAX_HIGH:
            return False
    low += sums[1, f]
    sums[1, f] = low & _MASK
    high += sums[0, f] + (low >> LOW_BITS)
    sums[0, f] = high
    return high >= -_MAX_HIGH and high < _MAX_HIGH


@numba.njit(nogil=True, error_model="numpy")
def _add_gathered(values, mantissas, center, scale, digits):  # type: ignore[no-untyped-def]
    """Add moments of distant rows as digits to the base 2**30, whose sums are exact."""
    for k in range(values.size):
        a = (values[k] - center[k]) * scale[k]
        quanta = np.rint(mantissas[k] * (a * ROOT))
        above = np.rint(quanta / _DIGIT)
        digits[0, k] += quanta - above * _DIGIT
        digits[1, k] += above
        quanta = np.rint(mantissas[k] * (a * a))
        above = np.rint(quanta / _DIGIT)
        most = np.rint(above / _DIGIT)
        digits[2, k] += quanta - above * _DIGIT
        digits[3, k] += above - most * _DIGIT
        digits[4, k] += most


@numba.njit(nogil=True, error_model="numpy")
def add_far(raw, mantissas, order, counts, center, scale, first, second):  # type: ignore[no-untyped-def]
    """Add the moments of a block with distant rows; return the first row beyond MAX_DISTANCE."""
    d = raw.shape[1]
    rows = max(RUN // d, 1)
    run = rows * d
    refused = raw.shape[0]
    for r in range(counts.sum()):
        for f in range(d):
            away = (np.float64(raw[order[r], f]) - center[f]) * scale[f]
            if not abs(away) <= MAX_DISTANCE * ROOT:
                refused = min(refused, np.int64(order[r]))
    if refused < raw.shape[0]:
        return refused
    centers, scales = _spread(center, rows), _spread(scale, rows)
    digits = np.zeros((5, run))
    values, spread = np.empty(run), np.empty(run)
    total = np.empty(d, np.int64)
    taken = 0
    for k in range(counts.size):
        stop = taken + counts[k]
        if taken == stop:
            continue
        while taken < stop:
            end = min(taken + rows, stop)
            size = (end - taken) * d
            _gather(raw, mantissas[taken:end], order[taken:end], values, spread)
            _add_gathered(values[:size], spread[:size], centers, scales, digits)
            taken = end
        for place in range(5):
            total[:] = 0
            _collect(total, digits[place])
            sums, shift = (first, 30 * place) if place < 2 else (second, 30 * (place - 2))
            for f in range(d):
                if not add_quanta(sums, f, total[f], BINADES * k + shift):
                    return OVERFLOW
    return -1


def take_rows(  # type: ignore[no-untyped-def]
    raw, weighted, omit, center, scale, out, mantissas, unsorted, order, low, high, first, second,
    counts,
):  # fmt: skip
    """Fill ``out`` with the usable rows; return omitted rows, and the refused row or a code.

    Rows with weights have been sorted. OVERFLOW says that the sums are too large, and DISTANT that
    nothing was added to them, since it might be rounded: ``add_far`` does.
    """
    n, d = raw.shape
    lows, highs = np.full(d, np.inf), np.full(d, -np.inf)
    firsts, seconds = np.zeros((N_EXPONENTS, d), np.int64), np.zeros((N_EXPONENTS, d), np.int64)
    in_runs = omitted = 0
    if weighted:
        for r in range(counts[:N_EXPONENTS].sum()):
            mantissas[r] = unsorted[order[r]]
    else:
        in_runs = _take_runs(raw, center, scale, out, lows, highs, firsts[_ONE], seconds[_ONE])
        taken = in_runs
        for i in range(in_runs, n):
            if all_finite(raw[i]):
                mantissas[taken], order[taken] = 1.0, i
                taken += 1
            elif omit:
                omitted += 1
            else:
                return 0, i
        counts[_ONE] = taken - in_runs
    # one call for both cases, because the compiled code is long
    _take_groups(
        raw, mantissas[in_runs:], order[in_runs:], counts[:N_EXPONENTS], center, scale,
        out[in_runs:], lows, highs, firsts, seconds,
    )  # fmt: skip
    counts[_ONE] += in_runs
    reach = 0.0  # largest square, in quanta
    for f in range(d):
        # zeros without sign, so that the order of the rows does not matter
        low[f], high[f] = min(low[f], lows[f]) + 0.0, max(high[f], highs[f]) + 0.0
        if highs[f] >= lows[f]:
            away = max(highs[f] - center[f], center[f] - lows[f]) * scale[f]
            reach = max(reach, away * away)
    # each position of a run holds a sum in float64, exact up to 2**53, with a margin for rounding
    if not reach * (n // max(RUN // d, 1) + 3) < 0.99 * 2.0**53:
        for i in range(in_runs):
            mantissas[i], order[i] = 1.0, i
        return omitted, DISTANT
    for k in range(N_EXPONENTS):
        if counts[k]:
            for f in range(d):
                if not add_quanta(first, f, firsts[k, f], BINADES * k):
                    return omitted, OVERFLOW
                if not add_quanta(second, f, seconds[k, f], BINADES * k):
                    return omitted, OVERFLOW
    return omitted, -1
