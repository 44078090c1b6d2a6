"""Maximum-a-posteriori adaptation of a mixture's means to a few samples.

The statistics of the samples are sums, and so merge as sketches do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.models.density import RowDensity
from dask_sketch.models.mixture import GaussianMixture
from dask_sketch.models.rows import row_blocks

RELEVANCE = 16.0


@dataclass(frozen=True, eq=False)
class AdaptationStatistics:
    """Sums over samples that adapt a mixture.

    Attributes
    ----------
    counts
        ``sum_i p(k | x_i)``, shape (n_components,).
    sums
        ``sum_i p(k | x_i) x_i``, shape (n_components, n_features).
    """

    counts: NDArray[np.float64]
    sums: NDArray[np.float64]

    def __add__(self, other: AdaptationStatistics) -> AdaptationStatistics:
        return AdaptationStatistics(self.counts + other.counts, self.sums + other.sums)


def adaptation_statistics(x: ArrayLike, mixture: GaussianMixture) -> AdaptationStatistics:
    """Statistics of samples in memory.

    Parameters
    ----------
    x
        Shape (n_samples, n_features).
    mixture
        What is to be adapted.

    Raises
    ------
    InputError
        If the number of features is another, or a value is not finite.
    """
    counts, sums = np.zeros(mixture.n_components), np.zeros(mixture.means.shape)
    density = RowDensity(mixture.weights, mixture.means, mixture.covariances)
    for block in row_blocks(x, mixture.n_features, mixture.n_components):
        share = density.posterior(block)
        counts += share.sum(axis=0)
        sums += share.T @ block
    return AdaptationStatistics(counts, sums)


def adapt_means(
    mixture: GaussianMixture, statistics: AdaptationStatistics, relevance: float = RELEVANCE
) -> GaussianMixture:
    """One step towards the samples, where there are enough of them.

    Component ``k`` moves to ``a_k E_k[x] + (1 - a_k) mu_k`` with ``a_k = n_k / (n_k + relevance)``;
    weights and covariances stay (Reynolds, Quatieri and Dunn, 2000, eqs. 12 and 14).

    Parameters
    ----------
    mixture
        The universal model.
    statistics
        From :func:`adaptation_statistics`, of one speaker.
    relevance
        Samples of a component that count as much as the universal model, ``> 0``.

    Returns
    -------
    mixture
        Of the speaker.

    Raises
    ------
    InputError
        If the statistics are of another mixture, or the relevance is not positive.

    Examples
    --------
    >>> universal = GaussianMixture([0.5, 0.5], [[-9.0], [9.0]], [[1.0], [1.0]])
    >>> heard = adaptation_statistics(np.full((16, 1), 10.0), universal)
    >>> adapt_means(universal, heard, relevance=16.0).means.round(6).ravel()
    array([-9. ,  9.5])
    """
    if statistics.sums.shape != mixture.means.shape:
        raise InputError(
            f"statistics are of shape {statistics.sums.shape}, the means of the mixture "
            f"{mixture.means.shape}: make them with the same mixture."
        )
    if not 0 < relevance < np.inf:
        raise InputError(f"relevance={relevance!r}: give a positive number of samples.")
    # a n / (n + r) of the mean of the samples is their sum over n + r: nothing is divided by zero
    total = statistics.counts[:, None] + relevance
    means = (statistics.sums + relevance * mixture.means) / total
    return GaussianMixture(mixture.weights, means, mixture.covariances)
