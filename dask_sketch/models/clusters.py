"""Cluster points in memory by k-means, spherical k-means and k-medians."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import unit_rows
from dask_sketch.validation.threads import ProcessContext, one_blas_thread

Array = NDArray[np.float64]
_ROUNDS = 300  # rounds of assignments and steps towards medians, at most
_GAIN = 1e-7  # gain of a round below which rounds end, relative to the mean distance
_TINY = 1e-12  # distance in units of the mean distance, below which a point is at a center


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
        Mean squared distance of the points to the nearest centroid; for k-medians the mean
        distance.
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
    # the number of threads of OpenMP is that of the calling thread
    with one_blas_thread(), _libraries().limit(limits=1, user_api="openmp"), _NO_CONVERGENCE:
        yield


@contextmanager
def _without_convergence_warnings() -> Iterator[None]:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


_NO_CONVERGENCE = ProcessContext(_without_convergence_warnings)


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
        estimator = KMeans(n_clusters, n_init=n_starts, random_state=random_state(seed))
        estimator.fit(points, sample_weight=weights)
    masses = np.ones(len(points)) if weights is None else np.asarray(weights, dtype=np.float64)
    mass = np.bincount(estimator.labels_, weights=masses, minlength=n_clusters)
    return Clusters(
        estimator.cluster_centers_, mass / mass.sum(), float(estimator.inertia_ / masses.sum())
    )


def excess_on_others(points: Array, n_clusters: int, seed: int = 0) -> float:
    """Estimate how much larger the mean squared error of centroids is on points unlike their own.

    Centroids of halves of the points have a larger error on the other half. Errors of light tails
    are as much larger as there are fewer points for each centroid, so that those of centroids of
    all points are half as large; those of heavy tails are larger than this estimate.

    Parameters
    ----------
    points
        Finite points, shape (n, n_features).
    n_clusters
        Number of centroids of all points.
    seed
        Seed of the halves and of the starts, ``>= 0``.

    Returns
    -------
    excess
        Fraction of the smallest error, ``>= 0``; zero for fewer than two points for each centroid.

    Examples
    --------
    >>> points = np.random.default_rng(0).normal(size=(2000, 2))
    >>> 0.01 < excess_on_others(points, 20) < 0.05
    True
    """
    points = points - points.mean(axis=0)
    order = np.random.default_rng(seed).permutation(len(points))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    if len(halves[0]) < n_clusters:
        return 0.0
    own = other = 0.0
    for fitted, others in (halves, halves[::-1]):
        half = kmeans(points[fitted], n_clusters, n_starts=1, seed=seed)
        own += half.inertia
        other += float((_distances(points[others], half.centers).min(axis=1) ** 2).mean())
    return max(other - own, 0.0) / (2.0 * (other + own)) if other > 0.0 else 0.0


def kmedians(
    points: Array,
    n_clusters: int,
    *,
    weights: Array | None = None,
    starts: Sequence[Array] = (),
    n_starts: int = 5,
    seed: int = 0,
) -> Clusters:
    """Cluster points in memory by k-medians: centers of least mean distance.

    Points are assigned to the nearest center, and centers move towards the geometric medians of
    their points, by steps that never increase the distance (Weiszfeld 1937; Vardi and Zhang 2000).

    Parameters
    ----------
    points
        Finite points, shape (n, n_features).
    n_clusters
        Number of clusters, from 1 to n.
    weights
        Weights of the points, shape (n,), not negative; equal by default.
    starts
        Centers to start from, each of shape (n_clusters, n_features).
    n_starts
        Number of further starts: points that are sampled by their distance from those before.
    seed
        Seed of these, ``>= 0``.

    Returns
    -------
    clusters
        Centers of the best start, weights, and the mean distance as ``inertia``. A cluster that has
        lost all its points has weight zero.

    Raises
    ------
    InputError
        If there are fewer points than clusters.

    Examples
    --------
    >>> points = np.array([[0.0], [1.0], [90.0], [10.0], [11.0], [11.0]])
    >>> kmedians(points[:3], 1).centers.round(3), kmedians(points, 3).inertia
    (array([[1.]]), 0.333...)
    """
    if not 1 <= n_clusters <= len(points):
        raise InputError(
            f"n_clusters={n_clusters!r}: there are {len(points)} points; give 1 to {len(points)}."
        )
    masses = np.ones(len(points)) if weights is None else np.asarray(weights, dtype=np.float64)
    masses = masses / masses.sum()
    # about a point among them: products of large numbers would lose digits
    origin = masses @ points
    centered = points - origin
    rng = np.random.default_rng(seed)
    shifted = [np.asarray(start, dtype=np.float64) - origin for start in starts]
    shifted += [_distant_points(rng, centered, masses, n_clusters) for _ in range(n_starts)]
    best = min((_medians(centered, masses, start) for start in shifted), key=lambda found: found[1])
    centers, inertia, labels = best
    mass = np.bincount(labels, weights=masses, minlength=n_clusters)
    return Clusters(centers + origin, mass / mass.sum(), inertia)


def spherical_kmeans(
    points: Array,
    *,
    weights: Array | None = None,
    starts: Sequence[Array],
) -> Clusters:
    """Cluster directions by spherical k-means: centroids of length one and greatest mean cosine.

    Lloyd's algorithm, in which the centroid of a cluster is the direction of its mean.

    Parameters
    ----------
    points
        Points of length one, shape (n, n_features).
    weights
        Weights of the points, shape (n,), not negative; equal by default.
    starts
        Centroids to start from, each of shape (n_clusters, n_features), at least one; they are
        divided by their lengths.

    Returns
    -------
    clusters
        Centroids of the best start, weights, and the mean squared distance ``2 (1 - cosine)`` as
        ``inertia``. A cluster that has lost all its points has weight zero.

    References
    ----------
    Dhillon, Modha (2001), Concept decompositions for large sparse text data using clustering,
    Machine Learning 42.

    Examples
    --------
    >>> points = np.array([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]])
    >>> spherical_kmeans(points, starts=[points[1:]]).centers.round(3) + 0.0
    array([[ 0.949,  0.316],
           [-1.   ,  0.   ]])
    """
    masses = np.ones(len(points)) if weights is None else np.asarray(weights, dtype=np.float64)
    masses = masses / masses.sum()
    found = (_directions(points, masses, unit_centers(start)) for start in starts)
    centers, inertia, labels = min(found, key=lambda each: each[1])
    mass = np.bincount(labels, weights=masses, minlength=len(centers))
    return Clusters(centers, mass / mass.sum(), inertia)


def unit_centers(centers: Array) -> Array:
    """Centers divided by their lengths.

    Parameters
    ----------
    centers
        Centers, shape (n_clusters, n_features).

    Raises
    ------
    InputError
        If a center is at the origin, and has no direction.
    """
    directions = unit_rows(np.asarray(centers))
    if np.isnan(directions).any():
        bad = int(np.argmax(np.isnan(directions).any(axis=1)))
        raise InputError(
            f"centers has the row {bad} at the origin, which has no direction: leave it out."
        )
    return directions


def _directions(
    points: Array, masses: Array, centers: Array
) -> tuple[Array, float, NDArray[np.intp]]:
    """Centers of a local maximum of the mean cosine, mean squared distance, and labels."""
    before, everyone = -np.inf, np.arange(len(points))
    for _ in range(_ROUNDS):
        products = points @ centers.T
        labels = products.argmax(axis=1)
        cosine = float(masses @ products[everyone, labels])
        if not cosine > before + _GAIN * (1.0 - cosine):
            break
        before = cosine
        sums = np.stack(
            [
                np.bincount(labels, weights=masses * column, minlength=len(centers))
                for column in points.T
            ],
            axis=1,
        )
        lengths = np.linalg.norm(sums, axis=1)[:, None]
        # a cluster without points keeps its center
        centers = np.where(lengths > 0.0, sums / np.where(lengths > 0.0, lengths, 1.0), centers)
    return centers, 2.0 * (1.0 - cosine), labels


def _distances(points: Array, centers: Array) -> Array:
    """Distances of all points to all centers, shape (n, n_clusters)."""
    squares = np.einsum("ij,ij->i", points, points)[:, None] - 2.0 * points @ centers.T
    squares += np.einsum("ij,ij->i", centers, centers)
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def _distant_points(
    rng: np.random.Generator, points: Array, masses: Array, n_clusters: int
) -> Array:
    """Points sampled one after the other, by their distance from the nearest before."""
    chosen = [int(rng.choice(len(points), p=masses))]
    distance = np.full(len(points), np.inf)
    while len(chosen) < n_clusters:
        distance = np.minimum(distance, _distances(points, points[chosen[-1:]])[:, 0])
        mass = masses * distance
        total = mass.sum()
        chosen.append(int(rng.choice(len(points), p=mass / total if total > 0.0 else masses)))
    return points[chosen]


def _medians(points: Array, masses: Array, centers: Array) -> tuple[Array, float, NDArray[np.intp]]:
    """Centers of a local minimum of the mean distance, this distance, and labels."""
    centers, before = centers.copy(), np.inf
    k = len(centers)
    for _ in range(_ROUNDS):
        distances = _distances(points, centers)
        labels = distances.argmin(axis=1)
        own = np.linalg.norm(points - centers[labels], axis=1)
        mean = float(masses @ own)
        if not mean < before * (1.0 - _GAIN):
            break
        before = mean
        apart = own > _TINY * mean
        pull = np.where(apart, masses / np.where(apart, own, 1.0), 0.0)
        total = np.bincount(labels, weights=pull, minlength=k)
        moved = np.stack(
            [np.bincount(labels, weights=pull * column, minlength=k) for column in points.T], axis=1
        )
        held = np.bincount(labels, weights=np.where(apart, 0.0, masses), minlength=k)
        force = np.linalg.norm(moved - total[:, None] * centers, axis=1)
        # a center at a point stays there, if its weight exceeds the pull of the others
        stay = np.where(force > 0.0, np.minimum(1.0, held / np.where(force > 0.0, force, 1.0)), 1.0)
        stay[total == 0.0] = 1.0
        target = moved / np.where(total > 0.0, total, 1.0)[:, None]
        centers = stay[:, None] * centers + (1.0 - stay[:, None]) * target
    return centers, mean, labels
