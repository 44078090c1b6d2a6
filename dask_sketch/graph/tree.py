"""Combine the partial results of all chunks in a tree of bounded fan-in."""

from __future__ import annotations

import itertools
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_sketch import config
from dask_sketch.errors import InputError
from dask_sketch.graph.chunks import map_chunks
from dask_sketch.graph.reduction import Combine, Reduction
from dask_sketch.graph.telemetry import report_merge
from dask_sketch.sources.samples import Samples

SMALL_FUNCTION = 1536  # bytes of a chunk function with its constants; larger ones are sent once


def reduce_samples(
    samples: Samples, reduction: Reduction, split_every: int, chosen: range | None = None
) -> Any:
    """Lazily apply a reduction to every chunk and combine the results in a tree.

    Only public collections are used. Reading a chunk and ``reduction.chunk`` are one task.

    Parameters
    ----------
    samples
        Samples to read.
    reduction
        Functions to apply, except ``finalize``.
    split_every
        Fan-in of the tree, ``>= 2``.
    chosen
        Numbers of the chunks; all chunks by default.

    Returns
    -------
    collection
        Dask collection with one result: an object array without axes, or a bag item. See
        :func:`unwrap`.
    """
    name, combine = reduction.name, reduction.combine_on_worker
    parts: Any = map_chunks(
        samples,
        _sent_once(reduction),
        name,
        chosen,
        with_groups=reduction.uses_groups,
        with_numbers=reduction.uses_numbers,
        with_columns=reduction.uses_columns,
        combine=combine,
    )
    if samples.is_bag:
        merge = _MergePartials(combine)
        return parts.reduction(merge, merge, split_every=split_every, name=name)
    merge_blocks = _MergeBlocks(combine)
    return da.reduction(
        parts,
        chunk=_keep,
        combine=merge_blocks,
        aggregate=merge_blocks,
        axis=tuple(range(parts.ndim)),
        split_every={axis: split_every if n > 1 else 1 for axis, n in enumerate(parts.numblocks)},
        concatenate=False,
        dtype=object,
        meta=np.empty((), dtype=object),
        name=name,
    )


def _sent_once(reduction: Reduction) -> Any:
    """Chunk function; if its constants are large, as a task that is sent once to each worker."""
    chunk = reduction.chunk
    if len(cloudpickle.dumps(chunk)) <= SMALL_FUNCTION:
        return chunk
    return dask.delayed(chunk, name=f"{reduction.name}-shared-{tokenize(chunk)}", traverse=False)


def unwrap(result: Any) -> Any:
    """Extract the partial result from the computed result of :func:`reduce_samples`, or None."""
    while isinstance(result, list) or (
        isinstance(result, np.ndarray) and result.dtype == object and result.ndim == 0
    ):
        if isinstance(result, list) and not result:
            return None
        result = result.item() if isinstance(result, np.ndarray) else result[0]
    return result


def _keep(part: Any, axis: Any = None, keepdims: Any = None) -> Any:
    return part


class _MergeBlocks:
    """Combine nested lists of one-element object arrays, which ``da.reduction`` passes."""

    def __init__(self, combine: Combine):
        self.combine = combine

    def __call__(self, parts: Any, axis: Any = None, keepdims: bool = True) -> Any:
        flat = list(_flatten(parts))
        report_merge(len(flat))
        ndim = flat[0].ndim if keepdims else 0
        result = np.empty((1,) * ndim, dtype=object)
        result[(0,) * ndim] = self.combine([part.item() for part in flat])
        return result


def _flatten(parts: Any) -> Any:
    if isinstance(parts, list):
        return itertools.chain.from_iterable(map(_flatten, parts))
    return [parts]


class _MergePartials:
    """Combine the partial results of the partitions of a bag."""

    def __init__(self, combine: Combine):
        self.combine = combine

    def __call__(self, parts: Any) -> Any:
        flat = [p for part in parts for p in (part if isinstance(part, _Merged) else [part])]
        report_merge(len(flat))
        return _Merged([self.combine(flat)] if flat else [])


class _Merged(list):  # type: ignore[type-arg]
    """At most one partial result; none for a partition without rows."""


# Number of tasks, and batches of a size that a scheduler can handle.


def batch_chunks(n_chunks: int, split_every: int) -> int | None:
    """Number of chunks of one batch; ``None`` if all chunks fit in one graph.

    A batch has ``sketch.batch-tasks`` chunks. Merges are exact, so that batches of any size give
    the same bits as one graph.

    Parameters
    ----------
    n_chunks
        Number of all chunks.
    split_every
        Fan-in of the merges.

    Raises
    ------
    InputError
        If ``sketch.task-limit`` or ``sketch.batch-tasks`` is not a positive integer.

    Examples
    --------
    >>> batch_chunks(1000, 16), batch_chunks(10**6, 16), batch_chunks(10**6, 10)
    (None, 5000, 5000)
    """
    limit, batch_limit = (_positive(key) for key in ("task-limit", "batch-tasks"))
    if n_chunks + count_merges(n_chunks, split_every) <= limit:
        return None
    return batch_limit if batch_limit < n_chunks else None


def _positive(key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise InputError(f"sketch.{key} is {value!r}: set an integer of at least 1.")
    return value


def count_merges(n_chunks: int, split_every: int) -> int:
    """Number of merge tasks of a tree over ``n_chunks`` leaves; there is one even for one leaf.

    Examples
    --------
    >>> count_merges(40, 16), count_merges(1, 16)
    (4, 1)
    """
    total, width = 0, max(n_chunks, 1)
    while width > 1 or total == 0:
        width = -(-width // split_every)
        total += width
    return total
