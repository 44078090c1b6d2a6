"""Exact sums of ``exp(-2 pi i t)`` for many groups of rows in parallel.

Each batch of segments is read into columns (:mod:`dask_sketch.features.kernels.grouped_reading`),
then summed here by the SIMD-parallel arithmetic of
:mod:`dask_sketch.features.kernels.grouped_code`. Meanwhile the rows of the next batch are
prefetched, because they are scattered over the chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from dask_sketch.features.kernels.dense import FINER, vector_bits
from dask_sketch.features.kernels.fixed_point import LOW_BITS
from dask_sketch.features.kernels.grouped_code import (
    STEPS,
    elements_of,
    fold,
    multiply_basis,
    pitch_of,
    prefetch_element,
    sum_basis,
    sum_features,
    transpose_sums,
)
from dask_sketch.features.kernels.grouped_reading import indicators_at, reading_types
from dask_sketch.features.kernels.incomplete import mask_basis
from dask_sketch.features.kernels.llvm_vectors import (
    FRACTION,
    PRODUCT,
    SOURCE_MARK,
    SQUARE,
    VECTOR_BITS,
    bits_of,
)
from dask_sketch.features.kernels.prepared import Kernel
from dask_sketch.features.kernels.structured import AHEAD, N_BASIS, StructuredKernel, make_basis
from dask_sketch.features.kernels.structured_frequencies import GROUP, SIDE
from dask_sketch.validation.compilation import cached_njit, compiled_once

_MASK = 2**LOW_BITS - 1
Summer = Callable[..., tuple[int, int]]


@numba.njit(nogil=True, error_model="numpy")
def _put(narrow, low, high, g, fresh, rows, shift, base, above):  # type: ignore[no-untyped-def]
    """Add the sums of a segment, real parts and imaginary parts, to those of its group.

    They are shifted; ``base``, shifted by ``above``, is added to real parts. The sums of the first
    segment of a group are stored.
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
def _prefetch_row(values, row, row_bytes):  # type: ignore[no-untyped-def]
    """Prefetch a row."""
    at = np.int64(row) * row_bytes
    for b in range(0, row_bytes, 64):
        prefetch_element(values, at + b, 0)
    prefetch_element(values, at + row_bytes - 1, 0)


@numba.njit(nogil=True, error_model="numpy")
def _fetch(fetch, values, order, starts, lengths, begin, d, rows, scratch):  # type: ignore[no-untyped-def]
    """Copy the rows of a batch; elements beyond the end of their segment repeat its last row."""
    width = rows.size
    for step in range(lengths[begin]):
        for k in range(width):
            last = max(np.int64(lengths[begin + k]) - 1, 0)
            rows[k] = order[starts[begin + k] + min(step, last)]
        block, within = step // STEPS, step % STEPS
        fetch(values, rows, d, scratch, (block * (d + 1) * (STEPS + 1) + within) * width)


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


def _summer_of_sums(dtype: str, side: int, incomplete: bool = False) -> Summer:
    """Compile the sums of batches for structured frequencies, or load them from numba's cache."""
    width, pitch, mark = elements_of(dtype), pitch_of(dtype), SOURCE_MARK
    scalar = getattr(np, dtype.replace("float", "int"))
    along, unit = bits_of(PRODUCT, dtype), 2 ** FRACTION[dtype]
    gaps = int(incomplete)

    def add(  # type: ignore[no-untyped-def]
        fetch, read, whiten, values, row_bytes, scratch, order, mantissas, weighted, starts,
        lengths, groups, fresh, shifts, center, scale, columns, weights, matrix, packed,
        n_frequencies, minimum, maximum, first, second, narrow, low, high,
    ):  # fmt: skip
        d, whole = center.size, np.empty(width, np.int64)
        n_used, bases = packed.shape[2], packed.reshape(-1)
        count, together = (side, side) if n_used == d and not gaps else (1, AHEAD)
        present = indicators_at(columns, d, pitch) if gaps else 0
        basis = np.empty(2 * N_BASIS * pitch, columns.dtype)
        sums = np.empty(N_BASIS * N_BASIS * width, scalar)
        parts = np.empty(2 * GROUP * width, scalar)
        rows = np.empty((width, 2, packed.shape[0] // N_BASIS * GROUP), scalar)
        numbers, pitch_of_rows = rows.reshape(-1), rows.shape[1] * rows.shape[2]
        blanks = np.zeros(width, scalar)
        n_groups = packed.shape[0] // N_BASIS
        rows_of = np.empty(width, np.int64)
        for begin in range(0, lengths.size, width):
            _fetch(fetch, values, order, starts, lengths, begin, d, rows_of, scratch)
            status, row = read(
                values, scratch, order, mantissas, weighted, starts, lengths, groups, shifts, begin,
                center, scale, columns, weights, whole, minimum, maximum, first, second,
            )  # fmt: skip
            if status:
                return status, row
            vectors = (lengths[begin] + AHEAD - 1) // AHEAD * AHEAD
            n_blocks = (vectors + STEPS - 1) // STEPS
            whiten(columns, d, matrix, n_blocks)
            # one by one between the sums, because processors ignore some of many prefetches at once
            soon, end = (
                starts[begin + width],
                starts[min(begin + 2 * width, lengths.size)],
            )
            n_cycles, n_rows = n_groups * (N_BASIS // count) * (vectors // together), end - soon
            owed = np.int64(0)
            for group in range(n_groups):
                sums[:] = 0
                for block in range(n_blocks):
                    left = min(vectors - block * STEPS, STEPS)
                    used = left * width
                    start, at = block * d * pitch, block * STEPS * width
                    seen = present + start + block * pitch
                    for r in range(0, used, together * width):
                        for base in range(0, N_BASIS, count):
                            owed += n_rows
                            while owed >= n_cycles and soon < end:
                                _prefetch_row(values, order[soon], row_bytes)
                                soon, owed = soon + 1, owed - n_cycles
                            j, k = (group * N_BASIS + base) * 2 * n_used, 2 * base * pitch + r
                            with_weight = weighted and base >= SIDE
                            if gaps:
                                make_basis(columns, start + r, pitch, bases, j, n_used, weights,
                                           at + r, basis, k, 0, 1, AHEAD, mark)  # fmt: skip
                                if base < SIDE:
                                    mask_basis(columns, seen + r, pitch, bases, j, n_used, weights,
                                               at + r, basis, k, 0, mark)  # fmt: skip
                                else:
                                    mask_basis(columns, seen + r, pitch, bases, j, n_used, weights,
                                               at + r, basis, k, 1, mark)  # fmt: skip
                            elif n_used < d and with_weight:
                                make_basis(columns, start + r, pitch, bases, j, n_used, weights,
                                           at + r,
                                       basis, k, 1, 1, AHEAD,
                                       mark)  # fmt: skip
                            elif n_used < d:
                                make_basis(columns, start + r, pitch, bases, j, n_used, weights,
                                           at + r,
                                       basis, k, 0, 1, AHEAD,
                                       mark)  # fmt: skip
                            elif with_weight:
                                make_basis(columns, start + r, pitch, bases, j, n_used, weights,
                                           at + r,
                                       basis, k, 1, side, side,
                                       mark)  # fmt: skip
                            else:
                                make_basis(columns, start + r, pitch, bases, j, n_used, weights,
                                           at + r,
                                       basis, k, 0, side, side,
                                       mark)  # fmt: skip
                    for i in range(0, N_BASIS, side):
                        for j in range(0, N_BASIS, side):
                            multiply_basis(basis, i * pitch, (N_BASIS + j) * pitch, pitch, used,
                                      sums, (i * N_BASIS + j) * width, side,
                                       mark)  # fmt: skip
                extra = scalar(vectors * along)  # sum of the bits of PRODUCT, modulo a power of two
                if not weighted and not gaps:
                    for k in range(width):
                        blanks[k] = scalar((vectors - lengths[begin + k]) * unit)
                for n in range(SIDE * SIDE):
                    cc = (n // SIDE * 2 * N_BASIS + n % SIDE * 2) * width
                    cs, sc = cc + width, cc + N_BASIS * width
                    fold(sums, cc, cs, sc, sc + width, extra, blanks, parts, 2 * n * width,
                          (2 * n + GROUP) * width)  # fmt: skip
                for part in range(2):
                    for j in range(0, GROUP, width):
                        transpose_sums(parts, (part * GROUP + j) * width, numbers,
                              part * rows.shape[2] + group * GROUP + j,
                              pitch_of_rows)  # fmt: skip
            for k in range(width):
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
    return cached_njit(
        _signature(dtype, types.Array(real, 3, "C", readonly=True)),
        nogil=True, error_model="numpy",
    )(add)  # fmt: skip


def _summer_of_tiles(dtype: str, tile: int) -> Summer:
    """Compile the sums of batches for frequencies in tiles, or load them from numba's cache."""
    width, pitch, mark = elements_of(dtype), pitch_of(dtype), SOURCE_MARK
    scalar = getattr(np, dtype.replace("float", "int"))
    squares, products, finer = bits_of(SQUARE, dtype), bits_of(PRODUCT, dtype), FINER[dtype]
    count = 2

    def add(  # type: ignore[no-untyped-def]
        fetch, read, whiten, values, row_bytes, scratch, order, mantissas, weighted, starts,
        lengths, groups, fresh, shifts, center, scale, columns, weights, matrix, packed,
        n_frequencies, minimum, maximum, first, second, narrow, low, high,
    ):  # fmt: skip
        d, whole = center.size, np.empty(width, np.int64)
        n_groups = (n_frequencies + width - 1) // width
        held, more = packed.size // d, finer if weighted else 0
        sums = np.empty(2 * width * width, scalar)
        rows = np.empty((width, 2, n_groups * width), scalar)
        numbers, pitch_of_rows = rows.reshape(-1), rows.shape[1] * rows.shape[2]
        rows_of = np.empty(width, np.int64)
        for begin in range(0, lengths.size, width):
            _fetch(fetch, values, order, starts, lengths, begin, d, rows_of, scratch)
            status, row = read(
                values, scratch, order, mantissas, weighted, starts, lengths, groups, shifts, begin,
                center, scale, columns, weights, whole, minimum, maximum, first, second,
            )  # fmt: skip
            if status:
                return status, row
            vectors = (lengths[begin] + AHEAD - 1) // AHEAD * AHEAD
            n_blocks = (vectors + STEPS - 1) // STEPS
            whiten(columns, d, matrix, n_blocks)
            # one by one between the sums, because processors ignore some of many prefetches at once
            soon, end = (
                starts[begin + width],
                starts[min(begin + 2 * width, lengths.size)],
            )
            n_cycles, n_rows, owed = n_blocks * held // count, end - soon, np.int64(0)
            for at in range(0, n_frequencies, width):
                here = min(width, held - at)
                sums[:] = 0
                for block in range(n_blocks):
                    left = min(vectors - block * STEPS, STEPS)
                    used = left * width
                    start, v = block * d * pitch, block * STEPS * width
                    for j in range(0, here, count):
                        owed += n_rows
                        while owed >= n_cycles and soon < end:
                            _prefetch_row(values, order[soon], row_bytes)
                            soon, owed = soon + 1, owed - n_cycles
                        cycles = (at + j) // tile * tile * d + (at + j) % tile
                        if weighted:
                            sum_features(columns, start, pitch, used, packed, cycles, tile, d,
                                         weights, v, sums, j * width, (width + j) * width,
                                         1, count, AHEAD, mark)  # fmt: skip
                        else:
                            sum_features(columns, start, pitch, used, packed, cycles, tile, d,
                                         weights, v, sums, j * width, (width + j) * width,
                                         0, count, AHEAD, mark)  # fmt: skip
                less = scalar(vectors * squares), scalar(vectors * products)  # sums of their bits
                for k in range(width * width):
                    sums[k] = less[0] - sums[k]
                for k in range(width * width, 2 * width * width):
                    sums[k] = less[1] - sums[k]
                for part in range(2):
                    transpose_sums(sums, part * width * width, numbers, part * rows.shape[2] + at,
                          pitch_of_rows)  # fmt: skip
            for k in range(width):
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
    return cached_njit(
        _signature(dtype, types.Array(real, 1, "C", readonly=True)),
        nogil=True, error_model="numpy",
    )(add)  # fmt: skip


def _summer_of_values(dtype: str) -> Summer:
    """Compile the sums of incomplete rows for frequencies that are not sums of base frequencies."""
    width, pitch, mark = elements_of(dtype), pitch_of(dtype), SOURCE_MARK
    scalar = getattr(np, dtype.replace("float", "int"))
    along, finer = bits_of(PRODUCT, dtype), FINER[dtype]

    def add(  # type: ignore[no-untyped-def]
        fetch, read, whiten, values, row_bytes, scratch, order, mantissas, weighted, starts,
        lengths, groups, fresh, shifts, center, scale, columns, weights, matrix, packed,
        n_frequencies, minimum, maximum, first, second, narrow, low, high,
    ):  # fmt: skip
        d, whole = center.size, np.empty(width, np.int64)
        n_used, bases, more = packed.shape[2], packed.reshape(-1), finer if weighted else 0
        present = indicators_at(columns, d, pitch)
        basis, sums = np.empty(2 * pitch, columns.dtype), np.empty(2 * width * width, scalar)
        n_held = (n_frequencies + width - 1) // width * width
        rows = np.empty((width, 2, n_held), scalar)
        numbers, rows_of = rows.reshape(-1), np.empty(width, np.int64)
        for begin in range(0, lengths.size, width):
            _fetch(fetch, values, order, starts, lengths, begin, d, rows_of, scratch)
            status, row = read(
                values, scratch, order, mantissas, weighted, starts, lengths, groups, shifts, begin,
                center, scale, columns, weights, whole, minimum, maximum, first, second,
            )  # fmt: skip
            if status:
                return status, row
            vectors = (lengths[begin] + AHEAD - 1) // AHEAD * AHEAD
            for at in range(0, n_frequencies, width):
                sums[:] = 0
                for block in range((vectors + STEPS - 1) // STEPS):
                    used = min(vectors - block * STEPS, STEPS) * width
                    start, v = block * d * pitch, block * STEPS * width
                    seen = present + start + block * pitch
                    for n in range(min(width, n_frequencies - at)):
                        j = (at + n) * 2 * n_used
                        for r in range(0, used, AHEAD * width):
                            make_basis(columns, start + r, pitch, bases, j, n_used, weights, v + r,
                                       basis, r, 0, 1, AHEAD, mark)  # fmt: skip
                            mask_basis(columns, seen + r, pitch, bases, j, n_used, weights, v + r,
                                       basis, r, 1, mark)  # fmt: skip
                        sum_basis(basis, pitch, used, sums, n * width, (width + n) * width)
                less = scalar(vectors * along)  # sum of the bits of PRODUCT
                for k in range(width * width):
                    sums[k] -= less
                for k in range(width * width, 2 * width * width):
                    sums[k] = less - sums[k]
                for part in range(2):
                    transpose_sums(sums, part * width * width, numbers, part * n_held + at,
                                   2 * n_held)  # fmt: skip
            for k in range(width):
                if lengths[begin + k]:
                    g, shift = groups[begin + k], shifts[begin + k] + more
                    _put(narrow, low, high, g, fresh[begin + k], rows[k], shift, 0, 0)
        return 0, 0

    real = numba.from_dtype(np.dtype(dtype))
    return cached_njit(
        _signature(dtype, types.Array(real, 3, "C", readonly=True)),
        nogil=True, error_model="numpy",
    )(add)  # fmt: skip


@compiled_once
def _summer(structured: bool, dtype: str, incomplete: bool) -> Summer:
    if structured:
        return _summer_of_sums(dtype, 4 if vector_bits() == VECTOR_BITS else 2, incomplete)
    if incomplete:
        return _summer_of_values(dtype)
    return _summer_of_tiles(dtype, vector_bits() // (8 * np.dtype(dtype).itemsize))


def batch_summer(kernel: Kernel, incomplete: bool = False) -> Summer:
    """Compile the sums of batches that belong to a kernel, of rows that may be incomplete."""
    return _summer(isinstance(kernel, StructuredKernel), kernel.dtype.name, incomplete)
