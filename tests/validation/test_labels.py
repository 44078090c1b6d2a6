from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from dask_sketch.errors import InputError
from dask_sketch.validation.labels import values_by_label

LABELS = np.array(["u0", "u1", "u10", "u2"])
VALUES = {"u0": 0, "u1": 1, "u2": 2, "u10": 10}


@pytest.mark.parametrize(
    "given",
    [
        VALUES,
        pd.Series(VALUES),
        pd.Series(VALUES).sample(frac=1, random_state=1),
        pd.Series(VALUES | {"other": 5}),
        pd.Series(VALUES, dtype="Int64"),
        xr.DataArray(list(VALUES.values()), dims="unit", coords={"unit": list(VALUES)}),
        [0, 1, 10, 2],
        np.array([0, 1, 10, 2]),
        xr.DataArray([0, 1, 10, 2], dims="unit"),
    ],
)
def test_values_follow_their_labels(given):
    np.testing.assert_array_equal(values_by_label(given, LABELS, "y"), [0, 1, 10, 2])


def test_dates_and_numbers_are_labels_too():
    days = pd.date_range("2024-01-01", periods=3)
    values = pd.Series([3, 1, 2], index=days[[2, 0, 1]])
    np.testing.assert_array_equal(values_by_label(values, days.to_numpy(), "times"), [1, 2, 3])
    numbers = pd.Series([5.0, 6.0])  # with the labels 0 and 1
    np.testing.assert_array_equal(values_by_label(numbers, np.arange(2), "y"), [5.0, 6.0])
    both = pd.Series([1, 2, 3, 4], index=["a", "b", "a", "b"])  # in the order of two sides
    labels = np.array(["a", "b", "a", "b"])
    np.testing.assert_array_equal(values_by_label(both, labels, "strata"), [1, 2, 3, 4])
    twice = np.array([0, 1, 0, 1])
    counted = pd.Series([5, 6, 7, 8])
    np.testing.assert_array_equal(values_by_label(counted, twice, "strata"), [5, 6, 7, 8])
    np.testing.assert_array_equal(values_by_label(counted[:2], twice, "strata"), [5, 6, 5, 6])
    with pytest.raises(InputError, match=r"strata .*twice"):
        values_by_label(both.iloc[[1, 0, 2, 3]], labels, "strata")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (pd.Series([0, 1, 2, 3]), "u0 and 3 more"),  # an index that only counts the rows
        ({"u0": 1, "u1": 2, "u2": 3}, "u10"),
        (pd.Series([0, 1, 2], index=["u0", "u1", "u2"]), "u10"),
        (pd.Series(range(5), index=["u0", "u0", "u1", "u10", "u2"]), "twice"),
        (pd.DataFrame({"y": [0, 1, 2, 3]}), "u0 and 3 more"),
    ],
)
def test_values_without_the_labels_are_refused(given, named):
    with pytest.raises(InputError, match=rf"y .*{named}"):
        values_by_label(given, LABELS, "y")
