"""The sketch-matching objective: atoms, norms, correlation, cost and their gradients.

Everything that depends on *which* atom is fitted lives here and in :mod:`families`, behind
parameters that the decoders treat as opaque rows ``theta`` of shape (K, n_parameters), the mean
before the shape: another family of atoms is another row of a table, and another decoder is another
loop over the methods of this class.

Notation is that of Keriven et al. (2018): atoms ``a_k`` have the sketch of eq. (15), and a mixture
is fitted by minimising ``J = ||z - sum_k alpha_k a_k||^2`` (eq. 9, squared).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dask_sketch.decoders import kernels
from dask_sketch.decoders.coordinates import VARIANCE_FLOOR, Coordinates
from dask_sketch.decoders.families import Array
from dask_sketch.decoders.normal_equations import GramSums

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dask_sketch.sketching import Sketch

# Atoms are evaluated by blocks of frequencies of about this many numbers: real and imaginary
# parts (512 KiB) stay in the second cache, and memory below K times the block.
_BLOCK = 32_768

# The noise level is the unit of the cost; a sketch of a single point has none.
_SMALLEST_UNIT = 1e-20


class Objective(Coordinates):
    """Match a sketch with atoms of one family.

    Parameters
    ----------
    sketch : Sketch
        A sketch of at least one sample.
    model : str
        Family of the atoms, one of ``families.MODELS``.
    box : ndarray of shape (2, n_features), optional
        Lowest and highest value of each mean, in data units; no bounds by default.
    variance_floor : float
        Smallest variance of a component, as a fraction of the law's mean component variance, or of
        the data's variance where that is less.
    covariance : ndarray, optional
        For ``model="known"``: variances (n_features,) or covariance matrix, in data units.

    Attributes
    ----------
    n_features, n_frequencies, n_shapes, n_parameters, shift, scale, omega, family, lower, upper
        Those of :class:`~dask_sketch.decoders.coordinates.Coordinates`.
    target : tuple of two ndarrays of shape (n_frequencies,)
        Real and imaginary part of the sketch in normalised coordinates, times the map's feature
        weights if it has them.
    feature_weights : ndarray of shape (n_frequencies,)
        Those of the map, or ones.
    noise_level : float
        Expected ``||z - A P||^2`` at the law ``P`` of the samples: ``(1 - ||z||^2) / n``, or with
        the map's feature weights ``w``, ``(mean(w^2) - ||w z||^2) / n``.
    rounding : float
        Square of the rounding error of a feature's average, times the number of samples: what it
        adds to the variance of one feature.
    unit : float
        Cost that counts as one for the optimisers: the noise level, or what rounding leaves.
    effective_count : float
        Number of samples, or what it is worth when they are weighted.
    n_evaluations : int
        Number of correlations and costs evaluated so far.

    Raises
    ------
    DecodeError
        If the model is unknown, or the covariance is not what the model needs.
    """

    def __init__(
        self,
        sketch: Sketch,
        model: str = "gaussian",
        *,
        box: Array | None = None,
        variance_floor: float = VARIANCE_FLOOR,
        covariance: Array | None = None,
    ) -> None:
        super().__init__(sketch, model, box, variance_floor, covariance)
        self.n_evaluations = 0
        features = sketch.feature_map

        # The moments are kept relative to the map's center: the phases of data far from the
        # origin, and their rounding, never appear.
        phase = (self.shift - features.center) @ features.frequencies
        psi = np.exp(1j * phase) * (sketch.moment_sum / sketch.total_weight)
        z = psi / np.sqrt(self.n_frequencies)
        # Weights of the features multiply the sketch, the atoms and the noise of each entry.
        feature_weights = features.feature_weights
        if feature_weights is None:
            feature_weights = np.ones(self.n_frequencies)
        self.feature_weights = feature_weights
        self.target = (feature_weights * z.real, feature_weights * z.imag)
        self.effective_count = sketch.effective_count
        self._point_amplitude = feature_weights / np.sqrt(self.n_frequencies)
        energy = float(self._point_amplitude @ self._point_amplitude)
        energy -= float(np.sum(self.target[0] ** 2) + np.sum(self.target[1] ** 2))
        self.noise_level = max(energy / self.effective_count, 0.0)
        # Features of frequencies near zero hardly vary; what rounding does to them does not average
        # out as noise does.
        self.rounding = self.effective_count * (np.finfo(features.dtype).eps / 4.0) ** 2
        self.unit = max(self.noise_level, _SMALLEST_UNIT)

        # The derivative of an atom by a parameter is the atom times a row of this, for a mean
        # times -i beside: 1, the frequencies, and -1/2 of what a shape parameter adds to w'Sw.
        shapes = -0.5 * self.family.spread @ self.omega**2
        self._factors = np.concatenate([np.ones((1, self.n_frequencies)), self.omega, shapes])
        self._even_factors = np.delete(self._factors, np.s_[1 : 1 + self.n_features], axis=0)
        log_envelope = self.family.log_envelope + np.log(feature_weights)
        log_envelope -= 0.5 * np.log(self.n_frequencies)
        self._envelope = log_envelope / np.log(2.0)
        self._amplitude = np.exp(log_envelope)

    # -- atoms ------------------------------------------------------------------------

    def _slices(self, n_atoms: int) -> Iterator[slice]:
        """Blocks of frequencies."""
        width = max(128, _BLOCK // max(n_atoms, 1))
        for start in range(0, self.n_frequencies, width):
            yield slice(start, min(start + width, self.n_frequencies))

    def _blocks(
        self, theta: Array, lift: Array | None = None
    ) -> Iterator[tuple[slice, Array, Array]]:
        """Blocks of frequencies with the real and imaginary part (K, B) of atoms there.

        The arrays are overwritten from one block to the next. Atoms are multiplied by
        ``2**lift``, shape (K,).
        """
        d, n_atoms = self.n_features, len(theta)
        turns = theta[:, :d] * (-0.5 / np.pi)
        shapes = theta[:, d:] / np.log(2.0)
        none = np.zeros(n_atoms) if lift is None else lift
        size = n_atoms * next(self._slices(n_atoms)).stop
        scratch = np.empty((2, size))
        for block in self._slices(n_atoms):
            shape = (n_atoms, block.stop - block.start)
            real, imag = (part[: shape[0] * shape[1]].reshape(shape) for part in scratch)
            np.matmul(turns, self.omega[:, block], out=imag)
            if self.n_shapes:
                np.matmul(shapes, self._factors[1 + d :, block], out=real)
                kernels.waves(real, imag, self._envelope[block], none)
            else:
                kernels.plain_waves(real, imag, self._amplitude[block])
            yield block, real, imag

    def points(self, x: Array) -> Array:
        """Sketches of points (n, n_features) as rows of real numbers (n, 2m), as :meth:`atoms`."""
        rows = np.empty((2, len(x), self.n_frequencies))
        np.matmul(x * (-0.5 / np.pi), self.omega, out=rows[1])
        kernels.plain_waves(rows[0], rows[1], self._point_amplitude)
        return np.concatenate(list(rows), axis=1)

    def atoms(self, theta: Array) -> Array:
        """Sketches of atoms as rows of real numbers (K, 2m): real parts, imaginary parts."""
        rows = np.empty((len(theta), 2, self.n_frequencies))
        for block, real, imag in self._blocks(theta):
            rows[:, 0, block] = real
            rows[:, 1, block] = imag
        return rows.reshape(len(theta), -1)

    def residual(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """Real and imaginary part (m,) of ``z - sum_k alpha_k a_k``."""
        rho_real, rho_imag = self.target[0].copy(), self.target[1].copy()
        for block, real, imag in self._blocks(theta):
            rho_real[block] -= weights @ real
            rho_imag[block] -= weights @ imag
        return rho_real, rho_imag

    # -- Step 1 -----------------------------------------------------------------------

    def correlation_gradients(
        self, theta: Array, residual: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Correlations ``Re <a / ||a||, r>`` of atoms with a residual, and their gradients.

        Parameters
        ----------
        theta : ndarray of shape (n, n_parameters)
        residual : tuple of two ndarrays of shape (n_frequencies,)
            Real and imaginary part of the residual.

        Returns
        -------
        values : ndarray of shape (n,)
            At most the norm of the residual.
        gradients : ndarray of shape (n, n_parameters)
        """
        d = self.n_features
        self.n_evaluations += len(theta)
        even, odd = np.zeros((2, len(theta), 1 + self.n_shapes)), np.zeros((len(theta), d))
        for block, real, imag in self._blocks(theta, self._lift(theta)):
            factors = self._even_factors[:, block].T
            power = np.empty_like(real)
            kernels.powers(real, imag, power)
            even[1] += power @ factors
            kernels.correlate(real, imag, residual[0][block], residual[1][block])
            even[0] += real @ factors
            odd -= imag @ self.omega[:, block].T
        energies = even[1, :, :1]
        norms = np.sqrt(energies)
        values = even[0, :, :1] / norms
        by_shape = even[0, :, 1:] / norms - values * even[1, :, 1:] / energies
        return values[:, 0], np.concatenate([odd / norms, by_shape], axis=1)

    def correlations(self, theta: Array, residual: tuple[Array, Array]) -> Array:
        """Correlations (n,) of several atoms (n, n_parameters) with a residual."""
        self.n_evaluations += len(theta)
        products, energies = np.zeros(len(theta)), np.zeros(len(theta))
        for block, real, imag in self._blocks(theta, self._lift(theta)):
            products += real @ residual[0][block] + imag @ residual[1][block]
            energies += np.einsum("ij,ij->i", real, real) + np.einsum("ij,ij->i", imag, imag)
        return products / np.sqrt(energies)

    def _lift(self, theta: Array) -> Array:
        """Powers of two (n,) that bring the largest amplitude of each atom to one.

        A correlation does not see a common factor of the atom, and very wide atoms would
        underflow to 0 / 0 without.
        """
        if not self.n_shapes:
            return np.zeros(len(theta))
        shapes = theta[:, self.n_features :] / np.log(2.0)
        largest = np.full(len(theta), -np.inf)
        for block in self._slices(len(theta)):
            exponents = shapes @ self._factors[1 + self.n_features :, block]
            exponents += self._envelope[block]
            np.maximum(largest, exponents.max(axis=1), out=largest)
        return -largest

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
        theta : ndarray of shape (K, n_parameters)

        Returns
        -------
        cost : float
        weight_gradient : ndarray of shape (K,)
        theta_gradient : ndarray of shape (K, n_parameters)
        """
        cost, right, _ = self._sums(weights, theta, None)
        n_atoms = len(theta)
        return cost, -2.0 * right[:n_atoms], -2.0 * right[n_atoms:].reshape(n_atoms, -1)

    def normal_equations(self, weights: Array, theta: Array) -> tuple[float, Array, Array]:
        """Normal equations of least squares at weights and atoms.

        Returns
        -------
        cost : float
            ``||r||^2`` of the residual ``r``.
        right : ndarray of shape (P,)
            ``J r``, with ``J`` of :meth:`jacobian`: minus half the gradient of the cost.
        gram : ndarray of shape (P, P)
            ``J J^T``: half the Gauss-Newton Hessian of the cost.
        """
        gram = GramSums(len(theta), self.n_features, self.n_shapes)
        cost, right, factors = self._sums(weights, theta, gram)
        n_atoms, p = len(theta), self.n_parameters
        rows = np.empty((n_atoms, 1 + p), dtype=np.int64)
        rows[:, 0] = np.arange(n_atoms)
        rows[:, 1:] = n_atoms + np.arange(n_atoms * p).reshape(n_atoms, p)
        return cost, right, gram.matrix(rows, factors)

    def curvatures(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """Diagonal of the Gram matrix of :meth:`normal_equations`, without the rest of it.

        Returns
        -------
        weight_curvature : ndarray of shape (K,)
        theta_curvature : ndarray of shape (K, n_parameters)
        """
        sums = np.zeros((len(theta), 1 + self.n_parameters))
        for block, real, imag in self._blocks(theta):
            power = np.empty_like(real)
            kernels.powers(real, imag, power)
            sums += power @ (self._factors[:, block] ** 2).T
        return sums[:, 0], weights[:, None] ** 2 * sums[:, 1:]

    def _sums(
        self, weights: Array, theta: Array, gram: GramSums | None
    ) -> tuple[float, Array, Array]:
        """Cost, ``J r`` and the factors (P,) that weights put on the rows of ``J``."""
        d, n_atoms = self.n_features, len(theta)
        self.n_evaluations += 1
        cost = 0.0
        even, odd = np.zeros((n_atoms, 1 + self.n_shapes)), np.zeros((n_atoms, d))
        for block, real, imag in self._blocks(theta):
            rho_real = self.target[0][block] - weights @ real
            rho_imag = self.target[1][block] - weights @ imag
            cost += float(rho_real @ rho_real + rho_imag @ rho_imag)
            if gram is not None:
                gram.add(real, imag, self._factors, block.start)
            kernels.correlate(real, imag, rho_real, rho_imag)
            even += real @ self._even_factors[:, block].T
            odd -= imag @ self.omega[:, block].T
        factors = np.concatenate([np.ones(n_atoms), np.repeat(weights, self.n_parameters)])
        by_theta = np.concatenate([odd, even[:, 1:]], axis=1)
        return cost, factors * np.concatenate([even[:, 0], by_theta.ravel()]), factors

    def jacobian(self, weights: Array, theta: Array) -> Array:
        """Derivative (P, 2m) of the model's sketch ``sum_k alpha_k a_k``, ``P = K (1 + p)``.

        Rows: the weights, then the parameters of each atom; columns: real parts, imaginary parts.
        """
        rows = np.empty((len(theta) * (1 + self.n_parameters), 2, self.n_frequencies))
        for block, part in self.jacobian_blocks(weights, theta):
            rows[:, :, block] = part
        return rows.reshape(len(rows), -1)

    def jacobian_blocks(self, weights: Array, theta: Array) -> Iterator[tuple[slice, Array]]:
        """The columns of :meth:`jacobian` block by block of frequencies, shape (P, 2, B)."""
        d = self.n_features
        for block, real, imag in self._blocks(theta):
            atoms = np.stack([real, imag], axis=1)
            by_theta = atoms[:, None] * self._factors[1:, None, block]
            turned = by_theta[:, :d].copy()
            by_theta[:, :d, 0], by_theta[:, :d, 1] = turned[:, :, 1], -turned[:, :, 0]  # times -i
            by_theta *= weights[:, None, None, None]
            yield block, np.concatenate([atoms, by_theta.reshape(-1, *atoms.shape[1:])])
