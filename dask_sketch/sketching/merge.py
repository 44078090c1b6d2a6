"""Merge sketches, groups of sketches or second moments, by exact addition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import MergeError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.kernels.stacked_fixed_point import StackedFixedPoint
from dask_sketch.sketching.missing import StackedMissing
from dask_sketch.validation.labels import Codes

# names of the attributes of a group that are stacks of exact sums
SUMS = ("moment_quanta", "first_quanta", "second_quanta")
WEIGHTS = ("weight_quanta", "squared_weight_quanta")
STACKS = (*SUMS, *WEIGHTS)
_SUM_BITS = 118  # largest size of a sum; those of weights are limited by SketchGroup


class Mergeable(Protocol):
    """Type of the parts of a merge: Sketch, SketchGroup or SecondMoments."""

    @property
    def feature_map(self) -> FeatureMap | Any:
        """Feature map of the sums, or the grid of second moments, with ``require_same``."""

    @classmethod
    def _add(cls, parts: Any) -> Any:
        """The sum of at least two parts of this class and of one feature map."""


Part = TypeVar("Part", bound=Mergeable)


def merge(sketches: Iterable[Part]) -> Part:
    """Add sketches, groups of sketches label by label, or moments (Keriven et al. 2018, 2.7).

    Parameters
    ----------
    sketches
        Sketches of one feature map, groups of one feature map and one type of labels, or second
        moments of one grid; at least one, in any order.

    Returns
    -------
    merged
        Sketch of all samples together; for groups, the group of all labels, where groups of one
        label are added. Sums, counts and bounds are exact, so they do not depend on the order.

    Raises
    ------
    MergeError
        If there is no sketch, two have different feature maps (the message names the field), or
        the types of the labels differ.
    CapacityError
        If the sums are larger than a sketch can hold.

    References
    ----------
    Keriven, Bourrier, Gribonval, Pérez (2018), Sketching for large-scale learning of mixture
    models, Information and Inference 7(3), section 2.7.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> x, feature_map = np.zeros((5, 2)), FeatureMap(2, 20, scale=1.0)
    >>> merge([partial_sketch(x[:2], feature_map), partial_sketch(x[2:], feature_map)]).count
    5
    >>> a, b = (partial_sketch(x, feature_map, groups=[label] * 5) for label in "ab")
    >>> merge([b, a, b]).count
    array([ 5, 10])
    """
    if not isinstance(sketches, Iterable) or hasattr(sketches, "_add"):
        raise MergeError(
            f"sketches of type {type(sketches).__name__}: give a list of sketches, or of groups of "
            "sketches."
        )
    parts = list(sketches)
    if not parts:
        raise MergeError("sketches=[]: give at least one sketch.")
    first = parts[0]
    for part in parts:
        if not (hasattr(first, "_add") and hasattr(part, "_add") and type(part) is type(first)):
            kinds = dict.fromkeys(type(each).__name__ for each in parts)
            raise MergeError(
                f"sketches holds objects of type {' and '.join(kinds)}: "
                "give only sketches, or only groups of sketches; call .compute() on lazy ones."
            )
        first.feature_map.require_same(part.feature_map)
    return first if len(parts) == 1 else type(first)._add(parts)


def add_groups(parts: Sequence[Any], positions: Sequence[Codes], n_groups: int) -> dict[str, Any]:
    """Add the stacked sums of groups row by row.

    Parameters
    ----------
    parts
        Groups of one feature map: objects with the attributes of SketchGroup.
    positions
        Row of the result for each row of a part, one ascending array for each part.
    n_groups
        Number of rows of the result.

    Returns
    -------
    arrays
        Stacks, counters, counts and bounds of the result by the name of the attribute.
    """
    n, d = n_groups, parts[0].feature_map.n_features
    count, omitted = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    low, high = np.full((n, d), np.inf), np.full((n, d), -np.inf)
    tight = np.ones(n, dtype=bool)
    for part, position in zip(parts, positions, strict=True):
        if len(position):
            first = np.flatnonzero(np.r_[True, position[1:] != position[:-1]])
            rows = position[first]
            count[rows] += _reduced(np.add, part.count, first)
            omitted[rows] += _reduced(np.add, part.omitted, first)
            low[rows] = np.minimum(low[rows], _reduced(np.minimum, part.minimum, first))
            high[rows] = np.maximum(high[rows], _reduced(np.maximum, part.maximum, first))
            tight[rows] &= _reduced(np.logical_and, part.tight_bounds, first)
    stacks = {
        name: StackedFixedPoint.sum(
            [getattr(part, name) for part in parts],
            list(positions),
            n,
            max_bits=None if name in WEIGHTS else _SUM_BITS,
        )
        for name in STACKS
    }
    missing = StackedMissing.sum([part.missing for part in parts], list(positions), n)
    return stacks | {
        "missing": missing,
        "count": count,
        "omitted": omitted,
        "minimum": low,
        "maximum": high,
        "tight_bounds": tight,
    }


def _reduced(ufunc: Any, values: NDArray[Any], first: NDArray[np.intp]) -> NDArray[Any]:
    """One value for each run of rows with one position; a copy is avoided where runs have one."""
    return values if len(first) == len(values) else ufunc.reduceat(values, first)
