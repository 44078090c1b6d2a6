"""The sketch-matching objective: correlations and cost of components, and their derivatives.

A mixture is fitted by minimising ``J = ||z - sum_k alpha_k a_k||^2`` (eq. 9 of Keriven et al. 2018,
squared) over the weights ``alpha`` and the parameters ``theta`` of atoms ``a`` (eq. 15). Decoders
treat parameters as opaque rows of shape (K, n_parameters): a new family of atoms is a case of
:mod:`~dask_sketch.decoders.objectives.atoms`, and a new decoder calls the methods of
:class:`Objective`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from dask_sketch.decoders.objectives import atom_kernels
from dask_sketch.decoders.objectives.atoms import VARIANCE_FLOOR, Array, ParameterSpace
from dask_sketch.decoders.objectives.normal_equations import GramSums
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.choices import MAX_SOLVABLE
from dask_sketch.validation.threads import SERIAL, Threads

Complex = tuple[Array, Array]  # real and imaginary parts, shape (n_frequencies,) each
Part = TypeVar("Part")

_GRAM_BLOCK = 8192  # frequencies whose atoms are held while their products are summed
# The noise level is the unit of the cost; it is zero for a sketch of a single point.
_SMALLEST_UNIT = 1e-20
_MIN_FRACTION = 1e-9  # smallest fraction of the rows that observe a frequency


class Objective:
    """Match a sketch with atoms of one family.

    Parameters
    ----------
    sketch : Sketch
        Sketch of at least one sample.
    model : str
        Family of the atoms, one of ``atoms.FAMILIES``.
    box : ndarray of shape (2, n_features), optional
        Lowest and highest value of each mean, in data units; no bounds by default.
    variance_floor : float
        Smallest variance of a component, as a fraction of the mean component variance of the
        frequency distribution, or of the variance of the data if that is less.
    covariance : array-like, optional
        Variances (n_features,) or covariance matrix of the components, in data units, for
        ``model="known"``.
    threads : Threads
        Threads that work on the blocks of frequencies; the calling thread by default. The bits of
        results do not depend on them.

    Attributes
    ----------
    space : ParameterSpace
        Coordinates, bounds and family of the parameters.
    n_frequencies : int
        Number of frequencies.
    omega : ndarray of shape (n_features, n_frequencies)
        Frequencies in normalised coordinates.
    target : tuple of two ndarrays of shape (n_frequencies,)
        Real and imaginary part of the sketch in normalised coordinates, times the feature weights
        of the map if it has any.
    feature_weights : ndarray of shape (n_frequencies,)
        Feature weights of the map, or ones; times the roots of the fractions of the rows that
        observe the frequencies, so that a frequency of fewer rows has less weight.
    fractions : ndarray of shape (n_frequencies,)
        Fractions of the rows that observe each frequency.
    chosen : ndarray of shape (n_frequencies,)
        Numbers of the frequencies in the feature map.
    patterns : ObservedPatterns, optional
        Model of the values that are observed together, if some are missing.
    noise_level : float
        Expected ``||z - A P||^2`` at the distribution ``P`` of the samples: ``(1 - ||z||^2) / n``,
        or ``(mean(w^2) - ||w z||^2) / n`` with feature weights ``w``; of a private sketch, plus the
        noise that was added. Each term is divided by the fraction of the rows that observe it.
    added_variance : float
        Variance of the added noise in the real and in the imaginary part of a mean feature.
    rounding : float
        Square of the rounding error of a mean feature, times the number of samples: its
        contribution to the variance of one feature.
    unit : float
        Unit of cost for optimisers: the noise level, or a rounding error if that is larger.
    effective_count : float
        Number of samples; Kish's effective number if they are weighted.
    sample : RowSample, optional
        Random rows of the sketch, if their weights differ.
    gram_dtype : dtype
        Precision of the products in Gram matrices, float64 by default. In float32 a Gram matrix
        takes half the time and has relative errors of 1e-6, enough for the length of a step.
    max_solvable : int
        Number of parameters up to which normal equations are built and solved. More are too
        expensive: one step with 12,800 parameters (512 components of 12 features) takes 1.3 GB
        and a minute.
    block_size : int
        Numbers in a block of atoms: real and imaginary parts (512 KiB) stay in the second-level
        cache.
    n_evaluations : int
        Number of correlations and costs evaluated so far.

    Raises
    ------
    DecodeError
        If the model is unknown, or the covariance is not what the model needs.
    """

    block_size = 32_768

    def __init__(
        self,
        sketch: Sketch,
        model: str = "gaussian",
        *,
        box: Array | None = None,
        variance_floor: float = VARIANCE_FLOOR,
        covariance: npt.ArrayLike | None = None,
        threads: Threads = SERIAL,
    ) -> None:
        feature_map = sketch.feature_map
        self.space = ParameterSpace(sketch, model, box, variance_floor, covariance)
        self.threads = threads
        self.gram_dtype: npt.DTypeLike = np.float64
        self.max_solvable = MAX_SOLVABLE
        self.n_evaluations = 0
        self.n_frequencies = m = feature_map.n_frequencies
        self.omega = feature_map.frequencies * self.space.scale[:, None]

        # Feature weights multiply the sketch, the atoms and the noise of each entry.
        weights = feature_map.feature_weights
        self.feature_weights = np.ones(m) if weights is None else weights
        self.chosen, self.patterns = np.arange(m), sketch.observed.patterns
        self.fractions = np.maximum(sketch.observed.fractions, _MIN_FRACTION)
        if self.patterns is not None:
            self.feature_weights = self.feature_weights * np.sqrt(self.fractions)
        self._point_amplitude = self.feature_weights / np.sqrt(m)
        # The derivative of an atom by a parameter is the atom times a row of these factors, for a
        # mean also times -i: 1, the frequencies, and -1/2 times the part of w'Sw of each shape
        # parameter.
        shapes = self.space.family.factors(self.omega)
        self._factors = np.concatenate([np.ones((1, m)), self.omega, shapes])
        means = np.s_[1 : 1 + self.space.n_features]
        self._even_factors = np.delete(self._factors, means, axis=0)
        log_envelope = self.space.family.log_envelope + np.log(self.feature_weights)
        log_envelope -= 0.5 * np.log(m)
        self._envelope = log_envelope / np.log(2.0)
        self._amplitude = np.exp(log_envelope)

        # Moments are stored relative to the center of the map, so that the phases of data far from
        # the origin, and their rounding, never appear.
        phase = (self.space.shift - feature_map.center) @ feature_map.frequencies
        psi = np.exp(1j * phase) * sketch.centered_characteristic
        z = psi / np.sqrt(m)
        self.target = (self.feature_weights * z.real, self.feature_weights * z.imag)
        self.effective_count = sketch.effective_count
        weighted = sketch.sample is not None and sketch.sample.is_weighted
        self.sample = sketch.sample if weighted else None
        self.added_variance = sketch.added_variance
        self._set_noise_level()
        # Features of frequencies near zero hardly vary, and their rounding errors do not average
        # out as noise does.
        self.rounding = self.effective_count * (np.finfo(feature_map.dtype).eps / 4.0) ** 2

    def _set_noise_level(self) -> None:
        energies = self._point_amplitude**2 / self.fractions
        energy = float(np.sum(energies))
        added = 2.0 * self.added_variance * energy
        squares = self.target[0] ** 2 + self.target[1] ** 2
        energy -= float(np.sum(squares / self.fractions)) - added
        # the added variance of entries is weighted by their fractions
        if self.patterns is not None:
            added = 2.0 * self.added_variance * float(np.sum(self._point_amplitude**2))
        self.noise_level = max(energy / self.effective_count, 0.0) + added
        self.unit = max(self.noise_level, _SMALLEST_UNIT)

    def subsample(self, n_frequencies: int) -> Self:
        """Objective of a random subset of the frequencies, as for a shorter sketch.

        The subset does not depend on the order of the frequencies in the map, is the same in each
        call, and contains every smaller subset. Norms of atoms are kept.

        Parameters
        ----------
        n_frequencies : int
            Number of frequencies, at most ``self.n_frequencies``.

        Returns
        -------
        objective : Objective
            Objective with the same parameter space, and no evaluation counted yet.
        """
        rng = np.random.default_rng(0)
        return self.select(np.sort(rng.permutation(self.n_frequencies)[:n_frequencies]))

    def select(self, chosen: npt.NDArray[np.intp]) -> Self:
        """Objective of some of the frequencies, as :meth:`subsample` has it.

        Parameters
        ----------
        chosen : ndarray of int
            Positions of the frequencies, at least one.
        """
        fewer = copy(self)
        fewer.n_frequencies = len(chosen)
        stretch = np.sqrt(self.n_frequencies / len(chosen))
        fewer.omega = self.omega.take(chosen, axis=1)
        fewer.feature_weights = self.feature_weights[chosen]
        fewer.chosen, fewer.fractions = self.chosen[chosen], self.fractions[chosen]
        fewer._point_amplitude = stretch * self._point_amplitude[chosen]
        fewer._factors = self._factors.take(chosen, axis=1)
        fewer._even_factors = self._even_factors.take(chosen, axis=1)
        fewer._envelope = self._envelope[chosen] + np.log2(stretch)
        fewer._amplitude = stretch * self._amplitude[chosen]
        fewer.target = (stretch * self.target[0][chosen], stretch * self.target[1][chosen])
        fewer.n_evaluations = 0
        fewer._set_noise_level()
        return fewer

    def restrict(self, features: npt.NDArray[np.intp]) -> Self:
        """Objective of atoms in some of the features, and of the frequencies of these alone.

        Parameters
        ----------
        features : ndarray of int
            Numbers of the features. Variances must be known, and some frequency must use no other
            feature.
        """
        others = np.delete(self.omega, features, axis=0)
        fewer = self.select(np.flatnonzero(~others.any(axis=0)))
        fewer.space = self.space.restrict(features)
        fewer.omega = fewer.omega.take(features, axis=0)
        fewer._factors = np.concatenate([fewer._even_factors, fewer.omega])
        return fewer

    def with_target(self, target: Complex) -> Self:
        """The same objective with another target, real and imaginary part (n_frequencies,)."""
        other = copy(self)
        other.target = target
        return other

    def is_solvable(self, n_components: int) -> bool:
        """Whether the normal equations of this number of components are affordable."""
        return n_components * (1 + self.space.n_parameters) <= self.max_solvable

    # -- atoms, by blocks of frequencies ----------------------------------------------

    def _blocks(self, n_atoms: int, span: range | None = None) -> list[slice]:
        """Blocks of all frequencies, or of a range of them."""
        span = range(self.n_frequencies) if span is None else span
        width = max(128, self.block_size // max(n_atoms, 1))
        return [
            slice(start, min(start + width, span.stop))
            for start in range(span.start, span.stop, width)
        ]

    def _evaluator(self, theta: Array, lift: Array | None = None) -> Callable[[slice], Complex]:
        """Function of a block that returns real and imaginary parts (K, B) of the atoms there.

        The arrays are overwritten from one block to the next. Atoms are multiplied by
        ``2**lift``, shape (K,).
        """
        d, n_atoms = self.space.n_features, len(theta)
        cycles = theta[:, :d] * (-0.5 / np.pi)
        shapes = theta[:, d:] / np.log(2.0)
        exponents = np.zeros(n_atoms) if lift is None else lift
        scratch = np.empty((2, n_atoms * self._blocks(n_atoms)[0].stop))

        def evaluate(block: slice) -> Complex:
            shape = (n_atoms, block.stop - block.start)
            real, imag = (part[: shape[0] * shape[1]].reshape(shape) for part in scratch)
            np.matmul(cycles, self.omega[:, block], out=imag)
            if self.space.n_shapes:
                np.matmul(shapes, self._factors[1 + d :, block], out=real)
                atom_kernels.evaluate_atoms(real, imag, self._envelope[block], exponents)
            else:
                atom_kernels.evaluate_points(real, imag, self._amplitude[block])
            return real, imag

        return evaluate

    def _for_blocks(
        self,
        function: Callable[[slice, Array, Array], Part],
        theta: Array,
        lift: Array | None = None,
        span: range | None = None,
    ) -> list[Part]:
        """Results of ``function(block, real, imag)`` for the blocks of frequencies, in order."""

        def prepare() -> Callable[[slice], Part]:
            evaluate = self._evaluator(theta, lift)
            return lambda block: function(block, *evaluate(block))

        return self.threads.each(prepare, self._blocks(len(theta), span))

    def points(self, x: Array) -> Array:
        """Sketches of points (n, n_features), in the rows (n, 2m) of :meth:`atoms`."""
        rows = np.empty((2, len(x), self.n_frequencies))
        np.matmul(x * (-0.5 / np.pi), self.omega, out=rows[1])
        atom_kernels.evaluate_points(rows[0], rows[1], self._point_amplitude)
        return np.concatenate(list(rows), axis=1)

    def atoms(self, theta: Array) -> Array:
        """Sketches of atoms as rows of real numbers (K, 2m): real parts, then imaginary parts."""
        everywhere = range(self.n_frequencies)
        return np.concatenate(list(self._atoms_in(theta, everywhere, np.float64)), axis=1)

    def _atoms_in(self, theta: Array, span: range, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Real and imaginary parts of atoms in a range of frequencies, shape (2, K, len(span))."""
        values = np.empty((2, len(theta), len(span)), dtype)

        def write(block: slice, real: Array, imag: Array) -> None:
            here = slice(block.start - span.start, block.stop - span.start)
            values[0, :, here] = real
            values[1, :, here] = imag

        self._for_blocks(write, theta, span=span)
        return values

    def jacobian(self, weights: Array, theta: Array) -> Array:
        """Derivative (P, 2m) of the sketch of the model ``sum_k alpha_k a_k``, ``P = K (1 + p)``.

        Rows: the weights, then the parameters of each atom; columns: real parts, imaginary parts.
        """
        rows = np.empty((len(theta) * (1 + self.space.n_parameters), 2, self.n_frequencies))
        for block, part in self.jacobian_blocks(weights, theta):
            rows[:, :, block] = part
        return rows.reshape(len(rows), -1)

    def jacobian_blocks(self, weights: Array, theta: Array) -> Iterator[tuple[slice, Array]]:
        """Blocks of the columns of :meth:`jacobian`, shape (P, 2, B)."""
        d = self.space.n_features
        evaluate = self._evaluator(theta)
        for block in self._blocks(len(theta)):
            atoms = np.stack(evaluate(block), axis=1)
            by_theta = atoms[:, None] * self._factors[1:, None, block]
            by_mean = by_theta[:, :d].copy()
            by_theta[:, :d, 0], by_theta[:, :d, 1] = by_mean[:, :, 1], -by_mean[:, :, 0]  # * -i
            by_theta *= weights[:, None, None, None]
            yield block, np.concatenate([atoms, by_theta.reshape(-1, *atoms.shape[1:])])

    # -- Step 1: correlations ---------------------------------------------------------

    def residual(self, weights: Array, theta: Array) -> Complex:
        """Real and imaginary part (m,) of ``z - sum_k alpha_k a_k``."""
        rho_real, rho_imag = self.target[0].copy(), self.target[1].copy()

        def subtract(block: slice, real: Array, imag: Array) -> None:
            rho_real[block] -= weights @ real
            rho_imag[block] -= weights @ imag

        self._for_blocks(subtract, theta)
        return rho_real, rho_imag

    def correlation_gradients(self, theta: Array, residual: Complex) -> tuple[Array, Array]:
        """Correlations ``Re <a / ||a||, r>`` of atoms with a residual, and their gradients.

        Parameters
        ----------
        theta : ndarray of shape (n, n_parameters)
            Atoms.
        residual : tuple of two ndarrays of shape (n_frequencies,)
            Real and imaginary part of the residual.

        Returns
        -------
        values : ndarray of shape (n,)
            Correlations, at most the norm of the residual.
        gradients : ndarray of shape (n, n_parameters)
            Derivatives by the parameters.
        """
        self.n_evaluations += len(theta)

        def sums(block: slice, real: Array, imag: Array) -> tuple[Array, Array, Array]:
            factors = self._even_factors[:, block].T
            power = np.empty_like(real)
            atom_kernels.powers(real, imag, power)
            atom_kernels.correlate(real, imag, residual[0][block], residual[1][block])
            return real @ factors, power @ factors, imag @ self.omega[:, block].T

        parts = self._for_blocks(sums, theta, self._lift(theta))
        return normalised(*_totals(parts))

    def correlations(self, theta: Array, residual: Complex) -> Array:
        """Correlations (n,) of several atoms (n, n_parameters) with a residual."""
        self.n_evaluations += len(theta)

        def sums(block: slice, real: Array, imag: Array) -> tuple[Array, Array]:
            squares = np.einsum("ij,ij->i", real, real) + np.einsum("ij,ij->i", imag, imag)
            return real @ residual[0][block] + imag @ residual[1][block], squares

        products, energies = _totals(self._for_blocks(sums, theta, self._lift(theta)))
        return products / np.sqrt(energies)

    def _lift(self, theta: Array) -> Array:
        """Exponents of base two (n,) that bring the largest amplitude of each atom to one.

        Correlations do not depend on a factor of the atom, and for very wide atoms they would
        otherwise underflow to 0 / 0.
        """
        if not self.space.n_shapes:
            return np.zeros(len(theta))
        shapes = theta[:, self.space.n_features :] / np.log(2.0)
        largest = np.full(len(theta), -np.inf)
        for block in self._blocks(len(theta)):
            exponents = shapes @ self._factors[1 + self.space.n_features :, block]
            exponents += self._envelope[block]
            np.maximum(largest, exponents.max(axis=1), out=largest)
        return -largest

    # -- Steps 3 to 5: cost -----------------------------------------------------------

    def cost(self, weights: Array, theta: Array) -> float:
        """Cost ``||z - sum_k alpha_k a_k||^2``."""
        real, imag = self.residual(weights, theta)
        return float(real @ real + imag @ imag)

    def cost_gradient(self, weights: Array, theta: Array) -> tuple[float, Array, Array]:
        """Cost ``||z - sum_k alpha_k a_k||^2`` and its gradient.

        Parameters
        ----------
        weights : ndarray of shape (K,)
            Weights of the atoms.
        theta : ndarray of shape (K, n_parameters)
            Atoms.

        Returns
        -------
        cost : float
            Cost.
        weight_gradient : ndarray of shape (K,)
            Derivatives by the weights.
        theta_gradient : ndarray of shape (K, n_parameters)
            Derivatives by the parameters.
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

        cost, even, odd = _totals(self._for_blocks(sums, theta))
        by_theta = np.concatenate([odd, -even[:, 1:]], axis=1)
        by_theta *= 2.0 * weights[:, None]
        return float(cost), -2.0 * even[:, 0], by_theta

    # -- normal equations -------------------------------------------------------------

    def gram(self, weights: Array, theta: Array) -> Array:
        """Gram matrix ``J J^T`` of the rows of :meth:`jacobian`, shape (P, P).

        It is half the Gauss-Newton Hessian of the cost.
        """
        sums = GramSums(len(theta), self.space.n_features, self.space.n_shapes, self.gram_dtype)
        for start in range(0, self.n_frequencies, _GRAM_BLOCK):
            span = range(start, min(start + _GRAM_BLOCK, self.n_frequencies))
            real, imag = self._atoms_in(theta, span, self.gram_dtype)
            factors = self._factors[:, span.start : span.stop].astype(self.gram_dtype, order="C")
            sums.add(real, imag, factors, self.threads)
        return sums.matrix(*self._gram_rows(weights))

    def gram_work(self, n_components: int) -> float:
        """Multiplications for a Gram matrix of ``n_components`` atoms."""
        n_factors = 1 + self.space.n_parameters
        n_products = 0.25 * n_components * (n_components + 1) * n_factors * (n_factors + 1)
        return n_products * self.n_frequencies

    def _gram_rows(self, weights: Array) -> tuple[npt.NDArray[np.int64], Array]:
        """Rows (K, 1 + p) of the derivatives of each atom in a Gram matrix, and their factors."""
        n_atoms, p = len(weights), self.space.n_parameters
        rows = np.empty((n_atoms, 1 + p), dtype=np.int64)
        rows[:, 0] = np.arange(n_atoms)
        rows[:, 1:] = n_atoms + np.arange(n_atoms * p).reshape(n_atoms, p)
        return rows, np.concatenate([np.ones(n_atoms), np.repeat(weights, p)])

    def curvatures(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """Diagonal of :meth:`gram` without the rest of it.

        Returns
        -------
        weight_curvature : ndarray of shape (K,)
            Entries of the weights.
        theta_curvature : ndarray of shape (K, n_parameters)
            Entries of the parameters.
        """

        def sums(block: slice, real: Array, imag: Array) -> Array:
            power = np.empty_like(real)
            atom_kernels.powers(real, imag, power)
            return power @ (self._factors[:, block] ** 2).T

        total = np.sum(self._for_blocks(sums, theta), axis=0)
        return total[:, 0], weights[:, None] ** 2 * total[:, 1:]

    def factorise(self, matrix: Array) -> Callable[[Array], Array]:
        """Solver of the equations of a positive definite matrix (n, n), for many right sides.

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
    """Sums over blocks of each entry of their results, always in the same order."""
    return [np.sum(part, axis=0) for part in zip(*parts, strict=True)]


def normalised(products: Array, powers: Array, odd: Array) -> tuple[Array, Array]:
    """Correlations of normalised atoms and their gradients, from sums over the frequencies.

    Parameters
    ----------
    products
        Sums (n, 1 + n_shapes) of ``Re conj(a) r`` times the even factors.
    powers
        Sums (n, 1 + n_shapes) of ``|a|^2`` times the even factors.
    odd
        Sums (n, n_features) of ``Im conj(a) r`` times the frequencies.
    """
    energies = powers[:, :1]
    norms = np.sqrt(energies)
    values = products[:, :1] / norms
    by_shape = products[:, 1:] / norms - values * powers[:, 1:] / energies
    return values[:, 0], np.concatenate([-odd / norms, by_shape], axis=1)
