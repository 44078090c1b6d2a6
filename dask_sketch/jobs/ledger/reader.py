"""Read a ledger in the state of its last complete commit, and verify its sketches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_sketch.display.html import card, fields_table, html_table
from dask_sketch.display.text import counted, describe, describe_bytes
from dask_sketch.distributions.testing.result import TwoSampleTest
from dask_sketch.distributions.testing.segmentation import ChangePoints, change_points
from dask_sketch.distributions.testing.two_sample import compare as compare_groups
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.jobs.ledger import history
from dask_sketch.jobs.ledger.backends import Backend
from dask_sketch.jobs.ledger.batch import (
    Index,
    Member,
    batch_rows,
    read_samples,
    read_sketches,
    read_total,
)
from dask_sketch.jobs.ledger.history import Failure, JobModel, RunRecord, read_failure, read_records
from dask_sketch.jobs.ledger.manifest import Manifest, newest, read_pilot
from dask_sketch.jobs.ledger.objects import Reference
from dask_sketch.jobs.ledger.partitions import Changes, Entry, Partition, compare
from dask_sketch.jobs.ledger.sums import (
    Conventions,
    Sums,
    empty,
    require_sketches,
    with_rows,
    without_rows,
)
from dask_sketch.jobs.ledger.windows import (
    RunTotals,
    Window,
    choose_sides,
    choose_units,
    decayed_weights,
    start_times,
    window_keys,
)
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.row_sample import RowSample, RowSampling, sample_bytes
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.warn import warn_user

_SHOWN_RUNS = 10  # rows of a table
VERIFIED_AT_ONCE = 256  # partitions whose sketches are in memory at once, at most
_BATCHES_VERIFIED = 8  # full batches whose sketches are in memory at once, at most


@dataclass(frozen=True)
class KeptRows:
    """Random rows that a ledger keeps; prints as a text.

    Attributes
    ----------
    per_partition
        Maximum number of rows of each partition; 0 if no rows are kept.
    n_rows
        Maximum number of rows of all partitions.
    n_bytes
        Maximum number of bytes of these rows.

    Examples
    --------
    >>> print(KeptRows(1000, 20000, 1440000), KeptRows(0, 0, 0), sep="; ")
    20,000 random rows, at most 1,000 of each partition (up to 1.37 MiB); no rows
    """

    per_partition: int
    n_rows: int
    n_bytes: int

    def __str__(self) -> str:
        if not self.per_partition:
            return "no rows"
        return (
            f"{self.n_rows:,} random rows, at most {self.per_partition:,} of each partition "
            f"(up to {describe_bytes(self.n_bytes)})"
        )


@dataclass(frozen=True)
class Verification:
    """Result of :meth:`Ledger.verify`.

    Attributes
    ----------
    checked
        Keys of the partitions that were sketched again.
    differing
        Keys of the partitions whose new sketch, or its random rows, differs.
    missing
        Keys of the partitions that could not be sketched again.
    total_differs
        Whether the stored total differs from the sum of the stored sketches; ``None`` if only a
        fraction of the partitions was checked.
    """

    checked: tuple[str, ...]
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    total_differs: bool | None

    @property
    def is_sound(self) -> bool:
        """Whether all checks passed."""
        return not (self.differing or self.missing or self.total_differs)


def verify(
    ledger: LedgerReader,
    keys: Sequence[str],
    resketch: Callable[[list[str]], Mapping[str, Sums]],
) -> Verification:
    """Compare the stored sketches of some partitions with new ones."""
    whole = len(keys) == len(ledger.entries)
    total = empty(ledger.feature_map)
    at_once = min(VERIFIED_AT_ONCE, batch_rows(ledger.feature_map) * _BATCHES_VERIFIED)
    checked, differing, missing = [], [], []
    for start in range(0, len(keys), at_once):
        part = list(keys[start : start + at_once])
        stored = dict(ledger.sketches(part))
        recomputed = resketch(part)
        total = merge([total, *(without_rows(sums) for sums in stored.values())])
        for key in part:
            if key not in recomputed:
                missing.append(key)
                continue
            checked.append(key)
            if not _same(stored[key], recomputed[key], ledger.sampling):
                differing.append(key)
    return Verification(
        tuple(checked),
        tuple(differing),
        tuple(missing),
        not total.identical(ledger.total(sample=False)) if whole else None,
    )


def _same(stored: Sums, recomputed: Sums, sampling: RowSampling | None) -> bool:
    """Whether two sketches have the same sums, and the same random rows if any are kept."""
    if isinstance(stored, SecondMoments):
        return stored.identical(recomputed)
    if not isinstance(recomputed, Sketch) or not stored.identical(recomputed):
        return False
    if sampling is None or not stored.count:
        return True
    if stored.sample is None or recomputed.sample is None:
        return False
    return stored.sample.identical(recomputed.sample.resized(sampling.size))


class LedgerReader:
    """Reading methods of a ledger; see :class:`~dask_sketch.jobs.ledger.Ledger`.

    Methods return sketches, or second moments if the ledger has a grid.

    Attributes
    ----------
    damage
        Description of the damage of the newest commit, which the state does not include; ``None``
        if it is whole.
    run_started
        Start of the current run in ISO 8601, which has no record yet; ``None`` outside of a run.
    """

    def __init__(
        self, backend: Backend, feature_map: Conventions, sampling: RowSampling | None = None
    ):
        self.backend = backend
        self.feature_map = feature_map
        self._sampling = sampling
        self.label = backend.label
        self._known: Index | None = None
        self._sum: Sums | None = None  # sum without random rows
        self._rows: RowSample | None = None  # random rows of the total
        self._run_totals = RunTotals(lambda keys, sample: self.total(keys, sample=sample))
        self._records: dict[Reference, list[RunRecord]] = {}  # records by segment
        self.damage: str | None = None
        self.run_started: str | None = None
        self._state = self._newest()
        self._take_pilot()

    def __repr__(self) -> str:
        number, rows = self._state.number, "no random rows"
        if self.sampling is not None:
            rows = f"at most {self.sampling.size:,} random rows of each partition"
        return f"<Ledger: {self.label}, commit {number}, {rows}; {self.feature_map!r}>"

    def _repr_html_(self) -> str:
        n_samples = sum(entry.count for entry in self.entries.values())
        n_partitions = counted(len(self.entries), "partition")
        history = self.history()
        fields = {
            "path": self.label,
            "partitions": f"{len(self.entries):,}",
            "samples": f"{n_samples:,}",
            "random rows": str(self.kept_rows),
            "commit": f"{self.number:,}",
            "runs": f"{len(history):,}",
        }
        more, notes = {}, [] if self.damage is None else [self.damage]
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
            notes.append(f"In quarantine: {counted(len(self.quarantined), 'partition')}.")
            more["quarantined"] = fields_table(dict(sorted(self.quarantined.items())))
        noun = "grid" if isinstance(self.feature_map, MomentGrid) else "feature map"
        more[noun] = fields_table(describe(self.feature_map.as_dict()))
        summary = f"{n_samples:,} samples in {n_partitions}"
        return card("Ledger", fields, summary=summary, notes=notes, more=more)

    def refresh(self) -> None:
        """Read the commits that other processes made since this ledger was opened."""
        state = self._newest()
        if state != self._state:
            self._adopt(state)

    def _take_pilot(self) -> None:
        """Give the feature map the record of pilot rows of this state."""
        reference = self._state.pilot
        if isinstance(self.feature_map, MomentGrid):
            return
        if self._state.number == 0 or (reference is None) == (self.feature_map.pilot is None):
            return  # before the first commit, a new ledger has it from its feature map
        pilot = None
        if reference is not None:
            pilot = read_pilot(self.backend, reference, self.feature_map)
        self.feature_map = self.feature_map.with_pilot(pilot)

    def _newest(self) -> Manifest:
        state, self._taken, damage = newest(self.backend)
        known, self.damage = self.damage, damage
        if damage not in (None, known):
            warn_user(str(damage))
        return state

    def _adopt(
        self,
        state: Manifest,
        total: Sums | None = None,
        members: Mapping[str, list[Member]] | None = None,
    ) -> None:
        """Change to another state; its total, and members of its batches, may be known."""
        self._state, self._sum, self._rows = state, total, None
        self._take_pilot()
        if self._known is not None:
            known, self._known = self._known, None
            known.follow(state.batches, members or {})
            self._known = known

    @property
    def _index(self) -> Index:
        if self._known is None:
            self._known = Index(self.backend, self._state.batches)
        return self._known

    @property
    def sampling(self) -> RowSampling | None:
        """Choice of the random rows of each partition; ``None`` if no rows are kept."""
        return self._sampling if self._state.with_rows else None

    @property
    def number(self) -> int:
        """Number of the last commit; 0 before the first commit."""
        return self._state.number

    @property
    def next_run(self) -> int:
        """Number of the next or current run: one more than the last recorded run."""
        return self._state.last_run + 1

    @property
    def failure(self) -> Failure | None:
        """Failure of a run after the last complete one; ``None`` if there was none."""
        last = read_failure(self.backend)
        return last if last is not None and last.run == self.next_run else None

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Entries of the live partitions, by key."""
        return self._index.entries

    @property
    def forgotten(self) -> frozenset[str]:
        """Keys of the partitions that are forgotten and never read again."""
        return self._state.forgotten

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Keys of the partitions that could not be read, with the reasons."""
        return self._state.quarantined

    @property
    def kept_rows(self) -> KeptRows:
        """Number and bytes of the random rows that are kept."""
        if self.sampling is None:
            return KeptRows(0, 0, 0)
        size = self.sampling.size
        n_rows = sum(min(entry.count, size) for entry in self.entries.values())
        return KeptRows(size, n_rows, sample_bytes(n_rows, self.feature_map.n_features))

    def compare(self, partitions: Sequence[Partition]) -> Changes:
        """Compare the partitions of the sources with those in the ledger.

        Parameters
        ----------
        partitions
            All partitions of the sources; missing ones count as deleted.

        Returns
        -------
        changes
            Differences.

        Raises
        ------
        LedgerError
            If two partitions have the same key.
        """
        return compare(partitions, self.entries, self._state.erased)

    def total(self, keys: Iterable[str] | None = None, *, sample: bool = True) -> Any:
        """Sum of the sketches, or of the second moments, of all partitions or of some.

        The sum carries the merged random rows of the partitions, if the ledger keeps any.

        Parameters
        ----------
        keys
            Keys of the partitions; repeated keys count once. The default is all partitions: only
            the stored total is read then, and the random rows.
        sample
            Whether to read the random rows.

        Returns
        -------
        sketch
            :class:`Sketch`, or :class:`SecondMoments`.

        Raises
        ------
        LedgerError
            If a key is unknown, or a stored object is missing or edited.
        """
        if keys is not None:
            total = empty(self.feature_map)
            for sketches in self._batchwise(dict.fromkeys(keys), sample=sample):
                total = merge([total, *(sketch for _, sketch in sketches)])
            return total
        if self._sum is None:
            stored = self._state.total
            self._sum = (
                empty(self.feature_map)
                if stored is None
                else read_total(self.backend, stored, self.feature_map)
            )
        if not (sample and self.sampling is not None and self._sum.count):
            return self._sum
        if self._rows is None:
            self._rows = self._merged_rows(self.sampling)
        return with_rows(self._sum, self._rows)

    def window(
        self,
        window: Window | None = None,
        *,
        half_life: str | None = None,
        sample: bool = True,
    ) -> Any:
        """Sum of the sketches of the newest partitions, with weights that decay with age.

        Sums of runs stay in memory, so that the next window reads only partitions that were added
        since.

        Parameters
        ----------
        window
            Number of runs, counted from the last run that read a partition; span of time before the
            start of this run, such as ``"30 days"``; or a function from the key of a partition to
            bool. The default is all partitions.
        half_life
            Age at which samples have half the weight, such as ``"7 days"``. The age is the time
            from the start of the run that read them to the start of the newest run in the window.
            By default all samples have the same weight.
        sample
            Whether the sketch carries random rows, if the ledger keeps any.

        Returns
        -------
        sketch
            :class:`Sketch`, or :class:`SecondMoments`.

        Raises
        ------
        LedgerError
            If the window holds no partitions, or an argument is not one of the above.

        Examples
        --------
        A model of the last month, which starts at the model of the last run::

            decode(ledger.window("30 days"), start=ledger.model())
        """
        entries, records = self.entries, self._records_so_far()
        if window is None and entries:
            keys = sorted(entries)
        else:
            keys = window_keys(entries, records, 1 if window is None else window, "window")
        weights = None
        if half_life is not None:
            weights = decayed_weights(entries, records, keys, half_life)
        return self._run_totals.merged(entries, keys, weights, sample=sample)

    def _merged_rows(self, sampling: RowSampling) -> RowSample:
        """Random rows of the total."""
        samples: list[RowSample] = []
        for name, batch in self._index.batches.items():
            live = self._index.live(name)
            rows = read_samples(self.backend, batch, live, self.feature_map, sampling)
            samples = [RowSample.merge([*samples, *rows])]
        return samples[0]

    def sketch_of(self, key: str) -> Any:
        """Sketch, or second moments, of one partition.

        Raises
        ------
        LedgerError
            If the key is unknown.
        """
        ((_, sketch),) = self.sketches([key])
        return sketch

    def sketches(self, keys: Iterable[str], *, sample: bool = True) -> Iterator[tuple[str, Any]]:
        """Yield keys and sketches, or second moments, of some partitions, in any order.

        Parameters
        ----------
        keys
            Keys of the partitions.
        sample
            Whether the sketches carry the random rows of their partitions, if the ledger keeps any.
        """
        for sketches in self._batchwise(keys, sample=sample):
            yield from sketches

    def history(self) -> list[RunRecord]:
        """Records of all runs, in their order."""
        segments = self._state.runs
        wanted = [ref for ref in segments if ref not in self._records]
        self._records |= zip(wanted, read_records(self.backend, wanted), strict=True)
        self._records = {ref: self._records[ref] for ref in segments}
        return [record for records in self._records.values() for record in records]

    def states(self, n: int) -> list[tuple[int, Any]]:
        """Numbers and totals of the last ``n`` runs that are kept, the oldest first.

        The totals have no random rows. There may be fewer than ``n``, because totals are removed
        after :data:`KEEP_STATES` runs and by :meth:`forget`.

        Parameters
        ----------
        n
            Maximum number of runs, ``>= 1``.
        """
        n = require_integer("n", n, 1, LedgerError)
        return [
            (run, read_total(self.backend, reference, self.feature_map))
            for run, reference in self._state.states[-n:]
        ]

    def model(self, run: int = -1, name: str | None = None) -> JobModel | None:
        """Open a model of a run.

        Parameters
        ----------
        run
            Number of the run; -1 for the last run that has such a model.
        name
            Name of the model in ``history()[-1].models``. For a job, it is the name of the table
            ``[[decode]]``, and ``"model@ann"`` for the group ``"ann"``. The default is the first
            model of the run.

        Returns
        -------
        model
            Model; ``None`` if there is none.

        Raises
        ------
        LedgerError
            If ``run`` is not an integer ``>= -1``.
        """
        require_integer("run", run, -1, LedgerError)
        for record in reversed(self.history()):
            chosen = next(iter(record.models), "") if name is None else name
            if run in (-1, record.number) and chosen in record.models:
                return history.read_model(self.backend, record.models[chosen])
        return None

    def drift(
        self,
        window: Window | None = None,
        *,
        reference: Window | None = None,
        unit: str = "partition",
        strata: str | Callable[[str], Any] | None = None,
        serial: bool = False,
        max_units: int = 1000,
        tolerance: float = 0.0,
        level: float = 0.05,
        n_permutations: int | None = None,
        seed: int = 0,
    ) -> TwoSampleTest:
        """Test whether the newest data has the distribution of the earlier data.

        Whole partitions, or all partitions of a run together, are permuted between the two sides.
        The test keeps its level if the units could have come in any order. Trends and seasons are
        found as differences, unless they are strata.

        Parameters
        ----------
        window
            Newest data: number of runs, counted from the last run that read a partition; span of
            time before the start of this run, such as ``"7 days"``; or a function from the key of a
            partition to bool. The default is the fewest runs, up to 28, that have enough partitions
            for the level.
        reference
            Data to compare with, in the same forms, before the window. The default is all other
            partitions.
        unit
            ``"partition"``, or ``"run"`` for partitions of one run that depend on each other.
        strata
            ``"weekday"`` of the start of the run in UTC, or a function of the key of a partition;
            units of one stratum are permuted only with each other. Runs do not take a function.
        serial
            Whether successive runs depend on each other, such as nights with the same weather or
            season. It needs ``unit="run"``; see :func:`~dask_sketch.distributions.compare`.
        max_units
            Largest number of units of either side; the newest ones are taken.
        tolerance, level, n_permutations, seed
            As in :func:`~dask_sketch.distributions.compare`.

        Returns
        -------
        test
            P-value, size of the difference with its interval, and the features that differ.

        Raises
        ------
        LedgerError
            If a window holds no partitions, or an argument is not one of the above.
        InputError
            If there are too few units for the level.
        """
        require_sketches(self.feature_map, "drift", self.label)
        require_integer("max_units", max_units, 2, LedgerError)
        level = require_number("level", level, 0.0, 1.0, strict=True)
        sides = choose_sides(
            self.entries,
            self._records_so_far(),
            window,
            reference,
            unit=unit,
            strata=strata,
            max_units=max_units,
            level=level,
            serial=serial,
        )
        return compare_groups(
            self._units(sides.newest, unit),
            self._units(sides.earlier, unit),
            strata=sides.strata,
            serial=serial,
            tolerance=tolerance,
            level=level,
            n_permutations=n_permutations,
            seed=seed,
        )

    def change_points(
        self,
        window: Window | None = None,
        *,
        unit: str = "run",
        strata: str | None = None,
        serial: bool = False,
        **options: Any,
    ) -> ChangePoints:
        """Find the changes of the distribution between runs.

        Parameters
        ----------
        window
            Data that is searched, as for :meth:`drift`; by default all data, at most the newest
            1,000 units.
        unit
            ``"run"``; or ``"partition"`` if the partitions of one run do not depend on each other,
            so that changes are found in few runs.
        strata
            ``"weekday"`` of the start of the run in UTC, if days of the week differ.
        serial
            Whether successive runs depend on each other; see
            :func:`~dask_sketch.distributions.change_points`.
        options
            Further keyword arguments of :func:`~dask_sketch.distributions.change_points`.

        Returns
        -------
        changes
            Change points, each labelled by the number and the date of the first run after it.

        Raises
        ------
        LedgerError
            If the window holds no partitions, or an argument is not one of the above.
        InputError
            If there are too few units for the level.
        """
        require_sketches(self.feature_map, "change_points", self.label)
        records = self._records_so_far()
        keys, codes, runs = choose_units(self.entries, records, window, unit, strata, serial)
        units = self._units(keys, unit)
        try:
            changes = change_points(units, strata=codes, serial=serial, times=runs, **options)
        except InputError as error:
            if error.parameter not in ("units", "times"):
                raise
            raise InputError(
                f"window={window!r} has {len(units)} units: give a longer window, a smaller "
                f"min_units, or unit='partition' if those of a run are independent. ({error})",
                parameter="window",
            ) from error
        started = start_times(records)
        points = tuple(
            replace(point, date=started[point.label].date().isoformat())
            if point.label in started
            else point
            for point in changes.points
        )
        return replace(changes, dim="run", points=points)

    def _records_so_far(self) -> list[RunRecord]:
        """Records of all runs, and of the current run, if its start is known."""
        records, started = self.history(), self.run_started
        if started is None:
            return records
        return [*records, RunRecord(self.next_run, started, started, "under way")]

    def _units(self, keys: Mapping[Any, list[str]], unit: str) -> SketchGroup:
        """Sketches of units: of single partitions, or of all partitions that a run has read."""
        labels = {key: label for label, members in keys.items() for key in members}
        sums: dict[Any, Sketch] = {}
        for key, sketch in self.sketches(list(labels), sample=False):
            label = labels[key]
            sums[label] = sketch if label not in sums else sums[label] + sketch
        return SketchGroup.from_sketches(sums, dim=unit)

    def verify(
        self,
        fraction: float,
        seed: int,
        resketch: Callable[[list[str]], Mapping[str, Sums]],
    ) -> Verification:
        """Sketch a random fraction of the partitions again, and compare.

        Parameters
        ----------
        fraction
            Fraction of the partitions, in (0, 1]; at least one is checked. With 1, the total is
            compared with the sum of the stored sketches too.
        seed
            Seed of the choice of partitions.
        resketch
            Function that sketches the partitions of the given keys in their present version. It
            may leave out partitions that no longer exist, and is called for some hundreds at once.
            If the ledger keeps rows, the sketches need a sample that was chosen in the same way.

        Returns
        -------
        verification
            Keys of the partitions that were checked, and of those that differ.

        Raises
        ------
        LedgerError
            If ``fraction`` is out of range, or a stored object is missing or edited.
        """
        if not 0 < fraction <= 1:
            raise LedgerError(f"fraction={fraction!r}: give a number in (0, 1].")
        keys = sorted(self.entries)
        n = min(len(keys), max(1, math.ceil(fraction * len(keys))))
        chosen = np.sort(np.random.default_rng(seed).choice(len(keys), n, replace=False))
        return verify(self, [keys[i] for i in chosen], resketch)

    def _batchwise(self, keys: Iterable[str], *, sample: bool) -> Iterator[list[tuple[str, Sums]]]:
        index, sampling = self._index, self.sampling if sample else None
        for name, rows in index.rows(keys).items():
            batch = index.batches[name]
            sketches = read_sketches(self.backend, batch, rows, self.feature_map, sampling)
            yield [(index.key(name, row), one) for row, one in zip(rows, sketches, strict=True)]


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in counts.items())
