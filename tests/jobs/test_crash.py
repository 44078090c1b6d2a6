"""Runs that are killed, or whose writes fail: nothing is lost, and nothing counts twice."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs.forked import RUN_FAILED, Forge
from jobs.places import ROWS, Place, rows_of, write_rows

from dask_sketch import Sketch
from dask_sketch.jobs.job_file import read_job
from dask_sketch.jobs.open import ledger_of

# how often a run is disturbed, and of how many partitions it is
COUNTS = [
    (3, 12),
    pytest.param(200, 300, marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
]
JOB = (
    "n_pilot = 200\nn_frequencies = 100\n[[decode]]\nn_components = 2\n"
    "[limits]\ncommit_partitions = {}\n"
)


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    with Forge() as started:
        yield started


class Job:
    """A job of many partitions, whose ledger can be taken away."""

    def __init__(self, folder: Path, forge: Forge, n_partitions: int):
        self.place = Place(folder)
        self.n_partitions = n_partitions
        self._forge, self._n_ledgers = forge, 0
        self._text = JOB.format(
            max(3, n_partitions // 18)
        )  # commits are what a run is disturbed in
        write_rows(self.place.store, rows_of(ROWS * n_partitions))
        self.place.write(self._text)
        self.run()
        self.n_writes = int(self.place.file.with_suffix(".writes").read_text())
        self.total: Sketch = self.place.ledger().total()
        assert self.total.count == ROWS * n_partitions
        assert self.total.identical(self.place.scratch())

    def run(self) -> None:
        """Run without disturbance."""
        assert self._forge.run(self.place.file) == 0, self.error

    @property
    def error(self) -> str:
        path = self.place.file.with_suffix(".error")
        return path.read_text() if path.exists() else ""

    def new_ledger(self) -> None:
        """Start from nothing; the sources stay."""
        self._n_ledgers += 1
        self.place.write(self._text)
        text = self.place.file.read_text().replace("ledger.zarr", f"ledger-{self._n_ledgers}.zarr")
        self.place.file.write_text(text)

    def require_consistent(self) -> int:
        """Whatever was killed: one state, whose total is that of its partitions; their number."""
        ledger = ledger_of(read_job(self.place.file))
        if ledger is None:
            return 0
        self.place.require_whole()
        assert ledger.total().count == ROWS * len(ledger.entries)
        return len(ledger.entries)

    def require_same(self) -> None:
        """All partitions, each once, and the bits of the run that nothing disturbed."""
        assert self.require_consistent() == self.n_partitions
        ledger = self.place.ledger()
        # more than one if a run was killed between its last commit and its end
        for record in ledger.history():
            assert (record.status, record.counts["partitions"]) == ("done", self.n_partitions)
        assert ledger.total().identical(self.total)
        assert ledger.model(name="model") is not None


@pytest.fixture(scope="module")
def job_of(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Job]:
    """Return the job of a number of partitions, which has run once without disturbance."""
    made: dict[int, Job] = {}

    def job_of(n_partitions: int) -> Job:
        if n_partitions not in made:
            made[n_partitions] = Job(tmp_path_factory.mktemp("job"), forge, n_partitions)
        made[n_partitions].new_ledger()
        return made[n_partitions]

    return job_of


def between(resumed: list[int], job: Job) -> int:
    """Number of different states, neither the first nor the last, that were resumed from."""
    return len({n for n in resumed if 0 < n < job.n_partitions})


def wanted(n_disturbed: int) -> int:
    return min(n_disturbed // 4, 12)


@pytest.mark.parametrize(("n_kills", "n_partitions"), COUNTS)
def test_killed_at_random_writes(
    n_kills: int, n_partitions: int, forge: Forge, job_of: Callable[[int], Job]
) -> None:
    job = job_of(n_partitions)
    draw = random.Random(20180701)
    kills, resumed = 0, []
    while kills < n_kills:
        at = draw.randint(1, job.n_writes // 2)
        code = forge.run(job.place.file, kill_at=at)
        assert code in (-signal.SIGKILL, 0), job.error
        kills += code != 0
        resumed.append(job.require_consistent())
        if code == 0:
            job.require_same()
            job.new_ledger()
    job.run()
    job.require_same()
    assert between(resumed, job) >= wanted(n_kills)


@pytest.mark.parametrize(("n_failures", "n_partitions"), COUNTS)
def test_writes_that_fail_at_random(
    n_failures: int, n_partitions: int, forge: Forge, job_of: Callable[[int], Job]
) -> None:
    job = job_of(n_partitions)
    failures, seed, resumed = 0, 0, []
    while failures < n_failures:
        seed += 1
        code = forge.run(job.place.file, failing=0.02, seed=seed)
        assert code in (0, RUN_FAILED), job.error
        failures += code == RUN_FAILED
        resumed.append(job.require_consistent())
        if code == 0:
            job.require_same()
            job.new_ledger()
    job.run()
    job.require_same()
    assert between(resumed, job) >= wanted(n_failures)


@pytest.mark.slow
def test_killed_and_failing_on_a_store_that_grows(forge: Forge, tmp_path: Path) -> None:
    job = Job(tmp_path, forge, 6)
    draw = random.Random(7)
    for night in range(2):
        job.place.append(rows_of(4 * ROWS, seed=night + 1))
        at = draw.randint(1, job.n_writes // 2)
        forge.run(job.place.file, failing=0.02, seed=night, kill_at=at)
        job.require_consistent()
    job.run()
    ledger = job.place.ledger()
    assert len(ledger.entries) == 14
    assert ledger.total().identical(job.place.scratch())
