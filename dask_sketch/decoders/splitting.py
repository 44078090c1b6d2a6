"""Algorithm 2 of Keriven et al. (2018): hierarchical splitting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_sketch.decoders.atom_search import find_atom
from dask_sketch.decoders.descent import APPROACH, LONG_APPROACH, descend
from dask_sketch.decoders.exchange import exchange
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import Fit, threshold


def n_levels(n_components: int) -> int:
    """Number of levels, ``ceil(log2 K)``, and one for a single component."""
    return max((n_components - 1).bit_length(), 1)


def hierarchical_splitting(
    objective: Objective,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """Start from one atom and split them all, level by level.

    A number of components that is no power of two is reached by thresholding the last level. For
    one component there is nothing to split, and Steps 4 and 5 run once.

    Parameters
    ----------
    objective
        Atoms and cost.
    n_components
        Number ``K`` of components.
    rng
        Source of the starting point.
    report
        Called with the cost after each of :func:`n_levels` levels.

    Returns
    -------
    fit
        Weights are not normalised.
    """
    theta = find_atom(objective, objective.target, rng)[None, :]
    last = n_levels(n_components) - 1
    for level in range(last + 1):
        if n_components > 1:
            theta = threshold(objective, objective.split(theta), n_components)
        effort = LONG_APPROACH if level == last else APPROACH
        fit = descend(objective, theta, effort=effort)
        theta = fit.theta
        if level == last:
            fit = exchange(objective, fit, rng, at_rest=False)
        report(fit.cost)
    return fit
