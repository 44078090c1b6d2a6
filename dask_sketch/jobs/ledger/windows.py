"""Choice of the partitions of a ledger that are compared, by the time of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from dask_sketch.distributions.testing.permutations import (
    smallest_p_value,
    smallest_shifted_p_value,
)
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.history import RunRecord
from dask_sketch.jobs.ledger.partitions import Entry
from dask_sketch.jobs.ledger.sums import Sums, n_bytes
from dask_sketch.sketching.merge import merge
from dask_sketch.validation.warn import warn_user

# A number of runs, a span of time such as "7 days", or a function of the key of a partition.
Window: TypeAlias = int | str | Callable[[str], bool]
_MAX_RUNS = 28  # runs of the default window, at most: four weeks of nights
_MAX_KEPT = 2**28  # bytes of the sums of runs in memory
_MAX_SEARCHED = 1000  # units among which changes are searched
_CLOCKS_AGREE = timedelta(minutes=5)
_MAX_HALVINGS = 32  # halvings of a weight, at most: smaller weights are not multiples of a quantum


@dataclass(frozen=True)
class Sides:
    """Units of the newest and of the earlier data, with the keys of their partitions.

    Attributes
    ----------
    newest, earlier
        Keys of each unit by its label: the key of a partition, or the number of a run.
    strata
        Stratum of each unit, for the newest and then for the earlier data, both in the order of
        their labels; ``None`` for one stratum.
    """

    newest: Mapping[Any, list[str]]
    earlier: Mapping[Any, list[str]]
    strata: list[Any] | None

    def smallest_p_value(self, *, serial: bool = False) -> float:
        """Smallest p-value that a test of these units can have; see :func:`compare`."""
        counts = len(self.newest), len(self.earlier)
        if serial:
            return smallest_shifted_p_value(np.repeat([True, False], counts))
        codes = np.zeros(sum(counts), dtype=np.intp)
        if self.strata is not None:
            codes = pd.factorize(np.array(self.strata, dtype=object))[0]
        return smallest_p_value(np.repeat([True, False], counts), codes)


def choose_sides(
    entries: Mapping[str, Entry],
    records: Sequence[RunRecord],
    window: Window | None,
    reference: Window | None,
    *,
    unit: str,
    strata: str | Callable[[str], Any] | None,
    max_units: int,
    level: float,
    serial: bool = False,
) -> Sides:
    """Choose the units of a test of drift; the arguments are described at :meth:`Ledger.drift`.

    Without a window, the fewest newest runs with enough partitions for the level are taken.

    Raises
    ------
    LedgerError
        If a window holds no partitions, or an argument is out of range.
    """
    _require_unit(unit, serial)
    if not (strata in (None, "weekday") or (callable(strata) and unit == "partition")):
        remedy = "a function of the key of a partition" if unit == "partition" else "None"
        raise LedgerError(
            f"strata={strata!r} for unit={unit!r}: give 'weekday' or {remedy}.",
            parameter="strata",
        )
    n_runs = len({entry.run for entry in entries.values()})
    longest = 1 if window is not None else max(min(n_runs - 1, _MAX_RUNS), 1)
    for n in range(1, longest + 1):
        newest = window_keys(entries, records, n if window is None else window, "window")
        if reference is None:
            rest = set(entries).difference(newest)
            if not rest:
                if window is None:
                    raise LedgerError(
                        f"the newest run holds all {len(entries):,} partitions, and none is left "
                        "to compare with: commit another run, or give the window as a function of "
                        "the key of a partition."
                    )
                raise LedgerError(
                    f"window={window!r} holds all {len(entries):,} partitions, and none is left to "
                    "compare with: give a shorter window.",
                    parameter="window",
                )
            earlier = window_keys(entries, records, rest.__contains__, "reference")
        else:
            earlier = window_keys(entries, records, reference, "reference", newest)
        first, second = (_units(entries, keys, unit, max_units) for keys in (newest, earlier))
        sides = Sides(first, second, _strata(entries, records, (first, second), unit, strata))
        if sides.smallest_p_value(serial=serial) <= level:
            break
    return sides


def choose_units(
    entries: Mapping[str, Entry],
    records: Sequence[RunRecord],
    window: Window | None,
    unit: str,
    strata: str | None,
    serial: bool = False,
) -> tuple[dict[Any, list[str]], list[Any] | None, list[int]]:
    """Choose the units among which change points are searched, with their strata and runs.

    The arguments are described at :meth:`Ledger.change_points`.

    Raises
    ------
    LedgerError
        If the window holds no partitions, or an argument is out of range.
    """
    _require_unit(unit, serial)
    if strata not in (None, "weekday"):
        raise LedgerError(f"strata={strata!r}: give 'weekday' or None.", parameter="strata")
    if not entries:
        raise LedgerError("the ledger has no partitions yet: commit those of several runs.")
    chosen = entries.__contains__ if window is None else window
    every = window_keys(entries, records, chosen, "window")
    units = _units(entries, every, unit, _MAX_SEARCHED)
    runs = [entries[keys[0]].run for keys in units.values()]
    return units, _strata(entries, records, [units], unit, strata), runs


def _require_unit(unit: str, serial: bool) -> None:
    if unit not in ("partition", "run"):
        raise LedgerError(f"unit={unit!r}: give 'partition' or 'run'.", parameter="unit")
    if serial and unit != "run":
        raise LedgerError(
            f"unit={unit!r} with serial=True: runs have an order in time. Give 'run'.",
            parameter="unit",
        )


def _units(
    entries: Mapping[str, Entry], keys: Sequence[str], unit: str, max_units: int
) -> dict[Any, list[str]]:
    """Keys of each of the newest units, by its label, in the order of the labels."""
    by_unit: dict[Any, list[str]] = {}
    for key in keys:
        label: Any = key if unit == "partition" else entries[key].run
        if label in by_unit or len(by_unit) < max_units:
            by_unit.setdefault(label, []).append(key)
    return dict(sorted(by_unit.items()))


def _strata(
    entries: Mapping[str, Entry],
    records: Sequence[RunRecord],
    units: Sequence[Mapping[Any, list[str]]],
    unit: str,
    strata: str | Callable[[str], Any] | None,
) -> list[Any] | None:
    labels = [label for side in units for label in side]
    if strata is None:
        return None
    if callable(strata):
        return [strata(label) for label in labels]
    runs = [label if unit == "run" else entries[label].run for label in labels]
    started = start_times(records)
    missing = [run for run in runs if run not in started]
    if missing:
        raise LedgerError(
            f"strata='weekday': the ledger has no record of run {missing[0]}, so that its "
            "weekday is unknown. Leave strata out.",
            parameter="strata",
        )
    return [started[run].weekday() for run in runs]


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
        Number of runs, counted from the newest run that read a partition; span of time before the
        start of this run, such as ``"7 days"``; or a function of a key. Partitions of a later run
        without a record, which is under way or was killed, are in every span.
    name
        Name of the argument, for messages.
    before
        Keys of a later window: only partitions of earlier runs are chosen, except by a function.

    Returns
    -------
    keys
        Keys of the chosen partitions.

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
    keys = [key for key, entry in rest.items() if key in chosen or entry.run in chosen]
    if not keys:
        raise LedgerError(
            f"{name}={window!r} holds no partitions of the {len(rest):,} to choose from. Give a "
            "longer window.",
            parameter=name,
        )
    return sorted(keys, key=lambda key: (-entries[key].run, key))


def _runs_or_keys(
    entries: Mapping[str, Entry], records: Sequence[RunRecord], window: Window, name: str
) -> set[int] | set[str]:
    runs = sorted({entry.run for entry in entries.values()}, reverse=True)
    if callable(window):
        return {key for key in entries if window(key)}
    if isinstance(window, (int, np.integer)) and not isinstance(window, bool) and window >= 1:
        return set(runs[: int(window)])
    if isinstance(window, str):
        span = _span(window, name)
        started = start_times(records)
        times = {run: started[run] for run in runs if run in started}
        if runs and not times:
            raise LedgerError(
                f"{name}={window!r}: the ledger has no record of a run, so that the ages of its "
                "partitions are unknown. Give a number of runs.",
                parameter=name,
            )
        _warn_of_clocks(times, f"{name}={window!r}")
        # the run of the highest number: the clock may have been wrong in an earlier one
        last = max(times, default=0)
        # runs after it are under way or were killed, and their partitions are the newest
        return {run for run in runs if run > last or _is_within(times, run, last, span)}
    raise LedgerError(
        f'{name}={window!r}: give a number of runs, a span of time such as "7 days", or a function '
        "of the key of a partition.",
        parameter=name,
    )


def _is_within(times: Mapping[int, datetime], run: int, last: int, span: timedelta) -> bool:
    return run in times and abs(times[last] - times[run]) < span


def parse_span(text: str) -> timedelta:
    """Parse a span of time.

    Raises
    ------
    ValueError
        If the text is not a positive span of time.

    Examples
    --------
    >>> parse_span("36 hours")
    datetime.timedelta(days=1, seconds=43200)
    """
    try:
        span = pd.Timedelta(text).to_pytimedelta()
    except (OverflowError, AttributeError):  # AttributeError: "NaT"
        span = timedelta(0)
    if not span > timedelta(0):
        raise ValueError(f"{text!r} is not a positive span of time")
    return span


def _span(window: str, name: str) -> timedelta:
    try:
        return parse_span(window)
    except ValueError as error:
        raise LedgerError(
            f'{name}={window!r} is not a span of time: give one such as "7 days" or "36 hours".',
            parameter=name,
        ) from error


def start_times(records: Sequence[RunRecord]) -> dict[int, datetime]:
    """Times at which runs started, by their numbers."""
    return {record.number: datetime.fromisoformat(record.started) for record in records}


def _warn_of_clocks(started: Mapping[int, datetime], argument: str) -> None:
    """Warn of a run that started before an earlier one, by the clocks of their machines."""
    latest: int | None = None
    for run in sorted(started):
        if latest is not None and started[run] < started[latest] - _CLOCKS_AGREE:
            warn_user(
                f"{argument}: by its clock, run {run} started at {started[run]:%Y-%m-%d %H:%M}, "
                f"before run {latest} at {started[latest]:%Y-%m-%d %H:%M}. One of the clocks was "
                "wrong, and so are ages here. Choose partitions by a number of runs."
            )
            return
        if latest is None or started[run] > started[latest]:
            latest = run


class RunTotals:
    """Sums over the partitions of each run of a window, which are kept for the next window.

    If the next window has moved by one run, only the partitions of this run are read.

    Parameters
    ----------
    read
        Function from the keys of partitions, and whether to read their random rows, to the sum of
        their sketches.
    """

    def __init__(self, read: Callable[[list[str], bool], Sums]):
        self._read = read
        self._kept: dict[int, tuple[object, Sums]] = {}

    def merged(
        self,
        entries: Mapping[str, Entry],
        keys: Iterable[str],
        weights: Mapping[int, float] | None = None,
        *,
        sample: bool = True,
    ) -> Sums:
        """Sum over the partitions of the given keys.

        Parameters
        ----------
        entries
            Entries of the ledger.
        keys
            Keys of partitions, at least one.
        weights
            Weight of each run; other runs are left out. By default all runs have weight one.
        sample
            Whether the sum carries random rows, if the ledger keeps any.
        """
        runs: dict[int, list[tuple[str, str]]] = {}
        for key in sorted(keys):
            entry = entries[key]
            if weights is None or entry.run in weights:
                runs.setdefault(entry.run, []).append((key, entry.batch))
        by_number: dict[int, tuple[object, Sums]] = {}
        for run, members in sorted(runs.items()):
            cached = self._kept.get(run)
            # a partition of the run may have been replaced or forgotten
            if cached is None or cached[0] != (sample, members):
                cached = (sample, members), self._read([key for key, _ in members], sample)
            by_number[run] = cached
        totals = {run: total for run, (_, total) in by_number.items()}
        self._kept = by_number if sum(map(n_bytes, totals.values())) <= _MAX_KEPT else {}
        if weights is not None:
            totals = {run: total.scale(weights[run]) for run, total in totals.items()}
        return merge(list(totals.values()))


def decayed_weights(
    entries: Mapping[str, Entry],
    records: Sequence[RunRecord],
    keys: Sequence[str],
    half_life: str,
) -> dict[int, float]:
    """Weights of the runs that read the given partitions: one for the newest, less with age.

    Runs are left out after 32 half-lives.

    Raises
    ------
    LedgerError
        If the half-life is not a span of time, or the start of a run is unknown.
    """
    try:
        span = parse_span(half_life)
    except (TypeError, ValueError) as error:
        raise LedgerError(
            f'half_life={half_life!r} is not a span of time: give one such as "7 days".',
            parameter="half_life",
        ) from error
    started = start_times(records)
    runs = {entries[key].run for key in keys}
    unknown = sorted(runs.difference(started))
    if unknown:
        raise LedgerError(
            f"half_life={half_life!r}: the ledger has no record of run {unknown[0]}, so that its "
            "age is unknown. Leave half_life out.",
            parameter="half_life",
        )
    _warn_of_clocks({run: started[run] for run in runs}, f"half_life={half_life!r}")
    newest = started[max(runs)]  # the clock may have been wrong in an earlier one
    halvings = {run: abs(newest - started[run]) / span for run in runs}
    return {run: 0.5**n for run, n in halvings.items() if n <= _MAX_HALVINGS}
