"""Mixtures of Gaussians and rows with missing values: marginals, conditional means, and EM.

A missing value is NaN. The density of a row is the marginal density of its observed values; a row
without any has the density one. That is right where values are missing at random (Little and Rubin
2019, section 6.2).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dask_sketch.models.smallest_variance import MIN_VARIANCE, smallest_variances

Array = NDArray[np.float64]
_FILLED_ITERATIONS = 30  # iterations of EM on the observed values before missing ones are drawn
_MAX_GIVERS = 1000  # rows with the most values, of which one is nearest


def log_joint_observed(weights: Array, means: Array, covariances: Array, rows: Array) -> Array:
    """Log of weight times density of the observed values, shape (n, n_components).

    Parameters
    ----------
    weights, means, covariances
        Arguments of :class:`~dask_sketch.models.density.RowDensity`.
    rows
        Rows with NaN where values are missing, shape (n, n_features).

    Examples
    --------
    >>> one = np.ones((1, 2))
    >>> log_joint_observed(np.ones(1), 0 * one, one, np.array([[0.0, np.nan]])).round(3)
    array([[-0.919]])
    """
    with np.errstate(divide="ignore"):  # a weight of zero is a density of zero
        joint = np.tile(np.log(weights), (len(rows), 1))
    if covariances.ndim == 2:
        seen = ~np.isnan(rows)
        for k, (mean, variance) in enumerate(zip(means, covariances, strict=True)):
            squares = np.where(seen, (rows - mean) ** 2 / variance, 0.0).sum(axis=1)
            joint[:, k] -= 0.5 * (squares + seen @ np.log(2.0 * np.pi * variance))
        return joint
    for seen, chosen in _patterns(rows):
        if not seen.any():
            continue
        for k, mean in enumerate(means):
            matrix = covariances[k if len(covariances) > 1 else 0][np.ix_(seen, seen)]
            lower = np.linalg.cholesky(matrix)
            white = np.linalg.solve(lower, (rows[np.ix_(chosen, seen)] - mean[seen]).T)
            half = np.log(np.diagonal(lower)).sum() + 0.5 * seen.sum() * np.log(2.0 * np.pi)
            joint[chosen, k] -= 0.5 * np.einsum("dn,dn->n", white, white) + half
    return joint


def conditional_means(
    means: Array, covariances: Array, responsibilities: Array, rows: Array
) -> Array:
    """Rows whose missing values are replaced by their means given the observed ones.

    Parameters
    ----------
    means
        Means, shape (n_components, n_features).
    covariances
        Covariances, as in :func:`log_joint_observed`.
    responsibilities
        Probabilities of the components given the observed values, shape (n, n_components).
    rows
        Rows with NaN where values are missing, shape (n, n_features).
    """
    if covariances.ndim == 2:
        return np.where(np.isnan(rows), responsibilities @ means, rows)
    filled = rows.copy()
    for seen, chosen in _patterns(rows):
        if seen.all():
            continue
        block = np.zeros((len(chosen), int((~seen).sum())))
        for k, mean in enumerate(means):
            matrix = covariances[k if len(covariances) > 1 else 0]
            away = rows[np.ix_(chosen, seen)] - mean[seen]
            slope = np.linalg.solve(matrix[np.ix_(seen, seen)], matrix[np.ix_(seen, ~seen)])
            block += responsibilities[chosen, k, None] * (mean[~seen] + away @ slope)
        filled[np.ix_(chosen, ~seen)] = block
    return filled


def _patterns(rows: Array) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
    """Yield distinct patterns of observed features, with the rows that have them."""
    patterns, of = np.unique(~np.isnan(rows), axis=0, return_inverse=True)
    order = np.argsort(of.reshape(-1), kind="stable")
    counts = np.bincount(of.reshape(-1), minlength=len(patterns))
    yield from zip(patterns, np.split(order, np.cumsum(counts)[:-1]), strict=True)


def fit_observed(
    rows: Array, weights: Array, means: Array, variances: Array, n_iterations: int
) -> tuple[Array, Array, Array]:
    """Maximise the likelihood of observed values by EM, for diagonal covariances.

    Given its component, a missing value is independent of all others, so that sums over the
    observed values are enough.

    Parameters
    ----------
    rows
        Rows with NaN where values are missing, shape (n, n_features).
    weights, means, variances
        Mixture to start from: shape (n_components,), and twice (n_components, n_features).
    n_iterations
        Number of iterations.

    Returns
    -------
    weights, means, variances
        Mixture after these iterations.
    """
    seen = ~np.isnan(rows)
    values = np.where(seen, rows, 0.0)
    indicators = seen.astype(np.float64)
    counts = indicators.sum(axis=0)
    mean = values.sum(axis=0) / np.maximum(counts, 1.0)
    spread = (seen * (values - mean) ** 2).sum(axis=0) / np.maximum(counts, 1.0)
    floor = np.where(spread > 0.0, smallest_variances(rows, spread)[0], MIN_VARIANCE)
    variances = np.maximum(variances, floor)
    for _ in range(n_iterations):
        joint = log_joint_observed(weights, means, variances, rows)
        joint -= joint.max(axis=1, keepdims=True)
        responsibilities = np.exp(joint)
        responsibilities /= responsibilities.sum(axis=1, keepdims=True)
        weights = responsibilities.mean(axis=0)
        masses = responsibilities.T @ indicators
        known = masses > 1e-9 * len(rows)
        divisors = np.where(known, masses, 1.0)
        means = np.where(known, responsibilities.T @ values / divisors, means)
        # about the means of the data, whose squares lose no digits
        away = np.where(seen, values - mean, 0.0)
        squares = (
            responsibilities.T @ away**2 / divisors - (responsibilities.T @ away / divisors) ** 2
        )
        variances = np.where(known, np.maximum(squares, floor), variances)
    return weights, means, variances


def fill_rows(rows: Array, mixture: tuple[Array, Array, Array], rng: np.random.Generator) -> Array:
    """Rows whose missing values are drawn given the observed ones, from a mixture fitted to them.

    Parameters
    ----------
    rows
        Rows with NaN where values are missing, shape (n, n_features).
    mixture
        Weights, means and variances from which EM on the observed values starts.
    rng
        Random number generator.
    """
    weights, means, variances = fit_observed(rows, *mixture, _FILLED_ITERATIONS)
    joint = log_joint_observed(weights, means, variances, rows)
    # a component by the largest of logarithms with Gumbel noise
    labels = (joint + rng.gumbel(size=joint.shape)).argmax(axis=1)
    drawn = means[labels] + np.sqrt(variances[labels]) * rng.standard_normal(rows.shape)
    return np.where(np.isnan(rows), drawn, rows)


def fill_from_others(rows: Array, rng: np.random.Generator) -> Array:
    """Rows whose missing values are observed values of the same feature in other rows.

    Parameters
    ----------
    rows
        Rows with NaN where values are missing, shape (n, n_features); each feature has a value.
    rng
        Random number generator.
    """
    filled = rows.copy()
    for column in filled.T:
        missing = np.isnan(column)
        column[missing] = rng.choice(column[~missing], int(missing.sum()))
    return filled


def fill_from_near(rows: Array, rng: np.random.Generator) -> Array:
    """Rows whose missing values are those of the nearest row that has the feature.

    Near is what the distance over common features says, in standard deviations, with two squares,
    the mean of two independent values, for each feature that is not common. Unlike values of any
    other row, these keep clusters apart.

    Parameters
    ----------
    rows
        Rows with NaN where values are missing, shape (n, n_features); each feature has a value.
    rng
        Random number generator, which chooses among rows with equally many values those that give.
    """
    seen = ~np.isnan(rows)
    deviations = np.nanstd(rows, axis=0)
    z = (rows - np.nanmean(rows, axis=0)) / np.where(deviations > 0.0, deviations, 1.0)
    z, known = np.where(seen, z, 0.0), seen.astype(np.float64)
    givers = np.argsort(rng.random(len(rows)) - seen.sum(axis=1), kind="stable")[:_MAX_GIVERS]
    given, theirs = z[givers], known[givers]
    squares = np.square(z) @ theirs.T + known @ np.square(given).T - 2.0 * z @ given.T
    squares += 2.0 * (rows.shape[1] - known @ theirs.T)
    squares[givers, np.arange(len(givers))] = np.inf
    filled = fill_from_others(rows, rng)
    for feature in range(rows.shape[1]):
        missing, having = np.flatnonzero(~seen[:, feature]), np.flatnonzero(seen[givers, feature])
        if len(missing) and len(having):
            nearest = squares[np.ix_(missing, having)].argmin(axis=1)
            filled[missing, feature] = rows[givers[having[nearest]], feature]
    return filled
