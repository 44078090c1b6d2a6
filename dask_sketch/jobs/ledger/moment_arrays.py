"""Second moments of partitions as rows of an array, from which all bits are restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import LedgerError, SketchError
from dask_sketch.features.kernels.fixed_point import FixedPoint
from dask_sketch.jobs.ledger.objects import LONG, long_bytes
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.second_moments import SecondMoments

WORDS = "words"  # name of the array
MAX_BYTES = 2**31 - 2**16  # bytes of one row, at most: the limit of the codec
_HEAD = 2 + LONG // 8
LAYOUT = (
    "words: a row for each partition, of int64: count, omitted; squared_weight_steps of 24 bytes, "
    "the least first; then sums_high and sums_low, as dask-sketch/second-moments version 1 has "
    "them."
)


def shapes(n: int, grid: MomentGrid) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of the array of ``n`` second moments."""
    return {WORDS: ((n, _HEAD + 2 * grid.n_sums), "int64")}


def stack(moments: Sequence[SecondMoments], grid: MomentGrid) -> dict[str, NDArray[Any]]:
    """Stack second moments of one grid as rows; :func:`unstack` restores all bits."""
    ((shape, kind),) = shapes(len(moments), grid).values()
    words = np.zeros(shape, kind)
    for row, part in zip(words, moments, strict=True):
        long = long_bytes(part.squared_weight_quanta)
        row[:2] = part.count, part.omitted
        row[2:_HEAD] = np.frombuffer(long, dtype="<i8")
        np.concatenate([part.sums.high, part.sums.low], out=row[_HEAD:])
    return {WORDS: words}


def unstack(
    arrays: Mapping[str, NDArray[Any]], row: int, grid: MomentGrid, label: str
) -> SecondMoments:
    """Restore the second moments of one row.

    Raises
    ------
    LedgerError
        If no samples can have these numbers.
    """
    words = arrays[WORDS][row]
    count, omitted = map(int, words[:2])
    squared = int.from_bytes(words[2:_HEAD].astype("<i8").tobytes(), "little")
    high, low = words[_HEAD:].copy().reshape(2, -1)
    try:
        moments = SecondMoments(grid, FixedPoint(high, low), squared, count, omitted)
        sound = moments.sums.is_canonical() and moments.is_possible
    except SketchError as error:
        raise LedgerError(f"{label} holds impossible sums: {error}") from error
    if not sound:
        raise LedgerError(f"{label} holds impossible sums: it was edited or damaged.")
    return moments
