"""Warn of covariance matrices that a sketch without rows hardly determines."""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.checks.few_pilot_rows import warn_of_few_pilot_rows
from dask_sketch.decoders.checks.misfit import (
    WARNED_NATS,
    warn_of_narrow_features,
    warn_of_overidentification,
)
from dask_sketch.decoders.checks.unusual_rows import (
    counted_rows,
    more_rows,
    rows_remedy,
    warn_of_shared_values,
)
from dask_sketch.decoders.narrow_axes import warn_of_narrow_axes
from dask_sketch.decoders.problem import Problem, Solution
from dask_sketch.features.pilot import Pilot
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.warn import warn_user


def warn_of_matrices(problem: Problem, solution: Solution) -> None:
    """Warn of a fit with covariance matrices to a sketch without rows.

    Parameters
    ----------
    problem
        Problem that was solved.
    solution
        Its solution, with matrices and an overidentification statistic.
    """
    sketch, matrices = problem.sketch, solution.matrices
    assert matrices is not None
    assert solution.overidentification is not None
    if solution.is_like_pilot:
        warn_of_few_pilot_rows(sketch, has_matrices=True)
    else:  # EM on the pilot rows may be better
        searched = problem.method != "likelihood"
        warn_of_overidentification(sketch, *solution.overidentification, searched=searched)
    if not warn_of_narrow_features(sketch, solution.weights, solution.means, matrices):
        warn_of_narrow_axes(solution.unresolved, rows_remedy(sketch))
    _warn_of_few_rows(sketch, problem.required_size * problem.count_parameters() - 1)


def _warn_of_few_rows(sketch: Sketch, n_parameters: int) -> None:
    """Warn of so few rows that the best fit to them is clearly less likely for others."""
    n_rows = sketch.effective_count
    loss = 0.5 * n_parameters / n_rows
    if loss > WARNED_NATS and n_rows > n_parameters:  # of fewer rows, users are warned before
        warn_user(
            f"the mixture is expected to lose {loss:.2g} nats a sample and more: "
            f"{counted_rows(sketch)} are few for {n_parameters} parameters. "
            f"{more_rows(sketch, round(n_rows))}"
        )


def warn_of_pilot_matrices(sketch: Sketch, pilot: Pilot) -> None:
    """Warn of the mixture with matrices of the pilot rows, which is the result.

    Of rows too few for it, of values that rows share, and of variances that are likelier, for the
    smallest eigenvalue of a matrix has a larger bound than a variance.

    Parameters
    ----------
    sketch
        Sketch without rows that was decoded.
    pilot
        Record of the pilot rows.
    """
    warn_of_few_pilot_rows(sketch, has_matrices=True)
    diagonal, matrices = pilot.mixture, pilot.matrix_mixture
    if matrices is None:
        return
    variances = np.diagonal(matrices.covariances, axis1=1, axis2=2)
    warn_of_shared_values(sketch, matrices.weights, variances)
    loss = 0.0 if diagonal is None else diagonal.score - matrices.score
    if loss > WARNED_NATS:
        warn_user(
            f"the mixture is {loss:.2g} nats a sample below that of covariance_type='diag' on the "
            "pilot rows: many rows share values, or follow from other features. Decode "
            "covariance_type='diag', leave out such features or state them as categories."
        )
