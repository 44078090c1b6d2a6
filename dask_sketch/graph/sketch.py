"""Sketch any input in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.memory import require_room
from dask_sketch.graph.moments import second_moments
from dask_sketch.graph.plan import open_input, require_fit
from dask_sketch.graph.reduction import Reduction
from dask_sketch.graph.telemetry import report_rows
from dask_sketch.sketching.arguments import (
    require_device,
    require_feature_map,
    require_nan_policy,
    require_position,
)
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.group_partial import prepare_groups
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.missing import require_sparse
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.partial import (
    add_sample,
    partial_sketch,
    prepare,
)
from dask_sketch.sketching.row_sample import RowSampling, sample_size, wanted_rows
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.bag import same_columns
from dask_sketch.sources.open import (
    block_in_memory,
    blocks_together,
    is_stream,
    require_options,
    streams_beside,
)
from dask_sketch.sources.samples import Positions, Samples


def sketch(
    x: Any,
    feature_map: FeatureMap | MomentGrid,
    weights: Any = None,
    *,
    groups: Any = None,
    split_every: int | None = None,
    nan_policy: str = "raise",
    device: str | None = None,
    sample: int | bool | None = None,
    position: int = 0,
    **options: Any,
) -> Any:
    """Compute the sketch of the data in one pass (Keriven et al. 2018, eq. 13 and section 2.7).

    Each chunk is read, checked, mapped to random Fourier features and summed by one task, in blocks
    of rows. The partial sketches are merged in a tree. Sums are exact, so that the result has the
    same bits for any chunks, and however often workers are lost.

    Parameters
    ----------
    x
        Samples, shape (n_samples, n_features), in any form that :func:`open_samples` takes; or a
        stream of blocks of any such form in memory: a generator, a reader of record batches of
        Arrow, a loader of PyTorch. A stream is read at once, and only one block is in memory. For a
        loader whose batches are lists of tensors, give the rows: ``(batch[0] for batch in x)``.
    feature_map
        Feature map to average; see :func:`design`. With the grid of ``design(x, task="pca")``, the
        second moments are summed in place of features, as by :func:`second_moments`; ``device``,
        ``sample`` and ``position`` do not apply to them.
    weights
        Non-negative weight of each sample; an array-like or a name, see :func:`open_samples`. For a
        stream a name, or a stream of the weights of each block.
    groups
        Label of the group of each sample, in the same forms as the weights. The result is then one
        sketch for each group, with the sums of a pass over the samples of this group alone. These
        sketches have no random rows: ``sample`` is refused. Sketch a group separately if it needs
        rows.
    split_every
        Maximum number of partial sketches that one task merges, ``>= 2``; by default the setting
        ``sketch.split-every`` (16), and 4 for groups, whose partial sketches are large.
    nan_policy
        Treatment of rows with NaN or infinite values: ``"raise"`` stops and names the row,
        ``"omit"`` leaves such rows out and counts them. ``"available"`` treats such values as
        missing: each frequency is averaged over the rows that observe all features it uses, at most
        four with ``distribution="sparse-sums"``. This is valid if values are missing completely at
        random, independently of all values; otherwise the sketch is biased (:func:`diagnose` looks
        for signs of this). Random rows are chosen among complete rows only. Rows without any finite
        value, or without a group, are omitted and counted. This policy is not available on a GPU.
    device
        Device of the computation. With ``"cuda"`` every task copies its chunk to the GPU of its
        worker and sketches it there. By default, chunks are sketched where they are stored, such as
        the CuPy blocks of a Dask array on a GPU. Sketches and merges are always on the host.
    sample
        Maximum number of random rows that the sketch carries beside the sums, for :func:`calibrate`
        and :func:`decode`; they make fits to real data as good as maximum likelihood on all rows.
        True, the default without groups, chooses 20,000 rows. There are more rows, 100 for each
        parameter, if :func:`design` made the feature map for a mixture of over 200 parameters, and
        fewer if the rows would take more than 16 MiB. Give False or 0 if rows must not be kept, or
        if the sketch is given to others: the sketch then has sums only.
    position
        Position of the first row, ``>= 0``. The random rows are chosen by their positions. Parts of
        the data whose sketches will be added, such as two days, need different positions, so that
        their rows are chosen independently. Give the number of rows before the part. The sums do
        not depend on it.
    options
        Keyword arguments of :func:`open_samples`. Where a table has other columns as well,
        ``columns`` are those that the feature map knows by name.

    Returns
    -------
    sketch
        :class:`Sketch`, or with groups :class:`SketchGroup`; with a grid :class:`SecondMoments`, or
        with groups a dictionary of second moments by label. For lazy input, a Dask collection,
        :class:`dask_sketch.graph.LazyResult`, whose ``.compute()`` returns the result.

    Raises
    ------
    InputError
        If the input cannot be opened, has another number of features than the map, or an argument
        has no meaning for second moments.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> feature_map = FeatureMap(2, 100, scale=1.0)
    >>> sketch(x, feature_map).count
    1000
    >>> import dask.array as da
    >>> lazy = sketch(da.from_array(x, chunks=(100, 2)), feature_map)
    >>> bool(abs(lazy.compute().z - sketch(x, feature_map).z).max() < 1e-6)
    True
    >>> by_sign = sketch(x, feature_map, groups=x[:, 0] > 0)
    >>> by_sign.labels, by_sign.merged().identical(sketch(x, feature_map))
    (array([False,  True]), True)
    """
    require_nan_policy(nan_policy)
    require_device(device)
    if isinstance(feature_map, MomentGrid):
        require_options(sketch, options)
        _require_no_rows(device, sample, position)
        return second_moments(
            x, weights, like=feature_map, groups=groups, nan_policy=nan_policy,
            split_every=split_every, **options,
        )  # fmt: skip
    if device is not None and groups is not None:
        raise InputError(
            f"device={device!r}: groups are summed on the processor; leave it out with groups."
        )
    require_feature_map(feature_map)
    if nan_policy == "available":
        require_sparse(feature_map)
    size = sample_size(
        sample, feature_map.n_features, grouped=groups is not None,
        wanted=wanted_rows(feature_map),
    )  # fmt: skip
    position = require_position(position)
    pass_over = partial(
        _pass, feature_map=feature_map, nan_policy=nan_policy, device=device, size=size
    )
    if is_stream(x):
        require_options(sketch, options)
        beside = {"weights": weights, "groups": groups}
        return _sketch_stream(x, beside, feature_map, split_every, options, pass_over, position)
    samples, fan_in = open_input(
        sketch, x, feature_map, split_every, weights=weights, groups=groups, options=options
    )
    lazy = pass_over(samples, fan_in, position=position)
    return lazy if samples.lazy else lazy.compute(scheduler="threads")


def _require_no_rows(device: Any, sample: Any, position: Any) -> None:
    """Raise for arguments that have no meaning for second moments."""
    unused = {"device": device, "sample": sample or None, "position": position or None}
    for name, value in unused.items():
        if value is not None:
            raise InputError(
                f"{name}={value!r} has no meaning for second moments, which are summed on the "
                "processor and carry no rows: leave it out.",
                parameter=name,
            )


def _pass(
    samples: Samples,
    fan_in: int,
    *,
    feature_map: FeatureMap,
    nan_policy: str,
    device: str | None,
    size: int | None,
    position: int,
    allow_empty: bool = False,
) -> LazyResult:
    """Pass over opened samples; see :func:`sketch` and :func:`sketch_reduction`."""
    if samples.groups is None:
        sampling = None
        if size is not None:
            n, weighted = samples.n_samples, samples.is_weighted
            sampling = RowSampling.of(size, feature_map, n, weighted=weighted)
        reduction = sketch_reduction(
            samples, feature_map, nan_policy, device, sampling=sampling,
            positions=Positions.in_source(samples, position), allow_empty=allow_empty,
        )  # fmt: skip
    else:
        reduction = group_reduction(
            samples, feature_map, nan_policy, device, allow_empty=allow_empty
        )
    lazy = LazyResult(samples, reduction, fan_in)
    if device is None and reduction.prepare is not None:
        # compile while the graph is built: local threads and workers find the code in the cache
        reduction.prepare()
    return lazy


def _sketch_stream(
    x: Iterable[Any],
    beside: dict[str, Any],
    feature_map: FeatureMap,
    split_every: int | None,
    options: dict[str, Any],
    pass_over: Callable[..., LazyResult],
    position: int,
) -> Any:
    """Sketch blocks one after the other, and add the sketches.

    Each block is summed by the threads of this process. Sums are exact and random rows are chosen
    by their positions, so that the result does not depend on the division into blocks.

    Parameters
    ----------
    x
        Stream of blocks.
    beside
        Weights and groups: None, a name, or a stream of the values of each block.
    feature_map, split_every, options, position
        Arguments of :func:`sketch`.
    pass_over
        Function that sketches the opened samples of one block.
    """
    streams = streams_beside(beside)
    total, columns = None, None
    for number, (block, *values) in enumerate(blocks_together(x, streams)):
        beside_block = beside | dict(zip(streams, values, strict=True))
        _require_rows(block, number)
        samples, fan_in = open_input(
            sketch, block, feature_map, split_every, **beside_block, options=options
        )
        samples = block_in_memory(samples, block, number)
        columns = same_columns(columns, samples.feature_names, f"block {number} of the stream")
        part = pass_over(samples, fan_in, position=position, allow_empty=True)
        part = part.compute(scheduler="threads")
        total = part if total is None else merge([total, part])
        position += samples.n_samples or 0
    if total is None:
        raise InputError("x is a stream without blocks: it may have been read before.")
    grouped = isinstance(total, SketchGroup)
    omitted = int(np.sum(total.omitted)) + (total.unlabelled if grouped else 0)
    count = int(np.sum(total.count))
    _require_samples(count, omitted, "the stream", feature_map, grouped=grouped)
    return total


def _require_rows(block: Any, number: int) -> None:
    """Raise for a block of several arrays, as loaders yield for data sets with labels."""
    if isinstance(block, (list, tuple)) and block and len(getattr(block[0], "shape", ())) > 1:
        raise InputError(
            f"x is a stream, and its block {number} is a {type(block).__name__} of {len(block)} "
            "array(s), not an array of rows: give the rows alone, as in sketch((block[0] for block "
            "in x), feature_map).",
            parameter="x",
        )


# The reductions of both kinds of sketches.


def sketch_reduction(
    samples: Samples,
    feature_map: FeatureMap,
    nan_policy: str,
    device: str | None = None,
    *,
    sampling: RowSampling | None = None,
    positions: Positions | None = None,
    allow_empty: bool = False,
) -> Reduction:
    """Reduction of samples to one sketch.

    Parameters
    ----------
    samples
        Samples to sketch; labels of groups are left out.
    feature_map, nan_policy, device
        Arguments of :func:`sketch`.
    sampling
        Choice of the random rows that the sketch carries; None for none.
    positions
        Positions by which the rows are chosen; by default positions within each chunk.
    allow_empty
        Whether input without samples gives an empty sketch rather than an error.
    """
    # no chunk needs the mixture or the sketch of the pilot rows
    pilot = feature_map.pilot
    if pilot is not None:
        pilot = replace(pilot, mixture=None, characteristic=None)
    light = feature_map.with_pilot(pilot)
    chunk = partial(_sketch_chunk, feature_map=light, nan_policy=nan_policy, device=device)
    size = None if sampling is None else sampling.size
    if sampling is not None:
        places = Positions((), ()) if positions is None else positions
        chunk = partial(_sample_chunk, sketch=chunk, sampling=sampling, positions=places)
    return Reduction(
        "sketch",
        chunk,
        merge,
        partial(
            _finish_sketch,
            feature_map=feature_map,
            label=None if allow_empty else samples.label,
        ),
        partial(prepare, feature_map, samples.dtype, device),
        uses_numbers=sampling is not None,
        require_fit=partial(
            require_fit, feature_map=feature_map, sample=size, nan_policy=nan_policy
        ),
        feature_map=feature_map,
    )


def _sample_chunk(
    rows: Any,
    weights: Any,
    label: str,
    number: tuple[int, ...],
    row: int,
    sketch: Callable[..., Sketch],
    sampling: RowSampling,
    positions: Positions,
) -> Sketch:
    sums = sketch(rows, weights, label)
    start = positions.of(number, rows, row)
    return add_sample(
        sums, rows, weights, sampling, stream=start.stream, start=start.start,
        positions=start.positions,
    )  # fmt: skip


def _sketch_chunk(
    rows: Any,
    weights: Any,
    label: str,
    feature_map: FeatureMap,
    nan_policy: str,
    device: str | None,
) -> Sketch:
    part = partial_sketch(
        rows, feature_map, weights, nan_policy=nan_policy, label=label, device=device
    )
    report_rows(part.count, feature_map.n_frequencies)
    return part


def _finish_sketch(total: Sketch | None, feature_map: FeatureMap, label: str | None) -> Sketch:
    result = Sketch.empty(feature_map) if total is None else replace(total, feature_map=feature_map)
    if label is not None:
        _require_samples(result.count, result.omitted, label, feature_map)
    return result


def group_reduction(
    samples: Samples,
    feature_map: FeatureMap,
    nan_policy: str,
    device: str | None = None,
    *,
    allow_empty: bool = False,
) -> Reduction:
    """Reduction of samples to one sketch for each group.

    The merges are sparse: a partial result has the groups that occur in its chunks and no others.

    Parameters
    ----------
    samples
        Samples to sketch, with groups.
    feature_map, nan_policy, device
        Arguments of :func:`sketch`.
    allow_empty
        Whether input without samples gives an empty group rather than an error.
    """
    groups = samples.groups
    assert groups is not None
    return Reduction(
        "sketch-groups",
        partial(
            _sketch_groups,
            feature_map=feature_map,
            nan_policy=nan_policy,
            device=device,
            dim=groups.dim,
        ),
        merge,
        partial(
            _finish_groups,
            feature_map=feature_map,
            dim=groups.dim,
            names=groups.names,
            label=None if allow_empty else samples.label,
        ),
        partial(prepare_groups, feature_map, samples.dtype),
        uses_groups=True,
        require_fit=partial(require_fit, feature_map=feature_map, nan_policy=nan_policy),
        require_room=require_room,
        feature_map=feature_map,
    )


def _sketch_groups(
    rows: Any,
    weights: Any,
    label: str,
    groups: Any,
    feature_map: FeatureMap,
    nan_policy: str,
    device: str | None,
    dim: str,
) -> SketchGroup:
    part = partial_sketch(
        rows, feature_map, weights, groups=groups, nan_policy=nan_policy, label=label,
        device=device, dim=dim,
    )  # fmt: skip
    report_rows(int(part.count.sum()), feature_map.n_frequencies)
    return part


def _finish_groups(
    group: SketchGroup | None,
    feature_map: FeatureMap,
    dim: str,
    names: NDArray[Any] | None,
    label: str | None,
) -> SketchGroup:
    result = SketchGroup.empty(feature_map, dim) if group is None else group
    if label is not None:
        count, omitted = int(result.count.sum()), int(result.omitted.sum()) + result.unlabelled
        _require_samples(count, omitted, label, feature_map, grouped=True)
    # before, the labels are positions in the names
    return result if names is None else replace(result, labels=names[result.labels])


def _require_samples(
    count: int, omitted: int, label: str, feature_map: FeatureMap, *, grouped: bool = False
) -> None:
    """Raise if a pass over ``label`` found nothing to average."""
    if count == 0:
        zeros = ", only zeros" if feature_map.normalize else ""
        no_label = ", or no label" if grouped else ""
        reason = (
            f"all of its {omitted:,} rows have NaN or infinite values{zeros}{no_label}; clean the "
            "data"
            if omitted
            else "it has no rows (check the path, the filter and the credentials)"
        )
        raise InputError(f"{label} gave no samples: {reason}.")
