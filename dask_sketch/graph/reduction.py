"""Declare computations over all samples: functions of a chunk and of partial results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.features.kernels.llvm_vectors import SOURCE_MARK
from dask_sketch.sources.bag import Block, same_columns

if TYPE_CHECKING:
    from dask_sketch.features.feature_map import FeatureMap

ChunkFunction = Callable[..., Any]  # function of (rows, weights, label) and perhaps groups
Combine = Callable[[list[Any]], Any]


def same(value: Any) -> Any:
    """Return the argument itself."""
    return value


def no_samples(label: str, count: int, omitted: int) -> InputError:
    """Error for a pass without samples of positive weight.

    Parameters
    ----------
    label
        Name of the input.
    count, omitted
        Number of rows of weight zero, and number of omitted rows.
    """
    return InputError(
        f"{label} gave no samples: it has {count:,} rows of weight zero, and {omitted:,} with NaN "
        "or infinite values. Check the input and its weights."
    )


@dataclass(frozen=True)
class Reduction:
    """Computation over all samples: applied to each chunk, combined in a tree, finished once.

    One declaration serves all passes over the data: :class:`dask_sketch.graph.lazy.LazyResult`
    combines the chunks into one result, and :func:`dask_sketch.graph.partitions.stream` gives a
    result for each chunk. All functions must be picklable: functions of a module, or
    ``functools.partial`` of them with their constants.

    Parameters
    ----------
    name
        Name of the tasks, on the dashboard and in task statistics.
    chunk
        Function of one block of rows, called on a worker as ``chunk(rows, weights, label)``, and
        with the labels of the rows as ``groups`` if ``uses_groups``. It returns a partial result.
        If its constants are large, the function is sent to each worker once.
    combine
        Function of a list of one or more partial results that returns one partial result.
    finalize
        Function from the combined partial result, or ``None`` if there was no block of rows, to the
        result. It is called once, by the client.
    prepare
        Function that is called on every worker before data is read, for instance to compile.
    uses_groups
        Whether ``chunk`` takes the labels of groups.
    uses_numbers
        Whether ``chunk`` takes the number of the chunk, a tuple, as ``number``, and the number of
        its first row as ``row``. If each chunk has its own result, the number may be another
        identity of the chunk.
    uses_columns
        Whether ``chunk`` takes the names of the columns of tables in a bag as ``columns``.
    require_fit
        Function that raises if the computation cannot fit in memory, called before anything else as
        ``require_fit(samples, split_every, client)``.
    require_room
        Function of a list of partial results that raises if a worker has no room to combine them.
    feature_map
        Feature map of a computation that sketches; such a pass is reported to the scheduler.
    source
        Checksum of the kernels of the client.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_sketch.graph.lazy import LazyResult
    >>> from dask_sketch.sources.open import open_samples
    >>> def count(rows, weights, label):
    ...     return len(rows)
    >>> LazyResult(open_samples(np.zeros((1000, 2))), Reduction("count", count, sum)).compute()
    1000
    """

    name: str
    chunk: ChunkFunction
    combine: Combine
    finalize: Callable[[Any], Any] = same
    prepare: Callable[[], None] | None = None
    uses_groups: bool = False
    uses_numbers: bool = False
    uses_columns: bool = False
    require_fit: Callable[[Any, int, Any], None] | None = None
    require_room: Callable[[list[Any]], None] | None = None
    feature_map: FeatureMap | None = None
    source: int = SOURCE_MARK

    def prepare_worker(self) -> None:
        """Prepare this process, if it has the kernels of the client.

        Raises
        ------
        ArtifactError
            If the kernels are from another version, whose sums could have other bits.
        """
        if self.source != SOURCE_MARK:
            raise ArtifactError(
                f"this worker has the kernels {SOURCE_MARK:08x} of dask-sketch, the client "
                f"{self.source:08x}: install the same version on all workers."
            )
        if self.prepare is not None:
            self.prepare()

    @property
    def combine_on_worker(self) -> Combine:
        """``combine``, after ``require_room``."""
        if self.require_room is None:
            return self.combine
        return partial(_combine_in_room, combine=self.combine, require_room=self.require_room)


def _combine_in_room(
    parts: list[Any], combine: Combine, require_room: Callable[[list[Any]], None]
) -> Any:
    require_room(parts)
    return combine(parts)


def apply_to_block(chunk: ChunkFunction, block: Block, label: str) -> Any:
    """Partial result of one block of rows."""
    options: dict[str, Any] = {} if block.groups is None else {"groups": block.groups}
    if block.number is not None:
        options |= {"number": block.number, "row": block.row}
    if block.columns is not None:
        options["columns"] = block.columns
    return chunk(block.rows, block.weights, label, **options)


def reduce_blocks(
    blocks: Iterator[tuple[Block, str]], chunk: ChunkFunction, combine: Combine
) -> Any:
    """Partial result of the blocks of one chunk; ``None`` if there is no block.

    Parameters
    ----------
    blocks
        Blocks of rows, each with its name for messages. One block is in memory at a time.
    chunk, combine
        Functions of a :class:`Reduction`.
    """
    total: Any = None
    for block, label in blocks:
        part = apply_to_block(chunk, block, label)
        total = part if total is None else combine([total, part])
    return total


class _OfColumns(NamedTuple):
    """Partial result, with the names of the columns that it was computed of, if these are known."""

    part: Any
    columns: tuple[Any, ...] | None


def of_same_columns(reduction: Reduction) -> Reduction:
    """Reduction that raises where tables of one input have different columns.

    A computation without names of features could not tell the columns of different tables apart.

    Parameters
    ----------
    reduction
        Computation over all samples.
    """
    return replace(
        reduction,
        chunk=partial(_chunk_of_columns, chunk=reduction.chunk),
        combine=partial(_combine_same_columns, combine=reduction.combine_on_worker),
        finalize=partial(_finish_columns, finalize=reduction.finalize),
        require_room=None,  # a part of combine here
        uses_columns=True,
    )


def _chunk_of_columns(
    rows: Any,
    weights: Any,
    label: str,
    *,
    chunk: ChunkFunction,
    columns: tuple[Any, ...] | None = None,
    **others: Any,
) -> _OfColumns:
    return _OfColumns(chunk(rows, weights, label, **others), columns)


def _combine_same_columns(parts: list[_OfColumns], combine: Combine) -> _OfColumns:
    together = partial(same_columns, label="a table or record")
    columns = reduce(together, [part.columns for part in parts])
    return _OfColumns(combine([part.part for part in parts]), columns)


def _finish_columns(result: _OfColumns | None, finalize: Callable[[Any], Any]) -> Any:
    return finalize(None if result is None else result.part)
