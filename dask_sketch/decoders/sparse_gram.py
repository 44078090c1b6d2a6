"""Gram matrices of atoms with covariance matrices, for frequencies that touch few features.

The derivatives of an atom are the atom times 1, ``-i w_a`` or a multiple of ``w_a w_b``. Entries of
the Gram matrix are thus sums over frequencies of ``conj(a_k) a_l`` times monomials of ``w`` of
degree four at most. A frequency that touches four features has 70 of them, however many features
there are. Frequencies of the same features are summed together.
"""

from __future__ import annotations

from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders import atom_kernels
from dask_sketch.decoders.atoms import Array, entries
from dask_sketch.validation.compilation import cached_njit
from dask_sketch.validation.threads import Threads

Indices = npt.NDArray[np.int64]
_DEGREE = 4
_PAIRS = 256  # of atoms, whose sums over the monomials of a frequency stay in the first-level cache
_TOGETHER = 4  # frequencies of the same features whose products are added at once


class SparseGram:
    """Gram matrices at frequencies that touch few features.

    Parameters
    ----------
    features, values
        Features of the frequencies and their values, shape (m, t), see
        :func:`~dask_sketch.decoders.sparse_kernels.touched_features`.
    n_features
        Number of features.

    Attributes
    ----------
    order
        Numbers of the frequencies, those of the same features together; a number of minus one is
        none, so that there are four of each features, shape (at least m,).
    """

    def __init__(self, features: Indices, values: Array, n_features: int) -> None:
        m, t = features.shape
        self._n_features = n_features
        by_feature = np.argsort(features, axis=1)
        features = np.take_along_axis(features, by_feature, axis=1)
        values = np.take_along_axis(values, by_feature, axis=1)
        supports, own = np.unique(features, axis=0, return_inverse=True)
        own = own.ravel()
        counts = np.bincount(own, minlength=len(supports))
        ends = np.cumsum(-(-counts // _TOGETHER) * _TOGETHER)
        self.order = np.full(ends[-1], -1)
        starts = np.concatenate([[0], ends[:-1]])
        ranks = np.arange(m) - np.concatenate([[0], np.cumsum(counts)[:-1]])[np.sort(own)]
        self.order[starts[np.sort(own)] + ranks] = np.argsort(own, kind="stable")
        self._support = np.repeat(np.arange(len(supports)), (ends - starts) // _TOGETHER)

        # powers of no feature come last, so that a monomial is a sorted row of _DEGREE features
        local = [
            (*chosen, *(t,) * (_DEGREE - degree))
            for degree in (0, 2, 4, 1, 3)
            for chosen in combinations_with_replacement(range(t), degree)
        ]
        self._n_even = sum((np.array(each) < t).sum() % 2 == 0 for each in local)
        table = np.concatenate([supports, np.full((len(supports), 1), n_features)], axis=1)
        keys = self._keys(table[:, np.array(local)])  # (supports, monomials)
        self._known, rows = np.unique(keys, return_inverse=True)
        self._rows: Indices = rows.reshape(keys.shape)
        padded = np.concatenate([values, np.ones((m, 1))], axis=1)
        factors = padded[:, np.array(local)].prod(axis=2)
        factors = np.where(self.order[:, None] < 0, 0.0, factors[self.order])
        # (groups of frequencies, monomials, frequencies of the group)
        self._factors = np.ascontiguousarray(
            factors.reshape(-1, _TOGETHER, len(local)).swapaxes(1, 2)
        )

    def _keys(self, features: npt.NDArray[np.int64]) -> Indices:
        """One number for each sorted row of features; the number of features for none."""
        places = (self._n_features + 1) ** np.arange(_DEGREE, dtype=np.int64)[::-1]
        return np.asarray(np.sort(features, axis=-1) @ places)

    @cached_property
    def _entries(self) -> tuple[Indices, Array]:
        """Monomial and factor of the product of each two derivatives; the last one is zero."""
        d = self._n_features
        first, second = entries(d)
        none = np.full(d, d)
        left = np.concatenate([[d], np.arange(d), first])
        right = np.concatenate([[d], none, second])
        n = len(left)
        column = np.empty((n, n), dtype=np.int64)
        for p in range(n):
            own = np.column_stack([np.full((n, 2), (left[p], right[p])), left, right])
            keys = self._keys(own)
            column[p] = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
            column[p, self._known[column[p]] != keys] = len(self._known)
        halves = np.ones(n)
        halves[1 + d :] = np.where(first == second, -0.5, -1.0)
        is_mean = np.zeros(n, dtype=bool)
        is_mean[1 : 1 + d] = True
        sign = halves * halves[:, None]
        # Re conj(-i w a) b c = -w b Im conj(a) c; + if the mean belongs to the second atom
        sign[np.ix_(is_mean, ~is_mean)] *= -1.0
        return column, sign

    def count_products(self, n_atoms: int) -> int:
        """Multiplications of the sums of so many atoms."""
        return n_atoms * (n_atoms + 1) // 2 * self._rows.shape[1] * len(self.order)

    def matrix(
        self, real: Array, imag: Array, rows: Indices, multipliers: Array, threads: Threads
    ) -> Array:
        """Gram matrix of the derivatives of atoms.

        Parameters
        ----------
        real, imag
            Atoms at the frequencies :attr:`order`, shape (n, at least K); those of none are finite.
        rows
            Rows of the derivatives of each atom by its weight, mean and entries, shape (K, p).
        multipliers
            Factors of each row and column, shape (K p,).
        threads
            Threads that share the pairs of atoms.
        """
        n_atoms = len(rows)
        first, second = np.triu_indices(n_atoms)
        sums = np.zeros((len(first), len(self._known) + 1))

        def add(atoms: slice) -> None:
            begin, end = np.searchsorted(first, [atoms.start, atoms.stop])
            tile = np.zeros((len(self._known), end - begin))
            add_products(
                real, imag, n_atoms, atoms.start, atoms.stop, self._support, self._rows,
                self._factors, self._n_even, tile,
            )  # fmt: skip
            sums[begin:end, :-1] = tile.T

        threads.each(lambda: add, _tiles(n_atoms))
        gram = np.empty((rows.size, rows.size))
        atom_kernels.fill_gram(sums, first, second, *self._entries, rows, multipliers, gram)
        return gram


def _tiles(n_atoms: int) -> list[slice]:
    """Ranges of first atoms, with a number of pairs that the cache holds."""
    tiles, start = [], 0
    while start < n_atoms:
        stop, n_pairs = start + 1, n_atoms - start
        while stop < n_atoms and n_pairs + n_atoms - stop <= _PAIRS:
            n_pairs += n_atoms - stop
            stop += 1
        tiles.append(slice(start, stop))
        start = stop
    return tiles


@cached_njit(nogil=True, error_model="numpy")
def add_products(real, imag, n_atoms, start, stop, support, rows, factors, n_even, sums):  # type: ignore[no-untyped-def]  # fmt: skip
    """Add products of pairs of atoms with monomials to sums.

    Parameters
    ----------
    real, imag
        Atoms at four times as many frequencies as there are groups, shape (n, at least K).
    n_atoms
        Number of atoms.
    start, stop
        Range of the first atoms of the pairs; the second ones are the same and all that follow.
    support
        Row of ``rows`` of each group of four frequencies.
    rows
        Rows of the sums of the monomials, shape (n_supports, n_monomials).
    factors
        Values of the monomials, shape (n_groups, n_monomials, 4).
    n_even
        Number of first monomials that multiply the real part of a product; others the imaginary
        one.
    sums
        Sums, shape (at least n_rows, n_pairs), to which is added.
    """
    even, odd = np.empty((4, sums.shape[1])), np.empty((4, sums.shape[1]))
    for group in range(support.size):
        for i in range(4):
            j, n = 4 * group + i, 0
            for k in range(start, stop):
                a, b = real[j, k], imag[j, k]
                for other in range(k, n_atoms):
                    c, d = real[j, other], imag[j, other]
                    even[i, n] = a * c + b * d
                    odd[i, n] = a * d - b * c
                    n += 1
        chosen = rows[support[group]]
        for q in range(chosen.size):
            _add_multiples(even if q < n_even else odd, factors[group, q], sums[chosen[q]])


@cached_njit(nogil=True, error_model="numpy")
def _add_multiples(products, factors, total):  # type: ignore[no-untyped-def]
    f, g, h, i = factors[0], factors[1], factors[2], factors[3]
    a, b, c, d = products[0], products[1], products[2], products[3]
    for n in range(total.size):
        total[n] += (f * a[n] + g * b[n]) + (h * c[n] + i * d[n])
