"""How many stored rows one task reads."""

from __future__ import annotations

from typing import Any

from dask.utils import parse_bytes

from dask_sketch import config
from dask_sketch.errors import InputError

BUSY_TASKS = 64  # into which data is cut before tasks grow,
GROUPED_TASKS = 16  # fewer for groups: each gives, and has merged, a sketch for each of its groups
SMALL_TASK = 2**20  # but not below this many bytes: the scheduler costs a millisecond a task


def target_bytes(chunk_size: str | int | None) -> int:
    """Bytes that one task should read: the argument, or the setting ``sketch.chunk-size``.

    Examples
    --------
    >>> target_bytes("1MiB")
    1048576
    """
    return n_bytes("chunk_size", config.get("chunk-size") if chunk_size is None else chunk_size)


def n_bytes(name: str, value: Any) -> int:
    """Argument ``name``: a number of bytes of at least one, as a number or as text.

    Examples
    --------
    >>> n_bytes("memory_per_thread", "1.5kB"), n_bytes("bandwidth", 1e9)
    (1500, 1000000000)
    """
    try:
        size = -1 if isinstance(value, bool) else int(parse_bytes(value))
    except (AttributeError, OverflowError, TypeError, ValueError):
        size = -1
    if size < 1:
        raise InputError(f"{name}={value!r}: give bytes, a positive number or text like '64MiB'.")
    return size


def row_step(
    n_rows: int,
    stored_rows: int,
    row_bytes: int,
    chunk_size: str | int | None = None,
    *,
    grouped: bool = False,
) -> int:
    """Rows of one task: a whole multiple of the stored rows, near the target size.

    A stored chunk (a shard, where there are shards) is never split between tasks: each would read
    and decompress all of it. Where no size is asked for, small data is left in enough tasks to
    keep a cluster busy. Their number depends on the data alone, so that the merge order, and with
    it the bits of the result, are the same on every machine.

    Parameters
    ----------
    n_rows
        Rows in all.
    stored_rows
        Rows of one stored chunk or shard, ``>= 1``.
    row_bytes
        Bytes of one row in memory.
    chunk_size
        Target; see :func:`target_bytes`.
    grouped
        Whether there will be a sketch for each of many groups.

    Examples
    --------
    >>> row_step(10**9, 1000, 48, "1MiB")
    21000
    """
    target = target_bytes(chunk_size)
    if chunk_size is None:
        tasks = GROUPED_TASKS if grouped else BUSY_TASKS
        target = min(target, max(n_rows * row_bytes // tasks, SMALL_TASK))
    return stored_rows * max(1, target // max(1, stored_rows * row_bytes))
