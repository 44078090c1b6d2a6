"""Step 1 of Algorithm 1: find an atom that correlates with the residual."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.objective import Objective

# Many climbs at once: BFGS within bounds on points that share every evaluation.

_ARMIJO = 1e-4  # part of the promised decrease that a step must keep
_SHORTEN = 0.3  # of a step that does not
_GIVE_UP = 12  # shortenings in a row
_FIRST, _LONGEST = 0.3, 2.0  # length of the first step, and of any


def climb(
    function: Callable[[Array], tuple[Array, Array]],
    starts: Array,
    lower: Array,
    upper: Array,
    tolerance: float,
    n_iterations: int,
) -> tuple[Array, Array]:
    """Climb from many points to local maxima of one function.

    Each point has its own inverse Hessian and step length; those that have arrived are evaluated
    no more. One evaluation of many points costs far less than many of one.

    Parameters
    ----------
    function
        Values (n,) and gradients (n, p) at points (n, p); values and variables of order one.
    starts
        Shape (n, p), within the bounds.
    lower, upper
        Bounds, shape (p,), may be infinite.
    tolerance
        A point has arrived when a step gains less.
    n_iterations
        Most evaluations of each point.

    Returns
    -------
    points, values
        Shapes (n, p) and (n,); no value is lower than at the start.

    Examples
    --------
    >>> def hill(x):
    ...     return -((x - 3.0) ** 2).sum(axis=1), -2.0 * (x - 3.0)
    >>> points, _ = climb(hill, np.zeros((2, 2)), np.full(2, -9.0), np.array([9.0, 1.0]), 1e-9, 99)
    >>> points.round(3).tolist()
    [[3.0, 1.0], [3.0, 1.0]]
    """
    x = starts.copy()
    values, gradients = function(x)
    identity = np.eye(x.shape[1])
    inverse = np.tile(identity, (len(x), 1, 1))
    fresh = np.ones(len(x), dtype=bool)  # no curvature known yet
    length = np.ones(len(x))
    failures = np.zeros(len(x), dtype=np.int64)
    active = np.arange(len(x))
    for _ in range(n_iterations):
        if not len(active):
            break
        at, slope = x[active], gradients[active]
        held = ((at <= lower) & (slope < 0.0)) | ((at >= upper) & (slope > 0.0))
        slope = np.where(held, 0.0, slope)
        direction = np.einsum("nij,nj->ni", inverse[active], slope)
        direction = np.where(held, 0.0, direction)
        downhill = (direction * slope).sum(axis=1) <= 0.0
        direction[downhill] = slope[downhill]
        size = np.linalg.norm(direction, axis=1)
        wanted = np.where(fresh[active] | downhill, _FIRST, np.minimum(size, _LONGEST))
        step = direction * (length[active] * wanted / np.maximum(size, 1e-300))[:, None]
        moved = np.clip(at + step, lower, upper)
        step = moved - at
        new_values, new_gradients = function(moved)
        promised = (gradients[active] * step).sum(axis=1)
        gain = new_values - values[active]
        good = gain >= _ARMIJO * np.maximum(promised, 0.0)

        kept = active[good]
        change = gradients[kept] - new_gradients[good]
        _update(inverse, fresh, kept, step[good], change, identity)
        x[kept], values[kept], gradients[kept] = moved[good], new_values[good], new_gradients[good]
        length[kept], failures[kept] = 1.0, 0
        length[active[~good]] *= _SHORTEN
        failures[active[~good]] += 1
        arrived = np.where(good, gain < tolerance, failures[active] > _GIVE_UP)
        active = active[~arrived]
    return x, values


def _update(
    inverse: Array,
    fresh: np.ndarray[tuple[int], np.dtype[np.bool_]],
    which: np.ndarray[tuple[int], np.dtype[np.int64]],
    step: Array,
    change: Array,
    identity: Array,
) -> None:
    """Put what a step has shown into the inverse Hessians of the points ``which``, in place."""
    curvature = (step * change).sum(axis=1)
    usable = curvature > 1e-10 * np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
    which, step, change, curvature = which[usable], step[usable], change[usable], curvature[usable]
    first = fresh[which]
    scale = curvature[first] / (change[first] ** 2).sum(axis=1)
    inverse[which[first]] = scale[:, None, None] * identity
    fresh[which] = False
    rho = 1.0 / curvature
    left = identity - rho[:, None, None] * step[:, :, None] * change[:, None, :]
    outer = rho[:, None, None] * step[:, :, None] * step[:, None, :]
    inverse[which] = left @ inverse[which] @ left.swapaxes(1, 2) + outer


# Random starting points whose correlation is looked at: as many as this many numbers, within
# bounds. Widely scattered components are far apart for a climb, and small sketches quick to ask.
_NUMBERS, _FEWEST, _MOST = 2_000_000, 200, 2_000
_CLIMBS = 7  # of which the best are climbed from, beside the one at the centre
# Step 5 moves the atom on at once: the last digits of this maximum are of no use.
_TOLERANCE = 1e-6
_N_ITERATIONS = 200


def find_atom(
    objective: Objective, residual: tuple[Array, Array], rng: np.random.Generator
) -> Array:
    """Climb to a local maximum of ``Re <a / ||a||, r>`` from random starting points.

    The first starting point is the paper's, at the centre of the data (sec. 5.3). The others are
    ours: atoms are drawn over the spread of the data, and the few that correlate best are climbed
    from too; the best maximum wins. From the centre alone, a climb sees no further than a few
    standard deviations of a component. On mixtures with means 3 to 5 times further apart than in
    sec. 5.1 (d = 1 to 12, K = 2 to 10), CL-OMPR from the centre alone missed components in 15 of
    28 fits, and with these starts in 1; on those of sec. 5.1 both end in the same minima.
    All climb together, so that Step 1 stays cheap beside Step 5.

    Parameters
    ----------
    objective
        Atoms and their correlation.
    residual
        Real and imaginary part of the residual, shape (n_frequencies,) each.
    rng
        Source of the starting points.

    Returns
    -------
    theta
        Parameters of one atom, shape (n_parameters,), in the objective's coordinates.
    """
    centre = objective.random_atoms(rng, 1)
    if not any(part.any() for part in residual):
        return np.asarray(centre[0])
    looks = min(max(_NUMBERS // objective.n_frequencies, _FEWEST), _MOST)
    away = objective.random_atoms(rng, looks, away=True)
    best = np.argsort(-objective.correlations(away, residual), kind="stable")[:_CLIMBS]
    found, values = climb_correlation(objective, np.concatenate([centre, away[best]]), residual)
    return np.asarray(found[values.argmax()])


def climb_correlation(
    objective: Objective, starts: Array, residual: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Climb to local maxima of ``Re <a / ||a||, r>`` from several atoms together.

    Parameters
    ----------
    objective
        Atoms and their correlation.
    starts
        Shape (n, n_parameters).
    residual
        Real and imaginary part of the residual, shape (n_frequencies,) each; not zero.

    Returns
    -------
    theta, values
        Shape (n, n_parameters); and (n,), as parts of the residual's norm.
    """
    norm = np.sqrt(residual[0] @ residual[0] + residual[1] @ residual[1])

    def correlation(theta: Array) -> tuple[Array, Array]:
        values, gradients = objective.correlation_gradients(theta, residual)
        return values / norm, gradients / norm

    return climb(correlation, starts, objective.lower, objective.upper, _TOLERANCE, _N_ITERATIONS)
