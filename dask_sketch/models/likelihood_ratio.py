"""Log-likelihood ratios of mixtures of adapted means, against the mixture they come from."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.models.density import RowDensity
from dask_sketch.models.mixture import GaussianMixture
from dask_sketch.models.rows import row_blocks

Array = NDArray[np.float64]


class LikelihoodRatios:
    """Ratios of several adapted mixtures, which share weights and covariances with the universal.

    The ratio of a sample is the mean, over the posterior of the universal mixture, of the ratios of
    its components, which are linear in the sample: one matrix product for all mixtures together, of
    half the work of their densities.

    Parameters
    ----------
    universal
        What they were adapted from.
    means
        Of each adapted mixture, shape (n_models, n_components, n_features).

    Raises
    ------
    InputError
        If the means are of another shape than the mixture's.

    Examples
    --------
    >>> universal = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[1.0], [1.0]])
    >>> ratios = LikelihoodRatios(universal, [[[-3.0], [4.0]]])
    >>> ratios.total([[4.0]]).round(3)  # of two unit normals, at their mean and one beside it
    array([0.5])
    """

    def __init__(self, universal: GaussianMixture, means: ArrayLike) -> None:
        adapted = np.asarray(means, dtype=np.float64)
        if adapted.ndim != 3 or adapted.shape[1:] != universal.means.shape:
            raise InputError(
                f"means has shape {adapted.shape}; give (n_models, *{universal.means.shape}), of "
                "mixtures adapted from this one."
            )
        self._universal = universal
        self._density = RowDensity(universal.weights, universal.means, universal.covariances)
        self._shape = adapted.shape[:2]
        self._center = universal.mean
        steps = (adapted - universal.means) / universal.covariances
        middles = 0.5 * (adapted + universal.means) - self._center
        self._linear = steps.reshape(-1, universal.n_features).T.copy()
        self._constants = -(steps * middles).sum(axis=2)

    def total(self, x: ArrayLike) -> Array:
        """Sum over samples of the logarithms of their likelihood ratios.

        Parameters
        ----------
        x
            Shape (n_samples, n_features).

        Returns
        -------
        total
            Of each adapted mixture, shape (n_models,), in nats.

        Raises
        ------
        InputError
            If the number of features is another, or a value is not finite.
        """
        total = np.zeros(self._shape[0])
        n_values = self._shape[0] * self._shape[1]
        for block in row_blocks(x, self._universal.n_features, n_values):
            total += self._of_block(block).sum(axis=0)
        return total

    def _of_block(self, block: Array) -> Array:
        joint = self._density.log_joint(block)
        ratios = ((block - self._center) @ self._linear).reshape(len(block), *self._shape)
        ratios += self._constants
        ratios += joint[:, None, :]
        return _log_sum(ratios) - _log_sum(joint)[:, None]


def _log_sum(values: Array) -> Array:
    """Logarithm of the sum of exponentials along the last axis; the values are lost."""
    largest = values.max(axis=-1)
    values -= largest[..., None]
    np.exp(values, out=values)
    return np.asarray(np.log(values.sum(axis=-1)) + largest)
