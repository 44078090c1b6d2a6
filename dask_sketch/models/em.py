"""One step of expectation-maximisation for a mixture: sums over samples, which merge, and the step.

A mixture decoded from a sketch describes the density as a kernel sees it. A step on the samples
themselves moves it towards maximum likelihood, for one more pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.models.gaussian_mixture import GaussianMixture, RowDensity
from dask_sketch.models.model import row_blocks

_FLOOR = 1e-3  # of the mean variance of components: what each keeps at least


@dataclass(frozen=True, eq=False)
class ExpectationStatistics:
    """Sums over samples, with the probabilities ``p`` of components given the sample.

    Attributes
    ----------
    counts
        ``sum_i p(k | x_i)``, shape (n_components,).
    sums, squares
        ``sum_i p(k | x_i) y_i`` and ``sum_i p(k | x_i) y_i**2`` with ``y`` from the mean of the
        mixture, shape (n_components, n_features).
    """

    counts: NDArray[np.float64]
    sums: NDArray[np.float64]
    squares: NDArray[np.float64]

    def __add__(self, other: ExpectationStatistics) -> ExpectationStatistics:
        return ExpectationStatistics(
            self.counts + other.counts, self.sums + other.sums, self.squares + other.squares
        )


def expectation_statistics(x: ArrayLike, mixture: GaussianMixture) -> ExpectationStatistics:
    """Statistics of samples in memory.

    Parameters
    ----------
    x
        Shape (n_samples, n_features).
    mixture
        What the step is to start from.

    Raises
    ------
    InputError
        If the number of features is another, or a value is not finite.
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


def maximised(mixture: GaussianMixture, statistics: ExpectationStatistics) -> GaussianMixture:
    """The mixture after one step, whose likelihood is no smaller (Dempster, Laird, Rubin, 1977).

    Components that fall to no sample stay where they are, with no weight; variances stay above a
    thousandth of the components' mean.

    Parameters
    ----------
    mixture
        Before the step.
    statistics
        From :func:`expectation_statistics`.

    Returns
    -------
    mixture

    Raises
    ------
    InputError
        If the statistics are of another mixture, or of no sample.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(3.0, 2.0, (1000, 1))
    >>> start = GaussianMixture([1.0], [[0.0]], [[1.0]])
    >>> step = maximised(start, expectation_statistics(x, start))
    >>> bool(np.allclose(step.means, x.mean()) and np.allclose(step.covariances, x.var()))
    True
    """
    if statistics.sums.shape != mixture.means.shape:
        raise InputError(
            f"statistics are of shape {statistics.sums.shape}, the means of the mixture "
            f"{mixture.means.shape}: make them with the same mixture."
        )
    total = statistics.counts.sum()
    if not total > 0:
        raise InputError("statistics are of no samples: a step needs some.")
    seen = statistics.counts > 1e-6  # samples; fewer tell no mean
    counts = np.where(seen, statistics.counts, 1.0)[:, None]
    centred = statistics.sums / counts
    floor = _FLOOR * (mixture.weights @ mixture.covariances)
    variances = np.maximum(statistics.squares / counts - centred**2, floor)
    return GaussianMixture(
        statistics.counts / total,
        np.where(seen[:, None], centred + mixture.mean, mixture.means),
        np.where(seen[:, None], variances, mixture.covariances),
    )
