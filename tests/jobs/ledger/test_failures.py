"""Writes that fail at the n-th object, for every n: nothing is lost, and the next run goes on."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from jobs.ledger.world import record, same

from dask_sketch import Centroids, FeatureMap, create_ledger, open_ledger
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger import backends as place_module

BEFORE, AFTER = {"a": 0, "b": 0, "c": 0}, {"a": 1, "c": 0, "d": 0}


class Fault:
    """Counts writes and removals, and fails one of them, before or after it is done."""

    def __init__(self):
        self.left, self.after, self.only_once = None, False, True

    def __call__(self, act):
        if self.left is None:
            return act()
        self.left -= 1
        if self.left > 0 or (self.left < 0 and self.only_once):
            return act()
        if self.after:
            act()
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def fault():
    return Fault()


class FaultyStore(MemoryFileSystem):
    """An object store in memory whose requests fail as told."""

    protocol = "faulty"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    fault = None

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        return self.fault(lambda: MemoryFileSystem.pipe_file(self, path, value, mode=mode))

    def rm(self, path, recursive=False, maxdepth=None):
        return self.fault(lambda: MemoryFileSystem.rm(self, path, recursive, maxdepth))


@pytest.fixture
def disk(fault, monkeypatch):
    """A local disk that is full at the n-th write; removing also fails."""
    honest, remove = place_module.os.fsync, place_module.shutil.rmtree
    monkeypatch.setattr(place_module.os, "fsync", lambda handle: fault(lambda: honest(handle)))
    monkeypatch.setattr(place_module.shutil, "rmtree", lambda path: fault(lambda: remove(path)))


def a_night(ledger, world):
    with ledger.lock():
        changes = ledger.compare([world.part(key, version) for key, version in AFTER.items()])
        work = [*changes.new, *changes.changed]
        ledger.commit(
            added=[(part, world.sketch(part.key, AFTER[part.key])) for part in work],
            removed=changes.deleted,
        )
        if ledger.next_run == 2:
            ledger.write_model(2, Centroids([1.0], [[2.0, 0.0]]))
            ledger.commit(run=record(2))


def before(place, world):
    ledger = create_ledger(place, world.feature_map, sample=world.sample)
    with ledger.lock():
        ledger.commit(added=world.new(*BEFORE))
        ledger.write_model(1, Centroids([1.0], [[1.0, 0.0]]))
        ledger.commit(run=record(1))
    return ledger


def copies(folder, world):
    """A function that copies the ledger of the first night to a new place."""
    before(folder / "first", world)
    places = (folder / str(n) for n in itertools.count())
    return lambda: shutil.copytree(folder / "first", next(places))


def require_whole(place, world, *states):
    """The ledger is one of these states, and all that it refers to is there."""
    ledger = open_ledger(place)
    live = {key: int(entry.fingerprint[1:]) for key, entry in ledger.entries.items()}
    assert live in states
    assert same(ledger.total(), world.total(live))
    assert same(ledger.total(live), world.total(live))
    for run in ledger.history():
        assert ledger.model(run.number).centers[0, 0] == run.number
    for _, total in ledger.states(9):
        assert any(total.identical(world.total(state)) for state in (BEFORE, AFTER, *states))
    return ledger


def failing(act):
    """Message of the error of a call, ``None`` if it succeeds."""
    try:
        act()
    except LedgerError as error:
        return str(error)
    return None


MODES = list(itertools.product((True, False), repeat=2))  # fails once or for good; before or after


def fail_at(fault, number, mode, fresh, act, world, *states):
    """Let one write fail, if there are as many; then go on, in the same object and in a new one."""
    place = fresh()
    ledger = open_ledger(place)
    fault.left, (fault.only_once, fault.after) = number, mode
    message = failing(lambda: act(ledger))
    assert message is None or "No space left on device" in message
    was_reached, fault.left = fault.left <= 0, None
    assert was_reached or message is None
    require_whole(place, world, *states)
    for each in (ledger, open_ledger(place)):
        act(each)  # the disk has room again
        require_whole(place, world, states[-1])
    return was_reached


def fail_in_turn(fault, *rest, step=7):
    """Every seventh write, each in the next mode."""
    modes = itertools.cycle(MODES)
    numbers = itertools.count(1, step)
    passed = list(itertools.takewhile(lambda n: fail_at(fault, n, next(modes), *rest), numbers))
    assert len(passed) > 2


def fail_everywhere(fault, *rest):
    """Every write, in every mode."""
    for mode in MODES:
        passed = itertools.takewhile(lambda n: fail_at(fault, n, mode, *rest), itertools.count(1))  # noqa: B023
        assert len(list(passed)) > 8


HOW = pytest.mark.parametrize(
    "how", [fail_in_turn, pytest.param(fail_everywhere, marks=pytest.mark.slow)]
)


@pytest.mark.slow
@HOW
def test_a_night_on_a_disk(how, fault, world, tmp_path, disk):
    fresh = copies(tmp_path, world)

    how(fault, fresh, lambda ledger: a_night(ledger, world), world, BEFORE, AFTER)


@pytest.mark.slow
@HOW
def test_a_night_on_an_object_store(how, fault, rows_world):
    fsspec.register_implementation("faulty", FaultyStore, clobber=True)
    FaultyStore.fault = fault
    FaultyStore.store.clear()
    before("faulty://ledger", rows_world)
    objects = FaultyStore.store.copy()

    def fresh():
        FaultyStore.store.clear()
        FaultyStore.store.update(objects)
        return "faulty://ledger"

    how(fault, fresh, lambda ledger: a_night(ledger, rows_world), rows_world, BEFORE, AFTER)
    FaultyStore.store.clear()


@HOW
def test_forgetting(how, fault, rows_world, tmp_path, disk):
    fresh = copies(tmp_path, rows_world)
    how(fault, fresh, lambda ledger: ledger.forget(["b"]), rows_world, BEFORE, {"a": 0, "c": 0})


def test_founding(fault, world, tmp_path, disk):
    for fault.after in (False, True):
        for number in itertools.count(1, 3):
            place = tmp_path / f"{fault.after}-{number}"
            fault.left = number
            message = failing(lambda: create_ledger(place, world.feature_map))  # noqa: B023
            was_reached, fault.left = fault.left <= 0, None
            if message is not None:
                again = failing(lambda: create_ledger(place, world.feature_map))  # noqa: B023
                assert again is None or "exists" in again
            with open_ledger(place).lock():
                pass
            if not was_reached:
                assert message is None
                break


def test_a_folder_that_cannot_be_reached_is_an_error_of_the_ledger(tmp_path, monkeypatch):
    ledger = create_ledger(tmp_path / "ledger", FeatureMap(2, 10, scale=1.0))

    def refused(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", refused)
        with pytest.raises(LedgerError, match=r"Permission denied: '.*ledger/commits'"):
            ledger.refresh()
