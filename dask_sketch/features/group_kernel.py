"""Exact sums of ``exp(-2 pi i t)`` for many groups of rows at once, frequency by frequency.

The columns of a few batches are read (:mod:`dask_sketch.features.group_reading`), then summed here,
lane by lane, by the arithmetic of :mod:`dask_sketch.features.lanes`. Meanwhile the rows of the next
batches are called for: they lie all over the chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numba
import numpy as np
from numba import types

from dask_sketch.features.fixed_point import LOW_BITS
from dask_sketch.features.kernel import COMPILING, FINER, vector_bits
from dask_sketch.features.lane_operations import (
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
from dask_sketch.features.map import FeatureMap
from dask_sketch.features.sums import GROUP, SIDE
from dask_sketch.features.sums_kernel import AHEAD, WAVES, make_waves
from dask_sketch.features.vectors import FRACTION, PRODUCT, SQUARE, VECTOR_BITS, bits_of

WAVE_BYTES = 2**17  # of columns that are read before they are summed: the next rows fit beside them
_MASK = 2**LOW_BITS - 1

Summer = Callable[..., None]


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
    """Call for a row that will be read next."""
    at = np.int64(row) * row_bytes
    for b in range(0, row_bytes, 64):
        call_for(values, at + b, 0)  # type: ignore[call-arg]
    call_for(values, at + row_bytes - 1, 0)  # type: ignore[call-arg]


def _summer_of_sums(dtype: str, side: int) -> Callable[..., None]:
    """Sums of batches for frequencies that are sums; compiled now, and cached on disk."""
    n_lanes, pitch = lanes_of(dtype), pitch_of(dtype)
    scalar = getattr(np, dtype.replace("float", "int"))
    along, one = bits_of(PRODUCT, dtype), 2 ** FRACTION[dtype]

    def add(columns, d, share, weighted, packed, n_frequencies, whole, lengths, groups, fresh, shifts, first_batch, last_batch, blocks, narrow, low, high, values, row_bytes, order, starts, next_batch):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
        n_used, bases = packed.shape[2], packed.reshape(-1)
        waves = np.empty(2 * WAVES * pitch, columns.dtype)
        sums = np.empty(WAVES * WAVES * n_lanes, scalar)
        parts = np.empty(2 * GROUP * n_lanes, scalar)
        rows = np.empty((n_lanes, 2, packed.shape[0] // WAVES * GROUP), scalar)
        numbers, pitch_of_rows = rows.reshape(-1), rows.shape[1] * rows.shape[2]
        blanks = np.zeros(n_lanes, scalar)
        n_groups = packed.shape[0] // WAVES
        soon, end = starts[last_batch * n_lanes], starts[next_batch * n_lanes]
        n_calls = n_groups * (blocks[last_batch] - blocks[first_batch]) * (STEPS // AHEAD * WAVES)
        n_rows, owed = end - soon, np.int64(0)
        for batch in range(first_batch, last_batch):
            begin = batch * n_lanes
            steps = np.int64(lengths[begin])
            for group in range(n_groups):
                sums[:] = 0
                processed = 0
                for block in range(blocks[batch], blocks[batch + 1]):
                    here = min(steps - (block - blocks[batch]) * STEPS, STEPS)
                    used = (here + AHEAD - 1) // AHEAD * AHEAD * n_lanes
                    processed += used // n_lanes
                    start = (block - blocks[first_batch]) * d * pitch
                    at = (block - blocks[first_batch]) * STEPS * n_lanes
                    count, together = (side, side) if n_used == d else (1, AHEAD)
                    for r in range(0, used, together * n_lanes):
                        for base in range(0, WAVES, count):
                            owed += n_rows
                            while owed >= n_calls and soon < end:
                                _call(values, order[soon], row_bytes)
                                soon, owed = soon + 1, owed - n_calls
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
                extra = scalar(processed * along)  # what the bits of PRODUCT add up to, wrapped
                if not weighted:
                    for k in range(n_lanes):
                        blanks[k] = scalar((processed - lengths[begin + k]) * one)
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

    real = numba.from_dtype(np.dtype(dtype))
    packed = types.Array(real, 3, "C", readonly=True)
    signature = types.void(
        real[::1], types.int64, real[::1], types.boolean, packed, types.int64, types.int64[::1],
        types.int32[::1], types.int64[::1], types.boolean[::1], types.int64[::1], types.int64,
        types.int64,
        types.int64[::1], types.int32[:, ::1], types.int64[:, ::1], types.int64[:, ::1],
        types.Array(types.uint8, 1, "C", readonly=True), types.int64, types.uint32[::1],
        types.int64[::1], types.int64,
    )  # fmt: skip
    return numba.njit(signature, nogil=True, cache=True, error_model="numpy")(add)


def _summer_of_panels(dtype: str, panel: int) -> Callable[..., None]:
    """The same for frequencies in panels; compiled now, and cached on disk."""
    n_lanes, pitch = lanes_of(dtype), pitch_of(dtype)
    scalar = getattr(np, dtype.replace("float", "int"))
    squares, products, finer = bits_of(SQUARE, dtype), bits_of(PRODUCT, dtype), FINER[dtype]
    count = 4

    def add(columns, d, share, weighted, packed, n_frequencies, whole, lengths, groups, fresh, shifts, first_batch, last_batch, blocks, narrow, low, high, values, row_bytes, order, starts, next_batch):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
        n_groups = (n_frequencies + n_lanes - 1) // n_lanes
        soon, end = starts[last_batch * n_lanes], starts[next_batch * n_lanes]
        n_calls = (
            n_groups
            * (blocks[last_batch] - blocks[first_batch])
            * (n_lanes // count)
            * (STEPS // AHEAD)
        )
        n_rows, owed = end - soon, np.int64(0)
        held, more = packed.size // d, finer if weighted else 0
        sums = np.empty(2 * n_lanes * n_lanes, scalar)
        rows = np.empty((n_lanes, 2, n_groups * n_lanes), scalar)
        numbers, pitch_of_rows = rows.reshape(-1), rows.shape[1] * rows.shape[2]
        for batch in range(first_batch, last_batch):
            begin = batch * n_lanes
            steps = np.int64(lengths[begin])
            for at in range(0, n_frequencies, n_lanes):
                here = min(n_lanes, held - at)
                sums[:] = 0
                processed = 0
                for block in range(blocks[batch], blocks[batch + 1]):
                    left = min(steps - (block - blocks[batch]) * STEPS, STEPS)
                    used = (left + AHEAD - 1) // AHEAD * AHEAD * n_lanes
                    processed += used // n_lanes
                    start = (block - blocks[first_batch]) * d * pitch
                    v = (block - blocks[first_batch]) * STEPS * n_lanes
                    for j in range(0, here, count):
                        turns = (at + j) // panel * panel * d + (at + j) % panel
                        for r in range(0, used, AHEAD * n_lanes):
                            owed += n_rows
                            while owed >= n_calls and soon < end:
                                _call(values, order[soon], row_bytes)
                                soon, owed = soon + 1, owed - n_calls
                            if weighted:
                                sum_features(columns, start + r, pitch, AHEAD * n_lanes, packed,
                                             turns,
                                          panel, d, share, v + r, sums, j * n_lanes,
                                          (n_lanes + j) * n_lanes, 1, count, AHEAD,
                                           MARK)  # type: ignore[call-arg]  # fmt: skip
                            else:
                                sum_features(columns, start + r, pitch, AHEAD * n_lanes, packed,
                                             turns,
                                          panel, d, share, v + r, sums, j * n_lanes,
                                          (n_lanes + j) * n_lanes, 0, count, AHEAD,
                                           MARK)  # type: ignore[call-arg]  # fmt: skip
                less = scalar(processed * squares), scalar(processed * products)  # of their bits
                for k in range(n_lanes * n_lanes):
                    sums[k] = less[0] - sums[k]
                for k in range(n_lanes * n_lanes, 2 * n_lanes * n_lanes):
                    sums[k] = less[1] - sums[k]
                for part in range(2):
                    turn(sums, part * n_lanes * n_lanes, numbers, part * rows.shape[2] + at,
                          pitch_of_rows)  # type: ignore[call-arg]  # fmt: skip
            for k in range(n_lanes):
                if lengths[begin + k]:
                    total, shift = whole[(batch - first_batch) * n_lanes + k], shifts[begin + k]
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

    real = numba.from_dtype(np.dtype(dtype))
    packed = types.Array(real, 1, "C", readonly=True)
    signature = types.void(
        real[::1], types.int64, real[::1], types.boolean, packed, types.int64, types.int64[::1],
        types.int32[::1], types.int64[::1], types.boolean[::1], types.int64[::1], types.int64,
        types.int64,
        types.int64[::1], types.int32[:, ::1], types.int64[:, ::1], types.int64[:, ::1],
        types.Array(types.uint8, 1, "C", readonly=True), types.int64, types.uint32[::1],
        types.int64[::1], types.int64,
    )  # fmt: skip
    return numba.njit(signature, nogil=True, cache=True, error_model="numpy")(add)


@lru_cache(maxsize=4)
def _summer(sums: bool, dtype: str) -> Summer:
    if sums:
        return _summer_of_sums(dtype, 4 if vector_bits() == VECTOR_BITS else 2)
    return _summer_of_panels(dtype, vector_bits() // (8 * np.dtype(dtype).itemsize))


def batch_summer(feature_map: FeatureMap) -> Summer:
    """The compiled sums of batches, for the law and the precision of a map."""
    with COMPILING:
        return _summer(feature_map.law == "sparse-sums", feature_map.dtype)
