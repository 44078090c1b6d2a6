"""Report passes to a scheduler, and count the tasks that ran.

Spans mark the tasks of a pass, one event describes it, and workers send counts of rows and merges
with their heartbeats (Dask's fine performance metrics).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dask
from dask.utils import key_split

if TYPE_CHECKING:
    from distributed import Client

    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.sources.samples import Samples

TOPIC = "dask-sketch"  # topic of events
SPAN = "dask-sketch"
# activities of a task, as Dask's page "Fine Performance Metrics" lists them too, and their units
SKETCHED, MERGED = "sketched", "merged"
ROWS, PAIRS, PARTIALS = "rows", "pairs", "partial sketches"
_NAMED = 5  # features that differ, in an event of a test of drift


@dataclass(frozen=True)
class TaskSpan:
    """Span of the tasks of one computation on a cluster.

    Attributes
    ----------
    annotation
        Annotation of the tasks; ``None`` for the schedulers of this process.
    """

    annotation: dict[str, Any] | None

    def mark(self) -> AbstractContextManager[Any]:
        """Context in which tasks are sent.

        Graphs must be optimised before: layers that are made inside the context are not fused with
        layers from outside.
        """
        if self.annotation is None:
            return contextlib.nullcontext()
        return dask.annotate(span=self.annotation)

    @property
    def number(self) -> str:
        """Identifier of the span."""
        assert self.annotation is not None
        return str(self.annotation["ids"][-1])


def open_span(client: Client | None, name: str | None = None) -> TaskSpan:
    """Open a new span for the tasks of one computation.

    Parameters
    ----------
    client
        Client of the cluster; ``None`` for the schedulers of this process.
    name
        Name of the span within the spans of this package; None for no name.
    """
    if client is None:
        return TaskSpan(None)
    from distributed import span

    with span(SPAN, *(() if name is None else (name,))):
        return TaskSpan(dask.get_annotations()["span"])


def log_pass(
    client: Client | None, span: TaskSpan, samples: Samples, feature_map: FeatureMap
) -> None:
    """Log the event that a pass begins, if there is a cluster."""
    if client is None:
        return
    n_samples = samples.n_samples
    client.log_event(
        TOPIC,
        {
            "event": "pass",
            "span": span.number,
            "source": samples.label,
            "n_samples": None if n_samples is None else int(n_samples),
            "n_chunks": int(samples.n_chunks),
            "n_features": feature_map.n_features,
            "n_frequencies": feature_map.n_frequencies,
            "digest": feature_map.digest,
        },
    )


def log_calibration(
    client: Client | None, feature_map: FeatureMap, pairs_per_second: float
) -> None:
    """Log the event that the speed of one thread was measured, if there is a cluster."""
    if client is not None:
        client.log_event(
            TOPIC,
            {
                "event": "calibration",
                "digest": feature_map.digest,
                "pairs_per_second": pairs_per_second,
            },
        )


def log_drift(
    client: Client | None,
    source: str,
    run: int,
    values: Mapping[str, Any],
    since: str | None = None,
) -> None:
    """Log the event that a job was tested for drift, if there is a cluster.

    Parameters
    ----------
    client
        Client of the cluster, ``None`` for the schedulers of this process.
    source
        Name of the job.
    run
        Number of the run.
    values
        Result of the test: ``discrepancy``, ``interval``, ``p_value``, ``level``,
        ``is_different`` for an alarm, and ``features``, each with its ``name`` and ``p_value``.
    since
        Label of the first run after the last change of the distribution; None if it is not known.
    """
    if client is not None:
        low, high = values["interval"]
        level = float(values["level"])
        differ = [str(one["name"]) for one in values["features"] if one["p_value"] <= level]
        client.log_event(
            TOPIC,
            {
                "event": "drift",
                "source": source,
                "run": run,
                "discrepancy": float(values["discrepancy"]),
                "low": float(low),
                "high": float(high),
                "p_value": float(values["p_value"]),
                "level": level,
                "alarm": bool(values["is_different"]),
                "features": differ[:_NAMED],
                "n_different": len(differ),
                "since": since,
            },
        )


def report_rows(n_rows: int, n_frequencies: int) -> None:
    """Count rows that a task of a worker has sketched; outside of workers, do nothing.

    Examples
    --------
    >>> report_rows(1000, 100)
    """
    meter = _meter()
    if meter is not None:
        meter.digest_metric(SKETCHED, n_rows, ROWS)
        meter.digest_metric(SKETCHED, n_rows * n_frequencies, PAIRS)


def report_merge(n_partials: int) -> None:
    """Count partial sketches that a task of a worker has merged."""
    meter = _meter()
    if meter is not None:
        meter.digest_metric(MERGED, n_partials, PARTIALS)


def _meter() -> Any:
    if "distributed.metrics" not in sys.modules:  # then this is not a worker
        return None
    from distributed.metrics import context_meter

    return context_meter


# Statistics of tasks, for comparison with the plan.


@dataclass
class TaskStatistics:
    """Number and duration of the tasks of a computation.

    Attributes
    ----------
    tasks
        Number of tasks that ran, by name.
    seconds
        Wall time.
    busy_seconds
        Time that tasks ran, summed over threads.
    """

    tasks: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    busy_seconds: float = 0.0

    @property
    def n_tasks(self) -> int:
        """Number of tasks that ran."""
        return sum(self.tasks.values())

    def __str__(self) -> str:
        names = ", ".join(f"{count:,} {name}" for name, count in self.tasks.items())
        return f"{self.n_tasks:,} ({names})" if names else "0"


@contextlib.contextmanager
def task_statistics(client: Client | None = None) -> Iterator[TaskStatistics]:
    """Count and time the tasks that run inside the ``with`` block.

    Parameters
    ----------
    client
        Client of the cluster that computes; ``None`` for the schedulers of this process.

    Yields
    ------
    statistics
        :class:`TaskStatistics`, complete when the block has ended.

    Examples
    --------
    >>> import dask.array as da
    >>> with task_statistics() as statistics:
    ...     _ = da.ones(10, chunks=5).sum().compute(scheduler="threads")
    >>> statistics.n_tasks
    3
    """
    statistics = TaskStatistics()
    start = time.perf_counter()
    if client is None:
        from dask.diagnostics import Profiler

        with Profiler() as profiler:
            yield statistics
            statistics.seconds = time.perf_counter() - start
        ran = [
            (task.key, task.end_time - task.start_time)
            for task in profiler.results
            if type(task.task).__name__ != "Alias"  # a second name of a task, and no work
        ]
    else:
        from distributed import get_task_stream

        with get_task_stream(client) as stream:
            yield statistics
            statistics.seconds = time.perf_counter() - start
        ran = [
            (
                task["key"],
                sum(s["stop"] - s["start"] for s in task["startstops"] if s["action"] == "compute"),
            )
            for task in stream.data
        ]
    # most frequent first
    statistics.tasks = dict(Counter(_task_name(key) for key, _ in ran).most_common())
    statistics.busy_seconds = float(sum(seconds for _, seconds in ran))


def _task_name(key: Any) -> str:
    name = str(key_split(key))
    return "finalize" if name.startswith("finalize") else name
