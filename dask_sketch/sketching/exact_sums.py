"""What a kernel adds up, for each power of two among the weights, and the whole of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features import FeatureMap
from dask_sketch.features.fixed_point import FRACTION, FixedPoint

_TOGETHER = 16  # sums of different exponents, at most, that are kept until they are added
BLOCK_BYTES = 256 * 1024  # of centred features: they are read once per tile, from the second cache


def block_rows(n_features: int, dtype: str) -> int:
    """Rows of one block: a multiple of 8, at most 4096."""
    rows = BLOCK_BYTES // (np.dtype(dtype).itemsize * n_features)
    return int(min(max(rows // 8 * 8, 8), 4096))


class ExactSums:
    """Moments of the rows of one chunk, in whole numbers.

    Examples
    --------
    >>> sums = ExactSums(FeatureMap(1, 2, scale=1.0))
    >>> sums.add(np.zeros((3, 1), dtype=np.float32), None, exponent=1)
    >>> sums.steps().to_float(FRACTION)
    array([[6., 6.],
           [0., 0.]])
    """

    def __init__(self, feature_map: FeatureMap):
        self._kernel = feature_map.kernel
        self._packed = feature_map.packed
        self._n_frequencies = feature_map.n_frequencies
        rows = block_rows(feature_map.n_features, feature_map.dtype)
        self._most = min(rows, self._kernel.capacity)
        self._running: dict[int, tuple[Any, int]] = {}  # sums and rows of each exponent
        self._done: list[FixedPoint] = []

    @property
    def fraction(self) -> int:
        """The kernel rounds to steps of ``2**-fraction``."""
        return self._kernel.fraction

    def add(
        self, x: NDArray[np.floating], weights: NDArray[np.floating] | None, exponent: int
    ) -> None:
        """Add rows whose weights are ``2**exponent`` times those given, or one.

        Parameters
        ----------
        x
            Centred, shape (n, n_features), of the kernel's dtype.
        weights
            Shape (n,), of the kernel's dtype, in (0, 1]; all one when not given.
        exponent
            At least ``fraction - 71``.
        """
        for start in range(0, len(x), self._most):
            rows = x[start : start + self._most]
            sums, held = self._running.get(exponent, (None, 0))
            if held + len(rows) > self._kernel.capacity:
                self._take(exponent)
                sums, held = None, 0
            if sums is None:
                sums = self._kernel.zeros(self._packed)
            share = None if weights is None else weights[start : start + self._most]
            self._kernel.add(rows, self._packed, sums, share)
            self._running[exponent] = sums, held + len(rows)

    def _take(self, exponent: int) -> None:
        sums, _ = self._running.pop(exponent)
        steps = self._kernel.unpack(sums, self._n_frequencies)
        self._done.append(FixedPoint.from_int64(steps, FRACTION - self.fraction + exponent))
        if len(self._done) == _TOGETHER:
            self._done = [FixedPoint.sum(self._done)]

    def steps(self) -> FixedPoint:
        """Real and imaginary parts of all, shape (2, n_frequencies), in steps of ``2**-71``."""
        for exponent in sorted(self._running):
            self._take(exponent)
        if not self._done:
            return FixedPoint.zeros((2, self._n_frequencies))
        return FixedPoint.sum(self._done)
