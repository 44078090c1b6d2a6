"""The one hot loop: exact sums of ``exp(-2 pi i t)`` over samples, for every frequency.

Phases are counted in *cycles*, ``t = (omega / 2 pi) . (x - center)``, so that the range reduction
is one subtraction of a rounded number. :mod:`dask_sketch.features.kernels.dense` is the arithmetic;
here it is compiled for one number of features and run over a block of samples. No fast-math flag is
used anywhere, and the bits do not depend on the machine: see
:mod:`dask_sketch.features.kernels.llvm_vectors`.

What a row contributes is rounded to a grid by arithmetic of that row alone, and grid numbers are
added as integers: in 32 bits for FLUSH rows, whose sums stay in the first cache, then in 64. The
sums are the same for every order of the rows and every way to cut them into blocks, and what was
added can be subtracted without a trace. That costs 3 percent at most, 5 with weights.

Errors, for ``float32``: the polynomials are exact to 1e-7 and, as rounded, a cosine or sine is
within 6e-7, at random, of which ``2**-23`` is the grid; the phase is rounded to float32 at each
addition, that is to 2**-24 of its own size, at random. A weight is rounded to the grid too. For
phases within 50 radians of the center the moments, averages over a thousand samples or more, are
within 2e-7 of float64; with fewer samples, or beyond 50 radians, the error is what that rounding
explains: up to 1e-5 for a single sample, in proportion to the phase. The kernel for ``float64`` is
the reference: 1e-13.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from zlib import crc32

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
    SQUARE,
    Vectors,
    bits_of,
    real,
    whole,
)

# The arithmetic of the inner loop: one step adds ROWS samples to the sums of one panel.
#
# A *panel* is as many frequencies as one vector has lanes. The projection keeps one vector of
# phases for each sample, so that every frequency that is loaded serves ROWS of them; cosines and
# sines follow in registers, and are added as integers
# (:mod:`dask_sketch.features.kernels.llvm_vectors`). In all, a (sample, frequency) pair costs
# ``n_features + OPERATIONS[kind]`` vector operations, counted in lanes, and two additions of
# integers, for which there are ports beside those of multiply-adds.
#
# Features are added in one order, whatever the width of the vectors and however loops are unrolled;
# samples may be in any.

ROWS = 8  # samples that share one load of the frequencies and of the sums
# of a pair after its projection: multiply(-add)s, all but two: a rounding and a subtraction
OPERATIONS = {"float32": 14, "float64": 28}
TOGETHER = 32  # features of a group: rounding grows with the number added one after the other
UNROLLED = 4  # of these, in one turn of the loop
_WORD = ir.IntType(64)


def _at(b: Any, pointer: Any, offset: Any) -> Any:
    """The pointer moved by a number of LLVM's, or of Python's: that is part of the load itself."""
    return b.gep(pointer, [_WORD(offset) if isinstance(offset, int) else offset])


def _products(vec: Vectors, n_features: int, x: Any, panel: Any, count: int) -> list[Any]:
    """``count`` features of ROWS samples, times their frequencies, one after the other."""
    b = vec.builder
    cycles = [cgutils.alloca_once(b, vec.type) for _ in range(ROWS)]  # LLVM: in registers

    def add(x: Any, panel: Any, feature: int, first: bool = False) -> None:
        frequencies = vec.load(_at(b, panel, feature * vec.lanes), vec.type, vec.bits // 8)
        for row, slot in enumerate(cycles):
            value = vec.spread(b.load(_at(b, x, row * n_features + feature)))
            if first:
                b.store(b.fmul(value, frequencies), slot)
            else:
                b.store(vec.multiply_add(value, frequencies, b.load(slot)), slot)

    add(x, panel, 0, first=True)
    looped = (count - 1) // UNROLLED * UNROLLED
    with cgutils.for_range(b, _WORD(looped // UNROLLED)) as loop:
        done = b.mul(loop.index, _WORD(UNROLLED))
        here = _at(b, x, done), _at(b, panel, b.mul(done, _WORD(vec.lanes)))
        for feature in range(1, 1 + UNROLLED):
            add(*here, feature)
    for feature in range(1 + looped, count):
        add(x, panel, feature)
    return [b.load(slot) for slot in cycles]


def _project(vec: Vectors, n_features: int, x: Any, panel: Any) -> list[Any]:
    """Phases of ROWS samples in cycles; many features are added in groups, then these."""
    b = vec.builder
    whole, rest = divmod(n_features, TOGETHER)
    if n_features <= 2 * TOGETHER:
        return _products(vec, n_features, x, panel, n_features)
    slots = [cgutils.alloca_once(b, vec.type) for _ in range(ROWS)]
    for slot, cycles in zip(slots, _products(vec, n_features, x, panel, TOGETHER), strict=True):
        b.store(cycles, slot)

    def add(done: Any, count: int) -> None:
        here = _at(b, x, done), _at(b, panel, b.mul(done, _WORD(vec.lanes)))
        for slot, cycles in zip(slots, _products(vec, n_features, *here, count), strict=True):
            b.store(b.fadd(b.load(slot), cycles), slot)

    with cgutils.for_range(b, _WORD(whole - 1)) as loop:
        add(b.mul(b.add(loop.index, _WORD(1)), _WORD(TOGETHER)), TOGETHER)
    if rest:
        add(_WORD(whole * TOGETHER), rest)
    return [b.load(slot) for slot in slots]


def add_rows(vec: Vectors, n_features: int, x: Any, panel: Any, sums: Any, weights: Any) -> None:
    """Emit one step.

    Parameters
    ----------
    vec
        Where the code shall stand, and the width of a panel.
    n_features
        Known when the code is made: addresses are then constants.
    x
        Pointer to the samples, of shape (ROWS, n_features).
    panel
        Pointer to the frequencies in cycles, of shape (n_features, lanes).
    sums
        Pointer to integers as wide as the numbers, of shape (2, lanes): sums of the steps of
        ``1 - cos`` and of ``sin``, and as often the bits of SQUARE and of PRODUCT.
    weights
        Pointer to the weights of the samples, or none.
    """
    b = vec.builder
    totals: list[Any] = []
    for row, cycles in enumerate(_project(vec, n_features, x, panel)):
        s, c = vec.half_angle(cycles)
        share = s
        if weights is not None:
            share = b.fmul(s, vec.spread(b.load(_at(b, weights, row))))
        parts = [vec.steps(share, s, SQUARE), vec.steps(share, c, PRODUCT)]
        totals = list(map(vec.add_in_order, totals, parts)) if row else parts
    for offset, total in zip((0, vec.lanes), totals, strict=True):
        place, size = _at(b, sums, offset), vec.bits // 8
        total = b.add(vec.load(place, vec.integers, size), total)
        b.store(total, b.bitcast(place, vec.integers.as_pointer()), align=size)


def module(n_features: int, kind: str, vector_bits: int, weighted: bool) -> ir.Module:
    """The step alone, as code of LLVM for any processor: one block of samples, all panels.

    Its function ``step`` takes samples, panels, sums, weights and the number of panels.
    """
    made = ir.Module("step")
    numbers, sums = real(kind).as_pointer(), whole(kind).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [numbers, numbers, sums, numbers, _WORD])
    function = ir.Function(made, signature, "step")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    vec = Vectors(b, kind, vector_bits)
    x, panels, totals, weights, count = function.args
    with cgutils.for_range(b, count) as loop:
        panel = _at(b, panels, b.mul(loop.index, _WORD(n_features * vec.lanes)))
        place = _at(b, totals, b.mul(loop.index, _WORD(2 * vec.lanes)))
        add_rows(vec, n_features, x, panel, place, weights if weighted else None)
    b.ret_void()
    return made


# rows whose sums are kept in 32 bits: a whole number of steps, at most 255
FLUSH = 255 // ROWS * ROWS
CAPACITY = {"float32": 2**40, "float64": 2**12}  # rows: a sum is at most 2**62 steps, or so
# further bits of the total weight, in which weights over 1/16 are exact: were it rounded to the
# grid, that would be the same in every row of the same weight, and not less for more rows
FINER = {"float32": 5, "float64": 0}
GROUP_BYTES = 16 * 1024  # of panels with their sums, that stay in the first cache


def vector_bits() -> int:
    """Width of a panel on this machine; it changes no bit of the sums.

    512 where there are 32 registers of that size. Else 256, one register of AVX2 and two of NEON:
    the phases of ROWS samples then fit into 16 and into 32 registers.
    """
    config: Any = numba.config
    given = config.CPU_FEATURES  # NUMBA_CPU_FEATURES, of which numba thinks as of the machine's
    features = get_host_cpu_features().flatten() if given is None else given
    return 512 if "+avx512f" in features.split(",") else 256


@intrinsic(prefer_literal=True)
def _step(typing: Any, x: Any, i: Any, w: Any, j: Any, sums: Any, k: Any, weights: Any, v: Any,
          n_features: Any, weighted: Any, lanes: Any, mark: Any) -> Any:  # fmt: skip
    """Add ROWS samples to one panel: ``x[i:]``, ``w[j:]``, ``sums[k:]``, ``weights[v:]``."""
    kind, d, use_weights = x.dtype.name, n_features.literal_value, bool(weighted.literal_value)
    bits = lanes.literal_value * x.dtype.bitwidth
    signature = types.void(
        x, i, w, j, sums, k, weights, v, n_features, weighted, lanes, mark
    )  # fmt: skip

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        def start(array: int) -> Any:
            data = context.make_array(sig.args[array])(context, b, args[array]).data
            return b.gep(data, [args[array + 1]])

        share = start(6) if use_weights else None
        add_rows(Vectors(b, kind, bits), d, start(0), start(2), start(4), share)
        return context.get_dummy_value()

    return signature, emit


def _specialised(n_features: int, dtype: str, lanes: int, weighted: int) -> Callable[..., None]:
    """The block loop for one number of features; compiled now, and cached on disk."""
    panel = n_features * lanes
    size = np.dtype(dtype).itemsize
    group = max(1, GROUP_BYTES // (size * (panel + 2 * lanes)))
    # numba looks at this file and at constants when it loads from its cache: the arithmetic is told
    # by a checksum
    mark = crc32(str(module(n_features, dtype, 8 * size * lanes, bool(weighted))).encode())

    integer = numba.from_dtype(np.dtype(dtype.replace("float", "int")))
    along = bits_of(SQUARE, dtype), bits_of(PRODUCT, dtype)  # added with the steps of every row

    def add_blocks(x, frequencies, sums, weights):  # type: ignore[no-untyped-def]
        panels = frequencies.size // panel
        rows = x.size // n_features
        short = np.zeros(2 * lanes * min(group, panels), integer)
        for first in range(0, panels, group):
            used = min(group, panels - first)
            for start in range(0, rows, FLUSH):
                stop = min(start + FLUSH, rows)
                for row in range(start, stop, ROWS):
                    for p in range(used):
                        _step(  # type: ignore[call-arg]  # numba hides the typing context
                            x, row * n_features, frequencies, (first + p) * panel, short,
                            p * 2 * lanes, weights, row, n_features, weighted, lanes, mark,
                        )  # fmt: skip
                for part in range(2 * used):
                    added = (stop - start) * along[part % 2]
                    for k in range(part * lanes, (part + 1) * lanes):
                        sums[first * 2 * lanes + k] += integer(short[k] - added)  # wraps around
                        short[k] = 0

    real = numba.from_dtype(np.dtype(dtype))
    given = types.Array(real, 1, "C", readonly=True)
    signature = types.void(given, given, types.int64[::1], given)
    compiled: Callable[..., None] = numba.njit(
        signature, nogil=True, cache=True, error_model="numpy"
    )(add_blocks)
    return compiled


class DenseKernel:
    """Sums of cosines and sines for one number of features and one precision.

    Instances come from :func:`dense_kernel`, which compiles each kind once per process.

    Attributes
    ----------
    fraction
        Sums count steps of ``2.0**-fraction``.
    capacity
        Rows that sums can take before they must be unpacked.
    """

    def __init__(self, n_features: int, dtype: str, bits: int | None = None):
        self.n_features = n_features
        self.dtype = np.dtype(dtype)
        self._finer = FINER[dtype]
        self.fraction = FRACTION[dtype] + self._finer
        self.plain_fraction = FRACTION[dtype]
        self.capacity = CAPACITY[dtype] >> self._finer
        self._lanes = (bits or vector_bits()) // (8 * self.dtype.itemsize)
        self._plain = _specialised(n_features, dtype, self._lanes, 0)
        self._weighted = _specialised(n_features, dtype, self._lanes, 1)

    def pack(self, cycles: NDArray[np.floating]) -> NDArray[np.floating]:
        """Frequencies in cycles (n_features, n_frequencies) to panels, zero-padded."""
        d, m = cycles.shape
        panels = -(-m // self._lanes)
        padded = np.zeros((d, panels * self._lanes), dtype=self.dtype)
        padded[:, :m] = cycles
        return np.ascontiguousarray(padded.reshape(d, panels, self._lanes).swapaxes(0, 1)).ravel()

    def zeros(self, packed: NDArray[np.floating]) -> NDArray[np.int64]:
        """Fresh sums for :meth:`add`: of each panel, and the total weight."""
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
            their phases must be finite: the sums do not tell.
        packed
            Frequencies from :meth:`pack`.
        sums
            Sums from :meth:`zeros`; of at most ``capacity`` rows in all.
        weights
            Weights of the samples, shape (n,), of the kernel's dtype, in [0, 1]; all one
            when not given.
        """
        flat = x.reshape(-1)
        full = len(x) // ROWS * ROWS
        run = self._plain if weights is None else self._weighted
        used = np.empty(0, dtype=self.dtype) if weights is None else weights
        run(flat[: full * self.n_features], packed, sums, used[:full])
        rest = len(x) - full
        if rest:  # the last rows stand beside empty ones, which add nothing to 1 - cos and sin
            tail = np.zeros((ROWS, self.n_features), dtype=self.dtype)
            tail[:rest] = x[full:]
            share = np.zeros(ROWS, dtype=self.dtype)
            share[: len(used[full:])] = used[full:]
            run(tail.reshape(-1), packed, sums, share)
        one = 2**self.fraction
        if weights is None:
            sums[-1] += len(x) * one
        else:  # rounded row by row, as everything
            sums[-1] += np.rint(weights.astype(np.float64) * one).astype(np.int64).sum()

    def unpack(self, sums: NDArray[np.int64], n_frequencies: int) -> NDArray[np.int64]:
        """Sums of ``exp(-2 pi i t)`` in steps, shape (2, n_frequencies): real, imaginary part."""
        panels = sums[:-1].reshape(-1, 2, self._lanes)
        versine, sine = panels[:, 0].reshape(-1), panels[:, 1].reshape(-1)
        versine, sine = (part[:n_frequencies] << self._finer for part in (versine, sine))
        return np.stack([sums[-1] - versine, -sine])


COMPILING = threading.Lock()  # of this package: one compilation for all threads that wait


@lru_cache(maxsize=64)
def _kernel(n_features: int, dtype: str) -> DenseKernel:
    return DenseKernel(n_features, dtype)


def dense_kernel(n_features: int, dtype: str = "float32") -> DenseKernel:
    """The compiled kernel for ``n_features`` features in ``"float32"`` or ``"float64"``.

    The first call in a process compiles (about a second) or loads from numba's cache on disk;
    threads that ask meanwhile wait for that one compilation.

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
    with COMPILING:
        return _kernel(n_features, dtype)
