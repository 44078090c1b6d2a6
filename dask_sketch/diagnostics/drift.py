"""Detect changes of the data distribution from the sketches of two samples."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from dask_sketch.diagnostics.mmd import (
    N_POINTS,
    difference_card,
    feature_weights,
    noise_blocks,
)
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.validation.tables import require_common_names
from dask_sketch.validation.threads import one_blas_thread

if TYPE_CHECKING:
    from dask_sketch.sketching.sketch import Sketch


Array = NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """Squared maximum mean discrepancy of two samples, estimated from their sketches.

    Attributes
    ----------
    cost
        Squared distance ``||z_a - z_b||**2``, including the noise of both sketches.
    noise_level
        Mean of the cost if both samples have the same distribution.
    deviation
        Standard deviation of the cost if both samples have the same distribution.
    """

    cost: float
    noise_level: float
    deviation: float

    @property
    def squared(self) -> float:
        """Cost minus its noise level; unbiased, so that it may be negative."""
        return self.cost - self.noise_level

    @property
    def discrepancy(self) -> float:
        """Estimated maximum mean discrepancy, from 0 to 2: the square root of :attr:`squared`."""
        return float(np.sqrt(max(self.squared, 0.0)))

    @property
    def deviations(self) -> float:
        """Excess of the cost over its noise level, in standard deviations."""
        if self.deviation > 0:
            return self.squared / self.deviation
        return float(np.sign(self.squared) * np.inf) if self.squared else 0.0

    def is_alarm(self, threshold: float, tolerance: float = 0.0) -> bool:
        """Whether the drift exceeds the noise, and is large enough to matter.

        Parameters
        ----------
        threshold
            Number of standard deviations that noise may reach, above 0. The cost is a sum of
            squares with a heavy upper tail: with few effective directions of the noise (one
            feature, few frequencies), it exceeds 5 once in a few hundred times, otherwise hardly
            ever.
        tolerance
            Smallest discrepancy, from 0 to 2, that matters.
        """
        return self.deviations > threshold and self.discrepancy >= tolerance

    def _repr_html_(self) -> str:
        return difference_card("Drift", self.cost, self.noise_level, self.deviation)


def drift(
    before: Sketch,
    after: Sketch,
    *,
    shared: float = 0.0,
    model: GaussianMixture | Centroids | None = None,
    seed: int = 0,
) -> Drift:
    """Compare the samples of two sketches of one feature map, if rows are independent.

    If rows depend on each other, such as the frames of a recording, nearly all pairs of data sets
    differ by more than this noise. Use :func:`dask_sketch.distributions.compare` for such data: it
    keeps its level.

    With weights ``w`` that sum to ``W``, the noise of ``z_a - z_b`` is the noise of one sample
    times the square root of ``v = sum_i c_i**2``. The coefficient of sample ``i`` is
    ``c_i = w_i / W_a`` if it is in the first sketch only, ``-w_i / W_b`` if it is in the second
    only, and their sum if it is in both. So the noise is much smaller for a data set that has grown
    by a few samples than for two independent data sets of the same size.

    With missing values (``nan_policy="available"``), each frequency is compared on the rows that
    observe it. Its weight is multiplied by the root of their fraction of both data sets. Samples in
    both data sets are assumed to miss values as often as samples of ``before``.

    Parameters
    ----------
    before, after
        Sketches of at least one sample each.
    shared
        Sum of the squared weights of the samples in both sketches (without weights, their number):
        0 for two batches, ``before.squared_weight`` for a data set that has only grown.
    model
        Model decoded from either sketch, to estimate the standard deviation. By default, one
        Gaussian with the mean and variances of the samples, which is rough for clusters.
    seed
        Seed of the points sampled from the model, ``>= 0``.

    Returns
    -------
    drift
        Squared discrepancy of eq. (23) of Keriven et al. (2018), with the weights of the map's
        features if it has them.

    Raises
    ------
    MergeError
        If the feature maps differ; the message names the field.
    InputError
        If a sketch is empty, ``shared`` exceeds the squared weights of a sketch, or the features of
        the model have other names.

    Examples
    --------
    >>> from dask_sketch.features import FeatureMap
    >>> from dask_sketch import partial_sketch
    >>> rng, feature_map = np.random.default_rng(0), FeatureMap(2, 100, scale=1.0)
    >>> monday = partial_sketch(rng.normal(size=(5000, 2)), feature_map)
    >>> tuesday = partial_sketch(rng.normal(size=(5000, 2)), feature_map)
    >>> wednesday = partial_sketch(rng.normal(size=(5000, 2)) + 0.1, feature_map)
    >>> drift(monday, tuesday).is_alarm(5.0), drift(monday, wednesday).is_alarm(5.0)
    (False, True)
    """
    if before.total_weight > 0:  # an empty sketch is refused below
        spread = _spread(after if after.total_weight > before.total_weight else before, model, seed)
    else:
        spread = 0.0
    return _compared(before, after, shared, spread)


def drifts_between(
    sketches: Mapping[str, Sketch],
    *,
    model: GaussianMixture | Centroids | None = None,
    seed: int = 0,
) -> dict[tuple[str, str], Drift]:
    """Compare all pairs of sketches, which share no samples.

    Parameters
    ----------
    sketches
        Sketches by name.
    model, seed
        Model and seed, as for :func:`drift`.

    Returns
    -------
    drifts
        Drifts by pair of names, in their order; sketches without samples are left out.

    Examples
    --------
    >>> drifts_between({})
    {}
    """
    full = {name: sketch for name, sketch in sketches.items() if sketch.total_weight > 0}
    if len(full) < 2:
        return {}
    spread = _spread(max(full.values(), key=lambda sketch: sketch.effective_count), model, seed)
    return {
        (a, b): _compared(full[a], full[b], 0.0, spread) for a, b in itertools.combinations(full, 2)
    }


def _compared(before: Sketch, after: Sketch, shared: float, spread: float) -> Drift:
    before.feature_map.require_same(after.feature_map)
    for sketch in (before, after):
        if not sketch.total_weight > 0:
            raise InputError("a sketch is empty: give sketches of one sample or more.")
    a, b = before.squared_weight, after.squared_weight
    if not 0.0 <= shared <= (1.0 + 1e-9) * min(a, b):
        raise InputError(
            f"shared={shared!r}: give the sum of the squared weights of the samples in both, at "
            f"most {min(a, b):g} for these sketches."
        )
    (old, seen), (new, seen_after) = _observed(before), _observed(after)
    factor = shared * seen * (old - new) ** 2 + max(a - shared, 0.0) * seen * old**2
    factor = factor + max(b - shared, 0.0) * seen_after * new**2
    first, second = before.characteristic, after.characteristic
    # pooled distribution; its own noise increases |z|
    total = before.total_weight + after.total_weight
    masses = before.total_weight * seen, after.total_weight * seen_after
    both = masses[0] + masses[1]
    pooled = (masses[0] * first + masses[1] * second) / np.where(both > 0.0, both, 1.0)
    known = np.sqrt(both / total) * ((seen > 0.0) & (seen_after > 0.0))
    weights = feature_weights(before.feature_map) * known
    difference = weights * (first - second)
    n = total**2 / (a + b)
    typical = float(np.mean(factor * known**2))
    energy = float(np.mean(weights**2 * (factor / (typical or 1.0)) * (1.0 - np.abs(pooled) ** 2)))
    return Drift(
        cost=float(np.vdot(difference, difference).real) / len(difference),
        noise_level=typical * max(energy, 0.0) * n / max(n - 1.0, 1.0),
        deviation=typical * spread,
    )


def _observed(sketch: Sketch) -> tuple[Array, Array]:
    """Inverse of the weight of the rows that observe each frequency, and their fraction.

    Both are zero at frequencies that no row observes, and of shape () without missing values.
    """
    if sketch.missing is None:
        return np.array(1.0 / sketch.total_weight), np.ones(())
    return sketch.observed.noise_factors / sketch.total_weight, sketch.observed.fractions


def _spread(sketch: Sketch, model: GaussianMixture | Centroids | None, seed: int) -> float:
    """Standard deviation of ``|e|**2`` for the noise ``e`` of one sample: ``sqrt(2 tr C**2)``.

    ``C`` is the covariance of the entries of the sketch of one sample; products over pairs of
    sampled points estimate ``tr C**2``. The noise of sums over many samples is Gaussian, and the
    variance of its square is ``2 tr C**2``, times the square of its scale.
    """
    if model is None:
        variance = np.maximum(sketch.variance, np.finfo(float).tiny)
        model = GaussianMixture(np.ones(1), sketch.mean[None], variance[None])
    require_common_names({"sketch": sketch.feature_map.feature_names, "model": model.feature_names})
    products = np.zeros((N_POINTS, N_POINTS))
    with one_blas_thread():
        for _, noise in noise_blocks(model, sketch, seed):
            products += noise @ noise.T
    np.fill_diagonal(products, 0.0)
    return float(np.sqrt(2.0 * np.sum(products**2) / (N_POINTS * (N_POINTS - 1))))


@dataclass(frozen=True)
class ComponentChange:
    """Change of a component between two models.

    Attributes
    ----------
    number, earlier
        Indices of the component and of its match in the earlier model; -1 without a match.
    weight, weight_before
        Weights in both models; zero where there is no such component.
    distance
        Distance of the means, in standard deviations of the component (of the samples for
        centroids); nan without a match.
    """

    number: int
    earlier: int
    weight: float
    weight_before: float
    distance: float


def component_changes(
    before: GaussianMixture | Centroids, after: GaussianMixture | Centroids, sketch: Sketch
) -> list[ComponentChange]:
    """Match the components of two models by their means, and compare them.

    Parameters
    ----------
    before, after
        Two mixtures or two sets of centroids.
    sketch
        Sketch of the samples; its variances are the unit of distances between centroids.

    Returns
    -------
    changes
        One entry for each component of the later model, then one for each unmatched component of
        the earlier model.

    Examples
    --------
    >>> from dask_sketch.features import FeatureMap
    >>> from dask_sketch import Sketch
    >>> a = GaussianMixture([0.6, 0.4], [[0.0], [9.0]], [[1.0], [4.0]])
    >>> b = GaussianMixture([0.7, 0.3], [[9.0], [1.0]], [[4.0], [1.0]])
    >>> empty = Sketch.empty(FeatureMap(1, 20, scale=1.0))
    >>> [(one.earlier, one.distance) for one in component_changes(a, b, empty)]
    [(1, 0.0), (0, 1.0)]
    """
    require_common_names(
        {
            "before": before.feature_names,
            "after": after.feature_names,
            "sketch": sketch.feature_map.feature_names,
        }
    )
    means = [_means(model) for model in (before, after)]
    if isinstance(before, GaussianMixture) and isinstance(after, GaussianMixture):
        unit = np.sqrt(after.variances)
    else:
        unit = np.broadcast_to(np.sqrt(sketch.variance), means[1].shape)
    unit = np.maximum(unit, np.finfo(float).tiny)
    distances = np.sqrt(
        np.mean(((means[1][:, None] - means[0][None]) / unit[:, None]) ** 2, axis=-1)
    )
    rows, columns = linear_sum_assignment(np.minimum(distances, 1e6))
    pairs = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    changes = []
    for k, weight in enumerate(after.weights):
        j = pairs.get(k, -1)
        old = float(before.weights[j]) if j >= 0 else 0.0
        far = float(distances[k, j]) if j >= 0 else np.nan
        changes.append(ComponentChange(k, j, float(weight), old, far))
    left = sorted(set(range(before.n_components)) - set(pairs.values()))
    return changes + [ComponentChange(-1, j, 0.0, float(before.weights[j]), np.nan) for j in left]


def _means(model: GaussianMixture | Centroids) -> Array:
    return model.means if isinstance(model, GaussianMixture) else model.centers
