"""Squared discrepancy of two sides with its error, from independent units of dependent rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from dask_sketch.distributions.testing.permutations import shifts_of
from dask_sketch.distributions.testing.units import Units

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Effect:
    """Squared maximum mean discrepancy of two sides, estimated without bias.

    Attributes
    ----------
    squared
        Squared discrepancy minus its expected noise; may be negative.
    noise_variance
        Variance of the estimate if both sides have one distribution; NaN for too few units.
    noise_third_moment
        Third central moment of the estimate if both sides have one distribution.
    direction_variance
        Variance of the difference of the sides in its own direction.
    degrees_of_freedom
        Degrees of freedom of both variances.
    """

    squared: float
    noise_variance: float
    noise_third_moment: float
    direction_variance: float
    degrees_of_freedom: float

    def variance(self, square: float) -> float:
        """Variance of the estimate where the squared discrepancy is ``square``."""
        return 4.0 * square * self.direction_variance + self.noise_variance

    def interval(self, level: float) -> tuple[float, float]:
        """Confidence interval of the discrepancy, between 0 and 2.

        The interval has all discrepancies that a test does not reject. The standard deviation of
        the estimate depends on the discrepancy, so that the interval solves a quadratic inequality.
        Its lower end is lower where the skewed squares of the noise of few units may explain it.

        Parameters
        ----------
        level
            Probability that the interval misses the discrepancy, in (0, 1).

        Returns
        -------
        low, high
            Ends of the interval.
        """
        if math.isnan(self.noise_variance):
            return 0.0, 2.0
        reach = float(stats.t.isf(level / 2.0, self.degrees_of_freedom)) ** 2
        # (squared - s)**2 <= reach * variance(s) is a quadratic inequality in s
        middle = self.squared + 2.0 * reach * self.direction_variance
        inside = middle**2 - self.squared**2 + reach * self.noise_variance
        half = math.sqrt(max(inside, 0.0))
        low, high = (float(x) for x in np.sqrt(np.clip([middle - half, middle + half], 0.0, 4.0)))
        return self._not_above(low, level / 2.0), high

    def _not_above(self, low: float, level: float) -> float:
        """Highest tolerance up to `low` that the estimate is significantly above."""
        if self.p_value_above(low) <= level:
            return low
        if self.p_value_above(0.0) > level:
            return 0.0
        return float(optimize.brentq(lambda x: self.p_value_above(x) - level, 0.0, low))

    def p_value_above(self, tolerance: float) -> float:
        """P-value of the hypothesis that the discrepancy is at most a tolerance.

        Parameters
        ----------
        tolerance
            Discrepancy, from 0 to 2.
        """
        if math.isnan(self.noise_variance):
            return 1.0
        square = tolerance**2
        excess, variance = self.squared - square, self.variance(square)
        if variance == 0.0:
            return 0.0 if excess > 0 else 1.0
        # Squares of noise are skewed: a shifted gamma distribution has the same three moments.
        # Student's distribution allows for a deviation from few units. The larger p-value is taken.
        third = self.noise_third_moment + 24.0 * square * self.direction_variance**2
        skewness = third / variance**1.5
        deviations = excess / math.sqrt(variance)
        student = stats.t.sf(deviations, self.degrees_of_freedom)
        return float(max(stats.pearson3.sf(deviations, skewness), student))


def effect_of(units: Units, *, serial: bool = False) -> Effect:
    """Estimate the squared discrepancy of the two sides, with the variance between units.

    The vectors of the units are regressed on sides and strata, weighted by the masses of the units.
    The coefficient of the side is the difference of both sides. Its covariance is estimated as for
    regression with unequal variances (HC2 of MacKinnon and White 1985; HC3 for units of twice the
    mean weight of their side or more), and the noise is subtracted from its square. The variance of
    the result has the two terms of eq. (6.6) of Sutherland (2016), for units in place of rows.

    Parameters
    ----------
    units
        Units of the comparison.
    serial
        Whether neighbouring units depend on each other, in the order of time from the second side
        to the first. The noise is then estimated from the same difference elsewhere in the
        sequence.

    Returns
    -------
    effect
        Estimate with its moments; NaN in place of moments that need more units.
    """
    design = np.eye(int(units.strata.max()) + 1)[units.strata]
    design = np.column_stack([units.first.astype(np.float64), design])
    inverse = np.linalg.pinv(design.T @ (units.masses[:, None] * design))
    projection = inverse @ (design.T * units.masses)
    leverage = np.einsum("ij,ji->i", design, projection)
    free = np.maximum(1.0 - leverage, 0.0)
    # Residuals of one unit that has most of the weight of its side are small. Variances of units
    # may not fall as their weights grow, so its variance is then estimated from the change of the
    # side without it (HC3), as in the HC4 of Cribari-Neto (2004).
    cells = np.unique(2 * units.strata + units.first, return_inverse=True)[1]
    even = 1.0 / np.bincount(cells)[cells]
    power = 0.5 * np.clip(leverage / even, 1.0, 2.0)
    coefficients = projection @ units.vectors
    difference = coefficients[0]
    residuals = units.vectors - design @ coefficients
    # a unit alone on its side and in its stratum has no residual
    scale = np.where(free > 1e-9, np.maximum(free, 1e-9) ** -power, 0.0)
    if serial:
        return _serial_effect(units, difference)
    noise = (projection[0] * scale)[:, None] * residuals
    gram = noise @ noise.T
    sides = units.first, ~units.first
    freedom = [float(free[side].sum()) for side in sides]
    traces = [float(np.trace(gram[np.ix_(side, side)])) for side in sides]
    squared = float(difference @ difference) - sum(traces)
    if min(freedom) <= 1.0 + 1e-9:  # the trace of a squared covariance needs three units
        return Effect(squared, math.nan, math.nan, math.nan, math.nan)
    square = 2.0 * float(np.sum(gram[np.ix_(*sides)] ** 2))
    for side, trace, free_side in zip(sides, traces, freedom, strict=True):
        within = float(np.sum(gram[np.ix_(side, side)] ** 2)) - trace**2 / free_side
        square += max(within, 0.0) * free_side**2 / ((free_side - 1.0) * (free_side + 2.0))
    length = float(difference @ difference)
    along = float(np.sum((noise @ difference) ** 2)) / length if length > 0 else 0.0
    parts = sum(t**2 / f for t, f in zip(traces, freedom, strict=True))
    welch = sum(traces) ** 2 / parts if parts > 0 else sum(freedom)
    third = 8.0 * float(np.sum((gram @ gram) * gram))
    return Effect(squared, 2.0 * square, third, along, welch)


def _serial_effect(units: Units, difference: Array) -> Effect:
    """Effect with the noise of the parts of the second side that are as long as the first side."""
    sides = shifts_of(units.first).sides
    sides = sides[~(sides & units.first).any(axis=1)]
    freedom = len(units) / int(units.first.sum()) - 2.0  # parts that do not overlap, less one
    length = float(difference @ difference)
    if freedom <= 1.0:
        return Effect(length, math.nan, math.nan, math.nan, math.nan)
    mine = sides @ units.masses
    coefficients = np.where(sides, 1.0 / mine[:, None], -1.0 / (units.masses.sum() - mine)[:, None])
    noise = (coefficients * units.masses) @ units.centred(units.vectors)
    squares = np.einsum("ij,ij->i", noise, noise)
    apart = squares - squares.mean()
    along = float(np.mean((noise @ difference) ** 2)) / length if length > 0 else 0.0
    moments = float(np.mean(apart**2)), float(np.mean(apart**3))
    return Effect(length - float(squares.mean()), *moments, along, freedom)
