"""Steps 3 to 5 of Algorithm 1, which both decoders share: threshold, weigh, descend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear, nnls

from dask_sketch.decoders.families import Array
from dask_sketch.decoders.lbfgs import Effort, descend_within
from dask_sketch.decoders.objective import Objective

# A curvature below this fraction of the largest does not stretch its variable any further, and a
# weight below this fraction of the mean is taken for that: a dead atom must not dwarf the others.
_FLAT = 1e-6
_LIGHT = 0.1


# What comes between is only the start of what follows. Splitting into 32 (d = 8) and 64 (d = 12)
# components, stops of 1e-7 and 1000 iterations took 1.2 to 1.7 times as long and ended no lower on
# average; so did, for the last level, three times as many iterations.
INTERMEDIATE = Effort(tolerance=1e-4, n_iterations=100)
LAST = Effort(tolerance=1e-8, n_iterations=1000)


@dataclass(frozen=True)
class Fit:
    """Weights (K,) and atoms (K, n_parameters) with their cost, and how the descent ended."""

    weights: Array
    theta: Array
    cost: float
    converged: bool
    message: str


def threshold(objective: Objective, theta: Array, n_components: int) -> Array:
    """Step 3: keep the atoms that weigh most in a non-negative fit of *normalised* atoms.

    Ties and zeros are broken by order, so that exactly ``n_components`` atoms remain.
    """
    if len(theta) <= n_components:
        return theta
    rows = objective.atoms(theta)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)
    order = np.argsort(-_non_negative(objective, rows), kind="stable")
    return theta[np.sort(order[:n_components])]


def fit_weights(objective: Objective, theta: Array) -> Array:
    """Step 4: weights ``argmin_{alpha >= 0} ||z - sum_k alpha_k a_k||``, of un-normalised atoms."""
    return _non_negative(objective, objective.atoms(theta))


def _non_negative(objective: Objective, rows: Array) -> Array:
    """Non-negative least squares of the target on rows of real and imaginary parts.

    A QR factorisation first leaves K + 1 equations instead of 2m, with the same solution.
    """
    n_atoms = len(rows)
    system = np.asarray(
        np.linalg.qr(np.vstack([rows, np.concatenate(objective.target)]).T, mode="r")
    )
    matrix, right = system[:, :n_atoms], system[:, n_atoms]
    try:
        return np.asarray(nnls(matrix, right, maxiter=30 * n_atoms)[0])
    except RuntimeError:  # nearly equal atoms can make the active set cycle
        return np.maximum(lsq_linear(matrix, right, bounds=(0.0, np.inf)).x, 0.0)


def descend(
    objective: Objective, weights: Array, theta: Array, effort: Effort = INTERMEDIATE
) -> Fit:
    """Step 5: descend on weights and atoms together, from where they are.

    The variables are measured in units of the inverse root of the Gauss-Newton curvature at the
    starting point (ours: it halves the time at d = 20 and K = 5; at d = 12 and K = 64, splitting
    with plain variables still cost 140 noise levels where this one costs 1). The cost is measured
    in noise levels, so that tolerances mean the same for any sketch.
    """
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


def _stretch(objective: Objective, weights: Array, theta: Array) -> Array:
    """Length of one unit of each variable of the descent."""
    tiny = np.finfo(float).tiny
    weights = np.maximum(weights, max(_LIGHT * float(weights.mean()), tiny))
    curvatures = np.diagonal(objective.normal_equations(weights, theta)[2])
    parts = [curvatures[: len(theta)], curvatures[len(theta) :]]
    floors = [max(_FLAT * float(part.max()), tiny) for part in parts]
    curvature = np.concatenate(
        [np.maximum(part, floor) for part, floor in zip(parts, floors, strict=True)]
    )
    return np.sqrt(objective.unit / curvature)
