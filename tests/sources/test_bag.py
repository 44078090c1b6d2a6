"""Dask bags of blocks and of records."""

from __future__ import annotations

import dask
import dask.bag as db
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
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


def test_weights_of_bags():
    blocks = [X[:20], X[20:]]
    bag = db.from_sequence(blocks, npartitions=2)
    with pytest.raises(InputError, match="npartitions=2"):
        run(bag, np.ones(60))
    with pytest.raises(InputError, match="npartitions=2"):
        run(bag, db.from_sequence(range(3), npartitions=3))
    with pytest.raises(InputError, match="size=5"):
        run(bag, db.from_sequence([np.ones(5), np.ones(40)], npartitions=2))
    with pytest.raises(InputError, match="weights of "):
        run(
            db.from_sequence([X[:20], X[20:40], X[40:]], npartitions=1),
            db.from_sequence([np.ones(20), np.ones(20)], npartitions=1),
        )
    with pytest.raises(InputError, match="names fields"):
        run(bag, "w")


def test_a_bad_row_of_a_later_block_of_a_partition_is_named():
    values = X.copy()
    values[47, 1] = np.nan
    blocks = [values[:20], values[20:40], values[40:]]
    records = pd.DataFrame(np.tile(X, (100, 1)), columns=NAMES).to_dict("records")
    records[5000]["b"] = np.nan
    with pytest.raises(ChunkError, match=r"chunk 0 of .*, from row 40: row 7 "):
        run(db.from_sequence(blocks, npartitions=1))
    with pytest.raises(ChunkError, match=r"chunk 0 of .*, from row 4096: row 904 "):
        run(db.from_sequence(records, npartitions=1))


def test_bad_bags():
    for items, message in [
        ([1.0, 2.0, 3.0], "elements of"),
        ([[1.0, 2.0, 3.0], [1.0]], "differ in length"),
        ([np.zeros((2, 2, 3))], "elements of"),
        ([{"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 1.0}], "no field 'b'"),
        (["text", "words"], "elements of|dtype="),
        ([("a", "b", "c")], "dtype="),
        ([{"a": 1.0, "b": 2.0, "c": "x"}], "dtype="),
    ]:
        with pytest.raises(InputError, match=message):
            run(db.from_sequence(items, npartitions=1))
    with pytest.raises(InputError, match="no field 'w'"):
        run(db.from_sequence([{"a": 1.0, "b": 2.0, "c": 3.0}]), "w")


def test_none_in_a_record_is_a_missing_number():
    records = db.from_sequence([[1.0, None, 2.0], [3.0, 4.0, 5.0]], npartitions=1)
    with pytest.raises(ChunkError, match=r"row 0 .* nan in feature 1"):
        run(records)
    found = run(records, nan_policy="omit")
    assert found.identical(run(np.array([[1.0, np.nan, 2.0], [3.0, 4.0, 5.0]]), nan_policy="omit"))
    with pytest.raises(InputError, match="dtype="):
        run(db.from_sequence([["1", None, "2"]], npartitions=1))


N = 90


def computed(found):
    return found if isinstance(found, ds.Sketch) else found.compute(scheduler="sync")


def test_records_whose_fields_come_in_another_order():
    x = draw_rows(1, N, 3)
    straight = [dict(zip(NAMES, row, strict=True)) for row in x]
    turned = [dict(reversed(item.items())) for item in straight]
    mixed = db.from_sequence(straight[:40] + turned[40:], npartitions=6)
    got = computed(ds.sketch(mixed, feature_map()))
    assert_same_sketch(partial_sketch(x, feature_map()), got)


def test_tables_of_one_partition_have_the_same_columns():
    table = pd.DataFrame(X, columns=list("abc"))
    bag = db.from_sequence([table, table[list("cab")]], npartitions=1)
    with pytest.raises(InputError, match=r"\['c', 'a', 'b'\], where \['a', 'b', 'c'\]"):
        ds.sketch(bag, FM).compute(scheduler="sync")


def swapped(kind: str) -> tuple[db.Bag, db.Bag]:
    """Tables or records of two partitions, in the same and in different columns."""
    table = pd.DataFrame(X, columns=list("abc"))
    other = table[list("cab")]
    if kind == "records":
        other = table.rename(columns={"a": "z"})
    both = {
        "pandas": lambda x: [x],
        "arrow": lambda x: [pa.table(x)],
        "records": lambda x: x.to_dict("records"),
    }[kind]
    return (
        db.from_sequence(both(table) + both(table), npartitions=2),
        db.from_sequence(both(table) + both(other), npartitions=2),
    )


@pytest.mark.parametrize("kind", ["pandas", "arrow", "records"])
def test_tables_of_all_partitions_have_the_same_columns(kind):
    straight, mixed = swapped(kind)
    for run in (
        lambda bag: ds.sketch(bag, FM).compute(scheduler="sync").count,
        lambda bag: ds.second_moments(bag).compute(scheduler="sync").count,
        lambda bag: ds.design(bag, n_components=1).n_features,
    ):
        assert run(straight)
        with pytest.raises(InputError, match=r"has the columns \['.', '.', '.'\], where \['a'"):
            run(mixed)


def test_tables_in_batches_have_the_same_columns():
    _, mixed = swapped("pandas")
    with (
        dask.config.set({"sketch.task-limit": 1, "sketch.batch-tasks": 1}),
        pytest.raises(InputError, match=r"where \['a', 'b', 'c'\]"),
    ):
        ds.sketch(mixed, FM).compute(scheduler="sync")


def test_blocks_of_a_stream_have_the_same_columns():
    table = pd.DataFrame(X, columns=list("abc"))
    assert ds.sketch(iter([table, X]), FM).count == 2 * len(X)
    with pytest.raises(InputError, match=r"block 1 .* \['c', 'a', 'b'\], where"):
        ds.sketch(iter([table, table[list("cab")]]), FM)


def test_bags_have_the_names_of_the_map():
    table = pd.DataFrame(X, columns=list("cab"))
    named = ds.design(table, n_components=1)
    expected = ds.sketch(table, named, sample=False)
    records = table.to_dict("records")
    for items in (records, [table]):
        found = ds.sketch(db.from_sequence(items, npartitions=1), named, sample=False)
        assert_same_sketch(found.compute(scheduler="sync"), expected)
    others = (
        [table, table[list("abc")]],
        records[:30] + table.rename(columns={"a": "z"}).to_dict("records")[30:],
    )
    for items in others:
        with pytest.raises(InputError, match="expected|columns="):
            ds.sketch(db.from_sequence(items, npartitions=2), named).compute(scheduler="sync")
    with pytest.raises(InputError, match="feature 0"):
        ds.sketch(db.from_sequence(records, npartitions=2), named, columns=list("abc"))
