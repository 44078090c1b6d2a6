"""Exact sums of ``exp(-2 pi i t)`` where frequencies are sums: one matrix product over samples.

For a group of base frequencies (:mod:`dask_sketch.features.sums`), the cosines and sines of every
``u`` and every ``v`` are computed once for each sample, by the polynomials of
:mod:`dask_sketch.features.vectors`; then their products are added over the samples, and from these

    cos(u +- v) = cos u cos v -+ sin u sin v,    sin(u +- v) = sin u cos v +- cos u sin v

follow at the end. A (sample, frequency) pair costs two fused multiply-adds, two additions of
integers and the fourth part of a cosine and sine, whose phase needs as many multiply-adds as a base
frequency has features.

Vectors run along the samples, so a block is transposed first. Every product is rounded to the grid
of :mod:`dask_sketch.features.vectors` and added as an integer, in 32 bits over a block and in 64
over all: the sums are the same for every order of the rows and every way to cut them into blocks.
Cosine and sine of a sum are within 1e-6 of float64, at random, and within ``2**-22`` of that by the
grid, being two products. Exact sums cost 5 percent more than float sums, 10 with weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any
from zlib import crc32

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from dask_sketch.features.kernel import CAPACITY, COMPILING, vector_bits
from dask_sketch.features.sums import SIDE, split_exactly
from dask_sketch.features.vectors import (
    FRACTION,
    PRODUCT,
    VECTOR_BITS,
    Vectors,
    bits_of,
    real,
    whole,
)

BLOCK = 256  # rows: waves of a group stay in the first cache, sums of 2**22 + 2 each in 32 bits
_AHEAD = 4  # vectors of rows whose cosines and sines are computed together
_TOGETHER = 32  # features of a base frequency that are added before they join the rest
_WAVES = 2 * SIDE  # of one side: cosine and sine of each base frequency
_WORD = ir.IntType(64)


def _number(value: int) -> Any:
    return ir.Constant(_WORD, value)


def _zeros(b: Any, kind: Any, count: int) -> list[Any]:
    """Variables of one vector each; LLVM keeps them in registers."""
    slots = [cgutils.alloca_once(b, kind) for _ in range(count)]
    for slot in slots:
        b.store(ir.Constant(kind, None), slot)
    return slots


def _start(context: Any, b: Any, sig: Any, args: Any, array: int, offset: int) -> Any:
    data = context.make_array(sig.args[array])(context, b, args[array]).data
    return b.gep(data, [args[offset]])


@intrinsic(prefer_literal=True)
def _wave(typing: Any, x: Any, i: Any, pitch: Any, base: Any, j: Any, n_used: Any, weights: Any,
          v: Any, waves: Any, k: Any, weighted: Any, mark: Any) -> Any:  # fmt: skip
    """Cosines and sines of one base frequency, for _AHEAD vectors of rows.

    ``x[i + f * pitch:]`` holds feature f of the rows, ``base[j:]`` the numbers of ``n_used``
    features and then the turns, ``weights[v:]`` the weights of the rows; cosines go to
    ``waves[k:]``, sines to ``waves[k + pitch:]``.
    """
    kind, use_weights = x.dtype.name, bool(weighted.literal_value)
    signature = types.void(x, i, pitch, base, j, n_used, weights, v, waves, k, weighted, mark)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        vec = Vectors(b, kind)
        size = vec.bits // 8
        px, pb, pv, po = (_start(context, b, sig, args, array, array + 1) for array in (0, 3, 6, 8))
        pitched, used = args[2], args[5]

        def at(pointer: Any, n: int) -> Any:
            return b.gep(pointer, [_number(n * vec.lanes)])

        totals = _zeros(b, vec.type, _AHEAD)
        with cgutils.for_range_slice(b, _number(0), used, _number(_TOGETHER)) as (first, _):
            slots = _zeros(b, vec.type, _AHEAD)
            end = b.add(first, _number(_TOGETHER))
            last = b.select(b.icmp_signed("<", end, used), end, used)
            with cgutils.for_range_slice(b, first, last, _number(1)) as (entry, _):
                feature = b.fptosi(b.load(b.gep(pb, [entry])), _WORD)
                turns = vec.spread(b.load(b.gep(pb, [b.add(used, entry)])))
                column = b.gep(px, [b.mul(feature, pitched)])
                for n, slot in enumerate(slots):
                    rows = vec.load(at(column, n), vec.type, size)
                    b.store(vec.multiply_add(turns, rows, b.load(slot)), slot)
            for slot, total in zip(slots, totals, strict=True):
                b.store(b.fadd(b.load(total), b.load(slot)), total)
        for n, total in enumerate(totals):
            share = vec.load(at(pv, n), vec.type, size) if use_weights else None
            pair = vec.cosine_sine(b.load(total), share)
            for wave, pointer in zip(pair, (po, b.gep(po, [pitched])), strict=True):
                b.store(wave, b.bitcast(at(pointer, n), vec.type.as_pointer()), align=size)
        return context.get_dummy_value()

    return signature, emit


def _exchange(vec: Vectors, one: Any, other: Any, stride: int) -> tuple[Any, Any]:
    """Two vectors, seen as rows of blocks of ``stride`` lanes, transposed two by two blocks."""
    b, mask = vec.builder, ir.VectorType(ir.IntType(32), vec.lanes)
    near = [lane + vec.lanes - stride if lane & stride else lane for lane in range(vec.lanes)]
    far = [lane + vec.lanes if lane & stride else lane + stride for lane in range(vec.lanes)]
    return (
        b.shuffle_vector(one, other, ir.Constant(mask, near)),
        b.shuffle_vector(one, other, ir.Constant(mask, far)),
    )


def _across(vec: Vectors, vectors: list[Any]) -> Any:
    """Sums over the lanes of each vector, of which there are 2, 4, ... or as many as lanes."""
    b, count, stride = vec.builder, len(vectors), vec.lanes // 2
    while stride:
        half = max(len(vectors) // 2, 1)
        pairs = zip(vectors[:half], vectors[-half:], strict=True)
        vectors = [b.add(*_exchange(vec, one, other, stride)) for one, other in pairs]
        stride //= 2
    first = [n * vec.lanes // count for n in range(count)]  # the other lanes are equal
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), count), first)
    return b.shuffle_vector(vectors[0], vectors[0], chosen)


@intrinsic
def _turn(typing: Any, x: Any, i: Any, n_features: Any, columns: Any, k: Any, pitch: Any) -> Any:
    """Write a square of lanes by lanes numbers of ``x[i:]`` to ``columns[k:]``, transposed."""
    kind = x.dtype.name
    signature = types.void(x, i, n_features, columns, k, pitch)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        vec = Vectors(b, kind)
        size = vec.bits // 8
        px, po = (_start(context, b, sig, args, array, array + 1) for array in (0, 3))
        rows = [
            vec.load(b.gep(px, [b.mul(args[2], _number(r))]), vec.type, size)
            for r in range(vec.lanes)
        ]
        stride = vec.lanes // 2
        while stride:
            for r in range(vec.lanes):
                if not r & stride:
                    pair = _exchange(vec, rows[r], rows[r + stride], stride)
                    rows[r], rows[r + stride] = pair
            stride //= 2
        for r, value in enumerate(rows):
            pointer = b.gep(po, [b.mul(args[5], _number(r))])
            b.store(value, b.bitcast(pointer, vec.type.as_pointer()), align=size)
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def _multiply(typing: Any, waves: Any, i: Any, j: Any, pitch: Any, n_rows: Any, sums: Any,
              k: Any, tile: Any, width: Any) -> Any:  # fmt: skip
    """Add the products of ``tile`` waves from ``waves[i:]`` with as many from ``waves[j:]``.

    Over ``n_rows`` rows, in vectors of ``width`` bits; ``sums[k:]`` takes them, those of the first
    wave first.
    """
    kind, side = waves.dtype.name, tile.literal_value
    bits = width.literal_value
    signature = types.void(waves, i, j, pitch, n_rows, sums, k, tile, width)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        vec = Vectors(b, kind, bits)
        size = vec.bits // 8
        ps = _start(context, b, sig, args, 5, 6)
        sides = [
            [b.gep(start, [b.mul(args[3], _number(n))]) for n in range(side)]
            for start in (
                _start(context, b, sig, args, 0, 1),
                _start(context, b, sig, args, 0, 2),
            )
        ]
        slots = _zeros(b, vec.integers, side * side)
        along = b.trunc(b.mul(args[4], _number(bits_of(PRODUCT, kind))), whole(kind))
        with cgutils.for_range_slice(b, _number(0), args[4], _number(vec.lanes)) as (row, _):
            u, v = ([vec.load(b.gep(wave, [row]), vec.type, size) for wave in one] for one in sides)
            for n, slot in enumerate(slots):
                product = vec.steps(u[n // side], v[n % side], PRODUCT)
                b.store(vec.add_in_order(b.load(slot), product), slot)
        for first in range(0, len(slots), vec.lanes):
            total = _across(vec, [b.load(slot) for slot in slots[first : first + vec.lanes]])
            total = b.sub(total, vec.spread(along, total.type))
            words = ir.VectorType(_WORD, total.type.count)
            wide = total if kind == "float64" else b.sext(total, words)
            pointer = b.gep(ps, [_number(first)])
            total = b.add(vec.load(pointer, words, 8), wide)
            b.store(total, b.bitcast(pointer, words.as_pointer()), align=8)
        return context.get_dummy_value()

    return signature, emit


def _checksum(kind: str) -> int:
    """Of the arithmetic that is not in this file, which is all that numba's cache looks at."""
    made = ir.Module("arithmetic")
    pointer = real(kind).as_pointer()
    function = ir.Function(made, ir.FunctionType(ir.VoidType(), [pointer]), "waves")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    vec = Vectors(b, kind)
    rows = vec.load(function.args[0], vec.type, vec.bits // 8)
    turns = vec.multiply_add(vec.spread(b.load(function.args[0])), rows, rows)
    vec.add_in_order(*(vec.steps(*vec.cosine_sine(turns, w), PRODUCT) for w in (None, rows)))
    return crc32(str(made).encode())


def _compiled(dtype: str, tile: int, bits: int) -> Callable[..., None]:
    """The loop over blocks and groups; compiled now, and cached on disk."""
    lanes = VECTOR_BITS // (64 if dtype == "float64" else 32)
    step = _AHEAD * lanes
    one = 2 ** FRACTION[dtype]
    mark = _checksum(dtype)

    def add_rows(x, packed, sums, weights):  # type: ignore[no-untyped-def]
        n, d = x.shape
        n_used = packed.shape[2]
        samples, bases = x.reshape(-1), packed.reshape(-1)
        width = min(BLOCK, (n + step - 1) // step * step)
        pitch = width + lanes  # not a power of two: columns do not share one place in the cache
        columns = np.zeros((d + lanes - 1) // lanes * lanes * pitch, x.dtype)
        share = np.zeros(width, x.dtype)
        waves = np.empty(2 * _WAVES * pitch, x.dtype)
        for start in range(0, n, width):
            rows = min(width, n - start)
            used = (rows + step - 1) // step * step
            # squares of lanes by lanes; they may reach over the end of a row, not of the samples
            whole = max(min(rows, n - start - (lanes + d - 1) // d) // lanes * lanes, 0)
            for r in range(0, whole, lanes):
                for f in range(0, d, lanes):
                    place = (start + r) * d + f
                    _turn(samples, place, d, columns, f * pitch + r, pitch)  # type: ignore[call-arg]
            for r in range(whole, rows):
                for f in range(d):
                    columns[f * pitch + r] = samples[(start + r) * d + f]
            for r in range(rows, used):  # empty rows: their sines are zero, and their cosines one
                for f in range(d):
                    columns[f * pitch + r] = 0.0
            if weights.size:
                for r in range(used):
                    share[r] = weights[start + r] if r < rows else 0.0
            else:
                sums[-1] += (used - rows) * one
            for group in range(packed.shape[0] // _WAVES):
                for r in range(0, used, step):
                    for base in range(_WAVES):
                        j, k = (group * _WAVES + base) * 2 * n_used, 2 * base * pitch + r
                        if base < SIDE or not weights.size:
                            _wave(columns, r, pitch, bases, j, n_used, share, r, waves, k,
                                  0, mark)  # type: ignore[call-arg]  # fmt: skip
                        else:
                            _wave(columns, r, pitch, bases, j, n_used, share, r, waves, k,
                                  1, mark)  # type: ignore[call-arg]  # fmt: skip
                for i in range(0, _WAVES, tile):
                    for j in range(0, _WAVES, tile):
                        k = (group * _WAVES + i) * _WAVES + j * tile
                        _multiply(waves, i * pitch, (_WAVES + j) * pitch, pitch, used,
                                  sums, k, tile, bits)  # type: ignore[call-arg]  # fmt: skip

    number = numba.from_dtype(np.dtype(dtype))
    given = [types.Array(number, dimensions, "C", readonly=True) for dimensions in (2, 3, 1)]
    signature = types.void(given[0], given[1], types.int64[::1], given[2])
    compiled: Callable[..., None] = numba.njit(
        signature, nogil=True, cache=True, error_model="numpy"
    )(add_rows)
    return compiled


class SumsKernel:
    """Sums of cosines and sines for frequencies in groups; used as :class:`MomentKernel` is.

    Instances come from :func:`sums_kernel`, which compiles each precision once per process.

    Attributes
    ----------
    fraction
        Sums count steps of ``2.0**-fraction``.
    capacity
        Rows that sums can take before they must be unpacked.
    """

    def __init__(self, dtype: str):
        self.dtype = np.dtype(dtype)
        self.fraction = FRACTION[dtype]
        self.capacity = CAPACITY[dtype]
        # waves of u, and of v, whose products are held in registers; it changes no bit of the sums
        bits = vector_bits()
        self._tile = 4 if bits == VECTOR_BITS else 2
        self._add = _compiled(dtype, self._tile, bits)

    def pack(self, turns: NDArray[np.floating]) -> NDArray[np.floating]:
        """Frequencies in turns (n_features, n_frequencies), of which each is a sum, to bases.

        Gives shape (n_bases, 2, n_used): the numbers of the features that a base frequency uses,
        as floats, and its turns there.

        Raises
        ------
        InputError
            If the frequencies are not sums.
        """
        bases = split_exactly(turns).reshape(-1, len(turns))
        count = np.count_nonzero(bases, axis=1)
        n_used = max(int(count.max(initial=0)), 1)
        # the features in use first, in their order
        order = np.argsort(bases == 0, axis=1, kind="stable")[:, :n_used]
        packed = np.stack([order, np.take_along_axis(bases, order, axis=1)], axis=1)
        return np.ascontiguousarray(packed, dtype=self.dtype)

    def zeros(self, packed: NDArray[np.floating]) -> NDArray[np.int64]:
        """Fresh sums for :meth:`add`: of the products of each group, and of empty rows."""
        return np.zeros(len(packed) // _WAVES * _WAVES * _WAVES + 1, dtype=np.int64)

    def add(
        self,
        x: NDArray[np.floating],
        packed: NDArray[np.floating],
        sums: NDArray[np.int64],
        weights: NDArray[np.floating] | None = None,
    ) -> None:
        """Add the samples of one block to ``sums``, in place.

        Parameters
        ----------
        x
            Centred samples, shape (n, n_features), C-contiguous, of the kernel's dtype. They and
            their phases must be finite: the sums do not tell.
        packed
            Base frequencies from :meth:`pack`.
        sums
            Sums from :meth:`zeros`; of at most ``capacity`` rows in all.
        weights
            Weights of the samples, shape (n,), of the kernel's dtype, in [0, 1]; all one
            when not given.
        """
        if len(x):
            self._add(x, packed, sums, np.empty(0, self.dtype) if weights is None else weights)

    def unpack(self, sums: NDArray[np.int64], n_frequencies: int) -> NDArray[np.int64]:
        """Sums of ``exp(-2 pi i t)`` in steps, shape (2, n_frequencies): real, imaginary part."""
        t, count = self._tile, _WAVES // self._tile
        tiles = sums[:-1].reshape(-1, count, count, t, t).swapaxes(2, 3)
        products = tiles.reshape(-1, SIDE, 2, SIDE, 2)  # of cosine and sine of u with those of v
        cosines = products[:, :, 0, :, 0] - sums[-1], products[:, :, 1, :, 1]
        sines = products[:, :, 1, :, 0], products[:, :, 0, :, 1]
        plus = cosines[0] - cosines[1], -(sines[0] + sines[1])
        minus = cosines[0] + cosines[1], sines[1] - sines[0]
        return np.stack([plus, minus], axis=-1).reshape(2, -1)[:, :n_frequencies]


@lru_cache(maxsize=2)
def _kernel(dtype: str) -> SumsKernel:
    return SumsKernel(dtype)


def sums_kernel(dtype: str = "float32") -> SumsKernel:
    """The compiled kernel for sums, in ``"float32"`` or ``"float64"``.

    The first call in a process compiles (about two seconds) or loads from numba's cache on disk;
    threads that ask meanwhile wait for that one compilation.

    Examples
    --------
    >>> kernel = sums_kernel("float64")
    >>> frequencies = kernel.pack(np.array([[0.25, -0.25], [0.0, 0.5]]))  # v = (0.25, -0.25)
    >>> sums = kernel.zeros(frequencies)
    >>> kernel.add(np.array([[1.0, 0.0], [1.0, 1.0]]), frequencies, sums)
    >>> kernel.unpack(sums, 2) * 2.0**-kernel.fraction  # -i - i, and i - i
    array([[ 0.,  0.],
           [-2.,  0.]])
    """
    with COMPILING:
        return _kernel(dtype)
