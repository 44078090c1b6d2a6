"""Commits: what the ledger is at one instant, in one small object."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dask_sketch.errors import ArtifactError, LedgerError, LedgerLocked
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.jobs.ledger.backends import Place
from dask_sketch.jobs.ledger.batch import Batch
from dask_sketch.jobs.ledger.objects import (
    MAX_METADATA,
    ROOT,
    NewerSchema,
    Reference,
    fresh_name,
    read_arrays,
    read_attributes,
    sealed,
    unsealed,
    write_group,
)
from dask_sketch.storage.artifact_reader import MAX_BYTES

logger = logging.getLogger(__name__)
FOLDER = "commits"
SCHEMA = "dask-sketch/ledger-commit"
VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """One consistent state.

    Attributes
    ----------
    number
        Of the commit, from 1; 0 before the first.
    batches
        Where the sketches are.
    total
        Sketch of all live partitions; ``None`` if there are none.
    forgotten
        Keys that are never read again.
    quarantined
        Keys that could not be read, and why.
    gone
        Keys that were removed, with the first and the last run that had them: the totals of these
        runs still do.
    runs
        Segments of the history.
    last_run
        Number of the last run recorded.
    states
        Totals at the ends of the last runs, with their numbers.
    oldest
        Commits below this one are no states any more: they refer to what was forgotten.
    """

    number: int = 0
    batches: tuple[Batch, ...] = ()
    total: Reference | None = None
    forgotten: frozenset[str] = frozenset()
    quarantined: Mapping[str, str] = field(default_factory=dict)
    gone: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    runs: tuple[Reference, ...] = ()
    last_run: int = 0
    states: tuple[tuple[int, Reference], ...] = ()
    oldest: int = 0

    def names(self) -> set[str]:
        """Folders of all that this state needs, models apart."""
        found = {batch.reference.name for batch in self.batches}
        found |= {ref.name for ref in self.runs} | {ref.name for _, ref in self.states}
        return found | ({self.total.name} if self.total else set())

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "number": self.number,
            "written": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "batches": [batch.to_json() for batch in self.batches],
            "total": self.total and self.total.to_json(),
            "forgotten": sorted(self.forgotten),
            "quarantined": dict(self.quarantined),
            "gone": dict(self.gone),
            "runs": [ref.to_json() for ref in self.runs],
            "last_run": self.last_run,
            "states": [[run, ref.to_json()] for run, ref in self.states],
            "oldest": self.oldest,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], label: str) -> Manifest:
        """Back from :meth:`to_json`.

        Raises
        ------
        LedgerError
            If this is no manifest.
        """
        try:
            return cls(
                number=int(found["number"]),
                batches=tuple(map(Batch.from_json, found["batches"])),
                total=None if found["total"] is None else Reference.from_json(found["total"]),
                forgotten=frozenset(map(str, found["forgotten"])),
                quarantined={str(k): str(v) for k, v in found["quarantined"].items()},
                gone={str(k): (int(a), int(b)) for k, (a, b) in found["gone"].items()},
                runs=tuple(map(Reference.from_json, found["runs"])),
                last_run=int(found["last_run"]),
                states=tuple((int(r), Reference.from_json(ref)) for r, ref in found["states"]),
                oldest=int(found["oldest"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise LedgerError(f"{label} is no manifest of a ledger: {error!r}.") from error


def commit_name(number: int) -> str:
    """Folder of a commit."""
    return f"{FOLDER}/{number:010d}"


def commit_numbers(place: Place) -> list[int]:
    """Numbers of all commits that have left a trace, whole or not."""
    return sorted(int(name) for name in place.names(FOLDER) if name.isdecimal())


def read_commit(place: Place, number: int) -> Manifest:
    """One commit.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    LedgerError
        If it is not whole.
    """
    name = commit_name(number)
    label = f"{place.label}/{name}"
    content = place.read(f"{name}/{ROOT}", MAX_METADATA)
    manifest = Manifest.from_json(unsealed(content, SCHEMA, VERSION, label), label)
    if manifest.number != number:
        raise LedgerError(f"{label} is a copy of commit {manifest.number}.")
    return manifest


def newest(place: Place) -> tuple[Manifest, int]:
    """The state of the ledger, and the highest number that is taken.

    A commit that was half written is none: the one before it is the state.

    Raises
    ------
    LedgerError
        If there are commits, and none of them is whole or a newer version wrote the last.
    """
    numbers = commit_numbers(place)
    damaged = []
    for number in reversed(numbers):
        try:
            return read_commit(place, number), numbers[-1]
        except NewerSchema:
            raise
        except FileNotFoundError:  # of an interrupted write, only the folder
            continue
        except LedgerError as error:
            logger.warning("%s", error)
            damaged.append(str(error))
    if damaged:
        raise LedgerError(f"no commit of {place.label} is whole; the last one: {damaged[0]}")
    return Manifest(), max(numbers, default=0)


def publish(place: Place, manifest: Manifest) -> None:
    """Make this the state of the ledger, at once and for all to see.

    Raises
    ------
    LedgerLocked
        If another process has committed under this number.
    """
    content = sealed(SCHEMA, VERSION, manifest.to_json())
    if len(content) > MAX_METADATA:
        raise LedgerError(
            f"the manifest of {place.label} would take {len(content):,} bytes, over the limit of "
            f"{MAX_METADATA:,}: use several ledgers, or larger partitions."
        )
    try:
        place.write_new(f"{commit_name(manifest.number)}/{ROOT}", content)
    except FileExistsError as error:
        raise LedgerLocked(
            f"another process has written commit {manifest.number} of {place.label} meanwhile. "
            "Nothing was changed here; run again."
        ) from error


# What a ledger is founded on: its schema and its feature map.

ROOT_SCHEMA = "dask-sketch/ledger"
FEATURE_MAP_FOLDER = "feature_map"
_LIMIT = 2**20


def write_root(place: Place, feature_map: FeatureMap) -> None:
    """Found a ledger; of two that try at once, one succeeds.

    Raises
    ------
    LedgerError
        If something stands there.
    """
    exists = LedgerError(
        f"{place.label} exists. Open it with open_ledger, or choose another place."
    )
    # an interrupted foundation left only that, or what it was to be before it had its name
    if {name for name in place.names("") if not name.startswith(".")} - {FEATURE_MAP_FOLDER}:
        raise exists
    reference = write_group(
        place,
        fresh_name(FEATURE_MAP_FOLDER, 0),
        {"frequencies": feature_map.frequencies},
        {"spec": feature_map.spec, "digest": feature_map.digest},
    )
    content: dict[str, Any] = {"feature_map": reference.to_json()}
    try:
        place.write_new(ROOT, sealed(ROOT_SCHEMA, VERSION, content))
    except FileExistsError as error:
        raise exists from error


def read_root(place: Place) -> FeatureMap:
    """The feature map of a ledger.

    Raises
    ------
    LedgerError
        If there is no ledger, or it was edited or damaged.
    """
    try:
        found = place.read(ROOT, _LIMIT)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LedgerError(f"no ledger at {place.label}: there is none. Create it first.") from error
    content = unsealed(found, ROOT_SCHEMA, VERSION, place.label)
    try:
        reference = Reference.from_json(content["feature_map"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"{place.label} names no feature map: {error!r}.") from error
    (attributes,) = read_attributes(place, [reference])
    spec, digest = attributes.get("spec"), attributes.get("digest")
    if not isinstance(spec, str) or not isinstance(digest, str):
        raise LedgerError(f"{place.label}/{reference.name} does not hold a feature map.")
    try:
        plain = FeatureMap.from_spec(spec)
        shape = (plain.n_features, plain.n_frequencies)
        if 8 * plain.n_features * plain.n_frequencies > MAX_BYTES:
            raise LedgerError(f"{place.label} states a feature map of shape {shape}: too large.")
        expected = {"frequencies": (shape, "float64")}
        frequencies = read_arrays(place, reference, attributes, expected)["frequencies"]
        return FeatureMap.from_spec(spec, digest, frequencies)
    except ArtifactError as error:
        raise LedgerError(f"{place.label}/{reference.name}: {error}") from error
