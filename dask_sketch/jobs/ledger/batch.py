"""Batches: sketches of several partitions in one stored group, with their entries and rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import LedgerError, SketchError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.kernels.fixed_point import FixedPoint
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
from dask_sketch.sketching.missing import ARRAYS, MissingWeights, counter_sizes
from dask_sketch.sketching.row_sample import RowSample, Sampling, sample_bytes
from dask_sketch.sketching.sketch import Sketch

WORDS, BOUNDS, MISSING = "words", "bounds", "missing"  # names of the arrays
_LONG = 24  # bytes of the sum of the weights, and of the sum of their squares
_HEAD = 3 + 2 * _LONG // 8
LAYOUT = (
    "words: a row for each partition, of int64: count, omitted, tight_bounds; weight_steps and "
    "squared_weight_steps of 24 bytes each, the least first; then the high and the low words of "
    "moment_steps, of first_steps and of second_steps, as dask-sketch/sketch version 2 has them. "
    "bounds: minimum and maximum of each feature."
)
MISSING_LAYOUT = (
    "missing: a row for each partition, of int64: missing_weight_steps of 24 bytes, the least "
    "first; then the high and the low words of missing_frequency, missing_pair, missing_first and "
    "missing_second, as dask-sketch/sketch version 3 has them, and zeros for a partition without "
    "missing values."
)


def _sizes(feature_map: FeatureMap) -> tuple[int, ...]:
    d, m = feature_map.n_features, feature_map.n_frequencies
    return (2 * m, 2 * m, d, d, d, d)


def shapes(
    n: int, feature_map: FeatureMap, *, with_missing: bool = False
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types of the arrays of ``n`` sketches."""
    found: dict[str, tuple[tuple[int, ...], str]] = {
        WORDS: ((n, _HEAD + sum(_sizes(feature_map))), "int64"),
        BOUNDS: ((n, 2, feature_map.n_features), "float64"),
    }
    if with_missing:
        width = _LONG // 8 + 2 * sum(counter_sizes(feature_map).values())
        found[MISSING] = (n, width), "int64"
    return found


def row_bytes(
    feature_map: FeatureMap, sampling: Sampling | None = None, *, with_missing: bool = False
) -> int:
    """Largest number of bytes of one sketch in memory.

    Parameters
    ----------
    feature_map
        Feature map of the sketch.
    sampling
        Choice of its random rows; None for none.
    with_missing
        Whether it has counters of missing values.
    """
    size = 0 if sampling is None else sample_bytes(sampling.size, feature_map.n_features)
    arrays = shapes(1, feature_map, with_missing=with_missing).values()
    return 8 * sum(math.prod(shape) for shape, _ in arrays) + size


def stack(
    sketches: Sequence[Sketch], feature_map: FeatureMap, *, with_rows: bool = False
) -> dict[str, NDArray[Any]]:
    """Stack sketches of one feature map as rows of arrays; :func:`unstack` restores all bits.

    Parameters
    ----------
    sketches, feature_map
        Sketches, and their feature map.
    with_rows
        Whether there are arrays of their random rows too.

    Raises
    ------
    LedgerError
        If a sketch is private, because a ledger adds and subtracts exact sums.
    """
    if any(sketch.privacy is not None for sketch in sketches):
        raise LedgerError(
            "a ledger holds no private sketches: add the sketch of the data, and privatise the "
            "total."
        )
    if any(sketch.rounding_error for sketch in sketches):
        raise LedgerError("a ledger holds no rounded sketches: add the exact sketch of the data.")
    with_missing = any(sketch.missing is not None for sketch in sketches)
    described = shapes(len(sketches), feature_map, with_missing=with_missing)
    found = {name: np.zeros(shape, kind) for name, (shape, kind) in described.items()}
    words, bounds = found[WORDS], found[BOUNDS]
    for row, bound, sketch in zip(words, bounds, sketches, strict=True):
        long = b"".join(
            steps.to_bytes(_LONG, "little")
            for steps in (sketch.weight_quanta, sketch.squared_weight_quanta)
        )
        row[:3] = sketch.count, sketch.omitted, sketch.tight_bounds
        row[3:_HEAD] = np.frombuffer(long, dtype="<i8")
        steps = (sketch.moment_quanta, sketch.first_quanta, sketch.second_quanta)
        parts = [word.ravel() for both in steps for word in (both.high, both.low)]
        np.concatenate(parts, out=row[_HEAD:])
        bound[:] = sketch.minimum, sketch.maximum
    for row, sketch in zip(found.get(MISSING, ()), sketches, strict=False):
        if sketch.missing is not None:
            counters = [getattr(sketch.missing, name) for name in ARRAYS]
            long = sketch.missing.weight_quanta.to_bytes(_LONG, "little")
            parts = [word for each in counters for word in (each.high, each.low)]
            np.concatenate([np.frombuffer(long, dtype="<i8"), *parts], out=row)
    if with_rows:
        found |= partition_rows.stack(
            [sketch.sample for sketch in sketches], feature_map.n_features
        )
    return found


def unstack(
    arrays: Mapping[str, NDArray[Any]], row: int, feature_map: FeatureMap, label: str
) -> Sketch:
    """Restore the sketch of one row.

    Raises
    ------
    LedgerError
        If the numbers are not those of a sketch.
    """
    words, bounds = arrays[WORDS][row], arrays[BOUNDS][row]
    count, omitted, tight = map(int, words[:3])
    long = words[3:_HEAD].astype("<i8").tobytes()
    weight, squared = (int.from_bytes(part, "little") for part in (long[:_LONG], long[_LONG:]))
    parts = np.split(words[_HEAD:].copy(), np.cumsum(_sizes(feature_map))[:-1])
    moments = [part.reshape(2, -1) for part in parts[:2]]
    steps = tuple(FixedPoint(*both) for both in (moments, parts[2:4], parts[4:]))
    sound = all(each.is_canonical() for each in steps) and min(count, omitted) >= 0
    missing = _missing_of(arrays[MISSING][row], feature_map) if MISSING in arrays else None
    sound &= missing is None or (
        all(getattr(missing, name).is_canonical() for name in ARRAYS)
        and missing.is_possible(weight)
    )
    if not sound or tight not in (0, 1):
        raise LedgerError(f"{label} holds impossible sums: it was edited or damaged.")
    try:
        return Sketch(
            feature_map=feature_map,
            moment_quanta=steps[0],
            weight_quanta=weight,
            squared_weight_quanta=squared,
            count=count,
            omitted=omitted,
            minimum=bounds[0].copy(),
            maximum=bounds[1].copy(),
            first_quanta=steps[1],
            second_quanta=steps[2],
            tight_bounds=bool(tight),
            missing=missing,
        )
    except SketchError as error:
        raise LedgerError(f"{label} holds impossible sums: {error}") from error


def _missing_of(words: NDArray[np.int64], feature_map: FeatureMap) -> MissingWeights | None:
    """Counters of one row; None if all are zero."""
    head, sizes = _LONG // 8, counter_sizes(feature_map)
    parts = np.split(words[head:].copy(), np.cumsum(np.repeat(list(sizes.values()), 2))[:-1])
    arrays = {name: FixedPoint(*parts[2 * i : 2 * i + 2]) for i, name in enumerate(sizes)}
    weight = int.from_bytes(words[:head].astype("<i8").tobytes(), "little")
    return MissingWeights(**arrays, weight_quanta=weight).or_none()


FOLDER = "batches"
TOTALS = "totals"
SCHEMA = "dask-sketch/ledger-batch"
BATCH_BYTES = 16 * 2**20  # of the sketches of one batch, all of which are read for any of them
_COLUMNS = ("key", "fingerprint", "rows", "n_bytes", "count", "run", "since")
Member = tuple[str, Entry]


@dataclass(frozen=True)
class Batch:
    """A stored batch, and those of its members that were removed.

    Attributes
    ----------
    reference
        Reference to the stored group.
    n_members
        Number of partitions.
    dead
        Rows of the partitions that were removed or replaced since.
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
    def from_json(cls, found: Any) -> Batch:
        """Restore from :meth:`to_json`; ``ValueError`` for anything else."""
        *reference, n_members, dead = found
        batch = cls(Reference.from_json(reference), int(n_members), frozenset(map(int, dead)))
        if n_members < 1 or not all(0 <= row < n_members for row in batch.dead):
            raise ValueError(f"{found!r} is not a batch")
        return batch


def batch_rows(
    feature_map: FeatureMap, sampling: Sampling | None = None, with_missing: bool = False
) -> int:
    """Largest number of members of a batch, at least one."""
    return max(1, BATCH_BYTES // row_bytes(feature_map, sampling, with_missing=with_missing))


def stated(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Attributes of a group of arrays that has counters of missing values; empty without."""
    return {"missing": True, "missing_layout": MISSING_LAYOUT} if MISSING in arrays else {}


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
    """
    columns = {
        column: [key if column == "key" else getattr(entry, column) for key, entry in members]
        for column in _COLUMNS
    }
    attributes = {"schema": SCHEMA, "digest": digest, "layout": LAYOUT, "members": columns}
    filled = {key: values for key, values in arrays.items() if values.size}
    attributes |= stated(arrays) | partition_rows.stated(arrays)
    stored = write_group(backend, name, filled, attributes)
    return Batch(stored, len(members))


def read_members(backend: Backend, batches: Sequence[Batch]) -> list[list[Member]]:
    """Read the members of batches, dead ones included.

    Raises
    ------
    LedgerError
        If a batch is missing, edited or contradicts the manifest.
    """
    found = read_attributes(backend, [batch.reference for batch in batches])
    return [
        _members(attributes, batch, backend)
        for attributes, batch in zip(found, batches, strict=True)
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
    feature_map: FeatureMap,
    names: Sequence[str] | None = None,
    sampling: Sampling | None = None,
) -> dict[str, NDArray[Any]]:
    """Read arrays of a batch.

    Parameters
    ----------
    backend, batch, feature_map
        Backend of the ledger, the batch, and its feature map.
    names
        Names of arrays of the sketches; all of them by default.
    sampling
        Choice of the random rows, whose arrays are read too; None to leave them out.

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
    stored = {name: one for name, one in wanted.items() if 0 not in one[0]}
    found = read_arrays(backend, batch.reference, attributes, stored)
    empty = {name: np.empty(*one) for name, one in wanted.items() if name not in stored}
    return found | empty


def read_sketches(
    backend: Backend,
    batch: Batch,
    positions: Sequence[int],
    feature_map: FeatureMap,
    sampling: Sampling | None = None,
) -> list[Sketch]:
    """Read sketches of a batch by their rows; with their random rows, if these are chosen so."""
    arrays = read_rows(backend, batch, feature_map, sampling=sampling)
    label = f"{backend.label}/{batch.reference.name}"
    found = [unstack(arrays, row, feature_map, label) for row in positions]
    if sampling is None:
        return found
    rows = _samples_of(arrays, positions, feature_map, sampling, label)
    return [replace(one, sample=sample) for one, sample in zip(found, rows, strict=True)]


def read_samples(
    backend: Backend,
    batch: Batch,
    positions: Sequence[int],
    feature_map: FeatureMap,
    sampling: Sampling,
) -> list[RowSample]:
    """Read only the random rows of members of a batch."""
    arrays = read_rows(backend, batch, feature_map, (), sampling)
    label = f"{backend.label}/{batch.reference.name}"
    return _samples_of(arrays, positions, feature_map, sampling, label)


def _samples_of(
    arrays: Mapping[str, NDArray[Any]],
    positions: Sequence[int],
    feature_map: FeatureMap,
    sampling: Sampling,
    label: str,
) -> list[RowSample]:
    size = partition_rows.total_size(sampling, feature_map.n_features)
    return partition_rows.unstack(arrays, positions, sampling.size, size, label)


def write_total(backend: Backend, number: int, total: Sketch) -> Reference:
    """Store the sums of all partitions, without their random rows."""
    feature_map = total.feature_map
    arrays = stack([total], feature_map)
    attributes = {"schema": SCHEMA, "digest": feature_map.digest, "layout": LAYOUT}
    return write_group(backend, fresh_name(TOTALS, number), arrays, attributes | stated(arrays))


def read_total(backend: Backend, reference: Reference, feature_map: FeatureMap) -> Sketch:
    """Read a sketch that :func:`write_total` stored."""
    (sketch,) = read_sketches(backend, Batch(reference, 1), [0], feature_map)
    return sketch
