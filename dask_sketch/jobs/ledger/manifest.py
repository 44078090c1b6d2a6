"""Commits of a ledger: manifests that name the objects of one state, and its feature map."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dask_sketch.errors import ArtifactError, InputError, LedgerError, LedgerLocked
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.pilot import Pilot
from dask_sketch.jobs.ledger import moment_arrays, partition_rows
from dask_sketch.jobs.ledger.backends import Backend
from dask_sketch.jobs.ledger.batch import FOLDER as BATCHES
from dask_sketch.jobs.ledger.batch import TOTALS, Batch
from dask_sketch.jobs.ledger.objects import (
    MAX_METADATA,
    ROOT,
    NewerSchema,
    Reference,
    checked_content,
    fresh_name,
    is_object_name,
    number_of,
    read_arrays,
    read_attributes,
    with_checksum,
    write_group,
)
from dask_sketch.jobs.ledger.sums import Conventions
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.row_sample import RowSampling
from dask_sketch.storage.artifact_reader import MAX_BYTES
from dask_sketch.validation.tables import first_few

FOLDER = "commits"
SCHEMA = "dask-sketch/ledger-commit"
VERSIONS = (1, 2)  # versions without and with missing values, which earlier software would ignore
ROOT_SCHEMA = "dask-sketch/ledger"
# sketches without and with random rows, which earlier software would drop; second moments
ROOT_VERSIONS = (1, 2, 3)
FEATURE_MAP_FOLDER, GRID_FOLDER = "feature_map", "grid"
PILOTS = "pilots"
_NUMBER = re.compile(r"[0-9]{10}")
_MAX_ROOT = 2**20  # bytes of the root object


@dataclass(frozen=True)
class Manifest:
    """Manifest of one state of a ledger.

    Attributes
    ----------
    number
        Number of the commit, ``>= 1``; 0 before the first commit.
    batches
        Batches of sketches.
    total
        Sketch of all live partitions; ``None`` if there are none.
    forgotten
        Keys of partitions that are never read again.
    quarantined
        Keys of partitions that could not be read, with the reasons.
    gone
        Keys of removed partitions, with the first and the last run whose totals contain them.
    fingerprints
        Fingerprints of the forgotten and the removed partitions, by key.
    runs
        Segments of the history.
    last_run
        Number of the last recorded run.
    states
        Totals at the ends of the last runs, with the numbers of the runs.
    oldest
        Number of the oldest commit that is still a state; earlier ones refer to forgotten
        partitions.
    pilot
        Record of the pilot rows of the feature map; ``None`` if there is none, or after a partition
        was forgotten, whose rows may be among the pilot rows.
    with_rows
        Whether partitions have random rows, if the root states a choice of them.
    with_missing
        Whether any partition has, or had, counters of missing values.
    """

    number: int = 0
    batches: tuple[Batch, ...] = ()
    total: Reference | None = None
    forgotten: frozenset[str] = frozenset()
    quarantined: Mapping[str, str] = field(default_factory=dict)
    gone: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    fingerprints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    runs: tuple[Reference, ...] = ()
    last_run: int = 0
    states: tuple[tuple[int, Reference], ...] = ()
    oldest: int = 0
    pilot: Reference | None = None
    with_rows: bool = True
    with_missing: bool = False

    @property
    def erased(self) -> dict[str, tuple[str, ...]]:
        """Fingerprints of the forgotten partitions, by key."""
        return {key: self.fingerprints.get(key, ()) for key in self.forgotten}

    def names(self) -> set[str]:
        """Folders of all objects of this state, except models."""
        folders = {batch.reference.name for batch in self.batches}
        folders |= {ref.name for ref in self.runs} | {ref.name for _, ref in self.states}
        return folders | {ref.name for ref in (self.total, self.pilot) if ref is not None}

    def to_json(self) -> dict[str, Any]:
        """Stored form."""
        return {
            "number": self.number,
            "written": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "batches": [batch.to_json() for batch in self.batches],
            "total": self.total and self.total.to_json(),
            "forgotten": sorted(self.forgotten),
            "quarantined": dict(self.quarantined),
            "gone": dict(self.gone),
            "fingerprints": dict(self.fingerprints),
            "runs": [ref.to_json() for ref in self.runs],
            "last_run": self.last_run,
            "states": [[run, ref.to_json()] for run, ref in self.states],
            "oldest": self.oldest,
            "pilot": self.pilot and self.pilot.to_json(),
            "with_rows": self.with_rows,
        } | ({"with_missing": True} if self.with_missing else {})

    @classmethod
    def from_json(cls, values: Mapping[str, Any], label: str) -> Manifest:
        """Restore from :meth:`to_json`.

        Raises
        ------
        LedgerError
            If ``found`` is not a manifest.
        """
        try:
            marks = values.get("fingerprints", {})  # earlier versions stored none
            return cls(
                number=int(values["number"]),
                batches=tuple(map(Batch.from_json, values["batches"])),
                total=None if values["total"] is None else Reference.from_json(values["total"]),
                forgotten=frozenset(map(str, values["forgotten"])),
                quarantined={str(k): str(v) for k, v in values["quarantined"].items()},
                gone={str(k): (int(a), int(b)) for k, (a, b) in values["gone"].items()},
                fingerprints={
                    str(k): tuple(map(str, fingerprints)) for k, fingerprints in marks.items()
                },
                runs=tuple(map(Reference.from_json, values["runs"])),
                last_run=int(values["last_run"]),
                states=tuple((int(r), Reference.from_json(ref)) for r, ref in values["states"]),
                oldest=int(values["oldest"]),
                pilot=Reference.from_json(values["pilot"]) if values.get("pilot") else None,
                with_rows=bool(values.get("with_rows", True)),
                with_missing=bool(values.get("with_missing", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise LedgerError(f"{label} is not the manifest of a ledger: {error!r}.") from error


def commit_name(number: int) -> str:
    """Folder of a commit."""
    return f"{FOLDER}/{number:010d}"


def commit_numbers(backend: Backend) -> list[int]:
    """Numbers of all commits, complete or not."""
    return sorted(int(name) for name in backend.names(FOLDER) if _NUMBER.fullmatch(name))


def read_commit(backend: Backend, number: int) -> Manifest:
    """Read a commit.

    Raises
    ------
    FileNotFoundError
        If the commit does not exist.
    LedgerError
        If the commit is incomplete or damaged.
    """
    name = commit_name(number)
    label = f"{backend.label}/{name}"
    content = backend.read(f"{name}/{ROOT}", MAX_METADATA)
    manifest = Manifest.from_json(checked_content(content, SCHEMA, VERSIONS, label), label)
    if manifest.number != number:
        raise LedgerError(f"{label} is a copy of commit {manifest.number}.")
    return manifest


def newest(backend: Backend) -> tuple[Manifest, int, str | None]:
    """Read the state of the ledger.

    An interrupted commit does not count; the state is the one before it. If the newest commit is
    damaged, the state is the one before it too, and the caller reports the damage.

    Returns
    -------
    manifest
        Manifest of the last complete commit.
    number
        Highest number of any commit.
    damage
        Description of the damage of the newest commit; ``None`` if it is whole.

    Raises
    ------
    LedgerError
        If there are commits, but none is complete, if objects show that commits were removed, or a
        newer version wrote the last.
    """
    numbers = commit_numbers(backend)
    damaged = []
    for number in reversed(numbers):
        try:
            commit = read_commit(backend, number)
        except NewerSchema:
            raise
        except FileNotFoundError:  # an interrupted writer made only the folder
            continue
        except LedgerError as error:
            damaged.append(str(error))
            continue
        damage = None
        if damaged:
            damage = (
                f"{damaged[0].rstrip('.')}. The ledger is in the state of commit {number}: the "
                "next run reads what the damaged commit held again, as far as the sources have it."
            )
        return commit, numbers[-1], damage
    if damaged:
        raise LedgerError(f"no commit of {backend.label} is complete; the last one: {damaged[0]}")
    _require_none_removed(backend, numbers)
    return Manifest(), max(numbers, default=0), None


def _require_none_removed(backend: Backend, numbers: list[int]) -> None:
    """Raise LedgerError if a ledger without a complete commit has had one.

    An interrupted first commit leaves its folder at most, and objects of its number. Without the
    commits, erased partitions would be read again, for the ledger would count as new.
    """
    objects = [f"{folder}/{name}" for folder in (BATCHES, TOTALS) for name in backend.names(folder)]
    last = max((number_of(name) for name in objects if is_object_name(name)), default=0)
    if last > max(numbers, default=0) + 1 or min(numbers, default=1) > 1:
        raise LedgerError(
            f"{backend.label} has objects of commit {max(last, *numbers, 0)}, but no commit: its "
            f"folder {FOLDER!r} was emptied, or not restored. Restore it. Otherwise move the "
            "ledger away and create another one, from sources without the rows that were "
            "forgotten: it reads all of them again."
        )


def publish(backend: Backend, manifest: Manifest) -> None:
    """Publish a state of the ledger atomically.

    Raises
    ------
    LedgerLocked
        If another process has published a commit of this number.
    """
    content = with_checksum(SCHEMA, VERSIONS[manifest.with_missing], manifest.to_json())
    if len(content) > MAX_METADATA:
        raise LedgerError(
            f"the manifest of {backend.label} would take {len(content):,} bytes, over the limit of "
            f"{MAX_METADATA:,}: use several ledgers, or larger partitions."
        )
    try:
        backend.write_new(f"{commit_name(manifest.number)}/{ROOT}", content)
    except FileExistsError as error:
        raise LedgerLocked(
            f"another process has written commit {manifest.number} of {backend.label} meanwhile, "
            "so nothing was changed here: run again."
        ) from error


def write_pilot(backend: Backend, pilot: Pilot, number: int) -> Reference:
    """Store the record of pilot rows of a feature map."""
    return write_group(backend, fresh_name(PILOTS, number), {}, {"pilot": pilot.as_dict()})


def read_pilot(backend: Backend, reference: Reference, feature_map: FeatureMap) -> Pilot:
    """Read what :func:`write_pilot` stored."""
    (attributes,) = read_attributes(backend, [reference])
    try:
        values = attributes["pilot"]
        return Pilot.from_dict(values, feature_map.n_features, feature_map.n_frequencies)
    except (KeyError, InputError) as error:
        raise LedgerError(f"{backend.label}/{reference.name} holds no pilot: {error}") from error


def require_vacant(backend: Backend) -> None:
    """Check that a ledger can be created; an interrupted attempt to create one is not an obstacle.

    Parameters
    ----------
    backend
        Backend of the ledger.

    Raises
    ------
    FileExistsError
        If something else is there; the message names some of it.
    LedgerError
        If the folder cannot be listed.
    """
    # an interrupted call leaves only a feature map or a grid, or temporary files
    names = {name for name in backend.names("") if not name.startswith(".")}
    foreign = sorted(names - {FEATURE_MAP_FOLDER, GRID_FOLDER})
    if foreign:
        raise FileExistsError(first_few(map(repr, foreign)))


def write_root(backend: Backend, feature_map: Conventions, sampling: RowSampling | None) -> None:
    """Write the schema and the feature map of a new ledger; of two concurrent calls, one succeeds.

    Parameters
    ----------
    backend
        Backend of the ledger.
    feature_map
        Feature map, or grid of second moments.
    sampling
        Choice of the random rows of each partition; None for no random rows.

    Raises
    ------
    LedgerError
        If the path exists.
    """
    exists = LedgerError(
        f"{backend.label} exists: open it with open_ledger, or choose another path."
    )
    try:
        require_vacant(backend)
    except FileExistsError as error:
        raise exists from error
    of_moments = isinstance(feature_map, MomentGrid)
    folder = GRID_FOLDER if of_moments else FEATURE_MAP_FOLDER
    reference = write_group(
        backend,
        fresh_name(folder, 0),
        {} if isinstance(feature_map, MomentGrid) else {"frequencies": feature_map.frequencies},
        {"spec": feature_map.spec, "digest": feature_map.digest},
    )
    content: dict[str, Any] = {folder: reference.to_json()} | partition_rows.to_json(sampling)
    version = ROOT_VERSIONS[2 if of_moments else sampling is not None]
    try:
        backend.write_new(ROOT, with_checksum(ROOT_SCHEMA, version, content))
    except FileExistsError as error:
        raise exists from error


def read_root(backend: Backend) -> tuple[Conventions, RowSampling | None]:
    """Read the feature map or the grid of a ledger, and its choice of random rows.

    Raises
    ------
    LedgerError
        If there is no ledger, or it was edited or damaged.
    """
    try:
        root = backend.read(ROOT, _MAX_ROOT)
    except FileNotFoundError as error:
        raise LedgerError(
            f"there is no ledger at {backend.label}: create it with create_ledger, or run its job."
        ) from error
    backend.require_no_links()
    content = checked_content(root, ROOT_SCHEMA, ROOT_VERSIONS, backend.label)
    of_moments = GRID_FOLDER in content
    try:
        reference = Reference.from_json(content[GRID_FOLDER if of_moments else FEATURE_MAP_FOLDER])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"{backend.label} does not name a feature map: {error!r}.") from error
    (attributes,) = read_attributes(backend, [reference])
    spec, digest = attributes.get("spec"), attributes.get("digest")
    if not isinstance(spec, str) or not isinstance(digest, str):
        raise LedgerError(f"{backend.label}/{reference.name} does not hold a feature map.")
    if of_moments:
        return _grid_of(spec, digest, f"{backend.label}/{reference.name}"), None
    try:
        plain = FeatureMap.from_spec(spec)
        shape = (plain.n_features, plain.n_frequencies)
        if 8 * plain.n_features * plain.n_frequencies > MAX_BYTES:
            raise LedgerError(
                f"{backend.label} has a feature map of shape {shape}: it is too large."
            )
        expected = {"frequencies": (shape, "float64")}
        frequencies = read_arrays(backend, reference, attributes, expected)["frequencies"]
        feature_map = FeatureMap.from_spec(spec, digest, frequencies)
        return feature_map, partition_rows.from_json(content, feature_map)
    except ArtifactError as error:
        raise LedgerError(f"{backend.label}/{reference.name}: {error}") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"{backend.label} does not state its random rows: {error}.") from error


def _grid_of(spec: str, digest: str, label: str) -> MomentGrid:
    """Grid of a ledger of second moments."""
    try:
        grid = MomentGrid.from_spec(spec)
    except InputError as error:
        raise LedgerError(f"{label}: {error}") from error
    if grid.digest != digest:
        raise LedgerError(f"{label} has another digest than its grid: it was edited or damaged.")
    if grid.nbytes > moment_arrays.MAX_BYTES:
        raise LedgerError(
            f"{label} has a grid of {grid.n_features:,} features, whose second moments take "
            f"{grid.nbytes:,} bytes: it is too large."
        )
    return grid
