"""``sketch``: one pass over any input."""

from __future__ import annotations

from typing import Any

from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.arguments import opened
from dask_sketch.graph.lazy import LazySketch
from dask_sketch.sketching.arguments import require_device, require_nan_policy


def sketch(
    x: Any,
    feature_map: FeatureMap,
    weights: Any = None,
    *,
    groups: Any = None,
    split_every: int | None = None,
    nan_policy: str = "raise",
    device: str | None = None,
    **options: Any,
) -> Any:
    """Sketch any input in one pass, eq. (13) and section 2.7.

    Each chunk is read, checked, projected and summed by one task, in blocks of rows; the partial
    sketches are merged in a tree whose shape is fixed by the chunks, so that the result has the
    same bits however often workers are lost.

    Parameters
    ----------
    x
        Anything that :func:`open_samples` takes: (n_samples, n_features).
    feature_map
        What to average; see :func:`design`.
    weights
        Non-negative weight of each sample; an array-like or a name, see :func:`open_samples`.
    groups
        Label of the group of each sample; an array-like or a name, see :func:`open_samples`. There
        is then one sketch for each group, with the bits of a pass over its samples alone.
    split_every
        Most partial sketches that one task merges, ``>= 2``; the setting ``sketch.split-every``
        (16) by default, and for groups, whose partial sketches are large, 4.
    nan_policy
        ``"raise"`` stops at a row with NaN or infinite values and names it; ``"omit"`` leaves such
        rows out and counts them.
    device
        ``"cuda"``: every task copies its chunk to the GPU of its worker and sketches it there.
        When not given, chunks are sketched where they lie, so that a Dask array of CuPy blocks
        needs nothing. Sketches and merges are on the host in any case.
    options
        Keyword arguments of :func:`open_samples`.

    Returns
    -------
    sketch
        A :class:`Sketch` for input in memory, a :class:`LazySketch` for anything lazy; with groups
        a :class:`SketchGroup`, and for anything lazy a :class:`LazySketchGroup`.

    Raises
    ------
    InputError
        If the input cannot be opened, or has another number of features than the map.

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
    if device is not None and groups is not None:
        raise InputError(
            f"device={device!r}: groups are summed on the processor; leave it out with groups."
        )
    samples, fan_in = opened(
        "sketch", x, feature_map, split_every, weights=weights, groups=groups, options=options
    )
    kind = LazySketch
    if samples.groups is not None:
        from dask_sketch.graph.lazy import LazySketchGroup as kind  # a LazySketch itself
    lazy = kind(samples, feature_map, fan_in, nan_policy, device)
    if device is None:
        # compiled while the graph is built: local threads and workers of this machine find it
        # cached
        lazy.prepare()
    return lazy if samples.lazy else lazy.compute(scheduler="threads")
