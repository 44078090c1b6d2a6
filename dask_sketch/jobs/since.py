"""Find since which run data differs, once a test of drift has found a difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_sketch.display.text import text_table
from dask_sketch.distributions.segmentation import ChangePoints
from dask_sketch.errors import InputError, LedgerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dask_sketch.jobs.ledger.reader import LedgerReader

# Chance to name a run where nothing changes. It raises no alarm, so it is not that of the test.
_LEVEL = 0.05
HEADER = ("first run after the change", "date", "discrepancy", "interval", "p-value")


@dataclass(frozen=True)
class Since:
    """Run since which the data differs; prints as a sentence and a table.

    Attributes
    ----------
    changes
        Change points between the runs; ``None`` if they were not searched.
    reason
        Reason why they were not searched.
    """

    changes: ChangePoints | None
    reason: str = ""

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
        more = f"; {n_earlier} earlier change{'s' * (n_earlier > 1)}" if n_earlier else ""
        return (
            f"The last change of the distribution came with run {last.dated_label} "
            f"(p = {last.p_value:.2g}){more}."
        )

    @property
    def remedy(self) -> str:
        """End of the advice to look at the features that differ."""
        if self.changes is None or not self.changes.points:
            return "."
        last = self.changes.points[-1]
        return f", and for what has changed in the source before run {last.dated_label}."

    @property
    def note(self) -> str:
        """Explanation of the table; empty without change points."""
        found = self.changes
        if found is None or not found.points:
            return ""
        return (
            f"Changes between runs were searched in {found.n_units:,} units, with a chance of "
            f"{found.level:.0%} to find any where there is none; a discrepancy is that of the data "
            "before a change, from the change before it, and the data after it, until the next."
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Cells of a table of the change points, the latest first, below :data:`HEADER`."""
        points = () if self.changes is None else self.changes.points
        return [
            (
                str(one.label),
                one.date or "unknown",
                f"{one.discrepancy:.3g}",
                "{:.2g} to {:.2g}".format(*one.interval),
                f"{one.p_value:.2g}",
            )
            for one in reversed(points)
        ]

    def __str__(self) -> str:
        rows = self.rows
        return f"{self.sentence}\n\n{text_table(rows, header=HEADER)}" if rows else self.sentence

    def as_dict(self) -> dict[str, Any]:
        """All attributes and the sentence, as plain values."""
        changes = None if self.changes is None else self.changes.as_dict()
        return {"changes": changes, "reason": self.reason, "sentence": self.sentence}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Since:
        """Restore from :meth:`as_dict`, also after it was stored as JSON."""
        found = values["changes"]
        return cls(None if found is None else ChangePoints.from_dict(found), values["reason"])


def since_when(
    ledger: LedgerReader, unit: str, strata: str | None, seed: int, *, serial: bool = False
) -> Since:
    """Search the runs of a ledger for the last change of the distribution.

    Parameters
    ----------
    ledger
        Ledger.
    unit, strata
        As in the test of drift; see :meth:`Ledger.drift`.
    seed
        Seed of the permutations, ``>= 0``.
    serial
        Whether successive runs depend on each other.

    Returns
    -------
    since
    """
    try:
        return Since(
            ledger.change_points(unit=unit, strata=strata, serial=serial, level=_LEVEL, seed=seed)
        )
    except InputError as error:  # too few units, or too little memory
        return Since(None, str(error))
    except LedgerError as error:
        if error.parameter != "strata":
            raise
        return Since(None, str(error))
