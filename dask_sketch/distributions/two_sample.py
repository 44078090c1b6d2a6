"""Test whether two sets of sketches are of one distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dask_sketch.distributions.band_statistics import (
    statistic_names,
    weighted_bases,
    whitened_basis,
)
from dask_sketch.distributions.cross_test import MIN_UNITS, cross_test, moment_p_values
from dask_sketch.distributions.effect import effect_of
from dask_sketch.distributions.permutations import (
    Permutations,
    adjusted_p_values,
    combined_p_value,
    contrasts,
    default_number,
    p_values,
    permutations_of,
    shifts_of,
)
from dask_sketch.distributions.power_criterion import fold_of, most_powerful
from dask_sketch.distributions.result import FeatureDifference, TwoSampleTest
from dask_sketch.distributions.units import Units, units_of
from dask_sketch.errors import InputError
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]

_MAX_RATIO = 8.0  # of the median sizes of units on both sides, and of sizes and weights
_MIN_SINGLE = 4  # frequencies of one feature alone, from which it has a statistic of its own
_NUMBERS = 2**24  # products of permutations and eigenvectors in memory at once


def compare(
    first: SketchGroup,
    second: SketchGroup,
    *,
    strata: Any = None,
    serial: bool = False,
    method: Literal["permutation", "cross"] = "permutation",
    fold: float | None = None,
    tolerance: float = 0.0,
    level: float = 0.05,
    n_permutations: int | None = None,
    seed: int = 0,
) -> TwoSampleTest:
    """Test whether two groups of sketches are of one distribution.

    Whole units are permuted between the sides: days, files or speakers, each with a sketch of its
    own. The level holds however much the rows of one unit depend on each other, as the frames of a
    recording do, as long as the units could have been on either side by chance. Differences are
    divided by the noise that units of their sizes have, so the level nearly holds where those of
    one side are larger; a warning tells of weights with which it may not. Tests that take rows for
    independent find a difference in nearly every such case.

    The statistics are squared distances of the mean sketches in bands of frequencies, plain and
    whitened: by the covariance of rows, if the feature map has a mixture of pilot rows, else by
    that of all units. Neither depends on the sides. The smallest of their p-values is calibrated by
    the same permutations. Feature maps of ``design(x, task="comparison")`` see differences of all
    sizes; a map for mixtures sees those about as large as its components. Design the map from rows
    of both sides, or of neither: the level is exact only if it does not depend on the sides.

    Parameters
    ----------
    first, second
        Groups of sketches of one feature map, each sketch a unit.
    strata
        Stratum of each unit, first those of ``first``, then those of ``second``, in the order of
        their labels: units are permuted within strata only, such as weekdays. By default there is
        one stratum.
    serial
        Whether neighbouring units depend on each other, as successive nights do. Then the units of
        ``second`` precede those of ``first``, both in the order of their labels, and the two sides
        are compared with those that lie elsewhere in this sequence: the sides are shifted along
        it, and its end is joined to its begin. This takes ``1 / level`` units. The level is that of
        units in any order, and close to it if dependence ends after a small part of the sequence.
    method
        ``"permutation"``, or ``"cross"`` for few units, whose permutations have no small p-values:
        3 and 3 have none under 0.1, 4 and 4 none under 0.029. Then the difference of some units is
        a direction along which the others are compared by Welch's test, for many splits of the
        units. This assumes that units have normal scores, as means of many rows have; each unit
        counts the same. Alike units of 100 dependent rows were found different at a level of 5 % in
        3.8 % of 1,000 draws of 3 and 3 units, and in 4.9 % of 4 and 4.
    fold
        Share of the units of each side, in (0, 1), on which the one statistic is chosen that has
        the largest difference in units of its deviation; only the other units are tested, by it
        alone. By default all units are tested by all statistics, which finds more in all cases that
        were measured: 0.70 in place of 0.32 of differences of four clusters.
    tolerance
        Largest discrepancy that does not matter, from 0 to 2. With many rows everything is
        significant: a tolerance asks for differences that matter.
    level
        Chance to find a difference where there is none, in (0, 1).
    n_permutations
        Number of random permutations, ``>= 1``; fewer where there are not so many. The default is
        999, or more if the level is so small that its p-values need more.
    seed
        Seed of the permutations or splits, ``>= 0``.

    Returns
    -------
    test
        P-value, size of the difference with its interval, and the features that differ.

    Raises
    ------
    InputError
        If an argument is out of range or has no use beside another one, a side has no samples, or
        the units are too few for the level, the method or the fold.
    MergeError
        If the feature maps differ.

    References
    ----------
    Gretton, Borgwardt, Rasch, Schölkopf, Smola (2012), A kernel two-sample test. Sutherland
    (2016), sections 6.1 and 6.2. Westfall and Young (1993), Resampling-based multiple testing.
    Shekhar, Kim, Ramdas (2022), A permutation-free kernel two-sample test, NeurIPS 35.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> rng, feature_map = np.random.default_rng(0), FeatureMap(2, 100, scale=1.0)
    >>> day = np.arange(4000) % 20
    >>> x = rng.normal(size=(4000, 2)) + 0.1 * rng.normal(size=(20, 2))[day]  # days differ
    >>> days = partial_sketch(x, feature_map, groups=day, dim="day")
    >>> x[:, 1] *= 2.0
    >>> later = partial_sketch(x, feature_map, groups=day, dim="day")
    >>> compare(days.select(days.labels < 10), days.select(days.labels >= 10)).is_different
    False
    >>> found = compare(days.select(days.labels < 10), later.select(days.labels >= 10))
    >>> found.is_different, found.features[0].name
    (True, 'feature 1')
    """
    level = require_number("level", level, 0.0, 1.0, strict=True)
    tolerance = require_number("tolerance", tolerance, 0.0, 2.0)
    seed = require_integer("seed", seed, 0)
    if method not in ("permutation", "cross"):
        raise InputError(f"method={method!r}: choose 'permutation' or 'cross'.")
    if method == "cross":
        given = {"strata": strata, "serial": serial or None, "n_permutations": n_permutations}
        _require_none("method='cross', which permutes no units", fold=fold, **given)
    elif n_permutations is None:
        n_permutations = default_number(level)
    else:
        n_permutations = require_integer("n_permutations", n_permutations, 1)
    if fold is not None:
        fold = require_number("fold", fold, 0.0, 1.0, strict=True)
        if serial:
            _require_none("serial=True, which needs all units in their order", fold=fold)
    with one_blas_thread():
        units = units_of(first, second, strata)
        found = (
            _crossed(units, first.dim, seed)
            if n_permutations is None
            else _permuted(units, first.dim, level, n_permutations, seed, serial=serial, fold=fold)
        )
        effect = effect_of(units.with_weights_of_one_scale(), serial=serial)
    return TwoSampleTest(
        **found,
        discrepancy=float(np.sqrt(max(effect.squared, 0.0))),
        squared=effect.squared,
        interval=effect.interval(level),
        level=level,
        tolerance=tolerance,
        tolerance_p_value=effect.p_value_above(tolerance),
        dim=first.dim,
        n_units=units.counts,
        n_strata=int(units.strata.max()) + 1,
        method=method,
    )


def _permuted(
    units: Units,
    dim: str,
    level: float,
    n_permutations: int,
    seed: int,
    *,
    serial: bool,
    fold: float | None,
) -> dict[str, Any]:
    """Fields of the result of permuting the units."""
    chosen = None
    if fold is not None:
        others = fold_of(units, fold, seed)
        chosen = most_powerful(units.select(others).with_weights_of_one_scale())
        units = units.select(~others)
    permutations = (
        shifts_of(units.first)
        if serial
        else permutations_of(units.first, units.strata, n_permutations, seed)
    )
    _require_enough(units, permutations, level, dim, serial=serial)
    _warn_of_weights(units, dim)
    units = units.with_weights_of_one_scale()
    contrasted = _Contrasts.of(permutations, units)
    statistics = np.concatenate([contrasted.statistics(*one) for one in weighted_bases(units)])
    name = None
    if chosen is not None:
        statistics, name = statistics[[chosen]], statistic_names(units)[chosen]
    return {
        "statistic": name,
        "p_value": combined_p_value(statistics),
        "smallest_p_value": permutations.smallest,
        "n_permutations": len(permutations.sides),
        "is_complete": permutations.is_complete,
        "features": _feature_differences(units, contrasted),
    }


def _crossed(units: Units, dim: str, seed: int) -> dict[str, Any]:
    """Fields of the result of a test along directions of other units."""
    if min(units.counts) < MIN_UNITS:
        a, b = units.counts
        raise InputError(
            f"method='cross' with {a:,} and {b:,} units ({dim}): give {MIN_UNITS} or more on each "
            "side. If all rows are independent, take compare_rows() of sketches that are no "
            "groups.",
            parameter="method",
        )
    found = cross_test(units, seed)
    p = moment_p_values(units)
    return {
        "p_value": found.p_value,
        "smallest_p_value": 0.0,
        "n_permutations": found.n_splits,
        "is_complete": found.is_complete,
        "features": _described(units, p, np.lexsort((np.arange(len(p)), p))),
    }


def _require_none(other: str, **given: Any) -> None:
    """Refuse arguments that another one has no use for."""
    for name, value in given.items():
        if value is not None:
            shown = f" of type {type(value).__name__}" if name == "strata" else f"={value!r}"
            raise InputError(f"{name}{shown} with {other}: leave one of them out.", parameter=name)


@dataclass(frozen=True, eq=False)
class _Contrasts:
    """Differences of the sides for many assignments, and their noise.

    Attributes
    ----------
    signs
        Coefficients of the units in the differences, shape (n_assignments, n_units).
    classes
        Code of the class of size of each unit, shape (n_units,).
    noise
        Mean squared coefficient of the units of each class, shape (n_assignments, n_classes).
    """

    signs: Array
    classes: NDArray[np.intp]
    noise: Array

    @classmethod
    def of(cls, permutations: Permutations, units: Units) -> _Contrasts:
        """Contrasts of the assignments of units to sides."""
        signs = contrasts(permutations.sides, units.masses)
        classes = units.size_classes()
        members = np.eye(int(classes.max()) + 1)[classes]
        return cls(signs, classes, signs**2 @ (members / members.sum(axis=0)))

    def __len__(self) -> int:
        return len(self.signs)

    def statistics(self, basis: Array, weights: Array) -> Array:
        """Weighted squares of the differences, divided by their expectation.

        Parameters
        ----------
        basis
            Coordinates of the units, shape (n_units, width).
        weights
            Weights of the squared coordinates, shape (width, n_statistics).

        Returns
        -------
        statistics
            Shape (n_statistics, n_assignments).
        """
        squares = np.empty((len(self), weights.shape[1]))
        step = max(_NUMBERS // len(weights), 1)
        for start in range(0, len(self), step):
            block = slice(start, start + step)
            squares[block] = (self.signs[block] @ basis) ** 2 @ weights
        return self.relative(squares, basis**2 @ weights).T

    def relative(self, squares: Array, own: Array) -> Array:
        """Squared differences, divided by their expectation if all units are of one distribution.

        Units of about the same size have the same noise then. So the level nearly holds where those
        of one side are smaller, and it is exact where sizes do not depend on the sides.

        Parameters
        ----------
        squares
            Squared differences, shape (n_assignments,) or (n_assignments, n_statistics).
        own
            Squared distances of the units from their mean, shape (n_units,) or (n_units,
            n_statistics).
        """
        sums = np.zeros((self.noise.shape[1], *own.shape[1:]))
        np.add.at(sums, self.classes, own)
        noise = self.noise @ sums
        return np.asarray(squares / np.where(noise > 0.0, noise, np.inf))


def _require_enough(
    units: Units, permutations: Permutations, level: float, dim: str, *, serial: bool
) -> None:
    if permutations.smallest > level:
        a, b = units.counts
        few = min(a, b) >= MIN_UNITS and not serial and not units.strata.any()
        other = ", or choose method='cross', whose p-values have no smallest one" if few else ""
        remedy = (
            f"Compare more units, give a larger level, or fewer strata{other}."
            if permutations.is_complete
            else f"Take n_permutations={int(np.ceil(1.0 / level))} or more."
        )
        raise InputError(
            f"level={level:g} with {a:,} and {b:,} units ({dim}): no p-value is under "
            f"{permutations.smallest:.2g} with them. {remedy}",
            parameter="level",
        )


def _warn_of_weights(units: Units, dim: str) -> None:
    """Warn of weights that give small units of one side as much as large ones of the other."""
    sides = units.first, ~units.first
    sizes, shares = (
        [float(np.median(values[side])) for side in sides]
        for values in (units.sizes, units.sizes / units.masses)
    )
    if min(max(both) / min(both) for both in (sizes, shares)) > _MAX_RATIO:
        warn_user(
            f"first has units ({dim}) of {sizes[0]:,.4g} rows, second of {sizes[1]:,.4g} (medians "
            "of effective numbers), and their weights do not tell: small units count as much as "
            "large ones. At a ratio of 20 to 1, alike data was found different at a level of 5 % "
            "in up to 10 % of 600 draws, at 100 to 1 in up to 30 %. Give all rows one weight, "
            "divide the large units, or merge small ones with merge_by()."
        )


def _feature_differences(units: Units, contrasted: _Contrasts) -> tuple[FeatureDifference, ...]:
    """Differences of single features: in their moments, and in frequencies of theirs alone."""
    pooled, _ = units.moments()
    squares = units.variances + (units.means - pooled) ** 2
    frequencies = units.feature_map.frequencies
    m = units.feature_map.n_frequencies
    alone = (frequencies != 0).sum(axis=0) == 1
    p = np.empty((len(pooled), len(contrasted)))
    for feature in range(len(pooled)):
        values = np.column_stack([units.means[:, feature], squares[:, feature]])
        found = [_standardised(units.centred(values), contrasted)[None]]
        single = np.flatnonzero(alone & (frequencies[feature] != 0))
        if len(single) >= _MIN_SINGLE:
            columns = np.concatenate([single, m + single])
            own = units.centred(units.vectors[:, columns])
            found.append(contrasted.statistics(*whitened_basis(own)))
        least = p_values(np.concatenate(found)).min(axis=0)
        p[feature] = p_values(-least[None])[0]
    adjusted = adjusted_p_values(p)
    return _described(units, adjusted, np.lexsort((p[:, 0], adjusted)))


def _described(
    units: Units, adjusted: Array, order: NDArray[np.intp]
) -> tuple[FeatureDifference, ...]:
    """Differences of the features in an order, with their adjusted p-values."""
    sides = [units.first, ~units.first]
    moments = [units.moments(side) for side in sides]
    names = units.feature_map.feature_names
    return tuple(
        FeatureDifference(
            name=f"feature {feature}" if names is None else names[feature],
            p_value=float(adjusted[feature]),
            means=(float(moments[0][0][feature]), float(moments[1][0][feature])),
            deviations=(math.sqrt(moments[0][1][feature]), math.sqrt(moments[1][1][feature])),
        )
        for feature in order
    )


def _standardised(moments: Array, contrasted: _Contrasts) -> Array:
    """Sum of the squared differences, each in units of its deviation between units."""
    deviations = np.sqrt(np.mean(moments**2, axis=0))
    varies = deviations > 0
    if not varies.any():
        return np.zeros(len(contrasted))
    own = moments[:, varies] / deviations[varies]
    return contrasted.relative(((contrasted.signs @ own) ** 2).sum(axis=1), (own**2).sum(axis=1))
