"""Components of the pilot of a feature map, as a start of searches."""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.starts import Start
from dask_sketch.features.pilot import PilotMixture, fit_pilot
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.sketch import Sketch

_POINTS = 20_000  # points sampled from a pilot mixture of another number of components
# Differences up to which a sketch is of the data of its pilot: root mean square difference of the
# means in standard deviations, and factor between the variances.
_SHIFT, _FACTOR = 0.25, 1.5


def pilot_mixture(sketch: Sketch) -> PilotMixture | None:
    """Mixture of the pilot rows; None if there is none, or the sketch is of other data.

    A sketch of one group, or of later data, differs in its mean or variances. A private sketch
    holds neither.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    """
    pilot = sketch.feature_map.pilot
    if pilot is None or pilot.mixture is None or sketch.privacy is not None:
        return None
    found = pilot.mixture
    mean = found.weights @ found.means
    varies = (pilot.variance > 0) & (sketch.variance > 0)
    if not varies.any():
        return None
    shift = (sketch.mean - mean)[varies] / np.sqrt(pilot.variance[varies])
    ratio = np.log(sketch.variance[varies] / pilot.variance[varies])
    near = np.sqrt((shift**2).mean()) < _SHIFT and abs(np.median(ratio)) < np.log(_FACTOR)
    return found if near else None


def pilot_start(sketch: Sketch, n_components: int | None, seed: int = 0) -> Start | None:
    """Components of the pilot mixture to start from, or None.

    A mixture of another number of components is replaced by the mixture of greatest likelihood for
    points sampled from it.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    n_components
        Number of components to start from; no start if it is None.
    seed
        Seed of the points.
    """
    found = pilot_mixture(sketch)
    if found is None or n_components is None:
        return None
    if len(found.weights) != n_components:
        mixture = GaussianMixture(found.weights, found.means, found.variances)
        found = fit_pilot(mixture.sample(_POINTS, seed=seed), n_components, seed)
    return Start(found.weights, found.means, found.variances)
