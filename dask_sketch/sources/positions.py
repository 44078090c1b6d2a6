"""Positions of the rows of each chunk in their source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_sketch.sources.samples import Samples


@dataclass(frozen=True)
class Place:
    """Place of the rows of one block in the source.

    Attributes
    ----------
    stream
        Numbers of the sequence of positions: empty for positions in the whole source, else the
        number of the chunk.
    start
        Position of the first row.
    positions
        Position of each row, shape (n,), where they are not consecutive; else None.
    """

    stream: tuple[int, ...]
    start: int
    positions: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Positions:
    """Positions of the rows of a source, for any chunk.

    Where the sizes of all chunks are known, the position of a row is its number in the source, in
    the order of its axes, whatever the chunks are. Elsewhere it is the number of the chunk together
    with the number of the row in the chunk.

    Parameters
    ----------
    starts
        For each leading axis, the number of rows of each chunk but the last where all have as many,
        or the first index of each chunk. Empty where they are unknown.
    shape
        Lengths of the leading axes.
    offset
        Position of the first row, ``>= 0``.

    Examples
    --------
    >>> positions = Positions((100,), (1000,))
    >>> positions.of((3,), np.zeros((100, 2)), row=5)
    Place(stream=(), start=305, positions=None)
    """

    starts: tuple[int | tuple[int, ...], ...]
    shape: tuple[int, ...]
    offset: int = 0

    @classmethod
    def in_source(cls, samples: Samples, offset: int = 0) -> Positions:
        """Positions of the rows of samples, from ``offset`` on."""
        blocks = samples.blocks
        if not isinstance(blocks, da.Array) or samples.n_samples is None:
            return cls((), (), offset)
        shape = tuple(map(int, blocks.shape[:-1]))
        return cls(tuple(map(_starts, blocks.chunks[:-1])), shape, offset)

    def of(self, number: tuple[int, ...], rows: Any, row: int = 0) -> Place:
        """Place of the rows of one block.

        Parameters
        ----------
        number
            Number of the chunk, along each axis.
        rows
            Rows of the block, shape (..., n_features).
        row
            Number of its first row in the chunk.
        """
        if not self.starts:
            return Place(number, row + self.offset)
        first = [
            start * i if isinstance(start, int) else start[i]
            for start, i in zip(self.starts, number, strict=True)
        ]
        if len(first) == 1:
            return Place((), first[0] + row + self.offset)
        found = np.zeros((1,) * len(first), dtype=np.int64)
        for axis, (start, n) in enumerate(zip(first, rows.shape[:-1], strict=True)):
            along = np.arange(start, start + n) * int(np.prod(self.shape[axis + 1 :]))
            found = found + along.reshape([-1 if i == axis else 1 for i in range(len(first))])
        return Place((), 0, found.ravel() + self.offset)


def _starts(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    """Size of regular chunks, or the first index of each chunk."""
    if all(size == sizes[0] for size in sizes[:-1]):
        return int(sizes[0])
    return tuple(np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(int).tolist())
