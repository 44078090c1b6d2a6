"""Pairs of features that hardly any row observes together."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch.models import random_mixture


def two_tables(n_shared: int) -> pd.DataFrame:
    """Rows with the features a and b or c and d, some with all of them."""
    x = random_mixture(2, 4, seed=0).sample(6000, seed=1)
    missing = np.repeat([[True, True, False, False], [False, False, True, True]], 3000, axis=0)
    missing[np.random.default_rng(0).choice(6000, n_shared, replace=False)] = False
    return pd.DataFrame(np.where(missing, np.nan, x), columns=list("abcd"))


def decoded(frame: pd.DataFrame, n_components: int) -> list[str]:
    """Warnings of the pairs."""
    feature_map = ds.design(frame, n_components=n_components, nan_policy="available")
    sketch = ds.sketch(frame, feature_map, nan_policy="available")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds.decode(sketch, n_components)
    return [str(each.message) for each in caught if "together" in str(each.message)]


@pytest.mark.parametrize(("n_shared", "seen"), [(0, "no row"), (20, "only about 20 rows")])
def test_users_are_warned_of_features_that_are_not_seen_together(n_shared, seen):
    (message,) = decoded(two_tables(n_shared), 2)
    assert message.startswith(f"{seen} ")
    assert "observes a and c" in message or "observe a and c" in message
    assert "3 other pairs" in message


def test_enough_rows_and_one_component_are_not_warned_of():
    assert not decoded(two_tables(1000), 2)
    assert not decoded(two_tables(0), 1)


def test_levels_of_columns_that_are_not_seen_together():
    rng = np.random.default_rng(0)
    classes = rng.integers(2, size=4000)
    codes = np.where(rng.random((2, 4000)) < 0.9, classes, 1 - classes).T
    frame = pd.DataFrame(np.array(["no", "yes"])[codes], columns=["a", "b"]).astype(object)
    frame.loc[::2, "a"] = None
    frame.loc[1::2, "b"] = None
    levels = {"a": ["no", "yes"], "b": ["no", "yes"]}
    feature_map = ds.design(frame, n_components=2, categories=levels, nan_policy="available")
    sketch = ds.sketch(frame, feature_map, nan_policy="available")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds.decode(sketch, 2)
    assert any("no row observes" in str(each.message) for each in caught)
