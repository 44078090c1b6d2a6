"""Fit mixtures of factor analysers to a sketch: atoms, a start from diagonal ones, and descent.

A covariance matrix is ``diag(psi) + W W^T`` with few loadings ``W``. The exponent of an atom,
``psi . w^2 + |W^T w|^2``, never needs the matrix, so that an evaluation takes a time that is
proportional to the rank, and to the number of features that a frequency touches
(:mod:`~dask_sketch.decoders.objectives.sparse_kernels`). Least squares is by L-BFGS, since the
normal equations of many features would be large; the result is refined by
:mod:`~dask_sketch.decoders.efficient`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy import optimize

from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.objectives.atoms import Array, ParameterSpace, count_shapes, entries
from dask_sketch.decoders.objectives.objective import Complex, Objective
from dask_sketch.decoders.objectives.sparse_kernels import (
    MULTIPLE,
    add_factor_gradient,
    sparse_blocks,
    touched_features,
)
from dask_sketch.models.covariances import floored
from dask_sketch.models.low_rank import covariances_of
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.threads import Threads
from dask_sketch.validation.warn import warn_user

# Steps of L-BFGS at most. Variables are in units of their curvatures: with K = 10 and d = 64, a
# descent from the pilot then ended at 0.2 noise levels after 500 steps, and without at 50.
_ITERATIONS = 500
_TOLERANCE = 1e-8  # relative gain of a step that ends the descent
_MEMORY = 30  # pairs of L-BFGS
_MAX_TOUCHED = 6  # features of a frequency; products of matrices are faster for more
_ROOT = np.sqrt(0.5 / np.log(2.0))  # unit of loadings whose squares are exponents to base two
_LIGHTEST = 1e-8  # weight of a component at the start, as a fraction of all
# Curvatures are at least a fraction of the largest, and for loadings a fraction of the curvatures
# of means: loadings that are near zero hardly change an atom.
_FLAT, _FLAT_LOADING = 1e-4, 0.1
# bounds of a noise variance after one step of the refinement, relative to that before
_LARGEST_FALL, _LARGEST_RISE = 0.3, 10.0
_NARROWEST = 0.1  # eigenvalue of the first matrices, in units of the variances
# fraction of the variance of a feature below which noise hardly widens the density
_LOST_FRACTION = 1e-3


class FactorSpace(ParameterSpace):
    """Parameters of atoms with factors: means, noise variances, and loadings row after row.

    The arguments are the same as of :class:`~dask_sketch.decoders.objectives.atoms.ParameterSpace`.
    """

    def __init__(self, sketch: Sketch, model: str, variance_floor: float) -> None:
        super().__init__(sketch, "full", None, variance_floor, None)
        d = self.n_features
        self.family = replace(self.family, name=model)
        self.covariances = covariances_of(model)
        self.n_shapes = count_shapes(model, d)
        self.n_parameters = d + self.n_shapes
        unbounded = np.full(self.n_shapes - d, np.inf)
        # noise variances are at least the floor of eigenvalues
        self.lower = np.concatenate([self.lower[: 2 * d], -unbounded])
        self.upper = np.concatenate([self.upper[: 2 * d], unbounded])

    def factors(self, theta: Array) -> Array:
        """Noise variances and loadings (K, n_features, 1 + rank) in normalised coordinates."""
        d = self.n_features
        loadings = theta[:, 2 * d :].reshape(len(theta), d, -1)
        return np.concatenate([theta[:, d : 2 * d, None], loadings], axis=2)

    def packed(self, means: Array, factors: Array) -> Array:
        """Parameters (K, n_parameters) of means and factors in normalised coordinates."""
        loadings = factors[:, :, 1:].reshape(len(means), -1)
        return np.concatenate([means, factors[:, :, 0], loadings], axis=1)

    def from_factors(self, means: Array, factors: Array) -> Array:
        """Parameters (K, n_parameters) of means and factors in the units of the data."""
        scaled = self.covariances.rescaled(factors, 1.0 / self.scale)
        return self.packed((means - self.shift) / self.scale, scaled)

    def clip(self, theta: Array) -> Array:
        """Atoms moved into the bounds."""
        return np.clip(theta, self.lower, self.upper)

    def matrix_derivatives(self, atom: Array) -> Array:
        """Derivatives of the entries of the covariance matrix of an atom by its parameters.

        Shape (n_entries, n_parameters), with the entries in the order of
        :func:`~dask_sketch.decoders.objectives.atoms.entries`.
        """
        d = self.n_features
        first, second = entries(d)
        loadings, numbers = self.factors(atom[None])[0, :, 1:], np.arange(len(first))
        out = np.zeros((len(first), self.n_parameters))
        out[np.arange(d), d + np.arange(d)] = 1.0
        by_loading = np.zeros((len(first), d, loadings.shape[1]))
        by_loading[numbers, first] += loadings[second]
        by_loading[numbers, second] += loadings[first]
        out[:, 2 * d :] = by_loading.reshape(len(first), -1)
        return out

    def _shape_information(self, atom: Array, precision: Array) -> Array:
        """Information about noise variances, and loadings row after row."""
        loadings = self.factors(atom[None])[0, :, 1:]
        d, rank = loadings.shape
        weighted = precision @ loadings
        inner = loadings.T @ weighted
        out = np.empty((d * (1 + rank), d * (1 + rank)))
        out[:d, :d] = 0.5 * precision**2
        out[:d, d:] = np.einsum("ai,aj->aij", precision, weighted).reshape(d, -1)
        out[d:, :d] = out[:d, d:].T
        both = np.einsum("ik,jl->ijkl", precision, inner)
        both += np.einsum("il,kj->ijkl", weighted, weighted)
        out[d:, d:] = both.reshape(d * rank, -1)
        return out

    def limit_step(self, theta: Array, trial: Array) -> Array:
        """Atoms after a step, with no noise variance far from the one before."""
        noise = slice(self.n_features, 2 * self.n_features)
        trial = trial.copy()
        before = theta[:, noise]
        trial[:, noise] = np.clip(trial[:, noise], _LARGEST_FALL * before, _LARGEST_RISE * before)
        return self.clip(trial)

    def variances(self, theta: Array) -> Array:
        """Variances of atoms (K, n_features) in normalised coordinates."""
        return self.covariances.variances(self.factors(theta), len(theta), self.n_features)

    def shapes(self, theta: Array) -> Array:
        """Covariance matrices of atoms in normalised coordinates."""
        return self.covariances.matrices(self.factors(theta), len(theta), self.n_features)

    def matrices(self, theta: Array) -> Array:
        """Covariance matrices (K, n_features, n_features) of atoms, in the units of the data."""
        return self.shapes(theta) * np.outer(self.scale, self.scale)

    def from_data_units(self, means: Array, variances: Array) -> Array:
        """Parameters (K, n_parameters) of the nearest atoms.

        Variances may be replaced by covariance matrices (K, n_features, n_features).
        """
        equal = np.full(len(means), 1.0 / len(means))
        if variances.ndim == 3:
            unit = np.outer(self.scale, self.scale)
            factors = self.covariances.from_matrices(equal, variances / unit)
        else:
            factors = self.covariances.from_variances(equal, variances / self.scale**2)
        return self.packed((means - self.shift) / self.scale, factors)


class FactorObjective(Objective):
    """Match a sketch with atoms that have factors.

    Parameters
    ----------
    sketch : Sketch
        Sketch of at least one sample.
    model : str
        Covariance type, ``"low-rank:r"``.
    box, covariance : None
        Not supported.
    variance_floor, threads
        Arguments of :class:`~dask_sketch.decoders.objectives.objective.Objective`.
    """

    space: FactorSpace

    def __init__(
        self,
        sketch: Sketch,
        model: str,
        *,
        box: None = None,
        covariance: None = None,
        variance_floor: float,
        threads: Threads,
    ) -> None:
        super().__init__(sketch, "gaussian", variance_floor=variance_floor, threads=threads)
        self.space = FactorSpace(sketch, model, variance_floor)
        self._touched = touched_features(self.omega, _MAX_TOUCHED)

    def select(self, chosen: npt.NDArray[np.intp]) -> Self:
        """As in the base class."""
        fewer = super().select(chosen)
        fewer._touched = touched_features(fewer.omega, _MAX_TOUCHED)
        return fewer

    def projections(self, theta: Array, block: slice) -> Array:
        """Products ``W^T w`` of the loadings and a block of frequencies, shape (K, rank, B)."""
        loadings = self.space.factors(theta)[:, :, 1:]
        return np.asarray(np.swapaxes(loadings, 1, 2) @ self.omega[:, block])

    def _evaluator(self, theta: Array, lift: Array | None = None) -> Callable[[slice], Complex]:
        d = self.space.n_features
        diagonal = super()._evaluator(theta[:, : 2 * d], lift)

        def evaluate(block: slice) -> Complex:
            real, imag = diagonal(block)
            narrowed = np.exp(-0.5 * (self.projections(theta, block) ** 2).sum(axis=1))
            real *= narrowed
            imag *= narrowed
            return real, imag

        return evaluate

    def jacobian_blocks(self, weights: Array, theta: Array) -> Iterator[tuple[slice, Array]]:
        """Blocks of the columns of :meth:`jacobian`, shape (P, 2, B)."""
        d, n_atoms = self.space.n_features, len(theta)
        evaluate = self._evaluator(theta)
        for block in self._blocks(8 * n_atoms):
            omega = self.omega[:, block]
            atoms = np.stack(evaluate(block), axis=1)
            rows = np.empty((n_atoms, self.space.n_parameters, *atoms.shape[1:]))
            rows[:, :d, 0] = omega * atoms[:, None, 1]
            rows[:, :d, 1] = -omega * atoms[:, None, 0]
            rows[:, d : 2 * d] = -0.5 * (omega**2)[:, None] * atoms[:, None]
            scaled = self.projections(theta, block)[:, :, None] * atoms[:, None]  # (K, r, 2, B)
            by_loading = rows[:, 2 * d :].reshape(n_atoms, d, -1, *atoms.shape[1:])
            np.multiply(-omega[:, None, None], scaled[:, None], out=by_loading)
            rows *= weights[:, None, None, None]
            yield block, np.concatenate([atoms, rows.reshape(-1, *atoms.shape[1:])])

    def cost_gradient(self, weights: Array, theta: Array) -> tuple[float, Array, Array]:
        """Cost ``||z - sum_k alpha_k a_k||^2``, and its derivatives by weights and parameters."""
        self.n_evaluations += 1
        if self._touched is not None:
            return self._sparse_cost_gradient(weights, theta, *self._touched)

        def sums(block: slice, real: Array, imag: Array) -> tuple[Array, ...]:
            omega, projected = self.omega[:, block], self.projections(theta, block)
            left_real = self.target[0][block] - weights @ real
            left_imag = self.target[1][block] - weights @ imag
            even = left_real * real + left_imag * imag
            odd = left_real * imag - left_imag * real
            return (
                np.array(left_real @ left_real + left_imag @ left_imag),
                even.sum(axis=1),
                odd @ omega.T,
                even @ (omega**2).T,
                (even[:, None] * projected) @ omega.T,
            )

        parts = zip(*self._for_blocks(sums, theta), strict=True)
        cost, by_weight, by_mean, by_noise, by_loading = (np.sum(part, axis=0) for part in parts)
        by_loading = np.swapaxes(by_loading, 1, 2).reshape(len(theta), -1)
        by_theta = np.concatenate([-2.0 * by_mean, by_noise, 2.0 * by_loading], axis=1)
        return float(cost), -2.0 * by_weight, weights[:, None] * by_theta

    def _sparse_cost_gradient(
        self, weights: Array, theta: Array, features: npt.NDArray[np.int64], values: Array
    ) -> tuple[float, Array, Array]:
        """:meth:`cost_gradient` for frequencies that touch few features."""
        d, k = self.space.n_features, len(theta)
        padded = -(-k // MULTIPLE) * MULTIPLE
        fractions = np.zeros(padded)
        fractions[:k] = weights
        factors = np.moveaxis(self.space.factors(theta), 0, 2)
        table = np.zeros((d, factors.shape[1] + 1, padded))  # means, loadings, noise variances
        table[:, 0, :k] = (-0.5 / np.pi) * theta[:, :d].T
        table[:, 1:-1, :k] = _ROOT * factors[:, 1:]
        table[:, -1, :k] = (-0.5 / np.log(2.0)) * factors[:, 0]
        table = table.reshape(d, -1)

        def sums(block: slice) -> tuple[Array, Array, Array]:
            totals = np.zeros(1), np.zeros(padded), np.zeros_like(table)
            target = self.target[0][block], self.target[1][block]
            add_factor_gradient(
                features[block],
                values[block],
                self._envelope[block],
                fractions,
                table,
                target,
                totals,
            )
            return totals

        parts = self.threads.each(lambda: sums, sparse_blocks(self.n_frequencies))
        cost, by_weight, by_row = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
        by_atom = np.moveaxis(by_row.reshape(d, -1, padded)[:, :, :k], 2, 0)
        by_factor = np.concatenate(
            [by_atom[:, :, -1:], (2.0 / _ROOT) * by_atom[:, :, 1:-1]], axis=2
        )
        by_theta = self.space.packed(-2.0 * by_atom[:, :, 0], by_factor)
        return float(cost[0]), -2.0 * by_weight[:k], weights[:, None] * by_theta

    def curvatures(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """Squared norms of the rows of :meth:`jacobian`, shapes (K,) and (K, n_parameters)."""

        def sums(block: slice, real: Array, imag: Array) -> tuple[Array, ...]:
            squares = self.omega[:, block].T ** 2
            power = real**2 + imag**2
            projected = power[:, None] * self.projections(theta, block) ** 2
            by_noise = 0.25 * power @ squares**2
            return power.sum(axis=1), power @ squares, by_noise, projected @ squares

        parts = zip(*self._for_blocks(sums, theta), strict=True)
        by_weight, by_mean, by_noise, by_loading = (np.sum(part, axis=0) for part in parts)
        by_factor = np.concatenate([by_noise[:, None], by_loading], axis=1)
        by_theta = self.space.packed(by_mean, np.swapaxes(by_factor, 1, 2))
        return by_weight, weights[:, None] ** 2 * by_theta

    def missing_covariances(self, weights: Array, theta: Array) -> Array:
        """Covariances (K, n_features, n_features) that would explain the residual, one by one."""
        residual = self.residual(weights, theta)

        def sums(block: slice, real: Array, imag: Array) -> tuple[Array, Array]:
            omega = self.omega[:, block]
            even = residual[0][block] * real + residual[1][block] * imag
            power = real**2 + imag**2
            return (
                np.stack([(omega * row) @ omega.T for row in even]),
                np.stack([(omega**2 * row) @ (omega**2).T for row in power]),
            )

        parts = zip(*self._for_blocks(sums, theta), strict=True)
        products, squares = (np.sum(part, axis=0) for part in parts)
        fractions = np.maximum(weights, _LIGHTEST)[:, None, None]
        return np.asarray(-products / np.maximum(fractions * squares, 1e-300))


def data_factors(objective: Objective, theta: Array) -> Array | None:
    """Noise variances and loadings (K, n_features, 1 + rank) of atoms, in the units of the data.

    Parameters
    ----------
    objective
        Objective of any family; without factors the result is None.
    theta
        Atoms, shape (K, n_parameters).
    """
    space = objective.space
    if not isinstance(space, FactorSpace):
        return None
    return space.covariances.rescaled(space.factors(theta), space.scale)


def descend_from_diagonal(objective: FactorObjective, weights: Array, theta: Array) -> Fit:
    """Descend from atoms with variances; their loadings first explain the residual.

    Each covariance of two features is estimated by a step of Gauss and Newton of its own.

    Parameters
    ----------
    objective
        Atoms with factors, and target.
    weights, theta
        Weights (K,), and means and variances (K, 2 n_features) in the coordinates of the objective.
    """
    space, d = objective.space, objective.space.n_features
    variances = np.maximum(theta[:, d:], space.lower[d : 2 * d])
    means, family = theta[:, :d], space.covariances
    atoms = space.packed(means, family.from_variances(weights, variances))
    covariances = objective.missing_covariances(weights, atoms)
    unit = np.sqrt(variances[:, :, None] * variances[:, None, :])
    correlations = np.clip(covariances / unit, -1.0, 1.0)
    correlations[:, np.arange(d), np.arange(d)] = 1.0
    matrices = unit * floored(correlations, _NARROWEST)
    start = space.packed(means, family.from_matrices(weights, matrices))
    return descend_factors(objective, weights, start)


def descend_factors(
    objective: FactorObjective, weights: Array, theta: Array, n_iterations: int = _ITERATIONS
) -> Fit:
    """Descend to a minimum of the cost over weights that sum to one, and atoms with factors.

    Parameters
    ----------
    objective
        Atoms and target.
    weights, theta
        Weights (K,) and atoms (K, n_parameters) to start from.
    n_iterations
        Largest number of steps.

    Returns
    -------
    fit
        Fit whose weights sum to one.
    """
    k, d = len(theta), objective.space.n_features
    noise = slice(d, 2 * d)
    theta = objective.space.clip(theta)
    fractions = np.maximum(weights / weights.sum(), _LIGHTEST)
    units = _units(objective, fractions, theta)

    def unpacked(x: npt.NDArray[np.float64]) -> tuple[Array, Array]:
        variables = x * units
        atoms = variables[k:].reshape(k, -1)
        atoms[:, noise] = np.exp(atoms[:, noise])
        raised = np.exp(variables[:k] - variables[:k].max())
        return raised / raised.sum(), atoms

    def evaluate(x: npt.NDArray[np.float64]) -> tuple[float, Array]:
        masses, atoms = unpacked(x)
        cost, by_weight, by_theta = objective.cost_gradient(masses, atoms)
        by_theta[:, noise] *= atoms[:, noise]
        by_logarithm = masses * (by_weight - masses @ by_weight)
        gradient = np.concatenate([by_logarithm, by_theta.ravel()])
        return cost / objective.unit, gradient * units / objective.unit

    low = np.full(theta.shape, -np.inf)
    low[:, noise] = np.log(objective.space.lower[noise])
    start = theta.copy()
    start[:, noise] = np.log(theta[:, noise])
    bounds = np.concatenate([np.full(k, -np.inf), low.ravel()])
    minimum = optimize.minimize(
        evaluate,
        np.concatenate([np.log(fractions), start.ravel()]) / units,
        jac=True,
        method="L-BFGS-B",
        bounds=optimize.Bounds(bounds / units, np.inf),
        options={"maxiter": n_iterations, "maxcor": _MEMORY, "ftol": _TOLERANCE, "gtol": 0.0},
    )
    masses, atoms = unpacked(minimum.x)
    atoms = objective.space.clip(atoms)
    cost = objective.cost(masses, atoms)
    converged = bool(minimum.success)
    return Fit(masses, atoms, cost, converged, str(minimum.message), objective.n_evaluations)


def _units(objective: FactorObjective, weights: Array, theta: Array) -> Array:
    """Units of logarithms of weights, means, logarithms of noise variances, and loadings."""
    d = objective.space.n_features
    by_weight, by_theta = objective.curvatures(weights, theta)
    by_theta[:, d : 2 * d] *= theta[:, d : 2 * d] ** 2
    # one unit for all loadings of a component: they may be rotated into one another
    by_mean, by_loading = by_theta[:, :d].mean(axis=1), by_theta[:, 2 * d :].mean(axis=1)
    by_theta[:, 2 * d :] = np.maximum(by_loading, _FLAT_LOADING * by_mean)[:, None]
    curvature = np.concatenate([weights**2 * by_weight, by_theta.ravel()])
    return np.sqrt(objective.unit / np.maximum(curvature, _FLAT * curvature.max()))


def warn_of_lost_width(factors: Array, *, has_rows: bool = False) -> None:
    """Warn of features that the factors explain nearly whole (Heywood cases).

    Parameters
    ----------
    factors
        Noise variances and loadings, shape (K, n_features, 1 + rank).
    has_rows
        Whether the mixture was fitted to rows as well, which confirm the density; then the warning
        is of the standard errors.
    """
    noise = factors[:, :, 0]
    fraction = noise / (noise + (factors[:, :, 1:] ** 2).sum(axis=2))
    lost = np.flatnonzero((fraction < _LOST_FRACTION).any(axis=0))
    if not len(lost):
        return
    effect = "the density has hardly any width across them, so that other rows may be far less "
    effect += "likely than the sketch says. Give a lower rank or covariance_type='full', or sketch "
    effect += "with sample=True where rows may be kept."
    if has_rows:
        effect = "their noise variances are at the bound, so that standard errors and intervals of "
        effect += "the covariances are too short. Give a lower rank or covariance_type='full'."
    warn_user(
        f"the factors explain all but {fraction.min():.1g} of the variance of {len(lost)} "
        f"feature(s), such as feature {lost[0]}: {effect}"
    )
