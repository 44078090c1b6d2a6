"""Emit SIMD-parallel sums: each vector element adds the rows of another group.

With vectors along the rows of one group, the elements of a vector would have to be summed at the
end, and rows padded to full vectors: for a hundred rows in a group that takes a third of the rest
of the time. Here vectors run across groups, the ``n``-th vector for the ``n``-th row of each group,
so that no sum over elements is needed. The contribution of a row is the same, bit for bit, as in
:mod:`dask_sketch.features.kernels.row_loop`, :mod:`dask_sketch.features.kernels.dense` and
:mod:`dask_sketch.features.kernels.structured_code`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_sketch.features.kernels import llvm_vectors
from dask_sketch.features.kernels.dense import TOGETHER
from dask_sketch.features.kernels.llvm_vectors import (
    PRODUCT,
    SQUARE,
    VECTOR_BITS,
    Vectors,
    real_type,
)
from dask_sketch.features.kernels.row_loop import ROOT
from dask_sketch.features.kernels.structured import N_BASIS
from dask_sketch.features.kernels.structured_code import exchange, number, zeros

PIECE = 4  # features of a row that are loaded together
_SHORT, _WORD, _DOUBLE = ir.IntType(32), ir.IntType(64), ir.DoubleType()


def _place(b: Any, pointer: Any, kind: Any, n: int) -> Any:
    """Pointer to the nth vector of a type, from one to scalars."""
    return b.gep(pointer, [number(n * kind.count)])


def _load(b: Any, pointer: Any, kind: Any) -> Any:
    return b.load(b.bitcast(pointer, kind.as_pointer()), align=_size(kind))


def _store(b: Any, value: Any, pointer: Any) -> None:
    b.store(value, b.bitcast(pointer, value.type.as_pointer()), align=_size(value.type))


def _size(kind: Any) -> int:
    element = kind.element
    return element.width // 8 if isinstance(element, ir.IntType) else 8 if element == _DOUBLE else 4


def _sums(b: Any, pointer: Any, kind: Any, count: int) -> list[Any]:
    """Allocate variables, and load vectors from memory into them."""
    slots = [cgutils.alloca_once(b, kind) for _ in range(count)]
    for n, slot in enumerate(slots):
        b.store(_load(b, _place(b, pointer, kind, n), kind), slot)
    return slots


def _keep(b: Any, slots: list[Any], pointer: Any, kind: Any) -> None:
    for n, slot in enumerate(slots):
        _store(b, b.load(slot), _place(b, pointer, kind, n))


def take_column(
    vec: Vectors,
    raw_kind: str,
    raw: Any,
    out: Any,
    n_steps: Any,
    constants: tuple[Any, Any, Any],
    bounds: Any,
    moments: Any,
    weights: Any,
    ends: Any,
    present: Any = None,
) -> None:
    """Emit the reading of one feature: centre it, and update bounds and moments of each element.

    Parameters
    ----------
    vec
        Emitter of the type of centred rows.
    raw_kind
        Type of raw rows.
    raw, out
        Pointers to raw and to centred vectors, one for each step.
    n_steps
        Number of steps: rows of each element.
    constants
        Center, scale, and root of the quanta of a moment, as in the loop of ungrouped rows.
    bounds
        Pointer to minima, then maxima, in the type of raw rows.
    moments
        Pointer to first, then second moments, float64.
    weights
        Pointer to the weights of the rows, or None.
    ends
        Pointer to the step, int32, where the segment of each element ends: later rows count as the
        center. They repeat rows of the segment, which does not change the bounds.
    present
        Pointer to the indicators of the finite values, which are written: one where there is one,
        else zero. Values that are not finite count as the center, and not in the bounds. None if
        all values are finite.
    """
    b, elements = vec.builder, vec.elements
    raw_type, double = (
        ir.VectorType(real_type(raw_kind), elements),
        ir.VectorType(_DOUBLE, elements),
    )
    narrow = vec.type
    rint = cgutils.get_or_insert_function(
        b.module, ir.FunctionType(double, [double]), f"llvm.rint.v{elements}f64"
    )
    center, scale, root = (vec.spread(value, double) for value in constants)
    low, high = _sums(b, bounds, raw_type, 2)
    first, second = _sums(b, moments, double, 2)
    counts = ir.VectorType(_SHORT, elements)
    last = _load(b, ends, counts)
    with cgutils.for_range_slice(b, number(0), n_steps, number(1)) as (step, _):
        at = b.mul(step, number(elements))
        x = _load(b, b.gep(raw, [at]), raw_type)
        wide = x if raw_kind == "float64" else b.fpext(x, double)
        inside = b.icmp_signed("<", vec.spread(b.trunc(step, _SHORT), counts), last)
        below = b.fcmp_ordered("<", x, b.load(low))
        above = b.fcmp_ordered(">", x, b.load(high))
        if present is not None:
            finite = b.fcmp_ordered("ord", b.fsub(x, x), b.fsub(x, x))
            inside, below, above = (b.and_(flags, finite) for flags in (inside, below, above))
            indicators = b.select(inside, vec.constant(1.0), ir.Constant(narrow, None))
            _store(b, indicators, b.gep(present, [at]))
        away = b.select(inside, b.fsub(wide, center), ir.Constant(double, None))
        centred = away if vec.kind == "float64" else b.fptrunc(away, narrow)
        units = b.fmul(away, scale)
        parts = [b.fmul(units, root), b.fmul(units, units)]
        if weights is not None:
            row_weights = _load(b, b.gep(weights, [at]), narrow)
            row_weights = row_weights if vec.kind == "float64" else b.fpext(row_weights, double)
            parts = [b.fmul(row_weights, part) for part in parts]
        lower = b.select(below, x, b.load(low))
        higher = b.select(above, x, b.load(high))
        totals = [
            b.fadd(b.load(slot), b.call(rint, [part]))
            for slot, part in zip((first, second), parts, strict=True)
        ]
        for slot, result in zip((low, high, first, second), [lower, higher, *totals], strict=True):
            b.store(result, slot)
        _store(b, centred, b.gep(out, [at]))
    _keep(b, [low, high], bounds, raw_type)
    _keep(b, [first, second], moments, double)


def add_products(
    vec: Vectors, left: Any, right: Any, pitch: Any, n_rows: Any, sums: Any, row: int, side: int
) -> None:
    """Emit SIMD-parallel sums of the products of ``side`` basis functions and as many others.

    Parameters
    ----------
    vec
        Emitter.
    left, right
        Pointers to the first basis function of each side.
    pitch
        Distance between columns.
    n_rows
        Number of rows, a multiple of the width of a vector.
    sums
        Pointer to vectors of integers of the size of the reals: the products are added to them in
        quanta, with the bits of PRODUCT for each row.
    row
        Number of vectors between the products of one basis function and those of the next.
    side
        Number of basis functions of each side, whose sums are held in registers.
    """
    b = vec.builder
    sides = [
        [b.gep(start, [b.mul(pitch, number(n))]) for n in range(side)] for start in (left, right)
    ]
    starts = [_place(b, sums, vec.integers, n * row) for n in range(side)]
    slots = [_sums(b, start, vec.integers, side) for start in starts]
    with cgutils.for_range_slice(b, number(0), n_rows, number(vec.elements)) as (at, _):
        u, v = ([vec.part(b.gep(values, [at]), 0) for values in basis] for basis in sides)
        for n, along in enumerate(slots):
            for k, slot in enumerate(along):
                b.store(vec.add_in_order(b.load(slot), vec.quanta(u[n], v[k], PRODUCT)), slot)
    for along, start in zip(slots, starts, strict=True):
        _keep(b, along, start, vec.integers)


def add_values(vec: Vectors, values: Any, pitch: Any, n_rows: Any, sums: list[Any]) -> None:
    """Emit SIMD-parallel sums of basis functions, of which there is one for each sum.

    Parameters
    ----------
    vec
        Emitter.
    values
        Pointer to the first basis function.
    pitch, n_rows
        Arguments of :func:`add_products`.
    sums
        Pointers to vectors of integers, as in :func:`add_products`.
    """
    b, one = vec.builder, vec.constant(1.0)
    for k, place in enumerate(sums):
        column = b.gep(values, [b.mul(pitch, number(k))])
        (slot,) = _sums(b, place, vec.integers, 1)
        with cgutils.for_range_slice(b, number(0), n_rows, number(vec.elements)) as (at, _):
            value = vec.quanta(vec.part(b.gep(column, [at]), 0), one, PRODUCT)
            b.store(vec.add_in_order(b.load(slot), value), slot)
        _keep(b, [slot], place, vec.integers)


def _phases(
    vec: Vectors,
    x: Any,
    pitch: Any,
    cycles: Any,
    stride: Any,
    n_features: Any,
    count: int,
    ahead: int,
) -> list[Any]:
    """Emit phases in cycles, in the order of :mod:`dask_sketch.features.kernels.dense`."""
    b = vec.builder
    slots = zeros(b, vec.type, count * ahead)

    def add(first: Any, last: Any) -> None:
        with cgutils.for_range_slice(b, first, last, number(1)) as (feature, _):
            column = b.gep(x, [b.mul(feature, pitch)])
            rows = [vec.part(column, n) for n in range(ahead)]
            place = b.gep(cycles, [b.mul(feature, stride)])
            for k in range(count):
                frequency = vec.spread(b.load(b.gep(place, [number(k)])))
                for n, row in enumerate(rows):
                    slot = slots[k * ahead + n]
                    b.store(vec.multiply_add(frequency, row, b.load(slot)), slot)

    # separate code for few features, whose phases never leave the registers
    few = b.icmp_signed("<=", n_features, number(2 * TOGETHER))
    with b.if_else(few) as (then, otherwise):
        with then:
            add(number(0), n_features)
        with otherwise:
            totals = zeros(b, vec.type, count * ahead)
            with cgutils.for_range_slice(b, number(0), n_features, number(TOGETHER)) as (first, _):
                end = b.add(first, number(TOGETHER))
                add(first, b.select(b.icmp_signed("<", end, n_features), end, n_features))
                for slot, total in zip(slots, totals, strict=True):
                    b.store(b.fadd(b.load(total), b.load(slot)), total)
                    b.store(ir.Constant(vec.type, None), slot)
            for slot, total in zip(slots, totals, strict=True):
                b.store(b.load(total), slot)
    return [b.load(slot) for slot in slots]


def add_features(
    vec: Vectors,
    x: Any,
    pitch: Any,
    n_rows: Any,
    cycles: Any,
    stride: Any,
    n_features: Any,
    weights: Any,
    sums: tuple[Any, Any],
    count: int,
    ahead: int,
) -> None:
    """Emit SIMD-parallel sums of ``1 - cos`` and of ``sin`` at ``count`` frequencies.

    Parameters
    ----------
    vec
        Emitter.
    x
        Pointer to the rows in the column of the first feature.
    pitch
        Distance between columns.
    n_rows
        Number of rows, a multiple of ``ahead`` vectors.
    cycles
        Pointer to the adjacent frequencies of the first feature.
    stride
        Distance to the frequencies of the next feature.
    n_features
        Number of features.
    weights
        Pointer to the weights of the rows, or None.
    sums
        Pointers to vectors of integers, one for each frequency, of ``1 - cos`` and of ``sin``,
        with bits as in :func:`dask_sketch.features.kernels.dense.add_rows`.
    count, ahead
        Numbers of frequencies and of vectors of rows whose phases are held in registers.
    """
    b = vec.builder
    versines, sines = (_sums(b, place, vec.integers, count) for place in sums)
    with cgutils.for_range_slice(b, number(0), n_rows, number(ahead * vec.elements)) as (at, _):
        here = b.gep(x, [at])
        phases = _phases(vec, here, pitch, cycles, stride, n_features, count, ahead)
        for m, phase in enumerate(phases):
            k, n = divmod(m, ahead)
            s, c = vec.half_angle(phase)
            scaled = s
            if weights is not None:
                scaled = b.fmul(s, vec.part(b.gep(weights, [at]), n))
            for slot, factor, start in ((versines[k], s, SQUARE), (sines[k], c, PRODUCT)):
                b.store(vec.add_in_order(b.load(slot), vec.quanta(scaled, factor, start)), slot)
    for slots, place in zip((versines, sines), sums, strict=True):
        _keep(b, slots, place, vec.integers)


def _transposed(vec: Vectors, values: list[Any]) -> list[Any]:
    """Transpose squares in vectors, whose number is a power of two."""
    stride = len(values) // 2
    while stride:
        for n in range(len(values)):
            if not n & stride:
                values[n], values[n + stride] = exchange(vec, values[n], values[n + stride], stride)
        stride //= 2
    return values


def fetch_rows(
    vec: Vectors,
    raw: Any,
    rows: Any,
    first: Any,
    n_features: Any,
    out: Any,
    pitch: Any,
) -> None:
    """Emit the transposition of PIECE features of scattered rows, one for each vector element.

    Parameters
    ----------
    vec
        Emitter of the type of raw rows.
    raw
        Pointer to all rows.
    rows
        Pointer to the numbers of the rows, int64.
    first, n_features
        First feature, and number of features: nothing beyond is read. Pieces are small, because a
        load brings all cache lines that it touches into the cache.
    out
        Pointer to the rows in the column of feature 0; a column beyond the last one is overwritten.
    pitch
        Distance between columns.
    """
    b = vec.builder
    piece, counts = ir.VectorType(vec.type.element, PIECE), ir.VectorType(_WORD, PIECE)
    elements = ir.Constant(counts, list(range(PIECE)))
    wanted = b.icmp_signed("<", elements, vec.spread(b.sub(n_features, first), counts))
    signature = ir.FunctionType(piece, [piece.as_pointer(), _SHORT, wanted.type, piece])
    name = f"llvm.masked.load.v{PIECE}f{vec.bits}.p0"
    load = cgutils.get_or_insert_function(b.module, signature, name)
    align, nothing = ir.Constant(_SHORT, vec.bits // 8), ir.Constant(piece, None)
    pieces = []
    for n in range(vec.elements):
        row = b.load(b.gep(rows, [number(n)]))
        place = b.gep(raw, [b.add(b.mul(row, n_features), first)])
        pointer = b.bitcast(place, piece.as_pointer())
        pieces.append(b.call(load, [pointer, align, wanted, nothing]))
    # every PIECE-th row in one vector; then squares of PIECE by PIECE are transposed
    values = [_joined(b, pieces[n::PIECE]) for n in range(PIECE)]
    for n, value in enumerate(_transposed(vec, values)):
        feature = b.add(first, number(n))
        column = b.select(b.icmp_signed("<", feature, n_features), feature, n_features)
        vec.put(value, b.gep(out, [b.mul(pitch, column)]))


def _joined(b: Any, parts: list[Any]) -> Any:
    """Concatenate vectors of the same length, whose number is a power of two."""
    while len(parts) > 1:
        length = 2 * parts[0].type.count
        mask = ir.Constant(ir.VectorType(_SHORT, length), list(range(length)))
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [b.shuffle_vector(one, other, mask) for one, other in pairs]
    return parts[0]


def fold_products(
    vec: Vectors, sums: tuple[Any, Any, Any, Any], extra: Any, blanks: Any, parts: tuple[Any, Any]
) -> None:
    """Emit the sums of two frequencies, ``u + v`` and ``u - v``, from sums of products.

    Parameters
    ----------
    vec
        Emitter.
    sums
        Pointers to the sums of the products of both cosines, of the cosine of ``u`` with the sine
        of ``v``, of the sine with the cosine, and of both sines.
    extra
        Sum of the bits of PRODUCT in each of them.
    blanks
        Pointer to the sums of rows of padding in the first of them.
    parts
        Pointers to two vectors of real parts, and of imaginary parts.
    """
    b = vec.builder
    common = vec.spread(extra, vec.integers)
    cc, cs, sc, ss = (b.sub(_load(b, place, vec.integers), common) for place in sums)
    cc = b.sub(cc, _load(b, blanks, vec.integers))
    zero = ir.Constant(vec.integers, None)
    real, imaginary = parts
    for n, value in enumerate((b.sub(cc, ss), b.add(cc, ss))):
        _store(b, value, _place(b, real, vec.integers, n))
    for n, value in enumerate((b.sub(zero, b.add(sc, cs)), b.sub(cs, sc))):
        _store(b, value, _place(b, imaginary, vec.integers, n))


def transpose_vectors(vec: Vectors, sums: Any, rows: Any, pitch: Any) -> None:
    """Emit the transposition of a square of sums, as wide as a vector."""
    b = vec.builder
    values = [_load(b, _place(b, sums, vec.integers, n), vec.integers) for n in range(vec.elements)]
    for n, value in enumerate(_transposed(vec, values)):
        _store(b, value, b.gep(rows, [b.mul(pitch, number(n))]))


def prefetch(b: Any, pointer: Any, write: bool) -> None:
    """Emit a hint that memory will be read or written soon."""
    byte = ir.IntType(8).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [byte, _SHORT, _SHORT, _SHORT])
    function = cgutils.get_or_insert_function(b.module, signature, "llvm.prefetch.p0")
    hints = [ir.Constant(_SHORT, value) for value in (int(write), 3, 1)]
    b.call(function, [b.bitcast(pointer, byte), *hints])


# The rows of a group are divided into *segments*. A *batch* is one segment of similar length for
# each element of a vector, and a *block* is STEPS rows of each segment of a batch: columns of
# features of STEPS vectors each.

STEPS = 16  # rows of each segment in a block, whose basis values fit the first-level cache
_LONGEST = 256  # largest number of rows of a segment: their sums fit in 32 bits
_BATCH_BYTES = 2**18  # largest size of the columns of a batch, which fit the second-level cache


def elements_of(dtype: str) -> int:
    """Number of segments of a batch: elements of a vector."""
    return VECTOR_BITS // (8 * np.dtype(dtype).itemsize)


def pitch_of(dtype: str) -> int:
    """Distance between the columns of a block; not a power of two."""
    return (STEPS + 1) * elements_of(dtype)


def longest_segment(n_features: int, dtype: str) -> int:
    """Largest number of rows of a segment."""
    block = pitch_of(dtype) * n_features * np.dtype(dtype).itemsize
    return STEPS * min(max(_BATCH_BYTES // block, 1), _LONGEST // STEPS)


def _at(context: Any, b: Any, sig: Any, args: Any, array: int) -> Any:
    """Pointer to an element of an array, whose index is the next argument."""
    data = context.make_array(sig.args[array])(context, b, args[array]).data
    return b.gep(data, [args[array + 1]])


@intrinsic(prefer_literal=True)
def take_feature(typing: Any, raw: Any, i: Any, out: Any, j: Any, n_steps: Any, center: Any,
                 scale: Any, bounds: Any, k: Any, moments: Any, weights: Any, v: Any, ends: Any,
                 p: Any, weighted: Any, incomplete: Any, mark: Any) -> Any:  # fmt: skip
    """Read one feature of a block: ``raw[i:]`` to ``out[j:]``; ``bounds[k:]``, ``moments[k:]``.

    Indicators of finite values are written to ``out[p:]`` if rows may be incomplete.
    """
    signature = types.void(raw, i, out, j, n_steps, center, scale, bounds, k, moments, weights, v,
                           ends, p, weighted, incomplete, mark)  # fmt: skip
    raw_kind, kind = raw.dtype.name, out.dtype.name
    use, gaps = bool(weighted.literal_value), bool(incomplete.literal_value)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        def at(array: int, offset: int) -> Any:
            data = context.make_array(sig.args[array])(context, b, args[array]).data
            return b.gep(data, [args[offset]])

        ends_at = context.make_array(sig.args[12])(context, b, args[12]).data
        take_column(
            Vectors(b, kind), raw_kind, at(0, 1), at(2, 3), args[4],
            (args[5], args[6], ir.Constant(ir.DoubleType(), ROOT)), at(7, 8), at(9, 8),
            at(10, 11) if use else None, ends_at, at(2, 13) if gaps else None,
        )  # fmt: skip
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def multiply_basis(typing: Any, basis: Any, i: Any, j: Any, pitch: Any, n_rows: Any, sums: Any,
                   k: Any,
              side: Any, mark: Any) -> Any:  # fmt: skip
    """Add SIMD-parallel products of basis functions at ``basis[i:]`` and at ``basis[j:]``."""
    kind, count = basis.dtype.name, side.literal_value
    signature = types.void(basis, i, j, pitch, n_rows, sums, k, side, mark)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, b, args[0]).data
        left, right = (b.gep(data, [offset]) for offset in args[1:3])
        place = _at(context, b, sig, args, 5)
        add_products(Vectors(b, kind), left, right, args[3], args[4], place, N_BASIS, count)
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def sum_basis(typing: Any, basis: Any, pitch: Any, n_rows: Any, sums: Any, i: Any, j: Any) -> Any:
    """Add SIMD-parallel sums of cosines to ``sums[i:]``, and of sines to ``sums[j:]``."""
    kind = basis.dtype.name
    signature = types.void(basis, pitch, n_rows, sums, i, j)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        values = context.make_array(sig.args[0])(context, b, args[0]).data
        place = context.make_array(sig.args[3])(context, b, args[3]).data
        places = [b.gep(place, [offset]) for offset in args[4:6]]
        add_values(Vectors(b, kind), values, args[1], args[2], places)
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def sum_features(typing: Any, x: Any, i: Any, pitch: Any, n_rows: Any, cycles: Any, j: Any,
              stride: Any, n_features: Any, weights: Any, v: Any, sums: Any, k: Any, m: Any,
              weighted: Any, count: Any, ahead: Any, mark: Any) -> Any:  # fmt: skip
    """Add SIMD-parallel ``1 - cos`` and ``sin`` of ``count`` frequencies at ``cycles[j:]``."""
    signature = types.void(x, i, pitch, n_rows, cycles, j, stride, n_features, weights, v, sums, k,
                           m, weighted, count, ahead, mark)  # fmt: skip
    kind, use = x.dtype.name, bool(weighted.literal_value)
    together = count.literal_value, ahead.literal_value

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        def at(array: int) -> Any:
            return _at(context, b, sig, args, array)

        add_features(
            Vectors(b, kind), at(0), args[2], args[3], at(4), args[6], args[7],
            at(8) if use else None, (at(10), b.gep(at(10), [b.sub(args[12], args[11])])), *together,
        )  # fmt: skip
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def fetch_features(typing: Any, raw: Any, rows: Any, first: Any, n_features: Any, out: Any,
                   j: Any, n_elements: Any, raw_kind: Any, mark: Any) -> Any:  # fmt: skip
    """Transpose PIECE features of scattered rows to ``out[j:]``; both are arrays of bytes."""
    kind, elements = raw_kind.literal_value, n_elements.literal_value
    signature = types.void(raw, rows, first, n_features, out, j, n_elements, raw_kind, mark)
    bits = np.dtype(kind).itemsize * 8
    together = min(VECTOR_BITS // bits, elements)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        data = [context.make_array(sig.args[n])(context, b, args[n]).data for n in (0, 1, 4)]
        values, columns = (
            b.bitcast(data[n], llvm_vectors.real_type(kind).as_pointer()) for n in (0, 2)
        )
        columns = b.gep(columns, [args[5]])
        for start in range(0, elements, together):
            fetch_rows(
                Vectors(b, kind, bits * together), values,
                b.gep(data[1], [number(start)]),
                args[2], args[3], b.gep(columns, [number(start)]),
                number((STEPS + 1) * elements),
            )  # fmt: skip
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def fold(typing: Any, sums: Any, cc: Any, cs: Any, sc: Any, ss: Any, extra: Any, blanks: Any,
          parts: Any, i: Any, j: Any) -> Any:  # fmt: skip
    """Combine four sums of products to two frequencies, ``parts[i:]`` and ``parts[j:]``."""
    kind = sums.dtype.name.replace("int", "float")
    signature = types.void(sums, cc, cs, sc, ss, sums.dtype, blanks, parts, i, j)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        def at(array: int, offset: int) -> Any:
            data = context.make_array(sig.args[array])(context, b, args[array]).data
            return b.gep(data, [args[offset]])

        blank = context.make_array(sig.args[6])(context, b, args[6]).data
        products = (at(0, 1), at(0, 2), at(0, 3), at(0, 4))
        fold_products(Vectors(b, kind), products, args[5], blank, (at(7, 8), at(7, 9)))
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def transpose_sums(typing: Any, sums: Any, i: Any, rows: Any, j: Any, pitch: Any) -> Any:
    """Transpose a square of ``sums[i:]``, as wide as a vector, to ``rows[j:]``."""
    kind = sums.dtype.name.replace("int", "float")
    signature = types.void(sums, i, rows, j, pitch)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        place, row = (_at(context, b, sig, args, array) for array in (0, 2))
        transpose_vectors(Vectors(b, kind), place, row, args[4])
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def prefetch_element(typing: Any, array: Any, i: Any, write: Any) -> Any:
    """Prefetch the cache line of ``array[i]``, for writing or reading."""
    signature = types.void(array, i, write)
    soon = bool(write.literal_value)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        prefetch(b, _at(context, b, sig, args, 0), soon)
        return context.get_dummy_value()

    return signature, emit
