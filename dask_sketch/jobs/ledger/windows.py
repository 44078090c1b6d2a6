"""Choice of the partitions of a ledger that runs of some time have read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

import pandas as pd

from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.history import RunRecord
from dask_sketch.jobs.ledger.partitions import Entry

# A number of runs, a span of time such as "7 days", or a function of the key of a partition.
Window: TypeAlias = int | str | Callable[[str], bool]


def window_keys(
    entries: Mapping[str, Entry],
    records: Sequence[RunRecord],
    window: Window,
    name: str,
    before: Iterable[str] = (),
) -> list[str]:
    """Keys of the partitions in a window, the newest first.

    Parameters
    ----------
    entries
        Entries of the ledger.
    records
        Records of its runs.
    window
        Number of runs, counted from the newest one that read a partition; span of time until the
        newest of them, such as ``"7 days"``; or a function of a key.
    name
        Name of the argument, for messages.
    before
        Keys of a later window: only partitions of earlier runs are chosen, except by a function.

    Raises
    ------
    LedgerError
        If the window is of another type or holds no partitions.
    """
    later = set(before)
    end = min((entries[key].run for key in later), default=None)
    rest = {
        key: entry
        for key, entry in entries.items()
        if key not in later and (end is None or callable(window) or entry.run < end)
    }
    chosen = _runs_or_keys(rest, records, window, name)
    found = [key for key, entry in rest.items() if key in chosen or entry.run in chosen]
    if not found:
        raise LedgerError(
            f"{name}={window!r} holds no partitions of the {len(rest):,} to choose from. Give a "
            "longer window.",
            parameter=name,
        )
    return sorted(found, key=lambda key: (-entries[key].run, key))


def _runs_or_keys(
    entries: Mapping[str, Entry], records: Sequence[RunRecord], window: Window, name: str
) -> set[int] | set[str]:
    runs = sorted({entry.run for entry in entries.values()}, reverse=True)
    if callable(window):
        return {key for key in entries if window(key)}
    if isinstance(window, int) and not isinstance(window, bool) and window >= 1:
        return set(runs[:window])
    if isinstance(window, str):
        span = _span(window, name)
        started = start_times(records)
        times = {run: started[run] for run in runs if run in started}
        newest = max(times.values(), default=None)
        return {run for run, time in times.items() if newest is not None and newest - time < span}
    raise LedgerError(
        f'{name}={window!r}: give a number of runs, a span of time such as "7 days", or a function '
        "of the key of a partition.",
        parameter=name,
    )


def _span(window: str, name: str) -> timedelta:
    try:
        span = pd.Timedelta(window).to_pytimedelta()
    except (ValueError, OverflowError, AttributeError):  # AttributeError: "NaT"
        span = timedelta(0)
    if not span > timedelta(0):
        raise LedgerError(
            f'{name}={window!r} is no span of time: give one such as "7 days" or "36 hours".',
            parameter=name,
        )
    return span


def start_times(records: Sequence[RunRecord]) -> dict[int, datetime]:
    """Times at which runs started, by their numbers."""
    return {record.number: datetime.fromisoformat(record.started) for record in records}
