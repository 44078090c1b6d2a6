"""What noise leaves of the cost at the best fit (ours).

At the law of the samples the cost is the noise level on average. The best fit costs less, since it
has bent to the noise: the cost is then the energy of the noise outside of the span of the
derivatives. Were the noise white, that would be the share ``1 - P / 2m``; the entries of a sketch
are so correlated that it is a third to a half of the noise level at ``m = 5 P``.
"""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.families import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import Fit

# Drawn from the mixture to estimate the covariance of a sketch's entries: the mean cost is then
# known to an eighth of its deviation.
_POINTS = 64
_DEVIATIONS = 3.0  # above the expected cost that noise explains
_RIDGE = 1e-9  # of the curvatures, so that coincident atoms leave the equations solvable


def expected_cost(
    objective: Objective, weights: Array, theta: Array, rng: np.random.Generator
) -> tuple[float, float]:
    """Mean and standard deviation of the cost at the best fit, if the mixture is the samples' law.

    The sketch of one sample, less the mixture's, is a draw ``v`` of the noise times ``sqrt(n)``.
    With ``Q`` the projection beside the span of the derivatives, the cost has the mean
    ``E |Q v|^2 / n`` and the variance ``2 E (Q v . Q v')^2 / n^2`` over independent ``v, v'``. Both
    are estimated from points of the mixture.

    Parameters
    ----------
    objective
        Atoms and their derivatives.
    weights
        Shape (K,), not all zero.
    theta
        Shape (K, n_parameters).
    rng
        Source of the points.

    Returns
    -------
    mean, deviation
        In the unit of the cost.
    """
    share = weights / weights.sum()
    labels = rng.choice(len(share), _POINTS, p=share)
    draws = rng.standard_normal((_POINTS, objective.n_features))
    x = theta[labels, : objective.n_features] + draws * np.sqrt(objective.variances(theta))[labels]
    noise = objective.points(x)
    if objective.private_variance:
        # what was added is as good as white, and of every sample a share
        deviation = np.sqrt(objective.effective_count * objective.private_variance)
        amplitude = np.tile(objective.feature_weights / np.sqrt(objective.n_frequencies), 2)
        noise += deviation * amplitude * rng.standard_normal(noise.shape)
    noise -= noise.mean(axis=0)
    halves = noise.reshape(_POINTS, 2, -1)

    gram = objective.gram(weights, theta)
    scale = 1.0 / np.sqrt(np.maximum(np.diagonal(gram), np.finfo(float).tiny))
    gram *= scale
    gram *= scale[:, None]
    gram.reshape(-1)[:: len(gram) + 1] += _RIDGE
    inner = np.zeros((len(gram), _POINTS))
    for block, rows in objective.jacobian_blocks(weights, theta):
        inner += np.tensordot(rows, halves[:, :, block], axes=((1, 2), (1, 2)))
    solved = scale[:, None] * objective.factored(gram)(scale[:, None] * inner)
    # |Q v|^2 and products of pairs: those of v less those of its projection
    products = noise @ noise.T - inner.T @ solved
    n = objective.effective_count
    # the mean of the points has been removed: one degree of freedom less
    mean = float(np.trace(products)) / (_POINTS - 1) / n
    pairs = products - np.diag(np.diagonal(products))
    deviation = np.sqrt(2.0 * float(np.sum(pairs**2)) / (_POINTS * (_POINTS - 1))) / n
    return max(mean, 0.0), float(deviation)


def is_explained(objective: Objective, fit: Fit, rng: np.random.Generator) -> bool:
    """Whether noise explains the cost of a fit: no better fit then says more about the data."""
    if not fit.weights.any():
        return False
    mean, deviation = expected_cost(objective, fit.weights, fit.theta, rng)
    return fit.cost <= mean + _DEVIATIONS * deviation
