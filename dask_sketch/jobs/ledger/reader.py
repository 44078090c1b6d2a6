"""A ledger as readers see it: what its last whole commit says."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from dask_sketch.display.html import card, fields_table, html_table
from dask_sketch.errors import LedgerError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.jobs.ledger import history
from dask_sketch.jobs.ledger.backends import Place
from dask_sketch.jobs.ledger.batch import Batch, Member, read_members, read_sketches, read_total
from dask_sketch.jobs.ledger.history import RunRecord, read_records
from dask_sketch.jobs.ledger.manifest import Manifest, newest
from dask_sketch.jobs.ledger.objects import Reference
from dask_sketch.jobs.ledger.partitions import Changes, Entry, Partition, compare
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer

if TYPE_CHECKING:
    from dask_sketch.models.centroids import Centroids
    from dask_sketch.models.gaussian_mixture import GaussianMixture

# Which partition is where: the members of all batches, read in one go when first needed.


class Index:
    """Entries of the live partitions, and their places.

    Parameters
    ----------
    place
        Of the ledger.
    batches
        Of the state to index.

    Attributes
    ----------
    batches
        By the names of their folders.
    members
        Of each batch, dead ones included, in the order of its rows.
    entries
        Of the live partitions, by key. It changes when the index follows the ledger.
    """

    def __init__(self, place: Place, batches: Sequence[Batch]):
        self._place = place
        self._entries: dict[str, Entry] = {}
        self._row: dict[str, int] = {}
        self.batches: dict[str, Batch] = {}
        self.members: dict[str, list[Member]] = {}
        self.entries: Mapping[str, Entry] = MappingProxyType(self._entries)
        self.follow(batches, {})

    def follow(self, batches: Sequence[Batch], known: Mapping[str, list[Member]]) -> None:
        """Become the index of another state; what both have in common is left as it is.

        Parameters
        ----------
        batches
            Of that state.
        known
            Members of batches that need not be read.
        """
        state = {batch.reference.name: batch for batch in batches}
        other = [name for name, batch in self.batches.items() if state.get(name) != batch]
        fresh = [batch for name, batch in state.items() if self.batches.get(name) != batch]
        members = {**self.members, **known}
        wanted = [batch for batch in fresh if batch.reference.name not in members]
        for batch, read in zip(wanted, read_members(self._place, wanted), strict=True):
            members[batch.reference.name] = read
        for name in other:
            for row in self.live(name):
                key = self.key(name, row)
                del self._entries[key], self._row[key]
        self.batches, self.members = state, {name: members[name] for name in state}
        for batch in fresh:
            self._add(batch.reference.name)

    def _add(self, name: str) -> None:
        for row in self.live(name):
            key, entry = self.members[name][row]
            if key in self._entries:
                raise LedgerError(
                    f"{self._place.label} holds the partition {key!r} twice, in {name} and "
                    f"{self._entries[key].batch}: it was edited."
                )
            self._entries[key], self._row[key] = entry, row

    def rows(self, keys: Iterable[str]) -> dict[str, list[int]]:
        """Rows of some live partitions, by the name of their batch.

        Raises
        ------
        LedgerError
            If a key is not live.
        """
        found: dict[str, list[int]] = defaultdict(list)
        for key in keys:
            entry = self.entries.get(key)
            if entry is None:
                raise LedgerError(f"the ledger holds no partition {key!r}.")
            found[entry.batch].append(self._row[key])
        return dict(found)

    def live(self, name: str) -> list[int]:
        """Rows of a batch that count."""
        batch = self.batches[name]
        return [row for row in range(batch.n_members) if row not in batch.dead]

    def key(self, name: str, row: int) -> str:
        """Key of a row of a batch."""
        return self.members[name][row][0]


# Sketches made again, and compared with those that are stored.

AT_ONCE = 256  # partitions whose sketches are held


@dataclass(frozen=True)
class Verification:
    """What :meth:`Ledger.verify` found.

    Attributes
    ----------
    checked
        Keys whose sketches were made again.
    differing
        Keys of those that came out otherwise.
    missing
        Keys that could not be sketched again.
    total_differs
        Whether the stored total is not the sum of what is stored; ``None`` where only a share was
        looked at.
    """

    checked: tuple[str, ...]
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    total_differs: bool | None

    @property
    def is_sound(self) -> bool:
        """Whether all that was looked at is as it should be."""
        return not (self.differing or self.missing or self.total_differs)


def verify(
    ledger: LedgerReader,
    keys: Sequence[str],
    resketch: Callable[[list[str]], Mapping[str, Sketch]],
) -> Verification:
    """Compare the stored sketches of ``keys`` with new ones."""
    whole = len(keys) == len(ledger.entries)
    total = Sketch.empty(ledger.feature_map)
    checked, differing, missing = [], [], []
    for start in range(0, len(keys), AT_ONCE):
        part = list(keys[start : start + AT_ONCE])
        stored = dict(ledger.sketches(part))
        again = resketch(part)
        total = merge([total, *stored.values()])
        for key in part:
            if key not in again:
                missing.append(key)
                continue
            checked.append(key)
            if not stored[key].identical(again[key]):
                differing.append(key)
    return Verification(
        tuple(checked),
        tuple(differing),
        tuple(missing),
        not total.identical(ledger.total()) if whole else None,
    )


_SHOWN_RUNS = 10  # rows of a table


class LedgerReader:
    """What a ledger holds; see :class:`~dask_sketch.jobs.ledger.Ledger`."""

    def __init__(self, place: Place, feature_map: FeatureMap):
        self._place = place
        self.feature_map = feature_map
        self.label = place.label
        self._known: Index | None = None
        self._sum: Sketch | None = None
        self._records: dict[Reference, list[RunRecord]] = {}  # by segment
        self._state, self._taken = newest(place)

    def __repr__(self) -> str:
        return f"<Ledger: {self.label}, commit {self._state.number}; {self.feature_map!r}>"

    def _repr_html_(self) -> str:
        n_samples = sum(entry.count for entry in self.entries.values())
        n_partitions = f"{len(self.entries):,} partition{'s' * (len(self.entries) != 1)}"
        history = self.history()
        fields = {
            "at": self.label,
            "partitions": f"{len(self.entries):,}",
            "samples": f"{n_samples:,}",
            "commit": f"{self.number:,}",
            "runs": f"{len(history):,}",
        }
        more, notes = {}, []
        if history:
            fields["last run"] = f"{history[-1].status}, {history[-1].ended}"
            rows = [
                (run.number, run.started, run.status, _counts_text(run.counts))
                for run in reversed(history)
            ]
            more["last runs"] = html_table(
                ["run", "started", "status", "counts"], rows, _SHOWN_RUNS
            )
        if self.forgotten:
            fields["forgotten"] = f"{len(self.forgotten):,}"
        if self.quarantined:
            n = len(self.quarantined)
            notes.append(f"In quarantine: {n:,} partition{'s' * (n != 1)}.")
            more["quarantined"] = fields_table(dict(sorted(self.quarantined.items())))
        more["feature map"] = fields_table(self.feature_map._fields())
        summary = f"{n_samples:,} samples in {n_partitions}"
        return card("Ledger", fields, summary=summary, notes=notes, more=more)

    def refresh(self) -> None:
        """See what other processes have committed since this ledger was opened."""
        state, self._taken = newest(self._place)
        if state != self._state:
            self._adopt(state)

    def _adopt(
        self,
        state: Manifest,
        total: Sketch | None = None,
        members: Mapping[str, list[Member]] | None = None,
    ) -> None:
        """Become another state, of which some may be known already."""
        self._state, self._sum = state, total
        if self._known is not None:
            known, self._known = self._known, None
            known.follow(state.batches, members or {})
            self._known = known

    @property
    def _index(self) -> Index:
        if self._known is None:
            self._known = Index(self._place, self._state.batches)
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
        n = require_integer("n", n, 1, LedgerError)
        return [
            (run, read_total(self._place, reference, self.feature_map))
            for run, reference in self._state.states[-n:]
        ]

    def model(self, run: int = -1, name: str | None = None) -> GaussianMixture | Centroids | None:
        """A model of a run, ``None`` if there is none.

        Parameters
        ----------
        run
            Number of the run; -1 for the last one that has such a model.
        name
            As in ``history()[-1].models``: of a job, that of its ``[[decode]]`` table, and
            ``"model@ann"`` for the group ``"ann"``. The first of the run when not given.

        Raises
        ------
        LedgerError
            If ``run`` is no number.
        """
        require_integer("run", run, -1, LedgerError)
        for record in reversed(self.history()):
            found = next(iter(record.models), "") if name is None else name
            if run in (-1, record.number) and found in record.models:
                return history.read_model(self._place, record.models[found])
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

    def _batchwise(self, keys: Iterable[str]) -> Iterator[list[tuple[str, Sketch]]]:
        index = self._index
        for name, rows in index.rows(keys).items():
            found = read_sketches(self._place, index.batches[name], rows, self.feature_map)
            yield [(index.key(name, row), sketch) for row, sketch in zip(rows, found, strict=True)]


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in counts.items())
