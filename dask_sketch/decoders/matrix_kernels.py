"""Compiled sums of atoms with covariance matrices, for frequencies that touch few features.

A frequency of the distribution ``"sparse-sums"`` is zero in all but four features at most. The
phase of an atom then needs four entries of its mean, and the exponent ten of its matrix: the time
does not grow with the number of features. The innermost loops run over the atoms, whose parameters
are contiguous, so that LLVM turns them into vector instructions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.atom_kernels import cosine_sine
from dask_sketch.decoders.factor_kernels import accumulate
from dask_sketch.features.kernels.elementary import fma, power_of_two
from dask_sketch.validation.compilation import cached_njit

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def touched_entries(features: Indices, values: Array, n_features: int) -> tuple[Indices, Array]:
    """Parameters of an atom on which its value at each frequency depends, and their factors.

    Parameters
    ----------
    features, values
        Features of the frequencies and their values, shape (m, t), see
        :func:`~dask_sketch.decoders.factor_kernels.touched_features`.
    n_features
        Number of features.

    Returns
    -------
    rows
        Numbers of parameters in the order of :func:`~dask_sketch.decoders.atoms.entries`, after the
        means, shape (m, t + t (t + 1) / 2): ``t`` means, then entries of the matrix.
    factors
        Derivatives of ``w.mean`` and of ``-w' S w / 2`` by them, of the same shape; zero for unused
        places.

    Examples
    --------
    >>> rows, factors = touched_entries(np.array([[0, 2]]), np.array([[1.0, 3.0]]), 3)
    >>> rows.tolist(), factors.tolist()
    ([[0, 2, 3, 5, 7]], [[1.0, 3.0, -0.5, -4.5, -3.0]])
    """
    first, second = np.triu_indices(features.shape[1], 1)
    low = np.minimum(features[:, first], features[:, second])
    high = np.maximum(features[:, first], features[:, second])
    # pairs follow the variances, row after row of the upper triangle
    pairs = n_features + low * (2 * n_features - low - 1) // 2 + high - low - 1
    # unused places have factors of zero, whatever their parameter
    pairs = np.where(low == high, 0, pairs)
    rows = np.concatenate([features, n_features + features, n_features + pairs], axis=1)
    products = values[:, first] * values[:, second]
    return rows, np.concatenate([values, -0.5 * values**2, -products], axis=1)


@cached_njit(nogil=True, error_model="numpy")
def _evaluate(rows, factors, n_means, envelope, table, phase, exponent):  # type: ignore[no-untyped-def]  # fmt: skip
    """Write imaginary parts of atoms at one frequency to ``phase``, and real ones to ``exponent``.

    ``table`` has the parameters of :func:`touched_entries` in its rows, and the atoms in its
    columns.
    """
    phase[:] = 0.0
    exponent[:] = envelope
    for r in range(n_means):
        if factors[r] != 0.0:
            accumulate(table[rows[r]], factors[r], phase)
    for r in range(n_means, rows.size):
        if factors[r] != 0.0:
            accumulate(table[rows[r]], factors[r], exponent)
    for k in range(phase.size):
        amplitude = power_of_two(exponent[k])
        c, s = cosine_sine(phase[k])
        exponent[k], phase[k] = amplitude * c, amplitude * s


@cached_njit(nogil=True, error_model="numpy")
def evaluate_atoms(rows, factors, n_means, envelope, table, order, real, imag):  # type: ignore[no-untyped-def]  # fmt: skip
    """Write real and imaginary parts of atoms to rows (n, K), zero where there is no frequency.

    Parameters
    ----------
    rows, factors, n_means, envelope, table
        Arguments of :func:`subtract_atoms`.
    order
        Numbers of frequencies, shape (n,), negative for none.
    real, imag
        Arrays that are written.
    """
    for i in range(order.size):
        j = order[i]
        if j < 0:
            real[i] = 0.0
            imag[i] = 0.0
        else:
            _evaluate(rows[j], factors[j], n_means, envelope[j], table, imag[i], real[i])


@cached_njit(nogil=True, error_model="numpy")
def _dot(left, right):  # type: ignore[no-untyped-def]
    """Sum of products of rows whose length is a multiple of eight, in eight sums."""
    a = b = c = d = e = f = g = h = 0.0
    for k in range(0, left.size, 8):
        a = fma(left[k], right[k], a)
        b = fma(left[k + 1], right[k + 1], b)
        c = fma(left[k + 2], right[k + 2], c)
        d = fma(left[k + 3], right[k + 3], d)
        e = fma(left[k + 4], right[k + 4], e)
        f = fma(left[k + 5], right[k + 5], f)
        g = fma(left[k + 6], right[k + 6], g)
        h = fma(left[k + 7], right[k + 7], h)
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@cached_njit(nogil=True, error_model="numpy")
def subtract_atoms(rows, factors, n_means, envelope, weights, table, real, imag):  # type: ignore[no-untyped-def]  # fmt: skip
    """Subtract a mixture from real and imaginary parts of B frequencies, in place.

    Parameters
    ----------
    rows, factors
        Results of :func:`touched_entries`, shape (B, n_rows).
    n_means
        Number of means among the rows.
    envelope
        Exponents to base two that all atoms share, shape (B,).
    weights
        Weights of the atoms, shape (K,); ``K`` is a multiple of eight.
    table
        Parameters (n_parameters, K) of the atoms: means in units whose phases are cycles, entries
        of matrices in units whose exponents have base two.
    real, imag
        Arrays of shape (B,).
    """
    phase, exponent = np.empty(weights.size), np.empty(weights.size)
    for j in range(envelope.size):
        _evaluate(rows[j], factors[j], n_means, envelope[j], table, phase, exponent)
        real[j] -= _dot(weights, exponent)
        imag[j] -= _dot(weights, phase)


@cached_njit(nogil=True, error_model="numpy")
def add_cost_gradient(rows, factors, n_means, envelope, weights, table, target, sums):  # type: ignore[no-untyped-def]  # fmt: skip
    """Add the cost of some frequencies, and its derivatives, to sums.

    Parameters
    ----------
    rows, factors, n_means, envelope, weights, table
        Arguments of :func:`subtract_atoms`.
    target
        Real and imaginary parts of the sketch, two arrays of shape (B,).
    sums
        Sums of ``|z - sum_k alpha_k a_k|^2``, shape (1,), of ``Re conj(a_k) (z - sum_l alpha_l
        a_l)``, and of its products with the derivatives of the phase and of the exponent, of the
        shapes of ``weights`` and ``table``.
    """
    cost, by_weight, by_row = sums
    phase, exponent = np.empty(weights.size), np.empty(weights.size)
    for j in range(envelope.size):
        own, by = rows[j], factors[j]
        _evaluate(own, by, n_means, envelope[j], table, phase, exponent)
        left_real = target[0][j] - _dot(weights, exponent)
        left_imag = target[1][j] - _dot(weights, phase)
        cost[0] += left_real * left_real + left_imag * left_imag
        for k in range(weights.size):
            a, b = exponent[k], phase[k]
            exponent[k] = left_real * a + left_imag * b
            phase[k] = left_real * b - left_imag * a
            by_weight[k] += exponent[k]
        for r in range(n_means):
            if by[r] != 0.0:
                accumulate(phase, by[r], by_row[own[r]])
        for r in range(n_means, own.size):
            if by[r] != 0.0:
                accumulate(exponent, by[r], by_row[own[r]])
