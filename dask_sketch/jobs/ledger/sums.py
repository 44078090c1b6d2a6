"""Sums of partitions of either kind: sketches of a feature map, or second moments of a grid."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError, LedgerError, MergeError
from dask_sketch.features.feature_map import FeatureMap, moment_units
from dask_sketch.jobs.ledger import moment_arrays, partition_rows, sketch_arrays
from dask_sketch.sketching.arguments import require_feature_map
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.partial import partial_sketch
from dask_sketch.sketching.partial_moments import partial_moments
from dask_sketch.sketching.row_sample import RowSample, RowSampling, sample_bytes
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.sketching.sketch import Sketch

Conventions: TypeAlias = FeatureMap | MomentGrid
Sums: TypeAlias = Sketch | SecondMoments  # both are added and subtracted exactly

_N_ROWS = 64  # rows that the digest of the arithmetic sums
_GOLDEN = 0.6180339887498949


def require_conventions(conventions: object) -> None:
    """Validate a feature map, or a grid of second moments that a ledger can store.

    Parameters
    ----------
    conventions
        Argument ``feature_map`` of :func:`create_ledger`.

    Raises
    ------
    InputError
        If the argument is neither, or the second moments are too large.
    """
    if not isinstance(conventions, MomentGrid):
        require_feature_map(conventions)
    elif conventions.nbytes > moment_arrays.MAX_BYTES:
        raise InputError(
            f"feature_map of {conventions.n_features:,} features with "
            f"n_columns={conventions.n_columns}: second moments of {conventions.nbytes:,} bytes "
            f"are over the {moment_arrays.MAX_BYTES:,} that a ledger can store. Give fewer columns."
        )


def require_sketches(conventions: Conventions, action: str, label: str) -> FeatureMap:
    """Return the feature map of a ledger of sketches; raise for a grid of second moments.

    Parameters
    ----------
    conventions
        Feature map or grid of the ledger.
    action
        Name of the function or command that needs sketches, for messages.
    label
        Path or URL of the ledger.

    Raises
    ------
    LedgerError
        If the ledger holds second moments.
    """
    if isinstance(conventions, MomentGrid):
        raise LedgerError(
            f"{action} needs sketches of a feature map, and {label} holds second moments. Decode "
            "principal components of ledger.total(keys), or keep sketches in another ledger."
        )
    return conventions


def shapes(
    n: int, conventions: Conventions, *, with_missing: bool = False
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types of the arrays of the sums of ``n`` partitions."""
    if isinstance(conventions, MomentGrid):
        return moment_arrays.shapes(n, conventions)
    return sketch_arrays.shapes(n, conventions, with_missing=with_missing)


def row_bytes(
    conventions: Conventions, sampling: RowSampling | None = None, *, with_missing: bool = False
) -> int:
    """Largest number of bytes of the sums of one partition in memory.

    Parameters
    ----------
    conventions
        Feature map of the sketch, or grid of the second moments.
    sampling
        Choice of the random rows of a sketch; None for none.
    with_missing
        Whether a sketch has counters of missing values.
    """
    size = 0 if sampling is None else sample_bytes(sampling.size, conventions.n_features)
    arrays = shapes(1, conventions, with_missing=with_missing).values()
    return 8 * sum(math.prod(shape) for shape, _ in arrays) + size


def stack(
    sums: Sequence[Sums], conventions: Conventions, *, with_rows: bool = False
) -> dict[str, NDArray[Any]]:
    """Stack the sums of partitions as rows of arrays; :func:`unstack` restores all bits.

    Parameters
    ----------
    sums, conventions
        Sketches and their feature map, or second moments and their grid.
    with_rows
        Whether there are arrays of the random rows of sketches too.

    Raises
    ------
    LedgerError
        If a sketch is private, because a ledger adds and subtracts exact sums.
    """
    if isinstance(conventions, MomentGrid):
        return moment_arrays.stack(cast("Sequence[SecondMoments]", sums), conventions)
    sketches = cast("Sequence[Sketch]", sums)  # sums of a feature map are sketches
    return sketch_arrays.stack(sketches, conventions, with_rows=with_rows)


def unstack(
    arrays: Mapping[str, NDArray[Any]], row: int, conventions: Conventions, label: str
) -> Sums:
    """Restore the sums of one row; raise LedgerError if no samples can have them."""
    if isinstance(conventions, MomentGrid):
        return moment_arrays.unstack(arrays, row, conventions, label)
    return sketch_arrays.unstack(arrays, row, conventions, label)


def layout_attributes(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Attributes of a group that describe its arrays of sums and of random rows."""
    if sketch_arrays.BOUNDS not in arrays:
        return {"layout": moment_arrays.LAYOUT}
    return sketch_arrays.layout_attributes(arrays) | partition_rows.layout_attributes(arrays)


def empty(conventions: Conventions) -> Sums:
    """Sums of no samples."""
    if isinstance(conventions, MomentGrid):
        return SecondMoments.empty(conventions)
    return Sketch.empty(conventions)


def arithmetic_digest(conventions: Conventions) -> str:
    """Digest of the sums of fixed rows, equal on machines and versions with the same arithmetic.

    Parameters
    ----------
    conventions
        Feature map of numeric columns, or grid.

    Examples
    --------
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> arithmetic_digest(feature_map) == arithmetic_digest(feature_map)
    True
    """
    d = conventions.n_features
    # multiples of the golden ratio modulo one are even; random numbers may depend on the version
    points = np.modf(np.arange(1.0, _N_ROWS * d + 1) * _GOLDEN)[0].reshape(_N_ROWS, d)
    weights = 1.0 + np.arange(_N_ROWS) % 3
    if isinstance(conventions, MomentGrid):
        x = conventions.center + conventions.unit * (4.0 * points - 2.0)
        policy = "available" if conventions.pairwise else "raise"
        words = [partial_moments(x, conventions, weights, nan_policy=policy).sums]
    else:
        # powers of two: standard deviations may differ in the last bit between processors
        x = conventions.center + moment_units(conventions) * (4.0 * points - 2.0)
        partial = partial_sketch(x, conventions, weights)
        words = [partial.moment_quanta, partial.first_quanta, partial.second_quanta]
    total = hashlib.sha256()
    for each in words:
        for word in (each.high, each.low):
            total.update(np.ascontiguousarray(word, dtype="<i8").tobytes())
    return total.hexdigest()


def without_rows(sums: Sums) -> Sums:
    """Sums without the random rows of a sketch."""
    return sums.without_sample() if isinstance(sums, Sketch) else sums


def with_rows(sums: Sums, rows: RowSample) -> Sketch:
    """Sketch with random rows; second moments have none."""
    assert isinstance(sums, Sketch)  # only sketches are sampled
    return replace(sums, sample=rows)


def same_sums(first: Sums, second: Sums) -> bool:
    """Whether all sums and counts are the same; bounds of sketches are not compared."""
    if isinstance(first, SecondMoments):
        return first == second
    return isinstance(second, Sketch) and first.same_sums(second)


def n_bytes(sums: Sums) -> int:
    """Approximate bytes of sums in memory."""
    if isinstance(sums, SecondMoments):
        return int(sums.sums.nbytes)
    rows = 0 if sums.sample is None else sums.sample.nbytes
    return 2 * int(sums.moment_quanta.high.nbytes) + int(rows)


def require_addable(sums: Sums, key: str, conventions: Conventions) -> None:
    """Raise for sums of a partition that cannot be added to the sums of a ledger.

    Parameters
    ----------
    sums
        Sketch or second moments of the partition.
    key
        Key of the partition, for messages.
    conventions
        Feature map or grid of the ledger.

    Raises
    ------
    LedgerError
        If the sums are of another type, feature map or grid, or not exact.
    """
    kind, noun = (
        (SecondMoments, "second moments")
        if isinstance(conventions, MomentGrid)
        else (Sketch, "a sketch")
    )
    if not isinstance(sums, kind):
        raise LedgerError(
            f"the sums of {key!r} are of type {type(sums).__name__}: give {noun}, by "
            "sketch(x, ledger.feature_map)."
        )
    theirs: Any = sums.feature_map
    try:
        conventions.require_same(theirs)
    except MergeError as error:
        raise LedgerError(f"the sums of {key!r}: {error}") from error
    if isinstance(sums, Sketch):
        sketch_arrays.require_addable(sums, key)
