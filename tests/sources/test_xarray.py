"""DataArrays and Datasets: dimensions, coordinates and weights."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from strategies import feature_map

import dask_sketch as ds
from dask_sketch.errors import ChunkError, InputError

FM = feature_map()


def run(x, weights=None, **options):
    found = ds.sketch(x, FM, weights, **options)
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


def test_labels_of_blocks_on_a_grid():
    cube = np.zeros((4, 4, 3))
    cube[3, 1, 2] = np.inf
    lazy = da.from_array(cube, chunks=(2, 2, 3))
    with pytest.raises(ChunkError, match=r"chunk \(1, 0\) of .* row 3 .* inf"):
        run(lazy)


def test_labelled_names():
    cube = xr.DataArray(np.zeros((4, 5, 3)), dims=("t", "s", "feature"))
    with pytest.raises(InputError, match="feature_dim='g'"):
        ds.open_samples(cube, feature_dim="g")
    with pytest.raises(InputError, match="weights='w'"):
        ds.open_samples(cube, weights="w")
    with pytest.raises(InputError, match="weights has dims="):
        ds.open_samples(cube, weights=xr.DataArray(np.ones(3), dims="feature"))
    with pytest.raises(InputError, match="weights has dims=\\(\\)"):
        ds.open_samples(cube, weights=xr.DataArray(1.0))
    with pytest.raises(InputError, match="weights has 5 entries along t: give 4"):
        ds.open_samples(cube, weights=xr.DataArray(np.ones(5), dims="t"))
    dataset = xr.Dataset({"a": ("t", np.zeros(4)), "b": (("t", "s"), np.zeros((4, 5)))})
    with pytest.raises(InputError, match="differ in dimensions"):
        ds.open_samples(dataset)
    with pytest.raises(InputError, match=r"columns=\['z'\]"):
        ds.open_samples(dataset, columns=["z"])
    with pytest.raises(InputError, match="weights='w'"):
        ds.open_samples(dataset, columns=["a"], weights="w")
    with pytest.raises(InputError, match="columns="):
        ds.open_samples(xr.Dataset())


X = np.random.default_rng(0).normal(size=(4, 5, 3))
MARKED = {
    "named": (X, ("time", "lat", "feature"), {}),
    "part of the name": (X, ("time", "lat", "input_channel"), {}),
    "without names": (X, ("dim_0", "dim_1", "dim_2"), {}),
    "text": (X, ("time", "lat", "q"), {"q": ["u", "v", "w"]}),
    "matrix": (X.reshape(20, 3), ("time", "q"), {}),
}


@pytest.mark.parametrize("case", MARKED)
def test_a_last_dimension_that_is_marked_has_the_features(case):
    values, dims, coords = MARKED[case]
    found = run(xr.DataArray(values, coords, dims))
    assert found.identical(run(X.reshape(20, 3)))


@pytest.mark.parametrize("dims", [("time", "lat", "lon"), ("a", "b", "c"), ("band", "y", "x")])
@pytest.mark.parametrize("as_dataset", [False, True])
def test_the_dimension_of_the_features_is_asked_for(dims, as_dataset):
    array = xr.DataArray(X, dims=dims, coords={dims[2]: [1.0, 2.0, 3.0]}, name="t2m")
    source = array.to_dataset() if as_dataset else array
    likely = "band" if dims[0] == "band" else dims[2]
    with pytest.raises(InputError, match=rf"feature_dim=None.* feature_dim='{likely}'"):
        ds.open_samples(source)
    assert ds.open_samples(source, feature_dim=dims[0]).n_features == 4
    single = ds.open_samples(array.expand_dims(feature=1, axis=-1))
    assert (single.n_features, single.n_samples) == (1, 60)


def test_a_matrix_whose_last_dimension_is_one_of_space_or_time():
    with pytest.raises(InputError, match="feature_dim='band'"):
        ds.open_samples(xr.DataArray(X[0], dims=("band", "time")))


def test_variables_that_are_no_numbers_are_named():
    times = np.arange(20).astype("datetime64[D]")
    source = xr.Dataset({"a": ("t", np.ones(20)), "day": ("t", times), "name": ("t", ["b"] * 20)})
    with pytest.raises(InputError, match=r"day \(datetime64.*name \(.*columns="):
        ds.open_samples(source)
    assert ds.open_samples(source, columns=["a"]).n_features == 1


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dims", [("t",), ("s",), ("s", "t")])
def test_weights_along_some_of_the_dimensions(lazy, dims):
    cube = xr.DataArray(X, dims=("t", "s", "feature"))
    weights = xr.DataArray(np.random.default_rng(1).random((5, 4)), dims=("s", "t"))
    weights = weights.isel({dim: 0 for dim in ("s", "t") if dim not in dims})
    full = weights.broadcast_like(cube[..., 0]).transpose("t", "s")
    expected = run(X.reshape(20, 3), full.values.ravel())
    if lazy:
        cube, weights = cube.chunk(t=2, s=3), weights.chunk()
    assert run(cube, weights).identical(expected)
    named = cube.assign_coords(w=weights)
    assert run(named, "w").identical(expected)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dataset", [False, True])
@pytest.mark.parametrize("argument", ["weights", "groups"])
@pytest.mark.parametrize("order", [slice(None, None, -1), "shifted"])
def test_values_of_another_index_are_refused(lazy, dataset, argument, order):
    times = np.arange(20)
    x = xr.DataArray(np.random.default_rng(0).normal(size=(20, 3)), dims=("t", "feature"),
                     coords={"t": times, "feature": ["a", "b", "c"]})  # fmt: skip
    beside = xr.DataArray(times % 2 + 1, dims="t", coords={"t": times})
    other = beside.assign_coords(t=times + 5) if order == "shifted" else beside[order]
    if lazy:
        x, beside, other = (one.chunk({"t": 5}) for one in (x, beside, other))
    x = x.to_dataset("feature") if dataset else x
    with pytest.raises(InputError, match=f"{argument}.*'t'.*reindex_like"):
        ds.open_samples(x, **{argument: other})
    ds.open_samples(x, **{argument: beside})
    ds.open_samples(x, **{argument: other.drop_indexes("t")})
    if order != "shifted":
        ds.open_samples(x, **{argument: other.reindex_like(x)})


@pytest.mark.parametrize("argument", ["weights", "groups"])
def test_series_of_another_index_are_refused(argument):
    index = pd.Index([3, 1, 2])
    x = xr.DataArray(np.ones((3, 2)), dims=("t", "feature"), coords={"t": index})
    series = pd.Series([1, 2, 3], index=index)
    ds.open_samples(x, **{argument: series})
    with pytest.raises(InputError, match=f"{argument}.*to_numpy") as caught:
        ds.open_samples(x, **{argument: series.sort_index()})
    assert caught.value.parameter == argument
    ds.open_samples(x.drop_indexes("t"), **{argument: series.sort_index()})
    frame = pd.DataFrame(np.ones((3, 2)), index=index)
    if argument == "weights":
        with pytest.raises(InputError, match="weights.*to_numpy"):
            ds.open_samples(frame, weights=series.sort_index().rename_axis("t").to_xarray())
