"""Read batches of segments of rows into columns: check and centre them, and sum moments.

This is the counterpart of :mod:`dask_sketch.features.kernels.row_loop` for rows that are scattered
over the chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from dask_sketch.features.kernels.dense import FINER
from dask_sketch.features.kernels.fixed_point import BINADES, LOW_BITS
from dask_sketch.features.kernels.grouped_code import (
    PIECE,
    STEPS,
    elements_of,
    fetch_features,
    pitch_of,
    prefetch_element,
    take_feature,
)
from dask_sketch.features.kernels.llvm_vectors import FRACTION, SOURCE_MARK
from dask_sketch.features.kernels.row_loop import N_EXPONENTS, OVERFLOW, add_far, add_quanta
from dask_sketch.features.kernels.structured import AHEAD
from dask_sketch.features.kernels.whitened_rows import TOGETHER, mix_columns
from dask_sketch.validation.compilation import cached_njit, compiled_once

NOT_FINITE, REFUSED = 1, 2
_MASK = 2**LOW_BITS - 1
_EXACT = 0.99 * 2.0**53  # sums in float64 are exact up to here, with room for roundings


@numba.njit(nogil=True, error_model="numpy")
def _prefetch_group(low, high, first, second, g):  # type: ignore[no-untyped-def]
    """Prefetch the bounds and moments of a group for writing."""
    for f in range(0, low.shape[1], 8):
        for bounds in (low, high):
            prefetch_element(bounds[g], f, 1)
        for sums in (first, second):
            for word in range(2):
                prefetch_element(sums[g, word], f, 1)


@numba.njit(nogil=True, error_model="numpy")
def indicators_at(columns, d, pitch):  # type: ignore[no-untyped-def]
    """Start of the indicators of finite values, which follow the columns of all blocks.

    In each block they have one more column, for no feature.
    """
    return columns.size // ((2 * d + 1) * pitch) * d * pitch


_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_FETCH = types.void(_BYTES, types.int64[::1], types.int64, types.uint8[::1], types.int64)


def _read_signature(dtype: str) -> Any:
    real = numba.from_dtype(np.dtype(dtype))
    floats, words = types.Array(types.float64, 1, "C", readonly=True), types.int64[:, :, ::1]
    return types.UniTuple(types.int64, 2)(
        _BYTES, types.uint8[::1], types.uint32[::1], real[::1], types.boolean, types.int64[::1],
        types.int32[::1], types.int64[::1], types.int64[::1], types.int64, floats, floats,
        real[::1], real[::1], types.int64[::1], types.float64[:, ::1], types.float64[:, ::1],
        words, words,
    )  # fmt: skip


def _whiten_signature(dtype: str) -> Any:
    real = numba.from_dtype(np.dtype(dtype))
    reals = types.Array(real, 3, "C", readonly=True)
    return types.void(real[::1], types.int64, reals, types.int64)


def reading_types(dtype: str) -> list[types.Type]:
    """Types of the functions that fetch, read and whiten batches of rows of any type."""
    signatures = _FETCH, _read_signature(dtype), _whiten_signature(dtype)
    return [types.FunctionType(signature) for signature in signatures]


@compiled_once
def _fetcher(raw_kind: str, width: int) -> Callable[..., None]:
    """Compile the function that fetches one row of each segment of a batch."""
    mark = SOURCE_MARK

    def fetch(values, rows, d, scratch, at):  # type: ignore[no-untyped-def]
        for f in range(0, d, PIECE):
            fetch_features(values, rows, f, d, scratch, at, width, raw_kind, mark)

    return cached_njit(_FETCH, nogil=True, error_model="numpy")(fetch)


@compiled_once
def _reader(raw_kind: str, dtype: str, incomplete: bool = False) -> Callable[..., tuple[int, int]]:
    """Compile the function that reads a batch after fetching."""
    width, pitch, real = elements_of(dtype), pitch_of(dtype), getattr(np, raw_kind)
    unit, finer = 2.0 ** FRACTION[dtype], 2.0 ** (FRACTION[dtype] + FINER[dtype])
    mark, gaps = SOURCE_MARK, int(incomplete)

    def read(  # type: ignore[no-untyped-def]
        values, scratch, order, mantissas, weighted, starts, lengths, groups, shifts, begin,
        center, scale, columns, weights, total, low, high, first, second,
    ):  # fmt: skip
        d, steps, fetched = center.size, lengths[begin], scratch.view(real)
        ends, moments = np.empty(width, np.int32), np.zeros(2 * d * width)
        bounds = np.empty(2 * d * width, real)
        present = indicators_at(columns, d, pitch) if gaps else 0
        for f in range(d):
            b = 2 * f * width
            bounds[b : b + width], bounds[b + width : b + 2 * width] = (
                np.inf,
                -np.inf,
            )
        for k in range(width):
            _prefetch_group(low, high, first, second, groups[begin + k])
            total[k] = 0 if weighted else lengths[begin + k] * np.int64(unit)
        for block in range((steps + STEPS - 1) // STEPS):
            taken, at = block * STEPS, block * STEPS * width
            here = min(steps - taken, STEPS)
            used = (here + AHEAD - 1) // AHEAD * AHEAD
            if weighted:
                for s in range(here):
                    for k in range(width):
                        length = np.int64(lengths[begin + k])
                        place = starts[begin + k] + min(taken + s, max(length - 1, 0))
                        mine = mantissas[place] if taken + s < length else mantissas[place] * 0
                        weights[at + s * width + k] = mine
                        total[k] += np.int64(np.rint(np.float64(mine) * finer))
                weights[at + here * width : at + used * width] = 0
            for k in range(width):
                ends[k] = lengths[begin + k] - taken
            for f in range(d):
                i, j = (block * (d + 1) + f) * pitch, (block * d + f) * pitch
                for k in range(here * width, used * width):
                    columns[j + k] = 0.0
                b, p = 2 * f * width, present + i
                if gaps:
                    for k in range(here * width, used * width):
                        columns[p + k] = 0.0
                if gaps:  # there are weights, if only of one
                    take_feature(fetched, i, columns, j, here, center[f], scale[f], bounds, b,
                                 moments, weights, at, ends, p, 1, 1, mark)  # fmt: skip
                elif weighted:
                    take_feature(fetched, i, columns, j, here, center[f], scale[f], bounds, b,
                                 moments, weights, at, ends, p, 1, 0, mark)  # fmt: skip
                else:
                    take_feature(fetched, i, columns, j, here, center[f], scale[f], bounds, b,
                                 moments, weights, at, ends, p, 0, 0, mark)  # fmt: skip
        for k in range(width):
            length, g = np.int64(lengths[begin + k]), groups[begin + k]
            if length == 0:
                continue
            reach, wrong = 0.0, 0.0
            for f in range(d):
                b = 2 * f * width + k
                lowest, highest = np.float64(bounds[b]), np.float64(bounds[b + width])
                if gaps and highest < lowest:  # no value is finite
                    continue
                low[g, f] = min(low[g, f], lowest)
                high[g, f] = max(high[g, f], highest)
                away = max(highest - center[f], center[f] - lowest) * scale[f]
                reach = max(reach, away * away)
                wrong += moments[b] * 0.0
            if wrong != 0.0:  # NaN: a value is not finite
                return NOT_FINITE, -1
            shift = shifts[begin + k]
            if reach * length < _EXACT and shift == 0:  # the code below does the same in more steps
                for f in range(d):
                    b = 2 * f * width + k
                    value, square = np.int64(moments[b]), np.int64(moments[b + width])
                    sum_low = first[g, 1, f] + (value & _MASK)
                    square_low = second[g, 1, f] + (square & _MASK)
                    first[g, 0, f] += (value >> LOW_BITS) + (sum_low >> LOW_BITS)
                    second[g, 0, f] += (square >> LOW_BITS) + (square_low >> LOW_BITS)
                    first[g, 1, f], second[g, 1, f] = sum_low & _MASK, square_low & _MASK
                continue
            if reach * length < _EXACT:
                for f in range(d):
                    b = 2 * f * width + k
                    fits = add_quanta(first[g], f, np.int64(moments[b]), shift)
                    if not fits or not add_quanta(
                        second[g], f, np.int64(moments[b + width]), shift
                    ):
                        return REFUSED, OVERFLOW
                continue
            begun = starts[begin + k]
            counts = np.zeros(N_EXPONENTS, np.int64)
            counts[shift // BINADES] = length
            mine = np.ones(length)
            if weighted:
                for i in range(length):  # compiles faster than an assignment to a slice
                    mine[i] = mantissas[begun + i]
            raw, rows = values.view(real).reshape(-1, d), order[begun : begun + length]
            # copied in the same types for all types of rows: one function is compiled
            filled, here = np.empty((length, d)), np.empty(length, np.uint32)
            for i in range(length):
                here[i] = i
                for f in range(d):
                    given = np.float64(raw[rows[i], f])
                    filled[i, f] = given if math.isfinite(given) else center[f]
            refused = add_far(filled, mine, here, counts, center, scale, first[g], second[g])
            refused = np.int64(rows[refused]) if refused >= 0 else refused
            if refused != -1:
                return REFUSED, refused
        return 0, 0

    return cached_njit(_read_signature(dtype), nogil=True, error_model="numpy")(read)


def _whitener(dtype: str) -> Callable[..., None]:
    """Compile the function that whitens columns in place."""
    width, pitch = elements_of(dtype), pitch_of(dtype)
    mark = SOURCE_MARK

    def whiten(columns, d, matrix, n_blocks):  # type: ignore[no-untyped-def]
        mixed = matrix.reshape(-1)
        new = np.empty(matrix.shape[0] * pitch, columns.dtype)
        for block in range(n_blocks):
            start = block * d * pitch
            for g in range(0, matrix.shape[0], TOGETHER):
                for r in range(0, STEPS * width, TOGETHER * width):
                    mix_columns(
                        columns, start + r, pitch, mixed, g * 2 * d, d, new, g * pitch + r, mark
                    )
            for k in range(d * pitch):
                columns[start + k] = new[k]

    return cached_njit(_whiten_signature(dtype), nogil=True, error_model="numpy")(whiten)


def _leaver(dtype: str) -> Callable[..., None]:
    """Compile the function that replaces whitening if there is none."""

    def leave(columns, d, matrix, n_blocks):  # type: ignore[no-untyped-def]
        pass

    return cached_njit(_whiten_signature(dtype), nogil=True, error_model="numpy")(leave)


@compiled_once
def _whiten(dtype: str, mixed: bool) -> Callable[..., None]:
    return _whitener(dtype) if mixed else _leaver(dtype)


def batch_reading(
    raw_kind: str, dtype: str, mixed: bool, incomplete: bool = False
) -> tuple[Callable[..., Any], ...]:
    """Compile the functions that fetch, read and whiten batches.

    Parameters
    ----------
    raw_kind
        Type of the raw rows.
    dtype
        Precision of the features.
    mixed
        Whether rows are whitened by a matrix that is not diagonal.
    incomplete
        Whether rows have missing values.
    """
    return (
        _fetcher(raw_kind, elements_of(dtype)),
        _reader(raw_kind, dtype, incomplete),
        _whiten(dtype, mixed),
    )
