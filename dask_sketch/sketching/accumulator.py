"""Exact sums of the features of one chunk, with one running sum for each exponent of weights."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import (
    FRACTION,
    WEIGHT_BITS,
    WEIGHT_FRACTION,
    FixedPoint,
)
from dask_sketch.features.kernels.incomplete import IncompleteKernel, split_incomplete
from dask_sketch.features.kernels.prepared import PreparedKernel, kernel_for
from dask_sketch.features.kernels.row_reader import ChunkReader, native_type
from dask_sketch.features.kernels.structured import BLOCK
from dask_sketch.features.kernels.whitened_rows import RowWhitener
from dask_sketch.sketching.missing import MissingWeights
from dask_sketch.validation.arrays import frozen

_MAX_WORD = 2**59  # sums below are added in one word: a moment has four of the sum of two
_MAX_KEPT = 16  # sums of different exponents that are kept before they are added
# bytes of centred features in a block: each tile reads them once, from the second cache
BLOCK_BYTES = 256 * 1024


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


@lru_cache(maxsize=4)
def incomplete_kernel_of(feature_map: FeatureMap) -> IncompleteKernel:
    """Compiled kernel of a feature map for rows with missing values."""
    return IncompleteKernel(kernel_of(feature_map).kernel, feature_map.cycles_per_unit)


def block_rows(n_features: int, dtype: str) -> int:
    """Number of rows of one block: a multiple of 8, at most 4096."""
    rows = BLOCK_BYTES // (np.dtype(dtype).itemsize * n_features)
    return int(min(max(rows // 8 * 8, 8), 4096))


def buffered_rows(n_features: int, dtype: str) -> int:
    """Number of rows with weights of one exponent that are collected for one kernel call."""
    return min(2 * BLOCK, block_rows(n_features, dtype))


class _RowBuffer:
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
        self._size = min(buffered_rows(feature_map.n_features, feature_map.dtype), self._max_rows)
        self._held: dict[int, _RowBuffer] = {}
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
            self._held[exponent] = _RowBuffer(self._size, x)
        buffer = self._held[exponent]
        while len(x):
            direct = 0 if buffer.count else len(x) // self._size * self._size
            if direct:
                self._add(x[:direct], weights[:direct], exponent)
                x, weights = x[direct:], weights[direct:]
            taken = buffer.take(x, weights)
            x, weights = x[taken:], weights[taken:]
            if buffer.count == self._size:
                self._empty(exponent)

    def _empty(self, exponent: int) -> None:
        buffer = self._held[exponent]
        self._add(buffer.rows[: buffer.count], buffer.weights[: buffer.count], exponent)
        buffer.count = 0

    def _add(
        self, x: NDArray[np.floating], weights: NDArray[np.floating] | None, exponent: int
    ) -> None:
        for start in range(0, len(x), self._max_rows):
            rows = x[start : start + self._max_rows]
            part = None if weights is None else weights[start : start + self._max_rows]
            if self._whiten is not None:
                rows = self._whiten(rows)
            self._kernel.add(rows, self._packed, self._sums_for(len(rows), exponent), part)

    def add_incomplete(
        self,
        kernel: IncompleteKernel,
        x: NDArray[np.floating],
        observed: NDArray[np.floating],
        weights: NDArray[np.floating] | None,
        exponent: int,
    ) -> None:
        """Add rows with missing values, each to the frequencies that it observes.

        Parameters
        ----------
        kernel
            Kernel of such rows.
        x, weights, exponent
            Arguments of :meth:`add`; ``x`` is zero where a value is missing.
        observed
            One where a value is observed, zero where it is missing, shape (n, n_features).
        """
        for start in range(0, len(x), self._max_rows):
            part = slice(start, start + self._max_rows)
            rows = x[part]
            sums = self._sums_for(len(rows), exponent)
            kernel.add(rows, observed[part], sums, None if weights is None else weights[part])

    def _sums_for(self, n_rows: int, exponent: int) -> NDArray[np.int64]:
        """Running sums of an exponent with room for some rows."""
        sums, n_summed = self._running.get(exponent, (None, 0))
        if n_summed + n_rows > self._kernel.capacity:
            self._take(exponent)
            sums, n_summed = None, 0
        if sums is None:
            sums = self._kernel.zeros(self._packed)
        self._running[exponent] = sums, n_summed + n_rows
        return np.asarray(sums)

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


class IncompleteRows:
    """Rows of one chunk with some missing values: their sums, moments, bounds and counters.

    Parameters
    ----------
    feature_map
        Feature map of the sketch.
    sums
        Moments of the chunk, to which those of the rows are added.
    step
        Largest number of rows of a block.

    Attributes
    ----------
    reader
        Weights, counts and moments of the rows.
    minimum, maximum
        Bounds of the observed values, shape (n_features,), without rows of weight zero.
    omitted
        Number of rows without any finite value.
    """

    def __init__(self, feature_map: FeatureMap, sums: ExactSums, step: int):
        d, dtype = feature_map.n_features, feature_map.dtype
        self._kernel, self._sums, self._dtype = incomplete_kernel_of(feature_map), sums, dtype
        self.reader = ChunkReader(
            feature_map.center,
            moment_units(feature_map),
            sums.fraction,
            np.empty((step, d), dtype=dtype),
            np.empty(step, dtype=dtype),
        )
        self.minimum, self.maximum = np.full(d, np.inf), np.full(d, -np.inf)
        self.omitted = 0
        self._filled, self._observed = np.empty((step, d)), np.empty((step, d), dtype=dtype)
        self._positions = np.empty(step, np.int64)
        self._counted: list[FixedPoint] = []  # weights of the rows that observe each set

    def add(
        self, raw: NDArray[Any], weights: NDArray[np.float64] | None
    ) -> tuple[int, NDArray[np.float64]]:
        """Add the rows of one block that have missing values, and some that are finite.

        Parameters
        ----------
        raw
            Raw rows, shape (n, n_features), complete ones among them, which are left out.
        weights
            Weights of the rows, shape (n,), or None.

        Returns
        -------
        refused
            Position of the first row that cannot be summed, or -1.
        row
            Its values, where those of the center replace missing ones.

        Raises
        ------
        CapacityError
            If the moments of the rows so far are too large.
        """
        raw = np.ascontiguousarray(raw, dtype=native_type(raw.dtype)).view()
        raw.flags.writeable = False
        row_weights = np.empty(0) if weights is None else np.ascontiguousarray(weights)
        taken, empty = split_incomplete(
            raw, row_weights, self.reader.center, self._filled, self._observed, self._positions,
            self.minimum, self.maximum,
        )  # fmt: skip
        self.omitted += empty
        filled, positions = self._filled[:taken], self._positions[:taken]
        used = None if weights is None else row_weights[positions]
        refused = self.reader.take(filled, used, False) if taken else -1
        if refused >= 0:
            return int(positions[refused]), filled[refused]
        for exponent, rows in self.reader.groups if taken else ():
            order = rows if weights is None else self.reader.order[rows]
            observed = np.ascontiguousarray(self._observed[order])
            x, mantissas = self.reader.rows[rows], self.reader.weights[rows]
            x *= observed  # zero where a value is missing, also if the center is rounded
            chosen = None if weights is None else mantissas
            self._sums.add_incomplete(self._kernel, x, observed, chosen, exponent)
            self._count(observed, chosen, exponent)
        return -1, np.empty(0)

    def _count(
        self,
        observed: NDArray[np.floating],
        weights: NDArray[np.floating] | None,
        exponent: int,
    ) -> None:
        """Add the weights of the rows that observe each set of features."""
        totals = self._kernel.count(observed, weights)
        shift = FRACTION - WEIGHT_BITS + exponent
        if shift < 0:  # the last bits are zero: mantissas have at most 24 bits there
            totals, shift = totals >> -shift, 0
        self._counted.append(FixedPoint.from_int64(totals, shift))
        if len(self._counted) == _MAX_KEPT:
            self._counted = [FixedPoint.sum(self._counted)]

    def missing(self) -> MissingWeights | None:
        """Weights of the rows that do not observe each frequency and pair; None without rows."""
        if not self._counted:
            return None
        kernel = self._kernel
        observed = FixedPoint.sum(self._counted)
        total = self.reader.weight_quanta >> (WEIGHT_FRACTION - FRACTION)
        missing = FixedPoint.from_integers(np.full(observed.shape, total, object)) - observed
        n_sets = len(kernel.sets) - kernel.n_pairs
        return MissingWeights(
            missing.part(kernel.set_of_frequency),
            missing.part(slice(n_sets, None)),
            self.reader.first_quanta,
            self.reader.second_quanta,
            self.reader.weight_quanta,
        )
