"""Forgotten partitions are removed from the total, from all objects and from earlier states."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from jobs.ledger.world import record

from dask_sketch import create_ledger, open_ledger
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger import Partition
from dask_sketch.jobs.ledger.batch import read_rows
from dask_sketch.jobs.ledger.sketch_arrays import BOUNDS, WORDS, stack


def rows_on_disk(ledger):
    """Every stored row of integers, whatever refers to it: batches, totals, garbage."""
    import zarr

    found = []
    for path in Path(ledger.label).glob("*/*/words/zarr.json"):
        found += list(zarr.open_array(path.parent, mode="r")[...])
    return {row.tobytes() for row in found}


def row_of(sketch):
    return stack([sketch], sketch.feature_map, with_rows=False)[WORDS][0].tobytes()


@pytest.mark.slow
def test_ten_of_a_thousand(local, world):
    keys = [f"p{i}" for i in range(1000)]
    made = dict(zip(keys, world.new(*keys), strict=True))
    with local.lock():
        for start in range(0, 1000, 200):
            local.commit(added=[made[key] for key in keys[start : start + 200]])
    out = keys[3:1000:100]
    local.forget(out)
    rest = [key for key in keys if key not in out]
    expected = create_ledger(f"{local.label}-990", world.feature_map)
    with expected.lock():
        expected.commit(added=[made[key] for key in rest])
    for each in (local, open_ledger(local.label)):
        assert each.total().identical(expected.total())
        assert each.total(rest).identical(expected.total())
        assert set(each.entries) == set(rest)
        assert each.forgotten == set(out)
    disk = rows_on_disk(local)
    for key in out:
        assert row_of(made[key][1]) not in disk
    for key in rest[::50]:
        assert row_of(made[key][1]) in disk


def test_nothing_holds_it_any_more(local, world):
    with local.lock():
        local.commit(added=world.new("a", "b"), run=record(1))
        local.commit(added=world.new("b", version=1), run=record(2))  # an old version is in run 1
        local.commit(added=world.new("c"), run=record(3))
        local.commit(added=world.new("d"))
    assert [run for run, _ in local.states(9)] == [1, 2, 3]
    local.forget(["b"])
    # 1 to 3 held b; that of run 3 is not known without b, since d came after it
    assert local.states(9) == []
    assert [one.number for one in local.history()] == [1, 2, 3]
    disk = rows_on_disk(local)
    for sketch in (world.sketch("b"), world.sketch("b", 1), world.total("ab")):
        assert row_of(sketch) not in disk
    assert disk == {row_of(world.sketch(key)) for key in "acd"} | {row_of(world.total("acd"))}
    commits = list((Path(local.label) / "commits").iterdir())
    assert len(commits) == 1
    assert local.total().identical(world.total("acd"))


def test_the_last_state_is_kept_without_it(local, world):
    with local.lock():
        local.commit(added=world.new("a"), run=record(1))
        local.commit(added=world.new("b"), run=record(2))
    local.forget(["b"])
    states = dict(local.states(9))
    assert set(states) == {1, 2}
    assert states[1].identical(world.total("a"))
    assert states[2].identical(world.total("a"))


def test_what_no_total_held_takes_no_total_away(local, world):
    with local.lock():
        local.commit(added=world.new("a"), quarantined={"bad": "checksum"}, run=record(1))
        local.commit(added=world.new("b"), run=record(2))
    local.forget(["bad"])
    assert [run for run, _ in local.states(9)] == [1, 2]
    with local.lock():
        local.commit(added=world.new("c"))
        local.forget(["c"])
    assert [run for run, _ in local.states(9)] == [1, 2]
    assert not local.quarantined


def test_what_was_removed_before_is_still_in_earlier_totals(local, world):
    with local.lock():
        local.commit(added=world.new("a", "b"), run=record(1))
        local.commit(removed=["b"], run=record(2))
    assert row_of(world.sketch("b")) in rows_on_disk(local)
    local.forget(["b"])
    disk = rows_on_disk(local)
    assert row_of(world.sketch("b")) not in disk
    assert row_of(world.total("ab")) not in disk
    assert [run for run, _ in local.states(9)] == [2]
    assert local.total().identical(world.total("a"))
    assert open_ledger(local.label).forgotten == {"b"}


def test_a_mistake_in_a_name_is_told(ledger, world):
    with ledger.lock():
        ledger.commit(added=world.new("a", "b"))
    with pytest.raises(LedgerError, match=r"'x'.* 'a'"):
        ledger.forget(["a", "x"])
    with pytest.raises(LedgerError, match="'a'"):
        ledger.forget(["aa"])
    assert set(ledger.entries) == {"a", "b"}
    number = ledger.number + 1
    ledger.forget(["a"])
    assert ledger.number == number
    ledger.forget(["a"])  # twice is once
    assert ledger.number == number


def test_undo(ledger, url, world):
    with ledger.lock():
        ledger.commit(added=world.new("a", "b"))
    ledger.forget(["a", "b"])
    assert ledger.total().count == 0
    ledger.forget(["a"], undo=True)
    ledger.forget(["never forgotten"], undo=True)
    assert open_ledger(url).forgotten == {"b"}
    assert ledger.compare([world.part("a"), world.part("b")]).new[0].key == "a"
    with ledger.lock():
        ledger.commit(added=world.new("a"))
    assert open_ledger(url).total().identical(world.total("a"))


def test_what_cannot_be_removed_is_told(local, world, monkeypatch):
    from dask_sketch.jobs.ledger import backends as place

    with local.lock():
        local.commit(added=world.new("a", "b"))
    honest = place.shutil.rmtree

    def fail(path):
        if "commits" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        honest(path)

    monkeypatch.setattr(place.shutil, "rmtree", fail)
    with pytest.raises(LedgerError, match="PermissionError"):
        local.forget(["b"])
    assert local.forgotten == {"b"}  # it is out of the total, and on the disk
    assert row_of(world.sketch("b")) in rows_on_disk(local)
    monkeypatch.undo()
    local.forget(["b"])
    assert row_of(world.sketch("b")) not in rows_on_disk(local)


def test_bounds_are_those_of_what_is_left(local, world):
    keys = [f"p{i}" for i in range(12)]
    with local.lock():
        local.commit(added=world.new(*keys))
    live = set(keys)
    for key in keys[:-1]:
        local.forget([key])
        live -= {key}
        assert local.total().identical(world.total(live))
    rows = read_rows(local.backend, local._state.batches[0], world.feature_map, [BOUNDS])
    np.testing.assert_array_equal(rows[BOUNDS][0, 1], world.sketch(keys[-1]).maximum)


def stored(world, key, fingerprint, of=None):
    """A partition with a fingerprint as those of files have it, and its sketch."""
    return Partition(key, f"auto:{fingerprint:032x}", n_bytes=100), world.sketch(of or key)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("log/a.parquet", "log/a.parquet[0:1]"),
        ("log/a.parquet[0:4]", "log/a.parquet"),
        ("log/a.parquet[0:4]", "log/a.parquet[3:5]"),
        ("log/x[0:100]", "log/x[0:50]"),
        ("log/x[0:100]", "log/x[50:200]"),
    ],
)
def test_forgotten_rows_stay_forgotten_under_every_key(before, after, local, world):
    with local.lock():
        local.commit(added=[stored(world, before, 1), stored(world, "log/b", 2)])
    local.forget([before])
    for ledger in (local, open_ledger(local.label)):
        changes = ledger.compare([Partition(after, f"auto:{3:032x}"), Partition("log/c", "1")])
        assert [part.key for part in changes.skipped] == [after]
        assert [part.key for part in changes.new] == ["log/c"]
        with ledger.lock(), pytest.raises(LedgerError, match=r"forgotten.*undo=True"):
            ledger.commit(added=[stored(world, after, 3)])
    local.forget([before], undo=True)
    assert [part.key for part in local.compare([Partition(after, "1")]).new] == [after]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("log/a.parquet[0:4]", "log/a.parquet[4:8]"),
        ("log/a.parquet", "log/b.parquet"),
        ("log/x[0:100]", "log/x[100:200]"),
        ("log/x[0:100]", "log/y[0:100]"),
    ],
)
def test_other_rows_are_not_forgotten(before, after, local, world):
    with local.lock():
        local.commit(added=[stored(world, before, 1)])
    local.forget([before])
    assert [part.key for part in local.compare([Partition(after, f"auto:{2:032x}")]).new] == [after]


def test_forgotten_rows_of_a_renamed_source(local, world):
    with local.lock():
        local.commit(added=[stored(world, "old/a", 1), stored(world, "old/b", 2)], run=record(1))
        local.commit(
            added=[stored(world, "new/a", 1, "old/a"), stored(world, "new/b", 2, "old/b")],
            removed=["old/a", "old/b"],
            run=record(2),
        )
    local.forget(["new/a"])  # run 1 held these rows under the earlier name
    ((run, state),) = local.states(9)
    assert run == 2
    assert state.identical(world.sketch("old/b"))
    assert row_of(world.sketch("old/a")) not in rows_on_disk(local)
    changes = local.compare([Partition("third/a", f"auto:{1:032x}")])
    assert [part.key for part in changes.skipped] == ["third/a"]


# identities of one forgotten partition, and of another one, in runs one after another
CHANGES = {
    "division, name": [("old/a[0:2]", 2), ("new/a[0:2]", 2), ("new/a", 1), ("third/a", 1)],
    "name, division": [("new/a", 1), ("new/a[0:2]", 2), ("third/a[0:2]", 2), ("third/a", 3)],
    "touched, name": [("old/a", 2), ("new/a", 2), ("new/a", 3), ("old/a", 3)],
    "earlier name, touched": [("first/a", 2), ("new/a", 2)],
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_forgotten_rows_are_followed_through_changes(changes, local, world):
    with local.lock():
        local.commit(added=[stored(world, "first/a", 1)])
        local.commit(added=[stored(world, "old/a", 1)], removed=["first/a"])
    local.forget(["old/a"])
    for key, fingerprint in changes:
        ledger = open_ledger(local.label)
        present = [Partition(one, f"auto:{n:032x}") for one, n in [(key, fingerprint), ("b", 9)]]
        found = ledger.compare(present)
        assert [part.key for part in found.skipped] == [key]
        with ledger.lock():
            ledger.commit(skipped=found.skipped)
            number = ledger.number
            ledger.commit(skipped=found.skipped)
        assert ledger.number == number  # they are known by now
    ledger.forget(["old/a"], undo=True)
    assert ledger.forgotten == set()
    assert len(ledger.compare(present).new) == 2


def test_undo_of_a_file_covers_its_parts(local, world):
    parts = [stored(world, f"old/a[{n}:{n + 1}]", n + 1) for n in range(4)]
    with local.lock():
        local.commit(added=parts)
    local.forget(["old/a[0:1]", "old/a[2:3]"])
    local.forget(["old/a"], undo=True)
    assert local.forgotten == set()
    assert len(local.compare([part for part, _ in parts]).new) == 2


@pytest.mark.parametrize(("whole", "part"), [("a", "a[1:2]"), ("a[0:2]", "a[1:2]")])
def test_undo_of_rows_of_a_forgotten_partition_is_refused(local, world, whole, part):
    with local.lock():
        local.commit(added=[stored(world, part, 1)])
        local.commit(removed=[part], added=[stored(world, whole, 2)])
    local.forget([whole])
    with pytest.raises(LedgerError, match=re.escape(repr(whole))):
        local.forget([part], undo=True)
    assert whole in local.forgotten
    local.forget([whole], undo=True)
    assert local.forgotten == set()


def test_other_parts_of_a_file_are_not_forgotten_with_a_new_name(local, world):
    with local.lock():
        local.commit(added=[stored(world, "old/a[0:2]", 1), stored(world, "old/a[2:4]", 2)])
    local.forget(["old/a[0:2]"])
    for key, fingerprint in [("old/a", 3), ("new/a", 3)]:
        with local.lock():
            local.commit(skipped=[Partition(key, f"auto:{fingerprint:032x}")])
    assert local.forgotten == {"old/a[0:2]", "new/a[0:2]"}
    parts = [Partition(f"new/a[{i}:{i + 1}]", f"auto:{9 + i:032x}") for i in range(4)]
    assert [part.key for part in local.compare(parts).new] == ["new/a[2:3]", "new/a[3:4]"]


def test_a_file_is_forgotten_with_all_its_parts(local, world):
    keys = [f"log/a.parquet[{i}:{i + 1}]" for i in range(3)]
    with local.lock():
        local.commit(added=[stored(world, key, i) for i, key in enumerate(keys)])
        local.commit(added=[stored(world, "log/b.parquet", 9)])
    local.forget(["log/a.parquet"])
    assert set(local.entries) == {"log/b.parquet"}
    assert local.total().identical(world.sketch("log/b.parquet"))
    assert not {row_of(world.sketch(key)) for key in keys} & rows_on_disk(local)


def test_earlier_divisions_of_a_file_are_erased_too(local, world):
    with local.lock():
        local.commit(added=[stored(world, "a.parquet", 1), stored(world, "b", 2)], run=record(1))
        parts = [stored(world, "a.parquet[0:1]", 3), stored(world, "a.parquet[1:2]", 4)]
        local.commit(added=parts, removed=["a.parquet"], run=record(2))
    local.forget(["a.parquet[0:1]"])
    assert set(local.entries) == {"a.parquet[1:2]", "b"}
    assert [run for run, _ in local.states(9)] == [2]  # of which all other rows are known
    assert row_of(world.sketch("a.parquet")) not in rows_on_disk(local)


def test_fingerprints_of_other_origin_need_not_differ(local, world):
    with local.lock():
        local.commit(added=world.new("a", "b", "c"))  # all have the fingerprint "v0"
    local.forget(["a"])
    assert set(local.entries) == {"b", "c"}
    assert [part.key for part in local.compare([world.part("b")]).same] == ["b"]


def test_partitions_that_no_longer_exist_leave_the_quarantine(local, world):
    with local.lock():
        local.commit(added=world.new("a"), quarantined={"b": "damaged", "c": "damaged"})
        local.commit(removed=["b"])
        assert dict(local.quarantined) == {"c": "damaged"}
        with pytest.raises(LedgerError, match="'b'"):
            local.commit(removed=["b"])
    assert local.total().identical(world.total("a"))
