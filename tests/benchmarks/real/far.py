"""Clusters far apart: ours beside EM and Lloyd's algorithm started at the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

import dask_sketch as ds
from dask_sketch.features.design import default_n_frequencies
from tests.benchmarks.real.cells import Cell
from tests.benchmarks.real.methods import METHODS, Array, Fit, Method, fit, sketch_alone

RARE = 100  # ratio of the largest weight to the smallest, where weights are unequal
FOUND = 0.1  # nats lost at most by a fit that found all clusters


@dataclass(frozen=True)
class Clusters:
    """Spherical clusters of standard deviation one."""

    means: Array
    weights: Array

    def sample(self, n_samples: int, seed: int) -> Array:
        """Rows in random order."""
        rng = np.random.default_rng(seed)
        labels = rng.choice(len(self.weights), size=n_samples, p=self.weights)
        return self.means[labels] + rng.standard_normal((n_samples, self.means.shape[1]))


def spread_clusters(n_clusters: int, d: int, separation: float, *, equal: bool) -> Clusters:
    """Clusters at random in a box, the nearest two ``separation`` standard deviations apart.

    Unequal weights: every second cluster has a hundredth of the weight of the others.
    """
    rng = np.random.default_rng((n_clusters, d))
    side = (3 * n_clusters) ** (1 / d)
    means = rng.uniform(0, side, (1, d))
    while len(means) < n_clusters:
        other = rng.uniform(0, side, d)
        if np.linalg.norm(means - other, axis=1).min() >= 1:
            means = np.vstack([means, other])
    means *= separation / pdist(means).min()
    weights = np.ones(n_clusters)
    if not equal:
        weights[1::2] = 1 / RARE
    return Clusters(means, weights / weights.sum())


def box_clusters(n_clusters: int, d: int) -> Clusters:
    """Clusters of equal weight, uniform in a box of 20 standard deviations."""
    means = np.random.default_rng((n_clusters, d)).uniform(-10, 10, (n_clusters, d))
    return Clusters(means, np.full(n_clusters, 1 / n_clusters))


def cases(*, quick: bool) -> dict[str, Callable[[], Clusters]]:
    """The three named cases, then the grid."""
    two = Clusters(np.array([[0.0, 0.0], [30.0, 0.0]]), np.array([0.9, 0.1]))
    found: dict[str, Callable[[], Clusters]] = {
        "two of 90 and 10 %, 30 apart, d=2": lambda: two,
        "8 in a box, d=20": partial(box_clusters, 8, 20),
        "64 in a box, d=12": partial(box_clusters, 64, 12),
    }
    if quick:
        found.pop("64 in a box, d=12")
    separations = (10, 100) if quick else (4, 10, 30, 100)
    dimensions, sizes = ((2, 12), (2, 8)) if quick else ((2, 12, 50), (2, 8, 64))
    for d, n_clusters, separation, equal in product(dimensions, sizes, separations, (True, False)):
        weights = "equal" if equal else f"1:{RARE}"
        name = f"{n_clusters} of weights {weights}, {separation} apart, d={d}"
        found[name] = partial(spread_clusters, n_clusters, d, separation, equal=equal)
    return found


def _em_from_truth(truth: Clusters) -> Method:
    def fit_em(x: Array, n_components: int, seed: int) -> Any:
        return GaussianMixture(
            n_components, covariance_type="diag", tol=1e-4, max_iter=300, random_state=seed,
            weights_init=truth.weights, means_init=truth.means,
            precisions_init=np.ones_like(truth.means),
        ).fit(x)  # fmt: skip

    return Method(fit_em, depends=False)


def _lloyd_from_truth(truth: Clusters) -> Method:
    def fit_lloyd(x: Array, n_components: int, seed: int) -> Any:
        return KMeans(n_components, init=truth.means, n_init=1, random_state=seed).fit(x)

    return Method(fit_lloyd, centroids=True, depends=False)


def with_one_scale(x: Array, n_components: int, seed: int) -> Any:
    """Decode the sketch of a feature map that was made without data: its scale is given."""
    d = x.shape[1]
    feature_map = ds.FeatureMap(d, default_n_frequencies(d, n_components), scale=1.0, seed=seed)
    return ds.decode(sketch_alone(x, feature_map), n_components, seed=seed)


LARGEST = 64.0  # scale of the map, less than the greatest distances of the clusters


def without_pilot(x: Array, n_components: int, seed: int) -> Any:
    """The same with several scales, as maps for data that nobody has seen are made."""
    d = x.shape[1]
    m = default_n_frequencies(d, n_components)
    feature_map = ds.FeatureMap.from_scales(d, m, smallest=1.0, largest=LARGEST, seed=seed)
    return ds.decode(sketch_alone(x, feature_map), n_components, seed=seed)


def methods_of(truth: Clusters) -> dict[str, Method]:
    """References from the truth, then ours."""
    return {
        "EM from the truth": _em_from_truth(truth),
        "Lloyd from the truth": _lloyd_from_truth(truth),
        "default": METHODS["default"],
        "sketch alone": METHODS["sketch alone"],
        "without pilot": Method(without_pilot),
        "without pilot, one scale": Method(with_one_scale),
        "centroids": METHODS["centroids"],
    }


NAMES = tuple(methods_of(Clusters(np.zeros((1, 1)), np.ones(1))))


def far_cells(n_seeds: int, n_samples: int, *, quick: bool) -> Iterator[Cell]:
    """Cells of all cases; ``n_samples`` training rows and as many held-out ones."""

    @lru_cache(maxsize=1)
    def rows(name: str, seed: int) -> tuple[Clusters, Array, Array]:
        truth = known[name]()
        return truth, truth.sample(n_samples, seed), truth.sample(n_samples, seed + 1000)

    def run(name: str, seed: int, method: str) -> Fit:
        truth, train, test = rows(name, seed)
        return fit(methods_of(truth)[method], train, test, len(truth.weights), seed)

    known = cases(quick=quick)
    for name in known:
        size = len(known[name]().weights)
        for seed, method in product(range(n_seeds), NAMES):
            depends = not method.endswith("truth")
            yield Cell(
                "far", name, size, seed, method, partial(run, name, seed, method), n_samples,
                depends,
            )  # fmt: skip
