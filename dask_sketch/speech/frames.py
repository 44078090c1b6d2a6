"""Open the stored frames of many recordings lazily."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.sources.open import open_samples
from dask_sketch.sources.samples import Samples

__all__ = ["Frames", "open_frames"]


@dataclass(frozen=True, eq=False)
class Frames:
    """Frames of many recordings, from :func:`open_frames`.

    Attributes
    ----------
    samples
        All frames, lazily, with the number of the recording of each frame.
    recordings
        Sorted names of the recordings; the position is the number.
    """

    samples: Samples
    recordings: tuple[str, ...]

    def numbers(self, recordings: Iterable[str]) -> list[int]:
        """Find the numbers of recordings by their names.

        Raises
        ------
        InputError
            If there is no recording of a name; the message names it.
        """
        positions = {name: number for number, name in enumerate(self.recordings)}
        wanted = list(recordings)
        missing = [name for name in wanted if name not in positions]
        if missing:
            raise InputError(
                f"{len(missing)} recordings, the first {missing[0]!r}, are not among the "
                f"{len(positions)} of {self.samples.label}, such as {self.recordings[0]!r}: names "
                "are those of the files, below the folder that all of them share."
            )
        return [positions[name] for name in wanted]

    def of(self, recordings: Iterable[str]) -> da.Array:
        """Select the frames of some recordings, lazily.

        Parameters
        ----------
        recordings
            Names of the recordings.

        Returns
        -------
        frames
            Frames, shape (n_frames, n_features), in chunks of unknown length.

        Raises
        ------
        InputError
            If there is no such recording.
        """
        wanted = np.zeros(len(self.recordings), dtype=bool)
        wanted[self.numbers(recordings)] = True
        blocks, groups = self.samples.blocks, self.samples.groups
        assert isinstance(blocks, da.Array)  # checked by open_frames()
        assert groups is not None
        return da.map_blocks(
            _rows_of,
            blocks,
            groups.labels,
            wanted=wanted,
            dtype=blocks.dtype,
            chunks=((np.nan,) * blocks.numblocks[0], blocks.chunks[1]),
            meta=np.empty((0, 0), dtype=blocks.dtype),
            token="frames",
        )


def _rows_of(
    block: NDArray[Any], files: NDArray[np.int32], wanted: NDArray[np.bool_]
) -> NDArray[Any]:
    return block[wanted[files[:, 0]]]


def open_frames(x: Any, recordings: Any = "file_name", **options: Any) -> Frames:
    """Open frames with the names of their recordings, without reading the frames.

    Parameters
    ----------
    x
        Store written by :func:`write_features`, or other input of
        :func:`dask_sketch.open_samples`.
    recordings
        Name of the recording of each frame: array of strings, shape (n_frames,), or the name of
        such an array in the store. The frames of a recording should be consecutive.
    options
        Keyword arguments of :func:`dask_sketch.open_samples`.

    Returns
    -------
    frames
        Frames and the names of their recordings.

    Raises
    ------
    InputError
        If the input cannot be opened, or has no names of recordings.

    Examples
    --------
    >>> frames = open_frames(np.zeros((5, 12)), ["anna_1", "anna_1", "anna_1", "bert_1", "bert_1"])
    >>> frames.recordings, len(frames.of(["bert_1"]).compute())
    (('anna_1', 'bert_1'), 2)
    """
    samples = open_samples(x, groups=recordings, **options)
    groups = samples.groups
    if groups is None or groups.names is None or not isinstance(samples.blocks, da.Array):
        raise InputError(
            f"{samples.label} does not state the names of its recordings before it is read: write "
            "it with write_features(), or give their names as an array of text."
        )
    return Frames(samples, tuple(map(str, groups.names)))


def segments(files: NDArray[np.integer]) -> Sequence[tuple[int, slice]]:
    """Find runs of equal numbers and their positions.

    Examples
    --------
    >>> segments(np.array([4, 4, 7]))
    [(4, slice(0, 2, None)), (7, slice(2, 3, None))]
    """
    borders = np.flatnonzero(np.diff(files)) + 1
    starts = [0, *borders.tolist()] if len(files) else []
    stops = [*borders.tolist(), len(files)]
    return [
        (int(files[start]), slice(start, stop)) for start, stop in zip(starts, stops, strict=False)
    ]
