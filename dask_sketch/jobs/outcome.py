"""What a run came to, for people and for programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dask_sketch.diagnostics.drift import Drift
from dask_sketch.display.html import card
from dask_sketch.display.text import describe_bytes, fields_text
from dask_sketch.errors import ArtifactError
from dask_sketch.storage.overwrite import local_path, require_page, require_place

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job

DONE, INCOMPLETE = "done", "incomplete"
_NAMED = 3
_STATES = 2  # comparisons that are told at a glance


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes
    ----------
    run
        Its number in the ledger.
    status
        ``"done"``, or ``"incomplete"`` where partitions are in quarantine.
    new, changed, deleted, forgotten
        Partitions read, read again, subtracted and left out.
    quarantined
        Keys that could not be read, and why.
    partitions, samples
        In the ledger now.
    samples_read, bytes_read
        By this run; bytes are those that are stored, ``None`` if unknown.
    seconds
        Of each step.
    models
        What is told of each model, by name.
    drifts
        New samples against the rest, and states against each other.
    between
        Of every two groups, the furthest apart first.
    alarm
        Whether what is new, or the state since the last run, is above the threshold.
    ledger, report
        Where they are.
    """

    run: int
    status: str
    new: int
    changed: int
    deleted: int
    forgotten: int
    quarantined: Mapping[str, str]
    partitions: int
    samples: int
    samples_read: int
    bytes_read: int | None
    seconds: Mapping[str, float]
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    between: Mapping[str, Drift] = field(default_factory=dict)
    alarm: bool = False
    ledger: str = ""
    report: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return vars(self) | {
            key: {name: told(drift) for name, drift in vars(self)[key].items()}
            for key in ("drifts", "between")
        }

    def _fields(self) -> dict[str, str]:
        changes = (
            f"{self.new:,} new, {self.changed:,} changed, {self.deleted:,} deleted, "
            f"{self.forgotten:,} forgotten; {self.partitions:,} in all"
        )
        fields = {
            "run": f"{self.run}, {self.status}",
            "partitions": changes,
            "samples": f"{self.samples_read:,} read; {self.samples:,} in all",
            "bytes read": describe_bytes(self.bytes_read),
            "seconds": ", ".join(f"{name} {spent:.1f}" for name, spent in self.seconds.items()),
        }
        if self.quarantined:
            named = ", ".join(sorted(self.quarantined)[:_NAMED])
            more = ", ..." if len(self.quarantined) > _NAMED else ""
            fields["quarantined"] = f"{len(self.quarantined):,} not in the result: {named}{more}"
        for name, model in self.models.items():
            fields[name] = model_text(model)
        for name, drift in list(self.drifts.items())[:_STATES]:
            fields[f"drift, {name}"] = drift_text(drift)
        for name, drift in list(self.between.items())[:_NAMED]:
            fields[f"groups, {name}"] = drift_text(drift)
        if self.alarm:
            fields["alarm"] = "the data has changed by more than the threshold of the job file"
        fields["ledger"] = self.ledger
        if self.report is not None:
            fields["report"] = self.report
        return fields

    def __str__(self) -> str:
        return fields_text(self._fields())

    def _repr_html_(self) -> str:
        fields = self._fields()
        notes = [f"Alarm: {fields.pop('alarm')}."] if self.alarm else []
        return card("Outcome", fields, summary=fields["samples"] + " samples", notes=notes)


def told(drift: Drift) -> dict[str, float]:
    """A drift in numbers, for JSON."""
    return {
        "discrepancy": drift.discrepancy,
        "squared": drift.squared,
        "noise_level": drift.noise_level,
        "deviation": drift.deviation,
        "deviations": drift.deviations,
    }


def drift_text(drift: Drift) -> str:
    """A drift in words.

    Examples
    --------
    >>> drift_text(Drift(cost=0.05, noise_level=0.01, deviation=0.01))
    '0.2, 4.0 standard deviations of noise (noise alone: 0.1)'
    """
    return (
        f"{drift.discrepancy:.2g}, {drift.deviations:.1f} standard deviations of noise (noise "
        f"alone: {drift.noise_level**0.5:.2g})"
    )


def model_text(model: Mapping[str, Any]) -> str:
    """A model in words."""
    text = f"{model['kind']} of {model['n_components']}, {model['start']} start"
    if model["start"] == "kept":
        text = f"{model['kind']} of {model['n_components']}, that of the last run"
    if model["noise_level"] > 0:
        text += f", cost {model['cost'] / model['noise_level']:.3g} noise levels"
    if "score" in model:
        text += f", score {model['score']:.6g} {model['unit']}"
    if "mean_squared_distance" in model:
        text += f", mean squared distance {model['mean_squared_distance']:.6g}"
    return text


# The files that every run of a job replaces, and whether it may.


def sketch_place(job: Job) -> tuple[str, dict[str, Any] | None] | None:
    """Where the total goes, with the options of its file system; None where nobody wants it."""
    return None if job.outputs.sketch is None else _placed(job, job.outputs.sketch)


def model_places(job: Job) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Name, place and options of each model that is to be written."""
    if job.outputs.model is not None:
        for table in job.decode:
            yield table.name, *_placed(job, job.outputs.model.replace("{name}", table.name))


def require_outputs(job: Job) -> None:
    """Refuse outputs that would fail at the end of a run, or replace what is not the job's.

    Raises
    ------
    ArtifactError
        Naming the key of the job file.
    """
    total = sketch_place(job)
    artifacts = [] if total is None else [("sketch", *total)]
    artifacts += [("model", place, options) for _, place, options in model_places(job)]
    for key, place, options in artifacts:
        with _named(key):
            require_place(place, overwrite=True, storage_options=options)
    if job.outputs.report is not None:
        page = local_path(job.place(job.outputs.report))
        assert page is not None  # the job file takes no URL there
        with _named("report"):
            require_page(page)


@contextlib.contextmanager
def _named(key: str) -> Iterator[None]:
    try:
        yield
    except ArtifactError as error:
        raise ArtifactError(f"outputs.{key}: {error}") from error


def _placed(job: Job, output: str) -> tuple[str, dict[str, Any] | None]:
    place = job.place(output)
    return place, job.options(job.outputs.storage_options, place)
