"""Compiled inner loops of Gaussians with full covariance matrices, over blocks of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.validation.compilation import cached_njit

Array = NDArray[np.float64]
_ROWS = 64  # rows of one block: each of its features is a line of the cache or a few


def squared_distances(rows: Array, means: Array, lower: NDArray[np.floating[Any]]) -> Array:
    """Squared Mahalanobis distance of each row from each mean.

    Parameters
    ----------
    rows, means
        Points, shapes (n_rows, n_features) and (n_means, n_features).
    lower
        Cholesky factor of the covariance of each mean, shape (n_means, n_features, n_features).

    Returns
    -------
    distances
        Shape (n_means, n_rows).

    Examples
    --------
    >>> rows, means = np.array([[3.0, 4.0]]), np.zeros((1, 2))
    >>> squared_distances(rows, means, 2.0 * np.eye(2)[None])
    array([[6.25]])
    """
    out = np.empty((len(means), len(rows)))
    _distances(np.ascontiguousarray(rows), np.ascontiguousarray(means), lower, out)
    return out


@cached_njit(nogil=True, error_model="numpy", fastmath={"contract"})
def _distances(rows, means, lower, out):  # type: ignore[no-untyped-def]
    n, d = rows.shape
    x, z = np.zeros((d, _ROWS)), np.empty((d, _ROWS))
    for first in range(0, n, _ROWS):
        size: Any = min(_ROWS, n - first)
        for r in range(size):
            for i in range(d):
                x[i, r] = rows[first + r, i]
        for k in range(len(means)):
            total = np.zeros(_ROWS)
            for i in range(d):
                solved, mean = z[i], means[k, i]
                for r in range(_ROWS):
                    solved[r] = x[i, r] - mean
                entries, fours = lower[k, i], i - i % 4  # four at a time stay in registers
                for j in range(0, fours, 4):
                    e0, e1, e2, e3 = entries[j], entries[j + 1], entries[j + 2], entries[j + 3]
                    z0, z1, z2, z3 = z[j], z[j + 1], z[j + 2], z[j + 3]
                    for r in range(_ROWS):
                        solved[r] -= e0 * z0[r] + e1 * z1[r] + e2 * z2[r] + e3 * z3[r]
                for j in range(fours, i):
                    entry, known = entries[j], z[j]
                    for r in range(_ROWS):
                        solved[r] -= entry * known[r]
                scale = 1.0 / lower[k, i, i]
                for r in range(_ROWS):
                    solved[r] *= scale
                    total[r] += solved[r] * solved[r]
            for r in range(size):
                out[k, first + r] = total[r]


def add_second_moments(moments: Array, weights: Array, rows: Array) -> None:
    """Add the weighted second moments of rows, in place.

    Parameters
    ----------
    moments
        Sums, symmetric, shape (n_components, n_features, n_features).
    weights
        Weight of each row in each component, shape (n_components, n_rows).
    rows
        Rows, shape (n_rows, n_features).

    Examples
    --------
    >>> moments = np.zeros((1, 2, 2))
    >>> add_second_moments(moments, np.array([[2.0]]), np.array([[3.0, 4.0]]))
    >>> moments
    array([[[18., 24.],
            [24., 32.]]])
    """
    _add_moments(moments, np.ascontiguousarray(weights), np.ascontiguousarray(rows))


@cached_njit(nogil=True, fastmath={"contract", "reassoc"})
def _add_moments(moments, weights, rows):  # type: ignore[no-untyped-def]
    n, d = rows.shape
    x, y = np.zeros((d, _ROWS)), np.zeros((d, _ROWS))
    mass = np.zeros(_ROWS)
    for first in range(0, n, _ROWS):
        size: Any = min(_ROWS, n - first)
        for r in range(size):
            for i in range(d):
                x[i, r] = rows[first + r, i]
        for k in range(len(weights)):
            mass[size:] = 0.0
            empty = True
            for r in range(size):
                mass[r] = weights[k, first + r]
                empty = empty and mass[r] == 0.0
            if empty:
                continue
            for i in range(d):
                for r in range(_ROWS):
                    y[i, r] = mass[r] * x[i, r]
                left, sums, fours = y[i], moments[k, i], i + 1 - (i + 1) % 4
                for j in range(0, fours, 4):
                    x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
                    s0 = s1 = s2 = s3 = 0.0
                    for r in range(_ROWS):
                        s0 += left[r] * x0[r]
                        s1 += left[r] * x1[r]
                        s2 += left[r] * x2[r]
                        s3 += left[r] * x3[r]
                    sums[j] += s0
                    sums[j + 1] += s1
                    sums[j + 2] += s2
                    sums[j + 3] += s3
                for j in range(fours, i + 1):
                    right, total = x[j], 0.0
                    for r in range(_ROWS):
                        total += left[r] * right[r]
                    sums[j] += total
    for k in range(len(weights)):
        for i in range(d):
            for j in range(i):
                moments[k, j, i] = moments[k, i, j]
