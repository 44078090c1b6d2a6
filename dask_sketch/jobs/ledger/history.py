"""What is told of each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.backends import Place
from dask_sketch.jobs.ledger.objects import Reference, fresh_name, read_attributes, write_group

if TYPE_CHECKING:
    from dask_sketch.models.centroids import Centroids
    from dask_sketch.models.gaussian_mixture import GaussianMixture

RUNS_FOLDER = "runs"
SEGMENT = 32  # records in one object


@dataclass(frozen=True)
class RunRecord:
    """One run, as the history tells it.

    Attributes
    ----------
    number
        From 1, without gaps: :attr:`Ledger.next_run` at its start.
    started, ended
        Times in ISO 8601, with their zone.
    status
        How it ended, for instance ``"done"`` or ``"incomplete"``.
    counts
        Whole numbers by name: partitions added, changed, removed, samples and the like.
    results
        What else should be kept: numbers, text, lists and dictionaries, as JSON can hold them.
    models
        Where what the run decoded is stored, by the names that :meth:`Ledger.model` takes. The
        ledger fills it in.
    versions
        Versions of the software, by name.
    """

    number: int
    started: str
    ended: str
    status: str
    counts: Mapping[str, int] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Any, label: str) -> RunRecord:
        """Back from :meth:`to_json`.

        Raises
        ------
        LedgerError
            If this is no record of a run.
        """
        kinds = {"number": int, "counts": dict, "results": dict, "models": dict, "versions": dict}
        try:
            values = {f.name: found[f.name] for f in fields(cls)}
        except (KeyError, TypeError) as error:
            raise LedgerError(f"{label} is no record of a run: {error!r} is missing.") from error
        for name, value in values.items():
            if not isinstance(value, kinds.get(name, str)):
                raise LedgerError(f"{label} is no record of a run: {name} is {value!r:.60}.")
        return cls(**values)


def read_records(place: Place, segments: Sequence[Reference]) -> list[list[RunRecord]]:
    """Records of each of some segments."""
    out = []
    for found, ref in zip(read_attributes(place, list(segments)), segments, strict=True):
        label = f"{place.label}/{ref.name}"
        if not isinstance(found.get("records"), list):
            raise LedgerError(f"{label} holds no records of runs.")
        out.append([RunRecord.from_json(record, label) for record in found["records"]])
    return out


def write_record(
    place: Place, segments: Sequence[Reference], record: RunRecord, number: int
) -> tuple[Reference, ...]:
    """The segments with one more record."""
    kept = list(segments)
    last = read_records(place, kept[-1:])[0] if kept else []
    if len(last) < SEGMENT:
        kept = kept[:-1]
    else:
        last = []
    attributes = {"records": [one.to_json() for one in (*last, record)]}
    return (*kept, write_group(place, fresh_name(RUNS_FOLDER, number), {}, attributes))


# Models in a ledger: ordinary artifacts, which ``dask_sketch.open`` reads in place.

MODELS_FOLDER = "models"
_OBJECTS, _LIMIT = 64, 2**28  # of a model, and bytes of one of them


def write_model(place: Place, model: GaussianMixture | Centroids, run: int) -> str:
    """Store a model under a fresh name, which is returned."""
    import zarr

    store: dict[str, Any] = {}
    model.to_zarr(zarr.storage.MemoryStore(store))
    name = fresh_name(MODELS_FOLDER, run)
    place.write({f"{name}/{key}": bytes(value.to_bytes()) for key, value in store.items()})
    return name


def read_model(place: Place, name: str) -> GaussianMixture | Centroids:
    """The model of that name.

    Raises
    ------
    LedgerError, ArtifactError
        If it is missing, edited or damaged.
    """
    import zarr
    from zarr.buffer import cpu

    from dask_sketch.models.open import open_model

    names = place.find(name)
    if not names or len(names) > _OBJECTS:
        raise LedgerError(f"no model at {place.label}/{name}: {len(names)} objects are there.")
    objects = place.read_many({f"{name}/{key}": _LIMIT for key in names})
    store = zarr.storage.MemoryStore(
        {
            key.removeprefix(f"{name}/"): cpu.Buffer.from_bytes(content)
            for key, content in objects.items()
        }
    )
    return open_model(store)
