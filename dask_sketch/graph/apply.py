"""Apply the methods of models to samples of any kind: lazy results, one task for each chunk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.graph.chunks import fields_of
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.reduction import Reduction
from dask_sketch.models.mixture import information_criterion
from dask_sketch.sources.bag import blocks_of_partition
from dask_sketch.sources.named_columns import with_named_columns
from dask_sketch.sources.open import open_samples, require_options
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_unmasked, weighted_sum
from dask_sketch.validation.device import from_device, on_host

# methods that are a mean over all rows, and the method that gives the values of single rows
_MEANS = {"score": "logpdf", "inertia": "squared_distances"}
_WIDE = ("predict_proba", "distances", "transform")  # n_components values for each row
_CRITERIA = ("bic", "aic")  # criteria from the sum of logpdf over all rows
_FILLED = "impute"  # n_features values for each row
METHODS = ("logpdf", "predict", "squared_distances", _FILLED, *_WIDE, *_MEANS, *_CRITERIA)


def apply(model: Any, method: str, x: Any, weights: Any = None, **options: Any) -> Any:
    """Apply a method of a model to samples of any kind, such as a path or a Dask array.

    ``model.predict(x)`` and the other methods call this function for lazy input; it also takes the
    options of :func:`open_samples`.

    Parameters
    ----------
    model
        Model with ``n_features`` and ``n_components``, such as :class:`GaussianMixture`.
    method
        Name of a method: ``"score"`` or ``"inertia"`` (one mean over all rows), ``"bic"`` or
        ``"aic"`` (one number, without weights of rows), ``"predict_proba"``, ``"distances"`` or
        ``"transform"`` (n_components values for each row), ``"impute"`` (n_features values for each
        row), or ``"logpdf"``, ``"predict"`` or ``"squared_distances"`` (one value for each row).
    x
        Samples, shape (n_samples, n_features), in any form that :func:`open_samples` takes.
    weights
        Non-negative weight of each sample, for the means; an array-like or a name, see
        :func:`open_samples`.
    options
        Further keyword arguments of :func:`open_samples`. Where a table has other columns as well,
        ``columns`` are those that the model knows by name.

    Returns
    -------
    result
        Dask array with the axes of the samples, labelled if the samples are labelled; a bag for a
        bag; for a mean, a lazy number. Input in memory gives the computed result.

    Raises
    ------
    InputError
        If the model has no such method, or another number of features than the input.

    Examples
    --------
    >>> from dask_sketch import GaussianMixture
    >>> mixture = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[1.0], [1.0]])
    >>> apply(mixture, "predict", da.ones((4, 1), chunks=(2, 1))).compute()
    array([1, 1, 1, 1])
    >>> apply(mixture, "predict", [[-2.0], [2.0]])
    array([0, 1])
    """
    require_options(apply, options)
    known = ", ".join(name for name in METHODS if callable(getattr(model, name, None)))
    if not known:
        raise InputError(
            f"model of type {type(model).__name__}: give a model, such as a GaussianMixture.",
            parameter="model",
        )
    if method not in METHODS or not callable(getattr(model, method, None)):
        raise InputError(
            f"method={method!r}: {type(model).__name__} has no such method; choose {known}."
        )
    categories = getattr(model, "categories", None)
    options.setdefault("categories", categories)
    options = with_named_columns(x, model.feature_names, options)
    samples = open_samples(x, weights=weights, **options)
    samples = samples.named_like(model.feature_names, "the model")
    samples.require_features(model.n_features, "the model", model.feature_names)
    samples.require_categories(categories, "the model")
    result = _lazy_result(model, method, samples)
    return result if samples.lazy else result.compute(scheduler="threads")


def count_missing(model: Any, x: Any, **options: Any) -> LazyResult:
    """Count rows with missing values, which a mixture scores by the values that they have.

    Parameters
    ----------
    model
        Mixture, for the names of its features.
    x, options
        Samples, and further keyword arguments, as for :func:`apply`.

    Returns
    -------
    counts
        Lazy numbers of all rows, of rows with missing values, and of rows without any value.

    Examples
    --------
    >>> from dask_sketch import GaussianMixture
    >>> mixture = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    >>> rows = da.array([[0.0, 1.0], [0.0, np.nan], [np.nan, np.nan]])
    >>> count_missing(mixture, rows).compute()
    (3, 2, 1)
    """
    options.setdefault("categories", getattr(model, "categories", None))
    options = with_named_columns(x, model.feature_names, options)
    samples = open_samples(x, **options).named_like(model.feature_names, "the model")
    return LazyResult(samples, Reduction("missing", _count_of_chunk, _add_counts, _counts))


def _count_of_chunk(rows: Any, weights: Any, label: str) -> tuple[int, int, int]:
    missing = np.isnan(
        np.asarray(from_device(rows), dtype=np.float64).reshape(-1, np.shape(rows)[-1])
    )
    return len(missing), int(missing.any(axis=1).sum()), int(missing.all(axis=1).sum())


def _add_counts(parts: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    rows, incomplete, empty = (sum(numbers) for numbers in zip(*parts, strict=True))
    return rows, incomplete, empty


def _counts(counts: tuple[int, int, int] | None) -> tuple[int, int, int]:
    return counts or (0, 0, 0)


def _lazy_result(model: Any, method: str, samples: Samples) -> Any:
    if method in _MEANS:
        return _mean(model, _MEANS[method], samples, _ratio)
    if method in _CRITERIA:
        if samples.as_dict()["weighted"]:
            raise InputError(
                f"weights have no effect on {method}, which counts rows: leave them out.",
                parameter="weights",
            )
        finish = partial(_criterion, method=method, n_parameters=model.n_parameters)
        return _mean(model, "logpdf", samples, finish)
    wide = method in (*_WIDE, _FILLED)
    return apply_per_row(
        model,
        method,
        samples,
        width=(model.n_features if method == _FILLED else model.n_components) if wide else None,
        dim="feature" if method == _FILLED else "component",
        dtype=np.intp if method == "predict" else np.float64,
    )


def apply_per_row(
    model: Any,
    method: str,
    samples: Samples,
    *,
    width: int | None = None,
    dim: str = "component",
    dtype: Any = np.float64,
) -> Any:
    """Apply a method that returns values for each row.

    Parameters
    ----------
    model
        Object with the method, or a Dask Delayed of it.
    method
        Name of the method, called with rows of shape (n_samples, n_features).
    samples
        Samples.
    width
        Number of values for each row; None for one number.
    dim
        Name of the last axis of labelled results with several values.
    dtype
        Type of the values.

    Returns
    -------
    values
        Dask array with the axes of the samples, labelled if the samples are labelled; a bag for a
        bag.
    """
    if not isinstance(samples.blocks, da.Array):
        # with the samples as an argument, Dask would compute all of the bag in them
        return samples.blocks.map_partitions(
            _rows_of_bag,
            model,
            method,
            fields=fields_of(samples),
            label=samples.label,
        )
    blocks = samples.plain_blocks
    if blocks.numblocks[-1] > 1:
        blocks = blocks.rechunk({blocks.ndim - 1: -1})
    wide, dtype = width is not None, np.dtype(dtype)
    values = da.map_blocks(
        _rows_of_block,
        blocks,
        model=model,
        method=method,
        weight_column=samples.weight_column,
        drop_axis=() if wide else blocks.ndim - 1,
        chunks=(*blocks.chunks[:-1], (width,)) if wide else blocks.chunks[:-1],
        dtype=dtype,
        meta=np.empty((0,) * (blocks.ndim - (not wide)), dtype=dtype),
        token=method,
    )
    if samples.dims is None:
        return values
    import xarray as xr

    dims = (*samples.dims, dim) if wide else samples.dims
    return xr.DataArray(values, dims=dims, coords=samples.coords)


def _rows_of_block(block: Any, *, model: Any, method: str, weight_column: bool) -> Any:
    rows = from_device(block[..., :-1] if weight_column else block)
    flat = getattr(model, method)(rows.reshape(-1, rows.shape[-1]))
    return flat.reshape(*rows.shape[:-1], *flat.shape[1:])


def _rows_of_bag(items: Any, model: Any, method: str, *, fields: Any, label: str) -> list[Any]:
    out: list[Any] = []
    for block in blocks_of_partition(items, None, None, fields, label):
        out.extend(getattr(model, method)(from_device(block.rows)))
    return out


def sum_over_rows(
    model: Any, method: str, samples: Samples, finish: Callable[[Any], Any] | None = None
) -> LazyResult:
    """Sum a method that returns one number for each row over all samples.

    Parameters
    ----------
    model
        Object with the method.
    method
        Name of the method, called with rows of shape (n_samples, n_features).
    samples
        Samples, with weights or without.
    finish
        Function of the weighted sum and the sum of the weights, or of None where there are no
        samples; by default the weighted sum is returned.

    Returns
    -------
    result
        Lazy result.

    Raises
    ------
    InputError
        If weights are negative or not finite; raised when the result is computed.
    """
    chunk = partial(_sum_of_chunk, model=model, method=method)
    return LazyResult(samples, Reduction("score", chunk, _add, finish or _total))


def _mean(model: Any, method: str, samples: Samples, finish: Callable[[Any], Any]) -> da.Array:
    lazy = sum_over_rows(model, method, samples, finish)
    # the result is a Dask array, for further computations
    return da.from_delayed(
        lazy.to_delayed(), shape=(), dtype=np.dtype(np.float64), meta=np.empty(())
    )


def _sum_of_chunk(
    rows: Any, weights: Any, label: str, model: Any, method: str
) -> tuple[float, float]:
    require_unmasked(rows, "rows", f"the values of {label}")
    values = on_host(rows).reshape(-1, rows.shape[-1])
    if not len(values):
        return 0.0, 0.0
    flat = None if weights is None else on_host(weights).reshape(-1)
    return weighted_sum(getattr(model, method)(values), flat, label)


def _add(parts: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(total for total, _ in parts), sum(weight for _, weight in parts)


def _total(sums: tuple[float, float] | None) -> float:
    return 0.0 if sums is None else sums[0]


def _ratio(sums: tuple[float, float] | None) -> Any:
    total, weight = (0.0, 0.0) if sums is None else sums
    if not weight > 0:
        raise InputError("x has no samples of positive weight to score: give at least one.")
    return np.asarray(total / weight)


def _criterion(sums: tuple[float, float] | None, method: str, n_parameters: int) -> Any:
    n_samples = 0.0 if sums is None else sums[1]
    total = n_samples * float(_ratio(sums))
    return np.asarray(information_criterion(method, total, n_samples, n_parameters))
