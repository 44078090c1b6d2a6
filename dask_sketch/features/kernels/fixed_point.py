"""Sums of very many numbers with no rounding at all: whole numbers of two words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError
from dask_sketch.validation.arrays import Rebuilt

LOW_BITS = 56
_BASE = 2**LOW_BITS
_MASK = _BASE - 1
_LARGEST = 2**62  # of the high word: the sum of two such does not wrap around
_AT_ONCE = 64  # low words that are added before their carry is taken
FRACTION = 71  # moments are counted in steps of 2**-71
CONTRIBUTION = 30  # of one sample of weight one to a moment of the features: steps of 2**-30
LEAST, MOST = -32, 32  # weights lie in 2**LEAST to 2**MOST, or are zero
WEIGHT_BITS = 48  # f of a weight f * 2**e is counted in steps of 2**-48
BINADES = 4  # powers of two whose weights are summed together, so that e is a multiple of it
FEATURE_FRACTION = CONTRIBUTION - LEAST  # steps of the moments of the features, 2**-62
WEIGHT_FRACTION = WEIGHT_BITS - LEAST  # steps of the total weight, 2**-80
SQUARED_FRACTION = WEIGHT_BITS - 2 * LEAST  # steps of the sum of squared weights, 2**-112
LARGEST_TOTAL = 2**47 - 2**30  # of all weights
_Words = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FixedPoint(Rebuilt):
    """An array of whole numbers from ``-2**118`` to ``2**118``, each as ``high * 2**56 + low``.

    All sums of a sketch are whole numbers of steps. What one sample adds is rounded to a whole
    number by arithmetic that depends on that sample, its weight and the feature map alone; from
    there on whole numbers are added. Addition of whole numbers is commutative and associative, so
    that chunks, blocks, batches, the shape of a tree of merges, the number of workers and of
    threads, retries and order change no bit, and subtraction brings the earlier bits back. The
    words are canonical (``0 <= low < 2**56``): equal numbers have equal bits.

    **Moments.** The kernel rounds each contribution to steps of ``h = 2**-22`` for a feature map in
    float32, ``2**-50`` in float64, and the sum is kept in steps of ``2**-71``.

    *Error.* Let ``c_i`` be the contribution of sample ``i`` as the kernel computes it, ``r_i`` the
    same rounded to the nearest whole number of steps: ``|r_i - c_i| <= h / 2``. No other rounding
    takes place, so for weights of one ``|sum r_i - sum c_i| <= n h / 2``, and the moment, a mean,
    is off by at most ``h / 2 = 2**-23`` (1.2e-7) in its real and in its imaginary part. Where a
    contribution is a sum of products (the distribution of sparse sums) each of its two products is
    rounded: at most ``h``; as ``1 - 2 s**2`` with ``s**2`` rounded, also. The ``r_i - c_i`` of
    different samples are as good as independent, uniform and of mean zero, hence the error of a
    mean of ``n`` is about ``h / sqrt(12 n)``: 2e-9 for a thousand samples, which is a hundredth of
    the rounding of float32 features themselves, and far under the ``1 / sqrt(n)`` of sampling.

    **Weights.** ``w = f * 2**e`` with ``e`` a multiple of four and ``f`` in (1/16, 1], rounded to
    24 bits (45 in float64); the kernel rounds ``f`` times the feature, and the whole number is
    shifted by ``e``. A weight of one has ``f = 1`` and ``e = 0``, and is the same as none, bit for
    bit; multiplying all weights by a power of 16 multiplies all moments by it exactly.

    *Error.* Of a sample it is at most ``2**e h / 2``, under ``8 w h``: ``2**-19`` (1.9e-6) of its
    weight, or ``2**-18`` where two products are rounded; so many at most for the smallest weights
    above a power of 16, and a sixteenth of it for those at one. It is as random as without
    weights, so that the error of a mean over ``n`` samples is at most about ``16 h / sqrt(12 n)``:
    3.5e-8 for a thousand of the least fortunate weight, still a thousandth of the ``1 / sqrt(n)``
    of sampling. Groups of four powers of two are a compromise: with one each, of half to all of the
    grid, there are four times as many sums to keep and rows to sort, which took a tenth of all
    time.

    *Range.* Weights are zero or in ``2**-32`` to ``2**32``: beyond, they are refused by name. A
    sketch is an average, so that one factor brings all of them into that range. (In float64 ``e``
    is at least -20, as steps under ``2**-71`` are none: the error for the smallest weights is
    ``2**-71``. Their total is in steps of ``2**-68``, each weight rounded once.)

    **Moments of the features.** About the center, in units of a power of two near the scale of the
    feature map: ``round(f y 2**30)`` and ``round(f y**2 2**30)``, shifted by ``e``. A mean is off
    by at most ``2**-31`` units without weights and ``2**-27`` with them, at random, or by the
    rounding of float64 where that is coarser. Samples farther than ``2**26`` units from the center
    are refused by row.

    **Capacity.** Numbers under ``2**118`` steps of ``2**-71`` hold a total weight of ``2**47``,
    which is 1.4e14 samples of weight one. The moments of the features hold a total weight times
    mean square, in units, of ``2**56``. What goes beyond is refused with a
    :class:`~dask_sketch.errors.CapacityError`; nothing ever wraps around.

    Attributes
    ----------
    high, low
        Words, int64, of one shape.

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
        """Nothing, of a shape."""
        return cls(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))

    @classmethod
    def from_int64(cls, values: _Words, shift: int = 0) -> FixedPoint:
        """``values * 2**shift``, for a shift of at least 0.

        Raises
        ------
        CapacityError
            If a number does not fit.
        """
        if shift < LOW_BITS:
            return cls(
                values >> (LOW_BITS - shift), (values & (2 ** (LOW_BITS - shift) - 1)) << shift
            )
        fitting = _LARGEST >> min(shift - LOW_BITS, 62)
        if not ((values >= -fitting) & (values < fitting)).all():
            raise _too_large()
        return cls(values << (shift - LOW_BITS), np.zeros_like(values))

    @classmethod
    def from_float(cls, values: NDArray[np.floating], fraction: int) -> FixedPoint:
        """``values`` in steps of ``2**-fraction``, each rounded to the nearest.

        Raises
        ------
        CapacityError
            If a number does not fit, or is NaN.
        """
        given = np.asarray(values, dtype=np.float64)
        if not (np.abs(given) < 2.0 ** (118 - fraction)).all():
            raise _too_large()
        steps = np.rint(np.ldexp(given, fraction))
        size = np.abs(steps)
        high = np.floor(np.ldexp(size, -LOW_BITS))
        low = size - np.ldexp(high, LOW_BITS)  # exact: the last bits of a float64
        return cls(*_signed(high.astype(np.int64), low.astype(np.int64), steps < 0))

    @classmethod
    def from_integers(cls, values: Any) -> FixedPoint:
        """From Python's whole numbers, in an array or in lists.

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
        if not ((high >= -_LARGEST) & (high < _LARGEST)).all():
            raise _too_large()
        return cls(np.asarray(high, dtype=np.int64), np.asarray(whole & _MASK, dtype=np.int64))

    @classmethod
    def sum(cls, parts: Sequence[FixedPoint]) -> FixedPoint:
        """The sum of at least one array, all of one shape.

        Raises
        ------
        CapacityError
            If it does not fit.
        """
        high, low = parts[0].high.copy(), parts[0].low.copy()
        for number, part in enumerate(parts[1:], 1):
            high += part.high
            low += part.low
            if number % _AT_ONCE == 0:
                _carry(high, low)
            _require_room(high)
        return cls(*_settled(high, low))

    def __add__(self, other: FixedPoint) -> FixedPoint:
        return FixedPoint.sum([self, other])

    def __sub__(self, other: FixedPoint) -> FixedPoint:
        return FixedPoint(*_settled(self.high - other.high, self.low - other.low))

    def times(self, factor: float) -> FixedPoint:
        """The product with a finite number, rounded once, to the nearest whole number.

        Raises
        ------
        CapacityError
            If it does not fit.

        Examples
        --------
        >>> FixedPoint.from_integers([5, -7]).times(0.5).integers()
        array([3, -3], dtype=object)
        """
        numerator, denominator = float(factor).as_integer_ratio()
        doubled = 2 * numerator * self.integers() + denominator
        return FixedPoint.from_integers(doubled // (2 * denominator))

    def integers(self) -> NDArray[Any]:
        """As Python's whole numbers, in an array of objects."""
        whole = self.high.astype(object) * _BASE + self.low.astype(object)
        return np.asarray(whole, dtype=object)

    def to_float(self, fraction: int) -> NDArray[np.float64]:
        """In float64, for steps of ``2**-fraction``; within one unit in the last place."""
        negative = self.high < 0
        high, low = _signed(self.high, self.low, negative)
        size = np.ldexp(high.astype(np.float64), LOW_BITS) + low.astype(np.float64)
        return np.ldexp(np.where(negative, -size, size), -fraction)

    def any(self) -> bool:
        """Whether a number is not zero."""
        return bool(self.high.any() or self.low.any())

    def is_canonical(self) -> bool:
        """Whether the words are what this class makes of a number; others were not made by it."""
        high, low = self.high, self.low
        return bool(((high >= -_LARGEST) & (high < _LARGEST) & (low >= 0) & (low < _BASE)).all())

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return self.high.shape

    @property
    def nbytes(self) -> int:
        """Of both words."""
        return self.high.nbytes + self.low.nbytes

    def __eq__(self, other: object) -> bool:
        """Whether all numbers are the same."""
        if not isinstance(other, FixedPoint):
            return NotImplemented
        return np.array_equal(self.high, other.high) and np.array_equal(self.low, other.low)

    __hash__ = None  # type: ignore[assignment]


def is_weight(weight: float) -> bool:
    """Whether a weight is in the range that sums can hold.

    Examples
    --------
    >>> is_weight(0.0), is_weight(1e-20)
    (True, False)
    """
    return bool(weight == 0 or 2.0**LEAST <= weight <= 2.0**MOST)


def _carry(high: _Words, low: _Words) -> None:
    high += low >> LOW_BITS
    low &= _MASK


def _settled(high: _Words, low: _Words) -> tuple[_Words, _Words]:
    _carry(high, low)
    _require_room(high)
    return high, low


def _signed(high: _Words, low: _Words, negative: NDArray[np.bool_]) -> tuple[_Words, _Words]:
    """The words with the sign turned where ``negative``."""
    turned = np.where(low > 0, -1 - high, -high), (_BASE - low) & _MASK
    return np.where(negative, turned[0], high), np.where(negative, turned[1], low)


def _require_room(high: _Words) -> None:
    if high.size and not (high.min() >= -_LARGEST and high.max() < _LARGEST):
        raise _too_large()


def _too_large() -> CapacityError:
    return CapacityError(
        "sums are larger than a sketch holds exactly: a total weight of "
        f"{LARGEST_TOTAL:.3g}, and moments of the features to match. Multiply all weights by one "
        "smaller factor, or choose a unit in which the data lie nearer to the center."
    )
