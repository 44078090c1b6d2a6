"""A rough mixture of the pilot rows: what a design knows of the components to come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dask_sketch.errors import InputError
from dask_sketch.features.lloyd import lloyd

Array = NDArray[np.float64]
_N_ITERATIONS = 50
_TOLERANCE = 1e-4  # smallest gain of one iteration, in nats per row
_FLOOR = 1e-8  # smallest variance, as a fraction of that of the rows
_LOST = 1e-6  # rows like all others that every component has, so that none is without any


@dataclass(frozen=True)
class PilotMixture:
    """Components of a mixture of Gaussians with diagonal covariances.

    Attributes
    ----------
    weights
        Shape (n_components,), summing to one.
    means, variances
        Shape (n_components, n_features).
    score
        Mean log-likelihood of the rows, in nats, before the last iteration.
    """

    weights: Array
    means: Array
    variances: Array
    score: float


def fit_pilot(rows: Array, n_components: int, seed: int = 0) -> PilotMixture:
    """Fit a mixture to a few rows by expectation-maximisation, starting from k-means.

    It sees every row in every iteration, and is as good as the few thousand rows of a pilot allow:
    good enough for how wide components are, which is all that frequencies depend on.

    Parameters
    ----------
    rows
        Shape (n, n_features), finite; every feature must vary.
    n_components
        Number ``K`` of components, from 1 to n.
    seed
        Seed of the start.

    Returns
    -------
    mixture

    Raises
    ------
    InputError
        If there are fewer rows than components, or a feature does not vary.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = np.concatenate([rng.normal(-3.0, 1.0, (1000, 1)), rng.normal(3.0, 0.5, (1000, 1))])
    >>> sorted(np.sqrt(fit_pilot(rows, n_components=2).variances).ravel().round(1).tolist())
    [0.5, 1.0]
    """
    center, deviation = rows.mean(axis=0), rows.std(axis=0)
    if not (deviation > 0.0).all():
        still = np.flatnonzero(~(deviation > 0.0)).tolist()
        raise InputError(f"features {still} do not vary: a mixture has no width there.")
    x = (rows - center) / deviation
    clusters = lloyd(x, n_components, n_starts=1, seed=seed)
    centers = clusters.centers
    nearest = (np.square(centers).sum(axis=1) - 2.0 * x @ centers.T).argmin(axis=1)
    share = np.eye(n_components)[nearest]
    score = -np.inf
    for _ in range(_N_ITERATIONS):
        weights, means, variances = _maximise(x, share)
        joint = _log_joint(x, weights, means, variances)
        total = special.logsumexp(joint, axis=1, keepdims=True)
        share = np.exp(joint - total)
        previous, score = score, float(total.mean())
        if score < previous + _TOLERANCE:
            break
    return PilotMixture(
        weights=weights,
        means=center + deviation * means,
        variances=deviation**2 * variances,
        score=score - float(np.log(deviation).sum()),
    )


def _maximise(x: Array, share: Array) -> tuple[Array, Array, Array]:
    """Weights, means and variances from the probabilities (n, K) of the components."""
    total = share.sum(axis=0) + _LOST
    means = (share.T @ x) / total[:, None]
    squares = (share.T @ x**2 + _LOST) / total[:, None]
    return total / total.sum(), means, np.maximum(squares - means**2, _FLOOR)


def _log_joint(x: Array, weights: Array, means: Array, variances: Array) -> Array:
    """Logarithm of weight times density, shape (n, K)."""
    constants = np.log(weights) - 0.5 * np.log(2.0 * np.pi * variances).sum(axis=1)
    constants -= 0.5 * (means**2 / variances).sum(axis=1)
    return np.asarray(constants + x @ (means / variances).T - 0.5 * (x**2 @ (1.0 / variances).T))
