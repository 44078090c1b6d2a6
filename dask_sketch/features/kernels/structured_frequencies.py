"""Structured frequencies: groups of sums ``u_i + v_j`` and differences ``u_i - v_j``.

A group of 32 frequencies comes from eight base frequencies, four ``u`` and four ``v``, and so do
its features: ``exp(-i (u + v) . x)`` is a product of two. The sketch of a group is one matrix
product, of the cosines and sines of the ``u`` with those of the ``v``, over the samples
(:mod:`dask_sketch.features.kernels.structured`). The reason is speed: see
:mod:`dask_sketch.features.frequency_distributions`.

Only the frequencies are stored. The base frequencies follow from them exactly, because sampled
frequencies lie on a grid: see :func:`truncate_to_grid`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError

SIDE = 4  # base frequencies of one side; with eight, least squares loses 0.1 in ln KL
GROUP = 2 * SIDE * SIDE
_BITS = 23  # binary digits of a base frequency; a sum has one more, and float32 has 24
Array = NDArray[np.float64]


def n_groups(n_frequencies: int) -> int:
    """Number of groups that hold ``n_frequencies``; the last group may be incomplete.

    Examples
    --------
    >>> n_groups(32), n_groups(33)
    (1, 2)
    """
    return -(-n_frequencies // GROUP)


def combine(bases: Array, n_frequencies: int) -> Array:
    """Combine groups of base frequencies to frequencies.

    Parameters
    ----------
    bases
        Base frequencies, shape (n_groups, 2, SIDE, n_features): every ``u`` of a group, then every
        ``v``.
    n_frequencies
        Number of frequencies to return.

    Returns
    -------
    frequencies
        Shape (n_features, n_frequencies): ``u_0 + v_0, u_0 - v_0, u_0 + v_1, ...``

    Examples
    --------
    >>> bases = np.zeros((1, 2, SIDE, 1))
    >>> bases[0, 0, 0], bases[0, 1, :2, 0] = 5.0, [1.0, 2.0]
    >>> combine(bases, 4)
    array([[6., 4., 7., 3.]])
    """
    u, v = bases[:, 0, :, None], bases[:, 1, None]
    pairs = np.stack([u + v, u - v], axis=3)  # (n_groups, SIDE, SIDE, 2, n_features)
    return np.ascontiguousarray(pairs.reshape(-1, bases.shape[-1])[:n_frequencies].T)


def split(frequencies: NDArray[np.floating]) -> Array:
    """Split frequencies in the order of :func:`combine` into base frequencies.

    Parameters
    ----------
    frequencies
        Frequencies, shape (n_features, n_frequencies).

    Returns
    -------
    bases
        Base frequencies, shape (n_groups, 2, SIDE, n_features), zero if an incomplete last group
        does not determine them. They are exact for frequencies on the grid.
    """
    d, m = frequencies.shape
    whole = np.zeros((n_groups(m) * GROUP, d))
    whole[:m] = frequencies.T
    pairs = whole.reshape(-1, SIDE, SIDE, 2, d)
    known = (np.arange(len(whole)) < m).reshape(-1, SIDE, SIDE, 2)
    bases = np.zeros((len(pairs), 2, SIDE, d))
    first = np.where(known[:, 0, 0, 1, None], (pairs[:, 0, 0, 0] - pairs[:, 0, 0, 1]) / 2, 0.0)
    bases[:, 0] = np.where(known[:, :, 0, 0, None], pairs[:, :, 0, 0] - first[:, None], 0.0)
    bases[:, 1] = np.where(known[:, 0, :, 0, None], pairs[:, 0, :, 0] - bases[:, 0, :1], 0.0)
    bases[:, 1, 0] = first
    return bases


def truncate_to_grid(cycles: Array) -> Array:
    """Truncate base frequencies to a grid, so that float32 sums determine them.

    The grid of each feature is ``2**-23`` of the power of two above its largest base frequency;
    sums and differences then fit in the 24 bits of float32.

    Parameters
    ----------
    cycles
        Frequencies in cycles, shape (n_features, n_frequencies), in the order of :func:`combine`.

    Returns
    -------
    cycles
        Frequencies on the grid, shape (n_features, n_frequencies). Those on the grid are unchanged.

    Examples
    --------
    >>> cycles = combine(np.random.default_rng(0).normal(size=(1, 2, SIDE, 3)), 30)
    >>> on_grid = truncate_to_grid(cycles)
    >>> bool((on_grid == on_grid.astype(np.float32)).all())
    True
    >>> bool((truncate_to_grid(on_grid) == on_grid).all())
    True
    """
    bases = split(cycles)
    exponents = np.frexp(np.abs(bases).max(axis=(0, 1, 2)))[1]
    grid = np.ldexp(1.0, exponents - _BITS)
    return combine(np.trunc(bases / grid) * grid, cycles.shape[1])


def round_to_grid(cycles: Array) -> Array:
    """Round frequencies to the grid from which rounding in float64 has moved them.

    Examples
    --------
    >>> bases = np.random.default_rng(0).normal(size=(1, 2, SIDE, 3))
    >>> cycles = truncate_to_grid(combine(bases, 30))
    >>> bool((round_to_grid(cycles * (1 + 1e-12)) == cycles).all())
    True
    """
    bases = split(cycles)
    exponents = np.frexp(np.abs(bases).max(axis=(0, 1, 2)))[1]
    # the largest may have crossed a power of two: then the grid is finer and contains the same
    # numbers
    grid = np.ldexp(1.0, exponents - _BITS)
    return combine(np.rint(bases / grid) * grid, cycles.shape[1])


def signs_of_zeros(
    cycles: NDArray[np.floating],
) -> list[tuple[int, NDArray[np.intp], NDArray[np.intp]]]:
    """Zeros among frequencies on the grid whose signs came from rounding errors.

    :func:`split` computes a base frequency of zero as the difference of two rounded numbers where
    both first base frequencies of its group use the feature. :func:`truncate_to_grid` leaves its
    sign, which is one for all such ``u`` of the group, and one for all such ``v``.

    Parameters
    ----------
    cycles
        Frequencies on the grid, shape (n_features, n_frequencies).

    Returns
    -------
    zeros
        One entry for each feature and group with such zeros: the feature, and the numbers of the
        frequencies that are sums and differences of zeros. None, the sums or the differences have a
        negative sign.

    Examples
    --------
    >>> bases = np.ones((1, 2, SIDE, 1))
    >>> bases[0, 0, 2], bases[0, 1, 3] = 0.0, 0.0
    >>> signs_of_zeros(combine(bases, 32))
    [(0, array([22]), array([23]))]
    """
    m = cycles.shape[1]
    zero = split(cycles) == 0.0
    zeros = []
    for group, feature in np.argwhere(~zero[:, 0, 0] & ~zero[:, 1, 0]).tolist():
        u, v = (np.flatnonzero(side) for side in zero[group, :, :, feature])
        sums = (GROUP * group + 2 * SIDE * u[:, None] + 2 * v).ravel()
        sums, differences = sums[sums < m], sums[sums + 1 < m] + 1
        if len(sums):
            zeros.append((feature, sums, differences))
    return zeros


def split_exactly(cycles: NDArray[np.floating]) -> Array:
    """Split frequencies that must be sums and differences of base frequencies.

    Raises
    ------
    InputError
        If they are not sums and differences.
    """
    bases = split(cycles)
    if not np.array_equal(combine(bases, cycles.shape[1]), cycles):
        raise InputError(
            "the frequencies are not sums and differences in groups of "
            f"{GROUP}, as the distribution 'sparse-sums' has them."
        )
    return bases
