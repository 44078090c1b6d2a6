"""The tables of a job file: what may stand in them, what is needed and what holds without them."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from dask_sketch.cluster.settings import LOOPBACK, ClusterSettings
from dask_sketch.errors import InputError
from dask_sketch.jobs.checks import (
    Refused,
    flag,
    location,
    name,
    names,
    number,
    numbers,
    one_of,
    options,
    pattern,
    scheduler,
    setting,
    size,
    text,
    whole,
)

# Largest sizes that a job file may ask for: memory grows with them.
MOST_COMPONENTS = 10_000
MOST_FREQUENCIES = 1_000_000
MOST_SAMPLE = 10_000_000
_SEED = whole(0, 2**63 - 1)
_SECONDS = number(0.0, 1e7)


@dataclass(frozen=True)
class JobTable:
    """``[job]``: what it is called and where its ledger is.

    Attributes
    ----------
    name
        Title of the report.
    ledger
        Path or URL of the ledger; made by the first run.
    storage_options
        Options of its file system.
    seed
        Seed of frequencies and decoders.
    """

    name: str = setting(text)
    ledger: str = setting(location)
    storage_options: dict[str, Any] = setting(options, dict, secret=True)
    seed: int = setting(_SEED, 0)


@dataclass(frozen=True)
class SourceTable:
    """``[[sources]]``: data to be sketched; as for :func:`dask_sketch.open_samples`.

    Attributes
    ----------
    name
        What the keys of its partitions begin with. It must stay: a new name is a new source.
    path
        Zarr store, or file, folder or glob of Parquet; a path is relative to the job file.
    array, columns, weights, storage_options
        As for ``open_samples``.
    chunk_size
        Bytes of one partition. It must stay too: another one makes other partitions.
    nan_policy
        ``"raise"`` or ``"omit"``.
    fingerprint
        How a change is noticed: ``"auto"`` by size and time or ETag, ``"checksum"`` by the bytes,
        which are then read twice.
    """

    path: str = setting(location)
    name: str = setting(name, "data")
    array: str | None = setting(text, None)
    columns: list[str] | None = setting(names, None)
    weights: str | None = setting(text, None)
    chunk_size: int = setting(size, 32 * 2**20)
    nan_policy: str = setting(one_of("raise", "omit"), "raise")
    fingerprint: str = setting(one_of("auto", "checksum"), "auto")
    storage_options: dict[str, Any] = setting(options, dict, secret=True)


@dataclass(frozen=True)
class FeatureMapTable:
    """``[feature_map]``: a file of ``dask-sketch design``, or the settings of a design.

    Used by the first run alone: the ledger keeps the map. Later runs refuse settings that
    contradict it.
    """

    file: str | None = setting(location, None)
    n_components: int | None = setting(whole(1, MOST_COMPONENTS), None)
    n_frequencies: int | None = setting(whole(1, MOST_FREQUENCIES), None)
    task: str | None = setting(one_of("mixture", "clustering"), None)
    law: str | None = setting(
        # as features.LAWS; importing it would load the numerics
        one_of(
            "sparse-radius",
            "sparse-sums",
            "adapted-radius",
            "folded-gaussian",
            "gaussian",
            "clustering",
        ),
        None,
    )
    scale: float | None = setting(number(1e-300, 1e300), None)
    whitening: str | None = setting(one_of("diagonal", "full"), None)
    dtype: str | None = setting(one_of("float32", "float64"), None)
    n_pilot: int | None = setting(whole(2, MOST_SAMPLE), None)

    def complaints(self) -> list[tuple[str, str]]:
        """What is wrong with the table as a whole: key and way out."""
        given = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        if self.file is not None and len(given) > 1:
            others = ", ".join(key for key in given if key != "file")
            return [("file", f"it has its own settings: leave {others} out, or the file")]
        if self.file is None and self.n_components is None and self.n_frequencies is None:
            return [("", "give a file of `dask-sketch design`, or n_components")]
        return []


@dataclass(frozen=True)
class GroupsTable:
    """``[groups]``: parts of the data that have totals of their own.

    Attributes
    ----------
    by
        ``"source"``: a group for each source.
    pattern
        A regular expression for keys of partitions; its part ``(?P<group>...)``, its only group,
        or what it matches names the group. Keys that it does not match are in none.
    most
        Number of groups beyond which the run is refused.
    """

    by: str | None = setting(one_of("source"), None)
    pattern: re.Pattern[str] | None = setting(pattern, None)
    most: int = setting(whole(1, 1000), 100)

    def complaints(self) -> list[tuple[str, str]]:
        """What is wrong with the table as a whole: key and way out."""
        if (self.by is None) == (self.pattern is None):
            return [("", 'give by = "source", or a pattern')]
        return []


@dataclass(frozen=True)
class DecodeTable:
    """``[[decode]]``: a model to be found; as for :func:`dask_sketch.decode`.

    Attributes
    ----------
    name
        What the model is called in the ledger, the report and names of files.
    warm
        Begin at the model of the last run; where that leaves a worse fit, begin anew.
    groups
        Decode each group too.
    """

    # as decoders.METHODS and MODELS
    METHODS: ClassVar[tuple[str, ...]] = (
        "cl-ompr", "cl-omp", "splitting", "iht", "sketch-shift", "density",
    )  # fmt: skip
    MODELS: ClassVar[tuple[str, ...]] = ("gaussian", "isotropic", "known", "dirac")

    name: str = setting(name, "model")
    n_components: int | None = setting(whole(1, MOST_COMPONENTS), None)
    method: str | None = setting(one_of(*METHODS), None)
    model: str | None = setting(one_of(*MODELS), None)
    refine: str | None = setting(one_of("efficient"), None)
    bounds: str | None = setting(one_of("data"), None)
    covariance: list[float] | None = setting(numbers(1e-300, 1e300), None)
    merge: bool = setting(flag, False)
    replicates: int = setting(whole(1, 1000), 1)
    variance_floor: float | None = setting(number(1e-15, 0.999), None)
    seed: int | None = setting(_SEED, None)
    warm: bool = setting(flag, True)
    groups: bool = setting(flag, False)

    def complaints(self) -> list[tuple[str, str]]:
        """What is wrong with the table as a whole: key and way out."""
        found = []
        if self.n_components is None and self.method not in (None, "cl-omp"):
            found.append(("method", "say how many with n_components, or let cl-omp find out"))
        if (self.model == "known") != (self.covariance is not None):
            found.append(("covariance", 'it goes with model = "known", and that needs it'))
        if self.method in ("density", "sketch-shift"):
            for key in ("merge", "refine", "covariance"):
                if getattr(self, key):
                    found.append((key, f"{self.method} has no use for it: leave it out"))
            if self.method == "sketch-shift" and self.model not in (None, "dirac"):
                found.append(("model", 'sketch-shift finds centroids: give "dirac"'))
            elif self.model not in (None, "dirac", "gaussian"):
                found.append(("model", 'density finds "gaussian" components or "dirac" centroids'))
        elif self.model == "dirac" and self.refine is not None:
            found.append(("refine", "points have no noise model: leave it out"))
        return found


@dataclass(frozen=True)
class ScoreTable:
    """``[score]``: samples that no run sketches, to score the models on."""

    path: str = setting(location)
    array: str | None = setting(text, None)
    columns: list[str] | None = setting(names, None)
    weights: str | None = setting(text, None)
    chunk_size: int = setting(size, 32 * 2**20)
    storage_options: dict[str, Any] = setting(options, dict, secret=True)


@dataclass(frozen=True)
class DriftTable:
    """``[drift]``: when a change of the data is an alarm; see :mod:`dask_sketch.diagnostics.drift`.

    Attributes
    ----------
    threshold
        Alarm above so many standard deviations of what sampling alone would do: of the new samples
        against the rest, or of the state against that of the last run. Earlier states are told.
    tolerance
        No alarm for a discrepancy (from 0 to 2) below this one, however certain it is.
    states
        States of earlier runs to compare with.
    groups
        Compare the groups with each other too, in the report; they raise no alarm.
    """

    threshold: float = setting(number(0.0, 1e6), 5.0)
    tolerance: float = setting(number(0.0, 2.0), 0.0)
    states: int = setting(whole(1, 100), 7)
    groups: bool = setting(flag, True)


@dataclass(frozen=True)
class OutputsTable:
    """``[outputs]``: files that each run replaces; ``{name}`` in a model's is that of its table.

    Attributes
    ----------
    report
        HTML page (needs the extra ``plot``); a local path.
    model, sketch
        Zarr groups.
    storage_options
        Of the URLs among them.
    """

    report: str | None = setting(location, None)
    model: str | None = setting(location, None)
    sketch: str | None = setting(location, None)
    storage_options: dict[str, Any] = setting(options, dict, secret=True)

    def complaints(self) -> list[tuple[str, str]]:
        """What is wrong with the table as a whole: key and way out."""
        found = []
        if self.report is not None and (
            "://" in self.report or not self.report.lower().endswith((".html", ".htm"))
        ):
            found.append(("report", "give a local path that ends in .html"))
        for key in ("model", "sketch"):
            place = getattr(self, key)
            if place is not None and not place.rstrip("/").endswith(".zarr"):
                found.append((key, "give a path or URL that ends in .zarr"))
        return found


@dataclass(frozen=True)
class ClusterTable:
    """``[cluster]``: where to compute, as :class:`~dask_sketch.cluster.settings.ClusterSettings`.

    ``options`` holds only what names a queue or a size. What is run there (images, lines of shell)
    is set in Dask's own configuration (``jobqueue.slurm``, ``kubernetes``): a job file runs no
    code. With ``kind = "address"`` this process trusts the scheduler that answers.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = (
        "account", "interface", "name", "namespace", "queue", "resources", "walltime",
    )  # fmt: skip

    kind: str = setting(one_of("threads", "local", "address", "slurm", "kubernetes"), "threads")
    n_workers: int | None = setting(whole(1, 10_000), None)
    threads_per_worker: int = setting(whole(1, 1024), 1)
    memory_limit: int | None = setting(size, None)
    address: str | None = setting(scheduler, None)
    tls: str | None = setting(text, None)
    dashboard: str = setting(text, LOOPBACK)
    timeout: float | None = setting(number(0.001, 1e6), None)
    options: dict[str, Any] = setting(options, dict, secret=True)

    def complaints(self) -> list[tuple[str, str]]:
        """What is wrong with the table as a whole: key and way out."""
        found = [
            ("options", f"{key} may not stand in a job file: set it in Dask's configuration")
            for key in self.options
            if key not in self.OPTIONS
        ]
        try:
            self.settings(Path())
        except InputError as error:
            key, _, reason = str(error).partition(": ")
            found.append((key.partition("=")[0], reason.rstrip(".")))
        return found

    def settings(self, folder: Path) -> ClusterSettings:
        """What :func:`dask_sketch.cluster.connect.connect` takes; paths begin in ``folder``."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.tls is not None:
            values["tls"] = str((folder / self.tls).absolute())
        return ClusterSettings(**values)


@dataclass(frozen=True)
class LimitsTable:
    """``[limits]``: what a run does when something goes wrong, and how much it may take.

    Attributes
    ----------
    unreadable
        ``"stop"``, with all else kept, or ``"quarantine"``: list the partition, leave it out, and
        say that the result is incomplete.
    attempts, backoff
        Reads of a partition before it counts as unreadable, and seconds before the second one.
    deleted
        Largest share of the ledger's partitions that may be gone from the sources: more looks
        like a store that is out of reach, and is refused.
    commit_partitions, commit_seconds
        Partitions and seconds after which what is done is committed.
    stale_lock
        Seconds without a sign of life after which the lock of a run on another host is broken.
    bytes
        Most bytes that a run may read; more is refused by the plan.
    """

    unreadable: str = setting(one_of("stop", "quarantine"), "stop")
    attempts: int = setting(whole(1, 100), 3)
    backoff: float = setting(_SECONDS, 1.0)
    deleted: float = setting(number(0.0, 1.0), 0.5)
    commit_partitions: int = setting(whole(1, 100_000), 256)
    commit_seconds: float = setting(number(0.1, 1e6), 60.0)
    stale_lock: float = setting(number(1.0, 1e7), 3600.0)
    bytes: int | None = setting(size, None)


def check_value(field: Any, value: Any) -> Any:
    """The value of one setting, as the job wants it; raises :class:`Refused`."""
    try:
        return field.metadata["check"](value)
    except Refused:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Refused(f"it is no such value ({type(error).__name__})") from error
