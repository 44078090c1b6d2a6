"""Objective of atoms with covariance matrices, for frequencies that touch few features."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.objective import Complex, Objective
from dask_sketch.decoders.sparse_gram import SparseGram
from dask_sketch.decoders.sparse_kernels import (
    MULTIPLE,
    Indices,
    add_matrix_gradient,
    evaluate_atoms,
    sparse_blocks,
    subtract_atoms,
    touched_entries,
    touched_features,
)

_MAX_TOUCHED = 4  # features of a frequency; products of matrices are faster for more
# Parameters of an atom for each that a frequency touches, from which these are read alone: with
# four touched features, matrix products are slower from 12 features.
_MIN_RATIO = 6
_GRAM_COST = 3.0  # time of a product in a sparse Gram matrix, in that of one in a matrix product


class MatrixObjective(Objective):
    """Match a sketch with atoms that have covariance matrices.

    The value of an atom at a frequency depends on the entries of its matrix for the features that
    the frequency touches. Where these are few, no other entries are read.

    The arguments are those of :class:`~dask_sketch.decoders.objective.Objective`, with the model
    ``"full"`` or ``"tied"``.
    """

    def __init__(self, sketch: Any, model: str, **options: Any) -> None:
        super().__init__(sketch, model, **options)
        self._set_touched()

    def _set_touched(self) -> None:
        d = self.space.n_features
        self._touched: tuple[Indices, Array, int] | None = None
        self._sums: SparseGram | None = None
        found = touched_features(self.omega, min(_MAX_TOUCHED, d - 1))
        if found is not None:
            self._sums = SparseGram(*found, d)
            self._touched = (*touched_entries(*found, d), found[0].shape[1])

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
        shares, table = np.zeros(padded), np.zeros((self.space.n_parameters, padded))
        shares[:k] = weights
        table[:d, :k] = (-0.5 / np.pi) * theta[:, :d].T
        table[d:, :k] = theta[:, d:].T / np.log(2.0)
        return shares, table

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
        shares, table = self._padded(weights, theta)

        def sums(at: slice) -> tuple[Array, Array, Array]:
            found = np.zeros(1), np.zeros_like(shares), np.zeros_like(table)
            target = self.target[0][at], self.target[1][at]
            add_matrix_gradient(
                rows[at], factors[at], n_means, self._envelope[at], shares, table, target, found
            )
            return found

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
        """Multiplications for a Gram matrix of so many atoms."""
        if self._sums is None:
            return super().gram_work(n_components)
        return _GRAM_COST * self._sums.count_products(n_components)
