"""Release a sketch with differential privacy: add noise, and remove all else."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.kernels.fixed_point import (
    FRACTION,
    MAX_TOTAL_WEIGHT,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
    FixedPoint,
)
from dask_sketch.sketching.arguments import NanPolicy, require_nan_policy
from dask_sketch.sketching.discrete_noise import RandomBits, discrete_gaussian, discrete_laplace
from dask_sketch.sketching.missing import (
    MissingWeights,
    counter_sizes,
    equal_supports,
    require_sparse,
)
from dask_sketch.sketching.privacy import (
    Noise,
    NoiseCalibration,
    Privacy,
    calibrated,
    require_parameters,
    require_weights,
)
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.tables import require_names_in
from dask_sketch.validation.warn import warn_user

_MAX_DELTA = 0.01
_SAFE_DELTA = 0.1  # fraction of one over the number of individuals, above which a warning is given
_OBSERVED = 4.0  # standard deviations of the noise, that the rows of a frequency weigh at least
_REACH = 8.0  # default bounds around the center, in scales of the feature map


def privatise(
    sketch: Sketch,
    epsilon: float,
    delta: float = 0.0,
    *,
    bounds: ArrayLike | None = None,
    max_weight: float | None = None,
    group_size: int = 1,
    nan_policy: NanPolicy = "raise",
    seed: int | None = None,
) -> Sketch:
    """Make a sketch (epsilon, delta)-differentially private, so that it can be released.

    Noise is added to the sums of features, to the total weight, and to the counters of missing
    values if there may be any: discrete Laplace noise if ``delta`` is zero, discrete Gaussian noise
    otherwise, as little as the guarantee allows. All other values that depend on the data are
    removed: minimum and maximum, first and second moments, the sum of squared weights, and the
    numbers of samples and of omitted rows. The guarantee: for any use of the result, an event is at
    most ``exp(epsilon)`` times as probable, plus ``delta``, with the samples of an individual among
    the data as without them, and vice versa.

    The guarantee does not cover the feature map, which is released unchanged: choose its scale and
    its center without the data, or on other data that is not private. It holds for this one result;
    guarantees of several results about the same individuals add up. It needs sums computed on a
    processor: a GPU rounds the rows of a block together.

    Parameters
    ----------
    sketch
        Sketch of the data, not private itself.
    epsilon
        Privacy parameter from 1e-6 to 1000; values of about 1 or less protect.
    delta
        Privacy parameter in [0, 0.01], well below one over the number of individuals: with a
        probability of about ``delta`` each, individuals have no protection. 0 needs more noise.
    bounds
        Lowest and highest value of each feature, shape (2, n_features), known without looking at
        the data; decoders start within them. By default eight scales around the center of the
        feature map.
    max_weight
        Largest weight of a sample, known without looking at the data; by default all weights are
        one.
    group_size
        Largest number of samples of one individual.
    nan_policy
        Policy of the sketch. For ``"available"``, the counters of missing values are released too,
        with noise: counters of frequencies cost nothing, counters of pairs of features 5 % more
        noise everywhere, or 10 % more Laplace noise. Give it for all data whose values may be
        missing, whether some are or not. Frequencies are left out if the rows that observe them
        weigh less than four standard deviations of the noise.
    seed
        Seed of the noise, ``>= 0``, for tests: whoever knows it can remove the noise. By default
        the noise comes from the entropy of the operating system.

    Returns
    -------
    sketch
        Sketch with the record :attr:`Sketch.privacy`. It can be decoded, and merged with private
        sketches. ``count`` is the noisy total weight divided by the largest weight.

    Raises
    ------
    InputError
        If an argument is out of range, the sketch has counters of missing values and
        ``nan_policy`` is not ``"available"``, ``delta`` is above 0.01 or not below one over the
        number of individuals, the weights contradict ``max_weight``, or the sketch is private
        already or rounded.

    Warns
    -----
    UserWarning
        If ``delta`` is above a tenth of one over the number of individuals.

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
    _require_exact(sketch, nan_policy)
    available = nan_policy == "available"
    weight = require_parameters(epsilon, delta, max_weight, group_size, seed)
    _require_small_delta(delta, sketch.count, group_size)
    require_weights(max_weight, sketch.count, sketch.weight_quanta, sketch.squared_weight_quanta)
    lowest, highest = _public_bounds(sketch, bounds)
    m = sketch.feature_map.n_frequencies
    n_pairs = counter_sizes(sketch.feature_map)["pairs"] if available else 0
    noises = calibrated(epsilon, delta, m, weight, n_pairs)
    of_sums, of_weight = noises.sums, noises.weight
    bits = RandomBits(None if seed is None else _key(sketch, seed, epsilon, delta, weight))
    draw, per_scale = (discrete_gaussian, 1.0) if delta else (discrete_laplace, float(np.sqrt(2.0)))
    noise = draw(of_sums.scale, 2 * m, bits).astype(object).reshape(2, m)
    moments = _noisy(sketch.moment_quanta.integers(), FRACTION, of_sums, noise)
    extra = int(draw(of_weight.scale, 1, bits)[0])
    total = _noisy(sketch.weight_quanta, WEIGHT_FRACTION, of_weight, extra)
    total = min(max(total, 0), MAX_TOTAL_WEIGHT << WEIGHT_FRACTION)
    deviations = per_scale * of_sums.value, per_scale * of_weight.value
    missing = None
    if available:
        drawn = [
            draw(noise.scale, n, bits).astype(object)
            for noise, n in ((of_sums, m), (noises.pairs, n_pairs))
        ]
        missing = _noisy_counters(sketch, noises, drawn, total, math.hypot(*deviations))
    largest = Fraction(1.0 if max_weight is None else max_weight)
    nothing = FixedPoint.zeros(sketch.feature_map.n_features)
    return replace(
        sketch,
        # records of the design, such as sums of the pilot rows, and the sample are the data itself
        feature_map=sketch.feature_map.without_records(),
        sample=None,
        moment_quanta=FixedPoint.from_integers(moments),
        weight_quanta=total,
        squared_weight_quanta=round((total << SQUARED_FRACTION - WEIGHT_FRACTION) * largest),
        count=round(Fraction(total, 1 << WEIGHT_FRACTION) / largest),
        omitted=0,
        minimum=lowest,
        maximum=highest,
        first_quanta=nothing,
        second_quanta=nothing,
        missing=missing,
        tight_bounds=False,
        privacy=Privacy(
            mechanism="gaussian" if delta else "laplace",
            epsilon=float(epsilon),
            delta=float(delta),
            epsilon_total=float(epsilon),
            delta_total=float(delta),
            max_weight=weight,
            sensitivity=noises.sensitivity,
            moment_deviation=deviations[0],
            weight_deviation=deviations[1],
            seeded=seed is not None,
        ),
    )


def _require_exact(sketch: object, nan_policy: object) -> None:
    """Refuse anything but an exact sketch, and counters that would not be released."""
    if not isinstance(sketch, Sketch):
        raise InputError(
            f"sketch of type {type(sketch).__name__}: give one Sketch; of a group, group[label]."
        )
    if sketch.privacy is not None:
        raise InputError("sketch is private already: privatise the sketch of the data once.")
    if sketch.rounding_error:
        raise InputError("sketch is rounded: the guarantee needs exact sums of the data.")
    require_nan_policy(nan_policy)
    if nan_policy == "available":
        require_sparse(sketch.feature_map)
    elif sketch.missing is not None:
        raise InputError(
            f"nan_policy={nan_policy!r}: the sketch has rows with missing values. Pass "
            "nan_policy='available' to release their counters, with noise, or sketch the data with "
            "nan_policy='omit'.",
            parameter="nan_policy",
        )


def _noisy_counters(
    sketch: Sketch, noises: NoiseCalibration, drawn: list[Any], total: int, deviation: float
) -> MissingWeights | None:
    """Counters of missing values with noise, made possible for a total weight.

    Parameters
    ----------
    sketch
        Sketch of the data.
    noises, drawn
        Scales of the noise, and the noise of the counters of frequencies and of pairs.
    total
        Noisy total weight, in quanta of a sketch.
    deviation
        Standard deviation of the difference of this weight and a counter, at most.
    """
    d = sketch.feature_map.n_features
    exact: list[Any] = [0, 0]
    if sketch.missing is not None:
        exact = [part.integers() for part in (sketch.missing.frequencies, sketch.missing.pairs)]
    frequencies, pairs = (
        _noisy(counters, FRACTION, noise, values)
        for counters, noise, values in zip(exact, (noises.sums, noises.pairs), drawn, strict=True)
    )
    # frequencies of the same features have the same counter: the mean of their noisy ones
    sets, counts = equal_supports(sketch.feature_map)
    sums = np.zeros(len(counts), dtype=object)
    np.add.at(sums, sets, frequencies)
    frequencies = (sums // counts.astype(object))[sets]
    largest = total >> (WEIGHT_FRACTION - FRACTION)
    margin = math.ceil(_OBSERVED * deviation) << FRACTION
    frequencies = np.where(largest - frequencies < margin, largest, frequencies)
    frequencies, pairs = (np.clip(each, 0, largest) for each in (frequencies, pairs))
    nothing = FixedPoint.zeros(d)
    return MissingWeights(
        FixedPoint.from_integers(frequencies), FixedPoint.from_integers(pairs), nothing, nothing, 0
    ).or_none()


def _require_small_delta(delta: float, count: int, group_size: int) -> None:
    """Refuse a delta that lets individuals be published as they are, and warn of a large one."""
    individuals = max(count / group_size, 1.0)
    limit = min(_MAX_DELTA, 1.0 / individuals)
    text = (
        f"delta={delta!r}: the guarantee also holds for a release that publishes individuals with "
        f"this probability, {delta * individuals:.3g} of {individuals:,.0f} here. Give 0, or at "
        f"most {_SAFE_DELTA * limit:.1g}."
    )
    if delta > _MAX_DELTA or delta >= 1.0 / individuals > 0:
        raise InputError(text)
    if delta > _SAFE_DELTA / individuals:
        warn_user(text)


def _public_bounds(
    sketch: Sketch, bounds: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    center, d = sketch.feature_map.center, sketch.feature_map.n_features
    if bounds is None:
        reach = _REACH * np.sqrt(sketch.feature_map.mean_variances)
        return center - reach, center + reach
    require_names_in("bounds", bounds, sketch.feature_map.feature_names, "the sketch")
    try:
        low, high = np.array(bounds, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"bounds={bounds!r}: give two rows, the lowest and the highest values."
        ) from error
    if low.shape != (d,) or not np.isfinite([low, high]).all() or not (low < high).all():
        raise InputError(
            f"bounds={bounds!r}: give finite numbers of shape (2, {d}), a row of the lowest and a "
            "row of the highest value of each feature, each above the lowest."
        )
    return low, high


def _key(sketch: Sketch, seed: int, *parameters: float) -> bytes:
    """Key of the noise; it depends on the data, so that equal seeds do not cancel out."""
    key = hashlib.sha256(f"dask-sketch noise {seed} {parameters}".encode())
    key.update(sketch.feature_map.digest.encode())
    key.update(f" {sketch.weight_quanta} {sketch.squared_weight_quanta} {sketch.count}".encode())
    sums = [sketch.moment_quanta, sketch.first_quanta, sketch.second_quanta]
    if sketch.missing is not None:
        sums += [sketch.missing.frequencies, sketch.missing.pairs]
    for quanta in sums:
        key.update(quanta.high.tobytes() + quanta.low.tobytes())
    return key.digest()


def _noisy(quanta: Any, fraction: int, noise: Noise, values: Any) -> Any:
    """Round integers to the grid of the noise, and add its values."""
    shift = fraction - noise.digits
    half = (1 << shift) >> 1
    return (((quanta + half) >> shift) + values) << shift
