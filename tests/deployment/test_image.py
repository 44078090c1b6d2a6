"""The container image: what can be said of it without an engine to build it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from deployment.local_processes import BIN, DEPLOY, N_SAMPLES, environment, job_text, total_of

from dask_sketch.jobs.run import run_job

TOP = DEPLOY.parent
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Pairs of instruction and arguments; continued lines are joined, comments dropped."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def variables() -> dict[str, str]:
    """``ENV`` of the last stage."""
    found = {}
    for name, arguments in instructions():
        if name == "FROM":
            found = {}
        elif name == "ENV":
            found |= dict(part.split("=", 1) for part in shlex.split(arguments))
    return found


def test_the_linter_finds_nothing():
    done = subprocess.run(
        [BIN / "hadolint", DOCKERFILE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_what_is_copied_exists_and_is_not_ignored():
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    copied = []
    for name, arguments in instructions():
        if name == "COPY" and not arguments.startswith("--from"):
            copied += arguments.split()[:-1]
    assert copied
    for source in copied:
        assert (TOP / source).exists(), source
        assert source in let_in or source.split("/")[0] in let_in, source
    assert let_in <= set(copied)


def test_the_last_user_is_not_root():
    users = [arguments for name, arguments in instructions() if name == "USER"]
    assert users == ["10001:10001"]
    assert instructions()[-1][0] == "CMD"  # USER comes after all that is installed


def test_no_build_tools_are_left():
    last = [name for name, _ in instructions()].index("FROM", 4)
    runs = [arguments for name, arguments in instructions()[last:] if name == "RUN"]
    assert len(runs) == 1
    assert runs[0].startswith("python -m pip uninstall --yes pip setuptools wheel")
    assert "--without-pip /opt/dask-sketch" in DOCKERFILE.read_text()


def test_versions_are_those_of_the_lock_file():
    assert "PIP_CONSTRAINT=/source/requirements.lock" in DOCKERFILE.read_text()
    locked = (TOP / ".ci" / "requirements.lock").read_text()
    stated = re.search(r"^ARG PYTHON=(\d+\.\d+)-slim", DOCKERFILE.read_text(), re.MULTILINE)
    assert stated
    for package in ("hatchling", "kr8s", "dask", "distributed", "numpy", "numba", "zarr"):
        assert re.search(rf"^{package}==", locked, re.MULTILINE), package


def test_processes_without_a_nanny_have_its_settings():
    settings = yaml.safe_load((TOP / "dask_sketch" / "cluster" / "cluster.yaml").read_text())
    given = variables()
    for name, value in settings["distributed"]["nanny"]["pre-spawn-environ"].items():
        assert given[name] == str(value), name


READ_ONLY = r"""
set -e
# interpreters under a home that others may not enter are put where they were, without the home
if [ -n "$HIDDEN" ]; then
  mkdir "$SCRATCH/kept"
  mount --bind "$BASE" "$SCRATCH/kept"
  mount -t tmpfs -o mode=755 none "$HIDDEN"
  mkdir -p "$BASE"
  mount --bind "$SCRATCH/kept" "$BASE"
fi
chown -R 10001:10001 "$SCRATCH/work"
mount --bind "$SCRATCH/work" /mnt
mount -o remount,bind,ro /
mount -t tmpfs -o mode=1777,noexec,nosuid,nodev none /tmp
cp -r "$KERNELS" /tmp/numba
chown -R 10001:10001 /tmp/numba
rm /tmp/numba/*/row_loop.*
cd /mnt
exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all \
  --inh-caps=-all "$@"
"""


def hidden(path: Path) -> str:
    """The outermost folder above ``path`` that other users may not enter, if any."""
    closed = [str(one) for one in path.parents if not one.stat().st_mode & 0o001]
    return closed[-1] if closed else ""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux"
    or not all(map(shutil.which, ("unshare", "setpriv", "mount")))
    or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="needs the privilege to make a mount namespace",
)
def test_a_run_on_a_read_only_file_system_as_nobody(job, tmp_path):
    """With the image's variables, as its user, /tmp as engines mount it, no capability."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "job.toml").write_text(job_text("/mnt", 'kind = "threads"'))
    base = Path(sys.base_prefix)
    if hidden(TOP) or hidden(BIN):
        pytest.skip(f"{TOP} is not open to other users")
    if any(path.is_relative_to("/tmp") for path in (TOP, BIN, base)):
        pytest.skip(f"{TOP} is in /tmp, over which another one is mounted")
    # what this compiles is there already, but for one kernel
    job.write_text(job_text(str(tmp_path), 'kind = "threads"'))
    run_job(job)
    shutil.move(tmp_path / "x.zarr", work)
    given = variables() | {"PATH": f"{BIN}:/usr/bin:/bin"}
    assert given["NUMBA_CACHE_DIR"] == "/tmp/numba"
    commands = f"! touch {BIN}/x && ! touch /x && dask-sketch run /mnt/job.toml"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", READ_ONLY, "sh",
         "env", "-i", *(f"{name}={value}" for name, value in given.items()),
         "sh", "-c", f"{commands} && ls /tmp/numba/*/row_loop.*.nbc"],
        env=environment(
            HIDDEN=hidden(base),
            BASE=str(base),
            SCRATCH=str(tmp_path),
            KERNELS=os.environ["NUMBA_CACHE_DIR"],
        ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("Read-only file system") + done.stderr.count("Permission denied") == 2
    assert total_of(work) == N_SAMPLES
