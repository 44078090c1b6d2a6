"""Change points of the distribution in a sequence of sketches, such as those of nights."""

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
from dask_sketch.distributions.effect import effect_of
from dask_sketch.distributions.permutations import default_number, require_memory
from dask_sketch.distributions.units import Units, units_of
from dask_sketch.errors import InputError
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
_DIRECTIONS = 32  # of the largest variance between units
_RIDGE = 0.1  # of the whitened statistic, relative to the largest variance
_KINDS = 2  # of statistics
_DECAY = math.sqrt(2.0)  # ratio of the lengths of intervals
_TINY = 1e-12  # variances relative to the largest one that are rounding
_DOMINANT = 0.4  # fraction of the rows in one unit that is warned of
_MAX_STEP = 32.0  # ratio of the median sizes of the units before and after a position
_FEWEST_UNITS = 8  # of which one with so many is unlike the others
_HEADER = ("change from", "position", "p-value", "discrepancy", "interval")


@dataclass(frozen=True)
class ChangePoint:
    """Change of the distribution between two units that follow each other.

    Attributes
    ----------
    label
        Label, or time, of the first unit after the change.
    position
        Number of units before it.
    p_value
        P-value, adjusted for all positions and lengths that were searched.
    discrepancy
        Maximum mean discrepancy between the units since the last change point and those until the
        next one, from 0 to 2.
    interval
        Confidence interval of the discrepancy. It does not allow for the choice of the position.
    date
        Date of that unit, if it is known.
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
        Level: chance of any change point where there is none.
    dim
        Name of a unit, whose label a change point has; ``"time"`` if it has the time of one.
    n_units, n_strata
        Numbers of units, and of strata within which they were permuted.
    n_permutations
        Number of orders of the units, the observed one included.
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
        found = f"{len(self.points)} changes were" if len(self.points) > 1 else "1 change was"
        return (
            f"{found} found, the last one with {self.dim} {last.dated_label} "
            f"(p = {last.p_value:.2g})."
        )

    def as_dict(self) -> dict[str, Any]:
        """All attributes, the nested ones as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ChangePoints:
        """Restore from :meth:`as_dict`, also after it was stored as JSON."""
        points = tuple(
            ChangePoint(**(dict(one) | {"interval": tuple(one["interval"])}))
            for one in values["points"]
        )
        return cls(**{field.name: values[field.name] for field in fields(cls)} | {"points": points})

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                *(one.dated_label, str(one.position), f"{one.p_value:.2g}"),
                *(f"{one.discrepancy:.3g}", "{:.2g} to {:.2g}".format(*one.interval)),
            )
            for one in self.points
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

    The discrepancy of the two sides of each split of many intervals, whose lengths decrease
    geometrically, is compared with its largest value over all of them where the order of the units
    is permuted. So the level holds for all positions and lengths together, however much the rows of
    one unit depend on each other, as long as the units could have come in any order. Blocks of
    successive units are permuted if units depend on their neighbours (``serial``). Of the splits
    beyond that bound, those of the shortest intervals are taken first, since these have one change
    at most.

    Units count by their effective numbers of rows, and differences are divided by the noise of
    units of their sizes. So the level nearly holds where units grow along the sequence: at 5 %,
    changes were found in 2 to 5 % of 400 draws without any, of 60 units from 5 to 100 or from 2 to
    500 rows. A sudden step from 3 to 300 rows is one in 3 to 10 %, and a warning tells of it.

    Parameters
    ----------
    units
        Sketches in their order in time, such as one for each night. Those without samples are left
        out.
    strata
        Stratum of each unit, such as its weekday: array-like of any labels, shape (n_units,). Units
        are compared with the mean of their stratum and permuted within it. By default all are in
        one.
    serial
        Whether units depend on their neighbours. Then blocks of as many units as the square root of
        their number are permuted, across strata; the level holds about if dependence ends after
        fewer units.
    times
        Time of each unit, such as the number of a night of several units: array-like of numbers,
        shape (n_units,). Units are put in this order, and the distribution changes only between
        different times. The default is a time of its own for each unit, in the order of the labels.
    min_units
        Smallest number of units between two change points, ``>= 1``.
    level
        Chance to find any change where there is none, in (0, 1).
    n_permutations
        Number of random orders, ``>= 1``. The default is 999, or more if the level is small.
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
    n_draws = default_number(level) if n_permutations is None else n_permutations
    n_draws = require_integer("n_permutations", n_draws, 1)
    least = require_integer("min_units", min_units, 1)
    seed = require_integer("seed", seed, 0)
    if not isinstance(units, SketchGroup):
        raise InputError(
            f"units of type {type(units).__name__}: give a group of sketches in the order of time; "
            "call .compute() on a lazy one."
        )
    kept = units.total_weight > 0
    if kept.sum() < 2:
        raise InputError(
            f"units has {int(kept.sum())} sketches of samples: give one for each of several nights."
        )
    initial = np.arange(len(units)) <= int(np.argmax(kept))
    one_side = units_of(units.select(initial), units.select(~initial), strata)
    one_side, labels, can_change = _ordered(units, one_side, kept, times)
    n = len(one_side)
    block = math.isqrt(n) if serial else 1
    sizes = [n // block] if serial else np.bincount(one_side.strata).tolist()
    n_orders = math.prod(map(math.factorial, sizes))
    if n < 2 * least or n_orders < 1.0 / level:
        raise InputError(
            f"units has {n} sketches of samples: give {max(2 * least, 8)} or more for min_units="
            f"{least} and level={level:g}, or fewer strata.",
            parameter="units",
        )
    if 1.0 / (n_draws + 1) > level:
        raise InputError(
            f"n_permutations={n_draws}: no p-value is under {1.0 / (n_draws + 1):.2g} with them. "
            f"Take {math.ceil(1.0 / level)} or more.",
            parameter="n_permutations",
        )
    splits = np.array(list(_splits(n, least)), dtype=np.intp)
    splits = splits[can_change[splits[:, 1]]]
    if not len(splits):
        raise InputError(
            f"times has no change that is {least} or more units (min_units) from both ends: give "
            "a smaller min_units, or more units.",
            parameter="times",
        )
    require_memory("n_permutations", n_draws, 8 * _KINDS)
    _warn_of_dominant(one_side.sizes, labels, units.dim, level)
    _warn_of_step(one_side.sizes, labels, units.dim)
    with one_blas_thread():
        vectors = _directions(one_side)
        null = _permuted(one_side, vectors, splits, n_draws, seed, block)
        observed = null.observed(one_side, vectors, splits)
        found = _narrowest(splits, observed, null.largest, level, least)
        found = _refined(found, can_change, least, partial(null.observed, one_side, vectors))
        points = _described(one_side, found, labels.tolist(), level)
    p_value = float(_p_values(observed.max()[None], null.largest)[0])
    return ChangePoints(
        points=points,
        p_value=p_value,
        level=level,
        dim=units.dim if times is None else "time",
        n_units=n,
        n_strata=int(one_side.strata.max()) + 1,
        n_permutations=n_draws + 1,
    )


def _warn_of_dominant(sizes: Array, labels: NDArray[Any], dim: str, level: float) -> None:
    """Warn of a unit with so many of the rows that the level does not hold where units differ."""
    largest = int(np.argmax(sizes))
    share = float(sizes[largest] / sizes.sum())
    if len(sizes) >= _FEWEST_UNITS and share > _DOMINANT:
        warn_user(
            f"{dim} {labels[largest]} has {share:.0%} of the effective rows: where units differ "
            f"from each other, changes are then found more often than level={level:g} says (in "
            "13 % of draws at 5 %, with 84 % of the rows). Leave it out, or divide it into units "
            "like the others."
        )


def _warn_of_step(sizes: Array, labels: NDArray[Any], dim: str) -> None:
    """Warn of a step of the sizes of units, at which the level holds less well."""
    n = len(sizes)
    before = np.arange(3, n - 2)  # numbers of units before the step
    if not len(before):
        return
    # the division of the logarithms of the sizes into two parts that leaves the smallest squares
    logs = np.log(sizes) - np.log(sizes).mean()
    first = int(before[np.argmax(np.cumsum(logs)[before - 1] ** 2 / (before * (n - before)))])
    earlier, later = float(np.median(sizes[:first])), float(np.median(sizes[first:]))
    if max(earlier, later) > _MAX_STEP * min(earlier, later):
        warn_user(
            f"units before {dim} {labels[first]} have {earlier:,.4g} rows, those from it on "
            f"{later:,.4g} (medians of effective numbers): with a step from 3 to 300 rows, changes "
            "were found in 3 to 10 % of draws without any, at a level of 5 %. Merge the small "
            "units with merge_by(), divide the large ones, or search both parts by themselves."
        )


def _ordered(
    group: SketchGroup, units: Units, kept: NDArray[np.bool_], times: Any
) -> tuple[Units, NDArray[Any], NDArray[np.bool_]]:
    """Units in the order of time, their labels, and whether a change can be before each of them."""
    n = len(units)
    if times is None:
        return units, np.asarray(group.labels)[kept], np.ones(n, dtype=bool)
    found = np.asarray(times)
    if found.shape != kept.shape or found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        raise InputError(
            f"times of shape {found.shape} and dtype {found.dtype}: give a finite number for each "
            f"of the {len(kept):,} units.",
            parameter="times",
        )
    order = np.argsort(found[kept], kind="stable")
    labels = found[kept][order]
    arrays = ("vectors", "means", "variances", "masses", "sizes", "strata")
    units = replace(units, **{name: getattr(units, name)[order] for name in arrays})
    return units, labels, np.concatenate([[False], labels[1:] != labels[:-1]])


def _splits(n: int, least: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, split and end of all splits of seeded intervals."""
    length, seen = float(n), set()
    while round(length) >= 2 * least:
        size = round(length)
        number = 1 if size == n else 2 * math.ceil(n / length) - 1
        for start in np.rint(np.linspace(0, n - size, number)).astype(int).tolist():
            if (start, size) not in seen:
                seen.add((start, size))
                for split in range(start + least, start + size - least + 1):
                    yield start, split, start + size
        length /= _DECAY


def _directions(units: Units) -> list[Array]:
    """Vectors of the units in their main directions, plain and whitened."""
    centred = units.centred(units.vectors)
    left, values, _ = np.linalg.svd(np.sqrt(units.sizes)[:, None] * centred, full_matrices=False)
    kept = values**2 > _TINY * max(float(values[0]) ** 2, _TINY)
    left, values = left[:, kept][:, :_DIRECTIONS], values[kept][:_DIRECTIONS]
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
        Largest statistic of all kinds in their units, shape (n_orders,), the observed order first.
    """

    mean: Array
    deviation: Array
    largest: Array

    def observed(self, units: Units, vectors: list[Array], splits: NDArray[np.intp]) -> Array:
        """Largest statistic of each split in the observed order, in the same units."""
        scaled = [
            (_statistics(one, units.sizes, _noise(units, one), splits) - mean) / deviation
            for one, mean, deviation in zip(vectors, self.mean, self.deviation, strict=True)
        ]
        return np.asarray(np.max(scaled, axis=0))


def _permuted(
    units: Units,
    vectors: list[Array],
    splits: NDArray[np.intp],
    n_draws: int,
    seed: int,
    block: int,
) -> _Null:
    """Permute the order of the units within their strata, or that of blocks of units."""
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(units.strata == code) for code in range(units.strata.max() + 1)]
    largest = np.empty((n_draws + 1, len(vectors)))
    order = np.arange(len(units))
    noise = [_noise(units, one) for one in vectors]
    for draw in range(n_draws + 1):
        if block > 1 and draw:
            order = _blocks(rng, len(units), block)
        for rows in members if draw and block == 1 else []:
            order[rows] = rng.permutation(rows)
        for k, one in enumerate(vectors):
            own = units.sizes[order], noise[k][order]
            largest[draw, k] = _statistics(one[order], *own, splits).max()
    mean, deviation = largest.mean(axis=0), largest.std(axis=0)
    deviation[deviation == 0.0] = np.inf
    return _Null(mean, deviation, np.max((largest - mean) / deviation, axis=1))


def _blocks(rng: np.random.Generator, n: int, block: int) -> NDArray[np.intp]:
    """Order of ``n`` units in permuted blocks, which begin at random places of the circle."""
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

    So units that grow along the sequence, whose noise falls, are no change.
    """
    start, middle, end = splits.T
    size, sums, squares = (
        np.concatenate([np.zeros((1, one.shape[1])), np.cumsum(one, axis=0)])
        for one in (sizes[:, None], sizes[:, None] * vectors, (sizes**2 * noise)[:, None])
    )
    before, after = (size[middle] - size[start])[:, 0], (size[end] - size[middle])[:, 0]
    # sides so light beside the others that rounding hides them say nothing
    seen = np.minimum(before, after) > _TINY * size[-1, 0]
    before, after = np.where(seen, before, 1.0), np.where(seen, after, 1.0)
    gap = (sums[middle] - sums[start]) / before[:, None]
    gap -= (sums[end] - sums[middle]) / after[:, None]
    expected = (squares[middle] - squares[start])[:, 0] / before**2
    expected += (squares[end] - squares[middle])[:, 0] / after**2
    seen &= expected > 0.0
    lengths = np.einsum("ij,ij->i", gap, gap)
    return np.where(seen, lengths / np.where(seen, expected, 1.0), 0.0)


def _p_values(statistics: Array, largest: Array) -> Array:
    ordered = np.sort(largest)
    below = np.searchsorted(ordered, statistics - 1e-9 * np.abs(statistics), side="left")
    return np.asarray((len(ordered) - below) / len(ordered))


def _narrowest(
    splits: NDArray[np.intp], observed: Array, largest: Array, level: float, least: int
) -> dict[int, float]:
    """Positions of change points with their p-values."""
    p = _p_values(observed, largest)
    found: dict[int, float] = {}
    significant = np.flatnonzero(p <= level)
    lengths = splits[significant, 2] - splits[significant, 0]
    for k in significant[np.lexsort((-observed[significant], lengths))]:
        start, middle, end = splits[k].tolist()
        apart = all(abs(middle - other) >= least for other in found)
        if apart and not any(start < other < end for other in found):
            found[middle] = float(p[k])
    return dict(sorted(found.items()))


def _refined(
    found: dict[int, float],
    can_change: NDArray[np.bool_],
    least: int,
    observed: Callable[[NDArray[np.intp]], Array],
) -> dict[int, float]:
    """Move each change point to the best split between its neighbours."""
    edges, out = [0, *found, len(can_change)], {}
    for k, p_value in enumerate(found.values()):
        start, end = edges[k], edges[k + 2]
        middle = np.arange(start + least, end - least + 1)
        middle = middle[can_change[middle]]
        splits = np.column_stack([np.full_like(middle, start), middle, np.full_like(middle, end)])
        edges[k + 1] = int(middle[np.argmax(observed(splits))])
        out[edges[k + 1]] = p_value
    return out


def _described(
    units: Units, found: dict[int, float], labels: list[Any], level: float
) -> tuple[ChangePoint, ...]:
    edges = [0, *found, len(units)]
    points = []
    for k, (position, p_value) in enumerate(found.items()):
        near = np.arange(edges[k], edges[k + 2])
        codes = np.unique(units.strata[near], return_inverse=True)[1]
        arrays = ("vectors", "means", "variances", "masses", "sizes")
        both = replace(
            units,
            **{name: getattr(units, name)[near] for name in arrays},
            first=near < position,
            strata=codes,
        )
        effect = effect_of(both)
        size, interval = math.sqrt(max(effect.squared, 0.0)), effect.interval(level)
        points.append(ChangePoint(labels[position], position, p_value, size, interval))
    return tuple(points)
