"""Merging of atoms that lie on top of each other (ours, and only when asked for)."""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.descent import descend_fully
from dask_sketch.decoders.families import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import Fit

# Overlap of two densities, the integral of the root of their product, from which they count as one:
# two equal Gaussians have it at half a standard deviation from each other.
OVERLAP = 0.97
APART = 0.5  # of points, in scales of the frequency law


def coincident(means: Array, variances: Array) -> Array:
    """Whether each pair of atoms (K, K) counts as one, in normalised coordinates.

    Gaussians do if their Bhattacharyya coefficient, the integral of ``sqrt(p q)``, is above 0.97:
    half a standard deviation apart if of one width. Points, whose variances are zero, do if nearer
    than half the scale of the frequency law.

    Parameters
    ----------
    means, variances
        Shape (K, n_features).
    """
    squares = np.square(means[:, None] - means)
    if not variances.any():
        return np.asarray(squares.sum(axis=2) < APART**2)
    mean = 0.5 * (variances[:, None] + variances)
    logs = 0.5 * np.log(variances)
    exponent = -0.125 * squares / mean + 0.5 * (logs[:, None] + logs - np.log(mean))
    return np.asarray(exponent.sum(axis=2) > np.log(OVERLAP))


def merge_coincident(objective: Objective, fit: Fit) -> Fit:
    """Make one atom of each pair that counts as one, the nearest in its moments, and descend.

    Parameters
    ----------
    objective
        Atoms and cost.
    fit
        Of any number of atoms.

    Returns
    -------
    fit
        Of as many atoms or fewer, no two of them coincident when the descent began.
    """
    weights, theta = fit.weights, fit.theta
    d = objective.n_features
    while True:
        close = np.triu(coincident(theta[:, :d], objective.variances(theta)), 1)
        if not close.any():
            break
        k, other = np.argwhere(close)[0]
        share = weights[[k, other]] / max(float(weights[[k, other]].sum()), np.finfo(float).tiny)
        if not share.any():
            share = np.full(2, 0.5)
        merged = share @ theta[[k, other]]
        between = share[0] * share[1] * np.square(theta[k, :d] - theta[other, :d])
        merged[d:] += objective.family.nearest(between)
        theta = np.vstack([np.delete(theta, [k, other], axis=0), merged])
        weights = np.append(np.delete(weights, [k, other]), weights[[k, other]].sum())
    if len(theta) == len(fit.theta):
        return fit
    theta = np.clip(theta, objective.lower, objective.upper)
    return descend_fully(objective, theta, weights)
