"""What lives on the scheduler: it notes the passes, looks once a second, and serves the page."""

from __future__ import annotations

from typing import Any

from distributed import SchedulerPlugin

from dask_sketch.cluster.dashboard.passes import Passes
from dask_sketch.errors import InputError
from dask_sketch.graph.telemetry import TOPIC

LOOK = 1000  # milliseconds between two looks


class SketchPage(SchedulerPlugin):
    """Adds the page to the HTTP server of a scheduler."""

    name = "dask-sketch-page"
    idempotent = True

    def __init__(self) -> None:
        self.passes = Passes()
        self._scheduler: Any = None
        self._looking: Any = None

    async def start(self, scheduler: Any) -> None:
        """Begin to look, and serve.

        Raises
        ------
        InputError
            If bokeh is missing where the scheduler runs, or is too old for Dask.
        """
        try:
            from dask_sketch.cluster.dashboard.page import serve
        except ImportError as error:
            raise InputError(
                f"the scheduler cannot serve the page ({error}): pip install "
                "'dask-sketch[dashboard]' where it runs."
            ) from error
        from tornado.ioloop import PeriodicCallback

        self._scheduler = scheduler
        for time, message in scheduler.get_events(TOPIC):
            self.passes.hear(message, time)
        serve(scheduler, self.passes)
        self._looking = PeriodicCallback(self.look, LOOK)
        self._looking.start()

    def log_event(self, topic: str, msg: Any) -> None:
        """Note what a client announces."""
        if topic == TOPIC:
            from distributed.metrics import time

            self.passes.hear(msg, time())

    def look(self) -> None:
        """Read how far the passes are."""
        from distributed.metrics import time

        spans = self._scheduler.extensions.get("spans")
        if spans is not None:
            self.passes.look(spans.spans.get, self._scheduler.total_nthreads, time())

    async def close(self) -> None:
        """End with the scheduler."""
        if self._looking is not None:
            self._looking.stop()
