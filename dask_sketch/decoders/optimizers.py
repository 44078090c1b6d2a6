"""Minimisation within bounds by L-BFGS-B, as both Step 1 and Step 5 use it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, minimize

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import Fit

_PAIRS = 20  # corrections kept; 10, 30 and 60 ended neither lower nor sooner on average


@dataclass(frozen=True)
class Effort:
    """When a descent stops.

    Attributes
    ----------
    tolerance
        Smallest decrease of one iteration, relative to the larger of the value and one.
    n_iterations
        Most iterations; twice as many evaluations.
    """

    tolerance: float
    n_iterations: int


@dataclass(frozen=True)
class Descent:
    """Where a descent ended, with the value there, and why."""

    x: Array
    value: float
    converged: bool
    message: str


def descend_within(
    function: Callable[[Array], tuple[float, Array]],
    start: Array,
    lower: Array,
    upper: Array,
    effort: Effort,
) -> Descent:
    """Minimise a function of many variables from its value and gradient.

    Parameters
    ----------
    function
        Value, in a unit that makes one small, and gradient.
    start, lower, upper
        Starting point and bounds, shape (n,); bounds may be infinite.
    effort
        When to stop.

    Returns
    -------
    descent
        A point within the bounds, its value no higher than the start's.
    """
    found = minimize(
        function,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(lower, upper),
        options={
            "maxiter": effort.n_iterations,
            "maxfun": 2 * effort.n_iterations,
            "ftol": effort.tolerance,
            "gtol": 1e-9,
            "maxcor": _PAIRS,
        },
    )
    return Descent(
        x=np.clip(np.asarray(found.x), lower, upper),
        value=float(found.fun),
        converged=bool(found.success),
        message=str(found.message),
    )


# Levenberg-Marquardt within bounds: the end of the last descent, where L-BFGS-B crawls.
#
# Near a minimum the cost is the square of a nearly linear residual, and the normal equations know
# its whole curvature. From 50 iterations of L-BFGS-B, on mixtures of 3 to 8 components in 2 to 10
# features, it converges in a third to two thirds of the time that L-BFGS-B needs; from halves of 32
# components in 12 features it ends at 0.57 noise levels, where 1000 iterations of L-BFGS-B end at
# 0.89. Further away its steps are too bold: from random starts alone it ended in bad minima more
# often, which is why it does not begin the descent.

_START = 1e-2  # first damping, relative to the curvatures
_LARGEST = 1e12  # damping at which no step is left
_FLAT = 1e-9  # curvatures below this fraction of the largest count as that
# One step is kept where the linear model of an atom means something: means within a deviation of
# it, variances and weights within these factors. A weight is emptied in one step when it is light.
_SHRINK, _GROW, _LIGHT = 0.2, 4.0, 1e-3
# Frequencies for each parameter that the Gram matrix is made of, if there are twice as many: it
# only says how far to go, the gradient is that of all.
_ENOUGH = 6
_PASSES = 6  # of one step's active set; what violates a bound still is cut there


def converge(objective: Objective, fit: Fit, effort: Effort) -> Fit:
    """Descend on weights and atoms together to a local minimum.

    Parameters
    ----------
    objective
        Atoms, cost and normal equations.
    fit
        Where to start.
    effort
        Stops when an undamped step gains, or promises, less than ``tolerance`` of the cost or of
        a noise level, whichever is larger.

    Returns
    -------
    fit
        Within the bounds, its cost no higher than before.

    References
    ----------
    Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters.
    """
    n_atoms = len(fit.theta)
    lower = np.concatenate([np.zeros(n_atoms), np.tile(objective.lower, n_atoms)])
    upper = np.concatenate([np.full(n_atoms, np.inf), np.tile(objective.upper, n_atoms)])

    def parts(x: Array) -> tuple[Array, Array]:
        return x[:n_atoms], x[n_atoms:].reshape(n_atoms, -1)

    enough_frequencies = _ENOUGH * len(lower)
    thin = objective.n_frequencies > 2 * enough_frequencies
    metric = objective.thinned(enough_frequencies) if thin else copy(objective)
    metric.gram_dtype = np.float32

    def equations(x: Array) -> tuple[float, Array, Array]:
        cost, by_weight, by_theta = objective.cost_gradient(*parts(x))
        right = -0.5 * np.concatenate([by_weight, by_theta.ravel()])
        return cost, right, metric.gram(*parts(x))

    x = np.clip(np.concatenate([fit.weights, fit.theta.ravel()]), lower, upper)
    cost, right, gram = equations(x)
    damping, growth = _START, 2.0
    message = ""
    for _ in range(effort.n_iterations):
        enough = effort.tolerance * max(cost, objective.unit)
        low, high = _reach(objective, *parts(x))
        low, high = np.maximum(low, lower - x), np.minimum(high, upper - x)
        step = _step(objective, gram, right, damping, low, high)
        predicted = float(2.0 * right @ step - step @ (gram @ step))
        moved = np.clip(x + step, lower, upper)
        gain = cost - objective.cost(*parts(moved))
        if gain > 1e-3 * predicted > 0.0:
            x = moved
            if gain < enough and damping <= 1.0:
                cost -= gain
                message = "the decrease of the cost is below the tolerance"
                break
            if gain > 0.75 * predicted:
                damping = max(damping / 4.0, 1e-15)
            elif gain < 0.25 * predicted:
                damping *= 2.0
            growth = 2.0
            cost, right, gram = equations(x)
        elif 0.0 <= predicted < 1e-2 * enough and damping <= 1.0:
            message = "the predicted decrease of the cost is below the tolerance"
            break
        elif damping > _LARGEST:
            message = "no step decreases the cost"
            break
        else:
            damping, growth = max(damping, 1e-6) * growth, 2.0 * growth
    weights, theta = parts(x)
    return replace(
        fit,
        weights=weights,
        theta=theta,
        cost=cost,
        converged=bool(message),
        message=message or f"{effort.n_iterations} iterations were not enough",
    )


def _reach(objective: Objective, weights: Array, theta: Array) -> tuple[Array, Array]:
    """Lowest and highest step (P,) that a linear model of the atoms is trusted with."""
    d = objective.n_features
    reach = np.sqrt(objective.variances(theta))
    reach = np.where(reach > 0.0, reach, 1.0)  # of a point: the distribution's deviation
    mean = float(weights.mean())
    lightest = np.where(weights < _LIGHT * mean, 0.0, _SHRINK * weights)
    low = np.concatenate([-reach, (_SHRINK - 1.0) * theta[:, d:]], axis=1)
    high = np.concatenate([reach, (_GROW - 1.0) * theta[:, d:]], axis=1)
    return (
        np.concatenate([lightest - weights, low.ravel()]),
        np.concatenate([(_GROW - 1.0) * weights + mean, high.ravel()]),
    )


def _step(
    objective: Objective, gram: Array, right: Array, damping: float, low: Array, high: Array
) -> Array:
    """Minimise the damped model of the cost over steps between two bounds.

    Variables whose step would leave the bounds are held there and the others follow. One
    factorisation is enough: a multiplier for each held variable makes it stay.
    """
    curvature = np.diagonal(gram)
    largest = max(float(curvature.max()), np.finfo(float).tiny)
    step = np.zeros_like(right)
    free = np.flatnonzero(~(((low >= 0.0) & (right <= 0.0)) | ((high <= 0.0) & (right >= 0.0))))
    if not len(free):
        return step
    s = 1.0 / np.sqrt(np.maximum(curvature[free], _FLAT * largest))
    low, high = low[free] / s, high[free] / s
    solve = _factored(objective, gram, s, damping, free)
    start = solve(s * right[free])
    held, follow = np.empty(0, dtype=np.intp), np.empty((len(free), 0))
    x = start
    for _ in range(_PASSES - 1):
        outside = (x < low) | (x > high)
        outside[held] = False
        left = np.flatnonzero(outside)
        if not len(left):
            break
        forces = np.zeros((len(free), len(left)))
        forces[left, np.arange(len(left))] = 1.0
        held = np.concatenate([held, left])
        follow = np.hstack([follow, solve(forces)])
        bound = np.clip(x, low, high)[held]
        x = start + follow @ np.linalg.solve(follow[held], bound - start[held])
        x[held] = bound
    step[free] = s * np.clip(x, low, high)
    return step


def _factored(
    objective: Objective, gram: Array, s: Array, damping: float, free: npt.NDArray[np.intp]
) -> Callable[[Array], Array]:
    """What solves the damped equations of the free variables, in units ``s``."""
    matrix = gram[np.ix_(free, free)]
    matrix *= s
    matrix *= s[:, None]
    diagonal = matrix.reshape(-1)[:: len(s) + 1]
    while True:
        diagonal += damping
        try:
            return objective.factored(matrix)
        except np.linalg.LinAlgError:  # rounding of a singular matrix
            damping = max(10.0 * damping, 1e-12)
