"""What has moved between two states of the data: features, and components of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from dask_sketch.models import Centroids, GaussianMixture

if TYPE_CHECKING:
    from dask_sketch.sketching import Sketch

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FeatureMovement:
    """How samples differ from others, feature by feature; all of shape (n_features,).

    Attributes
    ----------
    before, after
        Means.
    deviation_before, deviation_after
        Standard deviations of the samples.
    errors
        Difference of the means in standard errors of it, for samples that are independent.
    """

    before: Array
    after: Array
    deviation_before: Array
    deviation_after: Array
    errors: Array


@dataclass(frozen=True)
class ComponentMovement:
    """How a model differs from an earlier one, component by component.

    Attributes
    ----------
    number, earlier
        Of the component, and of the one of the earlier model that it is paired with; -1 for none.
    weight, weight_before
        Zero where there is no such component.
    distance
        Of the means, in standard deviations of the component (of centroids, of the samples); nan
        for one without a partner.
    """

    number: int
    earlier: int
    weight: float
    weight_before: float
    distance: float


def moved_features(before: Sketch, after: Sketch) -> FeatureMovement:
    """Compare means and deviations of the features of two sketches that share no samples.

    Parameters
    ----------
    before, after
        Of at least one sample each, with as many features.

    Examples
    --------
    >>> from dask_sketch.features import FeatureMap
    >>> from dask_sketch.sketching import partial_sketch
    >>> feature_map = FeatureMap(1, 20, scale=1.0)
    >>> a, b = (partial_sketch([[x], [x + 2.0]], feature_map) for x in (0.0, 3.0))
    >>> found = moved_features(a, b)
    >>> float(found.before[0]), float(found.after[0]), float(found.errors[0])
    (1.0, 4.0, 3.0)
    """
    first, second = before.variance, after.variance
    error = np.sqrt(first / before.effective_count + second / after.effective_count)
    difference = after.mean - before.mean
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(difference == 0.0, 0.0, difference / error)
    return FeatureMovement(before.mean, after.mean, np.sqrt(first), np.sqrt(second), errors)


def moved_components(
    before: GaussianMixture | Centroids, after: GaussianMixture | Centroids, sketch: Sketch
) -> list[ComponentMovement]:
    """Pair the components of two models of one kind, so that means are near, and compare them.

    Parameters
    ----------
    before, after
        Two mixtures or two sets of centroids.
    sketch
        Of the samples; its variances are the unit of distances between centroids.

    Returns
    -------
    movements
        By component of the later model, then what is left of the earlier one.

    Examples
    --------
    >>> from dask_sketch.features import FeatureMap
    >>> from dask_sketch.sketching import Sketch
    >>> a = GaussianMixture([0.6, 0.4], [[0.0], [9.0]], [[1.0], [4.0]])
    >>> b = GaussianMixture([0.7, 0.3], [[9.0], [1.0]], [[4.0], [1.0]])
    >>> empty = Sketch.empty(FeatureMap(1, 20, scale=1.0))
    >>> [(one.earlier, one.distance) for one in moved_components(a, b, empty)]
    [(1, 0.0), (0, 1.0)]
    """
    places = [_places(model) for model in (before, after)]
    if isinstance(before, GaussianMixture) and isinstance(after, GaussianMixture):
        unit = np.sqrt(after.covariances)
    else:
        unit = np.broadcast_to(np.sqrt(sketch.variance), places[1].shape)
    unit = np.maximum(unit, np.finfo(float).tiny)
    distances = np.sqrt(
        np.mean(((places[1][:, None] - places[0][None]) / unit[:, None]) ** 2, axis=-1)
    )
    rows, columns = linear_sum_assignment(np.minimum(distances, 1e6))
    pairs = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    found = []
    for k, weight in enumerate(after.weights):
        j = pairs.get(k, -1)
        old = float(before.weights[j]) if j >= 0 else 0.0
        far = float(distances[k, j]) if j >= 0 else np.nan
        found.append(ComponentMovement(k, j, float(weight), old, far))
    left = sorted(set(range(before.n_components)) - set(pairs.values()))
    return found + [ComponentMovement(-1, j, 0.0, float(before.weights[j]), np.nan) for j in left]


def _places(model: GaussianMixture | Centroids) -> Array:
    return model.means if isinstance(model, GaussianMixture) else model.centers
