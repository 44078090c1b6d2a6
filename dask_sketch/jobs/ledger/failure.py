"""Record of a run that failed after the last complete one."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, fields
from typing import Any

from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.backends import Backend
from dask_sketch.jobs.ledger.objects import ROOT, checked_content, with_checksum

SCHEMA = "dask-sketch/ledger-failure"
FOLDER = "failure"
_NAME = f"{FOLDER}/{ROOT}"
_LIMIT = 64 * 2**10
_MAX_ERROR = 2000  # characters


@dataclass(frozen=True)
class Failure:
    """Failure of a run.

    Attributes
    ----------
    run
        Number of the run, ``>= 1``; the next complete run has it again.
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
        content = backend.read(_NAME, _LIMIT)
    except FileNotFoundError:
        return None
    label = f"{backend.label}/{FOLDER}"
    found = checked_content(content, SCHEMA, (1,), label)
    values: dict[str, Any] = {field.name: found.get(field.name) for field in fields(Failure)}
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
        backend.replace(_NAME, with_checksum(SCHEMA, 1, content))
