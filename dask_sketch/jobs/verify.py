"""Looking at a ledger from outside of a run: is it right, and what does it tell."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_sketch.cluster.connect import connect
from dask_sketch.display.text import fields_text, text_table
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.job_file import read_job
from dask_sketch.jobs.ledger.ledger import Ledger, open_ledger
from dask_sketch.jobs.open import open_sources, sketches_of
from dask_sketch.jobs.run import ledger_of
from dask_sketch.sketching.sketch import Sketch

if TYPE_CHECKING:
    from dask_sketch.jobs.ledger.history import RunRecord

_NAMED = 5
_MOST_SEED = 2**32


@dataclass(frozen=True)
class Checked:
    """What :func:`verify_job` found.

    Attributes
    ----------
    checked
        Partitions sketched again.
    differing
        Keys of those with other bits.
    unreadable
        Keys of those that could not be read.
    left_out
        Partitions that have changed or gone since the last run.
    total_differs
        Whether the total is not the sum of what is stored; ``None`` where only a share was checked.
    seed
        Of the choice.
    """

    checked: int
    differing: tuple[str, ...]
    unreadable: tuple[str, ...]
    left_out: int
    total_differs: bool | None
    seed: int

    @property
    def is_sound(self) -> bool:
        """Whether nothing speaks against the ledger."""
        return not (self.differing or self.unreadable or self.total_differs)

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self) | {"is_sound": self.is_sound}

    def __str__(self) -> str:
        def named(keys: Sequence[str]) -> str:
            more = ", ..." if len(keys) > _NAMED else ""
            return f"{len(keys):,}" + (f": {', '.join(keys[:_NAMED])}{more}" if keys else "")

        total = {None: "not looked at, with a share under 1", False: "the same", True: "differs"}
        return fields_text(
            {
                "sketched again": f"{self.checked:,} partitions, seed {self.seed}",
                "with other bits": named(self.differing),
                "unreadable": named(self.unreadable),
                "changed since": f"{self.left_out:,}, left out",
                "total": total[self.total_differs],
            }
        )


def verify_job(
    path: str | Path, share: float, seed: int | None = None, *, progress: bool = False
) -> Checked:
    """Sketch a random share of the partitions in a ledger again, and compare all bits.

    Parameters
    ----------
    path
        Of the job file.
    share
        In (0, 1].
    seed
        Of the choice; drawn afresh by default, so that in time all partitions are looked at.
    progress
        Show bars on the standard error stream.

    Raises
    ------
    LedgerError
        If there is no ledger yet, or it is damaged.
    """
    job = read_job(path)
    seed = secrets.randbelow(_MOST_SEED) if seed is None else seed
    unreadable: list[str] = []
    with job.secrets.hidden(), connect(job.cluster):
        ledger = ledger_of(job)
        if ledger is None:
            raise LedgerError(
                f"there is no ledger at {job.place(job.job.ledger)} yet: run the job."
            )
        sources = open_sources(job)
        entries = ledger.entries
        steady = {
            part.key: source
            for source in sources
            for part in source.partitions
            if part.key in entries and entries[part.key].fingerprint == part.fingerprint
        }

        def resketch(keys: list[str]) -> Mapping[str, Sketch]:
            made: dict[str, Sketch] = {}
            for source in sources:
                wanted = [key for key in keys if steady.get(key) is source]
                if not wanted:
                    continue
                for results in sketches_of(
                    job, source, wanted, ledger.feature_map, progress=progress
                ):
                    for part, result in results:
                        if isinstance(result, Sketch):
                            made[part.key] = result
                        else:
                            unreadable.append(part.key)
            return made

        found = ledger.verify(share, seed, resketch)
    return Checked(
        checked=len(found.checked),
        differing=found.differing,
        unreadable=tuple(sorted(unreadable)),
        left_out=len(set(found.missing) - set(unreadable)),
        total_differs=found.total_differs,
        seed=seed,
    )


@contextlib.contextmanager
def open_named(place: str, storage_options: dict[str, Any] | None = None) -> Iterator[Ledger]:
    """The ledger of a job file, or the one at a path or URL.

    Parameters
    ----------
    place
        A path that ends in ``.toml`` is one of a job file.
    storage_options
        Options of the file system of a ledger's URL.

    Raises
    ------
    LedgerError
        If there is none.
    """
    if not place.lower().endswith(".toml"):
        yield open_ledger(place, storage_options=storage_options)
        return
    job = read_job(place)
    with job.secrets.hidden():
        options = job.options(job.job.storage_options, job.job.ledger)
        yield open_ledger(job.place(job.job.ledger), storage_options=options)


def records_text(
    records: Sequence[RunRecord], forgotten: Sequence[str], quarantined: Mapping[str, str]
) -> str:
    """Runs as a table, the last one below."""
    if not records:
        return "no run has come to its end yet"
    columns = ("new", "changed", "deleted", "quarantined", "partitions", "samples")
    rows = [
        (
            str(record.number),
            record.started,
            record.status + (", drift" if record.results.get("alarm") else ""),
            *(f"{record.counts.get(name, 0):,}" for name in columns),
            _quality(record),
        )
        for record in records
    ]
    text = text_table(rows, header=("run", "started", "status", *columns, "cost in noise levels"))
    if quarantined:
        text += f"\n\nin quarantine: {', '.join(sorted(quarantined))}"
    if forgotten:
        text += f"\n\nforgotten: {', '.join(forgotten)}"
    return text


def _quality(record: RunRecord) -> str:
    models = record.results.get("models", {})
    return ", ".join(
        f"{name} {model['cost'] / model['noise_level']:.3g}"
        for name, model in models.items()
        if model.get("noise_level")
    )
