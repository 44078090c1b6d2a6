"""Seven nights of a job, as its user sees them: what went wrong, where, and what to do."""

from __future__ import annotations

import http.server
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch import open_ledger

pytestmark = pytest.mark.slow
logger = logging.getLogger(__name__)
ROWS = 2000  # of a file
JOB = """
[job]
name = "sensors"
ledger = "state/sensors.ledger"
[[sources]]
name = "plant"
path = "plant"
nan_policy = "omit"
[[sources]]
name = "weather"
path = "{url}/weather.parquet"
fingerprint = "checksum"
[feature_map]
n_components = 2
[[decode]]
n_components = 2
[outputs]
model = "model.zarr"
report = "report.html"
[limits]
partitions = [1, 10]
omitted = 0.2
backoff = 0
attempts = 1
"""


class Server(http.server.SimpleHTTPRequestHandler):
    """Web server of one folder, whose access can run out."""

    expired: ClassVar[bool] = False

    def send_head(self):
        if self.expired:
            self.send_error(401, "The token has expired")
            return None
        return super().send_head()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served").mkdir()
    handler = type("Handler", (Server,), {})
    handler.__init__ = lambda self, *args: Server.__init__(  # type: ignore[misc]
        self, *args, directory=str(tmp_path / "served")
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
    Server.expired = False


class Plant:
    """The folder of the job, and its files of each day."""

    def __init__(self, folder: Path, url: str):
        self.folder = folder
        (folder / "plant").mkdir()
        (folder / "job.toml").write_text(JOB.format(url=url))
        self.rows_of(99).to_parquet(folder / "served" / "weather.parquet")

    @staticmethod
    def rows_of(day: int) -> pd.DataFrame:
        rng = np.random.default_rng(day)
        centres = rng.choice([-3.0, 3.0], size=(ROWS, 1))
        return pd.DataFrame(rng.normal(size=(ROWS, 2)) + centres, columns=["flow", "heat"])

    def path(self, day: int) -> Path:
        return self.folder / "plant" / f"day-{day}.parquet"

    def deliver(self, day: int) -> None:
        self.rows_of(day).to_parquet(self.path(day))

    def run(self, *before: str) -> tuple[int, str]:
        """Exit code of the job, and all that it prints."""
        command = [*before, sys.executable, "-m", "dask_sketch", "run", "job.toml"]
        done = subprocess.run(
            command, cwd=self.folder, env=os.environ | {"DASK_LOGGING__DISTRIBUTED": "error"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300,
        )  # fmt: skip
        logger.info("exit code %d\n%s", done.returncode, done.stdout)
        return done.returncode, " ".join(done.stdout.split())

    def days(self) -> set[int]:
        """Days in the ledger."""
        keys = open_ledger(self.folder / "state" / "sensors.ledger").entries
        return {int(key.split("day-")[1].split(".")[0]) for key in keys if "day-" in key}


@pytest.fixture
def plant(tmp_path: Path, url: str) -> Plant:
    found = Plant(tmp_path, url)
    for day in (1, 2, 3):
        found.deliver(day)
    assert found.run()[0] == 0
    return found


def test_a_dead_feed(plant):
    code, text = plant.run()
    assert code == 8
    assert "limits.partitions" in text
    assert "the run read 0 partitions" in text
    dead = plant.rows_of(4)
    dead[:] = np.nan
    dead.to_parquet(plant.path(4))
    code, text = plant.run()
    assert code == 8
    assert "limits.omitted" in text
    assert "2,000 of the 2,000 rows" in text


def test_half_a_file(plant):
    plant.deliver(4)
    plant.deliver(5)
    whole = plant.path(4).read_bytes()
    plant.path(4).write_bytes(whole[: len(whole) // 2])
    code, text = plant.run()
    assert code == 1
    assert "day-4.parquet" in text
    assert "Restore" in text
    assert plant.days() == {1, 2, 3, 5}
    plant.path(4).write_bytes(whole)
    assert plant.run()[0] == 0
    assert plant.days() == {1, 2, 3, 4, 5}


def test_a_changed_schema(plant):
    plant.rows_of(4).rename(columns={"heat": "temperature"}).to_parquet(plant.path(4))
    plant.deliver(6)
    code, text = plant.run()
    assert code == 1
    assert "day-4.parquet" in text
    assert "heat" in text
    assert plant.days() == {1, 2, 3, 6}
    plant.rows_of(4).assign(note="new sensor").to_parquet(plant.path(4))  # a column more
    assert plant.run()[0] == 0
    plant.rows_of(5).astype({"heat": str}).to_parquet(plant.path(5))
    code, text = plant.run()
    assert code == 1
    assert "day-5.parquet" in text
    assert "heat" in text


def test_a_late_correction(plant):
    plant.deliver(4)
    plant.rows_of(77).to_parquet(plant.path(2))
    code, text = plant.run()
    assert code == 0
    assert re.search(r"changed 1 \(to read again: plant/day-2\.parquet", text)
    frames = [plant.rows_of(day) for day in (1, 77, 3, 4, 99)]
    rows = pd.concat(frames).to_numpy()
    ledger = open_ledger(plant.folder / "state" / "sensors.ledger")
    expected = ds.partial_sketch(rows, ledger.feature_map)
    assert ledger.total().without_sample().identical(expected)


FULL = """
set -e
cp -r state /tmp/state-copy-$$
mount -t tmpfs -o size=$1 none state
cp -r /tmp/state-copy-$$/. state/
rm -r /tmp/state-copy-$$
shift
exec "$@"
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="needs the privilege to make a mount namespace",
)
def test_a_full_disk(plant):
    plant.deliver(4)
    used = sum(path.stat().st_blocks * 512 for path in (plant.folder / "state").rglob("*"))
    size = used + 2**15
    code, text = plant.run("unshare", "--mount", "sh", "-c", FULL, "sh", str(size))
    assert code in (1, 3)
    assert "sensors.ledger" in text
    assert "free" in text.lower()
    assert plant.days() == {1, 2, 3}
    assert plant.run()[0] == 0
    assert plant.days() == {1, 2, 3, 4}


def test_a_credential_that_ran_out(plant):
    plant.deliver(4)
    Server.expired = True
    code, text = plant.run()
    assert code == 1
    assert "weather.parquet" in text
    assert "401" in text
    assert "storage_options" in text
    Server.expired = False
    assert plant.run()[0] == 0
    assert plant.days() == {1, 2, 3, 4}


def test_a_good_night(plant):
    plant.deliver(4)
    code, text = plant.run()
    assert code == 0
    assert re.search(r"new partitions 1 \(to read: plant/day-4\.parquet\)", text)
    assert "run 2" in text
