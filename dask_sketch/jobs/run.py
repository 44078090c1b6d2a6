"""The run of a job: what is new is sketched, what is gone is subtracted, and the rest follows."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_sketch.cluster.connect import connect
from dask_sketch.diagnostics.report import installed_versions
from dask_sketch.errors import ChunkError, InputError, LedgerError
from dask_sketch.features.artifact import open_feature_map
from dask_sketch.jobs.job_file import Job, read_job
from dask_sketch.jobs.ledger.history import RunRecord
from dask_sketch.jobs.ledger.ledger import Ledger, create_ledger, open_ledger
from dask_sketch.jobs.ledger.objects import ROOT
from dask_sketch.jobs.ledger.partitions import Changes
from dask_sketch.jobs.open import OpenSource, open_sources, sketches_of
from dask_sketch.jobs.outcome import DONE, INCOMPLETE, Outcome, require_outputs
from dask_sketch.jobs.plan import JobPlan, plan_run
from dask_sketch.jobs.results import Results, make_results

if TYPE_CHECKING:
    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.jobs.ledger.partitions import Partition

logger = logging.getLogger(__name__)
MOST_FAILURES = 100  # partitions that cannot be read before a run with "stop" stops at once
MOST_BETWEEN = 50  # pairs of groups that a record tells of, the furthest apart
_REASON = 400  # characters of why a partition is in quarantine


def _mute(text: str) -> None:
    pass


def plan_job(path: str | Path) -> JobPlan:
    """Say what :func:`run_job` would do. Reads no samples and writes nothing.

    Parameters
    ----------
    path
        Of the job file.

    Raises
    ------
    JobError
        If the job file is wrong.
    ArtifactError
        If an output has no place to go.
    PlanError
        If the run would be refused.
    """
    job = read_job(path)
    with job.secrets.hidden():
        require_outputs(job)
        ledger = ledger_of(job)
        sources = open_sources(job)
        return plan_run(job, sources, _compare(sources, ledger), ledger)


def run_job(
    path: str | Path, *, progress: bool = False, say: Callable[[str], object] = _mute
) -> Outcome:
    """Bring the ledger of a job up to date, and decode, score and report what it holds.

    The first run designs the feature map, which is fixed from then on. Every run lists the
    partitions of all sources, subtracts what is gone, reads what is new or has changed, and commits
    it in steps, so that whatever kills it, the next run goes on from the last commit. Sums are
    exact: the total has the bits of one that is made from scratch.

    Parameters
    ----------
    path
        Of the job file; see :func:`~dask_sketch.jobs.job_file.read_job`.
    progress
        Show bars on the standard error stream.
    say
        Called with each line of the story.

    Returns
    -------
    outcome

    Raises
    ------
    JobError
        If the job file is wrong; nothing has started then.
    ArtifactError
        If an output has no place to go, or something else stands there; nothing has started either.
    PlanError
        If the plan refuses to start.
    LedgerLocked
        If another run is under way.
    ChunkError
        If partitions stay unreadable, with ``unreadable = "stop"``; all others are committed.
    ClusterError
        If the cluster is lost; what was done is committed.
    """
    job = read_job(path)
    with job.secrets.hidden():
        _require_extras(job)
        require_outputs(job)
        with connect(job.cluster):
            return _Run(job, progress, say).outcome()


def ledger_of(job: Job) -> Ledger | None:
    """The ledger of a job, ``None`` if no run has made it yet."""
    place = job.place(job.job.ledger)
    options = job.options(job.job.storage_options, place)
    if not _exists(place, options):
        return None
    ledger = open_ledger(place, storage_options=options)
    _require_map(job, ledger.feature_map)
    return ledger


def _exists(place: str, options: dict[str, Any] | None) -> bool:
    """Whether there is a ledger: a run that was killed while it made one left a folder at most."""
    import fsspec

    fs, root = fsspec.core.url_to_fs(place, **(options or {}))
    try:
        return bool(fs.exists(f"{root.rstrip('/')}/{ROOT}"))
    except OSError as error:
        raise LedgerError(f"{place} is out of reach: {type(error).__name__}: {error}") from error


def _require_map(job: Job, feature_map: FeatureMap) -> None:
    """Refuse settings that contradict the map that the ledger was made with."""
    given = job.feature_map
    if given.file is not None:
        stated = open_feature_map(job.place(given.file))
        if stated != feature_map:
            raise InputError(
                f"{given.file} has the feature map {stated.digest[:12]}, the ledger "
                f"{feature_map.digest[:12]}: a ledger keeps the map of its first run. Give the job "
                "a new ledger, or take the earlier map."
            )
        return
    for name in ("n_frequencies", "distribution", "dtype", "scale"):
        wanted, has = getattr(given, name), getattr(feature_map, name)
        if wanted is not None and wanted != has:
            raise InputError(
                f"feature_map.{name} = {wanted!r}, and the ledger was made with {has!r}: it keeps "
                "the map of its first run. Give the job a new ledger, or the earlier setting."
            )


def _compare(sources: list[OpenSource], ledger: Ledger | None) -> Changes:
    partitions = [partition for source in sources for partition in source.partitions]
    if ledger is None:
        return Changes(tuple(partitions), (), (), (), ())
    return ledger.compare(partitions)


def _require_extras(job: Job) -> None:
    from importlib.util import find_spec

    if job.outputs.report is not None and find_spec("matplotlib") is None:
        raise InputError(
            "outputs.report: the package matplotlib is missing: pip install 'dask-sketch[plot]'."
        )


@dataclass
class _Run:
    """One run, step by step."""

    job: Job
    progress: bool
    say: Callable[[str], object]
    seconds: dict[str, float] = field(default_factory=dict)
    bytes_read: int | None = 0
    failed: dict[str, str] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        started = _now()
        with self._step("list"):
            sources = open_sources(self.job)
            ledger = ledger_of(self.job)
            # refused before a feature map is designed, which reads samples
            plan_run(self.job, sources, _compare(sources, ledger), ledger)
        if ledger is None:
            with self._step("design"):
                ledger = self._create(sources)
        with ledger.lock(self.job.limits.stale_lock) as lock:
            if lock.broken is not None:
                self.say(lock.broken)
            # what another run has committed meanwhile is seen from here on
            changes = _compare(sources, ledger)
            planned = plan_run(self.job, sources, changes, ledger)
            self.say(str(planned))
            with self._step("sketch"):
                self._update(ledger, sources, changes)
            keys = {part.key for source in sources for part in source.partitions}
            quarantined = {key: why for key, why in ledger.quarantined.items() if key in keys}
            names = sources[0].samples.feature_names
            results = make_results(self.job, ledger, self._step, self.progress, self.say, names)
            made = self._told(ledger, changes, quarantined, results)
            numbers = planned.as_dict().items()
            said = {key: value for key, value in numbers if value is None or type(value) is int}
            results.write(made, said)
            self._record(ledger, started, made, results, said)
        return made

    def _create(self, sources: list[OpenSource]) -> Ledger:
        from dask_sketch.jobs.open import feature_map_of

        self.say("designing the feature map from a few partitions ...")
        feature_map = feature_map_of(self.job, sources)
        place = self.job.place(self.job.job.ledger)
        return create_ledger(
            place,
            feature_map,
            storage_options=self.job.options(self.job.job.storage_options, place),
        )

    def _update(self, ledger: Ledger, sources: list[OpenSource], changes: Changes) -> None:
        """Bring the ledger to what the sources are now, in commits that are whole."""
        # first, so that a file that was renamed is never counted twice
        ledger.commit(removed=changes.deleted)
        wanted = {partition.key for partition in (*changes.new, *changes.changed)}
        for source in sources:
            keys = [part.key for part in source.partitions if part.key in wanted]
            if not keys:
                continue
            self.say(f"reading {len(keys):,} partitions of {source.samples.label} ...")
            found = sketches_of(self.job, source, keys, ledger.feature_map, progress=self.progress)
            with contextlib.closing(found):
                for results in found:
                    self._commit(ledger, results)
        if self.failed and self.job.limits.unreadable == "stop":
            self._stop()

    def _commit(self, ledger: Ledger, results: list[tuple[Partition, Any]]) -> None:
        good = [(part, sketch) for part, sketch in results if not isinstance(sketch, ChunkError)]
        bad = {part.key: str(why) for part, why in results if isinstance(why, ChunkError)}
        sizes = [self.bytes_read, *(part.n_bytes for part, _ in good)]
        self.bytes_read = None if None in sizes else sum(size for size in sizes if size)
        hide = self.job.secrets.hide
        self.failed |= {key: hide(why)[:_REASON] for key, why in bad.items()}
        if self.job.limits.unreadable == "stop":
            ledger.commit(added=good)
            if len(self.failed) > MOST_FAILURES:
                self._stop()
            return
        # an earlier version is no longer what the source holds
        stale = [key for key in bad if key in ledger.entries]
        reasons = {key: self.failed[key] for key in bad}
        ledger.commit(added=good, removed=stale, quarantined=reasons)

    def _stop(self) -> None:
        first = min(self.failed)
        others = f" and {len(self.failed) - 1:,} more" if len(self.failed) > 1 else ""
        raise ChunkError(
            f"{first}{others} could not be read: {self.failed[first]} All others are committed. "
            'Restore it and run again, or leave it out: limits.unreadable = "quarantine" in the '
            "job file."
        )

    def _told(
        self, ledger: Ledger, changes: Changes, quarantined: dict[str, str], results: Results
    ) -> Outcome:
        run, entries = ledger.next_run, ledger.entries
        report = self.job.outputs.report
        return Outcome(
            run=run,
            status=INCOMPLETE if quarantined else DONE,
            new=sum(part.key in entries for part in changes.new),
            changed=sum(part.key in entries for part in changes.changed),
            deleted=len(changes.deleted),
            forgotten=len(changes.skipped),
            quarantined=quarantined,
            partitions=len(entries),
            samples=results.total.count,
            samples_read=sum(
                entries[part.key].count
                for part in (*changes.new, *changes.changed)
                if part.key in entries
            ),
            bytes_read=self.bytes_read,
            seconds=self.seconds,
            models={name: results.told(name) for name in results.models},
            drifts=results.drifts,
            between={
                f"{a} against {b}": found
                for (a, b), found in sorted(
                    results.between.items(), key=lambda item: -item[1].deviations
                )
            },
            alarm=results.alarm,
            ledger=ledger.label,
            report=None if report is None or not results.models else self.job.place(report),
        )

    def _record(
        self,
        ledger: Ledger,
        started: str,
        made: Outcome,
        results: Results,
        planned: dict[str, Any],
    ) -> None:
        told = made.as_dict()
        counts = {
            key: told[key]
            for key in ("new", "changed", "deleted", "forgotten", "partitions", "samples",
                        "samples_read")
        }  # fmt: skip
        record = RunRecord(
            number=made.run,
            started=started,
            ended=_now(),
            status=made.status,
            counts=counts | {"quarantined": len(made.quarantined)},
            results={
                "models": told["models"],
                "drifts": told["drifts"],
                "between": dict(list(told["between"].items())[:MOST_BETWEEN]),
                "alarm": made.alarm,
                "plan": planned,
                "feature_names": results.feature_names and list(results.feature_names),
                "settings": results.settings,
                "seconds": dict(self.seconds),
                "bytes_read": made.bytes_read,
            },
            models=results.kept,
            versions=installed_versions(),
        )
        ledger.commit(run=record)

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
