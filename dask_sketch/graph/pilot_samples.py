"""Choose pilot samples: a few random rows, from as few chunks as possible."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.graph.compute import active_client, compute_together
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.reduction import ChunkFunction, Reduction, of_same_columns, same
from dask_sketch.sources.bag import same_columns
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_unmasked, unit_rows
from dask_sketch.validation.device import device_array, on_device, on_host
from dask_sketch.validation.tables import feature_title

PILOT_CHUNKS = 8  # chunks read at a time, until there are enough rows
_MAX_DRAWS = 64  # draws of chunks at a time, at most, where many rows are in chunks of few rows
_IN_SMALL_CHUNKS = 0.05  # share of the rows that may be in chunks too small for their part
# The same where chunks differ, as in sorted data: 64 chunks, more of them if they are small, and
# fewer if they are large, by the bytes of all
_MANY_CHUNKS, _MAX_CHUNKS, _MIN_CHUNKS = 64, 512, 16
_SMALL_BYTES, _LARGE_BYTES = 2**27, 2**31
_COMPARED = 20  # rows of a chunk whose mean is compared with those of others
# smallest part of a variance between chunks, and multiple of its noise, where chunks differ
_BETWEEN, _CHANCE = 0.05, 5.0
_UNEVEN = 1.5  # multiple of its share from which a chunk has too few rows in the pilot


@dataclass(frozen=True)
class _Picked:
    """Pilot samples of one block, and the number of its rows or the sum of their weights."""

    rows: NDArray[np.float64]
    measure: float


def pilot_samples(
    samples: Samples,
    n_pilot: int,
    seed: int,
    *,
    nan_policy: str = "omit",
    normalize: bool = False,
    progress: bool = False,
) -> NDArray[np.float64]:
    """Choose random rows, from as few chunks as possible.

    Every row, or every unit of weight, has nearly the same chance. Chunks of about the same size
    are drawn with equal chances, others in proportion to their numbers of rows. If the numbers are
    not known, or with weights, chunks that have too few rows in the pilot are read once more. A row
    with a large weight may be drawn several times. If the means of chunks differ, as in sorted
    data, rows of 64 chunks are chosen, or of up to 512 chunks if they are small, or of as few as 16
    if they are large.

    Parameters
    ----------
    samples
        Samples to choose from.
    n_pilot
        Number of rows wanted.
    seed
        Seed of the choice of chunks and of rows.
    nan_policy
        Whether rows with NaN or infinite values are left out (``"omit"``), raise an error, or are
        taken with NaN in their place (``"available"``).
    normalize
        Whether rows are divided by their Euclidean lengths; rows of zeros are treated as rows with
        NaN.
    progress
        Whether to show a bar.

    Returns
    -------
    pilot
        Rows, shape (about n_pilot or fewer, n_features), finite unless values may be missing.

    Raises
    ------
    InputError
        If there are fewer than two usable rows.
    ChunkError
        If a row is refused by ``nan_policy``; the message names the chunk.
    """
    rng = np.random.default_rng(seed)
    pick = partial(
        _pick_rows, nan_policy=nan_policy, normalize=normalize, names=samples.feature_names
    )
    for n_chunks in (PILOT_CHUNKS, _many_chunks(samples)):
        picked = _read_chunks(samples, n_chunks, n_pilot, pick, rng, progress)
        if samples.n_chunks <= len(picked) or not _differ(picked):
            break
    usable = [each.rows for each in chain(*picked.values()) if len(each.rows)]
    pilot = np.concatenate(usable) if usable else np.empty((0, 0))
    if len(pilot) < 2:
        raise InputError(
            f"{samples.label} has {len(pilot)} usable rows; at least two are needed to design a "
            "feature map. Check for NaN rows, an empty store or weights of zero."
        )
    return pilot if len(pilot) <= 2 * n_pilot else rng.choice(pilot, n_pilot, replace=False)


def _read_chunks(
    samples: Samples,
    n_chunks: int,
    n_pilot: int,
    pick: Any,
    rng: np.random.Generator,
    progress: bool,
) -> dict[int, tuple[_Picked, ...]]:
    """Pick rows of about ``n_chunks`` chunks, and of more if these have too few rows."""
    sizes = np.asarray(samples.chunk_rows)
    known = bool(np.isfinite(sizes).all())
    uneven = known and len(sizes) > 1 and sizes.max() > _UNEVEN * sizes.mean()
    order = rng.permutation(samples.n_chunks)
    size = min(n_chunks, max(len(order), 1))
    if n_chunks > PILOT_CHUNKS:  # chunks that differ, perhaps by their position
        order = np.arange(len(order)) if uneven else _spread_out(order, size)
    n_draws = _number_of_draws(sizes, n_chunks, n_pilot) if uneven else size
    n_rows = -(-n_pilot // n_draws)
    picked: dict[int, tuple[_Picked, ...]] = {}
    inclusion: dict[int, float] = {}  # number of draws of a chunk, for each of its rows
    while len(order):
        if uneven:
            counts = _draw(sizes[order], max(size, n_draws), rng)
            draws = {int(number): int(n) for number, n in zip(order, counts, strict=True) if n}
            order = order[counts == 0]
        else:
            draws, order = {int(number): 1 for number in order[:size]}, order[size:]
        size *= 2  # small or empty chunks: a few rounds, not many
        picks = {number: partial(pick, n_rows=n_rows * n) for number, n in draws.items()}
        picked |= _read(samples, picks, rng, progress)
        inclusion |= {number: n / sizes[number] if uneven else 1.0 for number, n in draws.items()}
        if sum(len(each.rows) for each in chain(*picked.values())) >= 0.8 * n_pilot:
            break
    if samples.is_weighted or not known:
        return _balance(samples, picked, inclusion, n_pilot, pick, rng, progress)
    return picked


def _many_chunks(samples: Samples) -> int:
    """Number of chunks to read where they differ."""
    if not samples.largest_chunk:
        return _MANY_CHUNKS
    size = samples.largest_chunk
    if size * _MANY_CHUNKS < _SMALL_BYTES:
        return min(_SMALL_BYTES // size, _MAX_CHUNKS)
    return max(min(_LARGE_BYTES // size, _MANY_CHUNKS), _MIN_CHUNKS)


def _spread_out(order: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Order of chunks that begins with one of each of ``size`` parts of about the same length."""
    parts = order * size // len(order)
    first = np.unique(parts, return_index=True)[1]
    return np.concatenate([order[first], np.delete(order, first)])


def _differ(picked: dict[int, tuple[_Picked, ...]]) -> bool:
    """Whether means of a feature differ between chunks, as in sorted data, beyond chance."""
    chunks = [
        np.concatenate([each.rows for each in blocks]) for blocks in picked.values() if blocks
    ]
    chunks = [rows for rows in chunks if len(rows) >= _COMPARED]
    if len(chunks) < 2:
        return False
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # features without values in a chunk
        means = np.stack([np.nanmean(rows, axis=0) for rows in chunks])
        within = np.nanmean([np.nanvar(rows, axis=0, ddof=1) for rows in chunks], axis=0)
        between = np.nanvar(means, axis=0, ddof=1)
        noise = within * np.mean([1.0 / len(rows) for rows in chunks])
        part = (between - noise) / (between - noise + within)
        return bool(((part > _BETWEEN) & (between > _CHANCE * noise)).any())


def _number_of_draws(sizes: NDArray[np.float64], n_chunks: int, n_pilot: int) -> int:
    """Number of draws of chunks: as many as few chunks, which have enough rows, allow."""
    n_draws, parts = n_chunks, sizes / sizes.sum()
    while 16 * n_draws <= n_pilot:
        n_read = np.minimum(2 * n_draws * parts, 1.0).sum()  # expected number of chunks read
        in_small = parts[sizes < n_pilot / n_draws].sum()
        if n_read > 2 * n_chunks and (in_small <= _IN_SMALL_CHUNKS or n_draws >= _MAX_DRAWS):
            break
        n_draws *= 2
    return n_draws


def _draw(sizes: NDArray[Any], n_draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw in proportion to sizes, by systematic sampling: how often each of them is drawn."""
    ends = np.cumsum(sizes, dtype=np.float64)
    if not len(ends) or not ends[-1] > 0:
        return np.ones(len(sizes), dtype=np.int64)
    points = (rng.random() + np.arange(n_draws)) * (ends[-1] / n_draws)
    chosen = np.minimum(np.searchsorted(ends, points, side="right"), np.flatnonzero(sizes)[-1])
    return np.bincount(chosen, minlength=len(sizes))


def _read(
    samples: Samples, picks: dict[int, Any], rng: np.random.Generator, progress: bool
) -> dict[int, tuple[_Picked, ...]]:
    """Read some chunks, each with a function of its own that is given a seed."""
    seeds = [int(s) for s in rng.integers(2**63, size=len(picks))]
    lazy = [
        LazyResult(
            samples,
            # the columns of different chunks are compared below
            replace(of_same_columns(_pilot_of(partial(pick, seed=s))), finalize=same),
            chosen=range(number, number + 1),
        )
        for (number, pick), s in zip(picks.items(), seeds, strict=True)
    ]
    client = active_client() if samples.lazy else None
    where = {} if samples.lazy else {"scheduler": "threads"}
    results = compute_together(lazy, client, progress, "design", **where)
    read = {number: f for number, f in zip(picks, results, strict=True) if f is not None}
    columns = [picked.columns for picked in read.values()]
    reduce(partial(same_columns, label="a table or record"), columns, None)
    return {number: picked.part for number, picked in read.items()}


def _pilot_of(pick: ChunkFunction) -> Reduction:
    return Reduction("pilot", pick, _join)


def _join(parts: list[tuple[_Picked, ...]]) -> tuple[_Picked, ...]:
    return tuple(chain(*parts))


def _balance(
    samples: Samples,
    picked: dict[int, tuple[_Picked, ...]],
    inclusion: dict[int, float],
    n_pilot: int,
    pick: Any,
    rng: np.random.Generator,
    progress: bool,
) -> dict[int, tuple[_Picked, ...]]:
    """Read the chunks once more if rows of some blocks are too few for their weight."""
    blocks = [(number, each) for number, parts in picked.items() for each in parts]
    fractions = np.array([inclusion[number] * each.measure for number, each in blocks])
    rows = np.array([len(each.rows) for _, each in blocks], dtype=np.float64)
    if not rows.sum() or (fractions * rows.sum() <= _UNEVEN * fractions.sum() * rows).all():
        return picked
    density = min(n_pilot, rows.sum()) / fractions.sum()
    picks = {
        number: partial(pick, n_rows=None, density=density * inclusion[number]) for number in picked
    }
    return _read(samples, picks, rng, progress)


def _pick_rows(
    x: Any,
    weights: Any,
    label: str,
    n_rows: int | None,
    seed: int,
    nan_policy: str,
    normalize: bool,
    names: Sequence[str] | None,
    density: float = 0.0,
) -> tuple[_Picked, ...]:
    """Pick a number of rows, or a number for each row or unit of weight, the density."""
    require_unmasked(x, "samples", f"the values of {label}")
    require_unmasked(weights, "weights", f"weights of {label}")
    is_on_device = on_device(x)
    rows = (device_array(x) if is_on_device else np.asarray(x)).reshape(-1, x.shape[-1])
    rng = np.random.default_rng(seed)
    row_weights = None
    if weights is not None:
        row_weights = on_host(weights).astype(np.float64).reshape(-1)
        row_weights = np.maximum(np.nan_to_num(row_weights), 0.0)
        if len(row_weights) != len(rows):
            raise InputError(
                f"weights of {label} have length {len(row_weights)}: give one for each of the "
                f"{len(rows)} rows."
            )
    measure = float(len(rows) if row_weights is None else row_weights.sum())
    if n_rows is None:
        n_rows = int(density * measure + rng.random())
    elif row_weights is not None:
        n_rows = min(n_rows, int((row_weights > 0).sum()))
    if row_weights is None:
        picked = np.sort(rng.choice(len(rows), size=min(n_rows, len(rows)), replace=False))
    else:
        order = rng.permutation(len(rows))
        counts = _draw(row_weights[order], n_rows, rng) if measure > 0 else np.zeros(len(rows), int)
        picked = np.sort(np.repeat(order, counts))
    # in C order, since the rounding of sums over rows, and so the center, depends on the order
    values = on_host(rows[device_array(picked) if is_on_device else picked]).astype(
        np.float64, order="C"
    )
    out = unit_rows(values) if normalize else values
    if nan_policy == "available":
        out[~np.isfinite(out)] = np.nan
        return (_Picked(out[~np.isnan(out).all(axis=1)], measure),)
    finite = np.isfinite(out).all(axis=1)
    if nan_policy == "raise" and not finite.all():
        bad = int(np.argmin(finite))
        _refuse_row(values[bad], int(picked[bad]), label, names)
    return (_Picked(out[finite], measure),)


def _refuse_row(
    row: NDArray[np.float64], number: int, label: str, names: Sequence[str] | None
) -> NoReturn:
    """Raise an error that names the value for which a row is refused."""
    finite, problem = np.isfinite(row), "is 0 in all features, and has no direction"
    if not finite.all():
        feature = int(np.argmin(finite))
        problem = f"has {row[feature]} in {feature_title(feature, names)}"
    raise ChunkError(
        f"{label}: row {number} of this chunk {problem}. Clean the data, or pass "
        "nan_policy='omit' to leave such rows out.",
        parameter="nan_policy",
    )
