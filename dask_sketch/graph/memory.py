"""Project the memory of sketches of groups, and check that they can be merged in it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import psutil
from dask.system import CPU_COUNT

from dask_sketch import config
from dask_sketch.display.text import describe_bytes
from dask_sketch.errors import PlanError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.tree import batch_chunks
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.labels import union

FAN_IN = 4  # fan-in of merges with partial results that may be as large as the result
LARGE = 2**22  # bytes of second moments above which FAN_IN of them are combined at a time
GROWTH = 2  # factor by which the bytes of a group grow, if larger sums need longer words
SORTING = 40  # bytes for each row of a chunk: its label, its number and its position when sorted
REMEDY = (
    "Use fewer frequencies, larger groups (other labels of the same rows), a part of the groups at "
    "a time (by selecting their rows), split_every=2, or more memory and fewer threads per worker."
)


def default_fan_in(samples: Samples) -> int:
    """Default of the maximum number of partial results that one task merges."""
    setting = config.get("split-every")
    return setting if samples.groups is None else min(setting, FAN_IN)


def moment_fan_in(n_bytes: int) -> int:
    """Default of the maximum number of second moments that one task adds.

    Parameters
    ----------
    n_bytes
        Number of bytes of the second moments, or of those of all groups.
    """
    setting: int = config.get("split-every")
    return min(setting, FAN_IN) if n_bytes > LARGE else setting


def group_bytes(feature_map: FeatureMap, *, weighted: bool, with_missing: bool = False) -> int:
    """Bytes of the sketch of one group in a result.

    Parameters
    ----------
    feature_map
        Feature map.
    weighted
        Whether rows have weights.
    with_missing
        Whether the sketch has counters of missing values, as with ``nan_policy="available"``.

    Examples
    --------
    >>> feature_map = FeatureMap(12, 200, scale=1.0)
    >>> group_bytes(feature_map, weighted=False)
    3856
    >>> group_bytes(feature_map, weighted=False, with_missing=True)
    6288
    """
    m, d = feature_map.n_frequencies, feature_map.n_features
    # moments in one word of 8 bytes, or two with weights; two moments of the features in two words
    # each, and two bounds; weights, counts and a label
    n_bytes = (32 if weighted else 16) * m + 48 * d + 80
    return n_bytes + counter_bytes(feature_map, weighted) if with_missing else n_bytes


def counter_bytes(feature_map: FeatureMap, weighted: bool) -> int:
    """Bytes of the counters of missing values of one sketch."""
    m, d = feature_map.n_frequencies, feature_map.n_features
    # a number for each frequency and each pair of features in one word of 8 bytes, or two with
    # weights; two moments of the features
    return (16 if weighted else 8) * (m + d * (d + 1) // 2) + 16 * d + 16


@dataclass(frozen=True)
class GroupMemory:
    """Projected bytes of a pass over groups; ``None`` if they are unknown before the pass.

    Attributes
    ----------
    dim
        Name of the labels.
    n_groups
        Maximum number of groups.
    each
        Bytes of the sketch of one group.
    result
        Bytes of the sketches of all groups.
    sketching
        Bytes of one task that sketches, without its chunk: its result, and the sorted rows.
    merging
        Bytes of merges, for each thread: input and output of one merge with all groups in each
        partial result, or the share of a thread in the results that wait on all levels of the tree,
        if this is larger.
    client
        Bytes of the process that combines batches.
    """

    dim: str
    n_groups: int | None
    each: int
    result: int | None
    sketching: int
    merging: int
    client: int | None


def group_memory(
    samples: Samples, feature_map: FeatureMap, split_every: int, n_threads: int, with_missing: bool
) -> GroupMemory | None:
    """Projected memory for the groups of samples; ``None`` if they have no groups.

    This is an upper bound, as if all groups occurred in every chunk. If rows are sorted by file or
    by day, far less memory is needed.
    """
    if samples.groups is None:
        return None
    n_groups = samples.groups.n_groups
    each = group_bytes(feature_map, weighted=samples.is_weighted, with_missing=with_missing)
    rows = (samples.largest_chunk or 0) // (feature_map.n_features * samples.dtype.itemsize)
    result = None if n_groups is None else n_groups * each
    n_levels, width = 1, batch_chunks(samples.n_chunks, split_every) or samples.n_chunks
    while width > split_every:
        n_levels, width = n_levels + 1, -(-width // split_every)
    # each level waits for the last of its parts; each thread makes one part, and merges others
    waiting = 2 + -(-(split_every - 1) * n_levels // n_threads)
    return GroupMemory(
        dim=samples.groups.dim,
        n_groups=n_groups,
        each=each,
        result=result,
        sketching=min(n_groups or 0, rows) * each + SORTING * rows,
        merging=max(split_every + 1, waiting) * (result or 0),
        client=None if result is None else 3 * result,  # the sum, the next result, the new sum
    )


def require_room(parts: list[SketchGroup]) -> None:
    """Raise if a thread has too little memory to merge groups.

    Raises
    ------
    PlanError
        With the bytes that the merged groups need, and the bytes that a thread may use.
    """
    needed = GROWTH * sum(part.nbytes for part in parts)
    room = thread_memory()
    if len(parts) > 1 and needed > room:
        n_groups = len(union([part.labels for part in parts])[0])
        needed = GROWTH * n_groups * max(part.nbytes // max(len(part), 1) for part in parts)
        if needed > room:
            raise PlanError(
                f"the sketches of {n_groups:,} groups of {parts[0].dim} need up to "
                f"{describe_bytes(needed)} here, and a thread may use {describe_bytes(room)}. "
                f"{REMEDY}"
            )


def thread_memory() -> int:
    """Bytes that a task may use where it runs: of its worker, or of the free memory."""
    if "distributed" in sys.modules:
        from distributed import get_worker

        try:
            worker = get_worker()
        except ValueError:  # this is not a task of a worker
            pass
        else:
            limit = worker.memory_manager.memory_limit or psutil.virtual_memory().total
            return int(float(config.get("memory-share")) * limit / max(worker.state.nthreads, 1))
    return free_memory() // CPU_COUNT


def free_memory() -> int:
    """Bytes of this machine that are free for a pass."""
    return int(float(config.get("memory-share")) * psutil.virtual_memory().available)
