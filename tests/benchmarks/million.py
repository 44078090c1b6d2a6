"""A pass over a million tiny chunks: tasks, memory of the client, scheduler time for each chunk.

``python -m tests.benchmarks.million [N]``. Scheduler, client and workers are processes of their
own, so that the time and the memory of each can be told.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import zarr
from distributed import Client, LocalCluster

import dask_sketch as ds

ROWS, FEATURES = 32, 12  # of one stored chunk: 1.5 kB
IN_SHARD = 1000  # chunks
FREQUENCIES = 100
KINDS = ("files", "shards", "array", "one graph")
LARGEST_GRAPH = 200_000  # chunks; more in one graph do not fit in the memory of a small machine


def write_store(path: str, n_chunks: int, sharded: bool) -> None:
    """Write ``n_chunks`` chunks of random rows: a file for each, or a thousand to a shard."""
    rng = np.random.default_rng(0)
    shape, chunk = (n_chunks * ROWS, FEATURES), (ROWS, FEATURES)
    if not sharded:
        zarr.create_array(
            path, shape=shape, chunks=chunk, dtype="f4", zarr_format=2, compressors=None
        )
        for i in range(n_chunks):
            # Zarr would take half a millisecond for each; without a codec, a chunk is its bytes
            (Path(path) / f"{i}.0").write_bytes(rng.standard_normal(chunk, dtype="f4").tobytes())
        return
    step = ROWS * IN_SHARD
    array = zarr.create_array(path, shape=shape, chunks=chunk, shards=(step, FEATURES), dtype="f4")
    for start in range(0, shape[0], step):
        n = min(step, shape[0] - start)
        array[start : start + n] = rng.standard_normal((n, FEATURES), dtype="f4")


def source(kind: str, n_chunks: int, folder: Path) -> Any:
    """The input of one kind, a store written if it is not there."""
    if kind in ("array", "one graph"):
        return da.ones((n_chunks * ROWS, FEATURES), chunks=(ROWS, FEATURES), dtype="f4")
    path = folder / f"{kind}-{n_chunks}.zarr"
    if not path.exists():
        write_store(str(path), n_chunks, kind == "shards")
    return str(path)


def usage() -> dict[str, float]:
    """CPU seconds and largest resident size, in MB, of this process; on Linux."""
    times = psutil.Process().cpu_times()
    # not getrusage, whose peak may be that of the process that started this one
    status = Path("/proc/self/status").read_text()
    peak = float(status.split("VmHWM:")[1].split()[0]) / 1e3
    return {"cpu": times.user + times.system, "peak": peak}


def spent(before: dict[str, float], after: dict[str, float]) -> tuple[float, float]:
    """CPU seconds, and MB by which the largest resident size grew."""
    return after["cpu"] - before["cpu"], after["peak"] - before["peak"]


def run_pass(kind: str, n_chunks: int, folder: Path, address: str) -> dict[str, Any]:
    """One pass, from a client that does nothing else."""
    feature_map = ds.FeatureMap(FEATURES, FREQUENCIES, scale=1.0)
    x = source(kind, n_chunks, folder)
    limit = {"sketch.task-limit": 10**9} if kind == "one graph" else {}
    with Client(address) as client, dask.config.set(limit):
        warm = da.ones((40, FEATURES), chunks=(10, FEATURES), dtype="f4")
        ds.sketch(warm, feature_map).compute()
        clocks = [usage(), client.run_on_scheduler(usage), client.run(usage)]
        start = time.perf_counter()
        plan = ds.plan(x, feature_map)
        count = ds.sketch(x, feature_map).compute().count
        wall = time.perf_counter() - start
        again = [usage(), client.run_on_scheduler(usage), client.run(usage)]
    assert count == n_chunks * ROWS
    client_cpu, client_peak = spent(clocks[0], again[0])
    scheduler_cpu, scheduler_peak = spent(clocks[1], again[1])
    workers = [spent(clocks[2][name], again[2][name]) for name in clocks[2]]
    return {
        "kind": kind,
        "chunks": n_chunks,
        "tasks": plan.n_tasks,
        "batches": plan.n_batches,
        "wall s": wall,
        "client s": client_cpu,
        "client MB": client_peak,
        "scheduler s": scheduler_cpu,
        "scheduler MB": scheduler_peak,
        "workers s": sum(cpu for cpu, _ in workers),
        "worker MB": max(peak for _, peak in workers),
    }


@contextlib.contextmanager
def cluster_process() -> Iterator[str]:
    """Two workers of one thread, and a scheduler in a process of its own; its address."""
    command = [sys.executable, "-m", __spec__.name, "--cluster"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def measured(kind: str, n_chunks: int, folder: Path) -> dict[str, Any]:
    """One pass with processes of its own: no memory is left over from another."""
    with cluster_process() as address:
        command = [sys.executable, "-m", __spec__.name, kind, str(n_chunks), str(folder), address]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(costs: list[dict[str, Any]]) -> str:
    """The figures as text, and those for each chunk."""
    lines = []
    for cost in costs:
        n = cost["chunks"]
        lines.append(
            f"{cost['kind']:<10} {n:>9,} chunks {cost['tasks']:>9,} tasks "
            f"{cost['batches']:>4} batches {cost['wall s']:>7.1f} s wall | client "
            f"{cost['client s']:>6.1f} s +{cost['client MB']:>5.0f} MB | scheduler "
            f"{cost['scheduler s']:>6.1f} s +{cost['scheduler MB']:>5.0f} MB | workers "
            f"{cost['workers s']:>6.1f} s +{cost['worker MB']:>5.0f} MB | a chunk: scheduler "
            f"{1e6 * cost['scheduler s'] / n:>5.0f} us, workers {1e6 * cost['workers s'] / n:>5.0f}"
            f" us, {1e6 * cost['wall s'] / n:>5.0f} us wall"
        )
    return "\n".join(lines)


def serve() -> None:
    """Keep a cluster until the standard input ends."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="2GiB", dashboard_address=":0"
    ) as cluster:
        print(cluster.scheduler_address, flush=True)  # noqa: T201
        sys.stdin.read()


def main(arguments: list[str]) -> None:
    """Print a line for each kind of input."""
    if arguments == ["--cluster"]:
        serve()
        return
    if len(arguments) == 4:
        kind, n_chunks, folder, address = arguments
        cost = run_pass(kind, int(n_chunks), Path(folder), address)
        print(json.dumps(cost))  # noqa: T201
        return
    n = int(float(arguments[0])) if arguments else 100_000
    kinds = arguments[1].split(",") if len(arguments) > 1 else list(KINDS)
    folder = Path(tempfile.mkdtemp(prefix="million-"))
    try:
        for kind in kinds:
            if kind != "one graph" or n <= LARGEST_GRAPH:
                print(table([measured(kind, n, folder)]), flush=True)  # noqa: T201
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
