"""Warm start: from the atoms of an earlier model, for a sketch that has grown (sec. 6.1)."""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.descent import descend, descend_fully
from dask_sketch.decoders.exchange import exchange, prune
from dask_sketch.decoders.families import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.search import find_atom
from dask_sketch.decoders.support import Fit


def resume(
    objective: Objective,
    weights: Array,
    theta: Array,
    n_components: int,
    rng: np.random.Generator,
) -> Fit:
    """Descend from given atoms, and exchange those that no longer fit.

    Parameters
    ----------
    objective
        Atoms and cost.
    weights
        Of the earlier model, shape (n,).
    theta
        Its atoms, shape (n, n_parameters), as ``objective.from_data_units`` gives them.
    n_components
        Number ``K`` of atoms; those that the earlier model lacks are found by Step 1, those that
        it has too many of are the ones missed least.
    rng
        Source of the starting points.

    Returns
    -------
    fit
        Weights are not normalised.
    """
    theta = np.clip(theta, objective.lower, objective.upper)
    fit = descend(objective, theta, weights)
    while len(fit.theta) < n_components:
        atom = find_atom(objective, objective.residual(fit.weights, fit.theta), rng)
        fit = descend(objective, np.vstack([fit.theta, atom]))
    if len(fit.theta) > n_components:
        fit = descend_fully(objective, prune(objective, fit, n_components))
    else:
        fit = descend_fully(objective, fit.theta, fit.weights)
    return exchange(objective, fit, rng)
