"""The ledger: sketches of partitions on disk, what each was made of, and the sum of all."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.errors import LedgerError, LedgerLocked
from dask_sketch.features import FeatureMap
from dask_sketch.ledger import models
from dask_sketch.ledger.batch import read_sketches, read_total
from dask_sketch.ledger.change import Change
from dask_sketch.ledger.garbage import collect
from dask_sketch.ledger.group import Reference
from dask_sketch.ledger.index import Index
from dask_sketch.ledger.lock import STALE_AFTER, Lock
from dask_sketch.ledger.manifest import newest, publish
from dask_sketch.ledger.partition import Changes, Entry, Partition, compare
from dask_sketch.ledger.place import Place, place_of
from dask_sketch.ledger.records import RunRecord, read_records
from dask_sketch.ledger.root import read_root, write_root
from dask_sketch.ledger.verification import Verification, verify
from dask_sketch.sketching import Sketch, merge

if TYPE_CHECKING:
    from dask_sketch.models import Centroids, GaussianMixture

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
    LedgerError
        If something stands there, or it cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from dask_sketch import partial_sketch
    >>> feature_map = FeatureMap(2, 20, scale=1.0)
    >>> ledger = create_ledger(tempfile.mkdtemp() + "/ledger.zarr", feature_map)
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> with ledger.lock():
    ...     ledger.commit(added=[(Partition("day-1", "etag-1"), partial_sketch(x, feature_map))])
    >>> ledger.total().count, ledger.compare([Partition("day-1", "etag-2")]).changed[0].key
    (100, 'day-1')
    """
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


class Ledger:
    """Sketches of partitions, kept so that nothing is read twice; see :func:`create_ledger`.

    On disk it is one Zarr group (format 3) of objects that never change: batches of sketches,
    totals, records of runs, and *commits*, each of which names what makes up one state. A commit is
    one object, written last: at every instant the highest whole one is the state of the ledger, and
    what an interrupted writer leaves behind is garbage, which the next one removes. Readers need no
    lock. The total of a commit is that of the one before, plus what was added, minus what was
    removed or replaced. Sums of sketches are exact, so it has the bits of a total made afresh.

    Attributes
    ----------
    feature_map
        Of all sketches.
    label
        Where the ledger lies, for messages.
    """

    def __init__(self, place: Place, feature_map: FeatureMap):
        self._place = place
        self._lock: Lock | None = None
        self._models: dict[int, dict[str, str]] = {}  # written, and in no record yet
        self._records: dict[Reference, list[RunRecord]] = {}  # by segment
        self.feature_map = feature_map
        self.label = place.label
        self._known: Index | None = None
        self._sum: Sketch | None = None
        self._state, self._taken = newest(place)

    def __repr__(self) -> str:
        return f"<Ledger: {self.label}, commit {self._state.number}; {self.feature_map!r}>"

    # -- what it holds -----------------------------------------------------------------------

    def refresh(self) -> None:
        """See what other processes have committed since this ledger was opened."""
        state, self._taken = newest(self._place)
        if state != self._state:
            self._state, self._sum = state, None

    @property
    def _index(self) -> Index:
        batches = self._state.batches
        if self._known is None or tuple(self._known.batches.values()) != batches:
            self._known = Index(self._place, batches, self._known)
        return self._known

    @property
    def number(self) -> int:
        """Number of the commit that is the state, 0 before the first."""
        return self._state.number

    @property
    def next_run(self) -> int:
        """Number of the run that is next, or under way: one more than the last recorded."""
        return self._state.last_run + 1

    @property
    def entries(self) -> Mapping[str, Entry]:
        """What is known of each partition whose sketch counts, by key."""
        return self._index.entries

    @property
    def forgotten(self) -> frozenset[str]:
        """Keys that :meth:`forget` named, never to be read again."""
        return self._state.forgotten

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Keys of partitions that could not be read, and why."""
        return self._state.quarantined

    def compare(self, partitions: Sequence[Partition]) -> Changes:
        """Sort all partitions that there are now into new, changed, same, deleted and forgotten.

        Parameters
        ----------
        partitions
            All of them: whatever is missing counts as deleted.

        Raises
        ------
        LedgerError
            If two have one key.
        """
        return compare(partitions, self.entries, self.forgotten)

    def total(self, keys: Iterable[str] | None = None) -> Sketch:
        """The sketch of all partitions, or of some.

        Parameters
        ----------
        keys
            Of the partitions wanted; each counts once. All by default, which reads only a sum.

        Raises
        ------
        LedgerError
            If a key is unknown, or what is stored is missing or edited.
        """
        if keys is not None:
            total = Sketch.empty(self.feature_map)
            for sketches in self._batchwise(dict.fromkeys(keys)):
                total = merge([total, *(sketch for _, sketch in sketches)])
            return total
        if self._sum is None:
            stored = self._state.total
            self._sum = (
                Sketch.empty(self.feature_map)
                if stored is None
                else read_total(self._place, stored, self.feature_map)
            )
        return self._sum

    def sketch_of(self, key: str) -> Sketch:
        """The sketch of one partition.

        Raises
        ------
        LedgerError
            If the ledger holds none of that key.
        """
        ((_, sketch),) = self.sketches([key])
        return sketch

    def sketches(self, keys: Iterable[str]) -> Iterator[tuple[str, Sketch]]:
        """Keys and sketches of some partitions, batch by batch, hence in an order of their own."""
        for sketches in self._batchwise(keys):
            yield from sketches

    def history(self) -> list[RunRecord]:
        """Records of all runs, the first one first."""
        segments = self._state.runs
        wanted = [ref for ref in segments if ref not in self._records]
        self._records |= zip(wanted, read_records(self._place, wanted), strict=True)
        self._records = {ref: self._records[ref] for ref in segments}
        return [record for records in self._records.values() for record in records]

    def states(self, n: int) -> list[tuple[int, Sketch]]:
        """Number of the run and total at its end, for the last ``n`` runs that are kept.

        The oldest first. There may be fewer: states are dropped after :data:`KEEP_STATES` runs, and
        by :meth:`forget`.
        """
        if n < 1:
            raise LedgerError(f"n={n!r}: give a whole number of at least 1.")
        return [
            (run, read_total(self._place, reference, self.feature_map))
            for run, reference in self._state.states[-n:]
        ]

    # -- writing -----------------------------------------------------------------------------

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
            state, total = change.write()
            lock.require_held()
            self._publish(state, total)
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
            state, total = change.write()
            self._lock.require_held()
            self._publish(state, total)
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
        stored = models.write_model(self._place, model, run)
        self._models.setdefault(run, {})[name] = stored

    def model(self, run: int = -1, name: str = "all") -> GaussianMixture | Centroids | None:
        """The model of that name of a run, ``None`` if there is none.

        Parameters
        ----------
        run
            Number of the run; -1 for the last one that has such a model.
        name
            As it was written.
        """
        for record in reversed(self.history()):
            if run in (-1, record.number) and name in record.models:
                return models.read_model(self._place, record.models[name])
        return None

    def verify(
        self,
        share: float,
        seed: int,
        resketch: Callable[[list[str]], Mapping[str, Sketch]],
    ) -> Verification:
        """Sketch a random share of the partitions again, and compare.

        Parameters
        ----------
        share
            Of the partitions, in (0, 1]; at least one is taken. With 1, the total is compared with
            the sum of what is stored as well.
        seed
            Of the choice.
        resketch
            Gives the sketches of the partitions named, as they are now; it may leave out those that
            no longer exist. Called for a few hundred at a time.

        Raises
        ------
        LedgerError
            If ``share`` is out of range, or what is stored is missing or edited.
        """
        if not 0 < share <= 1:
            raise LedgerError(f"share={share!r}: give a number in (0, 1].")
        keys = sorted(self.entries)
        n = min(len(keys), max(1, math.ceil(share * len(keys))))
        chosen = np.sort(np.random.default_rng(seed).choice(len(keys), n, replace=False))
        return verify(self, [keys[i] for i in chosen], resketch)

    # -- inside ------------------------------------------------------------------------------

    def _batchwise(self, keys: Iterable[str]) -> Iterator[list[tuple[str, Sketch]]]:
        index = self._index
        for name, rows in index.rows(keys).items():
            found = read_sketches(self._place, index.batches[name], rows, self.feature_map)
            yield [(index.key(name, row), sketch) for row, sketch in zip(rows, found, strict=True)]

    def _require_lock(self) -> Lock:
        if self._lock is None:
            raise LedgerError(f"{self.label} is not locked: write within `with ledger.lock():`.")
        return self._lock

    def _publish(self, state: Any, total: Sketch | None = None) -> None:
        try:
            publish(self._place, state)
        except BaseException:
            # it may have been written all the same
            with contextlib.suppress(LedgerError):
                self.refresh()
            raise
        self._state, self._taken = state, state.number
        self._sum = total

    def _collect(self, *, strict: bool = False) -> None:
        kept = [name for by_name in self._models.values() for name in by_name.values()]
        try:
            kept += [name for record in self.history() for name in record.models.values()]
            collect(self._place, self._state, kept)
        except LedgerError as error:
            if strict:
                raise
            logger.warning("what is no longer needed was left: %s", error)
