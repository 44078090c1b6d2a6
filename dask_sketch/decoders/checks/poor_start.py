"""Compare a fit that began with an earlier model with maximum likelihood on the random rows."""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.checks.expected_loss import gain_by_chance
from dask_sketch.decoders.checks.misfit import mean_log_likelihood, rows_to_compare
from dask_sketch.decoders.checks.poor_centroids import compare_with_kmeans
from dask_sketch.decoders.problem import Problem, Solution
from dask_sketch.models.weighted_em import fit_mixture
from dask_sketch.validation.threads import one_blas_thread

# Loss beyond that by chance, in nats a sample, and ratio of squared errors, from which a start is
# left out
_POOR, _POOR_RATIO = 0.02, 1.02


def is_poor_start(problem: Problem, solution: Solution) -> bool:
    """Whether a fit that began with an earlier model is far from the likeliest or nearest one.

    Data that has moved away from the model, or is not such a mixture, has a likelier mixture, which
    expectation-maximisation finds on the random rows of the sketch; k-means finds nearer centroids.

    Parameters
    ----------
    problem
        Sketch and arguments.
    solution
        Solution of the problem.

    Returns
    -------
    is_poor
        False without a start or without random rows, and for other families of models.
    """
    sketch, shapes, k = problem.sketch, solution.shapes, len(solution.weights)
    if problem.start is None or problem.model not in ("gaussian", "isotropic", "dirac"):
        return False
    if sketch.sample is None or len(sketch.sample) < 10 * k or problem.box is not None:
        return False
    rows, masses = rows_to_compare(sketch, k, None)
    if shapes is None:
        is_spherical = sketch.feature_map.normalize
        _, ratio = compare_with_kmeans(solution.means, rows, masses, is_spherical=is_spherical)
        return ratio > _POOR_RATIO
    varies = np.ptp(rows, axis=0) > 0.0  # a constant feature has a density without bound
    if not varies.any():
        return False
    shapes = shapes[:, varies] if shapes.ndim == 2 else shapes[:, varies][:, :, varies]
    rows, means = rows[:, varies], solution.means[:, varies]
    kind = "spherical" if problem.model == "isotropic" else problem.covariance_type
    mixture = solution.weights / solution.weights.sum(), means, shapes
    with one_blas_thread():  # rounding would depend on their number
        rival = fit_mixture(
            rows, masses, k, starts=[mixture], n_starts=1, merged=False, n_moves=0,
            seed=problem.seed, covariance_type=kind,
        )  # fmt: skip
        loss = rival.log_likelihood - mean_log_likelihood(rows, masses, mixture)
    chance = gain_by_chance(k * problem.count_parameters()) * float(masses @ masses)
    return loss > _POOR + chance
