"""Write the features of a Dask bag of audio files to one labelled Zarr store.

There are two passes, because the first row of a file is known only when the speech frames of all
earlier files are counted. The first pass counts, and sends three numbers per file to the client.
The second computes the features and writes them, one task per shard, each with one shard and the
audio of one file in memory. Every file is read twice, and once more for each shard border that
its rows cross; no frame passes through the client.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dask
import dask.bag as db
import numpy as np
from dask.system import CPU_COUNT

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.graph.compute import compute_plain
from dask_sketch.speech.audio_files import SPEAKER_IN_NAME, Recording, list_recordings, speakers_of
from dask_sketch.speech.feature_store import (
    Shard,
    check_destination,
    complete_store,
    create_store,
    plan_shards,
    write_rows,
)
from dask_sketch.speech.mfcc import (
    FrontEnd,
    active_frames,
    mfcc,
    n_frames_of,
    no_speech,
    read_audio,
)

__all__ = ["SpeechSummary", "write_features"]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpeechSummary:
    """Summary of a run of :func:`write_features`.

    Attributes
    ----------
    n_files
        Number of audio files in the store.
    n_frames
        Number of speech frames in the store.
    n_speakers
        Number of speakers in the store; 0 without speaker names.
    seconds
        Total duration of the files in seconds.
    kept_fraction
        Fraction of the frames kept as speech, in (0, 1].
    skipped
        Path and reason of each file left out (``on_error="skip"``).
    """

    n_files: int
    n_frames: int
    n_speakers: int
    seconds: float
    kept_fraction: float
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Count:
    """Numbers of speech frames and of all frames, and duration of one file, or the failure."""

    kept: int = 0
    frames: int = 0
    seconds: float = 0.0
    failure: str = ""


def write_features(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    store: str | os.PathLike[str],
    *,
    speaker: str | Callable[[Path], str] | None = SPEAKER_IN_NAME,
    sample_rate: int = 8000,
    frame_seconds: float = 0.023,
    n_coefficients: int = 12,
    top_db: float = 30.0,
    chunk_frames: int = 16_384,
    shard_frames: int = 65_536,
    npartitions: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> SpeechSummary:
    """Write the MFCC of the speech frames of audio files to a Zarr store.

    The store opens with ``xarray.open_zarr``: ``features`` (frame, coefficient) float32 in dB,
    with the coordinates ``file`` (frame), an index into ``file_name`` (recording), and
    ``speaker`` (frame), an index into its attribute ``names``, which is sorted. Rows follow the
    files in order and, within a file, time. The result does not depend on the number of
    partitions nor on the scheduler; it runs on whichever scheduler is active, the threaded one
    if none is. Workers must see the files under the same paths.

    Parameters
    ----------
    files
        Folder (searched recursively), glob pattern, or paths.
    store
        Path or URL of the Zarr store.
    speaker
        Regular expression with one group, searched for in the file's name without folders; the
        default matches the part between the first two underscores (``7_jackson_32.wav``).
        Alternatively, a callable from path to name; or None, for no speaker coordinate.
    sample_rate, frame_seconds, n_coefficients, top_db
        Parameters of the features, see :class:`~dask_sketch.speech.mfcc.FrontEnd`.
    chunk_frames
        Number of rows of a chunk, the unit of reading.
    shard_frames
        Number of rows of a shard, the unit of writing; a multiple of `chunk_frames`.
    npartitions
        Number of partitions of the bag of files in the first pass. Default: Dask's choice.
    on_error
        Treatment of files that are unreadable, empty, shorter than a frame, silent, or recorded
        below `sample_rate`: ``"raise"`` an error that names them, or ``"skip"`` them and list them
        in the summary.
    overwrite
        Whether features written by an earlier run may be replaced. Anything else at `store` is
        never replaced.
    storage_options
        Options of the file system, where `store` is a URL.

    Returns
    -------
    SpeechSummary
        Numbers of files, frames and speakers, seconds of audio, fraction of frames kept, and files
        skipped.

    Raises
    ------
    InputError
        If an argument is out of range, no file is found or left, or a file has no speaker.
    ArtifactError
        If the store exists.
    ChunkError
        If files cannot be used, before anything is written, or a file changes while it is
        read; the message names them. A run that fails while it writes leaves a store with the
        attribute ``complete`` false and NaN in the rows that are missing; the next run
        replaces it, `overwrite` or not.

    Examples
    --------
    >>> import os, tempfile, soundfile, xarray
    >>> rng = np.random.default_rng(0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("0_anna_0.wav", "0_bert_0.wav"):
    ...         soundfile.write(os.path.join(folder, name), rng.normal(0, 0.1, 8000), 8000)
    ...     summary = write_features(folder, os.path.join(folder, "features.zarr"))
    ...     with xarray.open_zarr(os.path.join(folder, "features.zarr")) as opened:
    ...         print(summary.n_frames, opened.features.shape, opened.speaker.names)
    170 (170, 12) ['anna', 'bert']
    """
    front_end = FrontEnd(sample_rate, frame_seconds, n_coefficients, top_db)
    if on_error not in ("raise", "skip"):
        raise InputError(f"on_error={on_error!r}: choose 'raise' or 'skip'.")
    if chunk_frames < 1 or shard_frames < 1 or shard_frames % chunk_frames:
        raise InputError(
            f"shard_frames={shard_frames}: give a positive multiple of chunk_frames={chunk_frames}."
        )
    path = os.fspath(store)
    if "://" not in path:
        path = str(Path(path).absolute())  # workers may run in another folder
    check_destination(path, overwrite, storage_options)
    recordings = list_recordings(files)
    speaker_names = None if speaker is None else speakers_of(recordings, speaker)

    counts = _compute(
        db.from_sequence(recordings, npartitions=npartitions).map(_count, front_end=front_end)
    )
    used, skipped = _usable(recordings, counts, on_error)
    names = None if speaker_names is None else sorted({speaker_names[i] for i in used})
    if names is None or speaker_names is None:
        codes = [-1] * len(used)
    else:
        code_of = {name: code for code, name in enumerate(names)}
        codes = [code_of[speaker_names[i]] for i in used]
    shards = plan_shards(
        [recordings[i].path for i in used], codes, [counts[i].kept for i in used], shard_frames
    )
    n_frames = shards[-1].stop
    logger.info("writing %d frames of %d files in %d shards", n_frames, len(used), len(shards))
    create_store(
        path,
        n_frames=n_frames,
        files=[recordings[i].name for i in used],
        speakers=names,
        front_end=front_end,
        chunk_frames=chunk_frames,
        shard_frames=shard_frames,
        storage_options=storage_options,
    )
    _compute(
        db.from_sequence(shards, npartitions=len(shards)).map(
            _write_shard, store=path, front_end=front_end, storage_options=storage_options
        )
    )
    complete_store(path, storage_options)
    return SpeechSummary(
        n_files=len(used),
        n_frames=n_frames,
        n_speakers=0 if names is None else len(names),
        seconds=sum(counts[i].seconds for i in used),
        kept_fraction=n_frames / sum(counts[i].frames for i in used),
        skipped=skipped,
    )


def _compute(bag: db.Bag) -> list[Any]:
    # By default a bag starts processes; delayed partitions use the active scheduler, and threads
    # where there is none, which suits NumPy and needs no main guard in scripts. The pool ends
    # here: after an error, threads that still write are waited for, or they would write into the
    # next store at the same path.
    with (
        ThreadPoolExecutor(dask.config.get("num_workers", CPU_COUNT)) as pool,
        dask.config.set(pool=pool),
    ):
        return [item for partition in compute_plain(*bag.to_delayed()) for item in partition]


def _count(recording: Recording, front_end: FrontEnd) -> _Count:
    try:
        signal = read_audio(recording.path, front_end.sample_rate)
        n_active = active_frames(signal, front_end).size
        if n_active == 0:
            raise no_speech(recording.path, signal, front_end)
    except ChunkError as error:
        # returned rather than raised, so that one run reports every bad file
        return _Count(failure=str(error))
    return _Count(n_active, n_frames_of(signal, front_end), signal.size / front_end.sample_rate)


def _usable(
    recordings: list[Recording], counts: list[_Count], on_error: str
) -> tuple[list[int], tuple[tuple[str, str], ...]]:
    used = [i for i, count in enumerate(counts) if not count.failure]
    skipped = tuple(
        (recording.path, count.failure)
        for recording, count in zip(recordings, counts, strict=True)
        if count.failure
    )
    if skipped and on_error == "raise":
        shown = "; ".join(reason for _, reason in skipped[:5])
        more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        raise ChunkError(
            f"{len(skipped)} of {len(recordings)} audio files cannot be used: {shown}{more}. "
            'Repair them, or pass on_error="skip" to leave them out'
        )
    if not used:
        raise InputError(
            f"none of the {len(recordings)} audio files can be used; the first: {skipped[0][1]}"
        )
    for path, reason in skipped:
        logger.warning("skipped %s: %s", path, reason)
    return used, skipped


def _write_shard(
    shard: Shard, store: str, front_end: FrontEnd, storage_options: dict[str, Any] | None
) -> int:
    n_rows = shard.stop - shard.start
    features = np.empty((n_rows, front_end.n_coefficients), np.float32)
    files = np.empty(n_rows, np.int32)
    speakers = np.empty(n_rows, np.int32)
    row = 0
    for piece in shard.pieces:
        signal = read_audio(piece.path, front_end.sample_rate)
        frames = active_frames(signal, front_end)
        if frames.size != piece.n_frames:
            raise ChunkError(
                f"audio file {piece.path!r} changed while it was read: {piece.n_frames} speech "
                f"frames at first, {frames.size} now; run again once the files are complete"
            )
        rows = slice(row, row + piece.stop - piece.start)
        features[rows] = mfcc(signal, frames[piece.start : piece.stop], front_end)
        files[rows] = piece.file
        speakers[rows] = piece.speaker
        row = rows.stop
    write_rows(store, shard, features, files, speakers, storage_options)
    return n_rows
