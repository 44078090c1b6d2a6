"""Iterative hard thresholding for mixtures, the baseline of Keriven et al. (2018), sec. 5.3."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_sketch.decoders.descent import descend, descend_fully
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.search import climb_correlation
from dask_sketch.decoders.support import Fit, nothing, threshold

N_ITERATIONS = 10  # as in the paper of Blumensath and Davies


def hard_thresholding(
    objective: Objective,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """Add ``K`` atoms at once, threshold to ``K``, descend; ten times.

    The gradient step of Blumensath and Davies (2009) on a dictionary without end is a set of
    atoms that correlate with the residual: ``K`` climbs of Step 1 from as many random atoms. They
    join the ``K`` present, and Steps 3 to 5 follow. The paper gives no pseudo-code, and its known
    failure: the support fills at the first iteration, with atoms that are often the same.

    Parameters
    ----------
    objective
        Atoms and cost.
    n_components
        Size ``K`` of the support.
    rng
        Source of the starting points.
    report
        Called with the cost after each of ``N_ITERATIONS`` iterations.

    Returns
    -------
    fit
        Weights are not normalised.

    References
    ----------
    Blumensath, Davies (2009), Iterative hard thresholding for compressed sensing.
    """
    fit = nothing(objective)
    for iteration in range(N_ITERATIONS):
        residual = objective.residual(fit.weights, fit.theta)
        starts = objective.random_atoms(rng, n_components, away=True)
        found, _ = climb_correlation(objective, starts, residual)
        theta = threshold(objective, np.vstack([fit.theta, found]), n_components)
        last = iteration == N_ITERATIONS - 1
        fit = (descend_fully if last else descend)(objective, theta)
        report(fit.cost)
    return fit
