"""Compiled loops of expectation-maximisation: exact sums over rows and components.

Component ``k`` has a location ``mu`` and, for each feature, a slope ``a``. A row ``x`` is at
``z = a (x - mu)`` from it, and the binary logarithm of its weighted density is
``peak - sum z**2``, so that slopes are square roots of ``log2(e) / (2 variance)``. The loops add
``r``, ``r z`` and ``r z**2`` for the responsibility ``r`` of each component for each row, and the
logarithm of the density of the row. Moments about the component itself, in its own unit, need few
digits: a component at rest has a first moment of zero.

**Order.** The arithmetic of a row is in one order, wherever it is in a block: BLOCK rows are
computed side by side, so that features and components are added one after the other. Each
contribution is rounded to quanta of ``2**-FRACTION`` (``2**-COUNT_FRACTION`` for ``r``) by the sum
``r z + start``, as in :mod:`dask_sketch.features.kernels.llvm_vectors`, and quanta are added as
integers. The sums have the same bits for every order of the rows and every chunking.

**Range.** A contribution of up to ``2**19`` fits into the grid of the fast loop. Since ``r z**2 <=
peak - log2(density) + 1``, a row whose density is within ``2**17`` powers of two of the highest
peak fits. Other rows are added one by one, as integers of two words, up to ``2**48``; the density
of a row alone decides where it is added. Rows beyond that are refused.

*Error.* Half a quantum for each row, unbiased: the mean over ``n`` rows is within about ``2**-32 /
sqrt(12 n)`` of a standard deviation of the component, besides the rounding of float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from dask_sketch.features.kernels.elementary import bits, fma, log_to_base_two, power_of_two
from dask_sketch.features.kernels.fixed_point import MAX_EXPONENT, MIN_EXPONENT
from dask_sketch.features.kernels.llvm_vectors import SOURCE_MARK
from dask_sketch.features.kernels.row_loop import OVERFLOW, add_quanta, all_finite
from dask_sketch.features.kernels.row_reader import native_type
from dask_sketch.validation.compilation import cached_njit, compiled_once

BLOCK = 64  # rows that are computed side by side
FRACTION = 32  # binary digits of r z, r z**2 and the logarithm of the density
COUNT_FRACTION = 40  # binary digits of r
GROUP = 4  # features that are added in one step; their number is padded to a multiple
FLUSH = 2048 // BLOCK  # blocks whose sums fit in 64 bits: 2**11 rows of 2**(19 + 32) quanta
START = 1.5 * 2.0 ** (52 - FRACTION)
COUNT_START = 1.5 * 2.0 ** (52 - COUNT_FRACTION)
SPAN = 2.0**17  # range of densities in the fast loop, in powers of two
FARTHEST = 2.0**48  # range of densities, in powers of two: 1e7 standard deviations
_DIGIT = 2.0**FRACTION
REACH = 1e140  # largest z: its square, times the smallest responsibility, is negligible


@numba.njit(nogil=True, error_model="numpy")
def _squares(x, slopes, offsets, out):  # type: ignore[no-untyped-def]
    """Negative sums of ``z**2`` of one component and each row."""
    for j in range(BLOCK):
        out[j] = 0.0
    for f in range(0, slopes.size, GROUP):
        a, b, c, d = slopes[f], slopes[f + 1], slopes[f + 2], slopes[f + 3]
        p, q, r, s = offsets[f], offsets[f + 1], offsets[f + 2], offsets[f + 3]
        x0, x1, x2, x3 = x[f], x[f + 1], x[f + 2], x[f + 3]
        for j in range(BLOCK):
            total = out[j]
            z = fma(x0[j], a, p)
            total = fma(-z, z, total)
            z = fma(x1[j], b, q)
            total = fma(-z, z, total)
            z = fma(x2[j], c, r)
            total = fma(-z, z, total)
            z = fma(x3[j], d, s)
            out[j] = fma(-z, z, total)


@numba.njit(nogil=True, error_model="numpy")
def _responsibilities(x, slopes, offsets, peaks, parts, highest, total):  # type: ignore[no-untyped-def]
    """Fill ``parts`` (K, BLOCK) with densities, relative to the highest; sum in ``total``."""
    for j in range(BLOCK):
        highest[j] = -np.inf
        total[j] = 0.0
    for k in range(peaks.size):
        row, peak = parts[k], peaks[k]
        _squares(x, slopes[k], offsets[k], row)
        for j in range(BLOCK):
            row[j] += peak
            highest[j] = max(highest[j], row[j])
    for k in range(peaks.size):
        row = parts[k]
        for j in range(BLOCK):
            row[j] = power_of_two(row[j] - highest[j])
            total[j] += row[j]


@numba.njit(nogil=True, error_model="numpy")
def _moments(x, slope, offset, r):  # type: ignore[no-untyped-def]
    """Quanta of ``r z`` and ``r z**2`` of one component and feature."""
    first = second = np.int64(0)
    for j in range(BLOCK):
        z = fma(x[j], slope, offset)
        rz = r[j] * z
        first += bits(rz + START)
        second += bits(fma(rz, z, START))
    start = BLOCK * bits(START)
    return first - start, second - start


@numba.njit(nogil=True, error_model="numpy")
def add_far(sums, place, value, shift):  # type: ignore[no-untyped-def]
    """Add a value up to FARTHEST to one sum of two words; return whether it fits."""
    quanta = np.rint(value * _DIGIT)
    above = np.floor(quanta / _DIGIT)
    below = np.int64(quanta - above * _DIGIT)
    fits = add_quanta(sums, place, np.int64(above), shift + FRACTION)
    return add_quanta(sums, place, below, shift) and fits


@numba.njit(nogil=True, error_model="numpy")
def flush(quanta, sums, shift):  # type: ignore[no-untyped-def]
    """Move sums of 64 bits to sums of two words; return whether they fit."""
    fits = True
    for place in range(quanta.size):
        if quanta[place] != 0:
            fits &= add_quanta(sums, place, quanta[place], shift)
            quanta[place] = 0
    return fits


@numba.njit(nogil=True, error_model="numpy")
def _soft_block(  # type: ignore[no-untyped-def]
    x, mantissas, used, slopes, offsets, peaks, highest_peak, d, parts, highest, total, quanta,
    sums, shift,
):  # fmt: skip
    """Add one block; return the first row of it that is too far, or OVERFLOW, or -1."""
    n = peaks.size
    last = n * (1 + 2 * d)
    _responsibilities(x, slopes, offsets, peaks, parts, highest, total)
    for j in range(BLOCK):
        highest[j] += log_to_base_two(total[j])  # the logarithm of the density
        total[j] = 1.0 / total[j]
    far = False
    for j in range(BLOCK):
        far |= not (highest[j] > highest_peak - SPAN and abs(highest[j]) < 2.0 * SPAN)
    for j in range(used, BLOCK):
        total[j] = highest[j] = 0.0
    if far:
        for j in range(used):
            if highest[j] > highest_peak - SPAN and abs(highest[j]) < 2.0 * SPAN:
                continue
            if not (highest[j] > -FARTHEST and highest_peak < FARTHEST):
                return j
            fits = add_far(sums, last, mantissas[j] * highest[j], shift)
            for k in range(n):
                r = mantissas[j] * (parts[k, j] * total[j])
                if r < 2.0**-200:
                    continue
                quanta[k] += bits(r + COUNT_START) - bits(COUNT_START)
                for f in range(d):
                    z = fma(x[f, j], slopes[k, f], offsets[k, f])
                    place = n + k * d + f
                    fits &= add_far(sums, place, r * z, shift)
                    fits &= add_far(sums, place + n * d, (r * z) * z, shift)
            if not fits:
                return OVERFLOW
            total[j] = highest[j] = 0.0
    likelihood = np.int64(0)
    for j in range(BLOCK):
        likelihood += bits(fma(mantissas[j], highest[j], START))
    quanta[last] += likelihood - BLOCK * bits(START)
    for k in range(n):
        r = parts[k]
        count = np.int64(0)
        most = 0.0
        for j in range(BLOCK):
            r[j] = mantissas[j] * (r[j] * total[j])
            count += bits(r[j] + COUNT_START)
            most = max(most, r[j])
        # contributions of such responsibilities round to zero: r z**2 is below 2**-40
        if most < 2.0**-60:
            continue
        quanta[k] += count - BLOCK * bits(COUNT_START)
        for f in range(d):
            place = n + k * d + f
            first, second = _moments(x[f], slopes[k, f], offsets[k, f], r)
            quanta[place] += first
            quanta[place + n * d] += second
    return -1


@numba.njit(nogil=True, error_model="numpy")
def _hard_block(  # type: ignore[no-untyped-def]
    x, mantissas, used, slopes, offsets, d, square, nearest, label, quanta, sums, shift,
):  # fmt: skip
    """Add one block to the nearest component of each row; returns as ``_soft_block``."""
    n = slopes.shape[0]
    last = n * (1 + d)
    for j in range(BLOCK):
        nearest[j] = -np.inf
        label[j] = 0
    for k in range(n):
        _squares(x, slopes[k], offsets[k], square)
        for j in range(BLOCK):
            closer = square[j] > nearest[j]
            nearest[j] = square[j] if closer else nearest[j]
            label[j] = k if closer else label[j]
    for j in range(used):
        k = label[j]
        if nearest[j] > -SPAN:
            quanta[k] += bits(mantissas[j] + COUNT_START) - bits(COUNT_START)
            quanta[last] += bits(fma(mantissas[j], nearest[j], START)) - bits(START)
            for f in range(d):
                z = fma(x[f, j], slopes[k, f], offsets[k, f])
                quanta[n + k * d + f] += bits(fma(mantissas[j], z, START)) - bits(START)
            continue
        if not nearest[j] > -FARTHEST:
            return j
        quanta[k] += bits(mantissas[j] + COUNT_START) - bits(COUNT_START)
        fits = add_far(sums, last, mantissas[j] * nearest[j], shift)
        for f in range(d):
            z = fma(x[f, j], slopes[k, f], offsets[k, f])
            fits &= add_far(sums, n + k * d + f, mantissas[j] * z, shift)
        if not fits:
            return OVERFLOW
    return -1


@numba.njit(nogil=True, error_model="numpy")
def load(raw, start, order, weights, weighted, omit, center, limits, x, mantissas, rows):  # type: ignore[no-untyped-def]  # fmt: skip
    """Transpose rows until BLOCK are taken; return taken, next, omitted, refused rows."""
    taken = omitted = 0
    i, d = start, center.size
    while i < order.size and taken < BLOCK:
        row = np.int64(order[i])
        fine = True
        for f in range(d):
            value = np.float64(raw[row, f]) - center[f]
            x[f, taken] = value
            fine &= abs(value) <= limits[f]
        if fine:
            mantissas[taken] = weights[row] if weighted else 1.0
            rows[taken] = row
            taken += 1
        elif omit and not all_finite(raw[row]):
            omitted += 1
        else:
            return taken, i, omitted, row
        i += 1
    if taken < BLOCK:
        x[:, taken:] = 0.0
        mantissas[taken:] = 0.0
    return taken, i, omitted, np.int64(-1)


def _loop(hard: bool) -> Callable[..., tuple[int, int, int]]:
    """The loop over the rows of a chunk, before compilation."""
    mark = SOURCE_MARK

    def add_rows(  # type: ignore[no-untyped-def]
        raw, order, weights, weighted, omit, center, limits, slopes, offsets, peaks, sums, shift,
    ):  # fmt: skip
        assert mark >= 0
        n, padded, d = slopes.shape[0], slopes.shape[1], center.size
        x, mantissas = np.zeros((padded, BLOCK)), np.empty(BLOCK)
        highest, total = np.empty(BLOCK), np.empty(BLOCK)
        rows, label = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
        parts = np.empty((1 if hard else n, BLOCK))
        quanta = np.zeros(sums.shape[1], np.int64)
        highest_peak = peaks.max()
        i = taken = omitted = blocks = 0
        while i < order.size:
            used, i, left_out, refused = load(
                raw, i, order, weights, weighted, omit, center, limits, x, mantissas, rows
            )
            if refused >= 0:
                return taken, omitted, refused
            if hard:
                bad = _hard_block(
                    x, mantissas, used, slopes, offsets, d, parts[0], highest, label, quanta, sums,
                    shift,
                )  # fmt: skip
            else:
                bad = _soft_block(
                    x, mantissas, used, slopes, offsets, peaks, highest_peak, d, parts, highest,
                    total, quanta, sums, shift,
                )  # fmt: skip
            if bad >= 0:
                return taken, omitted, rows[bad]
            taken += used
            omitted += left_out
            blocks += 1
            full = blocks % FLUSH == 0 or i >= order.size
            if bad == OVERFLOW or (full and not flush(quanta, sums, shift)):
                return taken, omitted, np.int64(OVERFLOW)
        return taken, omitted, np.int64(-1)

    return add_rows


@compiled_once
def _compiled(raw: str, hard: bool) -> Callable[..., tuple[int, int, int]]:
    """Compile the loop for one type of rows, or load it from numba's cache."""
    vector, table = (types.Array(types.float64, n, "C", readonly=True) for n in (1, 2))
    signature = types.UniTuple(types.int64, 3)(
        types.Array(numba.from_dtype(np.dtype(raw)), 2, "C", readonly=True),
        types.Array(types.int64, 1, "C", readonly=True),
        vector, types.boolean, types.boolean, vector, vector, table, table, vector,
        types.int64[:, ::1], types.int64,
    )  # fmt: skip
    loop: Callable[..., tuple[int, int, int]] = cached_njit(
        signature, nogil=True, error_model="numpy"
    )(_loop(hard))
    return loop


def expectation_loop(raw: np.dtype[Any], hard: bool) -> Callable[..., tuple[int, int, int]]:
    """Compile the loop for rows of type ``raw``; other threads wait for the compilation.

    Parameters
    ----------
    raw
        Type of the rows.
    hard
        Whether each row belongs to its nearest component alone.
    """
    return _compiled(native_type(raw).name, hard)


def weights_by_exponent(weights: NDArray[np.float64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Rows of each power of 16, as pairs of the exponent to base two and the numbers of rows.

    Weights are zero, and then in no group, or from ``2**-32`` to ``2**32``; the mantissas of a
    group are above 1/16 and at most one.

    Examples
    --------
    >>> weights_by_exponent(np.array([1.0, 0.5, 2.0, 0.0]))
    [(0, array([0, 1])), (4, array([2]))]
    """
    if len(weights) == 0:
        return []
    with np.errstate(divide="ignore"):
        mantissas, exponents = np.frexp(weights)
    # a power of two is at the top of its range
    exponents = np.where(mantissas == 0.5, exponents - 1, exponents)
    groups = -(-exponents // 4) * 4
    groups[weights == 0.0] = MAX_EXPONENT + 4
    assert groups.min() >= MIN_EXPONENT
    order = np.argsort(groups, kind="stable")
    distinct, starts = np.unique(groups[order], return_index=True)
    return [
        (int(e), part)
        for e, part in zip(distinct, np.split(order, starts[1:]), strict=True)
        if e <= MAX_EXPONENT
    ]
