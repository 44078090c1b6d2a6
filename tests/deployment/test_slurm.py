"""SLURM: the profile of dask-jobqueue, and the batch script with its tasks as local processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dask.config
import pytest
import yaml
from dask.utils import parse_timedelta
from dask_jobqueue.slurm import SLURMJob
from deployment.local_processes import BIN, DEPLOY, N_SAMPLES, environment, total_of

FOLDER = DEPLOY / "slurm"
SCRIPT = FOLDER / "sketch.sbatch"
# srun as far as the script needs it: every task at once, and the worst of their exit codes
SRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do echo "$1" >> srun.options; shift; done
pids=()
for ((task = 0; task < SLURM_NTASKS; task++)); do
  SLURM_PROCID=$task "$@" &
  pids+=($!)
done
worst=0
for pid in "${pids[@]}"; do
  code=0
  wait "$pid" || code=$?
  ((code > worst)) && worst=$code
done
exit $worst
"""


def right(script: Path) -> None:
    for command in (["bash", "-n"], [str(BIN / "shellcheck"), "--shell=bash"]):
        done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def directives(path: Path, mark: str) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line.startswith(mark)]
    pairs = (line.removeprefix(mark).strip().removeprefix("--").partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def minutes(clock: str) -> int:
    hours, mins, _ = map(int, clock.split(":"))
    return 60 * hours + mins


def test_the_batch_script_is_right():
    right(SCRIPT)
    first, *_ = SCRIPT.read_text().splitlines()
    assert first == "#!/bin/bash"  # sbatch refuses a file without one
    assert int(directives(SCRIPT, "#SBATCH")["ntasks"]) >= 3  # scheduler, run, worker


def test_scrontab_asks_for_what_the_batch_script_asks_for():
    asked = directives(FOLDER / "scrontab", "#SCRON")
    assert asked == {
        name: value for name, value in directives(SCRIPT, "#SBATCH").items() if name != "requeue"
    }
    entry = (FOLDER / "scrontab").read_text().splitlines()[-1]
    assert entry.startswith("30 2 * * * ")
    assert entry.endswith("bash deploy/slurm/sketch.sbatch job.toml")


@pytest.fixture
def profile():
    import dask_jobqueue

    defaults = Path(dask_jobqueue.__file__).with_name("jobqueue.yaml")
    ours = yaml.safe_load((FOLDER / "jobqueue.yaml").read_text())
    with dask.config.set(dask.config.merge(yaml.safe_load(defaults.read_text()), ours)):
        known = yaml.safe_load(defaults.read_text())["jobqueue"]["slurm"]
        yield ours["jobqueue"]["slurm"], known


@pytest.mark.slow
def test_the_profile_has_only_settings_that_exist(profile):
    ours, known = profile
    assert set(ours) <= set(known)


def test_workers_end_before_their_jobs(profile, tmp_path, monkeypatch):
    ours, _ = profile
    monkeypatch.chdir(tmp_path)  # dask-jobqueue makes the folder of the logs at once
    job = SLURMJob(
        "tls://192.0.2.1:8786", name="sketch", cores=2, processes=1, memory="4GiB", account="a"
    )
    script = tmp_path / "job.sh"
    script.write_text(job.job_script())
    subprocess.run(["bash", "-n", script], check=True)
    asked = script.read_text()
    assert "#SBATCH -t 01:00:00" in asked
    assert "--lifetime 55m --lifetime-stagger 4m" in asked
    seconds = sum(map(parse_timedelta, ours["worker-extra-args"][1::2]))
    assert seconds < 60 * minutes(ours["walltime"])


def run_batch_script(job: Path, certificates, n_tasks: int) -> subprocess.CompletedProcess:
    work = job.parent
    (work / "bin").mkdir()
    srun = work / "bin" / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    given = environment(
        SKETCH_DEPLOY=str(DEPLOY),
        SKETCH_CERTIFICATES=str(certificates.folder),
        SKETCH_PYTHON=sys.executable,
        SLURM_NTASKS=str(n_tasks),
        SLURM_JOB_ID="17",
        SLURM_CPUS_PER_TASK="1",
        SLURM_MEM_PER_CPU="2048",
    )
    given["PATH"] = f"{work / 'bin'}{os.pathsep}{given['PATH']}"
    return subprocess.run(
        ["bash", SCRIPT, job.name],
        cwd=work,
        env=given,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_run_of_the_batch_script(job, certificates):
    """Scheduler, run and two workers as SLURMRunner starts them, with TLS between them."""
    done = run_batch_script(job, certificates, 4)
    assert done.returncode == 0, done.stdout + done.stderr
    assert total_of(job.parent) == N_SAMPLES
    told = done.stdout + done.stderr
    assert "Scheduler at:     tls://" in told
    assert told.count("Registered to:      tls://") == 2
    assert "tcp://" not in told
    options = (job.parent / "srun.options").read_text().split()
    assert options == ["--kill-on-bad-exit=0", "--cpus-per-task=1"]


@pytest.mark.slow
def test_a_failed_run_is_told_to_slurm(job, certificates):
    """Scheduler and workers end in order; the exit code is that of the run."""
    job.write_text(job.read_text().replace("x.zarr", "absent.zarr"))
    done = run_batch_script(job, certificates, 3)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "absent.zarr" in done.stdout + done.stderr


def test_without_a_job_file_it_says_how_to_be_called():
    done = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "usage: sbatch sketch.sbatch JOB.toml" in done.stderr
