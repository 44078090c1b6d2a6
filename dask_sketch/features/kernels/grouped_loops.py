"""Exact sums of ``exp(-2 pi i t)`` for many groups of rows at once, frequency by frequency.

The columns of a few batches are read (:mod:`dask_sketch.features.kernels.grouped_reading`), then
summed here, lane by lane, by the arithmetic of :mod:`dask_sketch.features.kernels.grouped_code`.
Meanwhile the rows of the next batches are called for: they lie all over the chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numba import types

from dask_sketch.features.kernels.dense import COMPILING, FINER, vector_bits
from dask_sketch.features.kernels.fixed_point import LOW_BITS
from dask_sketch.features.kernels.grouped_code import (
    MARK,
    STEPS,
    call_for,
    fold,
    lanes_of,
    multiply_waves,
    pitch_of,
    sum_features,
    turn,
)
from dask_sketch.features.kernels.grouped_reading import reading_types
from dask_sketch.features.kernels.llvm_vectors import (
    FRACTION,
    PRODUCT,
    SQUARE,
    VECTOR_BITS,
    bits_of,
)
from dask_sketch.features.kernels.prepared import Kernel
from dask_sketch.features.kernels.structured import AHEAD, WAVES, StructuredKernel, make_waves
from dask_sketch.features.kernels.structured_frequencies import GROUP, SIDE

_MASK = 2**LOW_BITS - 1
Summer = Callable[..., tuple[int, int]]


@numba.njit(nogil=True, error_model="numpy")
def _put(narrow, low, high, g, fresh, rows, shift, base, above):  # type: ignore[no-untyped-def]
    """Add the sums of a segment, real parts and imaginary parts, to those of its group.

    They are shifted; ``base``, shifted by ``above``, is added to real parts. Where the segment is
    the first of its group, nothing is there yet.
    """
    n = max(narrow.shape[1], low.shape[1]) // 2
    for part in range(2):
        row, start = rows[part], part * n
        more = np.int64(base) << above if part == 0 else np.int64(0)
        if narrow.size:
            numbers, number = narrow[g, start : start + n], np.int32(more)
            if fresh:
                for j in range(n):
                    numbers[j] = np.int32(row[j]) + number
            else:
                for j in range(n):
                    numbers[j] += np.int32(row[j]) + number
        elif not high.size:
            words = low[g, start : start + n]
            if fresh:
                for j in range(n):
                    words[j] = (np.int64(row[j]) << shift) + more
            else:
                for j in range(n):
                    words[j] += (np.int64(row[j]) << shift) + more
        else:
            for j in range(n):
                _add_wide(low[g], high[g], start + j, np.int64(row[j]), shift)
                if part == 0:
                    _add_wide(low[g], high[g], start + j, np.int64(base), above)


@numba.njit(nogil=True, error_model="numpy")
def _add_wide(low, high, place, value, shift):  # type: ignore[no-untyped-def]
    """Add ``value * 2**shift`` to a number of two words."""
    if shift < LOW_BITS:
        total = low[place] + ((value & (_MASK >> shift)) << shift)
        high[place] += value >> (LOW_BITS - shift)
    else:
        total = low[place]
        high[place] += value << min(shift - LOW_BITS, 62)
    low[place] = total & _MASK
    high[place] += total >> LOW_BITS


@numba.njit(nogil=True, error_model="numpy")
def _call(values, row, row_bytes):  # type: ignore[no-untyped-def]
    """Call for a row that will be fetched soon."""
    at = np.int64(row) * row_bytes
    for b in range(0, row_bytes, 64):
        call_for(values, at + b, 0)  # type: ignore[call-arg]
    call_for(values, at + row_bytes - 1, 0)  # type: ignore[call-arg]


@numba.njit(nogil=True, error_model="numpy")
def _fetch(fetch, values, order, starts, lengths, begin, d, rows, scratch):  # type: ignore[no-untyped-def]
    """Fetch the rows of a batch; lanes that have ended give their last row."""
    n_lanes = rows.size
    for step in range(lengths[begin]):
        for k in range(n_lanes):
            last = max(np.int64(lengths[begin + k]) - 1, 0)
            rows[k] = order[starts[begin + k] + min(step, last)]
        block, within = step // STEPS, step % STEPS
        fetch(values, rows, d, scratch, (block * (d + 1) * (STEPS + 1) + within) * n_lanes)


def _signature(dtype: str, packed: types.Type) -> Any:
    real = numba.from_dtype(np.dtype(dtype))
    raw, numbers = (
        types.Array(kind, 1, "C", readonly=True) for kind in (types.uint8, types.float64)
    )
    words, bounds = types.int64[:, ::1], types.float64[:, ::1]
    return types.UniTuple(types.int64, 2)(
        *reading_types(dtype), raw, types.int64, types.uint8[::1], types.uint32[::1], real[::1],
        types.boolean, types.int64[::1], types.int32[::1], types.int64[::1], types.boolean[::1],
        types.int64[::1],
        numbers, numbers, real[::1], real[::1], types.Array(real, 3, "C", readonly=True), packed,
        types.int64, bounds, bounds, types.int64[:, :, ::1], types.int64[:, :, ::1],
        types.int32[:, ::1], words, words,
    )  # fmt: skip


def _summer_of_sums(dtype: str, side: int) -> Summer:
    """Sums of batches for frequencies that are sums; compiled now, and cached on disk."""
    n_lanes, pitch = lanes_of(dtype), pitch_of(dtype)
    scalar = getattr(np, dtype.replace("float", "int"))
    along, one = bits_of(PRODUCT, dtype), 2 ** FRACTION[dtype]

    def add(fetch, read, whiten, values, row_bytes, scratch, order, shares, weighted, starts, lengths, groups, fresh, shifts, center, scale, columns, share, matrix, packed, n_frequencies, minimum, maximum, first, second, narrow, low, high):  # type: ignore[no-untyped-def]  # fmt: skip
        d, whole = center.size, np.empty(n_lanes, np.int64)
        n_used, bases = packed.shape[2], packed.reshape(-1)
        count, together = (side, side) if n_used == d else (1, AHEAD)
        waves = np.empty(2 * WAVES * pitch, columns.dtype)
        sums = np.empty(WAVES * WAVES * n_lanes, scalar)
        parts = np.empty(2 * GROUP * n_lanes, scalar)
        rows = np.empty((n_lanes, 2, packed.shape[0] // WAVES * GROUP), scalar)
        numbers, pitch_of_rows = rows.reshape(-1), rows.shape[1] * rows.shape[2]
        blanks = np.zeros(n_lanes, scalar)
        n_groups = packed.shape[0] // WAVES
        rows_of = np.empty(n_lanes, np.int64)
        for begin in range(0, lengths.size, n_lanes):
            _fetch(fetch, values, order, starts, lengths, begin, d, rows_of, scratch)
            status, row = read(
                values, scratch, order, shares, weighted, starts, lengths, groups, shifts, begin,
                center, scale, columns, share, whole, minimum, maximum, first, second,
            )  # fmt: skip
            if status:
                return status, row
            vectors = (lengths[begin] + AHEAD - 1) // AHEAD * AHEAD
            n_blocks = (vectors + STEPS - 1) // STEPS
            whiten(columns, d, matrix, n_blocks)
            # one by one between the sums: of many hints at once, a processor ignores some
            soon, end = starts[begin + n_lanes], starts[min(begin + 2 * n_lanes, lengths.size)]
            n_cycles, n_rows = n_groups * (WAVES // count) * (vectors // together), end - soon
            owed = np.int64(0)
            for group in range(n_groups):
                sums[:] = 0
                for block in range(n_blocks):
                    left = min(vectors - block * STEPS, STEPS)
                    used = left * n_lanes
                    start, at = block * d * pitch, block * STEPS * n_lanes
                    for r in range(0, used, together * n_lanes):
                        for base in range(0, WAVES, count):
                            owed += n_rows
                            while owed >= n_cycles and soon < end:
                                _call(values, order[soon], row_bytes)
                                soon, owed = soon + 1, owed - n_cycles
                            j, k = (group * WAVES + base) * 2 * n_used, 2 * base * pitch + r
                            with_weight = weighted and base >= SIDE
                            if n_used < d and with_weight:
                                make_waves(columns, start + r, pitch, bases, j, n_used, share,
                                           at + r,
                                       waves, k, 1, 1, AHEAD,
                                       MARK)  # type: ignore[call-arg]  # fmt: skip
                            elif n_used < d:
                                make_waves(columns, start + r, pitch, bases, j, n_used, share,
                                           at + r,
                                       waves, k, 0, 1, AHEAD,
                                       MARK)  # type: ignore[call-arg]  # fmt: skip
                            elif with_weight:
                                make_waves(columns, start + r, pitch, bases, j, n_used, share,
                                           at + r,
                                       waves, k, 1, side, side,
                                       MARK)  # type: ignore[call-arg]  # fmt: skip
                            else:
                                make_waves(columns, start + r, pitch, bases, j, n_used, share,
                                           at + r,
                                       waves, k, 0, side, side,
                                       MARK)  # type: ignore[call-arg]  # fmt: skip
                    for i in range(0, WAVES, side):
                        for j in range(0, WAVES, side):
                            multiply_waves(waves, i * pitch, (WAVES + j) * pitch, pitch, used, sums,
                                      (i * WAVES + j) * n_lanes, side,
                                       MARK)  # type: ignore[call-arg]  # fmt: skip
                extra = scalar(vectors * along)  # what the bits of PRODUCT add up to, wrapped
                if not weighted:
                    for k in range(n_lanes):
                        blanks[k] = scalar((vectors - lengths[begin + k]) * one)
                for n in range(SIDE * SIDE):
                    cc = (n // SIDE * 2 * WAVES + n % SIDE * 2) * n_lanes
                    cs, sc = cc + n_lanes, cc + WAVES * n_lanes
                    fold(sums, cc, cs, sc, sc + n_lanes, extra, blanks, parts, 2 * n * n_lanes,
                          (2 * n + GROUP) * n_lanes)  # type: ignore[call-arg]  # fmt: skip
                for part in range(2):
                    for j in range(0, GROUP, n_lanes):
                        turn(parts, (part * GROUP + j) * n_lanes, numbers,
                              part * rows.shape[2] + group * GROUP + j,
                              pitch_of_rows)  # type: ignore[call-arg]  # fmt: skip
            for k in range(n_lanes):
                if lengths[begin + k]:
                    _put(
                        narrow,
                        low,
                        high,
                        groups[begin + k],
                        fresh[begin + k],
                        rows[k],
                        shifts[begin + k],
                        0,
                        0,
                    )
        return 0, 0

    real = numba.from_dtype(np.dtype(dtype))
    return numba.njit(
        _signature(dtype, types.Array(real, 3, "C", readonly=True)),
        nogil=True, cache=True, error_model="numpy",
    )(add)  # fmt: skip


def _summer_of_panels(dtype: str, panel: int) -> Summer:
    """The same for frequencies in panels; compiled now, and cached on disk."""
    n_lanes, pitch = lanes_of(dtype), pitch_of(dtype)
    scalar = getattr(np, dtype.replace("float", "int"))
    squares, products, finer = bits_of(SQUARE, dtype), bits_of(PRODUCT, dtype), FINER[dtype]
    count = 2

    def add(fetch, read, whiten, values, row_bytes, scratch, order, shares, weighted, starts, lengths, groups, fresh, shifts, center, scale, columns, share, matrix, packed, n_frequencies, minimum, maximum, first, second, narrow, low, high):  # type: ignore[no-untyped-def]  # fmt: skip
        d, whole = center.size, np.empty(n_lanes, np.int64)
        n_groups = (n_frequencies + n_lanes - 1) // n_lanes
        held, more = packed.size // d, finer if weighted else 0
        sums = np.empty(2 * n_lanes * n_lanes, scalar)
        rows = np.empty((n_lanes, 2, n_groups * n_lanes), scalar)
        numbers, pitch_of_rows = rows.reshape(-1), rows.shape[1] * rows.shape[2]
        rows_of = np.empty(n_lanes, np.int64)
        for begin in range(0, lengths.size, n_lanes):
            _fetch(fetch, values, order, starts, lengths, begin, d, rows_of, scratch)
            status, row = read(
                values, scratch, order, shares, weighted, starts, lengths, groups, shifts, begin,
                center, scale, columns, share, whole, minimum, maximum, first, second,
            )  # fmt: skip
            if status:
                return status, row
            vectors = (lengths[begin] + AHEAD - 1) // AHEAD * AHEAD
            n_blocks = (vectors + STEPS - 1) // STEPS
            whiten(columns, d, matrix, n_blocks)
            # one by one between the sums: of many hints at once, a processor ignores some
            soon, end = starts[begin + n_lanes], starts[min(begin + 2 * n_lanes, lengths.size)]
            n_cycles, n_rows, owed = n_blocks * held // count, end - soon, np.int64(0)
            for at in range(0, n_frequencies, n_lanes):
                here = min(n_lanes, held - at)
                sums[:] = 0
                for block in range(n_blocks):
                    left = min(vectors - block * STEPS, STEPS)
                    used = left * n_lanes
                    start, v = block * d * pitch, block * STEPS * n_lanes
                    for j in range(0, here, count):
                        owed += n_rows
                        while owed >= n_cycles and soon < end:
                            _call(values, order[soon], row_bytes)
                            soon, owed = soon + 1, owed - n_cycles
                        cycles = (at + j) // panel * panel * d + (at + j) % panel
                        if weighted:
                            sum_features(columns, start, pitch, used, packed, cycles, panel, d,
                                         share, v, sums, j * n_lanes, (n_lanes + j) * n_lanes,
                                         1, count, AHEAD, MARK)  # type: ignore[call-arg]  # fmt: skip
                        else:
                            sum_features(columns, start, pitch, used, packed, cycles, panel, d,
                                         share, v, sums, j * n_lanes, (n_lanes + j) * n_lanes,
                                         0, count, AHEAD, MARK)  # type: ignore[call-arg]  # fmt: skip
                less = scalar(vectors * squares), scalar(vectors * products)  # of their bits
                for k in range(n_lanes * n_lanes):
                    sums[k] = less[0] - sums[k]
                for k in range(n_lanes * n_lanes, 2 * n_lanes * n_lanes):
                    sums[k] = less[1] - sums[k]
                for part in range(2):
                    turn(sums, part * n_lanes * n_lanes, numbers, part * rows.shape[2] + at,
                          pitch_of_rows)  # type: ignore[call-arg]  # fmt: skip
            for k in range(n_lanes):
                if lengths[begin + k]:
                    total, shift = whole[k], shifts[begin + k]
                    _put(
                        narrow,
                        low,
                        high,
                        groups[begin + k],
                        fresh[begin + k],
                        rows[k],
                        shift + more,
                        total,
                        shift,
                    )
        return 0, 0

    real = numba.from_dtype(np.dtype(dtype))
    return numba.njit(
        _signature(dtype, types.Array(real, 1, "C", readonly=True)),
        nogil=True, cache=True, error_model="numpy",
    )(add)  # fmt: skip


@lru_cache(maxsize=4)
def _summer(structured: bool, dtype: str) -> Summer:
    if structured:
        return _summer_of_sums(dtype, 4 if vector_bits() == VECTOR_BITS else 2)
    return _summer_of_panels(dtype, vector_bits() // (8 * np.dtype(dtype).itemsize))


def batch_summer(kernel: Kernel) -> Summer:
    """Compile the sums of batches that belong to a kernel."""
    with COMPILING:
        return _summer(isinstance(kernel, StructuredKernel), kernel.dtype.name)
