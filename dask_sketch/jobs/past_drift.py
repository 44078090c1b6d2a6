"""Tests of drift of all runs of a ledger, and the last change of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_sketch.display.comparison_plots import plot_discrepancies
from dask_sketch.display.html import card, html_table
from dask_sketch.display.plots import notebook_axes
from dask_sketch.display.text import counted, fields_text, text_table
from dask_sketch.distributions.testing.result import TwoSampleTest
from dask_sketch.distributions.testing.segmentation import ChangePoint, ChangePoints
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.jobs.ledger.ledger import open_ledger
from dask_sketch.jobs.ledger.reader import LedgerReader

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from dask_sketch.jobs.ledger.history import RunRecord

_HEADER = ("run", "date", "discrepancy", "interval", "p-value", "result")
# Probability of naming a run where nothing changes. It raises no alarm, so it does not depend on
# the level of the test.
_LEVEL = 0.05
HEADER = ("first run after the change", "date", "discrepancy", "interval", "p-value")


@dataclass(frozen=True, repr=False)
class DriftHistory:
    """Tests of the newest data against earlier data, for several runs; prints as a table.

    Attributes
    ----------
    runs
        Numbers of the runs with a test.
    dates
        Date of the end of each run.
    tests
        Test of each run.
    alarms
        Whether each run raised an alarm.
    changes
        Numbers of the first runs after a change of the distribution, as found by the last run with
        an alarm.
    """

    runs: tuple[int, ...]
    dates: tuple[str, ...]
    tests: tuple[TwoSampleTest, ...]
    alarms: tuple[bool, ...]
    changes: tuple[int, ...]

    @classmethod
    def from_records(cls, records: Sequence[RunRecord]) -> DriftHistory:
        """Collect the tests of runs, in their order; runs without a test are left out."""
        tested = [entry for entry in records if entry.results.get("drift") is not None]
        changes: tuple[int, ...] = ()
        for record in reversed(records):
            stored = record.results.get("since")
            points = None if stored is None else LastChange.from_dict(stored).changes
            if points is not None:
                changes = _first_runs(points)
                break
        return cls(
            tuple(entry.number for entry in tested),
            tuple(entry.ended[:10] for entry in tested),
            tuple(TwoSampleTest.from_dict(entry.results["drift"]) for entry in tested),
            tuple(bool(entry.results.get("alarm")) for entry in tested),
            changes,
        )

    def with_run(
        self,
        run: int,
        date: str,
        test: TwoSampleTest,
        *,
        alarm: bool,
        changes: ChangePoints | None,
    ) -> DriftHistory:
        """Add the test of a later run.

        Parameters
        ----------
        run
            Number of the run.
        date
            Date of its end.
        test
            Test of the run.
        alarm
            Whether the run raised an alarm.
        changes
            Change points that the run found; ``None`` to keep the earlier ones.

        Returns
        -------
        history
            History with the run at its end.
        """
        return DriftHistory(
            (*self.runs, run),
            (*self.dates, date),
            (*self.tests, test),
            (*self.alarms, alarm),
            self.changes if changes is None else _first_runs(changes),
        )

    def __len__(self) -> int:
        return len(self.runs)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the discrepancy of each run with its interval, alarms, and changes.

        Parameters
        ----------
        ax
            Axes to draw into.

        Returns
        -------
        ax
            Axes with the plot.

        Raises
        ------
        InputError
            If matplotlib is missing.
        """
        return plot_discrepancies(
            self.runs,
            [test.discrepancy for test in self.tests],
            [test.interval for test in self.tests],
            self.alarms,
            changes=self.changes,
            tolerance=self.tests[-1].tolerance if self.tests else 0.0,
            ax=notebook_axes(ax),
        )

    def _rows(self) -> list[tuple[str, ...]]:
        rows = zip(self.runs, self.dates, self.tests, self.alarms, strict=True)
        return [
            (
                str(run),
                date,
                f"{test.discrepancy:.3g}",
                "{:.2g} to {:.2g}".format(*test.interval),
                f"{test.p_value:.2g}",
                "alarm" if alarm else "",
            )
            for run, date, test, alarm in rows
        ]

    def _fields(self) -> dict[str, str]:
        return {
            "tests": f"{len(self):,}",
            "alarms": f"{sum(self.alarms):,}",
            "runs after a change": ", ".join(map(str, self.changes)) or "none known",
        }

    def __repr__(self) -> str:
        return "\n\n".join([fields_text(self._fields()), text_table(self._rows(), header=_HEADER)])

    def _repr_html_(self) -> str:
        return card("DriftHistory", self._fields(), below=html_table(_HEADER, self._rows()))


def _first_runs(changes: ChangePoints) -> tuple[int, ...]:
    return tuple(int(point.label) for point in changes.points)


def drift_history(ledger: LedgerReader | str | os.PathLike[str]) -> DriftHistory:
    """Collect the tests of drift of all runs of a ledger.

    Parameters
    ----------
    ledger
        Ledger of a job, or its path.

    Returns
    -------
    history
        Tests with their sizes and intervals.

    Raises
    ------
    LedgerError
        If there is no ledger, or no run has made a test.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> from dask_sketch.distributions import compare
    >>> from dask_sketch.jobs.ledger import RunRecord, create_ledger
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> rows = np.random.default_rng(0).normal(size=(90, 2))
    >>> files = partial_sketch(rows, feature_map, groups=np.arange(90) % 9, dim="file")
    >>> test = compare(files.select([0, 1, 2, 3]), files.select([4, 5, 6, 7, 8]))
    >>> ledger = create_ledger(tempfile.mkdtemp() + "/ledger.zarr", feature_map)
    >>> with ledger.lock():  # as a job does
    ...     day = "2026-06-01T03:00:00+00:00"
    ...     ledger.commit(run=RunRecord(1, day, day, "done", results={"drift": test.as_dict()}))
    >>> history = drift_history(ledger)
    >>> history.runs, history.tests == (test,)
    ((1,), True)
    """
    opened = ledger if isinstance(ledger, LedgerReader) else open_ledger(ledger)
    history = DriftHistory.from_records(opened.history())
    if not len(history):
        raise LedgerError(
            f"{opened.label} has no test of drift: the first one comes with a run of a job whose "
            "file has a table [drift], and that has earlier data to compare with."
        )
    return history


@dataclass(frozen=True)
class LastChange:
    """Run since which the data differs; prints as a sentence and a table.

    Attributes
    ----------
    changes
        Change points between the runs; ``None`` if there was no search.
    reason
        Reason why there was no search.
    """

    changes: ChangePoints | None
    reason: str = ""

    @property
    def last(self) -> ChangePoint | None:
        """Last change of the distribution; None if none is known."""
        points = () if self.changes is None else self.changes.points
        return points[-1] if points else None

    @property
    def sentence(self) -> str:
        """Result in one sentence."""
        if self.changes is None:
            return f"The run of the change is not known: {self.reason}"
        if not self.changes.points:
            return (
                "The run of the change is not clear: no change between two runs is significant by "
                f"itself (p = {self.changes.p_value:.2g})."
            )
        last, n_earlier = self.changes.points[-1], len(self.changes.points) - 1
        more = f"; {counted(n_earlier, 'earlier change')}" if n_earlier else ""
        return (
            f"The last change of the distribution came with run {last.dated_label} "
            f"(p = {last.p_value:.2g}){more}."
        )

    @property
    def remedy(self) -> str:
        """End of the advice to look at the features that differ."""
        last = self.last
        if last is None:
            return "."
        return f", and for what has changed in the source before run {last.dated_label}."

    @property
    def note(self) -> str:
        """Explanation of the table; empty without change points."""
        changes = self.changes
        if changes is None or not changes.points:
            return ""
        return (
            f"Changes between runs were searched in {changes.n_units:,} units, with a probability "
            f"of {changes.level:.0%} of finding any where there is none. A discrepancy compares "
            "the data back to the previous change with the data up to the next one."
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Cells of a table of the change points, the latest first, below :data:`HEADER`."""
        points = () if self.changes is None else self.changes.points
        return [
            (
                str(point.label),
                point.date or "unknown",
                f"{point.discrepancy:.3g}",
                "{:.2g} to {:.2g}".format(*point.interval),
                f"{point.p_value:.2g}",
            )
            for point in reversed(points)
        ]

    def __str__(self) -> str:
        rows = self.rows
        return f"{self.sentence}\n\n{text_table(rows, header=HEADER)}" if rows else self.sentence

    def as_dict(self) -> dict[str, Any]:
        """All attributes and the sentence, as plain values."""
        changes = None if self.changes is None else self.changes.as_dict()
        return {"changes": changes, "reason": self.reason, "sentence": self.sentence}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LastChange:
        """Restore from the result of :meth:`as_dict`, also after it was stored as JSON."""
        changes = values["changes"]
        return cls(None if changes is None else ChangePoints.from_dict(changes), values["reason"])


def find_last_change(
    ledger: LedgerReader, unit: str, strata: str | None, seed: int, *, serial: bool = False
) -> LastChange:
    """Search the runs of a ledger for the last change of the distribution.

    Parameters
    ----------
    ledger
        Ledger.
    unit, strata
        Arguments of the test of drift, see :meth:`Ledger.drift`.
    seed
        Seed of the permutations, ``>= 0``.
    serial
        Whether successive runs depend on each other.

    Returns
    -------
    since
        Last change; without changes, the reason why there was no search.
    """
    try:
        return LastChange(
            ledger.change_points(unit=unit, strata=strata, serial=serial, level=_LEVEL, seed=seed)
        )
    except InputError as error:  # too few units, or too little memory
        return LastChange(None, str(error))
    except LedgerError as error:
        if error.parameter != "strata":
            raise
        return LastChange(None, str(error))
