"""Names of features and indexes of rows, of every kind of table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr

from dask_sketch.errors import InputError
from dask_sketch.validation.tables import (
    names_in,
    require_common_names,
    require_index,
    require_names_in,
    require_same_index,
)

FRAME = pd.DataFrame({"b": [1.0, 2.0], "a": [3.0, 4.0]})
ARRAY = xr.DataArray(FRAME.to_numpy(), dims=("row", "feature"))


@pytest.mark.parametrize(
    "x",
    [
        FRAME, FRAME.iloc[0], pl.from_pandas(FRAME), pa.Table.from_pandas(FRAME),
        ARRAY.assign_coords(feature=["b", "a"]),
    ],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_names_of_every_kind_of_table(x):
    assert names_in(x) == ("b", "a")


@pytest.mark.parametrize(
    "x",
    [
        None, 2.0, FRAME.to_numpy(), [[1.0, 2.0]], FRAME["a"], FRAME.index, ARRAY,
        pd.DataFrame([[1.0, 2.0]]), ARRAY.assign_coords(columns=("row", ["x", "y"])),
    ],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_values_without_names(x):
    assert names_in(x) is None


def test_the_argument_with_other_names_is_named():
    assert require_common_names({"x": None, "y": None}) is None
    assert require_common_names({"x": None, "y": ("a", "b"), "z": ("a", "b")}) == ("a", "b")
    with pytest.raises(InputError, match="feature 0 of z is 'b'; y .* 'a'") as caught:
        require_common_names({"x": None, "y": ("a", "b"), "z": ("b", "a")})
    assert caught.value.parameter == "z"


@pytest.mark.parametrize("value", [FRAME, [FRAME.iloc[0], FRAME.iloc[1]], (None, FRAME.iloc[1])])
def test_pairs_of_named_values(value):
    require_names_in("bounds", value, ("b", "a"), "the sketch")
    require_names_in("bounds", value, None, "the sketch")
    with pytest.raises(InputError, match="bounds is 'b'") as caught:
        require_names_in("bounds", value, ("a", "b"), "the sketch")
    assert caught.value.parameter == "bounds"


def test_values_of_another_index_are_refused():
    index = pd.Index(["u", "v"])
    weights = pd.Series([1.0, 2.0], index=index)
    labelled = xr.DataArray([1.0, 2.0], dims="row", coords={"row": index})
    rows = ARRAY.assign_coords(row=index)
    for given in (weights, weights.to_frame(), labelled):
        require_index(given, index, "weights")
        require_same_index(given, FRAME.set_index(index), "weights")
        require_same_index(given, rows, "weights")
        for x in (FRAME, FRAME.set_index(index[::-1]), rows[::-1]):
            with pytest.raises(InputError, match="weights.*to_numpy") as caught:
                require_same_index(given, x, "weights")
            assert caught.value.parameter == "weights"
    for given in (None, [1.0, 2.0], np.ones(2), weights[:1], labelled.drop_indexes("row")):
        require_same_index(given, FRAME, "weights")
    require_same_index(weights, FRAME.to_numpy(), "weights")
    require_same_index(weights, FRAME.to_numpy().tolist(), "weights")


def test_slices_keep_their_numbers():
    series = pd.Series(np.arange(4.0))
    require_index(series[2:], pd.RangeIndex(2), "weights")
    with pytest.raises(InputError, match="weights"):
        require_index(series[::2], pd.RangeIndex(2), "weights")
