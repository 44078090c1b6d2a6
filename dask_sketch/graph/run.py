"""Running a lazy sketch: on a client if there is one, on local threads otherwise."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import dask

from dask_sketch import config
from dask_sketch.announcing import announce
from dask_sketch.graph.batches import batch_chunks, compute_in_batches
from dask_sketch.graph.progress import computed, follow, span_number

if TYPE_CHECKING:
    from dask_sketch.graph.one_pass import LazySketch

logger = logging.getLogger(__name__)


def active_client() -> Any:
    """The distributed client that a computation would use now, or ``None``."""
    if dask.config.get("scheduler", None) not in (None, "dask.distributed", "distributed"):
        return None
    if "distributed" not in sys.modules:  # then nobody can have made a client
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def run(lazy: LazySketch, *, progress: bool = False, **kwargs: Any) -> Any:
    """Compute a lazy sketch, after the plan agreed and the workers are ready.

    Raises
    ------
    PlanError
        If the largest chunk cannot fit.
    ArtifactError
        If a worker draws other frequencies than the client.

    Parameters
    ----------
    lazy
        What to compute.
    progress
        Show a bar, in a notebook or on the standard error stream.
    kwargs
        Passed on to ``Client.compute`` or ``dask.compute``.
    """
    from dask_sketch.graph.planning import make_plan

    client = None if "scheduler" in kwargs else active_client()
    make_plan(lazy.samples, lazy.feature_map, lazy.split_every, client=client).require_fit()
    if client is not None:
        # frequencies drawn, digest checked and kernels compiled on every worker before data is read
        client.run(lazy.prepare)
        # retries go to the client: as an annotation they are lost when the graph is optimised,
        # https://github.com/dask/dask/issues/7036
        kwargs.setdefault("retries", config.get("retries"))
    size = batch_chunks(lazy.samples.n_chunks, lazy.split_every)
    if size is not None and not lazy.rebuilt:
        return lazy.complete(compute_in_batches(lazy, size, client, progress, kwargs))
    if client is None:
        return computed([lazy], None, progress, "sketch", **kwargs)[0]
    if kwargs.pop("optimize_graph", True):
        (lazy,) = dask.optimize(lazy)
    with announce(client, lazy.samples, lazy.feature_map)():
        future = client.compute(lazy, optimize_graph=False, **kwargs)
        number = span_number()
    return follow(client, future, number, progress)
