"""Tables and pictures of a job's report on drift and on distances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dask_sketch.diagnostics.drift import Drift
from dask_sketch.diagnostics.report import Section
from dask_sketch.diagnostics.report_figures import Drawing
from dask_sketch.jobs.past_drift import DriftHistory
from dask_sketch.jobs.since import HEADER

if TYPE_CHECKING:
    from dask_sketch.jobs.outcome import Outcome
    from dask_sketch.jobs.results import Results

MAX_ROWS = 50  # of one table
_MAX_PICTURED = 365  # runs
_COMPARED = ("compared", "discrepancy", "noise of independent rows")


def drift_sections(results: Results) -> list[Section]:
    """Test of the newest data, the last change of the distribution, and distances.

    Parameters
    ----------
    results
        Results of the run.
    """
    return [_test(results), *_since(results), *_distances(results)]


def group_sections(outcome: Outcome) -> list[Section]:
    """Distances between groups, if there are any.

    Parameters
    ----------
    outcome
        Outcome of the run.
    """
    if not outcome.between:
        return []
    text = "Every two groups, the most distant first. Groups raise no alarm."
    return [Section("Distances between groups", text, _COMPARED, _compared(outcome.between))]


def drift_drawings(results: Results, outcome: Outcome) -> list[Drawing]:
    """Picture of the test of this run and of those before it, if there are several.

    Parameters
    ----------
    results, outcome
        Results and outcome of the run.
    """
    if results.drift is None:
        return []
    records = [one for one in results.ledger.history() if one.number < outcome.run]
    earlier = DriftHistory.from_records(records[-_MAX_PICTURED + 1 :])
    if not len(earlier):
        return []
    changes = results.since.changes if results.since else None
    found = earlier.with_run(outcome.run, "", results.drift, alarm=outcome.alarm, changes=changes)
    caption = (
        "Discrepancy of the newest data from the data before it, in each run, with its confidence "
        "interval."
    )
    return [Drawing("Drift by run", caption, found.plot)]


def _test(results: Results) -> Section:
    """Test of the newest data, with the features that differ."""
    found, table = results.drift, results.job.drift
    if found is None:
        return Section("Drift", f"No test. {results.untested}", (), ())
    (first, second), level = found.n_units, found.level
    alarms = table.false_alarms_per_year
    text = (
        f"{found.sentence} The newest {first:,} {found.dim}s were compared with {second:,} before; "
        f"they were permuted between the two sides. The level {level:.2g} is that of {alarms:g} "
        f"false alarm{'s' * (alarms != 1)} in {table.runs_per_year:g} runs"
        + (f"; the tolerance is {table.tolerance:g}." if table.tolerance else ".")
    )
    shown = found.features[:MAX_ROWS]
    rows: list[tuple[str, ...]] = [
        (
            one.name,
            f"{one.means[1]:.4g} ± {one.deviations[1]:.3g}",
            f"{one.means[0]:.4g} ± {one.deviations[0]:.3g}",
            f"{one.p_value:.2g}",
        )
        for one in shown
    ]
    strong = frozenset(i for i, one in enumerate(shown) if one.p_value <= level)
    return Section("Drift", text, ("feature", "before", "newest", "p-value"), rows, strong)


def _since(results: Results) -> list[Section]:
    """Table of the runs at which the distribution has changed, the latest first."""
    since = results.since
    if since is None:
        return []
    rows = since.rows[:MAX_ROWS]
    text = f"{since.sentence} {since.note}"
    return [Section("Last change", text, HEADER, rows, frozenset({0} if rows else ()))]


def _distances(results: Results) -> list[Section]:
    """Table of distances, which raise no alarm."""
    if not results.drifts:
        return []
    text = (
        "Maximum mean discrepancy (0 to 2) without its noise, and the discrepancy of noise alone "
        "if rows were independent. These raise no alarm."
    )
    return [Section("Distances", text, _COMPARED, _compared(results.drifts))]


def _compared(drifts: Mapping[str, Drift]) -> list[tuple[str, ...]]:
    """Rows of a table of distances."""
    return [
        (name, f"{found.discrepancy:.3g}", f"{np.sqrt(found.noise_level):.3g}")
        for name, found in list(drifts.items())[:MAX_ROWS]
    ]
