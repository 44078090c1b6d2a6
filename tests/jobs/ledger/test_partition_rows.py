"""Random rows of partitions: the same for every order, and gone with their partition."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from jobs.ledger.world import record, same

from dask_sketch import FeatureMap, Sketch, create_ledger, open_ledger, partial_sketch
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.features.design import design_from_pilot
from dask_sketch.jobs.ledger import Partition, partition_rows

KEYS = [f"p{i}" for i in range(12)]


@pytest.fixture
def kept(tmp_path, rows_world):
    return create_ledger(tmp_path / "rows.zarr", rows_world.feature_map, sample=5)


def on_disk(ledger):
    """First values of all random rows in any object of the ledger, whatever refers to it."""
    found = set()
    for path in Path(ledger.label).glob("*/*/sample_rows/zarr.json"):
        found |= set(zarr.open_array(path.parent, mode="r")[:, 0].tolist())
    return found


def chosen(world, key, version=0):
    return set(world.sketch(key, version).sample.rows[:, 0].tolist())


def test_rows_depend_on_neither_order_nor_run(kept, rows_world, tmp_path):
    with kept.lock():
        for number, key in enumerate(KEYS, 1):
            kept.commit(added=rows_world.new(key), run=record(number))
    other = create_ledger(tmp_path / "other.zarr", rows_world.feature_map, sample=5)
    with other.lock():
        other.commit(added=rows_world.new(*KEYS[::-1]))
    expected = rows_world.total(KEYS)
    for ledger in (kept, open_ledger(kept.label), other):
        assert same(ledger.total(), expected)
        assert same(ledger.total(KEYS[3:7]), rows_world.total(KEYS[3:7]))
        assert ledger.total(sample=False).sample is None
        assert same(ledger.sketch_of("p4"), rows_world.sketch("p4"))
        assert [total.sample for _, total in ledger.states(20) if total.sample] == []
    assert 5 < len(expected.sample) <= 5 * len(KEYS)


def test_rows_of_partitions_are_chosen_independently(rows_world):
    x = np.arange(1000.0)[:, None].repeat(2, axis=1)
    rows_world.rows = lambda key, version=0: x
    first, second = chosen(rows_world, "a"), chosen(rows_world, "b")
    assert len(first) == len(second) == 5
    assert first != second
    assert chosen(rows_world, "a", version=1) == first


def test_the_rows_of_what_is_forgotten_are_erased(kept, rows_world):
    with kept.lock():
        kept.commit(added=rows_world.new(*KEYS), run=record(1))
        kept.commit(added=rows_world.new("p2", version=1), removed=["p5"], run=record(2))
        kept.commit(added=rows_world.new("new"))
    kept.forget(["p2", "p5", "p7"])
    left = [key for key in KEYS if key not in ("p2", "p5", "p7")]
    assert on_disk(kept) == set().union(*(chosen(rows_world, key) for key in [*left, "new"]))
    assert same(open_ledger(kept.label).total(), rows_world.total([*left, "new"]))


def test_the_rows_of_removed_partitions_leave_the_disk_with_the_next_runs(kept, rows_world):
    with kept.lock():
        kept.commit(added=rows_world.new("a", "b", "c"))
        kept.commit(added=rows_world.new("b", version=1), removed=["c"])
        for number in (1, 2, 3):
            kept.commit(run=record(number))
    expected = chosen(rows_world, "a") | chosen(rows_world, "b", 1)
    assert on_disk(kept) == expected
    assert same(kept.total(), rows_world.total({"a": 0, "b": 1}))


def test_all_rows_are_erased_and_the_sums_stay(kept, rows_world, world):
    with kept.lock():
        kept.commit(added=rows_world.new(*KEYS), run=record(1))
        kept.commit(added=rows_world.new("p3", version=1), removed=["p4"])
    number = kept.number
    kept.erase_rows()
    assert kept.number == number + 1
    assert not list(Path(kept.label).rglob("sample_rows"))
    left = {key: int(key == "p3") for key in KEYS if key != "p4"}
    for each in (kept, open_ledger(kept.label)):
        assert each.sampling is None
        assert same(each.total(), world.total(left))
        assert same(each.total(left), world.total(left))
        assert [run for run, _ in each.states(9)] == [1]
    kept.erase_rows()
    assert kept.number == number + 1
    with kept.lock():
        kept.commit(added=world.new("new"))
    kept.forget(["p1"])
    del left["p1"]
    assert same(open_ledger(kept.label).total(), world.total({"new": 0, **left}))


def test_ledgers_without_rows_stay_without(local, rows_world):
    with local.lock():
        local.commit(added=rows_world.new("a", "b"))
    assert local.sampling is open_ledger(local.label).sampling is None
    assert local.total().sample is local.sketch_of("a").sample is None
    assert not list(Path(local.label).rglob("sample_rows"))
    assert "no random rows" in repr(local)


def test_versions_of_the_root(local, kept):
    found = [
        json.loads((Path(ledger.label) / "zarr.json").read_text())["attributes"]["schema_version"]
        for ledger in (local, kept)
    ]
    assert found == [1, 2]  # earlier software cannot drop the rows


def test_sketches_need_rows_and_larger_samples_are_cut(kept, rows_world):
    x, feature_map = np.random.default_rng(0).normal(size=(50, 2)), rows_world.feature_map
    with kept.lock():
        with pytest.raises(LedgerError, match=r"'a' has no sample.*sample=5"):
            kept.commit(added=[(Partition("a", "1"), partial_sketch(x, feature_map))])
        wide = partial_sketch(x, feature_map, sample=100)
        kept.commit(
            added=[
                (Partition("a", "1"), wide),
                (Partition("none", "1"), Sketch.empty(feature_map)),
            ]
        )
    assert kept.total().sample.identical(wide.sample.resized(5))
    assert (kept.kept_rows.per_partition, kept.kept_rows.n_rows) == (5, 5)
    assert "at most 5" in repr(kept)
    assert "5 random rows" in kept._repr_html_()


@pytest.mark.parametrize("sample", [-1, 2.5, True])
def test_wrong_numbers_of_rows(sample, feature_map, tmp_path):
    with pytest.raises(InputError, match=f"sample={sample}"):
        create_ledger(tmp_path / "x.zarr", feature_map, sample=sample)
    assert not list(tmp_path.iterdir())


def test_other_rows_are_found_by_a_verification(kept, rows_world):
    with kept.lock():
        kept.commit(added=rows_world.new(*KEYS))

    def resketch(keys):
        found = {key: rows_world.sketch(key) for key in keys}
        moved = partial_sketch(rows_world.rows("p3"), rows_world.feature_map, sample=5)
        return found | {"p3": moved, "p8": found["p8"].without_sample()}

    found = kept.verify(1, 0, resketch)
    assert found.differing == ("p3", "p8")
    assert found.total_differs is False
    assert kept.verify(1, 0, lambda keys: {key: rows_world.sketch(key) for key in keys}).is_sound


def test_the_choice_of_rows_outlasts_the_pilot(tmp_path):
    x = np.random.default_rng(0).normal(size=(500, 2)) * (1.0, 9.0)
    feature_map = design_from_pilot(x, n_components=2)
    ledger = create_ledger(tmp_path / "l.zarr", feature_map, sample=5)
    assert ledger.sampling.variance == (1.0, 64.0)  # powers of four
    assert open_ledger(ledger.label).sampling == ledger.sampling
    with ledger.lock():
        ledger.commit(added=[(Partition("a", "1"), partial_sketch(x, feature_map, sample=5))])
    ledger.forget(["a"])
    assert ledger.feature_map.pilot is None
    assert open_ledger(ledger.label).sampling == ledger.sampling


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (partition_rows.HEADS, -1.0), (partition_rows.HEADS, np.nan), (partition_rows.HEADS, 1e300),
        (partition_rows.VALUES, -1.0), (partition_rows.ROWS, np.inf),
    ],
)  # fmt: skip
def test_edited_rows_are_refused(name, value, rows_world):
    found = [rows_world.sketch(key).sample for key in KEYS]
    arrays = partition_rows.stack(found, 2)
    again = partition_rows.unstack(arrays, range(12), 5, 20, "batch-1")
    assert all(one.identical(two) for one, two in zip(again, found, strict=True))
    arrays[name][0, 0] = value
    with pytest.raises(LedgerError, match="batch-1 holds impossible"):
        partition_rows.unstack(arrays, range(12), 5, 20, "batch-1")


@pytest.mark.parametrize(
    "stated", [{}, {"sample": {"rows": 61, "dtype": "float32"}}, {"sample": {"rows": -1}},
               {"sample": {"rows": 5, "dtype": "object"}}, {"sample": []}]
)  # fmt: skip
def test_statements_that_no_batch_makes(stated):
    with pytest.raises(LedgerError, match="batch-1"):
        partition_rows.shapes(stated, 12, 2, 5, "batch-1")


@pytest.mark.parametrize(
    "content", [{"rows": 0, "variance": None}, {"rows": 5, "variance": [1.0]},
                {"rows": 5, "variance": [1.0, -1.0]}, {"rows": "5", "variance": None}, 7]
)  # fmt: skip
def test_roots_that_no_ledger_has(content):
    with pytest.raises((ValueError, TypeError)):
        partition_rows.from_json({"sample": content}, FeatureMap(2, 20, scale=1.0))
