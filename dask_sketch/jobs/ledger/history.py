"""Records and models of the runs of a ledger, and the failure after the last of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import zarr
from zarr.buffer import cpu

from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.backends import Backend
from dask_sketch.jobs.ledger.objects import (
    ROOT,
    Reference,
    checked_content,
    fresh_name,
    is_object_name,
    read_attributes,
    with_checksum,
    write_group,
)
from dask_sketch.models.artifact import COMPONENTS, SCHEMAS, VERSION
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.open import (
    components_from_dataset,
    gaussian_or_centroids,
    model_from_dataset,
)
from dask_sketch.models.principal_components import PrincipalComponents
from dask_sketch.storage.artifact_reader import read_dataset

JobModel = GaussianMixture | Centroids | PrincipalComponents
RUNS_FOLDER = "runs"
SEGMENT = 32  # records in one object
MODELS_FOLDER = "models"
_MAX_OBJECTS = 64  # objects of one model, at most
_MAX_BYTES = 2**28  # bytes of one object of a model, at most
_FAILURE_SCHEMA = "dask-sketch/ledger-failure"
_FAILURE_FOLDER = "failure"
_FAILURE = f"{_FAILURE_FOLDER}/{ROOT}"
_MAX_FAILURE = 64 * 2**10  # bytes of the record of a failure
_MAX_ERROR = 2000  # characters of its message


@dataclass(frozen=True)
class RunRecord:
    """Record of a run.

    Attributes
    ----------
    number
        Number of the run, ``>= 1`` without gaps: :attr:`Ledger.next_run` at its start.
    started, ended
        Times in ISO 8601 with time zone.
    status
        Result, such as ``"done"`` or ``"incomplete"``.
    counts
        Integers by name, such as numbers of new, changed and deleted partitions.
    results
        Other results that JSON can hold, by name.
    models
        Folders of the decoded models, by the names for :meth:`Ledger.model`. The ledger sets them.
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
        """Stored form."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Any, label: str) -> RunRecord:
        """Restore from :meth:`to_json`.

        Raises
        ------
        LedgerError
            If ``found`` is not the record of a run.
        """
        kinds = {"number": int, "counts": dict, "results": dict, "models": dict, "versions": dict}
        try:
            values = {f.name: record[f.name] for f in fields(cls)}
        except (KeyError, TypeError) as error:
            raise LedgerError(
                f"{label} is not the record of a run: {error!r} is missing."
            ) from error
        for name, value in values.items():
            if not isinstance(value, kinds.get(name, str)):
                raise LedgerError(f"{label} is not the record of a run: {name} is {value!r:.60}.")
        return cls(**values)


def read_records(backend: Backend, segments: Sequence[Reference]) -> list[list[RunRecord]]:
    """Read the records of segments of the history."""
    out = []
    for attributes, ref in zip(read_attributes(backend, list(segments)), segments, strict=True):
        label = f"{backend.label}/{ref.name}"
        if not isinstance(attributes.get("records"), list):
            raise LedgerError(f"{label} holds no records of runs: it was edited or damaged.")
        out.append([RunRecord.from_json(record, label) for record in attributes["records"]])
    return out


def write_record(
    backend: Backend, segments: Sequence[Reference], record: RunRecord, number: int
) -> tuple[Reference, ...]:
    """Write one more record; return the new segments of the history."""
    remaining = list(segments)
    last = read_records(backend, remaining[-1:])[0] if remaining else []
    if len(last) < SEGMENT:
        remaining = remaining[:-1]
    else:
        last = []
    attributes = {"records": [entry.to_json() for entry in (*last, record)]}
    return (*remaining, write_group(backend, fresh_name(RUNS_FOLDER, number), {}, attributes))


def write_model(backend: Backend, model: JobModel, run: int) -> str:
    """Store a model that ``dask_sketch.open`` can read; return the name of its folder."""
    store: dict[str, Any] = {}
    model.to_zarr(zarr.storage.MemoryStore(store))
    name = fresh_name(MODELS_FOLDER, run)
    backend.write({f"{name}/{key}": bytes(value.to_bytes()) for key, value in store.items()})
    return name


def read_model(backend: Backend, name: str) -> JobModel:
    """Open a model of the ledger.

    Raises
    ------
    LedgerError, ArtifactError
        If the model is missing, edited or damaged.
    """
    if not is_object_name(name):
        raise LedgerError(f"{backend.label} holds no model {name!r}: the record was edited.")
    names = backend.find(name)
    if not names or len(names) > _MAX_OBJECTS:
        raise LedgerError(f"{backend.label}/{name} is not a model: it has {len(names)} objects.")
    objects = backend.read_many({f"{name}/{key}": _MAX_BYTES for key in names})
    store = zarr.storage.MemoryStore(
        {
            key.removeprefix(f"{name}/"): cpu.Buffer.from_bytes(content)
            for key, content in objects.items()
        }
    )
    dataset = read_dataset(store, dict.fromkeys((*SCHEMAS, COMPONENTS), VERSION))
    schema, label = dataset.attrs["schema"], f"{backend.label}/{name}"
    if schema == COMPONENTS:
        return components_from_dataset(dataset, label)
    return gaussian_or_centroids("a job", model_from_dataset(dataset, schema, label))


@dataclass(frozen=True)
class Failure:
    """Failure of a run.

    Attributes
    ----------
    run
        Number of the run, ``>= 1``. The next complete run has the same number.
    started, ended
        Times in ISO 8601 with time zone.
    error
        Message of the error.
    """

    run: int
    started: str
    ended: str
    error: str

    def __str__(self) -> str:
        return f"run {self.run}, started {self.started}, failed: {self.error}"


def read_failure(backend: Backend) -> Failure | None:
    """Read the last failure that was recorded, ``None`` if there is none.

    Parameters
    ----------
    backend
        Backend of the ledger.

    Raises
    ------
    LedgerError
        If the record was truncated or edited.
    """
    try:
        content = backend.read(_FAILURE, _MAX_FAILURE)
    except FileNotFoundError:
        return None
    label = f"{backend.label}/{_FAILURE_FOLDER}"
    record = checked_content(content, _FAILURE_SCHEMA, (1,), label)
    values: dict[str, Any] = {field.name: record.get(field.name) for field in fields(Failure)}
    for name, value in values.items():
        if type(value) is not (int if name == "run" else str):
            raise LedgerError(f"{label} is not the record of a failure: {name} = {value!r:.60}.")
    return Failure(**values)


def write_failure(backend: Backend, failure: Failure) -> None:
    """Replace the record of the last failure, if the ledger can be written.

    Parameters
    ----------
    backend
        Backend of the ledger.
    failure
        Failure; its message is cut.
    """
    content = asdict(failure) | {"error": failure.error[:_MAX_ERROR]}
    with contextlib.suppress(LedgerError, OSError):  # the failure itself is what matters
        backend.replace(_FAILURE, with_checksum(_FAILURE_SCHEMA, 1, content))
