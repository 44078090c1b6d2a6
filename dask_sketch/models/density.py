"""Log-densities of diagonal Gaussian components."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Squared distance of a component from the centre, in its own variances, up to which the expanded
# quadratic loses fewer than seven of sixteen digits.
_FAR = 1e6


class RowDensity:
    """Joint log-density of samples and components.

    The quadratic is expanded, so that the work is two matrix products. That cancels when a sample
    and a mean are close to each other and far from the origin: both are taken relative to the
    mean of the mixture first, and the few components that are still many standard deviations away
    from it are done by differences.

    Parameters
    ----------
    weights, means, covariances
        As of :class:`dask_sketch.models.GaussianMixture`.
    """

    def __init__(self, weights: Array, means: Array, covariances: Array) -> None:
        self._center = weights @ means
        self._means = means - self._center
        self._precisions = 1.0 / covariances
        scaled = self._means * self._precisions
        distances = (self._means * scaled).sum(axis=1)
        with np.errstate(divide="ignore"):  # a weight of zero is a density of zero
            log_weights = np.log(weights)
        self._peaks = log_weights - 0.5 * np.log(2.0 * np.pi * covariances).sum(axis=1)
        self._constants = self._peaks - 0.5 * distances
        self._linear = scaled.T.copy()
        self._quadratic = (-0.5 * self._precisions).T.copy()
        self._far = np.flatnonzero(distances > _FAR)

    def log_joint(self, block: Array) -> Array:
        """Log of weight times density, shape (n, n_components)."""
        x = block - self._center
        joint = x @ self._linear
        joint += (x * x) @ self._quadratic
        joint += self._constants
        for k in self._far:
            joint[:, k] = self._peaks[k] - 0.5 * ((x - self._means[k]) ** 2 @ self._precisions[k])
        return np.asarray(joint)

    def log_total(self, block: Array) -> Array:
        """Log of the mixture's density, shape (n,)."""
        return self._normalise(self.log_joint(block))[1]

    def posterior(self, block: Array) -> Array:
        """Probability of each component given the sample, shape (n, n_components)."""
        return self._normalise(self.log_joint(block))[0]

    @staticmethod
    def _normalise(joint: Array) -> tuple[Array, Array]:
        """Softmax, in place, and log-sum-exp of each row."""
        largest = joint.max(axis=1)
        joint -= largest[:, None]
        np.exp(joint, out=joint)
        total = joint.sum(axis=1)
        joint /= total[:, None]
        return joint, largest + np.log(total)
