"""One fused task for each chunk, and a tree of merges: the shape of every computation here."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.bag as db
import numpy as np

from dask_sketch.graph.chunks import Chunk, blocks_of_bag, parts_of_array, parts_of_bag
from dask_sketch.graph.telemetry import report_merge
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_integer

Merge = Callable[[list[Any]], Any]


def reduce_samples(
    samples: Samples,
    chunk: Chunk,
    merge: Merge,
    *,
    split_every: int,
    name: str,
    arguments: dict[str, Any] | None = None,
    chosen: range | None = None,
    grouped: bool = False,
) -> Any:
    """Lazily apply ``chunk`` to every chunk and merge the results in a tree.

    Nothing here knows what a partial result is: a sketch, a pair of sums, a mapping from groups to
    sketches. Only public collections are used; reading, ``chunk`` and nothing else are one task.

    Parameters
    ----------
    samples
        The input.
    chunk
        Called as ``chunk(block, weights, label, **arguments)`` on the worker.
    merge
        Called with a list of at most ``split_every`` partial results.
    split_every
        Fan-in of the tree, ``>= 2``.
    name
        Name of the tasks on the dashboard.
    arguments
        Keyword arguments of ``chunk``; a Dask Delayed among them is sent once, not per task.
    chosen
        Numbers of the chunks, one after the other; all of them by default. Nothing is built for
        the others where the source knows how to cut itself.
    grouped
        Whether ``chunk`` takes the labels of groups, as ``groups``. They are left out otherwise.

    Returns
    -------
    collection
        A Dask collection with one result: an object array of no dimensions, or a bag item.

    Raises
    ------
    InputError
        If ``split_every`` is under 2.
    """
    split_every = require_integer("split_every", split_every, 2)
    reduce = _reduce_bag if samples.is_bag else _reduce_array
    return reduce(samples, chunk, merge, split_every, name, arguments or {}, chosen, grouped)


def unwrap(result: Any) -> Any:
    """The partial result in what such a collection computes to; ``None`` if there is none."""
    while isinstance(result, list) or (
        isinstance(result, np.ndarray) and result.dtype == object and result.ndim == 0
    ):
        if isinstance(result, list) and not result:
            return None
        result = result.item() if isinstance(result, np.ndarray) else result[0]
    return result


def _reduce_array(
    samples: Samples,
    chunk: Chunk,
    merge: Merge,
    split_every: int,
    name: str,
    arguments: Any,
    chosen: range | None,
    grouped: bool,
) -> da.Array:
    parts = parts_of_array(samples, chunk, name, arguments, chosen, grouped=grouped)
    return da.reduction(
        parts,
        chunk=_keep,
        combine=_MergeBlocks(merge),
        aggregate=_MergeBlocks(merge),
        axis=tuple(range(parts.ndim)),
        split_every={axis: split_every if n > 1 else 1 for axis, n in enumerate(parts.numblocks)},
        concatenate=False,
        dtype=object,
        meta=np.empty((), dtype=object),
        name=name,
    )


def _keep(part: Any, axis: Any = None, keepdims: Any = None) -> Any:
    return part


class _MergeBlocks:
    """Merges nested lists of one-element object arrays, as ``da.reduction`` hands them over."""

    def __init__(self, merge: Merge):
        self.merge = merge

    def __call__(self, parts: Any, axis: Any = None, keepdims: bool = True) -> Any:
        flat = list(_flatten(parts))
        report_merge(len(flat))
        ndim = flat[0].ndim if keepdims else 0
        result = np.empty((1,) * ndim, dtype=object)
        result[(0,) * ndim] = self.merge([part.item() for part in flat])
        return result


def _flatten(parts: Any) -> Any:
    if isinstance(parts, list):
        return itertools.chain.from_iterable(map(_flatten, parts))
    return [parts]


def _reduce_bag(
    samples: Samples,
    chunk: Chunk,
    merge: Merge,
    split_every: int,
    name: str,
    arguments: Any,
    chosen: range | None,
    grouped: bool,
) -> db.Item:
    parts = parts_of_bag(
        samples,
        _chunk_of_bag,
        name,
        chosen,
        chunk=chunk,
        merge=merge,
        arguments=arguments,
        grouped=grouped,
    )
    return parts.reduction(
        _MergePartials(merge), _MergePartials(merge), split_every=split_every, name=name
    )


def _chunk_of_bag(
    items: Any,
    *,
    chunk: Chunk,
    merge: Merge,
    arguments: dict[str, Any],
    grouped: bool,
    **place: Any,
) -> list[Any]:
    partial: list[Any] = []
    for block, label in blocks_of_bag(items, **place):
        given = {**arguments, "groups": block.groups} if grouped else arguments
        # merged as they come, so that one block at a time is held
        partial = [merge([*partial, chunk(block.rows, block.weights, label, **given)])]
    return partial


class _MergePartials:
    """Merges what the partitions of a bag gave."""

    def __init__(self, merge: Merge):
        self.merge = merge

    def __call__(self, parts: Any) -> Any:
        flat = [p for part in parts for p in (part if isinstance(part, _Merged) else [part])]
        report_merge(len(flat))
        return _Merged([self.merge(flat)] if flat else [])


class _Merged(list):  # type: ignore[type-arg]
    """At most one partial result; none for a partition without rows."""
