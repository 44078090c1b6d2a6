"""Open the ledger, the feature map and the sources of a job, and sketch partitions of a source."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fsspec

from dask_sketch.errors import ChunkError, ClusterError, InputError, JobError, LedgerError
from dask_sketch.features.artifact import open_feature_map
from dask_sketch.graph.design import design
from dask_sketch.graph.partitions import sketch_partitions
from dask_sketch.jobs.ledger.ledger import Ledger, open_ledger
from dask_sketch.jobs.ledger.objects import ROOT
from dask_sketch.jobs.ledger.partition_rows import default_rows, identity_of
from dask_sketch.jobs.ledger.partitions import partitions_of
from dask_sketch.sketching.missing import require_sparse
from dask_sketch.sources.open import is_parquet, open_samples
from dask_sketch.sources.samples import Samples

if TYPE_CHECKING:
    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.jobs.job_file import DataTable, GroupsTable, Job, SourceTable
    from dask_sketch.jobs.ledger.partitions import Partition
    from dask_sketch.sketching.arguments import NanPolicy
    from dask_sketch.sketching.sketch import Sketch

logger = logging.getLogger(__name__)
Result = tuple["Partition", "Sketch | ChunkError"]
REREADS = 2  # of a partition that changes while it is read
MAX_KEY = 512  # characters of a key that are matched to a pattern, which bounds the time


@dataclass(frozen=True)
class OpenSource:
    """An open source.

    Attributes
    ----------
    table
        Table of the job file.
    samples
        Samples of the source.
    partitions
        Partitions, one for each chunk of the samples, in the same order.
    """

    table: SourceTable
    samples: Samples
    partitions: tuple[Partition, ...]


def open_sources(job: Job, ledger: Ledger | None = None) -> list[OpenSource]:
    """Open all sources and list their partitions. Samples are read for checksums only.

    Parameters
    ----------
    job
        Job with the sources. If a source of Parquet files has no ``columns``, they are those of
        the feature map, once there is one.
    ledger
        Ledger with the feature map; without a ledger, that of ``feature_map.file``.
    """
    names = None
    if ledger is not None:
        names = ledger.feature_map.feature_names
    elif job.feature_map.file is not None:
        names = open_feature_map(job.place(job.feature_map.file)).feature_names
    return [
        open_source(job, table.model_copy(update={"columns": columns_of(job, table, names)}))
        for table in job.sources
    ]


def columns_of(job: Job, table: DataTable, names: Sequence[str] | None) -> list[str] | None:
    """Columns of a table of the job file, else the names that a feature map or a model knows.

    Parameters
    ----------
    job
        Job of the table.
    table
        Table of a source, or of the samples to score.
    names
        Names of the features, None if there are none. Only Parquet files have columns.
    """
    if table.columns is not None or names is None:
        return table.columns
    options = job.options(table.storage_options, table.path)
    return list(names) if is_parquet(job.place(table.path), options) else None


def open_source(job: Job, table: SourceTable) -> OpenSource:
    """Open one source and list its partitions."""
    samples = open_samples(
        job.place(table.path),
        array=table.array,
        columns=table.columns,
        weights=table.weights,
        chunk_size=table.chunk_size,
        missing_chunks=table.missing_chunks,
        storage_options=job.options(table.storage_options, table.path),
    )
    partitions = partitions_of(samples, f"{table.name}/", table.fingerprint)
    return OpenSource(table, samples, tuple(partitions))


def sketches_of(
    job: Job,
    source: OpenSource,
    keys: Iterable[str],
    ledger: Ledger,
    *,
    progress: bool = False,
) -> Generator[list[Result], None, None]:
    """Read partitions of a source, and yield their sketches as they are finished.

    Every sketch is of one version of its partition: the fingerprints before and after reading are
    equal. A partition that changes while it is read is read again, at most twice.

    Parameters
    ----------
    job
        Job with the limits: attempts to read a partition, and partitions and seconds between two
        commits.
    source
        Source of the partitions.
    keys
        Keys of the partitions to read.
    ledger
        Ledger with the feature map of the sketches, and the choice of their random rows.
    progress
        Whether to show progress on the standard error stream.

    Yields
    ------
    results
        Pairs of a partition and its sketch, or the error of the last attempt, to be committed.

    Raises
    ------
    ClusterError
        If the cluster is lost, after the sketches that it had delivered were yielded.
    """
    wanted = set(keys)
    for attempt in range(1 + REREADS):
        reader = _Reader(job, source, ledger)
        yield from reader.results(wanted, progress)
        wanted = reader.changed
        if not wanted:
            return
        logger.warning(
            "%d partitions of %s changed while they were read", len(wanted), source.samples.label
        )
        if attempt < REREADS:
            source = open_source(job, source.table)
    yield [
        (partition, _unstable(partition.key))
        for partition in source.partitions
        if partition.key in wanted
    ]


def _unstable(key: str) -> ChunkError:
    return ChunkError(
        f"{key} changed each of the {1 + REREADS} times that it was read: write new data "
        "elsewhere and move it here when it is complete, or run the job when nothing is written."
    )


class _Reader:
    """Read partitions of a source in one pass.

    Attributes
    ----------
    changed
        Keys of the partitions that changed while they were read.
    """

    def __init__(self, job: Job, source: OpenSource, ledger: Ledger):
        self._job = job
        self._source = source
        self._ledger = ledger
        self._done: list[tuple[int, Sketch]] = []
        self.changed: set[str] = set()

    def results(self, wanted: set[str], progress: bool) -> Iterator[list[Result]]:
        limits, source = self._job.limits, self._source
        numbers = [i for i, part in enumerate(source.partitions) if part.key in wanted]
        failed: list[Result] = []
        due = time.monotonic() + limits.commit_seconds
        results = sketch_partitions(
            source.samples,
            numbers,
            self._ledger.feature_map,
            nan_policy=source.table.nan_policy,
            sampling=self._ledger.sampling,
            identities={i: identity_of(source.partitions[i].key) for i in numbers},
            attempts=limits.attempts,
            backoff=limits.backoff,
            progress=progress,
        )
        with closing(results):
            try:
                for number, result in results:
                    if isinstance(result, ChunkError):
                        failed.append((source.partitions[number], result))
                    else:
                        self._done.append((number, result))
                    full = len(self._done) + len(failed) >= limits.commit_partitions
                    if full or time.monotonic() >= due:
                        yield [*self._unchanged(), *failed]
                        failed = []
                        due = time.monotonic() + limits.commit_seconds
            except ClusterError:
                yield [*self._unchanged(), *failed]
                raise
        yield [*self._unchanged(), *failed]

    def _unchanged(self) -> list[Result]:
        """Finished partitions that did not change; the others are left for another pass."""
        done, self._done = self._done, []
        source = self._source
        if not done:
            return []
        again = partitions_of(
            source.samples,
            f"{source.table.name}/",
            source.table.fingerprint,
            chunks=[number for number, _ in done],
        )
        found: list[Result] = []
        for (number, sketch), now in zip(done, again, strict=True):
            if now == source.partitions[number]:
                found.append((now, sketch))
            else:
                self.changed.add(now.key)
        return found


def group_keys(table: GroupsTable, keys: Iterable[str]) -> dict[str, list[str]]:
    """Assign keys of partitions to groups.

    Parameters
    ----------
    table
        Table of the job file.
    keys
        Keys of the partitions.

    Returns
    -------
    groups
        Sorted keys of each group, by its name. Keys that belong to no group are left out.

    Raises
    ------
    JobError
        If there are more groups than the job file allows.

    Examples
    --------
    >>> from dask_sketch.jobs.job_file import GroupsTable
    >>> table = GroupsTable(pattern="[^/]+/([a-z]+)-")
    >>> group_keys(table, ["x/b-1", "x/a-2", "x/a-1", "x/9"])
    {'a': ['x/a-1', 'x/a-2'], 'b': ['x/b-1']}
    """
    found: dict[str, list[str]] = defaultdict(list)
    for key in sorted(keys):
        name = _group(table, key)
        if name:
            found[name].append(key)
    if len(found) > table.most:
        raise JobError(
            f"groups.most = {table.most}: there are {len(found):,} groups. Choose a pattern with "
            "fewer groups, or raise the limit."
        )
    return dict(sorted(found.items()))


def _group(table: GroupsTable, key: str) -> str | None:
    if table.pattern is None:
        return key.partition("/")[0]
    match = table.pattern.match(key[:MAX_KEY])
    if match is None:
        return None
    pattern = match.re
    if "group" in pattern.groupindex:
        return match["group"]
    return match[1] if pattern.groups else match[0]


def feature_map_of(job: Job, sources: list[OpenSource]) -> FeatureMap:
    """Open the feature map of a job file, or design one from a few chunks of the largest source."""
    given = job.feature_map
    available = any(source.table.nan_policy == "available" for source in sources)
    if given.file is not None:
        found = open_feature_map(job.place(given.file))
        if found.categories is not None:
            raise InputError(
                f"feature_map.file = {given.file!r} has categories: jobs take numeric columns. "
                "Design a map of these, or sketch the table with dask_sketch.sketch."
            )
    else:
        found = _designed(job, sources, "available" if available else "omit")
    if available:
        require_sparse(found)
    return found


def _designed(job: Job, sources: list[OpenSource], nan_policy: NanPolicy) -> FeatureMap:
    """Design a feature map from a few chunks of the largest source."""
    given = job.feature_map
    largest = max(sources, key=lambda source: source.samples.bytes_read or 0)
    options = {
        name: value
        for name in ("task", "distribution", "scale", "whitening", "normalize", "dtype", "n_pilot")
        if (value := getattr(given, name)) is not None
    }
    return design(
        largest.samples,
        n_frequencies=given.n_frequencies,
        n_components=given.n_components,
        seed=job.job.seed,
        nan_policy=nan_policy,
        **options,
    )


def ledger_of(job: Job) -> Ledger | None:
    """Open the ledger of a job, ``None`` if no run has created it yet.

    Raises
    ------
    LedgerError
        If the ledger is damaged or its file system cannot be reached.
    InputError
        If the job file contradicts the feature map of the ledger.
    """
    path = job.place(job.job.ledger)
    options = job.options(job.job.storage_options, path)
    if not _exists(path, options):
        return None
    ledger = open_ledger(path, storage_options=options)
    _require_map(job, ledger.feature_map)
    _require_design(job, ledger)
    _require_rows(job, ledger)
    return ledger


def _exists(path: str, options: dict[str, Any] | None) -> bool:
    """Whether there is a ledger, not only the folder of a run that was killed while creating it."""
    try:
        fs, root = fsspec.core.url_to_fs(path, **(options or {}))
        fs.invalidate_cache()
        return bool(fs.exists(f"{root.rstrip('/')}/{ROOT}"))
    except Exception as error:  # file systems fail in many ways
        raise LedgerError(
            f"job.ledger: {path} cannot be reached: {type(error).__name__}: {error}. Check the "
            "path, and job.storage_options for a URL."
        ) from error


def _require_map(job: Job, feature_map: FeatureMap) -> None:
    """Refuse settings that contradict the feature map of the ledger."""
    given = job.feature_map
    if given.file is not None:
        stated = open_feature_map(job.place(given.file))
        if stated != feature_map:
            raise InputError(
                f"feature_map.file = {given.file!r} has the digest {stated.digest[:12]}, and the "
                f"ledger has {feature_map.digest[:12]}, that of its first run: give the earlier "
                "file, or a new ledger."
            )
        return
    for name in ("n_frequencies", "distribution", "dtype", "scale", "normalize"):
        wanted, has = getattr(given, name), getattr(feature_map, name)
        if wanted is not None and wanted != has:
            raise _other_design(f"feature_map.{name}", wanted, has)


def design_settings(job: Job) -> dict[str, Any]:
    """Settings of the feature map that only a design uses, for the records of runs."""
    given = job.feature_map
    if given.file is not None:
        return {}
    settings = {
        f"feature_map.{name}": getattr(given, name)
        for name in ("n_components", "task", "whitening", "n_pilot")
    }
    return settings | {"job.seed": job.job.seed}


def _require_design(job: Job, ledger: Ledger) -> None:
    """Refuse settings of the design that differ from those of the last run."""
    records = ledger.history()
    recorded = records[-1].results.get("design", {}) if records else {}
    for key, wanted in design_settings(job).items():
        if wanted is not None and key in recorded and recorded[key] != wanted:
            raise _other_design(key, wanted, recorded[key])


def rows_per_partition(job: Job, sources: Sequence[OpenSource]) -> int:
    """Number of random rows of each partition that a new ledger keeps."""
    if job.job.sample is not None:
        return job.job.sample
    if not job.decode:
        return 0
    n_features = sources[0].samples.n_features
    assert n_features is not None  # known for every path
    return default_rows(n_features, sum(len(source.partitions) for source in sources))


def _require_rows(job: Job, ledger: Ledger) -> None:
    """Refuse another number of random rows than that of the ledger; none may be kept any time."""
    wanted, has = job.job.sample, 0 if ledger.sampling is None else ledger.sampling.size
    if wanted not in (None, 0, has):
        kept = f"at most {has:,} random rows of each partition" if has else "no random rows"
        raise InputError(
            f"job.sample = {wanted}: the ledger keeps {kept}, as its first run decided, and cannot "
            "change that. Leave the setting out to go on like this, give 0 for none, or give "
            "another path as job.ledger, and the next run reads all data."
        )


def _other_design(key: str, wanted: Any, has: Any) -> InputError:
    return InputError(
        f"{key} = {wanted!r}: the ledger has {has!r}, that of its first run, and its feature map "
        "cannot change. Give the earlier setting; or give another path as job.ledger, and the next "
        "run designs a new feature map and reads all data."
    )
