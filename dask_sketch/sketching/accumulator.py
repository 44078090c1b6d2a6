"""Exact sums of the features of one chunk: one running sum for each power of 16 of the weights."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import FRACTION, FixedPoint
from dask_sketch.features.kernels.prepared import PreparedKernel, kernel_for
from dask_sketch.features.kernels.structured import BLOCK
from dask_sketch.features.kernels.whitened_rows import RowWhitener
from dask_sketch.validation.arrays import frozen

_MAX_WORD = 2**59  # sums below are added in one word: a moment has four of the sum of two
_MAX_KEPT = 16  # sums of different exponents that are kept before they are added
BLOCK_BYTES = 256 * 1024  # of centred features: each tile reads them once, from the second cache


@lru_cache(maxsize=16)
def kernel_of(feature_map: FeatureMap) -> PreparedKernel:
    """Compiled kernel, packed frequencies and conventions of a feature map.

    They are kept for the last few feature maps of this process, by digest.

    Raises
    ------
    ArtifactError
        If this process samples other frequencies than the feature map states.
    """
    kernel = kernel_for(feature_map.distribution, feature_map.n_features, feature_map.dtype)
    return PreparedKernel(
        kernel=kernel,
        packed=frozen(kernel.pack(feature_map.cycles_per_unit)),
        n_frequencies=feature_map.n_frequencies,
        dtype=feature_map.dtype,
        center=feature_map.center,
        units=moment_units(feature_map),
        row_whitening=feature_map.row_whitening,
    )


def block_rows(n_features: int, dtype: str) -> int:
    """Number of rows of one block: a multiple of 8, at most 4096."""
    rows = BLOCK_BYTES // (np.dtype(dtype).itemsize * n_features)
    return int(min(max(rows // 8 * 8, 8), 4096))


def held_rows(n_features: int, dtype: str) -> int:
    """Number of rows with weights of one exponent that are collected for one kernel call."""
    return min(2 * BLOCK, block_rows(n_features, dtype))


class _Held:
    """Buffer of rows with weights of one exponent."""

    def __init__(self, size: int, x: NDArray[np.floating]):
        self.rows = np.empty((size, x.shape[1]), dtype=x.dtype)
        self.weights = np.empty(size, dtype=x.dtype)
        self.count = 0

    def take(self, x: NDArray[np.floating], weights: NDArray[np.floating]) -> int:
        """Copy the first rows into the free space; return their number."""
        taken = min(len(self.rows) - self.count, len(x))
        free = slice(self.count, self.count + taken)
        self.rows[free], self.weights[free] = x[:taken], weights[:taken]
        self.count += taken
        return taken


class ExactSums:
    """Moments of the rows of one chunk, as exact integers.

    Examples
    --------
    >>> sums = ExactSums(FeatureMap(1, 2, scale=1.0))
    >>> sums.add(np.zeros((3, 1), dtype=np.float32), None, exponent=1)
    >>> sums.quanta().to_float(FRACTION)
    array([[6., 6.],
           [0., 0.]])
    """

    def __init__(self, feature_map: FeatureMap):
        prepared = kernel_of(feature_map)
        self._kernel, self._packed = prepared.kernel, prepared.packed
        white = feature_map.row_whitening
        self._whiten = None if white is None else RowWhitener(white, feature_map.dtype)
        self._n_frequencies = feature_map.n_frequencies
        rows = block_rows(feature_map.n_features, feature_map.dtype)
        self._max_rows = min(rows, self._kernel.capacity)
        self._size = min(held_rows(feature_map.n_features, feature_map.dtype), self._max_rows)
        self._held: dict[int, _Held] = {}
        self._running: dict[int, tuple[Any, int]] = {}  # sums and number of rows by exponent
        self._done: list[FixedPoint] = []

    @property
    def fraction(self) -> int:
        """Binary digits after the point to which the kernel rounds."""
        return self._kernel.fraction

    def add(
        self, x: NDArray[np.floating], weights: NDArray[np.floating] | None, exponent: int
    ) -> None:
        """Add rows whose weights are ``2**exponent`` times those given, or one.

        Parameters
        ----------
        x
            Centred rows of the kernel's dtype, shape (n, n_features).
        weights
            Weights of the kernel's dtype in (0, 1], shape (n,); all one when not given.
        exponent
            Binary exponent of all weights, at least ``fraction - 71``.
        """
        if weights is None:
            self._add(x, None, exponent)
            return
        if exponent not in self._held:
            self._held[exponent] = _Held(self._size, x)
        held = self._held[exponent]
        while len(x):
            direct = 0 if held.count else len(x) // self._size * self._size
            if direct:
                self._add(x[:direct], weights[:direct], exponent)
                x, weights = x[direct:], weights[direct:]
            taken = held.take(x, weights)
            x, weights = x[taken:], weights[taken:]
            if held.count == self._size:
                self._empty(exponent)

    def _empty(self, exponent: int) -> None:
        held = self._held[exponent]
        self._add(held.rows[: held.count], held.weights[: held.count], exponent)
        held.count = 0

    def _add(
        self, x: NDArray[np.floating], weights: NDArray[np.floating] | None, exponent: int
    ) -> None:
        for start in range(0, len(x), self._max_rows):
            rows = x[start : start + self._max_rows]
            sums, held = self._running.get(exponent, (None, 0))
            if held + len(rows) > self._kernel.capacity:
                self._take(exponent)
                sums, held = None, 0
            if sums is None:
                sums = self._kernel.zeros(self._packed)
            part = None if weights is None else weights[start : start + self._max_rows]
            if self._whiten is not None:
                rows = self._whiten(rows)
            self._kernel.add(rows, self._packed, sums, part)
            self._running[exponent] = sums, held + len(rows)

    def _take(self, exponent: int) -> None:
        sums, _ = self._running.pop(exponent)
        self._done.append(self._unpacked(sums, exponent))
        if len(self._done) == _MAX_KEPT:
            self._done = [FixedPoint.sum(self._done)]

    def _unpacked(self, sums: NDArray[np.int64], exponent: int) -> FixedPoint:
        quanta = self._kernel.unpack(sums, self._n_frequencies)
        return FixedPoint.from_int64(quanta, FRACTION - self.fraction + exponent)

    def quanta(self) -> FixedPoint:
        """Real and imaginary parts of the moments in multiples of ``2**-71``, shape (2, m)."""
        for exponent in self._held:
            self._empty(exponent)
        lowest: tuple[NDArray[np.int64], int] | None = None
        for exponent in sorted(self._running, reverse=True):
            sums, _ = self._running.pop(exponent)
            if lowest is not None:
                above, shift = lowest[0], lowest[1] - exponent
                # packed sums that fit in one word are added as they are: unpacking is slow
                if int(np.abs(above).max()) << shift < _MAX_WORD and np.abs(sums).max() < _MAX_WORD:
                    sums += above << shift
                else:
                    self._done.append(self._unpacked(*lowest))
            lowest = sums, exponent
        if lowest is not None:
            self._done.append(self._unpacked(*lowest))
        if not self._done:
            return FixedPoint.zeros((2, self._n_frequencies))
        return FixedPoint.sum(self._done)
