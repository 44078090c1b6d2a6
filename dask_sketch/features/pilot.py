"""Cluster pilot samples and fit a rough mixture to them, by scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dask_sketch.errors import InputError

Array = NDArray[np.float64]
_N_ITERATIONS = 50
_TOLERANCE = 1e-4  # smallest gain of one iteration, in nats per row
_VARIANCE_FLOOR = 1e-8  # added to variances, as a fraction of those of the rows


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


@dataclass(frozen=True)
class PilotMixture:
    """Mixture of Gaussians with diagonal covariances.

    Attributes
    ----------
    weights
        Weights of the components, shape (n_components,), summing to one.
    means, variances
        Means and variances of the components, shape (n_components, n_features).
    score
        Mean log-likelihood of the rows, in nats.
    """

    weights: Array
    means: Array
    variances: Array
    score: float


@contextmanager
def _scikit_learn() -> Iterator[None]:
    """Run scikit-learn in one thread, without its warnings of convergence.

    With more threads rounding would depend on their number, and small problems take longer.
    """
    from sklearn.exceptions import ConvergenceWarning

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _random_state(seed: int) -> int:
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

    with _scikit_learn():
        found = KMeans(n_clusters, n_init=n_starts, random_state=_random_state(seed))
        found.fit(points, sample_weight=weights)
    share = np.ones(len(points)) if weights is None else np.asarray(weights, dtype=np.float64)
    mass = np.bincount(found.labels_, weights=share, minlength=n_clusters)
    return Clusters(found.cluster_centers_, mass / mass.sum(), float(found.inertia_ / share.sum()))


def fit_pilot(rows: Array, n_components: int, seed: int = 0) -> PilotMixture:
    """Fit a mixture to a few rows by expectation-maximisation, starting from k-means.

    The fit is only as good as the few thousand rows of a pilot allow, which suffices for the
    variances of the components: the frequencies depend on nothing else.

    Parameters
    ----------
    rows
        Finite rows, shape (n, n_features); every feature must vary.
    n_components
        Number ``K`` of components, from 1 to n.
    seed
        Seed of the start, ``>= 0``.

    Returns
    -------
    mixture
        Weights, means and variances in the units of the rows.

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
    if not 1 <= n_components <= len(rows):
        raise InputError(
            f"n_components={n_components!r}: there are {len(rows)} rows; give 1 to {len(rows)}."
        )
    center, deviation = rows.mean(axis=0), rows.std(axis=0)
    if not (deviation > 0.0).all():
        constant = np.flatnonzero(~(deviation > 0.0)).tolist()
        raise InputError(f"features {constant} do not vary: a mixture has no width there.")
    # imported here because the import takes a second, and few callers need it
    from sklearn.mixture import GaussianMixture

    with _scikit_learn():
        found = GaussianMixture(
            n_components,
            covariance_type="diag",
            tol=_TOLERANCE,
            reg_covar=_VARIANCE_FLOOR,
            max_iter=_N_ITERATIONS,
            random_state=_random_state(seed),
        )
        found.fit((rows - center) / deviation)
    return PilotMixture(
        weights=found.weights_ / found.weights_.sum(),
        means=center + deviation * found.means_,
        variances=deviation**2 * found.covariances_,
        score=float(found.lower_bound_ - np.log(deviation).sum()),
    )
