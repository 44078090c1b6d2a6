"""Scheduler plugin that records passes, polls them once a second, and serves the page."""

from __future__ import annotations

from typing import Any

from distributed import SchedulerPlugin

from dask_sketch.cluster.dashboard.passes import Passes
from dask_sketch.errors import InputError, install_command
from dask_sketch.graph.telemetry import TOPIC

POLL_INTERVAL = 1000  # milliseconds


class SketchPage(SchedulerPlugin):
    """Plugin that adds the page to the HTTP server of a scheduler."""

    name = "dask-sketch-page"
    idempotent = True

    def __init__(self) -> None:
        self.passes = Passes()
        self._scheduler: Any = None
        self._poller: Any = None

    async def start(self, scheduler: Any) -> None:
        """Start polling, and serve the page.

        Raises
        ------
        InputError
            If bokeh is missing in the scheduler's environment, or is too old for Dask.
        """
        try:
            from dask_sketch.cluster.dashboard.page import serve  # needs bokeh
        except ImportError as error:
            raise InputError(
                f"the scheduler cannot serve the page ({error}): "
                f"{install_command('dashboard')} where it runs."
            ) from error
        from tornado.ioloop import PeriodicCallback

        self._scheduler = scheduler
        for time, message in scheduler.get_events(TOPIC):
            self.passes.receive(message, time)
        serve(scheduler, self.passes)
        self._poller = PeriodicCallback(self.poll, POLL_INTERVAL)
        self._poller.start()

    def log_event(self, topic: str, msg: Any) -> None:
        """Process an event of a client."""
        if topic == TOPIC:
            from distributed.metrics import time

            self.passes.receive(msg, time())

    def poll(self) -> None:
        """Poll the passes."""
        from distributed.metrics import time

        spans = self._scheduler.extensions.get("spans")
        if spans is not None:
            self.passes.poll(spans.spans.get, self._scheduler.total_nthreads, time())

    async def close(self) -> None:
        """Stop polling."""
        if self._poller is not None:
            self._poller.stop()
