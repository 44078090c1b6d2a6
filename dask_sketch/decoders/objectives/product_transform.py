"""Sketch of a mixture of latent classes, its derivatives, and the covariance of its features."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.models.product_em import ProductMixture
from dask_sketch.validation.categories import Categories

Complex = NDArray[np.complex128]
# logarithm of the smallest probability: a smaller one could not grow again
_MIN_LOGIT = np.log(1e-8)
_BLOCK = 256  # frequencies whose derivatives are in memory at once
_N_STEPS, _DAMPING, _MIN_DAMPING, _MAX_DAMPING = 200, 1e-3, 1e-9, 1e10
_TOLERANCE = 1e-10  # relative decrease of the cost that ends a descent
_MAX_STEP = 4.0  # largest step of a logarithm, or of a mean in its unit
_FEATURE_ERROR = 1e-6  # systematic error of a moment in float32
# Variance added to the features, times the number of rows: in directions that vary less, a few rows
# make up the sums, and their errors are not Gaussian.
_RIDGE = 3.0


class Descent(NamedTuple):
    """Result of a descent: parameters, cost, and whether it converged."""

    theta: Array
    cost: float
    converged: bool
    n_evaluations: int


class ProductTransform:
    """Characteristic function of a mixture of products at the frequencies of a sketch.

    Parameters are logarithms of weights and of probabilities, up to constants, means, and
    logarithms of variances, so that weights and probabilities stay on the simplex.

    Parameters
    ----------
    categories
        Levels of the categorical features.
    frequencies
        Frequencies, shape (n_features, m).
    floor
        Smallest variances of the numeric features, shape (n_numeric,).
    unit
        Units of the means, shape (n_numeric,).
    """

    def __init__(self, categories: Categories, frequencies: Array, floor: Array, unit: Array):
        self._categories, self._floor, self._unit = categories, floor, unit
        self.numeric = frequencies[categories.numeric]
        self.characters = [
            np.exp(-1j * np.outer(np.arange(size), frequencies[column]))
            for column, size in zip(categories.columns, categories.sizes, strict=True)
        ]

    def pack(self, mixture: ProductMixture) -> Array:
        """Parameters as one array, each in the inside of its range."""
        tiny = np.exp(_MIN_LOGIT)
        parts = (
            np.log(np.maximum(mixture.weights, tiny)),
            mixture.means / self._unit,
            np.log(np.maximum(mixture.variances, self._floor)),
            np.log(np.maximum(mixture.probabilities, tiny)),
        )
        return np.concatenate([part.ravel() for part in parts])

    def _split(self, theta: Array) -> tuple[Array, Array, Array, Array]:
        n = len(self.numeric)
        k = len(theta) // (1 + 2 * n + self._categories.n_levels)
        ends = np.cumsum([k, k * n, k * n])
        weights, means, logs, logits = np.split(theta, ends)
        return weights, means.reshape(k, n), logs.reshape(k, n), logits.reshape(k, -1)

    def unpack(self, theta: Array) -> ProductMixture:
        """Mixture of the parameters."""
        weights, means, logs, logits = self._split(theta)
        probabilities = np.empty_like(logits)
        for part in self._categories.slices:
            probabilities[:, part] = special.softmax(logits[:, part], axis=1)
        return ProductMixture(
            special.softmax(weights), means * self._unit, np.exp(logs), probabilities
        )

    def _clip(self, theta: Array) -> Array:
        """Parameters with bounded logarithms, so that each can grow again."""
        mixture = self.unpack(theta)
        return self.pack(mixture)

    def values(self, theta: Array) -> Array:
        """Real parts, then imaginary parts of the transform, shape (2, m)."""
        mixture = self.unpack(theta)
        psi = mixture.weights @ self._components(mixture)[0]
        return np.stack([psi.real, psi.imag])

    def _components(
        self, mixture: ProductMixture, block: slice = slice(None)
    ) -> tuple[Complex, list[Complex]]:
        """Transform of each component, and the factor of each categorical feature, (K, m)."""
        omega = self.numeric[:, block]
        each = np.exp(-1j * (mixture.means @ omega) - 0.5 * (mixture.variances @ omega**2))
        factors: list[Complex] = []
        for part, characters in zip(self._categories.slices, self.characters, strict=True):
            probabilities = mixture.probabilities[:, part].astype(np.complex128)
            factor: Complex = probabilities @ characters[:, block]
            factors.append(factor)
            each = each * factor
        return each, factors

    def jacobian(self, mixture: ProductMixture, block: slice) -> Array:
        """Derivatives of the transform, shape (2, block, n_parameters)."""
        k, n = mixture.means.shape
        omega = self.numeric[:, block]
        each, factors = self._components(mixture, block)
        weighted = mixture.weights[:, None] * each
        columns = [weighted - mixture.weights[:, None] * weighted.sum(axis=0)]
        size, slopes = (k * n, omega.shape[1]), -1j * omega * self._unit[:, None]
        columns.append((weighted[:, None] * slopes).reshape(size))
        squares = -0.5 * mixture.variances[:, :, None] * omega**2
        columns.append((weighted[:, None] * squares).reshape(size))
        plain: Complex = np.exp(-1j * (mixture.means @ omega) + squares.sum(axis=1))
        before = [mixture.weights[:, None] * plain]  # products of the factors before each
        for factor in factors[:-1]:
            before.append(before[-1] * factor)
        after: Complex | float = 1.0
        levels = np.empty((k, self._categories.n_levels, each.shape[1]), np.complex128)
        parts = list(zip(self._categories.slices, self.characters, factors, before, strict=True))
        for part, characters, factor, first in reversed(parts):
            others = first * after
            change = characters[None, :, block] - factor[:, None]
            levels[:, part] = mixture.probabilities[:, part, None] * change * others[:, None]
            after = after * factor
        columns.append(levels.reshape(-1, each.shape[1]))
        stacked = np.concatenate(columns)
        return np.stack([stacked.real.T, stacked.imag.T])

    def descend(self, theta: Array, target: Array, whitening: Array | None = None) -> Descent:
        """Levenberg-Marquardt descent of the squared distance to a sketch.

        Parameters
        ----------
        theta
            Parameters to start from.
        target
            Real and imaginary parts of the sketch, shape (2, m).
        whitening
            Lower triangular matrix ``L``, shape (2m, 2m), such that ``inv(L) @ r`` has equal
            errors; None for least squares.
        """
        damping, n_evaluations = _DAMPING, 1
        residual = self._whitened(self.values(theta) - target, whitening)
        cost = float(residual @ residual)
        for _ in range(_N_STEPS):
            gram, gradient = self._normal_equations(theta, residual, whitening)
            diagonal = np.diagonal(gram)
            scale = 1.0 / np.sqrt(diagonal + 1e-12 * max(float(diagonal.max()), 1e-300))
            gram *= scale[:, None] * scale
            last = cost
            while damping < _MAX_DAMPING:
                step = scale * _solved(gram, damping, -scale * gradient)
                tried = self._clip(theta + np.clip(step, -_MAX_STEP, _MAX_STEP))
                n_evaluations += 1
                left = self._whitened(self.values(tried) - target, whitening)
                if float(left @ left) < cost:
                    theta, residual, cost = tried, left, float(left @ left)
                    damping = max(0.2 * damping, _MIN_DAMPING)
                    break
                damping *= 5.0
            if last - cost <= _TOLERANCE * cost:
                return Descent(theta, cost, converged=True, n_evaluations=n_evaluations)
        return Descent(theta, cost, converged=False, n_evaluations=n_evaluations)

    @staticmethod
    def _whitened(residual: Array, whitening: Array | None) -> Array:
        flat = residual.reshape(-1)
        if whitening is None:
            return flat
        return np.asarray(linalg.solve_triangular(whitening, flat, lower=True, check_finite=False))

    def _normal_equations(
        self, theta: Array, residual: Array, whitening: Array | None
    ) -> tuple[Array, Array]:
        mixture, m = self.unpack(theta), residual.size // 2
        if whitening is not None:
            rows = self.jacobian(mixture, slice(None)).reshape(2 * m, -1)
            rows = linalg.solve_triangular(whitening, rows, lower=True, check_finite=False)
            return rows.T @ rows, rows.T @ residual
        gram, gradient = np.zeros((len(theta), len(theta))), np.zeros(len(theta))
        halves = residual.reshape(2, m)
        for start in range(0, m, _BLOCK):
            block = slice(start, start + _BLOCK)
            rows = self.jacobian(mixture, block).reshape(-1, len(theta))
            gram += rows.T @ rows
            gradient += rows.T @ halves[:, block].reshape(-1)
        return gram, gradient

    def whitening(
        self, mixture: ProductMixture, count: float, overlaps: Array | None = None
    ) -> tuple[Array, float]:
        """Cholesky factor of the covariance of the moments of all rows, and its effective rank.

        Parameters
        ----------
        mixture
            Mixture of the rows.
        count
            Effective number of rows.
        overlaps
            Factors of the covariances where rows lack values, since the moments are means over
            different rows, shape (m, m).

        Returns
        -------
        factor, rank
            Lower triangular matrix, shape (2m, 2m), and the number of directions in which features
            vary by more than their rounding.
        """
        k, m = len(mixture.weights), self.numeric.shape[1]
        minus, plus = np.zeros((2, m, m), np.complex128)
        mean = mixture.weights @ self._components(mixture)[0]
        for j in range(k):
            phase = np.exp(-1j * (mixture.means[j] @ self.numeric))
            inner = (self.numeric.T * mixture.variances[j]) @ self.numeric
            half = 0.5 * np.diagonal(inner)
            both = half[:, None] + half
            scaled_phase = mixture.weights[j] * phase[:, None]
            apart = scaled_phase * np.exp(inner - both) * phase.conj()
            together = scaled_phase * np.exp(-inner - both) * phase
            for part, characters in zip(self._categories.slices, self.characters, strict=True):
                left = (characters * mixture.probabilities[j, part, None]).T
                apart *= left @ characters.conj()
                together *= left @ characters
            minus += apart
            plus += together
        out = np.empty((2 * m, 2 * m))
        out[:m, :m] = 0.5 * (minus + plus).real
        out[m:, m:] = 0.5 * (minus - plus).real
        out[m:, :m] = 0.5 * (minus + plus).imag
        out[:m, m:] = out[m:, :m].T
        flat = np.concatenate([mean.real, mean.imag])
        out -= np.outer(flat, flat)
        if overlaps is not None:
            parts = out.reshape(2, m, 2, m)
            parts *= overlaps[:, None]
        ridge = _RIDGE / count + count * _FEATURE_ERROR**2
        out[np.diag_indices(2 * m)] += ridge
        lower = np.asarray(linalg.cholesky(out, lower=True, check_finite=False))
        inverse = linalg.solve_triangular(lower, np.eye(2 * m), lower=True, check_finite=False)
        return lower / np.sqrt(count), 2 * m - ridge * float((inverse**2).sum())


def _solved(gram: Array, damping: float, right: Array) -> Array:
    """Solution of damped normal equations with a diagonal of ones, or zero where they have none."""
    matrix = gram.copy()
    matrix[np.diag_indices_from(matrix)] += damping
    try:
        factor = linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    except linalg.LinAlgError:  # the matrix is singular by rounding: more damping is tried next
        return np.zeros_like(right)
    return np.asarray(linalg.cho_solve(factor, right, check_finite=False))
