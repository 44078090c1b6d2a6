"""Compiled loop of expectation-maximisation with covariance matrices: exact sums over rows.

As :mod:`dask_sketch.features.kernels.expectation_loop`, with the same order, range and rounding.
Component ``k`` has a lower triangular matrix ``A``, the inverse of the Cholesky factor of its
covariances times ``sqrt(log2(e) / 2)``, in place of slopes: a row ``x`` is at ``z = A (x - mu)``
from it. The loop adds ``r``, ``r z``, and the lower triangle of ``r z z'``, whose entries are at
most the sum of ``r z**2``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from dask_sketch.features.kernels.elementary import bits, fma, log_to_base_two, power_of_two
from dask_sketch.features.kernels.expectation_loop import (
    BLOCK,
    COUNT_START,
    FARTHEST,
    FLUSH,
    SPAN,
    START,
    add_far,
    flush,
    load,
)
from dask_sketch.features.kernels.llvm_vectors import SOURCE_MARK
from dask_sketch.features.kernels.row_loop import OVERFLOW
from dask_sketch.features.kernels.row_reader import native_type
from dask_sketch.validation.compilation import cached_njit, compiled_once


@numba.njit(nogil=True, error_model="numpy")
def _whiten(x, matrix, offset, z):  # type: ignore[no-untyped-def]
    """Fill ``z`` (d, BLOCK) with ``A x`` plus an offset, feature after feature."""
    for f in range(offset.size):
        for j in range(BLOCK):
            z[f, j] = offset[f]
        for g in range(f + 1):
            a = matrix[f, g]
            for j in range(BLOCK):
                z[f, j] = fma(x[g, j], a, z[f, j])


@numba.njit(nogil=True, error_model="numpy")
def _responsibilities(x, matrices, offsets, peaks, z, parts, highest, total):  # type: ignore[no-untyped-def]
    """Fill ``parts`` (K, BLOCK) with densities, relative to the highest; sum in ``total``."""
    for j in range(BLOCK):
        highest[j] = -np.inf
        total[j] = 0.0
    for k in range(peaks.size):
        row, peak = parts[k], peaks[k]
        _whiten(x, matrices[k], offsets[k], z)
        for j in range(BLOCK):
            row[j] = 0.0
        for f in range(offsets.shape[1]):
            for j in range(BLOCK):
                row[j] = fma(-z[f, j], z[f, j], row[j])
        for j in range(BLOCK):
            row[j] += peak
            highest[j] = max(highest[j], row[j])
    for k in range(peaks.size):
        row = parts[k]
        for j in range(BLOCK):
            row[j] = power_of_two(row[j] - highest[j])
            total[j] += row[j]


@numba.njit(nogil=True, error_model="numpy")
def _quanta_of(values, factors):  # type: ignore[no-untyped-def]
    """Quanta of a sum of products."""
    total = np.int64(0)
    for j in range(BLOCK):
        total += bits(fma(values[j], factors[j], START))
    return total - BLOCK * bits(START)


@numba.njit(nogil=True, error_model="numpy")
def _add_far_row(  # type: ignore[no-untyped-def]
    x, j, mantissa, matrices, offsets, parts, norm, z, quanta, sums, shift,
):  # fmt: skip
    """Add the moments of one row as integers of two words; return whether they fit."""
    n, d = offsets.shape
    fits = True
    for k in range(n):
        r = mantissa * (parts[k, j] * norm)
        if r < 2.0**-200:
            continue
        quanta[k] += bits(r + COUNT_START) - bits(COUNT_START)
        _whiten(x, matrices[k], offsets[k], z)
        place = n + n * d + k * (d * (d + 1) // 2)
        for f in range(d):
            fits &= add_far(sums, n + k * d + f, r * z[f, j], shift)
            for g in range(f + 1):
                fits &= add_far(sums, place, (r * z[f, j]) * z[g, j], shift)
                place += 1
    return fits


@numba.njit(nogil=True, error_model="numpy")
def _block(  # type: ignore[no-untyped-def]
    x, mantissas, used, matrices, offsets, peaks, highest_peak, parts, z, weighted_z, highest,
    total, quanta, sums, shift,
):  # fmt: skip
    """Add one block; return the first row of it that is too far, or OVERFLOW, or -1."""
    n, d = offsets.shape
    last = quanta.size - 1
    _responsibilities(x, matrices, offsets, peaks, z, parts, highest, total)
    for j in range(BLOCK):
        highest[j] += log_to_base_two(total[j])  # the logarithm of the density
        total[j] = 1.0 / total[j]
    for j in range(used, BLOCK):
        total[j] = highest[j] = 0.0
    for j in range(used):
        if highest[j] > highest_peak - SPAN and abs(highest[j]) < 2.0 * SPAN:
            continue
        if not (highest[j] > -FARTHEST and highest_peak < FARTHEST):
            return j
        fits = add_far(sums, last, mantissas[j] * highest[j], shift)
        fits &= _add_far_row(
            x, j, mantissas[j], matrices, offsets, parts, total[j], z, quanta, sums, shift
        )
        if not fits:
            return OVERFLOW
        total[j] = highest[j] = 0.0
    quanta[last] += _quanta_of(mantissas, highest)
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
        _whiten(x, matrices[k], offsets[k], z)
        place = n + n * d + k * (d * (d + 1) // 2)
        for f in range(d):
            first = np.int64(0)
            for j in range(BLOCK):
                weighted_z[j] = r[j] * z[f, j]
                first += bits(weighted_z[j] + START)
            quanta[n + k * d + f] += first - BLOCK * bits(START)
            for g in range(f + 1):
                quanta[place] += _quanta_of(weighted_z, z[g])
                place += 1
    return -1


def _loop() -> Callable[..., tuple[int, int, int]]:
    """The loop over the rows of a chunk, before compilation."""
    mark = SOURCE_MARK

    def add_rows(  # type: ignore[no-untyped-def]
        raw, order, weights, weighted, omit, center, limits, matrices, offsets, peaks, sums, shift,
    ):  # fmt: skip
        assert mark >= 0
        n, d = offsets.shape
        x, mantissas = np.zeros((d, BLOCK)), np.empty(BLOCK)
        z, weighted_z = np.empty((d, BLOCK)), np.empty(BLOCK)
        highest, total = np.empty(BLOCK), np.empty(BLOCK)
        rows = np.empty(BLOCK, np.int64)
        parts = np.empty((n, BLOCK))
        quanta = np.zeros(sums.shape[1], np.int64)
        highest_peak = peaks.max()
        i = taken = omitted = blocks = 0
        while i < order.size:
            used, i, left_out, refused = load(
                raw, i, order, weights, weighted, omit, center, limits, x, mantissas, rows
            )
            if refused >= 0:
                return taken, omitted, refused
            bad = _block(
                x, mantissas, used, matrices, offsets, peaks, highest_peak, parts, z, weighted_z,
                highest, total, quanta, sums, shift,
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
def _compiled(raw: str) -> Callable[..., tuple[int, int, int]]:
    """Compile the loop for one type of rows, or load it from numba's cache."""
    vector, table, cube = (types.Array(types.float64, n, "C", readonly=True) for n in (1, 2, 3))
    signature = types.UniTuple(types.int64, 3)(
        types.Array(numba.from_dtype(np.dtype(raw)), 2, "C", readonly=True),
        types.Array(types.int64, 1, "C", readonly=True),
        vector, types.boolean, types.boolean, vector, vector, cube, table, vector,
        types.int64[:, ::1], types.int64,
    )  # fmt: skip
    loop: Callable[..., tuple[int, int, int]] = cached_njit(
        signature, nogil=True, error_model="numpy"
    )(_loop())
    return loop


def matrix_loop(raw: np.dtype[Any]) -> Callable[..., tuple[int, int, int]]:
    """Compile the loop for rows of type ``raw``; other threads wait for the compilation.

    Parameters
    ----------
    raw
        Type of the rows.
    """
    return _compiled(native_type(raw).name)
