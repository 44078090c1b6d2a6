"""Compiled sums over frequencies that touch few features, of atoms with matrices or factors.

A frequency of the distribution ``"sparse-sums"`` is zero in all but four features at most. The
phase of an atom then needs four entries of its mean, and the exponent ten entries of its covariance
matrix, or the factors of four features: the time does not grow with the number of features. The
innermost loops run over the atoms, whose parameters are contiguous, so that LLVM turns them into
vector instructions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.objectives.atom_kernels import cosine_sine
from dask_sketch.features.kernels.elementary import fma, power_of_two
from dask_sketch.validation.compilation import cached_njit

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
MULTIPLE = 8  # the number of atoms is a multiple of this one, with atoms of weight zero
_BLOCK = 1024  # frequencies that one thread sums at a time, whatever the number of atoms


def sparse_blocks(n_frequencies: int) -> list[slice]:
    """Blocks of frequencies, which threads share."""
    starts = range(0, n_frequencies, _BLOCK)
    return [slice(start, min(start + _BLOCK, n_frequencies)) for start in starts]


def touched_features(omega: Array, max_features: int) -> tuple[Indices, Array] | None:
    """Features in which frequencies are not zero, and their values there.

    Parameters
    ----------
    omega
        Frequencies, shape (n_features, n_frequencies).
    max_features
        Largest number of features of a frequency; if one has more, the result is None.

    Returns
    -------
    features, values
        Arrays of shape (n_frequencies, n_touched); values of unused places are zero.

    Examples
    --------
    >>> features, values = touched_features(np.array([[0.0, 2.0], [3.0, 4.0]]), 2)
    >>> features.tolist(), values.tolist()
    ([[1, 0], [0, 1]], [[3.0, 0.0], [2.0, 4.0]])
    """
    n_touched = int((omega != 0.0).sum(axis=0).max())
    if n_touched > max_features:
        return None
    # those that are not zero come first, in the order of the features
    features = np.argsort(omega == 0.0, axis=0, kind="stable")[:n_touched].T
    return np.ascontiguousarray(features), np.take_along_axis(omega.T, features, axis=1)


@cached_njit(nogil=True, error_model="numpy")
def add_factor_gradient(features, values, envelope, weights, table, target, sums):  # type: ignore[no-untyped-def]  # fmt: skip
    """Add the cost of some frequencies, and its derivatives, to sums; of atoms with factors.

    Parameters
    ----------
    features, values
        Features of the frequencies and their values, shape (B, n_touched).
    envelope
        Exponents to base two that all atoms share, shape (B,).
    weights
        Weights of the atoms, shape (K,); ``K`` is a multiple of eight.
    table
        Parameters (n_features, (2 + rank) K): means in units whose phases are cycles; loadings and
        noise variances in units whose exponents have base two.
    target
        Real and imaginary parts of the sketch, two arrays of shape (B,).
    sums
        Three arrays to which is added: ``|z - sum_k alpha_k a_k|^2``, shape (1,); ``Re conj(a_k)
        (z - sum_l alpha_l a_l)``, of the shape of ``weights``; and its products with the
        derivatives of the phase and of the exponent, of the shape of ``table``.
    """
    cost, by_weight, by_row = sums
    n_atoms, width = weights.size, by_row.shape[1] - weights.size
    rank = width // n_atoms - 1
    terms = np.empty(width + n_atoms)
    phase, exponent = terms[:n_atoms], terms[width:]
    for j in range(envelope.size):
        terms[:width] = 0.0
        exponent[:] = envelope[j]
        for t in range(features.shape[1]):
            coefficients, w = table[features[j, t]], values[j, t]
            accumulate(coefficients[:width], w, terms[:width])
            accumulate(coefficients[width:], w * w, exponent)
        for q in range(1, rank + 1):
            row = terms[q * n_atoms : (q + 1) * n_atoms]
            for k in range(n_atoms):
                exponent[k] -= row[k] * row[k]
        for k in range(n_atoms):
            amplitude = power_of_two(exponent[k])
            c, s = cosine_sine(phase[k])
            exponent[k], phase[k] = amplitude * c, amplitude * s
        left_real, left_imag = target[0][j], target[1][j]
        for k in range(n_atoms):
            left_real -= weights[k] * exponent[k]
            left_imag -= weights[k] * phase[k]
        cost[0] += left_real * left_real + left_imag * left_imag
        for k in range(n_atoms):
            a, b = exponent[k], phase[k]
            exponent[k] = left_real * a + left_imag * b
            phase[k] = left_real * b - left_imag * a
            by_weight[k] += exponent[k]
        for q in range(1, rank + 1):
            row = terms[q * n_atoms : (q + 1) * n_atoms]
            for k in range(n_atoms):
                row[k] *= exponent[k]
        for t in range(features.shape[1]):
            out, w = by_row[features[j, t]], values[j, t]
            accumulate(terms[:width], w, out[:width])
            accumulate(exponent, w * w, out[width:])


@cached_njit(nogil=True, error_model="numpy")
def accumulate(row, factor, total):  # type: ignore[no-untyped-def]
    """Add a multiple of a row to another one, in place."""
    for k in range(total.size):
        total[k] = fma(factor, row[k], total[k])


def touched_entries(features: Indices, values: Array, n_features: int) -> tuple[Indices, Array]:
    """Parameters of an atom on which its value at each frequency depends, and their factors.

    Parameters
    ----------
    features, values
        Features of the frequencies and their values, shape (m, t), see
        :func:`~dask_sketch.decoders.objectives.sparse_kernels.touched_features`.
    n_features
        Number of features.

    Returns
    -------
    rows
        Numbers of parameters in the order of
        :func:`~dask_sketch.decoders.objectives.atoms.entries`, after the means, shape
        (m, t + t (t + 1) / 2): ``t`` means, then entries of the matrix.
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
def add_matrix_gradient(rows, factors, n_means, envelope, weights, table, target, sums):  # type: ignore[no-untyped-def]  # fmt: skip
    """Add the cost of some frequencies, and its derivatives, to sums; of atoms with matrices.

    Parameters
    ----------
    rows, factors, n_means, envelope, weights, table
        Arguments of :func:`subtract_atoms`.
    target
        Real and imaginary parts of the sketch, two arrays of shape (B,).
    sums
        Arrays to which is added, as in :func:`add_factor_gradient`.
    """
    cost, by_weight, by_row = sums
    phase, exponent = np.empty(weights.size), np.empty(weights.size)
    for j in range(envelope.size):
        rows_of_frequency, by = rows[j], factors[j]
        _evaluate(rows_of_frequency, by, n_means, envelope[j], table, phase, exponent)
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
                accumulate(phase, by[r], by_row[rows_of_frequency[r]])
        for r in range(n_means, rows_of_frequency.size):
            if by[r] != 0.0:
                accumulate(exponent, by[r], by_row[rows_of_frequency[r]])


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
