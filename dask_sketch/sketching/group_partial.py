"""Sketch the groups of one chunk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError, ChunkError
from dask_sketch.features.feature_map import FeatureMap, has_phases, moment_units
from dask_sketch.features.kernels.fixed_point import FRACTION, WEIGHT_BITS
from dask_sketch.features.kernels.grouped import GroupSums, RowError, SplitWeights, sum_groups
from dask_sketch.features.kernels.grouped_loops import batch_summer
from dask_sketch.features.kernels.grouped_reading import batch_reading
from dask_sketch.features.kernels.incomplete import IncompleteKernel, split_incomplete
from dask_sketch.features.kernels.row_loop import MAX_DISTANCE, N_EXPONENTS, OVERFLOW, find_refused
from dask_sketch.features.kernels.row_reader import RowReader, native_type
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.sketching.accumulator import block_rows, incomplete_kernel_of, kernel_of
from dask_sketch.sketching.arguments import (
    checked_rows,
    normalized,
    refuse_phases,
    refuse_row,
)
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.missing import StackedMissing
from dask_sketch.validation.device import on_device, on_host
from dask_sketch.validation.labels import MISSING, Codes, codes_of

_BLOCKS = 8  # of rows with missing values that are sorted together
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
    x, w = on_host(x) if on_device(x) else x, on_host(w) if on_device(w) else w
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
    sums, bad = _summed(x, raw, feature_map, codes, len(labels), w, omit, label)
    available = nan_policy == "available"
    omitted = np.zeros(len(labels), np.int64)
    if bad is not None and not available:
        omitted += np.bincount(codes[bad & (codes >= 0)], minlength=len(labels))
    found = SketchGroup(
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
    )
    if bad is not None and available and (bad & (codes >= 0)).any():
        rest = _incomplete(x, feature_map, np.where(bad, codes, MISSING), found, w, label)
        found = merge([found, rest])
    if not has_phases(feature_map, found.minimum.min(axis=0), found.maximum.max(axis=0)):
        for low, high, group in zip(found.minimum, found.maximum, labels, strict=True):
            if not has_phases(feature_map, low, high):
                refuse_phases(feature_map, low, high, f"{label}, {dim}={group!s},")
    return found


def _incomplete(
    x: NDArray[Any],
    feature_map: FeatureMap,
    codes: Codes,
    complete: SketchGroup,
    weights: NDArray[np.float64] | None,
    label: str,
) -> SketchGroup:
    """Sketches of the rows with missing values; other rows have the code MISSING."""
    rows = np.flatnonzero(codes != MISSING)
    rows = rows[np.argsort(codes[rows], kind="stable")]
    step = _BLOCKS * block_rows(feature_map.n_features, feature_map.dtype)
    parts = []
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        block = _IncompleteBlock(x[part], None if weights is None else weights[part], feature_map)
        try:
            parts.append(block.sketches(codes[part], complete))
        except RowError as error:
            _refuse_incomplete(block, part, error.row, label)
        except CapacityError as error:
            raise ChunkError(f"{label}: {error}") from error
    return merge(parts)


def _refuse_incomplete(block: _IncompleteBlock, rows: Codes, refused: int, label: str) -> NoReturn:
    """Raise the error of a row with missing values, or of sums that overflow."""
    if refused == OVERFLOW:
        _refuse(block.filled, None, OVERFLOW, block.feature_map, label)
    start = int(rows[block.taken[refused]]) - refused
    refuse_row(block.filled[refused], block.weights, refused, start, label, block.feature_map)


class _IncompleteBlock:
    """Rows with missing values of several groups, each group next to each other.

    Parameters
    ----------
    raw, weights
        Rows, shape (n, n_features), none of them complete, and their weights, shape (n,), or None.
    feature_map
        Feature map of the sketches.

    Attributes
    ----------
    taken
        Positions of the rows with some finite values, shape (n_taken,).
    filled
        These rows, with the center in place of missing values, shape (n_taken, n_features).
    observed
        One where they have a value, else zero, of the same shape.
    weights
        Their weights, shape (n_taken,), or None.
    """

    def __init__(
        self, raw: NDArray[Any], weights: NDArray[np.float64] | None, feature_map: FeatureMap
    ):
        self.feature_map = feature_map
        raw = np.ascontiguousarray(raw, dtype=native_type(raw.dtype)).view()
        raw.flags.writeable = False
        given = np.empty(0) if weights is None else weights
        filled, observed = np.empty(raw.shape), np.empty(raw.shape, feature_map.dtype)
        positions = np.empty(len(raw), np.int64)
        bounds = np.zeros((2, raw.shape[1]))  # of all groups together: not used
        n, _ = split_incomplete(
            raw, given, feature_map.center, filled, observed, positions, *bounds
        )
        self.taken, self.filled, self.observed = positions[:n], filled[:n], observed[:n]
        self.weights = None if weights is None else weights[self.taken]

    def sketches(self, codes: Codes, complete: SketchGroup) -> SketchGroup:
        """Sketches of the groups of the rows.

        Parameters
        ----------
        codes
            Position of the group of each row in ``complete``, ascending, shape (n,).
        complete
            Sketches of the complete rows.

        Raises
        ------
        RowError
            With the number of a row in ``filled`` that cannot be summed.
        CapacityError
            If the moments of the rows are too large.
        """
        groups, numbers = np.unique(codes, return_inverse=True)
        left_out = np.ones(len(codes), dtype=bool)
        left_out[self.taken] = False
        n_groups, codes = len(groups), numbers[self.taken]
        moments, frequencies, pairs = self._summed(codes, n_groups)
        split, prepared = None, kernel_of(self.feature_map)
        if self.weights is not None:
            split = SplitWeights.of(self.weights, prepared)
        sums = sum_groups(self.filled, prepared, codes, n_groups, split)
        low, high = self._bounds(codes, n_groups)
        missing = StackedMissing(frequencies, pairs, sums.first, sums.second, sums.weights)
        return SketchGroup(
            feature_map=self.feature_map,
            labels=complete.labels[groups],
            moment_quanta=moments,
            weight_quanta=sums.weights,
            squared_weight_quanta=sums.squared_weights,
            count=sums.count,
            omitted=np.bincount(numbers[left_out], minlength=n_groups),
            minimum=low,
            maximum=high,
            first_quanta=sums.first,
            second_quanta=sums.second,
            tight_bounds=np.ones(n_groups, dtype=bool),
            dim=complete.dim,
            missing=missing.or_none(),
        )

    def _bounds(
        self, codes: Codes, n_groups: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bounds of the observed values of each group, without rows of weight zero."""
        low = np.full((n_groups, self.filled.shape[1]), np.inf)
        high = -low
        counts = self.observed > 0.0
        if self.weights is not None:
            counts &= (self.weights > 0.0)[:, None]
        found, starts = np.unique(codes, return_index=True)
        if len(found):
            for bound, fill, reduce in ((low, np.inf, np.minimum), (high, -np.inf, np.maximum)):
                values = np.where(counts, self.filled, fill)
                bound[found] = reduce.reduceat(values, starts, axis=0) + 0.0  # zero has no sign
        return low, high

    def _summed(
        self, codes: Codes, n_groups: int
    ) -> tuple[StackedFixedPoint, StackedFixedPoint, StackedFixedPoint]:
        """Moments of each group, and its counters of frequencies and of pairs."""
        feature_map = self.feature_map
        kernel, own = kernel_of(feature_map).kernel, incomplete_kernel_of(feature_map)
        step = min(block_rows(feature_map.n_features, feature_map.dtype), kernel.capacity)
        reader = RowReader(
            feature_map.center,
            moment_units(feature_map),
            kernel.fraction,
            np.empty((step, feature_map.n_features), feature_map.dtype),
            np.empty(step, feature_map.dtype),
        )
        moments = [_nothing((n_groups, 2, feature_map.n_frequencies))]
        counters = [_nothing((n_groups, len(own.sets)))]
        places = [np.arange(n_groups)]
        for start in range(0, len(self.filled), step):
            part = slice(start, start + step)
            used = None if self.weights is None else self.weights[part]
            refused = reader.take(self.filled[part], used, False)
            if refused >= 0:
                raise RowError(start + refused)
            for exponent, rows in reader.groups:
                order = np.arange(rows.start, rows.stop) if used is None else reader.order[rows]
                order = start + order.astype(np.intp)
                found, starts = np.unique(codes[order], return_index=True)
                weights = None if used is None else reader.weights[rows]
                quanta, missing = _sums_of(
                    own, reader.rows[rows], self.observed[order], weights, starts, feature_map
                )
                moments.append(StackedFixedPoint.of(quanta, FRACTION - kernel.fraction + exponent))
                shift = FRACTION - WEIGHT_BITS + exponent
                # the last bits are zero: mantissas have at most 24 bits there
                missing, shift = (missing >> -shift, 0) if shift < 0 else (missing, shift)
                counters.append(StackedFixedPoint.of(missing, shift))
                places.append(found)
        missed = StackedFixedPoint.sum(counters, places, n_groups)
        n_sets = len(own.sets) - own.n_pairs
        return (
            StackedFixedPoint.sum(moments, places, n_groups),
            replace(missed, words=missed.words[..., own.set_of_frequency]),
            replace(missed, words=missed.words[..., n_sets:]),
        )


def _sums_of(
    kernel: IncompleteKernel,
    x: NDArray[np.floating],
    observed: NDArray[np.floating],
    weights: NDArray[np.floating] | None,
    starts: Codes,
    feature_map: FeatureMap,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Moments of the rows of each group, and weights of those that miss a set of features."""
    prepared = kernel_of(feature_map)
    x *= observed  # zero where a value is missing, also if the center is rounded
    quanta = np.empty((len(starts), 2, feature_map.n_frequencies), np.int64)
    missing = np.empty((len(starts), len(kernel.sets)), np.int64)
    given = np.ones(len(x)) if weights is None else weights.astype(np.float64)
    totals = np.add.reduceat(np.rint(given * 2.0**WEIGHT_BITS).astype(np.int64), starts)
    for k, (start, stop) in enumerate(zip(starts, [*starts[1:], len(x)], strict=True)):
        part = slice(start, stop)
        used = None if weights is None else weights[part]
        packed = prepared.kernel.zeros(prepared.packed)
        kernel.add(x[part], observed[part], packed, used)
        quanta[k] = prepared.kernel.unpack(packed, feature_map.n_frequencies)
        missing[k] = totals[k] - kernel.count(observed[part], used)
    return quanta, missing


def _nothing(shape: tuple[int, ...]) -> StackedFixedPoint:
    """Zeros."""
    return StackedFixedPoint.of(np.zeros(shape, np.int32), largest=0)


def _summed(
    x: NDArray[Any],
    raw: NDArray[Any],
    feature_map: FeatureMap,
    codes: Codes,
    n_groups: int,
    weights: NDArray[np.float64] | None,
    omit: bool,
    label: str,
) -> tuple[GroupSums, NDArray[np.bool_] | None]:
    """Sums of the groups, and the rows left out, or None; ``raw`` rows are for messages."""
    prepared = kernel_of(feature_map)
    split = None if weights is None else SplitWeights.of(weights, prepared)
    clean = True
    if split is not None:
        unread = np.flatnonzero(split.exponents == N_EXPONENTS)  # the sums do not read these rows
        clean = split.valid and (not len(unread) or not _not_finite(x[unread]).any())
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
    bad = _not_finite(x)
    if bad.any() and not omit:
        first = int(np.argmax(bad))
        refuse_row(raw[first], None, first, 0, label, feature_map)
    try:
        return sum_groups(x, prepared, np.where(bad, MISSING, codes), n_groups, split), bad
    except RowError as error:
        _refuse(x, weights, error.row, feature_map, label)


def _not_finite(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Flags of the rows with a NaN or infinite value."""
    out = np.zeros(len(x), dtype=bool)
    step = max(_BLOCK // x.shape[1], 1)
    for start in range(0, len(x), step):
        out[start : start + step] = ~np.isfinite(x[start : start + step]).all(axis=1)
    return out


def _refuse(
    x: NDArray[Any],
    weights: NDArray[np.float64] | None,
    row: int,
    feature_map: FeatureMap,
    label: str,
) -> NoReturn:
    """Raise the error of the first row too far from the center, or of sums that overflow."""
    if row == OVERFLOW:
        raise ChunkError(
            f"{label}: the moments of the features of a group are larger than a sketch can hold "
            "exactly. Multiply all weights by one smaller factor, or design a feature map for "
            "these data."
        )
    limit, center = MAX_DISTANCE * moment_units(feature_map), feature_map.center
    step = max(_BLOCK // x.shape[1], 1)
    for start in range(0, len(x), step):  # the first row of the chunk, not of the first group
        rows = x[start : start + step].astype(np.float64)
        far = np.isfinite(rows).all(axis=1) & (np.abs(rows - center) > limit).any(axis=1)
        if weights is not None:
            far &= weights[start : start + step] != 0
        if far.any():
            row = start + int(far.argmax())
            break
    refuse_row(x[row], None, row, 0, label, feature_map)
