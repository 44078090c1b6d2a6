"""Where tasks run one by one: threads of this process, or the workers of a cluster."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
from dask.system import CPU_COUNT
from dask.utils import parse_timedelta

from dask_sketch import config
from dask_sketch.errors import ClusterError, InputError, SketchError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.telemetry import Mark
from dask_sketch.sketching.partial import prepare

logger = logging.getLogger(__name__)
SMALL_MAP = 1024  # bytes; a larger specification is sent as a task of its own, once for a worker
LOOK = 2.0  # seconds between two looks at the cluster
GATHER = 60.0  # seconds, at most, for a result to come; if it was lost it is made again


class TaskLost(Exception):
    """A task ended without a result, and it is not known whose fault that was."""


class ConnectionLost(Exception):
    """The scheduler has forgotten the task, or was lost with it."""


class Threads:
    """Threads of this process.

    Attributes
    ----------
    n_threads
        Tasks that run at a time: the setting ``num_workers``, by default one for each core.
    """

    ready = True

    def __init__(self, feature_map: FeatureMap, dtype: Any):
        self.n_threads = int(dask.config.get("num_workers", None) or CPU_COUNT)
        self._map = feature_map
        self._pool = ThreadPoolExecutor(self.n_threads, "sketch")
        prepare(feature_map, dtype)

    def submit(self, task: Callable[..., Any], run: Any) -> Any:
        """A future of ``task(run, feature_map)``."""
        return self._pool.submit(task, run, self._map)

    def result(self, future: Any) -> Any:
        """What a future gave that is done."""
        return future.result()

    def look(self) -> None:
        """Threads do not get lost."""

    def drop(self, waiting: list[Any]) -> None:
        """End what has been started; what has not never will be."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Cluster:
    """The workers of a client, which may come and go.

    Attributes
    ----------
    n_threads
        Threads of all workers, when last looked.
    """

    def __init__(self, client: Any, feature_map: FeatureMap, dtype: Any, mark: Mark):
        self._client = client
        self._mark = mark  # of the tasks that are sent
        self._map = feature_map
        self._sent: Any = None
        self.n_threads = 1
        self._patience = _patience()
        self._looked = -float("inf")
        # frequencies drawn, digest checked and kernels compiled on every worker before data is read
        answers = client.run(prepare, feature_map, dtype, on_error="return")
        for answer in answers.values():
            if isinstance(answer, SketchError):  # and not that this worker was lost just now
                raise answer
        self._manned = time.monotonic()
        self.look()

    @property
    def ready(self) -> bool:
        """Whether the scheduler can be reached now."""
        return bool(self._client.status == "running")

    def submit(self, task: Callable[..., Any], run: Any) -> Any:
        """A future of ``task(run, feature_map)``."""
        submit, key = self._client.submit, f"feature-map-{self._map.digest}"
        with self._reaching(), self._mark():
            if self._sent is None:
                small = len(self._map.spec) <= SMALL_MAP
                # a task and not a scattered value: it is made again when its worker is lost
                self._sent = self._map if small else submit(_same, self._map, key=key)
            return submit(task, run, self._sent, pure=False)

    def result(self, future: Any) -> Any:
        """What a future gave that is done.

        Raises
        ------
        TaskLost
            If workers died of it, or with it.
        ConnectionLost
            If the scheduler does not have it any more.
        TimeoutError
            If the result was lost, and is not there again yet.
        """
        from distributed import CancelledError, KilledWorker

        try:
            return future.result(timeout=min(GATHER, max(self._patience, 1.0)))
        except KilledWorker as error:
            raise TaskLost(str(error)) from error
        except CancelledError as error:
            self._sent = None
            raise ConnectionLost from error

    def look(self) -> None:
        """See how many threads there are.

        Raises
        ------
        ClusterError
            If the scheduler is lost for good, or there has been no worker for the time of the
            setting ``sketch.worker-timeout``.
        """
        now = time.monotonic()
        if now < self._looked + LOOK:
            return
        self._looked = now
        if self._client.status == "connecting":  # until it gives up: distributed.comm.timeouts
            return
        with self._reaching():
            found = self._client.scheduler_info(n_workers=-1)["workers"].values()
        self.n_threads = max(sum(worker["nthreads"] for worker in found), 1)
        if found:
            self._manned = now
            return
        if now > self._manned + self._patience:
            raise ClusterError(
                f"the cluster has had no worker for {self._patience:g} s (setting "
                "sketch.worker-timeout)."
            )

    def drop(self, waiting: list[Any]) -> None:
        """Leave nothing on the cluster."""
        self._sent = None
        if self.ready and waiting:
            with contextlib.suppress(OSError):  # a scheduler that is lost holds nothing either
                self._client.cancel(waiting)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn what a client says without a scheduler into one error, if it cannot come back."""
        try:
            if self._client.status not in ("running", "connecting"):
                raise OSError(f"the client is {self._client.status}")
            yield
        except Exception as error:
            if self._client.status == "connecting":
                raise ConnectionLost from error
            if self._client.status == "running" and not isinstance(error, OSError):
                raise  # of what was to be sent
            raise ClusterError(
                f"the scheduler is lost: {type(error).__name__}: {error}."
            ) from error


def _patience() -> float:
    """Seconds without a worker."""
    value = config.get("worker-timeout")
    try:
        seconds = float(parse_timedelta(value))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"sketch.worker-timeout is {value!r}: set a time, such as '5 minutes'."
        ) from error
    return seconds


def _same(value: Any) -> Any:
    return value


# Running a lazy sketch: on a client if there is one, on local threads otherwise.


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
