"""Apply a function to each chunk, lazily: reading and the function are one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
from dask.base import tokenize
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.optimization import cull

from dask_sketch.graph.reduction import ChunkFunction, Combine, apply_to_block, reduce_blocks
from dask_sketch.sources.bag import Block, Fields, blocks_of_partition
from dask_sketch.sources.group_labels import Labelled
from dask_sketch.sources.samples import Samples, chunk_label


def map_chunks(
    samples: Samples,
    chunk: ChunkFunction | Delayed,
    name: str,
    chosen: Sequence[int] | None = None,
    *,
    with_groups: bool = False,
    with_numbers: bool = False,
    with_columns: bool = False,
    combine: Combine | None = None,
) -> da.Array | db.Bag:
    """Apply a function to the blocks of rows of each chunk.

    Parameters
    ----------
    samples
        Samples to read.
    chunk
        Function of one block of rows, called on a worker as ``chunk(rows, weights, label)``, and
        with the labels of the rows as ``groups`` if ``with_groups``. If it is a Delayed, it is sent
        to each worker once, and not with each task.
    name
        Name of the tasks.
    chosen
        Numbers of chunks, ascending; all chunks by default. For sources with ``cut``, no graph is
        built for the other chunks.
    with_groups
        Whether the function takes the labels of groups.
    with_numbers
        Whether the function takes the numbers of the chunk and of its first row.
    with_columns
        Whether the function takes the names of the columns of tables in a bag.
    combine
        Function that combines the results of the blocks of one partition of a bag one by one, so
        that one block is in memory at a time. A chunk of an array is one block.

    Returns
    -------
    results
        Object array of one element per chunk. For a bag, a bag with at most one result in each
        partition; without ``combine`` its partitions are iterators over the results of the blocks.
    """
    if samples.is_bag:
        options = {
            "chunk": chunk, "combine": combine,
            "with_groups": with_groups, "with_numbers": with_numbers, "with_columns": with_columns,
        }  # fmt: skip
        return _map_partitions(samples, name, chosen, options)
    return _map_blocks(samples, chunk, name, chosen, with_groups, with_numbers)


# Chunks of Dask arrays.


def _map_blocks(
    samples: Samples,
    chunk: ChunkFunction | Delayed,
    name: str,
    chosen: Sequence[int] | None,
    with_groups: bool,
    with_numbers: bool,
) -> da.Array:
    blocks = samples.blocks
    assert isinstance(blocks, da.Array)
    labels = None if samples.groups is None else samples.groups.labels
    beside = {"weights": samples.weights, "groups": labels}
    first: tuple[int, ...] = (0,) * (blocks.ndim - 1)
    step = _rows_of_each(blocks.chunks[0]) if blocks.ndim == 2 else 0
    if chosen is not None and samples.cut is not None:
        span = range(chosen[0], chosen[-1] + 1)
        (blocks, beside["weights"], beside["groups"]), first = samples.cut(span), (span.start,)
        chosen = None if len(span) == len(chosen) else [i - span.start for i in chosen]
    elif chosen is not None and len(chosen) == 1:
        first = tuple(map(int, np.unravel_index(chosen[0], blocks.numblocks[:-1])))
        beside = {key: _single_block(array, first) for key, array in beside.items()}
        blocks, chosen = _single_block(blocks, first), None
    if not with_groups:
        beside["groups"] = None
    arrays = {key: array for key, array in beside.items() if array is not None}
    # features in one chunk keep their axis: without a contraction, Dask fuses this call with the
    # reading before and the reduction after. Several chunks of features are joined here.
    join = blocks.numblocks[-1] > 1
    numblocks = blocks.numblocks[:-1] if join else blocks.numblocks
    results = da.map_blocks(
        _chunk_of_array,
        blocks,
        *arrays.values(),
        drop_axis=blocks.ndim - 1 if join else (),
        chunks=tuple(map(_ones, numblocks)),
        dtype=object,
        meta=np.empty((0,) * len(numblocks), dtype=object),
        token=name,
        chunk=chunk,
        beside=tuple(arrays),
        label=samples.label,
        weight_column=samples.weight_column,
        grouped=with_groups,
        numbered=with_numbers,
        ndim=len(numblocks),
        first=first,
        step=step,
    )
    if chosen is not None or sum(n > 1 for n in numblocks) > 1:
        # on one axis of results the fan-in holds; over k axes it would be at least 2**k
        every = range(int(np.prod(numblocks)))
        results = _in_a_row(results, name, every if chosen is None else chosen)
    return results


def _rows_of_each(sizes: tuple[int, ...]) -> int:
    """Number of rows of each chunk except the last; 0 if the numbers differ or are unknown."""
    same = sizes.count(sizes[0]) + (sizes[-1] != sizes[0]) == len(sizes)
    return int(sizes[0]) if same and sizes[0] > 0 else 0


def chunk_title(samples: Samples, number: int) -> str:
    """Name of a chunk in messages, as in those of its own task.

    Parameters
    ----------
    samples
        Samples.
    number
        Number of the chunk, in the range of ``samples.n_chunks``.

    Examples
    --------
    >>> from dask_sketch.sources.open import open_samples
    >>> chunk_title(open_samples(da.ones((6, 2), chunks=(2, 2), name="x")), 1)
    'chunk 1 of the Dask array x, from row 2'
    """
    blocks = samples.blocks
    if not isinstance(blocks, da.Array):
        return chunk_label(samples.label, (number,))
    step = _rows_of_each(blocks.chunks[0]) if blocks.ndim == 2 else 0
    index = tuple(map(int, np.unravel_index(number, blocks.numblocks[:-1])))
    return chunk_label(samples.label, index, step)


@lru_cache(maxsize=8)
def _ones(n: int) -> tuple[int, ...]:
    """One tuple for all batches, because Dask keeps sums of chunk sizes for each new tuple."""
    return (1,) * n


def _single_block(array: Any, index: tuple[int, ...]) -> Any:
    """One block of the leading axes; `Array.blocks` would list the keys of all blocks first."""
    if array is None:
        return None
    # labels have a single block along an axis on which they do not vary
    index = tuple(min(i, n - 1) for i, n in zip(index, array.numblocks, strict=False))
    name = f"chunk-{tokenize(array.name, index)}"
    zeros = (0,) * len(index)
    layer: dict[Any, Any] = {
        (name, *zeros, i): (array.name, *index, i) for i in range(array.numblocks[-1])
    }
    sizes = ((along[i],) for along, i in zip(array.chunks, index, strict=False))
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[array])
    return da.Array(graph, name, chunks=(*sizes, array.chunks[-1]), meta=array)


def _in_a_row(results: Any, name: str, chosen: Sequence[int]) -> da.Array:
    """Some of the results, on one axis."""
    indices = np.unravel_index(chosen, results.numblocks)
    keys = [(results.name, *map(int, index)) for index in zip(*indices, strict=True)]
    # with this name, other than with the name of `Array.blocks`, Dask fuses the choice with the
    # chosen task; otherwise each choice would be an alias, which is a task for the scheduler
    row = f"{name}-{tokenize(results.name, chosen)}"
    layer: dict[Any, Any] = {(row, i): key for i, key in enumerate(keys)}
    graph = HighLevelGraph.from_collections(row, layer, dependencies=[results])
    meta = np.empty((0,), dtype=object)
    return da.Array(graph, row, chunks=((1,) * len(keys),), dtype=object, meta=meta)


def _chunk_of_array(
    rows: Any,
    *others: np.ndarray[Any, Any],
    chunk: ChunkFunction,
    beside: tuple[str, ...],
    label: str,
    weight_column: bool,
    grouped: bool,
    numbered: bool,
    ndim: int,
    first: tuple[int, ...],
    step: int,
    block_id: tuple[int, ...] = (),
) -> np.ndarray[Any, Any]:
    arrays = {name: array[..., 0] for name, array in zip(beside, others, strict=True)}
    weights, groups = arrays.get("weights"), arrays.get("groups")
    if isinstance(rows, Labelled):
        rows, groups = rows
    if weight_column:
        rows, weights = rows[..., :-1], rows[..., -1]
    if isinstance(groups, np.ndarray):
        groups = np.broadcast_to(groups, rows.shape[:-1]).reshape(-1)
    number = tuple(a + b for a, b in zip(first, block_id, strict=False))
    result = np.empty((1,) * ndim, dtype=object)
    options: dict[str, Any] = {"groups": groups} if grouped else {}
    if numbered:
        options |= {"number": number, "row": 0}
    result[(0,) * ndim] = chunk(rows, weights, chunk_label(label, number, step), **options)
    return result


# Partitions of Dask bags.


def _map_partitions(
    samples: Samples, name: str, chosen: Sequence[int] | None, options: dict[str, Any]
) -> db.Bag:
    bag = samples.blocks
    assert not isinstance(bag, da.Array)
    labels = None if samples.groups is None else samples.groups.labels
    others = {"weights": samples.weights, "groups": labels}
    collections = {key: collection for key, collection in others.items() if collection is not None}
    every = range(bag.npartitions) if chosen is None else chosen
    if chosen is not None:
        bag = _partitions(bag, chosen)
        collections = {
            key: _partitions(collection, chosen) for key, collection in collections.items()
        }
    numbers = db.from_sequence(every, npartitions=len(every))
    return bag.map_partitions(
        _chunk_of_bag,
        numbers=numbers,
        token=name,
        label=samples.label,
        fields=fields_of(samples),
        **options,
        **collections,
    )


def fields_of(samples: Samples) -> Fields:
    """Names of the fields of records, in a bag of dictionaries."""
    group = None if samples.groups is None else samples.groups.field
    return Fields(samples.record_fields, samples.weight_field, group, samples.expected_names)


def _partitions(bag: Any, chosen: Sequence[int]) -> db.Bag:
    """Some partitions of a bag."""
    name = f"partitions-{tokenize(bag.name, chosen)}"
    layer: dict[Any, Any] = {(name, i): (bag.name, number) for i, number in enumerate(chosen)}
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[bag])
    return db.Bag(graph, name, len(chosen))


def _chunk_of_bag(
    items: Any,
    weights: Any = None,
    groups: Any = None,
    *,
    numbers: Any,
    label: str,
    fields: Fields,
    with_groups: bool,
    with_numbers: bool,
    with_columns: bool,
    chunk: ChunkFunction,
    combine: Combine | None,
) -> Any:
    number = tuple(numbers)
    name = chunk_label(label, number)
    blocks = blocks_of_partition(items, weights, groups, fields, name)
    if not with_groups:
        blocks = (block._replace(groups=None) for block in blocks)
    if not with_columns:
        blocks = (block._replace(columns=None) for block in blocks)
    named = _named(blocks, name, number if with_numbers else None)
    if combine is None:
        return (apply_to_block(chunk, *block) for block in named)
    combined = reduce_blocks(named, chunk, combine)
    return [] if combined is None else [combined]


def _named(
    blocks: Iterator[Block], name: str, number: tuple[int, ...] | None
) -> Iterator[tuple[Block, str]]:
    seen = 0
    for block in blocks:
        numbered = block._replace(number=number, row=seen)
        yield numbered, f"{name}, from row {seen}" if seen else name
        seen += len(block.rows)


# Graphs that read one chunk each, and run independently of each other.


@dataclass(frozen=True)
class ChunkGraph:
    """Graph that reads one chunk, and depends on no other graph.

    Dask passes on an object unchanged, while it would take a dictionary for tasks.

    Attributes
    ----------
    number
        Number of the chunk.
    graph
        Graph, of one task if the source can be fused into one.
    key
        Key of the blocks in the graph.
    identity
        Numbers that identify the chunk, for a computation that uses them; otherwise None.
    """

    number: int
    graph: dict[Any, Any]
    key: Any
    identity: tuple[int, ...] | None = None

    def blocks(self) -> Iterator[tuple[Block, str]]:
        """Read the chunk in this process, as blocks of rows with their names."""
        result = dask.get(self.graph, self.key)
        return iter([result.item()] if isinstance(result, np.ndarray) else result)


def _as_block(rows: Any, weights: Any, label: str, groups: Any = None) -> tuple[Block, str]:
    return Block(rows, weights, groups), label


def chunk_graphs(
    samples: Samples, pages: Sequence[Sequence[int]], *, with_groups: bool = False
) -> list[ChunkGraph]:
    """Make graphs that read single chunks.

    Parameters
    ----------
    samples
        Samples to read.
    pages
        Numbers of chunks, ascending within each page. The chunks of a page are cut out of the
        source together, with the chunks between them.
    with_groups
        Whether the blocks hold the labels of groups.

    Returns
    -------
    graphs
        One graph for each chunk, in the order of the pages.
    """
    collections = [
        map_chunks(samples, _as_block, "read", page, with_groups=with_groups)
        for page in pages
        if len(page)
    ]
    optimised = dask.optimize(*collections)
    graph: dict[Any, Any] = {}
    for collection in optimised:
        graph.update(collection.__dask_graph__())
    keys = [key for collection in optimised for key in flatten(collection.__dask_keys__())]
    numbers = [number for page in pages for number in page]
    return [
        ChunkGraph(number, cull(graph, [key])[0], key)
        for number, key in zip(numbers, keys, strict=True)
    ]
