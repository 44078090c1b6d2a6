"""The sketch-matching objective: atoms, norms, correlation, cost and their gradients.

Everything that depends on *which* atom is fitted lives here and in :mod:`families`, behind
parameters that the decoders treat as opaque rows ``theta`` of shape (K, n_parameters), the mean
before the shape: another family of atoms is another row of a table, and another decoder is another
loop over the methods of this class.

Notation is that of Keriven et al. (2018): atoms ``a_k`` have the sketch of eq. (15), and a mixture
is fitted by minimising ``J = ||z - sum_k alpha_k a_k||^2`` (eq. 9, squared).
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from dask_sketch.decoders import atom_kernels
from dask_sketch.decoders.atoms import VARIANCE_FLOOR, Array, Atoms
from dask_sketch.decoders.normal_equations import GramSums
from dask_sketch.decoders.threads import SERIAL, Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dask_sketch.sketching.sketch import Sketch

_GRAM_BLOCK = 8192  # frequencies whose atoms are kept while their products are summed
# The noise level is the unit of the cost; a sketch of a single point has none.
_SMALLEST_UNIT = 1e-20


class Objective(Atoms):
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
        Smallest variance of a component, as a fraction of the distribution's mean component
        variance, or of the data's variance where that is less.
    covariance : ndarray, optional
        For ``model="known"``: variances (n_features,) or covariance matrix, in data units.
    threads : Threads
        What works on the blocks of frequencies; the calling thread by default. The bits of results
        do not depend on it.

    Attributes
    ----------
    n_features, n_frequencies, n_shapes, n_parameters, shift, scale, omega, family, lower, upper
        Those of :class:`~dask_sketch.decoders.atoms.Coordinates`.
    target : tuple of two ndarrays of shape (n_frequencies,)
        Real and imaginary part of the sketch in normalised coordinates, times the map's feature
        weights if it has them.
    feature_weights : ndarray of shape (n_frequencies,)
        Those of the map, or ones.
    noise_level : float
        Expected ``||z - A P||^2`` at the distribution ``P`` of the samples: ``(1 - ||z||^2) / n``,
        or with the map's feature weights ``w``, ``(mean(w^2) - ||w z||^2) / n``; of a private
        sketch, and the noise that was added.
    private_variance : float
        Of that noise, in the real and in the imaginary part of a feature's average.
    rounding : float
        Square of the rounding error of a feature's average, times the number of samples: what it
        adds to the variance of one feature.
    unit : float
        Cost that counts as one for the optimisers: the noise level, or what rounding leaves.
    effective_count : float
        Number of samples, or what it is worth when they are weighted.
    gram_dtype : dtype
        Precision of the products in Gram matrices, float64 by default. In float32 one takes half
        the time and has relative errors of 1e-6: enough to say how far a step goes.
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
        threads: Threads = SERIAL,
    ) -> None:
        super().__init__(sketch, model, box, variance_floor, covariance, threads)
        self.n_evaluations = 0
        self.gram_dtype: npt.DTypeLike = np.float64
        features = sketch.feature_map

        # The moments are kept relative to the map's center: the phases of data far from the
        # origin, and their rounding, never appear.
        phase = (self.shift - features.center) @ features.frequencies
        psi = np.exp(1j * phase) * (sketch.moment_sum / sketch.total_weight)
        z = psi / np.sqrt(self.n_frequencies)
        w = self.feature_weights
        self.target = (w * z.real, w * z.imag)
        self.effective_count = sketch.effective_count
        self.private_variance = sketch.private_variance
        self._set_noise_level()
        # Features of frequencies near zero hardly vary; what rounding does to them does not average
        # out as noise does.
        self.rounding = self.effective_count * (np.finfo(features.dtype).eps / 4.0) ** 2

    def _set_noise_level(self) -> None:
        energy = float(self._point_amplitude @ self._point_amplitude)
        added = 2.0 * self.private_variance * energy
        energy -= float(np.sum(self.target[0] ** 2) + np.sum(self.target[1] ** 2)) - added
        self.noise_level = max(energy / self.effective_count, 0.0) + added
        self.unit = max(self.noise_level, _SMALLEST_UNIT)

    def thinned(self, n_frequencies: int) -> Self:
        """The objective of a part of the frequencies, which is that of a shorter sketch.

        They are chosen at random, whatever the distribution has put into their order, and always
        the same; a larger part holds the smaller ones.

        Parameters
        ----------
        n_frequencies : int
            At most those at hand.

        Returns
        -------
        objective : Objective
            Of the same bounds and coordinates, with no evaluation counted yet.
        """
        rng = np.random.default_rng(0)
        chosen = np.sort(rng.permutation(self.n_frequencies)[:n_frequencies])
        fewer = self._thinned(chosen)
        stretch = np.sqrt(self.n_frequencies / len(chosen))
        fewer.target = (stretch * self.target[0][chosen], stretch * self.target[1][chosen])
        fewer.n_evaluations = 0
        fewer._set_noise_level()
        return fewer

    def facing(self, target: tuple[Array, Array]) -> Self:
        """The same objective for another target, real and imaginary part (n_frequencies,)."""
        other = copy(self)
        other.target = target
        return other

    def residual(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """Real and imaginary part (m,) of ``z - sum_k alpha_k a_k``."""
        rho_real, rho_imag = self.target[0].copy(), self.target[1].copy()

        def subtract(block: slice, real: Array, imag: Array) -> None:
            rho_real[block] -= weights @ real
            rho_imag[block] -= weights @ imag

        self._each(subtract, theta)
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
        self.n_evaluations += len(theta)

        def sums(block: slice, real: Array, imag: Array) -> tuple[Array, Array, Array]:
            factors = self._even_factors[:, block].T
            power = np.empty_like(real)
            atom_kernels.powers(real, imag, power)
            atom_kernels.correlate(real, imag, residual[0][block], residual[1][block])
            return real @ factors, power @ factors, imag @ self.omega[:, block].T

        parts = self._each(sums, theta, self._lift(theta))
        return normalised(*_totals(parts))

    def correlations(self, theta: Array, residual: tuple[Array, Array]) -> Array:
        """Correlations (n,) of several atoms (n, n_parameters) with a residual."""
        self.n_evaluations += len(theta)

        def sums(block: slice, real: Array, imag: Array) -> tuple[Array, Array]:
            squares = np.einsum("ij,ij->i", real, real) + np.einsum("ij,ij->i", imag, imag)
            return real @ residual[0][block] + imag @ residual[1][block], squares

        products, energies = _totals(self._each(sums, theta, self._lift(theta)))
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
        self.n_evaluations += 1

        def sums(block: slice, real: Array, imag: Array) -> tuple[Array, Array, Array]:
            rho_real = self.target[0][block] - weights @ real
            rho_imag = self.target[1][block] - weights @ imag
            atom_kernels.correlate(real, imag, rho_real, rho_imag)
            return (
                np.array(rho_real @ rho_real + rho_imag @ rho_imag),
                real @ self._even_factors[:, block].T,
                imag @ self.omega[:, block].T,
            )

        cost, even, odd = _totals(self._each(sums, theta))
        by_theta = np.concatenate([odd, -even[:, 1:]], axis=1)
        by_theta *= 2.0 * weights[:, None]
        return float(cost), -2.0 * even[:, 0], by_theta

    def gram(self, weights: Array, theta: Array) -> Array:
        """Gram matrix ``J J^T`` of the rows of :meth:`jacobian`, shape (P, P).

        It is half the Gauss-Newton Hessian of the cost.
        """
        n_atoms, p = len(theta), self.n_parameters
        rows = np.empty((n_atoms, 1 + p), dtype=np.int64)
        rows[:, 0] = np.arange(n_atoms)
        rows[:, 1:] = n_atoms + np.arange(n_atoms * p).reshape(n_atoms, p)
        multipliers = np.concatenate([np.ones(n_atoms), np.repeat(weights, p)])
        return self._gram_sums(theta).matrix(rows, multipliers)

    def _gram_sums(self, theta: Array) -> GramSums:
        sums = GramSums(len(theta), self.n_features, self.n_shapes, self.gram_dtype)
        for start in range(0, self.n_frequencies, _GRAM_BLOCK):
            span = range(start, min(start + _GRAM_BLOCK, self.n_frequencies))
            real, imag = self._atoms_at(theta, span, self.gram_dtype)
            factors = self._factors[:, span.start : span.stop].astype(self.gram_dtype, order="C")
            sums.add(real, imag, factors, self.threads)
        return sums

    def curvatures(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """Diagonal of the Gram matrix of :meth:`gram`, without the rest of it.

        Returns
        -------
        weight_curvature : ndarray of shape (K,)
        theta_curvature : ndarray of shape (K, n_parameters)
        """

        def sums(block: slice, real: Array, imag: Array) -> Array:
            power = np.empty_like(real)
            atom_kernels.powers(real, imag, power)
            return power @ (self._factors[:, block] ** 2).T

        total = np.sum(self._each(sums, theta), axis=0)
        return total[:, 0], weights[:, None] ** 2 * total[:, 1:]

    # -- equations of parameters ------------------------------------------------------

    def factored(self, matrix: Array) -> Callable[[Array], Array]:
        """What solves the equations of a positive definite matrix (n, n), for many right sides.

        Raises
        ------
        numpy.linalg.LinAlgError
            If the matrix is not positive definite.
        """
        factor = cho_factor(matrix, lower=True, check_finite=False)
        return lambda right: np.asarray(cho_solve(factor, right, check_finite=False))

    def inverse(self, matrix: Array) -> Array:
        """Inverse of a matrix (n, n)."""
        return np.asarray(np.linalg.inv(matrix))


def _totals(parts: Sequence[tuple[Array, ...]]) -> list[Array]:
    """Sums over blocks of each thing that they return, always in the same order."""
    return [np.sum(part, axis=0) for part in zip(*parts, strict=True)]


def normalised(products: Array, powers: Array, odd: Array) -> tuple[Array, Array]:
    """Correlations of normalised atoms and their gradients, from sums over the frequencies.

    Parameters
    ----------
    products, powers
        Of the residual, and of the atoms' energy, with the even factors, shape (n, 1 + n_shapes).
    odd
        Of the residual with the frequencies, shape (n, n_features).
    """
    energies = powers[:, :1]
    norms = np.sqrt(energies)
    values = products[:, :1] / norms
    by_shape = products[:, 1:] / norms - values * powers[:, 1:] / energies
    return values[:, 0], np.concatenate([-odd / norms, by_shape], axis=1)
