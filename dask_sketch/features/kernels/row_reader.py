"""Read raw rows of a chunk: convert, check and centre them, and gather statistics.

With array operations, conversion, the check for NaN, centring, bounds and the first two moments
each need a pass over the rows: at 12 features and 1000 frequencies that was a quarter of all time.
Here all of them are done block by block in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError
from dask_sketch.features.kernels.fixed_point import (
    BINADES,
    FRACTION,
    MIN_EXPONENT,
    SQUARED_FRACTION,
    WEIGHT_BITS,
    WEIGHT_FRACTION,
    FixedPoint,
)
from dask_sketch.features.kernels.row_loop import (
    DISTANT,
    N_EXPONENTS,
    OVERFLOW,
    ROOT,
    add_far,
    sort_rows,
    take_rows,
)
from dask_sketch.validation.compilation import cached_njit, compiled_once


@dataclass
class ChunkReader:
    """Reader of one chunk: centred rows, block by block, and statistics of all rows.

    Attributes
    ----------
    center
        Point that is subtracted from every row, shape (n_features,).
    unit
        Powers of two in which moments are counted, shape (n_features,).
    fraction
        Binary digits of the kernel, which rounds to quanta of ``2**-fraction``.
    rows, weights
        Buffers for one block: shape (block, n_features) and (block,), of the kernel's dtype.
    groups
        Groups of rows of the last block: pairs (exponent, slice). The weights of these rows are
        ``2**exponent``, a multiple of four, times the mantissas in ``weights``, in (1/16, 1]. Rows
        of weight zero are in no group.
    minimum, maximum
        Bounds of the rows so far, shape (n_features,), without rows of weight zero.
    count
        Number of rows so far, including rows of weight zero.
    omitted
        Number of rows omitted so far.
    weight_quanta, squared_weight_quanta
        Sums of weights so far, in quanta of ``2**-80`` and ``2**-112``.
    """

    center: NDArray[np.float64]
    unit: NDArray[np.float64]
    fraction: int
    rows: NDArray[np.floating]
    weights: NDArray[np.floating]
    minimum: NDArray[np.float64] = field(init=False)
    maximum: NDArray[np.float64] = field(init=False)
    groups: list[tuple[int, slice]] = field(init=False, default_factory=list)
    count: int = 0
    omitted: int = 0
    weight_quanta: int = 0
    squared_weight_quanta: int = 0

    def __post_init__(self) -> None:
        d = self.center.size
        self.minimum, self.maximum = np.full(d, np.inf), np.full(d, -np.inf)
        self._first, self._second = np.zeros((2, d), np.int64), np.zeros((2, d), np.int64)
        self._scale = ROOT / self.unit
        n = len(self.rows)
        # allocated once: memory that is allocated for each block is mapped for each block
        self._scratch = np.empty(n), np.empty(n, np.uint32), np.empty(n, np.int8)
        self._take: Any = None  # compiled loops for rows of one type
        self._sort: Any = None
        self._raw: Any = None
        # smallest exponent: there are no quanta below those of the sums
        self._least = -(-max(self.fraction - FRACTION - MIN_EXPONENT, 0) // BINADES)
        self._grid = min(WEIGHT_BITS - BINADES + 1, int(np.finfo(self.rows.dtype).nmant) + 1)

    @property
    def order(self) -> NDArray[np.uint32]:
        """Position in the last block, which had weights, of each row in ``rows``."""
        return self._scratch[1]

    @property
    def first_quanta(self) -> FixedPoint:
        """Sums of the rows so far, shape (n_features,), in quanta of ``2**-62`` units."""
        return FixedPoint(*self._first.copy())

    @property
    def second_quanta(self) -> FixedPoint:
        """Sums of squares so far, shape (n_features,), in quanta of ``2**-62`` squared units."""
        return FixedPoint(*self._second.copy())

    def take(self, raw: NDArray[Any], weights: NDArray[np.float64] | None, omit: bool) -> int:
        """Read one block of raw rows; the usable ones are first in ``rows``, in groups.

        Parameters
        ----------
        raw
            Raw rows, shape (n, n_features), at most a block of rows, any real dtype.
        weights
            Weights of the rows, shape (n,), or None.
        omit
            Whether to omit rows with NaN or infinite values instead of refusing them.

        Returns
        -------
        refused
            Index of the first row with invalid values or weight; -1 if there is none.

        Raises
        ------
        CapacityError
            If the moments of the rows so far are too large.
        """
        # other strides are copied: contiguous numbers are read three times faster
        raw = np.ascontiguousarray(raw, dtype=native_type(raw.dtype))
        if self._take is None or raw.dtype != self._raw:
            self._raw, self._sort = raw.dtype, None
            self._take = row_taker(raw.dtype, self.rows.dtype.name)
        unsorted, order, exponents = self._scratch
        counts = np.zeros(N_EXPONENTS + 1, np.int64)  # rows of each exponent, and of weight zero
        totals = np.zeros((2, N_EXPONENTS), np.int64)
        omitted, refused = 0, -1
        if weights is not None:
            weights = np.ascontiguousarray(weights, dtype=np.float64)
            if self._sort is None:
                self._sort = _sorter(raw.dtype.name)
            omitted, refused = self._sort(
                raw, weights, omit, self._least, self._grid, unsorted, order, exponents, counts,
                totals,
            )  # fmt: skip
        if refused < 0:
            more, refused = self._take(
                raw, weights is not None, omit, self.center, self._scale, self.rows, self.weights,
                unsorted, order, self.minimum, self.maximum, self._first, self._second, counts,
            )  # fmt: skip
            omitted += more
        if refused == DISTANT:
            used = self.weights[: counts[:-1].sum()].astype(np.float64, copy=False)
            with np.errstate(invalid="ignore"):  # signalling NaN in float32
                raw = raw.astype(np.float64, copy=False)
            refused = _adder()(
                raw, used, order, counts[:-1], self.center, self._scale, self._first, self._second
            )
        if refused == OVERFLOW:
            raise CapacityError(
                "the moments of the features are larger than a sketch holds exactly: a total "
                "weight times mean square of 2**56, in units of the scale of the feature map. "
                "Multiply all weights by one smaller factor, or design a map for these data."
            )
        self.omitted += omitted
        if weights is None:
            taken = int(counts[-MIN_EXPONENT // BINADES])
            self.groups = [(0, slice(0, taken))] if taken else []
            self.count += taken
            self.weight_quanta += taken << WEIGHT_FRACTION
            self.squared_weight_quanta += taken << SQUARED_FRACTION
            return int(refused)
        self.count += int(counts.sum())
        self.groups = []
        stop = 0
        for k in np.flatnonzero(counts[:-1]).tolist():
            start, stop = stop, stop + int(counts[k])
            shift = BINADES * k
            self.groups.append((shift + MIN_EXPONENT, slice(start, stop)))
            self.weight_quanta += int(totals[0, k]) << shift
            self.squared_weight_quanta += int(totals[1, k]) << 2 * shift
        return int(refused)


_VECTOR, _WORDS = types.float64[::1], types.int64[:, ::1]
_GIVEN = types.Array(types.float64, 1, "C", readonly=True)
_COUNTS, _ORDER = types.int64[::1], types.uint32[::1]


def _rows_of(raw: str) -> types.Array:
    return types.Array(numba.from_dtype(np.dtype(raw)), 2, "C", readonly=True)


def _compiled(signature: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    loop: Callable[..., Any] = cached_njit(signature, nogil=True, error_model="numpy")(function)
    return loop


@compiled_once
def _sorter(raw: str) -> Callable[..., tuple[int, int]]:
    """Compile the loop that sorts rows by their weights."""
    signature = types.UniTuple(types.int64, 2)(
        _rows_of(raw), _GIVEN, types.boolean, types.int64, types.int64, _VECTOR, _ORDER,
        types.int8[::1], _COUNTS, _WORDS,
    )  # fmt: skip
    return _compiled(signature, sort_rows)


@compiled_once
def _taker(raw: str, dtype: str) -> Callable[..., tuple[int, int]]:
    """Compile the loop for one type of rows and one precision, or load it from numba's cache."""
    real = numba.from_dtype(np.dtype(dtype))
    signature = types.UniTuple(types.int64, 2)(
        _rows_of(raw), types.boolean, types.boolean, _GIVEN, _GIVEN, real[:, ::1], real[::1],
        _VECTOR, _ORDER, _VECTOR, _VECTOR, _WORDS, _WORDS, _COUNTS,
    )  # fmt: skip
    return _compiled(signature, take_rows)


@compiled_once
def _adder() -> Callable[..., int]:
    """Compile the loop that adds the moments of distant rows, which are converted to float64."""
    signature = types.int64(
        _rows_of("float64"), _VECTOR, _ORDER, _COUNTS, _GIVEN, _GIVEN, _WORDS, _WORDS
    )
    # a plain function where numba is switched off
    return _compiled(signature, getattr(add_far, "py_func", add_far))


def row_taker(raw: np.dtype[Any], dtype: str) -> Callable[..., tuple[int, int]]:
    """Compile the loop for rows of type ``raw``; other threads wait for the compilation."""
    return _taker(native_type(raw).name, dtype)


def native_type(raw: np.dtype[Any]) -> np.dtype[Any]:
    """Return the float type to which raw rows are converted before they are read.

    It holds all values of ``raw`` exactly, except for large integers and long doubles. There are
    only two, because the compilation of a loop takes seconds.
    """
    small = raw.kind == "b" or raw.itemsize < 4 or (raw.kind == "f" and raw.itemsize == 4)
    return np.dtype(np.float32 if small else np.float64)
