"""Differential privacy for a released sketch: how much noise its sums need, and adding it.

What is released is the pair (sum of features, total weight). Data sets are neighbours if one has
one individual's samples more than the other. The samples of an individual, of total weight at most
``W``, move the ``m`` complex sums by at most ``W`` each, so by ``W sqrt(m)`` in the Euclidean norm
and, counting real and imaginary parts, by ``W m sqrt(2)`` in the sum of moduli; they move the total
weight by at most ``W``. (To replace an individual is to take one out and put one in: twice the
epsilon at most.) The total weight is one number beside ``2 m`` and divides all of them, so that it
is given less noise, as if ``a`` times it were released: the ``a`` that makes the averages most
precise, which depends on ``m`` alone.

Noise is drawn on a grid of steps ``2**-q``, from 2**46 to 2**47 steps of it wide, after the exact
sums have been rounded to that grid. Rounding can add a step to a difference of two sums, and a
computed feature may exceed its unit modulus in the last digits: both are part of the sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import optimize, special

from dask_sketch.errors import InputError, MergeError
from dask_sketch.features.kernels.fixed_point import SQUARED_FRACTION, WEIGHT_FRACTION
from dask_sketch.validation.arrays import require_integer

if TYPE_CHECKING:
    from dask_sketch.sketching.sketch import Sketch

MODULUS = 1.0 + 2.0**-16
"""Largest modulus of a computed feature of weight one, in float32 too."""
_STEPS = 46  # binary digits of the noise's scale, in steps of its grid
_LEAST, _MOST = 1e-6, 1e3  # epsilon; beyond, noise is all there is, or none
_LIGHT, _HEAVY = 2.0**-10, 2.0**32  # of an individual


@dataclass(frozen=True)
class Privacy:
    """What was done to a sketch before it was released.

    Attributes
    ----------
    mechanism
        ``"laplace"`` or ``"gaussian"``; both names for a merge of both.
    epsilon, delta
        What holds if no individual has samples in more than one of the merged parts: the largest
        of them.
    epsilon_total, delta_total
        What holds in any case: the sums over the parts.
    max_weight
        Largest weight of one individual's samples together; samples of more are not protected.
    sensitivity
        Of (sums, a times the total weight) to one individual; L1 of Laplace, L2 of Gaussian noise.
    moment_deviation
        Standard deviation of the noise in the real and the imaginary part of each sum.
    weight_deviation
        Standard deviation of the noise in the total weight.
    parts
        Number of privatised sketches that were merged.
    seeded
        Whether some of the noise came from a seed: who knows it can take the noise away.
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
            raise InputError(f"this is no record of privacy: {asdict(self)}")

    def _fields(self) -> dict[str, str]:
        """What a glance should show, in words."""
        kept = f"epsilon {self.epsilon:.4g}" + (f", delta {self.delta:.3g}" if self.delta else "")
        out = {"privacy": f"{kept} ({self.mechanism} noise)"}
        if self.parts > 1:
            total = f"epsilon {self.epsilon_total:.4g}, delta {self.delta_total:.3g}"
            out["privatised parts"] = f"{self.parts}; {total} for those who are in all of them"
        out["noise of the sums"] = f"deviation {self.moment_deviation:.4g}"
        out["not private"] = "the feature map, and the bounds"
        if self.seeded:
            out["seeded"] = "whoever knows the seed can take the noise away"
        return out


def merged_privacy(records: Sequence[Privacy | None]) -> Privacy | None:
    """The record of a merge: parallel and sequential composition, and variances that add.

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
            "some of the sketches are private and others are not: their sum would not be private. "
            "Merge the sketches of the data first, and privatise the result."
        )
    return _composed(private)


def refuse_private(what: str, *records: Privacy | None) -> None:
    """Raise if a sketch is private: noise can be neither taken out again nor weighted."""
    if any(record is not None for record in records):
        raise MergeError(
            f"cannot {what} a private sketch: its noise would stay, or no longer be what its "
            f"record says. To {what}, keep the sketch of the data itself, and privatise the result."
        )


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
    """Check what :meth:`Sketch.privatise` was given; the weight of one individual."""
    if not _is_number(epsilon) or not _LEAST <= epsilon <= _MOST:  # type: ignore[operator]
        raise InputError(f"epsilon={epsilon!r}: give a number from {_LEAST:g} to {_MOST:g}.")
    if not _is_number(delta) or not 0.0 <= delta < 1.0:  # type: ignore[operator]
        raise InputError(f"delta={delta!r}: give 0, or a small probability such as 1e-6.")
    group_size = require_integer("group_size", group_size, 1)
    if seed is not None:
        require_integer("seed", seed, 0)
    if max_weight is not None and not _is_number(max_weight):
        raise InputError(f"max_weight={max_weight!r}: give a number, or none for weights of one.")
    weight = group_size * float(1.0 if max_weight is None else max_weight)  # type: ignore[arg-type]
    if not _LIGHT <= weight <= _HEAVY:
        raise InputError(
            f"max_weight={max_weight!r} with group_size={group_size!r}: the weight of one "
            f"individual must be from {_LIGHT:g} to {_HEAVY:g}. Multiply all weights by one factor."
        )
    return weight


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def require_weights(sketch: Sketch, max_weight: float | None) -> None:
    """Refuse weights that are not what they are said to be."""
    if max_weight is None:
        ones = sketch.count << WEIGHT_FRACTION, sketch.count << SQUARED_FRACTION
        if (sketch.weight_quanta, sketch.squared_weight_quanta) != ones:
            raise InputError(
                "max_weight is needed: the samples have weights. Give the largest that a sample "
                "can have, as known without looking at the data."
            )
    elif sketch.squared_weight > max_weight * MODULUS * sketch.total_weight:
        raise InputError(
            f"max_weight={max_weight!r} is less than the weights are: they have a sum of "
            f"{sketch.total_weight:g} and a sum of squares of {sketch.squared_weight:g}."
        )


def gaussian_delta(shift: float, epsilon: float) -> float:
    """Least delta of Gaussian noise of deviation one, for a query that moves by ``shift``.

    Theorem 8 of Balle and Wang: ``Phi(s / 2 - e / s) - exp(e) Phi(-s / 2 - e / s)``.

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
    """Largest sensitivity, in deviations of the noise, that is (epsilon, delta)-private.

    The exact calibration of Balle and Wang, which needs less noise than ``sqrt(2 log(1.25 /
    delta)) / epsilon`` and holds for an epsilon above one too.

    Examples
    --------
    >>> round(1 / gaussian_shift(1.0, 1e-5), 4)
    3.7306
    """

    def excess(log_shift: float) -> float:
        return math.log(max(gaussian_delta(math.exp(log_shift), epsilon), 1e-300) / delta)

    root = optimize.brentq(excess, math.log(1e-8 * epsilon), math.log(40 + 2 * epsilon), xtol=1e-13)
    return math.exp(root) * (1 - 1e-9)  # on the safe side of the last digits


@dataclass(frozen=True)
class Noise:
    """Noise of some sums: its scale is ``scale * 2**-digits``.

    Attributes
    ----------
    scale
        Of the distribution on the integers, in steps of ``2**-digits``.
    digits
        Binary digits after the point of the grid.
    """

    scale: int
    digits: int

    @property
    def value(self) -> float:
        """The scale in units of the sums."""
        return math.ldexp(self.scale, -self.digits)


def calibrated(
    epsilon: float, delta: float, n_frequencies: int, max_weight: float
) -> tuple[Noise, Noise, float]:
    """Noise of the sums and of the total weight, and the sensitivity that it hides.

    Parameters
    ----------
    epsilon, delta
        Privacy; Laplace noise for a delta of zero, else Gaussian.
    n_frequencies
        Number ``m`` of complex sums.
    max_weight
        Weight ``W`` of one individual.

    Raises
    ------
    InputError
        If delta is too small for the epsilon: the discrete distribution is not Gaussian enough
        then.
    """
    m, w = n_frequencies, max_weight * MODULUS
    shift = epsilon
    if delta:
        # A discrete Gaussian is no further than 1 / (20 deviation**2) from a rounded one, to which
        # Balle and Wang apply: rounding comes after the noise.
        apart = (2 * m + 1) / 20 * 4.0**-_STEPS * (1 + math.exp(min(epsilon, 700)))
        if apart > delta / 1024:
            raise InputError(
                f"delta={delta!r} is too small for epsilon={epsilon!r}: give at least "
                f"{1024 * apart:.1g}, or a smaller epsilon."
            )
        shift = gaussian_shift(epsilon, delta - apart)

    def sensitivities(step: float, weight_step: float) -> tuple[float, float]:
        """Of the sums, and of the total weight, after rounding to their grids."""
        if delta:
            return w * math.sqrt(m) + step * math.sqrt(2 * m), w + weight_step
        return w * math.sqrt(2) * m + step * 2 * m, w + weight_step

    # averages err by var(sums) / n**2 + |z|**2 var(weight) / n**2: least, with |z| at most 1, for
    a = (m / 2) ** 0.25 if delta else (m / math.sqrt(2)) ** (1 / 3)

    def scales(step: float, weight_step: float) -> tuple[float, float, float]:
        moment, weight = sensitivities(step, weight_step)
        both = math.hypot(moment, a * weight) if delta else moment + a * weight
        return both / shift, both / shift / a, both

    rough = scales(0.0, 0.0)
    digits = [_STEPS + 1 - math.frexp(scale)[1] for scale in rough[:2]]
    exact = scales(2.0 ** -digits[0], 2.0 ** -digits[1])
    sums, weight = (
        Noise(math.ceil(math.ldexp(scale, places)), places)
        for scale, places in zip(exact[:2], digits, strict=True)
    )
    return sums, weight, exact[2]
