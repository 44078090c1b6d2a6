"""Prepare and write the next state of a ledger, without publishing it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger import partition_rows
from dask_sketch.jobs.ledger.backends import Backend
from dask_sketch.jobs.ledger.batch import (
    FOLDER,
    Batch,
    Index,
    Member,
    batch_rows,
    read_rows,
    read_sketches,
    write_batch,
    write_total,
)
from dask_sketch.jobs.ledger.forgotten import RowRanges, file_of, same_rows, updated_identities
from dask_sketch.jobs.ledger.history import RunRecord, write_record
from dask_sketch.jobs.ledger.manifest import Manifest, write_pilot
from dask_sketch.jobs.ledger.objects import fresh_name
from dask_sketch.jobs.ledger.partitions import Entry, Partition
from dask_sketch.jobs.ledger.sketch_arrays import BOUNDS, MISSING
from dask_sketch.jobs.ledger.sums import Sums, require_addable, stack, without_rows
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.row_sample import RowSampling
from dask_sketch.sketching.sketch import Sketch

FAN = 8  # batches of one size class that are merged into one
KEEP_STATES = 32  # totals of runs that are kept, for drift


def mergeable(batches: Sequence[Batch], max_members: int) -> list[list[Batch]]:
    """Choose small batches to merge, so that there are few after years of nightly runs.

    Batches of 1 to 7 live members are in one size class, batches of 8 to 63 in the next, and so on.
    Eight batches of one class are merged. So a partition is rewritten once for each class (at most
    three times for batches of 500), and at most some dozens of batches are not full.

    Parameters
    ----------
    batches
        All batches.
    max_members
        Largest number of members of a batch.

    Returns
    -------
    groups
        Batches to merge with each other.

    Examples
    --------
    >>> from dask_sketch.jobs.ledger.objects import Reference
    >>> sizes = [500, 1, 2, 1, 9, 1, 1, 3, 1, 1]
    >>> batches = [Batch(Reference(f"b{n}", 1, "0" * 64), n) for n in sizes]
    >>> [[batch.n_members for batch in group] for group in mergeable(batches, 500)]
    [[1, 2, 1, 1, 1, 3, 1, 1]]
    """
    by_size: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        if 2 * batch.n_live <= max_members:
            by_size[int(math.log(batch.n_live, FAN))].append(batch)
    groups = []
    for alike in by_size.values():
        if len(alike) < FAN:
            continue
        group: list[Batch] = []
        for batch in alike:
            if sum(earlier.n_live for earlier in group) + batch.n_live > max_members:
                groups.append(group)
                group = []
            group.append(batch)
        groups.append(group)
    return [group for group in groups if len(group) > 1]


class Change:
    """Change from one state to the next.

    Parameters
    ----------
    backend
        Backend of the ledger.
    state, index, total
        Present state with its index and the sums of its total.
    number
        Number of the next commit.
    sampling
        Choice of the random rows of each partition; None for none.
    """

    def __init__(
        self,
        backend: Backend,
        state: Manifest,
        index: Index,
        total: Sums,
        number: int,
        sampling: RowSampling | None = None,
    ):
        self._backend = backend
        self._before = state
        self._state = replace(state, number=number)
        self._index = index
        self._total = total
        self._map = total.feature_map
        self._sampling = sampling
        self._added: list[tuple[Partition, Sums]] = []
        self._leaving: dict[str, list[int]] = {}
        self._erased: frozenset[str] = frozenset()
        self._record: RunRecord | None = None
        self._written: dict[str, list[Member]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the next state equals the present one."""
        same = replace(self._state, number=self._before.number) == self._before
        return same and not (self._added or self._leaving or self._erased or self._record)

    def apply(
        self,
        added: Iterable[tuple[Partition, Sums]],
        removed: Iterable[str],
        quarantined: Mapping[str, str],
        skipped: Iterable[Partition] = (),
    ) -> None:
        """Apply the arguments of :meth:`Ledger.commit`."""
        self._remember((partition.key, partition.fingerprint) for partition in skipped)
        entries, state = self._index.entries, self._state
        erased = RowRanges(state.erased)
        for partition, sketch in added:
            if erased.overlap(partition.key, partition.fingerprint):
                raise LedgerError(
                    f"{partition.key!r} was forgotten, and is not sketched again: allow it by "
                    "forget(..., undo=True)."
                )
            require_addable(sketch, partition.key, self._map)
            self._added.append((partition, self._with_rows(partition.key, sketch)))
        keys = [partition.key for partition, _ in self._added]
        new, out = set(keys), list(removed)
        for name, named_keys in (("added", keys), ("removed", out)):
            twice = sorted(key for key, n in Counter(named_keys).items() if n > 1)
            if twice:
                raise LedgerError(f"{name} contains {twice[0]!r} twice: give each key once.")
        leaving = set(out)
        replaced = [key for key in keys if key in entries and key not in leaving]
        only_quarantined = leaving & set(state.quarantined) - set(entries)
        out = [key for key in out if key not in only_quarantined]
        self._leaving = self._index.rows([*out, *replaced])
        resolved = new | leaving
        unresolved = {key: why for key, why in state.quarantined.items() if key not in resolved}
        gone = {key: runs for key, runs in state.gone.items() if key not in new}
        gone |= {key: (entries[key].since, state.last_run) for key in out if key not in new}
        marks = {
            key: tuple(sorted({*state.fingerprints.get(key, ()), entries[key].fingerprint}))
            for key in out
        }
        self._state = replace(
            state,
            quarantined=unresolved | dict(quarantined),
            gone=gone,
            fingerprints={**state.fingerprints, **marks},
            with_missing=state.with_missing
            or any(
                isinstance(sums, Sketch) and sums.missing is not None for _, sums in self._added
            ),
        )

    def _remember(self, partitions: Iterable[tuple[str, str]]) -> None:
        """Remember the keys and fingerprints under which forgotten rows are now known."""
        state = self._state
        names = updated_identities(state.erased, partitions)
        self._state = replace(
            state,
            forgotten=state.forgotten.union(names),
            fingerprints={**state.fingerprints, **names},
        )

    def _with_rows(self, key: str, sketch: Sums) -> Sums:
        """The sketch with as many random rows as the ledger keeps."""
        if self._sampling is None or not isinstance(sketch, Sketch):
            return without_rows(sketch)
        if sketch.sample is not None:
            return replace(sketch, sample=sketch.sample.resized(self._sampling.size))
        if sketch.count:
            raise LedgerError(
                f"the sketch of {key!r} has no sample, and the ledger keeps random rows of each "
                f"partition: sketch it with sample={self._sampling.size}, or create a ledger with "
                "sample=0."
            )
        return sketch

    def record(self, run: RunRecord) -> None:
        """Record a run that ends with this change."""
        last = self._before.last_run
        if run.number != last + 1:
            raise LedgerError(
                f"run.number={run.number}: the last recorded run is {last}, so give {last + 1}."
            )
        self._record = run
        self._state = replace(self._state, last_run=run.number)

    def forget(self, keys: Iterable[str], undo: bool) -> None:
        """Apply the arguments of :meth:`Ledger.forget`."""
        state, wanted = self._state, set(keys)
        if undo:
            self._free(wanted)
            return
        wanted -= state.forgotten
        members = [member for batch in self._index.members.values() for member in batch]
        known = {key for key, _ in members} | set(state.gone) | set(state.quarantined)
        unknown = wanted - known - {file_of(key) for key in known}
        if unknown:
            raise LedgerError(
                f"the ledger never held the partition {min(unknown)!r}, so nothing was forgotten: "
                f"{_alike(min(unknown), self._index.members)}"
            )
        if not wanted:
            return
        erased = {key: set(state.fingerprints.get(key, ())) for key in wanted}
        for key, entry in members:
            if key in wanted:
                erased[key].add(entry.fingerprint)
        # the same rows may have been read under other keys too
        rows = RowRanges(erased)
        since = {
            key: runs[0]
            for key, runs in state.gone.items()
            if rows.overlap(key, *state.fingerprints.get(key, ()))
        }
        for key, entry in members:
            if rows.overlap(key, entry.fingerprint):
                since[key] = min(entry.since, since.get(key, entry.since))
        self._erased = frozenset(wanted | set(since))
        self._leaving = self._index.rows(self._erased & set(self._index.entries))
        # no total of an earlier run contains them
        first = min(since.values(), default=state.last_run + 1)
        self._state = replace(
            state,
            forgotten=state.forgotten | wanted,
            fingerprints={**state.fingerprints, **{k: tuple(sorted(v)) for k, v in erased.items()}},
            quarantined={k: why for k, why in state.quarantined.items() if not rows.overlap(k)},
            gone={key: runs for key, runs in state.gone.items() if key not in since},
            states=tuple((run, ref) for run, ref in state.states if run < first),
            oldest=state.number,
            pilot=None,
        )
        # the same rows may come back under an earlier name
        self._remember(
            [
                (key, fingerprint)
                for key in sorted(since)
                for fingerprint in self._latest(key, state)
                if rows.overlap(key, fingerprint)
            ]
        )

    def _free(self, wanted: set[str]) -> None:
        """Allow partitions, and the parts of files, to be read again."""
        state = self._state
        parts = {key for key in state.forgotten if file_of(key) in wanted}
        freed = same_rows(state.erased, wanted | parts)
        for other in sorted(state.forgotten - freed):
            rows = RowRanges({other: ()})
            overlapping = sorted(key for key in wanted if rows.overlap(key))
            if overlapping:
                raise LedgerError(
                    f"{overlapping[0]!r} holds rows of {other!r}, which is forgotten as a whole, "
                    f"so nothing was allowed: give {other!r}."
                )
        self._state = replace(state, forgotten=state.forgotten - freed)

    def _latest(self, key: str, state: Manifest) -> tuple[str, ...]:
        """Fingerprints of the present or the last partition of a key."""
        entry = self._index.entries.get(key)
        return state.fingerprints.get(key, ()) if entry is None else (entry.fingerprint,)

    def erase_rows(self) -> None:
        """Apply :meth:`Ledger.erase_rows`."""
        if self._sampling is not None:
            self._sampling = None
            self._state = replace(self._state, with_rows=False, oldest=self._state.number)

    def write(self) -> tuple[Manifest, Sums, dict[str, list[Member]]]:
        """Write all objects of the next state.

        Returns
        -------
        state
            Next state.
        total
            Total of the next state.
        members
            Members of the new batches, by name.
        """
        backend, number = self._backend, self._state.number
        marked = self._mark(self._state.batches)
        total = self._new_total(marked)
        if self._before.with_rows and not self._state.with_rows:
            earlier = [self._merged([batch]) for batch in marked]
        else:
            earlier = self._without_erased(marked) if self._erased else self._compacted(marked)
        batches = self._write_added(earlier)
        state = replace(self._state, batches=tuple(batches))
        pilot = None if isinstance(self._map, MomentGrid) else self._map.pilot
        if self._before.number == 0 and pilot is not None:
            state = replace(state, pilot=write_pilot(backend, pilot, number))
        if self._added or self._leaving:
            state = replace(state, total=write_total(backend, number, total) if batches else None)
        state = self._with_state(state)
        if self._record is not None:
            runs = write_record(backend, state.runs, self._record, number)
            state = replace(state, runs=runs)
        return state, total, self._written

    def _with_state(self, state: Manifest) -> Manifest:
        """Add the total of the run that ends to the kept totals, and drop the oldest."""
        states = list(state.states)
        before = self._before
        run = None
        if self._record is not None:
            run = self._record.number
        elif self._erased and before.states and before.states[-1][1] == before.total:
            # no commit since the last run: its state without the forgotten partitions is known
            run = before.states[-1][0]
        if run is not None and state.total is not None:
            states = [*(entry for entry in states if entry[0] != run), (run, state.total)]
        gone = {
            key: (since, last)
            for key, (since, last) in state.gone.items()
            if last + KEEP_STATES >= state.last_run
        }
        named = state.forgotten.union(gone)
        marks = {
            key: fingerprints for key, fingerprints in state.fingerprints.items() if key in named
        }
        return replace(state, states=tuple(states[-KEEP_STATES:]), gone=gone, fingerprints=marks)

    def _mark(self, batches: Sequence[Batch]) -> tuple[Batch, ...]:
        """Mark the leaving rows as dead, and drop batches without live members."""
        marked = (
            batch.without(set(self._leaving.get(batch.reference.name, ()))) for batch in batches
        )
        return tuple(batch for batch in marked if batch.n_live)

    def _new_total(self, batches: Sequence[Batch]) -> Sums:
        whole = total = merge([self._total, *(without_rows(sums) for _, sums in self._added)])
        inside = True  # whether all that leaves lies within the bounds; second moments have none
        for name, rows in self._leaving.items():
            batch = self._index.batches[name]
            for sketch in read_sketches(self._backend, batch, rows, self._map):
                total = total - sketch
                if isinstance(sketch, Sketch) and isinstance(whole, Sketch):
                    inside &= bool((sketch.minimum > whole.minimum).all())
                    inside &= bool((sketch.maximum < whole.maximum).all())
        if not (isinstance(total, Sketch) and isinstance(whole, Sketch)):
            return total
        if not self._leaving or not total.count:
            return total
        if inside:
            return replace(total, minimum=whole.minimum, maximum=whole.maximum, tight_bounds=True)
        return self._tightened(total, batches)

    def _tightened(self, total: Sketch, batches: Sequence[Batch]) -> Sketch:
        """Replace the bounds of a total by the bounds of the live partitions."""
        added = [sums for _, sums in self._added if isinstance(sums, Sketch)]
        bounds = [np.stack([sketch.minimum, sketch.maximum])[None] for sketch in added]
        for batch in batches:
            values = read_rows(self._backend, batch, self._map, [BOUNDS])[BOUNDS]
            bounds.append(np.delete(values, sorted(batch.dead), axis=0))
        every = np.concatenate(bounds)
        return replace(
            total,
            minimum=every[:, 0].min(axis=0),
            maximum=every[:, 1].max(axis=0),
            tight_bounds=True,
        )

    def _batch_rows(self) -> int:
        return batch_rows(self._map, self._sampling, self._state.with_missing)

    def _write_added(self, batches: list[Batch]) -> list[Batch]:
        run = self._before.last_run + 1
        entries, gone = self._index.entries, self._before.gone
        size = self._batch_rows()
        for start in range(0, len(self._added), size):
            part = self._added[start : start + size]
            members: list[Member] = []
            for partition, sketch in part:
                key = partition.key
                since = entries[key].since if key in entries else gone.get(key, (run, 0))[0]
                entry = Entry(
                    partition.fingerprint, partition.rows, partition.n_bytes, sketch.count, "",
                    run, since,
                )  # fmt: skip
                members.append((key, entry))
            with_rows = self._sampling is not None
            arrays = stack([sketch for _, sketch in part], self._map, with_rows=with_rows)
            batches.append(self._write(members, arrays))
        return batches

    def _without_erased(self, batches: Sequence[Batch]) -> list[Batch]:
        """Rewrite the batches that contain forgotten partitions, dead or alive."""
        out = []
        for batch in batches:
            members = self._index.members[batch.reference.name]
            holds = any(key in self._erased for key, _ in members)
            out.append(self._merged([batch]) if holds else batch)
        return out

    def _compacted(self, batches: Sequence[Batch]) -> list[Batch]:
        """Merge small batches; at the end of a run, rewrite batches with removed partitions.

        Sums of removed partitions may stay in a batch, but their random rows are data.
        """
        groups = mergeable(batches, self._batch_rows())
        merged = {batch for group in groups for batch in group}
        if self._sampling is not None and self._record is not None:
            groups += [[batch] for batch in batches if batch.dead and batch not in merged]
            merged |= {batch for batch in batches if batch.dead}
        unmerged = [batch for batch in batches if batch not in merged]
        return [*unmerged, *(self._merged(group) for group in groups)]

    def _merged(self, batches: Sequence[Batch]) -> Batch:
        """Write one batch of the live members of several batches."""
        members: list[Member] = []
        parts: list[dict[str, NDArray[Any]]] = []
        for batch in batches:
            alive = [row for row in range(batch.n_members) if row not in batch.dead]
            members += [self._index.members[batch.reference.name][row] for row in alive]
            arrays = read_rows(self._backend, batch, self._map, sampling=self._sampling)
            parts.append(partition_rows.select(arrays, alive))
        width = max(part[MISSING].shape[1] if MISSING in part else 0 for part in parts)
        if width:  # zeros for partitions without missing values
            for part in parts:
                part.setdefault(MISSING, np.zeros((len(part[BOUNDS]), width), np.int64))
        return self._write(
            members, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        )

    def _write(self, members: Sequence[Member], arrays: Mapping[str, NDArray[Any]]) -> Batch:
        name = fresh_name(FOLDER, self._state.number)
        batch = write_batch(self._backend, name, members, arrays, self._map.digest)
        self._written[name] = [(key, replace(entry, batch=name)) for key, entry in members]
        return batch


def _alike(wanted: str, members: Mapping[Any, Iterable[tuple[str, Any]]]) -> str:
    """Suggest a similar key."""
    keys = [key for pairs in members.values() for key, _ in pairs]
    meant = [key for key in keys if key.endswith(f"/{wanted}")] or get_close_matches(wanted, keys)
    if meant:
        return f"did you mean {meant[0]!r}?"
    return f"keys look like {min(keys)!r}." if keys else "it is empty."
