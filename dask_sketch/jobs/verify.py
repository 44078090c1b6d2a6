"""Verify the ledger of a job, and list its runs."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_sketch.cluster.connect import connect
from dask_sketch.display.text import fields_text, printable, text_table
from dask_sketch.errors import ChunkError, LedgerError
from dask_sketch.jobs.job_file import read_job
from dask_sketch.jobs.ledger.ledger import Ledger, open_ledger
from dask_sketch.jobs.ledger.lock import STALE_AFTER
from dask_sketch.jobs.ledger.sums import Sums
from dask_sketch.jobs.open import ledger_of, open_sources, sketches_of
from dask_sketch.jobs.outcome import missing_text, noted_status
from dask_sketch.validation.tables import first_few

if TYPE_CHECKING:
    from dask_sketch.jobs.ledger.history import Failure, RunRecord

_MAX_SEED = 2**32


@dataclass(frozen=True)
class JobVerification:
    """Result of :func:`verify_job`.

    Attributes
    ----------
    checked
        Number of partitions that were sketched again.
    differing
        Keys of the partitions whose bits differ.
    unreadable
        Keys of the partitions that could not be read.
    left_out
        Number of partitions that were changed or deleted since the last run.
    total_differs
        Whether the total differs from the sum of the partitions; ``None`` if not all partitions
        were checked.
    seed
        Seed of the choice of partitions.
    damage
        Description of the damage of the newest commit; ``None`` if it is whole.
    """

    checked: int
    differing: tuple[str, ...]
    unreadable: tuple[str, ...]
    left_out: int
    total_differs: bool | None
    seed: int
    damage: str | None = None

    @property
    def is_sound(self) -> bool:
        """Whether all checks passed."""
        return not (self.differing or self.unreadable or self.total_differs or self.damage)

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self) | {"is_sound": self.is_sound}

    def __str__(self) -> str:
        def named(keys: Sequence[str]) -> str:
            return f"{len(keys):,}" + (f": {first_few(keys)}" if keys else "")

        total = {
            None: "not checked, since the fraction is under 1",
            False: "equal",
            True: "differs",
        }
        return fields_text(
            {
                "sketched again": f"{self.checked:,} partitions, seed {self.seed}",
                "different bits": named(self.differing),
                "unreadable": named(self.unreadable),
                "changed since then": f"{self.left_out:,}, left out",
                "total": total[self.total_differs],
                "newest commit": self.damage or "whole",
            }
        )


def verify_job(
    path: str | Path, fraction: float, seed: int | None = None, *, progress: bool = False
) -> JobVerification:
    """Sketch a random fraction of the partitions in a ledger again, and compare all bits.

    Parameters
    ----------
    path
        Path of the job file.
    fraction
        Fraction of the partitions, in (0, 1].
    seed
        Seed of the choice; random by default, so that in time all partitions are checked.
    progress
        Whether to show progress on the standard error stream.

    Returns
    -------
    verification
        Keys of the partitions that differ or could not be read.

    Raises
    ------
    LedgerError
        If there is no ledger, or it is damaged.
    """
    job = read_job(path)
    seed = secrets.randbelow(_MAX_SEED) if seed is None else seed
    unreadable: list[str] = []
    with job.secrets.hidden(), connect(job.cluster):
        ledger = ledger_of(job)
        if ledger is None:
            raise LedgerError(
                f"there is no ledger at {job.resolve(job.job.ledger)}: run the job first."
            )
        sources = open_sources(job, ledger)
        partitions = [part for source in sources for part in source.partitions]
        changes = ledger.compare(partitions)
        same, lost = {part.key for part in changes.same}, frozenset(changes.lost)
        unchanged = {
            part.key: source for source in sources for part in source.partitions if part.key in same
        }

        def resketch(keys: list[str]) -> Mapping[str, Sums]:
            sketches: dict[str, Sums] = {}
            unreadable.extend(lost.intersection(keys))
            for source in sources:
                wanted = [key for key in keys if unchanged.get(key) is source]
                if not wanted:
                    continue
                for results in sketches_of(job, source, wanted, ledger, progress=progress):
                    for part, result in results:
                        if isinstance(result, ChunkError):
                            unreadable.append(part.key)
                        else:
                            sketches[part.key] = result
            return sketches

        verification = ledger.verify(fraction, seed, resketch)
    return JobVerification(
        checked=len(verification.checked),
        differing=verification.differing,
        unreadable=tuple(sorted(unreadable)),
        left_out=len(set(verification.missing) - set(unreadable)),
        total_differs=verification.total_differs,
        seed=seed,
        damage=ledger.damage,
    )


@contextlib.contextmanager
def open_job_ledger(path: str, storage_options: dict[str, Any] | None = None) -> Iterator[Ledger]:
    """Open the ledger of a job file, or the ledger at a path or URL.

    Parameters
    ----------
    path
        Path of a job file, if it ends in ``.toml``, else path or URL of a ledger.
    storage_options
        Options of the file system of the URL of a ledger.

    Raises
    ------
    LedgerError
        If there is no ledger.
    """
    if not path.lower().endswith(".toml"):
        yield open_ledger(path, storage_options=storage_options)
        return
    job = read_job(path)
    with job.secrets.hidden():
        options = job.options(job.job.storage_options, job.job.ledger)
        yield open_ledger(job.resolve(job.job.ledger), storage_options=options)


def stale_after(path: str) -> float:
    """Seconds after which the lock of another host is broken: of a job file, or the default.

    Parameters
    ----------
    path
        Path of a job file, if it ends in ``.toml``, else path or URL of a ledger.
    """
    return read_job(path).limits.stale_lock if path.lower().endswith(".toml") else STALE_AFTER


def drift_settings(path: str) -> dict[str, Any]:
    """Arguments of ``Ledger.drift`` in a job file; empty for the path of a ledger.

    Parameters
    ----------
    path
        Path of a job file, if it ends in ``.toml``, else path or URL of a ledger.
    """
    return read_job(path).drift.arguments() if path.lower().endswith(".toml") else {}


def records_text(
    records: Sequence[RunRecord],
    forgotten: Sequence[str],
    quarantined: Mapping[str, str],
    failure: Failure | None = None,
) -> str:
    """Format the records of runs as a table, the last run at its end, and a failure after it."""
    failed = "" if failure is None else f"\n\n{printable(str(failure))}"
    if not records:
        return f"no run is complete{failed}"
    columns = (
        "new", "changed", "deleted", "quarantined", "samples_read", "omitted", "partitions",
        "samples",
    )  # fmt: skip
    missing = any(record.results.get("missing_read") for record in records)
    rows = [
        (
            str(record.number),
            record.started,
            noted_status(record.status, record.results),
            *(f"{record.counts.get(name, 0):,}" for name in columns),
            *([missing_text(record.results.get("missing_read", {}))] if missing else []),
            _quality(record),
        )
        for record in records
    ]
    names = [name.replace("samples_read", "read") for name in columns]
    names += ["missing values"] * missing
    text = text_table(rows, header=("run", "started", "status", *names, "cost in noise levels"))
    if quarantined:
        text += f"\n\nin quarantine: {', '.join(sorted(quarantined))}"
    if forgotten:
        text += f"\n\nforgotten: {', '.join(forgotten)}"
    return text + failed


def _quality(record: RunRecord) -> str:
    models = record.results.get("models", {})
    return ", ".join(
        f"{name} {model['cost'] / model['noise_level']:.3g}"
        for name, model in models.items()
        if model.get("noise_level")
    )
