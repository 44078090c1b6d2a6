"""The report of the last run of a job once more, from what its ledger keeps; no data is read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_sketch.diagnostics.drift import Drift
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.jobs.job_file import read_job
from dask_sketch.jobs.modelling import Found
from dask_sketch.jobs.outcome import Outcome
from dask_sketch.jobs.page import write_page
from dask_sketch.jobs.results import Results
from dask_sketch.jobs.run import ledger_of

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job
    from dask_sketch.ledger import Ledger, RunRecord


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
