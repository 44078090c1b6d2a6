"""Lazy results of reductions, as Dask collections."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import dask
import dask.array as da
import dask.threaded
import numpy as np
from dask.base import DaskMethodsMixin, tokenize
from dask.delayed import Delayed

from dask_sketch import config
from dask_sketch.display.html import card, fields_table
from dask_sketch.display.progress import Show
from dask_sketch.display.text import describe
from dask_sketch.graph.chunks import chunk_title
from dask_sketch.graph.compute import (
    active_client,
    compute_in_batches,
    compute_together,
    start_pass,
)
from dask_sketch.graph.reduction import Reduction, of_same_columns, same
from dask_sketch.graph.tree import batch_chunks, reduce_samples, unwrap
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_integer


class LazyResult(DaskMethodsMixin):
    """Lazy result of a reduction: a Dask collection with one result.

    ``.compute()`` returns the result, ``.persist()`` starts the computation on a cluster,
    ``.visualize()`` draws the graph, and ``dask.compute(a, b)`` of two results of one source reads
    the source once. Only ``.compute()`` can run in batches, above ``sketch.task-limit`` tasks. As a
    collection, the result is one graph, which is built when it is first needed.

    Parameters
    ----------
    samples
        Samples to read.
    reduction
        Computation over the samples.
    split_every
        Maximum number of partial results that one task combines, ``>= 2``; the setting
        ``sketch.split-every`` by default.
    chosen
        Numbers of the chunks to read, in ascending order; all chunks by default.

    Raises
    ------
    InputError
        If ``split_every`` is not an integer of at least 2.
    """

    def __init__(
        self,
        samples: Samples,
        reduction: Reduction,
        split_every: int | None = None,
        chosen: range | None = None,
    ):
        fan_in = config.get("split-every") if split_every is None else split_every
        self.samples = samples
        known = samples.expected_names or samples.record_fields or reduction.uses_columns
        self.reduction = of_same_columns(reduction) if samples.is_bag and not known else reduction
        self.split_every = require_integer("split_every", fan_in, 2)
        self._chosen = chosen
        # whether persist or optimize made it, so that there is a graph already
        self._rebuilt = False

    @cached_property
    def _inner(self) -> Any:
        return reduce_samples(self.samples, self.reduction, self.split_every, self._chosen)

    @property
    def n_chunks(self) -> int:
        """Number of chunks to read."""
        return self.samples.n_chunks if self._chosen is None else len(self._chosen)

    def part(self, chosen: range) -> LazyResult:
        """Lazy partial result of some chunks, not finalised; ``None`` if they have no block."""
        partial = replace(self.reduction, finalize=same)
        return LazyResult(self.samples, partial, self.split_every, chosen)

    def chunk_of(self, key: Any) -> str | None:
        """Name of the chunk that a task reads; ``None`` for other tasks, such as merges.

        Parameters
        ----------
        key
            Key of a task in the graph, optimised or not.
        """
        name, index = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        kind, _, token = str(name).rpartition("-")
        blocks = self.samples.blocks
        if index and blocks.name.endswith(f"-{token}"):  # a task of the source
            leading = index[:-1] if isinstance(blocks, da.Array) else index
            along = blocks.numblocks[:-1] if isinstance(blocks, da.Array) else (blocks.npartitions,)
            return chunk_title(self.samples, int(np.ravel_multi_index(leading, along)))
        layers = () if self._rebuilt else self.__dask_graph__().layers
        if not any(layer.endswith(f"-{token}") for layer in layers):
            return None
        if kind.endswith("-aggregate") and self.n_chunks == 1:  # all in one task
            index = (0,)
        # Dask puts the names of fused tasks in front; `part` is a task of bags
        elif not index or not f"-{kind}".endswith((f"-{self.reduction.name}", "-part")):
            return None
        number = index[0] if self._chosen is None else self._chosen[index[0]]
        return chunk_title(self.samples, number)

    def compute(self, *, progress: bool | Show = False, **kwargs: Any) -> Any:
        """Compute the result in one pass.

        With more tasks than ``sketch.task-limit``, it runs in batches of ``sketch.batch-tasks``
        chunks, with one graph for each batch, and combines their results in this process. Sketches
        have the same bits as in one graph.

        Parameters
        ----------
        progress
            Whether to show a bar, in a notebook or on the standard error stream; or a function that
            shows the progress in its place.
        kwargs
            Keyword arguments of ``dask.compute`` or, with a client, of ``Client.compute``.

        Raises
        ------
        PlanError
            If the largest chunk cannot fit in the memory of a thread.
        InputError
            If there were no samples at all.
        ChunkError
            If a chunk cannot be read, holds refused values or kills its workers; the message names
            it.
        ClusterError
            If the client was closed, or the scheduler is lost.
        """
        client = None if "scheduler" in kwargs else active_client()
        span = start_pass(self.samples, self.reduction, self.split_every, client)
        if client is not None:
            # retries are an argument of the client: optimising a graph loses annotations,
            # https://github.com/dask/dask/issues/7036
            kwargs.setdefault("retries", config.get("retries"))
        size = batch_chunks(self.n_chunks, self.split_every)
        if size is None or self._rebuilt or self._chosen is not None:
            return compute_together([self], client, progress, span, **kwargs)[0]
        starts = range(0, self.n_chunks, size)
        batches = (self.part(range(i, min(i + size, self.n_chunks))) for i in starts)
        total = compute_in_batches(
            batches, len(starts), self.reduction.combine, client, span, progress, kwargs
        )
        return self.reduction.finalize(total)

    def to_delayed(self) -> Delayed:
        """Convert to a Dask Delayed, for instance for ``dask.array.from_delayed``."""
        if self.samples.is_bag:
            part = self._inner.to_delayed()
        else:
            part = self._inner.to_delayed(optimize_graph=False).item()
        finish = dask.delayed(_finish_part, name=f"{self.reduction.name}-result", pure=True)
        return finish(part, dask.delayed(self.reduction.finalize, pure=True, traverse=False))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        raise AttributeError(
            f"this {self.reduction.name} is lazy and has no {name}: call .compute() first."
        )

    # The protocol of Dask collections.

    def __dask_graph__(self) -> Any:
        return self._inner.__dask_graph__()

    def __dask_keys__(self) -> Any:
        return self._inner.__dask_keys__()

    def __dask_layers__(self) -> Any:
        return self._inner.__dask_layers__()

    def __dask_tokenize__(self) -> Any:
        finalize = tokenize(self.reduction.finalize)
        return (f"dask_sketch.{type(self).__name__}", self._inner.__dask_tokenize__(), finalize)

    @property
    def __dask_optimize__(self) -> Any:
        return self._inner.__dask_optimize__

    # threads for bags as well: the kernel releases the interpreter lock, and the default of bags,
    # new processes, fails in a script without a main guard
    __dask_scheduler__ = staticmethod(dask.threaded.get)

    def __dask_postcompute__(self) -> Any:
        finish, arguments = self._inner.__dask_postcompute__()
        return _finish, (finish, arguments, self.reduction.finalize)

    def __dask_postpersist__(self) -> Any:
        rebuild, arguments = self._inner.__dask_postpersist__()
        return _rebuild, (rebuild, arguments, self)

    # Its description.

    def as_dict(self) -> dict[str, Any]:
        """Description of the computation, for JSON."""
        groups = self.samples.groups if self.reduction.uses_groups else None
        return {
            "computes": self.reduction.name,
            "source": self.samples.label,
            "n_chunks": self.n_chunks,
            "groups": None if groups is None else groups.dim,
        }

    def __repr__(self) -> str:
        by = "" if self.reduction.feature_map is None else f", {self.reduction.feature_map!r}"
        return (
            f"<{type(self).__name__}: {self.reduction.name} of {self.samples.label}, "
            f"{self.n_chunks:,} chunks{by}>"
        )

    def _repr_html_(self) -> str:
        values = self.as_dict()
        fields = {
            "computes": values["computes"],
            "source": values["source"],
            "chunks": f"{values['n_chunks']:,}",
            "state": "lazy: .compute() runs one pass",
        }
        if values["groups"] is not None:
            fields["groups"] = f"one sketch for each {values['groups']}"
        feature_map = self.reduction.feature_map
        more = {}
        if feature_map is not None:
            more = {"feature map": fields_table(describe(feature_map.as_dict()))}
        return card(type(self).__name__, fields, summary="not computed yet", more=more)


def _finish(results: Any, finish: Any, arguments: Any, finalize: Callable[[Any], Any]) -> Any:
    return finalize(unwrap(finish(results, *arguments)))


def _finish_part(part: Any, finalize: Callable[[Any], Any]) -> Any:
    return finalize(unwrap(part))


def _rebuild(
    graph: Any, rebuild: Any, arguments: Any, lazy: LazyResult, *, rename: Any = None
) -> LazyResult:
    rebuilt = copy.copy(lazy)
    rebuilt._inner = rebuild(graph, *arguments, rename=rename)
    rebuilt._rebuilt = True
    return rebuilt
