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
    steps: tuple[Any, Any],
    constants: tuple[Any, Any, Any],
    bounds: Any,
    moments: Any,
    shares: Any,
    lengths: Any,
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
    steps
        First step and the end of steps.
    constants
        Center, scale, and root of the steps of a moment, as in the loop of ungrouped rows.
    bounds
        Pointer to minima, then maxima, in the type of raw rows.
    moments
        Pointer to first, then second moments, float64.
    shares
        Pointer to the weights of the rows, or none.
    lengths
        Pointer to the rows in each lane, int32, where there are lanes with fewer than there are
        steps; these take no more, and stand at the center. Or none.
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
    ends = None if lengths is None else _load(b, lengths, counts)
    with cgutils.for_range_slice(b, steps[0], steps[1], number(1)) as (step, _):
        at = b.mul(step, number(lanes))
        x = _load(b, b.gep(raw, [at]), given)
        wide = x if raw_kind == "float64" else b.fpext(x, double)
        away = b.fsub(wide, center)
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
        results = [lower, higher, *totals]
        if ends is not None:
            here = vec.spread(b.trunc(step, _SHORT), counts)
            inside = b.icmp_signed("<", here, ends)
            centred = b.select(inside, centred, ir.Constant(narrow, None))
            before = [b.load(slot) for slot in (low, high, first, second)]
            results = [b.select(inside, *pair) for pair in zip(results, before, strict=True)]
        for slot, result in zip((low, high, first, second), results, strict=True):
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
    totals = zeros(b, vec.type, count * ahead)
    few = b.icmp_signed("<=", n_features, number(2 * TOGETHER))
    together = b.select(few, n_features, number(TOGETHER))
    with cgutils.for_range_slice(b, number(0), n_features, together) as (first, _):
        slots = zeros(b, vec.type, count * ahead)
        end = b.add(first, together)
        last = b.select(b.icmp_signed("<", end, n_features), end, n_features)
        with cgutils.for_range_slice(b, first, last, number(1)) as (feature, _):
            column = b.gep(x, [b.mul(feature, pitch)])
            rows = [vec.part(column, n) for n in range(ahead)]
            place = b.gep(turns, [b.mul(feature, stride)])
            for k in range(count):
                turn = vec.spread(b.load(b.gep(place, [number(k)])))
                for n, row in enumerate(rows):
                    slot = slots[k * ahead + n]
                    b.store(vec.multiply_add(turn, row, b.load(slot)), slot)
        for slot, total in zip(slots, totals, strict=True):
            b.store(b.fadd(b.load(total), b.load(slot)), total)
    return [b.load(total) for total in totals]


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
    """As many vectors as there are lanes, transposed."""
    stride = vec.lanes // 2
    while stride:
        for n in range(vec.lanes):
            if not n & stride:
                values[n], values[n + stride] = exchange(vec, values[n], values[n + stride], stride)
        stride //= 2
    return values


def fetch_rows(
    vec: Vectors,
    raw: Any,
    offsets: Any,
    n_rows: int,
    first: Any,
    n_features: Any,
    out: Any,
    pitch: Any,
) -> None:
    """Emit the transposition of as many features as lanes, from rows anywhere, to columns.

    Parameters
    ----------
    vec
        Where the code shall stand, and the type of raw rows.
    raw
        Pointer to all rows.
    offsets
        Pointer to where rows begin, int64.
    n_rows
        Number of rows, that fill whole vectors.
    first, n_features
        The first feature, and the number of all: nothing beyond is read.
    out
        Pointer to the rows in the column of the first feature; the columns of features beyond the
        last are filled too, with zeros.
    pitch
        From column to column.
    """
    b = vec.builder
    mask_kind = ir.VectorType(ir.IntType(1), vec.lanes)
    counts = ir.VectorType(_WORD, vec.lanes)
    lane = ir.Constant(counts, list(range(vec.lanes)))
    mask = b.icmp_signed("<", lane, vec.spread(b.sub(n_features, first), counts))
    signature = ir.FunctionType(vec.type, [vec.type.as_pointer(), _SHORT, mask_kind, vec.type])
    name = f"llvm.masked.load.v{vec.lanes}f{vec.bits}.p0"
    load = cgutils.get_or_insert_function(b.module, signature, name)
    for start in range(0, n_rows, vec.lanes):
        rows = []
        for n in range(vec.lanes):
            offset = b.load(b.gep(offsets, [number(start + n)]))
            place = b.bitcast(b.gep(raw, [b.add(offset, first)]), vec.type.as_pointer())
            align = ir.Constant(_SHORT, vec.bits // 8)
            rows.append(b.call(load, [place, align, mask, ir.Constant(vec.type, None)]))
        for n, value in enumerate(_turned(vec, rows)):
            place = b.gep(out, [b.mul(pitch, number(n))])
            vec.put(value, b.gep(place, [number(start)]))


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
