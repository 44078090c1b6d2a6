"""``sketch``: one pass over any input."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import dask.threaded
from dask.base import DaskMethodsMixin
from numpy.typing import NDArray

from dask_sketch.display.html import card, fields_table
from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.group_memory import merge_in_room
from dask_sketch.graph.telemetry import report_rows
from dask_sketch.graph.tree import reduce_samples, unwrap
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.group_partial import prepare_groups
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.partial import partial_sketch, prepare
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.samples import Samples

SMALL_MAP = 1024  # bytes; a larger specification is sent as a task of its own, once for a worker


class LazySketch(DaskMethodsMixin):
    """A sketch that has not been computed: a Dask collection with one result.

    ``.compute()`` gives the :class:`Sketch`, ``.persist()`` starts it on a cluster,
    ``.visualize()`` draws the graph, and ``dask.compute(a, b)`` of two sketches of one source reads
    the source once. Only ``.compute()`` can run in batches, which it does above
    ``sketch.task-limit``; as a collection it is one graph, built when it is asked for.

    Attributes
    ----------
    samples
        The input.
    feature_map
        What is averaged.
    split_every
        Fan-in of the merges.
    nan_policy
        What is done with rows that are not finite.
    device
        Where chunks are sketched; where they lie if it is None.
    """

    _result: type = Sketch

    def __init__(
        self,
        samples: Samples,
        feature_map: FeatureMap,
        split_every: int,
        nan_policy: str,
        device: str | None = None,
        chosen: range | None = None,
    ):
        self.samples = samples
        self.feature_map = feature_map
        self.split_every = split_every
        self.nan_policy = nan_policy
        self.device = device
        self._chosen = chosen
        self.rebuilt = False  # by persist or optimize: then there is a graph already

    @cached_property
    def _inner(self) -> Any:
        return reduce_samples(
            self.samples, _sketch_chunk, merge, name="sketch", arguments=self._arguments,
            split_every=self.split_every, chosen=self._chosen,
        )  # fmt: skip

    @property
    def _arguments(self) -> dict[str, Any]:
        sent: Any = self.feature_map
        if len(sent.spec) > SMALL_MAP:
            sent = dask.delayed(sent, name=f"feature-map-{sent.digest}", traverse=False)
        return {"feature_map": sent, "nan_policy": self.nan_policy, "device": self.device}

    def part(self, chosen: range) -> LazySketch:
        """The sketch of some chunks alone, by their numbers; it may turn out to be empty."""
        return type(self)(
            self.samples, self.feature_map, self.split_every, self.nan_policy, self.device, chosen
        )

    def merge(self, parts: list[Any]) -> Any:
        """What :meth:`part` gave for different chunks, together; of no chunks, what is neutral."""
        return merge([Sketch.empty(self.feature_map), *parts])

    @property
    def complete(self) -> Callable[[Any], Any]:
        """Makes the result of what was found: in all chunks, unless this is a part."""
        return partial(_complete, feature_map=self.feature_map, label=self._whole_label)

    @property
    def prepare(self) -> Callable[[], None]:
        """Draws the frequencies and compiles, wherever chunks will be sketched."""
        return partial(prepare, self.feature_map, self.samples.dtype, self.device)

    def compute(self, *, progress: bool = False, **kwargs: Any) -> Any:
        """Run the pass.

        With more tasks than ``sketch.task-limit`` it runs in batches of
        ``sketch.batch-tasks`` chunks, each a graph of its own, and merges their sketches here. The
        bits are those of a pass in one graph.

        Parameters
        ----------
        progress
            Show a bar, in a notebook or on the standard error stream.
        kwargs
            As for ``dask.compute`` or, with a client, ``Client.compute``.

        Raises
        ------
        PlanError
            If the largest chunk cannot fit in the memory of a thread.
        InputError
            If there were no samples at all.
        ChunkError
            If a chunk cannot be read or holds refused values; the message names it.
        """
        from dask_sketch.graph.compute import run

        return run(self, progress=progress, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._result, name) and not name.startswith("_"):
            raise AttributeError(
                f"this sketch is lazy and has no {name} yet: call .compute() first."
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __dask_graph__(self) -> Any:
        return self._inner.__dask_graph__()

    def __dask_keys__(self) -> Any:
        return self._inner.__dask_keys__()

    def __dask_layers__(self) -> Any:
        return self._inner.__dask_layers__()

    def __dask_tokenize__(self) -> Any:
        return (f"dask_sketch.{type(self).__name__}", self._inner.__dask_tokenize__())

    @property
    def __dask_optimize__(self) -> Any:
        return self._inner.__dask_optimize__

    # threads for bags too: the kernel releases the interpreter lock, and a bag's own default, new
    # processes, fails in a script without a main guard
    __dask_scheduler__ = staticmethod(dask.threaded.get)

    def __dask_postcompute__(self) -> Any:
        finish, arguments = self._inner.__dask_postcompute__()
        return _finish, (finish, arguments, self.complete)

    def __dask_postpersist__(self) -> Any:
        rebuild, arguments = self._inner.__dask_postpersist__()
        return _rebuild, (rebuild, arguments, self)

    @property
    def _whole_label(self) -> str | None:
        return self.samples.label if self._chosen is None else None

    def _fields(self) -> dict[str, str]:
        return {
            "source": self.samples.label,
            "chunks": f"{self.samples.n_chunks:,}",
            "state": "lazy: .compute() runs one pass",
        }

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.samples.label}: {self.samples.n_chunks:,} chunks, "
            f"{self.feature_map!r}>"
        )

    def _repr_html_(self) -> str:
        more = {"feature map": fields_table(self.feature_map._fields())}
        return card(type(self).__name__, self._fields(), summary="not computed yet", more=more)


def _sketch_chunk(
    block: Any,
    weights: Any,
    label: str,
    feature_map: FeatureMap,
    nan_policy: str,
    device: str | None,
) -> Sketch:
    part = partial_sketch(
        block, feature_map, weights, nan_policy=nan_policy, label=label, device=device
    )
    report_rows(part.count, feature_map.n_frequencies)
    return part


def _finish(results: Any, finish: Any, arguments: Any, complete: Callable[[Any], Any]) -> Any:
    return complete(unwrap(finish(results, *arguments)))


def _complete(found: Sketch | None, feature_map: FeatureMap, label: str | None) -> Sketch:
    result: Sketch = Sketch.empty(feature_map) if found is None else found
    if label is not None:  # of all samples, not of a part
        require_samples(result.count, result.omitted, label)
    return result


def require_samples(
    count: int, omitted: int, label: str, lacking: str = "have NaN or infinite values"
) -> None:
    """Raise if a pass over ``label`` found nothing to average."""
    if count == 0:
        reason = (
            f"all of its {omitted:,} rows {lacking}"
            if omitted
            else "it has no rows (check the path, the filter and the credentials)"
        )
        raise InputError(f"{label} gave no samples: {reason}.")


def _rebuild(
    graph: Any, rebuild: Any, arguments: Any, lazy: LazySketch, *, rename: Any = None
) -> LazySketch:
    rebuilt = copy.copy(lazy)
    rebuilt._inner = rebuild(graph, *arguments, rename=rename)
    rebuilt.rebuilt = True
    return rebuilt


# The pass that gives one sketch for each group of samples.


class LazySketchGroup(LazySketch):
    """Sketches of groups that have not been computed: a Dask collection with one result.

    As :class:`LazySketch`; ``.compute()`` gives the :class:`SketchGroup`. The merges are sparse: a
    partial result has the groups that occur in its chunks and no others.
    """

    _result = SketchGroup

    @cached_property
    def _inner(self) -> Any:
        return reduce_samples(
            self.samples, _sketch_groups, merge_in_room, name="sketch-groups", grouped=True,
            arguments={**self._arguments, "dim": self._dim}, split_every=self.split_every,
            chosen=self._chosen,
        )  # fmt: skip

    @property
    def _dim(self) -> str:
        assert self.samples.groups is not None
        return self.samples.groups.dim

    def merge(self, parts: list[Any]) -> Any:
        """What :meth:`part` gave for different chunks, together; of no chunks, what is neutral."""
        return merge(parts) if parts else SketchGroup.empty(self.feature_map, self._dim)

    @property
    def prepare(self) -> Callable[[], None]:
        """Draws the frequencies and compiles, wherever chunks will be sketched."""
        return partial(prepare_groups, self.feature_map, self.samples.dtype)

    @property
    def complete(self) -> Callable[[Any], Any]:
        """Makes the result of what was found: in all chunks, unless this is a part."""
        assert self.samples.groups is not None
        return partial(
            _complete_groups,
            feature_map=self.feature_map,
            dim=self._dim,
            names=self.samples.groups.names,
            label=self._whole_label,
        )

    def _fields(self) -> dict[str, str]:
        return super()._fields() | {"groups": f"one sketch for each {self._dim}"}


def _sketch_groups(
    block: Any,
    weights: Any,
    label: str,
    groups: Any,
    feature_map: FeatureMap,
    nan_policy: str,
    device: str | None,
    dim: str,
) -> SketchGroup:
    part = partial_sketch(
        block, feature_map, weights, groups=groups, nan_policy=nan_policy, label=label,
        device=device, dim=dim,
    )  # fmt: skip
    report_rows(int(part.count.sum()), feature_map.n_frequencies)
    return part


def _complete_groups(
    found: SketchGroup | None,
    feature_map: FeatureMap,
    dim: str,
    names: NDArray[Any] | None,
    label: str | None,
) -> SketchGroup:
    result = SketchGroup.empty(feature_map, dim) if found is None else found
    if label is None:  # of a part: its labels may be numbers until all parts are merged
        return result
    omitted, lacking = int(result.omitted.sum()), "have NaN or infinite values, or no label"
    require_samples(int(result.count.sum()), omitted + result.unlabelled, label, lacking)
    return result if names is None else replace(result, labels=names[result.labels])
