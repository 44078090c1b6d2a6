"""Add a page on passes to Dask's dashboard: progress, rate, and noise of the sketch.

``install(client)`` adds it to a running cluster, ``dask scheduler --preload
dask_sketch.cluster.dashboard`` to a new one. Clusters started by this package have it.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING, Any

from dask_sketch.cluster.dashboard.passes import PAGE
from dask_sketch.errors import InputError, install_command

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["address", "install"]
logger = logging.getLogger(__name__)


def install(client: Client | None = None) -> str:
    """Add the page to the dashboard of a cluster, unless it has it already.

    Passes reported earlier are shown as well.

    Parameters
    ----------
    client
        Client of the cluster; the active one by default.

    Returns
    -------
    address
        URL of the page.

    Raises
    ------
    InputError
        If there is no client, or bokeh is missing here or in the scheduler's environment.

    Examples
    --------
    >>> from distributed import Client
    >>> from dask_sketch.cluster import dashboard
    >>> with Client(processes=False, n_workers=1, dashboard_address="127.0.0.1:0") as client:
    ...     dashboard.install(client).rpartition("/")[2]
    'sketch'
    """
    if client is None:
        from dask_sketch.graph.compute import active_client

        client = active_client()
    if client is None:
        raise InputError(
            "client=None: there is no active client, and the page belongs to the dashboard of a "
            "cluster. Create a distributed.Client first."
        )
    _require_bokeh()
    from dask_sketch.cluster.dashboard.plugin import SketchPage

    client.register_plugin(SketchPage())
    return str(client.dashboard_link).rpartition("/")[0] + f"/{PAGE}"


def address(client: Client) -> str:
    """URL of the page, or of Dask's dashboard where bokeh is missing."""
    if importlib.util.find_spec("bokeh") is None:
        return str(client.dashboard_link)
    return install(client)


async def dask_setup(scheduler: Any) -> None:
    """Add the page to a scheduler, called by Dask for ``--preload``."""
    try:
        _require_bokeh()
    except InputError as error:
        logger.warning("no page on sketches: %s", error)
        return
    from dask_sketch.cluster.dashboard.plugin import SketchPage

    await scheduler.register_scheduler_plugin(SketchPage(), idempotent=True)


def _require_bokeh() -> None:
    if importlib.util.find_spec("bokeh") is None:
        raise InputError(
            "the dashboard needs the package bokeh, for the scheduler too: "
            f"{install_command('dashboard')}."
        )
