"""Statistically efficient refinement: a fit weighted by the noise of the sketch (ours).

Least squares gives every entry of the sketch the same weight, though their noise is unequal and
strongly correlated. Its covariance under a mixture is known in closed form
(:mod:`dask_sketch.decoders.noise_covariance`), and the mixture nearest to the sketch in the metric of
its inverse is the optimally weighted generalised method of moments: of all estimates from these
moments, the one of least variance, ``(J S^-1 J^T)^-1 / n``. Seen from the likelihood, it solves
the score equations with each score replaced by its best approximation by features, so that it is as
good as maximum likelihood on all samples to the extent that the features span the scores.

One round is a factorisation of ``S`` at the current mixture and a few Newton steps on
``J S^-1 (z - A P) = 0``, ``J S^-1`` held fixed. The metric changes little from a good fit on, and
two or three rounds are enough; of a long sketch, all but the last on part of the frequencies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.descent import coarsened
from dask_sketch.decoders.noise_covariance import feature_covariance
from dask_sketch.decoders.normal_equations import Cholesky, gram_of_columns
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import Fit

# Added to the diagonal of the correlation matrix of the features, which is near-singular by
# nature: frequencies are many and smooth. It costs 0.001 to 0.005 in ln KL (d = 2 and 10).
_RIDGE = 1e-5
# Added to the variance of every feature, at most 1/2: the closed form is a difference of numbers up
# to one, whose rounding must stay below the ridge in features that hardly vary.
_CANCELLED = 1e-10
# Frequencies that are weighted together. Beyond, they form blocks, weighted each on its own:
# time grows as m instead of m**3, and memory stays at 0.5 GB beside three Jacobians, P times 2m.
BLOCK = 4096
N_ROUNDS = 3  # metrics at most; fewer when the mixture no longer moves
_UNKNOWN = 1e-12  # of the largest eigenvalue of the information: less is none
_STOP = 0.01  # squared length of the way of a round after which no metric follows, as of _newton
_STEPS = 8  # Newton steps of one round, at most
_STILL = 1e-3  # a step that improves the weighted cost by less, in units of one parameter's noise


@dataclass(frozen=True)
class Efficient:
    """A refined fit, and how far off its parameters are.

    Attributes
    ----------
    fit
        Weights sum to one.
    standard_errors
        Of weights (K,), means and variances (K, n_features), in data units. Zero for parameters on
        a bound, which were held there.
    """

    fit: Fit
    standard_errors: tuple[Array, Array, Array]


def refine_efficiently(
    objective: Objective, fit: Fit, report: Callable[[float], None]
) -> Efficient:
    """Refine a fit with the inverse covariance of the sketch for a metric.

    Parameters
    ----------
    objective
        Atoms and target, of a family with variances.
    fit
        A least-squares fit: the start, which must be near.
    report
        Called with the plain cost after each of ``N_ROUNDS`` rounds at most.

    Returns
    -------
    refined

    References
    ----------
    Hansen (1982), Large sample properties of generalized method of moments estimators,
    Econometrica 50(4); for characteristic functions Feuerverger and McDunnough (1981), On the
    efficiency of empirical characteristic function procedures, JRSS B 43(1).
    """
    weights, theta = fit.weights / fit.weights.sum(), fit.theta
    coarse = coarsened(objective, len(theta))
    moved = np.inf
    for left in reversed(range(N_ROUNDS)):
        # the way there on part of the frequencies, and the last round, which counts, on all
        last = moved < _STOP or left == 0
        used = objective if last else coarse
        metric = _Metric(used, weights, theta)
        moved, weights, theta = _newton(used, metric, weights, theta)
        report(objective.cost(weights, theta))
        if used is objective and moved < _STOP:
            break
    variances = metric.parameters.spread(metric.covariance()) / objective.effective_count
    refined = Fit(weights, theta, objective.cost(weights, theta), fit.converged, fit.message)
    return Efficient(refined, _in_data_units(objective, variances, len(theta)))


def _in_data_units(
    objective: Objective, squares: Array, n_atoms: int
) -> tuple[Array, Array, Array]:
    """Standard errors of weights (K,), means and variances (K, n_features), from their squares."""
    d = objective.n_features
    deviations = np.sqrt(np.maximum(squares, 0.0))
    by_theta = deviations[n_atoms:].reshape(n_atoms, -1)
    # a family's variances have one parameter each, or all of them the same
    variances = objective.scale**2 * (by_theta[:, d:] @ objective.family.spread)
    return deviations[:n_atoms], objective.scale * by_theta[:, :d], variances


def memory_needed(objective: Objective, n_components: int) -> int:
    """Bytes that a refinement holds at most, beside the fit itself."""
    n_parameters = n_components * (1 + objective.n_parameters)
    m = objective.n_frequencies
    jacobians = 5 * n_parameters * 2 * m
    return 8 * (jacobians + 4 * n_parameters**2 + (2 * min(m, BLOCK)) ** 2)


class _Free:
    """The parameters that may move: weights within their simplex, atoms' parameters off bounds."""

    def __init__(self, objective: Objective, weights: Array, theta: Array) -> None:
        alive = weights > 1e-8
        off = (theta > objective.lower) & (theta < objective.upper)
        self._atoms = np.flatnonzero((off & alive[:, None]).ravel())
        self._alive = np.flatnonzero(alive)
        n_alive = len(self._alive)
        # an orthonormal basis of the changes of weights that leave their sum
        ones = np.column_stack([np.ones(n_alive), np.eye(n_alive)[:, 1:]])
        self._basis = np.linalg.qr(ones)[0][:, 1:]
        self._shape = theta.shape

    def rows(self, jacobian: Array) -> Array:
        """Derivatives by the free parameters, from those by all."""
        n_atoms = self._shape[0]
        by_weight = self._basis.T @ jacobian[self._alive]
        return np.concatenate([by_weight, jacobian[n_atoms + self._atoms]])

    def step(self, free: Array) -> tuple[Array, Array]:
        """A step of all weights and parameters."""
        n_free_weights = len(self._alive) - 1
        by_weight, by_theta = np.zeros(self._shape[0]), np.zeros(int(np.prod(self._shape)))
        by_weight[self._alive] = self._basis @ free[:n_free_weights]
        by_theta[self._atoms] = free[n_free_weights:]
        return by_weight, by_theta.reshape(self._shape)

    def spread(self, covariance: Array) -> Array:
        """Variances of all weights and parameters, from the covariance of the free ones."""
        n_free_weights = len(self._alive) - 1
        by_weight, by_theta = np.zeros(self._shape[0]), np.zeros(int(np.prod(self._shape)))
        among = covariance[:n_free_weights, :n_free_weights]
        by_weight[self._alive] = np.einsum("ij,jk,ik->i", self._basis, among, self._basis)
        by_theta[self._atoms] = covariance.diagonal()[n_free_weights:]
        return np.concatenate([by_weight, by_theta])


class _Metric:
    """Weighted derivatives ``J S^-1`` at one mixture, and the information ``J S^-1 J^T``."""

    def __init__(self, objective: Objective, weights: Array, theta: Array) -> None:
        m, d, threads = objective.n_frequencies, objective.n_features, objective.threads
        self._threads = threads
        self.parameters = _Free(objective, weights, theta)
        rows = self.parameters.rows(objective.jacobian(weights, theta))
        self.weighted = np.empty_like(rows)
        self.information = np.zeros((len(rows), len(rows)))
        self._scale = np.empty(2 * m)
        self._n_blocks = -(-m // BLOCK)
        unit = objective.feature_weights / np.sqrt(m)
        for first in range(self._n_blocks):
            chosen = np.arange(first, m, self._n_blocks)
            covariance = feature_covariance(
                weights,
                theta[:, :d],
                objective.variances(theta),
                objective.omega[:, chosen],
                threads,
            )
            diagonal = covariance.reshape(-1)[:: len(covariance) + 1]
            added = objective.effective_count * objective.private_variance
            diagonal += objective.rounding + added + _CANCELLED
            deviation = np.sqrt(diagonal)
            covariance /= deviation
            covariance /= deviation[:, None]
            diagonal += _RIDGE
            factor = Cholesky(covariance, threads)
            columns = np.concatenate([chosen, m + chosen])
            scale = deviation * np.tile(unit[chosen], 2)
            white = factor.forward((rows[:, columns] / scale).T)
            self.information += gram_of_columns(white, threads)
            self.weighted[:, columns] = (factor.backward(white) / scale[:, None]).T
            self._scale[columns] = scale
        # in units of one standard error of each parameter alone; components that coincide leave
        # directions of which nothing is known, and in these nothing moves
        self._unit = 1.0 / np.sqrt(np.maximum(self.information.diagonal(), 1e-300))
        values, self._vectors = linalg.eigh(
            self.information * self._unit * self._unit[:, None], check_finite=False
        )
        self._known = values > _UNKNOWN * values[-1]
        self._values = np.where(self._known, values, 1.0)

    def solve(self, right: Array, damping: float) -> Array:
        """Newton step for weighted residuals, damped in proportion to the diagonal."""
        inverse = self._known / (self._values + damping)
        return np.asarray(
            self._unit * (self._vectors @ (inverse * (self._vectors.T @ (self._unit * right))))
        )

    def covariance(self) -> Array:
        """Covariance of the estimates, times the number of samples.

        The sandwich formula, which knows that the ridge is no noise. Blocks see the same samples:
        the information of several counts as the mean of theirs, an upper bound on the variance.
        """
        vectors = self._vectors * (self._known / self._values)
        inverse = self._unit[:, None] * (vectors @ self._vectors.T) * self._unit
        scaled = gram_of_columns((self.weighted * self._scale).T, self._threads)
        noise = (self.information - _RIDGE * scaled) * self._n_blocks
        return np.asarray(inverse @ noise @ inverse)


def _newton(
    objective: Objective, metric: _Metric, weights: Array, theta: Array
) -> tuple[float, Array, Array]:
    """Solve ``J S^-1 (z - A P) = 0`` for the mixture, ``J S^-1`` fixed.

    Returns the squared length of the way, in squared standard errors per parameter, and its end.
    """

    def equations(weights: Array, theta: Array) -> tuple[Array, float]:
        right = metric.weighted @ np.concatenate(objective.residual(weights, theta))
        return right, float(right @ metric.solve(right, 1e-10))

    n_free = len(metric.information)
    right, merit = equations(weights, theta)
    moved, damping = 0.0, 1e-6
    for _ in range(_STEPS):
        while damping < 1e6:
            way = metric.solve(right, damping)
            by_weight, by_theta = metric.parameters.step(way)
            trial_weights = np.maximum(weights + by_weight, 0.0)
            trial_weights /= trial_weights.sum()
            trial = np.clip(theta + by_theta, objective.lower, objective.upper)
            # a variance may not fall at once to where the next metric sees nothing of it
            shapes = slice(objective.n_features, None)
            trial[:, shapes] = np.maximum(trial[:, shapes], 0.3 * theta[:, shapes])
            trial_right, trial_merit = equations(trial_weights, trial)
            if trial_merit < merit:
                break
            damping *= 10.0
        else:
            break
        gain = (merit - trial_merit) * objective.effective_count / n_free
        moved += float(way @ metric.information @ way) * objective.effective_count / n_free
        weights, theta, right, merit = trial_weights, trial, trial_right, trial_merit
        damping = max(damping / 10.0, 1e-8)
        if gain < _STILL:
            break
    return moved, weights, theta
