"""Run one DaskJob with the date in its name, wait for it, and exit with its exit code.

The CronJob of cronjob.yaml runs `python nightly.py daskjob.yaml`. At the end the DaskJob is
deleted, with its scheduler and workers. The same happens when this process is terminated. After
any failure, the next run continues from the last commit of the ledger.
"""

from __future__ import annotations

import contextlib
import datetime
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import kr8s
import yaml
from kr8s.objects import Pod, new_class

DaskJob = new_class("DaskJob", "kubernetes.dask.org/v1", asyncio=False)
PAUSE = 5.0  # seconds between two polls
OPERATOR_SECONDS = 600.0  # timeout for the operator to create the pod
SILENCE_SECONDS = 600.0  # timeout of the Kubernetes API


def main(path: str) -> int:
    """Return the exit code of the container that ran the job; 1 if the container was killed."""
    name = f"sketch-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M}"
    job = DaskJob(named(yaml.safe_load(Path(path).read_text()), name))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    job.create()
    try:
        print(f"{name}: created", flush=True)
        return code_of(wait_for(job), name)
    finally:
        with contextlib.suppress(kr8s.NotFoundError):  # deleted by another process
            job.delete()


def named(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    """Rename the job, also in the selector of its Service."""
    manifest["metadata"]["name"] = name
    service = manifest["spec"]["cluster"]["spec"]["scheduler"]["service"]
    service["selector"]["dask.org/cluster-name"] = name
    return manifest


def wait_for(job: Any) -> Any:
    """Wait until the pod of the job has ended, and return it."""
    pod = Pod({"metadata": {"name": f"{job.name}-runner", "namespace": job.namespace}})
    phase, began, heard = "", time.monotonic(), time.monotonic()
    while phase not in ("Succeeded", "Failed"):
        time.sleep(PAUSE)
        try:
            pod.refresh()
        except kr8s.NotFoundError:
            if phase:
                sys.exit(f"{job.name}: its pod was deleted")
            if time.monotonic() - began > OPERATOR_SECONDS:
                sys.exit(f"{job.name}: no pod was created; is the Dask operator running?")
            continue
        except (kr8s.ServerError, kr8s.APITimeoutError, httpx.TransportError) as error:
            if time.monotonic() - heard > SILENCE_SECONDS:
                sys.exit(f"{job.name}: the Kubernetes API does not answer ({error})")
            continue
        heard = time.monotonic()
        if pod.status.phase != phase:
            phase = pod.status.phase
            print(f"{job.name}: {phase}", flush=True)
    return pod


def code_of(pod: Any, name: str) -> int:
    """Print the log of the pod, and return the exit code of its container."""
    for line in pod.logs():
        print(line)
    for status in pod.status.get("containerStatuses", []):
        if "terminated" in status.state:
            code = int(status.state.terminated.exitCode)
            print(f"{name}: exit code {code}", flush=True)
            return code
    print(f"{name}: its container did not terminate ({pod.status.get('reason')})", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
