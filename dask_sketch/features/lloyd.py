"""K-means of points in memory, by Lloyd's algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dask_sketch.errors import InputError

Array = NDArray[np.float64]
_N_ITERATIONS = 300
_TOLERANCE = 1e-4  # smallest decrease of one iteration, relative to what is left


@dataclass(frozen=True)
class Partition:
    """Clusters of weighted points.

    Attributes
    ----------
    centers
        Shape (n_clusters, n_features).
    shares
        Fraction of the weight in each cluster, shape (n_clusters,); they sum to one.
    inertia
        Mean squared distance to the nearest centre.
    """

    centers: Array
    shares: Array
    inertia: float


def lloyd(
    points: Array,
    n_clusters: int,
    *,
    weights: Array | None = None,
    n_starts: int = 5,
    seed: int = 0,
) -> Partition:
    """Centres that the mean squared distance of the points to the nearest one is least for.

    Lloyd's iterations from greedy k-means++ starts (Arthur and Vassilvitskii 2007): each new centre
    is the best of a few points drawn by their squared distance to the centres so far.

    Parameters
    ----------
    points
        Shape (n, n_features), finite.
    n_clusters
        Number of centres, from 1 to n.
    weights
        Weights of the points, shape (n,), not negative; equal when not given.
    n_starts
        Number of starts; the best end is returned.
    seed
        Seed of the starts.

    Returns
    -------
    partition
        A cluster that loses all its points keeps its centre, with a share of zero.

    Raises
    ------
    InputError
        If there are fewer points than clusters.

    Examples
    --------
    >>> points = np.array([[0.0], [1.0], [10.0], [12.0]])
    >>> sorted(lloyd(points, 2).centers.ravel().tolist())
    [0.5, 11.0]
    """
    if not 1 <= n_clusters <= len(points):
        raise InputError(
            f"n_clusters={n_clusters!r}: there are {len(points)} points; give 1 to {len(points)}."
        )
    share = np.full(len(points), 1.0) if weights is None else np.asarray(weights, dtype=np.float64)
    share = share / share.sum()
    origin = share @ points  # relative to the mean, squared distances keep their digits
    moved = points - origin
    rng = np.random.default_rng(seed)
    # one BLAS thread: more are slower for such narrow matrices, and rounding would depend on them
    with threadpool_limits(1, user_api="blas"):
        starts = [_start(moved, share, n_clusters, rng) for _ in range(n_starts)]
        ends = [_descend(moved, share, start) for start in starts]
    best = min(ends, key=lambda end: end.inertia)
    return Partition(best.centers + origin, best.shares, best.inertia)


def _start(points: Array, share: Array, n_clusters: int, rng: np.random.Generator) -> Array:
    """Greedy k-means++."""
    n_trials = 2 + int(np.log(n_clusters))
    squares = np.einsum("ij,ij->i", points, points)
    centers = points[rng.choice(len(points), 1, p=share)]
    nearest = _squared(points, squares, centers)[:, 0]
    for _ in range(n_clusters - 1):
        mass = np.cumsum(share * nearest)
        if not mass[-1] > 0.0:  # fewer distinct points than centres
            return np.concatenate([centers, np.repeat(centers[:1], n_clusters - len(centers), 0)])
        trials = np.searchsorted(mass, rng.random(n_trials) * mass[-1], side="right")
        away = np.minimum(nearest[:, None], _squared(points, squares, points[trials]))
        best = int((share @ away).argmin())
        nearest = away[:, best]
        centers = np.concatenate([centers, points[trials[best]][None, :]])
    return centers


def _descend(points: Array, share: Array, centers: Array) -> Partition:
    """Lloyd's iterations."""
    squares = np.einsum("ij,ij->i", points, points)
    weighted = share[:, None] * points
    inertia = np.inf
    for _ in range(_N_ITERATIONS):
        away = _squared(points, squares, centers)
        labels = away.argmin(axis=1)
        before, inertia = inertia, float(share @ away[np.arange(len(points)), labels])
        if before - inertia <= _TOLERANCE * inertia:
            break
        mass = np.bincount(labels, weights=share, minlength=len(centers))
        sums = np.stack(
            [np.bincount(labels, weights=column, minlength=len(centers)) for column in weighted.T],
            axis=1,
        )
        centers = np.where(mass[:, None] > 0.0, sums / np.maximum(mass, 1e-300)[:, None], centers)
    mass = np.bincount(labels, weights=share, minlength=len(centers))
    return Partition(centers, mass / mass.sum(), inertia)


def _squared(points: Array, squares: Array, centers: Array) -> Array:
    """Squared distances (n, n_centers)."""
    away = points @ (-2.0 * centers.T)
    away += squares[:, None]
    away += np.einsum("ij,ij->i", centers, centers)
    return np.maximum(away, 0.0)
