"""Batches: the sketches of some partitions, stored together with what is known of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import LedgerError, SketchError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.kernels.fixed_point import FixedPoint
from dask_sketch.jobs.ledger.backends import Place
from dask_sketch.jobs.ledger.objects import (
    Reference,
    fresh_name,
    read_arrays,
    read_attributes,
    write_group,
)
from dask_sketch.jobs.ledger.partitions import Entry
from dask_sketch.sketching.sketch import Sketch

# Sketches as rows of two arrays, and back: the one place that knows what a sketch is made of.

WORDS, BOUNDS = "words", "bounds"  # names of the arrays
_LONG = 24  # bytes of the sum of weights, and of that of their squares
_HEAD = 3 + 2 * _LONG // 8
LAYOUT = (
    "words: a row for each partition, of int64: count, omitted, tight_bounds; weight_steps and "
    "squared_weight_steps of 24 bytes each, the least first; then the high and the low words of "
    "moment_steps, of first_steps and of second_steps, as dask-sketch/sketch version 2 has them. "
    "bounds: minimum and maximum of each feature."
)


def _sizes(feature_map: FeatureMap) -> tuple[int, ...]:
    d, m = feature_map.n_features, feature_map.n_frequencies
    return (2 * m, 2 * m, d, d, d, d)


def shapes(n: int, feature_map: FeatureMap) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of the arrays for ``n`` sketches."""
    return {
        WORDS: ((n, _HEAD + sum(_sizes(feature_map))), "int64"),
        BOUNDS: ((n, 2, feature_map.n_features), "float64"),
    }


def row_bytes(feature_map: FeatureMap) -> int:
    """Bytes of one sketch in memory."""
    return 8 * (_HEAD + sum(_sizes(feature_map)) + 2 * feature_map.n_features)


def stack(sketches: Sequence[Sketch], feature_map: FeatureMap) -> dict[str, NDArray[Any]]:
    """The arrays of some sketches of one feature map; :func:`unstack` gives the same bits back.

    Raises
    ------
    LedgerError
        If a sketch is private: a ledger adds and subtracts those of the data.
    """
    if any(sketch.privacy is not None for sketch in sketches):
        raise LedgerError(
            "a private sketch is to be given away, not to be kept in a ledger: keep that of the "
            "data, and privatise the total."
        )
    described = shapes(len(sketches), feature_map)
    words, bounds = (np.empty(shape, kind) for shape, kind in described.values())
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
    return {WORDS: words, BOUNDS: bounds}


def unstack(
    arrays: Mapping[str, NDArray[Any]], row: int, feature_map: FeatureMap, label: str
) -> Sketch:
    """The sketch of one row.

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
    if not sound or tight not in (0, 1):
        raise LedgerError(f"{label} holds sums that no sketch has: it was edited or is damaged.")
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
        )
    except SketchError as error:
        raise LedgerError(f"{label} holds sums that no sketch has: {error}") from error


FOLDER = "batches"
TOTALS = "totals"
SCHEMA = "dask-sketch/ledger-batch"
BATCH_BYTES = 16 * 2**20  # of the sketches of one batch: what it takes to read one of them
_COLUMNS = ("key", "fingerprint", "rows", "n_bytes", "count", "run", "since")
Member = tuple[str, Entry]


@dataclass(frozen=True)
class Batch:
    """A stored batch, and which of its members no longer count.

    Attributes
    ----------
    reference
        Where it is.
    n_members
        Partitions in it.
    dead
        Positions of those that were removed or replaced since.
    """

    reference: Reference
    n_members: int
    dead: frozenset[int] = frozenset()

    @property
    def n_live(self) -> int:
        """Members that count."""
        return self.n_members - len(self.dead)

    def without(self, positions: set[int]) -> Batch:
        """The same batch with more of it dead."""
        return replace(self, dead=self.dead | positions)

    def to_json(self) -> list[Any]:
        """As it stands in a manifest."""
        return [*self.reference.to_json(), self.n_members, sorted(self.dead)]

    @classmethod
    def from_json(cls, found: Any) -> Batch:
        """Back from :meth:`to_json`; ``ValueError`` for anything else."""
        *reference, n_members, dead = found
        batch = cls(Reference.from_json(reference), int(n_members), frozenset(map(int, dead)))
        if n_members < 1 or not all(0 <= row < n_members for row in batch.dead):
            raise ValueError(f"{found!r} is no batch")
        return batch


def batch_rows(feature_map: FeatureMap) -> int:
    """Most members of one batch: one, for sketches larger than a batch should be."""
    return max(1, BATCH_BYTES // row_bytes(feature_map))


def write_batch(
    place: Place,
    name: str,
    members: Sequence[Member],
    arrays: Mapping[str, NDArray[Any]],
    digest: str,
) -> Batch:
    """Store a batch under a fresh name.

    Parameters
    ----------
    place, name
        Where.
    members
        Keys and entries, in the order of the rows; the batch that the entries name is not stored.
    arrays
        From :func:`~dask_sketch.jobs.ledger.batch.stack`.
    digest
        Of the feature map.
    """
    columns = {
        column: [key if column == "key" else getattr(entry, column) for key, entry in members]
        for column in _COLUMNS
    }
    attributes = {"schema": SCHEMA, "digest": digest, "layout": LAYOUT, "members": columns}
    return Batch(write_group(place, name, arrays, attributes), len(members))


def read_members(place: Place, batches: Sequence[Batch]) -> list[list[Member]]:
    """Members of some batches, dead ones included.

    Raises
    ------
    LedgerError
        If a batch is missing, edited or not what the manifest says.
    """
    found = read_attributes(place, [batch.reference for batch in batches])
    return [
        _members(attributes, batch, place) for attributes, batch in zip(found, batches, strict=True)
    ]


def _members(attributes: Mapping[str, Any], batch: Batch, place: Place) -> list[Member]:
    name = batch.reference.name
    try:
        columns = [attributes["members"][column] for column in _COLUMNS]
        members = [
            (_text(key), Entry(_text(mark), _size(rows), _size(n_bytes), int(count),
                               name, int(run), int(since)))
            for key, mark, rows, n_bytes, count, run, since in zip(*columns, strict=True)
        ]  # fmt: skip
        if len(members) != batch.n_members or attributes["schema"] != SCHEMA:
            raise ValueError("it is no batch, or one of another length")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"{place.label}/{name} does not list its partitions: {error}.") from error
    return members


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _size(value: Any) -> int | None:
    return None if value is None else int(value)


def read_rows(
    place: Place,
    batch: Batch,
    feature_map: FeatureMap,
    names: Sequence[str] | None = None,
) -> dict[str, NDArray[Any]]:
    """The arrays of a batch, or those of them that are named.

    Raises
    ------
    LedgerError
        If the batch is missing, edited, too large or of another feature map.
    """
    label = f"{place.label}/{batch.reference.name}"
    if batch.n_members > batch_rows(feature_map):
        raise LedgerError(f"{label} states {batch.n_members} members, more than a batch can have.")
    (attributes,) = read_attributes(place, [batch.reference])
    if attributes.get("digest") != feature_map.digest:
        raise LedgerError(f"{label} holds sketches of another feature map than the ledger's.")
    expected = shapes(batch.n_members, feature_map)
    wanted = {name: expected[name] for name in names or expected}
    return read_arrays(place, batch.reference, attributes, wanted)


def read_sketches(
    place: Place, batch: Batch, positions: Sequence[int], feature_map: FeatureMap
) -> list[Sketch]:
    """Some sketches of a batch, by position."""
    arrays = read_rows(place, batch, feature_map)
    label = f"{place.label}/{batch.reference.name}"
    return [unstack(arrays, row, feature_map, label) for row in positions]


def write_total(place: Place, number: int, total: Sketch) -> Reference:
    """Store the sketch of everything."""
    feature_map = total.feature_map
    return write_group(
        place, fresh_name(TOTALS, number), stack([total], feature_map),
        {"schema": SCHEMA, "digest": feature_map.digest, "layout": LAYOUT},
    )  # fmt: skip


def read_total(place: Place, reference: Reference, feature_map: FeatureMap) -> Sketch:
    """The sketch of everything, as :func:`write_total` stored it."""
    (sketch,) = read_sketches(place, Batch(reference, 1), [0], feature_map)
    return sketch
