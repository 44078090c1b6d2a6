"""Outcome of a run, and the files that every run of a job replaces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np

from dask_sketch.diagnostics.drift import Drift
from dask_sketch.display.html import card
from dask_sketch.display.text import describe_bytes, fields_text
from dask_sketch.distributions.testing.result import TwoSampleTest
from dask_sketch.errors import ArtifactError, JobError
from dask_sketch.jobs.ledger.reader import KeptRows
from dask_sketch.jobs.past_drift import LastChange
from dask_sketch.models.artifact import (
    ALPHA_STABLE,
    CENTROIDS,
    COMPONENTS,
    LATENT_CLASSES,
    MIXTURE,
    VON_MISES_FISHER,
)
from dask_sketch.sketching.artifact import MOMENTS, SKETCH
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.storage.artifact import OUTPUT
from dask_sketch.storage.overwrite import (
    OccupiedError,
    local_path,
    path_exists,
    require_writable,
    require_writable_page,
)
from dask_sketch.validation.tables import feature_labels, first_few

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.ledger.sums import Sums

DONE, INCOMPLETE = "done", "incomplete"
COMMAND = "dask-sketch run"  # command in the report of each job
# Schemas of results that an output may replace.
_KINDS = {
    "sketch": frozenset({SKETCH, MOMENTS}),
    "model": frozenset(
        {MIXTURE, CENTROIDS, LATENT_CLASSES, VON_MISES_FISHER, ALPHA_STABLE, COMPONENTS}
    ),
}
_NAMED = 3
_STATES = 2  # comparisons in the summary


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Attributes
    ----------
    run
        Number of the run in the ledger.
    status
        ``"done"``, or ``"incomplete"`` if partitions are in quarantine.
    new, changed, deleted, forgotten
        Numbers of partitions that were read, read again, subtracted and left out.
    quarantined
        Keys of the partitions that could not be read, with the reasons.
    partitions, samples
        Numbers of partitions and samples in the ledger after the run.
    samples_read, bytes_read
        Numbers of samples and of stored bytes that this run read; ``None`` if unknown. Samples that
        a run before this one read, which did not end, count as well.
    omitted
        Number of rows beside these samples that were omitted, because they are not finite.
    missing, missing_read
        Fraction of missing values of each feature with any, by the name of the feature, with
        ``nan_policy = "available"``: in all samples of the ledger, and in the samples of this run.
    seconds
        Duration of each step in seconds, by name.
    rows
        Numbers and bytes of the random rows that the ledger keeps, see :class:`KeptRows`.
    models
        Summary of each model, by name.
    drift
        Test of the newest data against the earlier data; ``None`` if there was no test.
    untested
        Reason why there was no test.
    since
        Run since which the data differs; ``None`` if the test found no difference.
    drifts
        Distances of the new samples from the other samples, and of the total from totals of earlier
        runs, by name.
    between
        Distances of every two groups by their names, the largest first.
    alarm
        Whether the test found a difference beyond the tolerance.
    breaches, refused
        Limits of the job file that the data of this run exceeds, and limits that its models exceed.
    damage
        Description of the damage of the newest commit, whose partitions were read again; ``None``
        if it was whole.
    notes
        Observations that are not errors, with remedies.
    later_failure
        Failure of a run after this one, in a report that is written again; otherwise empty.
    started
        Start of the run in ISO 8601 with time zone.
    ledger, report
        Paths of the ledger and of the report.
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
    rows: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    drift: TwoSampleTest | None = None
    untested: str = ""
    since: LastChange | None = None
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    between: Mapping[str, Drift] = field(default_factory=dict)
    alarm: bool = False
    omitted: int = 0
    missing: Mapping[str, float] = field(default_factory=dict)
    missing_read: Mapping[str, float] = field(default_factory=dict)
    breaches: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    damage: str | None = None
    notes: tuple[str, ...] = ()
    later_failure: str = ""
    started: str = ""
    ledger: str = ""
    report: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        tested = {
            "drift": None if self.drift is None else self.drift.as_dict(),
            "since": None if self.since is None else self.since.as_dict(),
        }
        return (
            vars(self)
            | tested
            | {
                key: {name: drift_values(drift) for name, drift in vars(self)[key].items()}
                for key in ("drifts", "between")
            }
        )

    @property
    def rows_text(self) -> str:
        """Random rows that the ledger keeps, as text."""
        return str(KeptRows(**self.rows)) if self.rows else "no rows"

    @property
    def title(self) -> str:
        """Number, status and start of the run.

        Examples
        --------
        >>> zeros = dict.fromkeys(("new", "changed", "deleted", "forgotten", "partitions"), 0)
        >>> counts = {"samples": 0, "samples_read": 0, "bytes_read": 0, "seconds": {}}
        >>> started = "2026-11-25T02:30:00+00:00"
        >>> Outcome(3, "done", quarantined={}, **zeros, **counts, alarm=True, started=started).title
        'run 3, done, drift (2026-11-25 02:30 UTC)'
        """
        text = f"run {self.run}, {noted_status(self.status, vars(self))}"
        if not self.started:
            return text
        date = datetime.fromisoformat(self.started).astimezone(UTC)
        return f"{text} ({date:%Y-%m-%d %H:%M} UTC)"

    def _fields(self) -> dict[str, str]:
        changes = (
            f"{self.new:,} new, {self.changed:,} changed, {self.deleted:,} deleted, "
            f"{self.forgotten:,} forgotten; {self.partitions:,} in all"
        )
        fields = {
            "run": self.title.removeprefix("run "),
            "partitions": changes,
            "samples": f"{self.samples_read:,} read; {self.samples:,} in all",
            "rows omitted": f"{self.omitted:,} of this run, because they are not finite",
            "rows kept": self.rows_text,
            "bytes read": describe_bytes(self.bytes_read),
            "seconds": ", ".join(f"{name} {spent:.1f}" for name, spent in self.seconds.items()),
        }
        if self.missing:
            now, always = map(missing_text, (self.missing_read, self.missing))
            fields["missing values"] = f"{now} in this run; {always} in all"
        if self.quarantined:
            named = first_few(sorted(self.quarantined), _NAMED)
            fields["quarantined"] = f"{len(self.quarantined):,} not in the result: {named}"
        for name, model in self.models.items():
            fields[name] = model_text(model)
        if self.drift is not None or self.untested:
            fields["drift"] = self.untested if self.drift is None else self.drift.sentence
        if self.since is not None:
            fields["last change"] = self.since.sentence
        for name, distance in list(self.drifts.items())[:_STATES]:
            fields[f"distance, {name}"] = drift_text(distance)
        for name, distance in list(self.between.items())[:_NAMED]:
            fields[f"groups, {name}"] = drift_text(distance)
        if self.alarm:
            fields["alarm"] = "the data has changed, by more than the tolerance of the job file"
        for name in ("breaches", "refused"):
            for number, text in enumerate(getattr(self, name), 1):
                noun = "limit" if name == "breaches" else "refused model"
                fields[f"{noun} {number}"] = text
        if self.damage is not None:
            fields["damage"] = self.damage
        for number, text in enumerate(self.notes, 1):
            fields[f"note {number}"] = text
        fields["ledger"] = self.ledger
        if self.report is not None:
            fields["report"] = self.report
        return fields

    def __str__(self) -> str:
        return fields_text(self._fields())

    def _repr_html_(self) -> str:
        fields = self._fields()
        notes = [f"Alarm: {fields.pop('alarm')}."] if self.alarm else []
        notes += [] if self.damage is None else [f"Damage: {fields.pop('damage')}"]
        return card("Outcome", fields, summary=fields["samples"] + " samples", notes=notes)


def noted_status(status: str, results: Mapping[str, Any]) -> str:
    """Status of a run, with the nouns of its warnings.

    Parameters
    ----------
    status
        Status, such as ``"done"``.
    results
        Fields of the outcome of the run, or results of its record.

    Examples
    --------
    >>> noted_status("done", {"alarm": True})
    'done, drift'
    """
    warned = {"alarm": "drift", "breaches": "limits", "refused": "model refused"}
    warned["damage"] = "damage"
    return ", ".join([status, *(text for key, text in warned.items() if results.get(key))])


def drift_values(drift: Drift) -> dict[str, float]:
    """Describe a drift as numbers."""
    return {
        "discrepancy": drift.discrepancy,
        "squared": drift.squared,
        "noise_level": drift.noise_level,
        "deviation": drift.deviation,
        "deviations": drift.deviations,
    }


def drift_text(drift: Drift) -> str:
    """Describe a drift as text.

    Examples
    --------
    >>> drift_text(Drift(cost=0.05, noise_level=0.01, deviation=0.01))
    '0.2 (noise of independent rows: 0.1)'
    """
    return f"{drift.discrepancy:.2g} (noise of independent rows: {drift.noise_level**0.5:.2g})"


def missing_fractions(sketch: Sums | None, names: Sequence[str] | None) -> dict[str, float]:
    """Fraction of missing values of each feature with any, by the name of the feature.

    Parameters
    ----------
    sketch
        Sketch or second moments of the samples; None for no samples.
    names
        Names of the features.
    """
    if isinstance(sketch, SecondMoments):
        if not sketch.grid.pairwise or not sketch.total_weight > 0:
            return {}
        fractions = 1.0 - sketch.feature_fractions
    elif sketch is None or sketch.missing is None:
        return {}
    else:
        fractions = 1.0 - sketch.observed.feature_fractions
    titles = feature_labels(len(fractions), names)
    return {str(titles[int(k)]): float(fractions[k]) for k in np.flatnonzero(fractions > 0.0)}


def missing_text(fractions: Mapping[str, float]) -> str:
    """Describe the features with the most missing values.

    Examples
    --------
    >>> missing_text({"a": 0.02, "b": 0.25})
    '25 % of b, 2 % of a'
    """
    largest_first = sorted(fractions.items(), key=lambda item: -item[1])
    named = first_few(
        (f"{100 * fraction:.2g} % of {name}" for name, fraction in largest_first), _NAMED
    )
    return named or "none"


def model_text(model: Mapping[str, Any]) -> str:
    """Describe the summary of a model as text."""
    if "explained" in model:
        origin = ", those of the last run" if model["start"] in ("kept", "refused") else ""
        return (
            f"{model['n_components']} principal components with "
            f"{100 * model['explained']:.3g} % of the variance{origin}"
            + ("" if model["turned"] is None else f", turned by {model['turned']:.2g} degrees")
        )
    text = f"{model['kind']} of {model['n_components']}, {model['start']} start"
    if model["start"] in ("kept", "refused"):
        text = f"{model['kind']} of {model['n_components']}, kept from the last run"
    if model.get("rows"):
        text += f", with {model['rows']:,} random rows"
    if model["noise_level"] > 0:
        text += f", cost {model['cost'] / model['noise_level']:.3g} noise levels"
    if "score" in model:
        text += f", score {model['score']:.6g} {model['unit']}"
    if "mean_squared_distance" in model:
        text += f", mean squared distance {model['mean_squared_distance']:.6g}"
    return text


def sketch_path(job: Job) -> tuple[str, dict[str, Any] | None] | None:
    """Path of the total to write, and options of its file system; ``None`` without such output."""
    return None if job.outputs.sketch is None else _located(job, job.outputs.sketch)


def model_paths(job: Job) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Name, path and options of the file system of each model to write."""
    if job.outputs.model is not None:
        for table in job.decode:
            yield table.name, *_located(job, job.outputs.model.replace("{name}", table.name))


def require_outputs(job: Job, *, has_ledger: bool) -> None:
    """Check that all outputs can be written at the end of a run, without replacing other files.

    Only results of the same kind are replaced, and in the first run only those of other jobs.

    Parameters
    ----------
    job
        Job.
    has_ledger
        Whether an earlier run has created the ledger.

    Raises
    ------
    ArtifactError
        If an output cannot be written; the message names the key of the job file.
    JobError
        If an output would replace another file; or if two outputs, or an output and the ledger,
        have the same path, or one path lies in the other.
    """
    total = sketch_path(job)
    artifacts = [] if total is None else [("sketch", *total)]
    artifacts += [("model", path, options) for _, path, options in model_paths(job)]
    paths = [("job.ledger", job.resolve(job.job.ledger))]
    paths += [(f"outputs.{key}", path) for key, path, _ in artifacts]
    if job.outputs.report is not None:
        paths.append(("outputs.report", job.resolve(job.outputs.report)))
    _require_apart(paths)
    for key, path, options in artifacts:
        with _named(key):
            require_writable(
                path,
                overwrite=True,
                storage_options=options,
                accepts=partial(_is_output, kinds=_KINDS[key], has_ledger=has_ledger),
            )
    if job.outputs.report is not None:
        page = local_path(job.resolve(job.outputs.report))
        assert page is not None  # job files accept no URL for the report
        with _named("report"):
            require_writable_page(page, mark=f"{COMMAND} ")


def earlier_output(job: Job) -> str | None:
    """Path of the sketch or of a model that an earlier run of the job wrote; None without one.

    Parameters
    ----------
    job
        Job.
    """
    total = sketch_path(job)
    outputs = [] if total is None else [total]
    outputs += [(path, options) for _, path, options in model_paths(job)]
    for path, options in outputs:
        fs, location = fsspec.core.url_to_fs(path, **(options or {}))
        if path_exists(fs, location):
            return path
    return None


def _is_output(attributes: Mapping[str, Any], kinds: frozenset[str], *, has_ledger: bool) -> bool:
    """Whether an artifact is an earlier output of a job; earlier versions did not mark them."""
    return attributes.get("schema") in kinds and (has_ledger or OUTPUT in attributes)


def _require_apart(paths: Sequence[tuple[str, str]]) -> None:
    """Raise for a path that equals, or lies in, the path of another key: it would be replaced."""
    keys: dict[str, str] = {}
    for key, path in paths:
        local = local_path(path)
        folder = path.rstrip("/") if local is None else str(local.resolve())
        if folder in keys:
            raise JobError(
                f"{key} = {path!r}: is also the path of {keys[folder]}: give another path."
            )
        keys[folder] = key
    for path, key in keys.items():
        folder = path
        while folder := folder.rpartition("/")[0]:
            if folder in keys:
                raise JobError(f"{key} = {path!r}: lies in {keys[folder]}: give another path.")


@contextlib.contextmanager
def _named(key: str) -> Iterator[None]:
    try:
        yield
    except OccupiedError as error:
        raise JobError(f"outputs.{key}: {error}") from error
    except ArtifactError as error:
        raise ArtifactError(f"outputs.{key}: {error}") from error


def _located(job: Job, output: str) -> tuple[str, dict[str, Any] | None]:
    path = job.resolve(output)
    return path, job.options(job.outputs.storage_options, path)
