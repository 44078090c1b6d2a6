"""Emit the arithmetic of structured frequencies: basis values, and sums of their products.

Basis functions are the cosine and the sine of the phase of each base frequency. Vectors run along
the rows of a block: samples are stored as columns, one for each feature, ``pitch`` numbers apart,
and so are the values of basis functions.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from dask_sketch.features.kernels.llvm_vectors import (
    PRODUCT,
    Vectors,
    bits_of,
    integer_type,
)

TOGETHER = 32  # features of a base frequency that are added before they are added to the rest
_WORD = ir.IntType(64)


def number(value: int) -> Any:
    """Return a constant integer of 64 bits."""
    return ir.Constant(_WORD, value)


def zeros(b: Any, kind: Any, count: int) -> list[Any]:
    """Allocate variables of one vector each, set to zero; LLVM keeps them in registers."""
    slots = [cgutils.alloca_once(b, kind) for _ in range(count)]
    for slot in slots:
        b.store(ir.Constant(kind, None), slot)
    return slots


def exchange(vec: Vectors, left: Any, right: Any, stride: int) -> tuple[Any, Any]:
    """Transpose the two by two blocks of ``stride`` elements in two vectors."""
    b, mask = vec.builder, ir.VectorType(ir.IntType(32), vec.elements)
    near = [
        element + vec.elements - stride if element & stride else element
        for element in range(vec.elements)
    ]
    far = [
        element + vec.elements if element & stride else element + stride
        for element in range(vec.elements)
    ]
    return (
        b.shuffle_vector(left, right, ir.Constant(mask, near)),
        b.shuffle_vector(left, right, ir.Constant(mask, far)),
    )


def put_columns(vec: Vectors, x: Any, n_features: Any, columns: Any, pitch: Any) -> None:
    """Emit the transposition of a square, as wide as a vector, from ``x`` to ``columns``."""
    b, stride = vec.builder, vec.elements // 2
    rows = [vec.part(b.gep(x, [b.mul(n_features, number(r))]), 0) for r in range(vec.elements)]
    while stride:
        for r in range(vec.elements):
            if not r & stride:
                rows[r], rows[r + stride] = exchange(vec, rows[r], rows[r + stride], stride)
        stride //= 2
    for r, value in enumerate(rows):
        vec.put(value, b.gep(columns, [b.mul(pitch, number(r))]))


def _across(vec: Vectors, vectors: list[Any]) -> Any:
    """Emit sums over the elements of each vector; their number is a power of two."""
    b, count, stride = vec.builder, len(vectors), vec.elements // 2
    while stride:
        half = max(len(vectors) // 2, 1)
        pairs = zip(vectors[:half], vectors[-half:], strict=True)
        vectors = [b.add(*exchange(vec, left, right, stride)) for left, right in pairs]
        stride //= 2
    first = [n * vec.elements // count for n in range(count)]  # the other elements are equal
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), count), first)
    return b.shuffle_vector(vectors[0], vectors[0], chosen)


def _phases(
    vec: Vectors, x: Any, pitch: Any, bases: Any, n_used: Any, count: int, ahead: int
) -> list[Any]:
    """Emit phases in cycles: for each base frequency, one for each vector of rows."""
    b = vec.builder
    totals = zeros(b, vec.type, count * ahead)
    cycles = [b.gep(bases, [b.mul(n_used, number(2 * n + 1))]) for n in range(count)]
    with cgutils.for_range_slice(b, number(0), n_used, number(TOGETHER)) as (first, _):
        slots = zeros(b, vec.type, count * ahead)
        end = b.add(first, number(TOGETHER))
        last = b.select(b.icmp_signed("<", end, n_used), end, n_used)
        with cgutils.for_range_slice(b, first, last, number(1)) as (entry, _):
            feature = b.fptosi(b.load(b.gep(bases, [entry])), _WORD)
            column = b.gep(x, [b.mul(feature, pitch)])
            rows = [vec.part(column, n) for n in range(ahead)]
            for m, slot in enumerate(slots):
                frequency = vec.spread(b.load(b.gep(cycles[m // ahead], [entry])))
                b.store(vec.multiply_add(frequency, rows[m % ahead], b.load(slot)), slot)
        for slot, total in zip(slots, totals, strict=True):
            b.store(b.fadd(b.load(total), b.load(slot)), total)
    return [b.load(total) for total in totals]


def put_basis(
    vec: Vectors,
    x: Any,
    pitch: Any,
    bases: Any,
    n_used: Any,
    weights: Any,
    basis: Any,
    count: int,
    ahead: int,
) -> None:
    """Emit cosines and sines of base frequencies, for a few vectors of rows.

    Parameters
    ----------
    vec
        Emitter.
    x
        Pointer to the rows in the column of the first feature.
    pitch
        Distance between columns, in ``x`` and in ``basis``.
    bases
        Pointer to ``count`` base frequencies that use the same features: for each, the numbers of
        ``n_used`` features, then the frequencies in cycles.
    n_used
        Number of features that a base frequency uses.
    weights
        Pointer to the weights of the rows, or None.
    basis
        Pointer to the rows in the column of the first basis function; the order is cosine, sine,
        cosine, ...
    count
        Number of base frequencies, which share loads of the rows.
    ahead
        Number of vectors of rows, which share loads of the base frequencies.
    """
    b = vec.builder
    for m, cycles in enumerate(_phases(vec, x, pitch, bases, n_used, count, ahead)):
        base, n = divmod(m, ahead)
        row_weights = None if weights is None else vec.part(weights, n)
        for k, values in enumerate(vec.cosine_sine(cycles, row_weights)):
            place = b.gep(basis, [b.mul(pitch, number(2 * base + k))])
            vec.put(values, b.gep(place, [number(n * vec.elements)]))


def put_present(
    vec: Vectors,
    indicators: Any,
    pitch: Any,
    bases: Any,
    n_used: Any,
    weights: Any,
    basis: Any,
    ahead: int,
) -> None:
    """Emit products of basis values and indicators of the features that a base frequency uses.

    Parameters
    ----------
    vec
        Emitter.
    indicators
        Pointer to the rows in the column of the first feature, which are one or zero.
    pitch
        Distance between columns, in ``indicators`` and in ``basis``.
    bases
        Pointer to the numbers of the features of the base frequency.
    n_used
        Number of these features.
    weights
        Pointer to the weights of the rows, which are factors too, or None.
    basis
        Pointer to the rows in the column of the cosines, before that of the sines.
    ahead
        Number of vectors of rows.
    """
    b = vec.builder
    slots = zeros(b, vec.type, ahead)
    for n, slot in enumerate(slots):
        b.store(vec.constant(1.0) if weights is None else vec.part(weights, n), slot)
    with cgutils.for_range_slice(b, number(0), n_used, number(1)) as (entry, _):
        feature = b.fptosi(b.load(b.gep(bases, [entry])), _WORD)
        column = b.gep(indicators, [b.mul(feature, pitch)])
        for n, slot in enumerate(slots):
            b.store(b.fmul(b.load(slot), vec.part(column, n)), slot)
    for k in range(2):
        place = b.gep(basis, [b.mul(pitch, number(k))])
        for n, slot in enumerate(slots):
            here = b.gep(place, [number(n * vec.elements)])
            vec.put(b.fmul(vec.part(here, 0), b.load(slot)), here)


def add_values(vec: Vectors, values: Any, pitch: Any, n_rows: Any, sums: Any, count: int) -> None:
    """Emit sums of a few basis functions over rows.

    Parameters
    ----------
    vec
        Emitter.
    values
        Pointer to the first basis function.
    pitch, n_rows
        Arguments of :func:`add_products`.
    sums
        Pointer to ``count`` integers of 64 bits, to which the sums are added in quanta.
    count
        Number of basis functions, a power of two.
    """
    b, one = vec.builder, vec.constant(1.0)
    columns = [b.gep(values, [b.mul(pitch, number(n))]) for n in range(count)]
    slots = zeros(b, vec.integers, count)
    with cgutils.for_range_slice(b, number(0), n_rows, number(vec.elements)) as (row, _):
        for column, slot in zip(columns, slots, strict=True):
            value = vec.quanta(vec.part(b.gep(column, [row]), 0), one, PRODUCT)
            b.store(vec.add_in_order(b.load(slot), value), slot)
    _store_sums(vec, [b.load(slot) for slot in slots], n_rows, sums)


def put_products(
    vec: Vectors,
    x: Any,
    pitch: Any,
    matrix: Any,
    n_features: Any,
    out: Any,
    count: int,
    ahead: int,
) -> None:
    """Emit ``count`` linear combinations of all features, for ``ahead`` vectors of rows.

    Parameters
    ----------
    vec
        Emitter.
    x, out
        Pointers to the rows in the column of the first feature, and of the first combination.
    pitch
        Distance between columns.
    matrix
        Pointer to ``count`` lines: for each, the numbers of the features, then their coefficients.
    n_features
        Number of features.
    count, ahead
        Numbers of combinations and of vectors of rows.
    """
    b = vec.builder
    for m, total in enumerate(_phases(vec, x, pitch, matrix, n_features, count, ahead)):
        column, n = divmod(m, ahead)
        place = b.gep(out, [b.mul(pitch, number(column))])
        vec.put(total, b.gep(place, [number(n * vec.elements)]))


def add_products(
    vec: Vectors, left: Any, right: Any, pitch: Any, n_rows: Any, sums: Any, side: int
) -> None:
    """Emit sums of the products of ``side`` basis functions and as many others.

    Parameters
    ----------
    vec
        Emitter.
    left, right
        Pointers to the first basis function of each side.
    pitch
        Distance between columns.
    n_rows
        Number of rows, a multiple of the width of a vector; at most 511, as sums have 32 bits.
    sums
        Pointer to ``side**2`` integers of 64 bits, to which the products are added in quanta,
        those of the first basis function of ``left`` first.
    side
        Number of basis functions of each side, whose sums are held in registers.
    """
    b = vec.builder
    sides = [
        [b.gep(start, [b.mul(pitch, number(n))]) for n in range(side)] for start in (left, right)
    ]
    slots = zeros(b, vec.integers, side * side)
    with cgutils.for_range_slice(b, number(0), n_rows, number(vec.elements)) as (row, _):
        u, v = ([vec.part(b.gep(values, [row]), 0) for values in basis] for basis in sides)
        for n, slot in enumerate(slots):
            product = vec.quanta(u[n // side], v[n % side], PRODUCT)
            b.store(vec.add_in_order(b.load(slot), product), slot)
    for first in range(0, len(slots), vec.elements):
        totals = [b.load(slot) for slot in slots[first : first + vec.elements]]
        _store_sums(vec, totals, n_rows, b.gep(sums, [number(first)]))


def _store_sums(vec: Vectors, totals: list[Any], n_rows: Any, sums: Any) -> None:
    """Emit the addition of sums over the elements of vectors of quanta to ``sums``."""
    b = vec.builder
    along = b.trunc(b.mul(n_rows, number(bits_of(PRODUCT, vec.kind))), integer_type(vec.kind))
    total = _across(vec, totals)
    total = b.sub(total, vec.spread(along, total.type))
    words = ir.VectorType(_WORD, total.type.count)
    wide = total if vec.bits == 64 else b.sext(total, words)
    total = b.add(vec.load(sums, words, 8), wide)
    b.store(total, b.bitcast(sums, words.as_pointer()), align=8)
