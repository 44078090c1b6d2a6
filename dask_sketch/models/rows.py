"""Samples given to a model: checked and read by blocks when in memory, handed on when lazy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.masked import require_unmasked
from dask_sketch.features.tables import common_dtype, names_of, require_names, to_numpy
from dask_sketch.features.weighted import weighted_sum

Array = NDArray[np.float64]

_BLOCK = 131_072  # numbers of one block, samples and components together: 1 MiB


def in_memory(x: Any) -> bool:
    """Whether samples are an array, a table or nested lists in memory, rather than lazy."""
    return isinstance(x, (np.ndarray, list, tuple)) or _is_table(x)


def _is_table(x: Any) -> bool:
    """Whether it is of pandas, which need not be installed."""
    return type(x).__module__.partition(".")[0] == "pandas"


def lazily(model: Any, method: str, x: Any, weights: Any = None) -> Any:
    """The lazy result of a model's method on lazy samples."""
    # the one call upwards: a model in memory needs no Dask
    from dask_sketch.graph.apply import map_rows

    return map_rows(model, method, x, **({} if weights is None else {"weights": weights}))


def row_blocks(
    x: Any, n_features: int, n_components: int, names: tuple[str, ...] | None = None
) -> Iterator[Array]:
    """Check samples, which may be a table with names, and yield them as float64 blocks of rows.

    Raises
    ------
    InputError
        If ``x`` is no (n, n_features) array of finite real numbers, or table with such columns.
    """
    require_unmasked(x, "rows", "the values of x")
    named = None
    if _is_table(x) and hasattr(x, "select_dtypes"):
        x = x.select_dtypes(["number", "bool"])  # the columns that a sketch takes too
        named = names_of(x.columns)
        if x.shape[1]:
            x = to_numpy(x, common_dtype(list(x.dtypes)))
    rows = np.asarray(x)
    if rows.dtype.kind not in "fiub":
        raise InputError(f"x holds values of type {rows.dtype}, which are not real numbers.")
    if rows.ndim != 2:
        raise InputError(f"x has shape {rows.shape}; give (n_samples, {n_features}).")
    if rows.shape[1] != n_features:
        raise InputError(f"x has {rows.shape[1]} features; the model has {n_features}.")
    require_names(named, "x", names, "the model")
    step = max(_BLOCK // (2 * n_features + n_components), 16)
    for start in range(0, len(rows), step):
        block = np.asarray(rows[start : start + step], dtype=np.float64)
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            raise InputError(
                f"row {start + int(np.argmin(finite))} of x holds NaN or infinity; leave it out."
            )
        yield block


def weighted_mean(values: Array, weights: Any) -> float:
    """Mean of one value for each sample, with the weights of the samples or without.

    Raises
    ------
    InputError
        If there are no values, or the weights do not fit.
    """
    if not len(values):
        raise InputError("x has no samples to score.")
    if weights is None:
        return float(values.mean())
    total, weight = weighted_sum(values, weights, "x")
    if not weight > 0:
        raise InputError("weights must be finite, not negative and not all zero.")
    return total / weight
