"""Open any artifact: a sketch, a group of sketches, second moments, a model or a feature map."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError, InputError, SketchError
from dask_sketch.features.artifact import open_feature_map
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import LOW_BITS, FixedPoint, are_possible_squares
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.features.pilot import Pilot
from dask_sketch.features.specification import parse_object
from dask_sketch.models.artifact import COMPONENTS
from dask_sketch.models.artifact import SCHEMAS as MODELS
from dask_sketch.models.artifact import VERSION as MODEL_VERSION
from dask_sketch.models.open import AnyModel, components_from_dataset, model_from_dataset
from dask_sketch.models.principal_components import PrincipalComponents
from dask_sketch.sketching.artifact import (
    GROUP,
    MISSING,
    MISSING_STACKS,
    MOMENTS,
    READABLE,
    SAMPLE,
    SKETCH,
    STACKS,
    SUMS,
    WEIGHTS,
)
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.missing import MissingWeights, StackedMissing, counter_sizes
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.privacy import Privacy
from dask_sketch.sketching.rounding import unpack
from dask_sketch.sketching.row_sample import RowSample
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.storage.artifact_reader import Versions, read_dataset, unpacked_dataset
from dask_sketch.validation.registry import registered_reader, registered_versions

if TYPE_CHECKING:
    import xarray as xr

# registered readers of :mod:`dask_sketch.validation.registry` return further artifacts
Artifact = Sketch | SketchGroup | SecondMoments | AnyModel | PrincipalComponents | FeatureMap
_DAMAGES = (LookupError, TypeError, ValueError, OverflowError, RecursionError)
# bits of these sums; other sums have 118
_MAX_BITS = dict.fromkeys(("weight_steps", "squared_weight_steps", "missing_weight_steps"), 240)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_BOUND = 2.0**511  # bound of values whose differences are squared
_MAX_ROUNDING = 1e150  # bound of the error of rounded sums, which is squared
_TIMES = re.compile(r"[Mm]8\[\d{0,6}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]|[Mm]8")


def readable_versions() -> Versions:
    """Versions of all artifacts that :func:`open` reads, by their schemas."""
    models = dict.fromkeys((*MODELS, COMPONENTS), MODEL_VERSION)
    return READABLE | models | registered_versions()


def open(store: Any, *, storage_options: dict[str, Any] | None = None) -> Artifact:
    """Open an artifact of any kind: sketch, group, second moments, model or feature map.

    Parameters
    ----------
    store
        Path or URL of a file ``.json`` with the text of :meth:`FeatureMap.to_json`; or path, URL
        or Zarr store that ``to_zarr`` of a sketch, a group, a model or an estimator wrote; or the
        bytes that its ``to_bytes`` returned.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    artifact
        :class:`Sketch`, :class:`SketchGroup`, :class:`SecondMoments`, :class:`GaussianMixture`,
        :class:`Centroids`, another model of ``dask_sketch.models``, :class:`FeatureMap` or
        :class:`~dask_sketch.distributions.DistributionRegressor` or ``DistributionClassifier``,
        with the same bits as the one stored. Frequencies are verified against the stored digest.

    Raises
    ------
    ArtifactError
        If the store does not exist, is of another kind or version, or was truncated or edited; the
        message says which.
    InputError
        If the file of a feature map cannot be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import dask_sketch as ds
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> sketch = ds.partial_sketch(np.zeros((5, 2)), ds.FeatureMap(2, 20, scale=1.0))
    >>> sketch.to_zarr(folder / "sketch.zarr")
    >>> ds.open(folder / "sketch.zarr").identical(sketch)
    True
    >>> _ = (folder / "map.json").write_text(sketch.feature_map.to_json())
    >>> ds.open(folder / "map.json") == sketch.feature_map
    True
    """
    if isinstance(store, (bytes, bytearray, memoryview)):
        dataset = unpacked_dataset(bytes(store), readable_versions())
        store = f"{len(store):,} bytes"
    elif isinstance(store, (str, os.PathLike)) and is_feature_map(store):
        return open_feature_map(os.fspath(store), storage_options)
    else:
        dataset = read_dataset(store, readable_versions(), storage_options=storage_options)
    schema = dataset.attrs["schema"]
    if schema in MODELS:
        return model_from_dataset(dataset, schema, store)
    if schema == COMPONENTS:
        return components_from_dataset(dataset, store)
    if schema == MOMENTS:
        return _moments(dataset, store)
    if schema == GROUP:
        return _group(dataset, store)
    if schema == SKETCH:
        return sketch_from_dataset(dataset, store)
    return registered_reader(schema)(dataset, store)


def open_sketch(store: Any, *, storage_options: dict[str, Any] | None = None) -> Sketch:
    """Open a sketch, and refuse other artifacts; arguments and errors as for :func:`open`."""
    versions = {SKETCH: READABLE[SKETCH]}
    return sketch_from_dataset(
        read_dataset(store, versions, storage_options=storage_options), store
    )


def sketch_from_bytes(value: bytes | bytearray | memoryview) -> Sketch:
    """Read the bytes that ``to_bytes`` of a sketch returned, and refuse those of other artifacts.

    Parameters
    ----------
    value
        Bytes of a sketch.

    Raises
    ------
    InputError
        If ``value`` is not bytes.
    ArtifactError
        If they are of another artifact or version, or were truncated or edited.
    """
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InputError(
            f"value of type {type(value).__name__}: give the bytes that to_bytes() returned; "
            "dask_sketch.open reads paths and stores."
        )
    dataset = unpacked_dataset(bytes(value), {SKETCH: READABLE[SKETCH]})
    return sketch_from_dataset(dataset, f"{len(value):,} bytes")


def open_group(store: Any, *, storage_options: dict[str, Any] | None = None) -> SketchGroup:
    """Open a group of sketches, and refuse other artifacts; arguments as for :func:`open`."""
    versions = {GROUP: READABLE[GROUP]}
    return _group(read_dataset(store, versions, storage_options=storage_options), store)


def is_feature_map(path: str | os.PathLike[str]) -> bool:
    """Whether a path or URL names the JSON file of a feature map.

    Examples
    --------
    >>> is_feature_map("s3://bucket/map.json"), is_feature_map("sketch.zarr")
    (True, False)
    """
    return os.fspath(path).rstrip("/").lower().endswith(".json")


def sketch_from_dataset(dataset: xr.Dataset, store: object = "the dataset") -> Sketch:
    """Rebuild a sketch from its stored dataset.

    Parameters
    ----------
    dataset
        Result of :meth:`Sketch.to_xarray`, or the stored part of it.
    store
        Name of the store for messages.

    Raises
    ------
    ArtifactError
        If a variable or attribute is missing or has another shape, if the digest does not match
        the frequencies, or if no samples can have such sums.
    """
    attrs = dataset.attrs
    try:
        feature_map = feature_map_of(dataset)
        d, m = feature_map.n_features, feature_map.n_frequencies
        bounds: Any = {
            name: stored_array(dataset, name, (d,), (np.float64,))
            for name in ("minimum", "maximum")
        }
        units = stored_array(dataset, "unit", (d,), (np.float64,))
        sums: dict[str, Any] = {}
        for name, (_, attribute) in SUMS.items():
            if name == "moment" and "moment_packed" in dataset:
                packing = int(attrs["moment_shift"]), int(attrs["moment_bits"])
                sums[attribute] = unpack(dataset["moment_packed"].values, *packing, (2, m))
                continue
            shape = (2, m) if name == "moment" else (d,)
            words = [
                stored_array(dataset, f"{name}_{w}", shape, (np.int64,)) for w in ("high", "low")
            ]
            sums[attribute] = FixedPoint(*words)
        integers: dict[str, Any] = {
            attribute: int(attrs[name]) for name, attribute in WEIGHTS.items()
        } | {name: int(attrs[name]) for name in ("count", "omitted")}
        privacy = attrs.get("privacy")
        sketch = Sketch(
            feature_map=feature_map,
            tight_bounds=bool(attrs["tight_bounds"]),
            privacy=None if privacy is None else Privacy(**json.loads(privacy)),
            sample=_sample(dataset, d) if "sample_rows" in dataset else None,
            missing=_missing(dataset, feature_map),
            rounding_error=float(attrs.get("rounding_error", 0.0)),
            **bounds,
            **sums,
            **integers,
        )
    except _DAMAGES as error:
        raise damaged_store(store, "sketch", error) from error
    bits = {WEIGHTS.get(name, name): limit for name, limit in _MAX_BITS.items()}
    possible = all(n.bit_length() <= bits.get(name, 63) for name, n in integers.items())
    possible = possible and all(quanta.is_canonical() for quanta in sums.values())
    possible = possible and _are_possible_bounds(sketch.minimum, sketch.maximum)
    possible &= 0.0 <= sketch.rounding_error < _MAX_ROUNDING
    possible &= sketch.squared_weight_quanta > 0 or not sketch.weight_quanta > 0
    possible = possible and (
        privacy is not None
        or are_possible_squares(sketch.total_weight, sketch.squared_weight, sketch.count)
    )
    possible &= sketch.missing is None or sketch.missing.is_possible(sketch.weight_quanta)
    has_noise = privacy is not None or sketch.rounding_error > 0.0
    possible = possible and (has_noise or sketch.is_possible)
    if not possible or min(integers.values()) < 0 or (units != moment_units(feature_map)).any():
        raise ArtifactError(
            f"store={str(store)!r}: no samples have these sums, weights or counts; the sketch was "
            "edited or is damaged. Restore it from a copy."
        )
    return sketch


def _are_possible_bounds(minimum: NDArray[np.float64], maximum: NDArray[np.float64]) -> bool:
    """Whether numbers have these bounds; ``inf`` and ``-inf`` are the bounds of no numbers."""
    none = (minimum == np.inf) & (maximum == -np.inf)
    finite = [bound[np.isfinite(bound)] for bound in (minimum, maximum)]
    squared = all((abs(bound) < _MAX_BOUND).all() for bound in finite)
    return squared and bool((none | (minimum <= maximum)).all())


def _missing(dataset: xr.Dataset, feature_map: FeatureMap) -> MissingWeights | None:
    if not any(name.startswith("missing_") for name in map(str, dataset)):
        return None
    sizes = counter_sizes(feature_map)
    counters = {}
    for attribute, (name, _) in MISSING.items():
        words = [
            stored_array(dataset, f"{name}_{word}", (sizes[attribute],), (np.int64,))
            for word in ("high", "low")
        ]
        counters[attribute] = FixedPoint(*words)
        if not counters[attribute].is_canonical():
            raise _damaged(name)
    return MissingWeights(**counters, weight_quanta=int(dataset.attrs["missing_weight_steps"]))


def _sample(dataset: xr.Dataset, n_features: int) -> RowSample:
    attrs = dataset.attrs
    rows = np.array(dataset["sample_rows"].values)
    n, size = len(rows), int(attrs["sample_size"])
    rows = stored_array(dataset, "sample_rows", (n, n_features), (np.float32, np.float64))
    arrays = {name: stored_array(dataset, f"sample_{name}", (n,), (np.float64,)) for name in SAMPLE}
    sample = RowSample(rows=rows, threshold=float.fromhex(attrs["sample_threshold"]), size=size,
                      **arrays)  # fmt: skip
    if not sample.is_possible:
        raise ArtifactError("sample_rows are not rows that a pass chose; the sketch was edited.")
    return sample


def _moments(dataset: xr.Dataset, store: Any) -> SecondMoments:
    attrs = dataset.attrs
    try:
        d, real = dataset.sizes["feature"], (np.float64,)
        names = attrs.get("feature_names")
        grid = MomentGrid(
            stored_array(dataset, "center", (d,), real),
            stored_array(dataset, "unit", (d,), real),
            int(attrs["n_columns"]) if "n_columns" in attrs else None,
            int(attrs["seed"]),
            None if names is None else tuple(map(str, json.loads(names))),
            bool(attrs.get("pairwise", 0)),
        )
        words = [
            stored_array(dataset, f"sums_{w}", (grid.n_sums,), (np.int64,)) for w in ("high", "low")
        ]
        counts = [int(attrs[name]) for name in ("squared_weight_steps", "count", "omitted")]
        moments = SecondMoments(grid, FixedPoint(*words), *counts)
        scale = float(attrs["test_scale"]) if "n_columns" in attrs else None
        possible = moments.sums.is_canonical() and moments.is_possible
        possible &= scale is None or scale == grid.test_scale
        possible &= grid.feature_names is None or len(grid.feature_names) == d
    except _DAMAGES as error:
        raise damaged_store(store, "file of second moments", error) from error
    if not possible:
        raise ArtifactError(
            f"store={str(store)!r}: no samples have these second moments or counts; the file was "
            "edited or is damaged. Restore it from a copy."
        )
    return moments


def _group(dataset: xr.Dataset, store: Any) -> SketchGroup:
    try:
        return _group_from_dataset(dataset)
    except _DAMAGES as error:
        raise damaged_store(store, "group of sketches", error) from error


def damaged_store(store: object, noun: str, error: Exception) -> ArtifactError:
    """Error that says that a store has no artifact of a kind, because of another error."""
    if isinstance(error, SketchError):
        return ArtifactError(f"store={str(store)!r}: {error}")
    return ArtifactError(
        f"store={str(store)!r} is not a {noun}: {error!r} is missing or unreadable. Restore it "
        "from a copy, or make it again."
    )


def _group_from_dataset(dataset: xr.Dataset) -> SketchGroup:
    attrs = dataset.attrs
    feature_map = feature_map_of(dataset)
    d, m = feature_map.n_features, feature_map.n_frequencies
    labels = decode_labels(dataset["labels"].values, str(attrs["label_type"]))
    n = len(labels)
    integer, real = (np.int64,), (np.float64,)
    rows: dict[str, Any] = {
        "count": stored_array(dataset, "count", (n,), integer),
        "omitted": stored_array(dataset, "omitted", (n,), integer),
        "minimum": stored_array(dataset, "minimum", (n, d), real),
        "maximum": stored_array(dataset, "maximum", (n, d), real),
        "tight_bounds": stored_array(dataset, "tight_bounds", (n,), (np.bool_,)),
    }
    shifts = json.loads(attrs["shifts"])
    shapes = {"moment_steps": (2, m), "first_steps": (d,), "second_steps": (d,)}
    stacks = _stacks(dataset, STACKS, shapes, shifts, n)
    missing = None
    if any(name in dataset for name in MISSING_STACKS):
        sizes = counter_sizes(feature_map)
        shapes = {
            name: (sizes[attribute],)
            for name, attribute in MISSING_STACKS.items()
            if attribute in sizes
        }
        missing = StackedMissing(**_stacks(dataset, MISSING_STACKS, shapes, shifts, n))
    unlabelled = int(attrs["unlabelled"])
    if not _are_possible_bounds(rows["minimum"], rows["maximum"]):
        raise _damaged("minimum")
    if min(unlabelled, *(rows[name].min(initial=0) for name in ("count", "omitted"))) < 0:
        raise _damaged("count")
    if not np.array_equal(stored_array(dataset, "unit", (d,), real), moment_units(feature_map)):
        raise _damaged("unit")
    group = SketchGroup(
        feature_map=feature_map,
        labels=labels,
        unlabelled=unlabelled,
        dim=str(attrs["dim"]),
        missing=missing,
        **rows,
        **stacks,
    )
    if missing is not None and not missing.is_possible(group.weight_quanta):
        raise _damaged("missing_frequency_steps")
    if not are_possible_squares(group.total_weight, group.squared_weight, group.count).all():
        raise _damaged("squared_weight_steps")
    return group


def _stacks(
    dataset: xr.Dataset,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    shifts: Mapping[str, Any],
    n_groups: int,
) -> dict[str, Any]:
    """Stacks of a stored group by attribute, whose names are given by the stored one."""
    stacks = {}
    for name, attribute in names.items():
        words = dataset[name].values
        words = stored_array(
            dataset, name, (len(words), n_groups, *shapes.get(name, ())), (np.int32, np.int64)
        )
        stack = _stack(name, words, int(shifts[name]))
        negative = name in _MAX_BITS and words[-1].min(initial=0) < 0
        if negative or (stack.largest << stack.shift).bit_length() > _MAX_BITS.get(name, 118):
            raise _damaged(name)
        stacks[attribute] = stack
    return stacks


def feature_map_of(dataset: xr.Dataset) -> FeatureMap:
    """Feature map of a stored artifact, verified by its digest."""
    attrs = dataset.attrs
    stored = dataset["frequencies"].values if "frequencies" in dataset else None
    digest = attrs["digest"]
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ArtifactError(f"digest={str(digest)[:80]!r} is none; it was edited or is damaged.")
    feature_map = FeatureMap.from_spec(attrs["feature_map"], digest, stored)
    if "pilot" not in attrs:
        return feature_map
    values = parse_object(attrs["pilot"])
    return feature_map.with_pilot(
        Pilot.from_dict(values, feature_map.n_features, feature_map.n_frequencies)
    )


def _stack(name: str, words: NDArray[Any], shift: int) -> StackedFixedPoint:
    """Validate words of untrusted content as stacked sums."""
    lower, top = words[:-1], words[-1]
    fine = 1 <= len(words) <= 4 and 0 <= shift <= 240 and (len(words) == 1 or top.itemsize == 8)
    if not fine or lower.min(initial=0) < 0 or lower.max(initial=0) >> LOW_BITS:
        raise _damaged(name)
    if max(int(top.max(initial=0)), -int(top.min(initial=0))) >= 2**62:
        raise _damaged(name)
    largest = 2 ** (LOW_BITS * (len(words) - 1) + 62) - 1
    return StackedFixedPoint(words, shift, largest).tight()


def stored_array(
    dataset: xr.Dataset, name: str, shape: tuple[int, ...], dtypes: tuple[Any, ...]
) -> NDArray[Any]:
    """Array of a stored dataset, of the only shape and of one of the types that it may have."""
    values = np.array(dataset[name].values)
    if values.shape != shape or values.dtype not in dtypes:
        raise ArtifactError(
            f"{name} has shape={values.shape}, dtype={values.dtype}, expected {shape} and "
            f"{' or '.join(np.dtype(dtype).name for dtype in dtypes)}; it was edited or is damaged."
        )
    return values


def _damaged(name: str) -> ArtifactError:
    return ArtifactError(f"{name} holds values that no group has; it was edited or is damaged.")


def decode_labels(numbers: NDArray[Any], label_type: str) -> NDArray[Any]:
    """Decode what :func:`~dask_sketch.sketching.artifact.encode_labels` returned.

    Parameters
    ----------
    numbers
        Stored array.
    label_type
        Type of the labels.

    Raises
    ------
    ArtifactError
        If they are not sorted, or not distinct.
    """
    if label_type in ("U", "S"):
        if numbers.ndim != 2 or numbers.dtype != (np.uint32 if label_type == "U" else np.uint8):
            raise _damaged("labels")
        if label_type == "U" and numbers.max(initial=0) > 0x10FFFF:
            raise _damaged("labels")
        text = np.ascontiguousarray(numbers).view(f"{label_type}{numbers.shape[1]}")
        labels = text.reshape(len(numbers))
    elif _TIMES.fullmatch(label_type) and numbers.dtype == np.int64:
        labels = np.array(numbers).view(label_type)
    elif label_type in ("i", "f", "b") and numbers.dtype in (np.int64, np.float64, np.bool_):
        labels = np.array(numbers)
    else:
        raise _damaged("labels")
    if labels.ndim != 1 or not (labels[1:] > labels[:-1]).all():
        raise _damaged("labels")
    return labels
