"""Sketches from sensors that send a few bits for each frequency: quantised phases with dither.

A sensor computes the phase ``t = omega . (x - center) / (2 pi)`` of a row ``x`` in cycles, adds a
random dither ``xi``, uniform on the circle, and sends the number ``k`` of the arc in which the sum
lies, among ``L = 2**bits`` equal arcs. One bit is the half of the circle, a periodic square wave of
the dithered projection: the one-bit features of Schellekens and Jacques (2018). Two bits are a
square wave in place of the cosine, and another one in place of the sine.

The arc has the middle ``(k + 1/2) / L``. Its distance from ``t + xi`` is uniform on ``(-1/2, 1/2)
/ L`` by the dither, whatever ``t`` is. Hence with the receiver's copy of the dither::

    E exp(-2 pi i ((k + 1/2) / L - xi)) = h exp(-2 pi i t),   h = sin(pi / L) / (pi / L)

Here ``h`` is the first harmonic of the wave: ``2 / pi`` for one bit, that is half the amplitude
``4 / pi`` of the first term of the Fourier series of a square wave, ``sum over odd k of 4 / (pi k)
sin(k t)``, because a cosine is half the sum of two exponentials. Divided by ``h``, the mean is an
unbiased estimate of the features of a plain sketch, which the same decoders decode. A contribution
has the modulus ``1 / h`` in place of 1. The variance of the two parts of a mean of ``n`` rows grows
by ``(1 / h**2 - 1) / (2 n)`` each: at frequencies without signal the noise is as large as for
``n h**2`` rows, 0.41 n for one bit, 0.81 n for two, and 0.95 n for three.

In the paper each frequency has one dither for all rows, and further harmonics of the wave remain,
which are small on average over the frequencies. Here each row has a dither of its own, which
removes them. It costs no bits, because it is generated from a seed and the position of the row.

A message is sent as ``to_bytes()``, and read by :func:`dask_sketch.open`. For groups, quantise the
rows of each label with a seed of its own.

References
----------
Schellekens and Jacques (2018), Quantized compressive k-means, IEEE Signal Processing Letters 25(8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError, CapacityError, ChunkError, InputError, MergeError
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.features.kernels.expectation_loop import weights_by_exponent
from dask_sketch.features.kernels.fixed_point import (
    CONTRIBUTION,
    FRACTION,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
    FixedPoint,
    is_weight,
)
from dask_sketch.features.kernels.row_reader import ChunkReader
from dask_sketch.sketching import artifact
from dask_sketch.sketching.accumulator import block_rows
from dask_sketch.sketching.arguments import (
    checked_rows,
    normalized,
    refuse_row,
    require_position,
)
from dask_sketch.sketching.artifact import WEIGHTS
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.open import damaged_store, feature_map_of, stored_array
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.storage.artifact import Storable
from dask_sketch.validation.arrays import FrozenDataclass, frozen, require_integer
from dask_sketch.validation.device import from_device

if TYPE_CHECKING:
    import xarray as xr

MAX_BITS = 8
_TICKS = 16  # binary digits of a phase and of its dither, in cycles
_DRAWN = 16  # dithers of one counter of the generator
_BLOCK = 2**18  # phases in memory at once
MAX_SEED = 2**64 - 1
_DAMAGES = (LookupError, TypeError, ValueError, OverflowError, RecursionError)
_SQUARED = 2**SQUARED_FRACTION
_MAX_POSITION = 2**62  # largest position of the first row of a message, as everywhere
_TOLERANCE = 1e-6  # relative error of a total weight: weights of float32 have 24 binary digits


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedPhases(FrozenDataclass, Storable):
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
    first_quanta, second_quanta, weight_quanta, squared_weight_quanta
        Sums of the features, of their squares, of the weights and of their squares, as in
        :class:`Sketch`.
    omitted
        Number of rows that were left out; they have no position in the stream.
    weights
        Weights of the rows, shape (n_rows,); None for equal weights.
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
    weight_quanta: int
    squared_weight_quanta: int
    omitted: int = 0
    weights: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        bits = require_bits(self.bits)
        width = -(-self.feature_map.n_frequencies * bits // 8)
        if self.packed.dtype != np.uint8 or self.packed.ndim != 2 or self.packed.shape[1] != width:
            raise InputError(
                f"packed has dtype={self.packed.dtype}, shape={self.packed.shape}: give bytes of "
                f"shape (n_rows, {width}), for {self.feature_map.n_frequencies} frequencies of "
                f"{bits} bits."
            )
        if self.weights is not None and self.weights.shape != (len(self.packed),):
            raise InputError(
                f"weights has shape={self.weights.shape}: give one for each of the "
                f"{len(self.packed)} rows."
            )
        for values in (self.packed, self.minimum, self.maximum, self.weights):
            if values is not None:
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
            return replace(Sketch.empty(self.feature_map), omitted=self.omitted)
        cosines, sines = _contributions(self.bits)
        m = self.feature_map.n_frequencies
        sums: dict[int, NDArray[np.int64]] = {}  # sums by the exponent of the weights
        powers = (1 << np.arange(self.bits)[::-1]).astype(np.uint16)
        for rows in _blocks(self.count, m, self.count):
            digits = np.unpackbits(self.packed[rows], axis=1, count=m * self.bits)
            arcs = digits.reshape(-1, m, self.bits) @ powers
            ticks = arcs << np.uint16(_TICKS - self.bits)
            ticks -= _dither(self.seed, self.position + rows.start, len(ticks), m)
            for exponent, members, parts in self._parts(rows):
                total = sums.setdefault(exponent, np.zeros((2, m), np.int64))
                for k, waves in enumerate((cosines, sines)):
                    values = waves[ticks[members]]
                    if parts is not None:
                        values = np.rint(values * parts[:, None]).astype(np.int64)
                    total[k] += values.sum(axis=0)
        spread = 1.0 / harmonic(self.bits) ** 2 - 1.0
        squared = self.squared_weight_quanta / (1 << SQUARED_FRACTION)
        moments = [
            FixedPoint.from_int64(total, FRACTION - CONTRIBUTION + exponent)
            for exponent, total in sums.items()
        ]
        return Sketch(
            feature_map=self.feature_map,
            moment_quanta=FixedPoint.sum([FixedPoint.zeros((2, m)), *moments]),
            weight_quanta=self.weight_quanta,
            squared_weight_quanta=self.squared_weight_quanta,
            count=self.count,
            omitted=self.omitted,
            minimum=self.minimum.copy(),
            maximum=self.maximum.copy(),
            first_quanta=self.first_quanta,
            second_quanta=self.second_quanta,
            rounding_error=float(np.sqrt(squared * spread / 2.0)),
        )

    def _parts(self, rows: slice) -> Iterator[tuple[int, Any, NDArray[np.float64] | None]]:
        """Exponents of the weights of a block, the rows that have them, and their mantissas."""
        if self.weights is None:
            yield 0, slice(None), None
            return
        block = self.weights[rows]
        for exponent, members in weights_by_exponent(block):
            yield exponent, members, np.ldexp(block[members], -exponent)

    def _stored(self) -> tuple[xr.Dataset, str, int]:
        return artifact.stored_phases(self), artifact.PHASES, 1

    def __repr__(self) -> str:
        return (
            f"<QuantizedPhases: count={self.count}, bits={self.bits}, seed={self.seed}, "
            f"position={self.position}; {self.feature_map!r}>"
        )


def quantize_phases(
    samples: Any,
    feature_map: FeatureMap,
    weights: Any = None,
    *,
    bits: int = 1,
    seed: int = 0,
    position: int = 0,
    nan_policy: str = "raise",
) -> QuantizedPhases:
    """Quantise the phases of rows in memory, as on a sensor that sends few bits for each row.

    The phases of a row depend on that row, the feature map, the seed and the position of the row
    alone, by operations that all processors round alike.

    Parameters
    ----------
    samples
        Rows, shape (..., n_features) and any real dtype.
    feature_map
        Feature map of the phases.
    weights
        Weights of the rows, as in :func:`~dask_sketch.partial_sketch`, sent as 8 bytes each; all
        one when not given.
    bits
        Number of bits for each frequency, 1 to 8. One bit needs 2.5 times as many rows as a plain
        sketch for the same noise, two bits 1.23 times.
    seed
        Seed of the dither, below ``2**64``. Sensors whose sketches will be added need different
        seeds, or rows at different positions.
    position
        Position of the first row in the stream, ``>= 0``: that of the last message, and its
        ``count``.
    nan_policy
        ``"raise"`` refuses a row with NaN or infinite values, ``"omit"`` leaves such rows out and
        counts them.

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
    if nan_policy not in ("raise", "omit"):
        raise InputError(
            f"nan_policy={nan_policy!r}: choose 'raise' or 'omit', or fill missing values; a row "
            "sends the phases of all frequencies, or none."
        )
    x, w = checked_rows(samples, weights, feature_map, "samples")
    x = from_device(x)
    w = None if w is None else np.asarray(from_device(w), dtype=np.float64)
    bits = require_bits(bits)
    seed = require_integer("seed", seed, 0)
    if seed > MAX_SEED:
        raise InputError(f"seed={seed}: give an integer below 2**64.")
    start = require_position(position)
    m, step = feature_map.n_frequencies, block_rows(feature_map.n_features, feature_map.dtype)
    reader = ChunkReader(
        feature_map.center, moment_units(feature_map), 0,
        np.empty((step, feature_map.n_features), feature_map.dtype),
        np.empty(step, feature_map.dtype),
    )  # fmt: skip
    cycles = feature_map.frequencies / (2.0 * np.pi)
    packed = np.empty((len(x), -(-m * bits // 8)), np.uint8)
    complete = np.ones(len(x), dtype=bool)
    sent = 0
    powers = np.arange(bits, dtype=np.uint8)[::-1]
    for rows in _blocks(len(x), m, step):
        block, row_weights = normalized(x[rows], feature_map), None if w is None else w[rows]
        try:
            refused = reader.take(block, row_weights, nan_policy == "omit")
        except CapacityError as error:
            raise ChunkError(f"samples: {error}") from error
        if refused >= 0:
            bad = x[rows.start + refused]
            refuse_row(bad, row_weights, refused, rows.start, "samples", feature_map)
        complete[rows] = np.isfinite(block).all(axis=1)
        ticks = _phases(block[complete[rows]].astype(np.float64) - feature_map.center, cycles)
        ticks += _dither(seed, start + sent, len(ticks), m)
        arcs = (ticks >> np.uint16(_TICKS - bits)).astype(np.uint8)
        digits = arcs[:, :, None] >> powers & np.uint8(1)
        packed[sent : sent + len(arcs)] = np.packbits(digits.reshape(len(arcs), m * bits), axis=1)
        sent += len(arcs)
    return QuantizedPhases(
        feature_map, packed[:sent], bits, seed, start, reader.minimum, reader.maximum,
        reader.first_quanta, reader.second_quanta, reader.weight_quanta,
        reader.squared_weight_quanta, reader.omitted, None if w is None else w[complete],
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
    received = list(messages)
    ends: dict[int, int] = {}
    for message in sorted(received, key=lambda message: message.position):
        if message.count and message.position < ends.get(message.seed, 0):
            raise MergeError(
                f"two messages with seed={message.seed} hold the row of position="
                f"{message.position}: quantise the rows of each sensor with a seed of their own, "
                "and give each message once."
            )
        ends[message.seed] = max(ends.get(message.seed, 0), message.position + message.count)
    return merge([message.sketch() for message in received])


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
    n_bits = require_integer("bits", bits, 1)
    if n_bits > MAX_BITS:
        raise InputError(f"bits={n_bits}: give 1 to {MAX_BITS}.")
    return n_bits


def _blocks(count: int, n_frequencies: int, max_rows: int) -> Iterator[slice]:
    """Blocks of rows whose phases are in memory at once."""
    step = max(1, min(max_rows, _BLOCK // n_frequencies))
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

    One row takes the numbers of Philox4x64 with the key ``seed``, the lowest 16 bits first, and as
    many counters as it needs.
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


def read_phases(dataset: xr.Dataset, store: object = "the dataset") -> QuantizedPhases:
    """Rebuild quantised phases from their stored dataset.

    Parameters
    ----------
    dataset
        Stored arrays and attributes.
    store
        Name of the store for messages.

    Raises
    ------
    ArtifactError
        If an array or attribute is missing or has another shape, or no rows can have such sums.
    """
    attrs = dataset.attrs
    try:
        feature_map = feature_map_of(dataset)
        n, d = dataset.sizes["row"], (feature_map.n_features,)
        bits = int(attrs["bits"])
        width = -(-feature_map.n_frequencies * bits // 8)
        units = stored_array(dataset, "unit", d, (np.float64,))
        arrays: dict[str, Any] = {
            name: stored_array(dataset, name, d, (np.float64,)) for name in ("minimum", "maximum")
        }
        for name in ("first", "second"):
            words = [stored_array(dataset, f"{name}_{w}", d, (np.int64,)) for w in ("high", "low")]
            arrays[f"{name}_quanta"] = FixedPoint(*words)
        weights = (
            stored_array(dataset, "weights", (n,), (np.float64,)) if "weights" in dataset else None
        )
        totals: dict[str, Any] = {
            attribute: int(attrs[name]) for name, attribute in WEIGHTS.items()
        }
        phases = QuantizedPhases(
            feature_map=feature_map,
            packed=stored_array(dataset, "packed", (n, width), (np.uint8,)),
            bits=bits,
            seed=int(attrs["seed"]),
            position=int(attrs["position"]),
            omitted=int(attrs["omitted"]),
            weights=weights,
            **arrays,
            **totals,
        )
        row_weights = np.ones(n) if weights is None else weights
        stated = phases.weight_quanta / 2**WEIGHT_FRACTION, phases.squared_weight_quanta / _SQUARED
    except _DAMAGES as error:
        raise damaged_store(store, "file of quantised phases", error) from error
    possible = phases.first_quanta.is_canonical() and phases.second_quanta.is_canonical()
    possible &= 0 <= phases.seed <= MAX_SEED and 0 <= phases.position <= _MAX_POSITION
    possible &= phases.omitted >= 0 and all(map(is_weight, row_weights.tolist()))
    possible &= np.allclose(
        stated, [row_weights.sum(), (row_weights**2).sum()], rtol=_TOLERANCE, atol=0.0
    )
    possible &= bool((units == moment_units(feature_map)).all())
    if not possible:
        raise ArtifactError(
            f"store={str(store)!r}: no rows have these sums or weights; the file was edited or is "
            "damaged. Restore it from a copy."
        )
    return phases
