"""Baselines of the decoders: EM and Lloyd's algorithm of scikit-learn, on all the data."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Reference

from dask_sketch import GaussianMixture

# EM stops when a step gains less than this part of what fitting noise gains, p / 2n nats. At
# scikit-learn's own 1e-3 nats it stops where it started; at 1e-7 with d=2, K=3, n=3e5, 0.17 below
# its limit in ln KL if started at the truth, 0.10 above it if started by k-means.
TOLERANCE = 5e-4
MAX_ITERATIONS = 2000
LLOYD_STARTS = 5  # sketch-and-shift, section 5.1


def em(x: np.ndarray, n_components: int, seed: int) -> GaussianMixture:
    """EM for diagonal covariances, from the one k-means start that scikit-learn makes."""
    return _fit(Reference(n_components, covariance_type="diag", random_state=seed), x)


def em_from(truth: GaussianMixture, x: np.ndarray) -> GaussianMixture:
    """EM started at the truth: the maximum of the likelihood, as nobody can find it in practice."""
    start = Reference(
        truth.n_components,
        covariance_type="diag",
        weights_init=truth.weights,
        means_init=truth.means,
        precisions_init=1.0 / truth.covariances,
        random_state=0,
    )
    return _fit(start, x)


def _fit(reference: Reference, x: np.ndarray) -> GaussianMixture:
    n_parameters = (2 * x.shape[1] + 1) * reference.n_components - 1
    gain = n_parameters / (2 * len(x))
    reference.set_params(tol=TOLERANCE * gain, max_iter=MAX_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        reference.fit(x)
    weights = reference.weights_ / reference.weights_.sum()
    return GaussianMixture(weights, reference.means_, reference.covariances_)


def lloyd(x: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """Centres of the best of five runs of Lloyd's algorithm, shape (n_clusters, n_features)."""
    return KMeans(n_clusters, n_init=LLOYD_STARTS, random_state=seed).fit(x).cluster_centers_


def mean_squared_error(x: np.ndarray, centers: np.ndarray) -> float:
    """Mean squared distance to the nearest centre (eq. 5 of sketch-and-shift)."""
    total = 0.0
    for start in range(0, len(x), 8192):
        block = x[start : start + 8192]
        distances = ((block[:, None, :] - centers[None]) ** 2).sum(axis=2)
        total += float(distances.min(axis=1).sum())
    return total / len(x)
