"""Many climbs at once: BFGS within bounds on points that share every evaluation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_sketch.decoders.families import Array

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
