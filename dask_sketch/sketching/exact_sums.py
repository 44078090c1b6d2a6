"""What a kernel adds up, for each power of two among the weights, and the whole of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features import FeatureMap
from dask_sketch.features.fixed_point import FRACTION, FixedPoint


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
        self._running: dict[int, tuple[Any, int]] = {}  # sums and rows of each exponent
        self._done: list[FixedPoint] = []

    @property
    def fraction(self) -> int:
        """The kernel rounds to steps of ``2**-fraction``."""
        return int(self._kernel.fraction)

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
        most = self._kernel.capacity
        for start in range(0, len(x), most):
            rows = x[start : start + most]
            sums, held = self._running.get(exponent, (None, 0))
            if held + len(rows) > most:
                self._take(exponent)
                sums, held = None, 0
            if sums is None:
                sums = self._kernel.zeros(self._packed)
            share = None if weights is None else weights[start : start + most]
            self._kernel.add(rows, self._packed, sums, share)
            self._running[exponent] = sums, held + len(rows)

    def _take(self, exponent: int) -> None:
        sums, _ = self._running.pop(exponent)
        whole = self._kernel.unpack(sums, self._n_frequencies)
        steps = FixedPoint.from_int64(whole, FRACTION - self.fraction + exponent)
        self._done = [FixedPoint.sum([*self._done, steps])]

    def steps(self) -> FixedPoint:
        """Real and imaginary parts of all, shape (2, n_frequencies), in steps of ``2**-71``."""
        for exponent in sorted(self._running):
            self._take(exponent)
        return self._done[0] if self._done else FixedPoint.zeros((2, self._n_frequencies))
