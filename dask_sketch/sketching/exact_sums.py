"""What a kernel adds up, for each power of two among the weights, and the whole of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features import FeatureMap
from dask_sketch.features.fixed_point import FRACTION, FixedPoint

_STEP = 64  # rows, at most, that a kernel takes at once
_ENOUGH = 256  # rows for a call of their own
_MOST_WAITING, _WAITING_BYTES = 1024, 64 * 1024  # of one exponent


class ExactSums:
    """Moments of the rows of one chunk, in whole numbers.

    Rows with weights come in many small groups, and a kernel is best with many rows at once: those
    that do not fill its steps wait for others of the same exponent. They add to the same bits.

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
        self._shape = feature_map.n_frequencies, feature_map.n_features
        room = _WAITING_BYTES // (self._kernel.dtype.itemsize * feature_map.n_features)
        self._room = min(max(room, _STEP), _MOST_WAITING)
        self._running: dict[int, tuple[Any, int]] = {}  # sums and rows of each exponent
        self._waiting: dict[int, _Waiting] = {}
        self._total = FixedPoint.zeros((2, feature_map.n_frequencies))

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
        whole = len(x)
        if weights is not None:
            whole = whole // _STEP * _STEP if whole >= _ENOUGH else 0
            self._wait(x[whole:], weights[whole:], exponent)
            weights = weights[:whole]
        self._add(x[:whole], weights, exponent)

    def _wait(self, x: Any, weights: Any, exponent: int) -> None:
        for start in range(0, len(x), self._room):
            rows, shares = x[start : start + self._room], weights[start : start + self._room]
            waiting = self._waiting.get(exponent)
            if waiting is None:
                made = np.empty((self._room, self._shape[1]), x.dtype)
                waiting = self._waiting[exponent] = _Waiting(made, np.empty(self._room, x.dtype))
            if waiting.count + len(rows) > self._room:
                self._release(waiting, exponent)
            place = slice(waiting.count, waiting.count + len(rows))
            waiting.rows[place], waiting.weights[place] = rows, shares
            waiting.count = place.stop

    def _release(self, waiting: _Waiting, exponent: int) -> None:
        held = waiting.count
        self._add(waiting.rows[:held], waiting.weights[:held], exponent)
        waiting.count = 0

    def _add(self, x: Any, weights: Any, exponent: int) -> None:
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
        steps = self._kernel.unpack(sums, self._shape[0])
        self._total += FixedPoint.from_int64(steps, FRACTION - self.fraction + exponent)

    def steps(self) -> FixedPoint:
        """Real and imaginary parts of all, shape (2, n_frequencies), in steps of ``2**-71``."""
        for exponent, waiting in self._waiting.items():
            self._release(waiting, exponent)
        for exponent in sorted(self._running):
            self._take(exponent)
        return self._total


@dataclass
class _Waiting:
    """Rows of one exponent, and their weights, that are not added yet."""

    rows: NDArray[np.floating]
    weights: NDArray[np.floating]
    count: int = 0
