"""The sketches of the groups of one chunk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.features import FeatureMap
from dask_sketch.features.device import on_device, on_host
from dask_sketch.sketching.group_labels import MISSING, codes_of
from dask_sketch.sketching.groups import SketchGroup
from dask_sketch.sketching.partial import NAN_POLICIES, _checked, partial_sketch


def partial_groups(
    samples: Any,
    feature_map: FeatureMap,
    groups: Any,
    weights: Any = None,
    *,
    nan_policy: str = "raise",
    label: str = "samples",
    device: str | None = None,
    dim: str = "group",
) -> SketchGroup:
    """Sketch one chunk that is in memory, group by group.

    Memory beyond the chunk is that of the sketches of the groups that are in it.

    Parameters
    ----------
    samples
        Shape (..., n_features), any real dtype. Leading axes are all samples. A chunk on a GPU is
        copied to the host: groups are summed there.
    feature_map
        What to average.
    groups
        Label of each sample, shape (...) like the samples: whole numbers, strings, dates,
        durations, booleans or real numbers; also a series or array of pandas.
    weights
        As for :func:`partial_sketch`.
    nan_policy
        ``"raise"`` refuses the chunk at the first row with a NaN or infinite value or without a
        label (NaN, NaT, None); ``"omit"`` leaves such rows out and counts them.
    label
        Name of the chunk for messages.
    device
        Not given: there is no sketching of groups on a GPU.
    dim
        Name of the dimension of groups.

    Returns
    -------
    group
        Of each group that occurs in the chunk, with the bits of its own :func:`partial_sketch`.

    Raises
    ------
    InputError
        As :func:`partial_sketch`, and for labels of another number or of no sortable kind.
    ChunkError
        As :func:`partial_sketch`, and for rows without a label.

    Examples
    --------
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> group = partial_groups([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]], feature_map, [7, 3, 7])
    >>> group.labels, group.count, group.mean
    (array([3, 7]), array([1, 2]), array([[2., 1.], [2., 1.]]))
    """
    if nan_policy not in NAN_POLICIES:
        raise InputError(f"nan_policy={nan_policy!r}: choose 'raise' or 'omit'.")
    if device is not None:
        raise InputError(
            f"device={device!r}: groups are summed on the processor; leave it out with groups."
        )
    x, w = _checked(samples, weights, feature_map, label)
    x, w = on_host(x) if on_device(x) else x, on_host(w) if on_device(w) else w
    labels, codes = codes_of(groups, len(x), label)
    missing = codes == MISSING
    if missing.any() and nan_policy == "raise":
        raise ChunkError(
            f"{label}: row {int(np.argmax(missing))} of this chunk has no label (NaN, NaT or "
            "None). Give it one, or pass nan_policy='omit' to leave such rows out and count them."
        )
    if not len(labels):
        return replace(SketchGroup.empty(feature_map, dim), unlabelled=int(missing.sum()))
    found = {
        each: partial_sketch(
            x[codes == code],
            feature_map,
            None if w is None else w[codes == code],
            nan_policy=nan_policy,
            label=label,
        )
        for code, each in enumerate(labels)
    }
    stacked = SketchGroup.from_sketches(found, dim)
    return replace(stacked, labels=labels, unlabelled=int(missing.sum()))
