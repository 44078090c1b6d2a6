"""Searches scale by scale, for feature maps of several scales that were made without data.

Seen by low frequencies alone, clusters that are far apart overlap, so that ascents and descents
from anywhere reach them. A search with all frequencies at once misses clusters, since the atom of
one is almost orthogonal to the sketch of the others. Neither search is in the papers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.descent import (
    LONG_APPROACH,
    Fit,
    converge,
    descend,
    descend_fully,
    empty_fit,
)
from dask_sketch.decoders.greedy import hierarchical_splitting, iterate
from dask_sketch.decoders.noise_covariance import is_explained
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.starts import find_atoms
from dask_sketch.decoders.swap_moves import prune, swap_atoms

# Radius up to which a frequency belongs to a scale, in units of it: beyond, the modulus of a
# component of that width is below a hundredth.
_RADIUS = 3.0
_STEP = 2.0  # ratio of successive widths at which components are located
_MAX_FREQUENCIES = 6000  # frequencies that locate components at one width
_NEEDED = 10.0  # growth of the cost without some atoms from which all of them are needed
_GAIN = 0.1  # fraction of the cost that replaced atoms must save
_MAX_ROUNDS = 30  # rounds of replacement; points, whose cost falls without end, need this bound
_LARGEST_PART, _SMALLEST_PART = 2, 32  # one in two to one in 32 atoms are replaced at once


def search_scales(
    objective: Objective, variances: Array, n_components: int, rng: np.random.Generator
) -> Fit:
    """Add atoms scale by scale, from the widest one, until noise explains what each scale sees.

    The frequencies of a wide scale tell only few atoms from noise. The next scale moves the atoms a
    little, and adds those that it distinguishes.

    Parameters
    ----------
    objective
        Atoms and cost.
    variances
        Variances of the scales in normalised coordinates, shape (n_scales, n_features).
    n_components
        Number ``K`` of atoms.
    rng
        Random number generator.

    Returns
    -------
    fit
        Local minimum of ``K`` atoms with all frequencies, whose weights are not normalised.
    """
    fit = empty_fit(objective)
    for chosen in _frequencies_of_scales(objective, variances):
        n_atoms = min(n_components, 2 * len(chosen) // (1 + objective.space.n_parameters))
        if not n_atoms:
            continue
        seen = objective.select(chosen)
        if len(fit.theta):
            fit = descend_fully(seen, fit.theta)
        while len(fit.theta) < n_atoms and not is_explained(seen, fit, rng):
            fit = iterate(seen, fit, n_components, rng)
            fit = descend_fully(seen, fit.theta, fit.weights)
        objective.n_evaluations += seen.n_evaluations
    while len(fit.theta) < n_components:
        fit = iterate(objective, fit, n_components, rng)
    fit = descend_fully(objective, fit.theta, fit.weights)
    return swap_atoms(objective, fit, rng, until_explained=False)


def _frequencies_of_scales(objective: Objective, variances: Array) -> list[npt.NDArray[np.intp]]:
    """Positions of the frequencies of each scale, from the widest one; the last has all."""
    widest_first = np.argsort(-variances.sum(axis=1), kind="stable")
    radii = np.sqrt(variances[widest_first[:-1]] @ objective.omega**2)
    chosen = [np.flatnonzero(each <= _RADIUS) for each in radii]
    return [*chosen, np.arange(objective.n_frequencies)]


def locate_components(
    objective: Objective,
    narrow: Objective,
    variances: Array,
    n_components: int,
    rng: np.random.Generator,
) -> Fit:
    """Search for many components: first their means, width by width, and then their variances.

    Few low frequencies determine the means of many components, but not their variances: with both,
    64 components of 12 features fit the noise of a wide scale better than the true ones do, and no
    later scale leads away from them. This search gives all components the narrowest variances at
    first. At each width it takes the better fit of two, a hierarchical splitting and a descent from
    the components of the wider width, and replaces the superfluous components. From every width it
    descends to means and variances with all frequencies, and it returns the best of these fits.

    Of 64 clusters of 12 features, 30 standard deviations apart, :func:`search_scales` found two, in
    76 CPU seconds, and this search found all, in 20; also the rare ones among them, of 31 rows
    beside others of 3,000.

    Parameters
    ----------
    objective
        Atoms and cost.
    narrow
        Objective of components of the narrowest variances, of the same sketch.
    variances
        Variances of the scales in normalised coordinates, shape (n_scales, n_features).
    n_components
        Number ``K`` of atoms.
    rng
        Random number generator.

    Returns
    -------
    fit
        Local minimum of ``K`` atoms with all frequencies, whose weights are not normalised.
    """
    best = None
    for located in located_by_width(narrow, variances, n_components, rng):
        theta = released_atoms(objective, narrow, located.fit.theta)
        released = descend(objective, theta, located.fit.weights, LONG_APPROACH)
        objective.n_evaluations += located.seen.n_evaluations
        if best is None or released.cost < best.cost:
            best = released
        if located.all_needed and is_explained(objective, best, rng):
            break
    if best is None:
        return search_scales(objective, variances, n_components, rng)
    best = descend_fully(objective, best.theta, best.weights)
    return swap_atoms(objective, best, rng, until_explained=False)


@dataclass(frozen=True)
class Located:
    """Fit of components of the narrowest variances at one width.

    Attributes
    ----------
    seen
        Objective of the frequencies of the width.
    fit
        Fit to them.
    all_needed
        Whether no component is superfluous.
    """

    seen: Objective
    fit: Fit
    all_needed: bool


def located_by_width(
    narrow: Objective, variances: Array, n_components: int, rng: np.random.Generator
) -> Iterator[Located]:
    """Locate components of the narrowest variances, width by width, from the widest one.

    At each width, the better fit of a hierarchical splitting and of a descent from the components
    of the wider width is taken, and superfluous components are replaced.

    Parameters
    ----------
    narrow, variances, n_components, rng
        Arguments of :func:`locate_components`.
    """
    fit: Fit | None = None
    for seen in objectives_of_widths(narrow, variances, n_components):
        fits = [hierarchical_splitting(seen, n_components, rng, lambda cost: None)]
        if fit is not None:
            moved = descend_fully(seen, fit.theta, fit.weights)
            fits.append(swap_atoms(seen, moved, rng))
        fit, all_needed = min(fits, key=lambda each: each.cost), False
        if fit.cost < seen.unit and n_components > 1:
            fit, all_needed = replace_superfluous(seen, fit, rng)
        yield Located(seen, fit, all_needed)


def objectives_of_widths(
    objective: Objective, variances: Array, n_components: int
) -> Iterator[Objective]:
    """Objectives of the frequencies of each width, from the widest scale to the narrowest one.

    Parameters
    ----------
    objective, variances, n_components
        Arguments of :func:`locate_components`. Widths of fewer numbers than parameters are left
        out.
    """
    for chosen in _frequencies_of_widths(objective, variances):
        if 2 * len(chosen) >= n_components * (1 + objective.space.n_parameters):
            yield objective.select(chosen)


def _frequencies_of_widths(objective: Objective, variances: Array) -> list[npt.NDArray[np.intp]]:
    """Positions of the frequencies of each width, from the widest scale to the narrowest one."""
    order = np.argsort(variances.sum(axis=1), kind="stable")
    narrowest, widest = variances[order[0]], variances[order[-1]]
    radii = np.sqrt(widest @ objective.omega**2)
    n_steps = np.log(np.sqrt((widest / narrowest).max())) / np.log(_STEP)
    shuffled = np.random.default_rng(0).permutation(objective.n_frequencies)
    found = []
    for step in range(int(n_steps) + 1):
        chosen = shuffled[radii[shuffled] <= _RADIUS * _STEP**step]
        found.append(np.sort(chosen[:_MAX_FREQUENCIES]))
    return found


def released_atoms(objective: Objective, narrow: Objective, theta: Array) -> Array:
    """Atoms of an objective with the means and the variances of narrow ones.

    Parameters
    ----------
    objective, narrow
        Arguments of :func:`locate_components`.
    theta
        Atoms of the latter, shape (K, n_features).
    """
    means, variances = narrow.space.to_data_units(theta)
    return objective.space.clip(objective.space.from_data_units(means, variances))


def replace_superfluous(
    objective: Objective, fit: Fit, rng: np.random.Generator
) -> tuple[Fit, bool]:
    """Replace atoms that are hardly missed by atoms that the residual shows, many at once.

    Two atoms that share a heavy cluster save more than the noise of its variance, but less than
    rare clusters do.

    Parameters
    ----------
    objective
        Atoms and cost.
    fit
        Local minimum of several atoms.
    rng
        Random number generator.

    Returns
    -------
    fit
        Fit of as many atoms, of no higher cost.
    all_needed
        Whether no atom was superfluous.
    """
    n_components, all_needed = len(fit.theta), True
    part = _LARGEST_PART
    for _ in range(_MAX_ROUNDS):
        if part > _SMALLEST_PART:
            break
        remaining = n_components - max(n_components // part, 1)
        fewer = converge(objective, descend(objective, prune(objective, fit, remaining)))
        if fewer.cost > _NEEDED * fit.cost:
            part *= 2
            continue
        all_needed = False
        grown = _grow_by_halves(objective, fewer, n_components, rng)
        if grown.cost < (1.0 - _GAIN) * fit.cost:
            fit = grown
        else:
            part *= 2
    return fit, all_needed


def _grow_by_halves(
    objective: Objective, fit: Fit, n_components: int, rng: np.random.Generator
) -> Fit:
    """Add half of the missing atoms again and again, each time at maxima of the residual."""
    while len(fit.theta) < n_components:
        n_missing = n_components - len(fit.theta)
        residual = objective.residual(fit.weights, fit.theta)
        atoms = find_atoms(objective, residual, rng, (n_missing + 1) // 2)
        fit = converge(objective, descend(objective, np.vstack([fit.theta, atoms])))
    return fit
