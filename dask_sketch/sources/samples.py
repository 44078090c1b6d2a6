"""What every input becomes: lazy blocks of rows, their weights, and what is known of their size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from dask_sketch.display.html import card, fields_table
from dask_sketch.display.text import describe_bytes
from dask_sketch.errors import InputError
from dask_sketch.sources.group_labels import Groups, Labelled, aligned_groups
from dask_sketch.validation.arrays import require_unmasked
from dask_sketch.validation.device import on_device
from dask_sketch.validation.tables import require_names

if TYPE_CHECKING:
    import dask.bag as db

    from dask_sketch.sources.origin import StoredChunks, StoredFiles

Cut = tuple[da.Array, "da.Array | None", "da.Array | None"]


@dataclass(frozen=True, repr=False)
class Samples:
    """Lazy samples behind one face.

    Attributes
    ----------
    blocks
        Dask array of shape (..., n_features) whose leading axes are all samples, in chunks of any
        (also unknown) length; or a Dask bag of two-dimensional blocks or of records.
    weights
        Dask array of the leading shape, one axis of length 1 added; or a bag; or none.
    label
        Name of the source for messages.
    n_features
        Number of features; ``None`` for a bag, which cannot tell before it runs.
    feature_names
        Names of the features, where the source has them.
    weight_column
        Whether the last column of ``blocks`` is the weight.
    groups
        The label of the group of each row, or none.
    bytes_read, largest_chunk
        Bytes that one pass reads, and that the largest chunk takes in memory; ``None`` if unknown.
    stored_chunks
        Pieces that a pass decodes: chunks of a Zarr array, those within its shards; ``None`` if
        unknown.
    copies
        Times the largest chunk that a task holds while it reads: the chunk, and what it is decoded
        from.
    lazy
        False for input that was in memory when it came.
    dims
        Names of the leading axes, for labelled input.
    coords
        Labels along those axes, by name, for labelled input.
    record_fields
        Names of the fields that are features, for a bag of dictionaries.
    weight_field
        Name of the field that is the weight, for a bag of dictionaries.
    cut
        For sources that can: ``blocks``, ``weights`` and labels of a range of chunks alone, built
        without the others.
    origin
        What each chunk reads of which files, for sources that have files; see
        ``dask_sketch.jobs.ledger.partitions.partitions_of``.
    """

    blocks: da.Array | db.Bag
    label: str
    n_features: int | None
    weights: da.Array | db.Bag | None = None
    feature_names: tuple[str, ...] | None = None
    weight_column: bool = False
    groups: Groups | None = None
    bytes_read: int | None = None
    largest_chunk: int | None = None
    stored_chunks: int | None = None
    copies: int = 2
    lazy: bool = True
    dims: tuple[str, ...] | None = None
    coords: Mapping[Hashable, Any] | None = None
    record_fields: tuple[str, ...] | None = None
    weight_field: str | None = None
    cut: Callable[[range], Cut] | None = None
    origin: StoredChunks | StoredFiles | None = None

    @property
    def is_bag(self) -> bool:
        """Whether the blocks are a bag."""
        return not isinstance(self.blocks, da.Array)

    @property
    def plain_blocks(self) -> da.Array:
        """The Dask array of rows, without the labels that its chunks may have beside them."""
        assert isinstance(self.blocks, da.Array)
        if self.groups is None or not self.groups.in_blocks:
            return self.blocks
        return da.map_blocks(
            _rows_of_labelled,
            self.blocks,
            dtype=self.blocks.dtype,
            meta=np.empty((0,) * self.blocks.ndim, dtype=self.blocks.dtype),
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values; float64 for a bag, which cannot tell before it runs."""
        return np.dtype(self.blocks.dtype if isinstance(self.blocks, da.Array) else np.float64)

    @property
    def n_chunks(self) -> int:
        """Number of tasks that read."""
        if isinstance(self.blocks, da.Array):
            return int(np.prod(self.blocks.numblocks[:-1]))
        return int(self.blocks.npartitions)

    @property
    def n_samples(self) -> int | None:
        """Number of rows, ``None`` where only a pass over the data could tell."""
        if not isinstance(self.blocks, da.Array):
            return None
        size = np.prod([float(n) for n in self.blocks.shape[:-1]])
        return None if np.isnan(size) else int(size)

    @property
    def chunk_rows(self) -> list[float]:
        """Rows of each chunk, nan where only reading it tells."""
        if not isinstance(self.blocks, da.Array):
            return [float("nan")] * self.n_chunks
        rows = np.ones(1)
        for sizes in self.blocks.chunks[:-1]:
            rows = np.multiply.outer(rows, np.asarray(sizes, dtype=float)).ravel()
        return [float(n) for n in rows]

    def __repr__(self) -> str:
        return f"<Samples: {self.label}, {self._summary()}>"

    def _summary(self) -> str:
        rows = "rows" if self.n_samples is None else f"{self.n_samples:,} rows"
        return f"{rows} of {'unknown' if self.n_features is None else self.n_features} features"

    def _repr_html_(self) -> str:
        weighted = self.weights is not None or self.weight_column or self.weight_field is not None
        fields = {
            "source": self.label,
            "tasks that read": f"{self.n_chunks:,}",
            "type": "decided by each block" if self.is_bag else str(self.dtype),
            "bytes read": describe_bytes(self.bytes_read),
            "largest chunk": describe_bytes(self.largest_chunk),
            "weights": "yes" if weighted else "no",
        }
        if self.dims is not None:
            fields["dimensions"] = ", ".join(map(str, self.dims))
        more = {}
        if self.feature_names:
            more["features"] = fields_table(
                {str(k): name for k, name in enumerate(self.feature_names)}
            )
        return card("Samples", fields, summary=self._summary(), more=more)

    def require_features(
        self, n_features: int, owner: str, names: tuple[str, ...] | None = None
    ) -> None:
        """Raise unless the rows have ``n_features`` as ``owner`` does, of its ``names`` if any."""
        if self.n_features is not None and self.n_features != n_features:
            raise InputError(
                f"{self.label} has {self.n_features} features; {owner} has n_features={n_features}."
            )
        require_names(self.feature_names, self.label, names, owner)


def _rows_of_labelled(block: Labelled) -> np.ndarray[Any, Any]:
    return block.rows


def chunk_label(label: str, block_id: tuple[int, ...]) -> str:
    """Name of one chunk for messages.

    Examples
    --------
    >>> chunk_label("frames.zarr", (17,))
    'chunk 17 of frames.zarr'
    """
    number = block_id[0] if len(block_id) == 1 else block_id
    return f"chunk {number} of {label}"


def array_samples(
    blocks: da.Array, label: str, weights: Any = None, groups: Any = None, **known: Any
) -> Samples:
    """Samples from a Dask array of shape (..., n_features); checks shapes and types.

    Parameters
    ----------
    blocks
        The array.
    label
        Name for messages.
    weights
        Array-like of the leading shape, or none.
    groups
        Labels of that shape, array-like or as :class:`dask_sketch.sources.group_labels.Groups`; or none.
    known
        Further fields of :class:`Samples`.

    Raises
    ------
    InputError
        If there are no features, the values are not real numbers, or the weights or labels do not
        fit.
    """
    if blocks.ndim < 2:
        raise InputError(
            f"{label} has shape {blocks.shape}; samples must be rows of features. For a single "
            "feature, use x[:, None]."
        )
    if blocks.dtype.kind not in "fiub":
        raise InputError(
            f"{label} holds values of type {blocks.dtype}, which are not real numbers. Select "
            "numeric columns, or convert them."
        )
    n_features = blocks.shape[-1]
    if np.isnan(n_features) or n_features < 1:
        raise InputError(f"{label} has shape {blocks.shape}: the number of features must be known.")
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
    """Weights as a Dask array in the chunks of ``blocks``, with a last axis of length 1."""
    if isinstance(weights, str):
        raise InputError(
            f"weights={weights!r} is a name, but {label} has no names of columns: give one weight "
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
            raise InputError(f"weights of {label} are of type {values.dtype}, not real numbers.")
        if any(np.isnan(n) for n in leading):
            raise InputError(
                f"weights is in memory, but {label} has chunks of unknown length, so its rows "
                "cannot be matched. Give weights as a Dask array or as the name of a column."
            )
        if values.shape != leading:
            raise InputError(
                f"weights has shape {values.shape}, {label} has {leading} samples; give one weight "
                "for each row."
            )
        return da.from_array(values[..., None], chunks=(*chunks, 1), inline_array=True, name=False)
    if given.dtype.kind not in "fiub":
        raise InputError(f"weights of {label} are of type {given.dtype}, not real numbers.")
    known = not np.isnan([*map(float, given.shape), *map(float, leading)]).any()
    if given.ndim != len(leading) or (known and given.shape != leading):
        raise InputError(
            f"weights has shape {given.shape}, {label} has {leading} samples; give one weight for "
            "each row."
        )
    if known:
        given = given.rechunk(chunks)  # of one column: cheap, and only where chunks differ
    elif given.numblocks != blocks.numblocks[:-1]:
        raise InputError(
            f"weights has {given.numblocks} chunks, {label} has {blocks.numblocks[:-1]}; with "
            "chunks of unknown length they must correspond one to one."
        )
    # blockwise, where an index by None is not: reading the weights fuses with reading the rows
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
