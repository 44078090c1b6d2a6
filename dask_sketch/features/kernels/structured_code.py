"""The arithmetic of sums of frequencies: waves of base frequencies, and sums of their products.

A *wave* is the cosine or the sine of one base frequency's phase, along the rows of a block.
Vectors run along the rows too: samples are columns here, each of a feature, ``pitch`` numbers from
one to the next, and so are waves.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from dask_sketch.features.kernels.llvm_vectors import PRODUCT, Vectors, bits_of, real, whole

TOGETHER = 32  # features of a base frequency that are added before they join the rest
_WORD = ir.IntType(64)


def number(value: int) -> Any:
    """A whole number of 64 bits."""
    return ir.Constant(_WORD, value)


def zeros(b: Any, kind: Any, count: int) -> list[Any]:
    """Variables of one vector each; LLVM keeps them in registers."""
    slots = [cgutils.alloca_once(b, kind) for _ in range(count)]
    for slot in slots:
        b.store(ir.Constant(kind, None), slot)
    return slots


def exchange(vec: Vectors, one: Any, other: Any, stride: int) -> tuple[Any, Any]:
    """Two vectors, seen as rows of blocks of ``stride`` lanes, transposed two by two blocks."""
    b, mask = vec.builder, ir.VectorType(ir.IntType(32), vec.lanes)
    near = [lane + vec.lanes - stride if lane & stride else lane for lane in range(vec.lanes)]
    far = [lane + vec.lanes if lane & stride else lane + stride for lane in range(vec.lanes)]
    return (
        b.shuffle_vector(one, other, ir.Constant(mask, near)),
        b.shuffle_vector(one, other, ir.Constant(mask, far)),
    )


def put_columns(vec: Vectors, x: Any, n_features: Any, columns: Any, pitch: Any) -> None:
    """Emit a transposition: of as many rows and features as lanes, from ``x`` to ``columns``."""
    b, stride = vec.builder, vec.lanes // 2
    rows = [vec.part(b.gep(x, [b.mul(n_features, number(r))]), 0) for r in range(vec.lanes)]
    while stride:
        for r in range(vec.lanes):
            if not r & stride:
                rows[r], rows[r + stride] = exchange(vec, rows[r], rows[r + stride], stride)
        stride //= 2
    for r, value in enumerate(rows):
        vec.put(value, b.gep(columns, [b.mul(pitch, number(r))]))


def _across(vec: Vectors, vectors: list[Any]) -> Any:
    """Sums over the lanes of integers in each vector, of which there are 2, 4, ... or as lanes."""
    b, count, stride = vec.builder, len(vectors), vec.lanes // 2
    while stride:
        half = max(len(vectors) // 2, 1)
        pairs = zip(vectors[:half], vectors[-half:], strict=True)
        vectors = [b.add(*exchange(vec, one, other, stride)) for one, other in pairs]
        stride //= 2
    first = [n * vec.lanes // count for n in range(count)]  # the other lanes are equal
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), count), first)
    return b.shuffle_vector(vectors[0], vectors[0], chosen)


def _phases(
    vec: Vectors, x: Any, pitch: Any, bases: Any, n_used: Any, count: int, ahead: int
) -> list[Any]:
    """Phases in cycles: those of the first base frequency, one for each vector of rows, first."""
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
                turn = vec.spread(b.load(b.gep(cycles[m // ahead], [entry])))
                b.store(vec.multiply_add(turn, rows[m % ahead], b.load(slot)), slot)
        for slot, total in zip(slots, totals, strict=True):
            b.store(b.fadd(b.load(total), b.load(slot)), total)
    return [b.load(total) for total in totals]


def put_waves(
    vec: Vectors,
    x: Any,
    pitch: Any,
    bases: Any,
    n_used: Any,
    weights: Any,
    waves: Any,
    count: int,
    ahead: int,
) -> None:
    """Emit cosines and sines of base frequencies, for a few vectors of rows.

    Parameters
    ----------
    vec
        Where the code shall stand.
    x
        Pointer to the rows in the column of the first feature.
    pitch
        From column to column, and from wave to wave.
    bases
        Pointer to ``count`` base frequencies that use the same features: of each the numbers of
        ``n_used`` features, then the cycles.
    n_used
        Number of features.
    weights
        Pointer to the weights of the rows, or none.
    waves
        Pointer to the rows in the first wave: they are cosine, sine, cosine, ...
    count
        Number of base frequencies: what is loaded of the rows serves all of them.
    ahead
        Number of vectors of rows: what is loaded of base frequencies serves all of them.
    """
    b = vec.builder
    for m, cycles in enumerate(_phases(vec, x, pitch, bases, n_used, count, ahead)):
        base, n = divmod(m, ahead)
        share = None if weights is None else vec.part(weights, n)
        for k, wave in enumerate(vec.cosine_sine(cycles, share)):
            place = b.gep(waves, [b.mul(pitch, number(2 * base + k))])
            vec.put(wave, b.gep(place, [number(n * vec.lanes)]))


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
        Where the code shall stand.
    x, out
        Pointers to the rows in the column of the first feature, and of the first combination.
    pitch
        From column to column.
    matrix
        Pointer to ``count`` lines: of each the numbers of the features, then what they count.
    n_features
        Number of features.
    count, ahead
        How many.
    """
    b = vec.builder
    for m, total in enumerate(_phases(vec, x, pitch, matrix, n_features, count, ahead)):
        column, n = divmod(m, ahead)
        place = b.gep(out, [b.mul(pitch, number(column))])
        vec.put(total, b.gep(place, [number(n * vec.lanes)]))


def add_products(
    vec: Vectors, one: Any, other: Any, pitch: Any, n_rows: Any, sums: Any, side: int
) -> None:
    """Emit sums of the products of ``side`` waves with as many others.

    Parameters
    ----------
    vec
        Where the code shall stand, and the width of its vectors.
    one, other
        Pointers to the first wave of each side.
    pitch
        From wave to wave.
    n_rows
        Number of rows, that fill whole vectors; at most 511, as the sums have 32 bits.
    sums
        Pointer to ``side**2`` integers of 64 bits that the steps of the products are added to,
        those of the first wave of ``one`` first.
    side
        As many as registers hold the sums of.
    """
    b = vec.builder
    sides = [
        [b.gep(start, [b.mul(pitch, number(n))]) for n in range(side)] for start in (one, other)
    ]
    slots = zeros(b, vec.integers, side * side)
    with cgutils.for_range_slice(b, number(0), n_rows, number(vec.lanes)) as (row, _):
        u, v = ([vec.part(b.gep(wave, [row]), 0) for wave in waves] for waves in sides)
        for n, slot in enumerate(slots):
            product = vec.steps(u[n // side], v[n % side], PRODUCT)
            b.store(vec.add_in_order(b.load(slot), product), slot)
    along = b.trunc(b.mul(n_rows, number(bits_of(PRODUCT, vec.kind))), whole(vec.kind))
    for first in range(0, len(slots), vec.lanes):
        total = _across(vec, [b.load(slot) for slot in slots[first : first + vec.lanes]])
        total = b.sub(total, vec.spread(along, total.type))
        words = ir.VectorType(_WORD, total.type.count)
        wide = total if vec.bits == 64 else b.sext(total, words)
        place = b.gep(sums, [number(first)])
        total = b.add(vec.load(place, words, 8), wide)
        b.store(total, b.bitcast(place, words.as_pointer()), align=8)


def products_module(kind: str, side: int) -> ir.Module:
    """The arithmetic of :func:`put_products` alone, as code of LLVM for any processor."""
    made = ir.Module("products")
    numbers = real(kind).as_pointer()
    given = [numbers, _WORD, numbers, _WORD, numbers]
    function = ir.Function(made, ir.FunctionType(ir.VoidType(), given), "products")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    x, pitch, matrix, n_features, out = function.args
    put_products(Vectors(b, kind), x, pitch, matrix, n_features, out, side, side)
    b.ret_void()
    return made


def module(kind: str, vector_bits: int, tile: int, weighted: bool) -> ir.Module:
    """The arithmetic alone, as code of LLVM for any processor.

    Its functions are ``columns`` of rows, ``few`` (waves of a base frequency of few features),
    ``many`` (of ``tile`` that use all) and ``products``.
    """
    made = ir.Module("waves")
    numbers, sums = real(kind).as_pointer(), _WORD.as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [numbers, _WORD, numbers, _WORD])
    function = ir.Function(made, signature, "columns")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    x, n_features, columns, pitch = function.args
    put_columns(Vectors(b, kind), x, n_features, columns, pitch)
    b.ret_void()
    for name, count, ahead in (("few", 1, 4), ("many", tile, tile)):
        given = [numbers, _WORD, numbers, _WORD, numbers, numbers]
        function = ir.Function(made, ir.FunctionType(ir.VoidType(), given), name)
        b = ir.IRBuilder(function.append_basic_block("entry"))
        x, pitch, bases, n_used, weights, waves = function.args
        share = weights if weighted else None
        put_waves(Vectors(b, kind), x, pitch, bases, n_used, share, waves, count, ahead)
        b.ret_void()
    signature = ir.FunctionType(ir.VoidType(), [numbers, numbers, _WORD, _WORD, sums])
    function = ir.Function(made, signature, "products")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    one, other, pitch, n_rows, place = function.args
    add_products(Vectors(b, kind, vector_bits), one, other, pitch, n_rows, place, tile)
    b.ret_void()
    return made
