"""Arrays of NumPy, CuPy and Dask as samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.sources.group_labels import Groups, aligned_groups
from dask_sketch.sources.samples import Samples, row_step
from dask_sketch.validation.arrays import require_unmasked
from dask_sketch.validation.device import on_device


def as_array(x: Any) -> np.ndarray[Any, Any]:
    """Convert nested sequences to an array; raise InputError for masked values."""
    require_unmasked(x, "samples", "the values of the array")
    try:
        return np.asarray(x)
    except ValueError as error:
        raise InputError(
            f"x of type {type(x).__name__} is not an array ({error}): give rows of equal length.",
            parameter="x",
        ) from error
    except (TypeError, RuntimeError) as error:  # tensors on a GPU, with gradients or of bfloat16
        raise InputError(
            f"x of type {type(x).__name__} is not a NumPy array ({error}): convert it to one, of "
            "float32 or float64.",
            parameter="x",
        ) from error


def memory_samples(
    x: np.ndarray[Any, Any],
    label: str,
    weights: Any = None,
    groups: Any = None,
    chunk_size: str | int | None = None,
    **known: Any,
) -> Samples:
    """Make samples of an array in the memory of the host or of a GPU.

    Parameters
    ----------
    x
        Array of shape (n, n_features).
    label
        Name of the samples for messages.
    weights, groups
        Weights and labels of shape (n,), or None.
    chunk_size
        Target size of one task in bytes.
    known
        Further attributes of :class:`Samples`.

    Raises
    ------
    InputError
        If ``x`` has no such shape or no real numbers.
    """
    if x.dtype.kind in "US":
        raise InputError(
            f"x has dtype={x.dtype}, not real numbers. If these are paths, give one path: a glob "
            "or a folder for many Parquet files.",
            parameter="x",
        )
    if x.dtype.names is not None:
        raise InputError(
            f"x has the named fields {', '.join(x.dtype.names):.80}: give a table, such as "
            "pandas.DataFrame(x).",
            parameter="x",
        )
    if x.ndim != 2:
        remedy = "x[:, None] for a single feature" if x.ndim == 1 else "reshape it to two axes"
        raise InputError(f"x has shape={x.shape}: give rows of features; {remedy}.", parameter="x")
    if x.dtype.kind not in "fiub":
        raise InputError(f"x has dtype={x.dtype}: give real numbers.", parameter="x")
    if x.shape[1] == 0:
        raise InputError(f"x has shape={x.shape}: give at least one feature.", parameter="x")
    step = row_step(len(x), 1, x.itemsize * x.shape[1], chunk_size, grouped=groups is not None)
    rows = min(step, max(len(x), 1))
    blocks = da.from_array(x, chunks=(rows, x.shape[1]), inline_array=True, name=False)
    return array_samples(blocks, label, weights, groups, lazy=False, **known)


@dataclass(frozen=True)
class NumpyFile:
    """Array in a ``.npy`` file. Tasks carry its path: a memory map would be pickled as a whole.

    Attributes
    ----------
    name
        Path of the file.
    shape, dtype
        Shape and type of the array.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def open(cls, path: str) -> NumpyFile:
        """Read the shape and the type; the path becomes absolute."""
        name = str(Path(path).absolute())
        mapped = np.load(name, mmap_mode="r", allow_pickle=False)
        return cls(name, mapped.shape, mapped.dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        return np.array(np.load(self.name, mmap_mode="r", allow_pickle=False)[index])


def stored_array_samples(
    x: Any, *, weights: Any = None, groups: Any = None, chunk_size: str | int | None = None
) -> Samples:
    """Make samples of an array in a file, such as one of HDF5: each task reads some of its rows.

    Parameters
    ----------
    x
        Object with ``shape`` and ``dtype`` that returns the rows of a slice, ``x[start:stop]``.
    weights, groups
        Weights and labels of shape (n,), or None.
    chunk_size
        Target size of one task in bytes.

    Raises
    ------
    InputError
        If ``x`` has no shape (n, n_features), or no real numbers.
    """
    kind = "file" if isinstance(x, NumpyFile) else type(x).__name__
    label, dtype = f"the {kind} {getattr(x, 'name', '')}".rstrip(), np.dtype(x.dtype)
    if len(x.shape) != 2:
        raise InputError(f"x has shape={x.shape}: give rows of features.", parameter="x")
    stored = getattr(x, "chunks", None) or (1,)
    row_bytes = max(dtype.itemsize * x.shape[1], 1)
    step = row_step(x.shape[0], int(stored[0]), row_bytes, chunk_size, grouped=groups is not None)
    chunks = (max(min(step, x.shape[0]), 1), x.shape[1])
    # HDF5 and NetCDF files are read by one thread at a time
    lock = not isinstance(x, NumpyFile)
    blocks = da.from_array(x, chunks=chunks, lock=lock, asarray=True)
    return array_samples(blocks, label, weights, groups)


def array_samples(
    blocks: da.Array, label: str, weights: Any = None, groups: Any = None, **known: Any
) -> Samples:
    """Make samples of a Dask array, and validate its shape and type.

    Parameters
    ----------
    blocks
        Dask array of shape (..., n_features).
    label
        Name of the samples for messages.
    weights
        Weights of the leading shape, array-like; or None.
    groups
        Labels of the leading shape, array-like; :class:`Groups`; or None.
    known
        Further attributes of :class:`Samples`.

    Raises
    ------
    InputError
        If there are no features, the values are not real numbers, or the weights or labels do not
        fit.
    """
    if blocks.ndim < 2:
        raise InputError(
            f"{label} has shape={blocks.shape}: give rows of features; x[:, None] for a single "
            "feature."
        )
    if blocks.dtype.kind not in "fiub":
        raise InputError(
            f"{label} has dtype={blocks.dtype}, not real numbers. Select numeric columns, or "
            "convert them."
        )
    n_features = blocks.shape[-1]
    if np.isnan(n_features) or n_features < 1:
        raise InputError(
            f"{label} has shape={blocks.shape}: give an array with a known number of features."
        )
    largest = float(np.prod([max(sizes, default=0) for sizes in blocks.chunks[:-1]]))
    known.setdefault("bytes_read", None if np.isnan(blocks.nbytes) else int(blocks.nbytes))
    known.setdefault(
        "largest_chunk",
        None if np.isnan(largest) else int(largest * n_features * blocks.dtype.itemsize),
    )
    samples = Samples(
        blocks=blocks,
        label=label,
        n_features=int(n_features) - int(known.get("weight_column", False)),
        weights=None if weights is None else aligned_weights(weights, blocks, label),
        **known,
    )
    if groups is None or isinstance(groups, Groups):
        return replace(samples, groups=groups)
    return replace(samples, groups=aligned_groups(groups, blocks, label))


def aligned_weights(weights: Any, blocks: da.Array, label: str) -> da.Array:
    """Return weights as a Dask array in the chunks of ``blocks``, with a last axis of length 1."""
    if isinstance(weights, str):
        raise InputError(
            f"weights={weights!r} is a name, but {label} has no names of columns. Give one weight "
            "for each row."
        )
    given = weights
    if hasattr(given, "dask") and hasattr(given, "to_dask_array"):
        given = given.to_dask_array()
    leading, chunks = blocks.shape[:-1], blocks.chunks[:-1]
    if not isinstance(given, da.Array):
        require_unmasked(given, "weights", f"weights of {label}")
        values = given if on_device(given) else np.asarray(given)
        if values.dtype.kind not in "fiub":
            raise InputError(f"weights of {label} have dtype={values.dtype}: give real numbers.")
        if any(np.isnan(n) for n in leading):
            raise InputError(
                f"weights is in memory, but {label} has chunks of unknown length, so rows cannot "
                "be matched. Give weights as a Dask array or as the name of a column.",
                parameter="weights",
            )
        if values.shape != leading:
            raise InputError(
                f"weights has shape={values.shape}: give one weight for each of the {leading} "
                f"samples of {label}.",
                parameter="weights",
            )
        return da.from_array(values[..., None], chunks=(*chunks, 1), inline_array=True, name=False)
    if given.dtype.kind not in "fiub":
        raise InputError(f"weights of {label} have dtype={given.dtype}: give real numbers.")
    known = not np.isnan([*map(float, given.shape), *map(float, leading)]).any()
    if given.ndim != len(leading) or (known and given.shape != leading):
        raise InputError(
            f"weights has shape={given.shape}: give one weight for each of the {leading} samples "
            f"of {label}.",
            parameter="weights",
        )
    if known:
        given = given.rechunk(chunks)  # one column: cheap, and only if chunks differ
    elif given.numblocks != blocks.numblocks[:-1]:
        raise InputError(
            f"weights has {given.numblocks} chunks, {label} has {blocks.numblocks[:-1]}: give "
            "weights in the same chunks, because these have unknown lengths.",
            parameter="weights",
        )
    # unlike an index by None, this is blockwise: reading weights fuses with reading rows
    return da.map_blocks(
        _as_column,
        given,
        new_axis=given.ndim,
        chunks=(*given.chunks, (1,)),
        dtype=given.dtype,
        meta=np.empty((0,) * (given.ndim + 1), dtype=given.dtype),
    )


def _as_column(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values[..., None]
