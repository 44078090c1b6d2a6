"""Jobs on SLURM: the batch script, workers that are jobs, and cancelled jobs.

Partitions are read slowly, by a preload of the workers, so that something is under way when a job
is cancelled.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from deployment.local_processes import BIN, DEPLOY, wait_until
from jobs.places import CHUNK_BYTES, N_FEATURES, ROWS, rows_of, write_rows
from real import slurm as slurm_module
from real.slurm import Slurm

import dask_sketch as ds
from dask_sketch import FeatureMap, merge, open_ledger
from dask_sketch.cluster.certificates import make_certificates
from dask_sketch.errors import LedgerError
from dask_sketch.features.artifact import write_feature_map

REASON = slurm_module.missing()
pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]
FEATURE_MAP = FeatureMap(N_FEATURES, 20, scale=1.0, seed=3)
N_PARTITIONS = 40
START = 300.0  # seconds until the first commits, on a machine with much else to do
JOB = """
[job]
name = "nightly"
ledger = "ledger"
[[sources]]
path = "x.zarr"
chunk_size = {chunk_size}
[feature_map]
file = "map.json"
[limits]
commit_partitions = 4
[outputs]
sketch = "total.zarr"
[cluster]
{cluster}
"""
SLOW = """
import time
from dask_sketch.sources.zarr import ZarrRowReader
# a preload may be run twice in one process: the second time there is nothing to replace
if ZarrRowReader.__getitem__.__name__ != "read_slowly":
    read = ZarrRowReader.__getitem__
    def read_slowly(self, index):
        time.sleep({seconds})
        return read(self, index)
    ZarrRowReader.__getitem__ = read_slowly
"""
WORKERS = """\
kind = "slurm"
n_workers = 2
memory_limit = "2GiB"
timeout = 300
[cluster.options]
{options}
"""


@dataclass
class Work:
    """A folder with a job, and what its runs leave there."""

    folder: Path
    seconds: float

    def read_in(self, seconds: float) -> None:
        """Write the preload, which makes workers take so long for each partition."""
        (self.folder / "slow.py").write_text(SLOW.format(seconds=seconds))

    def write(self, cluster: str) -> None:
        """Write the data, the feature map, the preload and the job file."""
        write_rows(self.folder / "x.zarr", rows_of(ROWS * N_PARTITIONS))
        write_feature_map(str(self.folder / "map.json"), FEATURE_MAP)
        self.read_in(self.seconds)
        text = JOB.format(chunk_size=CHUNK_BYTES, cluster=cluster)
        (self.folder / "job.toml").write_text(text)

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the environment of its processes."""
        return {"DASK_DISTRIBUTED__WORKER__PRELOAD": str(self.folder / "slow.py")}

    def n_committed(self) -> int:
        """Number of partitions in the ledger; 0 before it is there."""
        try:
            return len(open_ledger(self.folder / "ledger").entries)
        except LedgerError:
            return 0

    def require_whole(self) -> None:
        """The total of the ledger is the sum of what it holds."""
        ledger = open_ledger(self.folder / "ledger")
        every = [sketch for _, sketch in ledger.sketches(list(ledger.entries))]
        assert ledger.total().identical(merge([ds.Sketch.empty(FEATURE_MAP), *every]))

    def require_same(self) -> None:
        """The total and the written sketch have the bits of one pass on this machine."""
        local = ds.sketch(str(self.folder / "x.zarr"), FEATURE_MAP).compute(scheduler="threads")
        assert local.count == ROWS * N_PARTITIONS
        assert open_ledger(self.folder / "ledger").total().identical(local)
        assert ds.open(self.folder / "total.zarr").identical(local)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    ds.partial_sketch(rows_of(10), FEATURE_MAP)  # workers find the compiled kernels
    with Slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def slurm(cluster):
    """Cluster without jobs of other tests, also of those that failed."""
    yield cluster
    cluster.end_jobs()


def submit(slurm, work, *options):
    """Submit the batch script of deploy/ for four tasks: scheduler, run and two workers."""
    folder = work.folder
    return slurm.submit(
        "--ntasks=4", "--cpus-per-task=1", "--output=job-%j.log", *options,
        str(DEPLOY / "slurm" / "sketch.sbatch"), "job.toml", folder=folder,
        SKETCH_DEPLOY=str(DEPLOY), SKETCH_CERTIFICATES=str(folder / "certificates"),
        SKETCH_PYTHON=str(BIN / "python"), **work.variables,
    )  # fmt: skip


@pytest.fixture
def batch(tmp_path):
    found = Work(tmp_path, 0.2)
    found.write('kind = "address"')
    make_certificates(tmp_path / "certificates")
    return found


def log_of(work, job):
    return (work.folder / f"job-{job}.log").read_text()


def test_the_batch_script(slurm, batch):
    job = submit(slurm, batch)
    assert slurm.wait(job) == "0:0", log_of(batch, job)
    batch.require_same()
    assert "Scheduler at:     tls://" in log_of(batch, job)
    assert log_of(batch, job).count("Registered to:      tls://") == 2


def test_the_exit_code_of_the_run_is_that_of_the_job(slurm, batch):
    (batch.folder / "x.zarr").rename(batch.folder / "elsewhere.zarr")
    job = submit(slurm, batch)
    assert slurm.wait(job) == "1:0", log_of(batch, job)
    assert "x.zarr" in log_of(batch, job)


@pytest.mark.parametrize("options", [(), ("--signal=KILL", "--full")])
def test_cancelled_in_the_middle(options, slurm, batch):
    batch.read_in(1.0)
    job = submit(slurm, batch)
    wait_until(lambda: batch.n_committed() >= 8, "two commits", START)
    slurm.output("scancel", *options, job)
    slurm.wait(job)
    batch.read_in(0.2)
    before = batch.n_committed()
    assert 8 <= before < N_PARTITIONS, log_of(batch, job)
    batch.require_whole()
    again = submit(slurm, batch)
    assert slurm.wait(again) == "0:0", log_of(batch, again)
    batch.require_same()
    assert f"{N_PARTITIONS - before} new" in log_of(batch, again)


def run_with_workers_of_slurm(slurm, work, options, profile, seconds):
    """Run a job whose workers are jobs of SLURM; return the finished process."""
    if not (work.folder / "job.toml").exists():
        work.write(WORKERS.format(options=options))
    done = subprocess.run(
        [BIN / "dask-sketch", "run", "job.toml"],
        cwd=work.folder,
        env=slurm.environment | work.variables | {"DASK_CONFIG": str(profile)},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    wait_until(lambda: not slurm.jobs(), "all workers end", 60)
    return done


def started_workers(work):
    """Logs of the jobs that were workers."""
    return list(work.folder.glob("dask-sketch-logs/*.out")) or list(work.folder.glob("slurm-*.out"))


def test_workers_that_are_jobs(slurm, tmp_path):
    work = Work(tmp_path, 0.1)
    profile = DEPLOY / "slurm" / "jobqueue.yaml"
    done = run_with_workers_of_slurm(slurm, work, "", profile, 2 * START)
    assert done.returncode == 0, done.stdout + done.stderr
    work.require_same()
    assert len(started_workers(work)) == 2


def test_a_job_that_hits_its_limit_of_time(slurm, batch):
    """SLURM stops it with what it has committed; submitted again, it goes on."""
    batch.read_in(5.0)
    job = submit(slurm, batch, "--time=60")
    wait_until(batch.n_committed, "a commit", START)
    # the shortest limit is a minute, and the run takes more; a start may take it, too
    slurm.output("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    slurm.wait(job)
    assert slurm.field(job, "JobState") == "TIMEOUT"
    before = batch.n_committed()
    assert 0 < before < N_PARTITIONS, log_of(batch, job)
    batch.require_whole()
    batch.read_in(0.2)
    again = submit(slurm, batch)
    assert slurm.wait(again) == "0:0", log_of(batch, again)
    batch.require_same()


def test_a_job_that_is_requeued_in_the_middle(slurm, batch):
    """The batch script asks for it, as after the loss of a node."""
    batch.read_in(1.0)
    job = submit(slurm, batch)
    wait_until(lambda: batch.n_committed() >= 8, "two commits", START)
    slurm.output("scontrol", "requeue", job)
    wait_until(lambda: slurm.field(job, "Restarts") == "1", "the job is queued again", 60)
    batch.require_whole()

    def begins() -> bool:  # SLURM would wait for two minutes
        slurm.output("scontrol", "update", f"JobId={job}", "StartTime=now")
        return slurm.field(job, "JobState") in ("RUNNING", "COMPLETED")

    wait_until(begins, "the job begins again", 180)
    assert slurm.wait(job) == "0:0", log_of(batch, job)
    batch.require_same()


def test_workers_that_hit_their_limit_of_time(slurm, tmp_path):
    """SLURM stops the workers; their chunks are sketched again by those that replace them."""
    work = Work(tmp_path, 5.0)  # 100 seconds of two workers
    profile = tmp_path / "jobqueue.yaml"
    text = (DEPLOY / "slurm" / "jobqueue.yaml").read_text()
    profile.write_text(text.replace('["--lifetime", "55m", "--lifetime-stagger", "4m"]', "[]"))
    done = run_with_workers_of_slurm(slurm, work, 'walltime = "00:01:00"', profile, 2 * START)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    if done.returncode:  # all workers were lost at once
        assert "worker" in done.stderr
        work.require_whole()
    logs = "".join(log.read_text() for log in (tmp_path / "dask-sketch-logs").iterdir())
    assert "DUE TO TIME LIMIT" in logs, logs
    work.read_in(0.1)
    path = tmp_path / "job.toml"
    path.write_text(path.read_text().replace('walltime = "00:01:00"', ""))
    done = run_with_workers_of_slurm(slurm, work, "", profile, 2 * START)
    assert done.returncode == 0, done.stdout + done.stderr
    work.require_same()


def test_a_worker_that_is_cancelled_in_the_middle(slurm, tmp_path):
    """The other worker sketches its chunks again."""
    work = Work(tmp_path, 0.5)
    work.write(WORKERS.format(options=""))
    variables = work.variables | {"DASK_CONFIG": str(DEPLOY / "slurm" / "jobqueue.yaml")}
    with subprocess.Popen(
        [BIN / "dask-sketch", "run", "job.toml"],
        cwd=tmp_path, env=slurm.environment | variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        wait_until(lambda: work.n_committed() >= 4, "a commit", START)
        slurm.output("scancel", slurm.jobs()[0])
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    work.require_same()
    wait_until(lambda: not slurm.jobs(), "all workers end", 60)
