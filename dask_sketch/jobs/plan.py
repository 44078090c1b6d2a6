"""What a run would do, said before it does it, and refused if it cannot or should not be done."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask.utils import parse_bytes

from dask_sketch import config
from dask_sketch.display.html import card
from dask_sketch.display.text import describe_bytes, fields_text
from dask_sketch.errors import PlanError
from dask_sketch.features.artifact import open_feature_map
from dask_sketch.features.design import default_n_frequencies
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.executors import active_client
from dask_sketch.graph.plan import make_plan
from dask_sketch.jobs.ledger.batch import row_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.ledger.ledger import Ledger
    from dask_sketch.jobs.ledger.partitions import Changes
    from dask_sketch.jobs.open import OpenSource

_NAMED = 3  # keys that a plan lists of each kind


@dataclass(frozen=True)
class JobPlan:
    """The cost of a run.

    Attributes
    ----------
    name, ledger
        Of the job.
    first
        Whether this run makes the ledger, and designs the feature map.
    n_frequencies
        Of the feature map.
    new, changed, deleted, forgotten, same
        Numbers of partitions by what a run does with them: read, read again, subtract, leave out,
        nothing.
    examples
        Some keys of each kind.
    n_samples
        Rows to be read, where they are known; ``None`` if those of any partition are not.
    bytes_read
        Stored bytes of the partitions to be read; ``None`` if unknown.
    ledger_bytes, ledger_free
        Bytes by which the ledger grows at most, and that are free where it lies; ``None`` if
        unknown.
    n_tasks
        Partitions to be read, and models to be decoded.
    memory_per_thread, memory_available
        Bytes that a thread needs and has; ``None`` if unknown.
    cluster
        Where it would run.
    outputs
        What would be written beside the ledger.
    """

    name: str
    ledger: str
    first: bool
    n_frequencies: int
    new: int
    changed: int
    deleted: int
    forgotten: int
    same: int
    examples: dict[str, tuple[str, ...]]
    n_samples: int | None
    bytes_read: int | None
    ledger_bytes: int
    ledger_free: int | None
    n_tasks: int
    memory_per_thread: int | None
    memory_available: int | None
    cluster: str
    outputs: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)

    def _fields(self) -> dict[str, str]:
        def counted(kind: str, note: str) -> str:
            named = self.examples[kind]
            more = ", ..." if len(named) < getattr(self, kind) else ""
            return f"{getattr(self, kind):,}" + (
                f" ({note}: {', '.join(named)}{more})" * bool(named)
            )

        ledger = f"{self.ledger}, which this run makes" if self.first else self.ledger
        memory = describe_bytes(self.memory_per_thread)
        if self.memory_available is not None:
            memory += f" of {describe_bytes(self.memory_available)}"
        return {
            "job": self.name,
            "ledger": ledger,
            "feature map": f"{self.n_frequencies:,} frequencies, "
            + ("designed by this run" if self.first else "as the ledger holds it"),
            "new partitions": counted("new", "to be read"),
            "changed": counted("changed", "to be read again"),
            "deleted": counted("deleted", "to be subtracted"),
            "forgotten": counted("forgotten", "not to be read"),
            "the same": f"{self.same:,}",
            "samples to be read": "unknown" if self.n_samples is None else f"{self.n_samples:,}",
            "bytes read": describe_bytes(self.bytes_read),
            "ledger grows by": f"at most {describe_bytes(self.ledger_bytes)}, of "
            f"{describe_bytes(self.ledger_free)} free",
            "tasks": f"{self.n_tasks:,}",
            "memory per thread": memory,
            "cluster": self.cluster,
            "written": ", ".join(self.outputs) or "nothing but the ledger",
        }

    def __str__(self) -> str:
        return fields_text(self._fields())

    def _repr_html_(self) -> str:
        to_read = f"{self.new:,} partitions new, {self.changed:,} changed, {self.deleted:,} deleted"
        return card("JobPlan", self._fields(), summary=to_read)


def plan_run(
    job: Job, sources: Sequence[OpenSource], changes: Changes, ledger: Ledger | None
) -> JobPlan:
    """The plan of a run.

    Parameters
    ----------
    job
        The job file.
    sources
        Opened.
    changes
        What differs from the ledger.
    ledger
        ``None`` if there is none yet.

    Raises
    ------
    PlanError
        If a chunk cannot fit in the memory of a thread, more is to be read than the job file
        allows, or more is gone than it allows.
    """
    feature_map = map_for_plan(job, sources) if ledger is None else ledger.feature_map
    todo = [*changes.new, *changes.changed]
    plans = [
        make_plan(
            source.samples, feature_map, config.get("split-every"), client=active_client(),
            available=_memory(job),
        )
        for source in sources
    ]  # fmt: skip
    for plan in plans:
        plan.require_fit()
    largest = max(plans, key=lambda plan: plan.memory_per_thread or 0)
    sizes = [part.n_bytes for part in todo]
    rows = [part.rows for part in todo]
    made = JobPlan(
        name=job.job.name,
        ledger=job.place(job.job.ledger),
        first=ledger is None,
        n_frequencies=feature_map.n_frequencies,
        new=len(changes.new),
        changed=len(changes.changed),
        deleted=len(changes.deleted),
        forgotten=len(changes.skipped),
        same=len(changes.same),
        examples={
            "new": _keys(changes.new),
            "changed": _keys(changes.changed),
            "deleted": changes.deleted[:_NAMED],
            "forgotten": _keys(changes.skipped),
        },
        n_samples=None if None in rows else sum(n for n in rows if n is not None),
        bytes_read=None if None in sizes else sum(n for n in sizes if n is not None),
        ledger_bytes=row_bytes(feature_map) * (len(todo) + 2),  # and a total, old and new
        ledger_free=_free(job.place(job.job.ledger)),
        n_tasks=len(todo) + len(job.decode),
        memory_per_thread=largest.memory_per_thread,
        memory_available=largest.memory_available,
        cluster=_cluster(job),
        outputs=tuple(
            job.place(place)
            for place in (job.outputs.model, job.outputs.sketch, job.outputs.report)
            if place is not None
        ),
    )
    _require_allowed(job, made, ledger)
    return made


def map_for_plan(job: Job, sources: Sequence[OpenSource]) -> FeatureMap:
    """A map of the size that the first run will design; the cost does not depend on the scale."""
    given = job.feature_map
    d = sources[0].samples.n_features
    assert d is not None  # every path tells
    if given.file is not None:
        return open_feature_map(job.place(given.file))
    task: Any = given.task or "mixture"
    m = given.n_frequencies or default_n_frequencies(d, given.n_components or 1, task)
    return FeatureMap(d, m, scale=1.0)


def _require_allowed(job: Job, made: JobPlan, ledger: Ledger | None) -> None:
    most = job.limits.bytes
    if most is not None and (made.bytes_read is None or made.bytes_read > most):
        raise PlanError(
            f"{describe_bytes(made.bytes_read)} are to be read, and limits.bytes of the job file "
            f"allows {describe_bytes(most)}: raise it, if that is as it should be."
        )
    if made.ledger_free is not None and made.ledger_bytes > made.ledger_free:
        raise PlanError(
            f"the sketches of {made.new + made.changed:,} partitions take up to "
            f"{describe_bytes(made.ledger_bytes)}, and {describe_bytes(made.ledger_free)} are free "
            f"at {made.ledger}: use a larger chunk_size, fewer frequencies or another place."
        )
    known = 0 if ledger is None else len(ledger.entries)
    if made.deleted > job.limits.deleted * known:
        raise PlanError(
            f"{made.deleted:,} of {known:,} partitions of the ledger are gone from the sources: "
            "that looks like a store that is out of reach, or moved, or a changed name or "
            "chunk_size. If it is as it should be, raise limits.deleted (now "
            f"{job.limits.deleted:g}) for one run."
        )


def _memory(job: Job) -> int | None:
    """Bytes that a thread of workers to be started will have."""
    table = job.cluster
    if table.memory_limit is None:
        return None
    share = float(config.get("memory-share"))
    return int(share * int(parse_bytes(table.memory_limit)) / table.threads_per_worker)


def _free(place: str) -> int | None:
    """Bytes that are free on the disk of a local ledger."""
    if "://" in place:
        return None
    folder = Path(place)
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _cluster(job: Job) -> str:
    table = job.cluster
    if table.kind == "threads":
        return "threads of this process"
    if table.kind == "address":
        return f"the scheduler at {table.address}"
    workers = "a worker for each core" if table.n_workers is None else f"{table.n_workers} workers"
    return f"{table.kind}, {workers}"


def _keys(partitions: Sequence[Any]) -> tuple[str, ...]:
    return tuple(partition.key for partition in partitions[:_NAMED])
