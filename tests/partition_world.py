"""Made-up partitions, and records of runs."""

from __future__ import annotations

import numpy as np

from dask_sketch import merge, partial_sketch
from dask_sketch.ledger import Partition, RunRecord


class World:
    """Partitions, their versions, and the sketches that a run would make of them."""

    def __init__(self, feature_map):
        self.feature_map = feature_map
        self.versions: dict[str, int] = {}

    def part(self, key, version=0):
        return Partition(key, f"v{version}", self.rows(key, version).shape[0], 100 + version)

    def rows(self, key, version=0):
        rng = np.random.default_rng([*key.encode(), version])
        return rng.normal(size=(int(rng.integers(1, 30)), 2)) + rng.normal(size=2)

    def sketch(self, key, version=0):
        return partial_sketch(self.rows(key, version), self.feature_map)

    def new(self, *keys, version=0):
        return [(self.part(key, version), self.sketch(key, version)) for key in keys]

    def total(self, versions):
        if not isinstance(versions, dict):
            versions = dict.fromkeys(versions, 0)
        return merge([self.sketch(key, version) for key, version in versions.items()])


def record(number, **more):
    started, ended = (f"2026-01-01T00:0{minute}:00+00:00" for minute in (0, 1))
    return RunRecord(number, started, ended, "done", **more)
