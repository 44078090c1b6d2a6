"""Fits that are compared: the package as a stranger uses it, and scikit-learn on the same rows."""

from __future__ import annotations

import inspect
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

import dask_sketch as ds

Array = NDArray[np.float64]

REFERENCES = ("EM 5", "KMeans 5")  # what the others are compared with
N_SUBSAMPLE = 5_000  # the rows that `design` reads anyway
# Warnings of the package that state a loss: in nats a sample, or as a ratio of squared errors
STATES_LOSS = re.compile(r"\bnats?\b|squared error|error ratio", re.IGNORECASE)


@dataclass(frozen=True)
class Method:
    """A way to fit; ``fit(rows, n_components, seed)`` gives a model to be scored.

    ``depends`` is true of the methods that change with the source of the package. ``centroids``
    are scored by the mean squared distance, mixtures by the log-likelihood.
    """

    fit: Callable[[Array, int, int], Any]
    centroids: bool = False
    depends: bool = True


@dataclass(frozen=True)
class Fit:
    """Result of one fit: score on held-out rows, CPU seconds and warnings."""

    value: float | None  # mean log-likelihood in nats, or mean squared distance; None if it failed
    seconds: float
    warned: bool  # whether a warning stated a loss
    warnings: tuple[str, ...]
    error: str | None = None


def fit(method: Method, train: Array, test: Array, n_components: int, seed: int) -> Fit:
    """Fit to the training rows, and score; an error is part of the result.

    Mixtures are scored on the held-out rows. Centroids are scored on the training rows: few
    centroids do not overfit, and far rows among a few thousand held-out ones would decide a
    squared error.
    """
    value, error = None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.process_time()
        try:
            model = method.fit(train, n_components, seed)
            seconds = time.process_time() - start
            value = score(model, train if method.centroids else test, centroids=method.centroids)
        except Exception as problem:  # a stranger would see it: it counts as a failure
            seconds = time.process_time() - start
            error = f"{type(problem).__name__}: {problem}"[:300]
    texts = [
        str(each.message) for each in caught if not issubclass(each.category, ConvergenceWarning)
    ]
    return Fit(
        value if value is not None and np.isfinite(value) else None,
        seconds,
        any(STATES_LOSS.search(text) for text in texts),
        tuple(dict.fromkeys(text[:300] for text in texts)),
        error,
    )


def score(model: Any, x: Array, *, centroids: bool) -> float:
    """Mean log-likelihood of the rows in nats, or mean squared distance to the nearest centre."""
    if not centroids:
        return float(model.score(x))
    centers = model.cluster_centers_ if hasattr(model, "cluster_centers_") else model.centers
    total = 0.0
    for block in np.array_split(x, -(-len(x) // 8192)):
        total += float(((block[:, None] - centers) ** 2).sum(axis=2).min(axis=1).sum())
    return total / len(x)


def polish_available() -> bool:
    """Whether the package has :func:`polish`."""
    return hasattr(ds, "polish")


def sketch_alone(x: Array, feature_map: ds.FeatureMap) -> ds.Sketch:
    """Sketch without a sample of rows."""
    if "sample" in inspect.signature(ds.sketch).parameters:
        return ds.sketch(x, feature_map, sample=False)
    return ds.sketch(x, feature_map)


def _default(x: Array, n_components: int, seed: int) -> Any:
    feature_map = ds.design(x, n_components=n_components, seed=seed)
    return ds.decode(ds.sketch(x, feature_map), n_components, seed=seed)


def _alone(x: Array, n_components: int, seed: int) -> Any:
    feature_map = ds.design(x, n_components=n_components, seed=seed)
    return ds.decode(sketch_alone(x, feature_map), n_components, seed=seed)


def _polished(x: Array, n_components: int, seed: int) -> Any:
    return ds.polish(_default(x, n_components, seed), x, passes=2)


def _mixture_estimator(x: Array, n_components: int, seed: int) -> Any:
    return ds.SketchGaussianMixture(n_components, random_state=seed).fit(x)


def _centroids(x: Array, n_components: int, seed: int) -> Any:
    feature_map = ds.design(x, n_components=n_components, task="clustering", seed=seed)
    return ds.decode(ds.sketch(x, feature_map), n_components, model="dirac", seed=seed)


def _centroids_alone(x: Array, n_components: int, seed: int) -> Any:
    feature_map = ds.design(x, n_components=n_components, task="clustering", seed=seed)
    return ds.decode(sketch_alone(x, feature_map), n_components, model="dirac", seed=seed)


def _centroids_of_mixture_map(x: Array, n_components: int, seed: int) -> Any:
    feature_map = ds.design(x, n_components=n_components, seed=seed)
    return ds.decode(ds.sketch(x, feature_map), n_components, model="dirac", seed=seed)


def _centroid_estimator(x: Array, n_components: int, seed: int) -> Any:
    return ds.SketchKMeans(n_components, random_state=seed).fit(x)


def em(n_init: int, fraction: float = 1.0, rows: int | None = None) -> Method:
    """EM of scikit-learn, to a tolerance of 1e-4 nats, on all rows or a random subset."""

    def fit(x: Array, n_components: int, seed: int) -> Any:
        size = min(len(x), rows or len(x), int(fraction * len(x)))
        chosen = np.random.default_rng((seed, 2)).permutation(len(x))[:size]
        model = GaussianMixture(
            n_components, covariance_type="diag", n_init=n_init, tol=1e-4, max_iter=300,
            random_state=seed,
        )  # fmt: skip
        return model.fit(x[chosen])

    return Method(fit, depends=False)


def _lloyd(x: Array, n_components: int, seed: int) -> Any:
    return KMeans(n_components, n_init=5, random_state=seed).fit(x)


METHODS: dict[str, Method] = {
    "EM 5": em(5),
    "EM 1": em(1),
    "EM 5, 10 %": em(5, fraction=0.1),
    "EM 1, 10 %": em(1, fraction=0.1),
    "EM 5, 5000 rows": em(5, rows=N_SUBSAMPLE),
    "EM 1, 5000 rows": em(1, rows=N_SUBSAMPLE),
    "default": Method(_default),
    "estimator": Method(_mixture_estimator),
    "polish": Method(_polished),
    "sketch alone": Method(_alone),
    "KMeans 5": Method(_lloyd, centroids=True, depends=False),
    "centroids": Method(_centroids, centroids=True),
    "centroids, estimator": Method(_centroid_estimator, centroids=True),
    "centroids, sketch alone": Method(_centroids_alone, centroids=True),
    "centroids, mixture map": Method(_centroids_of_mixture_map, centroids=True),
}
