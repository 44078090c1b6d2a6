"""Run a job: sketch new partitions, subtract deleted ones, decode, compare and report."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dask_sketch.cluster.connect import connect
from dask_sketch.diagnostics.report import installed_versions
from dask_sketch.errors import (
    ChunkError,
    InputError,
    LedgerError,
    LedgerLocked,
    SketchError,
    install_command,
)
from dask_sketch.jobs.agreement import (
    POLICIES,
    design_settings,
    nan_policies,
    require_writable_ledger,
)
from dask_sketch.jobs.job_file import Job, read_job
from dask_sketch.jobs.ledger.forgotten import file_of
from dask_sketch.jobs.ledger.history import RunRecord
from dask_sketch.jobs.ledger.ledger import Ledger, create_ledger
from dask_sketch.jobs.ledger.partitions import Changes
from dask_sketch.jobs.ledger.sums import arithmetic_digest, without_rows
from dask_sketch.jobs.open import (
    OpenSource,
    Result,
    feature_map_of,
    has_ledger,
    ledger_of,
    open_sources,
    require_score,
    rows_per_partition,
    sketches_of,
)
from dask_sketch.jobs.outcome import (
    DONE,
    INCOMPLETE,
    Outcome,
    earlier_output,
    missing_fractions,
    model_paths,
    require_outputs,
    sketch_path,
)
from dask_sketch.jobs.plan import JobPlan, plan_run
from dask_sketch.jobs.report import write_page
from dask_sketch.jobs.results import Results, make_results

logger = logging.getLogger(__name__)
MAX_FAILURES = 100  # unreadable partitions after which a run with "stop" ends at once
MAX_BETWEEN = 50  # pairs of groups in a record: the pairs with the largest drift
_MAX_REASON = 400  # characters of the reason of a quarantine


def plan_job(path: str | Path, *, sample: int | None = None) -> JobPlan:
    """Plan a run of :func:`run_job`, without reading samples or writing files.

    Parameters
    ----------
    path
        Path of the job file.
    sample
        Number that takes the place of ``job.sample``.

    Returns
    -------
    plan
        Numbers of partitions, samples and bytes, and memory of the run.

    Raises
    ------
    JobError
        If the job file is wrong, does not fit the ledger or the data, or names an output that would
        replace another file.
    ArtifactError
        If an output cannot be written.
    LedgerError
        If the ledger is damaged or cannot be written.
    PlanError
        If the run would be refused.
    """
    job = read_job(path).with_rows(sample)
    with job.secrets.hidden():
        require_outputs(job, has_ledger=has_ledger(job))
        ledger = ledger_of(job)
        require_writable_ledger(job, ledger)
        sources = open_sources(job, ledger)
        require_score(job, sources)
        return plan_run(job, sources, _compare(sources, ledger), ledger)


def run_job(
    path: str | Path,
    *,
    sample: int | None = None,
    progress: bool = False,
    log: Callable[[str], object] = lambda text: None,
) -> Outcome:
    """Update the ledger of a job, and decode, score and report its totals.

    The first run designs the feature map, which is fixed from then on. Every run lists the
    partitions of all sources, subtracts deleted ones, reads new and changed ones, and commits
    step by step. If a run is killed, the next one continues from the last commit. Sums are exact:
    the total has the bits of a total that is computed from scratch.

    Parameters
    ----------
    path
        Path of the job file; see ``dask_sketch.jobs.job_file.read_job``.
    sample
        Number that takes the place of ``job.sample``: random rows of each partition that a new
        ledger keeps.
    progress
        Whether to show progress on the standard error stream.
    log
        Function that is called with each line of the log.

    Returns
    -------
    outcome
        Numbers of partitions and samples, models, drift and limits of the run.

    Raises
    ------
    JobError
        If the job file is wrong, does not fit the ledger or the data, or names an output that would
        replace another file; nothing was started then.
    ArtifactError
        If an output cannot be written; nothing was started then.
    PlanError
        If the plan exceeds the limits of the job file or the memory.
    LedgerLocked
        If another run has the lock of the ledger.
    ChunkError
        If partitions cannot be read, and ``unreadable = "stop"``; all other ones are committed.
    ClusterError
        If the cluster is lost; finished work is committed.
    """
    job = read_job(path).with_rows(sample)
    with job.secrets.hidden(), _recorded_failure(job):
        _require_extras(job)
        require_outputs(job, has_ledger=has_ledger(job))
        with connect(job.cluster):
            return _Run(job, progress, log).outcome()


@contextlib.contextmanager
def _recorded_failure(job: Job) -> Iterator[None]:
    """Record errors in the ledger, if there is one, so that the history shows them."""
    started = _now()
    try:
        yield
    except LedgerLocked:
        raise
    except (Exception, KeyboardInterrupt) as error:
        with contextlib.suppress(SketchError, OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the ledger were given before
            ledger = ledger_of(job)
            if ledger is not None:
                text = "it was stopped" if isinstance(error, KeyboardInterrupt) else str(error)
                ledger.record_failure(started, _now(), job.secrets.hide(text))
        raise


def _compare(sources: list[OpenSource], ledger: Ledger | None) -> Changes:
    partitions = [partition for source in sources for partition in source.partitions]
    if ledger is None:
        return Changes(tuple(partitions), (), (), (), ())
    return ledger.compare(partitions)


def _require_plan(job: Job, sources: list[OpenSource], ledger: Ledger | None) -> None:
    """Plan the run without the lock; again, if another process committed meanwhile."""
    try:
        plan_run(job, sources, _compare(sources, ledger), ledger)
    except LedgerError:
        number = 0 if ledger is None else ledger.number
        if ledger is not None:
            ledger.refresh()
        if ledger is None or ledger.number == number:
            raise
        _require_plan(job, sources, ledger)


def _require_extras(job: Job) -> None:
    if job.outputs.report is not None and find_spec("matplotlib") is None:
        raise InputError(
            f"outputs.report = {job.outputs.report!r}: the package matplotlib is missing: "
            f"{install_command('plot')}."
        )


def _of_another_ledger(output: str) -> str:
    """Note of a first run that replaces the output of an earlier one."""
    return (
        f"The ledger is new, though {output} exists: partitions that were forgotten in another "
        "ledger are read again, and the feature map was designed from all partitions. Remove their "
        "files and start anew, or forget them in this ledger, too."
    )


@dataclass
class _Run:
    """Steps of one run."""

    job: Job
    progress: bool
    log: Callable[[str], object]
    seconds: dict[str, float] = field(default_factory=dict)
    bytes_read: int | None = 0
    failed: dict[str, str] = field(default_factory=dict)
    # parts in the ledger of files that are read as one part now, by the key of the file
    parts: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def outcome(self) -> Outcome:
        started = _now()
        with self._step("list"):
            ledger = ledger_of(self.job)
            require_writable_ledger(self.job, ledger)
            sources = open_sources(self.job, ledger)
            require_score(self.job, sources)
            # refuse the run before a feature map is designed, which reads samples
            _require_plan(self.job, sources, ledger)
        replaced = None
        if ledger is None:
            replaced = earlier_output(self.job)
            with self._step("design"):
                ledger = self._create(sources)
        with ledger.lock(self.job.limits.stale_lock) as lock:
            damage = ledger.damage
            for event in filter(None, (lock.broken, damage)):
                self.log(event)
            # another run may have committed before this one got the lock
            changes = _compare(sources, ledger)
            plan = plan_run(self.job, sources, changes, ledger)
            self.log(str(plan))
            ledger.run_started = started
            with self._step("sketch"):
                if self.job.job.sample == 0 and ledger.sampling is not None:
                    self.log(f"erasing {ledger.kept_rows} from the ledger ...")
                    ledger.erase_rows()
                self._update(ledger, sources, changes)
            keys = {part.key for source in sources for part in source.partitions}
            quarantined = {key: why for key, why in ledger.quarantined.items() if key in keys}
            names = sources[0].samples.feature_names
            tried = [*changes.new, *changes.changed]
            read = sum(part.key in ledger.entries for part in tried)
            results = make_results(
                self.job, ledger, self._step, self.progress, self.log, names, n_read=read,
                n_tried=len(tried),
            )  # fmt: skip
            if replaced is not None:
                results.notes.append(_of_another_ledger(replaced))
            outcome = replace(
                self._outcome(ledger, changes, quarantined, results, damage), started=started
            )
            values = plan.as_dict().items()
            planned = {key: value for key, value in values if value is None or type(value) is int}
            self._write(results, outcome, planned)
            self._record(ledger, started, outcome, results, planned)
        return outcome

    def _create(self, sources: list[OpenSource]) -> Ledger:
        self.log("designing the feature map from a few partitions ...")
        feature_map = feature_map_of(self.job, sources)
        path = self.job.resolve(self.job.job.ledger)
        options = self.job.options(self.job.job.storage_options, path)
        n_rows = rows_per_partition(self.job, sources)
        try:
            return create_ledger(path, feature_map, sample=n_rows, storage_options=options)
        except LedgerError:  # another run may have created it meanwhile
            ledger = ledger_of(self.job)
            if ledger is None:
                raise
            return ledger

    def _update(self, ledger: Ledger, sources: list[OpenSource], changes: Changes) -> None:
        """Update the ledger to the sources, in atomic commits."""
        # deletions first, so that a renamed file is never counted twice
        present = {partition.key for source in sources for partition in source.partitions}
        left = set(ledger.quarantined).difference(present, changes.deleted)
        erased = [part.key for part in changes.skipped if part.key in ledger.entries]
        wanted = {partition.key for partition in (*changes.new, *changes.changed)}
        # if parts of a damaged file are forgotten, its other parts cannot be distinguished
        skipped = {part.key for part in changes.skipped}.difference(ledger.forgotten)
        mixed = [one for source in sources for one in source.unread if one[0].key in skipped]
        # if a file is one part now, maybe because it is damaged, its earlier parts leave the
        # ledger when the file is read
        whole = wanted.union(part.key for part, _ in mixed)
        for key in changes.divided:
            if file_of(key) in whole:
                self.parts[file_of(key)].append(key)
        waiting = {key for keys in self.parts.values() for key in keys}
        deleted = [key for key in changes.deleted if key not in waiting]
        ledger.commit(removed=[*deleted, *erased, *sorted(left)], skipped=changes.skipped)
        self._commit(ledger, mixed)
        for source in sources:
            keys = [part.key for part in source.partitions if part.key in wanted]
            if not keys:
                continue
            self.log(f"reading {len(keys):,} partitions of {source.samples.label} ...")
            batches = sketches_of(self.job, source, keys, ledger, progress=self.progress)
            with contextlib.closing(batches):
                for results in batches:
                    self._commit(ledger, results)
        if self.failed and self.job.limits.unreadable == "stop":
            self._stop()

    def _commit(self, ledger: Ledger, results: Sequence[Result]) -> None:
        good = [(part, sketch) for part, sketch in results if not isinstance(sketch, ChunkError)]
        bad = {part.key: str(why) for part, why in results if isinstance(why, ChunkError)}
        sizes = [self.bytes_read, *(part.n_bytes for part, _ in good)]
        self.bytes_read = None if None in sizes else sum(size for size in sizes if size)
        hide = self.job.secrets.hide
        self.failed |= {key: hide(why)[:_MAX_REASON] for key, why in bad.items()}
        if self.job.limits.unreadable == "stop":
            ledger.commit(added=good, removed=self._parts_of(part.key for part, _ in good))
            if len(self.failed) > MAX_FAILURES:
                self._stop()
            return
        # the source no longer holds the earlier version
        stale = [key for key in bad if key in ledger.entries]
        stale += self._parts_of(part.key for part, _ in results)
        reasons = {key: self.failed[key] for key in bad}
        ledger.commit(added=good, removed=stale, quarantined=reasons)

    def _parts_of(self, files: Iterable[str]) -> list[str]:
        """Earlier parts of files in the ledger, each once."""
        return [key for file in files for key in self.parts.pop(file, ())]

    def _stop(self) -> None:
        first = min(self.failed)
        others = f" and {len(self.failed) - 1:,} more" if len(self.failed) > 1 else ""
        raise ChunkError(
            f"{first}{others}: {self.failed[first]} All other partitions are committed. Then run "
            'the job again, or set limits.unreadable = "quarantine" in the job file to go on '
            "without."
        )

    def _outcome(
        self,
        ledger: Ledger,
        changes: Changes,
        quarantined: dict[str, str],
        results: Results,
        damage: str | None,
    ) -> Outcome:
        run, entries = ledger.next_run, ledger.entries
        report = self.job.outputs.report if results.has_samples and results.models else None
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
            samples_read=0 if results.read is None else results.read.count,
            bytes_read=self.bytes_read,
            seconds=self.seconds,
            rows=asdict(ledger.kept_rows),
            models={name: results.summary(name) for name in results.models},
            drift=results.drift,
            since=results.since,
            untested="" if results.drift is not None else results.untested,
            drifts=results.drifts,
            between={
                f"{a} against {b}": drift
                for (a, b), drift in sorted(
                    results.between.items(), key=lambda item: -item[1].deviations
                )
            },
            alarm=results.alarm,
            omitted=0 if results.read is None else results.read.omitted,
            missing=missing_fractions(results.total, results.feature_names),
            missing_read=missing_fractions(results.read, results.feature_names),
            breaches=tuple(results.breaches),
            refused=tuple(results.refused.values()),
            damage=damage,
            notes=tuple(results.notes),
            ledger=ledger.label,
            report=None if report is None else self.job.resolve(report),
        )

    def _write(self, results: Results, outcome: Outcome, planned: dict[str, Any]) -> None:
        """Write the files that the job file names."""
        with self._step("write"):
            total = sketch_path(self.job)
            if total is not None:
                path, options = total
                sums = without_rows(results.total)
                sums.replace_output(path, self.job.job.name, storage_options=options)
            for name, path, options in model_paths(self.job):
                if name in results.refused:  # the file of the last good model stays
                    continue
                model = results.models[name].model
                model.replace_output(path, self.job.job.name, storage_options=options)
        if outcome.report is not None:
            with self._step("report"):
                write_page(results, outcome, planned)

    def _record(
        self,
        ledger: Ledger,
        started: str,
        outcome: Outcome,
        results: Results,
        planned: dict[str, Any],
    ) -> None:
        values = outcome.as_dict()
        counts = {
            key: values[key]
            for key in ("new", "changed", "deleted", "forgotten", "partitions", "samples",
                        "samples_read", "omitted")
        }  # fmt: skip
        record = RunRecord(
            number=outcome.run,
            started=started,
            ended=_now(),
            status=outcome.status,
            counts=counts | {"quarantined": len(outcome.quarantined)},
            results={
                "models": values["models"],
                "drift": values["drift"],
                "since": values["since"],
                "untested": outcome.untested,
                "drifts": values["drifts"],
                "between": dict(list(values["between"].items())[:MAX_BETWEEN]),
                "alarm": outcome.alarm,
                "breaches": list(outcome.breaches),
                "refused": results.refused,
                "damage": outcome.damage,
                "notes": list(outcome.notes),
                "missing": dict(outcome.missing),
                "missing_read": dict(outcome.missing_read),
                "plan": planned,
                "feature_names": results.feature_names and list(results.feature_names),
                "settings": results.settings,
                "design": design_settings(self.job),
                POLICIES: nan_policies(self.job),
                "arithmetic": arithmetic_digest(ledger.feature_map),
                "rows": dict(outcome.rows),
                "seconds": dict(self.seconds),
                "bytes_read": outcome.bytes_read,
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
