"""Which partition is where: the members of all batches, read in one go when first needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from dask_sketch.errors import LedgerError
from dask_sketch.ledger.batch import Batch, Member, read_members
from dask_sketch.ledger.partition import Entry
from dask_sketch.ledger.place import Place


class Index:
    """Entries of the live partitions, and their places.

    Parameters
    ----------
    place
        Of the ledger.
    batches
        Of the state to index.
    known
        An index of another state: batches that it has are not read again.
    """

    def __init__(self, place: Place, batches: Sequence[Batch], known: Index | None = None):
        self.batches = {batch.reference.name: batch for batch in batches}
        self.members: dict[str, list[Member]] = {}
        wanted = []
        for name, batch in self.batches.items():
            if known is not None and name in known.members:
                self.members[name] = known.members[name]
            else:
                wanted.append(batch)
        for batch, members in zip(wanted, read_members(place, wanted), strict=True):
            self.members[batch.reference.name] = members
        entries: dict[str, Entry] = {}
        self._row: dict[str, int] = {}
        for name, batch in self.batches.items():
            for row, (key, entry) in enumerate(self.members[name]):
                if row in batch.dead:
                    continue
                if key in entries:
                    raise LedgerError(
                        f"{place.label} holds the partition {key!r} twice, in {name} and "
                        f"{entries[key].batch}: it was edited."
                    )
                entries[key] = entry
                self._row[key] = row
        self.entries: Mapping[str, Entry] = MappingProxyType(entries)

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
        dead = self.batches[name].dead
        return [row for row in range(len(self.members[name])) if row not in dead]

    def key(self, name: str, row: int) -> str:
        """Key of a row of a batch."""
        return self.members[name][row][0]
