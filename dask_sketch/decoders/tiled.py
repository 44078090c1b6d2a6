"""Cholesky factors of large matrices by tiles, which threads share.

LAPACK's own threads would make the bits depend on their number, and SciPy holds the interpreter's
lock. Here every tile is one product of NumPy's, the same whoever makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from scipy.linalg import solve_triangular

from dask_sketch.decoders.families import Array
from dask_sketch.decoders.threads import Threads

_TILE = 512  # rows and columns
_COLUMNS = 400  # right-hand sides solved for by one thread at a time

Item = TypeVar("Item")


class Cholesky:
    """Factor ``L`` of a symmetric positive definite matrix ``L L^T``, and solutions with it.

    Parameters
    ----------
    matrix
        Shape (n, n); its lower triangle is read, and overwritten by the factor.
    threads
        What works on the tiles.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite.

    Examples
    --------
    >>> from dask_sketch.decoders.threads import SERIAL
    >>> factor = Cholesky(np.array([[4.0, 0.0], [2.0, 5.0]]), SERIAL)
    >>> factor.forward(np.array([[4.0], [6.0]])).ravel().tolist()
    [2.0, 2.0]
    >>> factor.backward(np.array([[2.0], [2.0]])).ravel().tolist()
    [0.5, 1.0]
    """

    def __init__(self, matrix: Array, threads: Threads) -> None:
        self._threads = threads
        self._factor = matrix
        n = len(matrix)
        self._tiles = [slice(start, min(start + _TILE, n)) for start in range(0, n, _TILE)]
        self._inverses: list[Array] = []  # of the tiles on the diagonal
        for k, own in enumerate(self._tiles):
            matrix[own, own] = np.linalg.cholesky(matrix[own, own])
            identity = np.eye(own.stop - own.start)
            inverse = solve_triangular(matrix[own, own], identity, lower=True, check_finite=False)
            self._inverses.append(inverse)
            below = self._tiles[k + 1 :]

            def column(rows: slice, own: slice = own, inverse: Array = inverse) -> None:
                matrix[rows, own] = matrix[rows, own] @ inverse.T

            def update(pair: tuple[slice, slice], own: slice = own) -> None:
                matrix[pair] -= matrix[pair[0], own] @ matrix[pair[1], own].T

            self._share(column, below)
            self._share(update, [(a, b) for i, a in enumerate(below) for b in below[: i + 1]])

    def _share(self, work: Callable[[Item], None], items: list[Item]) -> None:
        self._threads.each(lambda: work, items)

    def forward(self, right: Array) -> Array:
        """``L^-1 right`` for right-hand sides (n, p), in their place."""

        def solve(columns: slice) -> None:
            part = right[:, columns].copy()
            for own, inverse in zip(self._tiles, self._inverses, strict=True):
                part[own] = inverse @ (
                    part[own] - self._factor[own, : own.start] @ part[: own.start]
                )
            right[:, columns] = part

        self._share(solve, _columns(right))
        return right

    def backward(self, right: Array) -> Array:
        """``L^-T right`` for right-hand sides (n, p), in their place."""

        def solve(columns: slice) -> None:
            part = right[:, columns].copy()
            for own, inverse in zip(self._tiles[::-1], self._inverses[::-1], strict=True):
                later = self._factor[own.stop :, own].T @ part[own.stop :]
                part[own] = inverse.T @ (part[own] - later)
            right[:, columns] = part

        self._share(solve, _columns(right))
        return right


def gram_of_columns(matrix: Array, threads: Threads) -> Array:
    """``matrix.T @ matrix``, shape (p, p)."""
    out = np.empty((matrix.shape[1], matrix.shape[1]))

    def fill(columns: slice) -> None:
        out[columns, : columns.stop] = matrix[:, columns].T @ matrix[:, : columns.stop]

    threads.each(lambda: fill, _columns(matrix))
    return np.tril(out) + np.tril(out, -1).T


def _columns(matrix: Array) -> list[slice]:
    return [slice(start, start + _COLUMNS) for start in range(0, matrix.shape[1], _COLUMNS)]
