"""Groups of several chunks, days or places together: sums where labels are the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import MergeError
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.sketching.group import STACKS, WEIGHTS, SketchGroup
from dask_sketch.validation.labels import Codes, Labels, union


def merge_groups(groups: Iterable[SketchGroup]) -> SketchGroup:
    """Add groups that have one label, and keep the others: the groups of all inputs together.

    Parameters
    ----------
    groups
        At least one, all of one feature map and one kind of labels, in any order.

    Returns
    -------
    group
        Exact in all its sums, counts and bounds: no rounding, and so the same for every order.

    Raises
    ------
    MergeError
        If there is none, two have different feature maps, or labels of different kinds.
    CapacityError
        If sums are larger than a sketch holds.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, Sketch
    >>> empty = Sketch.empty(FeatureMap(2, 20, scale=1.0))
    >>> a, b = (SketchGroup.from_sketches({label: empty}) for label in "ab")
    >>> merge_groups([b, a]).labels
    array(['a', 'b'], dtype='<U1')
    """
    if isinstance(groups, SketchGroup) or not isinstance(groups, Iterable):
        raise MergeError(f"merge_groups takes a list of groups, not {type(groups).__name__}.")
    parts = list(groups)
    if not parts:
        raise MergeError("no group was given: merge_groups needs at least one.")
    first = parts[0]
    for part in parts:
        if not isinstance(part, SketchGroup):
            raise MergeError(
                f"merge_groups takes groups of sketches, not {type(part).__name__}; call "
                ".compute() on a lazy one."
            )
        first.feature_map.require_same(part.feature_map)
    if len(parts) == 1:
        return first
    labels, places = union([part.labels for part in parts])
    return added(parts, labels, places, first.dim)


def added(parts: list[SketchGroup], labels: Labels, places: list[Codes], dim: str) -> SketchGroup:
    """Add the groups of some parts at their places, ascending, among new labels."""
    n, d = len(labels), parts[0].feature_map.n_features
    count, omitted = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    low, high = np.full((n, d), np.inf), np.full((n, d), -np.inf)
    tight = np.ones(n, dtype=bool)
    for part, place in zip(parts, places, strict=True):
        if len(place):
            first = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
            here = place[first]
            count[here] += _at_one_place(np.add, part.count, first)
            omitted[here] += _at_one_place(np.add, part.omitted, first)
            low[here] = np.minimum(low[here], _at_one_place(np.minimum, part.minimum, first))
            high[here] = np.maximum(high[here], _at_one_place(np.maximum, part.maximum, first))
            tight[here] &= _at_one_place(np.logical_and, part.tight_bounds, first)
    sums: Any = {
        name: StackedFixedPoint.sum(
            [getattr(part, name) for part in parts],
            places,
            n,
            most_bits=None if name in WEIGHTS else 118,
        )
        for name in STACKS
    }
    return SketchGroup(
        feature_map=parts[0].feature_map,
        labels=labels,
        count=count,
        omitted=omitted,
        minimum=low,
        maximum=high,
        tight_bounds=tight,
        unlabelled=sum(part.unlabelled for part in parts),
        dim=dim,
        **sums,
    )


def _at_one_place(ufunc: Any, values: NDArray[Any], first: NDArray[np.intp]) -> NDArray[Any]:
    """One value for each place; as they are, if each has its own."""
    return values if len(first) == len(values) else ufunc.reduceat(values, first)
