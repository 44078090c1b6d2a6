"""One reading of the rows of a block: checked, centred and in groups, and what they sum to.

What a row adds to the moments is a whole number of steps (:class:`FixedPoint`). Of one block these
are added in float64, or in 64 bits, where the bounds of the block prove that no sum is rounded;
blocks with a row far out are read once more, in two words. The integers are the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numba import types

from dask_sketch.features.fixed_point import CONTRIBUTION, LEAST, LOW_BITS, MOST, WEIGHT_BITS
from dask_sketch.features.kernel import COMPILING

RUN = 256  # values, at most, of several rows: what is kept for them stays in the first cache
FARTHEST = 2.0**26  # units from the center: what is farther away is refused

GROUPS = MOST - LEAST + 1
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
    for k in range(places.size):
        sums[k % d] += np.int64(places[k])
        places[k] = 0.0


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
    for k in range(run):
        low[k % d] = min(low[k % d], lows[k])
        high[k % d] = max(high[k % d], highs[k])
    _collect(first, firsts)
    _collect(second, seconds)
    return taken


@numba.njit(nogil=True, error_model="numpy")
def _gather(raw, parts, order, values, shares):  # type: ignore[no-untyped-def]
    """Rows in some order, side by side, and the share of each, as often as it has features."""
    d = raw.shape[1]
    for r in range(order.size):
        i = order[r]
        share = parts[i]
        for f in range(d):
            values[r * d + f] = np.float64(raw[i, f])
            shares[r * d + f] = share


@numba.njit(nogil=True, error_model="numpy")
def _take_gathered(values, shares, center, scale, out, low, high, first, second):  # type: ignore[no-untyped-def]
    for k in range(values.size):
        low[k] = min(low[k], values[k])
        high[k] = max(high[k], values[k])
    for k in range(values.size):
        a = values[k] - center[k]
        out[k] = a
        a *= scale[k]
        first[k] += np.rint(shares[k] * (a * ROOT))
        second[k] += np.rint(shares[k] * (a * a))


@numba.njit(nogil=True, error_model="numpy")
def _take_groups(raw, parts, order, counts, center, scale, out, shares, low, high, firsts, seconds):  # type: ignore[no-untyped-def]  # fmt: skip
    """Take rows in a given order, of which ``counts`` each belong together."""
    d = raw.shape[1]
    rows = max(RUN // d, 1)
    run = rows * d
    centers, scales = _spread(center, rows), _spread(scale, rows)
    lows, highs = np.full(run, np.inf), np.full(run, -np.inf)
    first, second = np.zeros(run), np.zeros(run)
    values, spread = np.empty(run), np.empty(run)
    y = out.reshape(-1)
    taken = 0
    for k in range(counts.size):
        stop = taken + counts[k]
        if taken == stop:
            continue
        while taken < stop:
            end = min(taken + rows, stop)
            size = (end - taken) * d
            _gather(raw, parts, order[taken:end], values, spread)
            _take_gathered(
                values[:size], spread[:size], centers, scales, y[taken * d : end * d], lows, highs,
                first, second,
            )  # fmt: skip
            for r in range(taken, end):
                shares[r] = parts[order[r]]
            taken = end
        _collect(firsts[k], first)
        _collect(seconds[k], second)
    for k in range(run):
        low[k % d] = min(low[k % d], lows[k])
        high[k % d] = max(high[k % d], highs[k])


@numba.njit(nogil=True, error_model="numpy")
def _sort(raw, clean, weights, omit, least, grid, parts, order, counts, totals):  # type: ignore[no-untyped-def]
    """Split weights into ``f * 2**e``; rows in the order of e; give (omitted, first refused row).

    Rows of weight zero are counted in ``counts[-1]``, and are not in the order.
    """
    n = raw.shape[0]
    omitted = 0
    groups = np.empty(n, np.int64)
    given, split = weights.view(np.int64), parts.view(np.int64)
    for i in range(n):
        groups[i] = -1
        if not clean and not _finite(raw[i]):
            if not omit:
                return 0, i
            omitted += 1
            continue
        w = weights[i]
        if w == 0.0:
            counts[GROUPS] += 1
            continue
        if not (w >= 2.0**LEAST and w <= 2.0**MOST):
            return 0, i
        # in the bits of a float64: rounded to ``grid`` bits, fewer where e is held at ``least``
        bits = given[i]
        cut = 53 - grid + max(least - (bits >> 52) + 1022, 0)
        bits = (bits + (1 << (cut - 1))) >> cut << cut
        e = (bits >> 52) - 1022
        if bits & ((1 << 52) - 1) == 0:
            e -= 1  # f is one, and not a half
        e = max(e, least)
        split[i] = bits - (e << 52)
        groups[i] = e - LEAST
        counts[e - LEAST] += 1
        totals[0, e - LEAST] += np.int64(parts[i] * _GRID)
        totals[1, e - LEAST] += np.int64(np.rint(parts[i] * parts[i] * _GRID))
    places = np.empty(GROUPS, np.int64)
    taken = 0
    for k in range(GROUPS):
        places[k] = taken
        taken += counts[k]
    for i in range(n):
        if groups[i] >= 0:
            order[places[groups[i]]] = i
            places[groups[i]] += 1
    return omitted, -1


@numba.njit(nogil=True, error_model="numpy")
def _add(sums, f, value, shift):  # type: ignore[no-untyped-def]
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
def _add_far(raw, parts, order, counts, center, scale, first, second):  # type: ignore[no-untyped-def]
    """Add the moments of a block with rows far out; give the first that is too far."""
    d = raw.shape[1]
    rows = max(RUN // d, 1)
    run = rows * d
    refused = raw.shape[0]
    for r in range(counts.sum()):
        for f in range(d):
            away = (np.float64(raw[order[r], f]) - center[f]) * scale[f]
            if not abs(away) <= FARTHEST * ROOT:
                refused = min(refused, order[r])
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
            _gather(raw, parts, order[taken:end], values, spread)
            _add_gathered(values[:size], spread[:size], centers, scales, digits)
            taken = end
        for place in range(5):
            total[:] = 0
            _collect(total, digits[place])
            sums, shift = (first, 30 * place) if place < 2 else (second, 30 * (place - 2))
            for f in range(d):
                if not _add(sums, f, total[f], k + shift):
                    return OVERFLOW
    return -1


def _take(raw, weights, weighted, omit, least, grid, center, scale, out, shares, low, high, first, second, counts, totals):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
    """Fill ``out`` with the usable rows; give (rows omitted, first refused row or OVERFLOW)."""
    n, d = raw.shape
    lows, highs = np.full(d, np.inf), np.full(d, -np.inf)
    firsts, seconds = np.zeros((GROUPS, d), np.int64), np.zeros((GROUPS, d), np.int64)
    parts, order = np.empty(n), np.empty(n, np.int64)
    in_runs = omitted = 0
    if weighted:
        omitted, refused = _sort(
            raw, _finite(raw.reshape(-1)), weights, omit, least, grid, parts, order, counts, totals
        )
        if refused >= 0:
            return 0, refused
        _take_groups(
            raw, parts, order, counts[:GROUPS], center, scale, out, shares, lows, highs,
            firsts, seconds,
        )  # fmt: skip
    else:
        in_runs = _take_runs(raw, center, scale, out, lows, highs, firsts[-LEAST], seconds[-LEAST])
        taken = in_runs
        for i in range(in_runs, n):
            if _finite(raw[i]):
                parts[i] = 1.0
                order[taken] = i
                taken += 1
            elif omit:
                omitted += 1
            else:
                return 0, i
        if taken > in_runs:
            counts[-LEAST] = taken - in_runs
            _take_groups(
                raw, parts, order[in_runs:], counts[:GROUPS], center, scale, out[in_runs:], shares,
                lows, highs, firsts, seconds,
            )  # fmt: skip
        counts[-LEAST] = taken
    reach = 0.0  # a square, in steps
    for f in range(d):
        # a bound of zero has no sign, whichever zero came first
        low[f], high[f] = min(low[f], lows[f]) + 0.0, max(high[f], highs[f]) + 0.0
        if highs[f] >= lows[f]:
            away = max(highs[f] - center[f], center[f] - lows[f]) * scale[f]
            reach = max(reach, away * away)
    # each place in a run holds a sum in float64, exact under 2**53
    if not reach * (n // max(RUN // d, 1) + 1) < 2.0**52:
        for i in range(in_runs):
            parts[i], order[i] = 1.0, i
        return omitted, _add_far(raw, parts, order, counts[:GROUPS], center, scale, first, second)
    for k in range(GROUPS):
        if counts[k]:
            for f in range(d):
                fits = _add(first, f, firsts[k, f], k) and _add(second, f, seconds[k, f], k)
                if not fits:
                    return omitted, OVERFLOW
    return omitted, -1


@lru_cache(maxsize=64)
def _taker(raw: str, dtype: str) -> Callable[..., tuple[int, int]]:
    """The loop for one type of rows and one precision; compiled now, and cached on disk."""
    real = numba.from_dtype(np.dtype(dtype))
    vector, words = types.float64[::1], types.int64[:, ::1]
    given = types.Array(types.float64, 1, "C", readonly=True)
    signature = types.UniTuple(types.int64, 2)(
        types.Array(numba.from_dtype(np.dtype(raw)), 2, "C", readonly=True),
        given, types.boolean, types.boolean, types.int64, types.int64, given, given,
        real[:, ::1], real[::1], vector, vector, words, words, types.int64[::1], words,
    )  # fmt: skip
    taker: Callable[..., tuple[int, int]] = numba.njit(
        signature, nogil=True, cache=True, error_model="numpy"
    )(_take)
    return taker


def row_taker(raw: np.dtype[Any], dtype: str) -> Callable[..., tuple[int, int]]:
    """Compile the loop for rows of type ``raw``, or load it; threads wait for one compilation."""
    with COMPILING:
        return _taker(native_type(raw).name, dtype)


def is_weight(weight: float) -> bool:
    """Whether a weight is in the range that sums can hold.

    Examples
    --------
    >>> is_weight(0.0), is_weight(1e-20)
    (True, False)
    """
    return bool(weight == 0 or 2.0**LEAST <= weight <= 2.0**MOST)


def native_type(raw: np.dtype[Any]) -> np.dtype[Any]:
    """What the loop is compiled for: numba has no float16, and small integers are exact in it."""
    if raw.kind == "b" or raw.itemsize < 4:
        return np.dtype(np.float32)
    return raw.newbyteorder("=") if raw.itemsize <= 8 else np.dtype(np.float64)
