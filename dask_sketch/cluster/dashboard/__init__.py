"""A page of ours on Dask's dashboard: how far a pass is, how fast, and how good its sketch is yet.

``install(client)`` adds it to a cluster that runs; ``dask scheduler --preload
dask_sketch.cluster.dashboard`` to one that starts. Clusters that are made here have it.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

from dask_sketch.errors import InputError

__all__ = ["address", "install"]
logger = logging.getLogger(__name__)
PAGE = "sketch"  # beside Dask's own "status"
_MISSING = "the dashboard needs the package bokeh: pip install 'dask-sketch[dashboard]'"


def install(client: Any = None) -> str:
    """Add the page to the dashboard of a cluster; again is no harm.

    Passes that were announced before are on it too.

    Parameters
    ----------
    client
        Client of the cluster; the active one by default.

    Returns
    -------
    address
        Of the page.

    Raises
    ------
    InputError
        If there is no client, or bokeh is missing here or where the scheduler runs.

    Examples
    --------
    >>> from distributed import Client
    >>> from dask_sketch import dashboard
    >>> with Client(processes=False, n_workers=1, dashboard_address="127.0.0.1:0") as client:
    ...     dashboard.install(client).rpartition("/")[2]
    'sketch'
    """
    if client is None:
        from dask_sketch.graph.executors import active_client

        client = active_client()
    if client is None:
        raise InputError(
            "client=None: the page is one of the dashboard of a cluster. Make a "
            "distributed.Client first."
        )
    _require_bokeh()
    from dask_sketch.cluster.dashboard.plugin import SketchPage

    client.register_plugin(SketchPage())
    return str(client.dashboard_link).rpartition("/")[0] + f"/{PAGE}"


def address(client: Any) -> str:
    """Where to look: our page, or Dask's own where bokeh is missing."""
    if importlib.util.find_spec("bokeh") is None:
        return str(client.dashboard_link)
    return install(client)


async def dask_setup(scheduler: Any) -> None:
    """What Dask calls for ``--preload`` and the setting ``distributed.scheduler.preload``."""
    try:
        _require_bokeh()
    except InputError as error:
        logger.warning("no page on sketches: %s", error)
        return
    from dask_sketch.cluster.dashboard.plugin import SketchPage

    await scheduler.register_scheduler_plugin(SketchPage(), idempotent=True)


def _require_bokeh() -> None:
    if importlib.util.find_spec("bokeh") is None:
        raise InputError(f"{_MISSING}, for the scheduler too.")
