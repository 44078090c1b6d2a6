"""xarray input: which dimension holds the features, which variables are features."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.sources.samples import Samples, array_samples

if TYPE_CHECKING:
    import xarray as xr


def data_array_samples(
    x: xr.DataArray, *, feature_dim: str | None = None, weights: Any = None
) -> Samples:
    """Samples from a DataArray; all dimensions but one are samples.

    Parameters
    ----------
    x
        Any number of dimensions, at least two.
    feature_dim
        Dimension of the features; the last one by default.
    weights
        Array-like or DataArray with the sample dimensions, or the name of a coordinate.

    Raises
    ------
    InputError
        If there is no such dimension, or fewer than two.
    """
    label = f"DataArray {x.name!r}" if x.name is not None else "the DataArray"
    if x.ndim < 2:
        raise InputError(
            f"{label} has dimensions {x.dims}: samples need at least one dimension beside that of "
            "the features."
        )
    if feature_dim is None:
        feature_dim = str(x.dims[-1])
    if feature_dim not in x.dims:
        raise InputError(f"feature_dim={feature_dim!r} is not a dimension of {label}: {x.dims}.")
    x = x.transpose(..., feature_dim)
    names = None
    if feature_dim in x.coords:
        names = tuple(str(value) for value in x.coords[feature_dim].values)
    leading = tuple(str(dim) for dim in x.dims[:-1])
    return array_samples(
        _as_dask(x, feature_dim),
        label,
        _weights(weights, x, leading, label),
        dims=leading,
        coords=_row_labels(x, feature_dim),
        feature_names=names,
        lazy=x.chunks is not None,
    )


def dataset_samples(
    x: xr.Dataset,
    *,
    columns: list[str] | None = None,
    feature_dim: str | None = None,
    weights: Any = None,
) -> Samples:
    """Samples from a Dataset: its variables are the features, or one variable holds them.

    Parameters
    ----------
    x
        Dataset.
    columns
        Variables to use; all data variables but the weights by default.
    feature_dim
        Dimension of the features if the single variable left has one of its own.
    weights
        Name of a variable or coordinate, or array-like.

    Raises
    ------
    InputError
        If a variable is missing or the variables do not share their dimensions.
    """
    column = weights if isinstance(weights, str) else None
    names = [str(n) for n in x.data_vars if n != column] if columns is None else list(columns)
    missing = [name for name in names if name not in x]
    if missing or not names:
        raise InputError(f"variables {missing or names} are not in the Dataset: {list(x)}.")
    if isinstance(weights, str):
        if weights not in x:
            raise InputError(f"weights={weights!r} is not a variable of the Dataset: {list(x)}.")
        weights = x[weights]
    if len(names) == 1 and (feature_dim is not None or x[names[0]].ndim > 1):
        return data_array_samples(x[names[0]], feature_dim=feature_dim, weights=weights)
    dims = x[names[0]].dims
    for name in names:
        if x[name].dims != dims:
            raise InputError(
                f"variables of the Dataset differ in dimensions: {names[0]} has {dims}, {name} has "
                f"{x[name].dims}. Choose variables that share them with columns=[...]."
            )
    leading = tuple(str(dim) for dim in dims)
    label = f"the Dataset ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"
    arrays = [_as_dask(x[name]) for name in names]
    first = arrays[0]
    arrays = [a if a.chunks == first.chunks else a.rechunk(first.chunks) for a in arrays]
    blocks = da.map_blocks(
        # one blockwise call over all variables: reading them and sketching fuse into one task
        _stack,
        *arrays,
        new_axis=first.ndim,
        chunks=(*first.chunks, (len(arrays),)),
        dtype=np.result_type(*[a.dtype for a in arrays]),
        meta=np.empty((0,) * (first.ndim + 1), dtype=np.result_type(*[a.dtype for a in arrays])),
    )
    return array_samples(
        blocks,
        label,
        _weights(weights, x[names[0]], leading, label),
        dims=leading,
        coords=_row_labels(x[names[0]]),
        feature_names=tuple(names),
        lazy=any(x[name].chunks is not None for name in names),
    )


def _row_labels(x: xr.DataArray, feature_dim: str | None = None) -> dict[Hashable, Any]:
    return {name: label for name, label in x.coords.items() if feature_dim not in label.dims}


def _stack(*columns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.stack(columns, axis=-1)


def _as_dask(x: xr.DataArray, feature_dim: str | None = None) -> da.Array:
    """The Dask array inside; data on disk that is not chunked yet is not loaded for it."""
    if x.chunks is None:
        x = x.chunk({dim: -1 if dim == feature_dim else "auto" for dim in x.dims})
    array: da.Array = x.data
    return array


def _weights(weights: Any, x: xr.DataArray, leading: tuple[str, ...], label: str) -> Any:
    import xarray as xr

    if isinstance(weights, str):
        if weights not in x.coords:
            raise InputError(
                f"weights={weights!r} is not a coordinate of {label}: {list(x.coords)}."
            )
        weights = x.coords[weights]
    if isinstance(weights, xr.DataArray):
        if set(map(str, weights.dims)) != set(leading):
            raise InputError(f"weights has dimensions {weights.dims}, the samples have {leading}.")
        weights = weights.transpose(*leading)
        return weights.data
    return weights
