"""Second moments of any input in one pass."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from dask_sketch import config
from dask_sketch.display.text import counted, describe_bytes
from dask_sketch.errors import InputError
from dask_sketch.graph.design import pilot_samples
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.memory import FAN_IN
from dask_sketch.graph.plan import require_chunks_fit
from dask_sketch.graph.reduction import Reduction
from dask_sketch.sketching.arguments import require_nan_policy
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.second_moments import MomentGrid, SecondMoments, partial_moments
from dask_sketch.sources.open import open_samples, require_options
from dask_sketch.sources.samples import Samples, target_bytes
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.warn import warn_user

MAX_FEATURES = 5000  # whose second moments take 200 MB
_PILOT_ROWS, _PILOT_VALUES = 512, 2**21
_LARGE = 2**22  # bytes of second moments that are combined four at a time


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

    They are exact integers, which can be added, subtracted and stored, and are the same for every
    chunking, order of the samples and number of workers. :class:`SketchPCA` computes and decodes
    them, and takes them in place of samples.

    Parameters
    ----------
    x
        Samples, shape (n_samples, n_features), in any form that :func:`open_samples` takes.
    weights
        Non-negative weight of each sample; an array-like or a name, see :func:`open_samples`.
    n_columns
        Number of columns of a random test matrix, whose products with the second moments are
        summed: ``n_features * n_columns`` numbers in place of ``n_features**2 / 2``, and about
        eight columns for each component (Tropp et al. 2017). By default all second moments, of up
        to 5,000 features.
    like
        Second moments, or their grid, to which these will be added. By default the grid of center
        and units is found from a few hundred rows of a few chunks, which are read before.
    seed
        Seed of these rows and of the test matrix, ``>= 0``.
    nan_policy
        Treatment of rows with NaN or infinite values: ``"raise"`` stops and names the row,
        ``"omit"`` leaves such rows out and counts them.
    split_every
        Maximum number of partial results that one task combines, ``>= 2``; the setting
        ``sketch.split-every`` by default, and 4 where they are larger than 4 MiB.
    options
        Keyword arguments of :func:`open_samples`.

    Returns
    -------
    moments
        :class:`SecondMoments`. For lazy input a Dask collection,
        :class:`dask_sketch.graph.LazyResult`, whose ``.compute()`` gives them.

    Raises
    ------
    InputError
        If the input cannot be opened, has other features than ``like``, or more than 5,000 without
        ``n_columns``.

    Warns
    -----
    UserWarning
        If chunks are far smaller than the second moments that each of them makes.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(1000, 3))
    >>> moments = second_moments(x[:600])
    >>> moments += second_moments(x[600:], like=moments)
    >>> bool(np.allclose(moments.covariance, np.cov(x.T)))
    True
    """
    require_options("second_moments", options)
    require_nan_policy(nan_policy, without="for second moments: pass 'omit'.")
    require_integer("seed", seed, 0)
    if options.get("groups") is not None:
        raise InputError(
            "groups: there is one result for all samples; leave it out, or select the rows of a "
            "group."
        )
    samples = open_samples(x, weights=weights, **options)
    grid = _grid(samples, n_columns, like, seed, nan_policy)
    samples.require_features(grid.n_features, "the grid", grid.feature_names)
    if "chunk_size" not in options and not isinstance(x, Samples):
        samples = in_larger_chunks(samples, grid.nbytes, x, weights=weights, **options)
    _warn_of_small_chunks(samples, grid)
    setting = config.get("split-every")
    fan_in = min(setting, FAN_IN) if grid.nbytes > _LARGE else setting
    lazy = LazyResult(
        samples,
        Reduction(
            "second-moments",
            partial(_moments_of_chunk, grid=grid, nan_policy=nan_policy),
            merge,
            partial(_require_samples, label=samples.label),
            require_fit=partial(require_chunks_fit, part_bytes=grid.nbytes),
        ),
        fan_in if split_every is None else split_every,
    )
    return lazy if samples.lazy else lazy.compute(scheduler="threads")


def _grid(
    samples: Samples, n_columns: int | None, like: Any, seed: int, nan_policy: str
) -> MomentGrid:
    if like is not None:
        found = like.grid if isinstance(like, SecondMoments) else like
        if not isinstance(found, MomentGrid):
            raise InputError(f"like of type {type(like).__name__}: give second moments.")
        if n_columns not in (None, found.n_columns):
            raise InputError(
                f"n_columns={n_columns}: like= has n_columns={found.n_columns}; leave it out."
            )
        return found
    known = samples.n_features
    if known is not None:
        _require_columns(known, n_columns)
    n_rows = _PILOT_ROWS if known is None else min(_PILOT_ROWS, max(_PILOT_VALUES // known, 32))
    policy = "omit" if nan_policy == "omit" else "raise"
    rows = pilot_samples(samples, n_rows, seed, nan_policy=policy)
    _require_columns(rows.shape[1], n_columns)
    return MomentGrid.of_rows(rows, n_columns, seed, samples.feature_names)


def _require_columns(n_features: int, n_columns: int | None) -> None:
    if n_columns is None and n_features > MAX_FEATURES:
        raise InputError(
            f"n_columns=None: all second moments of {n_features:,} features take "
            f"{describe_bytes(8 * n_features**2)}. Give n_columns, eight for each component that "
            "you need.",
            parameter="n_columns",
        )


def in_larger_chunks(samples: Samples, n_bytes: int, x: Any, **options: Any) -> Samples:
    """Open samples again in chunks of twice the size of their moments, where that is larger.

    Parameters
    ----------
    samples
        Samples of ``x``. Those of a lazy collection are returned as they are.
    n_bytes
        Size of the moments.
    x, options
        Arguments of :func:`open_samples`.
    """
    wanted, known = 2 * n_bytes, samples.largest_chunk
    divided = not samples.lazy or isinstance(x, (str, os.PathLike))
    if not divided or samples.n_chunks == 1 or known is None or known >= wanted:
        return samples
    wanted = max(wanted, target_bytes(None)) if samples.lazy else wanted
    return open_samples(x, chunk_size=wanted, **options)


def _warn_of_small_chunks(samples: Samples, grid: MomentGrid) -> None:
    """Warn if most of the time would be spent on the results of chunks, not on their rows."""
    known = samples.largest_chunk
    if known is None or grid.nbytes <= _LARGE or samples.n_chunks <= 2 * FAN_IN:
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


def _require_samples(found: SecondMoments | None, label: str) -> SecondMoments:
    if found is None or not found.total_weight > 0:
        count, omitted = (0, 0) if found is None else (found.count, found.omitted)
        raise InputError(
            f"{label} gave no samples: it has {count:,} rows of weight zero, and {omitted:,} with "
            "NaN or infinite values."
        )
    return found
