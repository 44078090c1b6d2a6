"""Where atoms should not be: on top of each other, at the edge of the data, without width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dask_sketch.decoders.exchange import coincident
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture

if TYPE_CHECKING:
    from dask_sketch.sketching.sketch import Sketch

# Of the data's range: a mean this near to its end, or beyond, is on the bound.
_EDGE = 1e-6
# Of the data's variance: thinner than any component that is meant.
_THIN = 1e-5


def coincident_pairs(
    model: GaussianMixture | Centroids, sketch: Sketch
) -> tuple[tuple[int, int], ...]:
    """Pairs of atoms that lie so close that they count as one.

    Gaussians whose Bhattacharyya coefficient, the integral of ``sqrt(p q)``, is above 0.97: half a
    standard deviation apart if of one width. Centroids nearer than half the scale of the map.

    Parameters
    ----------
    model, sketch
        Of as many features.
    """
    if isinstance(model, Centroids):
        scaled = model.centers / np.sqrt(sketch.feature_map.mean_variances)
        close = coincident(scaled, np.zeros_like(scaled))
    else:
        close = coincident(model.means, model.covariances)
    first, second = np.nonzero(np.triu(close, 1))
    return tuple(zip(first.tolist(), second.tolist(), strict=True))


def on_the_edge(model: GaussianMixture | Centroids, sketch: Sketch) -> tuple[int, ...]:
    """Atoms with a mean at the end of the data's range in some feature, or beyond."""
    places = model.centers if isinstance(model, Centroids) else model.means
    room = _EDGE * (sketch.maximum - sketch.minimum)
    outside = (places <= sketch.minimum + room) | (places >= sketch.maximum - room)
    outside &= sketch.maximum > sketch.minimum
    return _rows_with(outside)


def without_width(model: GaussianMixture, sketch: Sketch) -> tuple[int, ...]:
    """Components of which :func:`held_variances` are held in some feature."""
    return _rows_with(held_variances(model, sketch))


def held_variances(model: GaussianMixture, sketch: Sketch) -> NDArray[np.bool_]:
    """Variances (K, n_features) that were held at their floor.

    By the record of the decoder if there is one: the floor, or with standard errors those that are
    zero. Thinner than a hundred-thousandth of the data's variance counts in any case.
    """
    held: NDArray[np.bool_] = model.covariances < _THIN * sketch.extent[1]
    if model.stderr is not None:
        held |= model.stderr.covariances == 0.0
    elif model.decoding is not None and model.decoding.variance_floor is not None:
        distribution, variances = sketch.feature_map.mean_variances, model.covariances
        data = sketch.extent[1]
        if model.decoding.model == "isotropic":  # one variance, held above a mean over features
            distribution, data = (
                np.full_like(distribution, distribution.mean()),
                np.full_like(data, data.mean()),
            )
        floor = model.decoding.variance_floor * np.minimum(data, distribution)
        held |= variances <= floor * (1.0 + _EDGE)
    return held


def _rows_with(chosen: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(chosen.any(axis=1)).tolist())
