"""Expectation-maximisation: mergeable statistics of the samples, and one step.

A mixture decoded from a sketch minimises a kernel distance. A step of EM, with one more pass over
the samples, moves it towards maximum likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.models.gaussian_mixture import GaussianMixture, RowDensity
from dask_sketch.models.model import row_blocks

_FLOOR = 1e-3  # smallest variance, as a fraction of the mean variance of the components


@dataclass(frozen=True, eq=False)
class ExpectationStatistics:
    """Sums over samples, weighted by the probabilities ``p`` of the components given the sample.

    Attributes
    ----------
    counts
        Sums ``sum_i p(k | x_i)``, shape (n_components,).
    sums, squares
        Sums ``sum_i p(k | x_i) y_i`` and ``sum_i p(k | x_i) y_i**2``, where ``y`` is relative to
        the mean of the mixture, shape (n_components, n_features).
    """

    counts: NDArray[np.float64]
    sums: NDArray[np.float64]
    squares: NDArray[np.float64]

    def __add__(self, other: ExpectationStatistics) -> ExpectationStatistics:
        return ExpectationStatistics(
            self.counts + other.counts, self.sums + other.sums, self.squares + other.squares
        )


def expectation_statistics(x: ArrayLike, mixture: GaussianMixture) -> ExpectationStatistics:
    """Compute the statistics of samples in memory.

    Parameters
    ----------
    x
        Samples, shape (n_samples, n_features).
    mixture
        Mixture before the step.

    Raises
    ------
    InputError
        If the number of features differs, or a value is not finite.
    """
    density = RowDensity(mixture.weights, mixture.means, mixture.covariances)
    counts = np.zeros(mixture.n_components)
    sums, squares = np.zeros(mixture.means.shape), np.zeros(mixture.means.shape)
    for block in row_blocks(x, mixture.n_features, mixture.n_components):
        share = density.posterior(block)
        centred = block - mixture.mean
        counts += share.sum(axis=0)
        sums += share.T @ centred
        squares += share.T @ centred**2
    return ExpectationStatistics(counts, sums, squares)


def maximization_step(
    mixture: GaussianMixture, statistics: ExpectationStatistics
) -> GaussianMixture:
    """Perform one step of EM, which does not decrease the likelihood (Dempster et al. 1977).

    Components without samples keep their mean and variances, with zero weight. Variances are at
    least a thousandth of the mean variance of the components.

    Parameters
    ----------
    mixture
        Mixture before the step.
    statistics
        Statistics of :func:`expectation_statistics`.

    Returns
    -------
    mixture
        Mixture after the step.

    Raises
    ------
    InputError
        If the statistics belong to another mixture, or to no samples.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(3.0, 2.0, (1000, 1))
    >>> start = GaussianMixture([1.0], [[0.0]], [[1.0]])
    >>> step = maximization_step(start, expectation_statistics(x, start))
    >>> bool(np.allclose(step.means, x.mean()) and np.allclose(step.covariances, x.var()))
    True
    """
    if statistics.sums.shape != mixture.means.shape:
        raise InputError(
            f"statistics are of shape {statistics.sums.shape}, the means of the mixture "
            f"{mixture.means.shape}: compute them with the same mixture."
        )
    total = statistics.counts.sum()
    if not total > 0:
        raise InputError("statistics has a total count of 0: compute it from at least one sample.")
    seen = statistics.counts > 1e-6  # samples; fewer do not determine a mean
    counts = np.where(seen, statistics.counts, 1.0)[:, None]
    centred = statistics.sums / counts
    floor = _FLOOR * (mixture.weights @ mixture.covariances)
    variances = np.maximum(statistics.squares / counts - centred**2, floor)
    return GaussianMixture(
        statistics.counts / total,
        np.where(seen[:, None], centred + mixture.mean, mixture.means),
        np.where(seen[:, None], variances, mixture.covariances),
    )
