"""Steps 3 to 5 of Algorithm 1: choose atoms, fit their weights, and descend on all parameters.

A descent begins with L-BFGS-B, as in the paper, which is cheap and safe far from a minimum, and
ends with Levenberg-Marquardt. Near a minimum the cost is the square of a nearly linear residual,
and the normal equations know its whole curvature. After 50 iterations of L-BFGS-B, on mixtures of 3
to 8 components in 2 to 10 features, Levenberg-Marquardt converges in a third to two thirds of the
time that L-BFGS-B needs; from halves of 32 components in 12 features it ends at 0.57 noise levels,
and 1000 iterations of L-BFGS-B at 0.89. Further away its steps are too bold: from random starts
alone it ended in bad minima more often, so it does not begin the descent.

The search for a minimum needs fewer frequencies than the minimum itself. A subset of the
frequencies is a sketch of its own, which distinguishes the valleys of the cost if it has several
numbers for each parameter; a last descent with all frequencies removes the difference between the
two minima. On mixtures of sec. 5.1 with d = 12 and K = 64, by splitting, CPU seconds fell from 11
to 5 (m = 1e4) and from 206 to 8 (m = 1e5), with the same minima: those in which a descent from the
truth ends.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import optimize

from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.optimizers import StoppingRule, minimise_within
from dask_sketch.validation.choices import MAX_SOLVABLE

# Intermediate solutions only initialise the next stage, so they are not converged. Splitting into
# 32 (d = 8) and 64 (d = 12) components, stops of 1e-7 and 1000 iterations took 1.2 to 1.7 times as
# long and ended no lower on average. Before the end, a longer approach saves expensive steps of
# Levenberg-Marquardt: at K = 64 (d = 12, m = 8000) 400 iterations instead of 100 halved the time,
# from 26 to 14 CPU seconds.
APPROACH = StoppingRule(tolerance=1e-4, n_iterations=100)
LONG_APPROACH = StoppingRule(tolerance=1e-5, n_iterations=400)
# stopping rule for one or two atoms, while the others are fixed
LOCAL = StoppingRule(tolerance=1e-3, n_iterations=30)
# If the data is such a mixture, a few steps end at the minimum. If it is not, the valley is long
# and flat: on speech (d = 12, K = 64, m = 4000), 100 steps took 23 CPU seconds and ended at 2.14
# noise levels, 30 took 7 and ended at 2.23, which is 0.03 nats worse.
CONVERGE = StoppingRule(tolerance=1e-5, n_iterations=30)
_END = StoppingRule(tolerance=1e-8, n_iterations=1000)  # L-BFGS-B without Levenberg-Marquardt

UNSEEN = 1e-100  # an atom whose largest number is smaller has no weight
_MAX_WEIGHT = 1e3  # the weights of a fit to a sketch sum to about one
# Scales of the variables of L-BFGS-B: curvatures below a fraction of the largest count as that
# fraction, and weights below a fraction of the mean likewise, so that an atom without weight does
# not dominate the others.
_FLAT, _LIGHT = 1e-6, 0.1
# Damping of Levenberg-Marquardt, relative to the curvatures: at first, and when no step is left.
_DAMPING, _MAX_DAMPING = 1e-2, 1e12
_FLAT_EQUATION = 1e-9  # curvatures below this fraction of the largest count as that
# A step stays where the linear model of an atom is meaningful: means within one standard deviation,
# variances and weights within these factors. A light weight may become zero in one step.
_SHRINK, _GROW, _LIGHT_STEP = 0.2, 4.0, 1e-3
# Frequencies for each parameter of the Gram matrix, if there are twice as many: it only determines
# the length of a step, and the gradient uses all frequencies.
_GRAM_FREQUENCIES = 6
_PASSES = 6  # updates of the active set of one step; remaining violations of bounds are clipped
# Frequencies for each parameter of a coarse objective, and their smallest number; the coarse
# objective is used if there are more frequencies by a factor.
_COARSE_FREQUENCIES, _MIN_COARSE, _COARSE_FACTOR = 2, 2000, 1.25


@dataclass(frozen=True)
class Fit:
    """Weights (K,) and atoms (K, n_parameters), their cost, and how the descent ended."""

    weights: Array
    theta: Array
    cost: float
    converged: bool
    message: str = ""
    n_evaluations: int = 0


def empty_fit(objective: Objective) -> Fit:
    """Fit without atoms, whose residual is the whole sketch."""
    real, imag = objective.target
    return Fit(
        weights=np.empty(0),
        theta=np.empty((0, objective.space.n_parameters)),
        cost=float(real @ real + imag @ imag),
        converged=False,
        message="",
    )


def non_negative_weights(rows: Array, target: Array) -> Array:
    """Weights ``argmin_{alpha >= 0} ||target - alpha @ rows||``.

    A QR factorisation first leaves K + 1 equations instead of 2m, with the same solution.

    Parameters
    ----------
    rows
        Atoms as real numbers, shape (K, 2 * n_frequencies).
    target
        Sketch as real numbers, shape (2 * n_frequencies,).

    Returns
    -------
    weights
        Non-negative weights, shape (K,).

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> non_negative_weights(rows, np.array([2.0, -1.0, 5.0])).tolist()
    [2.0, 0.0]
    """
    n_atoms = len(rows)
    system = np.asarray(np.linalg.qr(np.vstack([rows, target]).T, mode="r"))
    matrix, right = system[:, :n_atoms], system[:, n_atoms]
    try:
        return np.asarray(optimize.nnls(matrix, right, maxiter=30 * n_atoms)[0])
    except RuntimeError:  # nearly equal atoms can make the active set cycle
        return np.maximum(optimize.lsq_linear(matrix, right, bounds=(0.0, np.inf)).x, 0.0)


def threshold(objective: Objective, theta: Array, n_components: int) -> Array:
    """Step 3: the atoms with the largest weights in a non-negative fit of *normalised* atoms.

    Ties and zeros are broken by order, so that exactly ``n_components`` atoms remain.
    """
    if len(theta) <= n_components:
        return theta
    rows = objective.atoms(theta)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)
    weights = non_negative_weights(rows, np.concatenate(objective.target))
    order = np.argsort(-weights, kind="stable")
    return theta[np.sort(order[:n_components])]


def fit_weights(objective: Objective, theta: Array) -> Array:
    """Step 4: weights ``argmin_{alpha >= 0} ||z - sum_k alpha_k a_k||`` of unscaled atoms."""
    atoms = objective.atoms(theta)
    # an atom that no frequency sees has no weight, rather than one of 1e300
    atoms[np.abs(atoms).max(axis=1, initial=0.0) < UNSEEN] = 0.0
    return non_negative_weights(atoms, np.concatenate(objective.target))


def descend(
    objective: Objective,
    theta: Array,
    weights: Array | None = None,
    stop: StoppingRule = APPROACH,
) -> Fit:
    """Steps 4 and 5 for an intermediate solution: weights, then L-BFGS-B.

    Variables are measured in units of the inverse root of the Gauss-Newton curvature at the
    starting point (ours: it halves the time at d = 20 and K = 5; at d = 12 and K = 64, splitting
    with plain variables still cost 140 noise levels, with scaled ones 1). The cost is measured in
    noise levels, so that tolerances have the same meaning for any sketch.

    Parameters
    ----------
    objective
        Atoms and cost.
    theta
        Starting atoms, shape (K, n_parameters).
    weights
        Starting weights, shape (K,); those of Step 4 by default.
    stop
        Stopping rule.
    """
    weights = fit_weights(objective, theta) if weights is None else weights
    n_atoms, unit = len(theta), objective.unit
    stretch = _scales(objective, weights, theta)

    def cost(x: Array) -> tuple[float, Array]:
        y = x * stretch
        value, by_weight, by_theta = objective.cost_gradient(
            y[:n_atoms], y[n_atoms:].reshape(n_atoms, -1)
        )
        gradient = np.concatenate([by_weight, by_theta.ravel()])
        return value / unit, gradient * stretch / unit

    lower, upper = _bounds(objective, n_atoms)
    start = np.concatenate([weights, theta.ravel()])
    minimum = minimise_within(cost, start / stretch, lower / stretch, upper / stretch, stop)
    best = np.clip(minimum.x * stretch, lower, upper)
    return Fit(
        weights=best[:n_atoms],
        theta=best[n_atoms:].reshape(n_atoms, -1),
        cost=minimum.value * unit,
        converged=minimum.converged,
        message=minimum.message,
    )


def descend_fully(objective: Objective, theta: Array, weights: Array | None = None) -> Fit:
    """Steps 4 and 5 for a final solution: L-BFGS-B, then Levenberg-Marquardt to the minimum.

    With more parameters than normal equations are affordable for, L-BFGS-B with a small tolerance.
    """
    if not objective.is_solvable(len(theta)):
        return descend(objective, theta, weights, _END)
    return converge(objective, descend(objective, theta, weights, LONG_APPROACH))


def _bounds(objective: Objective, n_atoms: int) -> tuple[Array, Array]:
    """Bounds (P,) of all weights and parameters."""
    shape = n_atoms, objective.space.n_parameters
    lower, upper = (
        np.broadcast_to(each, shape).ravel()
        for each in (objective.space.lower, objective.space.upper)
    )
    return (
        np.concatenate([np.zeros(n_atoms), lower]),
        np.concatenate([np.full(n_atoms, _MAX_WEIGHT), upper]),
    )


def _scales(objective: Objective, weights: Array, theta: Array) -> Array:
    """Length of one unit of each variable of L-BFGS-B."""
    tiny = np.finfo(float).tiny
    weights = np.maximum(weights, max(_LIGHT * float(weights.mean()), tiny))
    parts = [part.ravel() for part in objective.curvatures(weights, theta)]
    floors = [max(_FLAT * float(part.max()), tiny) for part in parts]
    curvature = np.concatenate(
        [np.maximum(part, floor) for part, floor in zip(parts, floors, strict=True)]
    )
    return np.sqrt(objective.unit / curvature)


# -- Levenberg-Marquardt within bounds --------------------------------------------------


def converge(objective: Objective, fit: Fit, stop: StoppingRule = CONVERGE) -> Fit:
    """Descend on weights and atoms together to a local minimum, by Levenberg-Marquardt.

    Parameters
    ----------
    objective
        Atoms, cost and normal equations.
    fit
        Starting point.
    stop
        Stopping rule: the descent ends when an undamped step gains, or is predicted to gain, less
        than ``tolerance`` of the cost or of a noise level, whichever is larger.

    Returns
    -------
    fit
        Fit within the bounds; its cost is not above that of the start.

    References
    ----------
    Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters.
    """
    n_atoms = len(fit.theta)
    lower, upper = _bounds(objective, n_atoms)

    def parts(x: Array) -> tuple[Array, Array]:
        return x[:n_atoms], x[n_atoms:].reshape(n_atoms, -1)

    metric = _gram_objective(objective, len(lower))

    def equations(x: Array) -> tuple[float, Array, Array]:
        cost, by_weight, by_theta = objective.cost_gradient(*parts(x))
        right = -0.5 * np.concatenate([by_weight, by_theta.ravel()])
        return cost, right, metric.gram(*parts(x))

    x = np.clip(np.concatenate([fit.weights, fit.theta.ravel()]), lower, upper)
    cost, right, gram = equations(x)
    damping, growth = _DAMPING, 2.0
    message = ""
    for _ in range(stop.n_iterations):
        enough = stop.tolerance * max(cost, objective.unit)
        low, high = _trust_region(objective, *parts(x))
        low, high = np.maximum(low, lower - x), np.minimum(high, upper - x)
        step = _damped_step(objective, gram, right, damping, low, high)
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
        elif damping > _MAX_DAMPING:
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
        message=message or f"{stop.n_iterations} iterations were not enough",
    )


def _gram_objective(objective: Objective, n_parameters: int) -> Objective:
    """Objective for Gram matrices in float32, with part of the frequencies if there are many."""
    enough = _GRAM_FREQUENCIES * n_parameters
    many = objective.n_frequencies > 2 * enough
    metric = objective.subsample(enough) if many else copy(objective)
    metric.gram_dtype = np.float32
    return metric


def _trust_region(objective: Objective, weights: Array, theta: Array) -> tuple[Array, Array]:
    """Lowest and highest step (P,) for which the linear model of the atoms is meaningful."""
    d = objective.space.n_features
    reach = np.sqrt(objective.space.variances(theta))
    reach = np.where(reach > 0.0, reach, 1.0)  # points have the reach of the frequency distribution
    mean = float(weights.mean())
    lightest = np.where(weights < _LIGHT_STEP * mean, 0.0, _SHRINK * weights)
    low = np.concatenate([-reach, (_SHRINK - 1.0) * theta[:, d:]], axis=1)
    high = np.concatenate([reach, (_GROW - 1.0) * theta[:, d:]], axis=1)
    return (
        np.concatenate([lightest - weights, low.ravel()]),
        np.concatenate([(_GROW - 1.0) * weights + mean, high.ravel()]),
    )


def _damped_step(
    objective: Objective, gram: Array, right: Array, damping: float, low: Array, high: Array
) -> Array:
    """Minimise the damped model of the cost over steps between two bounds.

    Variables whose step would leave the bounds are held there, and the others are solved for
    again. One factorisation is enough: each held variable has a multiplier that holds it.
    """
    curvature = np.diagonal(gram)
    largest = max(float(curvature.max()), np.finfo(float).tiny)
    step = np.zeros_like(right)
    free = np.flatnonzero(~(((low >= 0.0) & (right <= 0.0)) | ((high <= 0.0) & (right >= 0.0))))
    if not len(free):
        return step
    s = 1.0 / np.sqrt(np.maximum(curvature[free], _FLAT_EQUATION * largest))
    low, high = low[free] / s, high[free] / s
    solve = _factorise_damped(objective, gram, s, damping, free)
    start = solve(s * right[free])
    fixed, follow = np.empty(0, dtype=np.intp), np.empty((len(free), 0))
    x = start
    for _ in range(_PASSES - 1):
        outside = (x < low) | (x > high)
        outside[fixed] = False
        left = np.flatnonzero(outside)
        if not len(left):
            break
        forces = np.zeros((len(free), len(left)))
        forces[left, np.arange(len(left))] = 1.0
        fixed = np.concatenate([fixed, left])
        follow = np.hstack([follow, solve(forces)])
        bound = np.clip(x, low, high)[fixed]
        x = start + follow @ np.linalg.solve(follow[fixed], bound - start[fixed])
        x[fixed] = bound
    step[free] = s * np.clip(x, low, high)
    return step


def _factorise_damped(
    objective: Objective, gram: Array, s: Array, damping: float, free: npt.NDArray[np.intp]
) -> Callable[[Array], Array]:
    """Solver of the damped equations of the free variables, in units ``s``."""
    matrix = gram[np.ix_(free, free)]
    matrix *= s
    matrix *= s[:, None]
    diagonal = matrix.reshape(-1)[:: len(s) + 1]
    while True:
        diagonal += damping
        try:
            return objective.factorise(matrix)
        except np.linalg.LinAlgError:  # rounding of a singular matrix
            damping = max(10.0 * damping, 1e-12)


# -- coarse to fine ---------------------------------------------------------------------


def coarse_objective(objective: Objective, n_components: int) -> Objective:
    """Objective with a subset of the frequencies, to search with; the objective itself if small.

    Parameters
    ----------
    objective
        Objective with all frequencies.
    n_components
        Number ``K`` of atoms.
    """
    n_parameters = n_components * (1 + objective.space.n_parameters)
    enough = n_coarse_frequencies(objective.n_frequencies, n_parameters, objective.max_solvable)
    return objective if enough is None else objective.subsample(enough)


def n_coarse_frequencies(
    n_frequencies: int, n_parameters: int, max_solvable: int = MAX_SOLVABLE
) -> int | None:
    """Number of frequencies to search with; None if all of them are to be used.

    Parameters
    ----------
    n_frequencies
        Number of all frequencies.
    n_parameters
        Number of parameters of all components, with their weights.
    max_solvable
        Number of parameters up to which normal equations are affordable.
    """
    enough = max(_COARSE_FREQUENCIES * n_parameters, _MIN_COARSE)
    if n_frequencies < _COARSE_FACTOR * enough or n_parameters > max_solvable:
        return None
    return enough


def converge_from_coarse(objective: Objective, fit: Fit) -> Fit:
    """Descend with all frequencies from a minimum with some of them.

    Parameters
    ----------
    objective
        Objective with all frequencies.
    fit
        Minimum of :func:`coarse_objective`.
    """
    return converge(objective, replace(fit, cost=objective.cost(fit.weights, fit.theta)))
