"""Data frames: columns, their types and names."""

from __future__ import annotations

import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
from dask_sketch import partial_sketch
from dask_sketch.errors import ChunkError, InputError

FM = feature_map()


X = draw_rows(0, 60, 3)


NAMES = ["a", "b", "c"]


def run(x, weights=None, **options):
    found = ds.sketch(x, FM, weights, **options)
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


@pytest.mark.parametrize("kind", ["pandas", "dask", "parquet"])
def test_non_numeric_columns_are_named(kind, tmp_path):
    table = pd.DataFrame(X, columns=NAMES).assign(speaker="ada", when=pd.Timestamp("2020-01-01"))
    table.to_parquet(tmp_path / "x.parquet")
    source = {
        "pandas": table,
        "dask": dd.from_pandas(table, npartitions=2),
        "parquet": tmp_path / "x.parquet",
    }[kind]
    with pytest.raises(InputError, match=r"speaker \(.*when .*columns=\["):
        run(source)
    assert run(source, columns=NAMES).count == 60
    with pytest.raises(InputError, match=r"columns=\['d'\]"):
        run(source, columns=["a", "d"])
    with pytest.raises(InputError, match="columns='a': give a list"):
        run(source, columns="a")
    with pytest.raises(InputError, match="weights='d'"):
        run(source, "d", columns=NAMES)
    with pytest.raises(InputError, match="speaker"):
        run(source, "speaker", columns=NAMES)


@pytest.mark.parametrize("values", ["text", "1.5", None])
def test_partitions_of_other_types_than_announced_are_refused(values):
    frame = dd.from_pandas(pd.DataFrame(X, columns=NAMES), npartitions=1)
    other = np.full(len(X), values, dtype=object)
    wrong = frame.map_partitions(lambda part: part.assign(b=other), meta=frame)
    with pytest.raises(InputError, match=r"not numeric: b \("):
        run(wrong)


def test_errors_name_the_feature():
    table = pd.DataFrame(X, columns=NAMES)
    table.loc[3, "b"] = np.nan
    named = ds.FeatureMap(3, 10, scale=1.0, feature_names=NAMES)
    with pytest.raises(ChunkError, match="row 3 .* nan in feature 1 \\('b'\\)"):
        ds.sketch(table, named)
    table.loc[3, "b"] = 1e300
    with pytest.raises(ChunkError, match="row 3 .* in feature 1 \\('b'\\)"):
        ds.sketch(table, named)
    table.loc[3, "b"] = np.inf
    model = ds.GaussianMixture([1.0], [[0.0] * 3], [[1.0] * 3])
    with pytest.raises(InputError, match="row 3 of x .* feature 1 \\('b'\\)"):
        model.predict(table)


@pytest.mark.parametrize("kind", ["pandas", "dask"])
def test_two_columns_of_one_name(kind):
    table = pd.DataFrame(X, columns=["a", "b", "a"])
    source = table if kind == "pandas" else dd.from_pandas(table, npartitions=2)
    with pytest.raises(InputError, match="several columns named a"):
        run(source)


def test_columns_of_what_has_none():
    with pytest.raises(InputError, match=r"columns=\['a', 'b', 'c'\]"):
        run(db.from_sequence([(1.0, 2.0, 3.0)]), columns=NAMES)


def test_a_name_of_weights_needs_columns():
    with pytest.raises(InputError, match="weights='w' is a name"):
        run(X, "w")


N = 90


def computed(found):
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


def test_columns_of_mixed_numeric_types(rng):
    table = pd.DataFrame(
        {
            "a": rng.integers(0, 9, size=N).astype("i8"),
            "b": rng.normal(size=N).astype("f4"),
            "c": rng.random(N) < 0.5,
        }
    )
    fm = feature_map()
    expected = partial_sketch(table.to_numpy(dtype=float), fm)
    for source in (table, dd.from_pandas(table, npartitions=3)):
        assert_same_sketch(expected, computed(ds.sketch(source, fm)))


def test_columns_that_are_only_counted_have_no_names():
    x = np.random.default_rng(0).normal(size=(50, 2))
    dataset = xr.DataArray(x, dims=("row", "feature")).to_dataset("feature")
    assert list(dataset) == [0, 1]
    for given in (pd.DataFrame(x), dataset):
        feature_map = ds.design(given, n_components=1)
        assert feature_map.feature_names is None
        assert ds.sketch(given, feature_map).identical(ds.sketch(x, feature_map))
