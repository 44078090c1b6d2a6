"""Integers that float64 cannot tell apart stay apart, as labels of groups and as levels."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

import dask_sketch as ds
from dask_sketch.errors import SketchError
from dask_sketch.sources.arrow import to_frame

N = 60
LARGE = 2**60
X = np.random.default_rng(0).normal(size=(N, 2))
FM = ds.FeatureMap(2, 20, scale=1.0, feature_names=("a", "b"))
KINDS = ["table", "parquet", "dataset", "polars", "stream", "csv"]


def opened(kind, table, folder):
    """The same table in other forms."""
    if kind == "polars":
        return pl.from_arrow(table)
    if kind == "stream":
        return table.to_reader(max_chunksize=20)
    if kind == "csv":
        table.to_pandas(integer_object_nulls=True).to_csv(folder / "x.csv", index=False)
        return str(folder / "x.csv")
    if kind == "table":
        return table
    pq.write_table(table, folder / "x.parquet", row_group_size=20)
    return str(folder / "x.parquet") if kind == "parquet" else pds.dataset(folder)


def computed(found):
    return found.compute(scheduler="sync") if hasattr(found, "compute") else found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [5, LARGE])
@pytest.mark.few_cases(4)
def test_labels_beside_missing_ones(kind, first, tmp_path):
    # a third of the rows, which come last, have missing labels
    labels = [first + k % 3 if k < 40 or k % 2 else None for k in range(N)]
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "user": pa.array(labels, pa.int64())})
    found = computed(ds.sketch(opened(kind, table, tmp_path), FM, groups="user", nan_policy="omit"))
    assert found.labels.dtype == np.int64
    assert list(found.labels) == [first, first + 1, first + 2]
    assert list(found.count) == [labels.count(label) for label in found.labels]
    assert found.unlabelled == labels.count(None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few_cases(3)
def test_levels_beside_missing_ones(kind, tmp_path):
    levels = [LARGE, LARGE + 1, LARGE + 2]
    values = [None if k == 9 else LARGE + k % 3 for k in range(N)]
    table = pa.table({"a": X[:, 0], "c": pa.array(values, pa.int64())})
    fm = ds.design(table, n_components=2, categories={"c": levels}, nan_policy="omit")
    found = computed(ds.sketch(opened(kind, table, tmp_path), fm, nan_policy="omit"))
    codes = [k % 3 for k in range(N) if k != 9]
    assert found.mean[1] == pytest.approx(np.mean(codes))
    assert found.omitted == 1


def test_integers_that_are_rounded_already_are_refused():
    frame = pd.DataFrame(X, columns=["a", "b"])
    frame["user"] = [np.nan if k == 9 else LARGE + k % 3 for k in range(N)]
    with pytest.raises(SketchError, match="Int64"):
        ds.sketch(frame, FM, groups="user", nan_policy="omit")
    with pytest.raises(SketchError, match="'user'"):
        ds.open_samples(frame[["a", "user"]], categories={"user": [LARGE, LARGE + 1, LARGE + 2]})


@pytest.mark.parametrize("beside", [False, True])
def test_integers_of_a_partition_with_missing_values(beside):
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(g=5)

    def part(k):
        found = frame.iloc[20 * k : 20 * (k + 1)]
        return found if k == 0 else found.assign(g=[np.nan if k == 2 else 5.0] + [np.nan] * 19)

    lazy = dd.from_map(part, range(3), meta=frame.iloc[:0])
    groups = lazy["g"] if beside else "g"
    found = computed(ds.sketch(lazy, FM, groups=groups, columns=["a", "b"], nan_policy="omit"))
    assert (found.labels.tolist(), found.count.tolist()) == ([5], [21])
    assert found.unlabelled == 39
    assert found.labels.dtype == np.int64


def test_types_of_complete_columns_do_not_depend_on_others():
    table = pa.table({"a": pa.array([1, None], pa.int32()), "b": pa.array([2, 3], pa.int32()),
                      "c": pa.array([2, None], pa.uint8()), "d": [1.5, None]})  # fmt: skip
    assert list(map(str, to_frame(table).dtypes)) == ["Int32", "int32", "UInt8", "float64"]


def test_run_end_encoding_is_decoded():
    table = pa.table({"a": pc.run_end_encode(X[:, 0]), "b": X[:, 1],
                      "g": pc.run_end_encode(np.repeat([7, 8], N // 2))})  # fmt: skip
    found = ds.sketch(table, FM, groups="g")
    assert found.labels.tolist() == [7, 8]
    assert found[7].same_sums(ds.partial_sketch(X[: N // 2], FM))
