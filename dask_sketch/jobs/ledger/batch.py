"""Batches, which store the sums of several partitions in one group, and the index of partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger import partition_rows
from dask_sketch.jobs.ledger.backends import Backend
from dask_sketch.jobs.ledger.objects import (
    Reference,
    fresh_name,
    read_arrays,
    read_attributes,
    write_group,
)
from dask_sketch.jobs.ledger.partitions import Entry
from dask_sketch.jobs.ledger.sums import (
    Conventions,
    Sums,
    layout_attributes,
    row_bytes,
    shapes,
    stack,
    unstack,
    with_rows,
)
from dask_sketch.sketching.row_sample import RowSample, RowSampling

FOLDER = "batches"
TOTALS = "totals"
SCHEMA = "dask-sketch/ledger-batch"
BATCH_BYTES = 16 * 2**20  # bytes of the sketches of one batch, which are always read together
_COLUMNS = ("key", "fingerprint", "rows", "n_bytes", "count", "run", "since")
Member = tuple[str, Entry]


@dataclass(frozen=True)
class Batch:
    """Stored batch, and its members that were removed.

    Attributes
    ----------
    reference
        Reference to the stored group.
    n_members
        Number of partitions.
    dead
        Rows in the arrays of partitions that were removed or replaced since.
    """

    reference: Reference
    n_members: int
    dead: frozenset[int] = frozenset()

    @property
    def n_live(self) -> int:
        """Number of live members."""
        return self.n_members - len(self.dead)

    def without(self, positions: set[int]) -> Batch:
        """Mark more rows as dead."""
        return replace(self, dead=self.dead | positions)

    def to_json(self) -> list[Any]:
        """Form in a manifest."""
        return [*self.reference.to_json(), self.n_members, sorted(self.dead)]

    @classmethod
    def from_json(cls, values: Any) -> Batch:
        """Restore from :meth:`to_json`; ``ValueError`` for anything else."""
        *reference, n_members, dead = values
        batch = cls(Reference.from_json(reference), int(n_members), frozenset(map(int, dead)))
        if n_members < 1 or not all(0 <= row < n_members for row in batch.dead):
            raise ValueError(f"{values!r} is not a batch")
        return batch


def batch_rows(
    feature_map: Conventions, sampling: RowSampling | None = None, with_missing: bool = False
) -> int:
    """Largest number of members of a batch, at least one."""
    return max(1, BATCH_BYTES // row_bytes(feature_map, sampling, with_missing=with_missing))


def write_batch(
    backend: Backend,
    name: str,
    members: Sequence[Member],
    arrays: Mapping[str, NDArray[Any]],
    digest: str,
) -> Batch:
    """Store a batch.

    Parameters
    ----------
    backend
        Backend of the ledger.
    name
        New name of the batch.
    members
        Keys and entries in the order of the rows; the batch of the entries is not stored.
    arrays
        Arrays of :func:`stack`.
    digest
        Digest of the feature map.

    Returns
    -------
    batch
        Stored batch, without removed members.
    """
    columns = {
        column: [key if column == "key" else getattr(entry, column) for key, entry in members]
        for column in _COLUMNS
    }
    attributes = {"schema": SCHEMA, "digest": digest, "members": columns}
    filled = {key: values for key, values in arrays.items() if values.size}
    attributes |= layout_attributes(arrays)
    stored = write_group(backend, name, filled, attributes)
    return Batch(stored, len(members))


def read_members(backend: Backend, batches: Sequence[Batch]) -> list[list[Member]]:
    """Read the members of batches, including the dead ones.

    Raises
    ------
    LedgerError
        If a batch is missing, edited or contradicts the manifest.
    """
    by_batch = read_attributes(backend, [batch.reference for batch in batches])
    return [
        _members(attributes, batch, backend)
        for attributes, batch in zip(by_batch, batches, strict=True)
    ]


def _members(attributes: Mapping[str, Any], batch: Batch, backend: Backend) -> list[Member]:
    name = batch.reference.name
    try:
        columns = [attributes["members"][column] for column in _COLUMNS]
        members = [
            (_text(key), Entry(_text(mark), _size(rows), _size(n_bytes), int(count),
                               name, int(run), int(since)))
            for key, mark, rows, n_bytes, count, run, since in zip(*columns, strict=True)
        ]  # fmt: skip
        if len(members) != batch.n_members or attributes["schema"] != SCHEMA:
            raise ValueError("it is not a batch of this length")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LedgerError(
            f"{backend.label}/{name} does not list its partitions: {error}."
        ) from error
    return members


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _size(value: Any) -> int | None:
    return None if value is None else int(value)


def read_rows(
    backend: Backend,
    batch: Batch,
    feature_map: Conventions,
    names: Sequence[str] | None = None,
    sampling: RowSampling | None = None,
) -> dict[str, NDArray[Any]]:
    """Read arrays of a batch.

    Parameters
    ----------
    backend
        Backend of the ledger.
    batch
        Batch.
    feature_map
        Feature map of the ledger.
    names
        Names of arrays of the sketches; all of them by default.
    sampling
        Choice of the random rows, whose arrays are read too; None to leave them out.

    Returns
    -------
    arrays
        Arrays by name.

    Raises
    ------
    LedgerError
        If the batch is missing, edited, too large or of another feature map.
    """
    label = f"{backend.label}/{batch.reference.name}"
    if batch.n_members > batch_rows(feature_map):
        raise LedgerError(f"{label} has {batch.n_members} members, more than a batch can have.")
    (attributes,) = read_attributes(backend, [batch.reference])
    if attributes.get("digest") != feature_map.digest:
        raise LedgerError(f"{label} holds sketches of another feature map than the ledger.")
    with_missing = attributes.get("missing") is True
    expected = shapes(batch.n_members, feature_map, with_missing=with_missing)
    wanted = {name: expected[name] for name in (expected if names is None else names)}
    if sampling is not None:
        d = feature_map.n_features
        wanted |= partition_rows.shapes(attributes, batch.n_members, d, sampling.size, label)
    stored = {name: layout for name, layout in wanted.items() if 0 not in layout[0]}
    arrays = read_arrays(backend, batch.reference, attributes, stored)
    empty = {name: np.empty(*layout) for name, layout in wanted.items() if name not in stored}
    return arrays | empty


def read_sketches(
    backend: Backend,
    batch: Batch,
    positions: Sequence[int],
    feature_map: Conventions,
    sampling: RowSampling | None = None,
) -> list[Sums]:
    """Read sketches of a batch by their positions, with random rows if ``sampling`` is given."""
    arrays = read_rows(backend, batch, feature_map, sampling=sampling)
    label = f"{backend.label}/{batch.reference.name}"
    sketches = [unstack(arrays, row, feature_map, label) for row in positions]
    if sampling is None:
        return sketches
    rows = _samples_of(arrays, positions, feature_map, sampling, label)
    return [with_rows(sketch, sample) for sketch, sample in zip(sketches, rows, strict=True)]


def read_samples(
    backend: Backend,
    batch: Batch,
    positions: Sequence[int],
    feature_map: Conventions,
    sampling: RowSampling,
) -> list[RowSample]:
    """Read only the random rows of members of a batch."""
    arrays = read_rows(backend, batch, feature_map, (), sampling)
    label = f"{backend.label}/{batch.reference.name}"
    return _samples_of(arrays, positions, feature_map, sampling, label)


def _samples_of(
    arrays: Mapping[str, NDArray[Any]],
    positions: Sequence[int],
    feature_map: Conventions,
    sampling: RowSampling,
    label: str,
) -> list[RowSample]:
    size = partition_rows.total_size(sampling, feature_map.n_features)
    return partition_rows.unstack(arrays, positions, sampling.size, size, label)


def write_total(backend: Backend, number: int, total: Sums) -> Reference:
    """Store the sums of all partitions, without their random rows."""
    feature_map = total.feature_map
    arrays = stack([total], feature_map)
    attributes = {"schema": SCHEMA, "digest": feature_map.digest}
    attributes |= layout_attributes(arrays)
    return write_group(backend, fresh_name(TOTALS, number), arrays, attributes)


def read_total(backend: Backend, reference: Reference, feature_map: Conventions) -> Sums:
    """Read a sketch that :func:`write_total` stored."""
    (sketch,) = read_sketches(backend, Batch(reference, 1), [0], feature_map)
    return sketch


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
        Members of each batch in the order of its rows, including dead ones.
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
            Members of new batches, by the names of their folders; the other ones are read.
        """
        state = {batch.reference.name: batch for batch in batches}
        outdated = [name for name, batch in self.batches.items() if state.get(name) != batch]
        fresh = [batch for name, batch in state.items() if self.batches.get(name) != batch]
        members = {**self.members, **known}
        wanted = [batch for batch in fresh if batch.reference.name not in members]
        for batch, read in zip(wanted, read_members(self._backend, wanted), strict=True):
            members[batch.reference.name] = read
        for name in outdated:
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
        rows: dict[str, list[int]] = defaultdict(list)
        for key in keys:
            entry = self.entries.get(key)
            if entry is None:
                raise LedgerError(
                    f"the ledger holds no partition {key!r}: choose one of its entries."
                )
            rows[entry.batch].append(self._row[key])
        return dict(rows)

    def live(self, name: str) -> list[int]:
        """Rows of the live members of a batch."""
        batch = self.batches[name]
        return [row for row in range(batch.n_members) if row not in batch.dead]

    def key(self, name: str, row: int) -> str:
        """Key of a row of a batch."""
        return self.members[name][row][0]
