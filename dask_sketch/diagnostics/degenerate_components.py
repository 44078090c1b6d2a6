"""Find components that coincide, lie at the boundary of the data, or have no width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dask_sketch.decoders.swap_moves import coincident
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.validation.choices import uses_matrices

if TYPE_CHECKING:
    from dask_sketch.sketching.sketch import Sketch

# Fraction of the range of the data: a mean closer to an end of the range is at the boundary.
_EDGE = 1e-6
# Fraction of the data's variance below which a component has no width.
_THIN = 1e-5


def coincident_pairs(
    model: GaussianMixture | Centroids, sketch: Sketch
) -> tuple[tuple[int, int], ...]:
    """Find pairs of components that are too close to be distinguished.

    Gaussians coincide if their Bhattacharyya coefficient, the integral of ``sqrt(p q)``, exceeds
    0.97: at equal widths, within half a standard deviation. Centroids coincide if they are closer
    than half the scale of the map.

    Parameters
    ----------
    model
        Mixture or centroids.
    sketch
        Sketch of as many features.

    Returns
    -------
    pairs
        Indices of both components of each pair.
    """
    if isinstance(model, Centroids):
        scaled = model.centers / np.sqrt(sketch.feature_map.mean_variances)
        close = coincident(scaled, np.zeros_like(scaled))
    else:
        has_matrices = uses_matrices(model.covariance_type)
        shapes = model.covariance_matrices if has_matrices else model.variances
        close = coincident(model.means, shapes)
    first, second = np.nonzero(np.triu(close, 1))
    return tuple(zip(first.tolist(), second.tolist(), strict=True))


def at_boundary(model: GaussianMixture | Centroids, sketch: Sketch) -> tuple[int, ...]:
    """Find components with a mean at the boundary of the data, or beyond, in some feature.

    Components without width at the boundary do not count: many rows share such a value.
    """
    means = model.centers if isinstance(model, Centroids) else model.means
    room = _EDGE * (sketch.maximum - sketch.minimum)
    outside = (means <= sketch.minimum + room) | (means >= sketch.maximum - room)
    outside &= sketch.maximum > sketch.minimum
    if isinstance(model, GaussianMixture):
        beyond = (means < sketch.minimum - room) | (means > sketch.maximum + room)
        outside &= beyond | (model.variances >= _THIN * sketch.extent[1])
    return _rows_with(outside)


def at_floor(model: GaussianMixture, sketch: Sketch) -> tuple[int, ...]:
    """Find components with a variance at its floor in some feature."""
    return _rows_with(floored_variances(model, sketch))


def floored_variances(model: GaussianMixture, sketch: Sketch) -> NDArray[np.bool_]:
    """Find variances (n_components, n_features) at their floor.

    The floor of a fit to the sketch is in the record of the decoder; it does not bound a mixture of
    maximum likelihood. If the mixture has standard errors, variances at the floor have zero errors.
    Variances below a hundred-thousandth of the variance of the data are always included.
    """
    floored: NDArray[np.bool_] = model.variances < _THIN * sketch.extent[1]
    if uses_matrices(model.covariance_type):  # their floor is one of eigenvalues
        return floored
    if model.stderr is not None:
        floored |= np.broadcast_to(
            model.stderr.covariances.reshape(len(floored), -1) == 0.0, floored.shape
        )
    elif (
        model.decoding is not None
        and model.decoding.variance_floor is not None
        and not model.decoding.is_likeliest
    ):
        expected, variances = sketch.feature_map.mean_variances, model.variances
        data = sketch.extent[1]
        if model.decoding.model == "isotropic":  # one variance, bounded by a mean over features
            expected, data = (
                np.full_like(expected, expected.mean()),
                np.full_like(data, data.mean()),
            )
        floor = model.decoding.variance_floor * np.minimum(data, expected)
        floored |= variances <= floor * (1.0 + _EDGE)
    return floored


def _rows_with(chosen: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(chosen.any(axis=1)).tolist())
