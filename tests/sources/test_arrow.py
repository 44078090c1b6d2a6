"""Tables and datasets of Arrow: types of columns, labels, and errors."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest
from strategies import draw_rows, feature_map

import dask_sketch as ds
from dask_sketch.errors import ChunkError, InputError

N = 60
FM = feature_map(n_features=2)


def table(**more):
    x = draw_rows(3, N, 2)
    return x, pa.table({"a": x[:, 0], "b": x[:, 1], **more})


@pytest.mark.parametrize("lazy", [False, True])
def test_text_in_dictionaries_names_groups(lazy, tmp_path):
    names = np.resize(["ann", "bob", "eve"], N)
    x, found = table(who=pa.array(names).dictionary_encode())
    if lazy:
        pq.write_table(found, tmp_path / "x.parquet", row_group_size=7)
        found = pds.dataset(tmp_path)
    group = ds.sketch(found, FM, groups="who")
    group = group.compute() if lazy else group
    assert list(group.labels) == ["ann", "bob", "eve"]
    assert group["bob"].identical(ds.partial_sketch(x[names == "bob"], FM))


@pytest.mark.parametrize("lazy", [False, True])
def test_missing_values_and_decimals(lazy, tmp_path):
    values = [None if k % 10 == 3 else k for k in range(N)]
    cents = [Decimal(k) / 4 for k in range(N)]
    found = pa.table({"a": pa.array(values, pa.int32()), "b": pa.array(cents, pa.decimal128(8, 2))})
    if lazy:
        pq.write_table(found, tmp_path / "x.parquet", row_group_size=7)
        found = pds.dataset(tmp_path)
    sketch = ds.sketch(found, FM, nan_policy="omit", sample=False)
    sketch = sketch.compute() if lazy else sketch
    kept = [k for k in range(N) if k % 10 != 3]
    expected = ds.partial_sketch([[k, k / 4] for k in kept], FM)
    assert (sketch.count, sketch.omitted) == (len(kept), N - len(kept))
    np.testing.assert_array_equal(sketch.z, expected.z)


def test_keys_of_folders_are_labels(tmp_path):
    x, found = table(day=pa.array(np.resize([1, 2], N)))
    pds.write_dataset(found, tmp_path, format="parquet", partitioning=["day"],
                      partitioning_flavor="hive")  # fmt: skip
    group = ds.sketch(pds.dataset(tmp_path, partitioning="hive"), FM, groups="day").compute()
    assert list(group.labels) == [1, 2]
    assert group[2].identical(ds.partial_sketch(x[1::2], FM))


def test_only_needed_columns_are_read(tmp_path):
    x, found = table(text=["long text"] * N)
    pds.write_dataset(found, tmp_path, format="ipc")
    dataset = pds.dataset(tmp_path, format="ipc")
    sketch = ds.sketch(dataset, FM, columns=["a", "b"], sample=False).compute()
    assert sketch.identical(ds.partial_sketch(x, FM))
    with pytest.raises(InputError, match="text"):
        ds.sketch(dataset, FM)


def test_a_filtered_dataset_has_a_remedy(tmp_path):
    _, found = table()
    pq.write_table(found, tmp_path / "x.parquet")
    filtered = pds.dataset(tmp_path).filter(pds.field("a") > 0)
    with pytest.raises(InputError, match="to_reader"):
        ds.open_samples(filtered)
    stream = filtered.scanner().to_reader()
    assert ds.sketch(stream, FM).count == int((found["a"].to_numpy() > 0).sum())


def test_a_damaged_file_is_named(tmp_path):
    _, found = table()
    for name in ("a", "b"):
        pq.write_table(found, tmp_path / f"{name}.parquet")
    dataset = pds.dataset(tmp_path)
    samples = ds.open_samples(dataset)
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(ChunkError, match=r"b\.parquet"):
        ds.sketch(samples, FM).compute()


def test_a_column_is_no_table():
    with pytest.raises(InputError, match="x of type pyarrow"):
        ds.open_samples(pa.chunked_array([[1.0, 2.0]]))
    with pytest.raises(InputError, match="columns"):
        ds.open_samples(pa.table({"name": ["ann"]}))


def test_columns_that_are_not_chosen_are_not_converted():
    x, found = table(text=["long text"] * N, w=np.ones(N), who=["ann"] * N)
    sketch = ds.sketch(found, FM, "w", columns=["a", "b"], sample=False)
    assert sketch.identical(ds.partial_sketch(x, FM, np.ones(N)))
    with pytest.raises(InputError, match="'c'"):
        ds.open_samples(found, columns=["a", "c"])
    with pytest.raises(InputError, match="groups='c'"):
        ds.open_samples(found, columns=["a", "b"], groups="c")
