"""The arithmetic of sums in lanes: each lane of a vector adds up rows of a group of its own.

Sums over the rows of one group would have to be brought together from the lanes of vectors that
stand along its rows, and padded to whole ones: with a hundred rows in a group that takes as long as
a third of the rest. Here vectors stand across groups, the ``n``-th for the ``n``-th row of each, so
that nothing is brought together. What a row adds is what :mod:`dask_sketch.features.row_loop`,
:mod:`dask_sketch.features.step` and :mod:`dask_sketch.features.waves` have it add, bit for bit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from dask_sketch.features.step import TOGETHER
from dask_sketch.features.vectors import PRODUCT, SQUARE, Vectors, real
from dask_sketch.features.waves import exchange, number, zeros

PIECE = 4  # features of a row that are fetched together
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
    """Variables that start as vectors in memory."""
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
    shares: Any,
    ends: Any,
) -> None:
    """Emit the reading of one feature: centred, with bounds and moments of each lane.

    Parameters
    ----------
    vec
        Where the code shall stand, and the type of centred rows.
    raw_kind
        Type of raw rows.
    raw, out
        Pointers to raw and to centred vectors, one for each step.
    n_steps
        Number of steps.
    constants
        Center, scale, and root of the steps of a moment, as in the loop of ungrouped rows.
    bounds
        Pointer to minima, then maxima, in the type of raw rows.
    moments
        Pointer to first, then second moments, float64.
    shares
        Pointer to the weights of the rows, or none.
    ends
        Pointer to the step, int32, where each lane ends: it stands at the center from there on.
        The rows that are given for it then are some of its own, for the bounds.
    """
    b, lanes = vec.builder, vec.lanes
    given, double = ir.VectorType(real(raw_kind), lanes), ir.VectorType(_DOUBLE, lanes)
    narrow = vec.type
    rint = cgutils.get_or_insert_function(
        b.module, ir.FunctionType(double, [double]), f"llvm.rint.v{lanes}f64"
    )
    center, scale, root = (vec.spread(value, double) for value in constants)
    low, high = _sums(b, bounds, given, 2)
    first, second = _sums(b, moments, double, 2)
    counts = ir.VectorType(_SHORT, lanes)
    last = _load(b, ends, counts)
    with cgutils.for_range_slice(b, number(0), n_steps, number(1)) as (step, _):
        at = b.mul(step, number(lanes))
        x = _load(b, b.gep(raw, [at]), given)
        wide = x if raw_kind == "float64" else b.fpext(x, double)
        inside = b.icmp_signed("<", vec.spread(b.trunc(step, _SHORT), counts), last)
        away = b.select(inside, b.fsub(wide, center), ir.Constant(double, None))
        centred = away if vec.kind == "float64" else b.fptrunc(away, narrow)
        units = b.fmul(away, scale)
        parts = [b.fmul(units, root), b.fmul(units, units)]
        if shares is not None:
            share = _load(b, b.gep(shares, [at]), narrow)
            share = share if vec.kind == "float64" else b.fpext(share, double)
            parts = [b.fmul(share, part) for part in parts]
        lower = b.select(b.fcmp_ordered("<", x, b.load(low)), x, b.load(low))
        higher = b.select(b.fcmp_ordered(">", x, b.load(high)), x, b.load(high))
        totals = [
            b.fadd(b.load(slot), b.call(rint, [part]))
            for slot, part in zip((first, second), parts, strict=True)
        ]
        for slot, result in zip((low, high, first, second), [lower, higher, *totals], strict=True):
            b.store(result, slot)
        _store(b, centred, b.gep(out, [at]))
    _keep(b, [low, high], bounds, given)
    _keep(b, [first, second], moments, double)


def add_products(
    vec: Vectors, one: Any, other: Any, pitch: Any, n_rows: Any, sums: Any, row: int, side: int
) -> None:
    """Emit sums, lane by lane, of the products of ``side`` waves with as many others.

    Parameters
    ----------
    vec
        Where the code shall stand.
    one, other
        Pointers to the first wave of each side.
    pitch
        From wave to wave.
    n_rows
        Number of rows, that fill whole vectors.
    sums
        Pointer to vectors of integers as wide as the numbers: the steps of the products are added
        to them, and as often the bits of PRODUCT.
    row
        Vectors from the products of one wave to those of the next.
    side
        As many as registers hold the sums of.
    """
    b = vec.builder
    sides = [
        [b.gep(start, [b.mul(pitch, number(n))]) for n in range(side)] for start in (one, other)
    ]
    starts = [_place(b, sums, vec.integers, n * row) for n in range(side)]
    slots = [_sums(b, start, vec.integers, side) for start in starts]
    with cgutils.for_range_slice(b, number(0), n_rows, number(vec.lanes)) as (at, _):
        u, v = ([vec.part(b.gep(wave, [at]), 0) for wave in waves] for waves in sides)
        for n, along in enumerate(slots):
            for k, slot in enumerate(along):
                b.store(vec.add_in_order(b.load(slot), vec.steps(u[n], v[k], PRODUCT)), slot)
    for along, start in zip(slots, starts, strict=True):
        _keep(b, along, start, vec.integers)


def _phases(
    vec: Vectors,
    x: Any,
    pitch: Any,
    turns: Any,
    stride: Any,
    n_features: Any,
    count: int,
    ahead: int,
) -> list[Any]:
    """Phases in turns, added up in the order of :mod:`dask_sketch.features.step`."""
    b = vec.builder
    slots = zeros(b, vec.type, count * ahead)

    def add(first: Any, last: Any) -> None:
        with cgutils.for_range_slice(b, first, last, number(1)) as (feature, _):
            column = b.gep(x, [b.mul(feature, pitch)])
            rows = [vec.part(column, n) for n in range(ahead)]
            place = b.gep(turns, [b.mul(feature, stride)])
            for k in range(count):
                turn = vec.spread(b.load(b.gep(place, [number(k)])))
                for n, row in enumerate(rows):
                    slot = slots[k * ahead + n]
                    b.store(vec.multiply_add(turn, row, b.load(slot)), slot)

    # few features, apart from many: so their phases never leave the registers
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
    turns: Any,
    stride: Any,
    n_features: Any,
    weights: Any,
    sums: tuple[Any, Any],
    count: int,
    ahead: int,
) -> None:
    """Emit sums, lane by lane, of ``1 - cos`` and of ``sin`` at ``count`` frequencies.

    Parameters
    ----------
    vec
        Where the code shall stand.
    x
        Pointer to the rows in the column of the first feature.
    pitch
        From column to column.
    n_rows
        Number of rows, that fill ``ahead`` vectors a whole number of times.
    turns
        Pointer to the first feature of the frequencies, side by side.
    stride
        From there to the next feature.
    n_features
        Number of features.
    weights
        Pointer to the weights of the rows, or none.
    sums
        Pointers to vectors of integers, one for each frequency, of ``1 - cos`` and of ``sin``,
        with bits as in :func:`dask_sketch.features.step.add_rows`.
    count, ahead
        Frequencies and vectors of rows whose phases are held in registers.
    """
    b = vec.builder
    versines, sines = (_sums(b, place, vec.integers, count) for place in sums)
    with cgutils.for_range_slice(b, number(0), n_rows, number(ahead * vec.lanes)) as (at, _):
        here = b.gep(x, [at])
        phases = _phases(vec, here, pitch, turns, stride, n_features, count, ahead)
        for m, turned in enumerate(phases):
            k, n = divmod(m, ahead)
            s, c = vec.half_angle(turned)
            share = s
            if weights is not None:
                share = b.fmul(s, vec.part(b.gep(weights, [at]), n))
            for slot, factor, start in ((versines[k], s, SQUARE), (sines[k], c, PRODUCT)):
                b.store(vec.add_in_order(b.load(slot), vec.steps(share, factor, start)), slot)
    for slots, place in zip((versines, sines), sums, strict=True):
        _keep(b, slots, place, vec.integers)


def _turned(vec: Vectors, values: list[Any]) -> list[Any]:
    """Some vectors, a power of two: squares of as many lanes, transposed."""
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
    """Emit the transposition of PIECE features, from as many rows anywhere as lanes, to columns.

    Parameters
    ----------
    vec
        Where the code shall stand, and the type of raw rows.
    raw
        Pointer to all rows.
    rows
        Pointer to their numbers, int64.
    first, n_features
        The first feature, and the number of all: nothing beyond is read. Pieces are small, for a
        load that reaches into a line of the cache takes it there, wanted or not.
    out
        Pointer to the rows in the column of feature 0; a column beyond the last one is overwritten.
    pitch
        From column to column.
    """
    b = vec.builder
    piece, counts = ir.VectorType(vec.type.element, PIECE), ir.VectorType(_WORD, PIECE)
    lanes = ir.Constant(counts, list(range(PIECE)))
    wanted = b.icmp_signed("<", lanes, vec.spread(b.sub(n_features, first), counts))
    signature = ir.FunctionType(piece, [piece.as_pointer(), _SHORT, wanted.type, piece])
    name = f"llvm.masked.load.v{PIECE}f{vec.bits}.p0"
    load = cgutils.get_or_insert_function(b.module, signature, name)
    align, nothing = ir.Constant(_SHORT, vec.bits // 8), ir.Constant(piece, None)
    pieces = []
    for n in range(vec.lanes):
        row = b.load(b.gep(rows, [number(n)]))
        place = b.gep(raw, [b.add(b.mul(row, n_features), first)])
        pointer = b.bitcast(place, piece.as_pointer())
        pieces.append(b.call(load, [pointer, align, wanted, nothing]))
    # every PIECE-th row in one vector; then squares of PIECE by PIECE are transposed
    values = [_joined(b, pieces[n::PIECE]) for n in range(PIECE)]
    for n, value in enumerate(_turned(vec, values)):
        feature = b.add(first, number(n))
        column = b.select(b.icmp_signed("<", feature, n_features), feature, n_features)
        vec.put(value, b.gep(out, [b.mul(pitch, column)]))


def _joined(b: Any, parts: list[Any]) -> Any:
    """Vectors of one length, of which there are 2, 4, ..., as one."""
    while len(parts) > 1:
        length = 2 * parts[0].type.count
        mask = ir.Constant(ir.VectorType(_SHORT, length), list(range(length)))
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [b.shuffle_vector(one, other, mask) for one, other in pairs]
    return parts[0]


def fold_products(
    vec: Vectors, sums: tuple[Any, Any, Any, Any], extra: Any, blanks: Any, parts: tuple[Any, Any]
) -> None:
    """Emit two frequencies, ``u + v`` and ``u - v``, from sums of products.

    Parameters
    ----------
    vec
        Where the code shall stand.
    sums
        Pointers to the sums of the products of both cosines, of the cosine of ``u`` with the sine
        of ``v``, of the sine with the cosine, and of both sines.
    extra
        What the bits of PRODUCT add to each.
    blanks
        Pointer to what empty rows add to the first.
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


def turn_sums(vec: Vectors, sums: Any, rows: Any, pitch: Any) -> None:
    """Emit a transposition: as many vectors of sums as there are lanes, to a row for each lane."""
    b = vec.builder
    values = [_load(b, _place(b, sums, vec.integers, n), vec.integers) for n in range(vec.lanes)]
    for n, value in enumerate(_turned(vec, values)):
        _store(b, value, b.gep(rows, [b.mul(pitch, number(n))]))


def prefetch(b: Any, pointer: Any, write: bool) -> None:
    """Emit a hint that memory will be read or written soon."""
    byte = ir.IntType(8).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [byte, _SHORT, _SHORT, _SHORT])
    function = cgutils.get_or_insert_function(b.module, signature, "llvm.prefetch.p0")
    hints = [ir.Constant(_SHORT, value) for value in (int(write), 3, 1)]
    b.call(function, [b.bitcast(pointer, byte), *hints])
