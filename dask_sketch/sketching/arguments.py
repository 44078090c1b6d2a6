"""Validate the arguments of partial sketches, and refuse rows that cannot be summed."""

from __future__ import annotations

from typing import Any, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import MAX_EXPONENT, MIN_EXPONENT, is_weight
from dask_sketch.features.kernels.row_loop import MAX_DISTANCE
from dask_sketch.features.kernels.row_reader import native_type
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.validation.arrays import (
    require_integer,
    require_memory,
    require_unmasked,
    unit_rows,
)
from dask_sketch.validation.device import device_array, on_device
from dask_sketch.validation.tables import (
    feature_title,
    names_in,
    require_names,
    require_same_index,
)

NanPolicy = Literal["raise", "omit", "available"]
NAN_POLICIES: tuple[str, ...] = get_args(NanPolicy)
Device = Literal["cuda"]
DEVICES: tuple[str, ...] = get_args(Device)
MAX_POSITION = 2**62  # leaves room for as many rows after it


def require_nan_policy(nan_policy: object, *, without: str | None = None) -> None:
    """Raise InputError unless ``nan_policy`` is one of ``NAN_POLICIES``.

    Parameters
    ----------
    nan_policy
        Value to check.
    without
        Reason why ``"available"`` is refused, with the remedy; None if it is supported.
    """
    if nan_policy not in NAN_POLICIES:
        names = "'raise' or 'omit'" if without else "'raise', 'omit' or 'available'"
        raise InputError(f"nan_policy={nan_policy!r}: choose {names}.")
    if without is not None and nan_policy == "available":
        raise InputError(f"nan_policy='available' {without}", parameter="nan_policy")


def require_feature_map(feature_map: object) -> None:
    """Raise InputError unless ``feature_map`` is a FeatureMap."""
    if isinstance(feature_map, MomentGrid):
        raise InputError(
            "feature_map of type MomentGrid: only sketch, plan, merge and ledgers take the grid of "
            "second moments; give a FeatureMap, from design() without task='pca'."
        )
    if not isinstance(feature_map, FeatureMap):
        raise InputError(
            f"feature_map of type {type(feature_map).__name__}: give a FeatureMap, from design()."
        )


def require_position(position: object) -> int:
    """Raise InputError unless ``position`` is the number of a row that 64 bits hold."""
    start = require_integer("position", position, 0)
    if start > MAX_POSITION:
        raise InputError(f"position={start}: give an integer of at most 2**62.")
    return start


def require_device(device: object) -> None:
    """Raise InputError unless ``device`` is None or one of ``DEVICES``."""
    if device is not None and device not in DEVICES:
        raise InputError(
            f"device={device!r}: give 'cuda' to copy chunks to the GPU, or leave it out to sketch "
            "each chunk in the memory that holds it."
        )


def checked_rows(
    samples: Any, weights: Any, feature_map: FeatureMap, label: str
) -> tuple[Any, Any]:
    """Validate samples and weights without copying them.

    Parameters
    ----------
    samples, weights, feature_map, label
        Arguments of :func:`~dask_sketch.partial_sketch`.

    Returns
    -------
    x, w
        Samples of shape (n, n_features), and weights of shape (n,) or None, on the device that
        holds them.

    Raises
    ------
    InputError
        If shapes or types do not fit, or values are masked or lazy.
    ChunkError
        If a categorical feature has a value that is not a code of its levels.
    """
    require_feature_map(feature_map)
    x, w = checked_chunk(
        samples, weights, feature_map.n_features, "the feature map", label,
        feature_map.feature_names,
    )  # fmt: skip
    if feature_map.categories is not None:
        feature_map.categories.require_codes(x, label)
    return x, w


def normalized(rows: NDArray[Any], feature_map: FeatureMap) -> NDArray[Any]:
    """Rows as the feature map takes them: divided by their lengths, if it has ``normalize``.

    Parameters
    ----------
    rows
        Rows of the data, shape (n, n_features).
    feature_map
        Feature map of the sketch.

    Returns
    -------
    rows
        The same, or rows of length one; rows without a direction are NaN.
    """
    if not feature_map.normalize:
        return rows
    return unit_rows(rows).astype(native_type(rows.dtype), copy=False)


def require_directions(rows: NDArray[Any], start: int, label: str) -> None:
    """Raise ChunkError for the first row of zeros, which has no direction.

    Parameters
    ----------
    rows
        Rows of the data, shape (n, n_features).
    start
        Number of the first row in the chunk.
    label
        Name of the chunk for messages.
    """
    zero = ~rows.any(axis=1)
    if zero.any():
        raise ChunkError(
            f"{label}: row {start + int(np.argmax(zero))} of this chunk is 0 in all features, and "
            "has no direction (normalize=True). Clean the data, or pass nan_policy='omit' to leave "
            "such rows out and count them.",
            parameter="nan_policy",
        )


def checked_chunk(
    samples: Any,
    weights: Any,
    n_features: int,
    owner: str,
    label: str,
    names: tuple[str, ...] | None = None,
) -> tuple[Any, Any]:
    """Validate samples and weights without copying them.

    Parameters
    ----------
    samples, weights, label
        Arguments of :func:`~dask_sketch.partial_sketch`.
    n_features
        Number of features.
    owner
        Name, in messages, of the object that has as many features.
    names
        Names of its features, if it has them.

    Returns
    -------
    x, w
        Samples of shape (n, n_features), and weights of shape (n,) or None, on the device that
        holds them.

    Raises
    ------
    InputError
        If shapes, types, names or indexes do not fit, or values are masked or lazy.
    """
    require_memory(samples, "samples", "sketch() is for whole data sets; give a chunk in memory.")
    require_unmasked(samples, "samples", f"the values of {label}")
    require_names(names_in(samples), label, names, owner, parameter="samples")
    require_same_index(weights, samples, "weights")
    x = device_array(samples) if on_device(samples) else np.asarray(samples)
    if x.dtype.kind not in "fiub":
        raise InputError(
            f"{label} has dtype={x.dtype}, not real numbers. Select numeric columns, or convert "
            "them."
        )
    if x.ndim < 1 or x.shape[-1] != n_features:
        raise InputError(
            f"{label} has shape={x.shape}: give (..., {n_features}), because {owner} has "
            f"n_features={n_features}."
        )
    x = x.reshape(-1, x.shape[-1])
    if weights is None:
        return x, None
    require_unmasked(weights, "weights", f"weights of {label}")
    w = device_array(weights) if on_device(weights) else np.asarray(weights)
    if w.dtype.kind not in "fiub":
        raise InputError(f"weights of {label} have dtype={w.dtype}: give real numbers.")
    if w.size != len(x):
        raise InputError(
            f"weights of {label} have size={w.size}: give one weight for each of the {len(x)} rows."
        )
    return x, w.reshape(-1)


def refuse_row(
    row: NDArray[Any],
    weights: NDArray[np.float64] | None,
    position: int,
    start: int,
    label: str,
    feature_map: FeatureMap,
) -> NoReturn:
    """Raise the error of the first bad row of a block.

    Parameters
    ----------
    row
        Values of the row in the data, shape (n_features,).
    weights
        Weights of the block, or None.
    position
        Position of the row in the block.
    start
        Position of the block in the chunk.
    label
        Name of the chunk for messages.
    feature_map
        Feature map of the sketch.

    Raises
    ------
    ChunkError
        If the weight is out of range, or a value is NaN, infinite or too far from the center.
    """
    weight = None if weights is None else float(weights[position])
    if feature_map.normalize:
        require_directions(row[None], start + position, label)
        unit = unit_rows(row[None])[0]
        row = row if np.isnan(unit).any() else unit
    refuse_values(
        row, weight, start + position, label, feature_map.center, moment_units(feature_map),
        feature_map.feature_names, "the feature map", "design a feature map for these data",
    )  # fmt: skip


def refuse_values(
    row: NDArray[Any],
    weight: float | None,
    number: int,
    label: str,
    center: NDArray[np.float64],
    units: NDArray[np.float64],
    names: tuple[str, ...] | None,
    owner: str,
    remedy: str,
) -> NoReturn:
    """Raise the error of a bad row.

    Parameters
    ----------
    row
        Values of the row, shape (n_features,).
    weight
        Weight of the row, or None.
    number
        Number of the row in the chunk.
    label
        Name of the chunk for messages.
    center, units
        Center and unit of each feature, shape (n_features,).
    names
        Names of the features, or None.
    owner
        Name, in messages, of the object that has the center and the units.
    remedy
        Clause of the message, for rows that are too far from the center.

    Raises
    ------
    ChunkError
        If the weight is out of range, or a value is NaN, infinite or too far from the center.
    """
    finite = np.isfinite(row)
    if finite.all() and weight is not None and not is_weight(weight):
        refuse_weight(weight, number, label)
    if finite.all():
        away = (row.astype(np.float64) - center) / units
        feature = int(np.argmax(np.abs(away)))
        raise ChunkError(
            f"{label}: row {number} of this chunk has {row[feature]} in "
            f"{feature_title(feature, names)}, {abs(away[feature]):.3g} times the scale of {owner} "
            f"from its center; the limit of exact sums is {MAX_DISTANCE:.3g}. Remove fill values, "
            f"use another unit, or {remedy}."
        )
    refuse_not_finite(row, number, label, names)


def refuse_weight(weight: float, number: int, label: str) -> NoReturn:
    """Raise the error of a weight that is out of range.

    Parameters
    ----------
    weight
        Weight of a row.
    number
        Number of the row in the chunk.
    label
        Name of the chunk for messages.
    """
    remedy = "give finite weights of at least zero."
    if 0 < weight < np.inf:
        remedy = (
            f"give zero, or a number from 2**{MIN_EXPONENT} to 2**{MAX_EXPONENT}. One factor for "
            "all weights changes no average."
        )
    raise ChunkError(f"weights of {label}: row {number} has weight={weight}; {remedy}")


def refuse_not_finite(
    row: NDArray[Any], number: int, label: str, names: tuple[str, ...] | None
) -> NoReturn:
    """Raise the error of the first value of a row that is not finite.

    Parameters
    ----------
    row
        Values of the row, shape (n_features,).
    number
        Number of the row in the chunk.
    label
        Name of the chunk for messages.
    names
        Names of the features, or None.
    """
    feature = int(np.argmin(np.isfinite(row)))
    raise ChunkError(
        f"{label}: row {number} of this chunk has {row[feature]} in "
        f"{feature_title(feature, names)}. Clean the data, or pass "
        "nan_policy='omit' to leave such rows out and count them.",
        parameter="nan_policy",
    )


def refuse_phases(
    feature_map: FeatureMap,
    minimum: NDArray[np.float64],
    maximum: NDArray[np.float64],
    label: str,
) -> NoReturn:
    """Raise the error of values whose phases overflow the precision of the feature map.

    Parameters
    ----------
    feature_map
        Feature map of the sketch.
    minimum, maximum
        Bounds of the values, shape (n_features,).
    label
        Name of the chunk for messages.
    """
    raise ChunkError(
        f"{label} holds values from {minimum.min():g} to {maximum.max():g}, too large for features "
        f"with dtype={feature_map.dtype!r}. Use another unit, or a feature map with "
        "dtype='float64'."
    )
