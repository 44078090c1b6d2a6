"""A sketch to be released: what is kept of it, and the noise that is added."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.kernels.fixed_point import (
    FRACTION,
    LARGEST_TOTAL,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
    FixedPoint,
)
from dask_sketch.sketching.discrete_noise import RandomBits, discrete_gaussian, discrete_laplace
from dask_sketch.sketching.privacy import (
    Noise,
    Privacy,
    calibrated,
    require_parameters,
    require_weights,
)
from dask_sketch.sketching.sketch import Sketch

_REACH = 8.0  # of the bounds where none are given, in scales of the feature map


def privatise(
    sketch: Sketch,
    epsilon: float,
    delta: float = 0.0,
    *,
    bounds: ArrayLike | None = None,
    max_weight: float | None = None,
    group_size: int = 1,
    seed: int | None = None,
) -> Sketch:
    """A sketch that is (epsilon, delta)-differentially private: to be given to others.

    Noise is added to the sums of features and to the total weight: discrete Laplace noise if
    ``delta`` is zero, discrete Gaussian otherwise, just as much as the guarantee needs. All
    else that tells of the data is left out: minimum and maximum, first and second moments,
    sum of squared weights, numbers of samples and of omitted rows. The guarantee: whatever
    anybody does with the result, an event is at most ``exp(epsilon)`` times as probable, plus
    ``delta``, with the samples of an individual among the data as without, and the other way
    round.

    It does not cover the feature map, which is released as it is: choose its scale and its
    center without the data, or on other data that is not private. It holds for this one result;
    guarantees of several results about the same individuals add up. It needs sums made on a
    processor: those of a GPU are rounded together.

    Parameters
    ----------
    sketch
        Sketch to be released, not private itself.
    epsilon
        From 1e-6 to 1000; about 1 or less protects.
    delta
        In [0, 1), well under one over the number of individuals; 0 asks for more noise.
    bounds
        Lowest and highest value of each feature, shape (2, n_features), known without looking
        at the data; decoders start within them. Eight scales around the map's center by
        default.
    max_weight
        Largest weight of a sample, known without looking at the data. Not given: all weights
        are one.
    group_size
        Largest number of samples of one individual.
    seed
        Seed of the noise, ``>= 0``, for tests. Who knows it can take the noise away. By
        default noise comes from the operating system's entropy.

    Returns
    -------
    sketch
        With the record :attr:`~dask_sketch.Sketch.privacy`. It decodes and merges as any other,
        with its like. ``count`` is only the total weight, in units of the largest.

    Raises
    ------
    InputError
        If an argument is out of range, weights are not what they are said to be, or the sketch
        is private already.

    References
    ----------
    Dwork, McSherry, Nissim, Smith (2006), Calibrating noise to sensitivity in private data
    analysis.
    Balle, Wang (2018), Improving the Gaussian mechanism for differential privacy.
    Canonne, Kamath, Steinke (2020), The discrete Gaussian for differential privacy.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> x = np.random.default_rng(0).normal(size=(5000, 2))
    >>> sketch = partial_sketch(x, FeatureMap(2, 50, scale=1.0))
    >>> private = privatise(sketch, 1.0, 1e-6, bounds=[[-9, -9], [9, 9]], seed=7)
    >>> abs(private.total_weight - 5000) < 100, private.privacy.mechanism
    (True, 'gaussian')
    """
    if sketch.privacy is not None:
        raise InputError("the sketch is private already; noise is added once.")
    weight = require_parameters(epsilon, delta, max_weight, group_size, seed)
    require_weights(sketch, max_weight)
    lowest, highest = _public_bounds(sketch, bounds)
    m = sketch.feature_map.n_frequencies
    of_sums, of_weight, sensitivity = calibrated(epsilon, delta, m, weight)
    bits = RandomBits(None if seed is None else _key(sketch, seed, epsilon, delta, weight))
    draw, per_scale = (discrete_gaussian, 1.0) if delta else (discrete_laplace, float(np.sqrt(2.0)))
    noise = draw(of_sums.scale, 2 * m, bits).astype(object).reshape(2, m)
    moments = _noisy(sketch.moment_quanta.integers(), FRACTION, of_sums, noise)
    extra = int(draw(of_weight.scale, 1, bits)[0])
    total = _noisy(sketch.weight_quanta, WEIGHT_FRACTION, of_weight, extra)
    total = min(max(total, 0), LARGEST_TOTAL << WEIGHT_FRACTION)
    largest = Fraction(1.0 if max_weight is None else max_weight)
    nothing = FixedPoint.zeros(sketch.feature_map.n_features)
    return replace(
        sketch,
        moment_quanta=FixedPoint.from_integers(moments),
        weight_quanta=total,
        squared_weight_quanta=round((total << SQUARED_FRACTION - WEIGHT_FRACTION) * largest),
        count=round(Fraction(total, 1 << WEIGHT_FRACTION) / largest),
        omitted=0,
        minimum=lowest,
        maximum=highest,
        first_quanta=nothing,
        second_quanta=nothing,
        tight_bounds=False,
        privacy=Privacy(
            mechanism="gaussian" if delta else "laplace",
            epsilon=float(epsilon),
            delta=float(delta),
            epsilon_total=float(epsilon),
            delta_total=float(delta),
            max_weight=weight,
            sensitivity=sensitivity,
            moment_deviation=per_scale * of_sums.value,
            weight_deviation=per_scale * of_weight.value,
            seeded=seed is not None,
        ),
    )


def _public_bounds(
    sketch: Sketch, bounds: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    center, d = sketch.feature_map.center, sketch.feature_map.n_features
    if bounds is None:
        reach = _REACH * np.sqrt(sketch.feature_map.mean_variances)
        return center - reach, center + reach
    try:
        low, high = np.array(bounds, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"bounds={bounds!r}: give two rows, lowest and highest.") from error
    if low.shape != (d,) or not np.isfinite([low, high]).all() or not (low < high).all():
        raise InputError(
            f"bounds={bounds!r}: give finite numbers of shape (2, {d}), a row of the lowest "
            "values of each feature and one of the highest, which are above them."
        )
    return low, high


def _key(sketch: Sketch, seed: int, *parameters: float) -> bytes:
    """Of the noise: other data under the same seed gets other noise, which does not cancel."""
    of = hashlib.sha256(f"dask-sketch noise {seed} {parameters}".encode())
    of.update(sketch.feature_map.digest.encode())
    of.update(f" {sketch.weight_quanta} {sketch.squared_weight_quanta} {sketch.count}".encode())
    for steps in (sketch.moment_quanta, sketch.first_quanta, sketch.second_quanta):
        of.update(steps.high.tobytes() + steps.low.tobytes())
    return of.digest()


def _noisy(steps: Any, fraction: int, noise: Noise, drawn: Any) -> Any:
    """Whole numbers of steps, rounded to the grid of the noise, plus the noise."""
    shift = fraction - noise.digits
    half = (1 << shift) >> 1
    return (((steps + half) >> shift) + drawn) << shift
