"""The pass that gives one sketch for each group of samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from numpy.typing import NDArray

from dask_sketch.announcing import report_rows
from dask_sketch.features import FeatureMap
from dask_sketch.graph.group_memory import merge_in_room
from dask_sketch.graph.one_pass import LazySketch, require_samples
from dask_sketch.graph.tree import reduce_samples
from dask_sketch.sketching.group_chunk import partial_groups, prepare_groups
from dask_sketch.sketching.group_merge import merge_groups
from dask_sketch.sketching.groups import SketchGroup


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
        return merge_groups(parts) if parts else SketchGroup.empty(self.feature_map, self._dim)

    @property
    def prepare(self) -> Callable[[], None]:
        """Draws the frequencies and compiles, wherever chunks will be sketched."""
        return partial(prepare_groups, self.feature_map, self.samples.dtype)

    @property
    def complete(self) -> Callable[[Any], Any]:
        """Makes the result of what was found: in all chunks, unless this is a part."""
        assert self.samples.groups is not None
        return partial(
            _complete,
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
    part = partial_groups(
        block, feature_map, groups, weights, nan_policy=nan_policy, label=label, device=device,
        dim=dim,
    )  # fmt: skip
    report_rows(int(part.count.sum()), feature_map.n_frequencies)
    return part


def _complete(
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
