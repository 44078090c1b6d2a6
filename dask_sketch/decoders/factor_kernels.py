"""Compiled cost of atoms with factors, for frequencies that touch few features.

A frequency of the distribution ``"sparse-sums"`` is zero in all but four features at most. The
phase and the exponent of an atom, and their derivatives, then need only the parameters of these
features: the time does not grow with the number of features. The innermost loops run over the
atoms, whose parameters are contiguous, so that LLVM turns them into vector instructions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.atom_kernels import cosine_sine
from dask_sketch.features.kernels.elementary import fma, power_of_two
from dask_sketch.validation.compilation import cached_njit

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
MULTIPLE = 8  # the number of atoms is a multiple of this one, with atoms of weight zero


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
def add_cost_gradient(features, values, envelope, target, weights, table, cost, by_weight, by_row):  # type: ignore[no-untyped-def]  # fmt: skip
    """Add the cost of some frequencies, and its derivatives, to sums.

    Parameters
    ----------
    features, values
        Features of the frequencies and their values, shape (B, n_touched).
    envelope
        Exponents to base two that all atoms share, shape (B,).
    target
        Real and imaginary parts of the sketch, two arrays of shape (B,).
    weights
        Weights of the atoms, shape (K,); ``K`` is a multiple of eight.
    table
        Parameters (n_features, (2 + rank) K): means in units whose phases are cycles; loadings and
        noise variances in units whose exponents have base two.
    cost
        Sum of ``|z - sum_k alpha_k a_k|^2``, shape (1,).
    by_weight, by_row
        Sums of ``Re conj(a_k) (z - sum_l alpha_l a_l)``, and of its products with the derivatives
        of the phase and of the exponent, of the shapes of ``weights`` and ``table``.
    """
    n_atoms, width = weights.size, by_row.shape[1] - weights.size
    rank = width // n_atoms - 1
    sums = np.empty(width + n_atoms)
    phase, exponent = sums[:n_atoms], sums[width:]
    for j in range(envelope.size):
        sums[:width] = 0.0
        exponent[:] = envelope[j]
        for t in range(features.shape[1]):
            own, w = table[features[j, t]], values[j, t]
            accumulate(own[:width], w, sums[:width])
            accumulate(own[width:], w * w, exponent)
        for q in range(1, rank + 1):
            row = sums[q * n_atoms : (q + 1) * n_atoms]
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
            row = sums[q * n_atoms : (q + 1) * n_atoms]
            for k in range(n_atoms):
                row[k] *= exponent[k]
        for t in range(features.shape[1]):
            out, w = by_row[features[j, t]], values[j, t]
            accumulate(sums[:width], w, out[:width])
            accumulate(exponent, w * w, out[width:])


@cached_njit(nogil=True, error_model="numpy")
def accumulate(row, factor, total):  # type: ignore[no-untyped-def]
    """Add a multiple of a row to another one, in place."""
    for k in range(total.size):
        total[k] = fma(factor, row[k], total[k])
