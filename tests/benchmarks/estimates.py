"""Time of a pass for sizes that no machine here can run, from rates measured here.

``python -m tests.benchmarks.estimates``. Measured, in CPU time since the machine may be shared:
pairs per second of a core, reading a stored chunk of the local disk, merging, and the time of a
scheduler in a process of its own for each task. Assumed, and said in the print: the bandwidth of
the object store, and that a core elsewhere is as fast as one here. At the end: passes that were run
on two workers of one thread, beside what `plan` estimated for them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from dask.utils import format_time
from distributed import Client, LocalCluster

import dask_sketch as ds
from dask_sketch.display.text import text_table
from dask_sketch.graph.calibration import (
    Calibration,
    Estimate,
    estimate_pass,
    merge_seconds,
    pairs_per_second,
)
from dask_sketch.graph.tree import count_merges
from dask_sketch.sources.samples import row_step
from tests.benchmarks.million import measured

FEATURES = 12
ROW_BYTES = 4 * FEATURES
SPLIT_EVERY = 16
STORED_ROWS = 87_381  # of a stored chunk of 4 MiB, which tasks join to 32 MiB
# An assumption: what one bucket gives to all readers together. 100 GB/s is 200 readers at
# 500 MB/s, about what a network of 10 Gbit/s leaves to two workers of a host each.
BANDWIDTHS = {2: 1e9, 200: 100e9, 2000: 100e9}
CORES = (2, 200, 2000)
SAMPLES = (10**8, 10**10, 10**12)
FREQUENCIES = (1000, 8000)


@dataclass(frozen=True)
class Validation:
    """An estimate beside the pass that it was for."""

    n_samples: int
    n_frequencies: int
    n_cores: int
    estimate: Estimate
    actual: float


def write_store(path: str, n_samples: int) -> None:
    """Random rows, uncompressed as speech features would be."""
    array = zarr.create_array(
        path, shape=(n_samples, FEATURES), chunks=(STORED_ROWS, FEATURES), dtype="f4",
        compressors=None,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for start in range(0, n_samples, STORED_ROWS):
        n = min(STORED_ROWS, n_samples - start)
        array[start : start + n] = rng.standard_normal((n, FEATURES), dtype="f4")


def feature_map(n_frequencies: int) -> ds.FeatureMap:
    """The map of all cases."""
    return ds.FeatureMap(FEATURES, n_frequencies, scale=1.0)


def at_size(
    rates: Calibration,
    measured_rows: float,
    n_samples: int,
    n_frequencies: int,
    n_cores: int,
    n_chunks: int | None = None,
    chunk_size: str | None = None,
) -> Estimate:
    """The estimate for a store of this size, in chunks as the library would read it.

    Parameters
    ----------
    rates
        Measured on chunks of ``measured_rows``; reading is in proportion to the rows.
    measured_rows
        See there.
    n_samples, n_frequencies, n_cores
        Size of the pass.
    n_chunks
        Number of chunks, where it is given.
    chunk_size
        Bytes that a task reads; the configured value by default.
    """
    step = row_step(n_samples, STORED_ROWS, ROW_BYTES, chunk_size)
    n = -(-n_samples // step) if n_chunks is None else n_chunks
    rows = n_samples / n
    per_chunk = replace(rates, read_seconds=rates.read_seconds * rows / measured_rows)
    return estimate_pass(
        per_chunk,
        n_samples=n_samples,
        n_frequencies=n_frequencies,
        n_chunks=n,
        n_tasks=n + count_merges(n, SPLIT_EVERY),
        n_cores=n_cores,
        bytes_read=n_samples * ROW_BYTES,
        bandwidth=BANDWIDTHS.get(n_cores),
    )


def cells(made: Estimate, *size: Any) -> tuple[str, ...]:
    """One line of the table."""
    return (
        *(f"{value:,}" for value in size),
        *(
            format_time(seconds) if seconds else "-"
            for seconds in (
                made.kernel_seconds,
                made.read_seconds,
                made.store_seconds,
                made.scheduler_seconds,
                made.seconds,
            )
        ),
        made.bottleneck,
    )


HEADER = ("samples", "m", "cores", "kernel", "read", "store", "scheduler", "in all", "bound by")


def table(calibrations: dict[int, Calibration]) -> str:
    """Sizes by cores, and the paper's own case.

    Parameters
    ----------
    calibrations
        By number of frequencies, those of ``FREQUENCIES`` and 100,000.
    """
    lines = [
        cells(at_size(rates, rates.rows_per_chunk, n, m, cores), n, m, cores)
        for m in FREQUENCIES
        for rates in [calibrations[m]]
        for n in SAMPLES
        for cores in CORES
    ]
    rates = calibrations[FREQUENCIES[0]]
    larger = at_size(
        rates, rates.rows_per_chunk, SAMPLES[-1], FREQUENCIES[0], 2000, chunk_size="256MiB"
    )
    lines.append(cells(larger, SAMPLES[-1], FREQUENCIES[0], 2000))
    rates = calibrations[100_000]
    paper = at_size(rates, rates.rows_per_chunk, 2 * 10**8, 100_000, 200, n_chunks=200)
    lines.append(cells(paper, 2 * 10**8, 100_000, 200))
    return text_table(lines, header=HEADER)


def cpu_rates(path: str, n_frequencies: int, per_task: float) -> Calibration:
    """Rates by the CPU time of this process, which should do nothing else."""
    made, own = ds.plan(path, feature_map(n_frequencies)), feature_map(n_frequencies)
    assert made.largest_chunk is not None
    rows = made.largest_chunk // ROW_BYTES
    wall, cpu = time.perf_counter(), time.process_time()
    rate = pairs_per_second(own, rows)
    rate *= (time.perf_counter() - wall) / (time.process_time() - cpu)
    array = zarr.open_array(path, mode="r")
    n = min(made.n_chunks, 8)
    cpu = time.process_time()
    for i in range(n):
        _ = array[i * rows : (i + 1) * rows]
    read = (time.process_time() - cpu) / n
    return Calibration(rate, read, rows, merge_seconds(own), per_task, on_cluster=True)


def validate(path: str, n_frequencies: int) -> Validation:
    """Estimate a pass on the active client, and run it."""
    plan = ds.plan(path, feature_map(n_frequencies), calibrate=True)
    lazy = ds.sketch(path, feature_map(n_frequencies))
    start = time.perf_counter()
    sketch = lazy.compute()
    actual = time.perf_counter() - start
    return Validation(sketch.count, n_frequencies, plan.n_threads, plan.estimate(), actual)


def validation_table(found: Sequence[Validation]) -> str:
    """Predicted over actual."""
    return text_table(
        [
            (
                f"{v.n_samples:,}", f"{v.n_frequencies:,}", v.n_cores,
                f"{v.estimate.seconds:.2f}", f"{v.actual:.2f}",
                f"{v.estimate.seconds / v.actual:.2f}",
            )
            for v in found
        ],
        header=("samples", "m", "cores", "predicted s", "actual s", "ratio"),
    )  # fmt: skip


def assumptions(rates: Calibration) -> str:
    """Assumptions of the table, as text."""
    store = ", ".join(f"{rate / 1e9:g} GB/s for {n:,} cores" for n, rate in BANDWIDTHS.items())
    return (
        f"measured (m={FREQUENCIES[0]:,}): {rates}\n"
        f"assumed: the store gives {store}; all cores are as fast as those measured; rows of "
        f"{FEATURES} float32, {SPLIT_EVERY} to a merge, chunks as `plan` joins them"
    )


def report(sizes: Sequence[int], frequencies: Sequence[int], scheduled: int) -> str:
    """Everything, with ``sizes`` samples and ``frequencies`` for the passes that are run.

    The scheduler is timed over ``scheduled`` chunks.
    """
    with tempfile.TemporaryDirectory(prefix="estimates-") as folder:
        paths = {n: str(Path(folder) / f"{n}.zarr") for n in sizes}
        for n, path in paths.items():
            write_store(path, n)
        empty = measured("array", scheduled, Path(folder))
        per_task = empty["scheduler s"] / empty["tasks"]
        largest = paths[max(sizes)]
        rates = {m: cpu_rates(largest, m, per_task) for m in (*FREQUENCIES, 100_000)}
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster),
        ):
            runs = [validate(paths[n], m) for n in sizes for m in frequencies]
    return "\n".join(
        [
            assumptions(rates[FREQUENCIES[0]]),
            table(rates),
            "the last line but one: the same with 256 MiB to a task, for the scheduler's sake",
            "the last line is the paper's case: 200 parts, under an hour",
            "",
            validation_table(runs),
        ]
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--quick"]:
        print(report([200_000], [1000], 500))  # noqa: T201
    else:
        print(report([2_000_000, 20_000_000], [1000, 4000], 10_000))  # noqa: T201
