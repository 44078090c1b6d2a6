"""Keep components that the pilot rows have seen, and that the noise of a sketch hides.

A fit to a sketch may lose components of small weight, or of no width that the frequencies tell,
without any change of the cost that noise does not explain. The pilot rows have seen them: those
that the sketch does not determine are kept as the pilot rows had them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dask_sketch.decoders.descent import Fit, descend_fully
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.matrix_objective import MatrixObjective
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.starts import Start
from dask_sketch.models.density import RowDensity

_ROWS = 100  # rows simulated from each component
# A component is lost if the loss of its rows is this many times what the number of pilot rows
# explains. The fit without it must have a cost that is smaller by this many noise levels.
_LOSSES, _CONTRADICTED = 6.0, 0.5
_ROUNDS = 3  # descents at most: others may be lost while some are kept


def keep_rare_components(
    objective: Objective,
    fit: Fit,
    pilot: Start,
    n_rows: int,
    *,
    descend: Callable[[Objective, Array, Array], Fit] = descend_fully,
) -> Fit:
    """Fit that keeps the components of the pilot that another fit has lost.

    They are held, and the others descend. The other fit is returned if none is lost, or if the
    sketch tells of its own that they are not components.

    Parameters
    ----------
    objective
        Atoms and cost, of variances or covariance matrices.
    fit
        Fit to the sketch.
    pilot
        Mixture of the pilot rows, with as many components.
    n_rows
        Number of pilot rows.
    descend
        Function of an objective, parameters and weights that returns the fit at the minimum.
    """
    theta = objective.space.clip(pilot.atoms(objective))
    best, held = fit, np.zeros(len(theta), dtype=bool)
    for _ in range(_ROUNDS):
        lost = lost_components(objective, best, pilot, n_rows) & ~held
        if not lost.any():
            break
        held |= lost
        if held.all():
            return fit
        rest = objective.with_target(objective.residual(pilot.weights[held], theta[held]))
        others = descend(rest, theta[~held], pilot.weights[~held])
        weights, atoms = pilot.weights.copy(), theta.copy()
        weights[~held], atoms[~held] = others.weights, others.theta
        best = replace(others, weights=weights, theta=atoms)
    contradicted = best.cost > fit.cost + _CONTRADICTED * objective.unit
    return fit if contradicted else best


def lost_components(objective: Objective, fit: Fit, pilot: Start, n_rows: int) -> NDArray[np.bool_]:
    """Whether rows of each component of the pilot are far less likely in a fit to a sketch.

    Components of the pilot have no correlations. So where covariance matrices are fitted, those
    that the sketch shows are not looked at.

    Parameters
    ----------
    objective, fit, pilot, n_rows
        Arguments of :func:`keep_rare_components`.
    """
    total = fit.weights.sum()
    if not total > 0.0:
        return np.zeros(len(pilot.weights), dtype=bool)
    k, d = pilot.means.shape
    normal = np.random.default_rng(0).standard_normal((_ROWS, d))
    rows = (pilot.means[:, None] + np.sqrt(pilot.variances)[:, None] * normal).reshape(-1, d)
    space, shown = objective.space, np.zeros(k, dtype=bool)
    means, shapes = space.to_data_units(fit.theta)
    if isinstance(objective, MatrixObjective):
        shapes = space.matrices(fit.theta)
        atoms = objective.atoms(space.clip(pilot.atoms(objective)))
        shown = pilot.weights**2 * (atoms**2).sum(axis=1) > objective.unit
    before = RowDensity(pilot.weights, pilot.means, pilot.variances).log_total(rows)
    now = RowDensity(fit.weights / total, means, shapes).log_total(rows)
    loss = (before - now).reshape(k, _ROWS).mean(axis=1)
    by_chance = (2 * d + 1) / (2.0 * np.maximum(pilot.weights * n_rows, 1.0))
    return np.asarray((loss > _LOSSES * by_chance) & ~shown)
