"""Test whether two sets of columns are independent, by sketches of units."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_sketch.diagnostics.mmd import feature_scales, halves
from dask_sketch.display.html import card
from dask_sketch.display.text import describe, fields_text
from dask_sketch.distributions.testing.effect import Effect
from dask_sketch.distributions.testing.permutations import (
    checked_number,
    checked_smallest,
    combined_p_value,
    require_memory,
)
from dask_sketch.distributions.testing.statistics import MAX_BAND, RIDGES, bands
from dask_sketch.distributions.testing.units import strata_codes
from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.missing import refuse_missing
from dask_sketch.sources.group_labels import Labelled
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.tables import require_names_in
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
_BYTES = 2048  # bytes of all statistics of a draw
# There is a warning of covariances within units if their skewness is above the first number and
# above the second times the root of the number of units, and if less than the third, a fraction of
# the units, lies on one side of zero.
_SKEWED, _SKEWED_OF_MANY, _FEW_UNITS = 1.5, 0.3, 0.25
_MANY_UNITS = 1000
_TINY = 1e-300  # smallest eigenvalue to divide by
_NAMES = ("both", "first", "second")
_CONSTANT = 1e-9  # variance of a replaced column, relative to its variance in the rows


@dataclass(frozen=True, repr=False)
class IndependenceTest:
    """Result of :func:`compare_columns`; prints as a sentence and a table.

    Attributes
    ----------
    p_value
        Probability of a dependence at least as large if the columns are independent.
    smallest_p_value
        Smallest p-value that is possible with these numbers of units and permutations.
    dependence
        Root of the Hilbert-Schmidt independence criterion, from 0 to 2: the maximum mean
        discrepancy between the rows and rows with two independent sets of columns.
    squared
        Unbiased estimate of the squared dependence, which may be negative.
    interval
        Confidence interval of the dependence.
    level
        Level of the test, and 1 minus the coverage of the interval.
    dim
        Name of a unit.
    n_units
        Number of units.
    n_permutations
        Number of permutations and signs of the units, including the observed ones.
    """

    p_value: float
    smallest_p_value: float
    dependence: float
    squared: float
    interval: tuple[float, float]
    level: float
    dim: str
    n_units: int
    n_permutations: int

    @property
    def is_dependent(self) -> bool:
        """Whether a dependence was found at the level."""
        return self.p_value <= self.level

    @property
    def sentence(self) -> str:
        """Result in one sentence."""
        low, high = self.interval
        if self.is_dependent:
            return (
                f"The two sets of columns depend on each other (p = {self.p_value:.2g}): the "
                f"dependence is {self.dependence:.2g}, within [{low:.2g}, {high:.2g}]."
            )
        return (
            f"No dependence was found at the level of {self.level:.2g} (p = {self.p_value:.2g}); "
            f"one above {high:.2g} would probably have been."
        )

    def as_dict(self) -> dict[str, Any]:
        """All attributes and the verdict, as plain values."""
        return asdict(self) | {"is_dependent": self.is_dependent}

    def __repr__(self) -> str:
        return f"{self.sentence}\n\n{fields_text(describe(self.as_dict()))}"

    def _repr_html_(self) -> str:
        return card("IndependenceTest", describe(self.as_dict()), summary=self.sentence)


def split_columns(x: Any, columns: Any, feature_map: FeatureMap) -> tuple[Any, Any]:
    """Make two copies of rows, each with one set of columns replaced by constants.

    Parameters
    ----------
    x
        Rows: NumPy or Dask array, shape (n_samples, n_features), or the result of
        :func:`~dask_sketch.open_samples`, weights and labels included.
    columns
        Numbers or names of the columns of the first set. The other columns are the second set.
    feature_map
        Feature map of the sketches. Columns are replaced by its center.

    Returns
    -------
    first, second
        Rows with the columns of the first set, and with the columns of the second set, of the type
        and shape of ``x`` in float64. The other columns are constant.

    Raises
    ------
    InputError
        If there are no such columns, or no others, the rows have columns of other names than the
        feature map, it divides rows by their length, or opened samples are a bag.

    Examples
    --------
    >>> feature_map = FeatureMap(2, 10, scale=1.0)
    >>> first, second = split_columns(np.array([[1.0, 2.0], [3.0, 4.0]]), [0], feature_map)
    >>> first
    array([[1., 0.],
           [3., 0.]])
    >>> second
    array([[0., 2.],
           [0., 4.]])
    """
    names, d = feature_map.feature_names or (), feature_map.n_features
    chosen = np.zeros(d, dtype=bool)
    for column in columns if np.iterable(columns) and not isinstance(columns, str) else [columns]:
        position = names.index(column) if column in names else column
        if not isinstance(position, (int, np.integer)) or not 0 <= position < d:
            known = f", or names such as {names[0]!r}" if names else ""
            raise InputError(
                f"columns={columns!r}: give numbers from 0 to {d - 1}{known}.", parameter="columns"
            )
        chosen[position] = True
    if chosen.all() or not chosen.any():
        raise InputError(
            f"columns={columns!r}: give at least one of the {d} columns, and not all of them.",
            parameter="columns",
        )
    _require_plain(feature_map)
    mask = chosen.astype(np.float64)
    if isinstance(x, Samples):
        x.require_features(d, "the feature map", feature_map.feature_names)
        return _replaced(x, mask, feature_map.center), _replaced(x, 1.0 - mask, feature_map.center)
    require_names_in("x", x, feature_map.feature_names, "the feature map")
    # products, so that a row with NaN remains one in both
    first = x * mask + feature_map.center * (1.0 - mask)
    return first, x * (1.0 - mask) + feature_map.center * mask


def _replaced(samples: Samples, mask: Array, center: Array) -> Samples:
    """Replace the columns of samples by the center where ``mask`` is 0."""
    blocks = samples.blocks
    if not isinstance(blocks, da.Array):
        raise InputError(
            f"x is {samples.label}, a bag of blocks: give an array, a data frame or a path.",
            parameter="x",
        )
    if samples.weight_column:
        mask, center = np.append(mask, 1.0), np.append(center, 0.0)
    replaced = da.map_blocks(
        partial(_replaced_rows, mask=mask, offset=center * (1.0 - mask)),
        blocks,
        dtype=np.float64,
        meta=np.empty((0,) * blocks.ndim),
    )
    return replace(samples, blocks=replaced, cut=None, origin=None)


def _replaced_rows(block: Any, mask: Array, offset: Array) -> Any:
    if isinstance(block, Labelled):
        return block._replace(rows=block.rows * mask + offset)
    return block * mask + offset


def _require_plain(feature_map: FeatureMap) -> None:
    if feature_map.normalize:
        raise InputError(
            "feature_map with normalize=True: the length of a row depends on all columns. Take one "
            "without it.",
            parameter="feature_map",
        )


def compare_columns(
    both: SketchGroup,
    first: SketchGroup,
    second: SketchGroup,
    *,
    strata: Any = None,
    level: float = 0.05,
    n_permutations: int | None = None,
    seed: int = 0,
) -> IndependenceTest:
    """Test whether two sets of columns are independent, by sketches of independent units.

    The sketch of the rows is compared with the product of the sketches of either set of columns,
    frequency by frequency: this is the Hilbert-Schmidt independence criterion of the kernel of the
    feature map. All three are sketched in one pass over the data, as in the example.

    The difference has two parts: the covariance of the columns within the units, and the covariance
    of the means of the units. Both have mean zero if the columns are independent, however much the
    rows of one unit depend on each other. The null distribution of the first part has random signs
    of the units, and of the second part permuted units of one set of columns. So the level holds if
    units could have come in any order, and if their inner covariances are symmetric about zero, as
    covariances of many rows nearly are. With rare values they are not; the random signs then get at
    least the noise of permuted rows. At a level of 5 %, 20 units of 20, 60 and 100 independent rows
    with two values, one in 5, 5 and 2 % of the rows, were found dependent in 0, 4 and 0 % of 150
    to 300 draws; without the least noise in 25, 10 and 47 %.

    Both sets of columns depend on the position of a row in its unit if all units have a common
    course, such as a daily cycle or random walks that all start at zero. Then the pooled rows are
    dependent, and the test finds this even if the sets are independent at each position. Divide
    the rows by their mean size at the position, after taking off the mean.

    Parameters
    ----------
    both, first, second
        Sketches of the same units with one feature map: of the rows, and of the two results of
        :func:`split_columns`, in which the columns of the other set are constant.
    strata
        Stratum of each unit, such as its weekday: array-like of any labels, shape (n_units,).
        Units are compared with the mean of their stratum and permuted within it, so that a
        dependence of both sets of columns on the weekday does not count. By default all units are
        in one stratum. With 4 strata of 5 units, a dependence was found in 6.7 % of 600 draws
        without any, at a level of 5 %.
    level
        Probability of finding a dependence where there is none, in (0, 1).
    n_permutations
        Number of random permutations and signs, ``>= 1``. The default is 999, or more if the level
        is so small that its p-values need more.
    seed
        Seed of the permutations, ``>= 0``.

    Returns
    -------
    test
        P-value, and size of the dependence with its interval.

    Raises
    ------
    InputError
        If an argument is out of range, the three groups have different units, or the units are too
        few for the level.
    MergeError
        If the feature maps differ.

    References
    ----------
    Gretton, Fukumizu, Teo, Song, Schölkopf, Smola (2007), A kernel statistical test of
    independence. Wu (1986), Jackknife, bootstrap and other resampling methods in regression
    analysis (random signs).

    Examples
    --------
    >>> import dask
    >>> import dask.array as da
    >>> from dask_sketch import FeatureMap, sketch
    >>> rng, day = np.random.default_rng(0), np.arange(4000) % 20
    >>> x = rng.normal(size=(4000, 2))
    >>> x[:, 1] += x[:, 0] ** 2 - 1.0  # dependent, but not correlated
    >>> x = da.from_array(x, chunks=(1000, 2))
    >>> feature_map = FeatureMap(2, 100, scale=1.0, distribution="gaussian")
    >>> rows = [x, *split_columns(x, [0], feature_map)]
    >>> groups = dask.compute(*[sketch(one, feature_map, groups=day) for one in rows])
    >>> compare_columns(*groups).is_dependent
    True
    """
    level = require_number("level", level, 0.0, 1.0, strict=True)
    n_permutations = checked_number(n_permutations, level)
    seed = require_integer("seed", seed, 0)
    (both, first, second), codes = _same_units(both, first, second, strata=strata)
    n, m = len(both), both.feature_map.n_frequencies
    of_units = 0.5 ** (n - 1)  # a statistic does not change where all signs change
    remedy = "Give more units, or a larger level."
    smallest = checked_smallest(
        of_units, n_permutations, level, f"{n:,} units ({both.dim})", remedy
    )
    require_memory("n_permutations", n_permutations, 8 * n + 32 * m + _BYTES)
    with one_blas_thread():
        fractions = both.total_weight / both.total_weight.sum()
        variance = fractions @ (both.variance + (both.mean - fractions @ both.mean) ** 2)
        columns = list(bands(both.feature_map, variance))
        parts = _parts(both, first, second, fractions, codes).with_smallest_noise(columns)
        _warn_of_skewness(parts, both.dim)
        draws = parts.draws(n_permutations, seed)
        statistics: list[Array] = []
        for band in columns:
            statistics.append(np.asarray(np.einsum("ij,ij->i", draws[:, band], draws[:, band])))
            if len(band) <= 2 * MAX_BAND:
                statistics += _whitened(draws[:, band], parts.covariance(band[: len(band) // 2]))
        p_value = combined_p_value(np.array(statistics))
        effect = _effect(halves(parts.within + parts.first * parts.second))
    return IndependenceTest(
        p_value=p_value,
        smallest_p_value=smallest,
        dependence=math.sqrt(max(effect.squared, 0.0)),
        squared=effect.squared,
        interval=effect.interval(level),
        level=level,
        dim=both.dim,
        n_units=n,
        n_permutations=len(draws),
    )


def _warn_of_skewness(parts: _Parts, dim: str) -> None:
    """Warn of covariances within units that are not symmetric about zero.

    Random signs assume this symmetry. It fails if rare values of both sets seldom meet in a row of
    a unit. There is no warning where the signs have the noise of independent rows, which is more.
    """
    if parts.factors is not None and parts.factors.max() > 1.0:
        return
    within, between = halves(parts.within), parts.first * parts.second
    if len(within) > _MANY_UNITS:  # the sum of many units is nearly normal
        return
    scores = within @ np.linalg.svd(within, full_matrices=False)[2][0]
    squared = float(np.mean(scores**2))
    if squared == 0.0 or np.sum(within**2) < np.sum(np.abs(between) ** 2):
        return
    n, side = len(within), float(np.mean(scores > 0.0))
    skewness = abs(float(np.mean(scores**3))) / squared**1.5
    limit = max(_SKEWED, _SKEWED_OF_MANY * math.sqrt(n))
    if skewness > limit and min(side, 1.0 - side) < _FEW_UNITS:
        warn_user(
            f"the covariances inside of the {n:,} units ({dim}) have skewness {skewness:.2g}, as "
            "with rare values or few rows: p-values may be too small, above all p-values under "
            "1 %. Take units of more rows."
        )


def _same_units(*groups: SketchGroup, strata: Any) -> tuple[list[SketchGroup], NDArray[np.intp]]:
    """Validate the three groups, and select units with samples; also codes of their strata."""
    for name, group in zip(_NAMES, groups, strict=True):
        if not isinstance(group, SketchGroup):
            raise InputError(
                f"{name} of type {type(group).__name__}: give a group of sketches, one for each "
                "independent unit such as a day; call .compute() on a lazy one.",
                parameter=name,
            )
        refuse_missing(name, group)
    both = groups[0]
    _require_plain(both.feature_map)
    for name, group in zip(_NAMES[1:], groups[1:], strict=True):
        both.feature_map.require_same(group.feature_map)
        if list(group.labels) != list(both.labels) or not np.array_equal(group.count, both.count):
            raise InputError(
                f"{name} has {len(group):,} units of {int(group.count.sum()):,} rows, both has "
                f"{len(both):,} of {int(both.count.sum()):,}: give sketches of the same rows.",
                parameter=name,
            )
    codes = strata_codes(strata, both.labels)[both.total_weight > 0]
    selected = [group.select(group.total_weight > 0) for group in groups]
    if not len(selected[0]):
        raise InputError("both has no samples: there is nothing to test.", parameter="both")
    limit = _CONSTANT * selected[0].variance.max(axis=0)
    varies = [(group.variance.max(axis=0) > limit) for group in selected[1:]]
    if (varies[0] & varies[1]).any():
        feature = int(np.argmax(varies[0] & varies[1]))
        raise InputError(
            f"second has feature {feature} that varies, as it does in first: give sketches of both "
            "results of split_columns().",
            parameter="second",
        )
    return selected, np.asarray(np.unique(codes, return_inverse=True)[1], dtype=np.intp)


@dataclass(frozen=True, eq=False)
class _Parts:
    """Parts of the sketch of all rows minus the product of the sketches of the columns.

    Attributes
    ----------
    within
        Covariance of the features within each unit, times the share of the unit in the rows;
        complex, shape (n_units, n_frequencies).
    first, second
        Means of the features of each unit minus the mean of its stratum, for both sets of columns;
        ``first`` is multiplied by the share. Complex, of the same shape.
    smallest
        Variance of ``within`` if the rows of a unit were permuted in one set of columns; dependent
        rows have more. Shape (n_units, n_frequencies).
    strata
        Code of the stratum of each unit, shape (n_units,).
    factors
        Factors of ``within`` in the draws, shape (n_frequencies,); all 1 by default.
    """

    within: NDArray[np.complex128]
    first: NDArray[np.complex128]
    second: NDArray[np.complex128]
    smallest: Array
    strata: NDArray[np.intp]
    factors: Array | None = None

    def with_smallest_noise(self, columns: list[NDArray[np.intp]]) -> _Parts:
        """Give the random signs in each band no less noise than independent rows would have.

        By chance, rare values of both sets may meet in no row: then all covariances are small and
        of one sign, and random signs alone would show too little noise.

        Parameters
        ----------
        columns
            All frequencies and then bands of them, from
            :func:`~dask_sketch.distributions.testing.statistics.bands`.
        """
        n, m = self.within.shape
        factors, noise = np.ones(m), np.abs(self.within) ** 2
        # the noise of n units has about this relative error, which is allowed for
        allowed = max(1.0 - math.sqrt(2.0 / n), 0.0)
        for band in columns:  # the last one of each frequency counts
            chosen = band[: len(band) // 2]
            smallest, observed = (
                float(self.smallest[:, chosen].sum()),
                float(noise[:, chosen].sum()),
            )
            factors[chosen] = (
                math.sqrt(max(allowed * smallest / observed, 1.0)) if observed > 0.0 else 1.0
            )
        return replace(self, factors=factors)

    def noise(self) -> NDArray[np.complex128]:
        """Covariances within the units whose signs are random, (n_units, n_frequencies)."""
        return self.within if self.factors is None else self.within * self.factors

    def members(self) -> list[NDArray[np.intp]]:
        """Units of each stratum."""
        return [np.flatnonzero(self.strata == code) for code in range(self.strata.max() + 1)]

    def draws(self, n_permutations: int, seed: int) -> Array:
        """Differences, observed and for random signs and permutations, (n_draws, 2 m)."""
        rng, n = np.random.default_rng(seed), len(self.within)
        out = np.empty((n_permutations + 1, 2 * self.within.shape[1]))
        signs, noise = np.ones(n), self.noise()
        order, members, within = np.arange(n), self.members(), self.within
        for draw in range(n_permutations + 1):
            if draw:
                within = noise
                signs = np.where(rng.integers(0, 2, size=n), -1.0, 1.0)
                for units in members:
                    order[units] = rng.permutation(units)
            total = signs @ within + np.einsum("ij,ij->j", self.first, self.second[order])
            out[draw] = halves(total)
        return out

    def covariance(self, band: NDArray[np.intp]) -> Array:
        """Covariance of the draws at some frequencies, real and imaginary parts side by side."""
        within = halves(self.noise()[:, band])
        plain, pseudo = np.zeros((2, len(band), len(band)), dtype=np.complex128)
        for units in self.members():
            a, b = (side[units][:, band] for side in (self.first, self.second))
            # sums over every two units of products with conjugates, and of plain products
            plain += (a.T @ a.conj()) * (b.T @ b.conj()) / len(a)
            pseudo += (a.T @ a) * (b.T @ b) / len(a)
        below = 0.5 * (plain + pseudo).imag
        between = np.block(
            [[0.5 * (plain + pseudo).real, below.T], [below, 0.5 * (plain - pseudo).real]]
        )
        return np.asarray(within.T @ within + between)


def _parts(
    both: SketchGroup,
    first: SketchGroup,
    second: SketchGroup,
    fractions: Array,
    strata: NDArray[np.intp],
) -> _Parts:
    feature_map = both.feature_map
    # the constant columns are at the center, so that the product has its phase as a factor
    phase = np.exp(1j * (feature_map.center @ feature_map.frequencies))
    a, b = first.characteristic() * phase, second.characteristic()
    scale = fractions[:, None] * feature_scales(feature_map)
    within = scale * (both.characteristic() - a * b)
    # means of the strata, in the weights of the units
    members = np.eye(int(strata.max()) + 1)[strata]
    mean = members @ (members / (fractions @ members)).T * fractions
    counts = both.effective_count
    rows = np.where(counts > 0.0, counts, both.total_weight)[:, None]
    spread = [np.maximum(1.0 - np.abs(side) ** 2, 0.0) for side in (a, b)]
    smallest = scale**2 * spread[0] * spread[1] / np.maximum(rows - 1.0, 1.0)
    return _Parts(within, scale * (a - mean @ a), b - mean @ b, smallest, strata)


def _whitened(draws: Array, covariance: Array) -> list[Array]:
    """Statistics whitened by a covariance that is the same for all draws, (n_draws,) each ridge."""
    eigenvalues, basis = np.linalg.eigh(covariance)
    values = np.maximum(eigenvalues, 0.0)
    squares = (draws @ basis) ** 2
    return [squares @ (1.0 / (values + ridge * values[-1] + _TINY)) for ridge in RIDGES]


def _effect(parts: Array) -> Effect:
    """Squared length of the sum of independent vectors, with its error."""
    n = len(parts)
    total, freedom = parts.sum(axis=0), n - 1.0
    length = float(total @ total)
    if n < 3:
        return Effect(length, math.nan, math.nan, math.nan, math.nan)
    noise = (parts - parts.mean(axis=0)) * math.sqrt(n / freedom)
    gram = noise @ noise.T
    trace = float(np.trace(gram))
    square = max(float(np.sum(gram**2)) - trace**2 / freedom, 0.0)
    square *= freedom**2 / ((freedom - 1.0) * (freedom + 2.0))
    along = float(np.sum((noise @ total) ** 2)) / length if length > 0 else 0.0
    third = 8.0 * float(np.sum((gram @ gram) * gram))
    return Effect(length - trace, 2.0 * square, third, along, freedom)
