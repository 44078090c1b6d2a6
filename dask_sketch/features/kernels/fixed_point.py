"""Fixed-point sums without rounding: integers of two words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError
from dask_sketch.validation.arrays import FrozenDataclass

LOW_BITS = 56
_BASE = 2**LOW_BITS
_MASK = _BASE - 1
_MAX_HIGH = 2**62  # bound of the high word: the sum of two such words does not wrap around
_CARRY_INTERVAL = 64  # low words that are added before their carry is taken
FRACTION = 71  # moments are counted in quanta of 2**-71
# binary digits of one sample of weight one in a moment of the features: quanta of 2**-30
CONTRIBUTION = 30
MIN_EXPONENT, MAX_EXPONENT = (
    -32,
    32,
)  # weights lie in 2**MIN_EXPONENT to 2**MAX_EXPONENT, or are zero
WEIGHT_BITS = 48  # f of a weight f * 2**e is counted in quanta of 2**-48
BINADES = 4  # powers of two whose weights are summed together, so that e is a multiple of it
FEATURE_FRACTION = CONTRIBUTION - MIN_EXPONENT  # quanta of the moments of the features, 2**-62
WEIGHT_FRACTION = WEIGHT_BITS - MIN_EXPONENT  # quanta of the total weight, 2**-80
SQUARED_FRACTION = WEIGHT_BITS - 2 * MIN_EXPONENT  # quanta of the sum of squared weights, 2**-112
_SLACK = 1.0 + 2.0**-10  # factor that allows rounding of sums that were multiplied and rounded
MAX_TOTAL_WEIGHT = 2**47 - 2**30  # largest sum of all weights
_Words = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FixedPoint(FrozenDataclass):
    """Array of integers from ``-2**118`` to ``2**118``, each stored as ``high * 2**56 + low``.

    All sums of a sketch are integer numbers of quanta. The contribution of one sample is rounded to
    an integer by arithmetic that depends on that sample, its weight and the feature map alone;
    after that, integers are added. Addition of integers is commutative and associative, so that
    chunks, blocks, batches, the shape of a tree of merges, the number of workers and of threads,
    retries and order change no bit, and subtraction restores the earlier bits. The words are
    canonical (``0 <= low < 2**56``): equal numbers have equal bits.

    **Moments.** The kernel rounds each contribution to quanta of ``h = 2**-22`` for a feature map
    in float32, ``2**-50`` in float64, and the sum is kept in quanta of ``2**-71``.

    *Error.* Let ``c_i`` be the contribution of sample ``i`` as the kernel computes it, and ``r_i``
    the same rounded to the nearest quantum: ``|r_i - c_i| <= h / 2``. There is no other rounding,
    so that for weights of one ``|sum r_i - sum c_i| <= n h / 2``, and the error of the moment, a
    mean, is at most ``h / 2 = 2**-23`` (1.2e-7) in its real and in its imaginary part. If a
    contribution is a sum of products (the distribution ``"sparse-sums"``), each of its two products
    is rounded: at most ``h``; the same holds for ``1 - 2 s**2`` with ``s**2`` rounded. The ``r_i -
    c_i`` of different samples are practically independent, uniform and of mean zero, hence the
    error of a mean of ``n`` is about ``h / sqrt(12 n)``: 2e-9 for a thousand samples, which is a
    hundredth of the rounding of float32 features themselves, and far below the ``1 / sqrt(n)`` of
    sampling.

    **Weights.** ``w = f * 2**e`` with ``e`` a multiple of four and a mantissa ``f`` in (1/16, 1],
    rounded to 24 bits (45 in float64); the kernel rounds ``f`` times the feature, and the integer
    is shifted by ``e``. A weight of one has ``f = 1`` and ``e = 0``, and is the same as no weight,
    bit for bit; multiplying all weights by a power of 16 multiplies all moments by it exactly.

    *Error.* For one sample it is at most ``2**e h / 2``, under ``8 w h``: ``2**-19`` (1.9e-6) of
    its weight, or ``2**-18`` if two products are rounded. This is the bound for the smallest
    weights above a power of 16; for the largest it is a sixteenth. The error is as random as
    without weights, so that the error of a mean over ``n`` samples is at most about ``16 h /
    sqrt(12 n)``: 3.5e-8 for a thousand samples of the worst weight, still a thousandth of the ``1 /
    sqrt(n)`` of sampling. Groups of four powers of two are a compromise: groups of one would use
    half to all of the grid, but need four times as many sums and sorted groups of rows, which took
    a tenth of the time.

    *Range.* Weights are zero or in ``2**-32`` to ``2**32``: others are refused. A sketch is an
    average, so that one common factor brings all weights into that range. (In float64 ``e`` is at
    least -20, since there are no quanta below ``2**-71``: the error for the smallest weights is
    ``2**-71``. Their total has quanta of ``2**-68``, each weight rounded once.)

    **Moments of the features.** About the center, in units of a power of two near the scale of the
    feature map: ``round(f y 2**30)`` and ``round(f y**2 2**30)``, shifted by ``e``. The error of a
    mean is at most ``2**-31`` units without weights and ``2**-27`` with weights, at random, or the
    rounding of float64 if that is coarser. Samples farther than ``2**26`` units from the center
    are refused.

    **Capacity.** Numbers below ``2**118`` quanta of ``2**-71`` hold a total weight of ``2**47``,
    which is 1.4e14 samples of weight one. The moments of the features hold a total weight times
    mean square, in units, of ``2**56``. Larger sums raise a
    :class:`~dask_sketch.errors.CapacityError`; there is no overflow.

    Attributes
    ----------
    high, low
        High and low words, int64, of the same shape.

    Examples
    --------
    >>> tenth = FixedPoint.from_float(np.array([0.1, -0.1]), FRACTION)
    >>> total = FixedPoint.sum([tenth] * 10)
    >>> total.to_float(FRACTION)
    array([ 1., -1.])
    >>> total - tenth == FixedPoint.sum([tenth] * 9)
    True
    >>> (0.2 + 0.1) - 0.1 == 0.2
    False
    """

    high: _Words
    low: _Words

    def __post_init__(self) -> None:
        self.high.flags.writeable = self.low.flags.writeable = False

    @classmethod
    def zeros(cls, shape: int | tuple[int, ...]) -> FixedPoint:
        """Zeros of a shape."""
        return cls(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))

    @classmethod
    def from_int64(cls, values: _Words, shift: int) -> FixedPoint:
        """``values * 2**shift``, for ``shift >= 0``.

        Raises
        ------
        CapacityError
            If a number does not fit.
        """
        if shift < LOW_BITS:
            return cls(
                values >> (LOW_BITS - shift), (values & (2 ** (LOW_BITS - shift) - 1)) << shift
            )
        fitting = _MAX_HIGH >> min(shift - LOW_BITS, 62)
        if not ((values >= -fitting) & (values < fitting)).all():
            raise _too_large()
        return cls(values << (shift - LOW_BITS), np.zeros_like(values))

    @classmethod
    def from_float(cls, values: NDArray[np.floating], fraction: int) -> FixedPoint:
        """``values`` in quanta of ``2**-fraction``, each rounded to the nearest.

        Raises
        ------
        CapacityError
            If a number does not fit, or is NaN.
        """
        floats = np.asarray(values, dtype=np.float64)
        if not (np.abs(floats) < 2.0 ** (118 - fraction)).all():
            raise _too_large()
        quanta = np.rint(np.ldexp(floats, fraction))
        size = np.abs(quanta)
        high = np.floor(np.ldexp(size, -LOW_BITS))
        low = size - np.ldexp(high, LOW_BITS)  # exact: the last bits of a float64
        return cls(*_signed(high.astype(np.int64), low.astype(np.int64), quanta < 0))

    @classmethod
    def from_integers(cls, values: Any) -> FixedPoint:
        """Convert Python integers in an array or in lists.

        Raises
        ------
        CapacityError
            If a number does not fit.

        Examples
        --------
        >>> FixedPoint.from_integers([2**100, -1]).integers()
        array([1267650600228229401496703205376, -1], dtype=object)
        """
        whole = np.asarray(values, dtype=object)
        high = whole >> LOW_BITS
        if not ((high >= -_MAX_HIGH) & (high < _MAX_HIGH)).all():
            raise _too_large()
        return cls(np.asarray(high, dtype=np.int64), np.asarray(whole & _MASK, dtype=np.int64))

    @classmethod
    def sum(cls, parts: Sequence[FixedPoint]) -> FixedPoint:
        """Sum of at least one array, all of the same shape.

        Raises
        ------
        CapacityError
            If the result does not fit.
        """
        high, low = parts[0].high.copy(), parts[0].low.copy()
        for number, part in enumerate(parts[1:], 1):
            high += part.high
            low += part.low
            if number % _CARRY_INTERVAL == 0:
                _carry(high, low)
            _require_room(high)
        return cls(*_canonical(high, low))

    def __add__(self, other: FixedPoint) -> FixedPoint:
        return FixedPoint.sum([self, other])

    def __sub__(self, other: FixedPoint) -> FixedPoint:
        return FixedPoint(*_canonical(self.high - other.high, self.low - other.low))

    def times(self, factor: float) -> FixedPoint:
        """Product with a finite number, rounded once, to the nearest integer.

        Raises
        ------
        CapacityError
            If the result does not fit.

        Examples
        --------
        >>> FixedPoint.from_integers([5, -7]).times(0.5).integers()
        array([3, -3], dtype=object)
        """
        numerator, denominator = float(factor).as_integer_ratio()
        doubled = 2 * numerator * self.integers() + denominator
        return FixedPoint.from_integers(doubled // (2 * denominator))

    def integers(self) -> NDArray[Any]:
        """Convert to Python integers in an array of objects."""
        whole = self.high.astype(object) * _BASE + self.low.astype(object)
        return np.asarray(whole, dtype=object)

    def to_float(self, fraction: int) -> NDArray[np.float64]:
        """Convert quanta of ``2**-fraction`` to float64, within one unit in the last place."""
        negative = self.high < 0
        high, low = _signed(self.high, self.low, negative)
        size = np.ldexp(high.astype(np.float64), LOW_BITS) + low.astype(np.float64)
        return np.ldexp(np.where(negative, -size, size), -fraction)

    def part(self, chosen: Any) -> FixedPoint:
        """Some of the numbers, by an index of NumPy along the first axis."""
        return FixedPoint(self.high[chosen], self.low[chosen])

    def any(self) -> bool:
        """Whether any number is not zero."""
        return bool(self.high.any() or self.low.any())

    def is_canonical(self) -> bool:
        """Whether the words are canonical, as those of all numbers that this class makes."""
        high, low = self.high, self.low
        return bool(((high >= -_MAX_HIGH) & (high < _MAX_HIGH) & (low >= 0) & (low < _BASE)).all())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.high.shape

    @property
    def nbytes(self) -> int:
        """Size of both words in bytes."""
        return self.high.nbytes + self.low.nbytes

    def __eq__(self, other: object) -> bool:
        """Whether all numbers are equal."""
        if not isinstance(other, FixedPoint):
            return NotImplemented
        return np.array_equal(self.high, other.high) and np.array_equal(self.low, other.low)

    __hash__ = None  # type: ignore[assignment]


def is_weight(weight: float) -> bool:
    """Whether a weight is zero or in the range of weights.

    Examples
    --------
    >>> is_weight(0.0), is_weight(1e-20)
    (True, False)
    """
    return bool(weight == 0 or 2.0**MIN_EXPONENT <= weight <= 2.0**MAX_EXPONENT)


def _carry(high: _Words, low: _Words) -> None:
    high += low >> LOW_BITS
    low &= _MASK


def _canonical(high: _Words, low: _Words) -> tuple[_Words, _Words]:
    _carry(high, low)
    _require_room(high)
    return high, low


def are_possible_squares(total: Any, squares: Any, count: Any) -> Any:
    """Whether ``count`` weights ``>= 0`` can have this sum and this sum of squares.

    By the inequality of Cauchy and Schwarz, ``total**2 / count <= squares <= total**2``; both are
    allowed some rounding.

    Parameters
    ----------
    total, squares, count
        Sum of the weights, sum of their squares, and number of samples; numbers or arrays.

    Examples
    --------
    >>> are_possible_squares(10.0, 10.0, 10), are_possible_squares(10.0, 1e9, 10)
    (True, False)
    """
    least = squares + 2.0 ** (3 - WEIGHT_BITS + 2 * MIN_EXPONENT)  # a few quanta
    too_large = squares > _SLACK * total**2 + (least - squares)
    return (too_large == 0) & (total**2 <= _SLACK * count * least)


def _signed(high: _Words, low: _Words, negative: NDArray[np.bool_]) -> tuple[_Words, _Words]:
    """Negate the numbers where ``negative``."""
    negated = np.where(low > 0, -1 - high, -high), (_BASE - low) & _MASK
    return np.where(negative, negated[0], high), np.where(negative, negated[1], low)


def _require_room(high: _Words) -> None:
    if high.size and not (high.min() >= -_MAX_HIGH and high.max() < _MAX_HIGH):
        raise _too_large()


def _too_large() -> CapacityError:
    return CapacityError(
        "sums are larger than a sketch holds exactly: a total weight of "
        f"{MAX_TOTAL_WEIGHT:.3g}, and moments of the features to match. Multiply all weights by "
        "one smaller factor, or choose a unit in which the data are nearer to the center."
    )
