"""DataArrays and Datasets of xarray as samples."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.sources.array import array_samples
from dask_sketch.sources.group_labels import INDEX_OF, NAMES, aligned_groups
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.tables import first_few, names_of, require_index

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

# Names of dimensions of features, also as a part, such as "input_channel", and the names that
# xarray gives to dimensions without one.
_FEATURES = re.compile(
    r"(.*[_ -])?(feature|variable|var|column|col|channel|band|component|coefficient|coef|parameter|"
    r"param|predictor|covariate|attribute|embedding|cepstrum|cepstra|mfcc|mel|species|gene)s?|"
    r"(.*[_ -])?(dim|feature|channel|band|component)_?\d+",
    re.IGNORECASE,
)
# Names of axes in space and time, and of samples.
_AXES = re.compile(
    r"x|y|z|[rn]?lat(itude)?s?|[rn]?lon(gitude)?s?|time(_?step)?s?|date(time)?s?|year|month|day|hour|"
    r"(lev|level|height|depth|altitude|easting|northing|row|frame|sample|observation|obs|point)s?",
    re.IGNORECASE,
)


def data_array_samples(
    x: xr.DataArray,
    *,
    feature_dim: str | None = None,
    weights: Any = None,
    groups: Any = None,
    among: Mapping[Any, xr.DataArray] | None = None,
    indexes: Mapping[Any, pd.Index[Any]] | None = None,
) -> Samples:
    """Make samples of a DataArray: all dimensions except the features are samples.

    Parameters
    ----------
    x
        DataArray of at least two dimensions.
    feature_dim
        Dimension of the features. It may be left out if it is the last one and there is a sign of
        that: text as its coordinate, a name such as ``feature``, ``variable``, ``band``,
        ``channel`` or ``dim_1``, or two dimensions, the last one not of space or time.
    weights
        Array-like with the sample dimensions, DataArray with some of them, or the name of a
        coordinate.
    groups
        Array-like with the sample dimensions, DataArray with some of them, or the name of a
        coordinate.
    among
        Variables in which names are looked up; the coordinates by default.
    indexes
        Indexes of the dimensions; by default the indexes of ``x``.

    Raises
    ------
    InputError
        If there is no such dimension, there are fewer than two, or nothing marks one as that of the
        features; or weights or labels have other indexes.
    """
    label = f"DataArray {x.name!r}" if x.name is not None else "the DataArray"
    if x.ndim < 2:
        raise InputError(
            f"{label} has dims={x.dims}: give at least one dimension beside the features."
        )
    if feature_dim is None:
        _require_features_last(x, label)
        feature_dim = str(x.dims[-1])
    if feature_dim not in x.dims:
        raise InputError(
            f"feature_dim={feature_dim!r}: choose one of the dimensions of {label}, {x.dims}."
        )
    x = x.transpose(..., feature_dim)
    names = None
    if feature_dim in x.coords:
        names = names_of(x.coords[feature_dim].values.tolist())
    leading = tuple(str(dim) for dim in x.dims[:-1])
    samples = array_samples(
        _as_dask(x, feature_dim),
        label,
        _weights(weights, x, leading, label),
        dims=leading,
        coords=_row_labels(x, feature_dim),
        feature_names=names,
        lazy=x.chunks is not None,
    )
    return _with_groups(samples, groups, x.coords if among is None else among, indexes or x.indexes)


def dataset_samples(
    x: xr.Dataset,
    *,
    columns: list[str] | None = None,
    feature_dim: str | None = None,
    weights: Any = None,
    groups: Any = None,
) -> Samples:
    """Make samples of a Dataset whose variables are the features, or of one variable.

    Parameters
    ----------
    x
        Dataset.
    columns
        Variables to use; by default all data variables but the weights, the labels, and variables
        with an attribute ``instance_dimension``, which index speakers or files.
    feature_dim
        Dimension of the features, if a single variable has all features; see
        :func:`data_array_samples` for when it may be left out.
    weights
        Name of a variable or coordinate, or array-like.
    groups
        Name of a variable or coordinate with some of the sample dimensions, or with a dimension
        that a variable of indices refers to; DataArray; or array-like.

    Raises
    ------
    InputError
        If a variable is missing or the variables do not share their dimensions.
    """
    names = _feature_variables(x, columns, weights, groups)
    if isinstance(weights, str):
        if weights not in x:
            raise InputError(
                f"weights={weights!r}: choose one of the variables of the Dataset, {list(x)}."
            )
        weights = x[weights]
    if len(names) == 1 and (feature_dim is not None or x[names[0]].ndim > 1):
        return data_array_samples(
            x[names[0]],
            feature_dim=feature_dim,
            weights=weights,
            groups=groups,
            among=_variables(x),
            indexes=x.indexes,
        )
    dims = x[names[0]].dims
    for name in names:
        if x[name].dims != dims:
            raise InputError(
                f"variables of the Dataset differ in dimensions: {names[0]} has {dims}, {name} has "
                f"{x[name].dims}. Choose variables with the same dimensions by columns=[...].",
                parameter="columns",
            )
    wrong = [f"{name} ({x[name].dtype})" for name in names if x[name].dtype.kind not in "biuf"]
    if wrong:
        raise InputError(
            f"variables of the Dataset that are not real numbers: {', '.join(wrong)}. Choose "
            "others by columns=[...], or convert these to numbers, such as seconds since a date.",
            parameter="columns",
        )
    leading = tuple(str(dim) for dim in dims)
    label = f"the Dataset ({first_few(names, 4)})"
    samples = array_samples(
        _stack_lazily([_as_dask(x[name]) for name in names]),
        label,
        _weights(weights, x[names[0]], leading, label),
        dims=leading,
        coords=_row_labels(x[names[0]]),
        feature_names=names_of(names),
        lazy=any(x[name].chunks is not None for name in names),
    )
    return _with_groups(samples, groups, _variables(x), x.indexes)


def _feature_variables(
    x: xr.Dataset, columns: list[str] | None, weights: Any, groups: Any
) -> list[Hashable]:
    """Names of the variables that are features; raise InputError if there are none."""
    others = {given for given in (weights, groups) if isinstance(given, str)}
    names: list[Hashable] = [] if columns is None else list(columns)
    if columns is None:
        every = x.data_vars.items()
        names = [n for n, v in every if str(n) not in others and INDEX_OF not in v.attrs]
    missing = [name for name in names if name not in x]
    if missing or not names:
        raise InputError(
            f"columns={missing or names}: choose some of the variables of the Dataset, {list(x)}."
        )
    return names


def _require_features_last(x: xr.DataArray, label: str) -> None:
    """Raise InputError if nothing marks the last dimension as the features."""
    last = x.dims[-1]
    named = _FEATURES.fullmatch(str(last)) is not None
    if last in x.coords:
        values = x.coords[last].values
        named |= values.dtype.kind in "UST" or all(
            isinstance(value, str) for value in values.tolist()
        )
    if named or (x.ndim == 2 and _AXES.fullmatch(str(last)) is None):
        return
    others = [dim for dim in x.dims if _FEATURES.fullmatch(str(dim))]
    raise InputError(
        f"feature_dim=None: {label} has dims={x.dims}, and it is not known which of them the "
        f"features have. Give feature_dim={str((others or [last])[0])!r} or another one; for "
        "values of one feature, x.expand_dims(feature=1, axis=-1)."
    )


def _variables(x: xr.Dataset) -> dict[Hashable, xr.DataArray]:
    return {name: x[name] for name in x.variables}


def _row_labels(x: xr.DataArray, feature_dim: str | None = None) -> dict[Hashable, Any]:
    return {name: label for name, label in x.coords.items() if feature_dim not in label.dims}


def _stack_lazily(arrays: list[da.Array]) -> da.Array:
    """Stack arrays of one shape along a new last axis, in the chunks of the first one."""
    first = arrays[0]
    arrays = [a if a.chunks == first.chunks else a.rechunk(first.chunks) for a in arrays]
    dtype = np.result_type(*[a.dtype for a in arrays])
    # one blockwise call for all variables, so that reading and sketching become one task
    return da.map_blocks(
        _stack,
        *arrays,
        new_axis=first.ndim,
        chunks=(*first.chunks, (len(arrays),)),
        dtype=dtype,
        meta=np.empty((0,) * (first.ndim + 1), dtype=dtype),
    )


def _stack(*columns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.stack(columns, axis=-1)


def _as_dask(x: xr.DataArray, feature_dim: str | None = None) -> da.Array:
    """Return the values as a Dask array; data on disk stay there."""
    inner = x.variable  # the variable has no coordinates, which may have types of pandas
    if inner.chunks is None:
        inner = inner.chunk({dim: -1 if dim == feature_dim else "auto" for dim in x.dims})
    array: da.Array = inner.data
    return array


def _weights(weights: Any, x: xr.DataArray, leading: tuple[str, ...], label: str) -> Any:
    import xarray as xr

    if isinstance(weights, str):
        if weights not in x.coords:
            raise InputError(
                f"weights={weights!r}: choose one of the coordinates of {label}, {list(x.coords)}."
            )
        weights = x.coords[weights]
    if isinstance(weights, xr.DataArray):
        if not weights.dims or not set(map(str, weights.dims)) <= set(leading):
            raise InputError(
                f"weights has dims={weights.dims}: give weights along some of the dimensions "
                f"{leading} of {label}.",
                parameter="weights",
            )
        sizes = {dim: x.sizes[dim] for dim in leading}
        for dim in weights.dims:
            if weights.sizes[dim] != x.sizes[dim]:
                raise InputError(
                    f"weights has {weights.sizes[dim]} entries along {dim}: give {x.sizes[dim]}, "
                    f"as {label} has.",
                    parameter="weights",
                )
        _require_indexes(weights, x.indexes, label, "weights")
        # the same for all samples along the dimensions that the weights lack
        return weights.variable.set_dims(sizes).transpose(*leading).data
    _require_index_of_series(weights, x.indexes, leading, "weights")
    return weights


def _require_index_of_series(
    given: Any, indexes: Mapping[Any, pd.Index[Any]], leading: tuple[str, ...], argument: str
) -> None:
    """Raise InputError for a Series of pandas with another index than the samples."""
    if len(leading) == 1 and leading[0] in indexes:
        require_index(given, indexes[leading[0]], argument)


def _require_indexes(
    given: xr.DataArray, indexes: Mapping[Any, pd.Index[Any]], label: str, argument: str
) -> None:
    """Raise InputError for values with another index than the samples; indexes are in memory."""
    for dim, index in given.indexes.items():
        if dim in given.dims and dim in indexes and not index.equals(indexes[dim]):
            raise InputError(
                f"{argument} has another index along {dim!r} than {label}: align it, as by "
                f"{argument}.reindex_like(x) or xarray.align; or give {argument}.drop_indexes("
                f"{str(dim)!r}), which is matched by position.",
                parameter=argument,
            )


def _with_groups(
    samples: Samples,
    groups: Any,
    among: Mapping[Any, xr.DataArray],
    indexes: Mapping[Any, pd.Index[Any]],
) -> Samples:
    """Add labels, which may lack some of the sample dimensions."""
    if groups is None:
        return samples
    import xarray as xr

    leading = samples.dims
    assert leading is not None
    assert isinstance(samples.blocks, da.Array)
    name = groups if isinstance(groups, str) else getattr(groups, "name", None)
    if isinstance(groups, str):
        if groups not in among:
            raise InputError(
                f"groups={groups!r}: choose one of the variables and coordinates of "
                f"{samples.label}, {list(map(str, among))}."
            )
        groups = among[groups]
    axes = names = None
    if isinstance(groups, xr.DataArray):
        _require_indexes(groups, indexes, samples.label, "groups")
        groups, names = _indexed(groups, leading, among, samples.label)
        dims = tuple(map(str, groups.dims))
        groups = groups.transpose(*sorted(dims, key=leading.index))
        axes = tuple(axis for axis, dim in enumerate(leading) if dim in dims)
    else:
        _require_index_of_series(groups, indexes, leading, "groups")
    dim = "group" if name is None else str(name)
    aligned = aligned_groups(groups, samples.blocks, samples.label, names=names, axes=axes, dim=dim)
    return replace(samples, groups=aligned)


def _indexed(
    labels: xr.DataArray, leading: tuple[str, ...], among: Mapping[Any, xr.DataArray], label: str
) -> tuple[xr.DataArray, Any]:
    """Labels of the samples, and the names that they index, or None."""
    dims = tuple(map(str, labels.dims))
    names = labels.attrs.get(NAMES) if labels.dtype.kind in "iu" else None
    if dims and set(dims) <= set(leading):
        return labels, names
    indices = [x for x in among.values() if len(dims) == 1 and x.attrs.get(INDEX_OF) == dims[0]]
    indices = [x for x in indices if x.dims and set(map(str, x.dims)) <= set(leading)]
    if len(indices) != 1:
        raise InputError(
            f"groups has dims={dims}: give labels along some of the dimensions {leading} of "
            f"{label}, or add indices with the attribute {INDEX_OF!r}.",
            parameter="groups",
        )
    entries = labels.values
    return indices[0], entries if names is None else np.asarray(names)[entries]
