"""Layout of the stored sketches of partitions: rows of arrays, from which all bits are restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import LedgerError, SketchError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.kernels.fixed_point import FixedPoint, are_possible_squares
from dask_sketch.jobs.ledger import partition_rows
from dask_sketch.jobs.ledger.objects import LONG, long_bytes
from dask_sketch.sketching.missing import ARRAYS, MissingWeights, counter_sizes
from dask_sketch.sketching.sketch import Sketch

WORDS, BOUNDS, MISSING = "words", "bounds", "missing"  # names of the arrays
_HEAD = 3 + 2 * LONG // 8
LAYOUT = (
    "words: a row for each partition, of int64: count, omitted, tight_bounds; weight_steps and "
    "squared_weight_steps of 24 bytes each, the least first; then the high and the low words of "
    "moment_steps, of first_steps and of second_steps, as dask-sketch/sketch version 2 has them. "
    "bounds: minimum and maximum of each feature."
)
MISSING_LAYOUT = (
    "missing: a row for each partition, of int64: missing_weight_steps of 24 bytes, the least "
    "first; then the high and the low words of missing_frequency, missing_pair, missing_first and "
    "missing_second, as dask-sketch/sketch version 3 has them, and zeros for a partition without "
    "missing values."
)


def _sizes(feature_map: FeatureMap) -> tuple[int, ...]:
    d, m = feature_map.n_features, feature_map.n_frequencies
    return (2 * m, 2 * m, d, d, d, d)


def shapes(
    n: int, feature_map: FeatureMap, *, with_missing: bool = False
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types of the arrays of ``n`` sketches."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        WORDS: ((n, _HEAD + sum(_sizes(feature_map))), "int64"),
        BOUNDS: ((n, 2, feature_map.n_features), "float64"),
    }
    if with_missing:
        width = LONG // 8 + 2 * sum(counter_sizes(feature_map).values())
        shapes[MISSING] = (n, width), "int64"
    return shapes


def stack(
    sketches: Sequence[Sketch], feature_map: FeatureMap, *, with_rows: bool
) -> dict[str, NDArray[Any]]:
    """Stack sketches of one feature map as rows of arrays; :func:`unstack` restores all bits.

    Parameters
    ----------
    sketches, feature_map
        Sketches, and their feature map.
    with_rows
        Whether there are arrays of their random rows too.

    Raises
    ------
    LedgerError
        If a sketch is private, because a ledger adds and subtracts exact sums.
    """
    if any(sketch.privacy is not None for sketch in sketches):
        raise LedgerError(
            "a ledger holds no private sketches: add the sketch of the data, and privatise the "
            "total."
        )
    if any(sketch.rounding_error for sketch in sketches):
        raise LedgerError("a ledger holds no rounded sketches: add the exact sketch of the data.")
    with_missing = any(sketch.missing is not None for sketch in sketches)
    described = shapes(len(sketches), feature_map, with_missing=with_missing)
    arrays = {name: np.zeros(shape, kind) for name, (shape, kind) in described.items()}
    words, bounds = arrays[WORDS], arrays[BOUNDS]
    for row, bound, sketch in zip(words, bounds, sketches, strict=True):
        long = b"".join(
            long_bytes(quanta) for quanta in (sketch.weight_quanta, sketch.squared_weight_quanta)
        )
        row[:3] = sketch.count, sketch.omitted, sketch.tight_bounds
        row[3:_HEAD] = np.frombuffer(long, dtype="<i8")
        quanta = (sketch.moment_quanta, sketch.first_quanta, sketch.second_quanta)
        parts = [word.ravel() for both in quanta for word in (both.high, both.low)]
        np.concatenate(parts, out=row[_HEAD:])
        bound[:] = sketch.minimum, sketch.maximum
    for row, sketch in zip(arrays.get(MISSING, ()), sketches, strict=False):
        if sketch.missing is not None:
            counters = [getattr(sketch.missing, name) for name in ARRAYS]
            long = long_bytes(sketch.missing.weight_quanta)
            parts = [word for each in counters for word in (each.high, each.low)]
            np.concatenate([np.frombuffer(long, dtype="<i8"), *parts], out=row)
    if with_rows:
        arrays |= partition_rows.stack(
            [sketch.sample for sketch in sketches], feature_map.n_features
        )
    return arrays


def unstack(
    arrays: Mapping[str, NDArray[Any]], row: int, feature_map: FeatureMap, label: str
) -> Sketch:
    """Restore the sketch of one row.

    Raises
    ------
    LedgerError
        If no samples can have these numbers.
    """
    words, bounds = arrays[WORDS][row], arrays[BOUNDS][row]
    count, omitted, tight = map(int, words[:3])
    long = words[3:_HEAD].astype("<i8").tobytes()
    weight, squared = (int.from_bytes(part, "little") for part in (long[:LONG], long[LONG:]))
    parts = np.split(words[_HEAD:].copy(), np.cumsum(_sizes(feature_map))[:-1])
    moments = [part.reshape(2, -1) for part in parts[:2]]
    quanta = tuple(FixedPoint(*both) for both in (moments, parts[2:4], parts[4:]))
    sound = all(each.is_canonical() for each in quanta) and min(count, omitted) >= 0
    missing = _missing_of(arrays[MISSING][row], feature_map) if MISSING in arrays else None
    sound &= missing is None or (
        all(getattr(missing, name).is_canonical() for name in ARRAYS)
        and missing.is_possible(weight)
    )
    if not sound or tight not in (0, 1):
        raise LedgerError(f"{label} holds impossible sums: it was edited or damaged.")
    try:
        sketch = Sketch(
            feature_map=feature_map,
            moment_quanta=quanta[0],
            weight_quanta=weight,
            squared_weight_quanta=squared,
            count=count,
            omitted=omitted,
            minimum=bounds[0].copy(),
            maximum=bounds[1].copy(),
            first_quanta=quanta[1],
            second_quanta=quanta[2],
            tight_bounds=bool(tight),
            missing=missing,
        )
    except SketchError as error:
        raise LedgerError(f"{label} holds impossible sums: {error}") from error
    if not are_possible_squares(sketch.total_weight, sketch.squared_weight, count):
        raise LedgerError(f"{label} holds impossible weights: it was edited or damaged.")
    return sketch


def _missing_of(words: NDArray[np.int64], feature_map: FeatureMap) -> MissingWeights | None:
    """Counters of one row; None if all are zero."""
    head, sizes = LONG // 8, counter_sizes(feature_map)
    parts = np.split(words[head:].copy(), np.cumsum(np.repeat(list(sizes.values()), 2))[:-1])
    arrays = {name: FixedPoint(*parts[2 * i : 2 * i + 2]) for i, name in enumerate(sizes)}
    weight = int.from_bytes(words[:head].astype("<i8").tobytes(), "little")
    return MissingWeights(**arrays, weight_quanta=weight).or_none()


def layout_attributes(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Attributes of a group that describe its arrays."""
    attributes: dict[str, Any] = {"layout": LAYOUT}
    if MISSING in arrays:
        attributes |= {"missing": True, "missing_layout": MISSING_LAYOUT}
    return attributes


def require_addable(sketch: Sketch, key: str) -> None:
    """Raise for the sketch of a partition whose sums or bounds are not exact.

    Parameters
    ----------
    sketch
        Sketch of the partition.
    key
        Key of the partition, for messages.

    Raises
    ------
    LedgerError
        If the sketch is private, rounded or a difference of sketches.
    """
    if sketch.privacy is not None:
        raise LedgerError(
            f"the sketch of {key!r} is private, and a ledger holds exact sums: privatise the total "
            "when it is released."
        )
    if sketch.rounding_error:
        raise LedgerError(
            f"the sketch of {key!r} is rounded, and a ledger holds exact sums: sketch the "
            "partition itself."
        )
    if not sketch.tight_bounds:
        raise LedgerError(
            f"the sketch of {key!r} is a difference of sketches, so that its bounds may be too "
            "wide: sketch the partition itself."
        )
