"""Second moments of one chunk in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError, ChunkError
from dask_sketch.features.kernels.expectation_loop import weights_by_exponent
from dask_sketch.features.kernels.fixed_point import MAX_EXPONENT, MIN_EXPONENT, FixedPoint
from dask_sketch.features.kernels.row_loop import MAX_DISTANCE
from dask_sketch.features.kernels.sliced_products import (
    MAX_ROWS,
    SLICE_BITS,
    add_products,
    add_squares,
    slices,
)
from dask_sketch.sketching.arguments import checked_chunk, refuse_values
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.second_moments import FRACTION, SQUARED_FRACTION, SecondMoments
from dask_sketch.validation.device import on_host

Array = NDArray[np.float64]
_NEAR = 2.0**41  # integers in two slices
_BLOCK = 2**20  # values that are converted at a time


def partial_moments(
    samples: Any,
    grid: MomentGrid,
    weights: Any = None,
    *,
    nan_policy: str = "raise",
    label: str = "samples",
) -> SecondMoments:
    """Second moments of one chunk in memory.

    Parameters
    ----------
    samples
        Chunk of shape (..., n_features) and any real dtype.
    grid
        Conventions of the sums.
    weights
        Weights of shape (...), zero or from ``2**-32`` to ``2**32``; all one when not given.
    nan_policy
        ``"raise"`` refuses the chunk at a row with a NaN or infinite value, ``"omit"`` leaves such
        rows out and counts them. With a pairwise grid, only these values are left out, and rows
        without any finite value.
    label
        Name of the chunk for messages.

    Raises
    ------
    InputError
        If shapes or types do not fit, or values are masked.
    ChunkError
        If a row or a weight is refused, or sums are too large.
    """
    given, masses = checked_chunk(
        samples, weights, grid.n_features, "the grid", label, grid.feature_names
    )
    x, w = on_host(given), None if masses is None else on_host(masses)
    step = max(min(_BLOCK // grid.n_features, MAX_ROWS), 64)
    sums = np.zeros((2, grid.n_sums), np.int64)
    squared_weight = omitted = 0
    for start in range(0, len(x), step):
        rows = x[start : start + step].astype(np.float64)
        row_weights = None if w is None else w[start : start + step].astype(np.float64)
        finite = np.isfinite(rows)
        fine = finite.any(axis=1) if grid.pairwise else finite.all(axis=1)
        valid = fine | (nan_policy == "omit" or grid.pairwise)
        if row_weights is not None:
            valid &= (row_weights == 0.0) | (
                (row_weights >= 2.0**MIN_EXPONENT) & (row_weights <= 2.0**MAX_EXPONENT)
            )
        rows[~finite] = np.nan
        rows -= grid.center
        rows /= grid.unit
        valid &= ~(fine & (np.abs(rows) > MAX_DISTANCE).any(axis=1))
        if not valid.all():
            bad = int(np.argmin(valid))
            weight = None if row_weights is None else float(row_weights[bad])
            refuse_values(
                x[start + bad], weight, start + bad, label,
                grid.center, grid.unit, grid.feature_names, "the grid",
                "give like=, second moments of typical rows",
            )  # fmt: skip
        omitted += int((~fine).sum())
        if not fine.all():
            rows, row_weights = rows[fine], None if row_weights is None else row_weights[fine]
        try:
            squared_weight += _add_rows(sums, rows, row_weights, grid)
        except CapacityError as error:
            raise ChunkError(f"{label}: {error}") from error
    return SecondMoments(grid, FixedPoint(*sums), squared_weight, len(x) - omitted, omitted)


def _add_rows(sums: NDArray[np.int64], rows: Array, weights: Array | None, grid: MomentGrid) -> int:
    """Add rows in units of the grid; return the sum of their squared weights."""
    if weights is None:
        _add_scaled(sums, rows, None, 0, grid)
        return len(rows) << SQUARED_FRACTION
    squared = 0
    for exponent, part in weights_by_exponent(weights):
        mantissas = np.ldexp(weights[part], -exponent)
        quanta = int(np.rint(np.ldexp(mantissas**2, 40)).astype(np.int64).sum())
        squared += quanta << 2 * (exponent - MIN_EXPONENT)
        # small weights are rounded to the grid of a weight of one
        shift = max(exponent, 0)
        _add_scaled(sums, rows[part], np.sqrt(np.ldexp(weights[part], -shift)), shift, grid)
    return squared


def _add_scaled(
    sums: NDArray[np.int64], rows: Array, roots: Array | None, shift: int, grid: MomentGrid
) -> None:
    """Add the products of rows, times the square roots of their weights over ``2**shift``."""
    d = grid.n_features
    q = np.empty((len(rows), 1 + d * (2 if grid.pairwise else 1)))
    q[:, 0], q[:, -d:] = 1.0, rows
    if grid.pairwise:
        finite = np.isfinite(rows)
        q[:, 1 : 1 + d], q[:, -d:] = finite, np.where(finite, rows, 0.0)
    if roots is not None:
        q *= roots[:, None]
    q *= 2.0**FRACTION
    np.rint(q, out=q)
    t = None
    if grid.n_columns is not None:
        t = np.empty((len(rows), grid.n_columns + 1))
        t[:, 0], t[:, 1:] = q[:, 0], _tested(q[:, 1:], grid)
    near = (np.abs(q) <= _NEAR).all(axis=1)
    if t is not None:
        near &= (np.abs(t) <= _NEAR).all(axis=1)
    # distant rows have more slices: apart from the others, of which there are more
    parts = [slice(None)] if near.all() else [np.flatnonzero(near), np.flatnonzero(~near)]
    for part in parts:
        add_products(sums, q[part], None if t is None else t[part], shift=shift)
        if t is not None:
            start = grid.n_sums - grid.n_features
            add_squares(sums, q[part, 1:], start=start, shift=shift)


def _tested(q: Array, grid: MomentGrid) -> Array:
    """Products of rows with the test matrix, each rounded to an integer by its row alone."""
    matrix, out = grid.test_matrix(), np.zeros((len(q), grid.n_columns or 0))
    for part in reversed(list(enumerate(slices(q)))):
        # exact, as are the products; one rounding for each slice, from the highest
        out += (part[1] @ matrix) * 2.0 ** (SLICE_BITS * part[0])
    out *= grid.test_scale
    return np.rint(out, out=out)
