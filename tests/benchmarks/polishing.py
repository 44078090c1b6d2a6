"""One step of EM and of Lloyd's algorithm beside scikit-learn, on one core, in process CPU time."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median

import numpy as np
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture as Reference
from threadpoolctl import threadpool_limits

from dask_sketch import Centroids, GaussianMixture
from dask_sketch.models import random_mixture
from dask_sketch.sketching.expectation import ExpectationStep
from tests.benchmarks.table import Row, row

CASES = [(1_000_000, 12, 10), (1_000_000, 12, 64), (100_000, 100, 10)]  # rows, features, components


def reference_step(x: np.ndarray, mixture: GaussianMixture) -> Reference:
    """One step of EM by scikit-learn, without its choice of a start."""
    step = Reference(mixture.n_components, covariance_type="diag")
    step.weights_, step.means_ = mixture.weights, mixture.means
    step.covariances_ = mixture.covariances
    step.precisions_cholesky_ = 1.0 / np.sqrt(mixture.covariances)
    _, log_responsibilities = step._e_step(x)
    step._m_step(x, log_responsibilities)
    return step


def our_step(x: np.ndarray, model: GaussianMixture | Centroids) -> GaussianMixture | Centroids:
    """One step on one core."""
    step = ExpectationStep(model)
    return step.maximize(step.statistics(x))


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds, after one call that compiles."""
    spent = []
    with threadpool_limits(1):
        for run in range(repeats + 1):
            start = time.process_time()
            call()
            if run:
                spent.append(time.process_time() - start)
    return median(spent)


def rows(quick: bool = False) -> list[Row]:
    """The table's rows; ``quick`` is a tiny form of one case."""
    out = []
    for n, d, k in [(1000, 2, 2)] if quick else CASES:
        truth = random_mixture(k, d, seed=0)
        x = truth.sample(n, seed=0)
        mixture = GaussianMixture(truth.weights, truth.means + 0.1, 1.5 * truth.covariances)
        centroids = Centroids(mixture.weights, mixture.means)
        lloyd = KMeans(k, init=mixture.means, n_init=1, max_iter=1, tol=0.0)
        case = f"n={n:,} d={d} K={k}"
        repeats = 1 if quick else 3
        small = x.astype(np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one step does not converge
            rivals = {
                "EM": seconds(lambda x=x, m=mixture: reference_step(x, m), repeats),
                "Lloyd": seconds(lambda x=x, m=lloyd: m.fit(x), repeats),
            }
        for name, model, rival in (
            ("EM", mixture, "scikit-learn, float64"),
            ("Lloyd", centroids, "scikit-learn, one iteration and labels"),
        ):
            ours = seconds(lambda x=x, m=model: our_step(x, m), repeats)
            out.append(row(f"{name} {case}", ours, "CPU s", against=rival, rival=rivals[name]))
        ours = seconds(lambda x=small, m=mixture: our_step(x, m), repeats)
        out.append(row(f"EM {case}, stored as float32", ours, "CPU s", against="", rival=None))
        w = np.random.default_rng(0).lognormal(size=n)
        weighted = ExpectationStep(mixture)
        ours = seconds(lambda x=x, m=weighted, w=w: m.statistics(x, w), repeats)
        out.append(row(f"EM {case}, weighted", ours, "CPU s", against="", rival=None))
    return out
