"""Components of features that do not vary, which are known exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dask_sketch.decoders.problem import Problem, Solution
from dask_sketch.models.smallest_variance import MIN_VARIANCE


def with_constants(problem: Problem, solution: Solution) -> Solution:
    """Solution whose components have the value of each feature that does not vary, and no width.

    The sketch does not show such a width: components of any narrow one fit it equally well, and the
    likelihood of the same value differs between them by as much as one likes.

    Parameters
    ----------
    problem
        Problem that was solved.
    solution
        Its solution.
    """
    sketch = problem.sketch
    if sketch.privacy is not None or solution.parameters is not None:
        return solution
    constant = (sketch.minimum == sketch.maximum) & np.isfinite(sketch.minimum)
    variances = solution.variances
    if not constant.any() or constant.all():
        return solution
    means = solution.means.copy()
    means[:, constant] = sketch.minimum[constant]
    if variances is None or problem.model == "isotropic":  # one width for all features
        return replace(solution, means=means)
    smallest = MIN_VARIANCE * float(sketch.variance[~constant].mean())
    variances = variances.copy()
    variances[:, constant] = smallest
    matrices, factors = solution.matrices, solution.factors
    if matrices is not None:
        matrices = matrices.copy()
        matrices[:, constant] = 0.0
        matrices[:, :, constant] = 0.0
        matrices[:, constant, constant] = smallest
    if factors is not None:
        factors = factors.copy()
        factors[:, constant] = 0.0
        factors[:, constant, 0] = smallest
    return replace(solution, means=means, variances=variances, matrices=matrices, factors=factors)
