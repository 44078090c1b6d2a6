"""Sketch the groups of one chunk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ChunkError
from dask_sketch.features.feature_map import FeatureMap, has_phases, moment_units
from dask_sketch.features.kernels.grouped import (
    GroupSums,
    IncompleteGroupRows,
    RowError,
    SplitWeights,
    sum_groups,
)
from dask_sketch.features.kernels.grouped_loops import batch_summer
from dask_sketch.features.kernels.grouped_reading import batch_reading
from dask_sketch.features.kernels.incomplete import missing_values
from dask_sketch.features.kernels.row_loop import MAX_DISTANCE, N_EXPONENTS, OVERFLOW, find_refused
from dask_sketch.features.kernels.row_reader import native_type
from dask_sketch.sketching.accumulator import incomplete_kernel_of, kernel_of
from dask_sketch.sketching.arguments import (
    checked_rows,
    normalized,
    refuse_phases,
    refuse_row,
)
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.missing import ARRAYS, StackedMissing
from dask_sketch.validation.device import from_device
from dask_sketch.validation.labels import MISSING, Codes, codes_of
from dask_sketch.validation.tables import require_same_index

_BLOCK = 2**16  # numbers of a block of rows that is tested at once


def prepare_groups(feature_map: FeatureMap, dtype: Any = np.float32) -> None:
    """Sample the frequencies, check them and compile, before the first chunk arrives.

    Parameters
    ----------
    feature_map
        Feature map of the sketches.
    dtype
        Type of the rows.

    Raises
    ------
    ArtifactError
        If this process samples other frequencies than the feature map states.
    """
    prepared = kernel_of(feature_map)
    batch_summer(prepared.kernel)
    mixed = prepared.row_whitening is not None
    batch_reading(native_type(np.dtype(dtype)).name, feature_map.dtype, mixed)


def sketch_groups(
    samples: Any,
    feature_map: FeatureMap,
    groups: Any,
    weights: Any,
    nan_policy: str,
    label: str,
    dim: str,
) -> SketchGroup:
    """Sketch one chunk in memory group by group.

    Parameters
    ----------
    samples, feature_map, groups, weights, nan_policy, label, dim
        Arguments of :func:`~dask_sketch.partial_sketch`.
    """
    x, w = checked_rows(samples, weights, feature_map, label)
    require_same_index(groups, samples, "groups")
    x, w = from_device(x), from_device(w)
    raw, x = x, normalized(x, feature_map)
    labels, codes = codes_of(groups, len(x), label)
    omit = nan_policy != "raise"
    unlabelled = int(np.count_nonzero(codes == MISSING))
    if unlabelled and not omit:
        row = int(np.argmax(codes == MISSING))
        raise ChunkError(
            f"{label}: row {row} of this chunk has no label (NaN, NaT or None). Give it one, or "
            "pass nan_policy='omit' to leave such rows out and count them.",
            parameter="nan_policy",
        )
    if not len(labels):
        return replace(SketchGroup.empty(feature_map, dim), unlabelled=unlabelled)
    w = None if w is None else np.ascontiguousarray(w, dtype=np.float64)
    sums, bad = _summed(x, raw, feature_map, codes, len(labels), w, nan_policy, label)
    omitted = np.zeros(len(labels), np.int64)
    if bad is not None:
        omitted += np.bincount(codes[bad & (codes >= 0)], minlength=len(labels))
    missing = None
    if sums.missing is not None:
        counters = (getattr(sums.missing, name) for name in (*ARRAYS, "weights"))
        missing = StackedMissing(*counters).or_none()
    sketches = SketchGroup(
        feature_map=feature_map,
        labels=labels,
        moment_quanta=sums.moments,
        weight_quanta=sums.weights,
        squared_weight_quanta=sums.squared_weights,
        count=sums.count,
        omitted=omitted,
        minimum=sums.minimum,
        maximum=sums.maximum,
        first_quanta=sums.first,
        second_quanta=sums.second,
        tight_bounds=np.ones(len(labels), dtype=bool),
        unlabelled=unlabelled,
        dim=dim,
        missing=missing,
    )
    if not has_phases(feature_map, sketches.minimum.min(axis=0), sketches.maximum.max(axis=0)):
        for low, high, group in zip(sketches.minimum, sketches.maximum, labels, strict=True):
            if not has_phases(feature_map, low, high):
                refuse_phases(feature_map, low, high, f"{label}, {dim}={group!s},")
    return sketches


def _summed(
    x: NDArray[Any],
    raw: NDArray[Any],
    feature_map: FeatureMap,
    codes: Codes,
    n_groups: int,
    weights: NDArray[np.float64] | None,
    nan_policy: str,
    label: str,
) -> tuple[GroupSums, NDArray[np.bool_] | None]:
    """Sums of the groups, and the rows left out, or None; ``raw`` rows are for messages."""
    prepared, omit = kernel_of(feature_map), nan_policy != "raise"
    split = None if weights is None else SplitWeights.of(weights, prepared)
    clean = True
    if split is not None:
        unread = np.flatnonzero(split.exponents == N_EXPONENTS)  # the sums do not read these rows
        clean = split.valid and (not len(unread) or not missing_values(x[unread])[0].any())
        if not split.valid:
            assert weights is not None
            read = np.ascontiguousarray(x, dtype=native_type(x.dtype))
            refused = int(find_refused(read, weights, omit))
            if refused >= 0:
                refuse_row(raw[refused], weights, refused, 0, label, feature_map)
    if clean:
        try:
            return sum_groups(x, prepared, codes, n_groups, split), None
        except RowError as error:
            if error.row != -1:
                _refuse(x, weights, error.row, feature_map, label)
    missing, gaps = missing_values(x)
    bad = missing > 0
    if bad.any() and not omit:
        first = int(np.argmax(bad))
        refuse_row(raw[first], None, first, 0, label, feature_map)
    incomplete = None
    if nan_policy == "available":
        some = bad & (missing < x.shape[1]) & (codes != MISSING)
        if weights is not None and split is not None and not split.valid:
            _refuse_weight(weights, some, feature_map, label)
        if some.any():
            kernel = incomplete_kernel_of(feature_map)
            incomplete = IncompleteGroupRows(kernel, np.where(some, codes, MISSING), gaps)
    complete = np.where(bad, MISSING, codes)
    try:
        sums = sum_groups(x, prepared, complete, n_groups, split, incomplete)
    except RowError as error:
        _refuse(x, weights, error.row, feature_map, label, incomplete)
    return sums, bad if nan_policy != "available" else missing == x.shape[1]


def _refuse_weight(
    weights: NDArray[np.float64],
    rows: NDArray[np.bool_],
    feature_map: FeatureMap,
    label: str,
) -> None:
    """Raise the error of the first of some rows with missing values whose weight is invalid."""
    chosen = np.flatnonzero(rows)
    filled = np.broadcast_to(feature_map.center, (len(chosen), len(feature_map.center)))
    refused = int(find_refused(np.ascontiguousarray(filled), weights[chosen], False))
    if refused >= 0:
        row = int(chosen[refused])
        refuse_row(filled[refused], weights, row, 0, label, feature_map)


def _refuse(
    x: NDArray[Any],
    weights: NDArray[np.float64] | None,
    row: int,
    feature_map: FeatureMap,
    label: str,
    incomplete: IncompleteGroupRows | None = None,
) -> NoReturn:
    """Raise the error of the first row too far from the center, or of sums that overflow."""
    if row == OVERFLOW:
        raise ChunkError(
            f"{label}: the moments of the features of a group are larger than a sketch holds "
            "exactly. Multiply all weights by one smaller factor, or design a feature map for "
            "these data."
        )
    limit, center = MAX_DISTANCE * moment_units(feature_map), feature_map.center
    step = max(_BLOCK // x.shape[1], 1)
    for start in range(0, len(x), step):  # the first row of the chunk, not of the first group
        rows = x[start : start + step].astype(np.float64)
        finite = np.isfinite(rows)
        read = finite.all(axis=1)
        if incomplete is not None:
            read |= incomplete.codes[start : start + step] != MISSING
        far = read & (finite & (np.abs(rows - center) > limit)).any(axis=1)
        if weights is not None:
            far &= weights[start : start + step] != 0
        if far.any():
            row = start + int(far.argmax())
            break
    values = x[row]
    if incomplete is not None:
        values = np.where(np.isfinite(values), values, center)
    refuse_row(values, None, row, 0, label, feature_map)
