"""The report of a run: what changed, drift, and how good the models are."""

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
from dask_sketch.jobs.outcome import DONE, Outcome, model_text
from dask_sketch.jobs.results import Found, Results
from dask_sketch.jobs.run import ledger_of

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.ledger.history import RunRecord
    from dask_sketch.jobs.ledger.ledger import Ledger

_FAR = 5.0  # standard errors of a mean, from which it is shown in bold
_NEAR = 0.1  # deviations that a component may move, and
_SHARE = 0.1  # share of its weight that may change, before it is listed
_MOST = 50  # rows of one table
_PAST = 10  # runs before this one
_COMPARED = ("compared", "discrepancy", "noise", "deviations of noise", "")


def write_page(
    results: Results,
    made: Outcome,
    planned: Mapping[str, Any],
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write the report that the job file asks for, on its first model.

    Parameters
    ----------
    results
        Models and comparisons.
    made
        What is told of the run.
    planned
        What its plan said, by name, as :meth:`JobPlan.as_dict` has it.
    versions
        Of the software of the run.
    """
    assert made.report is not None
    job = results.job
    first = next(table.name for table in job.decode if table.name in results.models)
    write_report(
        made.report,
        results.total,
        results.models[first].model,
        title=f"{job.job.name}: run {made.run}, {made.status}",
        source={table.name: job.place(table.path) for table in job.sources},
        names=results.feature_names,
        alarms=_alarms(made),
        summary=_sentences(made, job.drift.threshold),
        sections=[
            _run(made),
            *_plan(made, planned),
            *_quarantine(made),
            _drift(results),
            *_groups(results, made),
            *_features(results),
            *_components(results, first),
            *_past(results, made),
        ],
        versions=versions,
        command=f"dask-sketch run {job.path}\ndask-sketch report {job.path}",
    )


def _sentences(made: Outcome, threshold: float) -> list[str]:
    """What came of it, for those who read no further."""
    said = [
        f"Run {made.run} read {made.samples_read:,} of them, in {sum(made.seconds.values()):.3g} s "
        "with all that follows."
    ]
    if made.alarm:
        return said
    if made.drifts:
        most = max(found.deviations for found in made.drifts.values())
        said.append(
            f"No alarm: what changed is {most:.1f} standard deviations of noise at most, or too "
            f"small to matter; the threshold is {threshold:g}."
        )
    else:
        said.append("There is no earlier data yet to compare this with.")
    return said


def _alarms(made: Outcome) -> list[str]:
    said = []
    if made.alarm:
        said.append("Alarm: the data has changed by more than the threshold.")
    if made.quarantined:
        said.append(
            f"Incomplete: {len(made.quarantined):,} partitions could not be read and are left out."
        )
    return said


def _plan(made: Outcome, planned: Mapping[str, Any]) -> list[Section]:
    """What the plan said beside what was done."""
    if not planned:
        return []
    counts = {
        "new partitions": ("new", made.new),
        "changed partitions": ("changed", made.changed),
        "deleted partitions": ("deleted", made.deleted),
        "forgotten partitions": ("forgotten", made.forgotten),
        "samples": ("n_samples", made.samples_read),
    }
    rows = [(name, _count(planned.get(key)), _count(done)) for name, (key, done) in counts.items()]
    for name, key, done in (
        ("bytes read", "bytes_read", describe_bytes(made.bytes_read)),
        ("ledger grows by, at most", "ledger_bytes", ""),
        ("memory per thread", "memory_per_thread", ""),
    ):
        rows.append((name, describe_bytes(planned.get(key)), done))
    rows += [(f"seconds to {step}", "", f"{spent:.2f}") for step, spent in made.seconds.items()]
    return [Section("The plan, and what happened", "", ("", "planned", "happened"), rows)]


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _past(results: Results, made: Outcome) -> list[Section]:
    """The runs before."""
    records = [one for one in results.ledger.history() if one.number < made.run][-_PAST:]
    if not records:
        return []
    rows = [
        (
            str(one.number),
            one.ended.replace("T", " ")[:16],
            one.status + ", alarm" * bool(one.results.get("alarm")),
            f"{one.counts.get('samples_read', 0):,}",
            f"{one.counts.get('samples', 0):,}",
        )
        for one in reversed(records)
    ]
    header = ("run", "ended", "status", "samples read", "samples in all")
    strong = frozenset(i for i, row in enumerate(rows) if row[2] != DONE)
    return [Section("The runs before", "The latest first.", header, rows, strong)]


def _run(made: Outcome) -> Section:
    counts = (
        f"{made.new:,} partitions were new, {made.changed:,} had changed, {made.deleted:,} were "
        f"gone, {made.forgotten:,} are forgotten. {made.samples_read:,} samples "
        f"({describe_bytes(made.bytes_read)}) were read; the ledger holds {made.samples:,} in "
        f"{made.partitions:,} partitions."
    )
    rows = [(name, model_text(model)) for name, model in made.models.items()]
    return Section("This run", counts, ("model", "what came of it"), rows)


def _quarantine(made: Outcome) -> list[Section]:
    if not made.quarantined:
        return []
    rows = sorted(made.quarantined.items())[:_MOST]
    text = (
        f"The result is incomplete: {len(made.quarantined):,} partitions could not be read and are "
        "not in it. Each run tries them again."
    )
    return [Section("In quarantine", text, ("partition", "why"), rows, frozenset(range(len(rows))))]


def _drift(results: Results) -> Section:
    table = results.job.drift
    if not results.drifts:
        return Section("Drift", "There is nothing to compare with yet.", (), ())
    rows, strong = _compared(results, results.drifts)
    text = (
        "Maximum mean discrepancy, from 0 to 2, less its noise; what noise alone would give; and "
        "by how many of its standard deviations the square is above it. "
        + ("The data has changed by more than the threshold: alarm. " if results.alarm else "")
        + f"The threshold is {table.threshold:g} deviations"
        + (f" and a discrepancy of {table.tolerance:g}." if table.tolerance else ".")
    )
    return Section("Drift", text, _COMPARED, rows, strong)


def _groups(results: Results, made: Outcome) -> list[Section]:
    if not made.between:
        return []
    rows, strong = _compared(results, made.between)
    text = "Every two groups, the furthest apart first; they raise no alarm."
    return [Section("Drift between groups", text, _COMPARED, rows, strong)]


def _compared(
    results: Results, drifts: Mapping[str, Drift]
) -> tuple[list[tuple[str, ...]], frozenset[int]]:
    """Rows of a table, and the numbers of those above the threshold."""
    table = results.job.drift
    shown = list(drifts.items())[:_MOST]
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
    """Means and deviations of what came, beside those of the rest."""
    if results.came is None or results.rest is None:
        return []
    found = feature_changes(results.rest, results.came)
    names = results.feature_names or [f"feature {k}" for k in range(len(found.before))]
    order = np.argsort(-np.abs(found.errors), kind="stable")[:_MOST]
    rows: list[tuple[str, ...]] = [
        (
            names[k],
            f"{found.before[k]:.4g} ± {found.deviation_before[k]:.3g}",
            f"{found.after[k]:.4g} ± {found.deviation_after[k]:.3g}",
            f"{found.errors[k]:+.1f}",
        )
        for k in order
    ]
    strong = frozenset(i for i, k in enumerate(order) if abs(found.errors[k]) > _FAR)
    text = (
        "Mean ± standard deviation of each feature in what came with this run, beside the rest. "
        "The difference of the means is in its standard errors."
    )
    header = ("feature", "the rest", "new samples", "difference")
    return [Section("What changed: the features", text, header, rows, strong)]


def _components(results: Results, name: str) -> list[Section]:
    """Components that moved since the last model."""
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
        if not one.distance < _NEAR
        or abs(one.weight - one.weight_before) > _SHARE * max(one.weight, one.weight_before)
    ]
    text = (
        f"{len(rows)} of {now.n_components} components of {name} have moved by more than {_NEAR:g} "
        f"of their standard deviation since the last model, or changed by more than {_SHARE:.0%} "
        "of their weight."
    )
    header = ("component", "in the last model", "weight then", "weight now", "moved, in deviations")
    return [Section("What changed: the components", text, header, rows[:_MOST])]


# The report of the last run of a job once more, from what its ledger keeps; no data is read.


def report_last_run(path: str | Path, output: str | Path | None = None) -> Path:
    """Write the report of the last run that came to its end.

    Parameters
    ----------
    path
        Of the job file.
    output
        Where to write; by default where the job file says.

    Returns
    -------
    output

    Raises
    ------
    JobError
        If the job file is wrong.
    InputError
        If there is nowhere to write, or matplotlib is missing.
    LedgerError
        If no run has come to its end, or it decoded nothing.
    """
    job = read_job(path)
    with job.secrets.hidden():
        report = job.outputs.report if output is None else str(output)
        if report is None:
            raise InputError(
                f"{path} names no outputs.report: say where to write the report (-o report.html)."
            )
        place = job.place(report) if output is None else report
        ledger = ledger_of(job)
        record = None if ledger is None else next(reversed(ledger.history()), None)
        if ledger is None or record is None:
            raise LedgerError(f"no run of {path} has come to its end yet: dask-sketch run {path}")
        if not {table.name for table in job.decode} & set(record.models):
            raise LedgerError(
                f"run {record.number} of {path} decoded none of the models of the job file: "
                "its report would be empty. Run it again."
            )
        results = _results(job, ledger, record)
        made = _outcome(ledger, record, results, place)
        write_page(results, made, record.results.get("plan", {}), record.versions)
    return Path(place)


def _results(job: Job, ledger: Ledger, record: RunRecord) -> Results:
    """What the run had when it was done, as far as it is kept."""
    latest = dict(ledger.states(1))
    # what an interrupted run has committed since is not of this one
    total = latest.get(record.number) or ledger.total()
    found = Results(
        job, ledger, lambda name: contextlib.nullcontext(), total, _names(record.results)
    )
    known = {table.name for table in job.decode}
    for name, stored in record.models.items():
        model = ledger.model(record.number, name)
        if name.partition("@")[0] not in known or model is None:
            continue
        told = record.results.get("models", {}).get(name, {})
        found.models[name] = Found(model, str(told.get("start", "kept")))
        for before in reversed(ledger.history()[:-1]):
            if name in before.models:
                if before.models[name] != stored:
                    earlier = ledger.model(before.number, name)
                    found.earlier |= {} if earlier is None else {name: earlier}
                break
    found.drifts = _drifts(record.results.get("drifts", {}))
    came = [key for key, entry in ledger.entries.items() if entry.run == record.number]
    if came and len(came) < len(ledger.entries) and total.same_sums(ledger.total()):
        part = ledger.total(came)
        rest = total - part
        if min(part.effective_count, rest.effective_count) > 0:
            found.came, found.rest = part, rest
    return found


def _names(results: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = results.get("feature_names")
    return None if names is None else tuple(map(str, names))


def _drifts(told: Mapping[str, Mapping[str, float]]) -> dict[str, Drift]:
    return {
        name: Drift(
            cost=one["squared"] + one["noise_level"],
            noise_level=one["noise_level"],
            deviation=one["deviation"],
        )
        for name, one in told.items()
    }


def _outcome(ledger: Ledger, record: RunRecord, results: Results, place: str) -> Outcome:
    told, counts = record.results, record.counts
    made = Outcome(
        run=record.number,
        status=record.status,
        quarantined=ledger.quarantined,
        bytes_read=told.get("bytes_read"),
        seconds=told.get("seconds", {}),
        models={name: told["models"][name] for name in results.models if name in told["models"]},
        drifts=results.drifts,
        between=_drifts(told.get("between", {})),
        alarm=bool(told.get("alarm")),
        ledger=ledger.label,
        report=place,
        **{
            name: int(counts.get(name, 0))
            for name in ("new", "changed", "deleted", "forgotten", "partitions", "samples")
        },
        samples_read=int(counts.get("samples_read", 0)),
    )
    return made if counts.get("quarantined") else replace(made, quarantined={})
