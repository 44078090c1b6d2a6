"""SLURM on this machine: controller, node and authentication with files in one folder.

The daemons run as root with a configuration of their own, so that nothing of an installed cluster
is read or changed. The node states more processors than there are, since jobs wait for the rest.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path

from deployment.local_processes import BIN, environment, free_port, wait_until

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "srun", "scancel", "squeue", "scontrol", "sinfo")
CONFIGURATION = """\
ClusterName=dask-sketch
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs=32 RealMemory=131072 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Reason why SLURM cannot run here, None if it can."""
    if os.geteuid() != 0:
        return "SLURM on one machine needs root"
    absent = [name for name in (*DAEMONS, *COMMANDS) if shutil.which(name, path=_path()) is None]
    if absent:
        return f"needs {', '.join(absent)}: apt-get install slurm-wlm munge"
    return None


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Slurm:
    """A SLURM cluster of one node, used as a context manager.

    Parameters
    ----------
    folder
        Empty folder for its files.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = environment(
            SLURM_CONF=str(folder / "slurm.conf"), PATH=f"{BIN}:{_path()}"
        )
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        host = socket.gethostname().split(".")[0]
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=host, folder=self.folder, controller=free_port(), node=free_port()
            )
        )
        try:
            files = ("key", "socket", "pid", "log", "seed")
            options = [f"--{name}-file={self.folder}/munge.{name}" for name in files]
            options[1] = f"--socket={self.folder}/munge.socket"
            # the folder of a test is closed to others, of which munged warns
            self._start("munged", "--foreground", "--force", *options)
            wait_until(lambda: (self.folder / "munge.socket").exists(), "munged starts", 30)
            self._start("slurmctld", "-D", "-c")
            self._start("slurmd", "-D", "-c", "-N", host)
            wait_until(lambda: "idle" in self.output("sinfo", "-h", "-o", "%t"), "a node is idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if (self.folder / "slurm.conf").exists():
            with contextlib.suppress(AssertionError):  # the daemons end nevertheless
                self.end_jobs()
        for process in reversed(self._daemons):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
            )

    def output(self, *command: str) -> str:
        """Output of a command of SLURM."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout + done.stderr

    def submit(self, *arguments: str, folder: Path, **variables: str) -> str:
        """Submit a batch job in a folder, and return its number."""
        done = subprocess.run(
            ["sbatch", "--parsable", *arguments],
            env=self.environment | variables,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        """Numbers of the jobs that wait or run."""
        return [line for line in self.output("squeue", "-h", "-o", "%i").splitlines() if line]

    def end_jobs(self) -> None:
        """Kill all jobs that wait or run, and wait for their end."""
        if self.jobs():
            self.output("scancel", "--signal=KILL", "--full", "--me")
            self.output("scancel", "--me")
            wait_until(lambda: not self.jobs(), "all jobs end", 60)

    def field(self, job: str, name: str) -> str:
        """Field of a job that waits, runs or ended within the last minutes, such as JobState."""
        words = self.output("scontrol", "show", "job", job).split()
        found = dict(word.split("=", 1) for word in words if "=" in word)
        return found.get(name, "")

    def wait(self, job: str, seconds: float = 600.0) -> str:
        """Wait for the end of a job; return its exit code, and the signal after a colon."""
        running = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "")
        wait_until(lambda: self.field(job, "JobState") not in running, f"job {job} ends", seconds)
        return self.field(job, "ExitCode")
