"""Step 5 of Algorithm 1: descend on weights and atoms together, from where they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.optimizers import Effort, converge, descend_within
from dask_sketch.decoders.support import Fit, fit_weights

# A curvature below this fraction of the largest does not stretch its variable any further, and a
# weight below this fraction of the mean is taken for that: a dead atom must not dwarf the others.
_FLAT = 1e-6
_LIGHT = 0.1
# What comes between is only the start of what follows. Splitting into 32 (d = 8) and 64 (d = 12)
# components, stops of 1e-7 and 1000 iterations took 1.2 to 1.7 times as long and ended no lower on
# average. Before the end, a longer approach spares dear steps of Levenberg-Marquardt: at K = 64
# (d = 12, m = 8000) 400 iterations instead of 100 halved the time, 26 to 14 CPU seconds.
APPROACH = Effort(tolerance=1e-4, n_iterations=100)
LONG_APPROACH = Effort(tolerance=1e-5, n_iterations=400)
LOCAL = Effort(tolerance=1e-3, n_iterations=30)  # of one or two atoms among others that rest
# Where the data is such a mixture, a few steps end at the minimum. Where it is none, the valley is
# long and flat: on speech (d = 12, K = 64, m = 4000), 100 steps took 23 CPU seconds and ended at
# 2.14 noise levels, 30 took 7 and ended at 2.23, 0.03 nats apart.
CONVERGE = Effort(tolerance=1e-5, n_iterations=30)
# Parameters up to which normal equations are built and solved. Beyond, they are dear: 12,800 of
# them (512 components of 12 features) take 1.3 GB and a minute for one step.
SOLVABLE = 4096
_END = Effort(tolerance=1e-8, n_iterations=1000)  # of L-BFGS-B, where it goes all the way


def descend(
    objective: Objective, theta: Array, weights: Array | None = None, effort: Effort = APPROACH
) -> Fit:
    """Steps 4 and 5 on the way: L-BFGS-B, which is cheap and gentle far from a minimum.

    The variables are measured in units of the inverse root of the Gauss-Newton curvature at the
    starting point (ours: it halves the time at d = 20 and K = 5; at d = 12 and K = 64, splitting
    with plain variables still cost 140 noise levels where this one costs 1). The cost is measured
    in noise levels, so that tolerances mean the same for any sketch.

    Parameters
    ----------
    objective
        Atoms and cost.
    theta
        Atoms to start from, shape (K, n_parameters).
    weights
        Weights to start from, shape (K,); those of Step 4 when not given.
    effort
        When to stop.
    """
    weights = fit_weights(objective, theta) if weights is None else weights
    n_atoms, unit = len(theta), objective.unit
    stretch = _stretch(objective, weights, theta)

    def cost(x: Array) -> tuple[float, Array]:
        y = x * stretch
        value, by_weight, by_theta = objective.cost_gradient(
            y[:n_atoms], y[n_atoms:].reshape(n_atoms, -1)
        )
        gradient = np.concatenate([by_weight, by_theta.ravel()])
        return value / unit, gradient * stretch / unit

    lower = np.concatenate([np.zeros(n_atoms), np.tile(objective.lower, n_atoms)])
    upper = np.concatenate([np.full(n_atoms, np.inf), np.tile(objective.upper, n_atoms)])
    start = np.concatenate([weights, theta.ravel()])
    found = descend_within(cost, start / stretch, lower / stretch, upper / stretch, effort)
    best = np.clip(found.x * stretch, lower, upper)
    return Fit(
        weights=best[:n_atoms],
        theta=best[n_atoms:].reshape(n_atoms, -1),
        cost=found.value * unit,
        converged=found.converged,
        message=found.message,
    )


def descend_fully(objective: Objective, theta: Array, weights: Array | None = None) -> Fit:
    """Steps 4 and 5 at the end: to the minimum, which Levenberg-Marquardt reaches (ours).

    With more than ``SOLVABLE`` parameters, as near as L-BFGS-B comes.
    """
    if not is_solvable(objective, len(theta)):
        return descend(objective, theta, weights, _END)
    return converge(objective, descend(objective, theta, weights, LONG_APPROACH), CONVERGE)


def is_solvable(objective: Objective, n_components: int) -> bool:
    """Whether normal equations are affordable."""
    return n_components * (1 + objective.n_parameters) <= SOLVABLE


def _stretch(objective: Objective, weights: Array, theta: Array) -> Array:
    """Length of one unit of each variable of the descent."""
    tiny = np.finfo(float).tiny
    weights = np.maximum(weights, max(_LIGHT * float(weights.mean()), tiny))
    parts = [part.ravel() for part in objective.curvatures(weights, theta)]
    floors = [max(_FLAT * float(part.max()), tiny) for part in parts]
    curvature = np.concatenate(
        [np.maximum(part, floor) for part, floor in zip(parts, floors, strict=True)]
    )
    return np.sqrt(objective.unit / curvature)


# From coarse to fine: the way to a minimum needs fewer frequencies than the minimum itself (ours).
#
# A part of the frequencies is a sketch of its own. It tells the valleys of the cost apart as long as
# it has several numbers for each parameter, and where its minimum differs from that of all
# frequencies, the last descent makes up for it. On mixtures of sec. 5.1 with d = 12 and K = 64, by
# splitting, CPU seconds fell from 11 to 5 (m = 1e4) and from 206 to 8 (m = 1e5), to the same minima:
# those that a descent from the truth ends in.

_EACH, _FEWEST = 2, 2000  # frequencies for each parameter, and at least
_WORTH = 1.25  # times as many frequencies make a coarse objective worth its while


def coarsened(objective: Objective, n_components: int) -> Objective:
    """The objective that a search for so many components runs on; itself if it is small.

    Parameters
    ----------
    objective
        Of all frequencies.
    n_components
        Number ``K`` of atoms.
    """
    enough = max(_EACH * n_components * (1 + objective.n_parameters), _FEWEST)
    if objective.n_frequencies < _WORTH * enough or not is_solvable(objective, n_components):
        return objective
    return objective.thinned(enough)


def settle(objective: Objective, fit: Fit) -> Fit:
    """Descend with all frequencies from a minimum of a part of them.

    Parameters
    ----------
    objective
        Of all frequencies.
    fit
        A minimum of what :func:`coarsened` returned.
    """
    start = replace(fit, cost=objective.cost(fit.weights, fit.theta))
    return converge(objective, start, CONVERGE)
