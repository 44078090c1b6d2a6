"""What the loops over groups of rows call, and the sizes that they share.

Rows of a group are cut into *segments*. As many of them as a vector has lanes, of about one length,
are a *batch*, and STEPS rows of each lane of a batch are a *block*: columns of features, each of
``STEPS`` vectors and PITCH numbers from the next.
"""

from __future__ import annotations

import inspect
from typing import Any
from zlib import crc32

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dask_sketch.features import lanes as code
from dask_sketch.features import step, vectors, waves
from dask_sketch.features.row_loop import ROOT
from dask_sketch.features.sums_kernel import WAVES
from dask_sketch.features.vectors import VECTOR_BITS, Vectors

STEPS = 16  # rows of each lane in a block: its waves stay in the first cache
_LONGEST = 256  # rows of a segment: their sums fit in 32 bits
_BATCH_BYTES = 2**18  # of the columns of a batch, at most: they stay in the second cache

# numba looks at the file of a loop when it loads it from its cache: the arithmetic is told by this
MARK = crc32("".join(map(inspect.getsource, (code, step, vectors, waves))).encode())


def lanes_of(dtype: str) -> int:
    """Segments of a batch."""
    return VECTOR_BITS // (8 * np.dtype(dtype).itemsize)


def pitch_of(dtype: str) -> int:
    """From column to column of a block; not a power of two."""
    return (STEPS + 1) * lanes_of(dtype)


def longest_segment(n_features: int, dtype: str) -> int:
    """Rows of a segment, at most."""
    block = pitch_of(dtype) * n_features * np.dtype(dtype).itemsize
    return STEPS * min(max(_BATCH_BYTES // block, 1), _LONGEST // STEPS)


def _at(context: Any, b: Any, sig: Any, args: Any, array: int) -> Any:
    """Pointer to an element of an array, whose number is the next argument."""
    data = context.make_array(sig.args[array])(context, b, args[array]).data
    return b.gep(data, [args[array + 1]])


@intrinsic(prefer_literal=True)
def take_feature(typing: Any, raw: Any, i: Any, out: Any, j: Any, n_steps: Any, center: Any,
                 scale: Any, bounds: Any, k: Any, moments: Any, shares: Any, v: Any, ends: Any,
                 weighted: Any, mark: Any) -> Any:  # fmt: skip
    """Read one feature of a block: ``raw[i:]`` to ``out[j:]``; ``bounds[k:]``, ``moments[k:]``."""
    signature = types.void(raw, i, out, j, n_steps, center, scale, bounds, k, moments, shares, v,
                           ends, weighted, mark)  # fmt: skip
    raw_kind, kind = raw.dtype.name, out.dtype.name
    use = bool(weighted.literal_value)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        def at(array: int, offset: int) -> Any:
            data = context.make_array(sig.args[array])(context, b, args[array]).data
            return b.gep(data, [args[offset]])

        ends_at = context.make_array(sig.args[12])(context, b, args[12]).data
        code.take_column(
            Vectors(b, kind), raw_kind, at(0, 1), at(2, 3), args[4],
            (args[5], args[6], ir.Constant(ir.DoubleType(), ROOT)), at(7, 8), at(9, 8),
            at(10, 11) if use else None, ends_at,
        )  # fmt: skip
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def multiply_waves(typing: Any, waves: Any, i: Any, j: Any, pitch: Any, n_rows: Any, sums: Any,
                   k: Any,
              side: Any, mark: Any) -> Any:  # fmt: skip
    """Add products, lane by lane, of waves from ``waves[i:]`` with those from ``waves[j:]``."""
    kind, count = waves.dtype.name, side.literal_value
    signature = types.void(waves, i, j, pitch, n_rows, sums, k, side, mark)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, b, args[0]).data
        one, other = (b.gep(data, [offset]) for offset in args[1:3])
        place = _at(context, b, sig, args, 5)
        code.add_products(Vectors(b, kind), one, other, args[3], args[4], place, WAVES, count)
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def sum_features(typing: Any, x: Any, i: Any, pitch: Any, n_rows: Any, turns: Any, j: Any,
              stride: Any, n_features: Any, weights: Any, v: Any, sums: Any, k: Any, m: Any,
              weighted: Any, count: Any, ahead: Any, mark: Any) -> Any:  # fmt: skip
    """Add ``1 - cos`` and ``sin``, lane by lane, of ``count`` frequencies at ``turns[j:]``."""
    signature = types.void(x, i, pitch, n_rows, turns, j, stride, n_features, weights, v, sums, k,
                           m, weighted, count, ahead, mark)  # fmt: skip
    kind, use = x.dtype.name, bool(weighted.literal_value)
    together = count.literal_value, ahead.literal_value

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        def at(array: int) -> Any:
            return _at(context, b, sig, args, array)

        code.add_features(
            Vectors(b, kind), at(0), args[2], args[3], at(4), args[6], args[7],
            at(8) if use else None, (at(10), b.gep(at(10), [b.sub(args[12], args[11])])), *together,
        )  # fmt: skip
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def fetch_features(typing: Any, raw: Any, rows: Any, first: Any, n_features: Any, out: Any,
                   j: Any, n_lanes: Any, raw_kind: Any, mark: Any) -> Any:  # fmt: skip
    """Transpose PIECE features, from the first on, of some rows to ``out[j:]``; both are bytes."""
    kind, lanes = raw_kind.literal_value, n_lanes.literal_value
    signature = types.void(raw, rows, first, n_features, out, j, n_lanes, raw_kind, mark)
    bits = np.dtype(kind).itemsize * 8
    together = min(VECTOR_BITS // bits, lanes)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        data = [context.make_array(sig.args[n])(context, b, args[n]).data for n in (0, 1, 4)]
        values, columns = (b.bitcast(data[n], vectors.real(kind).as_pointer()) for n in (0, 2))
        columns = b.gep(columns, [args[5]])
        for start in range(0, lanes, together):
            code.fetch_rows(
                Vectors(b, kind, bits * together), values, b.gep(data[1], [waves.number(start)]),
                args[2], args[3], b.gep(columns, [waves.number(start)]),
                waves.number((STEPS + 1) * lanes),
            )  # fmt: skip
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def fold(typing: Any, sums: Any, cc: Any, cs: Any, sc: Any, ss: Any, extra: Any, blanks: Any,
          parts: Any, i: Any, j: Any) -> Any:  # fmt: skip
    """Two frequencies, ``parts[i:]`` and ``parts[j:]``, of four sums of products."""
    kind = sums.dtype.name.replace("int", "float")
    signature = types.void(sums, cc, cs, sc, ss, sums.dtype, blanks, parts, i, j)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        def at(array: int, offset: int) -> Any:
            data = context.make_array(sig.args[array])(context, b, args[array]).data
            return b.gep(data, [args[offset]])

        blank = context.make_array(sig.args[6])(context, b, args[6]).data
        products = (at(0, 1), at(0, 2), at(0, 3), at(0, 4))
        code.fold_products(Vectors(b, kind), products, args[5], blank, (at(7, 8), at(7, 9)))
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def turn(typing: Any, sums: Any, i: Any, rows: Any, j: Any, pitch: Any) -> Any:
    """Transpose as many vectors of ``sums[i:]`` as there are lanes to ``rows[j:]``."""
    kind = sums.dtype.name.replace("int", "float")
    signature = types.void(sums, i, rows, j, pitch)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        place, row = (_at(context, b, sig, args, array) for array in (0, 2))
        code.turn_sums(Vectors(b, kind), place, row, args[4])
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def call_for(typing: Any, array: Any, i: Any, write: Any) -> Any:
    """Fetch ``array[i]`` and its neighbours into the cache, to be written soon or read."""
    signature = types.void(array, i, write)
    soon = bool(write.literal_value)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        code.prefetch(b, _at(context, b, sig, args, 0), soon)
        return context.get_dummy_value()

    return signature, emit
