"""Report of a run: changes, drift, and the quality of the models."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.diagnostics.drift import Drift, component_changes, feature_changes
from dask_sketch.diagnostics.report import Section, write_report
from dask_sketch.display.text import describe_bytes
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.jobs.job_file import read_job
from dask_sketch.jobs.open import ledger_of
from dask_sketch.jobs.outcome import DONE, Outcome, model_text
from dask_sketch.jobs.results import DecodedModel, Results
from dask_sketch.jobs.verify import status_text

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.ledger.history import RunRecord
    from dask_sketch.jobs.ledger.ledger import Ledger

_BOLD = 5.0  # standard errors of a difference above which it is shown in bold
# Components are listed if they move by more standard deviations than this, or if their weight
# changes by more than this fraction.
_MIN_MOVE = 0.1
_MIN_CHANGE = 0.1
_MAX_ROWS = 50  # of one table
_MAX_RUNS = 10  # before this one
_COMPARED = ("compared", "discrepancy", "noise", "deviations of noise", "")


def write_page(
    results: Results,
    outcome: Outcome,
    planned: Mapping[str, Any],
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write the report of a run on the first model of its job file.

    Parameters
    ----------
    results
        Models and comparisons.
    outcome
        Outcome of the run.
    planned
        Fields of its plan, see :meth:`JobPlan.as_dict`.
    versions
        Versions of the software of the run.
    """
    assert outcome.report is not None
    job = results.job
    first = next(table.name for table in job.decode if table.name in results.models)
    write_report(
        outcome.report,
        results.total,
        results.models[first].model,
        title=f"{job.job.name}: run {outcome.run}, {outcome.status}",
        source={table.name: job.place(table.path) for table in job.sources},
        names=results.feature_names,
        alarms=_alarms(outcome),
        summary=_sentences(outcome, job.drift.threshold),
        sections=[
            _run(outcome),
            *_plan(outcome, planned),
            *_quarantine(outcome),
            _drift(results),
            *_groups(results, outcome),
            *_features(results),
            *_components(results, first),
            *_past(results, outcome),
        ],
        versions=versions,
        command=f"dask-sketch run {job.path}\ndask-sketch report {job.path}",
    )


def _sentences(outcome: Outcome, threshold: float) -> list[str]:
    """Summary of the run in sentences."""
    sentences = [
        f"Run {outcome.run} read {outcome.samples_read:,} of them and took "
        f"{sum(outcome.seconds.values()):.3g} s in all."
    ]
    if outcome.alarm:
        return sentences
    if outcome.drifts:
        most = max(found.deviations for found in outcome.drifts.values())
        sentences.append(
            f"No alarm: the largest change is {most:.1f} standard deviations of noise, or below "
            f"the "
            f"tolerance; the threshold is {threshold:g}."
        )
    else:
        sentences.append("There is no earlier data to compare with.")
    return sentences


def _alarms(outcome: Outcome) -> list[str]:
    sentences = []
    if outcome.alarm:
        sentences.append("Alarm: the data has changed by more than the threshold.")
    if outcome.quarantined:
        sentences.append(
            f"Incomplete: {len(outcome.quarantined):,} partitions could not be read and are left "
            f"out."
        )
    sentences += [*outcome.breaches, *outcome.refused]
    if outcome.damage is not None:
        sentences.append(f"Damage: {outcome.damage}")
    return sentences


def _plan(outcome: Outcome, planned: Mapping[str, Any]) -> list[Section]:
    """Table of the plan beside the outcome."""
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


def _past(results: Results, outcome: Outcome) -> list[Section]:
    """Table of the earlier runs."""
    records = [one for one in results.ledger.history() if one.number < outcome.run][-_MAX_RUNS:]
    if not records:
        return []
    rows = [
        (
            str(one.number),
            one.ended.replace("T", " ")[:16],
            status_text(one),
            f"{one.counts.get('samples_read', 0):,}",
            f"{one.counts.get('omitted', 0):,}",
            f"{one.counts.get('samples', 0):,}",
        )
        for one in reversed(records)
    ]
    header = ("run", "ended", "status", "samples read", "rows omitted", "samples in all")
    strong = frozenset(i for i, row in enumerate(rows) if row[2] != DONE)
    return [Section("Earlier runs", "The latest first.", header, rows, strong)]


def _run(outcome: Outcome) -> Section:
    counts = (
        f"{outcome.new:,} partitions were new, {outcome.changed:,} had changed, "
        f"{outcome.deleted:,} were "
        f"deleted, {outcome.forgotten:,} are forgotten. {outcome.samples_read:,} samples "
        f"({describe_bytes(outcome.bytes_read)}) were read, and {outcome.omitted:,} rows omitted; "
        f"the ledger holds {outcome.samples:,} "
        f"in "
        f"{outcome.partitions:,} partitions, and {outcome.rows_text}."
    )
    rows = [(name, model_text(model)) for name, model in outcome.models.items()]
    return Section("This run", counts, ("model", "result"), rows)


def _quarantine(outcome: Outcome) -> list[Section]:
    if not outcome.quarantined:
        return []
    rows = sorted(outcome.quarantined.items())[:_MAX_ROWS]
    text = (
        f"The result is incomplete: {len(outcome.quarantined):,} partitions could not be read "
        f"and are "
        "not in it. Each run tries to read them again."
    )
    return [
        Section("In quarantine", text, ("partition", "reason"), rows, frozenset(range(len(rows))))
    ]


def _drift(results: Results) -> Section:
    table = results.job.drift
    if not results.drifts:
        return Section("Drift", "There is no earlier data to compare with.", (), ())
    rows, strong = _compared(results, results.drifts)
    text = (
        "Maximum mean discrepancy (0 to 2) without its noise, the discrepancy of noise alone, and "
        "the number of standard deviations of noise by which the square exceeds it. "
        + ("The data has changed by more than the threshold: alarm. " if results.alarm else "")
        + f"The threshold is {table.threshold:g} standard deviations"
        + (f" and a discrepancy of {table.tolerance:g}." if table.tolerance else ".")
    )
    return Section("Drift", text, _COMPARED, rows, strong)


def _groups(results: Results, outcome: Outcome) -> list[Section]:
    if not outcome.between:
        return []
    rows, strong = _compared(results, outcome.between)
    text = "Every two groups, the largest drift first. Groups raise no alarm."
    return [Section("Drift between groups", text, _COMPARED, rows, strong)]


def _compared(
    results: Results, drifts: Mapping[str, Drift]
) -> tuple[list[tuple[str, ...]], frozenset[int]]:
    """Rows of a table of drifts, and the indices of those above the threshold."""
    table = results.job.drift
    shown = list(drifts.items())[:_MAX_ROWS]
    above = [found.is_alarm(table.threshold, table.tolerance) for _, found in shown]
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{found.discrepancy:.3g}",
            f"{np.sqrt(found.noise_level):.3g}",
            f"{found.deviations:.1f}",
            "above the threshold" * far,
        )
        for (name, found), far in zip(shown, above, strict=True)
    ]
    return rows, frozenset(i for i, far in enumerate(above) if far)


def _features(results: Results) -> list[Section]:
    """Table of means and standard deviations of the new samples beside those of the others."""
    if results.new is None or results.old is None:
        return []
    found = feature_changes(results.old, results.new)
    names = results.feature_names or [f"feature {k}" for k in range(len(found.before))]
    order = np.argsort(-np.abs(found.errors), kind="stable")[:_MAX_ROWS]
    rows: list[tuple[str, ...]] = [
        (
            names[k],
            f"{found.before[k]:.4g} ± {found.deviation_before[k]:.3g}",
            f"{found.after[k]:.4g} ± {found.deviation_after[k]:.3g}",
            f"{found.errors[k]:+.1f}",
        )
        for k in order
    ]
    strong = frozenset(i for i, k in enumerate(order) if abs(found.errors[k]) > _BOLD)
    text = (
        "Mean ± standard deviation of each feature in the new samples and in the others. The "
        "difference of the means is given in standard errors."
    )
    header = ("feature", "other samples", "new samples", "difference")
    return [Section("Changes of the features", text, header, rows, strong)]


def _components(results: Results, name: str) -> list[Section]:
    """Table of the components that moved since the last model."""
    now, earlier = results.models[name].model, results.earlier.get(name)
    if earlier is None or type(earlier) is not type(now) or earlier is now:
        return []
    rows: list[tuple[str, ...]] = [
        (
            "gone" if one.number < 0 else str(one.number),
            "new" if one.earlier < 0 else str(one.earlier),
            f"{one.weight_before:.4f}",
            f"{one.weight:.4f}",
            "" if np.isnan(one.distance) else f"{one.distance:.2g}",
        )
        for one in component_changes(earlier, now, results.total)
        if not one.distance < _MIN_MOVE
        or abs(one.weight - one.weight_before) > _MIN_CHANGE * max(one.weight, one.weight_before)
    ]
    text = (
        f"{len(rows)} of {now.n_components} components of {name} have moved by more than "
        f"{_MIN_MOVE:g} "
        f"of their standard deviation since the last model, or changed by more than "
        f"{_MIN_CHANGE:.0%} "
        "of their weight."
    )
    header = (
        "component",
        "in the last model",
        "weight then",
        "weight now",
        "move in standard deviations",
    )
    return [Section("Changes of the components", text, header, rows[:_MAX_ROWS])]


def report_last_run(path: str | Path, output: str | Path | None = None) -> Path:
    """Write the report of the last complete run from its ledger. No data is read.

    Parameters
    ----------
    path
        Path of the job file.
    output
        Path of the report; by default that of the job file.

    Returns
    -------
    output
        Path of the report.

    Raises
    ------
    JobError
        If the job file is wrong.
    InputError
        If neither ``output`` nor the job file gives a path, or matplotlib is missing.
    LedgerError
        If no run is complete, or the last one decoded no model.
    """
    job = read_job(path)
    with job.secrets.hidden():
        report = job.outputs.report if output is None else str(output)
        if report is None:
            raise InputError(
                f"{path} has no outputs.report: give the path of the report, such as report.html.",
                parameter="output",
            )
        target = job.place(report) if output is None else report
        ledger = ledger_of(job)
        record = None if ledger is None else next(reversed(ledger.history()), None)
        if ledger is None or record is None:
            raise LedgerError(
                f"no run of {path} is complete: start it by `dask-sketch run {path}`."
            )
        if not {table.name for table in job.decode} & set(record.models):
            raise LedgerError(
                f"run {record.number} of {path} decoded none of the models of the job file: "
                "its report would be empty. Run the job again."
            )
        results = _results(job, ledger, record)
        outcome = _outcome(ledger, record, results, target)
        write_page(results, outcome, record.results.get("plan", {}), record.versions)
    return Path(target)


def _results(job: Job, ledger: Ledger, record: RunRecord) -> Results:
    """Restore the results of a run, as far as the ledger keeps them."""
    latest = dict(ledger.states(1))
    # the total may contain later commits of an interrupted run, the state does not
    total = latest.get(record.number)
    is_current = total is None or total.same_sums(ledger.total(sample=False))
    if total is None or is_current:
        total = ledger.total()
    found = Results(
        job, ledger, lambda name: contextlib.nullcontext(), total, _names(record.results)
    )
    known = {table.name for table in job.decode}
    for name, stored in record.models.items():
        model = ledger.model(record.number, name)
        if name.partition("@")[0] not in known or model is None:
            continue
        summary = record.results.get("models", {}).get(name, {})
        start, rows = str(summary.get("start", "kept")), int(summary.get("rows", 0))
        found.models[name] = DecodedModel(model, start, rows)
        for before in reversed(ledger.history()[:-1]):
            if name in before.models:
                if before.models[name] != stored:
                    earlier = ledger.model(before.number, name)
                    found.earlier |= {} if earlier is None else {name: earlier}
                break
    found.drifts = _drifts(record.results.get("drifts", {}))
    new_keys = [key for key, entry in ledger.entries.items() if entry.run == record.number]
    if new_keys and len(new_keys) < len(ledger.entries) and is_current:
        new = ledger.total(new_keys, sample=False)
        old = total.without_sample() - new
        if min(new.effective_count, old.effective_count) > 0:
            found.new, found.old = new, old
    return found


def _names(results: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = results.get("feature_names")
    return None if names is None else tuple(map(str, names))


def _drifts(values: Mapping[str, Mapping[str, float]]) -> dict[str, Drift]:
    return {
        name: Drift(
            cost=one["squared"] + one["noise_level"],
            noise_level=one["noise_level"],
            deviation=one["deviation"],
        )
        for name, one in values.items()
    }


def _outcome(ledger: Ledger, record: RunRecord, results: Results, path: str) -> Outcome:
    stored, counts = record.results, record.counts
    numbers: dict[str, Any] = {
        name: int(counts.get(name, 0))
        for name in ("new", "changed", "deleted", "forgotten", "partitions", "samples", "omitted")
    }
    outcome = Outcome(
        run=record.number,
        status=record.status,
        quarantined=ledger.quarantined,
        bytes_read=stored.get("bytes_read"),
        seconds=stored.get("seconds", {}),
        rows=stored.get("rows", {}),
        models={
            name: stored["models"][name] for name in results.models if name in stored["models"]
        },
        drifts=results.drifts,
        between=_drifts(stored.get("between", {})),
        alarm=bool(stored.get("alarm")),
        breaches=tuple(stored.get("breaches", ())),
        refused=tuple(stored.get("refused", {}).values()),
        damage=stored.get("damage"),
        ledger=ledger.label,
        report=path,
        **numbers,
        samples_read=int(counts.get("samples_read", 0)),
    )
    return outcome if counts.get("quarantined") else replace(outcome, quarantined={})
