"""The sketch of one chunk, computed in blocks of rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError, ChunkError, InputError
from dask_sketch.features.feature_map import FeatureMap, has_phases, moment_units
from dask_sketch.features.kernels.cuda import ChunkSums, HostFrequencies, prepare_device, sum_chunk
from dask_sketch.features.kernels.fixed_point import LEAST, MOST, is_weight
from dask_sketch.features.kernels.row_loop import FARTHEST
from dask_sketch.features.kernels.row_reader import RowReader, row_taker
from dask_sketch.features.kernels.whitened_rows import RowWhitener
from dask_sketch.sketching.accumulator import ExactSums, block_rows, kernel_of
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_memory, require_unmasked
from dask_sketch.validation.device import device_array, on_device, on_host

NanPolicy = Literal["raise", "omit"]
NAN_POLICIES: tuple[str, ...] = get_args(NanPolicy)
Device = Literal["cuda"]
DEVICES: tuple[str, ...] = get_args(Device)
GATHERED = 2  # blocks of rows with weights, at most: there are then more of each exponent


def prepare(feature_map: FeatureMap, dtype: Any = np.float32, device: str | None = None) -> None:
    """Draw the frequencies, check them and compile, before the first chunk is there.

    Parameters
    ----------
    feature_map
        What will be averaged.
    dtype
        Type of the rows that will come.
    device
        Where they will be sketched, as in :func:`partial_sketch`.

    Raises
    ------
    ArtifactError
        If this process draws other frequencies than the map states.
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


def partial_sketch(
    samples: Any,
    feature_map: FeatureMap,
    weights: Any = None,
    *,
    nan_policy: str = "raise",
    label: str = "samples",
    device: str | None = None,
) -> Sketch:
    """Sketch one chunk that is in memory.

    Only a block of a few hundred rows is ever converted, so the memory used beyond the chunk is
    that of the sketch and of one block. All sums are exact (see :class:`Sketch`). A chunk on a GPU
    stays there; its sketch is the same up to rounding, and of the same feature map.

    Parameters
    ----------
    samples
        Shape (..., n_features), any real dtype. Leading axes are all samples. An array in the
        memory of a GPU (of CuPy, or with the CUDA array interface) is sketched there.
    feature_map
        What to average.
    weights
        Weights of shape (...) like the samples, zero or from ``2**-32`` to ``2**32``; all one when
        not given.
    nan_policy
        ``"raise"`` refuses the chunk at the first row with a NaN or infinite value, ``"omit"``
        leaves such rows out and counts them.
    label
        Name of the chunk for messages.
    device
        ``"cuda"`` copies a chunk in the memory of the host to the current GPU, to sketch it there.

    Returns
    -------
    sketch
        Of the chunk; the empty sketch if it has no rows.

    Raises
    ------
    InputError
        If the number of features or of weights is wrong, or the values are not numbers, are masked
        or lazy.
    ChunkError
        For weights out of range, and for refused rows: NaN, infinite, or so far from the center
        that they cannot be summed exactly. Names chunk and row.
    DeviceError
        If a GPU is needed, and there is none, or no CuPy.

    Examples
    --------
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> partial_sketch([[0.0, 1.0], [np.nan, 1.0]], feature_map, nan_policy="omit").omitted
    1
    """
    if nan_policy not in NAN_POLICIES:
        raise InputError(f"nan_policy={nan_policy!r}: choose 'raise' or 'omit'.")
    require_device(device)
    x, w = checked_rows(samples, weights, feature_map, label)
    if device is not None or on_device(x):
        return _sketch_on_device(x, w, feature_map, nan_policy, label)
    if on_device(w):
        raise InputError(
            f"weights of {label} are on a GPU and the samples are not: bring both to one side, or "
            "give device='cuda'."
        )
    sums = ExactSums(feature_map)
    step = block_rows(feature_map.n_features, feature_map.dtype)
    step = min(step if w is None else GATHERED * step, len(x) or 1)
    reader = RowReader(
        feature_map.center,
        moment_units(feature_map),
        sums.fraction,
        np.empty((step, feature_map.n_features), dtype=feature_map.dtype),
        np.empty(step, dtype=feature_map.dtype),
    )
    for start in range(0, len(x), step):
        share = None if w is None else np.asarray(w[start : start + step], dtype=np.float64)
        block = x[start : start + step]
        try:
            refused = reader.take(block, share, nan_policy == "omit")
        except CapacityError as error:
            raise ChunkError(f"{label}: {error}") from error
        if refused >= 0:
            refuse_row(block[refused], share, refused, start, label, feature_map)
        for exponent, rows in reader.groups:
            used = None if share is None else reader.weights[rows]
            sums.add(reader.rows[rows], used, exponent)
    if not has_phases(feature_map, reader.minimum, reader.maximum):
        refuse_phases(feature_map, reader.minimum, reader.maximum, label)
    return Sketch(
        feature_map=feature_map,
        moment_quanta=sums.steps(),
        weight_quanta=reader.weight_quanta,
        squared_weight_quanta=reader.squared_weight_quanta,
        count=reader.count,
        omitted=reader.omitted,
        minimum=reader.minimum,
        maximum=reader.maximum,
        first_quanta=reader.first_quanta,
        second_quanta=reader.second_quanta,
    )


def require_feature_map(feature_map: object) -> None:
    """Raise unless it is one."""
    if not isinstance(feature_map, FeatureMap):
        raise InputError(
            f"feature_map of type {type(feature_map).__name__}: give a FeatureMap, from design()."
        )


def require_device(device: Any) -> None:
    """Raise unless ``device`` is a choice that there is."""
    if device is not None and device not in DEVICES:
        raise InputError(
            f"device={device!r}: give 'cuda' to use the GPU for chunks in the memory of the host, "
            "or leave it out: each chunk is then sketched where it lies."
        )


@lru_cache(maxsize=8)
def _host_frequencies(feature_map: FeatureMap) -> HostFrequencies:
    """Frequencies of a feature map as the kernels of a GPU take them."""
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
        share = None if w is None else on_host(w[at]).astype(np.float64)
        refuse_row(on_host(x[at])[0], share, 0, sums.refused, label, feature_map)
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
    """Refuse the first row too far from the center, as it would be on the processor."""
    center, limit = feature_map.center, FARTHEST * moment_units(feature_map)
    away = np.maximum(maximum - center, center - minimum)  # less than nothing without rows
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


def refuse_phases(
    feature_map: FeatureMap,
    minimum: NDArray[np.float64],
    maximum: NDArray[np.float64],
    label: str,
) -> NoReturn:
    """Say that phases are too large for the precision of a map."""
    raise ChunkError(
        f"{label} holds values too large for features in {feature_map.dtype}: the largest lie "
        f"in {minimum.min():g} to {maximum.max():g}. Use another unit, or a feature map with "
        "dtype='float64'."
    )


def checked_rows(
    samples: Any, weights: Any, feature_map: FeatureMap, label: str
) -> tuple[Any, Any]:
    """Samples as (n, d) and weights as (n,), without copying either, where they lie."""
    require_feature_map(feature_map)
    require_memory(samples, "samples", "sketch() is for whole data sets; give a chunk in memory.")
    require_unmasked(samples, "samples", f"the values of {label}")
    x = device_array(samples) if on_device(samples) else np.asarray(samples)
    if x.dtype.kind not in "fiub":
        raise InputError(
            f"{label} holds values of type {x.dtype}, which are not real numbers. Select numeric "
            "columns, or convert them."
        )
    if x.ndim < 1 or x.shape[-1] != feature_map.n_features:
        found = x.shape[-1] if x.ndim else 0
        raise InputError(
            f"{label} has shape {x.shape}, so {found} features; the feature map has "
            f"n_features={feature_map.n_features}."
        )
    x = x.reshape(-1, x.shape[-1])
    if weights is None:
        return x, None
    require_unmasked(weights, "weights", f"weights of {label}")
    w = device_array(weights) if on_device(weights) else np.asarray(weights)
    if w.dtype.kind not in "fiub":
        raise InputError(f"weights of {label} are of type {w.dtype}, not real numbers.")
    if w.size != len(x):
        raise InputError(
            f"weights of {label} have length {w.size}, the samples have {len(x)} rows; give one "
            "weight for each row."
        )
    return x, w.reshape(-1)


def refuse_row(
    row: NDArray[Any],
    share: NDArray[np.float64] | None,
    refused: int,
    start: int,
    label: str,
    feature_map: FeatureMap,
) -> NoReturn:
    """Say what is wrong with the first refused row of a block."""
    finite = np.isfinite(row)
    if finite.all() and share is not None and not is_weight(share[refused]):
        weight = share[refused]
        raise ChunkError(
            f"weights of {label}: the weight of row {start + refused} is {weight}; weights must be "
            + (
                f"zero or from 2**{LEAST} to 2**{MOST}. Multiply all of them by one factor: a "
                "sketch is an average."
                if 0 < weight < np.inf
                else "finite and not negative."
            )
        )
    if finite.all():
        units = (row.astype(np.float64) - feature_map.center) / moment_units(feature_map)
        feature = int(np.argmax(np.abs(units)))
        raise ChunkError(
            f"{label}: row {start + refused} of this chunk has {row[feature]} in feature {feature},"
            f" {abs(units[feature]):.3g} times the scale of the feature map from its center; at "
            f"most {FARTHEST:.3g} is summed exactly. Clean the data (is it a fill value?), use "
            "another unit, or design a map for these data."
        )
    feature = int(np.argmin(finite))
    raise ChunkError(
        f"{label}: row {start + refused} of this chunk has {row[feature]} in feature {feature}. "
        "Clean the data, or pass nan_policy='omit' to leave such rows out and count them.",
        parameter="nan_policy",
    )
