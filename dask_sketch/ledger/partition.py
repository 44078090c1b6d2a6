"""Partitions of the data: what is known of each without reading it, and how two lists differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dask_sketch.errors import LedgerError


@dataclass(frozen=True)
class Partition:
    """Identity of the data that one task reads.

    Attributes
    ----------
    key
        Name that stays when the source grows.
    fingerprint
        Of the content: whatever is certain to change when the content does.
    rows
        Number of samples; ``None`` where only reading tells.
    n_bytes
        Size of what is stored; ``None`` if unknown.
    """

    key: str
    fingerprint: str
    rows: int | None = None
    n_bytes: int | None = None


@dataclass(frozen=True)
class Entry:
    """What a ledger knows of a partition whose sketch it holds.

    Attributes
    ----------
    fingerprint, rows, n_bytes
        As the partition was when it was read.
    count
        Samples in its sketch.
    batch
        Where the sketch is stored.
    run
        Number of the run that read it.
    since
        Number of the first run that had a partition of this key, in whatever version.
    """

    fingerprint: str
    rows: int | None
    n_bytes: int | None
    count: int
    batch: str
    run: int
    since: int


@dataclass(frozen=True)
class Changes:
    """How the partitions of the sources differ from those in a ledger.

    Attributes
    ----------
    new, changed, same, skipped
        Partitions: unknown to the ledger, known by another fingerprint, known as they are, and
        forgotten, hence to be left alone. In the order given.
    deleted
        Keys that the ledger holds and that no longer exist, sorted.
    """

    new: tuple[Partition, ...]
    changed: tuple[Partition, ...]
    deleted: tuple[str, ...]
    same: tuple[Partition, ...]
    skipped: tuple[Partition, ...]


def compare(
    partitions: Sequence[Partition], entries: Mapping[str, Entry], forgotten: Collection[str]
) -> Changes:
    """Sort partitions by what a run has to do with them.

    Parameters
    ----------
    partitions
        All that there are now.
    entries
        Of the ledger.
    forgotten
        Keys that must not be read again.

    Raises
    ------
    LedgerError
        If two partitions have one key.

    Examples
    --------
    >>> known = Entry("1", None, None, count=10, batch="", run=1, since=1)
    >>> entries = {"a": known, "b": known}
    >>> changes = compare([Partition("a", "2"), Partition("c", "1")], entries, ())
    >>> [p.key for p in changes.new], [p.key for p in changes.changed], changes.deleted
    (['c'], ['a'], ('b',))
    """
    seen: set[str] = set()
    found: dict[str, list[Partition]] = {"new": [], "changed": [], "same": [], "skipped": []}
    forgotten = frozenset(forgotten)
    for partition in partitions:
        if partition.key in seen:
            raise LedgerError(
                f"two partitions have the key {partition.key!r}: give each source its own prefix."
            )
        seen.add(partition.key)
        entry = entries.get(partition.key)
        if partition.key in forgotten:
            kind = "skipped"
        elif entry is None:
            kind = "new"
        else:
            kind = "same" if entry.fingerprint == partition.fingerprint else "changed"
        found[kind].append(partition)
    return Changes(
        deleted=tuple(sorted(key for key in entries if key not in seen)),
        **{kind: tuple(those) for kind, those in found.items()},
    )
