"""Exact sums of ``exp(-2 pi i t)`` where frequencies are sums: one matrix product over samples.

For a group of base frequencies (:mod:`dask_sketch.features.kernels.structured_frequencies`), the
cosines and sines of every ``u`` and every ``v`` are computed once for each sample, by the
polynomials of :mod:`dask_sketch.features.kernels.llvm_vectors`; then their products are added over
the samples, and from these

    cos(u +- v) = cos u cos v -+ sin u sin v,    sin(u +- v) = sin u cos v +- cos u sin v

follow at the end. A (sample, frequency) pair costs two fused multiply-adds, two additions of
integers and the fourth part of a cosine and sine, whose phase needs as many multiply-adds as a base
frequency has features, which are two. (Full whitening keeps it so: it is done to the rows,
:mod:`dask_sketch.features.kernels.whitened_rows`.)

Vectors run along the samples, so a block is transposed first
(:mod:`dask_sketch.features.kernels.structured_code`). Every product is rounded to the grid of
:mod:`dask_sketch.features.kernels.llvm_vectors` and added as an integer, in 32 bits over a block
and in 64 over all: the sums are the same for every order of the rows and every way to cut them into
blocks. In float32 and with exact phases, cosine and sine of a row are within 8e-7 of float64, at
random; two roundings to the grid, of ``2**-23`` at most each but at its ends, are in this. That
costs 2 to 5 percent more than float sums did, 6 to 8 with weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any
from zlib import crc32

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dask_sketch.features.kernels.dense import CAPACITY, COMPILING, vector_bits
from dask_sketch.features.kernels.llvm_vectors import FRACTION, VECTOR_BITS, Vectors
from dask_sketch.features.kernels.structured_code import (
    add_products,
    module,
    put_columns,
    put_waves,
)
from dask_sketch.features.kernels.structured_frequencies import SIDE, split_exactly

BLOCK = 256  # rows: waves of a group stay in the first cache, sums of 2**22 + 2 each in 32 bits
AHEAD = 4  # vectors of rows whose phases of a few features are added together
WAVES = 2 * SIDE  # of one side: cosine and sine of each base frequency


def pointer_at(context: Any, b: Any, sig: Any, args: Any, array: int, offset: int) -> Any:
    """Where ``args[array][args[offset]:]`` lies, for the code of an intrinsic."""
    data = context.make_array(sig.args[array])(context, b, args[array]).data
    return b.gep(data, [args[offset]])


@intrinsic(prefer_literal=True)
def make_waves(typing: Any, x: Any, i: Any, pitch: Any, base: Any, j: Any, n_used: Any,
           weights: Any, v: Any, waves: Any, k: Any, weighted: Any, count: Any, ahead: Any,
           mark: Any) -> Any:  # fmt: skip
    """Waves of ``count`` base frequencies at ``base[j:]``, to ``waves[k:]``.

    For ``ahead`` vectors of rows: ``x[i + f * pitch:]`` holds feature f, ``weights[v:]`` the
    weights.
    """
    kind, use_weights = x.dtype.name, bool(weighted.literal_value)
    together = count.literal_value, ahead.literal_value
    signature = types.void(
        x, i, pitch, base, j, n_used, weights, v, waves, k, weighted, count, ahead, mark
    )  # fmt: skip

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        px, pb, pv, po = (
            pointer_at(context, b, sig, args, array, array + 1) for array in (0, 3, 6, 8)
        )
        share = pv if use_weights else None
        put_waves(Vectors(b, kind), px, args[2], pb, args[5], share, po, *together)
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def cycle_square(
    typing: Any, x: Any, i: Any, n_features: Any, columns: Any, k: Any, pitch: Any
) -> Any:
    """Write a square of lanes by lanes numbers of ``x[i:]`` to ``columns[k:]``, transposed."""
    kind = x.dtype.name
    signature = types.void(x, i, n_features, columns, k, pitch)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        px, po = (pointer_at(context, b, sig, args, array, array + 1) for array in (0, 3))
        put_columns(Vectors(b, kind), px, args[2], po, args[5])
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def _multiply(typing: Any, waves: Any, i: Any, j: Any, pitch: Any, n_rows: Any, sums: Any,
              k: Any, tile: Any, width: Any) -> Any:  # fmt: skip
    """Add the products of ``tile`` waves from ``waves[i:]`` with as many from ``waves[j:]``.

    Over ``n_rows`` rows, in vectors of ``width`` bits; ``sums[k:]`` takes them.
    """
    kind, side, bits = waves.dtype.name, tile.literal_value, width.literal_value
    signature = types.void(waves, i, j, pitch, n_rows, sums, k, tile, width)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        one, other = (pointer_at(context, b, sig, args, 0, offset) for offset in (1, 2))
        place = pointer_at(context, b, sig, args, 5, 6)
        add_products(Vectors(b, kind, bits), one, other, args[3], args[4], place, side)
        return context.get_dummy_value()

    return signature, emit


def _compiled(dtype: str, tile: int, bits: int) -> Callable[..., None]:
    """The loop over blocks and groups; compiled now, and cached on disk."""
    lanes = VECTOR_BITS // (64 if dtype == "float64" else 32)
    step = AHEAD * lanes
    one = 2 ** FRACTION[dtype]
    # numba looks at this file and at constants when it loads from its cache: the arithmetic is told
    # by a checksum
    mark = crc32(str(module(dtype, bits, tile, weighted=True)).encode())

    def add_rows(x, packed, sums, weights):  # type: ignore[no-untyped-def]
        n, d = x.shape
        n_used = packed.shape[2]
        samples, bases = x.reshape(-1), packed.reshape(-1)
        width = min(BLOCK, (n + step - 1) // step * step)
        pitch = width + lanes  # not a power of two: columns do not share one place in the cache
        columns = np.zeros((d + lanes - 1) // lanes * lanes * pitch, x.dtype)
        share = np.zeros(width, x.dtype)
        waves = np.empty(2 * WAVES * pitch, x.dtype)
        for start in range(0, n, width):
            rows = min(width, n - start)
            used = (rows + step - 1) // step * step
            # squares of lanes by lanes; they may reach over the end of a row, not of the samples
            whole = max(min(rows, n - start - (lanes + d - 1) // d) // lanes * lanes, 0)
            for r in range(0, whole, lanes):
                for f in range(0, d, lanes):
                    place = (start + r) * d + f
                    cycle_square(samples, place, d, columns, f * pitch + r, pitch)  # type: ignore[call-arg]
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
            for group in range(packed.shape[0] // WAVES):
                count, ahead = (tile, tile) if n_used == d else (1, AHEAD)
                for r in range(0, used, ahead * lanes):
                    for base in range(0, WAVES, count):
                        j, k = (group * WAVES + base) * 2 * n_used, 2 * base * pitch + r
                        weighted = weights.size and base >= SIDE
                        if n_used < d and weighted:
                            make_waves(columns, r, pitch, bases, j, n_used, share, r, waves, k,
                                   1, 1, AHEAD, mark)  # type: ignore[call-arg]  # fmt: skip
                        elif n_used < d:
                            make_waves(columns, r, pitch, bases, j, n_used, share, r, waves, k,
                                   0, 1, AHEAD, mark)  # type: ignore[call-arg]  # fmt: skip
                        elif weighted:
                            make_waves(columns, r, pitch, bases, j, n_used, share, r, waves, k,
                                   1, tile, tile, mark)  # type: ignore[call-arg]  # fmt: skip
                        else:
                            make_waves(columns, r, pitch, bases, j, n_used, share, r, waves, k,
                                   0, tile, tile, mark)  # type: ignore[call-arg]  # fmt: skip
                for i in range(0, WAVES, tile):
                    for j in range(0, WAVES, tile):
                        k = (group * WAVES + i) * WAVES + j * tile
                        _multiply(waves, i * pitch, (WAVES + j) * pitch, pitch, used,
                                  sums, k, tile, bits)  # type: ignore[call-arg]  # fmt: skip

    scalar = numba.from_dtype(np.dtype(dtype))
    given = [types.Array(scalar, dimensions, "C", readonly=True) for dimensions in (2, 3, 1)]
    signature = types.void(given[0], given[1], types.int64[::1], given[2])
    compiled: Callable[..., None] = numba.njit(
        signature, nogil=True, cache=True, error_model="numpy"
    )(add_rows)
    return compiled


class StructuredKernel:
    """Sums of cosines and sines for frequencies in groups; used as :class:`DenseKernel` is.

    Instances come from :func:`structured_kernel`, which compiles each precision once per process.

    Attributes
    ----------
    fraction
        Sums count steps of ``2.0**-fraction``.
    capacity
        Rows that sums can take before they must be unpacked.
    """

    def __init__(self, dtype: str, bits: int | None = None):
        self.dtype = np.dtype(dtype)
        self.fraction = self.plain_fraction = FRACTION[dtype]
        self.capacity = CAPACITY[dtype]
        # waves of u, and of v, whose products are held in registers, as base frequencies and
        # vectors of rows are where all features are used; it changes no bit of the sums
        bits = bits or vector_bits()
        self._tile = 4 if bits == VECTOR_BITS else 2
        self._add = _compiled(dtype, self._tile, bits)

    def pack(self, cycles: NDArray[np.floating]) -> NDArray[np.floating]:
        """Frequencies in cycles (n_features, n_frequencies), of which each is a sum, to bases.

        Gives shape (n_bases, 2, n_used): the numbers of the features that a base frequency uses,
        as floats, and its cycles there.

        Raises
        ------
        InputError
            If the frequencies are not sums.
        """
        bases = split_exactly(cycles).reshape(-1, len(cycles))
        count = np.count_nonzero(bases, axis=1)
        n_used = max(int(count.max(initial=0)), 1)
        # the features in use first, in their order; or all of them, in the same order for all
        unused = bases == 0 if n_used < len(cycles) else np.zeros(bases.shape, dtype=bool)
        order = np.argsort(unused, axis=1, kind="stable")[:, :n_used]
        packed = np.stack([order, np.take_along_axis(bases, order, axis=1)], axis=1)
        return np.ascontiguousarray(packed, dtype=self.dtype)

    def zeros(self, packed: NDArray[np.floating]) -> NDArray[np.int64]:
        """Fresh sums for :meth:`add`: of the products of each group, and of empty rows."""
        return np.zeros(len(packed) // WAVES * WAVES * WAVES + 1, dtype=np.int64)

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
        t, count = self._tile, WAVES // self._tile
        tiles = sums[:-1].reshape(-1, count, count, t, t).swapaxes(2, 3)
        products = tiles.reshape(-1, SIDE, 2, SIDE, 2)  # of cosine and sine of u with those of v
        cosines = products[:, :, 0, :, 0] - sums[-1], products[:, :, 1, :, 1]
        sines = products[:, :, 1, :, 0], products[:, :, 0, :, 1]
        plus = cosines[0] - cosines[1], -(sines[0] + sines[1])
        minus = cosines[0] + cosines[1], sines[1] - sines[0]
        return np.stack([plus, minus], axis=-1).reshape(2, -1)[:, :n_frequencies]


@lru_cache(maxsize=2)
def _kernel(dtype: str) -> StructuredKernel:
    return StructuredKernel(dtype)


def structured_kernel(dtype: str = "float32") -> StructuredKernel:
    """The compiled kernel for sums, in ``"float32"`` or ``"float64"``.

    The first call in a process compiles (about two seconds) or loads from numba's cache on disk;
    threads that ask meanwhile wait for that one compilation.

    Examples
    --------
    >>> kernel = structured_kernel("float64")
    >>> frequencies = kernel.pack(np.array([[0.25, -0.25], [0.0, 0.5]]))  # v = (0.25, -0.25)
    >>> sums = kernel.zeros(frequencies)
    >>> kernel.add(np.array([[1.0, 0.0], [1.0, 1.0]]), frequencies, sums)
    >>> kernel.unpack(sums, 2) * 2.0**-kernel.fraction  # -i - i, and i - i
    array([[ 0.,  0.],
           [-2.,  0.]])
    """
    with COMPILING:
        return _kernel(dtype)
