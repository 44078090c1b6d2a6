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
from dask_sketch.validation.labels import codes_of, values_by_label

Array = NDArray[np.float64]
_CLASSES = 2.0  # classes of the sizes of units for each factor of two
_ROUNDING = 1e-13  # difference from a mean, relative to the values, that is rounding


@dataclass(frozen=True, eq=False)
class Units:
    """Sketches that are compared as whole units, because the rows of one may depend on each other.

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
        Total weight of each unit, shape (n_units,); with missing values, the total weight of the
        rows that observe a frequency, averaged over the frequencies.
    sizes
        Effective number of rows of each unit, shape (n_units,); for rows with weights, by Kish's
        formula.
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

    def select(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Units:
        """Some of the units, on the sides that they have.

        Parameters
        ----------
        chosen
            Whether a unit is kept, bool, shape (n_units,); or positions of units.
        """
        names = ("vectors", "means", "variances", "masses", "sizes", "first")
        strata = np.unique(self.strata[chosen], return_inverse=True)[1]
        return replace(self, strata=strata, **{name: getattr(self, name)[chosen] for name in names})

    def with_weights_of_one_scale(self, groups: NDArray[np.intp] | None = None) -> Units:
        """Divide the masses of each side by the median mass of a row in its units.

        A common factor of all weights of a side changes nothing in the difference of the sides.
        Where units are permuted, the units with the larger weights would outweigh all others.

        Parameters
        ----------
        groups
            Code of the group of each unit, integers from 0, shape (n_units,), for groups in place
            of the two sides.
        """
        codes = (~self.first).astype(np.intp) if groups is None else groups
        masses = self.masses.copy()
        for code in range(int(codes.max()) + 1):
            mine = codes == code
            masses[mine] /= np.median(self.masses[mine] / self.sizes[mine])
        return replace(self, masses=masses)

    def size_classes(self) -> NDArray[np.intp]:
        """Code of the size class of each unit, integers from 0, shape (n_units,)."""
        rounded = np.rint(_CLASSES * np.log2(self.sizes / self.sizes.max()))
        return np.asarray(np.unique(rounded, return_inverse=True)[1], dtype=np.intp)

    def moments(self, side: NDArray[np.bool_] | None = None) -> tuple[Array, Array]:
        """Pooled mean and variance of the features in some of the units, or in all of them.

        Parameters
        ----------
        side
            Units to pool, bool, shape (n_units,); all by default.

        Returns
        -------
        mean, variance
            Moments, each of shape (n_features,).
        """
        chosen = np.ones(len(self), dtype=bool) if side is None else side
        fractions = self.masses[chosen] / self.masses[chosen].sum()
        mean = fractions @ self.means[chosen]
        return mean, fractions @ (self.variances[chosen] + (self.means[chosen] - mean) ** 2)

    def centred(self, vectors: Array) -> Array:
        """Subtract from the vector of each unit the mean of its stratum.

        The mean is weighted by the effective sizes, for the least noise.

        Parameters
        ----------
        vectors
            Vectors, shape (n_units, width).

        Returns
        -------
        centred
            Vectors without the means, shape (n_units, width).
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
        left out. With missing values, each entry of the vector of a unit is a mean over the rows
        that observe the frequency.
    strata
        Stratum of each unit, for ``first`` and then for ``second``: array-like of any labels, shape
        (n_units,); by default all units are in one stratum.

    Returns
    -------
    units
        Units of both groups.

    Raises
    ------
    InputError
        If a side has no samples, no row of a unit observes a frequency, or the number of strata
        differs from the number of units.
    MergeError
        If the feature maps differ.
    """
    _require_groups({"first": first, "second": second})
    first.feature_map.require_same(second.feature_map)
    parts = [first.labels, second.labels]
    labels = np.concatenate(parts)
    if parts[0].dtype.kind != parts[1].dtype.kind:
        labels = np.array([label for part in parts for label in part], dtype=object)
    codes = strata_codes(
        strata, labels, "of the first group, then of the second, in the order of their labels"
    )
    return _stacked({"first": first, "second": second}, codes)


def units_of_one(group: SketchGroup, strata: Any = None) -> Units:
    """Use the sketches of one group as units, all on the first side.

    Parameters
    ----------
    group
        Group whose sketches are units. Sketches without samples are left out.
    strata
        Stratum of each unit, as for :func:`units_of`.

    Returns
    -------
    units
        Units of the group.

    Raises
    ------
    InputError
        If there are no samples, no row of a unit observes a frequency, or the number of strata
        differs from the number of units.
    """
    _require_groups({"units": group})
    return _stacked({"units": group}, strata_codes(strata, group.labels))


def _require_groups(sides: Mapping[str, Any]) -> None:
    for name, side in sides.items():
        if not isinstance(side, SketchGroup):
            raise InputError(
                f"{name} of type {type(side).__name__}: give a group of sketches, one for each "
                "independent unit such as a day, file or speaker; one sketch of all rows does not "
                "show how much its rows depend on each other. Call .compute() on a lazy group."
            )


def _stacked(groups: Mapping[str, SketchGroup], codes: NDArray[np.intp]) -> Units:
    """Stack the sketches of the sides, which are given by their names, the first side first."""
    nonempty = np.concatenate([side.total_weight for side in groups.values()]) > 0
    names = list(groups)
    sides = [side.select(side.total_weight > 0) for side in groups.values()]
    for name, side in zip(names, sides, strict=True):
        if not len(side):
            raise InputError(f"{name} has no samples: there is nothing to compare.")
    feature_map = sides[0].feature_map
    m = feature_map.n_frequencies
    n_bytes = 5 * 8 * 2 * m * int(nonempty.sum())
    if n_bytes > psutil.virtual_memory().available:
        raise InputError(
            f"{' and '.join(names)} have {int(nonempty.sum()):,} units of {m:,} frequencies, which "
            f"take {n_bytes / 1e9:.3g} GB of memory to compare. Merge units with merge_by()."
        )
    for name, side in zip(names, sides, strict=True):
        _require_observed(name, side)
    # mean weight of the rows that observe a frequency, if values are missing
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
        strata=np.unique(codes[nonempty], return_inverse=True)[1],
    )


def _require_observed(name: str, side: SketchGroup) -> None:
    """Raise if no row of a unit observes some frequency."""
    if side.missing is None:
        return
    unseen = (side.observed_weight() <= 0.0).any(axis=1) | np.isnan(side.mean).any(axis=1)
    if unseen.any():
        raise InputError(
            f"{name}: no row of {side.dim}={side.labels[int(np.argmax(unseen))]!s} observes all "
            f"features of some frequency, as in {int(unseen.sum()):,} of {len(side):,} units. "
            "Merge units with merge_by(), or sketch with nan_policy='omit'."
        )


def strata_codes(
    strata: Any, labels: NDArray[Any], order: str = "in their order"
) -> NDArray[np.intp]:
    """Convert the strata of units to integer codes.

    Parameters
    ----------
    strata
        Stratum of each unit: array-like of any labels, shape (n_units,), or a mapping or series of
        pandas from the labels of the units; None for one stratum.
    labels
        Labels of the units, shape (n_units,).
    order
        Order of the labels, for messages.

    Returns
    -------
    codes
        Integers from 0, shape (n_units,).

    Raises
    ------
    InputError
        If there is no label for each unit.
    """
    n_units = len(labels)
    if strata is None:
        return np.zeros(n_units, dtype=np.intp)
    strata = values_by_label(strata, labels, "strata")
    if isinstance(strata, str) or not isinstance(strata, Collection):
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
    """Convert the groups of units to labels and integer codes.

    Parameters
    ----------
    name
        Name of the argument.
    given
        Group of each unit: array-like of any labels, shape (n_units,), or a mapping or series of
        pandas from the labels of the units.
    units
        Sketches of the units.

    Returns
    -------
    labels
        Labels of the groups.
    codes
        Code of the group of each unit, shape (n_units,); -1 for a missing label.

    Raises
    ------
    InputError
        If the units are not a group of sketches, or the number of labels differs.
    """
    if not isinstance(units, SketchGroup):
        raise InputError(
            f"units of type {type(units).__name__}: give a group of sketches, one for each unit; "
            "call .compute() on a lazy one.",
            parameter="units",
        )
    n, given = len(units), values_by_label(given, units.labels, name)
    try:
        shape = np.shape(given)
    except ValueError:  # sequences of several lengths have no shape
        shape = (len(given), ...)
    if isinstance(given, str) or shape != (n,):
        raise InputError(
            f"{name} has shape {shape}: give the label of each of the {n:,} units.",
            parameter=name,
        )
    labels, codes = codes_of(given, n, name)
    return np.asarray(labels).tolist(), np.asarray(codes, dtype=np.intp)
