"""Units of a comparison: sketches of groups or partitions, on two sides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from dask_sketch.diagnostics.mmd import group_vectors
from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.validation.labels import codes_of

Array = NDArray[np.float64]
_CLASSES = 2.0  # of the sizes of units in an octave
_ROUNDING = 1e-13  # difference from a mean, relative to the values, that is rounding


@dataclass(frozen=True, eq=False)
class Units:
    """Sketches that are compared as whole units, because rows inside of each may depend.

    Attributes
    ----------
    feature_map
        Feature map of the sketches.
    vectors
        Real and imaginary parts of the sketch vectors side by side, multiplied by the weights of
        the features, shape (n_units, 2 * n_frequencies). Squared distances of these are squared
        maximum mean discrepancies.
    means, variances
        Means and variances of the features in each unit, shape (n_units, n_features).
    masses
        Total weight of each unit, shape (n_units,); with missing values, the mean over the
        frequencies of the weights of the rows that observe them.
    sizes
        Effective number of rows of each unit, shape (n_units,): Kish's, if rows have weights.
    first
        Whether a unit is on the first side, bool, shape (n_units,).
    strata
        Code of the stratum of each unit, integers from 0, shape (n_units,).
    """

    feature_map: FeatureMap
    vectors: Array
    means: Array
    variances: Array
    masses: Array
    sizes: Array
    first: NDArray[np.bool_]
    strata: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.masses)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of units on the two sides."""
        return int(self.first.sum()), int((~self.first).sum())

    def select(self, chosen: NDArray[np.bool_]) -> Units:
        """Some of the units.

        Parameters
        ----------
        chosen
            Whether a unit is kept, bool, shape (n_units,).
        """
        names = ("vectors", "means", "variances", "masses", "sizes", "first")
        strata = np.unique(self.strata[chosen], return_inverse=True)[1]
        return replace(self, strata=strata, **{name: getattr(self, name)[chosen] for name in names})

    def with_weights_of_one_scale(self) -> Units:
        """The same units, whose mass for a row has the median one on both sides.

        A common factor of all weights of a side changes nothing in the difference of the sides.
        Where units are permuted, those with the larger weights would else outweigh all others.
        """
        masses = self.masses.copy()
        for side in (self.first, ~self.first):
            masses[side] /= np.median(self.masses[side] / self.sizes[side])
        return replace(self, masses=masses)

    def size_classes(self) -> NDArray[np.intp]:
        """Code of the class of size of each unit, integers from 0, shape (n_units,)."""
        rounded = np.rint(_CLASSES * np.log2(self.sizes / self.sizes.max()))
        return np.asarray(np.unique(rounded, return_inverse=True)[1], dtype=np.intp)

    def moments(self, side: NDArray[np.bool_] | None = None) -> tuple[Array, Array]:
        """Means and variances of the features in the units of a side, or in all of them.

        Parameters
        ----------
        side
            Units to pool, bool, shape (n_units,).
        """
        chosen = np.ones(len(self), dtype=bool) if side is None else side
        share = self.masses[chosen] / self.masses[chosen].sum()
        mean = share @ self.means[chosen]
        return mean, share @ (self.variances[chosen] + (self.means[chosen] - mean) ** 2)

    def centred(self, vectors: Array) -> Array:
        """Rows of ``vectors``, one for each unit, minus the mean of their stratum.

        The mean has the weights of the effective sizes, which leave it the least noise.
        """
        n_strata = int(self.strata.max()) + 1
        total = np.bincount(self.strata, self.sizes, n_strata)
        sums = np.zeros((n_strata, vectors.shape[1]))
        np.add.at(sums, self.strata, self.sizes[:, None] * vectors)
        out = vectors - (sums / total[:, None])[self.strata]
        out[np.abs(out) < _ROUNDING * np.abs(vectors).max(axis=0)] = 0.0
        return np.asarray(out)


def units_of(first: SketchGroup, second: SketchGroup, strata: Any = None) -> Units:
    """Stack the sketches of two groups as the units of a comparison.

    Parameters
    ----------
    first, second
        Groups of one feature map; each of their sketches is a unit. Sketches without samples are
        left out. With missing values, the vector of a unit has the mean over the rows that observe
        each frequency.
    strata
        Stratum of each unit, first those of ``first``: array-like of any labels, shape
        (n_units,); by default all units are in one stratum.

    Raises
    ------
    InputError
        If a side has no samples, no row of a unit observes a frequency, or the number of strata
        differs from that of the units.
    MergeError
        If the feature maps differ.
    """
    _require_groups({"first": first, "second": second})
    first.feature_map.require_same(second.feature_map)
    codes = strata_codes(
        strata,
        len(first) + len(second),
        "first those of the first group, in the order of their labels",
    )
    return _stacked({"first": first, "second": second}, codes)


def units_of_one(group: SketchGroup, strata: Any = None) -> Units:
    """The sketches of one group as units, all on the first side.

    Parameters
    ----------
    group
        Group whose sketches are units. Sketches without samples are left out.
    strata
        Stratum of each unit, as for :func:`units_of`.

    Raises
    ------
    InputError
        In the cases of :func:`units_of`.
    """
    _require_groups({"units": group})
    return _stacked({"units": group}, strata_codes(strata, len(group)))


def _require_groups(given: Mapping[str, Any]) -> None:
    for name, side in given.items():
        if not isinstance(side, SketchGroup):
            raise InputError(
                f"{name} of type {type(side).__name__}: give a group of sketches, one for each "
                "independent unit such as a day, file or speaker; a sketch of all rows does not "
                "know how much its rows depend. Call .compute() on a lazy group."
            )


def _stacked(given: Mapping[str, SketchGroup], codes: NDArray[np.intp]) -> Units:
    """Units of the sides by their names, the first side first."""
    kept = np.concatenate([side.total_weight for side in given.values()]) > 0
    names = list(given)
    sides = [side.select(side.total_weight > 0) for side in given.values()]
    for name, side in zip(names, sides, strict=True):
        if not len(side):
            raise InputError(f"{name} has no samples: there is nothing to compare.")
    feature_map = sides[0].feature_map
    m = feature_map.n_frequencies
    n_bytes = 5 * 8 * 2 * m * int(kept.sum())
    if n_bytes > psutil.virtual_memory().available:
        raise InputError(
            f"{' and '.join(names)} have {int(kept.sum()):,} units of {m:,} frequencies, which "
            f"take {n_bytes / 1e9:.3g} GB of memory to compare. Merge units with merge_by()."
        )
    for name, side in zip(names, sides, strict=True):
        _require_observed(name, side)
    # with missing values, the weight that the mean frequency is observed with
    masses = np.concatenate([side.observed_weight().mean(axis=1) for side in sides])
    weights, counts = (
        np.concatenate([getattr(side, name) for side in sides])
        for name in ("total_weight", "effective_count")
    )
    return Units(
        feature_map=feature_map,
        vectors=np.concatenate([group_vectors(side) for side in sides]),
        means=np.concatenate([side.mean for side in sides]),
        variances=np.concatenate([side.variance for side in sides]),
        masses=masses,
        sizes=masses / weights * np.where(counts > 0.0, counts, weights),
        first=np.repeat(np.arange(len(sides)) == 0, [len(side) for side in sides]),
        strata=np.unique(codes[kept], return_inverse=True)[1],
    )


def _require_observed(name: str, side: SketchGroup) -> None:
    """Refuse units of which no row observes a frequency."""
    if side.missing is None:
        return
    unseen = (side.observed_weight() <= 0.0).any(axis=1) | np.isnan(side.mean).any(axis=1)
    if unseen.any():
        raise InputError(
            f"{name}: no row of {side.dim}={side.labels[int(np.argmax(unseen))]!s} observes all "
            f"features of some frequency; {int(unseen.sum()):,} of {len(side):,} units are so. "
            "Merge units with merge_by(), or sketch with nan_policy='omit'."
        )


def strata_codes(strata: Any, n_units: int, order: str = "in their order") -> NDArray[np.intp]:
    """Codes of the strata of units, shape (n_units,); zeros without strata.

    Parameters
    ----------
    strata
        Stratum of each unit: array-like of any labels, shape (n_units,).
    n_units
        Number of units.
    order
        Order of the labels, for messages.

    Raises
    ------
    InputError
        If there is no label for each unit.
    """
    if strata is None:
        return np.zeros(n_units, dtype=np.intp)
    if isinstance(strata, (str, Mapping)) or not isinstance(strata, Collection):
        raise InputError(
            f"strata of type {type(strata).__name__}: give the stratum of each of the {n_units:,} "
            f"units, {order}."
        )
    if len(strata) != n_units:
        raise InputError(
            f"strata has {len(strata):,} labels for {n_units:,} units: give one for each unit, "
            f"{order}."
        )
    codes = codes_of(list(strata), n_units, "strata")[1]
    if (codes < 0).any():
        raise InputError(f"strata[{int(np.argmax(codes < 0))}] is missing: give it a label.")
    return np.asarray(codes, dtype=np.intp)


def unit_labels(name: str, given: Any, units: SketchGroup) -> tuple[list[Any], NDArray[np.intp]]:
    """Labels of the groups of units, and the code of that of each unit; -1 for none.

    Parameters
    ----------
    name
        Name of the argument.
    given
        Group of each unit: array-like of any labels, shape (n_units,).
    units
        Units.

    Raises
    ------
    InputError
        If the units are no group of sketches, or there is no label for each of them.
    """
    if not isinstance(units, SketchGroup):
        raise InputError(
            f"units of type {type(units).__name__}: give a group of sketches, one for each unit; "
            "call .compute() on a lazy one.",
            parameter="units",
        )
    n = len(units)
    try:
        shape = np.shape(given)
    except ValueError:  # of sequences of several lengths
        shape = (len(given), ...)
    if isinstance(given, str) or shape != (n,):
        raise InputError(
            f"{name} has shape {shape}: give the label of each of the {n:,} units.",
            parameter=name,
        )
    labels, codes = codes_of(given, n, name)
    return np.asarray(labels).tolist(), np.asarray(codes, dtype=np.intp)
