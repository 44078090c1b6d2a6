"""Graphs that read single chunks, each by itself, to be run wherever and whenever it suits."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import dask
import numpy as np
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.optimization import cull

from dask_sketch.errors import InputError
from dask_sketch.graph.parts import blocks_of_bag, parts_of_array, parts_of_bag
from dask_sketch.sources.samples import Samples


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
        read = parts_of_bag(samples, blocks_of_bag, "read", chosen)
    else:
        read = parts_of_array(samples, _as_read, "read", {}, chosen)
    (optimised,) = dask.optimize(read)
    graph = dict(optimised.__dask_graph__())
    return [(cull(graph, [key])[0], key) for key in flatten(optimised.__dask_keys__())]


def blocks_read(result: Any) -> Iterator[tuple[Any, Any, str]]:
    """Blocks of rows, their weights or none, and their names, of one chunk that was read."""
    if isinstance(result, np.ndarray):
        return iter([result.item()])
    return ((block.rows, block.weights, label) for block, label in result)


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
