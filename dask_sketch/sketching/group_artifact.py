"""Sketches of groups as a labelled dataset, and in a Zarr group."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError, SketchError
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import LOW_BITS
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.sketching.group import ROWS, STACKS, WEIGHTS, SketchGroup
from dask_sketch.storage.artifact import read_dataset

if TYPE_CHECKING:
    import xarray as xr

    from dask_sketch.sketching.group import GroupAverages

SCHEMA = "dask-sketch/sketch-group"
VERSION = 1
_LARGEST = 2**31 - 1  # bytes of one array: what a codec takes at once
_TIMES = re.compile(r"[Mm]8\[\d{0,6}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]|[Mm]8")
_CONVENTION = (
    "Along group, in the order of labels, stands what dask-sketch/sketch version 2 has of one "
    "sketch. Sums are whole numbers, sum over words k of words[k] * 2**(56 k + shift), with the "
    "shifts in the attribute shifts. labels are numbers; text as its code points, times as whole "
    "numbers of the unit in label_type."
)


def to_dataset(group: GroupAverages) -> xr.Dataset:
    """What the sums of groups say, to be read."""
    import xarray as xr

    dim, feature_map = group.dim, group.feature_map
    return xr.Dataset(
        {
            "z": ((dim, "frequency"), group.z),
            "count": (dim, group.count),
            "omitted": (dim, group.omitted),
            "total_weight": (dim, group.total_weight),
            "squared_weight": (dim, group.squared_weight),
            "mean": ((dim, "feature"), group.mean),
            "variance": ((dim, "feature"), group.variance),
            "minimum": ((dim, "feature"), group.minimum),
            "maximum": ((dim, "feature"), group.maximum),
            "frequencies": (("feature", "frequency"), feature_map.frequencies),
            "center": ("feature", feature_map.center),
        },
        coords={dim: group.labels},
        attrs={
            "convention": "z is eq. (13) of Keriven et al. 2018: the mean of exp(-1j * "
            "frequencies.T @ x) over the samples of a group, over sqrt(n_frequencies)",
            "feature_map": feature_map.spec,
            "digest": feature_map.digest,
            "unlabelled": group.unlabelled,
        },
    )


def stored(group: GroupAverages) -> xr.Dataset:
    """What is stored: all sums, as whole numbers, with frequencies.

    Raises
    ------
    ArtifactError
        If an array is larger than a codec takes at once.
    """
    import xarray as xr

    stacks = {name: getattr(group, name) for name in STACKS}
    numbers, kind = _as_numbers(group.labels)
    variables: dict[str, NDArray[Any]] = {
        "frequencies": group.feature_map.frequencies,
        "unit": moment_units(group.feature_map),
        "labels": numbers,
        **{name: getattr(group, name) for name in ROWS},
        **{_stored_name(name): stack.words for name, stack in stacks.items()},
    }
    for name, values in variables.items():
        if values.nbytes > _LARGEST:
            raise ArtifactError(
                f"{name} of {len(group.labels):,} groups takes {values.nbytes:,} bytes, and an "
                f"array of at most {_LARGEST:,} is stored: select() groups, and store them apart."
            )
    return xr.Dataset(
        {
            name: ([f"{name}_{axis}" for axis in range(values.ndim)], values)
            for name, values in variables.items()
        },
        attrs={
            "convention": _CONVENTION,
            "feature_map": group.feature_map.spec,
            "digest": group.feature_map.digest,
            "shifts": json.dumps(
                {_stored_name(name): stack.shift for name, stack in stacks.items()}
            ),
            "label_type": kind,
            "dim": group.dim,
            "unlabelled": group.unlabelled,
        },
    )


def _stored_name(name: str) -> str:
    """The name of sums in files: ``moment_steps`` for ``moment_quanta``."""
    return name.replace("_quanta", "_steps")


def open_group(store: Any, *, storage_options: dict[str, Any] | None = None) -> SketchGroup:
    """Read sketches of groups that ``to_zarr`` stored.

    Parameters
    ----------
    store
        Path, URL or Zarr store.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    group
        With the stored frequencies, once they are found to match the stored digest.

    Raises
    ------
    ArtifactError
        If there is none, or it is truncated, edited or of another schema; the message says which.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from dask_sketch import partial_groups
    >>> group = partial_groups(np.zeros((3, 2)), FeatureMap(2, 20, scale=1.0), ["a", "b", "a"])
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "groups.zarr"
    >>> group.to_zarr(place)
    >>> open_group(place).identical(group)
    True
    """
    dataset = read_dataset(store, (SCHEMA,), VERSION, storage_options=storage_options)
    try:
        return _from_dataset(dataset)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, SketchError):
            raise ArtifactError(f"{store}: {error}") from error
        raise ArtifactError(
            f"{store} holds no sketches of groups: {error!r} is missing or unreadable."
        ) from error


def _from_dataset(dataset: xr.Dataset) -> SketchGroup:
    attrs = dataset.attrs
    feature_map = FeatureMap.from_spec(
        attrs["feature_map"], attrs["digest"], dataset["frequencies"].values
    )
    d, m = feature_map.n_features, feature_map.n_frequencies
    labels = _as_labels(dataset["labels"].values, str(attrs["label_type"]))
    n = len(labels)
    whole, real = (np.int64,), (np.float64,)
    rows: Any = {
        "count": _array(dataset, "count", (n,), whole),
        "omitted": _array(dataset, "omitted", (n,), whole),
        "minimum": _array(dataset, "minimum", (n, d), real),
        "maximum": _array(dataset, "maximum", (n, d), real),
        "tight_bounds": _array(dataset, "tight_bounds", (n,), (np.bool_,)),
    }
    shifts = json.loads(attrs["shifts"])
    shapes = {"moment_quanta": (2, m), "first_quanta": (d,), "second_quanta": (d,)}
    stacks: Any = {}
    for name in STACKS:
        key = _stored_name(name)
        words = dataset[key].values
        words = _array(dataset, key, (len(words), n, *shapes.get(name, ())), (np.int32, np.int64))
        stack = _stack(name, words, int(shifts[key]))
        limit = 240 if name in WEIGHTS else 118
        if (stack.largest << stack.shift).bit_length() > limit or (
            name in WEIGHTS and words[-1].min(initial=0) < 0
        ):
            raise _damaged(name)
        stacks[name] = stack
    unlabelled = int(attrs["unlabelled"])
    if min(unlabelled, *(rows[name].min(initial=0) for name in ("count", "omitted"))) < 0:
        raise _damaged("count")
    if not np.array_equal(_array(dataset, "unit", (d,), real), moment_units(feature_map)):
        raise _damaged("unit")
    return SketchGroup(
        feature_map=feature_map,
        labels=labels,
        unlabelled=unlabelled,
        dim=str(attrs["dim"]),
        **rows,
        **stacks,
    )


def _stack(name: str, words: NDArray[Any], shift: int) -> StackedFixedPoint:
    """Words that may be anything, as sums."""
    lower, top = words[:-1], words[-1]
    fine = 1 <= len(words) <= 4 and 0 <= shift <= 240 and (len(words) == 1 or top.itemsize == 8)
    if not fine or lower.min(initial=0) < 0 or lower.max(initial=0) >> LOW_BITS:
        raise _damaged(name)
    if max(int(top.max(initial=0)), -int(top.min(initial=0))) >= 2**62:
        raise _damaged(name)
    most = 2 ** (LOW_BITS * (len(words) - 1) + 62) - 1
    return StackedFixedPoint(words, shift, most).tight()


def _array(
    dataset: xr.Dataset, name: str, shape: tuple[int, ...], kinds: tuple[Any, ...]
) -> NDArray[Any]:
    values = np.array(dataset[name].values)
    if values.shape != shape or values.dtype not in kinds:
        raise _damaged(name)
    return values


def _damaged(name: str) -> ArtifactError:
    return ArtifactError(
        f"{name} is not what groups of sketches have: it was edited or is damaged."
    )


def _as_numbers(labels: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Labels as an array that holds no text and no times, and their type."""
    kind = labels.dtype.kind
    if kind in "US":
        code = np.uint32 if kind == "U" else np.uint8
        flat = np.ascontiguousarray(labels)
        width = max(flat.itemsize // np.dtype(code).itemsize, 1)
        return flat.view(code).reshape(len(labels), width) if flat.itemsize else np.zeros(
            (len(labels), 1), code
        ), kind
    if kind in "Mm":
        return labels.view(np.int64), labels.dtype.str[1:]
    return labels, kind


def _as_labels(numbers: NDArray[Any], kind: str) -> NDArray[Any]:
    if kind in ("U", "S"):
        if numbers.ndim != 2 or numbers.dtype != (np.uint32 if kind == "U" else np.uint8):
            raise _damaged("labels")
        if kind == "U" and numbers.max(initial=0) > 0x10FFFF:
            raise _damaged("labels")
        text = np.ascontiguousarray(numbers).view(f"{kind}{numbers.shape[1]}")
        labels = text.reshape(len(numbers))
    elif _TIMES.fullmatch(kind) and numbers.dtype == np.int64:
        labels = np.array(numbers).view(kind)
    elif kind in ("i", "f", "b") and numbers.dtype in (np.int64, np.float64, np.bool_):
        labels = np.array(numbers)
    else:
        raise _damaged("labels")
    if labels.ndim != 1 or not (labels[1:] > labels[:-1]).all():
        raise _damaged("labels")
    return labels
