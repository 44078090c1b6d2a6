"""The sketch as a labelled dataset, and in a Zarr group."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError, SketchError
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import (
    FEATURE_FRACTION,
    FRACTION,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
    FixedPoint,
)
from dask_sketch.sketching.privacy import Privacy
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.storage.artifact import read_dataset

if TYPE_CHECKING:
    import xarray as xr

SCHEMA = "dask-sketch/sketch"
VERSION = 2
_STEPS = {
    "moment": (FRACTION, ("part", "frequency")),
    "first": (FEATURE_FRACTION, ("feature",)),
    "second": (FEATURE_FRACTION, ("feature",)),
}
_MEANING = {
    "moment_sum": "sum_i weight_i * exp(-1j * frequencies.T @ (x_i - center)); not normalised",
    "first_moment": "sum_i weight_i * (x_i - center)",
    "second_moment": "sum_i weight_i * (x_i - center)**2",
    "frequencies": "omega, radians per unit of the data",
    "center": "removed from every sample in moment_sum, first_moment and second_moment",
    "unit": "the power of two in which the moments of each feature are counted",
    "minimum": "smallest value of each feature; an under-estimate if tight_bounds is 0",
    "maximum": "largest value of each feature; an over-estimate if tight_bounds is 0",
} | {
    f"{name}_{word}": f"of whole numbers {name}_high * 2**56 + {name}_low, the {word} words"
    for name in _STEPS
    for word in ("high", "low")
}
_CONVENTION = (
    f"Sums are whole numbers (high * 2**56 + low, 0 <= low < 2**56). moment * 2.0**-{FRACTION} has "
    "the real and the imaginary part of moment_sum = sum_i weight_i * exp(-1j * frequencies.T @ "
    f"(x_i - center)); first * 2.0**-{FEATURE_FRACTION} * unit = sum_i weight_i * (x_i - center); "
    f"second * 2.0**-{FEATURE_FRACTION} * unit**2 = sum_i weight_i * (x_i - center)**2; "
    f"total_weight = weight_steps * 2.0**-{WEIGHT_FRACTION} and squared_weight = "
    f"squared_weight_steps * 2.0**-{SQUARED_FRACTION}. z = exp(-1j * frequencies.T @ center) * "
    "moment_sum / total_weight / sqrt(n_frequencies) is eq. (13) of Keriven et al. 2018. To merge "
    "two sketches of one digest, add all whole numbers, count and omitted."
)


def to_dataset(sketch: Sketch) -> xr.Dataset:
    """The sketch as an xarray Dataset with dimensions ``feature`` and ``frequency``.

    Its sums stand in it twice: as float64, to be read, and as the whole numbers of which these are
    views, to be stored.
    """
    views = {
        name: (dimension, getattr(sketch, name), {"meaning": _MEANING[name]})
        for name, dimension in _VIEWS.items()
    }
    whole = stored(sketch)
    weights = {name: getattr(sketch, name) for name in ("total_weight", "squared_weight")}
    return whole.assign(views).assign_attrs(weights)


_VIEWS = {"moment_sum": "frequency", "first_moment": "feature", "second_moment": "feature"}


def stored(sketch: Sketch) -> xr.Dataset:
    """What is stored: the same without what follows from the rest."""
    import xarray as xr

    variables: dict[str, Any] = {
        "frequencies": (("feature", "frequency"), sketch.feature_map.frequencies),
        "center": ("feature", sketch.feature_map.center),
        "unit": ("feature", moment_units(sketch.feature_map)),
        "minimum": ("feature", sketch.minimum),
        "maximum": ("feature", sketch.maximum),
    }
    for name, (_, dimensions) in _STEPS.items():
        steps = getattr(sketch, f"{name}_quanta")
        variables[f"{name}_high"] = (dimensions, steps.high)
        variables[f"{name}_low"] = (dimensions, steps.low)
    return xr.Dataset(
        {
            name: (dims, values, {"meaning": _MEANING[name]})
            for name, (dims, values) in variables.items()
        },
        attrs={
            "convention": _CONVENTION,
            "feature_map": sketch.feature_map.spec,
            "digest": sketch.feature_map.digest,
            "weight_steps": str(sketch.weight_quanta),  # more digits than JSON has for others
            "squared_weight_steps": str(sketch.squared_weight_quanta),
            "count": sketch.count,
            "omitted": sketch.omitted,
            "tight_bounds": int(sketch.tight_bounds),
        }
        | ({} if sketch.privacy is None else {"privacy": json.dumps(asdict(sketch.privacy))}),
    )


def from_dataset(dataset: xr.Dataset, name: str = "the dataset") -> Sketch:
    """Rebuild a sketch; its frequencies must match the digest.

    Raises
    ------
    ArtifactError
        If a variable or attribute is missing, has another shape, or the digest does not match.
    """
    try:
        feature_map = FeatureMap.from_spec(
            dataset.attrs["feature_map"],
            dataset.attrs["digest"],
            dataset["frequencies"].values,
        )
        d, m = feature_map.n_features, feature_map.n_frequencies
        bounds: Any = {
            key: _array(dataset, key, (d,), np.float64, name) for key in ("minimum", "maximum")
        }
        units = _array(dataset, "unit", (d,), np.float64, name)
        words: Any = {
            f"{key}_quanta": FixedPoint(
                *(
                    _array(dataset, f"{key}_{word}", (2, m) if key == "moment" else (d,),
                           np.int64, name)
                    for word in ("high", "low")
                )
            )
            for key in _STEPS
        }  # fmt: skip
        numbers: Any = {
            name: int(dataset.attrs[key])
            for name, key in (
                ("weight_quanta", "weight_steps"),
                ("squared_weight_quanta", "squared_weight_steps"),
                ("count", "count"),
                ("omitted", "omitted"),
            )
        }
        sketch = Sketch(
            feature_map=feature_map,
            tight_bounds=bool(dataset.attrs["tight_bounds"]),
            privacy=_privacy(dataset.attrs.get("privacy")),
            **bounds,
            **words,
            **numbers,
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, SketchError):
            raise ArtifactError(f"{name}: {error}") from error
        raise ArtifactError(
            f"{name} is not a sketch: {error!r} is missing or unreadable."
        ) from error
    possible = all(steps.is_canonical() for steps in words.values()) and min(numbers.values()) >= 0
    if not possible or not np.array_equal(units, moment_units(feature_map)):
        raise ArtifactError(
            f"{name} holds sums that are no sums of samples, or weights or counts under zero: it "
            "was edited or is damaged."
        )
    return sketch


def _privacy(text: str | None) -> Privacy | None:
    return None if text is None else Privacy(**json.loads(text))


def _array(
    dataset: xr.Dataset, key: str, shape: tuple[int, ...], kind: Any, name: str
) -> NDArray[Any]:
    values = np.array(dataset[key].values)
    if values.shape != shape or values.dtype != kind:
        raise ArtifactError(
            f"{key} is of shape {values.shape} and type {values.dtype}, expected {shape} and "
            f"{np.dtype(kind)}: it was edited or is damaged."
        )
    return values


def open_sketch(store: Any, *, storage_options: dict[str, Any] | None = None) -> Sketch:
    """Read a sketch that ``to_zarr`` stored.

    Parameters
    ----------
    store
        Path, URL or Zarr store.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    sketch
        With the stored frequencies, once they are found to match the stored digest.

    Raises
    ------
    ArtifactError
        If there is none, or it is truncated, edited or of another schema; the message says which.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> sketch = Sketch.empty(FeatureMap(2, 20, scale=1.0))
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "sketch.zarr"
    >>> sketch.to_zarr(place)
    >>> open_sketch(place).identical(sketch)
    True
    """
    dataset = read_dataset(store, (SCHEMA,), VERSION, storage_options=storage_options)
    return from_dataset(dataset, str(store))
