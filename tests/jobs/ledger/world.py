"""Made-up partitions and nights, and what processes do with them that will be killed."""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import replace

import numpy as np

from dask_sketch import MomentGrid, SecondMoments, Sketch, merge, open_ledger, partial_sketch
from dask_sketch.jobs.ledger import Partition, RunRecord
from dask_sketch.jobs.ledger.partition_rows import identity_of, sampling_of
from dask_sketch.sketching.partial import add_sample
from dask_sketch.sketching.partial_moments import partial_moments


class World:
    """Partitions, their versions, and the sketches that a run would make of them.

    They are second moments with a grid in place of a feature map.
    With ``sample``, these carry as many random rows at most, chosen as a job chooses them. With
    ``missing``, so many of the values of every second partition are missing.
    """

    def __init__(self, feature_map, sample=0, missing=0.0):
        self.feature_map = feature_map
        self.sample = sample
        self.missing = missing
        self.sampling = sampling_of(feature_map, sample)
        self.made: dict[tuple[str, int], Sketch] = {}

    def part(self, key, version=0):
        return Partition(key, f"v{version}", self.rows(key, version).shape[0], 100 + version)

    def rows(self, key, version=0):
        rng = np.random.default_rng([*key.encode(), version])
        d = self.feature_map.n_features
        x = rng.normal(size=(int(rng.integers(1, 30)), d)) + rng.normal(size=d)
        if self.missing and sum(key.encode()) % 2:
            x[rng.random(x.shape) < self.missing] = np.nan
        return x

    def sketch(self, key, version=0):
        if (key, version) not in self.made:
            rows = self.rows(key, version)
            if isinstance(self.feature_map, MomentGrid):
                self.made[key, version] = partial_moments(rows, self.feature_map)
                return self.made[key, version]
            policy = "available" if self.missing else "raise"
            found = partial_sketch(rows, self.feature_map, nan_policy=policy)
            if self.sampling is not None:
                found = add_sample(found, rows, None, self.sampling, stream=identity_of(key))
            self.made[key, version] = found
        return self.made[key, version]

    def new(self, *keys, version=0):
        return [(self.part(key, version), self.sketch(key, version)) for key in keys]

    def total(self, versions):
        if not isinstance(versions, dict):
            versions = dict.fromkeys(versions, 0)
        return total_of(
            self.feature_map, [self.sketch(key, version) for key, version in versions.items()]
        )


def total_of(feature_map, sketches):
    """Sum of partitions, with all of their random rows."""
    if isinstance(feature_map, MomentGrid):
        return merge([SecondMoments.empty(feature_map), *sketches])
    wide = [
        sketch if sketch.sample is None else replace(sketch, sample=sketch.sample.resized(20_000))
        for sketch in sketches
    ]
    return merge([Sketch.empty(feature_map), *wide])


def same(found, expected):
    """Whether two sketches have the same sums and the same random rows."""
    if isinstance(expected, SecondMoments):
        return found.identical(expected)
    if expected.sample is None or not expected.count:
        return found.identical(expected) and found.sample is None
    return found.identical(expected) and expected.sample.identical(found.sample)


def record(number, **more):
    started, ended = (f"2026-01-01T00:0{minute}:00+00:00" for minute in (0, 1))
    return RunRecord(number, started, ended, "done", **more)


class Nights:
    """A source that grows, changes and loses partitions, night by night."""

    def __init__(self, world, n_nights):
        self.n_nights = n_nights
        self.made = {
            (key, version): (world.part(key, version), world.sketch(key, version))
            for night in range(1, n_nights + 1)
            for key, version in self.source(night).items()
        }

    def source(self, night):
        """Versions of the partitions that there are in a night."""
        keys = range(3 * night // 2, 4 * night + 4)
        return {f"k{i}": (night + i) // 4 for i in keys}

    def forgotten(self, night):
        """Partitions to forget after a night."""
        return [f"k{4 * night + 1}"] if night % 2 else []

    def expected(self, night):
        """Versions in the ledger after a night."""
        gone = {key for past in range(1, night + 1) for key in self.forgotten(past)}
        return {key: v for key, v in self.source(night).items() if key not in gone}

    def total(self, versions):
        made = [self.made[key, version][1] for key, version in versions.items()]
        return total_of(made[0].feature_map, made)

    def run(self, ledger):
        """All nights that the ledger has not seen, from wherever the last run came to."""
        while ledger.next_run <= self.n_nights:
            night = ledger.next_run
            with ledger.lock():
                found = [self.made[item][0] for item in self.source(night).items()]
                changes = ledger.compare(found)
                work = [*changes.new, *changes.changed]
                ledger.commit(removed=changes.deleted)
                for start in range(0, len(work), 2):
                    keys = [partition.key for partition in work[start : start + 2]]
                    ledger.commit([self.made[key, self.source(night)[key]] for key in keys])
                wanted = [key for key in self.forgotten(night) if key not in ledger.forgotten]
                ledger.forget(wanted)
                ledger.commit(run=record(night))


class Killer:
    """Replaces ``os.fsync``: counts its calls, and kills this process at one of them.

    The ledger calls it for every object, so that all states which a process can leave behind lie
    before or after a call. A killed process loses nothing that it wrote, so it waits for no disk.
    """

    def __init__(self, at=None):
        self.calls = 0
        self._at = at

    def __call__(self, handle):
        self.calls += 1
        if self.calls == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def run_nights(place, nights, at):
    """Run in a process of its own, which is killed at its write number ``at``."""
    os.fsync = Killer(at)
    pickle.loads(nights).run(open_ledger(place))


def die_with_the_lock(place):
    ledger = open_ledger(place)
    context = ledger.lock()
    context.__enter__()
    os._exit(1)
