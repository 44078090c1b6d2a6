"""The sketch-matching objective: atoms, norms, correlation, cost and their gradients.

Everything that depends on *which* atom is fitted lives here, behind parameters that the
decoders treat as opaque rows ``theta`` of shape (K, n_parameters): another family of atoms
(Dirac, isotropic, known covariance) is another class with the same methods, and another
decoder is another loop over the methods of this one.

Notation is that of Keriven et al. (2018): a Gaussian atom with diagonal covariance has the
sketch ``a_j = exp(-i w_j.mu - w_j.diag(s) w_j / 2) / sqrt(m)`` (eq. 15), and a mixture is
fitted by minimising ``J = ||z - sum_k alpha_k a_k||^2`` (eq. 9, squared).

Coordinates. The optimisers see data shifted by the sketch's mean and divided, feature by
feature, by the standard deviation of the frequency law's mean component, so that means and
variances are of order one whatever the units and offset of the data. The change of variables
is exact: frequencies are multiplied by the scale and the sketch by ``exp(+i w.shift)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dask_sketch.sketching import Sketch

Array = npt.NDArray[np.float64]

# Fraction of the data's variance that variances are kept above (sec. 5.3 has the same number
# as an absolute bound, which would depend on the unit of the data).
VARIANCE_FLOOR = 1e-15

# Atoms are evaluated by blocks of frequencies of about this many numbers (256 KiB), so that
# the passes over a block run in cache and memory stays below K times the block.
_BLOCK = 32_768

# The noise level is the unit of the cost; a sketch of a single point has none.
_SMALLEST_UNIT = 1e-20


class GaussianObjective:
    """Match a sketch with Gaussian atoms of diagonal covariance.

    Parameters
    ----------
    sketch : Sketch
        A sketch of at least one sample.
    box : ndarray of shape (2, n_features), optional
        Lowest and highest value of each mean, in data units; no bounds by default.
    variance_floor : float
        Smallest variance of a component, as a fraction of the data's variance.

    Attributes
    ----------
    n_features, n_frequencies, n_parameters : int
        Sizes; an atom has ``2 * n_features`` parameters: means, then variances.
    shift, scale : ndarray of shape (n_features,)
        Origin and unit of the normalised coordinates, in data units.
    target : tuple of two ndarrays of shape (n_frequencies,)
        Real and imaginary part of the sketch in normalised coordinates.
    noise_level : float
        Expected ``||z - A P||^2`` at the law ``P`` of the samples, ``(1 - ||z||^2) / n``.
    unit : float
        Cost that counts as one for the optimisers: the noise level, or what rounding leaves.
    n_evaluations : int
        Number of correlations and costs evaluated so far.
    lower, upper : ndarray of shape (2 * n_features,)
        Bounds of one atom's parameters.
    """

    def __init__(
        self, sketch: Sketch, box: Array | None = None, variance_floor: float = VARIANCE_FLOOR
    ) -> None:
        features = sketch.feature_map
        frequencies = features.frequencies
        self.n_features, self.n_frequencies = frequencies.shape
        self.n_parameters = 2 * self.n_features
        self.n_evaluations = 0
        self.scale = np.sqrt(features.mean_variances)
        self.shift = sketch.mean

        # The moments are kept relative to the map's center: the phases of data far from the
        # origin, and their rounding, never appear.
        phase = (self.shift - features.center) @ frequencies
        psi = np.exp(1j * phase) * (sketch.moment_sum / sketch.total_weight)
        z = psi / np.sqrt(self.n_frequencies)
        self.target = (z.real.copy(), z.imag.copy())
        self.noise_level = max(sketch.noise_level, 0.0)
        self.unit = max(self.noise_level, _SMALLEST_UNIT)

        omega = frequencies * self.scale[:, None]
        # Rows: 1, omega, omega^2; every gradient is a product with these.
        self._basis = np.concatenate([np.ones((1, self.n_frequencies)), omega, omega**2])
        self._log_norm = 0.5 * np.log(self.n_frequencies)

        spread = sketch.variance / self.scale**2
        self._spread = np.sqrt(spread)
        floor = variance_floor * np.where(spread > 0.0, spread, 1.0)
        infinite = np.full(self.n_features, np.inf)
        low, high = (-infinite, infinite) if box is None else (box - self.shift) / self.scale
        self.lower = np.concatenate([low, floor])
        self.upper = np.concatenate([high, infinite])

    # -- parameters -------------------------------------------------------------------

    def random_atom(self, rng: np.random.Generator, *, away: bool = False) -> Array:
        """Draw a starting point of Step 1: a random isotropic variance, at the data's centre.

        The variance is ``U[0.5, 1.5]`` times the law's mean component variance (sec. 5.3).

        Parameters
        ----------
        rng
            Source of the draw.
        away
            Draw the mean too, from a Gaussian with the data's mean and variances.
        """
        variance = np.full(self.n_features, rng.uniform(0.5, 1.5))
        mean = np.zeros(self.n_features)
        if away:
            mean = rng.standard_normal(self.n_features) * self._spread
        return np.clip(np.concatenate([mean, variance]), self.lower, self.upper)

    def to_data_units(self, theta: Array) -> tuple[Array, Array]:
        """Return the means and variances (K, d) of atoms in the units of the data."""
        means, variances = theta[:, : self.n_features], theta[:, self.n_features :]
        return self.shift + self.scale * means, self.scale**2 * variances

    def split(self, theta: Array) -> Array:
        """Function Split (sec. 3.2): two atoms (2K, n_parameters) for each one.

        The means move by one standard deviation, both ways, along the feature of largest
        variance; variances stay. Variances are compared in units of the frequency law's, which
        is the paper's comparison when the law is isotropic. The halves of an atom are neighbours.
        """
        d = self.n_features
        rows = np.arange(len(theta))
        widest = theta[:, d:].argmax(axis=1)
        step = np.zeros_like(theta)
        step[rows, widest] = np.sqrt(theta[rows, d + widest])
        halves = np.stack([theta - step, theta + step], axis=1).reshape(-1, self.n_parameters)
        return np.clip(halves, self.lower, self.upper)

    def from_data_units(self, means: Array, variances: Array) -> Array:
        """Return the parameters (K, 2d) of atoms given in the units of the data."""
        return np.concatenate(
            [(means - self.shift) / self.scale, variances / self.scale**2], axis=1
        )

    # -- atoms ------------------------------------------------------------------------

    def _slices(self, n_atoms: int) -> Iterator[slice]:
        """Blocks of frequencies."""
        width = max(128, _BLOCK // n_atoms)
        for start in range(0, self.n_frequencies, width):
            yield slice(start, min(start + width, self.n_frequencies))

    def _evaluate(self, theta: Array, basis: Array, lift: float) -> tuple[Array, Array, Array]:
        """Amplitude, real and imaginary part (K, block) of atoms times ``exp(lift)``.

        cos and sin come from ``t = tan(x / 2)``: NumPy has no vectorised double-precision
        sine, and one tangent costs a seventh of the pair. ``cos x = 2 / (1 + t^2) - 1`` and
        ``sin x = 2 t / (1 + t^2)`` hold to a few ulp in absolute terms for every x.
        """
        d = self.n_features
        amplitude = (-0.5 * theta[:, d:]) @ basis[1 + d :]
        amplitude += lift - self._log_norm
        np.exp(amplitude, out=amplitude)
        imag = (-0.5 * theta[:, :d]) @ basis[1 : 1 + d]
        np.tan(imag, out=imag)
        real = imag * imag
        real += 1.0
        np.divide(amplitude, real, out=real)
        real *= 2.0
        imag *= real
        real -= amplitude
        return amplitude, real, imag

    def atoms(self, theta: Array) -> Array:
        """Sketches of atoms as rows of real numbers (K, 2m): real parts, imaginary parts."""
        m = self.n_frequencies
        rows = np.empty((len(theta), 2 * m))
        for block in self._slices(len(theta)):
            _, real, imag = self._evaluate(theta, self._basis[:, block], 0.0)
            rows[:, :m][:, block] = real
            rows[:, m:][:, block] = imag
        return rows

    def residual(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """Real and imaginary part (m,) of ``z - sum_k alpha_k a_k``."""
        real, imag = self.target[0].copy(), self.target[1].copy()
        for block in self._slices(max(len(theta), 1)):
            _, atom_real, atom_imag = self._evaluate(theta, self._basis[:, block], 0.0)
            real[block] -= weights @ atom_real
            imag[block] -= weights @ atom_imag
        return real, imag

    # -- Step 1 -----------------------------------------------------------------------

    def correlation(self, theta: Array, residual: tuple[Array, Array]) -> tuple[float, Array]:
        """Correlation ``Re <a / ||a||, r>`` of one atom with a residual, and its gradient.

        Parameters
        ----------
        theta : ndarray of shape (2 * n_features,)
            One atom.
        residual : tuple of two ndarrays of shape (n_frequencies,)
            Real and imaginary part of the residual.

        Returns
        -------
        value : float
            At most the norm of the residual.
        gradient : ndarray of shape (2 * n_features,)
        """
        d = self.n_features
        self.n_evaluations += 1
        # The quotient does not see a common factor of the atom: lifting the largest
        # amplitude to one keeps very wide atoms from underflowing to 0 / 0.
        lift = 0.5 * float(np.min(theta[d:] @ self._basis[1 + d :])) + self._log_norm
        products = np.zeros(2 * d + 1)
        energies = np.zeros(d + 1)
        for block in self._slices(1):
            basis = self._basis[:, block]
            amplitude, real, imag = self._evaluate(theta[None, :], basis, lift)
            rho_real, rho_imag = residual[0][block], residual[1][block]
            same = real[0] * rho_real + imag[0] * rho_imag
            cross = real[0] * rho_imag - imag[0] * rho_real
            products[0] += same.sum()
            products[1 : 1 + d] += basis[1 : 1 + d] @ cross
            products[1 + d :] += basis[1 + d :] @ same
            power = amplitude[0] ** 2
            energies[0] += power.sum()
            energies[1:] += basis[1 + d :] @ power
        norm = np.sqrt(energies[0])
        value = products[0] / norm
        gradient = np.empty(2 * d)
        gradient[:d] = -products[1 : 1 + d] / norm
        gradient[d:] = -0.5 * products[1 + d :] / norm
        gradient[d:] += 0.5 * value * energies[1:] / energies[0]
        return float(value), gradient

    def correlations(self, theta: Array, residual: tuple[Array, Array]) -> Array:
        """Correlations (n,) of several atoms (n, 2 * n_features) with a residual."""
        products, energies = np.zeros(len(theta)), np.zeros(len(theta))
        for block in self._slices(len(theta)):
            amplitude, real, imag = self._evaluate(theta, self._basis[:, block], 0.0)
            products += real @ residual[0][block] + imag @ residual[1][block]
            energies += np.einsum("ij,ij->i", amplitude, amplitude)
        return products / np.sqrt(np.maximum(energies, np.finfo(float).tiny))

    # -- Steps 3 to 5 -----------------------------------------------------------------

    def cost(self, weights: Array, theta: Array) -> float:
        """``||z - sum_k alpha_k a_k||^2``."""
        real, imag = self.residual(weights, theta)
        return float(real @ real + imag @ imag)

    def cost_gradient(self, weights: Array, theta: Array) -> tuple[float, Array, Array]:
        """Cost ``||z - sum_k alpha_k a_k||^2`` and its gradient.

        Parameters
        ----------
        weights : ndarray of shape (K,)
        theta : ndarray of shape (K, 2 * n_features)

        Returns
        -------
        cost : float
        weight_gradient : ndarray of shape (K,)
        theta_gradient : ndarray of shape (K, 2 * n_features)
        """
        d = self.n_features
        self.n_evaluations += 1
        cost = 0.0
        products = np.zeros((len(theta), 2 * d + 1))
        for block in self._slices(len(theta)):
            basis = self._basis[:, block]
            _, real, imag = self._evaluate(theta, basis, 0.0)
            rho_real = self.target[0][block] - weights @ real
            rho_imag = self.target[1][block] - weights @ imag
            cost += float(rho_real @ rho_real + rho_imag @ rho_imag)
            # With c = conj(a) rho: sums of Re c, omega Im c and omega^2 Re c.
            factor = basis * rho_real
            factor[1 : 1 + d] = basis[1 : 1 + d] * rho_imag
            products += real @ factor.T
            np.multiply(basis, rho_imag, out=factor)
            factor[1 : 1 + d] = basis[1 : 1 + d] * -rho_real
            products += imag @ factor.T
        theta_gradient = weights[:, None] * products[:, 1:]
        theta_gradient[:, :d] *= 2.0
        return cost, -2.0 * products[:, 0], theta_gradient

    def curvatures(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """Diagonal of the Gauss-Newton Hessian of the cost, divided by two.

        Returns
        -------
        weight_curvature : ndarray of shape (K,)
        theta_curvature : ndarray of shape (K, 2 * n_features)
        """
        d = self.n_features
        energy = np.zeros(len(theta))
        sums = np.zeros((len(theta), 2 * d))
        for block in self._slices(len(theta)):
            basis = self._basis[:, block]
            power = self._evaluate(theta, basis, 0.0)[0] ** 2
            energy += power.sum(axis=1)
            squares = basis[1 + d :]
            sums[:, :d] += power @ squares.T
            sums[:, d:] += 0.25 * (power @ (squares**2).T)
        return energy, weights[:, None] ** 2 * sums
