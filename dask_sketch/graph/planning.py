"""What a pass will cost, said before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psutil
from dask.system import CPU_COUNT

from dask_sketch import config
from dask_sketch.announcing import announce_limit
from dask_sketch.features import FeatureMap
from dask_sketch.features.row_loop import GROUPS
from dask_sketch.graph.batches import batch_chunks, count_merges
from dask_sketch.graph.cost import Plan
from dask_sketch.graph.estimate import measure
from dask_sketch.graph.group_memory import free_memory, group_memory
from dask_sketch.graph.opening import opened
from dask_sketch.graph.run import active_client
from dask_sketch.sketching.exact_sums import BLOCK_BYTES, block_rows, held_rows
from dask_sketch.sketching.partial import GATHERED
from dask_sketch.sources import Samples
from dask_sketch.sources.chunking import SMALL_TASK, describe_bytes, n_bytes

MANY_PIECES = 10_000  # stored chunks,
SMALL_PIECE = 2**14  # and bytes of each, under which decoding them takes longer than sketching


def plan(
    x: Any,
    feature_map: FeatureMap,
    weights: Any = None,
    *,
    groups: Any = None,
    split_every: int | None = None,
    memory_per_thread: str | int | None = None,
    calibrate: bool = False,
    **options: Any,
) -> Plan:
    """Say what sketching ``x`` will cost, without reading it.

    Parameters
    ----------
    x, feature_map, weights, groups, split_every, options
        As for :func:`sketch`.
    memory_per_thread
        Memory that each thread has; by default that of the smallest worker of the active client,
        or what is free on this machine, shared among the threads.
    calibrate
        Measure for a few seconds, on the active client or on the threads of this process, and
        estimate the time: a few chunks are read, random rows are sketched.

    Returns
    -------
    plan
        Prints as a table.

    Raises
    ------
    PlanError
        If the largest chunk cannot fit; the message has both numbers.
    InputError
        As for :func:`open_samples`.
    ChunkError
        If a chunk that is read to calibrate cannot be.

    Examples
    --------
    >>> import numpy as np
    >>> plan(np.zeros((1000, 2)), FeatureMap(2, 100, scale=1.0)).passes
    1
    >>> made = plan(np.zeros((1000, 2)), FeatureMap(2, 100, scale=1.0), calibrate=True)
    >>> made.estimate(n_cores=1).seconds > 0
    True
    """
    samples, fan_in = opened(
        "plan", x, feature_map, split_every, weights=weights, groups=groups, options=options
    )
    available = None
    if memory_per_thread is not None:
        available = n_bytes("memory_per_thread", memory_per_thread)
    client = active_client() if samples.lazy else None
    made = make_plan(samples, feature_map, fan_in, client=client, available=available)
    made.require_fit()
    if calibrate:
        rates = measure(samples, feature_map, made.n_threads, fan_in, client)
        announce_limit(client, feature_map, rates)
        made = replace(made, calibration=rates)
    return made


def make_plan(
    samples: Samples,
    feature_map: FeatureMap,
    split_every: int,
    *,
    client: Any = None,
    available: int | None = None,
) -> Plan:
    """The plan, fitting or not; see :func:`plan`."""
    memory, n_threads = _resources(client)
    if available is not None:
        memory = available
    m, d = feature_map.n_frequencies, feature_map.n_features
    one_sketch = 32 * m + 8 * 6 * d  # sums in two words each, and two bounds
    weighted = bool(samples.weights is not None or samples.weight_column or samples.weight_field)
    drawn = 12 * d * m  # frequencies in float64, and packed in float32; once for a process
    grouped = group_memory(samples, feature_map, split_every, n_threads, weighted)
    chunk_memory = None
    if samples.largest_chunk is not None:
        scratch = 2 * BLOCK_BYTES + 2 * one_sketch
        if weighted:
            # longer blocks; sums, and rows that wait, for each group of weights
            share = held_rows(d, feature_map.dtype) / block_rows(d, feature_map.dtype)
            held = int(share * BLOCK_BYTES)
            scratch += 2 * GATHERED * BLOCK_BYTES + GROUPS * (one_sketch // 2 + held)
        reading = samples.copies * samples.largest_chunk + scratch
        if grouped is None:
            merging = (split_every + 1) * one_sketch
        else:
            reading, merging = reading + grouped.sketching, grouped.merging
        chunk_memory = max(reading, merging) + drawn
    n_chunks = samples.n_chunks
    size = batch_chunks(n_chunks, split_every) or max(n_chunks, 1)
    whole, rest = divmod(n_chunks, size)
    n_merges = whole * count_merges(size, split_every)
    if rest or not whole:
        n_merges += count_merges(rest, split_every)
    n_batches = max(-(-n_chunks // size), 1)
    warnings = []
    if n_batches > 1 and (samples.bytes_read or 0) < n_chunks * SMALL_TASK:
        warnings.append(
            f"{n_chunks:,} chunks are of {describe_bytes((samples.bytes_read or 0) // n_chunks)} "
            "on average: the scheduler will be the bottleneck. Make larger ones: raise chunk_size "
            "for a store, rechunk an array where it is read."
        )
    pieces = samples.stored_chunks
    if pieces and pieces >= MANY_PIECES and (samples.bytes_read or 0) < pieces * SMALL_PIECE:
        warnings.append(
            f"{pieces:,} stored chunks are of {describe_bytes((samples.bytes_read or 0) // pieces)}"
            " on average, and Zarr needs a fifth of a millisecond for each. Store larger ones, or "
            "read them with the package zarrs (Zarr's setting codec_pipeline.path)."
        )
    if samples.largest_chunk is None:
        warnings.append("chunk sizes are unknown: memory cannot be projected.")
    if grouped is not None and grouped.result is None:
        warnings.append(
            f"each group of {grouped.dim} will take {describe_bytes(grouped.each)}, and how many "
            "there are only the pass can tell: memory is projected without them."
        )
    return Plan(
        source=samples.label,
        passes=1,
        n_samples=samples.n_samples,
        n_chunks=n_chunks,
        n_merges=n_merges,
        n_tasks=n_chunks + n_merges,
        n_batches=n_batches,
        n_frequencies=m,
        bytes_read=samples.bytes_read,
        largest_chunk=samples.largest_chunk,
        memory_per_thread=chunk_memory,
        memory_available=memory,
        sketch_bytes=one_sketch if grouped is None else grouped.result,
        n_threads=n_threads,
        warnings=tuple(warnings),
        groups=None if grouped is None else grouped.dim,
        n_groups=None if grouped is None else grouped.n_groups,
        client_memory=None if grouped is None else grouped.client,
        client_available=None if grouped is None else free_memory(),
    )


def _resources(client: Any) -> tuple[int, int]:
    """Bytes for each thread of the smallest worker, and threads in all."""
    share = float(config.get("memory-share"))
    if client is not None:
        workers = list(client.scheduler_info(n_workers=-1)["workers"].values())
        limits = [w["memory_limit"] / w["nthreads"] for w in workers if w.get("memory_limit")]
        threads = sum(w["nthreads"] for w in workers)
        if limits:
            return int(share * min(limits)), threads
        if workers:
            return int(share * psutil.virtual_memory().total), threads
    return free_memory() // CPU_COUNT, CPU_COUNT
