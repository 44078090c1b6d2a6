"""Run tasks one by one: on threads of this process, or on the workers of a cluster."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import dask
from dask.base import tokenize
from dask.system import CPU_COUNT

from dask_sketch.errors import ClusterError
from dask_sketch.graph.patience import Patience
from dask_sketch.graph.reduction import Reduction, same
from dask_sketch.graph.telemetry import TaskSpan

if TYPE_CHECKING:
    from distributed import Client

SMALL_REDUCTION = 4096  # bytes; a larger reduction is a separate task, sent once to each worker
POLL_SECONDS = 2.0  # time between two requests to the cluster
GATHER_SECONDS = 60.0  # maximum for a result to arrive; a lost result is computed again


class TaskLost(Exception):
    """A task ended without a result, for an unknown reason."""


class ConnectionLost(Exception):
    """The scheduler has forgotten the task, or was lost with it."""


class TaskThreads:
    """Threads of this process.

    Parameters
    ----------
    reduction
        Computation of the tasks.

    Attributes
    ----------
    n_threads
        Number of tasks that run at a time: the setting ``num_workers``, by default one for each
        core.
    """

    ready = True

    def __init__(self, reduction: Reduction):
        self.n_threads = int(dask.config.get("num_workers", None) or CPU_COUNT)
        self._reduction = reduction
        self._pool = ThreadPoolExecutor(self.n_threads, "sketch")
        if reduction.prepare is not None:
            reduction.prepare()

    def submit(self, task: Callable[..., Any], batch: Any) -> Any:
        """Submit ``task(batch, reduction)``, and return its future."""
        return self._pool.submit(task, batch, self._reduction)

    def result(self, future: Any) -> Any:
        """Result of a future that is done."""
        return future.result()

    def update(self) -> None:
        """Do nothing: threads are not lost."""

    def cancel(self, futures: list[Any]) -> None:
        """Wait for the running tasks, and cancel the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Cluster:
    """Workers of a client, which may come and go.

    Parameters
    ----------
    client
        Client of the cluster.
    reduction
        Computation of the tasks.
    span
        Span of the tasks.

    Attributes
    ----------
    n_threads
        Number of threads of all workers, at the last update.
    """

    def __init__(self, client: Client, reduction: Reduction, span: TaskSpan):
        self._client = client
        self._reduction = reduction
        self._span = span
        self._sent: Any = None
        self.n_threads = 1
        self._patience = Patience("worker-timeout")
        self._updated = -float("inf")
        self.update()

    @property
    def ready(self) -> bool:
        """Whether the scheduler can be reached now."""
        return bool(self._client.status == "running")

    def submit(self, task: Callable[..., Any], batch: Any) -> Any:
        """Submit ``task(batch, reduction)``, and return its future."""
        submit, reduction = self._client.submit, self._reduction
        with self._require_scheduler(), self._span.mark():
            if self._sent is None:
                self._sent = reduction
                if len(pickle.dumps(reduction)) > SMALL_REDUCTION:
                    # a task is computed again if its worker is lost, other than a scattered value
                    key = f"{reduction.name}-shared-{tokenize(reduction)}"
                    self._sent = submit(same, reduction, key=key)
            return submit(task, batch, self._sent, pure=False)

    def result(self, future: Any) -> Any:
        """Result of a future that is done.

        Raises
        ------
        TaskLost
            If workers died while they computed the task.
        ConnectionLost
            If the scheduler has forgotten the task.
        TimeoutError
            If the result was lost, and has not been computed again yet.
        """
        from distributed import CancelledError, KilledWorker

        try:
            return future.result(timeout=min(GATHER_SECONDS, max(self._patience.seconds, 1.0)))
        except KilledWorker as error:
            raise TaskLost(str(error)) from error
        except CancelledError as error:
            self._sent = None
            raise ConnectionLost from error

    def update(self) -> None:
        """Count the threads of the cluster.

        Raises
        ------
        ClusterError
            If the scheduler is lost for good, or there has been no worker for the time of the
            setting ``sketch.worker-timeout``.
        """
        now = time.monotonic()
        if now < self._updated + POLL_SECONDS:
            return
        self._updated = now
        # the client gives up after the time of distributed.comm.timeouts
        if self._client.status == "connecting":
            return
        with self._require_scheduler():
            self.n_threads = max(self._patience.count_threads(self._client), 1)

    def cancel(self, futures: list[Any]) -> None:
        """Cancel tasks, so that none is left on the cluster."""
        self._sent = None
        if self.ready and futures:
            with contextlib.suppress(OSError):  # a scheduler that is lost holds nothing either
                self._client.cancel(futures)

    @contextlib.contextmanager
    def _require_scheduler(self) -> Iterator[None]:
        """Raise ``ClusterError`` or ``ConnectionLost`` for errors of a client without scheduler."""
        try:
            if self._client.status not in ("running", "connecting"):
                raise OSError(f"the client is {self._client.status}")
            yield
        except ClusterError:
            raise
        except Exception as error:
            if self._client.status == "connecting":
                raise ConnectionLost from error
            if self._client.status == "running" and not isinstance(error, OSError):
                raise  # an error of the task, not of the connection
            raise ClusterError(
                f"the scheduler is lost ({type(error).__name__}: {error}): start it again, or "
                "connect to another cluster."
            ) from error
