"""Processes killed at any moment leave a consistent ledger, and the next run continues."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal

import numpy as np
import pytest
from jobs.ledger.world import Killer, Nights, run_nights, same

from dask_sketch import create_ledger, open_ledger
from dask_sketch.jobs.ledger import batch
from dask_sketch.jobs.ledger import history as records
from dask_sketch.jobs.ledger.backends import open_backend
from dask_sketch.jobs.ledger.ledger import KEEP_COMMITS
from dask_sketch.jobs.ledger.manifest import commit_numbers, read_commit


def assert_consistent(place, nights):
    """Every partition once, in a version that it had, and a total with the bits of a new one."""
    ledger = open_ledger(place)
    live = {key: int(entry.fingerprint[1:]) for key, entry in ledger.entries.items()}
    for key, sketch in ledger.sketches(live):
        assert same(sketch, nights.made[key, live[key]][1])
    if live:
        assert same(ledger.total(), nights.total(live))
    assert not set(live) & ledger.forgotten
    numbers = [record.number for record in ledger.history()]
    assert numbers == list(range(1, ledger.next_run))
    for run, total in ledger.states(100):
        assert total.identical(nights.total(nights.expected(run)))
    return ledger


def assert_nothing_left_behind(place):
    """A few commits, and of all else only what these refer to.

    How many commits there are is not that of an undisturbed run: the next writer takes the number
    that a killed one would have written.
    """
    root = open_backend(str(place))
    commits = commit_numbers(root)
    assert 1 <= len(commits) <= KEEP_COMMITS
    needed = set().union(*(read_commit(root, number).names() for number in commits))
    folders = (batch.FOLDER, batch.TOTALS, records.RUNS_FOLDER)
    assert {f"{folder}/{name}" for folder in folders for name in root.names(folder)} == needed


def undisturbed(world, place, n_nights):
    nights = Nights(world, n_nights)
    ledger = create_ledger(place, world.feature_map, sample=world.sample)
    counter = Killer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", counter)
        nights.run(ledger)
    assert_consistent(place, nights)
    assert {key: f"v{version}" for key, version in nights.expected(n_nights).items()} == {
        key: entry.fingerprint for key, entry in ledger.entries.items()
    }
    return nights, ledger, counter.calls


def kill_again_and_again(world, tmp_path, n_kills, n_nights, seed):
    nights, whole, n_writes = undisturbed(world, tmp_path / "whole", n_nights)
    context = multiprocessing.get_context("forkserver")
    rng = np.random.default_rng(seed)
    packed = pickle.dumps(nights)
    kills = finished = 0
    place = tmp_path / "killed"
    create_ledger(place, world.feature_map, sample=world.sample)
    while kills < n_kills:
        at = int(rng.integers(1, n_writes // 2))
        child = context.Process(target=run_nights, args=(place, packed, at))
        child.start()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
        kills += child.exitcode != 0
        ledger = assert_consistent(place, nights)
        if ledger.next_run > n_nights:
            assert same(ledger.total(), whole.total())
            finished += 1
            shutil.rmtree(place)
            create_ledger(place, world.feature_map, sample=world.sample)
    nights.run(open_ledger(place))
    last = assert_consistent(place, nights)
    assert same(last.total(), whole.total())
    assert dict(last.entries).keys() == dict(whole.entries).keys()
    assert_nothing_left_behind(place)
    return finished


@pytest.mark.slow
def test_killed_at_random_writes(rows_world, tmp_path, preloaded):
    kill_again_and_again(rows_world, tmp_path, n_kills=6, n_nights=3, seed=1)


@pytest.mark.slow
def test_killed_at_very_many_writes(rows_world, tmp_path, preloaded):
    finished = kill_again_and_again(rows_world, tmp_path, n_kills=200, n_nights=8, seed=2)
    assert finished > 5
