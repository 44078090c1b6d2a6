"""Warm start: from the atoms of an earlier model, for a sketch that has grown (sec. 6.1).

To exchange atoms takes far longer than the descent (64 on speech-like frames, m = 8000: 4.5 CPU
seconds and 0.3), and a sketch that has grown by a thousandth tells nothing new. So it is tried only
where the sketch has grown by a fifth since the last search, or the model fits worse than it did.
"""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.descent import descend, descend_fully
from dask_sketch.decoders.exchange import exchange, prune
from dask_sketch.decoders.families import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.search import find_atom
from dask_sketch.decoders.support import Fit
from dask_sketch.models import Centroids, GaussianMixture

_GROWN = 1.2  # times the samples at the last search, from which they may show other components
_WORSE = 1.1  # times the excess cost of the earlier model
_NOISE = 0.1  # part of the noise level that the cost may move by itself


def worth_keeping(
    start: GaussianMixture | Centroids | None, noise_level: float
) -> tuple[float, float | None]:
    """Up to which cost the components of an earlier model are kept without a search for others.

    Parameters
    ----------
    start
        The earlier model.
    noise_level
        Of the sketch that is decoded.

    Returns
    -------
    excess
        Cost above the noise level; ``-inf`` where others are to be searched for in any case.
    searched
        Noise level at the search that this relies on; none if there is to be one.
    """
    before = None if start is None else start.decoding
    if before is None:
        return -np.inf, None
    searched = before.noise_level if before.searched is None else before.searched
    if searched > _GROWN * noise_level:
        return -np.inf, None
    excess = max(before.cost - before.noise_level, 0.0)
    return _WORSE * excess + _NOISE * noise_level, searched


def resume(
    objective: Objective,
    weights: Array,
    theta: Array,
    n_components: int,
    rng: np.random.Generator,
    excess: float = -np.inf,
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
    excess
        Cost above the noise level, in the unit of the cost, up to which the atoms are taken to fit
        as they did, so that no exchange is tried.

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
    if fit.cost - objective.unit <= excess:
        return fit
    return exchange(objective, fit, rng)
