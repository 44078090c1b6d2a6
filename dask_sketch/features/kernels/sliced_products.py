"""Exact sums of products of rows, by matrix products of integers.

A matrix product of BLAS rounds in an order of its own. Here the rows are integers, divided into
slices of ``SLICE_BITS`` bits: all sums in a product of two slices, over at most ``MAX_ROWS`` rows,
are integers below ``2**53``, which float64 holds. No number is rounded, so that the order of the
additions, the library and its threads change no bit. The products of slices are then added as
integers of two words, see :class:`~dask_sketch.features.kernels.fixed_point.FixedPoint`.

Two slices ``x = a + 2**SLICE_BITS b`` need three products, ``a'a``, ``b'b`` and ``(a + b)'(a + b)``
(Karatsuba and Ofman 1962).
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numba import boolean, float64, int64
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError
from dask_sketch.features.kernels.row_loop import add_quanta
from dask_sketch.validation.compilation import cached_njit

SLICE_BITS = 21
MAX_ROWS = 2 ** (53 - 2 * SLICE_BITS)  # the sum of two slices is at most 2**SLICE_BITS
TILE = 1024  # columns of one product, whose results take 8 MiB
Array = NDArray[np.float64]
Words = NDArray[np.int64]


def slices(values: Array) -> list[Array]:
    """Divide integers into slices from ``-2**20`` to ``2**20``, from the lowest to the highest.

    Parameters
    ----------
    values
        Integers below ``2**53`` in size.

    Examples
    --------
    >>> low, high = slices(np.array([5.0, 2.0**30 - 3]))
    >>> low, high
    (array([ 5., -3.]), array([  0., 512.]))
    """
    lower: list[Array] = []
    rest = values
    while True:
        above = np.rint(rest * 2.0**-SLICE_BITS)
        if not above.any():
            return [*lower, rest]
        lower.append(rest - above * 2.0**SLICE_BITS)
        rest = above


@cached_njit(
    boolean(int64[:, ::1], float64[:, ::1], int64[::1], boolean, int64),
    nogil=True,
    error_model="numpy",
)
def _add_tile(sums, tile, places, upper, shift):  # type: ignore[no-untyped-def]
    """Add ``2**shift`` times integers to sums of two words; return whether they fit.

    The first column of row ``i`` belongs to the sum ``places[i]``. With ``upper``, entries below
    the diagonal are left out.
    """
    fits = True
    for i in range(tile.shape[0]):
        for j in range(i if upper else 0, tile.shape[1]):
            if tile[i, j] != 0.0:
                fits &= add_quanta(sums, places[i] + j, np.int64(tile[i, j]), shift)
    return fits


def _add(sums: Words, tile: Array, places: Any, upper: bool, shift: int) -> None:
    if not _add_tile(sums, np.ascontiguousarray(tile), places, upper, shift):
        raise CapacityError(
            "the second moments are larger than can be held exactly: a total weight times mean "
            "square of 2**58, in squared units. Multiply all weights by one smaller factor."
        )


class _Sliced:
    """Slices of rows, and the sums of each two of them."""

    def __init__(self, rows: Array, n_slices: int = 0):
        self.slices = slices(rows)
        self.slices += [np.zeros_like(rows)] * (n_slices - len(self.slices))

    def paired(self) -> list[Array]:
        return [low + high for low, high in combinations(self.slices, 2)]


def add_products(
    sums: Words, left: Array, right: Array | None = None, *, start: int = 0, shift: int = 0
) -> None:
    """Add ``2**shift left.T @ right`` to sums of two words, without rounding.

    Parameters
    ----------
    sums
        High and low words of the sums, shape (2, n_sums), int64.
    left, right
        Rows of integers below ``2**53`` in size, shapes (n, p) and (n, r). Without ``right``, the
        upper triangle of the symmetric product ``left.T @ left`` is added, row by row.
    start
        Position of the first sum of the product.
    shift
        Number of bits, ``>= 0``.

    Raises
    ------
    CapacityError
        If a sum does not fit.

    Examples
    --------
    >>> from dask_sketch.features.kernels.fixed_point import FixedPoint
    >>> rows = np.array([[3.0, 2.0**40 + 1.0], [1.0, -(2.0**40)]])
    >>> sums = np.zeros((2, 3), np.int64)
    >>> add_products(sums, rows)
    >>> FixedPoint(*sums).integers() - [10, 2**41 + 3, 2**81 + 2**41 + 1]
    array([0, 0, 0], dtype=object)
    """
    p = left.shape[1]
    n_sums = p * (p + 1) // 2 if right is None else p * right.shape[1]
    assert start + n_sums <= sums.shape[1]  # compiled code does not check
    for first in range(0, len(left), MAX_ROWS):
        block = slice(first, first + MAX_ROWS)
        left_part = _Sliced(left[block])
        right_part = left_part if right is None else _Sliced(right[block], len(left_part.slices))
        if len(right_part.slices) > len(left_part.slices):
            left_part = _Sliced(left[block], len(right_part.slices))
        _add_block(sums, left_part, right_part, start, shift)


def _add_block(sums: Words, left: _Sliced, right: _Sliced, start: int, shift: int) -> None:
    same, p, r = left is right, left.slices[0].shape[1], right.slices[0].shape[1]
    used = [bool(a.any() or b.any()) for a, b in zip(left.slices, right.slices, strict=True)]
    pairs = list(combinations(range(len(used)), 2))
    mixed = left.paired()
    others = mixed if same else right.paired()
    rows = np.arange(p)
    # sums before the first of each row of the product, or of its upper triangle
    before = start + (rows * p - rows * (rows + 1) // 2 if same else rows * r)
    for i in range(0, p, TILE):
        for j in range(i if same else 0, r, TILE):
            row_tile, column_tile = slice(i, i + TILE), slice(j, j + TILE)
            places, upper = before[row_tile] + j, same and i == j
            squares = [
                a[:, row_tile].T @ b[:, column_tile] if fine else None
                for a, b, fine in zip(left.slices, right.slices, used, strict=True)
            ]
            for k, square in enumerate(squares):
                if square is not None:
                    _add(sums, square, places, upper, shift + 2 * k * SLICE_BITS)
            for (a, b), x, y in zip(pairs, mixed, others, strict=True):
                low, high = squares[a], squares[b]
                if low is not None and high is not None:
                    both = x[:, row_tile].T @ y[:, column_tile]
                    # each difference is below 2**53: twice a product of slices, and one square
                    both -= high
                    both -= low
                    _add(sums, both, places, upper, shift + (a + b) * SLICE_BITS)


def add_squares(sums: Words, rows: Array, *, start: int = 0, shift: int = 0) -> None:
    """Add ``2**shift`` times the sum of squares of each column, without rounding.

    Parameters
    ----------
    sums, start, shift
        Arguments of :func:`add_products`.
    rows
        Rows of integers below ``2**53`` in size, shape (n, p).
    """
    places = np.array([start])
    assert start + rows.shape[1] <= sums.shape[1]
    for first in range(0, len(rows), MAX_ROWS):
        parts = slices(rows[first : first + MAX_ROWS])
        for a, low in enumerate(parts):
            for b, high in enumerate(parts[a:], a):
                if low.any() and high.any():
                    column_sums = np.einsum("ij,ij->j", low, high)[None]
                    bits = (a + b) * SLICE_BITS + (a < b)
                    _add(sums, column_sums, places, False, shift + bits)
