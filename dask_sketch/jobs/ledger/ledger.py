"""Create, open and change ledgers: sketches of partitions on disk, and their exact total."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dask_sketch.errors import InputError, LedgerError, LedgerLocked
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.jobs.ledger import batch, history
from dask_sketch.jobs.ledger.backends import Backend, open_backend
from dask_sketch.jobs.ledger.batch import Member
from dask_sketch.jobs.ledger.change import Change
from dask_sketch.jobs.ledger.history import Failure, JobModel, RunRecord, write_failure
from dask_sketch.jobs.ledger.lock import STALE_AFTER, Lock
from dask_sketch.jobs.ledger.manifest import (
    PILOTS,
    Manifest,
    commit_name,
    commit_numbers,
    publish,
    read_commit,
    read_root,
    write_root,
)
from dask_sketch.jobs.ledger.objects import is_object_name
from dask_sketch.jobs.ledger.partition_rows import sampling_of
from dask_sketch.jobs.ledger.partitions import Partition
from dask_sketch.jobs.ledger.reader import LedgerReader
from dask_sketch.jobs.ledger.sums import Conventions, Sums, require_conventions
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.row_sample import RowSampling
from dask_sketch.validation.arrays import require_integer

logger = logging.getLogger(__name__)
KEEP_COMMITS = 3  # readers of one of these can continue to read
_FOLDERS = (batch.FOLDER, batch.TOTALS, history.RUNS_FOLDER, history.MODELS_FOLDER, PILOTS)


def create_ledger(
    url: Any,
    feature_map: FeatureMap | MomentGrid,
    *,
    sample: int = 0,
    storage_options: dict[str, Any] | None = None,
) -> Ledger:
    """Create an empty ledger for sketches of one feature map.

    Parameters
    ----------
    url
        Path, or URL of any fsspec file system, which must not exist yet.
    feature_map
        Feature map of all sketches of the ledger, which cannot change later; or the grid of
        ``design(x, task="pca")``, for a ledger of second moments.
    sample
        Maximum number of random rows that are kept beside the sums of each partition, which cannot
        change later; none by default. With rows, totals carry a sample, from which :func:`decode`
        finds mixtures of larger likelihood. The rows are data: anyone who can read the ledger can
        read them.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    ledger
        Empty ledger.

    Raises
    ------
    InputError
        If ``feature_map`` is neither a feature map nor a grid, or its second moments are larger
        than a ledger can store; or if ``sample`` is not a non-negative integer, or positive with a
        grid.
    LedgerError
        If the path exists or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dask_sketch import partial_sketch
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> ledger = create_ledger(tempfile.mkdtemp() + "/ledger.zarr", feature_map)
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> with ledger.lock():
    ...     ledger.commit(added=[(Partition("day-1", "etag-1"), partial_sketch(x, feature_map))])
    >>> ledger.total().count, ledger.compare([Partition("day-1", "etag-2")]).changed[0].key
    (100, 'day-1')

    Second moments of each day, for the principal components of all of them or of some:

    >>> from dask_sketch import SketchPCA, design, sketch
    >>> grid = design(x, task="pca")
    >>> moments = create_ledger(tempfile.mkdtemp() + "/moments.zarr", grid)
    >>> with moments.lock():
    ...     moments.commit(added=[(Partition("day-1", "etag-1"), sketch(x, grid))])
    >>> SketchPCA(1).fit(moments.total()).components_.shape
    (1, 2)
    """
    require_conventions(feature_map)
    require_integer("sample", sample, 0)
    if isinstance(feature_map, MomentGrid):
        if sample:
            raise InputError(
                f"sample={sample}: a ledger of second moments keeps no random rows; leave it out."
            )
        sampling = None
    else:
        sampling = sampling_of(feature_map, sample)
    backend = open_backend(url, storage_options)
    write_root(backend, feature_map, sampling)
    return Ledger(backend, feature_map, sampling)


def open_ledger(url: Any, *, storage_options: dict[str, Any] | None = None) -> Ledger:
    """Open a ledger that :func:`create_ledger` created.

    Parameters
    ----------
    url, storage_options
        Arguments of :func:`create_ledger`.

    Returns
    -------
    ledger
        Ledger in the state of its last complete commit.

    Raises
    ------
    LedgerError
        If there is no ledger, it was edited or damaged, or a newer version wrote it.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/ledger.zarr"
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> _ = create_ledger(path, feature_map)
    >>> open_ledger(path).feature_map == feature_map
    True
    """
    backend = open_backend(url, storage_options)
    return Ledger(backend, *read_root(backend))


class Ledger(LedgerReader):
    """Sketches of partitions, stored so that no data is read twice; see :func:`create_ledger`.

    A ledger of a grid has second moments in place of sketches, and no random rows.

    On disk, a ledger is one Zarr group (format 3) of objects that never change: batches of
    sketches, totals, records of runs, and *commits*, each of which names the objects of one state.
    A commit is one object, which is written last. At any time the complete commit of the highest
    number is the state of the ledger. Objects of an interrupted writer are garbage, which the next
    writer removes.

    Readers need no lock, and can continue to read while two more commits are made. Writers hold the
    lock. Each number of a commit can be taken only once, if the file system can create objects
    exclusively (as local disks and the large object stores can). Thus even a writer that lost the
    lock without noticing changes nothing that another one wrote.

    The total of a commit is the previous total, plus the added sketches, minus the removed and
    replaced ones. Sums of sketches are exact, so that the total has the bits of a total that is
    computed from scratch.

    A ledger may keep random rows of each partition, chosen by the key of the partition and by the
    positions of the rows in it. The rows of a total are merged from the rows of its partitions on
    request, so that they do not depend on earlier states. If no partition has more than ``sample``
    of the rows of the total, one pass over all partitions would keep the same rows
    (:class:`~dask_sketch.sketching.row_sample.RowSample`). Totals of earlier runs have no rows.

    Attributes
    ----------
    damage
        Description of the damage of the newest commit, which the state does not include; ``None``
        if it is whole. The ledger is then in the state of an earlier commit, with a warning.
    feature_map
        Feature map of all sketches, or grid of all second moments.
    backend
        Storage backend.
    label
        Path or URL of the ledger, for messages.
    """

    def __init__(
        self, backend: Backend, feature_map: Conventions, sampling: RowSampling | None = None
    ):
        super().__init__(backend, feature_map, sampling)
        self._lock: Lock | None = None
        self._models: dict[int, dict[str, str]] = {}  # written, but not yet in a record

    @contextlib.contextmanager
    def lock(self, stale_after: float = STALE_AFTER) -> Iterator[Lock]:
        """Exclude other writers within a ``with`` block.

        Parameters
        ----------
        stale_after
            Number of seconds without a heartbeat after which the lock of another process is broken.
            The lock of a process of this machine that has ended is broken at once. The clocks of
            the machines must agree to within a fraction of this time.

        Yields
        ------
        lock
            Lock, whose attribute ``broken`` describes an earlier lock that was broken.

        Raises
        ------
        LedgerLocked
            If another process holds the lock; the message names host, process and time.
        LedgerError
            If the ledger cannot be written.
        """
        if self._lock is not None:
            raise LedgerLocked(
                f"{self.label} is already locked by this object: use its `with` block."
            )
        self.backend.require_no_links()
        lock = Lock(self.backend, stale_after)
        try:
            self._lock = lock
            self.refresh()
            if lock.broken:
                # take the number that the former holder of the lock would write next
                self._publish(replace(self._state, number=self._taken + 1))
            self._collect()
            yield lock
        finally:
            self._lock = None
            lock.release()

    def commit(
        self,
        added: Iterable[tuple[Partition, Sums]] = (),
        removed: Iterable[str] = (),
        quarantined: Mapping[str, str] | None = None,
        run: RunRecord | None = None,
        skipped: Iterable[Partition] = (),
    ) -> None:
        """Change the ledger atomically.

        Parameters
        ----------
        added
            Partitions and their sketches, or second moments. A partition of the same key is
            replaced. If the ledger keeps rows, the sketches need a sample, which is cut to the size
            of the ledger: give ``partial_sketch`` positions of rows that differ between partitions.
            Other ledgers drop samples.
        removed
            Keys of partitions that no longer exist, in the ledger or in quarantine.
        quarantined
            Keys of partitions that cannot be read, with the reasons. A key leaves the quarantine
            when it is added or removed. An earlier sketch of it stays, unless it is removed too.
        run
            Record of the run that ends with this commit. The total is kept as the state of that
            run, with the models that :meth:`write_model` stored for it.
        skipped
            Partitions of :meth:`compare` that hold forgotten rows. Their keys and fingerprints are
            remembered, so that the next change of either is recognised too.

        Raises
        ------
        LedgerError
            If the lock is not held, a key is repeated, forgotten or unknown, a sketch is of another
            feature map or lacks rows, or the ledger cannot be written. The ledger is unchanged
            then.
        LedgerLocked
            If another process broke the lock. The ledger is unchanged then.
        """
        lock = self._require_lock()
        if run is not None:
            run = replace(run, models={**run.models, **self._models.get(run.number, {})})
        change = self._change()
        change.apply(added, removed, quarantined or {}, skipped)
        if run is not None:
            change.record(run)
        if self._write(change, lock):
            self._collect()

    def forget(self, keys: Iterable[str], undo: bool = False) -> None:
        """Erase partitions at once, and never read them again.

        The rows themselves are forgotten: a partition that holds any of them is erased, or is not
        read, whatever its key, even after a file was divided differently or a source was renamed. A
        file that was renamed, moved or copied counts as another file, and is read.

        Their sketches are subtracted from the total, and are removed, with their random rows, from
        all objects of the ledger. Batches that contain them are rewritten. Earlier commits and
        totals of earlier runs that contain them are removed, as is the record of the pilot rows of
        the feature map. What remains: the keys, here and in records of runs; models that were
        decoded before; versions and backups that the store keeps; and removed files on a disk until
        it overwrites them.

        Parameters
        ----------
        keys
            Keys of partitions that the ledger holds or once held, or of files that were divided
            into several of them.
        undo
            Whether to allow the next run to read them again, under any name of their source. This
            does not restore the sketches.

        Raises
        ------
        LedgerError
            If a key is unknown, only some rows of a forgotten partition are to be read again, or an
            object could not be removed: then call it again.
        """
        if self._lock is None:
            with self.lock():
                return self.forget(keys, undo)
        change = self._change()
        change.forget(keys, undo)
        self._write(change, self._lock)
        self._collect(strict=not undo)
        return None

    def record_failure(self, started: str, ended: str, error: str) -> None:
        """Record that a run failed, for :attr:`failure`; needs no lock, and raises no errors.

        Parameters
        ----------
        started, ended
            Times in ISO 8601 with time zone.
        error
            Message of the error, without secrets.
        """
        write_failure(self.backend, Failure(self.next_run, started, ended, error))

    def erase_rows(self) -> None:
        """Erase the random rows of all partitions at once, and keep none from then on.

        All batches are rewritten, and earlier commits are removed. The sums stay as they are. What
        remains: models that were decoded before, versions and backups that the store keeps, and
        removed files on a disk until it overwrites them. A ledger without rows is not changed.

        Raises
        ------
        LedgerError
            If an object could not be removed: then call it again.
        """
        if self._lock is None:
            with self.lock():
                return self.erase_rows()
        change = self._change()
        change.erase_rows()
        self._write(change, self._lock)
        self._collect(strict=True)
        return None

    def write_model(self, run: int, model: JobModel, name: str = "all") -> None:
        """Store a model of a run, to be recorded when the run is committed.

        Parameters
        ----------
        run
            Number of the run, :attr:`next_run`.
        model
            Decoded model, or principal components.
        name
            Name, which distinguishes models of one run.
        """
        self._require_lock()
        stored = history.write_model(self.backend, model, run)
        self._models.setdefault(run, {})[name] = stored

    def _change(self) -> Change:
        total, number = self.total(sample=False), self._taken + 1
        return Change(self.backend, self._state, self._index, total, number, self.sampling)

    def _write(self, change: Change, lock: Lock) -> bool:
        """Write and publish a change; False if it changes nothing."""
        if change.is_empty:
            return False
        prepared = change.write()
        lock.require_held()
        self._publish(*prepared)
        return True

    def _require_lock(self) -> Lock:
        if self._lock is None:
            raise LedgerError(f"{self.label} is not locked: write inside `with ledger.lock():`.")
        return self._lock

    def _publish(
        self,
        state: Manifest,
        total: Sums | None = None,
        members: Mapping[str, list[Member]] | None = None,
    ) -> None:
        try:
            publish(self.backend, state)
        except BaseException:
            # the commit may have been written nevertheless
            with contextlib.suppress(LedgerError):
                self.refresh()
            raise
        self._taken = state.number
        self._adopt(state, total, members)

    def _collect(self, *, strict: bool = False) -> None:
        models = [name for by_name in self._models.values() for name in by_name.values()]
        try:
            models += [name for record in self.history() for name in record.models.values()]
            collect(self.backend, self._state, models)
        except LedgerError as error:
            if strict:
                raise
            logger.warning("objects that are no longer needed were not removed: %s", error)


def collect(backend: Backend, current: Manifest, models_kept: Collection[str]) -> None:
    """Remove earlier commits, and objects that none of the last commits refers to.

    Objects with names that a ledger does not use stay. Only the holder of the lock may call this,
    because the uncommitted objects of another writer look like garbage.

    Parameters
    ----------
    backend
        Backend of the ledger.
    current
        State of the ledger.
    models_kept
        Folders of the models that the records of runs refer to.

    Raises
    ------
    LedgerError
        If an object could not be removed.
    """
    states = {current.number: current}
    numbers = commit_numbers(backend)
    for number in reversed(numbers):
        if current.oldest <= number < current.number and len(states) < KEEP_COMMITS:
            # an incomplete commit was never a state
            with contextlib.suppress(LedgerError, FileNotFoundError):
                states[number] = read_commit(backend, number)
    # commits first, so that no state refers to a missing object
    for number in numbers:
        if number not in states:
            backend.remove(commit_name(number))
    needed = set(models_kept).union(*(state.names() for state in states.values()))
    for folder in _FOLDERS:
        for name in backend.names(folder):
            if f"{folder}/{name}" not in needed and is_object_name(f"{folder}/{name}"):
                backend.remove(f"{folder}/{name}")
