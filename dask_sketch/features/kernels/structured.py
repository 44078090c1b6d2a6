"""Exact sums of ``exp(-2 pi i t)`` for structured frequencies: one matrix product over samples.

For a group of base frequencies (:mod:`dask_sketch.features.kernels.structured_frequencies`), the
cosines and sines of every ``u`` and every ``v`` are computed once for each sample, by the
polynomials of :mod:`dask_sketch.features.kernels.llvm_vectors`; then their products are added over
the samples, and from these

    cos(u +- v) = cos u cos v -+ sin u sin v,    sin(u +- v) = sin u cos v +- cos u sin v

follow at the end. A (sample, frequency) pair costs two fused multiply-adds, two additions of
integers and a quarter of a cosine and sine, whose phase needs as many multiply-adds as a base
frequency has features, which are two. (Full whitening keeps this number, because it is applied to
the rows: :mod:`dask_sketch.features.kernels.whitened_rows`.)

Vectors run along the samples, so a block is transposed first
(:mod:`dask_sketch.features.kernels.structured_code`). Every product is rounded to the grid of
:mod:`dask_sketch.features.kernels.llvm_vectors` and added as an integer, in 32 bits over a block
and in 64 over all: the sums are the same for every order of the rows and every division into
blocks. In float32 and with exact phases, cosine and sine of a row are within 8e-7 of float64, at
random; this includes two roundings to the grid, of at most ``2**-23`` each except at its ends.
Exact sums cost 2 to 5 percent more time than sums of floats, 6 to 8 with weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dask_sketch.features.kernels.dense import CAPACITY, vector_bits
from dask_sketch.features.kernels.llvm_vectors import FRACTION, SOURCE_MARK, VECTOR_BITS, Vectors
from dask_sketch.features.kernels.structured_code import (
    add_products,
    put_basis,
    put_columns,
)
from dask_sketch.features.kernels.structured_frequencies import SIDE, split_exactly
from dask_sketch.validation.compilation import cached_njit, compiled_once

BLOCK = 256  # rows: basis values of a group fit the first-level cache, and their sums 32 bits
AHEAD = 4  # vectors of rows whose phases of a few features are added together
N_BASIS = 2 * SIDE  # basis functions of one side: cosine and sine of each base frequency


def pointer_at(context: Any, b: Any, sig: Any, args: Any, array: int, offset: int) -> Any:
    """Pointer to ``args[array][args[offset]:]`` in the code of an intrinsic."""
    data = context.make_array(sig.args[array])(context, b, args[array]).data
    return b.gep(data, [args[offset]])


@intrinsic(prefer_literal=True)
def make_basis(typing: Any, x: Any, i: Any, pitch: Any, base: Any, j: Any, n_used: Any,
           weights: Any, v: Any, basis: Any, k: Any, weighted: Any, count: Any, ahead: Any,
           mark: Any) -> Any:  # fmt: skip
    """Write basis values of ``count`` base frequencies at ``base[j:]`` to ``basis[k:]``.

    For ``ahead`` vectors of rows: ``x[i + f * pitch:]`` holds feature f, and ``weights[v:]`` the
    weights.
    """
    kind, use_weights = x.dtype.name, bool(weighted.literal_value)
    together = count.literal_value, ahead.literal_value
    signature = types.void(
        x, i, pitch, base, j, n_used, weights, v, basis, k, weighted, count, ahead, mark
    )  # fmt: skip

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        px, pb, pv, po = (
            pointer_at(context, b, sig, args, array, array + 1) for array in (0, 3, 6, 8)
        )
        row_weights = pv if use_weights else None
        put_basis(Vectors(b, kind), px, args[2], pb, args[5], row_weights, po, *together)
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def transpose_square(
    typing: Any, x: Any, i: Any, n_features: Any, columns: Any, k: Any, pitch: Any
) -> Any:
    """Transpose a square of numbers of ``x[i:]``, as wide as a vector, to ``columns[k:]``."""
    kind = x.dtype.name
    signature = types.void(x, i, n_features, columns, k, pitch)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        px, po = (pointer_at(context, b, sig, args, array, array + 1) for array in (0, 3))
        put_columns(Vectors(b, kind), px, args[2], po, args[5])
        return context.get_dummy_value()

    return signature, emit


@intrinsic(prefer_literal=True)
def multiply_basis(typing: Any, basis: Any, i: Any, j: Any, pitch: Any, n_rows: Any, sums: Any,
                   k: Any, tile: Any, width: Any) -> Any:  # fmt: skip
    """Add the products of ``tile`` basis functions at ``basis[i:]`` and as many at ``basis[j:]``.

    Over ``n_rows`` rows, in vectors of ``width`` bits; to ``sums[k:]``.
    """
    kind, side, bits = basis.dtype.name, tile.literal_value, width.literal_value
    signature = types.void(basis, i, j, pitch, n_rows, sums, k, tile, width)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        left, right = (pointer_at(context, b, sig, args, 0, offset) for offset in (1, 2))
        place = pointer_at(context, b, sig, args, 5, 6)
        add_products(Vectors(b, kind, bits), left, right, args[3], args[4], place, side)
        return context.get_dummy_value()

    return signature, emit


@compiled_once
def _compiled(dtype: str, tile: int, bits: int) -> Callable[..., None]:
    """Compile the loop over blocks and groups, or load it from numba's cache."""
    elements = VECTOR_BITS // (64 if dtype == "float64" else 32)
    step = AHEAD * elements
    unit = 2 ** FRACTION[dtype]
    mark = SOURCE_MARK

    def add_rows(x, packed, sums, weights):  # type: ignore[no-untyped-def]
        n, d = x.shape
        n_used = packed.shape[2]
        samples, bases = x.reshape(-1), packed.reshape(-1)
        width = min(BLOCK, (n + step - 1) // step * step)
        pitch = width + elements  # not a power of two, so that columns lie in different cache sets
        columns = np.zeros((d + elements - 1) // elements * elements * pitch, x.dtype)
        padded = np.zeros(width, x.dtype)
        basis = np.empty(2 * N_BASIS * pitch, x.dtype)
        for start in range(0, n, width):
            rows = min(width, n - start)
            used = (rows + step - 1) // step * step
            # squares as wide as a vector, which may extend beyond a row, but not beyond the samples
            whole = max(min(rows, n - start - (elements + d - 1) // d) // elements * elements, 0)
            for r in range(0, whole, elements):
                for f in range(0, d, elements):
                    place = (start + r) * d + f
                    transpose_square(samples, place, d, columns, f * pitch + r, pitch)
            for r in range(whole, rows):
                for f in range(d):
                    columns[f * pitch + r] = samples[(start + r) * d + f]
            for r in range(rows, used):  # rows of padding, whose sines are zero and cosines one
                for f in range(d):
                    columns[f * pitch + r] = 0.0
            if weights.size:
                for r in range(used):
                    padded[r] = weights[start + r] if r < rows else 0.0
            else:
                sums[-1] += (used - rows) * unit
            for group in range(packed.shape[0] // N_BASIS):
                count, ahead = (tile, tile) if n_used == d else (1, AHEAD)
                for r in range(0, used, ahead * elements):
                    for base in range(0, N_BASIS, count):
                        j, k = (group * N_BASIS + base) * 2 * n_used, 2 * base * pitch + r
                        weighted = weights.size and base >= SIDE
                        if n_used < d and weighted:
                            make_basis(columns, r, pitch, bases, j, n_used, padded, r, basis, k,
                                   1, 1, AHEAD, mark)  # fmt: skip
                        elif n_used < d:
                            make_basis(columns, r, pitch, bases, j, n_used, padded, r, basis, k,
                                   0, 1, AHEAD, mark)  # fmt: skip
                        elif weighted:
                            make_basis(columns, r, pitch, bases, j, n_used, padded, r, basis, k,
                                   1, tile, tile, mark)  # fmt: skip
                        else:
                            make_basis(columns, r, pitch, bases, j, n_used, padded, r, basis, k,
                                   0, tile, tile, mark)  # fmt: skip
                for i in range(0, N_BASIS, tile):
                    for j in range(0, N_BASIS, tile):
                        k = (group * N_BASIS + i) * N_BASIS + j * tile
                        multiply_basis(basis, i * pitch, (N_BASIS + j) * pitch, pitch, used,
                                       sums, k, tile, bits)  # fmt: skip

    scalar = numba.from_dtype(np.dtype(dtype))
    reals = [types.Array(scalar, dimensions, "C", readonly=True) for dimensions in (2, 3, 1)]
    signature = types.void(reals[0], reals[1], types.int64[::1], reals[2])
    compiled: Callable[..., None] = cached_njit(signature, nogil=True, error_model="numpy")(
        add_rows
    )
    return compiled


class StructuredKernel:
    """Sums of cosines and sines for structured frequencies, with the methods of a DenseKernel.

    Use :func:`structured_kernel`, which makes each precision once per process. Its loop is compiled
    when rows are first added.

    Parameters
    ----------
    dtype
        Precision, ``"float32"`` or ``"float64"``.
    bits
        Width of the vectors in bits; that of the machine by default. It changes no bit of the
        sums.

    Attributes
    ----------
    fraction
        Binary digits of the fixed-point sums: they count quanta of ``2.0**-fraction``.
    capacity
        Number of rows that sums can hold before they must be unpacked.
    bits
        Width of the vectors in bits.
    tile
        Number of basis functions of each side whose products are held in registers.
    """

    def __init__(self, dtype: str, bits: int | None = None):
        self.dtype = np.dtype(dtype)
        self.fraction = self.plain_fraction = FRACTION[dtype]
        self.capacity = CAPACITY[dtype]
        # basis functions of u, and of v, whose products are held in registers; also base
        # frequencies and vectors of rows, if they use all features
        self.bits = bits or vector_bits()
        self.tile = 4 if self.bits == VECTOR_BITS else 2

    def pack(self, cycles: NDArray[np.floating]) -> NDArray[np.floating]:
        """Split structured frequencies into base frequencies.

        Parameters
        ----------
        cycles
            Frequencies in cycles, shape (n_features, n_frequencies).

        Returns
        -------
        packed
            Shape (n_bases, 2, n_used): the numbers of the features that a base frequency uses, as
            floats, and its frequencies there.

        Raises
        ------
        InputError
            If the frequencies are not sums of base frequencies.
        """
        bases = split_exactly(cycles).reshape(-1, len(cycles))
        count = np.count_nonzero(bases, axis=1)
        n_used = max(int(count.max(initial=0)), 1)
        # features in use first, in their order; or all features, in the same order for all bases
        unused = bases == 0 if n_used < len(cycles) else np.zeros(bases.shape, dtype=bool)
        order = np.argsort(unused, axis=1, kind="stable")[:, :n_used]
        packed = np.stack([order, np.take_along_axis(bases, order, axis=1)], axis=1)
        return np.ascontiguousarray(packed, dtype=self.dtype)

    def zeros(self, packed: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return empty sums for :meth:`add`: the products of each group, and rows of padding."""
        return np.zeros(len(packed) // N_BASIS * N_BASIS * N_BASIS + 1, dtype=np.int64)

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
            Base frequencies from :meth:`pack`.
        sums
            Sums from :meth:`zeros`, of at most ``capacity`` rows in total.
        weights
            Weights of the samples, shape (n,), of the kernel's dtype, in [0, 1]; all one by
            default.
        """
        if len(x):
            row_weights = np.empty(0, self.dtype) if weights is None else weights
            _compiled(self.dtype.name, self.tile, self.bits)(x, packed, sums, row_weights)

    def unpack(self, sums: NDArray[np.int64], n_frequencies: int) -> NDArray[np.int64]:
        """Sums of ``exp(-2 pi i t)`` in quanta, shape (2, n_frequencies): real, imaginary part."""
        t, count = self.tile, N_BASIS // self.tile
        tiles = sums[:-1].reshape(-1, count, count, t, t).swapaxes(2, 3)
        # products of cosine and sine of u with those of v
        products = tiles.reshape(-1, SIDE, 2, SIDE, 2)
        cosines = products[:, :, 0, :, 0] - sums[-1], products[:, :, 1, :, 1]
        sines = products[:, :, 1, :, 0], products[:, :, 0, :, 1]
        plus = cosines[0] - cosines[1], -(sines[0] + sines[1])
        minus = cosines[0] + cosines[1], sines[1] - sines[0]
        return np.stack([plus, minus], axis=-1).reshape(2, -1)[:, :n_frequencies]


@lru_cache(maxsize=2)
def structured_kernel(dtype: str = "float32") -> StructuredKernel:
    """Return the kernel of a precision, ``"float32"`` or ``"float64"``.

    It compiles with the first rows in a process (about two seconds), or loads from numba's cache on
    disk; other threads wait for that compilation.

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
    return StructuredKernel(dtype)
