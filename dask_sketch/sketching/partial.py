"""Sketch one chunk in memory, in blocks of rows."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError, ChunkError, InputError
from dask_sketch.features.feature_map import FeatureMap, has_phases, moment_units
from dask_sketch.features.kernels.cuda import ChunkSums, HostFrequencies, prepare_device, sum_chunk
from dask_sketch.features.kernels.row_loop import MAX_DISTANCE
from dask_sketch.features.kernels.row_reader import ChunkReader, row_taker
from dask_sketch.features.kernels.whitened_rows import RowWhitener
from dask_sketch.sketching.accumulator import ExactSums, IncompleteRows, block_rows, kernel_of
from dask_sketch.sketching.arguments import (
    checked_rows,
    normalized,
    refuse_phases,
    refuse_row,
    require_device,
    require_feature_map,
    require_nan_policy,
    require_position,
)
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.group_partial import sketch_groups
from dask_sketch.sketching.missing import require_sparse
from dask_sketch.sketching.row_sample import RowSampler, RowSampling
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.device import from_device, on_device, on_host

# Blocks of rows with weights that are gathered at most, so that there are more of each exponent.
GATHERED = 2


def prepare(feature_map: FeatureMap, dtype: Any = np.float32, device: str | None = None) -> None:
    """Sample the frequencies, check them and compile, before the first chunk arrives.

    Parameters
    ----------
    feature_map
        Feature map of the sketch.
    dtype
        Type of the rows.
    device
        Device, as in :func:`partial_sketch`.

    Raises
    ------
    ArtifactError
        If this process samples other frequencies than the feature map states.
    DeviceError
        If a GPU is needed, and there is none, or no CuPy.
    """
    if device is not None:
        prepare_device(_host_frequencies(feature_map), np.dtype(dtype))
        return
    kernel_of(feature_map)
    row_taker(np.dtype(dtype), feature_map.dtype)
    if feature_map.row_whitening is not None:
        RowWhitener(feature_map.row_whitening, feature_map.dtype)


@overload
def partial_sketch(
    samples: Any,
    feature_map: FeatureMap,
    weights: Any = None,
    *,
    groups: None = None,
    nan_policy: str = "raise",
    label: str = "samples",
    device: str | None = None,
    dim: str = "group",
    sample: int | None = None,
    position: int = 0,
) -> Sketch: ...
@overload
def partial_sketch(
    samples: Any,
    feature_map: FeatureMap,
    weights: Any = None,
    *,
    groups: Any,
    nan_policy: str = "raise",
    label: str = "samples",
    device: str | None = None,
    dim: str = "group",
) -> SketchGroup: ...
def partial_sketch(
    samples: Any,
    feature_map: FeatureMap,
    weights: Any = None,
    *,
    groups: Any = None,
    nan_policy: str = "raise",
    label: str = "samples",
    device: str | None = None,
    dim: str = "group",
    sample: int | None = None,
    position: int = 0,
) -> Sketch | SketchGroup:
    """Sketch one chunk in memory, as a whole or group by group.

    With ``normalize=True`` in the feature map, each row is divided by its Euclidean length first.
    Only a block of a few hundred rows is converted at a time, so the memory used beyond the chunk
    is one sketch and one block. All sums are exact (see :class:`Sketch`). A chunk on a GPU is
    sketched there; its sketch differs by rounding only, and has the same feature map.

    With groups, row numbers are sorted by group, 4 bytes each, and rows are read from the chunk;
    beyond that and the labels, only the sketches take memory. (A chunk that is not a C-contiguous
    array of float32 or float64, or is normalized, is copied first, one on a GPU to the host.)

    Parameters
    ----------
    samples
        Chunk of shape (..., n_features) and any real dtype; all leading axes are samples. An array
        in the memory of a GPU (of CuPy, or with the CUDA array interface) is sketched there.
    feature_map
        Feature map of the sketch.
    weights
        Weights of shape (...) like the samples, zero or from ``2**-32`` to ``2**32``; all one when
        not given.
    groups
        Label of each sample, shape (...) like the samples: integers, strings, dates, durations,
        booleans or real numbers; also a series or array of pandas. One sketch of all samples when
        not given.
    nan_policy
        ``"raise"`` refuses the chunk at the first row with a NaN or infinite value, or without a
        label (NaN, NaT, None); ``"omit"`` leaves such rows out and counts them. ``"available"``
        treats NaN and infinite values as missing: each frequency, and each moment, is summed over
        the rows that observe the features it uses, and only rows without any finite value are left
        out. This is valid where values are missing completely at random, independently of all
        values. It needs a feature map whose frequencies use few features
        (``distribution="sparse-sums"``), and rows that are not on a GPU. Rows without a label are
        left out and counted, too.
    label
        Name of the chunk for messages.
    device
        ``"cuda"`` copies a chunk in the memory of the host to the current GPU and sketches it
        there. Groups are summed on the processor only.
    dim
        Name of the dimension of groups.
    sample
        Maximum number of random rows that the sketch carries, ``>= 1``; none by default. Not with
        groups.
    position
        Position of the first row in the source, ``>= 0``. Rows of one sample need different
        positions: give the number of rows before this chunk.

    Returns
    -------
    sketch
        Sketch of the chunk, empty if it has no rows; with groups, the :class:`SketchGroup` of the
        labels in the chunk, each with the bits of the sketch of its samples alone.

    Raises
    ------
    InputError
        If the number of features, of weights or of labels is wrong, the values are not numbers, or
        they are masked or lazy; or if labels have no sortable type.
    ChunkError
        If weights are out of range, rows have no label, or rows are refused: NaN, infinite, or so
        far from the center that they cannot be summed exactly. The message names chunk and row.
    DeviceError
        If a GPU is needed, and there is none, or no CuPy.

    Examples
    --------
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> x = [[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]
    >>> partial_sketch(x, feature_map).mean
    array([2., 1.])
    >>> partial_sketch([[0.0, 1.0], [np.nan, 1.0]], feature_map, nan_policy="omit").omitted
    1
    >>> group = partial_sketch(x, feature_map, groups=[7, 3, 7])
    >>> group.labels, group.count, group.mean
    (array([3, 7]), array([1, 2]), array([[2., 1.], [2., 1.]]))
    """
    require_nan_policy(nan_policy)
    require_device(device)
    require_feature_map(feature_map)
    if nan_policy == "available":
        require_sparse(feature_map)
    if groups is not None:
        if device is not None:
            raise InputError(
                f"device={device!r}: groups are summed on the processor; leave it out with groups."
            )
        if sample is not None:
            raise InputError(
                f"sample={sample!r}: sketches of groups carry no rows; leave it out with groups."
            )
        return sketch_groups(samples, feature_map, groups, weights, nan_policy, label, dim)
    x, w = checked_rows(samples, weights, feature_map, label)
    if feature_map.normalize and device is not None:
        raise InputError(
            f"device={device!r} with a feature map with normalize=True: such rows are summed on "
            "the processor; leave device out."
        )
    if feature_map.normalize and on_device(x):
        x, w = from_device(x), from_device(w)
    if device is not None or on_device(x):
        if nan_policy == "available":
            raise InputError(
                f"nan_policy='available' of {label} on a GPU: copy the rows to the processor, or "
                "pass nan_policy='omit'.",
                parameter="nan_policy",
            )
        sketch = _sketch_on_device(x, w, feature_map, nan_policy, label)
    elif on_device(w):
        raise InputError(
            f"weights of {label} are on a GPU and the samples are not: copy one to the other, or "
            "pass device='cuda'."
        )
    else:
        sketch = _sketch_on_host(x, w, feature_map, nan_policy, label)
    if sample is None:
        return sketch
    size = require_integer("sample", sample, 1)
    start = require_position(position)
    sampling = RowSampling.of(size, feature_map, None, weighted=w is not None)
    return add_sample(sketch, x, w, sampling, start=start)


def add_sample(
    sketch: Sketch,
    x: Any,
    weights: Any,
    sampling: RowSampling,
    *,
    stream: tuple[int, ...] = (),
    start: int = 0,
    positions: NDArray[np.int64] | None = None,
) -> Sketch:
    """Choose random rows of a chunk that has been sketched.

    Parameters
    ----------
    sketch
        Sketch of the chunk.
    x, weights
        Rows of the chunk, shape (..., n_features), and their weights or None.
    sampling
        Choice of the rows.
    stream, start, positions
        Place of the rows in the source, see :class:`RowSampler`.
    """
    rows = x.reshape(-1, x.shape[-1])
    sampler = RowSampler(sampling, sketch.feature_map, stream)
    sampler.add(rows, None if weights is None else weights.reshape(-1), start, positions)
    return replace(sketch, sample=sampler.result(rows.dtype))


def _sketch_on_host(
    x: NDArray[Any],
    w: NDArray[Any] | None,
    feature_map: FeatureMap,
    nan_policy: str,
    label: str,
) -> Sketch:
    sums = ExactSums(feature_map)
    step = block_rows(feature_map.n_features, feature_map.dtype)
    step = min(step if w is None else GATHERED * step, len(x) or 1)
    reader = ChunkReader(
        feature_map.center,
        moment_units(feature_map),
        sums.fraction,
        np.empty((step, feature_map.n_features), dtype=feature_map.dtype),
        np.empty(step, dtype=feature_map.dtype),
    )
    incomplete: IncompleteRows | None = None  # made for the first such row
    for start in range(0, len(x), step):
        weights = None if w is None else np.asarray(w[start : start + step], dtype=np.float64)
        block = normalized(x[start : start + step], feature_map)
        omitted = reader.omitted
        try:
            refused = reader.take(block, weights, nan_policy != "raise")
            if refused < 0 and nan_policy == "available" and reader.omitted > omitted:
                incomplete = incomplete or IncompleteRows(feature_map, sums, step)
                refused, row = incomplete.add(block, weights)
            elif refused >= 0:
                row = x[start + refused]
        except CapacityError as error:
            raise ChunkError(f"{label}: {error}") from error
        if refused >= 0:
            refuse_row(row, weights, refused, start, label, feature_map)
        for exponent, rows in reader.groups:
            used = None if weights is None else reader.weights[rows]
            sums.add(reader.rows[rows], used, exponent)
    sketch = _complete_rows(feature_map, sums, reader)
    if incomplete is not None:
        sketch = _with_incomplete(sketch, incomplete)
    if not has_phases(feature_map, sketch.minimum, sketch.maximum):
        refuse_phases(feature_map, sketch.minimum, sketch.maximum, label)
    return sketch


def _complete_rows(feature_map: FeatureMap, sums: ExactSums, reader: ChunkReader) -> Sketch:
    return Sketch(
        feature_map=feature_map,
        moment_quanta=sums.quanta(),
        weight_quanta=reader.weight_quanta,
        squared_weight_quanta=reader.squared_weight_quanta,
        count=reader.count,
        omitted=reader.omitted,
        minimum=reader.minimum,
        maximum=reader.maximum,
        first_quanta=reader.first_quanta,
        second_quanta=reader.second_quanta,
    )


def _with_incomplete(sketch: Sketch, incomplete: IncompleteRows) -> Sketch:
    """Sketch with the counts, moments and bounds of rows with missing values."""
    reader = incomplete.reader
    return replace(
        sketch,
        weight_quanta=sketch.weight_quanta + reader.weight_quanta,
        squared_weight_quanta=sketch.squared_weight_quanta + reader.squared_weight_quanta,
        count=sketch.count + reader.count,
        omitted=incomplete.omitted,
        # zeros without sign, so that the order of the rows does not matter
        minimum=np.minimum(sketch.minimum, incomplete.minimum) + 0.0,
        maximum=np.maximum(sketch.maximum, incomplete.maximum) + 0.0,
        first_quanta=sketch.first_quanta + reader.first_quanta,
        second_quanta=sketch.second_quanta + reader.second_quanta,
        missing=incomplete.missing(),
    )


@lru_cache(maxsize=8)
def _host_frequencies(feature_map: FeatureMap) -> HostFrequencies:
    """Frequencies of a feature map in the form of the kernels of a GPU."""
    cycles = feature_map.cycles_per_unit.astype(np.float64)
    if feature_map.row_whitening is not None:
        cycles = feature_map.frequencies / (2 * np.pi)
    return HostFrequencies(feature_map.digest, cycles, feature_map.center, feature_map.dtype)


def _sketch_on_device(
    x: Any, w: Any, feature_map: FeatureMap, nan_policy: str, label: str
) -> Sketch:
    sums = sum_chunk(x, w, _host_frequencies(feature_map), omit=nan_policy == "omit")
    if sums.refused >= 0:
        at = slice(sums.refused, sums.refused + 1)
        weights = None if w is None else on_host(w[at]).astype(np.float64)
        refuse_row(on_host(x[at])[0], weights, 0, sums.refused, label, feature_map)
    _require_near(x, w, feature_map, sums.minimum, sums.maximum, label)
    if not np.isfinite(sums.moment_sum).all():
        refuse_phases(feature_map, sums.minimum, sums.maximum, label)
    try:
        return _rounded(feature_map, sums)
    except CapacityError as error:
        raise ChunkError(f"{label}: {error}") from error


def _require_near(
    x: Any,
    w: Any,
    feature_map: FeatureMap,
    minimum: NDArray[np.float64],
    maximum: NDArray[np.float64],
    label: str,
) -> None:
    """Refuse the first row too far from the center, with the same limit as on the host."""
    center, limit = feature_map.center, MAX_DISTANCE * moment_units(feature_map)
    away = np.maximum(maximum - center, center - minimum)  # -inf without rows
    if (away <= limit).all():
        return
    step = block_rows(feature_map.n_features, "float64")
    for start in range(0, len(x), step):
        rows = on_host(x[start : start + step]).astype(np.float64)
        far = np.isfinite(rows).all(axis=1) & (np.abs(rows - center) > limit).any(axis=1)
        if w is not None:
            far &= on_host(w[start : start + step]) != 0
        if far.any():
            first = int(far.argmax())
            refuse_row(rows[first], None, first, start, label, feature_map)


def _rounded(feature_map: FeatureMap, sums: ChunkSums) -> Sketch:
    return Sketch.from_sums(
        feature_map,
        moment_sum=sums.moment_sum,
        total_weight=sums.total_weight,
        squared_weight=sums.squared_weight,
        count=sums.count,
        omitted=sums.omitted,
        minimum=sums.minimum,
        maximum=sums.maximum,
        first_moment=sums.first_moment,
        second_moment=sums.second_moment,
    )
