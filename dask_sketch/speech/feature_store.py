"""Layout of the feature store, and the division of its shards among write tasks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError
from dask_sketch.speech.mfcc import FrontEnd

__all__ = [
    "Piece",
    "Shard",
    "check_destination",
    "complete_store",
    "create_store",
    "plan_shards",
    "write_rows",
]
_SCHEMA = "dask-sketch/speech-features/1"


@dataclass(frozen=True)
class Piece:
    """Consecutive speech frames of one file within one shard.

    ``start`` and ``stop`` count the speech frames of the file, of which there are ``n_frames``.
    """

    path: str
    file: int
    speaker: int
    start: int
    stop: int
    n_frames: int


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` of the store, one whole shard, and the pieces that fill them."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]


def plan_shards(
    paths: Sequence[str],
    speakers: Sequence[int],
    counts: Sequence[int],
    shard_frames: int,
) -> list[Shard]:
    """Divide the rows of the store among write tasks, one whole shard for each.

    Parameters
    ----------
    paths
        Paths of the audio files, in the order of their rows.
    speakers
        Speaker code of each file.
    counts
        Number of speech frames of each file, at least 1.
    shard_frames
        Number of rows of a shard.

    Returns
    -------
    list of Shard
        Shard ``k`` has the rows from ``k * shard_frames`` on. A file whose rows cross a border
        has a piece on either side.

    Examples
    --------
    >>> shards = plan_shards(["a.wav", "b.wav"], [0, 1], [3, 4], shard_frames=5)
    >>> [(shard.start, shard.stop) for shard in shards]
    [(0, 5), (5, 7)]
    >>> [(piece.path, piece.start, piece.stop) for piece in shards[0].pieces]
    [('a.wav', 0, 3), ('b.wav', 0, 2)]
    """
    ends = np.cumsum(counts, dtype=np.int64)
    shards = []
    for start in range(0, int(ends[-1]), shard_frames):
        stop = min(start + shard_frames, int(ends[-1]))
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        pieces = []
        for file in range(first, last + 1):
            row = int(ends[file]) - counts[file]
            pieces.append(
                Piece(
                    path=paths[file],
                    file=file,
                    speaker=speakers[file],
                    start=max(start - row, 0),
                    stop=min(stop - row, counts[file]),
                    n_frames=counts[file],
                )
            )
        shards.append(Shard(start, stop, tuple(pieces)))
    return shards


def check_destination(
    store: str, overwrite: bool, storage_options: dict[str, Any] | None = None
) -> None:
    """Refuse to write where something else would be lost.

    Parameters
    ----------
    store
        Path or URL of the store.
    overwrite
        Whether features written by an earlier run may be replaced.
    storage_options
        Options of the file system of a URL.

    Raises
    ------
    ArtifactError
        If the store exists and `overwrite` is not set, or what exists is not a feature store:
        such data is never replaced. An incomplete store of a failed run may be replaced.
    """
    try:
        group = zarr.open_group(store, mode="r", storage_options=storage_options)
    except FileNotFoundError:
        path = Path(store)
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise ArtifactError(
                f"store={store!r} exists and is not a Zarr group: choose another path."
            ) from None
        return
    except ValueError as error:  # an array, or damaged metadata
        raise ArtifactError(
            f"store={store!r} exists and is not a Zarr group ({error}): choose another path."
        ) from error
    if group.attrs.get("schema") != _SCHEMA:
        raise ArtifactError(
            f"store={store!r} is a Zarr group with other contents than speech features: choose "
            "another path."
        )
    if group.attrs.get("complete") and not overwrite:
        raise ArtifactError(
            f"store={store!r} exists: pass overwrite=True to replace it, or choose another path."
        )


def create_store(
    store: str,
    *,
    n_frames: int,
    files: Sequence[str],
    speakers: Sequence[str] | None,
    front_end: FrontEnd,
    chunk_frames: int,
    shard_frames: int,
    storage_options: dict[str, Any] | None = None,
) -> None:
    """Create the store: labels written, frames still to be filled, marked as incomplete.

    Parameters
    ----------
    store
        Path or URL. An existing group there is replaced.
    n_frames
        Rows of the store.
    files
        File names, by file number.
    speakers
        Speaker names, by speaker code; None for a store without speakers.
    front_end
        Kept in the attributes.
    chunk_frames, shard_frames
        Rows of a chunk and of a shard; the second is a multiple of the first.
    storage_options
        Options of the file system of a URL.
    """

    def unwritten(*shape: int, dtype: type, fill: float) -> Any:
        return dask.array.full(shape, fill, dtype=dtype, chunks=(shard_frames, *shape[1:]))

    # The names of speakers are few and fit into attributes. Files can be many: their names are an
    # array, one entry per recording.
    coordinates: dict[str, tuple[str, object, dict[str, object]]] = {
        "coefficient": ("coefficient", np.arange(1, front_end.n_coefficients + 1), {}),
        "file": (
            "frame",
            unwritten(n_frames, dtype=np.int32, fill=-1),
            {
                "long_name": "number of the audio file, an index into file_name",
                # conventions have this attribute for such an index
                "instance_dimension": "recording",
            },
        ),
        "file_name": ("recording", np.array(files, dtype=object), {}),
    }
    if speakers is not None:
        coordinates["speaker"] = (
            "frame",
            unwritten(n_frames, dtype=np.int32, fill=-1),
            {"long_name": "speaker code, an index into names", "names": list(speakers)},
        )
    features = unwritten(n_frames, front_end.n_coefficients, dtype=np.float32, fill=np.nan)
    template = xr.Dataset(
        {
            "features": (
                ("frame", "coefficient"),
                features,
                {"long_name": "mel-frequency cepstral coefficients", "units": "dB"},
            )
        },
        coords=coordinates,
        attrs={"schema": _SCHEMA, "complete": False, **asdict(front_end)},
    )
    encoding: dict[str, dict[str, object]] = {
        "features": {
            "chunks": (chunk_frames, front_end.n_coefficients),
            "shards": (shard_frames, front_end.n_coefficients),
            # a row that nobody wrote must not pass for a frame of zeros
            "_FillValue": np.float32(np.nan),
        }
    }
    for name in coordinates.keys() & {"file", "speaker"}:
        encoding[name] = {"chunks": (chunk_frames,), "shards": (shard_frames,)}
    # compute=False writes what is in memory and leaves the lazy arrays to the write tasks
    template.to_zarr(
        store,
        mode="w",
        zarr_format=3,
        consolidated=False,
        compute=False,
        encoding=encoding,
        storage_options=storage_options,
    )


def write_rows(
    store: str,
    shard: Shard,
    features: NDArray[np.float32],
    files: NDArray[np.int32],
    speakers: NDArray[np.int32],
    storage_options: dict[str, Any] | None = None,
) -> None:
    """Write the rows of one shard, coordinates included."""
    group = zarr.open_group(store, mode="r+", storage_options=storage_options)
    for name, values in (("features", features), ("file", files), ("speaker", speakers)):
        if name in group:
            array = group[name]
            assert isinstance(array, zarr.Array)
            # without this, a chunk of one speaker that is numbered 0 would look like a missing one
            array = array.with_config({"write_empty_chunks": True})
            array[shard.start : shard.stop] = values


def complete_store(store: str, storage_options: dict[str, Any] | None = None) -> None:
    """Mark a store whose rows are all written as complete, and gather its metadata."""
    group = zarr.open_group(store, mode="r+", storage_options=storage_options)
    group.update_attributes({"complete": True})
    with warnings.catch_warnings():
        # Zarr warns that consolidated metadata is an extension of the format, xarray warns on
        # opening a store without it: every reader would see the second, so it is written.
        warnings.filterwarnings("ignore", "Consolidated metadata is", UserWarning)
        zarr.consolidate_metadata(group.store)
