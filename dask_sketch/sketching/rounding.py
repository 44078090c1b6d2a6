"""Round the sums of a sketch at random to a grid below their noise, and pack them into few bits.

A mean of ``n`` random features has a noise of ``1 / sqrt(2 n)`` in its real and its imaginary part.
Digits below a fraction of it hold no information. Each sum is rounded up or down at random, so that
its expectation is the exact sum, and errors of different sketches are independent.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import MergeError
from dask_sketch.features.kernels.fixed_point import FRACTION, FixedPoint
from dask_sketch.sketching.privacy import refuse_private
from dask_sketch.validation.arrays import require_integer

_STEP = 0.2  # largest grid spacing, in units of the standard deviation of a sum's modulus
_MAX_BITS = 62  # bits of a packed number, at most


def rounded_sums(sketch: Any, seed: int) -> dict[str, Any]:
    """Round sums of features to multiples of a power of two below their noise.

    Parameters
    ----------
    sketch
        Sketch of samples, not private.
    seed
        Seed of the rounding, together with the sums.

    Returns
    -------
    fields
        Attributes of the rounded sketch that differ: sums of about ``ceil(log2(n) / 2) + 4`` bits
        each, with their sign, and the standard deviation of their errors; none for an empty sketch.
    """
    seed = require_integer("seed", seed, 0)
    refuse_private("round", sketch.privacy)
    if not sketch.total_weight > 0:
        return {}
    quanta: FixedPoint = sketch.moment_quanta
    noise = sketch.total_weight / math.sqrt(sketch.effective_count)
    shift = math.floor(math.log2(_STEP * noise)) + FRACTION
    if shift <= 0:
        return {}
    # another sequence for each sketch, so that errors of different sketches do not add up
    content = hashlib.sha256(quanta.high.tobytes() + quanta.low.tobytes()).digest()
    rng = np.random.default_rng([seed, *np.frombuffer(content, np.uint32).tolist()])
    values = quanta.integers()
    fraction = ((values & ((1 << shift) - 1)) / (1 << shift)).astype(np.float64)
    up = (rng.random(values.shape) < fraction).astype(np.int64).astype(object)
    error = math.ldexp(1.0, shift - FRACTION) / math.sqrt(6.0)
    return {
        "moment_quanta": FixedPoint.from_integers(((values >> shift) + up) << shift),
        "rounding_error": math.hypot(sketch.rounding_error, error),
    }


def refuse_rounded(what: str, *sketches: Any) -> None:
    """Raise MergeError if a sketch is rounded, where its sums must be exact."""
    if any(sketch.rounding_error for sketch in sketches):
        raise MergeError(
            f"cannot {what} a rounded sketch, whose sums are not exact: {what} the exact sketches, "
            "and round the result."
        )


def pack(quanta: FixedPoint) -> tuple[NDArray[np.uint8], int, int] | None:
    """Pack integers that end in the same number of binary zeros.

    Parameters
    ----------
    quanta
        Integers to pack.

    Returns
    -------
    packed
        Binary digits of each number plus half of their range, the highest ones first.
    shift
        Binary zeros that were left out of each number.
    bits
        Number of digits of a number. None for all three if the numbers are too long.
    """
    values = quanta.integers().ravel()
    together = int(np.bitwise_or.reduce(values)) if len(values) else 0
    shift = (together & -together).bit_length() - 1 if together else 0
    small = values >> shift
    bits = 1 + max((int(value).bit_length() for value in small), default=0)
    if bits > _MAX_BITS:
        return None
    digits = (small.astype(np.int64) + (1 << (bits - 1)))[:, None] >> np.arange(bits)[::-1] & 1
    return np.packbits(digits.astype(np.uint8)), shift, bits


def unpack(packed: NDArray[np.uint8], shift: int, bits: int, shape: tuple[int, ...]) -> FixedPoint:
    """Integers that :func:`pack` packed.

    Raises
    ------
    ValueError
        If the arguments are not those of such a result.
    """
    count = math.prod(shape)
    fine = 1 <= bits <= _MAX_BITS and 0 <= shift <= 118 and bits + shift <= 119
    if not fine or packed.shape != (-(-count * bits // 8),):
        raise ValueError(f"moment_bits={bits}, moment_shift={shift}")
    digits = np.unpackbits(packed, count=count * bits).reshape(count, bits).astype(np.int64)
    small = digits @ (1 << np.arange(bits)[::-1]) - (1 << (bits - 1))
    return FixedPoint.from_integers((small.astype(object) << shift).reshape(shape))
