"""The sources of a job, opened: their partitions, and sketches of those that are wanted."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dask_sketch.errors import ChunkError, ClusterError, JobError
from dask_sketch.features.artifact import open_feature_map
from dask_sketch.graph.design import design
from dask_sketch.graph.partitions import sketch_partitions
from dask_sketch.jobs.ledger.partitions import partitions_of
from dask_sketch.sources.open import open_samples
from dask_sketch.sources.samples import Samples

if TYPE_CHECKING:
    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.jobs.job_file import GroupsTable, Job, SourceTable
    from dask_sketch.jobs.ledger.partitions import Partition
    from dask_sketch.sketching.sketch import Sketch

logger = logging.getLogger(__name__)
Result = tuple["Partition", "Sketch | ChunkError"]
REREADS = 2  # of a partition that changes while it is read


@dataclass(frozen=True)
class OpenSource:
    """A source as it is now.

    Attributes
    ----------
    table
        What the job file says of it.
    samples
        To be read.
    partitions
        One for each chunk of the samples, in their order.
    """

    table: SourceTable
    samples: Samples
    partitions: tuple[Partition, ...]


def open_sources(job: Job) -> list[OpenSource]:
    """Open all sources and list their partitions; no samples are read, but for checksums."""
    return [open_source(job, table) for table in job.sources]


def open_source(job: Job, table: SourceTable) -> OpenSource:
    """Open one source and list its partitions."""
    samples = open_samples(
        job.place(table.path),
        array=table.array,
        columns=table.columns,
        weights=table.weights,
        chunk_size=table.chunk_size,
        storage_options=job.options(table.storage_options, table.path),
    )
    partitions = partitions_of(samples, f"{table.name}/", table.fingerprint)
    return OpenSource(table, samples, tuple(partitions))


def sketches_of(
    job: Job,
    source: OpenSource,
    keys: Iterable[str],
    feature_map: FeatureMap,
    *,
    progress: bool = False,
) -> Generator[list[Result], None, None]:
    """Read the partitions that are named, and give their sketches as they are done.

    What is given is certain to be of one version of the partition: its fingerprint was the same
    before it was read and after. One that changes meanwhile is read again, at most twice.

    Parameters
    ----------
    job
        Its limits say how often a partition is read, and how much is done between two commits.
    source
        To read from.
    keys
        Of partitions of this source.
    feature_map
        What to average.
    progress
        Show a bar on the standard error stream.

    Yields
    ------
    results
        Partitions, each with its sketch or with the error with which it was given up: what is to be
        committed next.

    Raises
    ------
    ClusterError
        If the cluster is lost; what it had delivered was given before.
    """
    wanted = set(keys)
    for attempt in range(1 + REREADS):
        reader = _Reader(job, source, feature_map)
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
        (partition, _unsteady(partition.key))
        for partition in source.partitions
        if partition.key in wanted
    ]


def _unsteady(key: str) -> ChunkError:
    return ChunkError(
        f"{key} changed each of the {1 + REREADS} times that it was read: write new data "
        "elsewhere and move it here when it is whole, or run when nobody writes."
    )


class _Reader:
    """Reads partitions of a source in one pass; ``changed`` are keys of those to be read again."""

    def __init__(self, job: Job, source: OpenSource, feature_map: FeatureMap):
        self._job = job
        self._source = source
        self._map = feature_map
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
            self._map,
            nan_policy=source.table.nan_policy,
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
        """What was read as it had been listed; the rest is left for another pass."""
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


# Which partitions belong together, and their sum.

MOST_KEY = 512  # characters of a key that a pattern is matched to; its time is bounded for these


def group_keys(table: GroupsTable, keys: Iterable[str]) -> dict[str, list[str]]:
    """Keys of partitions, sorted, by the name of their group; those in none are left out.

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
            f"groups: there are {len(found):,} of them, and groups.most allows {table.most}: "
            "choose a coarser pattern, or raise it."
        )
    return dict(sorted(found.items()))


def _group(table: GroupsTable, key: str) -> str | None:
    if table.pattern is None:
        return key.partition("/")[0]
    match = table.pattern.match(key[:MOST_KEY])
    if match is None:
        return None
    pattern = match.re
    if "group" in pattern.groupindex:
        return match["group"]
    return match[1] if pattern.groups else match[0]


# The feature map of a job: from a file, or designed by the first run.


def feature_map_of(job: Job, sources: list[OpenSource]) -> FeatureMap:
    """The map that the job file names, or one designed from a few chunks of the largest source."""
    given = job.feature_map
    if given.file is not None:
        return open_feature_map(job.place(given.file))
    largest = max(sources, key=lambda source: source.samples.bytes_read or 0)
    options = {
        name: value
        for name in ("task", "distribution", "scale", "whitening", "dtype", "n_pilot")
        if (value := getattr(given, name)) is not None
    }
    return design(
        largest.samples,
        given.n_frequencies,
        given.n_components,
        seed=job.job.seed,
        **options,
    )
