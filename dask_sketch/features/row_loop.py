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
_LOW = 2.0**LOW_BITS
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
    centers, scales = np.empty(run), np.empty(run)
    for r in range(rows):
        centers[r * d : (r + 1) * d] = center
        scales[r * d : (r + 1) * d] = scale
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
    for r in range(rows):
        for f in range(d):
            k = r * d + f
            low[f] = min(low[f], lows[k])
            high[f] = max(high[f], highs[k])
            first[f] += np.int64(firsts[k])
            second[f] += np.int64(seconds[k])
    return taken


@numba.njit(nogil=True, error_model="numpy")
def _split(weight, least, grid):  # type: ignore[no-untyped-def]
    """A weight as ``f * 2**e``: f, rounded, and e."""
    f, e = math.frexp(weight)
    if f == 0.5:
        f, e = 1.0, e - 1
    f = np.rint(math.ldexp(f, min(e - least, 0)) * grid) / grid
    return f, max(e, least)


@numba.njit(nogil=True, error_model="numpy")
def _take_row(row, share, center, scale, out, low, high, first, second):  # type: ignore[no-untyped-def]
    for f in range(center.size):
        value = np.float64(row[f])
        low[f] = min(low[f], value)
        high[f] = max(high[f], value)
        value -= center[f]
        out[f] = value
        value *= scale[f]
        first[f] += np.int64(np.rint(share * (value * ROOT)))
        second[f] += np.int64(np.rint(share * (value * value)))


@numba.njit(nogil=True, error_model="numpy")
def _take_weighted(raw, weights, omit, least, grid, center, scale, out, shares, low, high, firsts, seconds, counts, totals):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
    """Take rows in the order of the exponents of their weights; give (taken, omitted, refused).

    Rows of weight zero are counted in ``counts[-1]``, and not taken.
    """
    n = raw.shape[0]
    groups, parts = np.empty(n, np.int64), np.empty(n)
    omitted = 0
    for i in range(n):
        groups[i] = -1
        if not _finite(raw[i]):
            if not omit:
                return 0, 0, i
            omitted += 1
            continue
        w = weights[i]
        if w == 0.0:
            counts[GROUPS] += 1
            continue
        if not (w >= 2.0**LEAST and w <= 2.0**MOST):
            return 0, 0, i
        f, e = _split(w, least, grid)
        groups[i], parts[i] = e - LEAST, f
        counts[e - LEAST] += 1
        totals[0, e - LEAST] += np.int64(f * _GRID)
        totals[1, e - LEAST] += np.int64(np.rint(f * f * _GRID))
    places = np.empty(GROUPS, np.int64)
    taken = 0
    for k in range(GROUPS):
        places[k] = taken
        taken += counts[k]
    for i in range(n):
        k = groups[i]
        if k >= 0:
            p = places[k]
            places[k] += 1
            shares[p] = parts[i]
            _take_row(raw[i], parts[i], center, scale, out[p], low, high, firsts[k], seconds[k])
    return taken, omitted, -1


@numba.njit(nogil=True, error_model="numpy")
def _add(sums, f, high, low):  # type: ignore[no-untyped-def]
    """Add ``high * 2**56 + low`` to one sum; give whether it still fits."""
    low += sums[1, f]
    sums[1, f] = low & _MASK
    high += sums[0, f] + (low >> LOW_BITS)
    sums[0, f] = high
    return high >= -_ROOM and high < _ROOM


@numba.njit(nogil=True, error_model="numpy")
def _add_shifted(sums, f, value, shift):  # type: ignore[no-untyped-def]
    if shift < LOW_BITS:
        low = (value & ((np.int64(1) << (LOW_BITS - shift)) - 1)) << shift
        return _add(sums, f, value >> (LOW_BITS - shift), low)
    high = value << (shift - LOW_BITS)
    return high >> (shift - LOW_BITS) == value and abs(high) < _ROOM and _add(sums, f, high, 0)


@numba.njit(nogil=True, error_model="numpy")
def _add_float(sums, f, value, shift):  # type: ignore[no-untyped-def]
    """Add a whole number, times a power of two, that may not fit in 64 bits."""
    value = math.ldexp(value, shift)
    high = np.trunc(value / _LOW)
    return abs(high) < _ROOM and _add(sums, f, np.int64(high), np.int64(value - high * _LOW))


@numba.njit(nogil=True, error_model="numpy")
def _add_far(raw, weights, weighted, least, grid, center, scale, first, second):  # type: ignore[no-untyped-def]
    """Moments of the rows of a block, one by one and in two words; give the first row too far."""
    for i in range(raw.shape[0]):
        if not _finite(raw[i]) or (weighted and weights[i] == 0.0):
            continue
        f, e = 1.0, 0
        if weighted:
            f, e = _split(weights[i], least, grid)
        for k in range(center.size):
            value = (np.float64(raw[i, k]) - center[k]) * scale[k]
            if not abs(value) <= FARTHEST * ROOT:
                return i
            fits = _add_float(first, k, np.rint(f * (value * ROOT)), e - LEAST)
            if not (fits and _add_float(second, k, np.rint(f * (value * value)), e - LEAST)):
                return OVERFLOW
    return -1


def _take(raw, weights, weighted, omit, least, grid, center, scale, out, shares, low, high, first, second, counts, totals):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
    """Fill ``out`` with the usable rows; give (taken, omitted, first refused row or OVERFLOW)."""
    n, d = raw.shape
    lows, highs = np.full(d, np.inf), np.full(d, -np.inf)
    used = GROUPS if weighted else 1
    firsts, seconds = np.zeros((used, d), np.int64), np.zeros((used, d), np.int64)
    in_runs = omitted = 0
    if weighted:
        taken, omitted, refused = _take_weighted(
            raw, weights, omit, least, grid, center, scale, out, shares, lows, highs,
            firsts, seconds, counts, totals,
        )  # fmt: skip
        if refused >= 0:
            return 0, 0, refused
    else:
        in_runs = _take_runs(raw, center, scale, out, lows, highs, firsts[0], seconds[0])
        taken = in_runs
        for i in range(in_runs, n):
            if _finite(raw[i]):
                _take_row(
                    raw[i], 1.0, center, scale, out[taken], lows, highs, firsts[0], seconds[0]
                )
                taken += 1
            elif omit:
                omitted += 1
            else:
                return taken, omitted, i
        counts[-LEAST] += taken
    reach = 0.0  # a square, in steps
    for f in range(d):
        low[f], high[f] = min(low[f], lows[f]), max(high[f], highs[f])
        if taken:
            away = max(highs[f] - center[f], center[f] - lows[f]) * scale[f]
            reach = max(reach, away * away)
    # places in a run hold sums of float64, exact under 2**53, and groups of 64 bits
    in_place = in_runs // max(RUN // d, 1)
    if not (reach * in_place < 2.0**52 and reach * n < 2.0**61):
        refused = _add_far(raw, weights, weighted, least, grid, center, scale, first, second)
        return taken, omitted, refused
    for g in range(used):
        k = g if weighted else -LEAST
        if counts[k]:
            for f in range(d):
                fits = _add_shifted(first, f, firsts[g, f], k)
                if not (fits and _add_shifted(second, f, seconds[g, f], k)):
                    return taken, omitted, OVERFLOW
    return taken, omitted, -1


@lru_cache(maxsize=64)
def _taker(raw: str, dtype: str) -> Callable[..., tuple[int, int, int]]:
    """The loop for one type of rows and one precision; compiled now, and cached on disk."""
    real = numba.from_dtype(np.dtype(dtype))
    vector, words = types.float64[::1], types.int64[:, ::1]
    given = types.Array(types.float64, 1, "C", readonly=True)
    signature = types.UniTuple(types.int64, 3)(
        types.Array(numba.from_dtype(np.dtype(raw)), 2, "C", readonly=True),
        types.Array(types.float64, 1, "A", readonly=True),
        types.boolean, types.boolean, types.int64, types.float64, given, given,
        real[:, ::1], real[::1], vector, vector, words, words, types.int64[::1], words,
    )  # fmt: skip
    taker: Callable[..., tuple[int, int, int]] = numba.njit(
        signature, nogil=True, cache=True, error_model="numpy"
    )(_take)
    return taker


def row_taker(raw: np.dtype[Any], dtype: str) -> Callable[..., tuple[int, int, int]]:
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
