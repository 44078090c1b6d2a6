"""Second moments of any input in one pass."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.display.text import counted, describe_bytes
from dask_sketch.errors import ChunkError, InputError
from dask_sketch.graph.compute import active_client, compute_together
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.memory import FAN_IN, LARGE, moment_fan_in
from dask_sketch.graph.plan import require_chunks_fit
from dask_sketch.graph.reduction import Reduction, no_samples
from dask_sketch.sketching.arguments import checked_chunk, require_nan_policy
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.moment_grid import MAX_FEATURES, MomentGrid, moment_bytes
from dask_sketch.sketching.partial_moments import partial_moments
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.sources.open import (
    block_in_memory,
    blocks_together,
    is_stream,
    open_samples,
    require_options,
    streams_beside,
)
from dask_sketch.sources.samples import Samples, target_bytes
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.device import on_host
from dask_sketch.validation.labels import MISSING, codes_of, union
from dask_sketch.validation.warn import warn_user

if TYPE_CHECKING:
    from distributed import Client

AVAILABLE = "available"  # value of nan_policy
_NAME = "second-moments"  # name of the tasks
# rows, and values, of one chunk that are read for the grid, at most
_PILOT_ROWS, _PILOT_VALUES = 512, 2**21
_MIN_PILOT = 32  # rows that suffice for the center and the units of a grid
_MAX_PILOT = 8  # chunks that are read for the rows of a grid, at most
# largest number of chunks of which the first is not read again: batches of more have all chunks
_FEW_CHUNKS = 256


def second_moments(
    x: Any,
    weights: Any = None,
    *,
    n_columns: int | None = None,
    like: SecondMoments | MomentGrid | None = None,
    seed: int = 0,
    nan_policy: str = "raise",
    split_every: int | None = None,
    **options: Any,
) -> Any:
    """Compute the second moments of the data in one pass, for principal components.

    Second moments are sums of exact integers. They can be added, subtracted and stored, and are the
    same for every chunking, order of the samples and number of workers. :class:`SketchPCA` computes
    and decodes them, and takes them in place of samples.

    Parameters
    ----------
    x
        Samples, shape (n_samples, n_features), in any form that :func:`open_samples` takes; or a
        stream of blocks of any such form in memory, such as a generator. A stream is read at once,
        and only one block is in memory.
    weights
        Non-negative weight of each sample; an array-like or a name, see :func:`open_samples`. For a
        stream a name, or a stream of the weights of each block.
    n_columns
        Number of columns of a random test matrix, whose products with the second moments are
        summed: ``n_features * n_columns`` numbers in place of ``n_features**2 / 2``, and about
        eight columns for each component (Tropp et al. 2017). By default, all second moments of up
        to 5,000 features are summed.
    like
        Second moments to which the new ones will be added, or a grid, such as the result of
        ``design(x, task="pca")``. By default the grid of center and units is computed from rows of
        the first chunk, which is read at once.
    seed
        Seed of the test matrix, ``>= 0``.
    nan_policy
        Treatment of rows with NaN or infinite values: ``"raise"`` stops and names the row,
        ``"omit"`` leaves such rows out and counts them, ``"available"`` leaves out such values, so
        that the covariance of two features comes from the rows that have both. This is valid for
        values that are missing at random, and takes four times as long.
    split_every
        Maximum number of partial results that one task combines, ``>= 2``; the setting
        ``sketch.split-every`` by default, and 4 where they are larger than 4 MiB.
    options
        Keyword arguments of :func:`open_samples`. With ``groups``, the result has the second
        moments of each group, which are in memory together.

    Returns
    -------
    moments
        :class:`SecondMoments`, or with groups a dictionary of second moments by label. For lazy
        input a Dask collection, :class:`dask_sketch.graph.LazyResult`, whose ``.compute()`` returns
        these.

    Raises
    ------
    InputError
        If the input cannot be opened, has other features than ``like``, or more than 5,000 without
        ``n_columns``.

    Warns
    -----
    UserWarning
        If chunks are far smaller than the second moments of each chunk.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(1000, 3))
    >>> moments = second_moments(x[:600])
    >>> moments += second_moments(x[600:], like=moments)
    >>> bool(np.allclose(moments.covariance, np.cov(x.T)))
    True
    """
    require_options(second_moments, options)
    require_nan_policy(nan_policy)
    require_integer("seed", seed, 0)
    if n_columns is not None:
        require_integer("n_columns", n_columns, 1)
    if is_stream(x):
        if options.get("groups") is not None:
            raise InputError("groups: x is a stream; leave them out, or give one lazy input.")
        return _of_stream(x, weights, n_columns, like, seed, nan_policy, split_every, options)
    samples = open_samples(x, weights=weights, **options)
    known = samples.n_features
    if n_columns is not None and nan_policy == AVAILABLE:
        raise InputError(
            f"n_columns={n_columns}: nan_policy='available' needs all second moments; leave it "
            "out, or pass nan_policy='omit'."
        )
    if like is None and known is not None:
        _require_columns(known, n_columns)
        if "chunk_size" not in options and not isinstance(x, Samples):
            n_bytes = moment_bytes(known, n_columns, pairwise=nan_policy == AVAILABLE)
            samples = in_larger_chunks(samples, n_bytes, x, weights=weights, **options)
    if like is None:
        grid, first = _first_grid(samples, n_columns, seed, nan_policy)
    else:
        grid, first = _given_grid(like, n_columns, nan_policy), None
    samples.require_features(grid.n_features, "the grid", grid.feature_names)
    _warn_of_small_chunks(samples, grid)
    groups = samples.groups
    n_bytes = grid.nbytes * (1 if groups is None else groups.n_groups or 1)
    reduction = Reduction(
        _NAME,
        partial(_moments_of_chunk, grid=grid, nan_policy=nan_policy),
        merge,
        partial(_finished, label=samples.label, first=first),
        require_fit=partial(require_chunks_fit, part_bytes=n_bytes),
    )
    if groups is not None:
        reduction = replace(
            reduction,
            chunk=partial(_groups_of_chunk, grid=grid, nan_policy=nan_policy),
            combine=_merged_groups,
            finalize=partial(_finished_groups, label=samples.label, names=groups.names),
            uses_groups=True,
        )
    lazy = LazyResult(
        samples,
        reduction,
        moment_fan_in(n_bytes) if split_every is None else split_every,
        None if first is None else range(1, samples.n_chunks),
    )
    return lazy if samples.lazy else lazy.compute(scheduler="threads")


def partition_moments(grid: MomentGrid, nan_policy: str) -> Reduction:
    """Reduction of each chunk to its second moments, which are empty for a chunk without rows.

    Parameters
    ----------
    grid
        Conventions of the sums.
    nan_policy
        Argument of :func:`second_moments`.
    """
    return Reduction(
        _NAME,
        partial(_moments_of_chunk, grid=grid, nan_policy=nan_policy),
        merge,
        partial(_or_empty, grid=grid),
        require_fit=partial(_require_partition_fits, part_bytes=grid.nbytes),
    )


def _or_empty(moments: SecondMoments | None, grid: MomentGrid) -> SecondMoments:
    return SecondMoments.empty(grid) if moments is None else moments


def _require_partition_fits(
    samples: Samples, split_every: int, client: Client | None, *, part_bytes: int
) -> None:
    """Raise PlanError if a chunk does not fit; partitions are not merged in a tree."""
    require_chunks_fit(samples, 1, client, part_bytes=part_bytes)


def _of_stream(
    x: Iterable[Any],
    weights: Any,
    n_columns: int | None,
    like: Any,
    seed: int,
    nan_policy: str,
    split_every: int | None,
    options: dict[str, Any],
) -> SecondMoments:
    """Add the second moments of blocks, one after the other; the first block gives the grid."""
    streams = streams_beside({"weights": weights})
    total = None if like is None else SecondMoments.empty(_given_grid(like, n_columns, nan_policy))
    for number, (block, *values) in enumerate(blocks_together(x, streams)):
        samples = open_samples(block, weights=values[0] if values else weights, **options)
        samples = block_in_memory(samples, block, number)
        if samples.n_samples == 0:
            continue
        if total is None:
            total = second_moments(
                samples, n_columns=n_columns, seed=seed, nan_policy=nan_policy,
                split_every=split_every,
            )  # fmt: skip
            continue
        samples.require_features(total.n_features, "the grid", total.grid.feature_names)
        chunk = partial(_moments_of_chunk, grid=total.grid, nan_policy=nan_policy)
        lazy = LazyResult(samples, Reduction(_NAME, chunk, merge), split_every)
        total = merge([total, lazy.compute(scheduler="threads")])
    return _finished(total, "the stream", None)


def _given_grid(like: Any, n_columns: int | None, nan_policy: str) -> MomentGrid:
    grid = like.grid if isinstance(like, SecondMoments) else like
    if not isinstance(grid, MomentGrid):
        raise InputError(f"like of type {type(like).__name__}: give second moments.")
    if n_columns not in (None, grid.n_columns):
        raise InputError(
            f"n_columns={n_columns}: like= has n_columns={grid.n_columns}; leave it out."
        )
    if grid.pairwise != (nan_policy == AVAILABLE):
        raise InputError(
            f"nan_policy={nan_policy!r}: like= has been computed "
            f"{'with' if grid.pairwise else 'without'} {AVAILABLE!r}; use the same.",
            parameter="nan_policy",
        )
    return grid


def _first_grid(
    samples: Samples, n_columns: int | None, seed: int, nan_policy: str
) -> tuple[MomentGrid, SecondMoments | None]:
    """Grid of the first rows; also moments of the first chunk, if it need not be read again.

    Further chunks are read if the first chunks have few rows, or only equal rows.
    """
    names = samples.feature_names
    # the columns of all tables of a bag are compared in one pass
    keep = samples.groups is None and not samples.is_bag and 1 < samples.n_chunks <= _FEW_CHUNKS
    chunk = partial(
        _first_of_chunk, n_columns=n_columns, seed=seed, nan_policy=nan_policy, names=names,
        moments=keep,
    )  # fmt: skip
    client = active_client() if samples.lazy else None
    where = {} if samples.lazy else {"scheduler": "threads"}
    rows: list[Any] = []
    for number in range(min(samples.n_chunks, _MAX_PILOT)):
        lazy = LazyResult(
            samples, Reduction("pilot", chunk, _joined), chosen=range(number, number + 1)
        )
        (first,) = compute_together([lazy], client, progress=False, span="design", **where)
        if first is None:
            continue
        rows.append(first[0])
        if first[1] is not None and number == 0:
            return first[1].grid, first[1]
        together = np.concatenate(rows)
        if len(together) >= _MIN_PILOT and _varies(together):
            break
    together = np.concatenate(rows) if rows else np.empty((0, 0))
    if not len(together):
        raise InputError(
            f"{samples.label} has no usable rows in its first {len(rows)} chunks. Check for NaN "
            "rows, an empty store or weights of zero, or give like=, second moments of other rows."
        )
    _require_columns(together.shape[1], n_columns)
    pairwise = nan_policy == AVAILABLE
    return MomentGrid.of_rows(together, n_columns, seed, names, pairwise=pairwise), None


def _varies(rows: Any) -> bool:
    """Whether any feature has two different values."""
    finite = np.isfinite(rows)
    high = np.where(finite, rows, -np.inf).max(axis=0)
    return bool((high > np.where(finite, rows, np.inf).min(axis=0)).any())


def _first_of_chunk(
    rows: Any,
    weights: Any,
    label: str,
    n_columns: int | None,
    seed: int,
    nan_policy: str,
    names: tuple[str, ...] | None,
    moments: bool,
) -> tuple[Any, SecondMoments | None]:
    """A few rows of a chunk, and its moments if these rows suffice for a grid."""
    x, w = checked_chunk(rows, weights, rows.shape[-1], "the chunk", label)
    used = np.ones(len(x), bool) if w is None else on_host(w) > 0
    step = max(len(x) // min(_PILOT_ROWS, max(_PILOT_VALUES // x.shape[1], _MIN_PILOT)), 1)
    few = on_host(x[::step]).astype(np.float64)
    pairwise, finite = nan_policy == AVAILABLE, np.isfinite(few)
    few = few[used[::step] & (finite.any(axis=1) if pairwise else finite.all(axis=1))]
    if not moments or len(few) < _MIN_PILOT or not _varies(few):
        return few, None
    grid = MomentGrid.of_rows(few, n_columns, seed, names, pairwise=pairwise)
    return few, partial_moments(x, grid, w, nan_policy=nan_policy, label=label)


def _joined(parts: list[Any]) -> tuple[Any, SecondMoments | None]:
    """Join the rows of the blocks of a partition; their moments have different grids."""
    return parts[0] if len(parts) == 1 else (np.concatenate([rows for rows, _ in parts]), None)


def _require_columns(n_features: int, n_columns: int | None) -> None:
    if n_columns is None and n_features > MAX_FEATURES:
        raise InputError(
            f"n_columns=None: all second moments of {n_features:,} features take "
            f"{describe_bytes(8 * n_features**2)}. Give n_columns, eight for each component that "
            "you need.",
            parameter="n_columns",
        )


def in_larger_chunks(samples: Samples, n_bytes: int, x: Any, **options: Any) -> Samples:
    """Open samples again in chunks of twice the size of their moments, if these are larger.

    Parameters
    ----------
    samples
        Samples of ``x``. Samples of a lazy collection are returned as they are.
    n_bytes
        Size of the moments.
    x, options
        Arguments of :func:`open_samples`.
    """
    chunk_bytes, known = 2 * n_bytes, samples.largest_chunk
    divided = not samples.lazy or isinstance(x, (str, os.PathLike))
    if not divided or samples.n_chunks == 1 or known is None or known >= chunk_bytes:
        return samples
    chunk_bytes = max(chunk_bytes, target_bytes(None)) if samples.lazy else chunk_bytes
    return open_samples(x, chunk_size=chunk_bytes, **options)


def _warn_of_small_chunks(samples: Samples, grid: MomentGrid) -> None:
    """Warn if most of the time would be spent on the results of chunks, not on their rows."""
    known = samples.largest_chunk
    if known is None or grid.nbytes <= LARGE or samples.n_chunks <= 2 * FAN_IN:
        return
    if 16 * known < grid.nbytes:
        warn_user(
            f"{samples.label} has {counted(samples.n_chunks, 'chunk')} of at most "
            f"{describe_bytes(known)}, and each makes second moments of "
            f"{describe_bytes(grid.nbytes)}. Rechunk to {describe_bytes(grid.nbytes)} or more, or "
            "give a smaller n_columns."
        )


def _moments_of_chunk(
    rows: Any, weights: Any, label: str, grid: MomentGrid, nan_policy: str
) -> SecondMoments:
    return partial_moments(rows, grid, weights, nan_policy=nan_policy, label=label)


# Second moments of each group: sorted labels, and the moments of each.
_Grouped = tuple[Any, list[SecondMoments]]


def _groups_of_chunk(
    rows: Any, weights: Any, label: str, groups: Any, grid: MomentGrid, nan_policy: str
) -> _Grouped:
    x, w = checked_chunk(rows, weights, grid.n_features, "the grid", label)
    labels, codes = codes_of(groups, len(x), label)
    if (codes == MISSING).any() and nan_policy == "raise":
        row = int(np.argmax(codes == MISSING))
        raise ChunkError(
            f"{label}: row {row} of this chunk has no label (NaN, NaT or None). Give it one, or "
            "pass nan_policy='omit' to leave such rows out.",
            parameter="nan_policy",
        )
    of_groups = []
    for number in range(len(labels)):
        chosen = np.flatnonzero(codes == number)
        group_weights = None if w is None else w[chosen]
        name = f"{label}, group {labels[number]}"
        of_groups.append(
            partial_moments(x[chosen], grid, group_weights, nan_policy=nan_policy, label=name)
        )
    return labels, of_groups


def _merged_groups(parts: list[_Grouped]) -> _Grouped:
    labels, positions = union([part[0] for part in parts])
    together: list[list[SecondMoments]] = [[] for _ in labels]
    for (_, moments), position in zip(parts, positions, strict=True):
        for number, one in zip(position.tolist(), moments, strict=True):
            together[number].append(one)
    return labels, [merge(each) for each in together]


def _finished_groups(grouped: _Grouped | None, label: str, names: Any) -> dict[Any, SecondMoments]:
    """Second moments by label, as an object of Python if there is one."""
    if grouped is None or not len(grouped[0]):
        raise InputError(f"{label} gave no samples: it has no rows with a label. Check groups.")
    labels, moments = grouped
    labels = labels if names is None else names[labels]
    keys = labels if labels.dtype.kind in "Mm" else labels.tolist()
    return dict(zip(keys, moments, strict=True))


def _finished(
    moments: SecondMoments | None, label: str, first: SecondMoments | None
) -> SecondMoments:
    """Add the moments of the first chunk, and require samples."""
    if first is not None:
        moments = first if moments is None else merge([first, moments])
    if moments is None or not moments.total_weight > 0:
        count, omitted = (0, 0) if moments is None else (moments.count, moments.omitted)
        raise no_samples(label, count, omitted)
    return moments
