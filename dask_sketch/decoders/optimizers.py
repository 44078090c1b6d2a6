"""General optimisers within bounds: L-BFGS-B, and BFGS ascent from many points at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, minimize

Array = npt.NDArray[np.float64]

# corrections of L-BFGS-B; 10, 30 and 60 ended neither lower nor sooner on average
_CORRECTIONS = 20
_ARMIJO = 1e-4  # fraction of the predicted increase that a step of the ascent must reach
_SHORTEN = 0.3  # factor on the length of a step that does not
_MAX_FAILURES = 12  # shortenings in a row
_FIRST, _LONGEST = 0.3, 2.0  # length of the first step, and of any step


@dataclass(frozen=True)
class StoppingRule:
    """Conditions that end an optimisation.

    Attributes
    ----------
    tolerance
        Smallest decrease of one iteration, relative to the larger of the value and one.
    n_iterations
        Largest number of iterations; of evaluations, twice as many.
    """

    tolerance: float
    n_iterations: int


@dataclass(frozen=True)
class Minimum:
    """End point of a minimisation, its value, and the reason for the end."""

    x: Array
    value: float
    converged: bool
    message: str


def minimise_within(
    function: Callable[[Array], tuple[float, Array]],
    start: Array,
    lower: Array,
    upper: Array,
    stop: StoppingRule,
) -> Minimum:
    """Minimise a function of many variables from its value and gradient, by L-BFGS-B.

    Parameters
    ----------
    function
        Value, in a unit that makes one small, and gradient.
    start, lower, upper
        Starting point and bounds, shape (n,); bounds may be infinite.
    stop
        Stopping rule.

    Returns
    -------
    minimum
        Point within the bounds; its value is not above that of the start.
    """
    minimum = minimize(
        function,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(lower, upper),
        options={
            "maxiter": stop.n_iterations,
            "maxfun": 2 * stop.n_iterations,
            "ftol": stop.tolerance,
            "gtol": 1e-9,
            "maxcor": _CORRECTIONS,
        },
    )
    return Minimum(
        x=np.clip(np.asarray(minimum.x), lower, upper),
        value=float(minimum.fun),
        converged=bool(minimum.success),
        message=str(minimum.message),
    )


def ascend_many(
    function: Callable[[Array], tuple[Array, Array]],
    starts: Array,
    lower: Array,
    upper: Array,
    stop: StoppingRule,
) -> tuple[Array, Array]:
    """Ascend from many points to local maxima of one function, by BFGS within bounds.

    Each point has its own inverse Hessian and step length, and points that have arrived are
    evaluated no more. One evaluation of many points costs far less than many of one point.

    Parameters
    ----------
    function
        Values (n,) and gradients (n, p) at points (n, p); values and variables of order one.
    starts
        Starting points within the bounds, shape (n, p).
    lower, upper
        Bounds, shape (p,); they may be infinite.
    stop
        Smallest increase of one step, and largest number of evaluations of each point.

    Returns
    -------
    points, values
        End points (n, p) and their values (n,), which are not below those of the starts.

    Examples
    --------
    >>> def hill(x):
    ...     return -((x - 3.0) ** 2).sum(axis=1), -2.0 * (x - 3.0)
    >>> low, high = np.full(2, -9.0), np.array([9.0, 1.0])
    >>> points, _ = ascend_many(hill, np.zeros((2, 2)), low, high, StoppingRule(1e-9, 99))
    >>> points.round(3).tolist()
    [[3.0, 1.0], [3.0, 1.0]]
    """
    x = starts.copy()
    values, gradients = function(x)
    identity = np.eye(x.shape[1])
    inverse = np.tile(identity, (len(x), 1, 1))
    fresh = np.ones(len(x), dtype=bool)  # points without any curvature known yet
    length = np.ones(len(x))
    failures = np.zeros(len(x), dtype=np.int64)
    active = np.arange(len(x))
    for _ in range(stop.n_iterations):
        if not len(active):
            break
        at, slope = x[active], gradients[active]
        at_bound = ((at <= lower) & (slope < 0.0)) | ((at >= upper) & (slope > 0.0))
        slope = np.where(at_bound, 0.0, slope)
        direction = np.einsum("nij,nj->ni", inverse[active], slope)
        direction = np.where(at_bound, 0.0, direction)
        downhill = (direction * slope).sum(axis=1) <= 0.0
        direction[downhill] = slope[downhill]
        size = np.linalg.norm(direction, axis=1)
        lengths = np.where(fresh[active] | downhill, _FIRST, np.minimum(size, _LONGEST))
        step = direction * (length[active] * lengths / np.maximum(size, 1e-300))[:, None]
        moved = np.clip(at + step, lower, upper)
        step = moved - at
        new_values, new_gradients = function(moved)
        predicted = (gradients[active] * step).sum(axis=1)
        gain = new_values - values[active]
        good = gain >= _ARMIJO * np.maximum(predicted, 0.0)

        improved = active[good]
        change = gradients[improved] - new_gradients[good]
        _update(inverse, fresh, improved, step[good], change, identity)
        x[improved], values[improved] = moved[good], new_values[good]
        gradients[improved] = new_gradients[good]
        length[improved], failures[improved] = 1.0, 0
        length[active[~good]] *= _SHORTEN
        failures[active[~good]] += 1
        arrived = np.where(good, gain < stop.tolerance, failures[active] > _MAX_FAILURES)
        active = active[~arrived]
    return x, values


def _update(
    inverse: Array,
    fresh: npt.NDArray[np.bool_],
    chosen: npt.NDArray[np.int64],
    step: Array,
    change: Array,
    identity: Array,
) -> None:
    """Update the inverse Hessians of the chosen points after a step, in place."""
    curvature = (step * change).sum(axis=1)
    usable = curvature > 1e-10 * np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
    chosen, step, change = chosen[usable], step[usable], change[usable]
    curvature = curvature[usable]
    first = fresh[chosen]
    scale = curvature[first] / (change[first] ** 2).sum(axis=1)
    inverse[chosen[first]] = scale[:, None, None] * identity
    fresh[chosen] = False
    rho = 1.0 / curvature
    left = identity - rho[:, None, None] * step[:, :, None] * change[:, None, :]
    outer = rho[:, None, None] * step[:, :, None] * step[:, None, :]
    inverse[chosen] = left @ inverse[chosen] @ left.swapaxes(1, 2) + outer
