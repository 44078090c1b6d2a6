"""Statistically efficient refinement: a fit weighted by the noise of the sketch.

Least squares gives every entry of the sketch the same weight, though their noise is unequal and
strongly correlated. The covariance ``S`` of the noise under a mixture is known in closed form
(:mod:`dask_sketch.decoders.noise_covariance`), and the mixture nearest to the sketch in the metric
of its inverse is the optimally weighted generalised method of moments: the estimate of least
variance, ``(J S^-1 J^T)^-1 / n``, from these moments. In terms of the likelihood, it solves the
score equations with each score replaced by its best approximation by features, and is as precise as
maximum likelihood on all samples to the extent that the features span the scores.

One round consists of a factorisation of ``S`` at the current mixture and a few Newton steps on
``J S^-1 (z - A P) = 0`` with ``J S^-1`` fixed. The metric changes little once the fit is good, and
two or three rounds are enough; of a long sketch, all but the last use part of the frequencies. With
many parameters there is one round, in float32.

Many frequencies are weighted in blocks, as if the features of different blocks were independent
given the scores of the components. Features are noisy in part because the scores vary from sample
to sample, and the scores are the only part that all features share. With the information ``I`` of
samples whose components are known, the covariance is ``S = J^T I^-1 J + R``, where ``R`` is the
noise given the scores. By Woodbury's formula, ``R^-1`` weights the features as ``S^-1`` does. The
blocks of ``R`` are therefore taken as independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg, special

from dask_sketch.decoders.descent import Fit, coarse_objective
from dask_sketch.decoders.factor_descent import FactorSpace
from dask_sketch.decoders.narrow_axes import widened_atoms
from dask_sketch.decoders.noise_covariance import feature_covariance
from dask_sketch.decoders.objectives.atoms import Array, unpacked
from dask_sketch.decoders.objectives.normal_equations import (
    Cholesky,
    DampedSolver,
    SpectralSolver,
    gram_of_columns,
    subtract_products,
)
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.weighted_errors import noise_factors
from dask_sketch.errors import DecodeError
from dask_sketch.validation.warn import warn_user

# Added to the diagonal of the correlation matrix of the features, which is near-singular by
# nature: frequencies are many and smooth. It costs 0.001 to 0.005 in ln KL (d = 2 and 10). With
# many parameters the metric is in float32, in half the time and memory, which needs a larger ridge
# and leaves fewer digits of the information.
_RIDGE, _RIDGE_SINGLE = 1e-5, 1e-4
_MANY_PARAMETERS = 500
# Added to the variance of every feature, at most 1/2: the closed form is a difference of numbers up
# to one, whose rounding must stay below the ridge for features that hardly vary.
_CANCELLED = 1e-10
# Frequencies that are weighted together. More frequencies form blocks, each weighted on its own:
# time then grows as m instead of m**3, and memory stays at 0.5 GB beside three Jacobians, P by 2m.
_BLOCK_SIZE, _BLOCK_SIZE_SINGLE = 4096, 2048
# Largest number of rounds, fewer if the mixture no longer moves; and with many parameters. There
# more rounds gain little: at K = 64, d = 12, m = 8000, n = 3e5 with standard deviations of 0.3 to
# 3, a fit that starts at the truth loses 0.0089 nats to it in 10 CPU seconds by one round in
# float32, 0.0078 in 18 with blocks of 4096, and 0.0077 in 51 by three rounds in float64.
N_ROUNDS, _N_ROUNDS_SINGLE = 3, 1
_STOP = 0.01  # squared length of the path of a round after which no round follows; see _newton
_TRACES = 32  # random vectors that estimate a trace, to a tenth of the deviation of the statistic
_SIGNS = np.array([-1.0, 1.0])
_STEPS = 8  # largest number of Newton steps of a round
_INFLUENCES = 4000  # rows whose weights and influences are compared
_FEATURES = 2**22  # values of the features of these rows that are in memory at a time
_STILL = 1e-3  # smallest improvement of the weighted cost by a step, in noises of a parameter
_NO_INFORMATION = 1e-9  # fraction of the largest eigenvalue, as for rotations of factors


@dataclass(frozen=True)
class RefinedFit:
    """Refined fit and the standard errors of its parameters.

    Attributes
    ----------
    fit
        Fit whose weights sum to one.
    standard_errors
        Standard errors of weights (K,), means and variances (K, n_features), in data units; of
        covariance matrices (K, n_features, n_features) in place of variances, and of components
        with factors further those of noise variances (K, n_features). Zero for parameters on a
        bound, which were held there. None unless they were asked for.
    overidentification
        Overidentification statistic; None unless it was asked for.
    unresolved
        Expected loss in nats a sample by axes of matrices whose variances are hardly known;
        infinite for matrices as narrow as a fit allows.
    """

    fit: Fit
    standard_errors: tuple[Array, ...] | None
    overidentification: Overidentification | None = None
    unresolved: float = 0.0

    @property
    def test(self) -> tuple[float, float, float] | None:
        """Overidentification statistic, its mean and its standard deviation."""
        tested = self.overidentification
        return None if tested is None else (tested.statistic, tested.freedom, tested.deviation)


@dataclass(frozen=True)
class Overidentification:
    """Squared residual in units of its noise, which tests whether the data is such a mixture.

    Attributes
    ----------
    statistic
        Number of samples times ``r' S^-1 r`` of the residual ``r`` (Hansen's J).
    freedom
        Its mean if the data is such a mixture: the degrees of freedom, less what the ridge of the
        metric takes.
    deviation
        Its standard deviation then.
    """

    statistic: float
    freedom: float
    deviation: float

    @property
    def excess(self) -> float:
        """Standard deviations above the mean."""
        return (self.statistic - self.freedom) / self.deviation

    @property
    def p_value(self) -> float:
        """Probability of a larger statistic if the data is such a mixture.

        The statistic is then a chi-squared variable, times a factor if frequencies are weighted in
        several blocks.
        """
        factor = self.deviation**2 / (2.0 * self.freedom)
        return float(special.chdtrc(self.freedom / factor, max(self.statistic, 0.0) / factor))


def refine_efficiently(
    objective: Objective,
    fit: Fit,
    report: Callable[[float], None],
    *,
    block_size: int | None = None,
    single: bool | None = None,
    errors: bool = True,
    test: bool = False,
    widen: bool = False,
    ridge: float = 0.0,
) -> RefinedFit:
    """Refine a fit in the metric of the inverse covariance of the sketch.

    Parameters
    ----------
    objective
        Atoms and target, with a family that has variances.
    fit
        Least-squares fit to start from, which must be near.
    report
        Function called with the unweighted cost after each of at most ``N_ROUNDS`` rounds.
    block_size
        Number of frequencies that are weighted together; by default 4096, or 2048 in float32.
    single
        Whether the metric is in float32, in one round; by default with over 500 parameters.
    errors
        Whether to compute the standard errors. Without them, the information of many parameters is
        factorised in a tenth of the time.
    test
        Whether to compute the overidentification statistic.
    widen
        Whether to widen covariance matrices along axes whose variances are within their errors; see
        :func:`~dask_sketch.decoders.narrow_axes.widened`.
    ridge
        Smallest ridge of the metric, in variances of the features.

    Returns
    -------
    refined
        Fit and standard errors.

    References
    ----------
    Hansen (1982), Large sample properties of generalized method of moments estimators,
    Econometrica 50(4); for characteristic functions Feuerverger and McDunnough (1981), On the
    efficiency of empirical characteristic function procedures, JRSS B 43(1).
    """
    weights, theta = fit.weights / fit.weights.sum(), fit.theta
    coarse = coarse_objective(objective, len(theta))
    moved = np.inf
    if single is None:
        single = len(theta) * (1 + objective.space.n_parameters) > _MANY_PARAMETERS
    if block_size is None:
        block_size = _BLOCK_SIZE_SINGLE if single else _BLOCK_SIZE
    make_metric = partial(
        _Metric, block_size=block_size, single=single, errors=errors or widen, test=test,
        ridge=max(ridge, _RIDGE_SINGLE if single else _RIDGE),
    )  # fmt: skip
    for left in reversed(range(_N_ROUNDS_SINGLE if single else N_ROUNDS)):
        # the last round, which determines the result, uses all frequencies
        last = moved < _STOP or left == 0
        used = objective if last else coarse
        try:
            metric = make_metric(used, weights, theta)
            moved, weights, theta = _newton(used, metric, weights, theta)
        except linalg.LinAlgError:  # a component became far wider than the data, or flat
            weights, theta = fit.weights / fit.weights.sum(), fit.theta
            metric = _metric_of_start(objective, fit, make_metric)
            break
        report(objective.cost(weights, theta))
        if used is objective and moved < _STOP:
            break
    refined = Fit(weights, theta, objective.cost(weights, theta), fit.converged, fit.message)
    overidentification = metric.overidentification(objective, weights, theta) if test else None
    if not (errors or widen):
        return RefinedFit(refined, None, overidentification)
    covariance = metric.covariance() / objective.effective_count
    loss = 0.0
    if widen:
        of_atoms = [metric.parameters.of_atom(covariance, k) for k in range(len(theta))]
        theta, loss = widened_atoms(objective.space, theta, of_atoms, weights)
        refined = replace(refined, theta=theta, cost=objective.cost(weights, theta))
    if not errors:
        return RefinedFit(refined, None, overidentification, loss)
    if objective.sample is not None:
        rows = objective.sample.rows[:_INFLUENCES].astype(np.float64)
        factors = noise_factors(metric.influences(objective, rows), objective.sample)
        covariance *= factors * factors[:, None]
    errors_found = _in_data_units(objective, metric.parameters, covariance, theta)
    return RefinedFit(refined, errors_found, overidentification, loss)


def _metric_of_start(
    objective: Objective, fit: Fit, make_metric: Callable[..., _Metric]
) -> _Metric:
    """Metric of a fit that cannot be refined, with a warning; an error if it has none."""
    weights = fit.weights / fit.weights.sum()
    deviations = np.sqrt(np.maximum(objective.space.variances(fit.theta), 0.0))
    spread = f"a mixture of {len(fit.theta)} components, whose standard deviations are from "
    spread += f"{deviations.min():.2g} to {deviations.max():.2g} scales of the feature map"
    remedy = "Decode fewer components, or covariance_type='diag'"
    try:
        metric = make_metric(objective, weights, fit.theta)
    except linalg.LinAlgError as error:
        raise DecodeError(
            f"the sketch has no metric at {spread}: a component is far wider than the data, or "
            f"flat. {remedy}."
        ) from error
    warn_user(
        f"the fit could not be refined from {spread}: it is of least squares, and its standard "
        f"errors are rough. {remedy}."
    )
    return metric


def _in_data_units(
    objective: Objective, parameters: _FreeParameters, covariance: Array, theta: Array
) -> tuple[Array, ...]:
    """Standard errors of weights, means and variances or matrices, from their covariance."""
    space, d, n_atoms = objective.space, objective.space.n_features, len(theta)
    deviations = np.sqrt(np.maximum(parameters.all_variances(covariance), 0.0))
    by_theta = deviations[n_atoms:].reshape(n_atoms, -1)
    if isinstance(space, FactorSpace):  # loadings may be rotated, which leaves matrices as they are
        noise = space.scale**2 * by_theta[:, d : 2 * d]
        squares = np.empty((n_atoms, d * (d + 1) // 2))
        for k, atom in enumerate(theta):
            derivatives = space.matrix_derivatives(atom)
            of_atom = parameters.of_atom(covariance, k)
            squares[k] = np.einsum("qi,qi->q", derivatives @ of_atom, derivatives)
        matrices = unpacked(np.sqrt(np.maximum(squares, 0.0)), d) * np.outer(*[space.scale] * 2)
        return deviations[:n_atoms], space.scale * by_theta[:, :d], matrices, noise
    if space.family.has_matrices:
        matrices = unpacked(by_theta[:, d:], d) * np.outer(space.scale, space.scale)
        return deviations[:n_atoms], space.scale * by_theta[:, :d], matrices
    # each variance has its own parameter, or all of them have the same one
    variances = space.scale**2 * (by_theta[:, d:] @ space.family.spread)
    return deviations[:n_atoms], space.scale * by_theta[:, :d], variances


def memory_needed(n_parameters: int, n_frequencies: int) -> int:
    """Largest number of bytes that a refinement holds, beside the fit itself.

    Parameters
    ----------
    n_parameters
        Number of parameters of all components, with their weights.
    n_frequencies
        Number of frequencies.
    """
    size = 4 if n_parameters > _MANY_PARAMETERS else 8
    jacobians = 3 * n_parameters * 2 * n_frequencies
    matrix = (2 * min(n_frequencies, _BLOCK_SIZE)) ** 2
    return size * (jacobians + matrix) + 8 * 6 * n_parameters**2


class _FreeParameters:
    """Free parameters: weights within their simplex, and parameters of atoms off their bounds."""

    def __init__(self, objective: Objective, weights: Array, theta: Array) -> None:
        alive = weights > 1e-8
        off = (theta > objective.space.lower) & (theta < objective.space.upper)
        self._shared = np.empty((0, 0), dtype=np.intp)  # numbers of each shared parameter
        if objective.space.family.name == "tied":
            shared = off & alive[:, None]
            shared[:, : objective.space.n_features] = False
            off = off & ~shared
            self._shared = np.flatnonzero(shared.ravel()).reshape(alive.sum(), -1).T
        self._atoms = np.flatnonzero((off & alive[:, None]).ravel())
        self._alive = np.flatnonzero(alive)
        n_alive = len(self._alive)
        # an orthonormal basis of the changes of weights that keep their sum
        ones = np.column_stack([np.ones(n_alive), np.eye(n_alive)[:, 1:]])
        self._basis = np.linalg.qr(ones)[0][:, 1:]
        self._shape = theta.shape
        self.count = n_alive - 1 + len(self._atoms) + len(self._shared)

    def rows(self, jacobian: Array) -> Array:
        """Derivatives by the free parameters, from those by all parameters."""
        n_atoms = self._shape[0]
        by_weight = self._basis.T @ jacobian[self._alive]
        rows = [by_weight, jacobian[n_atoms + self._atoms]]
        if len(self._shared):
            rows.append(jacobian[n_atoms + self._shared].sum(axis=1))
        return np.concatenate(rows)

    def step(self, free: Array) -> tuple[Array, Array]:
        """Step of all weights and parameters, from the step of the free ones."""
        n_free_weights = len(self._alive) - 1
        by_weight, by_theta = np.zeros(self._shape[0]), np.zeros(int(np.prod(self._shape)))
        by_weight[self._alive] = self._basis @ free[:n_free_weights]
        n_own = n_free_weights + len(self._atoms)
        by_theta[self._atoms] = free[n_free_weights:n_own]
        by_theta[self._shared] = free[n_own:, None]
        return by_weight, by_theta.reshape(self._shape)

    def score_roots(
        self, objective: Objective, weights: Array, theta: Array
    ) -> list[tuple[npt.NDArray[np.intp], Array]]:
        """Numbers of free parameters, and roots of the inverse of their complete information.

        A list of one block for the weights and one for each component, none if the family has no
        such form: the information is zero between them.
        """
        n_free_weights, p = len(self._alive) - 1, self._shape[1]
        of_weights = (self._basis.T / weights[self._alive]) @ self._basis
        roots = [(np.arange(n_free_weights), inverse_root(of_weights))] if n_free_weights else []
        for k in self._alive:
            rows = np.flatnonzero(self._atoms // p == k)
            information = objective.space.complete_information(theta[k])
            if information is None:
                return []
            chosen = self._atoms[rows] % p
            if len(chosen):
                root = inverse_root(weights[k] * information[np.ix_(chosen, chosen)])
                roots.append((n_free_weights + rows, root))
        return roots

    def of_atom(self, covariance: Array, k: int) -> Array:
        """Covariance (p, p) of the parameters of an atom, from the covariance of the free ones."""
        p = self._shape[1]
        positions = np.flatnonzero(self._atoms // p == k)
        columns = np.concatenate([self._atoms[positions], self._shared[:, :1].ravel()]) % p
        rows = np.r_[len(self._alive) - 1 + positions, self.count - len(self._shared) : self.count]
        out = np.zeros((p, p))
        out[np.ix_(columns, columns)] = covariance[np.ix_(rows, rows)]
        return out

    def all_variances(self, covariance: Array) -> Array:
        """Variances of all weights and parameters, from the covariance of the free ones."""
        n_free_weights = len(self._alive) - 1
        by_weight, by_theta = np.zeros(self._shape[0]), np.zeros(int(np.prod(self._shape)))
        among = covariance[:n_free_weights, :n_free_weights]
        by_weight[self._alive] = np.einsum("ij,jk,ik->i", self._basis, among, self._basis)
        n_own = n_free_weights + len(self._atoms)
        by_theta[self._atoms] = covariance.diagonal()[n_free_weights:n_own]
        by_theta[self._shared] = covariance.diagonal()[n_own:, None]
        return np.concatenate([by_weight, by_theta])


def inverse_root(matrix: Array) -> Array:
    """Matrix ``B`` (r, n) with ``B^T B`` the pseudo-inverse of a matrix (n, n) of rank ``r``.

    Examples
    --------
    >>> root = inverse_root(np.diag([4.0, 0.0]))
    >>> (root.T @ root).tolist()
    [[0.25, 0.0], [0.0, 0.0]]
    """
    scale = 1.0 / np.sqrt(np.maximum(matrix.diagonal(), 1e-300))
    values, vectors = np.linalg.eigh(matrix * scale * scale[:, None])
    known = values > _NO_INFORMATION * values[-1]
    return np.asarray((scale[:, None] * vectors[:, known] / np.sqrt(values[known])).T)


class _Metric:
    """Weighted derivatives ``J S^-1`` at one mixture, and the information ``J S^-1 J^T``."""

    def __init__(
        self,
        objective: Objective,
        weights: Array,
        theta: Array,
        block_size: int,
        single: bool,
        errors: bool,
        test: bool,
        ridge: float,
    ) -> None:
        m, d, threads = objective.n_frequencies, objective.space.n_features, objective.threads
        self._threads = threads
        self._ridge = ridge
        dtype = np.dtype(np.float32 if single else np.float64)
        self.parameters = _FreeParameters(objective, weights, theta)
        n_free = self.parameters.count
        self.weighted: npt.NDArray[Any] = np.empty((n_free, 2 * m), dtype)
        for block, part in objective.jacobian_blocks(weights, theta):
            rows = self.parameters.rows(part.reshape(len(part), -1)).reshape(n_free, 2, -1)
            self.weighted[:, block] = rows[:, 0]
            self.weighted[:, m + block.start : m + block.stop] = rows[:, 1]
        self.information = np.zeros((n_free, n_free))
        self._scale = np.empty(2 * m)
        self._n_blocks = -(-m // block_size)
        self._factors: list[tuple[Cholesky, npt.NDArray[np.intp]]] = []
        unit = objective.feature_weights / np.sqrt(m)
        self._roots: list[tuple[npt.NDArray[np.intp], Array]] = []
        if self._n_blocks > 1 and objective.patterns is None:
            self._roots = self.parameters.score_roots(objective, weights, theta)
        for first in range(self._n_blocks):
            chosen = np.arange(first, m, self._n_blocks)
            covariance = feature_covariance(
                weights,
                theta[:, :d],
                objective.space.shapes(theta),
                objective.omega[:, chosen],
                threads,
                dtype,
            )
            if objective.patterns is not None:  # means over different rows
                overlaps = objective.patterns.overlaps(objective.chosen[chosen]).astype(dtype)
                parts = covariance.reshape(2, len(chosen), 2, len(chosen))
                parts *= overlaps[:, None]
            diagonal = covariance.reshape(-1)[:: len(covariance) + 1]
            added = objective.effective_count * objective.added_variance
            diagonal += objective.rounding + added + _CANCELLED
            if not diagonal.min() > 0.0:  # the matrix is not positive definite, or has NaN
                raise linalg.LinAlgError("a variance of the sketch is not positive")
            deviation = np.sqrt(diagonal)
            covariance /= deviation
            covariance /= deviation[:, None]
            diagonal += self._ridge
            columns = np.concatenate([chosen, m + chosen])
            scale = deviation * np.tile(unit[chosen], 2)
            white = self.weighted[:, columns].T
            white /= scale[:, None]
            if self._roots:
                pieces = [white[:, rows] @ root.T.astype(dtype) for rows, root in self._roots]
                subtract_products(covariance, np.concatenate(pieces, axis=1), threads)
            factor = Cholesky(covariance, threads)
            white = factor.forward(white)
            self.information += gram_of_columns(white, threads)
            white = factor.backward(white)
            white /= scale[:, None]
            self.weighted[:, columns] = white.T
            self._scale[columns] = scale
            if test:
                self._factors.append((factor, columns))
            del covariance, factor, white  # memory is freed before the next block is made
        # in units of the standard error of each parameter alone; there is no information about some
        # directions if components coincide, and nothing moves along these
        self._unit = 1.0 / np.sqrt(np.maximum(self.information.diagonal(), 1e-300))
        scaled = self.information * self._unit * self._unit[:, None]
        self._solver = (SpectralSolver if errors or not single else DampedSolver)(scaled, single)

    def solve(self, right: Array, damping: float) -> Array:
        """Newton step (n,) or (n, p) for weighted residuals, damped relative to the diagonal."""
        return (self._solver.solve((self._unit * right.T).T, damping).T * self._unit).T

    def overidentification(
        self, objective: Objective, weights: Array, theta: Array
    ) -> Overidentification:
        """Statistic of a residual, and its moments; the traces are estimated at random vectors."""
        residual = np.concatenate(objective.residual(weights, theta)) / self._scale
        signs = np.random.default_rng(0).choice(_SIGNS, (len(residual), _TRACES))
        statistic = lost = 0.0
        for factor, columns in self._factors:
            right = np.column_stack([residual[columns], signs[columns]])
            solved = factor.forward(right.astype(self.weighted.dtype))
            squares = np.einsum("ij,ij->j", solved, solved, dtype=np.float64)
            statistic += float(squares[0]) * objective.effective_count
            lost += self._ridge * float(squares[1:].mean())
        fitted = self._fitted(signs)
        freedom = max(len(residual) - lost - fitted, 1.0)
        return Overidentification(
            statistic, freedom, float(np.sqrt(2.0 * freedom * self._n_blocks))
        )

    def _fitted(self, signs: Array) -> float:
        """Degrees of freedom of the parameters, less what the ridge takes."""
        if isinstance(self._solver, SpectralSolver):
            inverse = self._inverse()
            scaled = gram_of_columns((self.weighted * self._scale).T, self._threads)
            return float(np.sum(inverse * (self.information - self._ridge * scaled)))
        n = len(self.information)
        probes = np.random.default_rng(1).choice(_SIGNS, (n, _TRACES))
        noise = (self.weighted * self._scale) @ signs
        known = np.sum(probes * self.solve(self.information @ probes, 0.0))
        lost = self._ridge * np.sum(noise * self.solve(noise, 0.0))
        return float(known - lost) / _TRACES

    def influences(self, objective: Objective, rows: Array) -> Array:
        """Influence of each row on the free parameters, up to a common factor and mean."""
        m, space = objective.n_frequencies, objective.space
        amplitudes = np.tile(objective.feature_weights, 2)
        size = max(_FEATURES // (2 * m), 1)
        sums = []
        for first in range(0, len(rows), size):
            phases = (rows[first : first + size] - space.shift) / space.scale @ objective.omega
            features = np.concatenate([np.cos(phases), -np.sin(phases)], axis=1)
            sums.append((features * amplitudes) @ self.weighted.T)
        return np.concatenate(sums) @ self._inverse()

    def _inverse(self) -> Array:
        assert isinstance(self._solver, SpectralSolver)  # standard errors were asked for
        return self._unit[:, None] * self._solver.inverse() * self._unit

    def covariance(self) -> Array:
        """Covariance of the estimates, times the number of samples.

        The sandwich formula, in which the ridge is not noise. All blocks are features of the same
        samples: their information counts as its mean, which bounds the variance from above. The
        noise of the scores is added to the noise of the features given the scores.
        """
        inverse = self._inverse()
        self.weighted *= self._scale
        scaled = gram_of_columns(self.weighted.T, self._threads)
        self.weighted /= self._scale
        noise = (self.information - self._ridge * scaled) * self._n_blocks
        product = inverse @ noise @ inverse
        for rows, root in self._roots:
            product[np.ix_(rows, rows)] += root.T @ root
        return np.asarray(product)


def _newton(
    objective: Objective, metric: _Metric, weights: Array, theta: Array
) -> tuple[float, Array, Array]:
    """Solve ``J S^-1 (z - A P) = 0`` for the mixture with ``J S^-1`` fixed.

    Returns
    -------
    moved
        Squared length of the path, in squared standard errors per parameter.
    weights, theta
        End of the path.
    """

    def equations(weights: Array, theta: Array) -> tuple[Array, float]:
        residual = np.concatenate(objective.residual(weights, theta))
        right = (metric.weighted @ residual.astype(metric.weighted.dtype)).astype(np.float64)
        return right, float(right @ metric.solve(right, 1e-10))

    n_free = len(metric.information)
    right, merit = equations(weights, theta)
    moved, damping = 0.0, 1e-6
    for _ in range(_STEPS):
        while damping < 1e6:
            step = metric.solve(right, damping)
            by_weight, by_theta = metric.parameters.step(step)
            trial_weights = np.maximum(weights + by_weight, 0.0)
            trial_weights /= trial_weights.sum()
            trial = objective.space.limit_step(theta, theta + by_theta)
            trial_right, trial_merit = equations(trial_weights, trial)
            if trial_merit < merit:
                break
            damping *= 10.0
        else:
            break
        gain = (merit - trial_merit) * objective.effective_count / n_free
        moved += float(step @ metric.information @ step) * objective.effective_count / n_free
        weights, theta, right, merit = trial_weights, trial, trial_right, trial_merit
        damping = max(damping / 10.0, 1e-8)
        if gain < _STILL:
            break
    return moved, weights, theta
