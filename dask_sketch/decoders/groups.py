"""From sketches of groups to a model of each group."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from dask_sketch.decoders.decoder import decode
from dask_sketch.errors import DecodeError
from dask_sketch.models import Centroids, GaussianMixture
from dask_sketch.sketching.groups import SketchGroup


def decode_groups(
    group: SketchGroup,
    n_components: int | None = None,
    *,
    executor: Executor | None = None,
    **options: Any,
) -> dict[Any, GaussianMixture | Centroids]:
    """Fit a model to every group; of some groups, to ``group.select(labels)``.

    Parameters
    ----------
    group
        Sketches of groups, each of at least one sample.
    n_components, options
        As for :func:`dask_sketch.decode`.
    executor
        Where groups are decoded, each in one task: any :class:`concurrent.futures.Executor`, such
        as that of a Dask cluster, ``client.get_executor()``. Here, one after the other, by default.

    Returns
    -------
    models
        By label, in the order of the labels.

    Raises
    ------
    DecodeError
        If it is no group of sketches; or as :func:`dask_sketch.decode`, naming the group.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_sketch import FeatureMap, partial_groups
    >>> x = np.random.default_rng(0).normal(size=(4000, 2))
    >>> label = np.arange(4000) % 2
    >>> group = partial_groups(x + 5 * label[:, None], FeatureMap(2, 50, scale=1.0), label)
    >>> models = decode_groups(group, n_components=1)
    >>> [float(model.means[0, 0].round()) for model in models.values()]
    [0.0, 5.0]
    """
    if not isinstance(group, SketchGroup):
        raise DecodeError(
            f"group of type {type(group).__name__}: give a SketchGroup; call .compute() on a lazy "
            "one, and decode() for a Sketch."
        )
    tasks: dict[Any, Any] = {}
    for label, sketch in group.items():
        if executor is None:
            tasks[label] = _decoded(group.dim, label, sketch, n_components, options)
        else:
            given = (group.dim, label, sketch, n_components, {"threads": 1} | options)
            tasks[label] = executor.submit(_decoded, *given)
    if executor is None:
        return tasks
    return {label: task.result() for label, task in tasks.items()}


def _decoded(
    dim: str, label: Any, sketch: Any, n_components: int | None, options: dict[str, Any]
) -> GaussianMixture | Centroids:
    try:
        return decode(sketch, n_components, **options)
    except DecodeError as error:
        raise DecodeError(f"{dim} {label!s}: {error}") from error
