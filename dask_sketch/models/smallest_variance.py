"""Smallest variances that fits to rows allow, also where a few of the rows are far out.

The likelihood of a mixture has no bound as components narrow to values that rows share. The
smallest variance of fits to a sketch is in :mod:`dask_sketch.decoders.objectives.atoms`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MIN_VARIANCE = 1e-6  # smallest variance, as a fraction of the variance of the rows
# Largest one, as a fraction of the variance of the middle of the values; but not below this
# fraction of the largest squared distance from it, since sums of squares lose digits there.
_OF_MIDDLE, _OF_RANGE = 1e-4, 1e-14
_HALF_OF_NORMAL = 1.349  # width that holds half of a normal distribution, in deviations
# Multiple of the smallest variance up to which a variance counts as the smallest, and rows of a
# component that show whether it is
AT_FLOOR, _MIN_HELD = 1.5, 20
_TINY = np.finfo(float).tiny


def smallest_variances(rows: Array, variances: Array) -> tuple[Array, Array]:
    """Smallest variance of a component in each feature, and where most rows are.

    A millionth of the variance of the rows is far below the variances of most clusters, but not
    where a few rows are far out, such as a code of 999999 for missing values. So the smallest
    variance is also at most 1e-4 of the variance of the middle of the values: the shortest interval
    that holds half of the distinct ones, as of a normal distribution.

    Parameters
    ----------
    rows
        Rows, shape (n, n_features), with NaN where values are missing.
    variances
        Variances of the observed values, shape (n_features,).

    Returns
    -------
    smallest
        Smallest variances, shape (n_features,); zero in features that do not vary.
    middle
        Centers of these intervals, shape (n_features,).

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(1000, 1))
    >>> rows[:20] = 1e4
    >>> smallest, middle = smallest_variances(rows, rows.var(axis=0))
    >>> bool(smallest[0] < 1.2e-4), bool(abs(middle[0]) < 0.2)
    (True, True)
    """
    smallest, middle = MIN_VARIANCE * variances, np.empty(rows.shape[1])
    for j, column in enumerate(np.ascontiguousarray(rows.T)):
        values = np.unique(column[~np.isnan(column)])
        if len(values) < 2:
            middle[j] = values[0] if len(values) else 0.0
            continue
        half = len(values) // 2
        widths = values[half:] - values[: len(values) - half]
        first = int(widths.argmin())
        middle[j] = 0.5 * (values[first] + values[first + half])
        farthest = max(values[-1] - middle[j], middle[j] - values[0])
        of_middle = _OF_MIDDLE * (float(widths[first]) / _HALF_OF_NORMAL) ** 2
        smallest[j] = min(smallest[j], max(of_middle, _OF_RANGE * farthest**2))
    return smallest, middle


def losses_by_floor(
    rows: Array, nearest: NDArray[np.intp], weights: Array, variances: Array, floor: Array
) -> tuple[Array, Array, Array]:
    """Losses of log-likelihood by variances that are held at a floor, unless rows share values.

    Parameters
    ----------
    rows
        Rows, shape (n, n_features).
    nearest
        Component of each row, shape (n,).
    weights, variances
        Weights (n_components,) and variances (n_components, n_features) of the components.
    floor
        Smallest variance in each feature, shape (n_features,).

    Returns
    -------
    losses, fractions, values
        Shape (n_components, n_features): loss in nats a sample where the rows of a component are
        narrower than the floor; its weight where half of its rows or more share values; and the
        median of these values. Zero elsewhere, and for components of under 20 rows.

    Examples
    --------
    >>> rows = np.linspace(0.0, 1e-3, 50)[:, None]
    >>> one = np.ones((1, 1))
    >>> losses_by_floor(rows, np.zeros(50, int), np.ones(1), one, np.ones(1))[0].round(1)
    array([[7.6]])
    """
    narrow = variances < AT_FLOOR * floor
    losses, fractions, values = (np.zeros_like(variances) for _ in range(3))
    for k in np.flatnonzero(narrow.any(axis=1)):
        members = rows[nearest == k]
        for j in np.flatnonzero(narrow[k]) if len(members) >= _MIN_HELD else ():
            ratio = float(members[:, j].var()) / max(float(floor[j]), _TINY)
            if 2 * len(np.unique(members[:, j])) <= len(members):
                fractions[k, j], values[k, j] = weights[k], np.median(members[:, j])
            elif ratio < 1.0:
                losses[k, j] = 0.5 * weights[k] * (ratio - 1.0 - np.log(max(ratio, _TINY)))
    return losses, fractions, values
