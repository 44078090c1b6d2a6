"""A model's methods over lazy samples: lazy results, one task for each chunk."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from dask_sketch import config
from dask_sketch.errors import InputError
from dask_sketch.graph.chunks import fields_of
from dask_sketch.graph.tree import reduce_samples
from dask_sketch.sources.open import open_samples
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_unmasked, weighted_sum

# methods that are a mean over all rows, and the method whose mean they are
_MEANS = {"score": "logpdf", "inertia": "squared_distances"}
_WIDE = ("predict_proba", "distances")  # of n_components values for each row


def map_rows(model: Any, method: str, x: Any, **options: Any) -> Any:
    """Apply a method of a model to every row of lazy input.

    Parameters
    ----------
    model
        An object with ``n_features`` and ``n_components``.
    method
        ``"score"`` or ``"inertia"`` (one mean over all rows), ``"predict_proba"`` or
        ``"distances"`` (n_components values for each row), or a method with one value for each row.
    x
        Lazy input of any kind.
    options
        Keyword arguments of :func:`open_samples`.

    Returns
    -------
    result
        Dask array, labelled like the input if that was; a bag for a bag; for a mean a lazy
        number.

    Raises
    ------
    InputError
        If the input has another number of features than the model.
    """
    samples = open_samples(x, **options)
    samples.require_features(model.n_features, "the model", model.feature_names)
    if method in _MEANS:
        return _mean(model, _MEANS[method], samples)
    if not isinstance(samples.blocks, da.Array):
        # not the samples themselves: Dask would compute all of the bag that is in them
        return samples.blocks.map_partitions(
            _rows_of_bag,
            model,
            method,
            fields=fields_of(samples),
            label=samples.label,
        )
    return _per_row(model, method, samples)


def _per_row(model: Any, method: str, samples: Samples) -> Any:
    blocks = samples.plain_blocks
    if blocks.numblocks[-1] > 1:
        blocks = blocks.rechunk({blocks.ndim - 1: -1})
    wide = method in _WIDE
    dtype = np.dtype(np.intp if method == "predict" else np.float64)
    values = da.map_blocks(
        _rows_of_block,
        blocks,
        model=model,
        method=method,
        weight_column=samples.weight_column,
        drop_axis=() if wide else blocks.ndim - 1,
        chunks=(*blocks.chunks[:-1], (model.n_components,)) if wide else blocks.chunks[:-1],
        dtype=dtype,
        meta=np.empty((0,) * (blocks.ndim - (not wide)), dtype=dtype),
        token=method,
    )
    if samples.dims is None:
        return values
    import xarray as xr

    dims = (*samples.dims, "component") if wide else samples.dims
    return xr.DataArray(values, dims=dims, coords=samples.coords)


def _rows_of_block(block: Any, *, model: Any, method: str, weight_column: bool) -> Any:
    rows = block[..., :-1] if weight_column else block
    flat = getattr(model, method)(rows.reshape(-1, rows.shape[-1]))
    return flat.reshape(*rows.shape[:-1], *flat.shape[1:])


def _rows_of_bag(items: Any, model: Any, method: str, *, fields: Any, label: str) -> list[Any]:
    from dask_sketch.sources.bag import blocks_of_partition

    out: list[Any] = []
    for block in blocks_of_partition(items, None, None, fields, label):
        out.extend(getattr(model, method)(block.rows))
    return out


def _mean(model: Any, method: str, samples: Samples) -> Any:
    sums = reduce_samples(
        samples,
        _sum_of_chunk,
        _add,
        split_every=config.get("split-every"),
        name="score",
        arguments={"model": model, "method": method},
    )
    if isinstance(sums, da.Array):
        return da.map_blocks(_ratio, sums, dtype=np.float64, meta=np.empty(()), token="score-mean")
    return sums.apply(_ratio)


def _sum_of_chunk(
    block: Any, weights: Any, label: str, model: Any, method: str
) -> tuple[float, float]:
    require_unmasked(block, "rows", f"the values of {label}")
    rows = np.asarray(block).reshape(-1, np.shape(block)[-1])
    if not len(rows):
        return 0.0, 0.0
    flat = None if weights is None else weights.reshape(-1)
    return weighted_sum(getattr(model, method)(rows), flat, label)


def _add(parts: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(total for total, _ in parts), sum(weight for _, weight in parts)


def _ratio(pair: Any) -> Any:
    while isinstance(pair, (list, np.ndarray)):
        pair = pair.item() if isinstance(pair, np.ndarray) else pair[0]
    total, weight = pair
    if not weight > 0:
        raise InputError("there are no samples to score.")
    return np.asarray(total / weight)
