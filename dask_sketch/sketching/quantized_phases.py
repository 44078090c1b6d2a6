"""Sketch rows of which a sensor sends a few bits for each frequency: quantised phases with dither.

A sensor computes the phase ``t = omega . (x - center) / (2 pi)`` of a row ``x`` in cycles, adds a
random dither ``xi``, uniform on the circle, and sends in which of ``L = 2**bits`` equal arcs the
sum lies, the integer ``k``. One bit tells on which half of the circle it is: a periodic square
wave of the dithered projection, the one-bit features of Schellekens and Jacques (2018); two bits
are a square wave in place of the cosine and another in place of the sine.

The arc has the middle ``(k + 1/2) / L``. Its distance from ``t + xi`` is uniform on ``(-1/2, 1/2)
/ L`` by the dither, whatever ``t`` is. Hence with the receiver's copy of the dither::

    E exp(-2 pi i ((k + 1/2) / L - xi)) = h exp(-2 pi i t),   h = sin(pi / L) / (pi / L)

Here ``h`` is the first harmonic of the wave: ``2 / pi`` for one bit, that is half the amplitude
``4 / pi`` of the first term of the Fourier series of a square wave, ``sum over odd k of 4 / (pi k)
sin(k t)``, because a cosine is half the sum of two exponentials. Divided by ``h``, the mean is an
unbiased estimate of the features of a plain sketch, which the same decoders decode. A contribution
has the modulus ``1 / h`` in place of 1. The variance of the two parts of a mean of ``n`` rows
grows by ``(1 / h**2 - 1) / (2 n)`` each: at frequencies without signal the noise is that of
``n h**2`` rows, 0.41 n for one bit, 0.81 n for two, and 0.95 n for three.

In the paper each frequency has one dither for all rows, and further harmonics of the wave remain,
which are small on average over the frequencies. Here each row has a dither of its own, which
removes them; it costs no bits, for it follows from a seed and the position of the row.

References
----------
Schellekens and Jacques (2018), Quantized compressive k-means, IEEE Signal Processing Letters 25(8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import CapacityError, ChunkError, InputError, MergeError
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.fixed_point import (
    CONTRIBUTION,
    FRACTION,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
    FixedPoint,
)
from dask_sketch.features.kernels.row_reader import RowReader
from dask_sketch.sketching.accumulator import block_rows
from dask_sketch.sketching.arguments import (
    checked_rows,
    normalized,
    refuse_row,
    require_position,
)
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import FrozenDataclass, frozen, require_integer
from dask_sketch.validation.device import on_device, on_host

MAX_BITS = 8
_TICKS = 16  # binary digits of a phase and of its dither, in cycles
_DRAWN = 16  # dithers of one counter of the generator
_BLOCK = 2**18  # phases in memory at once
_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedPhases(FrozenDataclass):
    """Message of a sensor: quantised phases of some rows, packed, and their moments and bounds.

    Parameters
    ----------
    feature_map
        Feature map of the phases.
    packed
        Arcs of each row, ``bits`` binary digits for each frequency with the highest first, by
        ``numpy.packbits``: bytes of shape (n_rows, ceil(n_frequencies bits / 8)).
    bits
        Number of bits of a phase, 1 to 8.
    seed
        Seed of the dither.
    position
        Position of the first row in the stream of this seed.
    minimum, maximum
        Bounds of each feature, shape (n_features,).
    first_quanta, second_quanta
        Sums of the features and of their squares, as in :class:`Sketch`.
    """

    feature_map: FeatureMap
    packed: NDArray[np.uint8]
    bits: int
    seed: int
    position: int
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    first_quanta: FixedPoint
    second_quanta: FixedPoint

    def __post_init__(self) -> None:
        bits = require_bits(self.bits)
        width = -(-self.feature_map.n_frequencies * bits // 8)
        if self.packed.dtype != np.uint8 or self.packed.ndim != 2 or self.packed.shape[1] != width:
            raise InputError(
                f"packed has dtype={self.packed.dtype}, shape={self.packed.shape}: give bytes of "
                f"shape (n_rows, {width}), for {self.feature_map.n_frequencies} frequencies of "
                f"{bits} bits."
            )
        for values in (self.packed, self.minimum, self.maximum):
            values.flags.writeable = False

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.packed)

    def sketch(self) -> Sketch:
        """Sketch of the rows, with the noise of the quantisation as ``rounding_error``.

        Returns
        -------
        sketch
            Sketch without random rows; its sums do not depend on the division of a stream into
            messages.
        """
        if not self.count:
            return Sketch.empty(self.feature_map)
        cosines, sines = _contributions(self.bits)
        m = self.feature_map.n_frequencies
        sums = np.zeros((2, m), np.int64)
        places = (1 << np.arange(self.bits)[::-1]).astype(np.uint16)
        for rows in _blocks(self.count, m, self.count):
            digits = np.unpackbits(self.packed[rows], axis=1, count=m * self.bits)
            arcs = digits.reshape(-1, m, self.bits) @ places
            ticks = arcs << np.uint16(_TICKS - self.bits)
            ticks -= _dither(self.seed, self.position + rows.start, len(ticks), m)
            sums[0] += cosines[ticks].sum(axis=0)
            sums[1] += sines[ticks].sum(axis=0)
        spread = 1.0 / harmonic(self.bits) ** 2 - 1.0
        return Sketch(
            feature_map=self.feature_map,
            moment_quanta=FixedPoint.from_int64(sums, FRACTION - CONTRIBUTION),
            weight_quanta=self.count << WEIGHT_FRACTION,
            squared_weight_quanta=self.count << SQUARED_FRACTION,
            count=self.count,
            omitted=0,
            minimum=self.minimum.copy(),
            maximum=self.maximum.copy(),
            first_quanta=self.first_quanta,
            second_quanta=self.second_quanta,
            rounding_error=float(np.sqrt(self.count * spread / 2.0)),
        )

    def __repr__(self) -> str:
        return (
            f"<QuantizedPhases: count={self.count}, bits={self.bits}, seed={self.seed}, "
            f"position={self.position}; {self.feature_map!r}>"
        )


def quantize_phases(
    samples: Any, feature_map: FeatureMap, *, bits: int = 1, seed: int = 0, position: int = 0
) -> QuantizedPhases:
    """Quantise the phases of rows in memory, as a sensor does that sends few bits for a row.

    The phases of a row depend on that row, the feature map, the seed and the position of the row
    alone, by operations that all processors round alike.

    Parameters
    ----------
    samples
        Rows, shape (..., n_features) and any real dtype; NaN and infinite values are refused.
    feature_map
        Feature map of the phases.
    bits
        Number of bits for each frequency, 1 to 8. One bit needs 2.5 times as many rows as a plain
        sketch for the same noise, two bits 1.23 times.
    seed
        Seed of the dither, below ``2**64``. Sensors whose sketches will be added need different
        seeds, or rows at different positions.
    position
        Position of the first row in the stream, ``>= 0``.

    Returns
    -------
    phases
        Packed phases, whose ``sketch()`` is an unbiased estimate of the sketch of the rows.

    Raises
    ------
    InputError
        If an argument is invalid.
    ChunkError
        If a row holds NaN, infinite values, or values too far from the center.

    Examples
    --------
    >>> feature_map = FeatureMap(2, 100, scale=1.0, seed=0)
    >>> x = np.random.default_rng(0).normal(size=(20_000, 2))
    >>> sent = quantize_phases(x, feature_map)
    >>> sent.packed.shape
    (20000, 13)
    >>> from dask_sketch import partial_sketch
    >>> bool(abs(sent.sketch().z - partial_sketch(x, feature_map).z).max() < 0.004)
    True
    """
    x, _ = checked_rows(samples, None, feature_map, "samples")
    x = on_host(x) if on_device(x) else x
    bits = require_bits(bits)
    seed = require_integer("seed", seed, 0)
    if seed > _MAX_SEED:
        raise InputError(f"seed={seed}: give an integer below 2**64.")
    start = require_position(position)
    m, step = feature_map.n_frequencies, block_rows(feature_map.n_features, feature_map.dtype)
    reader = RowReader(
        feature_map.center, moment_units(feature_map), 0,
        np.empty((step, feature_map.n_features), feature_map.dtype),
        np.empty(step, feature_map.dtype),
    )  # fmt: skip
    cycles = feature_map.frequencies / (2.0 * np.pi)
    packed = np.empty((len(x), -(-m * bits // 8)), np.uint8)
    places = np.arange(bits, dtype=np.uint8)[::-1]
    for rows in _blocks(len(x), m, step):
        block = normalized(x[rows], feature_map)
        try:
            refused = reader.take(block, None, False)
        except CapacityError as error:
            raise ChunkError(f"samples: {error}") from error
        if refused >= 0:
            refuse_row(x[rows.start + refused], None, refused, rows.start, "samples", feature_map)
        ticks = _phases(block.astype(np.float64) - feature_map.center, cycles)
        ticks += _dither(seed, start + rows.start, len(ticks), m)
        arcs = (ticks >> np.uint16(_TICKS - bits)).astype(np.uint8)
        digits = arcs[:, :, None] >> places & np.uint8(1)
        packed[rows] = np.packbits(digits.reshape(len(arcs), m * bits), axis=1)
    return QuantizedPhases(
        feature_map, packed, bits, seed, start, reader.minimum, reader.maximum,
        reader.first_quanta, reader.second_quanta,
    )  # fmt: skip


def sketch_phases(messages: Iterable[QuantizedPhases]) -> Sketch:
    """Sketch of the rows of many messages, which may have different numbers of bits.

    Parameters
    ----------
    messages
        At least one message; all have one feature map.

    Returns
    -------
    sketch
        Sum of the sketches of the messages.

    Raises
    ------
    MergeError
        If a row is in two messages, or the feature maps differ.

    Examples
    --------
    >>> feature_map = FeatureMap(2, 100, scale=1.0, seed=0)
    >>> x = np.random.default_rng(0).normal(size=(300, 2))
    >>> first = quantize_phases(x[:100], feature_map)
    >>> second = quantize_phases(x[100:], feature_map, position=100)
    >>> whole = quantize_phases(x, feature_map).sketch()
    >>> sketch_phases([second, first]).same_sums(whole)
    True
    """
    found = list(messages)
    ends: dict[int, int] = {}
    for message in sorted(found, key=lambda message: message.position):
        if message.count and message.position < ends.get(message.seed, 0):
            raise MergeError(
                f"two messages with seed={message.seed} hold the row of position="
                f"{message.position}: quantise the rows of each sensor with a seed of their own, "
                "and give each message once."
            )
        ends[message.seed] = max(ends.get(message.seed, 0), message.position + message.count)
    return merge([message.sketch() for message in found])


def harmonic(bits: int) -> float:
    """First harmonic of the wave with ``2**bits`` steps, by which sums are divided.

    Parameters
    ----------
    bits
        Number of bits of a phase.

    Examples
    --------
    >>> harmonic(1) == 2 / np.pi, round(harmonic(2), 4)
    (True, 0.9003)
    """
    return float(np.sinc(0.5**bits))


def require_bits(bits: object) -> int:
    """Raise InputError unless ``bits`` is a number of bits of a phase."""
    found = require_integer("bits", bits, 1)
    if found > MAX_BITS:
        raise InputError(f"bits={found}: give 1 to {MAX_BITS}.")
    return found


def _blocks(count: int, n_frequencies: int, most: int) -> Iterator[slice]:
    """Blocks of rows whose phases are in memory at once."""
    step = max(1, min(most, _BLOCK // n_frequencies))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _phases(rows: NDArray[np.float64], cycles: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Phases in ticks of ``2**-16`` cycles, shape (n_rows, n_frequencies).

    Features are added one after the other: the order of a library's matrix product depends on the
    number of rows.
    """
    phase = np.zeros((len(rows), cycles.shape[1]))
    for values, frequency in zip(rows.T, cycles, strict=True):
        phase += values[:, None] * frequency
    phase -= np.rint(phase)
    return np.rint(phase * 2.0**_TICKS).astype(np.int64).astype(np.uint16)


def _dither(seed: int, position: int, count: int, n_frequencies: int) -> NDArray[np.uint16]:
    """Dithers of rows from a position on, in ticks, shape (count, n_frequencies).

    Those of one row are the lowest 16 bits first of the numbers of Philox4x64 with the key ``seed``
    and as many counters as they need.
    """
    counters = -(-n_frequencies // _DRAWN)
    generator = np.random.Philox(key=seed).advance(position * counters)
    words = np.asarray(generator.random_raw(4 * count * counters)).astype("<u8").view("<u2")
    drawn = words.reshape(count, _DRAWN * counters)[:, :n_frequencies]
    return drawn.astype(np.uint16, copy=False)


@lru_cache(maxsize=MAX_BITS)
def _contributions(bits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Contributions of all ticks, of the first tick of an arc less the dither, in fixed point."""
    middle = (2.0 ** (_TICKS - bits) - 1.0) / 2.0
    angle = 2.0 * np.pi * (np.arange(2**_TICKS) + middle) / 2**_TICKS
    scale = 2.0**CONTRIBUTION / harmonic(bits)
    real, imaginary = (
        np.rint(scale * wave).astype(np.int64) for wave in (np.cos(angle), -np.sin(angle))
    )
    return frozen(real), frozen(imaginary)
