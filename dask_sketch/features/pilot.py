"""Cluster pilot samples, fit a rough mixture to them by scikit-learn, and keep the record."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dask_sketch.errors import InputError

Array = NDArray[np.float64]
_N_ITERATIONS = 50
_TOLERANCE = 1e-4  # smallest gain of one iteration, in nats per row
ROWS_PER_COMPONENT = 20  # of the fit
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


@dataclass(frozen=True, eq=False)
class Pilot:
    """Record of the rows from which a feature map was designed.

    Decoders start from its mixture, and compare their models with it. It is no part of the
    specification of a feature map: the digest does not depend on it.

    Attributes
    ----------
    n_rows
        Number of pilot rows.
    variance
        Variance of each feature, shape (n_features,).
    gaussian_score
        Mean log-likelihood of the rows under one Gaussian with a diagonal covariance, in nats;
        features that do not vary are left out.
    mixture
        Mixture fitted to the rows, in the units of the data; None if the number of components was
        not known.
    """

    n_rows: int
    variance: Array
    gaussian_score: float
    mixture: PilotMixture | None = None

    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON."""
        found = self.mixture
        return {
            "n_rows": self.n_rows,
            "variance": self.variance.tolist(),
            "gaussian_score": self.gaussian_score,
            "mixture": None
            if found is None
            else {
                "weights": found.weights.tolist(),
                "means": found.means.tolist(),
                "variances": found.variances.tolist(),
                "score": found.score,
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], n_features: int) -> Pilot:
        """Read the values of :meth:`as_dict`.

        Parameters
        ----------
        values
            Values of any origin.
        n_features
            Number of features that the arrays must have.

        Raises
        ------
        InputError
            If a value is missing or impossible.
        """
        try:
            given, mixture = values["mixture"], None
            if given is not None:
                mixture = PilotMixture(
                    _numbers(given["weights"]),
                    _numbers(given["means"]),
                    _numbers(given["variances"]),
                    float(given["score"]),
                )
            variance = _numbers(values["variance"])
            out = cls(int(values["n_rows"]), variance, float(values["gaussian_score"]), mixture)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"pilot={str(values)[:60]!r} is no record of pilot rows.") from error
        found = out.mixture
        shapes: list[tuple[Array, tuple[int, ...]]] = [(out.variance, (n_features,))]
        if found is not None:
            k = len(found.weights)
            shapes += [(found.weights, (k,)), (found.means, (k, n_features))]
            shapes += [(found.variances, (k, n_features))]
        for array, shape in shapes:
            if array.shape != shape or not np.isfinite(array).all():
                raise InputError(
                    f"pilot has an array of shape {array.shape}: give finite numbers of shape "
                    f"{shape}."
                )
        if (out.variance < 0).any() or (found is not None and (found.variances <= 0).any()):
            raise InputError("pilot holds variances that are not positive.")
        if found is not None and not (
            (found.weights >= 0).all() and abs(found.weights.sum() - 1.0) < 1e-8
        ):
            raise InputError("pilot holds weights that are negative, or do not sum to one.")
        return out


def _numbers(values: Any) -> Array:
    out = np.array(values, dtype=np.float64)
    out.flags.writeable = False
    return out


def record_pilot(rows: Array, n_components: int | None, seed: int = 0) -> Pilot:
    """Fit a mixture to pilot rows, and keep what decoders need of them.

    Parameters
    ----------
    rows
        Finite rows, shape (n, n_features).
    n_components
        Number of components that will be decoded, or None.
    seed
        Seed of the start, ``>= 0``.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
    >>> pilot = record_pilot(rows, n_components=1)
    >>> pilot.n_rows, round(pilot.gaussian_score, 1), pilot.mixture.means.shape
    (1000, -2.8, (1, 2))
    """
    variance = rows.var(axis=0)
    varies = np.ptp(rows, axis=0) > 0
    gaussian = float(-0.5 * np.log(2 * np.pi * np.e * variance[varies]).sum())
    mixture = None
    if n_components is not None and varies.any():
        # a component needs some rows to have a variance
        n_fitted = max(min(n_components, len(rows) // ROWS_PER_COMPONENT), 1)
        found = fit_pilot(rows[:, varies], n_fitted, seed)
        means = np.tile(rows[0], (n_fitted, 1))
        variances = np.full(means.shape, 1e-6 * found.variances.mean())
        means[:, varies], variances[:, varies] = found.means, found.variances
        mixture = PilotMixture(found.weights, means, variances, found.score)
    return Pilot(len(rows), variance, gaussian, mixture)


@contextmanager
def one_thread() -> Iterator[None]:
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

    with one_thread():
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

    with one_thread():
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
