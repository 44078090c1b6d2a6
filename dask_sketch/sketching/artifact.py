"""The sketch as a labelled dataset, and in a Zarr group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.errors import ArtifactError
from dask_sketch.features import FeatureMap
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.storage import read_dataset, write_dataset

if TYPE_CHECKING:
    import xarray as xr

SCHEMA = "dask-sketch/sketch"
VERSION = 1

_MEANING = {
    "moment_sum": "sum_i weight_i * exp(-1j * frequencies.T @ (x_i - center)); not normalised",
    "frequencies": "omega, radians per unit of the data",
    "center": "removed from every sample in moment_sum, first_moment and second_moment",
    "minimum": "smallest value of each feature; an under-estimate if tight_bounds is 0",
    "maximum": "largest value of each feature; an over-estimate if tight_bounds is 0",
    "first_moment": "sum_i weight_i * (x_i - center)",
    "second_moment": "sum_i weight_i * (x_i - center)**2",
}
_CONVENTION = (
    "z = exp(-1j * frequencies.T @ center) * moment_sum / total_weight / sqrt(n_frequencies) "
    "is eq. (13) of Keriven et al. 2018. To merge two sketches of one digest, add moment_sum, "
    "total_weight, squared_weight, count, omitted, first_moment and second_moment."
)


def to_dataset(sketch: Sketch) -> xr.Dataset:
    """The sketch as an xarray Dataset with dimensions ``feature`` and ``frequency``."""
    import xarray as xr

    variables = {
        "moment_sum": ("frequency", sketch.moment_sum),
        "frequencies": (("feature", "frequency"), sketch.feature_map.frequencies),
        "center": ("feature", sketch.feature_map.center),
    }
    for name in ("minimum", "maximum", "first_moment", "second_moment"):
        variables[name] = ("feature", getattr(sketch, name))
    return xr.Dataset(
        {
            name: (dims, values, {"meaning": _MEANING[name]})
            for name, (dims, values) in variables.items()
        },
        attrs={
            "convention": _CONVENTION,
            "feature_map": sketch.feature_map.spec,
            "digest": sketch.feature_map.digest,
            "total_weight": sketch.total_weight,
            "squared_weight": sketch.squared_weight,
            "count": sketch.count,
            "omitted": sketch.omitted,
            "tight_bounds": int(sketch.tight_bounds),
        },
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
        arrays = {
            key: np.array(dataset[key].values)
            for key in ("moment_sum", "minimum", "maximum", "first_moment", "second_moment")
        }
        sketch = Sketch(
            feature_map=feature_map,
            total_weight=float(dataset.attrs["total_weight"]),
            squared_weight=float(dataset.attrs["squared_weight"]),
            count=int(dataset.attrs["count"]),
            omitted=int(dataset.attrs["omitted"]),
            tight_bounds=bool(dataset.attrs["tight_bounds"]),
            **arrays,
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ArtifactError):
            raise ArtifactError(f"{name}: {error}") from error
        raise ArtifactError(
            f"{name} is not a sketch: {error!r} is missing or unreadable."
        ) from error
    for key, array in arrays.items():
        is_moments = key == "moment_sum"
        size = feature_map.n_frequencies if is_moments else feature_map.n_features
        kind = np.dtype(np.complex128 if is_moments else np.float64)
        if array.shape != (size,) or array.dtype != kind:
            raise ArtifactError(
                f"{name} has {key} of shape {array.shape} and type {array.dtype}, expected "
                f"({size},) and {kind}: it was edited or is damaged."
            )
    sums = (sketch.moment_sum, sketch.first_moment, sketch.second_moment, sketch.total_weight)
    least = min(sketch.total_weight, sketch.squared_weight, sketch.count, sketch.omitted)
    if not all(np.isfinite(value).all() for value in sums) or not least >= 0:
        raise ArtifactError(
            f"{name} holds sums that are not finite, or weights or counts under zero: it was "
            "edited or is damaged."
        )
    return sketch


def write_sketch(
    sketch: Sketch,
    store: Any,
    *,
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> None:
    """Store a sketch as a Zarr group: schema, conventions, frequencies and a checksum."""
    write_dataset(
        to_dataset(sketch),
        store,
        SCHEMA,
        VERSION,
        overwrite=overwrite,
        storage_options=storage_options,
    )


def open_sketch(store: Any, *, storage_options: dict[str, Any] | None = None) -> Sketch:
    """Read a sketch that :meth:`Sketch.to_zarr` stored.

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
