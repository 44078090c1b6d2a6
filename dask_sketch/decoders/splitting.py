"""Algorithm 2 of Keriven et al. (2018): hierarchical splitting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_sketch.decoders.descent import APPROACH, LONG_APPROACH, Fit, descend, threshold
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.starts import find_atom
from dask_sketch.decoders.swap_moves import swap_atoms


def n_levels(n_components: int) -> int:
    """Number of levels, ``ceil(log2 K)``, and one level for a single component."""
    return max((n_components - 1).bit_length(), 1)


def hierarchical_splitting(
    objective: Objective,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """Start from one atom and split all atoms, level by level; swap moves follow.

    The last level is thresholded if the number of components is no power of two. For one component
    there is nothing to split, and Steps 4 and 5 run once.

    Parameters
    ----------
    objective
        Atoms and cost.
    n_components
        Number ``K`` of components.
    rng
        Random number generator.
    report
        Function called with the cost after each of :func:`n_levels` levels.

    Returns
    -------
    fit
        Fit whose weights are not normalised.
    """
    theta = find_atom(objective, objective.target, rng)[None, :]
    last = n_levels(n_components) - 1
    for level in range(last + 1):
        if n_components > 1:
            theta = threshold(objective, objective.space.split(theta), n_components)
        fit = descend(objective, theta, stop=LONG_APPROACH if level == last else APPROACH)
        theta = fit.theta
        if level == last:
            fit = swap_atoms(objective, fit, rng, converged=False)
        report(fit.cost)
    return fit
