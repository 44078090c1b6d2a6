"""Report of a run: changes, drift, and the quality of the models."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.diagnostics.drift import ComponentChange, Drift, component_changes
from dask_sketch.diagnostics.fit import FitDiagnostics, diagnose
from dask_sketch.diagnostics.report import Answer, Section, write_report
from dask_sketch.display.text import counted
from dask_sketch.distributions.testing.result import TwoSampleTest
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.jobs.component_report import write_component_page
from dask_sketch.jobs.job_file import read_job
from dask_sketch.jobs.ledger.sums import same_sums
from dask_sketch.jobs.open import ledger_of
from dask_sketch.jobs.outcome import COMMAND, Outcome, model_text
from dask_sketch.jobs.past_drift import LastChange
from dask_sketch.jobs.report_sections import (
    MAX_ROWS,
    breach_sentences,
    complete_answer,
    drift_drawings,
    drift_sections,
    group_sections,
    missing_section,
    partitions_sentence,
    past_section,
    plan_section,
    quarantine_section,
    run_section,
    run_sentences,
    run_steps,
)
from dask_sketch.jobs.results import DecodedModel, Results
from dask_sketch.models.principal_components import PrincipalComponents
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.storage.overwrite import require_writable_page

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.ledger.history import RunRecord
    from dask_sketch.jobs.ledger.ledger import Ledger

# Components are listed if they move by more standard deviations than this, or if their weight
# changes by more than this fraction.
_MIN_MOVE = 0.1
_MIN_CHANGE = 0.1


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
        Fields of the plan of the run, see :meth:`JobPlan.as_dict`.
    versions
        Versions of the software of the run.
    """
    assert outcome.report is not None
    job = results.job
    first = next(table.name for table in job.decode if table.name in results.models)
    model = results.models[first].model
    if isinstance(model, PrincipalComponents):
        write_component_page(results, outcome, planned, first, versions)
        return
    total = results.total
    assert isinstance(total, Sketch)  # since the model is decoded from a sketch
    fit = diagnose(model, total)
    write_report(
        outcome.report,
        total,
        model,
        title=f"{job.job.name}: {outcome.title}",
        source={table.name: job.resolve(table.path) for table in job.sources},
        names=results.feature_names,
        answers=_answers(results, outcome, fit, first),
        diagnostics=fit,
        summary=run_sentences(outcome),
        sections=[
            *quarantine_section(outcome),
            *drift_sections(results),
            *_components(results, first),
            *group_sections(outcome),
            run_section(outcome),
            *missing_section(outcome),
            *past_section(results, outcome),
            *plan_section(outcome, planned),
        ],
        drawings=drift_drawings(results, outcome),
        versions=versions,
        command=f"{COMMAND} {job.path}\ndask-sketch report {job.path}",
    )


def _answers(results: Results, outcome: Outcome, fit: FitDiagnostics, name: str) -> list[Answer]:
    """Answers to the questions that come first: complete, good, changed, and what to do."""
    steps = _steps(outcome, fit)
    return [
        complete_answer(outcome),
        _good(outcome, fit),
        _changed(results, outcome, name),
        Answer("What is to be done?", steps or ["Nothing."], bool(steps)),
    ]


def _good(outcome: Outcome, diagnostics: FitDiagnostics) -> Answer:
    n = len(diagnostics.findings)
    scores = [
        f"{name}: {model_text(model).rpartition(', ')[2]}."
        for name, model in outcome.models.items()
        if {"score", "mean_squared_distance"} & set(model)
    ]
    fit = "The model fits all samples together, those before and the newest ones."
    if outcome.refused:
        text = ["No: a model is beyond its limits, and the last good one is kept."]
        text += outcome.refused
    elif outcome.breaches:
        text = breach_sentences(outcome)
    elif n:
        text = [f"With reservations: {counted(n, 'problem')} of the fit found."]
    else:
        text = ["Yes: no problem of the fit was found."]
        text += [fit] if outcome.alarm else []
    return Answer("Is it good?", [*text, *scores], bool(outcome.refused or outcome.breaches or n))


def _changed(results: Results, outcome: Outcome, name: str) -> Answer:
    counts = partitions_sentence(outcome)
    if outcome.alarm:
        # reports of runs of the first versions have no test
        tested = [test.sentence for test in (outcome.drift, outcome.since) if test is not None]
        text = ["Alarm: the data has changed.", *tested, counts]
    elif outcome.drift is not None:
        text = ["No alarm.", outcome.drift.sentence, counts]
    else:
        text = [f"Not tested: {outcome.untested}" if outcome.untested else "Not tested.", counts]
    moved = _moved(results, name)
    if moved is not None:
        k = results.models[name].model.n_components
        text.append(f"{len(moved)} of {k} components of {name} have changed since the last model.")
    return Answer("What has changed since last time?", text, outcome.alarm)


def _steps(outcome: Outcome, fit: FitDiagnostics) -> list[str]:
    """Actions that follow from the outcome."""
    steps = run_steps(outcome)
    if outcome.alarm:
        steps += [
            "Look at the features below Drift" + (outcome.since.remedy if outcome.since else "."),
            "If the newest data is wrong, correct it: the next run reads it again. If it is right, "
            "use a model of the newest data alone.",
        ]
    if outcome.refused:
        steps.append("Keep using the last good model until its successor is within the limits.")
    if fit.findings and not outcome.refused:
        steps.append("Read the advice below Quality of the fit.")
    return steps


def _components(results: Results, name: str) -> list[Section]:
    """Table of the components that moved since the last model."""
    now, moved = results.models[name].model, _moved(results, name)
    if moved is None:
        return []
    rows: list[tuple[str, ...]] = [
        (
            "gone" if change.number < 0 else str(change.number),
            "new" if change.earlier < 0 else str(change.earlier),
            f"{change.weight_before:.4f}",
            f"{change.weight:.4f}",
            "" if np.isnan(change.distance) else f"{change.distance:.2g}",
        )
        for change in moved
    ]
    text = (
        f"{len(rows)} of {now.n_components} components of {name} have moved by more than "
        f"{_MIN_MOVE:g} of their standard deviation since the last model, or changed by more than "
        f"{_MIN_CHANGE:.0%} of their weight."
    )
    header = (
        "component",
        "in the last model",
        "weight then",
        "weight now",
        "move in standard deviations",
    )
    return [Section("Changes of the components", text, header, rows[:MAX_ROWS])]


def _moved(results: Results, name: str) -> list[ComponentChange] | None:
    """Components that moved since the last model; None if there is none to compare with."""
    now, earlier, total = results.models[name].model, results.earlier.get(name), results.total
    if isinstance(now, PrincipalComponents) or isinstance(earlier, PrincipalComponents):
        return None
    if earlier is None or type(earlier) is not type(now) or earlier is now:
        return None
    assert isinstance(total, Sketch)  # since the model is decoded from a sketch
    return [
        change
        for change in component_changes(earlier, now, total)
        if not change.distance < _MIN_MOVE
        or abs(change.weight - change.weight_before)
        > _MIN_CHANGE * max(change.weight, change.weight_before)
    ]


def report_last_run(path: str | Path, output: str | Path | None = None) -> Path:
    """Write the report of the last complete run from its ledger. No data is read.

    Parameters
    ----------
    path
        Path of the job file.
    output
        Path of the report; by default the path in the job file.

    Returns
    -------
    output
        Path of the report.

    Raises
    ------
    JobError
        If the job file is wrong.
    ArtifactError
        If the path of the report holds another file.
    InputError
        If neither ``output`` nor the job file gives a path, or matplotlib is missing.
    LedgerError
        If no run is complete, or the last one decoded no model or left too few samples.
    """
    job = read_job(path)
    with job.secrets.hidden():
        report = job.outputs.report if output is None else str(output)
        if report is None:
            raise InputError(
                f"{path} has no outputs.report: give the path of the report, such as report.html.",
                parameter="output",
            )
        target = job.resolve(report) if output is None else report
        require_writable_page(Path(target))
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
        if not results.has_samples:
            raise LedgerError(
                f"run {record.number} of {path} left {results.total.count:,} samples, too few for "
                "a report. Correct the sources, and run the job again."
            )
        outcome = _outcome(ledger, record, results, target)
        if ledger.failure is not None:
            outcome = replace(outcome, later_failure=str(ledger.failure))
        write_page(results, outcome, record.results.get("plan", {}), record.versions)
    return Path(target)


def _results(job: Job, ledger: Ledger, record: RunRecord) -> Results:
    """Restore the results of a run, as far as the ledger keeps them."""
    latest = dict(ledger.states(1))
    # the total may contain later commits of an interrupted run, the state does not
    total = latest.get(record.number)
    is_current = total is None or same_sums(total, ledger.total(sample=False))
    if total is None or is_current:
        total = ledger.total()
    results = Results(
        job, ledger, lambda name: contextlib.nullcontext(), total, _names(record.results)
    )
    known = {table.name for table in job.decode}
    for name, stored in record.models.items():
        model = ledger.model(record.number, name)
        if name.partition("@")[0] not in known or model is None:
            continue
        summary = record.results.get("models", {}).get(name, {})
        start, rows = str(summary.get("start", "kept")), int(summary.get("rows", 0))
        results.models[name] = DecodedModel(model, start, rows, summary.get("turned"))
        for before in reversed(ledger.history()[:-1]):
            if name in before.models:
                if before.models[name] != stored:
                    earlier = ledger.model(before.number, name)
                    results.earlier |= {} if earlier is None else {name: earlier}
                break
    tested = record.results.get("drift")
    results.drift = None if tested is None else TwoSampleTest.from_dict(tested)
    dated = record.results.get("since")
    results.since = None if dated is None else LastChange.from_dict(dated)
    results.untested = str(record.results.get("untested", ""))
    results.drifts = _drifts(record.results.get("drifts", {}))
    return results


def _names(results: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = results.get("feature_names")
    return None if names is None else tuple(map(str, names))


def _drifts(values: Mapping[str, Mapping[str, float]]) -> dict[str, Drift]:
    return {
        name: Drift(
            cost=distances["squared"] + distances["noise_level"],
            noise_level=distances["noise_level"],
            deviation=distances["deviation"],
        )
        for name, distances in values.items()
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
        drift=results.drift,
        since=results.since,
        untested=results.untested,
        drifts=results.drifts,
        between=_drifts(stored.get("between", {})),
        alarm=bool(stored.get("alarm")),
        breaches=tuple(stored.get("breaches", ())),
        refused=tuple(stored.get("refused", {}).values()),
        damage=stored.get("damage"),
        notes=tuple(stored.get("notes", ())),
        started=record.started,
        missing=stored.get("missing", {}),
        missing_read=stored.get("missing_read", {}),
        ledger=ledger.label,
        report=path,
        **numbers,
        samples_read=int(counts.get("samples_read", 0)),
    )
    return outcome if counts.get("quarantined") else replace(outcome, quarantined={})
