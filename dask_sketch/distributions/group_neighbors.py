"""Nearest neighbours among many groups of samples, by their discrepancies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from dask_sketch.diagnostics.mmd import feature_scales, group_vectors
from dask_sketch.errors import InputError
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.missing import refuse_missing
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.threads import Threads, default_n_threads, one_blas_thread

Array = NDArray[np.float64]
_NUMBERS = 2**24  # products, and numbers of vectors, in memory at once, for each thread
_MAX_ROWS = 256  # groups whose products are computed at once
_WIDTH = 64  # products of which the largest one is compared first
_SPARE = 8  # candidates beside the neighbours, which rounding may have put behind them
_NEVER = np.float32(-1e30)  # product of no candidate


def nearest_groups(
    groups: SketchGroup | LazyResult,
    other: SketchGroup | LazyResult | None = None,
    *,
    n_neighbors: int = 5,
) -> xr.Dataset:
    """Find the groups whose distributions are nearest to the distribution of each group.

    Groups are compared by the unbiased squared discrepancy of :func:`dask_sketch.mmd`, so that
    small groups do not seem to be far away. All pairs are compared, in blocks: the memory grows
    with the number of groups, and not with its square. Sketch vectors are rounded to single
    precision, with relative errors of about 1e-7 in their distances from the mean of all groups.

    Parameters
    ----------
    groups
        Sketches of groups, or the lazy result of :func:`dask_sketch.sketch` with groups.
    other
        Sketches of the groups to search, with the same feature map. By default ``groups``, without
        the group itself.
    n_neighbors
        Number of neighbours, ``>= 1``.

    Returns
    -------
    neighbors
        Dataset with the variables ``neighbor``, labels of the neighbours, nearest first, and
        ``squared_mmd``, their unbiased squared discrepancies, which may be negative. Both have the
        dimensions ``groups.dim`` and ``rank``.

    Raises
    ------
    InputError
        If there are too few groups for ``n_neighbors``, a group has fewer than two samples, or rows
        have missing values.
    MergeError
        If the feature maps differ.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> rng, day = np.random.default_rng(0), np.arange(8000) % 8
    >>> x = rng.normal(size=(8000, 2)) + (day % 4)[:, None]  # day 4 is like day 0
    >>> days = partial_sketch(x, FeatureMap(2, 50, scale=1.0), groups=day, dim="day")
    >>> found = nearest_groups(days, n_neighbors=1)
    >>> found["neighbor"][:, 0].to_numpy()
    array([4, 5, 6, 7, 0, 1, 2, 3])
    """
    first = _checked("groups", groups)
    second = first if other is None else _checked("other", other)
    first.feature_map.require_same(second.feature_map)
    n_neighbors = require_integer("n_neighbors", n_neighbors, 1)
    max_neighbors = len(second) - (other is None)
    if n_neighbors > max_neighbors:
        raise InputError(
            f"n_neighbors={n_neighbors}: there are {max_neighbors:,} groups to search. Give a "
            "smaller number.",
            parameter="n_neighbors",
        )
    with one_blas_thread():
        chosen, squared = _search(first, second, n_neighbors, other is None)
    rank = np.arange(1, n_neighbors + 1)
    dims = (first.dim, "rank")
    return xr.Dataset(
        {"neighbor": (dims, second.labels[chosen]), "squared_mmd": (dims, squared)},
        {first.dim: first.labels, "rank": rank},
    )


def _checked(name: str, groups: SketchGroup | LazyResult) -> SketchGroup:
    """Sketches of groups whose noise can be estimated."""
    group = groups.compute() if isinstance(groups, LazyResult) else groups
    if not isinstance(group, SketchGroup):
        raise InputError(
            f"{name} of type {type(groups).__name__}: give sketches of groups, of "
            "sketch(x, feature_map, groups=labels).",
            parameter=name,
        )
    refuse_missing(name, group)
    few = ~(group.effective_count > 1.0 + 1e-9)
    if few.any():
        raise InputError(
            f"{name}: {group.dim}={group.labels[int(np.argmax(few))]!s} has fewer than two "
            "samples, so that its noise is unknown. Leave such groups out: "
            "groups.select(groups.effective_count > 1.5).",
            parameter=name,
        )
    return group


def _search(
    first: SketchGroup, second: SketchGroup, n_neighbors: int, same: bool
) -> tuple[NDArray[np.intp], Array]:
    """Positions of the neighbours of each group, and their squared discrepancies."""
    n_columns = 2 * first.feature_map.n_frequencies
    center = _mean_vector(second, n_columns)
    searched, noise = _searched(second, center)
    step = max(min(_MAX_ROWS, _NUMBERS // len(searched)), 1)
    starts = range(0, len(first), step)
    n_candidates = min(n_neighbors + _SPARE, len(second) - same)

    def prepare() -> Callable[[int], tuple[NDArray[np.intp], Array]]:
        scores = np.empty((step, len(searched)), dtype=np.float32)

        def nearest(start: int) -> tuple[NDArray[np.intp], Array]:
            block = slice(start, min(start + step, len(first)))
            vectors = group_vectors(first, block)
            own_noise = _noise(first, vectors, block)
            vectors -= center
            extended = np.ones((len(vectors), n_columns + 1), dtype=np.float32)
            extended[:, :-1] = vectors
            products = np.matmul(extended, searched.T, out=scores[: len(vectors)])
            if same:
                products[np.arange(len(vectors)), np.arange(block.start, block.stop)] = _NEVER
            candidates = _largest(products, n_candidates)
            squared = _squared(extended[:, :-1], searched, candidates)
            squared -= own_noise[:, None] + noise[candidates]
            order = np.lexsort((candidates, squared), axis=1)[:, :n_neighbors]
            rows = np.arange(len(vectors))[:, None]
            return candidates[rows, order], squared[rows, order]

        return nearest

    with Threads(default_n_threads()) as threads:
        parts = threads.each(prepare, starts)
    chosen, squared = (np.concatenate(blocks) for blocks in zip(*parts, strict=True))
    return chosen, squared


def _blocks(group: SketchGroup, n_columns: int) -> list[slice]:
    step = max(_NUMBERS // (4 * n_columns), 1)
    return [slice(k, min(k + step, len(group))) for k in range(0, len(group), step)]


def _mean_vector(group: SketchGroup, n_columns: int) -> Array:
    """Mean of the vectors: relative to it, products have little rounding."""
    total = np.zeros(n_columns)
    for block in _blocks(group, n_columns):
        total += group_vectors(group, block).sum(axis=0)
    return np.asarray(total / len(group))


def _searched(group: SketchGroup, center: Array) -> tuple[NDArray[np.float32], Array]:
    """Vectors whose products with those of other groups are largest for the nearest ones.

    The last column is minus the squared length, without noise. There are rows at the end that are
    never the nearest ones, up to a multiple of ``_WIDTH``. Beside them, the noise of each group.
    """
    n_rows = -(-len(group) // _WIDTH) * _WIDTH
    out = np.zeros((n_rows, len(center) + 1), dtype=np.float32)
    out[len(group) :, -1] = _NEVER
    noise = np.empty(len(group))
    for block in _blocks(group, len(center)):
        vectors = group_vectors(group, block)
        noise[block] = _noise(group, vectors, block)
        vectors -= center
        out[block, :-1] = 2.0 * vectors
        out[block, -1] = noise[block] - np.einsum("ij,ij->i", vectors, vectors)
    return out, noise


def _noise(group: SketchGroup, vectors: Array, block: slice) -> Array:
    """Expected squared distance of the vectors of some groups from those of their distributions."""
    unit = feature_scales(group.feature_map)
    spread = float(unit @ unit) - np.einsum("ij,ij->i", vectors, vectors)
    return np.asarray(np.maximum(spread, 0.0) / (group.effective_count[block] - 1.0))


def _largest(scores: NDArray[np.float32], number: int) -> NDArray[np.intp]:
    """Positions of the largest numbers of each row, shape (n_rows, number).

    Parameters
    ----------
    scores
        Numbers, shape (n_rows, n_columns), with a multiple of ``_WIDTH`` columns.
    number
        Number of positions.
    """
    n_rows, n_columns = scores.shape
    out = np.empty((n_rows, number), dtype=np.intp)
    n_parts = n_columns // _WIDTH
    if n_parts > number:
        # so many parts have a number that is at least as large as the threshold
        largest = scores.reshape(n_rows, _WIDTH, n_parts).max(axis=1)
        thresholds = np.partition(largest, n_parts - number, axis=1)[:, n_parts - number]
    else:
        thresholds = np.full(n_rows, -np.inf, dtype=np.float32)
    for k, (row, threshold) in enumerate(zip(scores, thresholds, strict=True)):
        above = np.flatnonzero(row >= threshold)
        positions = np.argpartition(row[above], len(above) - number)[len(above) - number :]
        out[k] = above[positions]
    return out


def _squared(
    vectors: NDArray[np.float32], searched: NDArray[np.float32], candidates: NDArray[np.intp]
) -> Array:
    """Squared distances of vectors from their candidates, shape of ``candidates``."""
    out = np.empty(candidates.shape)
    step = max(_NUMBERS // (8 * candidates.shape[1] * vectors.shape[1]), 1)
    for start in range(0, len(vectors), step):
        block = slice(start, start + step)
        gaps = searched[candidates[block], :-1].astype(np.float64)
        gaps -= 2.0 * vectors[block, None].astype(np.float64)
        out[block] = 0.25 * np.einsum("ijk,ijk->ij", gaps, gaps)
    return out
