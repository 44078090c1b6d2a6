"""Index of the live partitions of a ledger, by batch and row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.backends import Backend
from dask_sketch.jobs.ledger.batch import Batch, Member, read_members
from dask_sketch.jobs.ledger.partitions import Entry


class Index:
    """Entries of the live partitions, and their batches and rows.

    Parameters
    ----------
    backend
        Backend of the ledger.
    batches
        Batches of the state to index.

    Attributes
    ----------
    batches
        Batches by the names of their folders.
    members
        Members of each batch, dead ones included, in the order of its rows.
    entries
        Entries of the live partitions by key, updated when the index follows the ledger.
    """

    def __init__(self, backend: Backend, batches: Sequence[Batch]):
        self._backend = backend
        self._entries: dict[str, Entry] = {}
        self._row: dict[str, int] = {}
        self.batches: dict[str, Batch] = {}
        self.members: dict[str, list[Member]] = {}
        self.entries: Mapping[str, Entry] = MappingProxyType(self._entries)
        self.follow(batches, {})

    def follow(self, batches: Sequence[Batch], known: Mapping[str, list[Member]]) -> None:
        """Update the index to another state, and keep what both have in common.

        Parameters
        ----------
        batches
            Batches of that state.
        known
            Members of batches that need not be read.
        """
        state = {batch.reference.name: batch for batch in batches}
        other = [name for name, batch in self.batches.items() if state.get(name) != batch]
        fresh = [batch for name, batch in state.items() if self.batches.get(name) != batch]
        members = {**self.members, **known}
        wanted = [batch for batch in fresh if batch.reference.name not in members]
        for batch, read in zip(wanted, read_members(self._backend, wanted), strict=True):
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
                    f"{self._backend.label} holds the partition {key!r} twice, in {name} and "
                    f"{self._entries[key].batch}: it was edited. Restore it from a copy."
                )
            self._entries[key], self._row[key] = entry, row

    def rows(self, keys: Iterable[str]) -> dict[str, list[int]]:
        """Find the rows of live partitions, by the name of their batch.

        Raises
        ------
        LedgerError
            If a key is not live.
        """
        found: dict[str, list[int]] = defaultdict(list)
        for key in keys:
            entry = self.entries.get(key)
            if entry is None:
                raise LedgerError(
                    f"the ledger holds no partition {key!r}: choose one of its entries."
                )
            found[entry.batch].append(self._row[key])
        return dict(found)

    def live(self, name: str) -> list[int]:
        """Rows of the live members of a batch."""
        batch = self.batches[name]
        return [row for row in range(batch.n_members) if row not in batch.dead]

    def key(self, name: str, row: int) -> str:
        """Key of a row of a batch."""
        return self.members[name][row][0]
