"""Measure a pass: time of every process, memory, bytes, tasks, and share of the kernel.

On Linux only, since all but the clocks is read from /proc.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import yaml
from distributed import Client, LocalCluster

import dask_sketch as ds
from dask_sketch.features.kernels.dense import DenseKernel
from dask_sketch.features.kernels.structured import StructuredKernel
from dask_sketch.graph.telemetry import task_statistics
from dask_sketch.sketching.partial import prepare

SETTINGS = Path(__file__).parents[3] / "deploy" / "dask.yaml"
N_WORKERS = 2
MEMORY_LIMIT = 2**30  # bytes of each worker
_CLOCK = {"kernel": 0.0}


@dataclass(frozen=True)
class Cost:
    """Cost of one pass, from building the graph to the merged sketch.

    Attributes
    ----------
    wall
        Seconds.
    workers
        CPU seconds of each worker process, all its threads, system time included.
    kernel
        CPU seconds that the workers were inside the kernel's ``add``, measured around each call.
    scheduler
        CPU seconds of the event loop, which serves scheduler, nannies and client: those of the
        client's process but for its main thread.
    client
        CPU seconds of the client's main thread: graph, plan, submission.
    peak
        Largest resident size that a worker process ever had (VmHWM), in bytes, from its start.
    read
        Bytes that the workers read, from files and from each other (rchar).
    n_tasks
        Tasks that ran.
    """

    wall: float
    workers: tuple[float, ...]
    kernel: float
    scheduler: float
    client: float
    peak: int
    read: int
    n_tasks: int

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes."""
        return sum(self.workers) + self.scheduler + self.client

    @property
    def kernel_share(self) -> float:
        """Part of the workers' CPU time that the kernel has."""
        return self.kernel / sum(self.workers)


@contextlib.contextmanager
def small_cluster(n_workers: int = N_WORKERS) -> Iterator[Client]:
    """Workers of one thread and 1 GiB, each a process with a nanny, set up as in ``deploy``."""
    settings = yaml.safe_load(SETTINGS.read_text())
    with (
        dask.config.set(dask.config.merge(dask.config.config, settings)),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=MEMORY_LIMIT,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def ready(client: Client, feature_map: ds.FeatureMap) -> None:
    """Draw, compile and start the clock on every worker, before anything is measured."""
    client.run(prepare, feature_map, np.float32)
    client.run(start_clock)


def measured_pass(
    client: Client,
    path: Path,
    feature_map: ds.FeatureMap,
    workers: list[str] | None = None,
    groups: Any = None,
) -> tuple[Any, Cost]:
    """Sketch a store, or groups of its rows, on ready workers, and tell what it cost.

    Parameters
    ----------
    client
        Client of the cluster.
    path
        Zarr store.
    feature_map
        Feature map.
    workers
        Addresses of some workers; all by default.
    groups
        Label of the group of each row; by default there is one sketch.
    """
    before = client.run(probe)
    process, thread, wall = time.process_time(), time.thread_time(), time.perf_counter()
    lazy = ds.sketch(str(path), feature_map, groups=groups)
    with task_statistics(client) as seen:
        sketch = lazy.compute(**({} if workers is None else {"workers": workers}))
    wall = time.perf_counter() - wall
    thread = time.thread_time() - thread
    process = time.process_time() - process
    after = client.run(probe)
    spent = {
        key: [after[name][key] - before[name][key] for name in before]
        for key in ("cpu", "kernel", "read")
    }
    cost = Cost(
        wall=wall,
        workers=tuple(spent["cpu"]),
        kernel=sum(spent["kernel"]),
        scheduler=process - thread,
        client=thread,
        peak=max(int(found["peak"]) for found in after.values()),
        read=int(sum(spent["read"])),
        n_tasks=seen.n_tasks,
    )
    return sketch, cost


def start_clock() -> None:
    """Measure the thread's CPU time around every call of a kernel in this process.

    A call takes a block of some thousand rows, milliseconds; the two readings of the clock about
    a microsecond.
    """
    for kind in (DenseKernel, StructuredKernel):
        if not hasattr(kind.add, "timed"):
            kind.add = _timed(kind.add)  # type: ignore[method-assign]


def _timed(add: Callable[..., None]) -> Callable[..., None]:
    def timed(*args: Any) -> None:
        start = time.thread_time()
        add(*args)
        _CLOCK["kernel"] += time.thread_time() - start

    timed.timed = True  # type: ignore[attr-defined]
    return timed


def probe() -> dict[str, float]:
    """Of this process: CPU seconds, those in the kernel, largest resident size, bytes read."""
    return {
        "cpu": time.process_time(),
        "kernel": _CLOCK["kernel"],
        "peak": peak_bytes(),
        "read": _number("/proc/self/io", "rchar:"),
    }


def peak_bytes() -> int:
    """Largest resident size of this process since it started.

    Not ``ru_maxrss``: a process inherits that of the one which started it.
    """
    return 1024 * _number("/proc/self/status", "VmHWM:")


def _number(file: str, name: str) -> int:
    lines = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
