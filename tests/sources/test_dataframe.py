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


def partitions(changed, frame=None):
    """Two partitions, the second of which is changed, as if it had the columns of the first."""
    frame = (
        pd.DataFrame(X, columns=NAMES).assign(g=np.repeat([0, 1], 30)) if frame is None else frame
    )
    parts = [frame.iloc[:30], changed(frame.iloc[30:])]
    return dd.from_map(lambda k: parts[k], range(2), meta=frame.iloc[:0])


@pytest.mark.parametrize("columns", [None, NAMES])
@pytest.mark.parametrize("groups", [None, "g"])
def test_columns_of_partitions_are_taken_by_name(columns, groups):
    lazy = partitions(lambda part: part[["c", "g", "b", "a"]])
    if groups is None:
        lazy = partitions(lambda part: part[["c", "b", "a"]], pd.DataFrame(X, columns=NAMES))
    found = ds.sketch(lazy, FM, groups=groups, columns=columns).compute(scheduler="sync")
    found = found.merged() if groups else found
    assert found.same_sums(partial_sketch(X, FM))


@pytest.mark.parametrize("columns", [None, NAMES])
@pytest.mark.parametrize("renamed", [{"b": "d"}, {"b": "a"}])
def test_partitions_without_a_column_are_refused(columns, renamed):
    lazy = partitions(lambda part: part.rename(columns=renamed), pd.DataFrame(X, columns=NAMES))
    with pytest.raises(ChunkError, match="'b'"):
        ds.sketch(lazy, FM, columns=columns).compute(scheduler="sync")


@pytest.mark.parametrize("argument", ["weights", "groups"])
@pytest.mark.parametrize("labels", [range(60), [f"row {k}" for k in range(60)]])
def test_series_of_another_index_are_refused(argument, labels):
    table = pd.DataFrame(X, columns=NAMES, index=pd.Index(labels))
    series = pd.Series(np.arange(60) % 4, index=table.index)
    with pytest.raises(InputError, match=rf"{argument}.*reindex\(x.index\)"):
        ds.open_samples(table, **{argument: series.iloc[::-1]})
    expected = ds.sketch(table, FM, **{argument: series.to_numpy()})
    for same in (series, series.iloc[::-1].reindex(table.index)):
        found = ds.sketch(table, FM, **{argument: same})
        if argument == "groups":
            assert found.labels.tolist() == expected.labels.tolist()
            assert all(found[k].identical(expected[k]) for k in expected.labels)
        else:
            assert found.identical(expected)


def test_slices_of_numbered_rows_take_numbered_series():
    table = pd.DataFrame(X, columns=NAMES)
    weights = pd.Series(np.arange(30.0))
    assert run(table[30:], weights).identical(run(X[30:], np.arange(30.0)))


@pytest.mark.parametrize("argument", ["weights", "groups"])
def test_dask_series_of_other_divisions_are_refused(argument):
    table = pd.DataFrame(X, columns=NAMES)
    lazy = dd.from_pandas(table, npartitions=3)
    series = pd.Series(np.arange(60) % 4)
    other = dd.from_pandas(series.set_axis(range(60, 120)), npartitions=3)
    with pytest.raises(InputError, match=f"{argument} has the divisions"):
        ds.open_samples(lazy, **{argument: other})
    ds.open_samples(lazy, **{argument: dd.from_pandas(series, npartitions=3)})
