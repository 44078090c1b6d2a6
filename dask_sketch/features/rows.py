"""From raw rows of a chunk to centred rows for the kernel, in one reading.

Conversion, the check for NaN, centring, bounds and the first two moments each need a pass over the
rows when written with array operations: at 12 features and 1000 frequencies that was a quarter of
all time. Here it is done block by block in the first cache: 7 percent with the law of sparse sums,
whose kernel is the fastest, and 2 with the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from dask_sketch.features.kernel import COMPILING

LARGEST_WEIGHT = 1e30  # float32 sums of a few weights stay finite
RUN = 256  # values, at most, of several rows: what is kept for them stays in the first cache


@numba.njit(nogil=True, error_model="numpy")
def _finite(x):  # type: ignore[no-untyped-def]
    fine = True
    for k in range(x.size):
        fine &= math.isfinite(x[k])
    return fine


@numba.njit(nogil=True, error_model="numpy")
def _take_two(x, y, center, out_x, out_y, low, high, first, second):  # type: ignore[no-untyped-def]
    """Two runs at once: what is kept for each place in a run is read and written half as often."""
    for k in range(center.size):
        a, b = np.float64(x[k]), np.float64(y[k])
        low[k] = min(low[k], min(a, b))
        high[k] = max(high[k], max(a, b))
    for k in range(center.size):
        a, b = np.float64(x[k]) - center[k], np.float64(y[k]) - center[k]
        first[k] += a + b
        second[k] += a * a + b * b
        out_x[k], out_y[k] = a, b


@numba.njit(nogil=True, error_model="numpy")
def _take_runs(raw, center, out, low, high, first, second):  # type: ignore[no-untyped-def]
    """Take rows of weight one, in runs, up to a pair of runs with a bad row; give their number.

    A loop over a few features is mostly beginning and end, so that rows side by side are read as
    one run of values: each place in it has its own bounds and moments, brought together last.
    """
    n, d = raw.shape
    rows = max(RUN // d, 1)
    run = rows * d
    x, y = raw.reshape(-1), out.reshape(-1)
    if 2 * rows > n or not _finite(x[: 2 * run]):
        return 0  # where bad rows are many, nothing is prepared in vain
    centers = np.empty(run)
    for r in range(rows):
        centers[r * d : (r + 1) * d] = center
    lows, highs = np.full(run, np.inf), np.full(run, -np.inf)
    firsts, seconds = np.zeros(run), np.zeros(run)
    taken = 0
    while taken + 2 * rows <= n:
        i = taken * d
        j, end = i + run, i + 2 * run
        if not _finite(x[i:end]):
            break
        _take_two(x[i:j], x[j:end], centers, y[i:j], y[j:end], lows, highs, firsts, seconds)
        taken += 2 * rows
    for r in range(rows):
        for f in range(d):
            k = r * d + f
            low[f] = min(low[f], lows[k])
            high[f] = max(high[f], highs[k])
            first[f] += firsts[k]
            second[f] += seconds[k]
    return taken


@numba.njit(nogil=True, error_model="numpy")
def _take_each(raw, weights, weighted, omit, center, out, out_weights, low, high, first, second):  # type: ignore[no-untyped-def]  # fmt: skip
    """Take the usable rows one by one, as weights and bad rows need it."""
    d = center.size
    taken = 0
    omitted = 0
    for i in range(raw.shape[0]):
        fine = True
        for f in range(d):
            fine &= math.isfinite(raw[i, f])
        if not fine:
            if not omit:
                return taken, omitted, i
            omitted += 1
            continue
        w = 1.0
        if weighted:
            w = weights[i]
            if not (w >= 0.0 and w <= LARGEST_WEIGHT):
                return taken, omitted, i
            out_weights[taken] = w
            w = np.float64(out_weights[taken])  # as rounded, so that all sums use one weight
        for f in range(d):
            value = np.float64(raw[i, f])
            if w > 0.0:
                low[f] = min(low[f], value)
                high[f] = max(high[f], value)
            value -= center[f]
            first[f] += w * value
            second[f] += w * value * value
            out[taken, f] = value
        taken += 1
    return taken, omitted, -1


def _take(raw, weights, weighted, omit, center, out, out_weights, low, high, first, second):  # type: ignore[no-untyped-def]  # fmt: skip
    """Fill ``out`` with the usable rows; give (rows taken, rows omitted, first refused row)."""
    done = 0 if weighted else _take_runs(raw, center, out, low, high, first, second)
    taken, omitted, refused = _take_each(
        raw[done:], weights, weighted, omit, center, out[done:], out_weights,
        low, high, first, second,
    )  # fmt: skip
    return done + taken, omitted, refused if refused < 0 else done + refused


@lru_cache(maxsize=64)
def _taker(raw: str, dtype: str) -> Callable[..., tuple[int, int, int]]:
    """The loop for one type of rows and one precision; compiled now, and cached on disk."""
    real = numba.from_dtype(np.dtype(dtype))
    vector = types.float64[::1]
    counts = types.UniTuple(types.int64, 3)
    signature = counts(
        types.Array(numba.from_dtype(np.dtype(raw)), 2, "C", readonly=True),
        types.Array(types.float64, 1, "A", readonly=True),
        types.boolean, types.boolean,
        types.Array(types.float64, 1, "C", readonly=True),
        real[:, ::1], real[::1], vector, vector, vector, vector,
    )  # fmt: skip
    taker: Callable[..., tuple[int, int, int]] = numba.njit(
        signature, nogil=True, cache=True, error_model="numpy"
    )(_take)
    return taker


def row_taker(raw: np.dtype[Any], dtype: str) -> Callable[..., tuple[int, int, int]]:
    """Compile the loop for rows of type ``raw``, or load it; threads wait for one compilation."""
    with COMPILING:
        return _taker(native_type(raw).name, dtype)


def native_type(raw: np.dtype[Any]) -> np.dtype[Any]:
    """What the loop is compiled for: numba has no float16, and small integers are exact in it."""
    if raw.kind == "b" or raw.itemsize < 4:
        return np.dtype(np.float32)
    return raw.newbyteorder("=") if raw.itemsize <= 8 else np.dtype(np.float64)


@dataclass
class RowReader:
    """Centred rows of one chunk, block by block, and the statistics gathered on the way.

    Attributes
    ----------
    center
        Removed from every row, shape (n_features,).
    rows, weights
        Scratch for one block: shape (block, n_features) and (block,), of the kernel's dtype.
    minimum, maximum, first_moment, second_moment
        Over the rows taken so far, shape (n_features,); bounds skip rows of weight zero.
    taken, count, omitted
        Rows of the last block, rows taken so far, rows left out so far.
    """

    center: NDArray[np.float64]
    rows: NDArray[np.floating]
    weights: NDArray[np.floating]
    minimum: NDArray[np.float64] = field(init=False)
    maximum: NDArray[np.float64] = field(init=False)
    first_moment: NDArray[np.float64] = field(init=False)
    second_moment: NDArray[np.float64] = field(init=False)
    count: int = 0
    taken: int = 0
    omitted: int = 0

    def __post_init__(self) -> None:
        d = self.center.size
        self.minimum, self.maximum = np.full(d, np.inf), np.full(d, -np.inf)
        self.first_moment, self.second_moment = np.zeros(d), np.zeros(d)

    def take(self, raw: NDArray[Any], weights: NDArray[np.float64] | None, omit: bool) -> int:
        """Take one block of raw rows; the usable ones end up first in ``rows``.

        Parameters
        ----------
        raw
            Shape (n, n_features), at most a block of rows, any real dtype.
        weights
            Shape (n,), or none.
        omit
            Leave rows with NaN or infinite values out instead of stopping.

        Returns
        -------
        refused
            Index of the first row refused for its values or its weight; -1 if there is none.
        """
        # other strides are copied, block by block: numbers side by side are read three times faster
        raw = np.ascontiguousarray(raw, dtype=native_type(raw.dtype))
        take = row_taker(raw.dtype, self.rows.dtype.name)
        first, second = np.zeros(self.center.size), np.zeros(self.center.size)
        taken, omitted, refused = take(
            raw,
            self.center if weights is None else weights,  # never read without weights
            weights is not None,
            omit,
            self.center,
            self.rows,
            self.weights,
            self.minimum,
            self.maximum,
            first,
            second,
        )
        # a bound of zero has no sign, whichever zero came first
        self.minimum += 0.0
        self.maximum += 0.0
        # block by block: rounding grows with the number of blocks, not of rows
        self.first_moment += first
        self.second_moment += second
        self.taken = taken
        self.count += taken
        self.omitted += omitted
        return int(refused)
