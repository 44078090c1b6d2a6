"""The normal equations of least squares on a sketch, from products of pairs of atoms.

The derivative of an atom by any of its parameters is the atom times a factor that depends on the
frequency alone: 1 by its weight, ``-i w_l`` by a mean, ``b_s`` by a shape parameter. Entries of the
Gram matrix are therefore sums over frequencies of ``conj(a_k) a_l`` times a product of two
factors, and the entries for ``(p, q)`` and ``(q, p)`` of a pair of atoms are equal up to sign.
That is a quarter of the multiplications of ``J J^T``, and the Jacobian ``J`` is never built.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders import kernels
from dask_sketch.decoders.families import Array

# Products of pairs of atoms, and of pairs of factors, that stay in the second cache.
_PAIRS = 128
_FREQUENCIES = 192


class GramSums:
    """Sums over frequencies of the products of pairs of atoms with pairs of factors.

    Parameters
    ----------
    n_atoms, n_features, n_shapes
        Sizes; an atom has the factors 1, ``n_features`` frequencies ``w`` and ``n_shapes`` factors
        ``b``, in this order.
    """

    def __init__(self, n_atoms: int, n_features: int, n_shapes: int) -> None:
        self._n_atoms = n_atoms
        self._first, self._second = np.triu_indices(n_atoms)
        n_factors = 1 + n_features + n_shapes
        is_mean = np.zeros(n_factors, dtype=bool)
        is_mean[1 : 1 + n_features] = True
        # Products of two factors: those that meet the real part of a pair's product, then those
        # that meet the imaginary part, which have the factor of exactly one mean.
        self._left, self._right = np.triu_indices(n_factors)
        odd = is_mean[self._left] != is_mean[self._right]
        order = np.argsort(odd, kind="stable")
        self._left, self._right = self._left[order], self._right[order]
        self._n_even = int((~odd).sum())
        self._column = np.empty((n_factors, n_factors), dtype=np.int64)
        self._column[self._left, self._right] = np.arange(len(order))
        self._column[self._right, self._left] = np.arange(len(order))
        # Re conj(-i w a) b c = -w b Im conj(a) c, and + when the mean is the second atom's
        self._sign = np.ones((n_factors, n_factors))
        self._sign[np.ix_(is_mean, ~is_mean)] = -1.0
        self._sums = np.zeros((len(self._first), len(order)))
        self._table = np.empty((len(order), _FREQUENCIES))
        self._products = np.empty((2, min(_PAIRS, len(self._first)), _FREQUENCIES))

    def add(self, real: Array, imag: Array, factors: Array, first_frequency: int) -> None:
        """Add atoms (K, B) at B frequencies; factors (n_factors, m) are those of all."""
        for start in range(0, real.shape[1], _FREQUENCIES):
            stop = min(start + _FREQUENCIES, real.shape[1])
            kernels.factor_products(
                factors, self._left, self._right, first_frequency + start, stop - start, self._table
            )
            even = self._table[: self._n_even, : stop - start].T
            odd = self._table[self._n_even :, : stop - start].T
            for pair in range(0, len(self._first), _PAIRS):
                chunk = slice(pair, pair + _PAIRS)
                first, second = self._first[chunk], self._second[chunk]
                kernels.pair_products(
                    real, imag, first, second, start, stop - start, *self._products
                )
                same, cross = self._products[:, : len(first), : stop - start]
                self._sums[chunk, : self._n_even] += same @ even
                self._sums[chunk, self._n_even :] += cross @ odd

    def matrix(self, rows: npt.NDArray[np.int64], multipliers: Array) -> Array:
        """Gram matrix, the factors of atom ``k`` in its rows ``rows[k]``, shape (K, n_factors).

        Each row and column is multiplied by its entry of ``multipliers``.
        """
        gram = np.empty((rows.size, rows.size))
        kernels.place_pairs(
            self._sums, self._first, self._second, self._column, self._sign, rows, multipliers, gram
        )
        return gram
