"""What every task of `srun` runs: task 0 is the scheduler, task 1 the run, the others are workers.

The job file's cluster is of kind "address", without an address. Encryption comes from the variables
of tls.env (`dask-sketch certificates`), settings of the workers from the file in DASK_CONFIG.
"""

from __future__ import annotations

import os
import sys

import dask.config
from dask_jobqueue.slurm import SLURMRunner
from distributed.core import rpc
from distributed.security import Security

from dask_sketch.cli.main import cli

MEMORY_SHARE = 0.9  # of a task's memory; the rest is for the process that watches the worker


def worker_options() -> dict[str, object]:
    """Threads and bytes of a worker: those of its task."""
    threads = int(os.environ.get("SLURM_CPUS_PER_TASK", "1"))
    options: dict[str, object] = {"nthreads": threads, "dashboard_address": "127.0.0.1:0"}
    if "SLURM_MEM_PER_CPU" in os.environ:  # MiB
        mebibytes = int(os.environ["SLURM_MEM_PER_CPU"]) * threads
        options["memory_limit"] = int(mebibytes * 2**20 * MEMORY_SHARE)
    return options


def main(job: str) -> int:
    """Exit code of the run; only task 1 comes back from making the runner."""
    begun = os.environ.get("SLURM_RESTART_COUNT", "0")  # of a job that was requeued
    runner = SLURMRunner(
        scheduler_file=f"dask-sketch-{{job_id}}-{begun}.json",
        scheduler_options={"dashboard_address": "127.0.0.1:0"},
        worker_class="distributed.Nanny",
        worker_options=worker_options(),
    )
    # the runner's own connection, by which it ends the others, has no certificate
    security = Security()
    runner.scheduler_comm = rpc(
        runner.scheduler_address, connection_args=security.get_connection_args("client")
    )
    with runner, dask.config.set({"scheduler-address": runner.scheduler_address}):
        try:
            cli.main(["run", job], prog_name="dask-sketch", standalone_mode=True)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
