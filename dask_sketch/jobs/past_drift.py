"""Tests of drift of all runs of a ledger, as a table and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dask_sketch.display.comparison_plots import plot_discrepancies
from dask_sketch.display.html import card, html_table
from dask_sketch.display.plots import notebook_axes
from dask_sketch.display.text import fields_text, text_table
from dask_sketch.distributions.result import TwoSampleTest
from dask_sketch.distributions.segmentation import ChangePoints
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.ledger import open_ledger
from dask_sketch.jobs.ledger.reader import LedgerReader
from dask_sketch.jobs.since import Since

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from dask_sketch.jobs.ledger.history import RunRecord

_HEADER = ("run", "date", "discrepancy", "interval", "p-value", "result")


@dataclass(frozen=True, repr=False)
class DriftHistory:
    """Tests of the newest data against the data before, of several runs; prints as a table.

    Attributes
    ----------
    runs
        Numbers of the runs with a test.
    dates
        Date at which each of them ended.
    tests
        Test of each run.
    alarms
        Whether the run raised an alarm.
    changes
        Numbers of the first runs after a change of the distribution, as the last run with an alarm
        has found them.
    """

    runs: tuple[int, ...]
    dates: tuple[str, ...]
    tests: tuple[TwoSampleTest, ...]
    alarms: tuple[bool, ...]
    changes: tuple[int, ...]

    @classmethod
    def from_records(cls, records: Sequence[RunRecord]) -> DriftHistory:
        """Collect the tests of runs, in their order; runs without a test are left out."""
        tested = [one for one in records if one.results.get("drift") is not None]
        changes: tuple[int, ...] = ()
        for record in reversed(records):
            stored = record.results.get("since")
            found = None if stored is None else Since.from_dict(stored).changes
            if found is not None:
                changes = _first_runs(found)
                break
        return cls(
            tuple(one.number for one in tested),
            tuple(one.ended[:10] for one in tested),
            tuple(TwoSampleTest.from_dict(one.results["drift"]) for one in tested),
            tuple(bool(one.results.get("alarm")) for one in tested),
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
        run, date, test, alarm
            Its number, date, test, and whether it raised an alarm.
        changes
            Change points that were found then; ``None`` for those known before.
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

        Raises
        ------
        InputError
            If matplotlib is missing.
        """
        return plot_discrepancies(
            self.runs,
            [one.discrepancy for one in self.tests],
            [one.interval for one in self.tests],
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
    return tuple(int(one.label) for one in changes.points)


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
    found = DriftHistory.from_records(opened.history())
    if not len(found):
        raise LedgerError(
            f"{opened.label} has no test of drift: the first one comes with a run of a job whose "
            "file has a table [drift], and that has earlier data to compare with."
        )
    return found
