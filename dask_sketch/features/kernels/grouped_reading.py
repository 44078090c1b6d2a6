"""Batches of segments of rows, read into columns: checked, centred, with bounds and moments.

As :mod:`dask_sketch.features.kernels.row_loop` does for all rows of a block; rows are fetched from
where they lie in the chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any
from zlib import crc32

import numba
import numpy as np
from numba import types

from dask_sketch.features.kernels.dense import COMPILING, FINER
from dask_sketch.features.kernels.fixed_point import BINADES, LOW_BITS
from dask_sketch.features.kernels.grouped_code import (
    MARK,
    PIECE,
    STEPS,
    call_for,
    fetch_features,
    lanes_of,
    pitch_of,
    take_feature,
)
from dask_sketch.features.kernels.llvm_vectors import FRACTION
from dask_sketch.features.kernels.row_loop import GROUPS, OVERFLOW, add_far, add_quanta
from dask_sketch.features.kernels.structured import AHEAD
from dask_sketch.features.kernels.structured_code import products_module
from dask_sketch.features.kernels.whitened_rows import TOGETHER, mix_columns

NOT_FINITE, REFUSED = 1, 2
_MASK = 2**LOW_BITS - 1
_EXACT = 0.99 * 2.0**53  # sums in float64 are exact up to here, with room for roundings


@numba.njit(nogil=True, error_model="numpy")
def _call(low, high, first, second, g):  # type: ignore[no-untyped-def]
    """Call for the bounds and moments of a group, to be added to."""
    for f in range(0, low.shape[1], 8):
        for bounds in (low, high):
            call_for(bounds[g], f, 1)  # type: ignore[call-arg]
        for sums in (first, second):
            for word in range(2):
                call_for(sums[g, word], f, 1)  # type: ignore[call-arg]


_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_FETCH = types.void(_BYTES, types.int64[::1], types.int64, types.uint8[::1], types.int64)


def _read_signature(dtype: str) -> Any:
    real = numba.from_dtype(np.dtype(dtype))
    given, words = types.Array(types.float64, 1, "C", readonly=True), types.int64[:, :, ::1]
    return types.UniTuple(types.int64, 2)(
        _BYTES, types.uint8[::1], types.uint32[::1], real[::1], types.boolean, types.int64[::1],
        types.int32[::1], types.int64[::1], types.int64[::1], types.int64, given, given,
        real[::1], real[::1], types.int64[::1], types.float64[:, ::1], types.float64[:, ::1],
        words, words,
    )  # fmt: skip


def _whiten_signature(dtype: str) -> Any:
    real = numba.from_dtype(np.dtype(dtype))
    given = types.Array(real, 3, "C", readonly=True)
    return types.void(real[::1], types.int64, given, types.int64)


def reading_types(dtype: str) -> list[types.Type]:
    """Of what fetches, reads and whitens batches: the same for rows of any type."""
    signatures = _FETCH, _read_signature(dtype), _whiten_signature(dtype)
    return [types.FunctionType(signature) for signature in signatures]


def _fetcher(raw_kind: str, n_lanes: int) -> Callable[..., None]:
    """The fetching of one step of a batch; compiled now, and cached on disk."""

    def fetch(values, rows, d, scratch, at):  # type: ignore[no-untyped-def]
        for f in range(0, d, PIECE):
            fetch_features(values, rows, f, d, scratch, at, n_lanes, raw_kind, MARK)  # type: ignore[call-arg]

    return numba.njit(_FETCH, nogil=True, cache=True, error_model="numpy")(fetch)


def _reader(raw_kind: str, dtype: str) -> Callable[..., tuple[int, int]]:
    """The reading of a batch that was fetched; compiled now, and cached on disk."""
    n_lanes, pitch, real = lanes_of(dtype), pitch_of(dtype), getattr(np, raw_kind)
    one, finer = 2.0 ** FRACTION[dtype], 2.0 ** (FRACTION[dtype] + FINER[dtype])

    def read(values, scratch, order, shares, weighted, starts, lengths, groups, shifts, begin, center, scale, columns, share, total, low, high, first, second):  # type: ignore[no-untyped-def]  # fmt: skip
        d, steps, fetched = center.size, lengths[begin], scratch.view(real)
        ends, moments = np.empty(n_lanes, np.int32), np.zeros(2 * d * n_lanes)
        bounds = np.empty(2 * d * n_lanes, real)
        for f in range(d):
            b = 2 * f * n_lanes
            bounds[b : b + n_lanes], bounds[b + n_lanes : b + 2 * n_lanes] = np.inf, -np.inf
        for k in range(n_lanes):
            _call(low, high, first, second, groups[begin + k])
            total[k] = 0 if weighted else lengths[begin + k] * np.int64(one)
        for block in range((steps + STEPS - 1) // STEPS):
            taken, at = block * STEPS, block * STEPS * n_lanes
            here = min(steps - taken, STEPS)
            used = (here + AHEAD - 1) // AHEAD * AHEAD
            if weighted:
                for s in range(here):
                    for k in range(n_lanes):
                        length = np.int64(lengths[begin + k])
                        place = starts[begin + k] + min(taken + s, max(length - 1, 0))
                        mine = shares[place] if taken + s < length else shares[place] * 0
                        share[at + s * n_lanes + k] = mine
                        total[k] += np.int64(np.rint(np.float64(mine) * finer))
                share[at + here * n_lanes : at + used * n_lanes] = 0
            for k in range(n_lanes):
                ends[k] = lengths[begin + k] - taken
            for f in range(d):
                i, j = (block * (d + 1) + f) * pitch, (block * d + f) * pitch
                for k in range(here * n_lanes, used * n_lanes):
                    columns[j + k] = 0.0
                b = 2 * f * n_lanes
                if weighted:
                    take_feature(fetched, i, columns, j, here, center[f], scale[f], bounds, b,
                                 moments, share, at, ends, 1, MARK)  # type: ignore[call-arg]  # fmt: skip
                else:
                    take_feature(fetched, i, columns, j, here, center[f], scale[f], bounds, b,
                                 moments, share, at, ends, 0, MARK)  # type: ignore[call-arg]  # fmt: skip
        for k in range(n_lanes):
            length, g = np.int64(lengths[begin + k]), groups[begin + k]
            if length == 0:
                continue
            reach, wrong = 0.0, 0.0
            for f in range(d):
                b = 2 * f * n_lanes + k
                lowest, highest = np.float64(bounds[b]), np.float64(bounds[b + n_lanes])
                low[g, f] = min(low[g, f], lowest)
                high[g, f] = max(high[g, f], highest)
                away = max(highest - center[f], center[f] - lowest) * scale[f]
                reach = max(reach, away * away)
                wrong += moments[b] * 0.0
            if wrong != 0.0:  # NaN: a value is not finite
                return NOT_FINITE, -1
            shift = shifts[begin + k]
            if reach * length < _EXACT and shift == 0:  # as below, in fewer steps
                for f in range(d):
                    b = 2 * f * n_lanes + k
                    value, square = np.int64(moments[b]), np.int64(moments[b + n_lanes])
                    sum_low = first[g, 1, f] + (value & _MASK)
                    square_low = second[g, 1, f] + (square & _MASK)
                    first[g, 0, f] += (value >> LOW_BITS) + (sum_low >> LOW_BITS)
                    second[g, 0, f] += (square >> LOW_BITS) + (square_low >> LOW_BITS)
                    first[g, 1, f], second[g, 1, f] = sum_low & _MASK, square_low & _MASK
                continue
            if reach * length < _EXACT:
                for f in range(d):
                    b = 2 * f * n_lanes + k
                    fits = add_quanta(first[g], f, np.int64(moments[b]), shift)
                    if not fits or not add_quanta(
                        second[g], f, np.int64(moments[b + n_lanes]), shift
                    ):
                        return REFUSED, OVERFLOW
                continue
            begun = starts[begin + k]
            counts = np.zeros(GROUPS, np.int64)
            counts[shift // BINADES] = length
            mine = np.ones(length, columns.dtype)
            if weighted:
                mine[:] = shares[begun : begun + length]
            raw = values.view(real).reshape(-1, d)
            refused = add_far(
                raw, mine, order[begun : begun + length], counts, center, scale, first[g],
                second[g],
            )  # fmt: skip
            if refused != -1:
                return REFUSED, refused
        return 0, 0

    return numba.njit(_read_signature(dtype), nogil=True, cache=True, error_model="numpy")(read)


def _whitener(dtype: str) -> Callable[..., None]:
    """The whitening of columns, in place; compiled now, and cached on disk."""
    n_lanes, pitch = lanes_of(dtype), pitch_of(dtype)
    mark = crc32(str(products_module(dtype, TOGETHER)).encode())

    def whiten(columns, d, matrix, n_blocks):  # type: ignore[no-untyped-def]
        mixed = matrix.reshape(-1)
        new = np.empty(matrix.shape[0] * pitch, columns.dtype)
        for block in range(n_blocks):
            start = block * d * pitch
            for g in range(0, matrix.shape[0], TOGETHER):
                for r in range(0, STEPS * n_lanes, TOGETHER * n_lanes):
                    mix_columns(
                        columns, start + r, pitch, mixed, g * 2 * d, d, new, g * pitch + r, mark
                    )  # type: ignore[call-arg]
            for k in range(d * pitch):
                columns[start + k] = new[k]

    return numba.njit(_whiten_signature(dtype), nogil=True, cache=True, error_model="numpy")(whiten)


def _leaver(dtype: str) -> Callable[..., None]:
    """Stands where nothing is whitened."""

    def leave(columns, d, matrix, n_blocks):  # type: ignore[no-untyped-def]
        pass

    return numba.njit(_whiten_signature(dtype), nogil=True, cache=True, error_model="numpy")(leave)


_fetch, _read = lru_cache(_fetcher), lru_cache(_reader)


@lru_cache
def _whiten(dtype: str, mixed: bool) -> Callable[..., None]:
    return _whitener(dtype) if mixed else _leaver(dtype)


def batch_reading(raw_kind: str, dtype: str, mixed: bool) -> tuple[Callable[..., Any], ...]:
    """What fetches, reads and whitens batches, compiled.

    Parameters
    ----------
    raw_kind, dtype
        Type of the rows, and precision.
    mixed
        Whether there is whitening that mixes features.
    """
    with COMPILING:
        return _fetch(raw_kind, lanes_of(dtype)), _read(raw_kind, dtype), _whiten(dtype, mixed)
