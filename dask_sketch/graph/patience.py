"""Give up a computation on a cluster that has had no worker for some time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dask.utils import parse_timedelta

from dask_sketch import config
from dask_sketch.errors import ClusterError, InputError

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)
SILENT_SECONDS = 15.0  # time without a worker that takes tasks, after which this is logged


class Patience:
    """Time without a single worker, and its limit.

    Parameters
    ----------
    setting
        Name of a setting of dask-sketch: a time, or None for no limit.

    Attributes
    ----------
    seconds
        The limit.

    Raises
    ------
    InputError
        If the setting is not a time.
    """

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self.seconds = _seconds_of(setting)
        self._had_workers = time.monotonic()
        self._was_running = self._had_workers
        self._last_seen = -math.inf  # newest heartbeat of a running worker, a scheduler's time
        self._logged = False

    def count_threads(self, client: Client) -> int:
        """Count the threads of the workers.

        Parameters
        ----------
        client
            Client of the cluster.

        Returns
        -------
        n_threads
            Number of threads of all workers.

        Raises
        ------
        ClusterError
            If there has been no worker for the time of the setting.
        """
        now = time.monotonic()
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        if workers:
            self._had_workers = now
            self._log_silence(list(workers), now)
            return sum(worker["nthreads"] for worker in workers)
        missing = now - self._had_workers
        if missing > self.seconds:
            raise ClusterError(
                f"the cluster has had no worker for {self.seconds:g} s (setting "
                f"sketch.{self._setting}): start workers, and compute again."
            )
        if missing > SILENT_SECONDS and not self._logged:
            self._logged = True
            logger.warning(
                "the cluster has had no worker for %.0f s: waiting until there is one", missing
            )
        return 0

    def _log_silence(self, workers: Sequence[Mapping[str, Any]], now: float) -> None:
        """Log once if no worker has been running and heard of for some time."""
        running = [worker for worker in workers if worker.get("status", "running") == "running"]
        newest = max((worker.get("last_seen", now) for worker in running), default=-math.inf)
        if newest > self._last_seen:
            self._last_seen, self._was_running, self._logged = newest, now, False
        silent = now - self._was_running
        if silent <= SILENT_SECONDS or self._logged:
            return
        self._logged = True
        if running:
            logger.warning(
                "no worker has been heard of for %.0f s: waiting until one answers, or the "
                "scheduler gives its tasks to others",
                silent,
            )
        else:
            states = ", ".join(sorted({str(worker["status"]) for worker in workers}))
            logger.warning(
                "no worker has taken tasks for %.0f s (%s): waiting. Workers are paused while "
                "their memory is almost used up: give them more, or make smaller chunks",
                silent,
                states,
            )


def _seconds_of(setting: str) -> float:
    value = config.get(setting)
    if value is None:
        return math.inf
    try:
        return float(parse_timedelta(value))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"sketch.{setting} is {value!r}: set a time, such as '5 minutes'."
        ) from error
