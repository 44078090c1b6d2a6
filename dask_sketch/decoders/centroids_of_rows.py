"""Centroids of the calibrated rows of a sketch, or of the pilot rows, by k-means."""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.calibrated_sample import calibrate
from dask_sketch.decoders.problem import Problem, Report, Solution
from dask_sketch.decoders.starts import pilot_clusters, pilot_start
from dask_sketch.models.clusters import Clusters, spherical_kmeans
from dask_sketch.models.weighted_em import fit_centroids
from dask_sketch.validation.threads import Threads


def fit_replicate(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Solution:
    """Centroids of the calibrated rows, or of the pilot rows for a sketch without rows.

    A row of :data:`dask_sketch.decoders.methods.TABLE` for ``model="dirac"``.
    """
    if problem.sketch.sample is None:
        return _from_pilot(problem, report, threads)
    calibrated = calibrate(problem.sketch)
    seed = int(rng.integers(2**31))
    pilot = pilot_start(problem.sketch, problem.required_size, seed)
    clusters = fit_centroids(
        calibrated.rows, calibrated.weights, problem.required_size,
        starts=[] if pilot is None else [pilot.means], seed=seed,
    )  # fmt: skip
    spherical = problem.sketch.feature_map.normalize
    if spherical:
        rows = np.asarray(calibrated.rows, dtype=np.float64)
        clusters = spherical_kmeans(rows, weights=calibrated.weights, starts=[clusters.centers])
    kind = "spherical " if spherical else ""
    message = f"{kind}k-means on the calibrated rows"
    return _solution(problem, clusters, message, report, threads)


def _from_pilot(problem: Problem, report: Report, threads: Threads) -> Solution:
    """Centroids of the pilot rows, which are better than from a density fitted to the sketch."""
    clusters = pilot_clusters(problem.sketch, problem.required_size)
    assert clusters is not None  # the arguments were checked
    message = "k-means on the pilot rows of the feature map"
    return _solution(problem, clusters, message, report, threads)


def _solution(
    problem: Problem, clusters: Clusters, message: str, report: Report, threads: Threads
) -> Solution:
    """Solution with the centers of clusters, the heaviest first."""
    objective = problem.objective(threads)
    order = np.argsort(-clusters.weights, kind="stable")
    weights, means = clusters.weights[order], clusters.centers[order]
    cost = objective.cost(weights, objective.space.from_data_units(means, np.zeros_like(means)))
    report(cost)
    return Solution(
        weights=weights,
        means=means,
        variances=None,
        cost=cost,
        noise_level=objective.noise_level,
        converged=True,
        message=message,
        n_evaluations=objective.n_evaluations,
        score=-clusters.inertia,
    )


def conclude(
    problem: Problem, results: list[Solution], threads: Threads, report: Report
) -> Solution:
    """Centroids of the replicate with the smallest mean squared error.

    Parameters
    ----------
    problem, threads, report
        Arguments of the ``conclude`` function of every method, unused here.
    results
        Solutions of all replicates.
    """
    return max(results, key=lambda each: -np.inf if each.score is None else each.score)
