"""Exact sums of ``exp(-2 pi i t)`` over samples, for arbitrary frequencies.

Phases are counted in *cycles*, ``t = (omega / 2 pi) . (x - center)``, so that range reduction is
one subtraction of a rounded number. The inner loop is emitted here for one number of features and
run over a block of samples. No fast-math flag is used, and the bits do not depend on the machine:
see :mod:`dask_sketch.features.kernels.llvm_vectors`.

One step of the inner loop adds ROWS samples to the sums of one *tile*: as many frequencies as one
vector has elements. The projection keeps one vector of phases for each sample, so that every
frequency that is loaded serves ROWS samples; cosines and sines follow in registers, and are added
as integers. In all, a (sample, frequency) pair costs ``n_features + OPERATIONS[kind]`` operations
on vector elements, and two additions of integers, for which processors have other ports than for
multiply-adds. Features are added in one order, whatever the width of the vectors and the unrolling
of the loops; samples may come in any order.

The contribution of a row is rounded to a grid by arithmetic of that row alone, and grid numbers are
added as integers: in 32 bits for FLUSH rows, whose sums stay in the first-level cache, then in 64.
The sums are the same for every order of the rows and every division into blocks, and added rows can
be subtracted exactly. This costs at most 3 percent of the time, 5 with weights.

Errors, for ``float32``: the polynomials are exact to 1e-7 and, as rounded, a cosine or sine is
within 6e-7, at random, of which ``2**-23`` is due to the grid; the phase is rounded to float32 at
each addition, that is to 2**-24 of its own size, at random. A weight is rounded to the grid too.
For phases within 50 radians of the center the moments, averages over a thousand samples or more,
are within 2e-7 of float64; with fewer samples, or beyond 50 radians, the error is that of the
rounding of phases: up to 1e-5 for a single sample, in proportion to the phase. The kernel for
``float64`` is the reference: 1e-13.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from dask_sketch.features.kernels.llvm_vectors import (
    FRACTION,
    PRODUCT,
    SOURCE_MARK,
    SQUARE,
    Vectors,
    bits_of,
)
from dask_sketch.validation.compilation import cached_njit, compiled_once

ROWS = 8  # samples that share one load of the frequencies and of the sums
# operations on a pair after its projection: a rounding, a subtraction, and multiply(-add)s
OPERATIONS = {"float32": 14, "float64": 28}
TOGETHER = 32  # features that are added one after the other: rounding grows with their number
UNROLLED = 4  # features in one iteration of the loop
_WORD = ir.IntType(64)


def _at(b: Any, pointer: Any, offset: Any) -> Any:
    """Offset a pointer by a value of LLVM, or by an int, which becomes part of the load itself."""
    return b.gep(pointer, [_WORD(offset) if isinstance(offset, int) else offset])


def _products(vec: Vectors, n_features: int, x: Any, tile: Any, count: int) -> list[Any]:
    """Emit sums of ``count`` features of ROWS samples times their frequencies, in order."""
    b = vec.builder
    cycles = [cgutils.alloca_once(b, vec.type) for _ in range(ROWS)]  # LLVM keeps them in registers

    def add(x: Any, tile: Any, feature: int, first: bool = False) -> None:
        frequencies = vec.load(_at(b, tile, feature * vec.elements), vec.type, vec.bits // 8)
        for row, slot in enumerate(cycles):
            value = vec.spread(b.load(_at(b, x, row * n_features + feature)))
            if first:
                b.store(b.fmul(value, frequencies), slot)
            else:
                b.store(vec.multiply_add(value, frequencies, b.load(slot)), slot)

    add(x, tile, 0, first=True)
    looped = (count - 1) // UNROLLED * UNROLLED
    with cgutils.for_range(b, _WORD(looped // UNROLLED)) as loop:
        done = b.mul(loop.index, _WORD(UNROLLED))
        here = _at(b, x, done), _at(b, tile, b.mul(done, _WORD(vec.elements)))
        for feature in range(1, 1 + UNROLLED):
            add(*here, feature)
    for feature in range(1 + looped, count):
        add(x, tile, feature)
    return [b.load(slot) for slot in cycles]


def _project(vec: Vectors, n_features: int, x: Any, tile: Any) -> list[Any]:
    """Emit phases of ROWS samples in cycles; many features are added in groups of TOGETHER."""
    b = vec.builder
    whole, rest = divmod(n_features, TOGETHER)
    if n_features <= 2 * TOGETHER:
        return _products(vec, n_features, x, tile, n_features)
    slots = [cgutils.alloca_once(b, vec.type) for _ in range(ROWS)]
    for slot, cycles in zip(slots, _products(vec, n_features, x, tile, TOGETHER), strict=True):
        b.store(cycles, slot)

    def add(done: Any, count: int) -> None:
        here = _at(b, x, done), _at(b, tile, b.mul(done, _WORD(vec.elements)))
        for slot, cycles in zip(slots, _products(vec, n_features, *here, count), strict=True):
            b.store(b.fadd(b.load(slot), cycles), slot)

    with cgutils.for_range(b, _WORD(whole - 1)) as loop:
        add(b.mul(b.add(loop.index, _WORD(1)), _WORD(TOGETHER)), TOGETHER)
    if rest:
        add(_WORD(whole * TOGETHER), rest)
    return [b.load(slot) for slot in slots]


def add_rows(vec: Vectors, n_features: int, x: Any, tile: Any, sums: Any, weights: Any) -> None:
    """Emit one step of the inner loop.

    Parameters
    ----------
    vec
        Emitter, whose vectors have the width of a tile.
    n_features
        Number of features, a constant of the code, so that addresses are constants as well.
    x
        Pointer to the samples, shape (ROWS, n_features).
    tile
        Pointer to the frequencies in cycles, shape (n_features, vec.elements).
    sums
        Pointer to integers of the size of the reals, shape (2, vec.elements): sums of
        ``1 - cos`` and of ``sin`` in quanta, and for each row the bits of SQUARE and of PRODUCT.
    weights
        Pointer to the weights of the samples, or None.
    """
    b = vec.builder
    totals: list[Any] = []
    for row, cycles in enumerate(_project(vec, n_features, x, tile)):
        s, c = vec.half_angle(cycles)
        scaled = s
        if weights is not None:
            scaled = b.fmul(s, vec.spread(b.load(_at(b, weights, row))))
        parts = [vec.quanta(scaled, s, SQUARE), vec.quanta(scaled, c, PRODUCT)]
        totals = list(map(vec.add_in_order, totals, parts)) if row else parts
    for offset, total in zip((0, vec.elements), totals, strict=True):
        place, size = _at(b, sums, offset), vec.bits // 8
        total = b.add(vec.load(place, vec.integers, size), total)
        b.store(total, b.bitcast(place, vec.integers.as_pointer()), align=size)


# rows whose sums are kept in 32 bits: at most 255, a multiple of ROWS
FLUSH = 255 // ROWS * ROWS
CAPACITY = {"float32": 2**40, "float64": 2**12}  # rows: a sum is at most about 2**62 quanta
# further bits of the total weight, in which weights over 1/16 are exact: rounding to the grid would
# be the same for all rows of the same weight, and would not average out
FINER = {"float32": 5, "float64": 0}
GROUP_BYTES = 16 * 1024  # size of tiles with their sums, that stay in the first-level cache


def vector_bits() -> int:
    """Width of a tile on this machine in bits; it changes no bit of the sums.

    512 if there are 32 registers of that size. Otherwise 256, one register of AVX2 and two of NEON:
    the phases of ROWS samples then fit into 16 and 32 registers, respectively.
    """
    config: Any = numba.config
    configured = config.CPU_FEATURES  # NUMBA_CPU_FEATURES replaces the features of the machine
    features = get_host_cpu_features().flatten() if configured is None else configured
    return 512 if "+avx512f" in features.split(",") else 256


@intrinsic(prefer_literal=True)
def _step(typing: Any, x: Any, i: Any, w: Any, j: Any, sums: Any, k: Any, weights: Any, v: Any,
          n_features: Any, weighted: Any, elements: Any, mark: Any) -> Any:  # fmt: skip
    """Add ROWS samples to one tile: ``x[i:]``, ``w[j:]``, ``sums[k:]``, ``weights[v:]``."""
    kind, d, use_weights = x.dtype.name, n_features.literal_value, bool(weighted.literal_value)
    bits = elements.literal_value * x.dtype.bitwidth
    signature = types.void(
        x, i, w, j, sums, k, weights, v, n_features, weighted, elements, mark
    )  # fmt: skip

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        def start(array: int) -> Any:
            data = context.make_array(sig.args[array])(context, b, args[array]).data
            return b.gep(data, [args[array + 1]])

        row_weights = start(6) if use_weights else None
        add_rows(Vectors(b, kind, bits), d, start(0), start(2), start(4), row_weights)
        return context.get_dummy_value()

    return signature, emit


@compiled_once
def _specialised(n_features: int, dtype: str, elements: int, weighted: int) -> Callable[..., None]:
    """Compile the loop over a block for one number of features, or load it from numba's cache."""
    tile = n_features * elements
    size = np.dtype(dtype).itemsize
    group = max(1, GROUP_BYTES // (size * (tile + 2 * elements)))
    mark = SOURCE_MARK
    integer = numba.from_dtype(np.dtype(dtype.replace("float", "int")))
    along = bits_of(SQUARE, dtype), bits_of(PRODUCT, dtype)  # added with the quanta of every row

    def add_blocks(x, frequencies, sums, weights):  # type: ignore[no-untyped-def]
        tiles = frequencies.size // tile
        rows = x.size // n_features
        short = np.zeros(2 * elements * min(group, tiles), integer)
        for first in range(0, tiles, group):
            used = min(group, tiles - first)
            for start in range(0, rows, FLUSH):
                stop = min(start + FLUSH, rows)
                for row in range(start, stop, ROWS):
                    for p in range(used):
                        _step(
                            x, row * n_features, frequencies, (first + p) * tile, short,
                            p * 2 * elements, weights, row, n_features, weighted, elements, mark,
                        )  # fmt: skip
                for part in range(2 * used):
                    added = (stop - start) * along[part % 2]
                    for k in range(part * elements, (part + 1) * elements):
                        sums[first * 2 * elements + k] += integer(short[k] - added)  # wraps around
                        short[k] = 0

    real = numba.from_dtype(np.dtype(dtype))
    reals = types.Array(real, 1, "C", readonly=True)
    signature = types.void(reals, reals, types.int64[::1], reals)
    compiled: Callable[..., None] = cached_njit(signature, nogil=True, error_model="numpy")(
        add_blocks
    )
    return compiled


class DenseKernel:
    """Sums of cosines and sines for one number of features and one precision.

    Use :func:`dense_kernel`, which makes each kernel once per process. Its loops are compiled when
    rows are first added.

    Parameters
    ----------
    n_features
        Number of features.
    dtype
        Precision, ``"float32"`` or ``"float64"``.
    bits
        Width of a tile in bits; that of the machine by default. It changes no bit of the sums.

    Attributes
    ----------
    fraction
        Binary digits of the fixed-point sums: they count quanta of ``2.0**-fraction``.
    capacity
        Number of rows that sums can hold before they must be unpacked.
    elements
        Number of frequencies of one tile.
    """

    def __init__(self, n_features: int, dtype: str, bits: int | None = None):
        self.n_features = n_features
        self.dtype = np.dtype(dtype)
        self._finer = FINER[dtype]
        self.fraction = FRACTION[dtype] + self._finer
        self.plain_fraction = FRACTION[dtype]
        self.capacity = CAPACITY[dtype] >> self._finer
        self.elements = (bits or vector_bits()) // (8 * self.dtype.itemsize)

    def pack(self, cycles: NDArray[np.floating]) -> NDArray[np.floating]:
        """Arrange frequencies in cycles, shape (n_features, n_frequencies), in padded tiles."""
        d, m = cycles.shape
        tiles = -(-m // self.elements)
        padded = np.zeros((d, tiles * self.elements), dtype=self.dtype)
        padded[:, :m] = cycles
        return np.ascontiguousarray(padded.reshape(d, tiles, self.elements).swapaxes(0, 1)).ravel()

    def zeros(self, packed: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return empty sums for :meth:`add`: those of each tile, and the total weight."""
        return np.zeros(packed.size // self.n_features * 2 + 1, dtype=np.int64)

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
            their phases must be finite: this is not checked.
        packed
            Frequencies from :meth:`pack`.
        sums
            Sums from :meth:`zeros`, of at most ``capacity`` rows in total.
        weights
            Weights of the samples, shape (n,), of the kernel's dtype, in [0, 1]; all one by
            default.
        """
        flat = x.reshape(-1)
        full = len(x) // ROWS * ROWS
        weighted = int(weights is not None)
        run = _specialised(self.n_features, self.dtype.name, self.elements, weighted)
        used = np.empty(0, dtype=self.dtype) if weights is None else weights
        run(flat[: full * self.n_features], packed, sums, used[:full])
        rest = len(x) - full
        if rest:  # padded with rows of zeros, which add nothing to 1 - cos and sin
            tail = np.zeros((ROWS, self.n_features), dtype=self.dtype)
            tail[:rest] = x[full:]
            padded = np.zeros(ROWS, dtype=self.dtype)
            padded[: len(used[full:])] = used[full:]
            run(tail.reshape(-1), packed, sums, padded)
        unit = 2**self.fraction
        if weights is None:
            sums[-1] += len(x) * unit
        else:  # rounded row by row, like the features
            sums[-1] += np.rint(weights.astype(np.float64) * unit).astype(np.int64).sum()

    def unpack(self, sums: NDArray[np.int64], n_frequencies: int) -> NDArray[np.int64]:
        """Sums of ``exp(-2 pi i t)`` in quanta, shape (2, n_frequencies): real, imaginary part."""
        tiles = sums[:-1].reshape(-1, 2, self.elements)
        versine, sine = tiles[:, 0].reshape(-1), tiles[:, 1].reshape(-1)
        versine, sine = (part[:n_frequencies] << self._finer for part in (versine, sine))
        return np.stack([sums[-1] - versine, -sine])


@lru_cache(maxsize=64)
def dense_kernel(n_features: int, dtype: str = "float32") -> DenseKernel:
    """Return the kernel for a number of features and a precision.

    It compiles with the first rows in a process (half a second), or loads from numba's cache on
    disk; other threads wait for that compilation.

    Parameters
    ----------
    n_features
        Number of features.
    dtype
        Precision, ``"float32"`` or ``"float64"``.

    Examples
    --------
    >>> kernel = dense_kernel(2, "float64")
    >>> frequencies = kernel.pack(np.array([[0.25], [0.0]]))
    >>> sums = kernel.zeros(frequencies)
    >>> kernel.add(np.array([[0.0, 3.0], [1.0, 5.0]]), frequencies, sums)
    >>> real, imaginary = kernel.unpack(sums, 1) * 2.0**-kernel.fraction  # 1 + exp(-i pi / 2)
    >>> real.round(12), imaginary.round(12)
    (array([1.]), array([-1.]))
    """
    return DenseKernel(n_features, dtype)
