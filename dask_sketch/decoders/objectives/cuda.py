"""Objective on the GPU, with all atoms at large blocks of frequencies in float64.

The formulas of :mod:`dask_sketch.decoders.objectives.objective`, written for an array namespace:
with NumPy in place of CuPy they run on the processor. Parameters come from the host and sums return
to it; arrays with the length of the sketch stay on the GPU, which solves the normal equations too.

The GPU is faster if ``n_components * n_frequencies`` is large: a call costs about twenty launches.
Gram matrices are in float64 for any ``gram_dtype``, since matrix products are as fast in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.normal_equations import GramSums
from dask_sketch.decoders.objectives.objective import Complex, Objective, normalised
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.device import cupy


class DeviceObjective(Objective):
    """Objective whose sums over frequencies are computed on the current GPU.

    Parameters
    ----------
    sketch, model, options
        Arguments of :class:`~dask_sketch.decoders.objectives.objective.Objective`.
    xp
        Array namespace; CuPy by default.

    Attributes
    ----------
    device_block_size
        Numbers in an array of a block of frequencies: 64 MiB.

    Raises
    ------
    DeviceError
        If there is no GPU, or no CuPy.
    """

    device_block_size = 2**23

    def __init__(
        self,
        sketch: Sketch,
        model: str = "gaussian",
        *,
        xp: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(sketch, model, **options)
        self._xp = cupy() if xp is None else xp
        self._send()

    def _send(self) -> None:
        """Copy the arrays that all calls share to the device."""
        asarray = self._xp.asarray
        self._at_omega = asarray(self.omega)
        self._at_factors = asarray(self._factors)
        self._at_even_factors = asarray(self._even_factors)
        self._at_envelope = asarray(self._envelope * np.log(2.0))
        self._at_target = tuple(map(asarray, self.target))
        self._residual: tuple[Any, Any] = (None, None)  # host and device

    def select(self, chosen: npt.NDArray[np.intp]) -> Self:
        """As in the base class."""
        fewer = super().select(chosen)
        fewer._send()
        return fewer

    def restrict(self, features: npt.NDArray[np.intp]) -> Self:
        """As in the base class."""
        fewer = super().restrict(features)
        fewer._send()
        return fewer

    def with_target(self, target: Complex) -> Self:
        """As in the base class."""
        other = super().with_target(target)
        other._at_target = tuple(map(self._xp.asarray, target))
        return other

    # -- blocks of frequencies ------------------------------------------------------------

    def _spans(self, n_rows: int) -> Iterator[slice]:
        width = max(self.device_block_size // max(n_rows, 1), 64)
        for start in range(0, self.n_frequencies, width):
            yield slice(start, min(start + width, self.n_frequencies))

    def _sum(
        self,
        theta: Array,
        step: Callable[[slice, Any, Any], tuple[Any, ...]],
        lift: Any = None,
    ) -> list[Array]:
        """Sums over blocks of the results of ``step(block, real, imag)``, on the host."""
        device_theta = self._xp.asarray(theta)
        parts = [
            step(block, *self._atoms_on_device(device_theta, block, lift))
            for block in self._spans(len(theta))
        ]
        return self._receive(*(sum(part[1:], part[0]) for part in zip(*parts, strict=True)))

    def _exponents(self, theta: Any, block: slice) -> Any:
        """Logarithms of the amplitudes of atoms, shape (K, B), or (B,) if they have no shape."""
        if not self.space.n_shapes:
            return self._at_envelope[block]
        d = self.space.n_features
        return theta[:, d:] @ self._at_factors[1 + d :, block] + self._at_envelope[block]

    def _atoms_on_device(self, theta: Any, block: slice, lift: Any) -> tuple[Any, Any]:
        """Real and imaginary part (K, B) of atoms, multiplied by ``exp(lift)``, shape (K, 1)."""
        exponents = self._exponents(theta, block)
        amplitudes = self._xp.exp(exponents if lift is None else exponents + lift)
        phases = theta[:, : self.space.n_features] @ self._at_omega[:, block]
        return amplitudes * self._xp.cos(phases), -amplitudes * self._xp.sin(phases)

    def _lift_on_device(self, theta: Array) -> Any:
        """Exponents that bring the largest amplitude of each atom to one, as in the base class."""
        if not self.space.n_shapes:
            return None
        device_theta = self._xp.asarray(theta)
        largest = [
            self._exponents(device_theta, block).max(axis=1, keepdims=True)
            for block in self._spans(len(theta))
        ]
        return -self._xp.concatenate(largest, axis=1).max(axis=1, keepdims=True)

    def _receive(self, *arrays: Any) -> list[Array]:
        """Arrays of the device copied to the host in one transfer."""
        flat = self._xp.concatenate([array.reshape(-1) for array in arrays])
        host = np.asarray(flat.get() if hasattr(flat, "get") else flat)
        ends = np.cumsum([array.size for array in arrays])[:-1]
        return [
            part.reshape(array.shape)
            for part, array in zip(np.split(host, ends), arrays, strict=True)
        ]

    def _sent(self, residual: Complex) -> tuple[Any, Any]:
        """Residual on the device; optimisers pass the same one many times."""
        if self._residual[0] is not residual:
            self._residual = residual, tuple(map(self._xp.asarray, residual))
        return self._residual[1]

    # -- methods of the objective ---------------------------------------------------------

    def residual(self, weights: Array, theta: Array) -> Complex:
        """As in the base class."""
        w, device_theta = self._xp.asarray(weights), self._xp.asarray(theta)
        parts: list[list[Any]] = [[], []]
        for block in self._spans(len(theta)):
            atoms = self._atoms_on_device(device_theta, block, None)
            for part, target, atom in zip(parts, self._at_target, atoms, strict=True):
                part.append(target[block] - w @ atom)
        real, imag = self._receive(*map(self._xp.concatenate, parts))
        return real, imag

    def correlation_gradients(self, theta: Array, residual: Complex) -> tuple[Array, Array]:
        """As in the base class."""
        self.n_evaluations += len(theta)
        rho = self._sent(residual)

        def step(block: slice, real: Any, imag: Any) -> tuple[Any, ...]:
            factors = self._at_even_factors[:, block].T
            even, odd = _products(real, imag, rho[0][block], rho[1][block])
            power = real * real + imag * imag
            return even @ factors, power @ factors, odd @ self._at_omega[:, block].T

        return normalised(*self._sum(theta, step, self._lift_on_device(theta)))

    def correlations(self, theta: Array, residual: Complex) -> Array:
        """As in the base class."""
        self.n_evaluations += len(theta)
        rho = self._sent(residual)

        def step(block: slice, real: Any, imag: Any) -> tuple[Any, ...]:
            energies = (real * real + imag * imag).sum(axis=1)
            return real @ rho[0][block] + imag @ rho[1][block], energies

        products, energies = self._sum(theta, step, self._lift_on_device(theta))
        return products / np.sqrt(energies)

    def cost(self, weights: Array, theta: Array) -> float:
        """As in the base class."""
        w = self._xp.asarray(weights)

        def step(block: slice, real: Any, imag: Any) -> tuple[Any]:
            rho_real = self._at_target[0][block] - w @ real
            rho_imag = self._at_target[1][block] - w @ imag
            return (rho_real @ rho_real + rho_imag @ rho_imag,)

        return float(self._sum(theta, step)[0])

    def cost_gradient(self, weights: Array, theta: Array) -> tuple[float, Array, Array]:
        """As in the base class."""
        self.n_evaluations += 1
        w = self._xp.asarray(weights)

        def step(block: slice, real: Any, imag: Any) -> tuple[Any, ...]:
            rho_real = self._at_target[0][block] - w @ real
            rho_imag = self._at_target[1][block] - w @ imag
            even, odd = _products(real, imag, rho_real, rho_imag)
            return (
                rho_real @ rho_real + rho_imag @ rho_imag,
                even @ self._at_even_factors[:, block].T,
                odd @ self._at_omega[:, block].T,
            )

        cost, even, odd = self._sum(theta, step)
        by_theta = 2.0 * weights[:, None] * np.concatenate([odd, -even[:, 1:]], axis=1)
        return float(cost), -2.0 * even[:, 0], by_theta

    def curvatures(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """As in the base class."""

        def step(block: slice, real: Any, imag: Any) -> tuple[Any]:
            return ((real * real + imag * imag) @ (self._at_factors[:, block] ** 2).T,)

        (total,) = self._sum(theta, step)
        return total[:, 0], weights[:, None] ** 2 * total[:, 1:]

    def gram(self, weights: Array, theta: Array) -> Array:
        """As in the base class."""
        pairs = _DevicePairs(self._xp, len(theta), self.space.n_features, self.space.n_shapes)
        device_theta = self._xp.asarray(theta)
        total = None
        for block in self._spans(pairs.n_rows):
            atoms = self._atoms_on_device(device_theta, block, None)
            part = pairs.of_block(*atoms, self._at_factors[:, block])
            total = part if total is None else total + part
        matrix = pairs.placed(total)
        multipliers = np.concatenate(
            [np.ones(len(theta)), np.repeat(weights, self.space.n_parameters)]
        )
        scale = self._xp.asarray(multipliers)
        (scaled,) = self._receive(matrix * scale * scale[:, None])
        return scaled

    def factorise(self, matrix: Array) -> Callable[[Array], Array]:
        """As in the base class."""
        device_matrix = self._xp.asarray(matrix)
        lower = self._xp.linalg.cholesky(device_matrix)
        # CuPy raises no error for a matrix that is not positive definite
        missed = self._xp.abs((lower * lower).sum(axis=1) - device_matrix.diagonal()).max()
        if not float(missed) <= 1e-6 * float(device_matrix.diagonal().max()):
            raise np.linalg.LinAlgError("the matrix is not positive definite")
        inverse = self._xp.linalg.inv(lower)

        def solve(right: Array) -> Array:
            (solution,) = self._receive(inverse.T @ (inverse @ self._xp.asarray(right)))
            return solution

        return solve

    def inverse(self, matrix: Array) -> Array:
        """As in the base class."""
        (inverted,) = self._receive(self._xp.linalg.inv(self._xp.asarray(matrix)))
        return inverted


def _products(real: Any, imag: Any, rho_real: Any, rho_imag: Any) -> tuple[Any, Any]:
    """Real and imaginary part of ``conj(a) rho``."""
    return real * rho_real + imag * rho_imag, real * rho_imag - imag * rho_real


class _DevicePairs(GramSums):
    """Products of pairs of atoms, as two matrix products for each block of frequencies."""

    def __init__(self, xp: Any, n_atoms: int, n_features: int, n_shapes: int) -> None:
        super().__init__(n_atoms, n_features, n_shapes)
        self._xp = xp
        self._index = [
            xp.asarray(index) for index in (self._first, self._second, self._left, self._right)
        ]
        self.n_rows = max(len(self._first), len(self._left))  # rows of the largest array of a block

    def of_block(self, real: Any, imag: Any, factors: Any) -> Any:
        """Sums (n_pairs, n_products) over the frequencies of a block."""
        first, second, left, right = self._index
        same, cross = _products(real[first], imag[first], real[second], imag[second])
        table = (factors[left] * factors[right]).T
        even, odd = table[:, : self._n_even], table[:, self._n_even :]
        return self._xp.concatenate([same @ even, cross @ odd], axis=1)

    def placed(self, sums: Any) -> Any:
        """Gram matrix of the sums, on the device: weights first, then the parameters."""
        xp, k = self._xp, self._n_atoms
        first, second = self._index[:2]
        entries = sums[:, xp.asarray(self._column)] * xp.asarray(self._sign)
        p = entries.shape[1]
        matrix = xp.empty((k, k, p, p))
        matrix[second, first] = entries.transpose(0, 2, 1)
        matrix[first, second] = entries
        by_atom = np.arange(k * p).reshape(k, p)
        order = xp.asarray(np.concatenate([by_atom[:, 0], by_atom[:, 1:].ravel()]))
        return matrix.transpose(0, 2, 1, 3).reshape(k * p, k * p)[order][:, order]
