"""One fused task for each chunk, and a tree of merges: the shape of every computation here."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
from dask.base import tokenize
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.optimization import cull

from dask_sketch.errors import InputError
from dask_sketch.announcing import report_merge
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


def read_apart(samples: Samples, chosen: Sequence[int]) -> list[tuple[dict[Any, Any], Any]]:
    """Graphs that read some chunks, each by itself.

    Parameters
    ----------
    samples
        The input.
    chosen
        Numbers of the chunks, ascending.

    Returns
    -------
    graphs
        For each chunk a graph, of one task where the source can be fused into one, and its key. The
        key computes to what :func:`blocks_read` takes.
    """
    read: Any
    if samples.is_bag:
        read = _parts_of_bag(samples, _blocks_of_bag, "read", chosen)
    else:
        read = _parts_of_array(samples, _as_read, "read", {}, chosen)
    (optimised,) = dask.optimize(read)
    graph = dict(optimised.__dask_graph__())
    return [(cull(graph, [key])[0], key) for key in flatten(optimised.__dask_keys__())]


def blocks_read(result: Any) -> Iterator[tuple[Any, Any, str]]:
    """Blocks of rows, their weights or none, and their names, of one chunk that was read."""
    return iter([result.item()] if isinstance(result, np.ndarray) else result)


def _as_read(block: Any, weights: Any, label: str) -> tuple[Any, Any, str]:
    return block, weights, label


def require_apart(samples: Samples) -> None:
    """Raise for input that a cluster holds: :func:`read_apart` gives graphs that stand alone."""
    if "distributed" not in sys.modules:  # then nobody can have persisted anything
        return
    from distributed import futures_of

    collections: list[Any] = [x for x in (samples.blocks, samples.weights) if x is not None]
    for collection in collections:
        layers = HighLevelGraph.from_collections("", {}, [collection]).layers.values()
        # layers of another kind say how tasks are made, and hold none
        if any(futures_of(dict(layer)) for layer in layers if isinstance(layer, MaterializedLayer)):
            raise InputError(
                f"{samples.label} is held by a cluster, and can be lost with it: give what "
                "persist() was called on."
            )


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
    parts = _parts_of_array(samples, chunk, name, arguments, chosen)
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


def _parts_of_array(
    samples: Samples, chunk: Chunk, name: str, arguments: Any, chosen: Sequence[int] | None
) -> da.Array:
    """What ``chunk`` gives for each chunk: object arrays of one element."""
    blocks, weights = samples.blocks, samples.weights
    assert isinstance(blocks, da.Array)
    first: tuple[int, ...] = (0,) * (blocks.ndim - 1)
    if chosen is not None and samples.cut is not None:
        span = range(chosen[0], chosen[-1] + 1)
        (blocks, weights), first = samples.cut(span), (span.start,)
        chosen = None if len(span) == len(chosen) else [i - span.start for i in chosen]
    elif chosen is not None and len(chosen) == 1:
        first = tuple(map(int, np.unravel_index(chosen[0], blocks.numblocks[:-1])))
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
    return parts


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


def _in_a_row(parts: Any, name: str, chosen: Sequence[int]) -> da.Array:
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
) -> db.Item:
    parts = _parts_of_bag(
        samples, _chunk_of_bag, name, chosen, chunk=chunk, merge=merge, arguments=arguments
    )
    return parts.reduction(
        _MergePartials(merge), _MergePartials(merge), split_every=split_every, name=name
    )


def _parts_of_bag(
    samples: Samples,
    function: Callable[..., Any],
    name: str,
    chosen: Sequence[int] | None,
    **arguments: Any,
) -> db.Bag:
    """What ``function`` makes of each partition."""
    bag, weights = samples.blocks, samples.weights
    assert not isinstance(bag, da.Array)
    places = range(bag.npartitions) if chosen is None else chosen
    if chosen is not None:
        bag = _partitions(bag, chosen)
        weights = None if weights is None else _partitions(weights, chosen)
    numbers = db.from_sequence(places, npartitions=len(places))
    others = {} if weights is None else {"weights": weights}
    return bag.map_partitions(
        function,
        numbers=numbers,
        token=name,
        label=samples.label,
        fields=samples.record_fields,
        weight_field=samples.weight_field,
        **arguments,
        **others,
    )


def _partitions(bag: Any, chosen: Sequence[int]) -> db.Bag:
    """Some partitions of a bag."""
    name = f"partitions-{tokenize(bag.name, chosen)}"
    layer: dict[Any, Any] = {(name, i): (bag.name, number) for i, number in enumerate(chosen)}
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[bag])
    return db.Bag(graph, name, len(chosen))


def _chunk_of_bag(
    items: Any,
    weights: Any = None,
    *,
    chunk: Chunk,
    merge: Merge,
    arguments: dict[str, Any],
    **place: Any,
) -> list[Any]:
    partial: list[Any] = []
    for block, share, label in _blocks_of_bag(items, weights, **place):
        # merged as they come, so that one block at a time is held
        partial = [merge([*partial, chunk(block, share, label, **arguments)])]
    return partial


def _blocks_of_bag(
    items: Any, weights: Any = None, *, numbers: Any, label: str, fields: Any, weight_field: Any
) -> Iterator[tuple[Any, Any, str]]:
    name = chunk_label(label, tuple(numbers))
    seen = 0
    for block, share in blocks_of_partition(items, weights, fields, weight_field, name):
        yield block, share, f"{name}, from row {seen}" if seen else name
        seen += len(block)


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
