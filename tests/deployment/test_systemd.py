"""The files for one machine: systemd's service and timer, and the crontab."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from deployment.local_processes import BIN, DEPLOY, N_SAMPLES, environment, total_of

FOLDER = DEPLOY / "systemd"
COMMAND = "/opt/dask-sketch/bin/dask-sketch run /etc/dask-sketch/job.toml"
MOST_EXPOSED = 20  # tenths, of 100; the service has 15

systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of systemd"
)


def settings(name: str, key: str) -> list[str]:
    """Values of a key in a unit, in order."""
    lines = (FOLDER / name).read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def analyze(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@systemd
def test_units_are_right(tmp_path):
    """As they are but for the program, which is not where they look for it."""
    for unit in FOLDER.glob("dask-sketch.*"):
        text = unit.read_text().replace("/opt/dask-sketch/bin", str(BIN))
        (tmp_path / unit.name).write_text(text)
    done = analyze("verify", "--man=no", *tmp_path.iterdir())
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@systemd
def test_the_service_is_locked_in(tmp_path):
    unit = shutil.copy(FOLDER / "dask-sketch.service", tmp_path)
    done = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", unit)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze judges no files (older than systemd 250)")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


@systemd
def test_the_timer_goes_off_once_a_night():
    (when,) = settings("dask-sketch.timer", "OnCalendar")
    done = analyze("calendar", "--iterations=2", when)
    assert done.returncode == 0, done.stderr
    days = re.findall(r"(?:Next elapse|Iteration #2|Iter\. #2): \w+ (\S+) 02:30:00", done.stdout)
    assert len(set(days)) == 2, done.stdout


@pytest.mark.slow
def test_the_command_line_runs(job):
    """Command that systemd starts, with its variables."""
    (command,) = settings("dask-sketch.service", "ExecStart")
    assert command == COMMAND
    variables = dict(
        part.split("=", 1)
        for line in settings("dask-sketch.service", "Environment")
        for part in shlex.split(line)
    )
    work = job.parent
    for name, value in variables.items():
        variables[name] = value.replace("/var/lib", str(work)).replace("/var/cache", str(work))
    assert variables.pop("NUMBA_CACHE_DIR") == str(work / "dask-sketch")  # ours has the kernels
    job.write_text(job.read_text().replace('kind = "address"', 'kind = "threads"'))  # as delivered
    program, *arguments = shlex.split(command.replace("/etc/dask-sketch", str(work)))
    done = subprocess.run(
        [BIN / Path(program).name, *arguments],
        env=environment() | variables,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert total_of(work) == N_SAMPLES


def test_cron_runs_the_same():
    lines = (FOLDER / "crontab").read_text().splitlines()
    entries = [line for line in lines if line and not re.match(r"#|\w+=", line)]
    assert len(entries) == 1
    *when, command = entries[0].split(maxsplit=5)
    assert when == ["30", "2", "*", "*", "*"]
    assert command == f"nice -n 10 {COMMAND}"
