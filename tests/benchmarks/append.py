"""Cost of a night that adds one partition, compared with the first run over all partitions.

`python -m tests.benchmarks.append PARTITIONS ROWS M K`; each run is a process of its own, as it is
every night, and the time to import the package is reported separately.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dask_sketch.models import random_mixture

N_FEATURES = 12
_AT_ONCE = 2_000_000  # rows drawn together

JOB = """
[job]
name = "append"
ledger = "ledger.zarr"

[[sources]]
path = "samples.zarr"
chunk_size = {chunk_size}

[feature_map]
n_components = {k}
n_frequencies = {m}

[[decode]]
n_components = {k}
method = "splitting"
"""
# what a run imports as it goes is imported before, so that a run alone is measured
RUN = """
import json, sys, time
from dask_sketch import decode, design, sketch
from dask_sketch.jobs import results, run
from dask_sketch.sources.zarr import ZarrRowReader

read, plain = [], ZarrRowReader.__getitem__
def counted(self, index):
    rows = plain(self, index)
    read.append(rows.nbytes)
    return rows
ZarrRowReader.__getitem__ = counted
before = time.process_time()
made = run.run_job(sys.argv[1])
print(json.dumps({
    "cpu": time.process_time() - before, "imports": before, "bytes": sum(read),
    "seconds": made.seconds, "samples": made.samples,
}))
"""


def make_store(path: Path, n_partitions: int, rows: int, k: int) -> None:
    """Samples of a mixture of ``k`` components, a stored chunk for each partition."""
    distribution = random_mixture(k, N_FEATURES, seed=0)
    n = n_partitions * rows
    store = zarr.create_array(
        path, shape=(n, N_FEATURES), chunks=(rows, N_FEATURES), dtype="float32", compressors=None
    )
    step = max(_AT_ONCE // rows, 1) * rows
    for seed, start in enumerate(range(0, n, step)):
        end = min(start + step, n)
        store[start:end] = distribution.sample(end - start, seed=seed).astype(np.float32)


def append(path: Path, rows: int, k: int) -> None:
    """One partition more, of the same distribution."""
    store: Any = zarr.open_array(path, mode="r+")
    store.append(random_mixture(k, N_FEATURES, seed=0).sample(rows, seed=10**6).astype(np.float32))


def run(job: Path) -> dict[str, Any]:
    """One run, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, job], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def two_runs(folder: Path, n_partitions: int, rows: int, m: int, k: int) -> list[dict[str, Any]]:
    """The first run, over all partitions, and the second, after one was appended."""
    job = folder / "job.toml"
    job.write_text(JOB.format(chunk_size=rows * N_FEATURES * 4, m=m, k=k))
    make_store(folder / "samples.zarr", n_partitions, rows, k)
    first = run(job)
    append(folder / "samples.zarr", rows, k)
    return [first, run(job)]


def text(runs: list[dict[str, Any]]) -> str:
    """Cost of both runs, as text."""
    lines = ["run      samples        read MB   CPU s   imports s   steps"]
    for name, one in zip(("first", "second"), runs, strict=True):
        steps = ", ".join(f"{step} {wall:.2f}" for step, wall in one["seconds"].items())
        lines.append(
            f"{name:6} {one['samples']:>13,} {one['bytes'] / 1e6:>12,.1f} {one['cpu']:>7.2f}"
            f" {one['imports']:>11.2f}   {steps}"
        )
    first, second = runs
    alone = second["cpu"] / first["cpu"]
    whole = (second["cpu"] + second["imports"]) / (first["cpu"] + first["imports"])
    return "\n".join([*lines, f"second over first: {alone:.1%}, with imports {whole:.1%}"])


def main(n_partitions: int = 1000, rows: int = 62_500, m: int = 1000, k: int = 8) -> None:
    """Measure in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="append-", dir=Path.cwd()) as folder:
        print(text(two_runs(Path(folder), n_partitions, rows, m, k)))  # noqa: T201


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
