"""Search for atoms from the widest scale of a feature map to the narrowest one.

Ours, for feature maps of several scales that were made without data. Seen by low frequencies alone,
clusters that are far apart overlap, so that ascents and descents from anywhere reach them, and only
as many atoms are needed as these frequencies can tell from noise. The next scale then only moves
them a little, and adds those that it distinguishes. A search with all frequencies at once misses
clusters: an atom of one is almost orthogonal to the sketch of the others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.descent import Fit, descend_fully, empty_fit
from dask_sketch.decoders.greedy import iterate
from dask_sketch.decoders.noise_covariance import is_explained
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.swap_moves import swap_atoms

# Radius up to which a frequency belongs to a scale, in units of it: beyond, the modulus of a
# component of that width is below a hundredth.
_RADIUS = 3.0


def search_scales(
    objective: Objective, variances: Array, n_components: int, rng: np.random.Generator
) -> Fit:
    """Add atoms scale by scale, from the widest one, until noise explains what each scale sees.

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
        most = min(n_components, 2 * len(chosen) // (1 + objective.space.n_parameters))
        if not most:
            continue
        seen = objective.select(chosen)
        if len(fit.theta):
            fit = descend_fully(seen, fit.theta)
        while len(fit.theta) < most and not is_explained(seen, fit, rng):
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
    found = [np.flatnonzero(each <= _RADIUS) for each in radii]
    return [*found, np.arange(objective.n_frequencies)]
