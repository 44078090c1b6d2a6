"""Jobs on an object store whose server is busy, broken, slow or refuses the credentials.

A run may fail, with an error that says why. Nothing may be lost: the ledger is whole after each
run, and the total has the bits of a total that is computed from the local files.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
from jobs.places import CHUNK_BYTES, N_FEATURES, ROWS, rows_of, write_rows

import dask_sketch as ds
from dask_sketch import FeatureMap, merge, open_ledger
from dask_sketch.errors import SketchError
from dask_sketch.features.artifact import write_feature_map
from dask_sketch.jobs.run import run_job

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    # connections that the proxy cuts are closed when they are collected
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
logger = logging.getLogger(__name__)
FEATURE_MAP = FeatureMap(N_FEATURES, 20, scale=1.0, seed=3)
BUSY = ("500", "503", "refused", "cut", "unanswered", "conflict")
# How long a client waits; that of Google Cloud Storage repeats requests by itself
PATIENCE = {"s3": {"config_kwargs": {"read_timeout": 2, "connect_timeout": 2}}, "gs": {}}
on_s3 = pytest.mark.parametrize("bucket", ["s3"], indirect=True)
JOB = """
[job]
name = "nightly"
ledger = "{bucket}/ledger"
storage_options = {options}
[[sources]]
name = "rows"
path = "{bucket}/x.zarr"
chunk_size = {chunk_size}
storage_options = {options}
[[sources]]
name = "days"
path = "{bucket}/days/*/*.parquet"
storage_options = {options}
[feature_map]
file = "map.json"
[limits]
backoff = 0.1
commit_partitions = 3
changed = 1.0
[outputs]
sketch = "{bucket}/total.zarr"
storage_options = {options}
"""


def toml(value):
    """Options as an inline table."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml(one)}' for key, one in value.items())} }}"
    return json.dumps(value)


@dataclass
class Nights:
    """A job on a bucket behind a proxy, and the same data on a local disk."""

    folder: Path
    bucket: object
    behind: object
    runs: int = 0
    failed: int = 0
    rows: int = 0
    days: int = 0
    error: str = ""

    def __post_init__(self):
        write_feature_map(str(self.folder / "map.json"), FEATURE_MAP)
        options = self.behind.options
        if "token" in options:  # a secret, which a job file may not contain
            options = options | {"token": {"env": "GCS_TOKEN"}}
        text = JOB.format(bucket=self.bucket.url, options=toml(options), chunk_size=CHUNK_BYTES)
        (self.folder / "job.toml").write_text(text)

    def grow(self):
        """Add rows to the store, and a file; another file is corrected."""
        self.rows += 5 * ROWS // 2
        write_rows(self.folder / "x.zarr", rows_of(200)[: self.rows])
        for day in {self.days, self.days // 2}:
            path = self.folder / "days" / f"day={day}" / "0.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = rows_of(30, seed=100 * self.days + day)
            pd.DataFrame(rows, columns=["a", "b"]).to_parquet(path)
        self.days += 1
        for name in ("x.zarr", "days"):
            self.bucket.put(self.folder / name)

    def run(self):
        """Whether a run succeeds; errors must be those of the package."""
        self.runs += 1
        try:
            run_job(self.folder / "job.toml")
        except SketchError as error:
            self.failed += 1
            self.error = str(error)
            return False
        return True

    def run_until_done(self, most=25):
        for _ in range(most):
            done = self.run()
            self.require_whole()
            if done:
                return
        raise AssertionError(f"no run of {most} succeeded: {self.error}")

    def local(self):
        """Sketch of the local files."""
        parts = [
            ds.sketch(str(self.folder / name), FEATURE_MAP).compute(scheduler="threads")
            for name in ("x.zarr", "days")
        ]
        return merge(parts)

    def ledger(self):
        return open_ledger(f"{self.bucket.url}/ledger", storage_options=self.bucket.options)

    def require_whole(self):
        """The total of the ledger is the sum of its partitions."""
        fs = self.bucket.fs
        if not fs.exists(f"{self.bucket.url}/ledger/zarr.json"):
            return
        ledger = self.ledger()
        keys = list(ledger.entries)
        every = [sketch for _, sketch in ledger.sketches(keys)]
        assert ledger.total().identical(merge([ds.Sketch.empty(FEATURE_MAP), *every]))

    def require_same(self):
        """The total and the sketch that was written have the bits of the local files."""
        expected = self.local()
        assert self.ledger().total().without_sample().identical(expected)
        url = f"{self.bucket.url}/total.zarr"
        assert ds.open(url, storage_options=self.bucket.options).identical(expected)


@pytest.fixture
def nights(bucket, proxy, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    behind = bucket.through(proxy, **PATIENCE[bucket.url.partition(":")[0]])
    found = Nights(tmp_path, bucket, behind)
    found.grow()
    monkeypatch.setenv("GCS_TOKEN", "anon")
    places = {"ambient": [proxy.url], "env:GCS_TOKEN": [proxy.url, bucket.url]}
    with dask.config.set({"sketch.job-secrets": places}):
        yield found
    seen = ", ".join(f"{count} {fault}" for fault, count in proxy.seen.most_common())
    logger.info("%d runs, of which %d failed; requests: %s", found.runs, found.failed, seen)


@pytest.mark.parametrize(
    ("bucket", "seed", "share"),
    [("s3", 1, 0.05), ("s3", 1, 0.3), ("s3", 2, 0.05), ("s3", 2, 0.3), ("gcs", 1, 0.05)],
    indirect=["bucket"],
)
def test_nothing_is_lost_on_a_busy_server(seed, share, nights, proxy):
    for night in range(3):
        if night:
            proxy.choose = lambda request: None
            nights.grow()
        proxy.at_random(share, BUSY, seed=100 * seed + night)
        nights.run_until_done()
        nights.require_same()
    assert sum(proxy.seen[fault] for fault in BUSY) > 10


@on_s3
def test_slow_answers_are_asked_for_again(nights, proxy):
    slow = iter(np.random.default_rng(0).random(10_000) < 0.05)
    proxy.choose = lambda request: "slow" if next(slow) else None
    nights.run_until_done()
    nights.require_same()
    assert proxy.seen["slow"] > 2


@pytest.mark.parametrize("bucket", ["s3", "gcs"], indirect=True)
def test_rows_that_a_listing_does_not_show_yet_are_read_later(nights, proxy):
    """Files and corrections are on the server before they are in its listings."""
    nights.run_until_done()
    for _ in range(2):
        nights.grow()
        proxy.choose = lambda request: "stale" if request.lists else None
        nights.run()
        nights.require_whole()
        proxy.choose = lambda request: None
        nights.run_until_done()
        nights.require_same()
    assert proxy.seen["stale"] > 1


@on_s3
@pytest.mark.parametrize("fault", ["denied", "503", "500", "refused"])
def test_a_folder_that_cannot_be_listed_is_not_taken_for_deleted(fault, nights, proxy):
    nights.grow()
    nights.run_until_done()
    before = set(nights.ledger().entries)
    proxy.choose = lambda request: (
        fault if request.lists and "day%3D1" in request.path.replace("=", "%3D") else None
    )
    nights.run()
    proxy.choose = lambda request: None
    assert proxy.seen[fault]
    assert set(nights.ledger().entries) == before
    nights.run_until_done()
    nights.require_same()


@on_s3
@pytest.mark.parametrize("after", [5, 30, 60, 90])
def test_credentials_that_run_out_in_the_middle(after, nights, proxy):
    first = proxy.number
    proxy.choose = lambda request: "expired" if request.number > first + after else None
    assert not nights.run()
    nights.require_whole()
    proxy.choose = lambda request: None
    nights.run_until_done()
    nights.require_same()
    assert proxy.seen["expired"]
