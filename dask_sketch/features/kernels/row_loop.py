"""One reading of the rows of a block: checked, centred and in groups, and what they sum to.

What a row adds to the moments is a whole number of steps (:class:`FixedPoint`). Of one block these
are added in float64, or in 64 bits, where the bounds of the block prove that no sum is rounded;
blocks with a row far out are read once more, in two words. The integers are the same either way.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from dask_sketch.features.kernels.fixed_point import (
    BINADES,
    CONTRIBUTION,
    LEAST,
    LOW_BITS,
    MOST,
    WEIGHT_BITS,
)

RUN = 256  # values, at most, of several rows: what is kept for them stays in the first cache
FARTHEST = 2.0**26  # units from the center: what is farther away is refused
GROUPS = (MOST - LEAST) // BINADES + 1
_ONE = -LEAST // BINADES  # the group of weight one
_HALVINGS = BINADES.bit_length() - 1  # of a number, for its quotient with BINADES
ROOT = 2.0 ** (CONTRIBUTION // 2)  # steps of a second moment in one unit squared, as a square
_DIGIT = 2.0**30
_MASK = 2**LOW_BITS - 1
_ROOM = 2**62  # as of FixedPoint
_GRID = 2.0**WEIGHT_BITS
OVERFLOW = -2


@numba.njit(nogil=True, error_model="numpy")
def _finite(x):  # type: ignore[no-untyped-def]
    fine = True
    for k in range(x.size):
        fine &= math.isfinite(x[k])
    return fine


@numba.njit(nogil=True, error_model="numpy")
def _take_two(x, y, center, scale, out_x, out_y, low, high, first, second):  # type: ignore[no-untyped-def]
    """Two runs at once: what is kept for each place in a run is read and written half as often."""
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
    """The values of the features, for each of some rows side by side."""
    d = values.size
    out = np.empty(rows * d)
    for r in range(rows):
        out[r * d : (r + 1) * d] = values
    return out


@numba.njit(nogil=True, error_model="numpy")
def _collect(sums, places):  # type: ignore[no-untyped-def]
    """Bring the places of a run together, feature by feature."""
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
    """Take rows of weight one, in runs, up to a pair of runs with a bad row; give their number.

    A loop over a few features is mostly beginning and end, so that rows side by side are read as
    one run of values: each place in it has its own bounds and moments, brought together last.
    """
    n, d = raw.shape
    rows = max(RUN // d, 1)
    run = rows * d
    x, y = raw.reshape(-1), out.reshape(-1)
    if 2 * rows > n or not _finite(x[: 2 * run]):
        return 0  # where bad rows are many, nothing is prepared in vain
    centers, scales = _spread(center, rows), _spread(scale, rows)
    lows, highs = np.full(run, np.inf), np.full(run, -np.inf)
    firsts, seconds = np.zeros(run), np.zeros(run)
    taken = 0
    while taken + 2 * rows <= n:
        i = taken * d
        j, end = i + run, i + 2 * run
        if not _finite(x[i:end]):
            break
        _take_two(x[i:j], x[j:end], centers, scales, y[i:j], y[j:end], lows, highs, firsts, seconds)
        taken += 2 * rows
    _bound(low, high, lows, highs)
    _collect(first, firsts)
    _collect(second, seconds)
    return taken


@numba.njit(nogil=True, error_model="numpy")
def _gather(raw, shares, order, values, spread):  # type: ignore[no-untyped-def]
    """Rows in some order, side by side, and the share of each, as often as it has features."""
    d = raw.shape[1]
    for r in range(order.size):
        i, share = order[r], np.float64(shares[r])
        for f in range(d):
            values[r * d + f] = np.float64(raw[i, f])
            spread[r * d + f] = share


@numba.njit(nogil=True, error_model="numpy")
def _take_pair(x, y, x_shares, y_shares, center, scale, out_x, out_y, low, high, first, second):  # type: ignore[no-untyped-def]  # fmt: skip
    """Two runs at once, as in _take_two, of rows that have weights."""
    for k in range(x.size):
        low[k] = min(low[k], min(x[k], y[k]))
        high[k] = max(high[k], max(x[k], y[k]))
    for k in range(x.size):
        a, b = x[k] - center[k], y[k] - center[k]
        out_x[k], out_y[k] = a, b
        a *= scale[k]
        b *= scale[k]
        first[k] += np.rint(x_shares[k] * (a * ROOT)) + np.rint(y_shares[k] * (b * ROOT))
        second[k] += np.rint(x_shares[k] * (a * a)) + np.rint(y_shares[k] * (b * b))


@numba.njit(nogil=True, error_model="numpy")
def _take_groups(raw, shares, order, counts, center, scale, out, low, high, firsts, seconds):  # type: ignore[no-untyped-def]  # fmt: skip
    """Take rows in a given order, of which ``counts`` each belong together."""
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
            _gather(raw, shares[taken:end], order[taken:end], values, spread)
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


@numba.njit(nogil=True, error_model="numpy")
def find_refused(raw, weights, omit):  # type: ignore[no-untyped-def]
    """The first row that is refused for its values or its weight; -1 if there is none."""
    for i in range(weights.size):
        if not _finite(raw[i]):
            if not omit:
                return i
        elif not (weights[i] == 0.0 or (weights[i] >= 2.0**LEAST and weights[i] <= 2.0**MOST)):
            return i
    return -1


@numba.njit(nogil=True, error_model="numpy")
def split_weights(weights, least, grid, parts, groups):  # type: ignore[no-untyped-def]
    """Split weights into ``f * 16**e``; give whether all were in range."""
    given, split = weights.view(np.int64), parts.view(np.int64)
    fine = True
    for i in range(weights.size):
        w = weights[i]
        fine &= (w == 0.0) | ((w >= 2.0**LEAST) & (w <= 2.0**MOST))
        # in the bits of a float64: rounded to ``grid`` bits; less one, so that a power of two is
        # with the numbers below it
        bits = (given[i] + (1 << (52 - grid))) >> (53 - grid) << (53 - grid)
        above = ((bits - 1) >> 52) - 1022 - LEAST
        k = max((above + BINADES - 1) >> _HALVINGS, least)
        split[i] = bits - ((BINADES * k + LEAST) << 52)
        groups[i] = GROUPS if w == 0.0 else k
    return fine


@numba.njit(nogil=True, error_model="numpy")
def _place(order, places, groups, i, half):  # type: ignore[no-untyped-def]
    k = groups[i]
    order[places[k, half]] = i
    places[k, half] += 1


@numba.njit(nogil=True, error_model="numpy")
def _sort(raw, weights, omit, least, grid, parts, shares, order, groups, counts, totals):  # type: ignore[no-untyped-def]
    """Rows in the order of their groups, those of weight zero after them, those left out last.

    Gives (omitted, first refused row).
    """
    n = raw.shape[0]
    fine = split_weights(weights, least, grid, parts, groups)
    if not _finite(raw.reshape(-1)) or not fine:
        refused = find_refused(raw, weights, omit)
        if refused >= 0:
            return 0, refused
        for i in range(n):
            if not _finite(raw[i]):
                groups[i] = GROUPS + 1
    # one half of the rows beside the other: a count waits for the last change of it
    half = n // 2
    found = np.zeros((GROUPS + 2, 2), np.int64)
    for i in range(n - half):
        found[groups[i], 0] += 1
        if i < half:
            found[groups[n - half + i], 1] += 1
    places, before = np.empty_like(found), np.int64(0)
    for k in range(GROUPS + 2):
        for side in range(2):
            places[k, side] = before
            before += found[k, side]
    for i in range(n - half):
        _place(order, places, groups, i, 0)
        if i < half:
            _place(order, places, groups, n - half + i, 1)
    for k in range(GROUPS + 1):
        counts[k] = found[k, 0] + found[k, 1]
    taken = 0
    for k in range(GROUPS):
        weight = square = np.int64(0)
        for r in range(taken, taken + counts[k]):
            f = parts[order[r]]
            shares[r] = f
            weight += np.int64(np.rint(f * _GRID))
            square += np.int64(np.rint(f * f * _GRID))
        totals[0, k], totals[1, k] = weight, square
        taken += counts[k]
    return found[GROUPS + 1, 0] + found[GROUPS + 1, 1], -1


@numba.njit(nogil=True, error_model="numpy")
def add_quanta(sums, f, value, shift):  # type: ignore[no-untyped-def]
    """Add ``value * 2**shift`` to one sum of two words; give whether it still fits."""
    if shift < LOW_BITS:
        high = value >> (LOW_BITS - shift)
        low = (value & ((np.int64(1) << (LOW_BITS - shift)) - 1)) << shift
    else:
        shift = min(shift - LOW_BITS, 62)
        high, low = value << shift, np.int64(0)
        if high >> shift != value or abs(high) >= _ROOM:
            return False
    low += sums[1, f]
    sums[1, f] = low & _MASK
    high += sums[0, f] + (low >> LOW_BITS)
    sums[0, f] = high
    return high >= -_ROOM and high < _ROOM


@numba.njit(nogil=True, error_model="numpy")
def _add_gathered(values, shares, center, scale, digits):  # type: ignore[no-untyped-def]
    """Moments of rows that may be far out, as digits to the base 2**30: sums of these are exact."""
    for k in range(values.size):
        a = (values[k] - center[k]) * scale[k]
        step = np.rint(shares[k] * (a * ROOT))
        above = np.rint(step / _DIGIT)
        digits[0, k] += step - above * _DIGIT
        digits[1, k] += above
        step = np.rint(shares[k] * (a * a))
        above = np.rint(step / _DIGIT)
        most = np.rint(above / _DIGIT)
        digits[2, k] += step - above * _DIGIT
        digits[3, k] += above - most * _DIGIT
        digits[4, k] += most


@numba.njit(nogil=True, error_model="numpy")
def add_far(raw, shares, order, counts, center, scale, first, second):  # type: ignore[no-untyped-def]
    """Add the moments of a block with rows far out; give the first that is too far."""
    d = raw.shape[1]
    rows = max(RUN // d, 1)
    run = rows * d
    refused = raw.shape[0]
    for r in range(counts.sum()):
        for f in range(d):
            away = (np.float64(raw[order[r], f]) - center[f]) * scale[f]
            if not abs(away) <= FARTHEST * ROOT:
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
            _gather(raw, shares[taken:end], order[taken:end], values, spread)
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


def take_rows(raw, weights, weighted, omit, least, grid, center, scale, out, shares, parts, order, groups, low, high, first, second, counts, totals):  # type: ignore[no-untyped-def]  # fmt: skip
    """Fill ``out`` with the usable rows; give (rows omitted, first refused row or OVERFLOW)."""
    n, d = raw.shape
    lows, highs = np.full(d, np.inf), np.full(d, -np.inf)
    firsts, seconds = np.zeros((GROUPS, d), np.int64), np.zeros((GROUPS, d), np.int64)
    in_runs = omitted = 0
    if weighted:
        omitted, refused = _sort(
            raw, weights, omit, least, grid, parts, shares, order, groups, counts, totals
        )
        if refused >= 0:
            return 0, refused
    else:
        in_runs = _take_runs(raw, center, scale, out, lows, highs, firsts[_ONE], seconds[_ONE])
        taken = in_runs
        for i in range(in_runs, n):
            if _finite(raw[i]):
                shares[taken], order[taken] = 1.0, i
                taken += 1
            elif omit:
                omitted += 1
            else:
                return 0, i
        counts[_ONE] = taken - in_runs
    # one call for both: what it is compiled to is long
    _take_groups(
        raw, shares[in_runs:], order[in_runs:], counts[:GROUPS], center, scale, out[in_runs:], lows,
        highs, firsts, seconds,
    )  # fmt: skip
    counts[_ONE] += in_runs
    reach = 0.0  # a square, in steps
    for f in range(d):
        # a bound of zero has no sign, whichever zero came first
        low[f], high[f] = min(low[f], lows[f]) + 0.0, max(high[f], highs[f]) + 0.0
        if highs[f] >= lows[f]:
            away = max(highs[f] - center[f], center[f] - lows[f]) * scale[f]
            reach = max(reach, away * away)
    # each place in a run holds a sum in float64, exact to 2**53; a little less, for roundings
    if not reach * (n // max(RUN // d, 1) + 3) < 0.99 * 2.0**53:
        for i in range(in_runs):
            shares[i], order[i] = 1.0, i
        return omitted, add_far(raw, shares, order, counts[:GROUPS], center, scale, first, second)
    for k in range(GROUPS):
        if counts[k]:
            for f in range(d):
                if not add_quanta(first, f, firsts[k, f], BINADES * k):
                    return omitted, OVERFLOW
                if not add_quanta(second, f, seconds[k, f], BINADES * k):
                    return omitted, OVERFLOW
    return omitted, -1
