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


def em(x: np.ndarray, n_components: int, seed: int, kind: str = "diag") -> GaussianMixture:
    """EM from the one k-means start that scikit-learn makes; diagonal covariances by default."""
    return _fit(Reference(n_components, covariance_type=kind, random_state=seed), x)


def em_from(truth: GaussianMixture, x: np.ndarray) -> GaussianMixture:
    """EM started at the truth: the maximum of the likelihood, as nobody can find it in practice."""
    start = Reference(
        truth.n_components,
        covariance_type=truth.covariance_type,
        weights_init=truth.weights,
        means_init=truth.means,
        precisions_init=truth.to_sklearn().precisions_,
        random_state=0,
    )
    return _fit(start, x)


def _fit(reference: Reference, x: np.ndarray) -> GaussianMixture:
    gain = reference_parameters(reference, x.shape[1]) / (2 * len(x))
    reference.set_params(tol=TOLERANCE * gain, max_iter=MAX_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        reference.fit(x)
    return GaussianMixture.from_sklearn(reference)


def reference_parameters(reference: Reference, d: int) -> int:
    """Number of parameters of diagonal or full covariances, with weights that sum to one."""
    n_shapes = d if reference.covariance_type == "diag" else d * (d + 1) // 2
    return int(reference.n_components * (1 + d + n_shapes)) - 1


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
