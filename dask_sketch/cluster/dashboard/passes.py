"""How far each pass is and how fast: what the scheduler knows of them, once a second."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask_sketch.graph.telemetry import MERGED, PAIRS, PARTIALS, ROWS, SKETCHED

MOST_PASSES = 20  # that are remembered
MOST_LOOKS = 600  # of one pass; then every second one is dropped
RATE_SECONDS = 10.0  # over which a rate is taken: a chunk is reported when it is done
LATE_SECONDS = 30.0  # in which numbers may come after the last task: with the next heartbeats


@dataclass(frozen=True)
class Look:
    """One look at a pass.

    Attributes
    ----------
    seconds
        Since the pass was announced.
    rows, pairs
        Sketched until now.
    rate
        Pairs a second, over the last ten seconds.
    limit
        Pairs a second that the threads there are can do by calibration; NaN if there is none.
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
    """One pass, and what has been seen of it.

    Attributes
    ----------
    span
        Of its tasks.
    source
        Name of the input.
    n_samples, n_chunks
        As announced; samples are ``None`` where only the pass can tell.
    n_features, n_frequencies, digest
        Of the feature map.
    started
        When it was announced, in seconds since the epoch.
    ended
        When its last task ended; ``None`` as long as there are others.
    rows, pairs, partials
        Rows and (row, frequency) pairs sketched, and partial sketches merged by the tree; those
        that were lost with a worker and done again count twice.
    looks
        The course of it.
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
    looks: list[Look] = field(default_factory=list)
    _every: int = 1  # so many looks are one
    _skipped: int = 0

    @property
    def seconds(self) -> float:
        """Since it was announced, until its end or the last look."""
        if self.ended is not None:
            return self.ended - self.started
        return self.looks[-1].seconds if self.looks else 0.0

    @property
    def rate(self) -> float:
        """Pairs a second: of late, and of the whole pass when it is over."""
        if self.ended is not None:
            return self.pairs / max(self.seconds, 1e-9)
        return self.looks[-1].rate if self.looks else 0.0

    @property
    def limit(self) -> float:
        """Pairs a second by calibration; NaN if there is none."""
        return self.looks[-1].limit if self.looks else math.nan

    @property
    def noise(self) -> float:
        """Noise of |z|, NaN before the first row."""
        return 1.0 / math.sqrt(self.rows) if self.rows else math.nan

    def count(self, metrics: Mapping[Any, float]) -> None:
        """Take in the numbers of the workers, by context, task, activity and unit."""
        self.rows = _sum(metrics, SKETCHED, ROWS)
        self.pairs = _sum(metrics, SKETCHED, PAIRS)
        self.partials = _sum(metrics, MERGED, PARTIALS)

    def see(self, limit: float, now: float) -> None:
        """Note how far it is now."""
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        seconds = now - self.started
        before = (one for one in reversed(self.looks) if one.seconds <= seconds - RATE_SECONDS)
        first = next(before, None)
        pairs, spent = (0, seconds) if first is None else (first.pairs, seconds - first.seconds)
        rate = (self.pairs - pairs) / max(spent, 1e-9)
        self.looks.append(Look(seconds, self.rows, self.pairs, rate, limit, self.noise))
        if len(self.looks) > MOST_LOOKS:
            self.looks = self.looks[::2]
            self._every *= 2


class Passes:
    """The passes that were announced, the latest last."""

    def __init__(self) -> None:
        self._passes: deque[Pass] = deque(maxlen=MOST_PASSES)
        self._thread_rates: dict[str, float] = {}  # by digest of the feature map

    def __len__(self) -> int:
        return len(self._passes)

    def __getitem__(self, number: int) -> Pass:
        return self._passes[number]

    @property
    def shown(self) -> Pass | None:
        """The latest that runs; if none does, the latest."""
        running = [one for one in self._passes if one.ended is None]
        latest = running or list(self._passes)
        return latest[-1] if latest else None

    def hear(self, message: Any, time: float) -> None:
        """Take in what a client announced; what is no such thing is not ours."""
        if not isinstance(message, Mapping):
            return
        found = dict(message)
        kind = found.pop("event", None)
        try:
            if kind == "pass":
                self._passes.append(Pass(started=time, **found))
            elif kind == "calibration":
                self._thread_rates[found["digest"]] = float(found["pairs_per_second"])
        except (TypeError, KeyError, ValueError):  # of another version of this package
            return

    def look(self, find: Callable[[str], Any], n_threads: int, now: float) -> None:
        """See how far those are that run, or ended a moment ago.

        Parameters
        ----------
        find
            Gives the span of an identifier, or ``None`` if no task of it has come.
        n_threads
            Of all workers.
        now
            In seconds since the epoch.
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
                one.see(self._thread_rates.get(one.digest, math.nan) * n_threads, now)
            one.ended = span.stop if span.done else None


def _sum(metrics: Mapping[Any, float], activity: str, unit: str) -> int:
    return int(
        sum(
            value
            for key, value in metrics.items()
            if isinstance(key, tuple) and key[0] == "execute" and key[-2:] == (activity, unit)
        )
    )
