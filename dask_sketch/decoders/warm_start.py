"""Warm start: descend from the components of an earlier model, for a sketch that has grown.

Sec. 6.1 of Keriven et al. (2018). Swap moves take far longer than the descent (64 components of
speech-like frames, m = 8000: 4.5 and 0.3 CPU seconds), and a sketch that has grown by a thousandth
says nothing new. They are therefore tried only if the sketch has grown by a fifth since the last
search for other components, or if the model fits worse than it did.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_sketch.decoders.descent import Fit, converge, descend, descend_fully
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.optimizers import StoppingRule
from dask_sketch.decoders.starts import Start, find_atom
from dask_sketch.decoders.swap_moves import prune, swap_atoms

_GROWN = 1.2  # growth of the sketch since the last search that may reveal other components
_WORSE = 1.1  # growth of the excess cost of the model beyond which it fits worse
_NEAR = 3.0  # cost in noise levels, above which components are far from the sketch
_FEW_STEPS = StoppingRule(tolerance=1e-3, n_iterations=30)
_NOISE = 0.1  # fraction of the noise level by which the cost may change by chance


def acceptable_cost(
    start: Start | None, n_components: int | None, noise_level: float
) -> tuple[float, float | None]:
    """Cost up to which the components of an earlier model are kept without a search for others.

    Parameters
    ----------
    start
        Components of the earlier model, with its record.
    n_components
        Number of components to decode; None for that of the model.
    noise_level
        Noise level of the sketch that is decoded.

    Returns
    -------
    excess
        Cost above the noise level; ``-inf`` if other components are to be searched for anyway.
    searched
        Noise level at the last search for other components; None if there is to be one.
    """
    if start is None or start.decoding is None or n_components not in (None, len(start.weights)):
        return -np.inf, None
    earlier = start.decoding
    searched = earlier.noise_level if earlier.searched is None else earlier.searched
    if searched > _GROWN * noise_level:
        return -np.inf, None
    excess = max(earlier.cost - earlier.noise_level, 0.0)
    return _WORSE * excess + _NOISE * noise_level, searched


def converge_nearby(
    objective: Objective, start: Start, n_components: int | None, excess: float
) -> Fit | None:
    """Minimum next to given components that noise tells little from the sketch, in a few steps.

    At 64 components of 12 features (m = 8000), for a window that has moved on by a thirtieth, two
    steps of Levenberg-Marquardt end within 1e-4 noise levels of the minimum.

    Parameters
    ----------
    objective, start, n_components, excess
        Arguments of :func:`warm_start`.

    Returns
    -------
    fit
        None if the components are far from the sketch, or others are to be searched for.
    """
    k = len(start.weights)
    if n_components not in (None, k) or excess == -np.inf or not objective.is_solvable(k):
        return None
    theta, weights = objective.space.clip(start.atoms(objective)), np.array(start.weights)
    cost = objective.cost(weights, theta)
    if not cost < _NEAR * objective.unit:
        return None
    fit = converge(objective, Fit(weights, theta, cost, False, ""), _FEW_STEPS)
    return fit if fit.cost - objective.unit <= excess else None


def warm_start(
    objective: Objective,
    start: Start,
    n_components: int | None,
    rng: np.random.Generator,
    report: Callable[[float], None],
    excess: float = -np.inf,
) -> Fit:
    """Descend from given components, and swap those that no longer fit.

    Parameters
    ----------
    objective
        Atoms and cost.
    start
        Components to start from.
    n_components
        Number ``K`` of atoms, by default that of the start. Missing atoms are found by Step 1, and
        of too many atoms those that are missed least are removed.
    rng
        Random number generator.
    report
        Function called with the cost at the end.
    excess
        Cost above the noise level, in the unit of the cost, up to which no swap is tried.

    Returns
    -------
    fit
        Fit whose weights are not normalised.
    """
    n_components = n_components or len(start.weights)
    fit = descend(objective, objective.space.clip(start.atoms(objective)), start.weights)
    while len(fit.theta) < n_components:
        atom = find_atom(objective, objective.residual(fit.weights, fit.theta), rng)
        fit = descend(objective, np.vstack([fit.theta, atom]))
    if len(fit.theta) > n_components:
        fit = descend_fully(objective, prune(objective, fit, n_components))
    else:
        fit = descend_fully(objective, fit.theta, fit.weights)
    if fit.cost - objective.unit > excess:
        fit = swap_atoms(objective, fit, rng)
    report(fit.cost)
    return fit
