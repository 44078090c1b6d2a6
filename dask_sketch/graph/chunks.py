"""What a function gives for each chunk, lazily: reading and the function are one task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import dask.array as da
import dask.bag as db
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from dask_sketch.sources.bag import Block, Fields, blocks_of_partition
from dask_sketch.sources.group_labels import Labelled
from dask_sketch.sources.samples import Samples, chunk_label

# (block, weights, label, **arguments) -> result; one that takes labels of groups gets them as
# the argument `groups`, with one axis
Chunk = Callable[..., Any]


def parts_of_array(
    samples: Samples,
    chunk: Chunk,
    name: str,
    arguments: dict[str, Any],
    chosen: Sequence[int] | None,
    *,
    grouped: bool = False,
) -> da.Array:
    """What ``chunk`` gives for each chunk of an array: object arrays of one element.

    Parameters
    ----------
    samples
        The input, no bag.
    chunk
        Called on the worker as ``chunk(block, weights, label, **arguments)``.
    name
        Name of the tasks.
    arguments
        Keyword arguments of ``chunk``.
    chosen
        Numbers of chunks, ascending; all of them if it is none.
    grouped
        Whether ``chunk`` takes the labels of groups.
    """
    blocks = samples.blocks
    assert isinstance(blocks, da.Array)
    labels = None if samples.groups is None else samples.groups.labels
    beside = {"weights": samples.weights, "groups": labels}
    first: tuple[int, ...] = (0,) * (blocks.ndim - 1)
    if chosen is not None and samples.cut is not None:
        span = range(chosen[0], chosen[-1] + 1)
        (blocks, beside["weights"], beside["groups"]), first = samples.cut(span), (span.start,)
        chosen = None if len(span) == len(chosen) else [i - span.start for i in chosen]
    elif chosen is not None and len(chosen) == 1:
        first = tuple(map(int, np.unravel_index(chosen[0], blocks.numblocks[:-1])))
        beside = {key: _alone(array, first) for key, array in beside.items()}
        blocks, chosen = _alone(blocks, first), None
    if not grouped:
        beside["groups"] = None
    given = {key: array for key, array in beside.items() if array is not None}
    # Features in one chunk keep their axis, which leaves this call without a contraction, so that
    # Dask fuses it with the reading before and the reduction after. Feature chunks are joined here,
    # row block by row block.
    join = blocks.numblocks[-1] > 1
    kept = blocks.numblocks[:-1] if join else blocks.numblocks
    parts = da.map_blocks(
        _chunk_of_array,
        blocks,
        *given.values(),
        drop_axis=blocks.ndim - 1 if join else (),
        chunks=tuple(map(_ones, kept)),
        dtype=object,
        meta=np.empty((0,) * len(kept), dtype=object),
        token=name,
        chunk=chunk,
        beside=tuple(given),
        label=samples.label,
        weight_column=samples.weight_column,
        grouped=grouped,
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
    # labels have a single block along an axis on which they do not vary
    place = tuple(min(i, n - 1) for i, n in zip(place, array.numblocks, strict=False))
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
    block: Any,
    *others: np.ndarray[Any, Any],
    chunk: Chunk,
    beside: tuple[str, ...],
    label: str,
    weight_column: bool,
    grouped: bool,
    ndim: int,
    first: tuple[int, ...],
    arguments: dict[str, Any],
    block_id: tuple[int, ...] = (),
) -> np.ndarray[Any, Any]:
    given = {name: array[..., 0] for name, array in zip(beside, others, strict=True)}
    weights, groups = given.get("weights"), given.get("groups")
    if isinstance(block, Labelled):
        block, groups = block
    if weight_column:
        block, weights = block[..., :-1], block[..., -1]
    if grouped:
        if isinstance(groups, np.ndarray):
            groups = np.broadcast_to(groups, block.shape[:-1]).reshape(-1)
        arguments = {**arguments, "groups": groups}
    place = tuple(a + b for a, b in zip(first, block_id, strict=False))
    result = np.empty((1,) * ndim, dtype=object)
    result[(0,) * ndim] = chunk(block, weights, chunk_label(label, place), **arguments)
    return result


def parts_of_bag(
    samples: Samples,
    function: Callable[..., Any],
    name: str,
    chosen: Sequence[int] | None,
    **arguments: Any,
) -> db.Bag:
    """What ``function`` makes of each partition of a bag.

    Parameters
    ----------
    samples
        The input, a bag.
    function
        Takes what :func:`blocks_of_bag` takes, and the arguments.
    name
        Name of the tasks.
    chosen
        Numbers of partitions, ascending; all of them if it is none.
    arguments
        Further keyword arguments of the function.
    """
    bag = samples.blocks
    assert not isinstance(bag, da.Array)
    labels = None if samples.groups is None else samples.groups.labels
    others = {"weights": samples.weights, "groups": labels}
    given = {key: other for key, other in others.items() if other is not None}
    places = range(bag.npartitions) if chosen is None else chosen
    if chosen is not None:
        bag = _partitions(bag, chosen)
        given = {key: _partitions(other, chosen) for key, other in given.items()}
    numbers = db.from_sequence(places, npartitions=len(places))
    return bag.map_partitions(
        function,
        numbers=numbers,
        token=name,
        label=samples.label,
        fields=fields_of(samples),
        **arguments,
        **given,
    )


def fields_of(samples: Samples) -> Fields:
    """Names of the fields of records, in a bag of dictionaries."""
    group = None if samples.groups is None else samples.groups.field
    return Fields(samples.record_fields, samples.weight_field, group)


def _partitions(bag: Any, chosen: Sequence[int]) -> db.Bag:
    """Some partitions of a bag."""
    name = f"partitions-{tokenize(bag.name, chosen)}"
    layer: dict[Any, Any] = {(name, i): (bag.name, number) for i, number in enumerate(chosen)}
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[bag])
    return db.Bag(graph, name, len(chosen))


def blocks_of_bag(
    items: Any,
    weights: Any = None,
    groups: Any = None,
    *,
    numbers: Any,
    label: str,
    fields: Fields,
) -> Iterator[tuple[Block, str]]:
    """Blocks of rows of one partition of a bag, and their names."""
    name = chunk_label(label, tuple(numbers))
    seen = 0
    for block in blocks_of_partition(items, weights, groups, fields, name):
        yield block, f"{name}, from row {seen}" if seen else name
        seen += len(block.rows)
