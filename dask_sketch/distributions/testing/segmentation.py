"""Change points of the distribution in a sequence of sketches, such as one for each night."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.display.html import card, html_table
from dask_sketch.display.text import describe, fields_text, text_table
from dask_sketch.distributions.testing.effect import effect_of
from dask_sketch.distributions.testing.permutations import (
    checked_number,
    fraction_at_least,
    require_memory,
    require_small_p_values,
)
from dask_sketch.distributions.testing.units import Units, units_of
from dask_sketch.errors import InputError
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.labels import values_by_label
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
_DIRECTIONS = 32  # directions of the largest variance between units
_RIDGE = 0.1  # ridge of the whitened statistic, relative to the largest variance
_KINDS = 2  # kinds of statistics, plain and whitened
_DECAY = math.sqrt(2.0)  # ratio of the lengths of intervals
_TINY = 1e-12  # variances relative to the largest one that are rounding
_DOMINANT = 0.4  # fraction of the rows in one unit above which there is a warning
_MIN_UNITS = 8  # number of units from which there is this warning
_MAX_STEP = 32.0  # ratio of the median sizes of the units before and after a position
_HEADER = ("change from", "position", "p-value", "discrepancy", "interval")


@dataclass(frozen=True)
class ChangePoint:
    """Change of the distribution between two units that follow each other.

    Attributes
    ----------
    label
        Label, or time, of the first unit after the change.
    position
        Number of units before the change.
    p_value
        P-value, adjusted for all positions and lengths that were searched.
    discrepancy
        Maximum mean discrepancy, from 0 to 2, between the units back to the previous change point
        and the units up to the next one.
    interval
        Confidence interval of the discrepancy. It does not allow for the choice of the position.
    date
        Date of the first unit after the change, if it is known.
    """

    label: Any
    position: int
    p_value: float
    discrepancy: float
    interval: tuple[float, float]
    date: str | None = None

    @property
    def dated_label(self) -> str:
        """Label, with the date if it is known."""
        return str(self.label) if self.date is None else f"{self.label} of {self.date}"


@dataclass(frozen=True, repr=False)
class ChangePoints:
    """Result of :func:`change_points`; prints as a sentence and a table.

    Attributes
    ----------
    points
        Change points in their order.
    p_value
        P-value of the hypothesis that nothing changes.
    level
        Level of the test: probability of finding any change point where there is none.
    dim
        Name of a unit, whose label is the label of a change point; ``"time"`` if change points have
        times as labels.
    n_units
        Number of units.
    n_strata
        Number of strata within which the units were permuted.
    n_permutations
        Number of orders of the units, including the observed one.
    """

    points: tuple[ChangePoint, ...]
    p_value: float
    level: float
    dim: str
    n_units: int
    n_strata: int
    n_permutations: int

    @property
    def sentence(self) -> str:
        """Result in one sentence."""
        if not self.points:
            return (
                f"No change was found in {self.n_units:,} units at the level of {self.level:.2g} "
                f"(p = {self.p_value:.2g})."
            )
        last = self.points[-1]
        changes = f"{len(self.points)} changes were" if len(self.points) > 1 else "1 change was"
        return (
            f"{changes} found, the last one with {self.dim} {last.dated_label} "
            f"(p = {last.p_value:.2g})."
        )

    def as_dict(self) -> dict[str, Any]:
        """All attributes, the nested ones as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ChangePoints:
        """Restore change points from the result of :meth:`as_dict`, also after storage as JSON."""
        points = tuple(
            ChangePoint(**(dict(point) | {"interval": tuple(point["interval"])}))
            for point in values["points"]
        )
        return cls(**{field.name: values[field.name] for field in fields(cls)} | {"points": points})

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                *(point.dated_label, str(point.position), f"{point.p_value:.2g}"),
                *(f"{point.discrepancy:.3g}", "{:.2g} to {:.2g}".format(*point.interval)),
            )
            for point in self.points
        ]

    def _fields(self) -> dict[str, str]:
        values = self.as_dict()
        del values["points"]
        return describe(values)

    def __repr__(self) -> str:
        table = [text_table(self._rows(), header=_HEADER)] if self.points else []
        return "\n\n".join([self.sentence, fields_text(self._fields()), *table])

    def _repr_html_(self) -> str:
        table = html_table(_HEADER, self._rows())
        return card("ChangePoints", self._fields(), summary=self.sentence, below=table)


def change_points(
    units: SketchGroup,
    *,
    strata: Any = None,
    serial: bool = False,
    times: Any = None,
    min_units: int = 3,
    level: float = 0.05,
    n_permutations: int | None = None,
    seed: int = 0,
) -> ChangePoints:
    """Find the points of a sequence of sketches at which the distribution changes.

    Many intervals of the sequence are searched, with geometrically decreasing lengths. The
    discrepancy of the two sides of each split of an interval is compared with the largest
    discrepancy of all splits when the units are in a random order. So the level holds for all
    positions and lengths together, however much the rows of one unit depend on each other, as long
    as the units could have come in any order. If units depend on their neighbours (``serial``),
    blocks of successive units are permuted. Significant splits of the shortest intervals are taken
    first, since these intervals have at most one change.

    Units count by their effective numbers of rows, and differences are divided by the noise of
    units of the same sizes. So the level nearly holds if units grow along the sequence: at a level
    of 5 %, changes were found in 2 to 5 % of 400 draws without any, of 60 units from 5 to 100 or
    from 2 to 500 rows. With a sudden step from 3 to 300 rows they were found in 3 to 10 %, and
    there is a warning.

    Parameters
    ----------
    units
        Sketches in the order of time, such as one for each night. Sketches without samples are left
        out.
    strata
        Stratum of each unit, such as its weekday: array-like of any labels, shape (n_units,). Units
        are compared with the mean of their stratum and permuted within it. By default all units are
        in one stratum.
    serial
        Whether units depend on their neighbours. Then blocks of ``sqrt(n_units)`` units are
        permuted, across strata. The level nearly holds if dependence ends after fewer units than a
        block has.
    times
        Time of each unit, such as the number of the night if nights have several units: array-like
        of numbers, shape (n_units,). Units are sorted by time, and changes are only searched
        between different times. By default each unit has its own time, in the order of the labels.
    min_units
        Smallest number of units between two change points, ``>= 1``.
    level
        Probability of finding any change where there is none, in (0, 1).
    n_permutations
        Number of random orders, ``>= 1``. The default is 999, or more if the level is so small that
        its p-values need more.
    seed
        Seed of the permutations, ``>= 0``.

    Returns
    -------
    changes
        Change points with their p-values and the sizes of the changes.

    Raises
    ------
    InputError
        If an argument is out of range, or there are too few units or permutations for the level.

    References
    ----------
    Kovács, Bühlmann, Li, Munk (2023), Seeded binary segmentation, Biometrika 110(1). Baranowski,
    Chen, Fryzlewicz (2019), Narrowest-over-threshold detection, JRSS B 81(3).

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> rng, night = np.random.default_rng(0), np.repeat(np.arange(40), 50)
    >>> x = rng.normal(size=(2000, 2)) * np.where(night < 25, 1.0, 1.5)[:, None]
    >>> feature_map = FeatureMap(2, 50, scale=1.0)
    >>> nights = partial_sketch(x, feature_map, groups=night, dim="night")
    >>> [one.label for one in change_points(nights, n_permutations=199).points]
    [25]
    """
    level = require_number("level", level, 0.0, 1.0, strict=True)
    n_draws = checked_number(n_permutations, level)
    shortest = require_integer("min_units", min_units, 1)
    seed = require_integer("seed", seed, 0)
    sequence, labels, can_change = _sequence(units, strata, times)
    n = len(sequence)
    block = math.isqrt(n) if serial else 1
    sizes = [n // block] if serial else np.bincount(sequence.strata).tolist()
    _require_enough(n, sizes, shortest, level)
    require_small_p_values("n_permutations", n_draws, level)
    splits = np.array(list(_splits(n, shortest)), dtype=np.intp)
    splits = splits[can_change[splits[:, 1]]]
    if not len(splits):
        raise InputError(
            f"times has no change that is {shortest} or more units (min_units) from both ends: "
            "give a smaller min_units, or more units.",
            parameter="times",
        )
    require_memory("n_permutations", n_draws, 8 * _KINDS)
    _warn_of_dominant(sequence.sizes, labels, units.dim, level)
    _warn_of_step(sequence.sizes, labels, units.dim)
    with one_blas_thread():
        vectors = _directions(sequence)
        null = _permute(sequence, vectors, splits, n_draws, seed, block)
        observed = null.observed(sequence, vectors, splits)
        detected = _narrowest(splits, observed, null.largest, level, shortest)
        detected = _refine(
            detected, can_change, shortest, partial(null.observed, sequence, vectors)
        )
        points = _change_points(sequence, detected, labels.tolist(), level)
    p_value = float(fraction_at_least(observed.max()[None], null.largest)[0])
    return ChangePoints(
        points=points,
        p_value=p_value,
        level=level,
        dim=units.dim if times is None else "time",
        n_units=n,
        n_strata=int(sequence.strata.max()) + 1,
        n_permutations=n_draws + 1,
    )


def _sequence(
    group: SketchGroup, strata: Any, times: Any
) -> tuple[Units, NDArray[Any], NDArray[np.bool_]]:
    """Units in the order of time, their labels, and whether a change can be before each of them."""
    if not isinstance(group, SketchGroup):
        raise InputError(
            f"units of type {type(group).__name__}: give a group of sketches in the order of time; "
            "call .compute() on a lazy one."
        )
    nonempty = group.total_weight > 0
    if nonempty.sum() < 2:
        raise InputError(
            f"units has {int(nonempty.sum())} sketches of samples: give one for each of "
            "several nights."
        )
    initial = np.arange(len(group)) <= int(np.argmax(nonempty))
    units = units_of(group.select(initial), group.select(~initial), strata)
    if times is None:
        return units, np.asarray(group.labels)[nonempty], np.ones(len(units), dtype=bool)
    values = np.asarray(values_by_label(times, group.labels, "times"))
    if (
        values.shape != nonempty.shape
        or values.dtype.kind not in "iuf"
        or not np.isfinite(values).all()
    ):
        raise InputError(
            f"times of shape {values.shape} and dtype {values.dtype}: give a finite number for "
            f"each of the {len(nonempty):,} units.",
            parameter="times",
        )
    order = np.argsort(values[nonempty], kind="stable")
    labels = values[nonempty][order]
    can_change = np.concatenate([[False], labels[1:] != labels[:-1]])
    return units.select(order), labels, can_change


def _require_enough(n: int, sizes: list[int], shortest: int, level: float) -> None:
    """Raise if there are too few units or orders of them; sizes are numbers of permuted blocks."""
    n_orders = math.prod(map(math.factorial, sizes))
    if n < 2 * shortest or n_orders < 1.0 / level:
        raise InputError(
            f"units has {n} sketches of samples: give {max(2 * shortest, 8)} or more for min_units="
            f"{shortest} and level={level:g}, or fewer strata.",
            parameter="units",
        )


def _warn_of_dominant(sizes: Array, labels: NDArray[Any], dim: str, level: float) -> None:
    """Warn of a unit with so many of the rows that the level does not hold if units differ."""
    largest = int(np.argmax(sizes))
    fraction = float(sizes[largest] / sizes.sum())
    if len(sizes) >= _MIN_UNITS and fraction > _DOMINANT:
        warn_user(
            f"{dim} {labels[largest]} has {fraction:.0%} of the effective rows: if units differ "
            f"from each other, changes are found more often than level={level:g} allows (in 13 % "
            "of draws at 5 %, with 84 % of the rows). Leave it out, or divide it into units like "
            "the others."
        )


def _warn_of_step(sizes: Array, labels: NDArray[Any], dim: str) -> None:
    """Warn of a step in the sizes of units, at which the level holds less well."""
    n = len(sizes)
    before = np.arange(3, n - 2)  # numbers of units before the step
    if not len(before):
        return
    # the split of the sequence with the smallest residual squares of the logarithms of the sizes
    logs = np.log(sizes) - np.log(sizes).mean()
    first = int(before[np.argmax(np.cumsum(logs)[before - 1] ** 2 / (before * (n - before)))])
    earlier, later = float(np.median(sizes[:first])), float(np.median(sizes[first:]))
    if max(earlier, later) > _MAX_STEP * min(earlier, later):
        warn_user(
            f"units before {dim} {labels[first]} have {earlier:,.4g} rows, and {later:,.4g} from "
            "it on (medians of effective numbers): with a step from 3 to 300 rows, changes were "
            "found in 3 to 10 % of draws without any, at a level of 5 %. Merge the small units "
            "with merge_by(), divide the large ones, or search both parts separately."
        )


def _splits(n: int, shortest: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, split and end of all splits of seeded intervals."""
    length, seen = float(n), set()
    while round(length) >= 2 * shortest:
        size = round(length)
        number = 1 if size == n else 2 * math.ceil(n / length) - 1
        for start in np.rint(np.linspace(0, n - size, number)).astype(int).tolist():
            if (start, size) not in seen:
                seen.add((start, size))
                for split in range(start + shortest, start + size - shortest + 1):
                    yield start, split, start + size
        length /= _DECAY


def _directions(units: Units) -> list[Array]:
    """Vectors of the units in their main directions, plain and whitened."""
    centred = units.centred(units.vectors)
    left, values, _ = np.linalg.svd(np.sqrt(units.sizes)[:, None] * centred, full_matrices=False)
    varying = values**2 > _TINY * max(float(values[0]) ** 2, _TINY)
    left, values = left[:, varying][:, :_DIRECTIONS], values[varying][:_DIRECTIONS]
    if not len(values):
        return [np.zeros((len(units), 1))]
    left /= np.sqrt(units.sizes)[:, None]
    return [left * values, left * (values / np.sqrt(values**2 + _RIDGE * values[0] ** 2))]


@dataclass(frozen=True, eq=False)
class _Null:
    """Largest statistics of permuted orders.

    Attributes
    ----------
    mean, deviation
        Mean and standard deviation of the largest statistic of each kind, shape (n_kinds,).
    largest
        Largest standardised statistic of all kinds, shape (n_orders,), the observed order first.
    """

    mean: Array
    deviation: Array
    largest: Array

    def observed(self, units: Units, vectors: list[Array], splits: NDArray[np.intp]) -> Array:
        """Largest standardised statistic of each split in the observed order, shape (n_splits,)."""
        scaled = [
            (_statistics(coordinates, units.sizes, _noise(units, coordinates), splits) - mean)
            / deviation
            for coordinates, mean, deviation in zip(vectors, self.mean, self.deviation, strict=True)
        ]
        return np.asarray(np.max(scaled, axis=0))


def _permute(
    units: Units,
    vectors: list[Array],
    splits: NDArray[np.intp],
    n_draws: int,
    seed: int,
    block: int,
) -> _Null:
    """Permute the units within their strata, or blocks of successive units."""
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(units.strata == code) for code in range(units.strata.max() + 1)]
    largest = np.empty((n_draws + 1, len(vectors)))
    order = np.arange(len(units))
    noise = [_noise(units, coordinates) for coordinates in vectors]
    for draw in range(n_draws + 1):
        if block > 1 and draw:
            order = _blocks(rng, len(units), block)
        for rows in members if draw and block == 1 else []:
            order[rows] = rng.permutation(rows)
        for k, coordinates in enumerate(vectors):
            sizes_and_noise = units.sizes[order], noise[k][order]
            largest[draw, k] = _statistics(coordinates[order], *sizes_and_noise, splits).max()
    mean, deviation = largest.mean(axis=0), largest.std(axis=0)
    deviation[deviation == 0.0] = np.inf
    return _Null(mean, deviation, np.max((largest - mean) / deviation, axis=1))


def _blocks(rng: np.random.Generator, n: int, block: int) -> NDArray[np.intp]:
    """Order of ``n`` units in permuted blocks, which start at a random position of the circle."""
    circle = (np.arange(n) + rng.integers(n)) % n
    pieces = np.array_split(circle, n // block)
    return np.concatenate([pieces[k] for k in rng.permutation(len(pieces))])


def _noise(units: Units, vectors: Array) -> Array:
    """Mean squared length of the vectors of units of about the same size, shape (n_units,)."""
    classes = units.size_classes()
    squares = np.einsum("ij,ij->i", vectors, vectors)
    return np.asarray((np.bincount(classes, squares) / np.bincount(classes))[classes])


def _statistics(vectors: Array, sizes: Array, noise: Array, splits: NDArray[np.intp]) -> Array:
    """Squared differences of the sides of splits, divided by their expectation without a change.

    So a decreasing noise of units that grow along the sequence is not taken for a change.
    """
    start, middle, end = splits.T
    size, sums, squares = (
        np.concatenate([np.zeros((1, array.shape[1])), np.cumsum(array, axis=0)])
        for array in (sizes[:, None], sizes[:, None] * vectors, (sizes**2 * noise)[:, None])
    )
    before, after = (size[middle] - size[start])[:, 0], (size[end] - size[middle])[:, 0]
    # sides with so little weight that rounding hides them are not evidence
    seen = np.minimum(before, after) > _TINY * size[-1, 0]
    before, after = np.where(seen, before, 1.0), np.where(seen, after, 1.0)
    gap = (sums[middle] - sums[start]) / before[:, None]
    gap -= (sums[end] - sums[middle]) / after[:, None]
    expected = (squares[middle] - squares[start])[:, 0] / before**2
    expected += (squares[end] - squares[middle])[:, 0] / after**2
    seen &= expected > 0.0
    lengths = np.einsum("ij,ij->i", gap, gap)
    return np.where(seen, lengths / np.where(seen, expected, 1.0), 0.0)


def _narrowest(
    splits: NDArray[np.intp], observed: Array, largest: Array, level: float, shortest: int
) -> dict[int, float]:
    """Positions of change points with their p-values, from the shortest significant intervals."""
    p = fraction_at_least(observed, largest)
    changes: dict[int, float] = {}
    significant = np.flatnonzero(p <= level)
    lengths = splits[significant, 2] - splits[significant, 0]
    for k in significant[np.lexsort((-observed[significant], lengths))]:
        start, middle, end = splits[k].tolist()
        apart = all(abs(middle - position) >= shortest for position in changes)
        if apart and not any(start < position < end for position in changes):
            changes[middle] = float(p[k])
    return dict(sorted(changes.items()))


def _refine(
    changes: dict[int, float],
    can_change: NDArray[np.bool_],
    shortest: int,
    observed: Callable[[NDArray[np.intp]], Array],
) -> dict[int, float]:
    """Move each change point to the best split between its neighbours."""
    edges, out = [0, *changes, len(can_change)], {}
    for k, p_value in enumerate(changes.values()):
        start, end = edges[k], edges[k + 2]
        middle = np.arange(start + shortest, end - shortest + 1)
        middle = middle[can_change[middle]]
        splits = np.column_stack([np.full_like(middle, start), middle, np.full_like(middle, end)])
        edges[k + 1] = int(middle[np.argmax(observed(splits))])
        out[edges[k + 1]] = p_value
    return out


def _change_points(
    units: Units, changes: dict[int, float], labels: list[Any], level: float
) -> tuple[ChangePoint, ...]:
    """Change points with their discrepancies, from positions with p-values."""
    edges = [0, *changes, len(units)]
    points = []
    for k, (position, p_value) in enumerate(changes.items()):
        near = np.arange(edges[k], edges[k + 2])
        effect = effect_of(replace(units.select(near), first=near < position))
        size, interval = math.sqrt(max(effect.squared, 0.0)), effect.interval(level)
        points.append(ChangePoint(labels[position], position, p_value, size, interval))
    return tuple(points)
