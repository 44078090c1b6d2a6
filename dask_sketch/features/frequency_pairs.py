"""Sums and differences of all pairs of a few base frequencies.

Products of random features are random features again, at sums and differences of their frequencies:
``cos(u x) cos(v x) = (cos((u - v) x) + cos((u + v) x)) / 2``. The sketch of all pairs of ``b`` base
frequencies therefore holds the first and the second moments of the features of the base
frequencies, exactly, and with them the covariance of these features over the rows. It can be
merged, subtracted and stored like any other sketch.

The pairs are in the groups of :mod:`dask_sketch.features.kernels.structured_frequencies`. Each
group has the sums and differences of two blocks of four base frequencies, and the groups are in the
order of ``(first block, second block)`` with ``first block <= second block``. The first base
frequency is zero, so that its sums are the other base frequencies themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.kernels.structured_frequencies import GROUP, SIDE, combine

Array = NDArray[np.float64]
N_BASES = (
    64  # base frequencies of comparisons by default: 126 real features beside their covariance
)


def n_pairs(n_bases: int) -> int:
    """Number of frequencies of all pairs of base frequencies.

    Parameters
    ----------
    n_bases
        Number of base frequencies, a multiple of four. One of them is zero.

    Examples
    --------
    >>> n_pairs(64), n_pairs(128)
    (4352, 16896)
    """
    return n_bases * (n_bases + SIDE)


def n_blocks_of_pairs(n_frequencies: int) -> int:
    """Number of blocks of four base frequencies whose pairs are so many.

    Raises
    ------
    InputError
        If no number of blocks has so many pairs.

    Examples
    --------
    >>> n_blocks_of_pairs(4352)
    16
    """
    n_blocks = round((n_frequencies / SIDE**2 + 0.25) ** 0.5 - 0.5)
    if n_pairs(SIDE * n_blocks) != n_frequencies:
        below = int((n_frequencies / SIDE**2 + 0.25) ** 0.5 - 0.5)
        near = [f"{n_pairs(SIDE * n):,}" for n in (below, below + 1) if n > 0]
        raise InputError(
            f"n_frequencies={n_frequencies} with distribution='gaussian-pairs': there are b (b + "
            f"4) pairs of b base frequencies, and b is a multiple of 4. Give {' or '.join(near)}.",
            parameter="n_frequencies",
        )
    return n_blocks


def combine_pairs(bases: Array) -> Array:
    """Combine base frequencies to the sums and differences of all of their pairs.

    Parameters
    ----------
    bases
        Base frequencies, shape (n_bases, n_features), of which the first is zero.

    Returns
    -------
    frequencies
        Frequencies, shape (n_features, n_bases * (n_bases + 4)).

    Examples
    --------
    >>> bases = np.array([[0.0], [1.0], [2.0], [4.0]])
    >>> combine_pairs(bases)[0, :16]
    array([ 0.,  0.,  1., -1.,  2., -2.,  4., -4.,  1.,  1.,  2.,  0.,  3.,
           -1.,  5., -3.])
    """
    blocks = bases.reshape(-1, SIDE, bases.shape[1])
    first, second = np.triu_indices(len(blocks))
    groups = np.stack([blocks[first], blocks[second]], axis=1)
    return combine(groups, n_pairs(len(bases)))


@dataclass(frozen=True, eq=False)
class FrequencyPairs:
    """Positions of the base frequencies, and of their sums and differences, in a feature map.

    Attributes
    ----------
    bases
        Positions of the base frequencies but zero, shape (n_bases - 1,).
    sums, differences
        Positions of the sums and of the differences of two base frequencies, shape (n_bases - 1,
        n_bases - 1).
    reversed
        Whether the difference is that of the second minus the first, of the same shape. Its feature
        is the complex conjugate.
    """

    bases: NDArray[np.intp]
    sums: NDArray[np.intp]
    differences: NDArray[np.intp]
    reversed: NDArray[np.bool_]

    @classmethod
    def of(cls, n_frequencies: int) -> FrequencyPairs:
        """Positions in a feature map with the distribution ``"gaussian-pairs"``.

        Parameters
        ----------
        n_frequencies
            Number of frequencies of the feature map.

        Examples
        --------
        >>> FrequencyPairs.of(32).bases
        array([2, 4, 6])
        """
        n_blocks = n_blocks_of_pairs(n_frequencies)
        group = np.zeros((n_blocks, n_blocks), dtype=np.intp)
        group[np.triu_indices(n_blocks)] = np.arange(n_blocks * (n_blocks + 1) // 2)
        first, second = np.indices((SIDE * n_blocks, SIDE * n_blocks))
        swapped = first // SIDE > second // SIDE
        first, second = np.where(swapped, (second, first), (first, second))
        block = group[first // SIDE, second // SIDE]
        sums = GROUP * block + 2 * SIDE * (first % SIDE) + 2 * (second % SIDE)
        used = slice(1, None)
        return cls(
            bases=sums[0, used],
            sums=sums[used, used],
            differences=sums[used, used] + 1,
            reversed=swapped[used, used],
        )

    def covariance(self, characteristic: NDArray[np.complex128]) -> Array:
        """Covariance of the features of the base frequencies, over the rows of a sketch.

        Parameters
        ----------
        characteristic
            Values of the sketch at all frequencies, shape (n_frequencies,).

        Returns
        -------
        covariance
            Covariance of the real and imaginary parts of ``exp(-i omega . x)`` side by side, shape
            (2 * (n_bases - 1), 2 * (n_bases - 1)), with the division by the number of rows.
        """
        below = characteristic[self.differences]
        below = np.where(self.reversed, below.conj(), below)
        return product_covariance(characteristic[self.bases], characteristic[self.sums], below)


def product_covariance(
    mean: NDArray[np.complex128], sums: NDArray[np.complex128], differences: NDArray[np.complex128]
) -> Array:
    """Covariance of random features, from the means of features at sums and differences.

    Parameters
    ----------
    mean
        Means of ``exp(-i omega . x)``, shape (m,).
    sums, differences
        Means of the features at the sums and the differences of two frequencies, shape (m, m).

    Returns
    -------
    covariance
        Covariance of real and imaginary parts side by side, shape (2 m, 2 m).
    """
    real = 0.5 * (differences.real + sums.real)
    imaginary = 0.5 * (differences.real - sums.real)
    mixed = 0.5 * (sums.imag + differences.imag)  # imaginary part of the row, real of the column
    both = np.concatenate([mean.real, mean.imag])
    return np.asarray(np.block([[real, mixed.T], [mixed, imaginary]]) - np.outer(both, both))
