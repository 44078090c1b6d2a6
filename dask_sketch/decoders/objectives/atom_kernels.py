"""Compiled inner loops of the objective: values of atoms and their products.

Phases and exponents are matrix products, which are left to BLAS; the loops here work on the
results. Every loop runs over contiguous float64 without a branch, so that LLVM turns it into
vector instructions: 2 ns for an exponential, a sine and a cosine together. No fast-math flag is
used: rounding is that of the operations as written, and fused operations are explicit.

Exponents have base two and phases are in cycles, so that reducing them to the range of a
polynomial is exact. The polynomials are truncated Chebyshev series with errors below 2.5e-16.
"""

from __future__ import annotations

from dask_sketch.features.kernels.elementary import ROUND as _ROUND
from dask_sketch.features.kernels.elementary import fma as _fma
from dask_sketch.features.kernels.elementary import power_of_two
from dask_sketch.validation.compilation import cached_njit

# sin(2 pi r) / r and cos(2 pi r) in y = r**2, on |r| <= 1/4
_S0, _S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8 = (
    6.283185307179586,
    -41.341702240399755,
    81.60524927607362,
    -76.70585975282509,
    42.05869393542926,
    -15.094641676478926,
    3.8199281010531383,
    -0.7177338593450135,
    0.10089722381061697,
)
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8 = (
    1.0,
    -19.739208802178705,
    64.93939402266396,
    -85.45681720598118,
    60.24464131319568,
    -26.426254067893844,
    7.90346251484126,
    -1.7132186347396439,
    0.27194674558121545,
)


@cached_njit(nogil=True, error_model="numpy")
def cosine_sine(t):  # type: ignore[no-untyped-def]
    """Cosine and sine of ``2 pi t``: half cycles are removed, and their parity is the sign."""
    h = (t + t + _ROUND) - _ROUND
    r = _fma(h, -0.5, t)
    y = r * r
    s = _fma(_fma(_fma(_fma(_S8, y, _S7), y, _S6), y, _S5), y, _S4)
    s = _fma(_fma(_fma(_fma(s, y, _S3), y, _S2), y, _S1), y, _S0) * r
    c = _fma(_fma(_fma(_fma(_C8, y, _C7), y, _C6), y, _C5), y, _C4)
    c = _fma(_fma(_fma(_fma(c, y, _C3), y, _C2), y, _C1), y, _C0)
    half = 0.5 * h
    odd = half - ((half + _ROUND) - _ROUND)  # 0 or +-1/2
    sign = _fma(odd * odd, -8.0, 1.0)
    return sign * c, sign * s


@cached_njit(nogil=True, error_model="numpy")
def evaluate_atoms(real, imag, envelope, lift):  # type: ignore[no-untyped-def]
    """Replace exponents and phases by ``2**(e + envelope + lift) * exp(2 pi i t)``, in place.

    Parameters
    ----------
    real
        Exponents ``e`` to base two, shape (K, B); real parts on return.
    imag
        Phases ``t`` in cycles, shape (K, B), less than 2**50; imaginary parts on return.
    envelope, lift
        Terms added to the exponents of each frequency (B,) and of each atom (K,).
    """
    for k in range(real.shape[0]):
        row, phases, up = real[k], imag[k], lift[k]
        for j in range(row.size):
            amplitude = power_of_two(row[j] + envelope[j] + up)
            c, s = cosine_sine(phases[j])
            row[j] = amplitude * c
            phases[j] = amplitude * s


@cached_njit(nogil=True, error_model="numpy")
def evaluate_points(real, imag, amplitude):  # type: ignore[no-untyped-def]
    """Replace phases by ``amplitude * exp(2 pi i t)``, for atoms without shape parameters.

    As :func:`evaluate_atoms` with an amplitude of shape (B,); ``real`` is only written.
    """
    for k in range(real.shape[0]):
        row, phases = real[k], imag[k]
        for j in range(row.size):
            c, s = cosine_sine(phases[j])
            row[j] = amplitude[j] * c
            phases[j] = amplitude[j] * s


@cached_njit(nogil=True, error_model="numpy")
def correlate(real, imag, rho_real, rho_imag):  # type: ignore[no-untyped-def]
    """Replace atoms ``a`` (K, B) by ``conj(a) rho``, real and imaginary parts, in place."""
    for k in range(real.shape[0]):
        row, row_imag = real[k], imag[k]
        for j in range(row.size):
            a, b = row[j], row_imag[j]
            row[j] = _fma(a, rho_real[j], b * rho_imag[j])
            row_imag[j] = _fma(a, rho_imag[j], -b * rho_real[j])


@cached_njit(nogil=True, error_model="numpy")
def powers(real, imag, out):  # type: ignore[no-untyped-def]
    """Squared moduli of atoms (K, B)."""
    for k in range(real.shape[0]):
        row, row_imag, power = real[k], imag[k], out[k]
        for j in range(row.size):
            power[j] = _fma(row[j], row[j], row_imag[j] * row_imag[j])


@cached_njit(nogil=True, error_model="numpy")
def factor_products(factors, left, right, start, width, out):  # type: ignore[no-untyped-def]
    """Products of rows of factors (n_factors, m) from frequency ``start``, shape (n, >= width)."""
    for p in range(left.size):
        a, b, row = factors[left[p], start:], factors[right[p], start:], out[p]
        for j in range(width):
            row[j] = a[j] * b[j]


@cached_njit(nogil=True, error_model="numpy")
def pair_products(real, imag, first, second, start, width, out_real, out_imag):  # type: ignore[no-untyped-def]  # fmt: skip
    """``conj(a_first) a_second`` for pairs of atoms (K, B), from frequency ``start``.

    Both results have shape (>= n_pairs, >= width), in the precision of the atoms.
    """
    for p in range(first.size):
        a, b = real[first[p], start:], imag[first[p], start:]
        c, d = real[second[p], start:], imag[second[p], start:]
        even, odd = out_real[p], out_imag[p]
        for j in range(width):
            even[j] = a[j] * c[j] + b[j] * d[j]
            odd[j] = a[j] * d[j] - b[j] * c[j]


@cached_njit(nogil=True, error_model="numpy")
def fill_gram(sums, first, second, column, sign, row, factor, gram):  # type: ignore[no-untyped-def]
    """Write the sums over frequencies of pairs of atoms to their entries of a Gram matrix.

    Parameters
    ----------
    sums
        Sums, shape (n_pairs, n_sums).
    first, second
        Indices of the atoms of each pair, ``first <= second``.
    column, sign
        Index and sign (p, p) of the entries for parameters ``p`` of the first and ``q`` of the
        second atom, which are ``sign[p, q] * sums[:, column[p, q]]``.
    row
        Row of each atom's parameters in the Gram matrix, shape (K, p).
    factor
        Multiplier of each row and column, shape (K p,).
    gram
        Symmetric matrix (K p, K p) that is written.
    """
    for pair in range(first.size):
        rows, columns = row[first[pair]], row[second[pair]]
        for p in range(column.shape[0]):
            for q in range(column.shape[1]):
                i, j = rows[p], columns[q]
                value = factor[i] * factor[j] * sign[p, q] * sums[pair, column[p, q]]
                gram[i, j] = value
                gram[j, i] = value
