"""The ledger: sketches of partitions on disk, what each was made of, and the sum of all."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dask_sketch.errors import LedgerError, LedgerLocked
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.jobs.ledger import history
from dask_sketch.jobs.ledger.backends import Place, place_of
from dask_sketch.jobs.ledger.batch import Member
from dask_sketch.jobs.ledger.change import Change
from dask_sketch.jobs.ledger.garbage import collect
from dask_sketch.jobs.ledger.history import RunRecord
from dask_sketch.jobs.ledger.lock import STALE_AFTER, Lock
from dask_sketch.jobs.ledger.manifest import Manifest, publish, read_root, write_root
from dask_sketch.jobs.ledger.partitions import Partition
from dask_sketch.jobs.ledger.reader import LedgerReader
from dask_sketch.sketching.arguments import require_feature_map
from dask_sketch.sketching.sketch import Sketch

if TYPE_CHECKING:
    from dask_sketch.models.centroids import Centroids
    from dask_sketch.models.gaussian_mixture import GaussianMixture

logger = logging.getLogger(__name__)


def create_ledger(
    url: Any, feature_map: FeatureMap, *, storage_options: dict[str, Any] | None = None
) -> Ledger:
    """Make an empty ledger; its feature map is fixed from then on.

    Parameters
    ----------
    url
        Path, or URL of any fsspec file system, where there is nothing yet.
    feature_map
        Of all sketches that it will hold.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    ledger
        Empty.

    Raises
    ------
    InputError
        If ``feature_map`` is none.
    LedgerError
        If something stands there, or it cannot be written.

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
    """
    require_feature_map(feature_map)
    place = place_of(url, storage_options)
    write_root(place, feature_map)
    return Ledger(place, feature_map)


def open_ledger(url: Any, *, storage_options: dict[str, Any] | None = None) -> Ledger:
    """Open a ledger that :func:`create_ledger` made.

    Parameters
    ----------
    url, storage_options
        As for :func:`create_ledger`.

    Returns
    -------
    ledger
        In the state of its last whole commit.

    Raises
    ------
    LedgerError
        If there is none, it was edited or damaged, or a newer version wrote it.

    Examples
    --------
    >>> import tempfile
    >>> place = tempfile.mkdtemp() + "/ledger.zarr"
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> _ = create_ledger(place, feature_map)
    >>> open_ledger(place).feature_map == feature_map
    True
    """
    place = place_of(url, storage_options)
    return Ledger(place, read_root(place))


class Ledger(LedgerReader):
    """Sketches of partitions, kept so that nothing is read twice; see :func:`create_ledger`.

    On disk it is one Zarr group (format 3) of objects that never change: batches of sketches,
    totals, records of runs, and *commits*, each of which names what makes up one state. A commit is
    one object, written last: at every instant the highest whole one is the state of the ledger, and
    what an interrupted writer leaves behind is garbage, which the next one removes.

    Readers need no lock, and can read on while two more commits are made. Writers hold it; and the
    number of a commit can be taken only once (where the file system can create an object
    exclusively, as local disks and the large object stores can), so that not even a writer who lost
    the lock unawares changes what another one wrote.

    The total of a commit is that of the one before, plus what was added, minus what was removed or
    replaced. Sums of sketches are exact, so it has the bits of a total made afresh.

    Attributes
    ----------
    feature_map
        Of all sketches.
    label
        Where the ledger lies, for messages.
    """

    def __init__(self, place: Place, feature_map: FeatureMap):
        super().__init__(place, feature_map)
        self._lock: Lock | None = None
        self._models: dict[int, dict[str, str]] = {}  # written, and in no record yet

    @contextlib.contextmanager
    def lock(self, stale_after: float = STALE_AFTER) -> Iterator[Lock]:
        """Keep other writers out, for as long as the context lasts.

        Parameters
        ----------
        stale_after
            Seconds without a sign of life after which the lock of another process is broken; that
            of a process of this machine which is gone is broken at once. The clocks of all writers
            must agree to a fraction of it.

        Yields
        ------
        lock
            Whose ``broken`` tells of a lock that was found and broken.

        Raises
        ------
        LedgerLocked
            If another process holds it; the message names host, process and time.
        LedgerError
            If the ledger cannot be written.
        """
        if self._lock is not None:
            raise LedgerLocked(f"{self.label} is locked already, by this very object.")
        lock = Lock(self._place, stale_after)
        try:
            self._lock = lock
            self.refresh()
            if lock.broken:
                # takes the number that whoever held the lock would write next
                self._publish(replace(self._state, number=self._taken + 1))
            self._collect()
            yield lock
        finally:
            self._lock = None
            lock.release()

    def commit(
        self,
        added: Iterable[tuple[Partition, Sketch]] = (),
        removed: Iterable[str] = (),
        quarantined: Mapping[str, str] | None = None,
        run: RunRecord | None = None,
    ) -> None:
        """Change the ledger, all at once or not at all.

        Parameters
        ----------
        added
            Partitions and their sketches. One whose key is there already is replaced.
        removed
            Keys of partitions that no longer exist.
        quarantined
            Keys of partitions that cannot be read, and why. A key leaves the quarantine when it is
            added or removed. What the ledger holds of it stays, unless it is also removed.
        run
            Record of the run that ends with this commit. The total is kept as the state of that
            run, with the models that :meth:`write_model` stored for it.

        Raises
        ------
        LedgerError
            If the lock is not held, a key is given twice, forgotten or not there, a sketch is of
            another feature map, or the store cannot be written. Nothing has changed then.
        LedgerLocked
            If the lock was broken by another process. Nothing has changed then.
        """
        lock = self._require_lock()
        if run is not None:
            run = replace(run, models={**run.models, **self._models.get(run.number, {})})
        change = Change(self._place, self._state, self._index, self.total(), self._taken + 1)
        change.apply(added, removed, quarantined or {})
        if run is not None:
            change.record(run)
        if not change.is_empty:
            prepared = change.write()
            lock.require_held()
            self._publish(*prepared)
            self._collect()

    def forget(self, keys: Iterable[str], undo: bool = False) -> None:
        """Erase partitions, at once, and never read them again.

        Their sketches are taken out of the total, and out of all objects of the ledger: batches
        that held them are written anew without, earlier commits and the totals of earlier runs that
        contain them are removed. What remains: the keys themselves, here and in records of runs,
        models that were decoded before, versions and backups that the store keeps by itself, and
        what a disk holds of removed files until it writes there again.

        Parameters
        ----------
        keys
            Of partitions that the ledger holds, or once held.
        undo
            Allow the next run to read them again; the sketches do not come back by themselves.

        Raises
        ------
        LedgerError
            If a key is unknown, or something could not be removed: then call it again.
        """
        if self._lock is None:
            with self.lock():
                return self.forget(keys, undo)
        change = Change(self._place, self._state, self._index, self.total(), self._taken + 1)
        change.forget(keys, undo)
        if not change.is_empty:
            prepared = change.write()
            self._lock.require_held()
            self._publish(*prepared)
        self._collect(strict=not undo)
        return None

    def write_model(self, run: int, model: GaussianMixture | Centroids, name: str = "all") -> None:
        """Store a model of a run; it counts once the run is committed.

        Parameters
        ----------
        run
            Number of the run, :attr:`next_run`.
        model
            What was decoded.
        name
            To tell it from other models of the same run.
        """
        self._require_lock()
        stored = history.write_model(self._place, model, run)
        self._models.setdefault(run, {})[name] = stored

    def _require_lock(self) -> Lock:
        if self._lock is None:
            raise LedgerError(f"{self.label} is not locked: write within `with ledger.lock():`.")
        return self._lock

    def _publish(
        self,
        state: Manifest,
        total: Sketch | None = None,
        members: Mapping[str, list[Member]] | None = None,
    ) -> None:
        try:
            publish(self._place, state)
        except BaseException:
            # it may have been written all the same
            with contextlib.suppress(LedgerError):
                self.refresh()
            raise
        self._taken = state.number
        self._adopt(state, total, members)

    def _collect(self, *, strict: bool = False) -> None:
        kept = [name for by_name in self._models.values() for name in by_name.values()]
        try:
            kept += [name for record in self.history() for name in record.models.values()]
            collect(self._place, self._state, kept)
        except LedgerError as error:
            if strict:
                raise
            logger.warning("what is no longer needed was left: %s", error)
