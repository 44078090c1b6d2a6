"""Open the ledger, the feature map and the sources of a job, and sketch partitions of a source."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import dask.array as da
import fsspec
import numpy as np

from dask_sketch.errors import ChunkError, ClusterError, JobError, LedgerError
from dask_sketch.features.design import default_n_frequencies
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.matrix_pilot import n_pilot_of_type
from dask_sketch.graph.design import design
from dask_sketch.graph.partitions import sketch_partitions
from dask_sketch.graph.pilot_samples import PILOT_CHUNKS
from dask_sketch.jobs.agreement import (
    errors_of_settings,
    ledger_path,
    open_map_file,
    require_decodable,
    require_features,
    require_other_data,
    require_same_settings,
    require_vacant_ledger,
)
from dask_sketch.jobs.ledger.forgotten import RowRanges
from dask_sketch.jobs.ledger.ledger import Ledger, open_ledger
from dask_sketch.jobs.ledger.objects import ROOT
from dask_sketch.jobs.ledger.partition_rows import default_rows, identity_of
from dask_sketch.jobs.ledger.partitions import partitions_of
from dask_sketch.jobs.ledger.sums import Conventions, Sums, row_bytes
from dask_sketch.jobs.values import MAX_KEY
from dask_sketch.sketching.missing import require_sparse
from dask_sketch.sources.open import has_columns, open_samples
from dask_sketch.sources.samples import Samples, StoredFiles
from dask_sketch.storage.overwrite import path_exists
from dask_sketch.validation.choices import PCA

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.job_keys import DataTable, GroupsTable, SourceTable
    from dask_sketch.jobs.ledger.partitions import Partition
    from dask_sketch.sketching.arguments import NanPolicy

logger = logging.getLogger(__name__)
Result = tuple["Partition", Sums | ChunkError]  # sums, or the error of the last attempt
HELD_BYTES = 2**28  # bytes of finished partitions in memory, which are committed then
REREADS = 2  # repeated reads of a partition that changes while it is read


@dataclass(frozen=True)
class OpenSource:
    """Source of a job that is open, with its partitions.

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

    @property
    def unread(self) -> list[tuple[Partition, ChunkError]]:
        """Large Parquet files whose footers could not be read, with the errors."""
        origin = self.samples.origin
        parts = origin.parts if isinstance(origin, StoredFiles) else ()
        return [
            (partition, ChunkError(part.failure))
            for partition, part in zip(self.partitions, parts, strict=False)
            if part.failure is not None
        ]


def open_sources(job: Job, ledger: Ledger | None = None) -> list[OpenSource]:
    """Open all sources and list their partitions. Samples are read for checksums only.

    Parameters
    ----------
    job
        Job with the sources. If a source of Parquet files has no ``columns``, they are taken from
        the feature map, if there is one already.
    ledger
        Ledger with the feature map; without a ledger, ``feature_map.file`` is read.

    Returns
    -------
    sources
        Open sources in the order of the job file.

    Raises
    ------
    JobError
        If a setting of a source does not fit its data or the feature map, or a model does not.
    InputError
        If a source cannot be opened, or its data has changed since the ledger was created.
    """
    feature_map = open_map_file(job) if ledger is None else ledger.feature_map
    names = None if feature_map is None else feature_map.feature_names
    opened = []
    for i, table in enumerate(job.sources):
        full = table.model_copy(update={"columns": columns_of(job, table, names)})
        known = () if ledger is None else ledger.feature_map.feature_names
        with errors_of_settings(job, f"sources[{i}]", table, known or ()):
            opened.append(open_source(job, full))
    samples = [source.samples for source in opened]
    require_other_data(job, [(source.table.name, source.samples.origin) for source in opened])
    require_features(job, feature_map, samples, from_ledger=ledger is not None)
    assert samples[0].n_features is not None  # known for every path
    require_decodable(job, feature_map, samples[0].n_features)
    return opened


def columns_of(job: Job, table: DataTable, names: Sequence[str] | None) -> list[str] | None:
    """Columns of a table of the job file; by default the names of a feature map or a model.

    Parameters
    ----------
    job
        Job of the table.
    table
        Table of a source, or of the samples to score.
    names
        Names of the features, None if there are none. Only Parquet and CSV files have columns.
    """
    if table.columns is not None or names is None:
        return table.columns
    options = job.options(table.storage_options, table.path)
    return list(names) if has_columns(job.resolve(table.path), options) else None


def require_score(job: Job, sources: Sequence[OpenSource]) -> None:
    """Check that the samples to score, which a run reads at its end, can be opened.

    Raises
    ------
    JobError
        If a setting of ``[score]`` does not fit its data.
    InputError
        If the samples cannot be opened, or have other features than the sources.
    """
    table = job.score
    if table is None:
        return
    first = sources[0].samples
    names = first.feature_names
    with errors_of_settings(job, "score", table):
        samples = _samples(job, table.model_copy(update={"columns": columns_of(job, table, names)}))
    assert first.n_features is not None  # known for every path
    samples.require_features(first.n_features, first.label, names)


def _samples(job: Job, table: DataTable) -> Samples:
    return open_samples(
        job.resolve(table.path),
        array=table.array,
        columns=table.columns,
        weights=table.weights,
        chunk_size=table.chunk_size,
        missing_chunks=table.missing_chunks,
        storage_options=job.options(table.storage_options, table.path),
    )


def open_source(job: Job, table: SourceTable) -> OpenSource:
    """Open one source and list its partitions."""
    samples = _samples(job, table)
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
            before, source = source, open_source(job, source.table)
            present = {part.key: () for part in source.partitions}
            rows = RowRanges(present)
            # other parts may hold the same rows, so they cannot be read in place of these
            divided = {key for key in wanted - set(present) if rows.overlap(key)}
            yield [(part, _unstable(part.key)) for part in before.partitions if part.key in divided]
    yield [
        (partition, _unstable(partition.key))
        for partition in source.partitions
        if partition.key in wanted
    ]


def _unstable(key: str) -> ChunkError:
    return ChunkError(
        f"{key} changed whenever it was read, up to {1 + REREADS} times: write new data "
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
        self._done: list[tuple[int, Sums]] = []
        self.changed: set[str] = set()

    def results(self, wanted: set[str], progress: bool) -> Iterator[list[Result]]:
        limits, source = self._job.limits, self._source
        numbers = [i for i, part in enumerate(source.partitions) if part.key in wanted]
        failed: list[Result] = []
        due = time.monotonic() + limits.commit_seconds
        each = row_bytes(self._ledger.feature_map, self._ledger.sampling)
        at_once = min(limits.commit_partitions, max(HELD_BYTES // each, 1))
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
                    full = len(self._done) + len(failed) >= at_once
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
        identified = partitions_of(
            source.samples,
            f"{source.table.name}/",
            source.table.fingerprint,
            chunks=[number for number, _ in done],
        )
        unchanged: list[Result] = []
        for (number, sketch), now in zip(done, identified, strict=True):
            if now == source.partitions[number]:
                unchanged.append((now, sketch))
            else:
                self.changed.add(now.key)
        return unchanged


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
    >>> from dask_sketch.jobs.job_keys import GroupsTable
    >>> table = GroupsTable(pattern="[^/]+/([a-z]+)-")
    >>> group_keys(table, ["x/b-1", "x/a-2", "x/a-1", "x/9"])
    {'a': ['x/a-1', 'x/a-2'], 'b': ['x/b-1']}
    """
    by_group: dict[str, list[str]] = defaultdict(list)
    for key in sorted(keys):
        name = _group(table, key)
        if name:
            by_group[name].append(key)
    if len(by_group) > table.max_groups:
        raise JobError(
            f"groups.max_groups = {table.max_groups}: there are {len(by_group):,} groups. Choose a "
            "pattern with fewer groups, or raise the limit."
        )
    return dict(sorted(by_group.items()))


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


def feature_map_of(job: Job, sources: list[OpenSource]) -> Conventions:
    """Open the feature map of a job file, or design one from chunks of the largest source.

    For principal components, this is the grid of second moments.
    """
    available = any(source.table.nan_policy == "available" for source in sources)
    conventions: Conventions | None = open_map_file(job)
    if conventions is None:
        conventions = _designed(job, sources, "available" if available else "omit")
    if available and isinstance(conventions, FeatureMap):
        require_sparse(conventions)
    return conventions


def _designed(job: Job, sources: list[OpenSource], nan_policy: NanPolicy) -> Conventions:
    """Design a feature map or a grid from a few chunks of the largest source."""
    largest = max(sources, key=lambda source: source.samples.bytes_read or 0).samples
    try:
        return _designed_from(job, largest, nan_policy)
    except ChunkError:
        if job.limits.unreadable == "stop":
            raise
        return _designed_from(job, _readable(job, largest), nan_policy)


def _readable(job: Job, samples: Samples) -> Samples:
    """Random chunks that can be read, enough for a design."""
    assert samples.n_features is not None  # known for every path
    assert isinstance(samples.blocks, da.Array)
    order = np.random.default_rng(job.job.seed).permutation(samples.n_chunks)
    limits, feature_map = job.limits, FeatureMap(samples.n_features, 1, scale=1.0)
    readable: list[int] = []
    n_rows, min_rows = 0, 2 * _n_pilot(job, samples)
    for start in range(0, len(order), PILOT_CHUNKS):
        chosen = order[start : start + PILOT_CHUNKS].tolist()
        for number, chunk_sketch in sketch_partitions(
            samples, chosen, feature_map, nan_policy="omit",
            attempts=limits.attempts, backoff=limits.backoff,
        ):  # fmt: skip
            if not isinstance(chunk_sketch, ChunkError):
                readable.append(number)
                n_rows += chunk_sketch.count + chunk_sketch.omitted
        if len(readable) >= PILOT_CHUNKS and n_rows >= min_rows:
            break
    if not readable:
        return samples  # the design raises their error
    weights = samples.weights
    return replace(
        samples,
        blocks=samples.blocks.blocks[sorted(readable)],
        weights=weights.blocks[sorted(readable)] if isinstance(weights, da.Array) else weights,
        cut=None,
        origin=None,
    )


def _n_pilot(job: Job, samples: Samples) -> int:
    table = job.feature_map
    if table.n_pilot is not None:
        return table.n_pilot
    sizes = samples.n_features, table.n_components
    return n_pilot_of_type(largest_type(job, sizes[0]), *sizes, table.task or "mixture")


def _designed_from(job: Job, samples: Samples, nan_policy: NanPolicy) -> Conventions:
    table = job.feature_map
    if table.task == PCA:
        size: dict[str, Any] = {} if table.n_pilot is None else {"n_pilot": table.n_pilot}
        return design(
            samples,
            task="pca",
            n_components=components_wanted(job),
            n_columns=table.n_columns,
            seed=job.job.seed,
            nan_policy=nan_policy,
            **size,
        )
    options: dict[str, Any] = {
        name: value
        for name in ("task", "distribution", "scale", "whitening", "normalize", "dtype", "n_pilot")
        if (value := getattr(table, name)) is not None
    }
    return design(
        samples,
        n_frequencies=table.n_frequencies,
        n_components=table.n_components,
        covariance_type=largest_type(job, samples.n_features),
        seed=job.job.seed,
        nan_policy=nan_policy,
        **options,
    )


def components_wanted(job: Job) -> int | None:
    """Largest number of principal components that a job decodes; None if it names none."""
    wanted = [job.feature_map.n_components, *(table.n_components for table in job.decode)]
    return max((k for k in wanted if isinstance(k, int)), default=None)


def largest_type(job: Job, n_features: int | None) -> str | None:
    """Covariance type that needs the most frequencies, among the models of a job.

    Parameters
    ----------
    job
        Job file.
    n_features
        Number of features, known for every path.
    """
    settings = job.feature_map
    k = settings.n_components
    if k is None or n_features is None or settings.task not in (None, "mixture"):
        return None
    number = partial(default_n_frequencies, n_features, k, "mixture")
    return max((table.covariance_type for table in job.decode), key=number, default=None)


def ledger_of(job: Job) -> Ledger | None:
    """Open the ledger of a job, ``None`` if no run has created it yet.

    Raises
    ------
    LedgerError
        If the ledger is damaged or its file system cannot be reached.
    JobError
        If the job file contradicts the feature map of the ledger, or something else is at its path.
    """
    path = job.resolve(job.job.ledger)
    options = job.options(job.job.storage_options, path)
    if not has_ledger(job):
        try:
            require_vacant_ledger(job, options)
        except JobError:
            if not has_ledger(job):  # else another run has created it since
                raise
        else:
            return None
    with ledger_path(job):
        ledger = open_ledger(path, storage_options=options)
    require_same_settings(job, ledger)
    return ledger


def has_ledger(job: Job) -> bool:
    """Whether there is a complete ledger, and not only the folder of an interrupted creation.

    Raises
    ------
    LedgerError
        If its file system cannot be reached.
    """
    path = job.resolve(job.job.ledger)
    options = job.options(job.job.storage_options, path)
    try:
        fs, root = fsspec.core.url_to_fs(path, **(options or {}))
        fs.invalidate_cache()
        return path_exists(fs, f"{root.rstrip('/')}/{ROOT}")
    except Exception as error:  # file systems fail in many ways
        raise LedgerError(
            f"job.ledger: {path} cannot be reached: {type(error).__name__}: {error}. Check the "
            "path; for a URL also job.storage_options, and that the credentials are valid."
        ) from error


def rows_per_partition(job: Job, sources: Sequence[OpenSource]) -> int:
    """Number of random rows of each partition that a new ledger keeps."""
    if job.feature_map.task == PCA and job.job.sample:  # the sample comes from the command line
        raise JobError(
            f"{job.path}: job.sample = {job.job.sample}: second moments keep no random rows: leave "
            "it out"
        )
    if job.job.sample is not None:
        return job.job.sample
    if not job.decode or job.feature_map.task == PCA:
        return 0
    n_features = sources[0].samples.n_features
    assert n_features is not None  # known for every path
    return default_rows(n_features, sum(len(source.partitions) for source in sources))
