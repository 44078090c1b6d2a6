"""DataArrays and Datasets: dimensions, coordinates and weights."""

from __future__ import annotations

import dask.array as da
import numpy as np
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
    cube = xr.DataArray(np.zeros((4, 5, 3)), dims=("t", "s", "f"))
    with pytest.raises(InputError, match="feature_dim='g'"):
        ds.open_samples(cube, feature_dim="g")
    with pytest.raises(InputError, match="weights='w'"):
        ds.open_samples(cube, weights="w")
    with pytest.raises(InputError, match="weights has dims="):
        ds.open_samples(cube, weights=xr.DataArray(np.ones(4), dims="t"))
    dataset = xr.Dataset({"a": ("t", np.zeros(4)), "b": (("t", "s"), np.zeros((4, 5)))})
    with pytest.raises(InputError, match="differ in dimensions"):
        ds.open_samples(dataset)
    with pytest.raises(InputError, match=r"columns=\['z'\]"):
        ds.open_samples(dataset, columns=["z"])
    with pytest.raises(InputError, match="weights='w'"):
        ds.open_samples(dataset, columns=["a"], weights="w")
    with pytest.raises(InputError, match="columns="):
        ds.open_samples(xr.Dataset())
