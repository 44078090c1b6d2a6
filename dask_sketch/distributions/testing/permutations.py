"""Permutations of the sides of units, and the p-values that they give."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import psutil
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import require_integer

Array = NDArray[np.float64]
_ROUNDING = 1e-9  # relative difference of statistics that are equal but for rounding
_TIE = 1e-6  # relative difference of standardised statistics that are tied
_PER_LEVEL, _LARGEST = 5.0, 1e18  # default number, multiplied by the level, and its bound
# bytes of an assignment: for each unit, and for all statistics
_BYTES, _STATISTICS_BYTES = 25, 2048


@dataclass(frozen=True, eq=False)
class Permutations:
    """Assignments of units to sides that are equally likely where both sides are alike.

    Attributes
    ----------
    sides
        Whether a unit is on the first side, bool, shape (n_assignments, n_units); the observed
        assignment first.
    is_complete
        Whether these are all assignments, rather than random ones.
    smallest
        Smallest p-value that can be reached.
    """

    sides: NDArray[np.bool_]
    is_complete: bool
    smallest: float


def permutations_of(
    first: NDArray[np.bool_], strata: NDArray[np.intp], n_permutations: int, seed: int
) -> Permutations:
    """Permute the sides of units within their strata.

    All assignments are listed where there are no more than ``n_permutations + 1`` of them.

    Parameters
    ----------
    first
        Whether a unit is on the first side, shape (n_units,).
    strata
        Code of the stratum of each unit, shape (n_units,).
    n_permutations
        Number of random permutations, ``>= 1``.
    seed
        Seed of the permutations, ``>= 0``.

    Raises
    ------
    InputError
        If they do not fit into the free memory.

    Examples
    --------
    >>> two_and_two = np.array([True, True, False, False])
    >>> found = permutations_of(two_and_two, np.zeros(4, dtype=int), 99, seed=0)
    >>> len(found.sides), found.smallest
    (6, 0.3333333333333333)
    """
    members, taken = _sizes(first, strata)
    total = _n_assignments(members, taken)
    n = min(total, n_permutations + 1)
    require_memory("n_permutations", n, _BYTES * len(first) + _STATISTICS_BYTES)
    smallest = smallest_p_value(first, strata)
    if total <= n_permutations + 1:
        sides = np.array(list(_assignments(members, taken, len(first))))
        observed = (sides == first).all(axis=1)
        sides = np.concatenate([first[None], sides[~observed]])
        return Permutations(sides, True, smallest)
    rng = np.random.default_rng(seed)
    sides = np.repeat(first[None], n_permutations + 1, axis=0)
    for rows in members:
        sides[1:, rows] = rng.permuted(sides[1:, rows], axis=1)
    return Permutations(sides, False, max(smallest, 1.0 / (n_permutations + 1)))


def shifts_of(first: NDArray[np.bool_]) -> Permutations:
    """Shift the sides along a sequence of units whose end is joined to its beginning.

    Parameters
    ----------
    first
        Whether a unit is on the first side, shape (n_units,), in the order of time.

    Raises
    ------
    InputError
        If the shifts do not fit into the free memory.

    Examples
    --------
    >>> shifts_of(np.array([True, False, False])).sides.astype(int)
    array([[1, 0, 0],
           [0, 1, 0],
           [0, 0, 1]])
    """
    n = len(first)
    require_memory("units", n, _BYTES * n + _STATISTICS_BYTES)
    sides = first[(np.arange(n) - np.arange(n)[:, None]) % n]
    return Permutations(sides, True, smallest_shifted_p_value(first))


def smallest_shifted_p_value(first: NDArray[np.bool_]) -> float:
    """Smallest p-value that the shifts of :func:`shifts_of` can have.

    Parameters
    ----------
    first
        Whether a unit is on the first side, shape (n_units,).
    """
    # a statistic does not change where all units change sides
    return (2 if 2 * first.sum() == len(first) else 1) / len(first)


def default_number(level: float) -> int:
    """Number of permutations or draws, such that p-values near a level have little noise.

    Parameters
    ----------
    level
        Level of the test, in (0, 1).

    Examples
    --------
    >>> default_number(0.05), default_number(0.001)
    (999, 5000)
    """
    return max(999, math.ceil(min(_PER_LEVEL / max(level, 1e-300), _LARGEST)))


def checked_number(given: int | None, level: float, name: str = "n_permutations") -> int:
    """Validate the number of permutations or draws of a test; None for the default of its level.

    Parameters
    ----------
    given
        Number, ``>= 1``, or None.
    level
        Level of the test, in (0, 1).
    name
        Name of the argument.

    Raises
    ------
    InputError
        If the number is out of range.
    """
    return default_number(level) if given is None else require_integer(name, given, 1)


def require_small_p_values(name: str, number: int, level: float) -> None:
    """Raise if no p-value of a number of random permutations or draws is at most a level.

    Parameters
    ----------
    name
        Name of the argument that is the number.
    number
        Number of permutations or draws.
    level
        Level of the test.

    Raises
    ------
    InputError
        If they are too few.
    """
    smallest = 1.0 / (number + 1)
    if smallest > level:
        raise InputError(
            f"{name}={number}: no p-value is under {smallest:.2g} with them. Take "
            f"{math.ceil(1.0 / level)} or more for level={level:g}.",
            parameter=name,
        )


def checked_smallest(
    of_units: float, n_permutations: int, level: float, units: str, remedy: str
) -> float:
    """Smallest p-value of random permutations of some units; raise if it exceeds the level.

    Parameters
    ----------
    of_units
        Smallest p-value of all permutations of the units.
    n_permutations
        Number of random permutations.
    level
        Level of the test.
    units
        Number of units, for the message.
    remedy
        Remedy where the units are too few, for the message.

    Raises
    ------
    InputError
        If the units or the permutations are too few.
    """
    smallest = max(of_units, 1.0 / (n_permutations + 1))
    if smallest > level:
        if of_units <= level:
            remedy = f"Take n_permutations={math.ceil(1.0 / level)} or more."
        raise InputError(
            f"level={level:g} with {units}: no p-value is under {smallest:.2g} with them. {remedy}",
            parameter="level",
        )
    return smallest


def require_memory(name: str, number: int, n_bytes: int) -> None:
    """Raise if permutations or draws do not fit into the free memory.

    Parameters
    ----------
    name
        Name of the argument that is the number.
    number
        Number of permutations or draws.
    n_bytes
        Number of bytes of each.

    Raises
    ------
    InputError
        If they do not fit.
    """
    if number * n_bytes > psutil.virtual_memory().available:
        raise InputError(
            f"{name}={number:,}: they take {number * n_bytes / 1e9:.3g} GB, more than the free "
            "memory. Give a smaller number, or a larger level, from which the default follows.",
            parameter=name,
        )


def smallest_p_value(first: NDArray[np.bool_], strata: NDArray[np.intp]) -> float:
    """Smallest p-value that the permutations of units can have.

    Parameters
    ----------
    first
        Whether a unit is on the first side, shape (n_units,).
    strata
        Code of the stratum of each unit, shape (n_units,).
    """
    members, taken = _sizes(first, strata)
    # a statistic does not change where all units change sides, if that is a permutation
    alike = 2 if all(len(r) == 2 * k for r, k in zip(members, taken, strict=True)) else 1
    return alike / _n_assignments(members, taken)


def _sizes(
    first: NDArray[np.bool_], strata: NDArray[np.intp]
) -> tuple[list[NDArray[np.intp]], list[int]]:
    """Units of each stratum, and the number of them on the first side."""
    members = [np.flatnonzero(strata == code) for code in np.unique(strata)]
    return members, [int(first[rows].sum()) for rows in members]


def _n_assignments(members: list[NDArray[np.intp]], taken: list[int]) -> int:
    return math.prod(math.comb(len(r), k) for r, k in zip(members, taken, strict=True))


def _assignments(
    members: list[NDArray[np.intp]], taken: list[int], n_units: int
) -> Iterator[NDArray[np.bool_]]:
    choices = [itertools.combinations(r, k) for r, k in zip(members, taken, strict=True)]
    for chosen in itertools.product(*choices):
        side = np.zeros(n_units, dtype=bool)
        side[list(itertools.chain(*chosen))] = True
        yield side


def contrasts(sides: NDArray[np.bool_], masses: Array) -> Array:
    """Coefficients of the units in the difference of the means of both sides.

    They are multiplied by the square root of ``a * b / (a + b)``, where ``a`` and ``b`` are the
    masses of the sides, so that statistics of unequal assignments have one scale.

    Parameters
    ----------
    sides
        Whether a unit is on the first side, shape (n_assignments, n_units).
    masses
        Total weight of each unit, shape (n_units,).

    Returns
    -------
    contrasts
        Coefficients, shape (n_assignments, n_units).
    """
    mine = sides @ masses
    rest = masses.sum() - mine
    coefficients = np.where(sides, 1.0 / mine[:, None], -1.0 / rest[:, None])
    scale = np.sqrt(mine * rest / masses.sum())
    return np.asarray(scale[:, None] * coefficients * masses)


def fraction_at_least(statistics: Array, reference: Array) -> Array:
    """Share of the reference statistics that are at least as large as each statistic.

    Parameters
    ----------
    statistics
        Statistics, shape (n,).
    reference
        Statistics of random assignments, shape (n_assignments,).

    Returns
    -------
    fractions
        Fractions, shape (n,): p-values, if the reference has the observed assignment.
    """
    tolerant = statistics - _ROUNDING * np.abs(statistics)
    below = np.searchsorted(np.sort(reference), tolerant, side="left")
    return np.asarray((len(reference) - below) / len(reference))


def p_values(statistics: Array) -> Array:
    """P-value of each assignment: the share of all assignments with a statistic at least as large.

    Parameters
    ----------
    statistics
        Statistics, shape (n_statistics, n_assignments).

    Returns
    -------
    p
        P-values in (0, 1], of the same shape.

    Examples
    --------
    >>> p_values(np.array([[3.0, 1.0, 2.0, 1.0]]))
    array([[0.25, 1.  , 0.5 , 1.  ]])
    """
    return np.array([fraction_at_least(row, row) for row in statistics])


def combined_p_value(statistics: Array) -> float:
    """P-value of the smallest of several p-values, calibrated by the same assignments.

    Each statistic is largest in one assignment, so that many assignments have the smallest p-value
    of all. Such ties are broken by the largest statistic in units of its deviation; otherwise no
    difference that only one statistic sees would be found at a small level.

    Parameters
    ----------
    statistics
        Shape (n_statistics, n_assignments), the observed assignment first.
    """
    smallest = p_values(statistics).min(axis=0)
    smaller = smallest < smallest[0] * (1.0 - _ROUNDING)
    tied = ~smaller & (smallest <= smallest[0] * (1.0 + _ROUNDING))
    apart = statistics - statistics.mean(axis=1, keepdims=True)
    deviations = statistics.std(axis=1, keepdims=True)
    varies = deviations > _ROUNDING * np.abs(statistics).max(axis=1, keepdims=True)
    largest = np.where(varies, apart / np.where(varies, deviations, 1.0), 0.0).max(axis=0)
    alike = largest >= largest[0] - _TIE * (1.0 + abs(largest[0]))
    return float(np.mean(smaller | (tied & alike)))


def adjusted_p_values(p: Array) -> Array:
    """Adjust the p-values of several hypotheses, so that a level holds for all of them together.

    This is the step-down min-p procedure of Westfall and Young (1993), which uses the dependence of
    the statistics.

    Parameters
    ----------
    p
        P-values of each hypothesis and assignment, shape (n_hypotheses, n_assignments), the
        observed assignment first.

    Returns
    -------
    adjusted
        Adjusted p-values, shape (n_hypotheses,).
    """
    order = np.argsort(p[:, 0], kind="stable")
    # smallest p-value among the hypotheses that are no more significant than each one
    smallest = np.minimum.accumulate(p[order][::-1], axis=0)[::-1]
    probabilities = np.mean(smallest <= p[order, :1] * (1.0 + _ROUNDING), axis=1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(probabilities)
    return adjusted


def holm_p_values(p: Array) -> Array:
    """Adjust p-values so that a level holds for all hypotheses together (Holm, 1979).

    Parameters
    ----------
    p
        P-value of each hypothesis, shape (n_hypotheses,).

    Examples
    --------
    >>> holm_p_values(np.array([0.02, 0.01, 0.5]))
    array([0.04, 0.03, 0.5 ])
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(adjusted, 1.0)
