"""Run one DaskJob under a name of the date, wait for it, end with its exit code.

The CronJob of cronjob.yaml starts it as `python nightly.py daskjob.yaml`. The DaskJob, and with it
scheduler and workers, is deleted at the end, also when this process is told to stop. Whatever is
lost in between, the next run goes on from the ledger's last commit.
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
PAUSE = 5.0  # seconds between two looks
OPERATOR_SECONDS = 600.0  # that the operator may take to make the pod of the job
SILENCE_SECONDS = 600.0  # that the API may be out of reach


def main(path: str) -> int:
    """Exit code of the container that ran the job; 1 if it came to no end of its own."""
    name = f"sketch-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M}"
    job = DaskJob(named(yaml.safe_load(Path(path).read_text()), name))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    job.create()
    try:
        print(f"{name}: created", flush=True)
        return code_of(wait_for(job), name)
    finally:
        with contextlib.suppress(kr8s.NotFoundError):  # somebody was faster
            job.delete()


def named(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    """The same job under another name, which its Service selects the scheduler by."""
    manifest["metadata"]["name"] = name
    service = manifest["spec"]["cluster"]["spec"]["scheduler"]["service"]
    service["selector"]["dask.org/cluster-name"] = name
    return manifest


def wait_for(job: Any) -> Any:
    """The pod that ran the job, once it has ended."""
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
                sys.exit(f"{job.name}: no pod was made for it; does Dask's operator run?")
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
    """Exit code of the pod's container, after its log has been copied to ours."""
    for line in pod.logs():
        print(line)
    for status in pod.status.get("containerStatuses", []):
        if "terminated" in status.state:
            code = int(status.state.terminated.exitCode)
            print(f"{name}: exit code {code}", flush=True)
            return code
    print(f"{name}: its container came to no end ({pod.status.get('reason')})", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
