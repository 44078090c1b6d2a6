"""Normal equations of least squares on a sketch, from products of pairs of atoms; solvers.

The derivative of an atom by any of its parameters is the atom times a factor that depends on the
frequency alone: 1 by its weight, ``-i w_l`` by a mean, ``b_s`` by a shape parameter. Entries of the
Gram matrix are therefore sums over frequencies of ``conj(a_k) a_l`` times a product of two
factors, and the entries for ``(p, q)`` and ``(q, p)`` of a pair of atoms are equal up to sign.
That is a quarter of the multiplications of ``J J^T``, and the Jacobian ``J`` is never built.

Large matrices are factorised by tiles, which threads share. The threads of LAPACK would make the
bits depend on their number, and SciPy holds the interpreter's lock; here every tile is one matrix
product of NumPy, whichever thread computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import linalg
from scipy.linalg import solve_triangular

from dask_sketch.decoders.objectives import atom_kernels
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.validation.threads import Threads

# Pairs of atoms and frequencies of a tile, whose products stay in the second-level cache.
_PAIRS = 128
_FREQUENCIES = 192
_TILE = 512  # rows and columns of a tile of a large matrix
_COLUMNS = 400  # right-hand sides that one thread solves for at a time
# Fraction of the largest eigenvalue of the information that counts as none, by precision.
_UNKNOWN, _UNKNOWN_SINGLE = 1e-12, 1e-6
_POWERS = 20  # products that estimate the largest eigenvalue
Item = TypeVar("Item")


class GramSums:
    """Sums over frequencies of the products of pairs of atoms with pairs of factors.

    Parameters
    ----------
    n_atoms, n_features, n_shapes
        Sizes; an atom has the factors 1, ``n_features`` frequencies ``w`` and ``n_shapes`` factors
        ``b``, in this order.
    dtype
        Precision of products and of their sums over tiles; further sums are in float64.
    """

    def __init__(
        self, n_atoms: int, n_features: int, n_shapes: int, dtype: npt.DTypeLike = np.float64
    ) -> None:
        self._dtype = np.dtype(dtype)
        self._n_atoms = n_atoms
        self._first, self._second = np.triu_indices(n_atoms)
        n_factors = 1 + n_features + n_shapes
        is_mean = np.zeros(n_factors, dtype=bool)
        is_mean[1 : 1 + n_features] = True
        # Products of two factors: first those that multiply the real part of a pair's product,
        # then those that multiply the imaginary part, which have the factor of exactly one mean.
        self._left, self._right = np.triu_indices(n_factors)
        odd = is_mean[self._left] != is_mean[self._right]
        order = np.argsort(odd, kind="stable")
        self._left, self._right = self._left[order], self._right[order]
        self._n_even = int((~odd).sum())
        self._column = np.empty((n_factors, n_factors), dtype=np.int64)
        self._column[self._left, self._right] = np.arange(len(order))
        self._column[self._right, self._left] = np.arange(len(order))
        # Re conj(-i w a) b c = -w b Im conj(a) c; + if the mean belongs to the second atom
        self._sign = np.ones((n_factors, n_factors))
        self._sign[np.ix_(is_mean, ~is_mean)] = -1.0
        self._sums = np.zeros((len(self._first), len(order)))

    def add(self, real: Array, imag: Array, factors: Array, threads: Threads) -> None:
        """Add atoms (K, B) at B frequencies with the factors (n_factors, B) there, of the dtype.

        Threads share the pairs of atoms, not the frequencies, so that no sums of theirs remain to
        be added.
        """

        def prepare() -> Callable[[slice], None]:
            table = np.empty((len(self._left), _FREQUENCIES), self._dtype)
            products = np.empty((2, min(_PAIRS, len(self._first)), _FREQUENCIES), self._dtype)

            def run(pairs: slice) -> None:
                self._add_pairs(pairs, real, imag, factors, table, products)

            return run

        starts = range(0, len(self._first), _PAIRS)
        threads.each(prepare, [slice(start, start + _PAIRS) for start in starts])

    def _add_pairs(
        self, pairs: slice, real: Array, imag: Array, factors: Array, table: Array, products: Array
    ) -> None:
        first, second = self._first[pairs], self._second[pairs]
        for start in range(0, real.shape[1], _FREQUENCIES):
            width = min(_FREQUENCIES, real.shape[1] - start)
            atom_kernels.factor_products(factors, self._left, self._right, start, width, table)
            atom_kernels.pair_products(real, imag, first, second, start, width, *products)
            same, cross = products[:, : len(first), :width]
            self._sums[pairs, : self._n_even] += same @ table[: self._n_even, :width].T
            self._sums[pairs, self._n_even :] += cross @ table[self._n_even :, :width].T

    def matrix(self, rows: npt.NDArray[np.int64], multipliers: Array) -> Array:
        """Gram matrix with the factors of atom ``k`` in its rows ``rows[k]``.

        Parameters
        ----------
        rows
            Rows of the factors of each atom, shape (K, n_factors).
        multipliers
            Factors of each row and column, shape (K n_factors,).
        """
        gram = np.empty((rows.size, rows.size))
        atom_kernels.fill_gram(
            self._sums, self._first, self._second, self._column, self._sign, rows, multipliers, gram
        )
        return gram


class Cholesky:
    """Factor ``L`` of a symmetric positive definite matrix ``L L^T``, and solutions with it.

    Parameters
    ----------
    matrix
        Matrix (n, n) in float64 or float32; its lower triangle is read, and overwritten by the
        factor.
    threads
        Threads that work on the tiles.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite.

    Examples
    --------
    >>> from dask_sketch.validation.threads import SERIAL
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
        self._inverses: list[Array] = []  # inverses of the tiles on the diagonal
        for k, tile in enumerate(self._tiles):
            matrix[tile, tile] = np.linalg.cholesky(matrix[tile, tile])
            identity = np.eye(tile.stop - tile.start, dtype=matrix.dtype)
            inverse = solve_triangular(matrix[tile, tile], identity, lower=True, check_finite=False)
            self._inverses.append(inverse)
            below = self._tiles[k + 1 :]

            def column(rows: slice, tile: slice = tile, inverse: Array = inverse) -> None:
                matrix[rows, tile] = matrix[rows, tile] @ inverse.T

            def update(pair: tuple[slice, slice], tile: slice = tile) -> None:
                matrix[pair] -= matrix[pair[0], tile] @ matrix[pair[1], tile].T

            self._run(column, below)
            self._run(update, [(a, b) for i, a in enumerate(below) for b in below[: i + 1]])

    def _run(self, work: Callable[[Item], None], items: list[Item]) -> None:
        self._threads.each(lambda: work, items)

    def forward(self, right: Array) -> Array:
        """``L^-1 right`` for right-hand sides (n, p), which are overwritten."""

        def solve(columns: slice) -> None:
            part = right[:, columns].copy()
            for tile, inverse in zip(self._tiles, self._inverses, strict=True):
                part[tile] = inverse @ (
                    part[tile] - self._factor[tile, : tile.start] @ part[: tile.start]
                )
            right[:, columns] = part

        self._run(solve, _columns(right))
        return right

    def backward(self, right: Array) -> Array:
        """``L^-T right`` for right-hand sides (n, p), which are overwritten."""

        def solve(columns: slice) -> None:
            part = right[:, columns].copy()
            for tile, inverse in zip(self._tiles[::-1], self._inverses[::-1], strict=True):
                later = self._factor[tile.stop :, tile].T @ part[tile.stop :]
                part[tile] = inverse.T @ (part[tile] - later)
            right[:, columns] = part

        self._run(solve, _columns(right))
        return right


class SpectralSolver:
    """Equations of a symmetric matrix (n, n) by its eigenvectors, without those of no information.

    Parameters
    ----------
    matrix
        Information, with a diagonal of one.
    single
        Whether it is of a metric in float32.

    Examples
    --------
    >>> solver = SpectralSolver(np.array([[1.0, 0.5], [0.5, 1.0]]), single=False)
    >>> solver.solve(np.array([1.5, 1.5]), damping=0.0).round(6).tolist()
    [1.0, 1.0]
    """

    def __init__(self, matrix: Array, single: bool) -> None:
        values, self._vectors = linalg.eigh(matrix, check_finite=False)
        self._known = values > (_UNKNOWN_SINGLE if single else _UNKNOWN) * values[-1]
        self._values = np.where(self._known, values, 1.0)

    def solve(self, right: Array, damping: float) -> Array:
        """Solutions of right-hand sides (n,) or (n, p), with a number added to the diagonal."""
        inverse = self._known / (self._values + damping)
        return np.asarray(self._vectors @ (inverse * (self._vectors.T @ right).T).T)

    def inverse(self) -> Array:
        """Pseudo-inverse of the matrix."""
        return np.asarray((self._vectors * (self._known / self._values)) @ self._vectors.T)


class DampedSolver:
    """As :class:`SpectralSolver`, with at least the unknown fraction of an eigenvalue as damping.

    Examples
    --------
    >>> solver = DampedSolver(np.array([[1.0, 0.5], [0.5, 1.0]]), single=False)
    >>> solver.solve(np.array([1.5, 1.5]), damping=0.0).round(6).tolist()
    [1.0, 1.0]
    """

    def __init__(self, matrix: Array, single: bool) -> None:
        self._matrix = matrix
        vector = np.random.default_rng(0).standard_normal(len(matrix))
        for _ in range(_POWERS):
            vector = matrix @ (vector / np.linalg.norm(vector))
        largest = float(np.linalg.norm(vector))
        self._min_damping = (_UNKNOWN_SINGLE if single else _UNKNOWN) * largest
        self._factors: dict[float, Any] = {}

    def solve(self, right: Array, damping: float) -> Array:
        """Solutions of right-hand sides (n,) or (n, p), with a number added to the diagonal."""
        damping = max(damping, self._min_damping)
        if damping not in self._factors:
            damped = self._matrix.copy()
            damped.reshape(-1)[:: len(damped) + 1] += damping
            self._factors = {damping: linalg.cho_factor(damped, lower=True, check_finite=False)}
        return np.asarray(linalg.cho_solve(self._factors[damping], right, check_finite=False))


def gram_of_columns(matrix: Array, threads: Threads) -> Array:
    """Product ``matrix.T @ matrix``, shape (p, p)."""
    out = np.empty((matrix.shape[1], matrix.shape[1]))

    def fill(columns: slice) -> None:
        out[columns, : columns.stop] = matrix[:, columns].T @ matrix[:, : columns.stop]

    threads.each(lambda: fill, _columns(matrix))
    return np.tril(out) + np.tril(out, -1).T


def subtract_products(matrix: Array, rows: Array, threads: Threads) -> None:
    """Subtract ``rows @ rows.T`` from the lower triangle of a matrix (n, n), in place."""

    def subtract(part: slice) -> None:
        matrix[part, : part.stop] -= rows[part] @ rows[: part.stop].T

    threads.each(lambda: subtract, _columns(matrix))


def _columns(matrix: Array) -> list[slice]:
    return [slice(start, start + _COLUMNS) for start in range(0, matrix.shape[1], _COLUMNS)]
