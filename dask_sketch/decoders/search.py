"""Step 1 of Algorithm 1: find an atom that correlates with the residual."""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.families import Array
from dask_sketch.decoders.lbfgs import Effort, descend_within
from dask_sketch.decoders.objective import Objective

_LOOKS = 200  # random starting points whose correlation is looked at
_CLIMBS = 3  # of which the best are climbed from, beside the one at the centre

# Step 5 moves the atom on at once: the last digits of this maximum are of no use.
_EFFORT = Effort(tolerance=1e-6, n_iterations=200)


def find_atom(
    objective: Objective, residual: tuple[Array, Array], rng: np.random.Generator
) -> Array:
    """Climb to a local maximum of ``Re <a / ||a||, r>`` from a random starting point.

    The first starting point is the paper's, at the centre of the data (sec. 5.3). The others are
    ours: atoms are drawn over the spread of the data, and the few that correlate best are climbed
    from too; the best maximum wins. From the centre alone, a climb sees no further than a few
    standard deviations of a component. On mixtures with means 3 to 5 times further apart than in
    sec. 5.1 (d = 1 to 12, K = 2 to 10), CL-OMPR from the centre alone missed components in 15 of
    28 fits, and with these starts in 1; on those of sec. 5.1 both end in the same minima.
    Step 1 stays cheap beside Step 5.

    Parameters
    ----------
    objective
        Atoms and their correlation.
    residual
        Real and imaginary part of the residual, shape (n_frequencies,) each.
    rng
        Source of the starting point.

    Returns
    -------
    theta
        Parameters of one atom, shape (n_parameters,), in the objective's coordinates.
    """
    norm = float(np.sqrt(residual[0] @ residual[0] + residual[1] @ residual[1]))
    starts = list(objective.random_atoms(rng, 1))
    if norm == 0.0:
        return starts[0]

    def negative(theta: Array) -> tuple[float, Array]:
        values, gradients = objective.correlation_gradients(theta[None], residual)
        return -float(values[0]) / norm, -gradients[0] / norm

    away = objective.random_atoms(rng, _LOOKS, away=True)
    best = np.argsort(-objective.correlations(away, residual), kind="stable")[:_CLIMBS]
    starts.extend(away[best])
    lower, upper = objective.lower, objective.upper
    found = [descend_within(negative, start, lower, upper, _EFFORT) for start in starts]
    return min(found, key=lambda descent: descent.value).x
