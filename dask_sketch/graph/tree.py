"""One fused task for each chunk, and a tree of merges: the shape of every computation here."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.bag as db
import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.sources.bags import blocks_of_partition
from dask_sketch.sources.samples import Samples, chunk_label

Chunk = Callable[..., Any]  # (block, weights, label, **arguments) -> partial result
Merge = Callable[[list[Any]], Any]


def reduce_samples(
    samples: Samples,
    chunk: Chunk,
    merge: Merge,
    *,
    split_every: int,
    name: str,
    arguments: dict[str, Any] | None = None,
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

    Returns
    -------
    collection
        A Dask collection with one result: an object array of no dimensions, or a bag item.

    Raises
    ------
    InputError
        If ``split_every`` is under 2.
    """
    require_fan_in(split_every)
    reduce = _reduce_bag if samples.is_bag else _reduce_array
    return reduce(samples, chunk, merge, int(split_every), name, arguments or {})


def require_fan_in(split_every: Any) -> None:
    """Raise unless ``split_every`` is a whole number of at least 2."""
    if not isinstance(split_every, (int, np.integer)) or split_every < 2:
        raise InputError(f"split_every={split_every!r}: give a whole number of at least 2.")


def _reduce_array(
    samples: Samples, chunk: Chunk, merge: Merge, split_every: int, name: str, arguments: Any
) -> da.Array:
    blocks = samples.blocks
    assert isinstance(blocks, da.Array)
    weights = [] if samples.weights is None else [samples.weights]
    # Features in one chunk keep their axis, which leaves this call without a contraction, so that
    # Dask fuses it with the reading before and the reduction after. Feature chunks are joined here,
    # row block by row block.
    join = blocks.numblocks[-1] > 1
    kept = blocks.numblocks[:-1] if join else blocks.numblocks
    parts = da.map_blocks(
        _chunk_of_array,
        blocks,
        *weights,
        drop_axis=blocks.ndim - 1 if join else (),
        chunks=tuple((1,) * n for n in kept),
        dtype=object,
        meta=np.empty((0,) * len(kept), dtype=object),
        token=name,
        chunk=chunk,
        label=samples.label,
        weight_column=samples.weight_column,
        ndim=len(kept),
        arguments=arguments,
    )
    if sum(n > 1 for n in kept) > 1:
        # one axis of parts, so that the fan-in holds: over k axes it is at least 2**k
        parts = parts.reshape(-1, merge_chunks=False)
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


def _chunk_of_array(
    block: np.ndarray[Any, Any],
    weights: np.ndarray[Any, Any] | None = None,
    *,
    chunk: Chunk,
    label: str,
    weight_column: bool,
    ndim: int,
    arguments: dict[str, Any],
    block_id: tuple[int, ...] = (),
) -> np.ndarray[Any, Any]:
    if weight_column:
        block, weights = block[..., :-1], block[..., -1]
    elif weights is not None:
        weights = weights[..., 0]
    place = block_id[: block.ndim - 1]
    result = np.empty((1,) * ndim, dtype=object)
    result[(0,) * ndim] = chunk(block, weights, chunk_label(label, place), **arguments)
    return result


def _keep(part: Any, axis: Any = None, keepdims: Any = None) -> Any:
    return part


class _MergeBlocks:
    """Merges nested lists of one-element object arrays, as ``da.reduction`` hands them over."""

    def __init__(self, merge: Merge):
        self.merge = merge

    def __call__(self, parts: Any, axis: Any = None, keepdims: bool = True) -> Any:
        flat = list(_flatten(parts))
        ndim = flat[0].ndim if keepdims else 0
        result = np.empty((1,) * ndim, dtype=object)
        result[(0,) * ndim] = self.merge([part.item() for part in flat])
        return result


def _flatten(parts: Any) -> Any:
    if isinstance(parts, list):
        return itertools.chain.from_iterable(map(_flatten, parts))
    return [parts]


def _reduce_bag(
    samples: Samples, chunk: Chunk, merge: Merge, split_every: int, name: str, arguments: Any
) -> db.Item:
    bag = samples.blocks
    assert not isinstance(bag, da.Array)
    numbers = db.from_sequence(range(bag.npartitions), npartitions=bag.npartitions)
    others = {} if samples.weights is None else {"weights": samples.weights}
    parts = bag.map_partitions(
        _chunk_of_bag,
        numbers=numbers,
        token=name,
        chunk=chunk,
        merge=merge,
        label=samples.label,
        fields=samples.record_fields,
        weight_field=samples.weight_field,
        arguments=arguments,
        **others,
    )
    return parts.reduction(
        _MergePartials(merge), _MergePartials(merge), split_every=split_every, name=name
    )


def _chunk_of_bag(
    items: Any,
    weights: Any = None,
    *,
    numbers: Any,
    chunk: Chunk,
    merge: Merge,
    label: str,
    fields: Any,
    weight_field: Any,
    arguments: dict[str, Any],
) -> list[Any]:
    name = chunk_label(label, tuple(numbers))
    partial: list[Any] = []
    seen = 0
    for block, share in blocks_of_partition(items, weights, fields, weight_field, name):
        place = f"{name}, from row {seen}" if seen else name
        # merged as they come, so that one block at a time is held
        partial = [merge([*partial, chunk(block, share, place, **arguments)])]
        seen += len(block)
    return partial


class _MergePartials:
    """Merges what the partitions of a bag gave."""

    def __init__(self, merge: Merge):
        self.merge = merge

    def __call__(self, parts: Any) -> Any:
        flat = [p for part in parts for p in (part if isinstance(part, _Merged) else [part])]
        return _Merged([self.merge(flat)] if flat else [])


class _Merged(list):  # type: ignore[type-arg]
    """At most one partial result; none for a partition without rows."""
