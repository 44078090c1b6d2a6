"""Cluster points in memory by k-means."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dask_sketch.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Clusters:
    """Clusters of weighted points.

    Attributes
    ----------
    centers
        Centroids, shape (n_clusters, n_features).
    weights
        Fraction of the weight in each cluster, shape (n_clusters,); they sum to one.
    inertia
        Mean squared distance of the points to the nearest centroid.
    """

    centers: Array
    weights: Array
    inertia: float


@cache
def _libraries() -> ThreadpoolController:
    """Libraries with threads of their own, which take milliseconds to find."""
    import sklearn.cluster
    import sklearn.mixture  # noqa: F401 - they load OpenMP

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run scikit-learn in one thread, without its warnings of convergence.

    With more threads rounding would depend on their number, and small problems take longer.
    """
    from sklearn.exceptions import ConvergenceWarning

    with _libraries().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def random_state(seed: int) -> int:
    """Seed in the range that scikit-learn accepts."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0])


def kmeans(
    points: Array,
    n_clusters: int,
    *,
    weights: Array | None = None,
    n_starts: int = 5,
    seed: int = 0,
) -> Clusters:
    """Cluster points in memory by k-means, from k-means++ starts (Arthur and Vassilvitskii 2007).

    Parameters
    ----------
    points
        Finite points, shape (n, n_features).
    n_clusters
        Number of clusters, from 1 to n.
    weights
        Weights of the points, shape (n,), not negative; equal by default.
    n_starts
        Number of starts, of which the one with the smallest inertia is returned.
    seed
        Seed of the starts, ``>= 0``.

    Returns
    -------
    clusters
        Centroids, weights and inertia. A cluster that has lost all its points has weight zero.

    Raises
    ------
    InputError
        If there are fewer points than clusters.

    Examples
    --------
    >>> points = np.array([[0.0], [1.0], [10.0], [12.0]])
    >>> sorted(kmeans(points, 2).centers.ravel().tolist())
    [0.5, 11.0]
    """
    if not 1 <= n_clusters <= len(points):
        raise InputError(
            f"n_clusters={n_clusters!r}: there are {len(points)} points; give 1 to {len(points)}."
        )
    # imported here because the import takes a second, and few callers need it
    from sklearn.cluster import KMeans

    with one_thread():
        found = KMeans(n_clusters, n_init=n_starts, random_state=random_state(seed))
        found.fit(points, sample_weight=weights)
    share = np.ones(len(points)) if weights is None else np.asarray(weights, dtype=np.float64)
    mass = np.bincount(found.labels_, weights=share, minlength=n_clusters)
    return Clusters(found.cluster_centers_, mass / mass.sum(), float(found.inertia_ / share.sum()))
