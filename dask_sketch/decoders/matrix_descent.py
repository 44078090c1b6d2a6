"""Least squares of mixtures with covariance matrices: Levenberg-Marquardt on Cholesky factors.

Matrices are ``S = L L^T`` with lower triangular ``L``, so that they are positive definite at every
step, and weights are normalised exponentials. The normal equations are set up for the entries of
``S``, in which the exponent of an atom is linear
(:meth:`~dask_sketch.decoders.objectives.objective.Objective.gram`), multiplied from both sides by
the derivatives of these coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg

from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.objectives.atoms import Array, entries, packed, unpacked
from dask_sketch.decoders.objectives.objective import Objective

_LIGHTEST = 1e-8  # weight of a component at the start, as a fraction of all
_DAMPING, _MAX_DAMPING, _MIN_DAMPING = 1e-3, 1e8, 1e-12  # damping, relative to the curvatures
_FLAT = 1e-7  # curvatures below this fraction of the largest count as that
_TOLERANCE = 1e-7  # relative gain of a step that ends the descent
# Multiplications of all steps, of which a core makes some 5e9 a second, and numbers of steps.
_DESCENT_WORK, _ITERATIONS = 5e10, (30, 200)
_LARGEST_STEP = 1.0  # largest step of the logarithm of a weight


@dataclass(frozen=True)
class _Point:
    """Logarithms of weights (K,), means (K, d) and Cholesky factors (K, d, d)."""

    logarithms: Array
    means: Array
    factors: Array

    @property
    def weights(self) -> Array:
        weights = np.exp(self.logarithms - self.logarithms.max())
        return np.asarray(weights / weights.sum())

    @property
    def theta(self) -> Array:
        matrices = self.factors @ np.swapaxes(self.factors, 1, 2)
        return np.concatenate([self.means, packed(matrices)], axis=1)


def step_work(objective: Objective, n_components: int) -> float:
    """Multiplications of one step, for the normal equations and their solution.

    Parameters
    ----------
    objective
        Atoms and target.
    n_components
        Number of components.
    """
    n_parameters = n_components * (1 + objective.space.n_parameters)
    return objective.gram_work(n_components) + n_parameters**3 / 6.0


def descend_matrices(
    objective: Objective, weights: Array, theta: Array, n_iterations: int | None = None
) -> Fit:
    """Descend to a minimum of the cost over weights that sum to one, means and matrices.

    Parameters
    ----------
    objective
        Atoms of the family ``"full"`` or ``"tied"``, and target.
    weights, theta
        Weights (K,) and atoms (K, n_parameters) to start from, with positive definite matrices.
    n_iterations
        Largest number of steps; by default 200, or fewer for many components and features.

    Returns
    -------
    fit
        Fit whose weights sum to one.
    """
    d = objective.space.n_features
    if n_iterations is None:
        work = step_work(objective, len(theta))
        n_iterations = round(np.clip(_DESCENT_WORK / work, *_ITERATIONS))
    fractions = np.maximum(weights / weights.sum(), _LIGHTEST)
    matrices = unpacked(theta[:, d:], d)
    if objective.space.family.name == "tied":
        pooled = np.einsum("k,kij->ij", fractions / fractions.sum(), matrices)
        matrices = np.repeat(pooled[None], len(theta), axis=0)
    factors = np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    point = _Point(np.log(fractions), theta[:, :d], factors)
    cost = objective.cost(point.weights, point.theta)
    damping, converged, message = _DAMPING, False, f"{n_iterations} iterations"
    for _ in range(n_iterations):
        equations = _Equations(objective, point)
        while damping < _MAX_DAMPING:
            trial, after = equations.step(damping), np.inf
            if trial is not None and objective.space.is_in_reach(trial.theta):
                after = objective.cost(trial.weights, trial.theta)
            if after < cost:
                break
            damping *= 4.0
        else:
            converged, message = True, "no step reduces the cost"
            break
        assert trial is not None  # its cost is finite
        gain, point, cost = cost - after, trial, after
        damping = max(damping / 5.0, _MIN_DAMPING)
        if gain < _TOLERANCE * cost:
            converged, message = True, f"gain of a step below {_TOLERANCE:g} of the cost"
            break
    theta = objective.space.clip(point.theta)
    cost = objective.cost(point.weights, theta)
    return Fit(point.weights, theta, cost, converged, message, objective.n_evaluations)


class _Equations:
    """Normal equations at one point, in its coordinates."""

    def __init__(self, objective: Objective, point: _Point) -> None:
        self._point = point
        weights, theta = point.weights, point.theta
        k, d = point.means.shape
        p = theta.shape[1]
        _, by_weight, by_theta = objective.cost_gradient(weights, theta)
        gram = objective.gram(weights, theta)
        simplex = np.diag(weights) - np.outer(weights, weights)
        gram[:k] = simplex @ gram[:k]
        gram[:, :k] = gram[:, :k] @ simplex
        derivatives = _derivatives(point.factors)
        for i, derivative in enumerate(derivatives):
            shapes = slice(k + i * p + d, k + (i + 1) * p)
            gram[shapes] = derivative.T @ gram[shapes]
            gram[:, shapes] = gram[:, shapes] @ derivative
        by_shape = np.einsum("kij,ki->kj", derivatives, by_theta[:, d:])
        by_atom = np.concatenate([by_theta[:, :d], by_shape], axis=1)
        right = -0.5 * np.concatenate([simplex @ by_weight, by_atom.ravel()])
        self._shared: Array | None = None
        if objective.space.family.name == "tied":
            self._shared = _sharing(k, d, p)
            gram = self._shared.T @ gram @ self._shared
            right = right @ self._shared
        curvature = gram.diagonal()
        self._unit = 1.0 / np.sqrt(np.maximum(curvature, _FLAT * curvature.max()))
        self._gram = gram * self._unit * self._unit[:, None]
        self._right = self._unit * right

    def step(self, damping: float) -> _Point | None:
        """Point after a step, damped in proportion to the curvatures; None if it is too little."""
        matrix = self._gram.copy()
        matrix.reshape(-1)[:: len(matrix) + 1] += damping
        try:
            factor = linalg.cho_factor(matrix, lower=True, check_finite=False)
        except linalg.LinAlgError:
            return None
        step = self._unit * linalg.cho_solve(factor, self._right, check_finite=False)
        if self._shared is not None:
            step = self._shared @ step
        k, d = self._point.means.shape
        by_atom = step[k:].reshape(k, -1)
        rows, columns = np.tril_indices(d)
        factors = self._point.factors.copy()
        factors[:, rows, columns] += by_atom[:, d:]
        return _Point(
            self._point.logarithms + np.clip(step[:k], -_LARGEST_STEP, _LARGEST_STEP),
            self._point.means + by_atom[:, :d],
            factors,
        )


def _derivatives(factors: Array) -> Array:
    """Derivatives (K, q, q) of the entries of ``L L^T`` by the lower triangle of ``L``."""
    d = factors.shape[1]
    first, second = (index[:, None] for index in entries(d))
    rows, columns = np.tril_indices(d)
    by_first = (first == rows) * factors[:, second, columns]
    return np.asarray(by_first + (second == rows) * factors[:, first, columns])


def _sharing(k: int, d: int, p: int) -> npt.NDArray[np.float64]:
    """Derivatives (k + k p, k + k d + q) of all parameters where atoms share their matrix."""
    q = p - d
    out = np.zeros((k + k * p, k + k * d + q))
    out[np.arange(k), np.arange(k)] = 1.0
    for i in range(k):
        means, shapes = k + i * p + np.arange(d), k + i * p + d + np.arange(q)
        out[means, k + i * d + np.arange(d)] = 1.0
        out[shapes, k + k * d + np.arange(q)] = 1.0
    return out
