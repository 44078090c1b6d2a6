"""Objective of atoms with covariance matrices, for frequencies that touch few features."""

from __future__ import annotations

from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.objectives import atom_kernels
from dask_sketch.decoders.objectives.atoms import Array, entries
from dask_sketch.decoders.objectives.objective import Complex, Objective
from dask_sketch.decoders.objectives.sparse_kernels import (
    MULTIPLE,
    Indices,
    add_matrix_gradient,
    add_products,
    evaluate_atoms,
    sparse_blocks,
    subtract_atoms,
    touched_entries,
    touched_features,
)
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.threads import Threads

_MAX_TOUCHED = 4  # features of a frequency; products of matrices are faster for more
# Parameters of an atom for each that a frequency touches, from which these are read alone: with
# four touched features, matrix products are slower from 12 features.
_MIN_RATIO = 6
_GRAM_COST = 3.0  # time of a product in a sparse Gram matrix, in that of one in a matrix product
_DEGREE = 4  # largest degree of a monomial
# Pairs of atoms whose sums over the monomials of a frequency stay in the first-level cache.
_PAIRS = 256
_TOGETHER = 4  # frequencies of the same features whose products are added at once


class MatrixObjective(Objective):
    """Match a sketch with atoms that have covariance matrices.

    The value of an atom at a frequency depends on the entries of its matrix for the features that
    the frequency touches. Where these are few, no other entries are read.

    The arguments are the same as of
    :class:`~dask_sketch.decoders.objectives.objective.Objective`, with the model ``"full"`` or
    ``"tied"``.
    """

    def __init__(self, sketch: Sketch, model: str, **options: Any) -> None:
        super().__init__(sketch, model, **options)
        self._set_touched()

    def _set_touched(self) -> None:
        d = self.space.n_features
        self._touched: tuple[Indices, Array, int] | None = None
        self._sums: SparseGram | None = None
        touched = touched_features(self.omega, min(_MAX_TOUCHED, d - 1))
        if touched is not None:
            self._sums = SparseGram(*touched, d)
            self._touched = (*touched_entries(*touched, d), touched[0].shape[1])

    def _few(self) -> tuple[Indices, Array, int] | None:
        """Parameters at each frequency, their factors and number of means, where these are few."""
        if self._touched is None:
            return None
        is_few = _MIN_RATIO * self._touched[0].shape[1] < self.space.n_parameters
        return self._touched if is_few else None

    def select(self, chosen: Indices) -> Self:
        """As in the base class."""
        fewer = super().select(chosen)
        fewer._set_touched()
        return fewer

    def _padded(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """Weights, and parameters in columns, of a multiple of eight atoms."""
        d, k = self.space.n_features, len(theta)
        padded = -(-k // MULTIPLE) * MULTIPLE
        padded_weights, table = np.zeros(padded), np.zeros((self.space.n_parameters, padded))
        padded_weights[:k] = weights
        table[:d, :k] = (-0.5 / np.pi) * theta[:, :d].T
        table[d:, :k] = theta[:, d:].T / np.log(2.0)
        return padded_weights, table

    def residual(self, weights: Array, theta: Array) -> Complex:
        """Real and imaginary part (m,) of ``z - sum_k alpha_k a_k``."""
        few = self._few()
        if few is None:
            return super().residual(weights, theta)
        rows, factors, n_means = few
        padded = self._padded(weights, theta)
        real, imag = self.target[0].copy(), self.target[1].copy()

        def subtract(at: slice) -> None:
            subtract_atoms(
                rows[at], factors[at], n_means, self._envelope[at], *padded, real[at], imag[at]
            )

        self.threads.each(lambda: subtract, sparse_blocks(self.n_frequencies))
        return real, imag

    def cost_gradient(self, weights: Array, theta: Array) -> tuple[float, Array, Array]:
        """Cost ``||z - sum_k alpha_k a_k||^2``, and its derivatives by weights and parameters."""
        few = self._few()
        if few is None:
            return super().cost_gradient(weights, theta)
        self.n_evaluations += 1
        rows, factors, n_means = few
        padded_weights, table = self._padded(weights, theta)

        def sums(at: slice) -> tuple[Array, Array, Array]:
            totals = np.zeros(1), np.zeros_like(padded_weights), np.zeros_like(table)
            target = self.target[0][at], self.target[1][at]
            add_matrix_gradient(
                rows[at],
                factors[at],
                n_means,
                self._envelope[at],
                padded_weights,
                table,
                target,
                totals,
            )
            return totals

        parts = zip(
            *self.threads.each(lambda: sums, sparse_blocks(self.n_frequencies)), strict=True
        )
        cost, by_weight, by_row = (np.sum(part, axis=0) for part in parts)
        by_theta = -2.0 * weights[:, None] * by_row[:, : len(theta)].T
        return float(cost[0]), -2.0 * by_weight[: len(theta)], by_theta

    def gram(self, weights: Array, theta: Array) -> Array:
        """Gram matrix ``J J^T`` of the rows of :meth:`jacobian`, shape (P, P)."""
        if self._sums is None or self._touched is None:
            return super().gram(weights, theta)
        padded, order = self._padded(weights, theta)[1], self._sums.order
        real, imag = np.empty((2, len(order), padded.shape[1]))
        envelope, (rows, factors, n_means) = self._envelope, self._touched

        def evaluate(at: slice) -> None:
            evaluate_atoms(rows, factors, n_means, envelope, padded, order[at], real[at], imag[at])

        self.threads.each(lambda: evaluate, sparse_blocks(len(order)))
        return self._sums.matrix(real, imag, *self._gram_rows(weights), self.threads)

    def gram_work(self, n_components: int) -> float:
        """Multiplications for a Gram matrix of ``n_components`` atoms."""
        if self._sums is None:
            return super().gram_work(n_components)
        return _GRAM_COST * self._sums.count_products(n_components)


class SparseGram:
    """Gram matrices at frequencies that touch few features.

    The derivatives of an atom are the atom times 1, ``-i w_a`` or a multiple of ``w_a w_b``.
    Entries of the Gram matrix are thus sums over frequencies of ``conj(a_k) a_l`` times monomials
    of ``w`` of degree four at most. A frequency that touches four features has 70 of them, however
    many features there are. Frequencies of the same features are summed together.

    Parameters
    ----------
    features, values
        Features of the frequencies and their values, shape (m, t), see
        :func:`~dask_sketch.decoders.objectives.sparse_kernels.touched_features`.
    n_features
        Number of features.

    Attributes
    ----------
    order
        Numbers of the frequencies, grouped by the features that they touch, shape (at least m,).
        Each group is padded with -1 to a multiple of four.
    """

    def __init__(self, features: Indices, values: Array, n_features: int) -> None:
        m, t = features.shape
        self._n_features = n_features
        by_feature = np.argsort(features, axis=1)
        features = np.take_along_axis(features, by_feature, axis=1)
        values = np.take_along_axis(values, by_feature, axis=1)
        supports, support_of = np.unique(features, axis=0, return_inverse=True)
        support_of = support_of.ravel()
        counts = np.bincount(support_of, minlength=len(supports))
        ends = np.cumsum(-(-counts // _TOGETHER) * _TOGETHER)
        self.order = np.full(ends[-1], -1)
        starts = np.concatenate([[0], ends[:-1]])
        ranks = np.arange(m) - np.concatenate([[0], np.cumsum(counts)[:-1]])[np.sort(support_of)]
        self.order[starts[np.sort(support_of)] + ranks] = np.argsort(support_of, kind="stable")
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
        """One number for each sorted row of features; ``n_features`` stands for no feature."""
        powers = (self._n_features + 1) ** np.arange(_DEGREE, dtype=np.int64)[::-1]
        return np.asarray(np.sort(features, axis=-1) @ powers)

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
            products = np.column_stack([np.full((n, 2), (left[p], right[p])), left, right])
            keys = self._keys(products)
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
        """Multiplications of the sums of ``n_atoms`` atoms."""
        return n_atoms * (n_atoms + 1) // 2 * self._rows.shape[1] * len(self.order)

    def matrix(
        self, real: Array, imag: Array, rows: Indices, multipliers: Array, threads: Threads
    ) -> Array:
        """Gram matrix of the derivatives of atoms.

        Parameters
        ----------
        real, imag
            Atoms at the frequencies :attr:`order`, shape (n, at least K); padded entries are
            finite.
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
