"""Sketches of atoms, evaluated by blocks of frequencies that threads may share."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders import kernels
from dask_sketch.decoders.coordinates import Coordinates
from dask_sketch.decoders.families import Array
from dask_sketch.decoders.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dask_sketch.sketching import Sketch

# Atoms are evaluated by blocks of frequencies of about this many numbers: real and imaginary
# parts (512 KiB) stay in the second cache, and memory below K times the block.
_BLOCK = 32_768

Part = TypeVar("Part")


class Atoms(Coordinates):
    """Sketches of the atoms of one family at the frequencies of one sketch, and derivatives.

    The parameters, attributes and errors are those of
    :class:`~dask_sketch.decoders.objective.Objective`.
    """

    def __init__(
        self,
        sketch: Sketch,
        model: str,
        box: Array | None,
        variance_floor: float,
        covariance: Array | None,
        threads: Threads,
    ) -> None:
        super().__init__(sketch, model, box, variance_floor, covariance)
        self.threads = threads
        # Weights of the features multiply the sketch, the atoms and the noise of each entry.
        feature_weights = sketch.feature_map.feature_weights
        if feature_weights is None:
            feature_weights = np.ones(self.n_frequencies)
        self.feature_weights = feature_weights
        self._point_amplitude = feature_weights / np.sqrt(self.n_frequencies)
        # The derivative of an atom by a parameter is the atom times a row of this, for a mean
        # times -i beside: 1, the frequencies, and -1/2 of what a shape parameter adds to w'Sw.
        shapes = -0.5 * self.family.spread @ self.omega**2
        self._factors = np.concatenate([np.ones((1, self.n_frequencies)), self.omega, shapes])
        self._even_factors = np.delete(self._factors, np.s_[1 : 1 + self.n_features], axis=0)
        log_envelope = self.family.log_envelope + np.log(feature_weights)
        log_envelope -= 0.5 * np.log(self.n_frequencies)
        self._envelope = log_envelope / np.log(2.0)
        self._amplitude = np.exp(log_envelope)

    def _thinned(self, chosen: npt.NDArray[np.intp]) -> Self:
        """The same at some of the frequencies, which stand for all: norms of atoms are kept."""
        fewer = copy(self)
        fewer.n_frequencies = len(chosen)
        stretch = np.sqrt(self.n_frequencies / len(chosen))
        fewer.omega = self.omega.take(chosen, axis=1)
        fewer.feature_weights = self.feature_weights[chosen]
        fewer._point_amplitude = stretch * self._point_amplitude[chosen]
        fewer._factors = self._factors.take(chosen, axis=1)
        fewer._even_factors = self._even_factors.take(chosen, axis=1)
        fewer._envelope = self._envelope[chosen] + np.log2(stretch)
        fewer._amplitude = stretch * self._amplitude[chosen]
        return fewer

    def _slices(self, n_atoms: int, span: range | None = None) -> list[slice]:
        """Blocks of frequencies, of all or of a span of them."""
        span = range(self.n_frequencies) if span is None else span
        width = max(128, _BLOCK // max(n_atoms, 1))
        return [
            slice(start, min(start + width, span.stop))
            for start in range(span.start, span.stop, width)
        ]

    def _waves(
        self, theta: Array, lift: Array | None = None
    ) -> Callable[[slice], tuple[Array, Array]]:
        """What gives the real and imaginary part (K, B) of atoms at a block of frequencies.

        The arrays are overwritten from one block to the next. Atoms are multiplied by
        ``2**lift``, shape (K,).
        """
        d, n_atoms = self.n_features, len(theta)
        turns = theta[:, :d] * (-0.5 / np.pi)
        shapes = theta[:, d:] / np.log(2.0)
        none = np.zeros(n_atoms) if lift is None else lift
        scratch = np.empty((2, n_atoms * self._slices(n_atoms)[0].stop))

        def at(block: slice) -> tuple[Array, Array]:
            shape = (n_atoms, block.stop - block.start)
            real, imag = (part[: shape[0] * shape[1]].reshape(shape) for part in scratch)
            np.matmul(turns, self.omega[:, block], out=imag)
            if self.n_shapes:
                np.matmul(shapes, self._factors[1 + d :, block], out=real)
                kernels.waves(real, imag, self._envelope[block], none)
            else:
                kernels.plain_waves(real, imag, self._amplitude[block])
            return real, imag

        return at

    def _each(
        self,
        step: Callable[[slice, Array, Array], Part],
        theta: Array,
        lift: Array | None = None,
        span: range | None = None,
    ) -> list[Part]:
        """What ``step(block, real, imag)`` returns for each block of frequencies, in order."""

        def prepare() -> Callable[[slice], Part]:
            waves = self._waves(theta, lift)
            return lambda block: step(block, *waves(block))

        return self.threads.each(prepare, self._slices(len(theta), span))

    def points(self, x: Array) -> Array:
        """Sketches of points (n, n_features) as rows of real numbers (n, 2m), as :meth:`atoms`."""
        rows = np.empty((2, len(x), self.n_frequencies))
        np.matmul(x * (-0.5 / np.pi), self.omega, out=rows[1])
        kernels.plain_waves(rows[0], rows[1], self._point_amplitude)
        return np.concatenate(list(rows), axis=1)

    def atoms(self, theta: Array) -> Array:
        """Sketches of atoms as rows of real numbers (K, 2m): real parts, imaginary parts."""
        everywhere = range(self.n_frequencies)
        return np.concatenate(list(self._atoms_at(theta, everywhere, np.float64)), axis=1)

    def _atoms_at(self, theta: Array, span: range, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Real and imaginary parts of atoms at a span of frequencies, shape (2, K, len(span))."""
        kept = np.empty((2, len(theta), len(span)), dtype)

        def put(block: slice, real: Array, imag: Array) -> None:
            here = slice(block.start - span.start, block.stop - span.start)
            kept[0, :, here] = real
            kept[1, :, here] = imag

        self._each(put, theta, span=span)
        return kept

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
        waves = self._waves(theta)
        for block in self._slices(len(theta)):
            atoms = np.stack(waves(block), axis=1)
            by_theta = atoms[:, None] * self._factors[1:, None, block]
            turned = by_theta[:, :d].copy()
            by_theta[:, :d, 0], by_theta[:, :d, 1] = turned[:, :, 1], -turned[:, :, 0]  # times -i
            by_theta *= weights[:, None, None, None]
            yield block, np.concatenate([atoms, by_theta.reshape(-1, *atoms.shape[1:])])
