"""Two machines with one ledger in an object store: network namespaces with names of their own.

Each has its own network, its own name and its own process numbers, so that the lock of one names a
process that the other cannot look for.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from deployment.local_processes import environment, free_port, wait_until
from jobs.places import CHUNK_BYTES, N_FEATURES, ROWS, rows_of, write_rows
from real.conftest import ENVIRONMENT, KINDS, Bucket

import dask_sketch as ds
from dask_sketch import FeatureMap, merge, open_ledger
from dask_sketch.features.artifact import write_feature_map

TOOLS = ("ip", "unshare")


def missing() -> str | None:
    """Reason why there cannot be two machines here, None if there can."""
    absent = [name for name in TOOLS if shutil.which(name) is None]
    if absent:
        return f"needs {', '.join(absent)}: apt-get install iproute2 util-linux"
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "needs the privilege to make network namespaces" if made.returncode else None


REASON = missing()
pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]
FEATURE_MAP = FeatureMap(N_FEATURES, 20, scale=1.0, seed=3)
N_PARTITIONS = 30
STORE = "10.231.7.1"
JOB = """
[job]
name = "nightly"
ledger = "s3://{bucket}/ledger"
storage_options = {{ endpoint_url = "{endpoint}" }}
[[sources]]
path = "x.zarr"
chunk_size = {chunk_size}
[feature_map]
file = "map.json"
[limits]
commit_partitions = 2
stale_lock = {stale}
"""
RUN = """
import sys, time, json
import dask
from dask_sketch.errors import LedgerLocked, SketchError
from dask_sketch.jobs.run import run_job
from dask_sketch.sources.zarr import ZarrRowReader
read = ZarrRowReader.__getitem__
def read_slowly(self, index):
    time.sleep(float(sys.argv[2]))
    return read(self, index)
ZarrRowReader.__getitem__ = read_slowly
with dask.config.set({"sketch.job-secrets": {"ambient": [sys.argv[3]]}}):
    for _ in range(int(sys.argv[4])):
        try:
            print(json.dumps({"new": run_job(sys.argv[1]).new}), flush=True)
            break
        except LedgerLocked as error:
            print(json.dumps({"locked": str(error)}), flush=True)
            time.sleep(0.3)
        except SketchError as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
            break
"""


NUMBERS = itertools.count()


class Machine:
    """A network namespace that reaches the object store, with a host name of its own."""

    def __init__(self, name: str, number: int, bridge: str):
        # the kernel removes a namespace, and the link into it, some time after it was deleted
        unique = next(NUMBERS)
        self.name, self.space = name, f"ds{os.getpid()}-{unique}"
        link = f"ds{os.getpid() % 10000}v{unique}"
        ip("netns", "add", self.space)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        ip("link", "set", link, "master", bridge, "up")
        for words in (
            ("addr", "add", f"10.231.7.{number + 1}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", self.space, *words)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the program that runs the job."""
        script = f'hostname {self.name}; exec "$@"'
        return subprocess.Popen(
            ["ip", "netns", "exec", self.space, "unshare", "--uts", "--pid", "--fork",
             "--kill-child", "--mount-proc", "sh", "-c", script, "sh",
             sys.executable, "-c", RUN, *arguments],
            env=environment(**ENVIRONMENT), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def close(self) -> None:
        ip("netns", "del", self.space)


def ip(*words: str) -> None:
    """Run a command of iproute2."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    bridge = f"ds{os.getpid() % 10000}b"
    with contextlib.ExitStack() as stack:
        ip("link", "add", bridge, "type", "bridge")
        stack.callback(ip, "link", "del", bridge)
        ip("addr", "add", f"{STORE}/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        found = []
        for number, name in enumerate(("first", "second"), 1):
            found.append(Machine(name, number, bridge))
            stack.callback(found[-1].close)
        yield found[0], found[1]


@pytest.fixture
def bucket(machines, servers, tmp_path) -> Iterator[Bucket]:
    """A bucket of a server that listens on the bridge."""
    servers("s3")  # skips where packages are missing, and sets the credentials
    port = free_port()
    words = ["-m", "moto.server", "-H", STORE, "-p", str(port)]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log)
    try:
        found = Bucket(
            "s3://shared", {"endpoint_url": f"http://{STORE}:{port}", **KINDS["s3"].options}
        )

        def made() -> bool:
            with contextlib.suppress(Exception):
                found.fs.mkdir("shared")
                return True
            return False

        wait_until(made, "the server makes a bucket", 60)
        yield found
    finally:
        process.kill()
        process.wait()


def job_in(folder: Path, bucket: Bucket, stale: float = 3600.0) -> Path:
    """Write the data, the map and the job file of one machine."""
    folder.mkdir()
    write_rows(folder / "x.zarr", rows_of(ROWS * N_PARTITIONS))
    write_feature_map(str(folder / "map.json"), FEATURE_MAP)
    (folder / "job.toml").write_text(
        JOB.format(
            bucket="shared", endpoint=bucket.options["endpoint_url"], chunk_size=CHUNK_BYTES,
            stale=stale,
        )
    )  # fmt: skip
    return folder / "job.toml"


def require_same(bucket: Bucket) -> None:
    """The total is the sum of the partitions, and has the bits of one pass here."""
    ledger = open_ledger("s3://shared/ledger", storage_options=bucket.options)
    every = [sketch for _, sketch in ledger.sketches(list(ledger.entries))]
    assert len(every) == N_PARTITIONS
    assert ledger.total().identical(merge(every))
    assert ledger.total().identical(ds.partial_sketch(rows_of(ROWS * N_PARTITIONS), FEATURE_MAP))


def events(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    """Events that a run printed."""
    output, errors = process.communicate(timeout=240)
    assert output, errors
    return [json.loads(line) for line in output.splitlines()]


def test_of_two_machines_one_works_and_the_other_waits(machines, bucket, tmp_path):
    """They start at once, and try until they may: none is committed twice."""
    path, endpoint = job_in(tmp_path / "one", bucket), bucket.options["endpoint_url"]
    runs = [machine.start(str(path), "0.1", endpoint, "200") for machine in machines]
    found = [events(run) for run in runs]
    assert [one["error"] for events in found for one in events if "error" in one] == []
    assert sorted(events[-1]["new"] for events in found) == [0, N_PARTITIONS]
    refused = [str(one["locked"]) for events in found for one in events if "locked" in one]
    assert any("first" in text or "second" in text for text in refused)
    require_same(bucket)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_machine_that_dies_is_followed_by_the_other(seed, machines, bucket, tmp_path):
    """The lock of a dead machine counts until it is stale."""
    path = job_in(tmp_path / "one", bucket, stale=5.0)
    endpoint = bucket.options["endpoint_url"]
    first = machines[0].start(str(path), "0.3", endpoint, "1")

    def begun() -> bool:
        with contextlib.suppress(Exception):
            return (
                len(open_ledger("s3://shared/ledger", storage_options=bucket.options).entries) > 3
            )
        return False

    wait_until(begun, "two commits", 120)
    time.sleep(np.random.default_rng(seed).uniform(0.0, 0.5))
    first.kill()
    first.communicate()
    found = events(machines[1].start(str(path), "0", endpoint, "200"))
    assert [one for one in found if "locked" not in one] == found[-1:]  # no error
    assert 0 < int(str(found[-1]["new"])) < N_PARTITIONS
    require_same(bucket)
