"""The data sets of sketch-and-shift, with Lloyd's algorithm on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from dask_sketch import GaussianMixture
from tests.benchmarks.paper.records import timed
from tests.benchmarks.paper.rivals import lloyd, mean_squared_error

N_SAMPLES = 100_000
SPECTRAL = "mnist_spectral.npz"  # shape (70000, 10): 10 digits


@dataclass(frozen=True, eq=False)
class Clusters:
    """Samples, where centroids may lie, and what Lloyd's algorithm makes of them."""

    x: np.ndarray
    box: np.ndarray
    n_clusters: int
    lloyd_error: float
    lloyd_seconds: float

    def relative_error(self, centers: np.ndarray) -> float:
        """RSE, eq. (10)."""
        return mean_squared_error(self.x, centers) / self.lloyd_error


def separated() -> GaussianMixture:
    """Section 3.1: squared distances of 1 and a mean squared error of 0.01.

    The caption of Figure 1 speaks of squared distances of the order of 0.25: see ``near``.
    """
    return _equal([[-0.5, -0.4], [0.5, -0.4], [0.0, 0.5]], 0.07)


def near() -> GaussianMixture:
    """The same at half the distance, as the caption of Figure 1 has it."""
    return _equal([[-0.25, -0.2], [0.25, -0.2], [0.0, 0.25]], 0.07)


def close() -> GaussianMixture:
    """Section 5.2, Figure 7b: clusters that are not well separated; its numbers are not given."""
    return _equal([[-0.2, -0.15], [0.2, -0.15], [0.0, 0.25]], 0.12)


def six() -> GaussianMixture:
    """Section 5.1: three clusters in the unit box of dimension 6."""
    distribution = spread(3, 6, seed=0)
    size = np.abs(distribution.means).max() + 4.0 * np.sqrt(distribution.covariances.max())
    return GaussianMixture(
        distribution.weights, distribution.means / size, distribution.covariances / size**2
    )


def spread(n_clusters: int, n_features: int, seed: int) -> GaussianMixture:
    """Clusters of variance 0.15 with centres at least 3 apart, as section 5.1 generates them.

    Of the generator that it names, with its defaults but for covariances, which are all equal.
    """
    rng = np.random.default_rng(seed)
    while True:
        means = rng.standard_normal((n_clusters, n_features)) * 6.0 / np.sqrt(n_features)
        gaps = np.linalg.norm(means[:, None] - means[None], axis=2)
        if gaps[np.triu_indices(n_clusters, 1)].min() > 3.0:
            return _equal(means, np.sqrt(0.15))


DISTRIBUTIONS: dict[str, Callable[[], GaussianMixture]] = {
    "separated": separated,
    "near": near,
    "close": close,
    "six": six,
}


@cache
def drawn(name: str, n_samples: int = N_SAMPLES) -> Clusters:
    """Samples of one of the distributions, in the box [-1, 1]."""
    distribution = DISTRIBUTIONS[name]()
    return prepared(
        distribution.sample(n_samples, seed=1),
        np.ones(distribution.n_features),
        distribution.n_components,
    )


@cache
def spectral(path: Path) -> Clusters:
    """Section 5.3: spectral features of MNIST, within their range."""
    with np.load(path) as archive:
        x = archive["features"].astype(np.float64)
    return prepared(x, None, 10)


def prepared(x: np.ndarray, reach: np.ndarray | None, n_clusters: int) -> Clusters:
    box = np.stack([x.min(axis=0), x.max(axis=0)]) if reach is None else np.stack([-reach, reach])
    centers, seconds = timed(lambda: lloyd(x, n_clusters, seed=0))
    return Clusters(x, box, n_clusters, mean_squared_error(x, centers), seconds)


def _equal(means: object, deviation: float) -> GaussianMixture:
    centers = np.asarray(means, dtype=np.float64)
    share = np.full(len(centers), 1.0 / len(centers))
    return GaussianMixture(share, centers, np.full(centers.shape, deviation**2))
