"""Whiten rows before their phases are computed, each by arithmetic of that row alone.

The matrix product of a library is not suitable: its order of additions depends on the number of
rows, and with it the last bits of a sketch would. Vectors run along the rows here, as in
:mod:`dask_sketch.features.kernels.structured`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dask_sketch.features.kernels.llvm_vectors import SOURCE_MARK, VECTOR_BITS, Vectors
from dask_sketch.features.kernels.structured import pointer_at, transpose_square
from dask_sketch.features.kernels.structured_code import put_products
from dask_sketch.validation.compilation import cached_njit, compiled_once

BLOCK = 128  # rows, whose columns stay in the first-level cache
TOGETHER = 4  # new features, and vectors of rows, whose products are held in registers


@intrinsic
def mix_columns(typing: Any, columns: Any, i: Any, pitch: Any, matrix: Any, j: Any, n_features: Any,
         out: Any, k: Any, mark: Any) -> Any:  # fmt: skip
    """Write TOGETHER new features, by rows of ``matrix[j:]``, for as many vectors of rows."""
    kind = columns.dtype.name
    signature = types.void(columns, i, pitch, matrix, j, n_features, out, k, mark)

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        px, pm, po = (pointer_at(context, b, sig, args, array, array + 1) for array in (0, 3, 6))
        put_products(Vectors(b, kind), px, args[2], pm, args[5], po, TOGETHER, TOGETHER)
        return context.get_dummy_value()

    return signature, emit


@compiled_once
def _whitener(dtype: str) -> Callable[..., None]:
    """Compile the loop for one precision, or load it from numba's cache."""
    elements = VECTOR_BITS // (64 if dtype == "float64" else 32)
    pitch = BLOCK + elements  # not a power of two, so that columns lie in different cache sets
    mark = SOURCE_MARK

    def whiten(rows, matrix, out):  # type: ignore[no-untyped-def]
        n, d = rows.shape
        samples, mixed = rows.reshape(-1), matrix.reshape(-1)
        columns = np.zeros((d + elements - 1) // elements * elements * pitch, rows.dtype)
        new = np.empty(matrix.shape[0] * pitch, rows.dtype)
        for start in range(0, n, BLOCK):
            used = min(BLOCK, n - start)
            # squares as wide as a vector, which may extend beyond a row, but not beyond the samples
            whole = max(min(used, n - start - (elements + d - 1) // d) // elements * elements, 0)
            for r in range(0, whole, elements):
                for f in range(0, d, elements):
                    place = (start + r) * d + f
                    transpose_square(samples, place, d, columns, f * pitch + r, pitch)
            for r in range(whole, used):
                for f in range(d):
                    columns[f * pitch + r] = samples[(start + r) * d + f]
            for g in range(0, matrix.shape[0], TOGETHER):
                for r in range(0, used, TOGETHER * elements):
                    mix_columns(columns, r, pitch, mixed, g * 2 * d, d, new, g * pitch + r, mark)
            for r in range(used):
                for g in range(d):
                    out[start + r, g] = new[g * pitch + r]

    real = numba.from_dtype(np.dtype(dtype))
    reals = [types.Array(real, dimensions, "C", readonly=True) for dimensions in (2, 3)]
    compiled: Callable[..., None] = cached_njit(
        types.void(*reals, real[:, ::1]), nogil=True, error_model="numpy"
    )(whiten)
    return compiled


class RowWhitener:
    """Multiplication of rows by a matrix, in the precision of a kernel.

    Parameters
    ----------
    matrix
        Whitening matrix ``L``, shape (n_features, n_features).
    dtype
        Precision of the rows, ``"float32"`` or ``"float64"``.

    Attributes
    ----------
    matrix
        Packed rows of the matrix: for each, the numbers of the features, then the coefficients.

    Examples
    --------
    >>> whiten = RowWhitener(np.array([[1.0, 1.0], [0.0, 3.0]]), "float32")
    >>> whiten(np.array([[1.0, 2.0]], np.float32))
    array([[3., 6.]], dtype=float32)
    """

    def __init__(self, matrix: NDArray[np.float64], dtype: str):
        d = len(matrix)
        # packed like base frequencies: the features of each new feature, and their coefficients
        self.matrix = np.zeros((-(-d // TOGETHER) * TOGETHER, 2, d), dtype)
        self.matrix[:, 0], self.matrix[:d, 1] = np.arange(d), matrix
        self._whiten = _whitener(dtype)

    def __call__(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return ``L @ x`` for each row; its bits depend on that row alone.

        Parameters
        ----------
        rows
            Rows, shape (n, n_features), C-contiguous, of the precision of this whitener.

        Returns
        -------
        whitened
            Whitened rows, of the same shape and type.
        """
        out = np.empty_like(rows)
        self._whiten(rows, self.matrix, out)
        return out
