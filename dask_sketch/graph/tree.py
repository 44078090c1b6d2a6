"""One fused task for each chunk, and a tree of merges: the shape of every computation here."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import dask.array as da
import dask.bag as db
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

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
    chosen: range | None = None,
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
    return reduce(samples, chunk, merge, int(split_every), name, arguments or {}, chosen)


def unwrap(result: Any) -> Any:
    """The partial result in what such a collection computes to; ``None`` if there is none."""
    while isinstance(result, list) or (
        isinstance(result, np.ndarray) and result.dtype == object and result.ndim == 0
    ):
        if isinstance(result, list) and not result:
            return None
        result = result.item() if isinstance(result, np.ndarray) else result[0]
    return result


def require_fan_in(split_every: Any) -> None:
    """Raise unless ``split_every`` is a whole number of at least 2."""
    if not isinstance(split_every, (int, np.integer)) or split_every < 2:
        raise InputError(f"split_every={split_every!r}: give a whole number of at least 2.")


def _reduce_array(
    samples: Samples,
    chunk: Chunk,
    merge: Merge,
    split_every: int,
    name: str,
    arguments: Any,
    chosen: range | None,
) -> da.Array:
    blocks, weights = samples.blocks, samples.weights
    assert isinstance(blocks, da.Array)
    first: tuple[int, ...] = (0,) * (blocks.ndim - 1)
    if chosen is not None and samples.cut is not None:
        (blocks, weights), first, chosen = samples.cut(chosen), (chosen.start,), None
    elif chosen is not None and len(chosen) == 1:
        first = tuple(map(int, np.unravel_index(chosen.start, blocks.numblocks[:-1])))
        blocks, weights, chosen = _alone(blocks, first), _alone(weights, first), None
    # Features in one chunk keep their axis, which leaves this call without a contraction, so that
    # Dask fuses it with the reading before and the reduction after. Feature chunks are joined here,
    # row block by row block.
    join = blocks.numblocks[-1] > 1
    kept = blocks.numblocks[:-1] if join else blocks.numblocks
    parts = da.map_blocks(
        _chunk_of_array,
        blocks,
        *([] if weights is None else [weights]),
        drop_axis=blocks.ndim - 1 if join else (),
        chunks=tuple(map(_ones, kept)),
        dtype=object,
        meta=np.empty((0,) * len(kept), dtype=object),
        token=name,
        chunk=chunk,
        label=samples.label,
        weight_column=samples.weight_column,
        ndim=len(kept),
        first=first,
        arguments=arguments,
    )
    if chosen is not None or sum(n > 1 for n in kept) > 1:
        # one axis of parts, so that the fan-in holds: over k axes it is at least 2**k
        parts = _in_a_row(parts, name, range(int(np.prod(kept))) if chosen is None else chosen)
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


@lru_cache(maxsize=8)
def _ones(n: int) -> tuple[int, ...]:
    """One tuple for all batches: Dask keeps sums of chunk sizes, for each tuple that it sees."""
    return (1,) * n


def _alone(array: Any, place: tuple[int, ...]) -> Any:
    """One block of the leading axes; `Array.blocks` would list the keys of all blocks first."""
    if array is None:
        return None
    name = f"chunk-{tokenize(array.name, place)}"
    zeros = (0,) * len(place)
    layer: dict[Any, Any] = {
        (name, *zeros, i): (array.name, *place, i) for i in range(array.numblocks[-1])
    }
    sizes = ((along[i],) for along, i in zip(array.chunks, place, strict=False))
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[array])
    return da.Array(graph, name, chunks=(*sizes, array.chunks[-1]), meta=array)


def _in_a_row(parts: Any, name: str, chosen: range) -> da.Array:
    """Some of the parts, on one axis."""
    place = np.unravel_index(chosen, parts.numblocks)
    keys = [(parts.name, *map(int, index)) for index in zip(*place, strict=True)]
    # With this name, and not that of `Array.blocks`, Dask fuses the choice with the task that it
    # chooses. Under another it would leave an alias for each, which is a task for the scheduler.
    row = f"{name}-{tokenize(parts.name, chosen)}"
    layer: dict[Any, Any] = {(row, i): key for i, key in enumerate(keys)}
    graph = HighLevelGraph.from_collections(row, layer, dependencies=[parts])
    meta = np.empty((0,), dtype=object)
    return da.Array(graph, row, chunks=((1,) * len(keys),), dtype=object, meta=meta)


def _chunk_of_array(
    block: np.ndarray[Any, Any],
    weights: np.ndarray[Any, Any] | None = None,
    *,
    chunk: Chunk,
    label: str,
    weight_column: bool,
    ndim: int,
    first: tuple[int, ...],
    arguments: dict[str, Any],
    block_id: tuple[int, ...] = (),
) -> np.ndarray[Any, Any]:
    if weight_column:
        block, weights = block[..., :-1], block[..., -1]
    elif weights is not None:
        weights = weights[..., 0]
    place = tuple(a + b for a, b in zip(first, block_id, strict=False))
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
    samples: Samples,
    chunk: Chunk,
    merge: Merge,
    split_every: int,
    name: str,
    arguments: Any,
    chosen: range | None,
) -> db.Item:
    bag, weights = samples.blocks, samples.weights
    assert not isinstance(bag, da.Array)
    places = range(bag.npartitions) if chosen is None else chosen
    if chosen is not None:
        bag = _partitions(bag, chosen)
        weights = None if weights is None else _partitions(weights, chosen)
    numbers = db.from_sequence(places, npartitions=len(places))
    others = {} if weights is None else {"weights": weights}
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


def _partitions(bag: Any, chosen: range) -> db.Bag:
    """Some partitions of a bag."""
    name = f"partitions-{tokenize(bag.name, chosen)}"
    layer: dict[Any, Any] = {(name, i): (bag.name, number) for i, number in enumerate(chosen)}
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[bag])
    return db.Bag(graph, name, len(chosen))


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
