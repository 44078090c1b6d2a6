"""Test of two sides of few units, along directions that are estimated from other units."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dask_sketch.diagnostics.mmd import feature_scales
from dask_sketch.distributions.testing.permutations import holm_p_values
from dask_sketch.distributions.testing.row_covariance import pilot_mixture, row_covariance
from dask_sketch.distributions.testing.units import Units

Array = NDArray[np.float64]
MIN_UNITS = 3  # smallest number of units of a side: one for the direction, two tested along it
_DIRECTION_FRACTION = 3  # one in three units of the smaller side is for the direction
_MAX_SPLITS = 50
_RIDGE = 0.001  # ridge of directions that are whitened by rows, relative to the largest eigenvalue
_MAX_WHITENED = 512  # frequencies that are whitened together
_ROUNDING = 1e-12  # rounding error of scores, relative to the largest one
_UNEQUAL = 2.0  # ratio of the median sizes of units of both sides from which they are unequal


@dataclass(frozen=True)
class CrossTest:
    """P-value of a difference between two sides.

    Attributes
    ----------
    p_value
        P-value of the hypothesis that both sides have one distribution, in (0, 1].
    n_splits
        Number of splits of the units.
    is_complete
        Whether these are all splits of the units.
    """

    p_value: float
    n_splits: int
    is_complete: bool


def cross_test(units: Units, seed: int) -> CrossTest:
    """Test the difference of two sides along directions that do not depend on the tested units.

    The units of both sides are split. The difference of the means of some units is a direction. The
    other units are projected on it: two thirds of the units of the smaller side, and as many units
    of the other side. The projections of both sides are compared by Welch's test, which allows for
    units of different sizes, and is conservative for few units (Ibragimov and Müller, 2016).

    This is the statistic of Shekhar, Kim and Ramdas (2022), for units in place of rows. Directions
    are plain, and also whitened by the covariance of rows if the feature map has a mixture of pilot
    rows. The p-values of many splits are combined by the rule of Liu and Xie (2020), which holds
    for dependent p-values.

    Parameters
    ----------
    units
        Units of both sides, three of each or more. Each unit counts the same.
    seed
        Seed of the splits, if there are more than 50 of them, ``>= 0``.

    Returns
    -------
    test
        P-value, and the number of splits.

    References
    ----------
    Shekhar, Kim, Ramdas (2022), A permutation-free kernel two-sample test, NeurIPS 35. Ibragimov,
    Müller (2016), Inference with few heterogeneous clusters, Review of Economics and Statistics
    98(1). Liu, Xie (2020), Cauchy combination test, JASA 115(529).
    """
    vectors = units.centred(units.vectors)
    splits, is_complete = _splits(units.first, seed)
    tested = ~(splits != 0.0)
    p = []
    for gram in _grams(units, vectors):
        scores = splits @ gram
        scores[np.abs(scores) < _ROUNDING * np.abs(gram).max()] = 0.0
        sides = tested & units.first, tested & ~units.first
        # with the units of the direction, and of the side whose units vary more
        whole = [np.broadcast_to(side, scores.shape) for side in (units.first, ~units.first)]
        within = [_moments(scores, side)[1] for side in whole]
        of_units = np.maximum(*within)
        unequal = _has_unequal_sizes(units)
        p.append(_welch(scores, *sides, unequal=unequal, of_units=of_units)[0])
    return CrossTest(_combined(np.concatenate(p)), len(splits), is_complete)


def moment_p_values(units: Units) -> Array:
    """P-values of the differences of single features, adjusted for the number of features.

    The means and mean squares of the units are compared by Welch's test. If one side has fewer
    units, its degrees of freedom are used. The p-values are adjusted by the rule of Holm.

    Parameters
    ----------
    units
        Units of both sides.

    Returns
    -------
    p_values
        Adjusted p-values, shape (n_features,).
    """
    pooled, _ = units.moments()
    squares = units.variances + (units.means - pooled) ** 2
    values = np.concatenate([units.means.T, squares.T])
    # values that rounding of the moments leaves become zero
    values = values - values.mean(axis=1, keepdims=True)
    scale = np.maximum(np.abs(units.means).max(axis=0), np.sqrt(squares.max(axis=0)))
    values[np.abs(values) < _ROUNDING * np.concatenate([scale, scale**2])[:, None]] = 0.0
    side = np.broadcast_to(units.first, values.shape)
    upper, lower = _welch(values, side, ~side, unequal=_has_unequal_sizes(units))
    d = len(pooled)
    p = np.minimum(2.0 * np.minimum(upper, lower), 1.0).reshape(2, d)
    return holm_p_values(np.minimum(2.0 * p.min(axis=0), 1.0))


def _splits(first: NDArray[np.bool_], seed: int) -> tuple[Array, bool]:
    """Coefficients of the units in directions, (n_splits, n_units), and whether they are all."""
    sides = [np.flatnonzero(side) for side in (first, ~first)]
    # Welch's test does not hold its level for two units beside many: two vary too little by chance
    tested = min(len(side) - max(len(side) // _DIRECTION_FRACTION, 1) for side in sides)
    sizes = [len(side) - tested for side in sides]
    total = math.prod(math.comb(len(side), k) for side, k in zip(sides, sizes, strict=True))
    chosen = (
        itertools.product(*map(itertools.combinations, sides, sizes))
        if total <= _MAX_SPLITS
        else _random_splits(sides, sizes, seed)
    )
    splits = np.zeros((min(total, _MAX_SPLITS), len(first)))
    for row, both in zip(splits, chosen, strict=True):
        for sign, members, k in zip((1.0, -1.0), both, sizes, strict=True):
            row[np.asarray(members)] = sign / k
    return splits, total <= _MAX_SPLITS


def _random_splits(
    sides: Sequence[NDArray[np.intp]], sizes: Sequence[int], seed: int
) -> Iterator[list[NDArray[np.intp]]]:
    rng = np.random.default_rng(seed)
    for _ in range(_MAX_SPLITS):
        yield [rng.permutation(side)[:k] for side, k in zip(sides, sizes, strict=True)]


def _grams(units: Units, vectors: Array) -> Iterator[Array]:
    """Yield products of the units' vectors, plain and whitened, each (n_units, n_units)."""
    yield vectors @ vectors.T
    feature_map, rows = units.feature_map, pilot_mixture(units.feature_map)
    if rows is None or feature_map.n_frequencies > _MAX_WHITENED:
        return
    scale = np.tile(feature_scales(feature_map), 2)
    covariance = row_covariance(rows, feature_map.frequencies) * np.outer(scale, scale)
    covariance[np.diag_indices_from(covariance)] += _RIDGE * np.linalg.eigvalsh(covariance)[-1]
    yield vectors @ np.linalg.solve(covariance, vectors.T)


def _has_unequal_sizes(units: Units) -> bool:
    """Whether units of one side have clearly more rows than units of the other."""
    medians = [float(np.median(units.sizes[side])) for side in (units.first, ~units.first)]
    return max(medians) > _UNEQUAL * min(medians)


def _welch(
    scores: Array,
    first: NDArray[np.bool_],
    second: NDArray[np.bool_],
    *,
    unequal: bool,
    of_units: Array | None = None,
) -> tuple[Array, Array]:
    """P-values of a larger and of a smaller mean of the first side, each of shape (n,).

    Parameters
    ----------
    scores
        Scores of the units, shape (n, n_units).
    first, second
        Members of the sides, bool, shape (n, n_units).
    unequal
        Whether the units of the sides have different sizes, and so different variances.
    of_units
        Variance of a unit, shape (n,), for sides whose units are equal: few units of rare values
        often are by chance. By default that of the other side.
    """
    sides = first, second
    counts = [side.sum(axis=1) for side in sides]
    (mean, other), found = zip(*(_moments(scores, side) for side in sides), strict=True)
    of_units = np.maximum(*found) if of_units is None else of_units
    equal = (_ROUNDING * np.abs(scores).max()) ** 2
    variances = [
        np.where(each > equal, each, of_units) / n for each, n in zip(found, counts, strict=True)
    ]
    gap, variance = mean - other, variances[0] + variances[1]
    parts = sum(v**2 / (n - 1) for v, n in zip(variances, counts, strict=True))
    varies = parts > 0.0
    freedom = np.where(varies, variance**2 / np.where(varies, parts, 1.0), 1.0)
    # few units beside many, or noisy units beside others, may vary too little by chance, which
    # their own number allows for
    alike = (counts[0] == counts[1]) & (not unequal)
    freedom = np.where(alike, freedom, np.minimum(*counts) - 1)
    # a difference of units that do not vary is certain
    t = gap / np.sqrt(np.where(varies, variance, np.finfo(float).tiny))
    differs = varies | (gap != 0.0)
    larger, smaller = stats.t.sf(t, freedom), stats.t.cdf(t, freedom)
    return np.where(differs, larger, 1.0), np.where(differs, smaller, 1.0)


def _moments(scores: Array, side: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Means and variances of the scores of a side, each of shape (n,)."""
    n = side.sum(axis=1)
    mean = np.where(side, scores, 0.0).sum(axis=1) / n
    apart = np.where(side, scores - mean[:, None], 0.0)
    return mean, (apart**2).sum(axis=1) / (n - 1)


def _combined(p: Array) -> float:
    """Combine dependent p-values by the mean of their Cauchy quantiles (Liu and Xie, 2020)."""
    return float(stats.cauchy.sf(np.mean(stats.cauchy.isf(np.clip(p, 1e-300, 1.0 - 1e-15)))))
