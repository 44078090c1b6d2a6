"""The container image, built by buildah on a base of Debian packages, and run without privileges.

As the compose file runs it: a read-only root, its own user, no capability, a temporary /tmp. The
base takes the place of the public one, since a test does not reach its registry.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest
import zarr
from deployment.local_processes import DEPLOY, free_port, job_text, total_of, wait_until

from dask_sketch.cluster.certificates import make_certificates

TOOLS = ("buildah", "mmdebstrap", "unshare", "setpriv", "mount", "chroot")
SOURCES = Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
REGISTRY = ("index-url", "trusted-host", "proxy", "cert", "client-cert", "default-timeout")
PACKAGES = "python3,python3-venv,ca-certificates"
N_ROWS = 5000
logger = logging.getLogger(__name__)


def missing() -> str | None:
    """Reason why no image can be built here, None if one can."""
    absent = [name for name in TOOLS if shutil.which(name) is None]
    if absent:
        return f"needs {', '.join(absent)}: apt-get install buildah mmdebstrap"
    if os.geteuid() != 0:
        return "buildah with chroot isolation needs root"
    if not any(path.exists() for path in SOURCES):
        return "needs the sources of Debian's packages in /etc/apt"
    return None


REASON = missing()
pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]
# The root is read-only but for /tmp; /data is read-only, and results may be written.
ENTER = r"""
set -e
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=755 none "$ROOT/dev"
for one in null zero random urandom; do
  touch "$ROOT/dev/$one" && mount --bind "/dev/$one" "$ROOT/dev/$one"
done
mkdir "$ROOT/dev/shm" && mount -t tmpfs -o mode=1777 none "$ROOT/dev/shm"
mount -t tmpfs -o mode=1777,noexec,nosuid,nodev none "$ROOT/tmp"
mount --bind "$WORK" "$ROOT/mnt"
mount -o remount,bind,ro "$ROOT"
exec chroot "$ROOT" setpriv --reuid "${USER%:*}" --regid "${USER#*:}" --clear-groups \
  --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


def pip_settings(folder: Path) -> list[str]:
    """Volumes with the settings of pip on this machine that lead to its registry."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found = dict(re.findall(r"^(?:global|:env:)\.([\w.-]+)='(.*)'$", done.stdout, re.MULTILINE))
    found = {key.lstrip("."): value for key, value in found.items()}
    lines = [f"{key} = {found[key]}" for key in REGISTRY if key in found]
    (folder / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    volumes = [f"{folder / 'pip.conf'}:/etc/pip.conf:ro"]
    files = {CERTIFICATES, *(Path(found[key]) for key in ("cert", "client-cert") if key in found)}
    volumes += [f"{path}:{path}:ro" for path in sorted(files) if path.exists()]
    return [word for volume in volumes for word in ("--volume", volume)]


@dataclass
class Image:
    """A built image, whose root is mounted.

    Attributes
    ----------
    folder
        Folder of the storage of buildah, and of logs.
    """

    folder: Path
    root: Path = Path()
    config: dict[str, object] = field(default_factory=dict)
    megabytes: float = 0.0
    base_megabytes: float = 0.0

    def buildah(self, *arguments: str, seconds: float = 900.0) -> str:
        """Output of a command of buildah on the storage of this image."""
        done = subprocess.run(
            ["buildah", "--root", self.folder / "store", "--runroot", self.folder / "run",
             "--storage-driver", "vfs", *arguments],
            env=os.environ | {"BUILDAH_ISOLATION": "chroot"},
            capture_output=True, text=True, check=False, timeout=seconds,
        )  # fmt: skip
        assert done.returncode == 0, (arguments, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout.strip()

    def make_base(self) -> None:
        """Install Python from Debian's packages, with the pip of a virtual environment."""
        sources = next(path for path in SOURCES if path.exists())
        archive = self.folder / "base.tar"
        suite = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
        assert suite is not None
        done = subprocess.run(
            ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}",
             '--customize-hook=chroot "$1" python3 -m venv /usr/local',
             suite[1], archive, sources],
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, str(archive), "/")
        self.buildah("commit", "--quiet", container, "localhost/base")
        self.buildah("rm", container)
        archive.unlink()

    def build(self) -> None:
        """Build the Dockerfile, and mount what it makes."""
        docker = DEPLOY / "docker" / "Dockerfile"
        self.buildah(
            "build", "--layers=false", "--pull=never", *pip_settings(self.folder),
            "--build-arg", "BASE=localhost/base", "--ignorefile", f"{docker}.dockerignore",
            "--file", str(docker), "--tag", "localhost/dask-sketch", str(DEPLOY.parent),
            seconds=1500,
        )  # fmt: skip
        container = self.buildah("from", "--pull=never", "localhost/dask-sketch")
        self.root = Path(self.buildah("mount", container))
        self.config = json.loads(self.buildah("inspect", container))["OCIv1"]["config"]
        base = self.buildah("from", "--pull=never", "localhost/base")
        self.base_megabytes = size_of(Path(self.buildah("mount", base)))
        self.megabytes = size_of(self.root)

    @contextlib.contextmanager
    def started(self, work: Path, *command: str, **variables: str) -> Iterator[Container]:
        """Start a command in a container of the image, with its variables and user; end it."""
        given = [*self.config["Env"], *(f"{key}={value}" for key, value in variables.items())]
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as log:
            process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--propagation", "private",
                 "sh", "-c", ENTER, "sh", "env", "-i", "-C", "/mnt", *given, *command],
                env=os.environ | {"ROOT": str(self.root), "WORK": str(work),
                                  "USER": str(self.config["User"])},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield Container(process, Path(log.name))
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children():  # its end is that of all
                    child.kill()
            process.kill()
            process.wait()

    def run(self, work: Path, *command: str, seconds: float = 300.0, **variables: str) -> str:
        """Output of a command that must succeed."""
        with self.started(work, *command, **variables) as container:
            try:
                code = container.process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
        assert code == 0, container.output
        return container.output


@dataclass
class Container:
    """A process of the image."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        """All that the process wrote so far."""
        return self.log.read_text(errors="replace")


def size_of(root: Path) -> float:
    """Size of all files below a folder, in megabytes."""
    done = subprocess.run(
        ["du", "--summarize", "--apparent-size", "--block-size=1", root],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout.split()[0]) / 1e6


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    found = Image(tmp_path_factory.mktemp("image"))
    try:
        found.make_base()
        found.build()
        yield found
    finally:
        found.buildah("umount", "--all")
        found.buildah("rm", "--all")
        found.buildah("rmi", "--all", "--force")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Folder that the user of the image may write, with a store of rows."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(N_ROWS, 2)) + rng.choice([-4.0, 4.0], size=(N_ROWS, 1))
    store = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=rows.shape, chunks=(500, 2), dtype="f4"
    )
    store[:] = rows
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 10001, 10001)
    return tmp_path


def own(folder: Path) -> None:
    """Give files to the user of the image."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 10001, 10001)


PROBE = """
import os, pathlib, sys
import dask_sketch
print(os.getuid(), os.getgid(), os.getgroups())
status = pathlib.Path("/proc/self/status").read_text()
print([line.split()[1] for line in status.splitlines() if line.startswith("Cap")])
for place in ("/x", "/opt/dask-sketch/x", "/usr/x", "/etc/x"):
    try:
        pathlib.Path(place).touch()
        print("written", place)
    except OSError:
        pass
pathlib.Path("/tmp/x").touch()
"""


def test_the_user_has_no_rights(image, work):
    output = image.run(work, "python", "-c", PROBE)
    assert output.splitlines()[0] == "10001 10001 []"
    assert set(re.findall(r"'(\w+)'", output)) == {"0" * 16}
    assert "written" not in output
    assert not (image.root / "usr/local/bin/pip").exists()
    logger.info(
        "the image has %.0f MB, of which the base has %.0f", image.megabytes, image.base_megabytes
    )
    assert image.megabytes - image.base_megabytes < 950.0


def test_the_demo(image, work):
    output = image.run(
        work, "dask-sketch", "demo", "--n-frames", "100000", "--report", "/tmp/report.html",
        seconds=900,
    )  # fmt: skip
    assert "report.html" in output


def test_a_job(image, work):
    text = job_text("/mnt", 'kind = "threads"')
    (work / "job.toml").write_text(text)
    own(work)
    image.run(work, "dask-sketch", "run", "/mnt/job.toml")
    assert total_of(work) == N_ROWS
    assert (work / "report.html").exists()
    assert (work / "model.zarr").stat().st_uid == 10001
    again = image.run(work, "dask-sketch", "run", "/mnt/job.toml")
    assert re.search(r"new partitions +0\n", again), again


def test_scheduler_worker_and_client(image, work):
    """As in the compose file, but on one network."""
    make_certificates(work / "certificates", mounted_at="/mnt/certificates")
    tls = dict(
        line.split("=", 1)
        for line in (work / "certificates" / "tls.env").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    port = free_port()
    (work / "job.toml").write_text(job_text("/mnt", 'kind = "address"'))
    own(work)
    address = f"tls://127.0.0.1:{port}"
    tls["DASK_SCHEDULER_ADDRESS"] = address
    scheduler = (
        "dask", "scheduler", "--protocol=tls", "--host=127.0.0.1", f"--port={port}",
        "--dashboard-address=127.0.0.1:0",
    )  # fmt: skip
    worker = (
        "dask", "worker", address, "--protocol=tls", "--nworkers=1", "--nthreads=2",
        "--memory-limit=0.9", "--dashboard-address=127.0.0.1:0", "--death-timeout=60",
    )  # fmt: skip
    with image.started(work, *scheduler, **tls), image.started(work, *worker, **tls) as started:
        wait_until(lambda: "Registered to:" in started.output, "a worker registers", 120)
        image.run(work, "dask-sketch", "run", "/mnt/job.toml", **tls)
    assert total_of(work) == N_ROWS
