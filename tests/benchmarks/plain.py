"""Splitting as Keriven et al. (2018) print it (Algorithm 2), in plain NumPy: complex128 and `exp`.

The rival of the decoders: no compiled loop, no part of the frequencies, no second-order step, no
exchange. It has the same coordinates, bounds and unit of cost, and SciPy's L-BFGS-B with SciPy's
own tolerances and at most 1000 iterations a level.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls

from dask_sketch import Sketch

Array = NDArray[np.float64]
FLOOR = 0.1  # smallest variance, as that of `decode`
ITERATIONS = 1000


class OutOfTime(Exception):
    """The time given is over."""


@dataclass
class PlainSplitting:
    """Decoding of one sketch, stopped when ``limit`` seconds of CPU time are over.

    After :meth:`run`, ``weights``, ``means`` and ``variances`` are those of the best mixture, in
    the units of the data; ``cost`` is in noise levels, ``ended`` whether there was time enough.
    """

    sketch: Sketch
    n_components: int
    limit: float
    n_evaluations: int = 0
    cost: float = field(default=float("inf"), init=False)
    ended: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        features = self.sketch.feature_map
        self.scale = np.sqrt(features.mean_variances)
        self.omega = features.frequencies * self.scale[:, None]
        phase = (self.sketch.mean - features.center) @ features.frequencies
        moments = self.sketch.moment_sum / self.sketch.total_weight
        self.z = np.exp(1j * phase) * moments / np.sqrt(self.omega.shape[1])
        self.unit = self.sketch.noise_level
        self.half_squares = -0.5 * self.omega**2

    def atoms(self, means: Array, variances: Array) -> NDArray[np.complex128]:
        """Eq. (15), shape (K, m)."""
        exponent = variances @ self.half_squares - 1j * (means @ self.omega)
        return np.exp(exponent) / np.sqrt(self.omega.shape[1])

    def cost_gradient(self, x: Array, n: int) -> tuple[float, Array]:
        """Cost in noise levels and its gradient, at ``n`` weights, means and variances in a row."""
        if time.process_time() > self.deadline:
            raise OutOfTime
        self.n_evaluations += 1
        weights, rest = x[:n], x[n:].reshape(2, n, -1)
        atoms = self.atoms(*rest)
        residual = self.z - weights @ atoms
        products = atoms.conj() * residual
        cost = float(np.vdot(residual, residual).real) / self.unit
        if cost < self.best[0]:
            self.best = cost, x.copy()
        by_weight = products.real.sum(axis=1)
        by_mean = -weights[:, None] * (products.imag @ self.omega.T)
        by_variance = weights[:, None] * (products.real @ self.half_squares.T)
        gradient = np.concatenate([by_weight, by_mean.ravel(), by_variance.ravel()])
        return cost, -2.0 * gradient / self.unit

    def run(self, seed: int = 0) -> PlainSplitting:
        """All levels, or as many as there is time for."""
        self.deadline = time.process_time() + self.limit
        d = len(self.omega)
        means = np.zeros((1, d))
        variances = np.full((1, d), np.random.default_rng(seed).uniform(0.5, 1.5))
        data = self.sketch.variance / self.scale**2
        floor = FLOOR * np.minimum(data, 1.0)
        try:
            means, variances = self.descend(means, variances, floor)
            while len(means) < self.n_components:
                means, variances = self.split(means, variances)
                if len(means) > self.n_components:
                    heaviest = np.argsort(-self.fit_weights(means, variances))
                    kept = np.sort(heaviest[: self.n_components])
                    means, variances = means[kept], variances[kept]
                means, variances = self.descend(means, variances, floor)
            self.ended = True
        except OutOfTime:
            pass
        self.cost, x = self.best
        n = len(x) // (1 + 2 * d)
        means, variances = x[n:].reshape(2, n, -1)
        self.weights = x[:n] / x[:n].sum()
        self.means = self.sketch.mean + self.scale * means
        self.variances = self.scale**2 * variances
        return self

    @staticmethod
    def split(means: Array, variances: Array) -> tuple[Array, Array]:
        """Each component in two, a deviation to both sides along its widest feature."""
        step = np.zeros_like(means)
        rows, widest = np.arange(len(means)), variances.argmax(axis=1)
        step[rows, widest] = np.sqrt(variances.max(axis=1))
        return np.concatenate([means - step, means + step]), np.tile(variances, (2, 1))

    def fit_weights(self, means: Array, variances: Array) -> Array:
        """Non-negative least squares."""
        atoms = self.atoms(means, variances)
        rows = np.concatenate([atoms.real, atoms.imag], axis=1)
        return np.asarray(nnls(rows.T, np.concatenate([self.z.real, self.z.imag]))[0])

    def descend(self, means: Array, variances: Array, floor: Array) -> tuple[Array, Array]:
        """L-BFGS-B on weights, means and variances together."""
        n, d = means.shape
        self.best = (float("inf"), np.empty(0))
        weights = self.fit_weights(means, variances)
        found = minimize(
            self.cost_gradient,
            np.concatenate([weights, means.ravel(), variances.ravel()]),
            args=(n,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": ITERATIONS},
            bounds=[(0, None)] * n + [(None, None)] * (n * d) + [(low, None) for low in floor] * n,
        )
        means, variances = found.x[n:].reshape(2, n, d)
        return means, variances
