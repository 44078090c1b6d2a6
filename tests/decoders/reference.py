"""The objective in plain NumPy and complex numbers, formula by formula, to test against."""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.objectives.objective import Objective


class Reference:
    """Quantities of an objective from its frequencies, family and target alone."""

    def __init__(self, objective: Objective) -> None:
        self.omega = objective.omega
        self.d, self.m = objective.omega.shape
        self.spread = objective.space.family.spread
        self.log_envelope = objective.space.family.log_envelope
        self.z = objective.target[0] + 1j * objective.target[1]

    def atoms(self, theta):
        """Eq. (15), shape (K, m)."""
        means, shapes = theta[:, : self.d], theta[:, self.d :]
        exponent = -1j * means @ self.omega - 0.5 * (shapes @ self.spread) @ self.omega**2
        return np.exp(exponent + self.log_envelope) / np.sqrt(self.m)

    def derivatives(self, theta):
        """Derivatives of each atom by each of its parameters, shape (K, p, m)."""
        factors = np.concatenate([-1j * self.omega, -0.5 * self.spread @ self.omega**2])
        return self.atoms(theta)[:, None, :] * factors

    def residual(self, weights, theta):
        return self.z - weights @ self.atoms(theta)

    def cost(self, weights, theta):
        return np.linalg.norm(self.residual(weights, theta)) ** 2

    def jacobian(self, weights, theta):
        """Derivatives of the sketch of the model, shape (P, m), complex."""
        by_theta = weights[:, None, None] * self.derivatives(theta)
        return np.concatenate([self.atoms(theta), by_theta.reshape(-1, self.m)])

    def correlation(self, theta, r):
        """Correlation of one atom with a residual."""
        atom = self.atoms(theta[None])[0]
        return (np.vdot(atom, r) / np.linalg.norm(atom)).real


def numerical_gradient(function, x, step=1e-6):
    """Central differences of a function of one array."""
    out = np.empty(x.size)
    for i in range(x.size):
        moved = np.tile(x.ravel(), (2, 1))
        moved[0, i] += step
        moved[1, i] -= step
        ahead, behind = (function(row.reshape(x.shape)) for row in moved)
        out[i] = (ahead - behind) / (2 * step)
    return out.reshape(x.shape)
