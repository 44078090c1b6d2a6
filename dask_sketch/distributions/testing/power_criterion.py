"""Choose the statistic of a test by its estimated power on units that are not tested."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dask_sketch.distributions.testing.effect import effect_of
from dask_sketch.distributions.testing.statistics import weighted_bases
from dask_sketch.distributions.testing.units import Units
from dask_sketch.errors import InputError

MIN_FOLD = 3  # units of each side that are needed for the variance of a discrepancy


def fold_of(units: Units, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Choose a fraction of the units of each side and stratum at random.

    Parameters
    ----------
    units
        Units of both sides.
    fraction
        Fraction of the units, in (0, 1).
    seed
        Seed of the choice, ``>= 0``.

    Returns
    -------
    chosen
        Whether a unit is in the fold, bool, shape (n_units,).

    Raises
    ------
    InputError
        If fewer than three units of a side are in the fold, or no unit of a side is left.
    """
    rng = np.random.default_rng((seed, 1))
    chosen = np.zeros(len(units), dtype=bool)
    for stratum in np.unique(units.strata):
        for side in (units.first, ~units.first):
            members = np.flatnonzero(side & (units.strata == stratum))
            chosen[rng.permutation(members)[: round(fraction * len(members))]] = True
    sides = units.first, ~units.first
    counts = [int((chosen & side).sum()) for side in sides]
    left = [int((~chosen & side).sum()) for side in sides]
    if min(counts) < MIN_FOLD or not min(left):
        raise InputError(
            f"fold={fraction:g} has {counts[0]:,} and {counts[1]:,} units of the two sides, and "
            f"leaves {left[0]:,} and {left[1]:,}: give a fold with {MIN_FOLD} units or more of "
            "each side, which leaves enough to test.",
            parameter="fold",
        )
    return chosen


def most_powerful(units: Units) -> int:
    """Find the statistic with the largest squared discrepancy relative to its standard deviation.

    The criterion is ``t_U`` of Sutherland (2016), section 6.3, for units in place of rows.

    Parameters
    ----------
    units
        Units of both sides that are not tested.

    Returns
    -------
    position
        Position of the statistic among the columns of all weights of
        :func:`~dask_sketch.distributions.testing.statistics.weighted_bases`.
    """
    best, position, best_position = -math.inf, 0, 0
    for basis, weights in weighted_bases(units):
        for column in weights.T:
            effect = effect_of(replace(units, vectors=basis * np.sqrt(column)))
            variance = effect.variance(max(effect.squared, 0.0))
            if variance > 0.0 and effect.squared / math.sqrt(variance) > best:
                best, best_position = effect.squared / math.sqrt(variance), position
            position += 1
    return best_position
