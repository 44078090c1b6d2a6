"""How far a model is from the law of a sketch's samples: MMD without its noise, and its spread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dask_sketch.diagnostics.quality import feature_weights, noise_level
from dask_sketch.models import Centroids, GaussianMixture

if TYPE_CHECKING:
    from dask_sketch.sketching import Sketch

Array = NDArray[np.float64]

N_POINTS = 256  # drawn from a model to stand for its noise: 4 % on a standard deviation
_NUMBERS = 2**21  # of the points' sketches that are held at once (32 MiB)


@dataclass(frozen=True)
class Discrepancy:
    """Squared maximum mean discrepancy of a model and a law, estimated from a sketch of the law.

    Attributes
    ----------
    cost
        ``||z - A P||**2``, which holds the noise of the sketch too.
    noise_level
        What the noise adds to the cost on average, from the number of samples alone.
    deviation
        Standard deviation of the cost over draws of the samples.
    """

    cost: float
    noise_level: float
    deviation: float

    @property
    def squared(self) -> float:
        """The cost less its noise level: unbiased, and so below zero now and then."""
        return self.cost - self.noise_level

    def _repr_html_(self) -> str:
        from dask_sketch.display.differences import difference_card

        return difference_card("Discrepancy", self.cost, self.noise_level, self.deviation)


def discrepancy(model: GaussianMixture | Centroids, sketch: Sketch, seed: int = 0) -> Discrepancy:
    """Estimate the squared discrepancy of a model from a sketch that it was *not* decoded from.

    Of the sketch that the model was decoded from, the result is biased downward: the model has
    bent to its noise.

    Parameters
    ----------
    model
        With as many features as the sketch.
    sketch
        Of at least two samples. Its feature map sets the kernel, eq. (23) of Keriven et al. (2018),
        with the weights of its features if it has them.
    seed
        Seed of the points that stand for the samples' law in the deviation.

    Raises
    ------
    InputError
        If the sketch is too small or the numbers of features differ.

    Examples
    --------
    >>> from dask_sketch.features import FeatureMap
    >>> from dask_sketch.sketching import partial_sketch
    >>> truth = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    >>> sketch = partial_sketch(truth.sample(10_000, seed=0), FeatureMap(2, 50, scale=1.0))
    >>> found = discrepancy(truth, sketch)
    >>> abs(found.squared) < 4 * found.deviation
    True
    """
    with one_blas_thread():
        return _measured(model, sketch, seed)


def _measured(model: GaussianMixture | Centroids, sketch: Sketch, seed: int) -> Discrepancy:
    level, n = noise_level(sketch), sketch.effective_count
    residual = weighted_residual(model, sketch)
    along = np.zeros(N_POINTS)
    products = np.zeros((N_POINTS, N_POINTS))
    for block, noise in noise_blocks(model, sketch, seed):
        along += noise @ halves(residual[block])
        products += noise @ noise.T
    # e = z - A P* has covariance C / n; the cost is |d|^2 + 2 d.e + |e|^2 with d = A P* - A P,
    # of which the residual is d + e
    np.fill_diagonal(products, 0.0)
    own = 2.0 * float(np.sum(products**2)) / (N_POINTS * (N_POINTS - 1)) / n**2
    cross = 4.0 * float(np.mean(along**2)) / n
    return Discrepancy(
        cost=float(np.vdot(residual, residual).real),
        noise_level=level,
        deviation=float(np.sqrt(max(cross - own, own))),
    )


def weighted_residual(model: GaussianMixture | Centroids, sketch: Sketch) -> NDArray[np.complex128]:
    """``z - A P``, shape (n_frequencies,), times the weights of the features."""
    features = sketch.feature_map
    unit = feature_weights(features) / np.sqrt(features.n_frequencies)
    return np.asarray(unit * (sketch.characteristic - model.characteristic(features.frequencies)))


def one_blas_thread() -> threadpool_limits:
    """Small matrices are multiplied no slower by one, and rounding does not depend on how many."""
    return threadpool_limits(1, user_api="blas")


def halves(values: NDArray[np.complex128]) -> Array:
    """Real parts, then imaginary parts, along the last axis."""
    return np.concatenate([values.real, values.imag], axis=-1)


def noise_blocks(
    model: GaussianMixture | Centroids, sketch: Sketch, seed: int
) -> Iterator[tuple[slice, Array]]:
    """Blocks of frequencies with the noise (n_points, 2B) of single samples there.

    A draw is the sketch of a point of the model less that of the model. Of centroids, whose points
    have no noise but that of their labels, the points spread as much around the centres as the
    variances of the data say.
    """
    features = sketch.feature_map
    law = samples_law(model, sketch)
    points = law.sample(N_POINTS, seed=seed)
    unit = feature_weights(features) / np.sqrt(features.n_frequencies)
    width = _NUMBERS // N_POINTS
    for start in range(0, features.n_frequencies, width):
        block = slice(start, start + width)
        omega = features.frequencies[:, block]
        noise = np.exp(-1j * (points @ omega)) - law.characteristic(omega)
        noise += private_noise(sketch, noise.shape, seed, start)
        yield block, halves(unit[block] * noise)


def private_noise(
    sketch: Sketch, shape: tuple[int, ...], seed: int, start: int
) -> NDArray[np.complex128] | float:
    """What privatising adds to the features of single samples, were it theirs; 0 if nothing.

    As good as white: a draw for each of the samples that stand for the noise.
    """
    if not sketch.private_variance:
        return 0.0
    rng = np.random.default_rng((seed, start))
    deviation = np.sqrt(sketch.effective_count * sketch.private_variance)
    draws: NDArray[np.float64] = rng.standard_normal((2, *shape))
    return np.asarray(deviation * (draws[0] + 1j * draws[1]))


def samples_law(model: GaussianMixture | Centroids, sketch: Sketch) -> GaussianMixture:
    """The mixture that stands for the law of the samples: the model, or its blurred centres."""
    if isinstance(model, GaussianMixture):
        return model
    mean = model.weights @ model.centers
    between = model.weights @ (model.centers - mean) ** 2
    variance = sketch.extent[1]
    least = np.finfo(float).eps * np.maximum(variance, np.finfo(float).tiny / np.finfo(float).eps)
    within = np.maximum(variance - between, least)
    return GaussianMixture(
        model.weights, model.centers, np.broadcast_to(within, model.centers.shape)
    )
