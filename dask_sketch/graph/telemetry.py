"""What a pass tells a scheduler: which tasks are its own, what it is of, and how far it is.

All by what Dask has for it: a span around the tasks, one event for the pass, and numbers that
workers send with their heartbeats. Where nobody listens, nothing of it is kept.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import dask

if TYPE_CHECKING:
    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.graph.calibration import Calibration
    from dask_sketch.sources.samples import Samples

TOPIC = "dask-sketch"  # of events
SPAN = "dask-sketch"
# activities of a task, as Dask's page "Fine Performance Metrics" lists them too, and their units
SKETCHED, MERGED = "sketched", "merged"
ROWS, PAIRS, PARTIALS = "rows", "pairs", "partial sketches"
Mark = Callable[[], AbstractContextManager[Any]]


def announce(client: Any, samples: Samples, feature_map: FeatureMap) -> Mark:
    """Tell the scheduler of a pass.

    Parameters
    ----------
    client
        Client of the cluster, ``None`` for the schedulers of this process.
    samples, feature_map
        Of the pass.

    Returns
    -------
    mark
        Its context marks the tasks that are sent within as those of the pass. Graphs should be
        optimised before: layers that are made within are not fused with those that were before.
    """
    if client is None:
        return contextlib.nullcontext
    from distributed import span

    with span(SPAN) as number:
        annotation = dask.get_annotations()["span"]
    client.log_event(
        TOPIC,
        {
            "event": "pass",
            "span": number,
            "source": samples.label,
            "n_samples": _whole(samples.n_samples),
            "n_chunks": int(samples.n_chunks),
            "n_features": feature_map.n_features,
            "n_frequencies": feature_map.n_frequencies,
            "digest": feature_map.digest,
        },
    )
    return lambda: dask.annotate(span=annotation)


def announce_limit(client: Any, feature_map: FeatureMap, rates: Calibration) -> None:
    """Tell the scheduler how fast one thread was found to be."""
    if client is not None:
        client.log_event(
            TOPIC,
            {
                "event": "calibration",
                "digest": feature_map.digest,
                "pairs_per_second": rates.pairs_per_second,
            },
        )


def report_rows(n_rows: int, n_frequencies: int) -> None:
    """Count rows that a task of a worker has sketched; elsewhere nothing happens.

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
    if "distributed.metrics" not in sys.modules:  # then this is no worker
        return None
    from distributed.metrics import context_meter

    return context_meter


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
