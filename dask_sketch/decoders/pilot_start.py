"""Components of the pilot of a feature map, as a start of searches."""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.starts import Start
from dask_sketch.features.pilot import PilotMixture, fit_pilot
from dask_sketch.models.clusters import Clusters
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.sketch import Sketch

_POINTS = 20_000  # points sampled from a pilot mixture of another number of components
# Divergence between Gaussians of the moments of pilot and sketch, in nats: up to the first the
# mixture of the pilot is that of the sketch, beyond the second it says nothing of it.
_SAME, _REACH = 0.02, 3.0
# Squared distance of the sketch from that of the pilot's mixture: for the same data, in multiples
# of that of two random samples; and for a start, as a fraction of the energy of the sketch.
_SQUARED_CHANCE, _UNEXPLAINED = 2.0, 0.1
_CHANCE = 4.0  # times that of random rows of a Gaussian, since tails may be heavy


def pilot_mixture(sketch: Sketch, reach: float = _SAME) -> PilotMixture | None:
    """Mixture of the pilot rows; None if there is none, or the sketch is of other data.

    A sketch of one group, or of later data, differs in its means or variances, and in more of its
    frequencies than noise explains. A private sketch holds no means.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    reach
        Largest divergence of the moments of the sketch from those of the mixture, in nats.
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
    ratio = sketch.variance[varies] / pilot.variance[varies]
    # few rows hardly tell the variance of a heavy tail: its kurtosis is at least that of one row
    away = np.maximum(sketch.maximum - sketch.mean, sketch.mean - sketch.minimum)[varies]
    kurtosis = (away**2 / sketch.variance[varies]) ** 2 / sketch.count
    tail = np.maximum(0.5 * kurtosis, 1.0)
    divergence = 0.5 * float(((ratio - 1.0 - np.log(ratio)) / tail + shift**2).sum())
    chance = 1.0 / pilot.n_rows + 1.0 / sketch.effective_count
    if divergence < reach + _CHANCE * int(varies.sum()) * chance:
        return found
    # few rows far away change the moments of data with heavy tails, and hardly the sketch
    distance = squared_distance(sketch, found)
    energy = float(np.vdot(sketch.z, sketch.z).real) if reach > _SAME else 0.0
    return found if distance < max(_SQUARED_CHANCE * chance, _UNEXPLAINED * energy) else None


def pilot_clusters(sketch: Sketch, n_components: int | None) -> Clusters | None:
    """Clusters of the pilot rows; None if there are not so many, or the sketch is of other data.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    n_components
        Number of centroids.
    """
    pilot = sketch.feature_map.pilot
    found = None if pilot is None else pilot.clusters
    if found is None or len(found.weights) != n_components or pilot_mixture(sketch) is None:
        return None
    return found


def nearby_mixture(sketch: Sketch) -> PilotMixture | None:
    """Mixture of the pilot rows, as a start, also for a sketch of other data.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    """
    return pilot_mixture(sketch, _REACH)


def squared_distance(sketch: Sketch, mixture: PilotMixture) -> float:
    """Squared distance between a sketch and the sketch of a mixture: its cost, eq. (13).

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    mixture
        Mixture of the same features.
    """
    model = GaussianMixture(mixture.weights, mixture.means, mixture.variances)
    modelled = model.characteristic(sketch.feature_map.frequencies)
    difference = sketch.z - modelled / np.sqrt(sketch.feature_map.n_frequencies)
    return float(np.vdot(difference, difference).real)


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
    found = nearby_mixture(sketch)
    if found is None or n_components is None:
        return None
    if len(found.weights) != n_components:
        mixture = GaussianMixture(found.weights, found.means, found.variances)
        found = fit_pilot(mixture.sample(_POINTS, seed=seed), n_components, seed)
    return Start(found.weights, found.means, found.variances)
