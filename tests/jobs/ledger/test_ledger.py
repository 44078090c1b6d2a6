"""Commits are stored once, and the total has the bits of one computed from scratch."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.ledger.world import Nights, World, record, same

from dask_sketch import FeatureMap, Sketch, create_ledger, open_ledger, partial_sketch
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.jobs.ledger import Partition, change, manifest


def test_a_ledger_needs_a_feature_map(tmp_path):
    with pytest.raises(InputError, match="feature_map"):
        create_ledger(tmp_path / "ledger.zarr", "map.json")
    assert not list(tmp_path.iterdir())


def test_an_empty_ledger(ledger, url, feature_map):
    for each in (ledger, open_ledger(url)):
        assert each.feature_map == feature_map
        assert each.number == 0
        assert each.next_run == 1
        assert not each.entries
        assert not each.forgotten
        assert not each.quarantined
        assert each.history() == []
        assert each.states(5) == []
        assert each.model() is None
        assert each.total().identical(Sketch.empty(feature_map))


def test_what_is_committed_is_there(ledger, url, world):
    with ledger.lock():
        ledger.commit(added=world.new("a", "b"))
        ledger.commit(added=world.new("c"), run=record(1))
    for each in (ledger, open_ledger(url)):
        assert set(each.entries) == set("abc")
        assert each.number == 2
        entry = each.entries["b"]
        part = world.part("b")
        assert (entry.fingerprint, entry.rows, entry.n_bytes) == ("v0", part.rows, part.n_bytes)
        assert (entry.count, entry.run, entry.since) == (part.rows, 1, 1)
        assert each.total().identical(world.total("abc"))
        assert each.total(["a", "c"]).identical(world.total("ac"))
        assert each.total([]).identical(Sketch.empty(world.feature_map))
        for key in "abc":
            assert each.sketch_of(key).identical(world.sketch(key))


def test_replaced_and_removed(ledger, url, world):
    with ledger.lock():
        ledger.commit(added=world.new("a", "b", "c", "d"))
        ledger.commit(added=world.new("b", version=1), removed=["c"])
        ledger.commit(added=[*world.new("e"), *world.new("a", version=7)], removed=["d", "a"])
    for each in (ledger, open_ledger(url)):
        assert each.total().identical(world.total({"a": 7, "b": 1, "e": 0}))
        assert {key: entry.fingerprint for key, entry in each.entries.items()} == {
            "a": "v7", "b": "v1", "e": "v0",
        }  # fmt: skip
    with ledger.lock():
        ledger.commit(removed="abe")
    assert open_ledger(url).total().identical(Sketch.empty(world.feature_map))


@pytest.mark.parametrize("sample", [0, 5])
@settings(max_examples=6)
@given(data=st.data())
def test_any_history_has_the_bits_of_a_fresh_total(data, feature_map, sample):
    world = World(feature_map, sample)
    ledger = create_ledger(f"memory://any-history-{uuid.uuid4()}", feature_map, sample=sample)
    live: dict[str, int] = {}
    with ledger.lock():
        for step in range(data.draw(st.integers(1, 8))):
            fresh = data.draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=4))
            out = data.draw(st.lists(st.sampled_from("abcdefgh"), unique=True))
            out = [key for key in out if key in live]
            fresh = [key for key in fresh if key not in ledger.forgotten]
            if out and data.draw(st.booleans()):
                ledger.forget(out)
                fresh = [key for key in fresh if key not in out]
                out = []
                live = {key: v for key, v in live.items() if key not in ledger.forgotten}
            ledger.commit(added=[p for k in fresh for p in world.new(k, version=step)], removed=out)
            live = {k: v for k, v in live.items() if k not in out} | dict.fromkeys(fresh, step)
            expected = world.total(live) if live else Sketch.empty(feature_map)
            assert same(ledger.total(), expected)
    again = open_ledger(ledger.label)  # after one to eight commits
    assert set(again.entries) == set(live)
    assert same(again.total(), expected)
    assert same(again.total(live), expected)


def test_comparison_with_the_partitions_that_there_are(ledger, world):
    with ledger.lock():
        ledger.commit(added=world.new("a", "b", "c", "d"))
        ledger.forget(["d"])
    changes = ledger.compare(
        [world.part("a"), world.part("b", 1), world.part("x"), world.part("d")]
    )
    assert [p.key for p in changes.same] == ["a"]
    assert [p.key for p in changes.changed] == ["b"]
    assert [p.key for p in changes.new] == ["x"]
    assert [p.key for p in changes.skipped] == ["d"]
    assert changes.deleted == ("c",)
    with pytest.raises(LedgerError, match="'a'"):
        ledger.compare([world.part("a"), world.part("a", 1)])


def test_nothing_to_commit_is_no_commit(ledger, world):
    with ledger.lock():
        ledger.commit()
        assert ledger.number == 0
        ledger.commit(added=world.new("a"))
        ledger.commit(added=[], removed=[], quarantined={})
        ledger.forget([])
        assert ledger.number == 1


def test_quarantine(ledger, url, world):
    with ledger.lock():
        ledger.commit(added=world.new("a"), quarantined={"bad": "checksum", "worse": "gone"})
        assert dict(ledger.quarantined) == {"bad": "checksum", "worse": "gone"}
        ledger.commit(added=world.new("bad"))
        assert dict(open_ledger(url).quarantined) == {"worse": "gone"}
        ledger.commit(quarantined={"a": "damaged"})  # what was read stays, unless it is removed
        assert ledger.total().identical(world.total(["a", "bad"]))
        ledger.commit(removed=["a"], quarantined={"a": "damaged"})
        assert dict(ledger.quarantined) == {"a": "damaged", "worse": "gone"}
        ledger.forget(["worse"])
        assert dict(ledger.quarantined) == {"a": "damaged"}


def test_what_is_refused(ledger, world):
    other = FeatureMap(2, 20, scale=2.0)
    with pytest.raises(LedgerError, match="not locked"):
        ledger.commit(added=world.new("a"))
    with ledger.lock():
        ledger.commit(added=world.new("a", "b"))
        ledger.forget(["b"])
        number = ledger.number
        foreign = partial_sketch(np.zeros((3, 2)), other)
        wide = (world.sketch("a") + world.sketch("b")) - world.sketch("b")
        for message, change in {
            "'x' twice": {"added": world.new("x", "x")},
            "'a' twice": {"removed": ["a", "a"]},
            "'y'": {"removed": ["y"]},
            "'b' was forgotten": {"added": world.new("b")},
            "differ in seed": {"added": [(world.part("x"), foreign)]},
            "'x' is a difference": {"added": [(world.part("x"), wide)]},
            "number=3: .*1": {"run": record(3)},
            "number=0: .*1": {"run": record(0)},
        }.items():
            with pytest.raises(LedgerError, match=message):
                ledger.commit(**change)
        assert ledger.number == number
        assert ledger.total().identical(world.total("a"))
    for wrong in (lambda: ledger.sketch_of("z"), lambda: ledger.total(["a", "z"])):
        with pytest.raises(LedgerError, match="'z'"):
            wrong()
    with pytest.raises(LedgerError, match="n=0"):
        ledger.states(0)


def test_history_states_and_models(ledger, url, world):
    from dask_sketch import Centroids

    with ledger.lock():
        for number, key in enumerate("abc", 1):
            assert ledger.next_run == number
            ledger.commit(added=world.new(key))
            if number != 2:
                ledger.write_model(number, Centroids([1.0], [[number, 0.0]]))
                ledger.write_model(number, Centroids([1.0], [[number, 1.0]]), "group")
            ledger.commit(run=record(number, counts={"new": 1}, results={"mmd": [0.5, None]}))
        for number in (1, 3, 5):
            with pytest.raises(LedgerError, match=rf"number={number}: .*3"):
                ledger.commit(added=world.new("d"), run=record(number))
        ledger.commit(added=world.new("d"))
    for each in (ledger, open_ledger(url)):
        assert each.next_run == 4
        history = each.history()
        assert [one.number for one in history] == [1, 2, 3]
        assert history[0].results == {"mmd": [0.5, None]}
        assert history[2].counts == {"new": 1}
        assert [set(one.models) for one in history] == [{"all", "group"}, set(), {"all", "group"}]
        assert [run for run, _ in each.states(9)] == [1, 2, 3]
        for (_, sketch), keys in zip(each.states(2), ("ab", "abc"), strict=True):
            assert sketch.identical(world.total(keys))
        assert each.model().centers.tolist() == [[3.0, 0.0]]
        assert each.model(1, "group").centers.tolist() == [[1.0, 1.0]]
        assert each.model(2) is None
        assert each.entries["c"].run == 3
        assert each.entries["d"].run == 4


@pytest.mark.slow
def test_a_long_history(local, world):
    from dask_sketch.jobs.ledger.change import KEEP_STATES

    last = KEEP_STATES + 3
    with local.lock():
        for number in range(1, last + 1):
            local.commit(added=world.new("a", version=number), run=record(number))
    again = open_ledger(local.label)
    assert [one.number for one in again.history()] == list(range(1, last + 1))
    assert [run for run, _ in again.states(1000)] == list(range(last + 1 - KEEP_STATES, last + 1))
    assert again.total().identical(world.sketch("a", last))


def test_it_is_a_zarr_group_that_other_software_reads(local, world):
    with local.lock():
        local.commit(added=world.new("a", "b"), run=record(1))
    root = zarr.open_group(local.label, mode="r")
    assert root.attrs["schema"] == "dask-sketch/ledger"
    name, *_ = root.attrs["content"]["feature_map"]
    stored = zarr.open_group(f"{local.label}/{name}", mode="r")
    np.testing.assert_array_equal(stored["frequencies"][...], world.feature_map.frequencies)
    batch = zarr.open_group(f"{local.label}/{local.entries['a'].batch}", mode="r")
    assert batch["words"].shape[0] == 2
    assert batch.attrs["members"]["key"] == ["a", "b"]
    np.testing.assert_array_equal(batch["bounds"][1, 0], world.sketch("b").minimum)


def test_partitions_of_no_sample(local, world):
    nothing = Sketch.empty(world.feature_map)
    with local.lock():
        local.commit(added=[(Partition("none", "v0"), nothing)])
        assert local.total().identical(nothing)
        local.commit(added=world.new("a"))
        assert local.total().identical(world.total("a"))
        local.commit(removed=["none"])
        assert local.total().identical(world.total("a"))
        local.commit(added=[(Partition("none", "v0"), nothing)], removed=["a"])
        assert local.total().identical(nothing)
        assert set(local.entries) == {"none"}


@pytest.mark.slow
def test_years_of_nights_leave_few_batches(in_memory, world, monkeypatch):
    monkeypatch.setattr(change, "batch_rows", lambda *_: 100)
    live = {}
    with in_memory.lock():
        for night in range(32):
            fresh = [f"{night}-{i}" for i in range(1 + (night == 0) * 90)]
            out = [key for key in live if key.startswith("0-")][:3]
            in_memory.commit(added=world.new(*fresh), removed=out)
            live |= dict.fromkeys(fresh, 0)
            for key in out:
                del live[key]
    batches = in_memory._state.batches
    assert len(batches) < 20
    assert sum(batch.n_live for batch in batches) == len(live) == 31
    again = open_ledger(in_memory.label)
    assert set(again.entries) == set(live)
    assert again.total().identical(world.total(live))
    assert again.total(live).identical(world.total(live))
    assert again.entries["27-0"].batch == in_memory.entries["27-0"].batch
    assert dict(again.entries) == dict(in_memory.entries)


@pytest.mark.slow
@pytest.mark.parametrize("sample", [0, 5])
def test_partitions_with_missing_values(tmp_path, sparse_map, sample):
    world = World(sparse_map, sample, missing=0.3)
    ledger = create_ledger(tmp_path / "ledger.zarr", sparse_map, sample=sample)
    Nights(world, 6).run(ledger)
    again = open_ledger(tmp_path / "ledger.zarr")
    versions = Nights(world, 6).expected(6)
    assert any(world.sketch(key, v).missing is None for key, v in versions.items())
    assert same(again.total(), world.total(versions))
    assert again.total(sample=False).missing is not None
    for key, version in versions.items():
        assert again.sketch_of(key).same_sums(world.sketch(key, version))
    found = again.verify(1, 0, lambda keys: {key: world.sketch(key, versions[key]) for key in keys})
    assert found.is_sound
    last = [key for key, entry in again.entries.items() if entry.run == 6]
    rest = again.total(sample=False) - again.total(last, sample=False)
    assert rest.same_sums(again.total(set(versions).difference(last), sample=False))
    part = again.window(1, half_life="1 day", sample=False)
    assert part.identical(again.total(last, sample=False))
    with again.lock():
        again.forget([key for key in versions if world.sketch(key, versions[key]).missing])
        left = set(again.entries)
    assert again.total(sample=False).missing is None
    assert same(again.total(), world.total({key: versions[key] for key in left}))


def test_earlier_software_refuses_missing_values(tmp_path, sparse_map, monkeypatch):
    world = World(sparse_map, missing=0.3)
    ledger = create_ledger(tmp_path / "ledger.zarr", sparse_map)
    with ledger.lock():
        ledger.commit(added=world.new("a", "b"))
    monkeypatch.setattr(manifest, "VERSIONS", (1,))
    with pytest.raises(LedgerError, match="schema version 2"):
        open_ledger(tmp_path / "ledger.zarr")


@pytest.mark.slow
def test_what_is_no_longer_needed_is_gone(local, world):
    root = Path(local.label)
    with local.lock():
        for version in range(20):
            local.commit(added=world.new("a", version=version))
        for folder in ("batches", "commits", "totals"):
            assert len(list((root / folder).iterdir())) == 3
    assert not (root / "lock").exists()
