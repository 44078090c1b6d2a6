"""Sections of the report of a run: its outcome, its plan, earlier runs, drift and distances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.diagnostics.drift import Drift
from dask_sketch.diagnostics.report import Answer, Section
from dask_sketch.diagnostics.report_figures import Drawing
from dask_sketch.display.text import counted, describe_bytes
from dask_sketch.jobs.outcome import DONE, Outcome, model_text, noted_status
from dask_sketch.jobs.past_drift import HEADER, DriftHistory

if TYPE_CHECKING:
    from dask_sketch.jobs.results import Results

MAX_ROWS = 50  # rows of one table, at most
_MAX_RUNS = 10  # earlier runs in a table
_MAX_PICTURED = 365  # runs in a picture
_COMPARED = ("compared", "discrepancy", "noise of independent rows")


def complete_answer(outcome: Outcome) -> Answer:
    """Answer whether all data is in the result.

    Parameters
    ----------
    outcome
        Outcome of the run.
    """
    whole = f"{outcome.samples:,} samples in {counted(outcome.partitions, 'partition')}"
    left_out = len(outcome.quarantined)
    text = [f"Yes: all data is in the result, {whole}."]
    if outcome.later_failure:
        text = [
            f"No, this page is out of date: {outcome.later_failure}",
            f"The result of the last complete run holds {whole}.",
        ]
    elif left_out:
        text = [
            f"No, it is incomplete: {counted(left_out, 'partition')} could not be read and left "
            "out.",
            f"The result holds {whole}.",
        ]
    if outcome.omitted:
        text.append(f"{outcome.omitted:,} rows of this run were omitted: they are not finite.")
    if outcome.forgotten:
        forgotten = counted(outcome.forgotten, "partition")
        text.append(f"Left out on purpose: {forgotten} to be forgotten.")
    if outcome.damage is not None:
        text.append(f"Damage: {outcome.damage}")
    strong = bool(left_out or outcome.damage or outcome.later_failure)
    return Answer("Is it complete?", text, strong)


def partitions_sentence(outcome: Outcome) -> str:
    """Numbers of new, changed and deleted partitions as a sentence.

    Parameters
    ----------
    outcome
        Outcome of the run.
    """
    return (
        f"Partitions: {outcome.new:,} new, {outcome.changed:,} changed, {outcome.deleted:,} "
        "deleted."
    )


def breach_sentences(outcome: Outcome) -> list[str]:
    """Verdict on a run whose data is beyond limits, and these limits.

    Parameters
    ----------
    outcome
        Outcome of the run.
    """
    return ["No: the data of this run is beyond the limits of the job file.", *outcome.breaches]


def run_steps(outcome: Outcome) -> list[str]:
    """Actions that follow from the outcome, whatever the kind of the models.

    Parameters
    ----------
    outcome
        Outcome of the run.
    """
    steps = []
    if outcome.later_failure:
        steps.append("Remove the cause of the failure, and run the job again.")
    if outcome.quarantined:
        steps.append("Restore the partitions in quarantine, or remove them: each run tries again.")
    if outcome.breaches:
        steps.append(
            "Check the source of the data that is beyond the limits. The next run reads a "
            "partition that was corrected again."
        )
    if outcome.damage is not None:
        steps.append("Check the disk of the ledger.")
    return [*steps, *outcome.notes]


def run_sentences(outcome: Outcome) -> list[str]:
    """Summary of the run in sentences.

    Parameters
    ----------
    outcome
        Outcome of the run.
    """
    return [
        f"Run {outcome.run} read {outcome.samples_read:,} of them and took "
        f"{sum(outcome.seconds.values()):.3g} s in all."
    ]


def plan_section(outcome: Outcome, planned: Mapping[str, Any]) -> list[Section]:
    """Table of the plan beside the outcome, if there is a plan.

    Parameters
    ----------
    outcome
        Outcome of the run.
    planned
        Fields of the plan, see :meth:`JobPlan.as_dict`.
    """
    if not planned:
        return []
    counts = {
        "new partitions": ("new", outcome.new),
        "changed partitions": ("changed", outcome.changed),
        "deleted partitions": ("deleted", outcome.deleted),
        "forgotten partitions": ("forgotten", outcome.forgotten),
        "samples": ("n_samples", outcome.samples_read),
    }
    rows = [(name, _count(planned.get(key)), _count(done)) for name, (key, done) in counts.items()]
    for name, key, done in (
        ("bytes read", "bytes_read", describe_bytes(outcome.bytes_read)),
        ("ledger grows by, at most", "ledger_bytes", ""),
        ("memory per thread", "memory_per_thread", ""),
    ):
        rows.append((name, describe_bytes(planned.get(key)), done))
    rows += [(f"seconds to {step}", "", f"{spent:.2f}") for step, spent in outcome.seconds.items()]
    return [Section("Plan and outcome", "", ("", "plan", "outcome"), rows)]


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def past_section(results: Results, outcome: Outcome) -> list[Section]:
    """Table of the earlier runs, if there are any.

    Parameters
    ----------
    results, outcome
        Results and outcome of the run.
    """
    records = [record for record in results.ledger.history() if record.number < outcome.run][
        -_MAX_RUNS:
    ]
    if not records:
        return []
    rows = [
        (
            str(record.number),
            record.ended.replace("T", " ")[:16],
            noted_status(record.status, record.results),
            f"{record.counts.get('samples_read', 0):,}",
            f"{record.counts.get('omitted', 0):,}",
            f"{record.counts.get('samples', 0):,}",
        )
        for record in reversed(records)
    ]
    header = ("run", "ended", "status", "samples read", "rows omitted", "samples in all")
    strong = frozenset(i for i, row in enumerate(rows) if row[2] != DONE)
    return [Section("Earlier runs", "The latest first.", header, rows, strong)]


def run_section(outcome: Outcome) -> Section:
    """Numbers of partitions and samples of the run, and its models.

    Parameters
    ----------
    outcome
        Outcome of the run.
    """
    counts = (
        f"{outcome.new:,} partitions were new, {outcome.changed:,} had changed, "
        f"{outcome.deleted:,} were deleted, {outcome.forgotten:,} are forgotten. "
        f"{outcome.samples_read:,} samples ({describe_bytes(outcome.bytes_read)}) were read, and "
        f"{outcome.omitted:,} rows omitted; the ledger holds {outcome.samples:,} in "
        f"{outcome.partitions:,} partitions, and {outcome.rows_text}."
    )
    rows = [(name, model_text(model)) for name, model in outcome.models.items()]
    return Section("This run", counts, ("model", "result"), rows)


def missing_section(outcome: Outcome) -> list[Section]:
    """Table of the missing values of each feature, if there are any.

    Parameters
    ----------
    outcome
        Outcome of the run.
    """
    if not outcome.missing:
        return []
    largest_first = sorted(outcome.missing.items(), key=lambda item: -item[1])[:MAX_ROWS]
    rows = [
        (name, f"{100 * outcome.missing_read.get(name, 0.0):.3g} %", f"{100 * fraction:.3g} %")
        for name, fraction in largest_first
    ]
    text = (
        "Fraction of the samples that lack a feature. They are in the result with their other "
        "features, which is valid where values are missing completely at random."
    )
    return [Section("Missing values", text, ("feature", "this run", "all samples"), rows)]


def quarantine_section(outcome: Outcome) -> list[Section]:
    """Table of the partitions in quarantine, if there are any.

    Parameters
    ----------
    outcome
        Outcome of the run.
    """
    if not outcome.quarantined:
        return []
    rows = sorted(outcome.quarantined.items())[:MAX_ROWS]
    text = (
        f"The result is incomplete: {len(outcome.quarantined):,} partitions could not be read and "
        "are not in it. Each run tries to read them again."
    )
    return [
        Section("In quarantine", text, ("partition", "reason"), rows, frozenset(range(len(rows))))
    ]


def drift_sections(results: Results) -> list[Section]:
    """Sections of the test of the newest data, the last change of the distribution, and distances.

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
    """Picture of the tests of this run and earlier runs, if there are several.

    Parameters
    ----------
    results, outcome
        Results and outcome of the run.
    """
    if results.drift is None:
        return []
    records = [record for record in results.ledger.history() if record.number < outcome.run]
    earlier = DriftHistory.from_records(records[-_MAX_PICTURED + 1 :])
    if not len(earlier):
        return []
    changes = results.since.changes if results.since else None
    history = earlier.with_run(outcome.run, "", results.drift, alarm=outcome.alarm, changes=changes)
    caption = (
        "Discrepancy of the newest data from the data before it, in each run, with its confidence "
        "interval."
    )
    return [Drawing("Drift by run", caption, history.plot)]


def _test(results: Results) -> Section:
    """Test of the newest data, with the features that differ."""
    test, table = results.drift, results.job.drift
    if test is None:
        return Section("Drift", f"No test. {results.untested}", (), ())
    (first, second), level = test.n_units, test.level
    alarms = table.false_alarms_per_year
    text = (
        f"{test.sentence} The newest {first:,} {test.dim}s were compared with {second:,} before; "
        f"they were permuted between the two sides. The level {level:.2g} stands for {alarms:g} "
        f"false alarm{'s' * (alarms != 1)} in {table.runs_per_year:g} runs"
        + (f"; the tolerance is {table.tolerance:g}." if table.tolerance else ".")
    )
    shown = test.features[:MAX_ROWS]
    rows: list[tuple[str, ...]] = [
        (
            feature.name,
            f"{feature.means[1]:.4g} ± {feature.deviations[1]:.3g}",
            f"{feature.means[0]:.4g} ± {feature.deviations[0]:.3g}",
            f"{feature.p_value:.2g}",
        )
        for feature in shown
    ]
    strong = frozenset(i for i, feature in enumerate(shown) if feature.p_value <= level)
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
        (name, f"{drift.discrepancy:.3g}", f"{np.sqrt(drift.noise_level):.3g}")
        for name, drift in list(drifts.items())[:MAX_ROWS]
    ]
