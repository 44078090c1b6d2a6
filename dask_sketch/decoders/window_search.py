"""Search for components of many features, window by window, for feature maps made without data.

At once, 64 components of 50 features are not found: all are about equally far from each other, and
each frequency uses four of the features. In a window of twelve features they are found as
components of twelve features are. The next window shares most of its features with the one before,
which tell its components apart. No paper has such a search.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from dask_sketch.decoders.descent import LONG_APPROACH, Fit, converge, descend, descend_fully
from dask_sketch.decoders.noise_covariance import is_explained
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.scale_search import (
    located_by_width,
    objectives_of_widths,
    released_atoms,
    replace_superfluous,
    search_scales,
)
from dask_sketch.features.frequency_distributions import feature_windows

# Root mean square phase, in radians over the rows, of the frequencies by which means in further
# features are found at first, and its ratio from one descent to the next
_FIRST_PHASE, _STEP = 0.5, 2.0
_NEAR_MEAN = 0.1  # distance of the start from the mean, in standard deviations of the data
# Means of which superfluous ones are replaced by what all frequencies show; rare components are not
# seen in a window. More take minutes.
_MAX_REPLACED = 2000
# Searches of the first window at most, until noise explains what it sees: one search found all of
# twelve clusters, up to 400 standard deviations apart, 17 of 24 times.
_SEARCHES = 3


def locate_by_windows(
    objective: Objective,
    narrow: Objective,
    variances: Array,
    n_components: int,
    rng: np.random.Generator,
) -> Fit:
    """Search for components of the features of one window, and extend them window by window.

    Where components are the same in all features that two windows share, nothing tells which of
    their means in the next window belongs to which of them. The cost shows it.

    Parameters
    ----------
    objective, narrow, variances, n_components, rng
        Arguments of :func:`~dask_sketch.decoders.scale_search.locate_components`, of a map with the
        distribution ``"sparse-windows"``.

    Returns
    -------
    fit
        Local minimum of ``K`` atoms with all frequencies, whose weights are not normalised.
    """
    n_features = narrow.space.n_features
    windows = feature_windows(n_features)
    if not _are_searchable(narrow, variances, windows, n_components):
        return search_scales(objective, variances, n_components, rng)
    theta, weights = np.zeros((n_components, n_features)), np.empty(0)
    known = np.zeros(n_features, dtype=bool)
    for window in windows:
        seen = narrow.restrict(window)
        if not known.any():
            found = _search_window(seen, variances[:, window], n_components, rng)
        else:
            start = Fit(weights, theta[:, window], np.inf, converged=False)
            found = _extend_window(seen, start, known[window], rng)
            order = _matching_order(start.theta, found.theta, known[window])
            found = replace(found, weights=found.weights[order], theta=found.theta[order])
        theta[:, window], weights = found.theta, found.weights
        known[window] = True
        objective.n_evaluations += seen.n_evaluations
    joined = descend(narrow, narrow.space.clip(theta), weights, LONG_APPROACH)
    if n_components > 1 and theta.size <= _MAX_REPLACED:
        joined, _ = replace_superfluous(narrow, converge(narrow, joined), rng)
    atoms = released_atoms(objective, narrow, joined.theta)
    return descend_fully(objective, atoms, joined.weights)


def _are_searchable(
    narrow: Objective, variances: Array, windows: npt.NDArray[np.intp], n_components: int
) -> bool:
    """Whether equations of a window can be solved, and its frequencies determine the means."""
    used = narrow.omega != 0.0
    counts = [(~np.delete(used, window, axis=0).any(axis=0)).sum() for window in windows]
    if 2 * min(counts) < n_components * windows.shape[1]:
        return False
    first = narrow.restrict(windows[0])
    widths = objectives_of_widths(first, variances[:, windows[0]], n_components)
    return first.is_solvable(n_components) and next(widths, None) is not None


def _search_window(
    narrow: Objective, variances: Array, n_components: int, rng: np.random.Generator
) -> Fit:
    """Components of the features of the first window: the best fit of a few searches."""
    best = _search_once(narrow, variances, n_components, rng)
    for _ in range(_SEARCHES - 1):
        if is_explained(narrow, best, rng):
            break
        again = _search_once(narrow, variances, n_components, rng)
        best = min(best, again, key=lambda each: each.cost)
    return best


def _search_once(
    narrow: Objective, variances: Array, n_components: int, rng: np.random.Generator
) -> Fit:
    """Components at a width at which all are needed, and descents at the narrower widths."""
    for found in located_by_width(narrow, variances, n_components, rng):
        narrow.n_evaluations += found.seen.n_evaluations
        if found.all_needed:
            break
    fit, n_seen = found.fit, found.seen.n_frequencies
    for seen in objectives_of_widths(narrow, variances, n_components):
        if seen.n_frequencies > n_seen:
            fit = descend_fully(seen, fit.theta, fit.weights)
            narrow.n_evaluations += seen.n_evaluations
    return descend_fully(narrow, fit.theta, fit.weights)


def _extend_window(
    narrow: Objective, start: Fit, known: npt.NDArray[np.bool_], rng: np.random.Generator
) -> Fit:
    """Components of a window, of which the start has the means in some features.

    Known means tell the components apart at any frequency, so that frequencies that hardly use the
    other features come first. There the search begins near the mean of the data, where no two
    components are the same: those that are the same in the known features could not part.
    """
    space, deviations = narrow.space, narrow.space.data_deviations
    near = _NEAR_MEAN * deviations * rng.standard_normal(start.theta.shape)
    fit = replace(start, theta=np.where(known, start.theta, near))
    held = copy(narrow)
    held.space = copy(space)
    held.space.lower = np.where(known, start.theta, space.lower)
    held.space.upper = np.where(known, start.theta, space.upper)
    phases = np.sqrt(np.square((deviations * ~known)[:, None] * narrow.omega).sum(axis=0))
    needed, phase, largest = start.theta.size / 2, _FIRST_PHASE, phases.max()
    while largest > 0.0:  # else the other features are constant
        chosen = np.flatnonzero((phases > 0.0) & (phases <= phase))
        is_last = phase >= largest
        if len(chosen) >= needed or is_last:
            seen = held.select(chosen)
            fit = descend_fully(seen, fit.theta, start.weights)
            narrow.n_evaluations += seen.n_evaluations
        if is_last:
            break
        phase *= _STEP
    fit = descend_fully(narrow, fit.theta, fit.weights)
    if is_explained(narrow, fit, rng) or len(fit.theta) == 1:
        return fit
    return replace_superfluous(narrow, fit, rng)[0]


def _matching_order(start: Array, found: Array, shared: Array) -> Array:
    """Numbers of the found components that are nearest to those of the start, one for each."""
    between = start[:, None, shared] - found[None, :, shared]
    return np.asarray(linear_sum_assignment(np.square(between).sum(axis=2))[1])
