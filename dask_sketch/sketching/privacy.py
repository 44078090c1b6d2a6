"""Calibrate the noise of differential privacy for a sketch, and record it.

The released values are the sum of features and the total weight. Two data sets are neighbours if
one has the samples of one more individual. The samples of an individual, of total weight at most
``W``, change each of the ``m`` complex sums by at most ``W``: all of them by ``W sqrt(m)`` in the
Euclidean norm and, with real and imaginary parts as numbers, by ``W m sqrt(2)`` in the L1 norm.
They change the total weight by at most ``W``. (Replacing an individual removes one and adds one:
at most twice the epsilon.) The total weight is one number beside ``2 m`` and divides all of them.
It is therefore given less noise, as if ``a`` times it were released; the ``a`` that makes the
averages most precise depends on ``m`` alone.

With missing values, the weight of the rows that do not observe each frequency is released too, and
that of the rows that do not observe both features of each of ``p`` pairs. A sample adds either to
the sum of a frequency or to its counter. Where the samples of an individual of the weight ``b``
observe it and others of the weight ``W - b`` do not, the real part, the imaginary part and the
counter move by at most ``sqrt(b**2 + (W - b)**2) <= W`` in the Euclidean norm, and by at most
``sqrt(2) b + W - b <= W sqrt(2)`` in the L1 norm. So the counters of frequencies, with the noise of
the sums, are within the sensitivity of the sums. The counters of pairs change by at most ``W``
each; as if ``c`` times them were released, with a ``c`` for which they are a tenth of the squared
sensitivity of the sums, or of the sensitivity in the L1 norm. All of these are released whether
values are missing or not, because that may depend on one individual.

The noise lies on a grid of spacing ``2**-q`` and is 2**46 to 2**47 grid points wide. The exact sums
are rounded to that grid before. Rounding can add one grid spacing to a difference of two sums, and
the modulus of a computed feature may exceed one in its last digits: the sensitivity includes both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special

from dask_sketch.errors import InputError, MergeError
from dask_sketch.features.kernels.fixed_point import SQUARED_FRACTION, WEIGHT_FRACTION
from dask_sketch.sketching.missing import equal_supports
from dask_sketch.validation.arrays import require_integer

MODULUS = 1.0 + 2.0**-16
"""Largest modulus of a computed feature of weight one, for float32 and every distribution."""
_SCALE_BITS = 46  # binary digits of the scale of the noise, in units of its grid
_PAIRS = 0.1  # part of the squared sensitivity of the sums that the counters of pairs may have
_MIN_EPSILON, _MAX_EPSILON = 1e-6, 1e3  # outside, the result is only noise, or has none
_MIN_WEIGHT, _MAX_WEIGHT = 2.0**-10, 2.0**32  # weight of an individual


@dataclass(frozen=True)
class Privacy:
    """Record of the privacy noise in a released sketch.

    Attributes
    ----------
    mechanism
        ``"laplace"`` or ``"gaussian"``; ``"gaussian and laplace"`` for a merge of both.
    epsilon, delta
        Guarantee if no individual has samples in more than one of the merged parts: the largest
        values of the parts.
    epsilon_total, delta_total
        Guarantee in any case: the sums over the parts.
    max_weight
        Largest total weight of the samples of one individual; heavier ones are not protected.
    sensitivity
        Sensitivity of (sums, a times the total weight) to one individual, with missing values of
        (sums and counters of frequencies, a times the total weight, c times counters of pairs); in
        the L1 norm for Laplace noise, in the L2 norm for Gaussian noise.
    moment_deviation
        Standard deviation of the noise in the real and the imaginary part of each sum, and in each
        counter of a frequency before counters of the same features are averaged.
    weight_deviation
        Standard deviation of the noise in the total weight.
    parts
        Number of private sketches that were merged.
    seeded
        Whether some of the noise came from a seed; whoever knows the seed can remove the noise.
    """

    mechanism: str
    epsilon: float
    delta: float
    epsilon_total: float
    delta_total: float
    max_weight: float
    sensitivity: float
    moment_deviation: float
    weight_deviation: float
    parts: int = 1
    seeded: bool = False

    def __post_init__(self) -> None:
        numbers = [value for value in asdict(self).values() if isinstance(value, float)]
        if (
            not isinstance(self.mechanism, str)
            or len(numbers) != 8
            or not all(0.0 <= value < math.inf for value in numbers)
            or not isinstance(self.parts, int)
            or not 1 <= self.parts < 2**53
            or not isinstance(self.seeded, bool)
        ):
            raise InputError(
                f"privacy={asdict(self)}: give the values of a record that privatise() made."
            )

    def notes(self) -> list[str]:
        """Limits of the guarantee, one sentence each."""
        out = ["The feature map and the bounds are not private."]
        if self.parts > 1:
            out.append(
                f"For an individual in all {self.parts} parts, epsilon is {self.epsilon_total:.4g} "
                f"and delta is {self.delta_total:.3g}."
            )
        if self.seeded:
            out.append("Whoever knows the seed can remove the noise.")
        return out


def merged_privacy(records: Sequence[Privacy | None]) -> Privacy | None:
    """Record of a merge, by parallel and sequential composition; variances add.

    Parameters
    ----------
    records
        Record of each part, None for sketches that are not private.

    Raises
    ------
    MergeError
        If some of the sketches are private, and others are not.

    Examples
    --------
    >>> day = Privacy("laplace", 0.5, 0.0, 0.5, 0.0, 1.0, 15.0, 3.0, 4.0)
    >>> week = merged_privacy([day] * 7)
    >>> week.parts, week.epsilon, week.epsilon_total
    (7, 0.5, 3.5)
    """
    private = [record for record in records if record is not None]
    if not private:
        return None
    if len(private) < len(records):
        raise MergeError(
            "privacy: some of the sketches are private and others are not, so their sum would not "
            "be private. Merge the sketches of the data first, and privatise the result."
        )
    return _composed(private)


def refuse_private(what: str, *records: Privacy | None) -> None:
    """Raise MergeError if a sketch is private: its noise can be neither removed nor weighted."""
    if any(record is not None for record in records):
        raise MergeError(
            f"privacy: cannot {what} a private sketch, because its noise would no longer agree "
            f"with its record. First {what} the sketch of the data, then privatise the result."
        )


def noise_variance(sketch: Any) -> float:
    """Variance of the noise in real and imaginary parts of the averages of a private sketch.

    Parameters
    ----------
    sketch
        Private sketch, of positive weight.

    Returns
    -------
    variance
        Mean over the entries, with missing values weighted by the fractions of the rows that
        observe them, and with the noise of the counters, which equal ones share.
    """
    record = sketch.privacy
    if sketch.missing is None:
        moments = (record.moment_deviation / sketch.total_weight) ** 2
        weight = (record.weight_deviation / sketch.total_weight) ** 2
        energy = min(float(np.mean(np.abs(sketch.moment_sum / sketch.total_weight) ** 2)), 1.0)
        return moments + energy * weight / 2
    weights, fractions = sketch.observed.frequencies, sketch.observed.fractions
    seen = weights > 0.0
    if not seen.any():
        return 0.0
    sets, counts = equal_supports(sketch.feature_map)
    energies = np.minimum(np.abs(sketch.centered_characteristic) ** 2, 1.0)
    counters = record.moment_deviation**2 / counts[sets] + record.weight_deviation**2
    variances = record.moment_deviation**2 + energies * counters / 2
    return float(np.average(variances[seen] / weights[seen] ** 2, weights=fractions[seen]))


def _composed(records: Sequence[Privacy]) -> Privacy:
    names = sorted({name for record in records for name in record.mechanism.split(" and ")})
    return Privacy(
        mechanism=" and ".join(names),
        epsilon=max(record.epsilon for record in records),
        delta=max(record.delta for record in records),
        epsilon_total=math.fsum(record.epsilon_total for record in records),
        delta_total=math.fsum(record.delta_total for record in records),
        max_weight=max(record.max_weight for record in records),
        sensitivity=max(record.sensitivity for record in records),
        moment_deviation=math.hypot(*(record.moment_deviation for record in records)),
        weight_deviation=math.hypot(*(record.weight_deviation for record in records)),
        parts=sum(record.parts for record in records),
        seeded=any(record.seeded for record in records),
    )


def require_parameters(
    epsilon: object, delta: object, max_weight: object, group_size: object, seed: object
) -> float:
    """Validate the arguments of ``privatise``; return the largest weight of one individual."""
    if not _is_number(epsilon) or not _MIN_EPSILON <= epsilon <= _MAX_EPSILON:  # type: ignore[operator]
        raise InputError(
            f"epsilon={epsilon!r}: give a number from {_MIN_EPSILON:g} to {_MAX_EPSILON:g}."
        )
    if not _is_number(delta) or not 0.0 <= delta < 1.0:  # type: ignore[operator]
        raise InputError(f"delta={delta!r}: give 0, or a small probability such as 1e-6.")
    group_size = require_integer("group_size", group_size, 1)
    if seed is not None:
        require_integer("seed", seed, 0)
    if max_weight is not None and not _is_number(max_weight):
        raise InputError(f"max_weight={max_weight!r}: give a number, or None for weights of one.")
    weight = group_size * float(1.0 if max_weight is None else max_weight)  # type: ignore[arg-type]
    if not _MIN_WEIGHT <= weight <= _MAX_WEIGHT:
        raise InputError(
            f"max_weight={max_weight!r} with group_size={group_size!r}: the weight of one "
            f"individual must be from {_MIN_WEIGHT:g} to {_MAX_WEIGHT:g}. Multiply all weights "
            f"by one factor."
        )
    return weight


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def require_weights(
    max_weight: float | None, count: int, weight_quanta: int, squared_weight_quanta: int
) -> None:
    """Raise InputError if the weights of a sketch contradict ``max_weight``.

    Parameters
    ----------
    max_weight
        Stated largest weight of a sample; None if all weights are one.
    count, weight_quanta, squared_weight_quanta
        Attributes of the sketch.
    """
    if max_weight is None:
        expected = count << WEIGHT_FRACTION, count << SQUARED_FRACTION
        if (weight_quanta, squared_weight_quanta) != expected:
            raise InputError(
                "max_weight=None, but the samples have weights. Give the largest weight that a "
                "sample can have, known without looking at the data."
            )
        return
    total = weight_quanta / (1 << WEIGHT_FRACTION)
    squared = squared_weight_quanta / (1 << SQUARED_FRACTION)
    if squared > max_weight * MODULUS * total:
        raise InputError(
            f"max_weight={max_weight!r} is less than the largest weight: the weights have the sum "
            f"{total:g} and the sum of squares {squared:g}. Give a larger one."
        )


def gaussian_delta(shift: float, epsilon: float) -> float:
    """Smallest delta of Gaussian noise of standard deviation one.

    Theorem 8 of Balle and Wang: ``Phi(s / 2 - e / s) - exp(e) Phi(-s / 2 - e / s)``.

    Parameters
    ----------
    shift
        Sensitivity ``s`` of the query.
    epsilon
        Privacy parameter ``e``.

    References
    ----------
    Balle, Wang (2018), Improving the Gaussian mechanism for differential privacy.
    """
    low, high = -shift / 2 - epsilon / shift, shift / 2 - epsilon / shift
    if high >= 0:
        return float(special.ndtr(high) - np.exp(epsilon + special.log_ndtr(low)))
    # phi(high) = exp(e) phi(low): the difference of two ratios, which does not cancel
    ratios = special.erfcx(-high / math.sqrt(2)) - special.erfcx(-low / math.sqrt(2))
    return float(0.5 * math.exp(-(high**2) / 2) * ratios)


def gaussian_shift(epsilon: float, delta: float) -> float:
    """Largest sensitivity, in standard deviations of the noise, that is (epsilon, delta)-private.

    This is the exact calibration of Balle and Wang (2018). It needs less noise than ``sqrt(2
    log(1.25 / delta)) / epsilon`` and also holds for an epsilon above one.

    Examples
    --------
    >>> round(1 / gaussian_shift(1.0, 1e-5), 4)
    3.7306
    """

    def excess(log_shift: float) -> float:
        return math.log(max(gaussian_delta(math.exp(log_shift), epsilon), 1e-300) / delta)

    root = optimize.brentq(excess, math.log(1e-8 * epsilon), math.log(40 + 2 * epsilon), xtol=1e-13)
    return math.exp(root) * (1 - 1e-9)  # covers the rounding of the root


@dataclass(frozen=True)
class Noise:
    """Scale of the noise of some sums, ``scale * 2**-digits``.

    Attributes
    ----------
    scale
        Scale of the distribution on the integers, in units of the grid.
    digits
        Binary digits of the grid after the point.
    """

    scale: int
    digits: int

    @property
    def value(self) -> float:
        """The scale in units of the sums."""
        return math.ldexp(self.scale, -self.digits)


class NoiseCalibration(NamedTuple):
    """Scales of the noise for a guarantee.

    Attributes
    ----------
    sums
        Noise of each real number of the sums, and of each counter of a frequency.
    weight, pairs
        Noise of the total weight, and of each counter of a pair.
    sensitivity
        Sensitivity of all released values.
    """

    sums: Noise
    weight: Noise
    pairs: Noise
    sensitivity: float


def calibrated(
    epsilon: float, delta: float, n_frequencies: int, max_weight: float, n_pairs: int = 0
) -> NoiseCalibration:
    """Scales of the noise for a guarantee.

    Parameters
    ----------
    epsilon, delta
        Privacy parameters; Laplace noise for a delta of zero, else Gaussian noise.
    n_frequencies
        Number ``m`` of complex sums.
    max_weight
        Weight ``W`` of one individual.
    n_pairs
        Number ``p`` of counters of pairs; none and no counters of frequencies if zero.

    Raises
    ------
    InputError
        If delta is too small for epsilon: the discrete distribution is then not close enough to
        the Gaussian.
    """
    m, w = n_frequencies, max_weight * MODULUS
    n_sums = 3 * m if n_pairs else 2 * m  # number of sums, with the counters of frequencies
    shift = epsilon
    if delta:
        # The distance of a discrete Gaussian from a rounded Gaussian is at most 1 / (20 sigma**2).
        # Balle and Wang apply to the rounded one: its rounding comes after the noise.
        apart = (n_sums + 1 + n_pairs) / 20 * 4.0**-_SCALE_BITS * (1 + math.exp(min(epsilon, 700)))
        if apart > delta / 1024:
            smallest = 1024 * apart
            remedy = f"at least {smallest:.1g}, or " if smallest < 0.01 else ""
            raise InputError(
                f"delta={delta!r} is too small for epsilon={epsilon!r}: give {remedy}a smaller "
                "epsilon."
            )
        shift = gaussian_shift(epsilon, delta - apart)

    def sensitivities(spacing: float, weight: float, pair: float) -> tuple[float, float, float]:
        """Sensitivities of the sums, the total weight and pairs, rounded to grids of a spacing."""
        if delta:
            pairs = math.sqrt(n_pairs) * (w + pair)
            return w * math.sqrt(m) + spacing * math.sqrt(n_sums), w + weight, pairs
        return w * math.sqrt(2) * m + spacing * n_sums, w + weight, n_pairs * (w + pair)

    # The variance of an average, var(sums) / n**2 + |z|**2 var(weight) / n**2 with |z| <= 1, is
    # smallest for this a.
    a = (m / 2) ** 0.25 if delta else (m / math.sqrt(2)) ** (1 / 3)
    c = 1.0
    if n_pairs:
        c = math.sqrt(_PAIRS * m / n_pairs) if delta else _PAIRS * math.sqrt(2) * m / n_pairs

    def scales(*spacings: float) -> tuple[float, float, float, float]:
        moment, weight, pairs = sensitivities(*spacings)
        parts = moment, a * weight, c * pairs
        both = math.hypot(*parts) if delta else sum(parts)
        return both / shift, both / shift / a, both / shift / c, both

    rough = scales(0.0, 0.0, 0.0)
    digits = [_SCALE_BITS + 1 - math.frexp(scale)[1] for scale in rough[:3]]
    exact = scales(*(2.0**-bits for bits in digits))
    sums, weight, pairs = (
        Noise(math.ceil(math.ldexp(scale, bits)), bits)
        for scale, bits in zip(exact[:3], digits, strict=True)
    )
    return NoiseCalibration(sums, weight, pairs, exact[3])
