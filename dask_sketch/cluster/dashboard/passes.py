"""Progress and rate of each pass, polled from the scheduler once a second, and tests of drift."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_sketch.graph.telemetry import MERGED, PAIRS, PARTIALS, ROWS, SKETCHED

PAGE = "sketch"  # path of the page on the dashboard, beside Dask's "status"
MAX_PASSES = 20  # passes in memory, and tests of drift
MAX_POLLS = 600  # polls of one pass; then every second one is dropped
RATE_SECONDS = 10.0  # window of the rate: a chunk is reported when it is done
LATE_SECONDS = 30.0  # time in which heartbeats may report numbers after the last task


@dataclass(frozen=True)
class Poll:
    """State of a pass at one poll.

    Attributes
    ----------
    seconds
        Time since the pass was reported.
    rows, pairs
        Rows and (row, frequency) pairs sketched so far.
    rate
        Pairs per second over the last ten seconds.
    limit
        Pairs per second that all threads can reach by calibration; NaN if there is none.
    noise
        Noise of |z|: ``1 / sqrt(rows)``; NaN before the first row.
    """

    seconds: float
    rows: int
    pairs: int
    rate: float
    limit: float
    noise: float


@dataclass
class Pass:
    """Pass and its progress.

    Attributes
    ----------
    span
        Identifier of the span of its tasks.
    source
        Name of the input.
    n_samples, n_chunks
        Numbers of samples and chunks, as reported; the former is ``None`` if unknown.
    n_features, n_frequencies, digest
        Sizes and digest of the feature map.
    started
        Time of the report, in seconds since the epoch.
    ended
        Time when the last task ended; ``None`` while tasks run.
    rows, pairs, partials
        Rows and (row, frequency) pairs sketched, and partial sketches merged by the tree. Tasks
        repeated after the loss of a worker count twice.
    polls
        States at the polls.
    """

    span: str
    source: str
    n_samples: int | None
    n_chunks: int
    n_features: int
    n_frequencies: int
    digest: str
    started: float
    ended: float | None = None
    rows: int = 0
    pairs: int = 0
    partials: int = 0
    polls: list[Poll] = field(default_factory=list)
    _every: int = 1  # polls per entry of `polls`
    _skipped: int = 0

    @property
    def seconds(self) -> float:
        """Time from the report until the end or the last poll."""
        if self.ended is not None:
            return self.ended - self.started
        return self.polls[-1].seconds if self.polls else 0.0

    @property
    def rate(self) -> float:
        """Pairs per second: recently, or over the whole pass if it has ended."""
        if self.ended is not None:
            return self.pairs / max(self.seconds, 1e-9)
        return self.polls[-1].rate if self.polls else 0.0

    @property
    def limit(self) -> float:
        """Pairs per second by calibration; NaN if there is none."""
        return self.polls[-1].limit if self.polls else math.nan

    @property
    def noise(self) -> float:
        """Noise of |z|, NaN before the first row."""
        return 1.0 / math.sqrt(self.rows) if self.rows else math.nan

    def count(self, metrics: Mapping[Any, float]) -> None:
        """Update the counts from the metrics of the workers."""
        self.rows = _sum(metrics, SKETCHED, ROWS)
        self.pairs = _sum(metrics, SKETCHED, PAIRS)
        self.partials = _sum(metrics, MERGED, PARTIALS)

    def poll(self, limit: float, now: float) -> None:
        """Record the current state."""
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        seconds = now - self.started
        before = (one for one in reversed(self.polls) if one.seconds <= seconds - RATE_SECONDS)
        first = next(before, None)
        pairs, spent = (0, seconds) if first is None else (first.pairs, seconds - first.seconds)
        rate = (self.pairs - pairs) / max(spent, 1e-9)
        self.polls.append(Poll(seconds, self.rows, self.pairs, rate, limit, self.noise))
        if len(self.polls) > MAX_POLLS:
            self.polls = self.polls[::2]
            self._every *= 2


@dataclass(frozen=True)
class DriftCheck:
    """Test of the newest data of a job for drift.

    Attributes
    ----------
    source, run
        Name of the job, and number of its run.
    discrepancy, low, high
        Discrepancy of the newest data from that before, and its confidence interval.
    p_value, level
        P-value and level of the test.
    alarm
        Whether there was an alarm.
    time
        Time of the report, in seconds since the epoch.
    features, n_different
        Names of the features that differ, the most significant first, and number of all of them.
    since
        Label of the first run after the last change; None if it is not known.
    """

    source: str
    run: int
    discrepancy: float
    low: float
    high: float
    p_value: float
    level: float
    alarm: bool
    time: float
    features: Sequence[str] = ()
    n_different: int = 0
    since: str | None = None


class Passes:
    """Reported passes, the latest last.

    Attributes
    ----------
    checks
        Tests of drift, the latest last.
    """

    def __init__(self) -> None:
        self.checks: deque[DriftCheck] = deque(maxlen=MAX_PASSES)
        self._passes: deque[Pass] = deque(maxlen=MAX_PASSES)
        self._thread_rates: dict[str, float] = {}  # rates by digest of the feature map

    def __len__(self) -> int:
        return len(self._passes)

    def __getitem__(self, number: int) -> Pass:
        return self._passes[number]

    @property
    def shown(self) -> Pass | None:
        """Latest running pass, or the latest pass if none runs."""
        running = [one for one in self._passes if one.ended is None]
        latest = running or list(self._passes)
        return latest[-1] if latest else None

    def receive(self, message: Any, time: float) -> None:
        """Process an event of a client; ignore events of other kinds."""
        if not isinstance(message, Mapping):
            return
        event = dict(message)
        kind = event.pop("event", None)
        try:
            if kind == "pass":
                self._passes.append(Pass(started=time, **event))
            elif kind == "calibration":
                self._thread_rates[event["digest"]] = float(event["pairs_per_second"])
            elif kind == "drift":
                self.checks.append(DriftCheck(time=time, **event))
        except (TypeError, KeyError, ValueError):  # the event is of another version of this package
            return

    def poll(self, find: Callable[[str], Any], n_threads: int, now: float) -> None:
        """Poll the passes that run or have just ended.

        Parameters
        ----------
        find
            Function from an identifier to its span, or ``None`` if it has no task yet.
        n_threads
            Number of threads of all workers.
        now
            Time in seconds since the epoch.
        """
        for one in self._passes:
            if one.ended is not None and now > one.ended + LATE_SECONDS:
                continue
            span = find(one.span)
            if span is None:
                if one.ended is None and now > one.started + LATE_SECONDS:
                    one.ended = one.started  # refused before there was a task
                continue
            one.count(span.cumulative_worker_metrics)
            if one.ended is None:
                one.poll(self._thread_rates.get(one.digest, math.nan) * n_threads, now)
            one.ended = span.stop if span.done else None


def _sum(metrics: Mapping[Any, float], activity: str, unit: str) -> int:
    return int(
        sum(
            value
            for key, value in metrics.items()
            if isinstance(key, tuple) and key[0] == "execute" and key[-2:] == (activity, unit)
        )
    )
