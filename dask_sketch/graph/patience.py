"""Give up a computation on a cluster that has had no worker for some time."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from dask.utils import parse_timedelta

from dask_sketch import config
from dask_sketch.errors import ClusterError, InputError

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)
SILENT_SECONDS = 15.0  # without a worker, after which it is logged that there is none


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
        If the setting is no time.
    """

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self.seconds = _seconds_of(setting)
        self._had_workers = time.monotonic()
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
            self._had_workers, self._logged = now, False
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
