"""Greedy decoders of Keriven et al. (2018): CL-OMP, CL-OMPR, hierarchical splitting; and IHT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dask_sketch.decoders.descent import (
    APPROACH,
    LONG_APPROACH,
    Fit,
    descend,
    descend_fully,
    empty_fit,
    threshold,
)
from dask_sketch.decoders.noise_covariance import is_explained
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.starts import ascend_correlation, find_atom
from dask_sketch.decoders.swap_moves import prune, swap_atoms
from dask_sketch.features.design import default_n_frequencies

IHT_ITERATIONS = 10  # number of iterations in the paper of Blumensath and Davies
_MAX_GREEDY = 20  # components beyond which hierarchical splitting searches, whose time grows less

# Search ``(objective, n_components, rng, report)`` for the atoms of a sketch.
Algorithm = Callable[[Objective, Any, np.random.Generator, Callable[[float], None]], Fit]


def cl_ompr(
    objective: Objective,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """CL-OMP with replacement: grow a support atom by atom, then replace atoms of it.

    The first ``K`` iterations are as in the paper. The ``K`` iterations that replace atoms have two
    additions of ours: a replacement is kept only if it lowers the cost, and swap moves follow
    (:func:`~dask_sketch.decoders.swap_moves.swap_atoms`). The replacement of the paper cannot leave
    a local minimum in which one atom covers two components while two atoms share a third: the new
    atom is light, and thresholded at once.

    Parameters
    ----------
    objective
        Atoms and cost.
    n_components
        Size ``K`` of the support.
    rng
        Random number generator.
    report
        Function called with the cost after each of ``2 K`` iterations.

    Returns
    -------
    fit
        Fit whose weights are not normalised.
    """
    fit = _grow(objective, n_components, rng, report)
    for iteration in range(n_components):
        replaced = iterate(objective, fit, n_components, rng)
        if replaced.cost < fit.cost:
            fit = replaced
        if iteration == n_components - 1:
            fit = descend_fully(objective, fit.theta, fit.weights)
            fit = swap_atoms(objective, fit, rng)
        report(fit.cost)
    return fit


def cl_omp(
    objective: Objective,
    n_components: int | None,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """CL-OMP: grow a support atom by atom, to a given size or until noise explains the residual.

    Parameters
    ----------
    objective
        Atoms and cost.
    n_components
        Size ``K`` of the support; None: see :func:`grow_until_explained`.
    rng
        Random number generator.
    report
        Function called with the cost after each of ``K`` iterations.

    Returns
    -------
    fit
        Fit whose weights are not normalised.
    """
    if n_components is None:
        limit = n_resolvable(objective.n_frequencies, objective.space.n_features)
        return grow_until_explained(objective, limit, rng, report)
    return _grow(objective, n_components, rng, report, last=True)


def n_resolvable(n_frequencies: int, n_features: int) -> int:
    """Largest number of components for which there are enough frequencies."""
    return max(n_frequencies // default_n_frequencies(n_features, 1), 1)


def grow_until_explained(
    objective: Objective,
    max_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """CL-OMP for an unknown number of components: grow until noise explains the residual.

    Sec. 2.4 suggests a threshold on the residual; this one is
    :func:`~dask_sketch.decoders.noise_covariance.is_explained`. Also ours: growth ends in poor
    minima with a component or two too many, so atoms are then removed one by one as long as swap
    moves find a smaller support that noise explains as well. On 33 mixtures with d = 1 to 12
    and K = 2 to 20 it found the number of components in 32, and one less in the other.

    Parameters
    ----------
    objective
        Atoms and cost.
    max_components
        Largest number of components, ``>= 1``.
    rng
        Random number generator.
    report
        Function called with the cost after each change of the support.

    Returns
    -------
    fit
        Fit whose weights are not normalised.
    """
    fit = empty_fit(objective)
    explained = False
    while len(fit.theta) < max_components and not explained:
        grown = iterate(objective, fit, max_components, rng)
        fit = descend_fully(objective, grown.theta, grown.weights)
        explained = is_explained(objective, fit, rng)
        report(fit.cost)
    if not explained:
        fit = swap_atoms(objective, fit, rng)
        report(fit.cost)
        explained = is_explained(objective, fit, rng)
    while explained and len(fit.theta) > 1:
        fewer = descend_fully(objective, prune(objective, fit, len(fit.theta) - 1))
        fewer = swap_atoms(objective, fewer, rng)
        explained = is_explained(objective, fewer, rng)
        if explained:
            fit = fewer
            report(fit.cost)
    return fit


def _grow(
    objective: Objective,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
    *,
    last: bool = False,
) -> Fit:
    """Add atoms up to a size; converge the last fit if no other iterations follow."""
    fit = empty_fit(objective)
    for size in range(1, n_components + 1):
        fit = iterate(objective, fit, n_components, rng)
        if last and size == n_components:
            fit = descend_fully(objective, fit.theta, fit.weights)
        report(fit.cost)
    return fit


def iterate(objective: Objective, fit: Fit, n_components: int, rng: np.random.Generator) -> Fit:
    """Steps 1 to 5 of Algorithm 1: add an atom, keep those of largest weight, and descend.

    Parameters
    ----------
    objective
        Atoms and cost.
    fit
        Fit of any number of atoms.
    n_components
        Largest number of atoms that are kept.
    rng
        Random number generator.
    """
    residual = objective.residual(fit.weights, fit.theta)
    theta = np.vstack([fit.theta, find_atom(objective, residual, rng)])
    return descend(objective, threshold(objective, theta, n_components))


def hard_thresholding(
    objective: Objective,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """IHT for mixtures (sec. 5.3): add ``K`` atoms at once, threshold to ``K``, descend; ten times.

    The gradient step of Blumensath and Davies (2009) on a continuous dictionary is a set of atoms
    that correlate with the residual: end points of ``K`` ascents of Step 1 from as many random
    atoms. They join the ``K`` present, and Steps 3 to 5 follow. The paper has no pseudo-code. Its
    failure is known: the support fills at the first iteration, with atoms that are often the same.

    Parameters
    ----------
    objective
        Atoms and cost.
    n_components
        Size ``K`` of the support.
    rng
        Random number generator.
    report
        Function called with the cost after each of ``IHT_ITERATIONS`` iterations.

    Returns
    -------
    fit
        Fit whose weights are not normalised.

    References
    ----------
    Blumensath, Davies (2009), Iterative hard thresholding for compressed sensing.
    """
    fit = empty_fit(objective)
    for iteration in range(IHT_ITERATIONS):
        residual = objective.residual(fit.weights, fit.theta)
        starts = objective.space.random_atoms(rng, n_components, spread_out=True)
        candidates, _ = ascend_correlation(objective, starts, residual)
        theta = threshold(objective, np.vstack([fit.theta, candidates]), n_components)
        last = iteration == IHT_ITERATIONS - 1
        fit = (descend_fully if last else descend)(objective, theta)
        report(fit.cost)
    return fit


def n_levels(n_components: int) -> int:
    """Number of levels, ``ceil(log2 K)``, and one level for a single component."""
    return max((n_components - 1).bit_length(), 1)


def hierarchical_splitting(
    objective: Objective,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """Start from one atom and split all atoms, level by level; swap moves follow.

    The last level is thresholded if the number of components is not a power of two. For one
    component there is nothing to split, and Steps 4 and 5 run once.

    Parameters
    ----------
    objective
        Atoms and cost.
    n_components
        Number ``K`` of components.
    rng
        Random number generator.
    report
        Function called with the cost after each of :func:`n_levels` levels.

    Returns
    -------
    fit
        Fit whose weights are not normalised.
    """
    theta = find_atom(objective, objective.target, rng)[None, :]
    last = n_levels(n_components) - 1
    for level in range(last + 1):
        if n_components > 1:
            theta = threshold(objective, objective.space.split(theta), n_components)
        fit = descend(objective, theta, stop=LONG_APPROACH if level == last else APPROACH)
        theta = fit.theta
        if level == last:
            fit = swap_atoms(objective, fit, rng, converged=False)
        report(fit.cost)
    return fit


def search_of_size(n_components: int) -> Algorithm:
    """CL-OMPR, or hierarchical splitting for so many components that CL-OMPR takes long.

    Parameters
    ----------
    n_components
        Number ``K`` of components.
    """
    return cl_ompr if n_components <= _MAX_GREEDY else hierarchical_splitting
