"""Plan a run: partitions, bytes and memory; refuse runs that exceed their limits."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.utils import parse_bytes

from dask_sketch import config
from dask_sketch.display.html import card
from dask_sketch.display.text import describe_bytes, fields_text
from dask_sketch.errors import InputError, JobError, PlanError
from dask_sketch.features.design import default_n_frequencies
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.compute import active_client
from dask_sketch.graph.design import columns_of_grid
from dask_sketch.graph.plan import make_plan
from dask_sketch.jobs.agreement import open_map_file
from dask_sketch.jobs.ledger.partition_rows import sampling_of
from dask_sketch.jobs.ledger.sums import Conventions, row_bytes
from dask_sketch.jobs.open import components_wanted, largest_type, rows_per_partition
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.row_sample import RowSampling, sample_bytes
from dask_sketch.validation.choices import PCA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.ledger.ledger import Ledger
    from dask_sketch.jobs.ledger.partitions import Changes, Partition
    from dask_sketch.jobs.open import OpenSource

_NAMED = 3  # keys of each kind that a plan lists


@dataclass(frozen=True)
class JobPlan:
    """Plan of a run.

    Attributes
    ----------
    name, ledger
        Name of the job, and path of its ledger.
    first
        Whether this run creates the ledger and designs the feature map.
    n_frequencies, n_moments
        Number of frequencies of the feature map, or of sums of second moments; one of them is 0.
    new, changed, deleted, forgotten, same
        Numbers of partitions that the run reads, reads again, subtracts, leaves out and keeps.
    lost
        Number of changed partitions without any stored byte.
    divided
        Number of deleted partitions whose rows other partitions hold now.
    examples
        Some keys of new, changed, deleted and forgotten partitions.
    n_samples
        Number of rows to read; ``None`` if the number of any partition is unknown.
    bytes_read
        Number of stored bytes of the partitions to read; ``None`` if unknown.
    rows_per_partition
        Maximum number of random rows of each partition that the ledger keeps; 0 for none.
    rows_bytes
        Maximum number of bytes of the random rows of the partitions to read.
    ledger_bytes
        Maximum number of bytes by which the ledger grows.
    ledger_free
        Number of free bytes on the disk of the ledger; ``None`` if unknown.
    n_tasks
        Number of partitions to read, plus the number of models to decode.
    memory_per_thread, memory_available
        Number of bytes that a thread needs, and that it has; ``None`` if unknown.
    cluster
        Description of the cluster.
    outputs
        Paths of the files to write beside the ledger.
    """

    name: str
    ledger: str
    first: bool
    n_frequencies: int
    n_moments: int
    new: int
    changed: int
    deleted: int
    forgotten: int
    same: int
    lost: int
    divided: int
    examples: dict[str, tuple[str, ...]]
    n_samples: int | None
    bytes_read: int | None
    rows_per_partition: int
    rows_bytes: int
    ledger_bytes: int
    ledger_free: int | None
    n_tasks: int
    memory_per_thread: int | None
    memory_available: int | None
    cluster: str
    outputs: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)

    def _fields(self) -> dict[str, str]:
        def counted(kind: str, note: str) -> str:
            named = self.examples[kind]
            more = ", ..." if len(named) < getattr(self, kind) else ""
            return f"{getattr(self, kind):,}" + (
                f" ({note}: {', '.join(named)}{more})" * bool(named)
            )

        ledger = f"{self.ledger}, created by this run" if self.first else self.ledger
        memory = describe_bytes(self.memory_per_thread)
        if self.memory_available is not None:
            memory += f" of {describe_bytes(self.memory_available)}"
        return {
            "job": self.name,
            "ledger": ledger,
            "grid" if self.n_moments else "feature map": (
                f"{self.n_moments:,} second moments, "
                if self.n_moments
                else f"{self.n_frequencies:,} frequencies, "
            )
            + ("designed by this run" if self.first else "from the ledger"),
            "new partitions": counted("new", "to read"),
            "changed": counted("changed", "to read again"),
            "deleted": counted("deleted", "to subtract"),
            "forgotten": counted("forgotten", "not read"),
            "unchanged": f"{self.same:,}",
            "samples to read": "unknown" if self.n_samples is None else f"{self.n_samples:,}",
            "bytes read": describe_bytes(self.bytes_read),
            "rows kept": self._rows_text(),
            "ledger grows by": f"at most {describe_bytes(self.ledger_bytes)}, of "
            f"{describe_bytes(self.ledger_free)} free",
            "tasks": f"{self.n_tasks:,}",
            "memory per thread": memory,
            "cluster": self.cluster,
            "outputs": ", ".join(self.outputs) or "nothing but the ledger",
        }

    def _rows_text(self) -> str:
        n_rows = self.rows_per_partition
        if n_rows:
            size = describe_bytes(self.rows_bytes)
            return f"at most {n_rows:,} random rows of each partition, in the ledger: {size} more"
        if self.n_moments:
            return "none; components are decoded from second moments"
        return "none" + ("" if self.first else "; models are decoded from sums alone")

    def __str__(self) -> str:
        return fields_text(self._fields())

    def _repr_html_(self) -> str:
        to_read = f"{self.new:,} partitions new, {self.changed:,} changed, {self.deleted:,} deleted"
        return card("JobPlan", self._fields(), summary=to_read)


def plan_run(
    job: Job, sources: Sequence[OpenSource], changes: Changes, ledger: Ledger | None
) -> JobPlan:
    """Plan a run.

    Parameters
    ----------
    job
        Job file.
    sources
        Open sources.
    changes
        Differences of the sources from the ledger.
    ledger
        Ledger of the job; ``None`` before the first run.

    Returns
    -------
    plan
        Numbers of partitions, samples and bytes, and memory.

    Raises
    ------
    PlanError
        If a chunk does not fit in the memory of a thread, or the run would read more bytes or
        subtract more partitions than the job file allows.
    """
    feature_map = map_for_plan(job, sources) if ledger is None else ledger.feature_map
    todo = [*changes.new, *changes.changed]
    memory = [_thread_memory(job, source, feature_map) for source in sources]
    needed, available = max(memory, key=lambda one: one[0] or 0)
    sampling = _sampling(job, sources, feature_map, ledger)
    itemsize = max(source.samples.dtype.itemsize for source in sources)
    itemsize = 4 if itemsize <= 4 else 8
    n_kept = 0 if sampling is None else sampling.size
    fewer = [n_kept if part.rows is None else min(part.rows, n_kept) for part in todo]
    kept_bytes = sample_bytes(sum(fewer), feature_map.n_features, itemsize)
    sizes = [part.n_bytes for part in todo]
    rows = [part.rows for part in todo]
    with_missing = any(table.nan_policy == "available" for table in job.sources)
    plan = JobPlan(
        name=job.job.name,
        ledger=job.resolve(job.job.ledger),
        first=ledger is None,
        n_frequencies=0 if isinstance(feature_map, MomentGrid) else feature_map.n_frequencies,
        n_moments=feature_map.n_sums if isinstance(feature_map, MomentGrid) else 0,
        new=len(changes.new),
        changed=len(changes.changed),
        deleted=len(changes.deleted),
        forgotten=len(changes.skipped),
        same=len(changes.same),
        lost=len(changes.lost),
        divided=len(changes.divided),
        examples={
            "new": _keys(changes.new),
            "changed": _keys(changes.changed),
            "deleted": changes.deleted[:_NAMED],
            "forgotten": _keys(changes.skipped),
        },
        n_samples=None if None in rows else sum(n for n in rows if n is not None),
        bytes_read=None if None in sizes else sum(n for n in sizes if n is not None),
        rows_per_partition=n_kept,
        rows_bytes=kept_bytes,
        ledger_bytes=kept_bytes
        # the old and the new total are kept as well
        + row_bytes(feature_map, with_missing=with_missing) * (len(todo) + 2),
        ledger_free=_free(job.resolve(job.job.ledger)),
        n_tasks=len(todo) + len(job.decode),
        memory_per_thread=needed,
        memory_available=available,
        cluster=_cluster(job),
        outputs=tuple(
            job.resolve(output)
            for output in (job.outputs.model, job.outputs.sketch, job.outputs.report)
            if output is not None
        ),
    )
    _require_allowed(job, plan, ledger)
    return plan


def _sampling(
    job: Job, sources: Sequence[OpenSource], conventions: Conventions, ledger: Ledger | None
) -> RowSampling | None:
    """Choice of the random rows that the run keeps; checks of settings of second moments."""
    if isinstance(conventions, MomentGrid):
        _columns_of(job, conventions.n_features, conventions.n_columns)
        rows_per_partition(job, sources)  # raises for any random rows
        return None
    if ledger is None:
        return sampling_of(conventions, rows_per_partition(job, sources))
    return None if job.job.sample == 0 else ledger.sampling


def _thread_memory(
    job: Job, source: OpenSource, conventions: Conventions
) -> tuple[int | None, int]:
    """Bytes that a thread needs for a source, and that it has; raises PlanError for too few."""
    # second moments of partitions are not added on the workers
    fan_in = 2 if isinstance(conventions, MomentGrid) else config.get("split-every")
    estimated = make_plan(
        source.samples, conventions, fan_in, client=active_client(),
        available=_memory(job), nan_policy=source.table.nan_policy,
    )  # fmt: skip
    estimated.require_fit()
    return estimated.memory_per_thread, estimated.memory_available


def map_for_plan(job: Job, sources: Sequence[OpenSource]) -> Conventions:
    """Feature map or grid of the size that the first run will design, for its plan."""
    stated = open_map_file(job)
    if stated is not None:
        return stated
    table, d = job.feature_map, sources[0].samples.n_features
    assert d is not None  # known for every path
    if table.task == PCA:
        n_columns = _columns_of(job, d, table.n_columns)
        pairwise = job.sources[0].nan_policy == "available"
        return MomentGrid(np.zeros(d), np.ones(d), n_columns, job.job.seed, pairwise=pairwise)
    task: Any = table.task or "mixture"
    m = table.n_frequencies or default_n_frequencies(
        d, table.n_components or 1, task, largest_type(job, d)
    )
    return FeatureMap(d, m, scale=1.0)


def _columns_of(job: Job, n_features: int, n_columns: int | None) -> int | None:
    """Number of columns of the test matrix, from which all components can be decoded.

    Raises
    ------
    JobError
        If there are fewer columns or features than components, or their number is needed.
    """
    try:
        wanted = columns_of_grid(n_features, n_columns, components_wanted(job))
    except InputError as error:
        raise JobError(f"{job.path}: feature_map.n_columns = {n_columns}: {error}") from error
    for i, table in enumerate(job.decode):
        if wanted is not None and table.n_components is None:
            raise JobError(
                f"{job.path}: decode[{i}].n_components: give a number of components, since the "
                f"ledger keeps {wanted} columns of the second moments"
            )
    return wanted


def _require_allowed(job: Job, plan: JobPlan, ledger: Ledger | None) -> None:
    limit = job.limits.bytes
    if limit is not None and (plan.bytes_read is None or plan.bytes_read > limit):
        raise PlanError(
            f"limits.bytes = {describe_bytes(limit)}: the run would read "
            f"{describe_bytes(plan.bytes_read)}. Raise the limit if this is right."
        )
    if plan.ledger_free is not None and plan.ledger_bytes > plan.ledger_free:
        raise PlanError(
            f"the sketches of {plan.new + plan.changed:,} partitions take up to "
            f"{describe_bytes(plan.ledger_bytes)}, and {describe_bytes(plan.ledger_free)} are free "
            f"at {plan.ledger}: free space there, or move the ledger to another disk. A new ledger "
            "with a larger chunk_size or fewer frequencies takes less."
        )
    known = 0 if ledger is None else len(ledger.entries)
    gone = plan.deleted + plan.lost - plan.divided
    if gone > job.limits.deleted * known:
        raise PlanError(
            f"limits.deleted = {job.limits.deleted:g}: {gone:,} of {known:,} partitions of the "
            "ledger are gone from the sources. The store may be unreachable or moved, or a name "
            "or chunk_size changed. If this is right, raise the limit for one run."
        )
    changed = plan.changed + plan.divided
    # an array that grows changes its last partition
    if changed > max(job.limits.changed * known, len(job.sources)):
        raise PlanError(
            f"limits.changed = {job.limits.changed:g}: {changed:,} of {known:,} partitions of the "
            "ledger have changed. The sources may be incomplete or replaced, or chunk_size "
            "changed. If this is right, raise the limit for one run."
        )


def _memory(job: Job) -> int | None:
    """Number of bytes for each thread of the workers that will be started."""
    table = job.cluster
    if table.memory_limit is None:
        return None
    fraction = float(config.get("memory-share"))
    return int(fraction * int(parse_bytes(table.memory_limit)) / table.threads_per_worker)


def _free(path: str) -> int | None:
    """Number of free bytes on the disk of a local ledger."""
    if "://" in path:
        return None
    folder = Path(path)
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _cluster(job: Job) -> str:
    table = job.cluster
    if table.kind == "threads":
        return "threads of this process"
    if table.kind == "address":
        return f"the scheduler at {table.address}"
    workers = (
        "one worker for each core" if table.n_workers is None else f"{table.n_workers} workers"
    )
    return f"{table.kind}, {workers}"


def _keys(partitions: Sequence[Partition]) -> tuple[str, ...]:
    return tuple(partition.key for partition in partitions[:_NAMED])
