"""The store that everything is measured on: known, as large as asked for, written once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from distributed import as_completed
from numpy.typing import NDArray

from dask_sketch import GaussianMixture
from dask_sketch.cli.demo import sample_frames
from dask_sketch.models import random_mixture

N_FEATURES = 12
N_COMPONENTS = 64
CHUNK_ROWS = 500_000  # 24 MB in float32: one task reads one, whatever the size of the store
N_HELDOUT = 100_000
_HELDOUT = 2**31  # the stream of the held-out samples, beside those of the chunks,
_SECOND = 2**30  # and the first one of a second store
_ROW_BYTES = 4 * N_FEATURES


def truth(seed: int = 0, widened: float = 1.0) -> GaussianMixture:
    """Distribution of the samples: the mixtures of Keriven et al. (2018), section 5.1.

    64 components of 12 features with equal weights, variances ``U(0.25, 1.75)`` and means
    ``N(0, 64**(2 / 12) I)``. The standard deviations of the first one are multiplied by
    ``widened``.
    """
    found = random_mixture(N_COMPONENTS, N_FEATURES, seed=seed)
    variances = found.variances.copy()
    variances[0] *= widened**2
    return GaussianMixture(found.weights, found.means, variances)


def heldout(seed: int = 0, n_samples: int = N_HELDOUT) -> NDArray[np.float32]:
    """Samples that are never written, shape (n_samples, 12)."""
    return sample_frames(truth(seed), n_samples, (seed, _HELDOUT))


def write_store(
    folder: Path,
    n_samples: int,
    seed: int,
    client: Any,
    chunk_rows: int = CHUNK_ROWS,
    widened: float | None = None,
) -> tuple[Path, int]:
    """Write the store, or what is missing of it after an interruption.

    A chunk depends on the seed and on its number alone, so a small store is the beginning of a
    large one. Chunks are not compressed (noise does not shrink), so that a chunk file of any other
    than the full size is known to be cut off, and written again.

    Parameters
    ----------
    folder
        Folder of the stores; this one is ``<n_samples>.zarr``, or ``<n_samples>-second.zarr`` if
        it is to be compared with that.
    n_samples, seed, chunk_rows
        Number of samples, their seed, and rows of a chunk.
    client
        Client of the cluster that writes.
    widened
        Factor of the standard deviations of one component, in a store to be compared, whose
        samples are of other random streams.

    Returns
    -------
    path, n_written
        The store, and the number of chunks that had to be written.
    """
    path = folder / (f"{n_samples}.zarr" if widened is None else f"{n_samples}-second.zarr")
    meaning = {"seed": seed, "mixture": f"random_mixture({N_COMPONENTS}, {N_FEATURES}, seed)"}
    meaning |= {} if widened is None else {"widened": widened}
    if path.exists():
        array = zarr.open_array(str(path), mode="r")
        if dict(array.attrs) != meaning or array.chunks[0] != chunk_rows:
            raise SystemExit(f"{path} holds other samples; remove it, or choose another folder.")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        zarr.create_array(
            str(path),
            shape=(n_samples, N_FEATURES),
            chunks=(chunk_rows, N_FEATURES),
            dtype=np.float32,
            compressors=None,
            attributes=meaning,
        )
    missing = missing_chunks(path)
    running = client.map(_write_chunk, missing, path=path, seed=seed, widened=widened, pure=False)
    for done in as_completed(running):
        done.result()
    return path, len(missing)


def missing_chunks(path: Path) -> Sequence[int]:
    """Numbers of the chunks that are not there in full."""
    rows, (n, _) = zarr.open_array(str(path), mode="r").chunks[0], _shape(path)
    return [k for k in range(-(-n // rows)) if _size(path, k) != rows * _ROW_BYTES]


def _shape(path: Path) -> tuple[int, ...]:
    return tuple(zarr.open_array(str(path), mode="r").shape)


def _size(path: Path, chunk: int) -> int:
    file = path / "c" / str(chunk) / "0"
    return file.stat().st_size if file.exists() else 0


def _write_chunk(chunk: int, path: Path, seed: int, widened: float | None) -> None:
    array = zarr.open_array(str(path), mode="r+")
    rows = array.chunks[0]
    stop = min((chunk + 1) * rows, array.shape[0])
    mixture, stream = truth(seed, widened or 1.0), chunk + (0 if widened is None else _SECOND)
    array[chunk * rows : stop] = sample_frames(mixture, rows, (seed, stream))[: stop - chunk * rows]
