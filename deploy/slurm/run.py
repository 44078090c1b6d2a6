"""Run one task of `srun`: task 0 is the scheduler, task 1 the run, all others are workers.

The cluster in the job file has the kind "address", without an address. The variables of tls.env
(`dask-sketch certificates`) set the encryption. The file in DASK_CONFIG has the settings of the
workers.
"""

from __future__ import annotations

import os
import sys

import dask.config
from dask_jobqueue.slurm import SLURMRunner
from distributed.core import rpc
from distributed.security import Security

from dask_sketch.cli.main import cli

MEMORY_FRACTION = 0.9  # of a task's memory; the nanny needs the rest


def worker_options() -> dict[str, object]:
    """Return the threads and the memory of a worker, from the SLURM task."""
    threads = int(os.environ.get("SLURM_CPUS_PER_TASK", "1"))
    options: dict[str, object] = {"nthreads": threads, "dashboard_address": "127.0.0.1:0"}
    if "SLURM_MEM_PER_CPU" in os.environ:  # MiB
        mebibytes = int(os.environ["SLURM_MEM_PER_CPU"]) * threads
        options["memory_limit"] = int(mebibytes * 2**20 * MEMORY_FRACTION)
    return options


def main(job: str) -> int:
    """Return the exit code of the run. Only task 1 returns from the constructor of the runner."""
    begun = os.environ.get("SLURM_RESTART_COUNT", "0")  # counts the requeues of the job
    runner = SLURMRunner(
        scheduler_file=f"dask-sketch-{{job_id}}-{begun}.json",
        scheduler_options={"dashboard_address": "127.0.0.1:0"},
        worker_class="distributed.Nanny",
        worker_options=worker_options(),
    )
    # The connection that the runner uses to stop the other tasks has no certificate by default
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
