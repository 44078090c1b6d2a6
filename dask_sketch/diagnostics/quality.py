"""Numbers that say how well a mixture matches its sketch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError

if TYPE_CHECKING:
    from dask_sketch.features import FeatureMap
    from dask_sketch.models import GaussianMixture
    from dask_sketch.sketching import Sketch


@dataclass(frozen=True)
class Quality:
    """What a sketch says about a mixture.

    Attributes
    ----------
    cost
        ``||z - A P||**2``: squared distance between the sketch and that of the mixture.
    noise_level
        Expected cost of the true law, from the number of samples alone.
    effective_components
        See :func:`effective_components`.
    visible
        Share of the frequencies at which the sketch stands above its noise, in [0, 1].
    """

    cost: float
    noise_level: float
    effective_components: float
    visible: float

    @property
    def cost_ratio(self) -> float:
        """Cost in noise levels: about one or less for data that is such a mixture."""
        return self.cost / self.noise_level if self.noise_level > 0 else np.inf


def quality(sketch: Sketch, model: GaussianMixture) -> Quality:
    """Hold a mixture against the sketch it was decoded from, or any other sketch.

    Parameters
    ----------
    sketch
        Of at least one sample.
    model
        With the same number of features.

    Raises
    ------
    InputError
        If the sketch is empty or the numbers of features differ.

    Examples
    --------
    >>> from dask_sketch.features import FeatureMap
    >>> from dask_sketch.models import GaussianMixture
    >>> from dask_sketch.sketching import partial_sketch
    >>> truth = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    >>> sketch = partial_sketch(truth.sample(10_000, seed=0), FeatureMap(2, 50, scale=1.0))
    >>> 0 < quality(sketch, truth).cost_ratio < 5
    True
    """
    found = sketch.characteristic
    expected = model.characteristic(sketch.feature_map.frequencies)
    noise = noise_modulus(sketch)
    return Quality(
        cost=float(np.mean(np.abs(found - expected) ** 2)),
        noise_level=sketch.noise_level,
        effective_components=effective_components(model.weights),
        visible=float(np.mean(np.abs(found) > 2.0 * noise)),
    )


def noise_modulus(sketch: Sketch) -> float:
    """Modulus that the characteristic function of the samples has where that of the law is zero.

    ``1 / sqrt(n)``, with the effective count as ``n``.
    """
    if not sketch.effective_count > 0:
        raise InputError("the sketch is empty: there is nothing to hold a mixture against.")
    return float(1.0 / np.sqrt(sketch.effective_count))


def effective_components(weights: ArrayLike) -> float:
    """Exponential of the entropy of the weights: ``K`` when all are equal, 1 when one has all.

    Examples
    --------
    >>> round(effective_components([0.25, 0.25, 0.25, 0.25]), 6)
    4.0
    """
    share = np.asarray(weights, dtype=np.float64)
    share = share[share > 0] / share.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def sketch_distance(a: Sketch, b: Sketch) -> float:
    """Distance ``||z_a - z_b||`` of two sketches, an estimate of the maximum mean discrepancy.

    Between 0 and 2. For two samples of one law it is about ``sqrt(1 / n_a + 1 / n_b)``.

    Raises
    ------
    MergeError
        If the feature maps differ; the message names the field.
    InputError
        If a sketch is empty.

    Examples
    --------
    >>> from dask_sketch.features import FeatureMap
    >>> from dask_sketch.sketching import partial_sketch
    >>> sketch = partial_sketch([[0.0, 1.0]], FeatureMap(2, 50, scale=1.0))
    >>> sketch_distance(sketch, sketch)
    0.0
    """
    a.feature_map.require_same(b.feature_map)
    return float(np.linalg.norm(a.z - b.z))


def scaled_radii(feature_map: FeatureMap) -> NDArray[np.float64]:
    """Radius of each frequency in units of the component that the law expects, shape (m,).

    ``sqrt(sum_l omega_l**2 v_l)`` with the law's mean variances ``v``, so that the modulus of the
    characteristic function of such a component is ``exp(-radius**2 / 2)`` in any direction.
    """
    omega = feature_map.frequencies
    if feature_map.whitening is not None:
        omega = np.asarray(np.linalg.solve(feature_map.whitening.T, omega), dtype=np.float64)
    if feature_map.scale is not None:
        return np.asarray(np.linalg.norm(omega, axis=0) * feature_map.scale)
    laws = np.atleast_2d(np.asarray(feature_map.covariances))
    variances = np.average(laws, axis=0, weights=feature_map.law_weights)
    return np.asarray(np.sqrt(variances @ omega**2))
