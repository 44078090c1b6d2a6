"""Sketches as rows of two arrays, and back: the one place that knows what a sketch is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import LedgerError, SketchError
from dask_sketch.features import FeatureMap
from dask_sketch.features.fixed_point import FixedPoint
from dask_sketch.sketching import Sketch

WORDS, BOUNDS = "words", "bounds"  # names of the arrays
_LONG = 24  # bytes of the sum of weights, and of that of their squares
_HEAD = 3 + 2 * _LONG // 8
LAYOUT = (
    "words: a row for each partition, of int64: count, omitted, tight_bounds; weight_steps and "
    "squared_weight_steps of 24 bytes each, the least first; then the high and the low words of "
    "moment_steps, of first_steps and of second_steps, as dask-sketch/sketch version 2 has them. "
    "bounds: minimum and maximum of each feature."
)


def _sizes(feature_map: FeatureMap) -> tuple[int, ...]:
    d, m = feature_map.n_features, feature_map.n_frequencies
    return (2 * m, 2 * m, d, d, d, d)


def shapes(n: int, feature_map: FeatureMap) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of the arrays for ``n`` sketches."""
    return {
        WORDS: ((n, _HEAD + sum(_sizes(feature_map))), "int64"),
        BOUNDS: ((n, 2, feature_map.n_features), "float64"),
    }


def row_bytes(feature_map: FeatureMap) -> int:
    """Bytes of one sketch in memory."""
    return 8 * (_HEAD + sum(_sizes(feature_map)) + 2 * feature_map.n_features)


def stack(sketches: Sequence[Sketch], feature_map: FeatureMap) -> dict[str, NDArray[Any]]:
    """The arrays of some sketches of one feature map; :func:`unstack` gives the same bits back.

    Raises
    ------
    LedgerError
        If a sketch is private: a ledger adds and subtracts those of the data.
    """
    if any(sketch.privacy is not None for sketch in sketches):
        raise LedgerError(
            "a private sketch is to be given away, not to be kept in a ledger: keep that of the "
            "data, and privatise the total."
        )
    described = shapes(len(sketches), feature_map)
    words, bounds = (np.empty(shape, kind) for shape, kind in described.values())
    for row, bound, sketch in zip(words, bounds, sketches, strict=True):
        long = b"".join(
            steps.to_bytes(_LONG, "little")
            for steps in (sketch.weight_steps, sketch.squared_weight_steps)
        )
        row[:3] = sketch.count, sketch.omitted, sketch.tight_bounds
        row[3:_HEAD] = np.frombuffer(long, dtype="<i8")
        steps = (sketch.moment_steps, sketch.first_steps, sketch.second_steps)
        parts = [word.ravel() for both in steps for word in (both.high, both.low)]
        np.concatenate(parts, out=row[_HEAD:])
        bound[:] = sketch.minimum, sketch.maximum
    return {WORDS: words, BOUNDS: bounds}


def unstack(
    arrays: Mapping[str, NDArray[Any]], row: int, feature_map: FeatureMap, label: str
) -> Sketch:
    """The sketch of one row.

    Raises
    ------
    LedgerError
        If the numbers are not those of a sketch.
    """
    words, bounds = arrays[WORDS][row], arrays[BOUNDS][row]
    count, omitted, tight = map(int, words[:3])
    long = words[3:_HEAD].astype("<i8").tobytes()
    weight, squared = (int.from_bytes(part, "little") for part in (long[:_LONG], long[_LONG:]))
    parts = np.split(words[_HEAD:].copy(), np.cumsum(_sizes(feature_map))[:-1])
    moments = [part.reshape(2, -1) for part in parts[:2]]
    steps = tuple(FixedPoint(*both) for both in (moments, parts[2:4], parts[4:]))
    sound = all(each.is_canonical() for each in steps) and min(count, omitted) >= 0
    if not sound or tight not in (0, 1):
        raise LedgerError(f"{label} holds sums that no sketch has: it was edited or is damaged.")
    try:
        return Sketch(
            feature_map=feature_map,
            moment_steps=steps[0],
            weight_steps=weight,
            squared_weight_steps=squared,
            count=count,
            omitted=omitted,
            minimum=bounds[0].copy(),
            maximum=bounds[1].copy(),
            first_steps=steps[1],
            second_steps=steps[2],
            tight_bounds=bool(tight),
        )
    except SketchError as error:
        raise LedgerError(f"{label} holds sums that no sketch has: {error}") from error
