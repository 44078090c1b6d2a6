"""Swap moves: replace the atoms that are missed least by atoms that the mixture lacks.

The algorithms of the paper end in minima in which one atom covers two components while two atoms
share a third. Neither a new atom that is thresholded before it has grown (CL-OMPR), nor a descent
(splitting), leaves them. A swap move adds atoms, lets all of them descend, and only then removes as
many: those whose loss the others compensate best when all of their parameters adapt.

On mixtures of sec. 5.1 with d = 10 and K = 20 (m = 2100, n = 3e5), 2 of 6 fits by splitting without
swap moves ended in such minima, 0.10 and 0.13 nats below the truth; with them, the worst of 10 is
0.003 below, and a fit takes 0.4 CPU seconds as before. With means 3 to 5 times further apart
(d = 1 to 12, K = 2 to 10), splitting failed in 21 of 24 fits without swap moves and in none with
them. On data that is not a mixture the moves go on for longer: with K = 64 on spectral features of
images (d = 10, m = 4000), 34 CPU seconds instead of 5 halve the cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.descent import (
    LOCAL,
    LONG_APPROACH,
    UNSEEN,
    Fit,
    converge,
    descend,
    descend_fully,
)
from dask_sketch.decoders.noise_covariance import is_explained
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.optimizers import StoppingRule
from dask_sketch.decoders.starts import find_atom

# Additions tried one by one before the fit is accepted; fewer if there are many atoms, when each
# trial is expensive and changes little (64 on speech: 8 took 44 CPU seconds, and none was kept).
_MAX_TRIALS, _TRIAL_ATOMS = 8, 128
_SWAPPED = 8  # one in eight atoms may be swapped at once
_GAIN = 0.1  # fraction of the cost that a swap must save
_HOPELESS = 2.0  # factor on the cost beyond which Levenberg-Marquardt is not tried
_TRIAL = StoppingRule(tolerance=1e-4, n_iterations=20)
_NO_TRIAL = StoppingRule(tolerance=1e-4, n_iterations=0)
# A trial is examined after every _TRIAL_STEPS steps, and ends if _MAX_FURTHER_GAIN times the last
# gain would not be enough.
_TRIAL_STEPS, _MAX_FURTHER_GAIN = 5, 3.0
# ridge relative to the curvatures, so that equations with coincident atoms are solvable
_RIDGE = 1e-9
_LIGHT = 1e-3  # fraction of the mean weight that replaces smaller weights
# Overlap of two densities, the integral of the root of their product, from which they count as one;
# two equal Gaussians have it at half a standard deviation from each other.
_OVERLAP = 0.97
_POINT_DISTANCE = 0.5  # distance below which points count as one, in scales of the frequencies


def swap_atoms(
    objective: Objective,
    fit: Fit,
    rng: np.random.Generator,
    *,
    converged: bool = True,
    until_explained: bool = True,
) -> Fit:
    """Swap atoms until noise explains the cost, or no swap lowers it.

    Parameters
    ----------
    objective
        Atoms and cost.
    fit
        Local minimum of ``K`` atoms, or an intermediate solution.
    rng
        Random number generator.
    converged
        Whether the fit is a minimum. If it is not, and costs more than noise does, swaps come
        first: the last steps to a poor minimum are the most expensive.
    until_explained
        Whether swaps end as soon as noise explains the cost. Noise also explains that of a fit
        without rare clusters, which hardly change it.

    Returns
    -------
    fit
        Local minimum of ``K`` atoms whose cost is not higher; without swaps if the normal equations
        are too large to be solved.
    """
    if not objective.is_solvable(len(fit.theta)):
        return fit if converged else descend_fully(objective, fit.theta, fit.weights)
    for _ in range(2 * len(fit.theta)):
        lower = None
        if not converged and fit.cost > objective.unit:
            lower = _swap_once(objective, fit, rng, _NO_TRIAL)
        if lower is None:
            if not converged:
                fit, converged = converge(objective, fit), True
            if until_explained and is_explained(objective, fit, rng):
                break
            lower = _swap_once(objective, fit, rng, _TRIAL)
            if lower is None:
                break
        fit, converged = descend(objective, lower.theta, lower.weights, LONG_APPROACH), False
    return fit if converged else converge(objective, fit)


def _swap_once(
    objective: Objective, fit: Fit, rng: np.random.Generator, trial: StoppingRule
) -> Fit | None:
    """First swap that lowers the cost, not yet converged; None if there is none."""
    for theta, weights in _larger_supports(objective, fit, rng):
        grown = descend(objective, theta, weights)
        moved = descend(objective, prune(objective, grown, len(fit.theta)))
        if _saves(moved, fit):
            return moved
        steps = trial.n_iterations
        while steps > 0 and moved.cost < _HOPELESS * fit.cost:
            before, steps = moved.cost, steps - _TRIAL_STEPS
            moved = converge(objective, moved, replace(trial, n_iterations=_TRIAL_STEPS))
            if _saves(moved, fit):
                return moved
            if moved.cost - _MAX_FURTHER_GAIN * (before - moved.cost) > (1.0 - _GAIN) * fit.cost:
                break
    return None


def _saves(moved: Fit, fit: Fit) -> bool:
    return moved.cost < (1.0 - _GAIN) * fit.cost


def _larger_supports(
    objective: Objective, fit: Fit, rng: np.random.Generator
) -> Iterator[tuple[Array, Array]]:
    """Supports with more atoms than the fit: with the best additions together, then one by one.

    An addition is either the atom of Step 1, or an atom split in two halves that then descend
    alone on the residual of the others; the best additions are those that save most.
    """
    residual = objective.residual(fit.weights, fit.theta)
    atom = find_atom(objective, residual, rng)
    norm = float(np.linalg.norm(objective.atoms(atom[None])))
    value = max(float(objective.correlations(atom[None], residual)[0]), 0.0)
    # (saving, index of the replaced atom or -1, new atoms, their weights)
    supports = []
    if norm > UNSEEN:
        supports.append((value**2, -1, atom[None], np.array([value / norm])))
    rows = objective.atoms(fit.theta).reshape(len(fit.theta), 2, -1)
    for k in np.flatnonzero(fit.weights > 0.0):
        part = fit.weights[k] * rows[k]
        alone = objective.with_target((residual[0] + part[0], residual[1] + part[1]))
        halves = descend(alone, objective.space.split(fit.theta[k : k + 1]), stop=LOCAL)
        supports.append((fit.cost - halves.cost, int(k), halves.theta, halves.weights))
        objective.n_evaluations = alone.n_evaluations
    supports.sort(key=lambda addition: -addition[0])

    def support(chosen: list[tuple[float, int, Array, Array]]) -> tuple[Array, Array]:
        gone = [k for _, k, _, _ in chosen if k >= 0]
        return (
            np.vstack([np.delete(fit.theta, gone, axis=0), *(theta for _, _, theta, _ in chosen)]),
            np.concatenate([np.delete(fit.weights, gone), *(weights for *_, weights in chosen)]),
        )

    together = len(fit.theta) // _SWAPPED
    if together > 1:
        yield support(supports[:together])
    for addition in supports[: max(min(_MAX_TRIALS, _TRIAL_ATOMS // len(fit.theta)), 2)]:
        yield support([addition])


def prune(objective: Objective, fit: Fit, n_components: int) -> Array:
    """Atoms (n_components, n_parameters) that remain when those missed least are removed.

    Atoms are removed one at a time, since of two that share a component only one is superfluous.
    The inverse of the Gram matrix of the remaining atoms follows from the inverse for all.
    """
    inverse, rows, scale = inverse_gram(objective, fit.weights, fit.theta)
    remaining = np.arange(len(fit.theta))
    while len(remaining) > n_components:
        costs = removal_costs(inverse, rows[remaining], fit.weights[remaining] / scale[remaining])
        cheapest = int(costs.argmin())
        gone = rows[remaining[cheapest]]
        remaining = np.delete(remaining, cheapest)
        beside = inverse[:, gone]
        inverse -= (beside @ np.linalg.inv(inverse[np.ix_(gone, gone)])) @ beside.T
    return fit.theta[remaining]


def removal_costs(inverse: Array, rows: npt.NDArray[np.intp], weights: Array) -> Array:
    """Increase of the cost without each atom (K,), all others adapting linearly.

    The other atoms replace the part of an atom's sketch ``alpha a`` that lies in the span of their
    derivatives, by weight and by parameters; the energy of the rest is missing. It is a Schur
    complement of the Gram matrix ``G``: with ``B`` the rows of one atom, the first entry of the
    inverse of ``(G^-1)_BB``, times the weight squared.

    Parameters
    ----------
    inverse, rows
        Results of :func:`inverse_gram`.
    weights
        Weights of the atoms over the scale of the Gram matrix, shape (K,).
    """
    blocks = np.linalg.inv(inverse[rows[:, :, None], rows[:, None, :]])
    return np.asarray(weights**2 * blocks[:, 0, 0])


def inverse_gram(
    objective: Objective, weights: Array, theta: Array
) -> tuple[Array, npt.NDArray[np.intp], Array]:
    """Inverse of the scaled Gram matrix, the rows of each atom (K, 1 + p), and the scale."""
    n_atoms, p = theta.shape
    used = np.maximum(weights, max(_LIGHT * float(weights.mean()), np.finfo(float).tiny))
    gram = objective.gram(used, theta)
    scale = 1.0 / np.sqrt(np.maximum(np.diagonal(gram), np.finfo(float).tiny))
    gram *= scale
    gram *= scale[:, None]
    gram.reshape(-1)[:: len(gram) + 1] += _RIDGE
    rows = np.concatenate(
        [np.arange(n_atoms)[:, None], n_atoms + np.arange(n_atoms * p).reshape(n_atoms, p)], axis=1
    )
    return objective.inverse(gram), rows, scale


def coincident(means: Array, variances: Array) -> Array:
    """Whether each pair of atoms (K, K) counts as one, in normalised coordinates.

    Two Gaussians count as one if their Bhattacharyya coefficient, the integral of ``sqrt(p q)``, is
    above 0.97: with equal variances, within half a standard deviation of each other. Points, whose
    variances are zero, count as one within half the scale of the frequency distribution.

    Parameters
    ----------
    means, variances
        Means and variances, shape (K, n_features); or covariance matrices (K, n_features,
        n_features) in place of variances.
    """
    if variances.ndim == 3:
        logs = 0.5 * np.linalg.slogdet(variances)[1]
        middle = 0.5 * (variances[:, None] + variances)
        away = means[:, None] - means
        lengths = np.einsum("kli,kli->kl", away, np.linalg.solve(middle, away[..., None])[..., 0])
        between = 0.5 * (logs[:, None] + logs - np.linalg.slogdet(middle)[1])
        return np.asarray(between - 0.125 * lengths > np.log(_OVERLAP))
    squares = np.square(means[:, None] - means)
    if not variances.any():
        return np.asarray(squares.sum(axis=2) < _POINT_DISTANCE**2)
    mean = 0.5 * (variances[:, None] + variances)
    logs = 0.5 * np.log(variances)
    exponent = -0.125 * squares / mean + 0.5 * (logs[:, None] + logs - np.log(mean))
    return np.asarray(exponent.sum(axis=2) > np.log(_OVERLAP))


def merge_coincident(objective: Objective, fit: Fit) -> Fit:
    """Replace each pair that counts as one by the atom with its moments, and descend.

    Parameters
    ----------
    objective
        Atoms and cost.
    fit
        Fit with any number of atoms.

    Returns
    -------
    fit
        Fit with as many atoms or fewer, of which no two coincided when the descent began.
    """
    weights, theta = fit.weights, fit.theta
    space, d = objective.space, objective.space.n_features
    while True:
        close = np.triu(coincident(theta[:, :d], space.variances(theta)), 1)
        if not close.any():
            break
        k, other = np.argwhere(close)[0]
        part = weights[[k, other]] / max(float(weights[[k, other]].sum()), np.finfo(float).tiny)
        if not part.any():
            part = np.full(2, 0.5)
        merged = part @ theta[[k, other]]
        between = part[0] * part[1] * np.square(theta[k, :d] - theta[other, :d])
        merged[d:] += space.family.nearest(between)
        theta = np.vstack([np.delete(theta, [k, other], axis=0), merged])
        weights = np.append(np.delete(weights, [k, other]), weights[[k, other]].sum())
    if len(theta) == len(fit.theta):
        return fit
    return descend_fully(objective, space.clip(theta), weights)
