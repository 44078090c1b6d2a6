"""Compare a job file with its ledger, its feature map and its data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.implementations.local import LocalFileSystem

from dask_sketch.diagnostics.report import installed_versions
from dask_sketch.errors import ArtifactError, InputError, JobError, LedgerError
from dask_sketch.features.artifact import open_feature_map
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.jobs.job_keys import shown_value
from dask_sketch.jobs.ledger.backends import open_backend
from dask_sketch.jobs.ledger.manifest import require_vacant
from dask_sketch.jobs.ledger.objects import OtherSchema
from dask_sketch.jobs.ledger.sums import Conventions, arithmetic_digest
from dask_sketch.models.low_rank import require_rank
from dask_sketch.sketching.missing import require_sparse
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sources.samples import StoredChunks, StoredFiles
from dask_sketch.storage.overwrite import local_path, require_writable_folder
from dask_sketch.validation.choices import PCA

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.job_keys import DataTable
    from dask_sketch.jobs.ledger.ledger import Ledger
    from dask_sketch.sources.samples import Samples

# Arguments of open_samples that are keys of a table of data.
_READING = ("array", "columns", "weights", "chunk_size", "missing_chunks")
POLICIES = "nan_policies"  # key of the policies for missing values in the records of runs
# Errors of a missing file, which further attempts cannot mend.
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, UnicodeDecodeError)


def _wrong(job: Job, key: str, text: object) -> JobError:
    return JobError(f"{job.path}: {key}: {text}")


def open_map_file(job: Job) -> FeatureMap | None:
    """Open the feature map that a job file names; None if it names none.

    Raises
    ------
    JobError
        If the file does not exist, or holds no feature map of numeric columns.
    InputError
        If the file system cannot be reached.
    """
    location = job.feature_map.file
    if location is None:
        return None
    key = f"feature_map.file = {shown_value(location)}"
    try:
        feature_map = open_feature_map(job.resolve(location))
    except ArtifactError as error:
        raise _wrong(job, key, error) from error
    except InputError as error:
        if isinstance(error.__cause__, _NO_FILE):
            raise _wrong(job, key, error) from error
        raise InputError(f"{key}: {error}") from error
    if feature_map.categories is not None:
        raise _wrong(
            job, key,
            "has categories, and jobs take numeric columns. Design a map of numeric columns, or "
            "sketch the table with dask_sketch.sketch.",
        )  # fmt: skip
    return feature_map


@contextlib.contextmanager
def errors_of_settings(
    job: Job, loc: str, table: DataTable, known: Sequence[str] = ()
) -> Iterator[None]:
    """Turn errors of settings with which data is opened into errors of the job file.

    Parameters
    ----------
    job
        Job of the table.
    loc
        Path of the table, such as ``sources[0]``.
    table
        Table of the data in the job file.
    known
        Names of the features in the ledger. If the columns are among them, or are not given, the
        columns of the data have changed since, and the error is not changed.

    Raises
    ------
    JobError
        If a setting does not fit the data; the message has its key path.
    InputError
        If the data cannot be reached, or its columns have changed.
    """
    try:
        yield
    except InputError as error:
        name = error.parameter
        changed = known and name == "columns" and set(table.columns or ()) <= set(known)
        if name == "x":
            raise InputError(f"{loc}.path: {error}") from error
        if name not in _READING or changed:
            raise
        raise _wrong(job, f"{loc}.{name}", error) from error


def require_features(
    job: Job, feature_map: Conventions | None, samples: Sequence[Samples], *, from_ledger: bool
) -> None:
    """Check that all sources have the features of the feature map, and of each other.

    Parameters
    ----------
    job
        Job of the sources.
    feature_map
        Feature map or grid of the ledger or of the job file; None if the run designs one.
    samples
        Open sources.
    from_ledger
        Whether the feature map was read from the ledger.

    Raises
    ------
    JobError
        If the features differ, and the job file determines them.
    InputError
        If the features of the data have changed since the ledger was created.
    """
    available = any(table.nan_policy == "available" for table in job.sources)
    if available and feature_map is not None and not isinstance(feature_map, MomentGrid):
        require_sparse(feature_map)
    first = samples[0]
    for i, source in enumerate(samples):
        try:
            if feature_map is not None:
                source.require_features(
                    feature_map.n_features, "the feature map", feature_map.feature_names
                )
            elif first.n_features is not None:
                source.require_features(first.n_features, first.label, first.feature_names)
        except InputError as error:
            columns = job.sources[i].columns
            if from_ledger and columns is None:
                raise
            key = f"sources[{i}]." + ("columns" if columns is not None else "path")
            if job.feature_map.file is not None:
                key = f"feature_map.file, {key}"
            raise _wrong(job, key, error) from error


def require_decodable(job: Job, feature_map: Conventions | None, n_features: int) -> None:
    """Check that the models of a job suit its features, before a run reads all data.

    Parameters
    ----------
    job
        Job of the models.
    feature_map
        Feature map or grid of the ledger or of the job file; None if the run designs one.
    n_features
        Number of features of the sources.

    Raises
    ------
    JobError
        If they do not.
    """
    normalize = bool(job.feature_map.normalize)
    if isinstance(feature_map, FeatureMap):
        normalize = feature_map.normalize
    for i, table in enumerate(job.decode):
        if normalize and table.model != "dirac":
            raise _wrong(
                job, f"decode[{i}].model",
                'should be "dirac": the feature map has normalize = true, so rows are directions, '
                "of which a job decodes centroids",
            )  # fmt: skip
        try:
            require_rank(table.covariance_type, n_features)
        except InputError as error:
            raise _wrong(job, f"decode[{i}].covariance_type", error) from error


@contextlib.contextmanager
def ledger_path(job: Job) -> Iterator[None]:
    """Raise an error of the job file if something else is at the path of its ledger."""
    try:
        yield
    except OtherSchema as error:
        text = f"{str(error).rstrip('.')}. Give a path that does not exist yet."
        raise _wrong(job, f"job.ledger = {shown_value(job.job.ledger)}", text) from error


def require_vacant_ledger(job: Job, options: dict[str, Any] | None) -> None:
    """Check that a ledger can be created at its path.

    Raises
    ------
    JobError
        If something else is at the path.
    LedgerError
        If the file system cannot be reached.
    """
    location, path = job.job.ledger, job.resolve(job.job.ledger)
    try:
        require_vacant(open_backend(path, options))
    except FileExistsError as error:
        raise _wrong(
            job, f"job.ledger = {shown_value(location)}",
            f"{path} holds {error}, and no ledger. Give a path that does not exist yet.",
        ) from error  # fmt: skip
    except LedgerError as error:
        if isinstance(error.__cause__, NotADirectoryError):
            raise _wrong(job, f"job.ledger = {shown_value(location)}", "is a file.") from error
        raise


def require_writable_ledger(job: Job, ledger: Ledger | None) -> None:
    """Check that the folder of a ledger on this machine can be written.

    Raises
    ------
    LedgerError
        If the folder cannot be written.
    """
    path = local_path(job.resolve(job.job.ledger))
    if path is None:
        return
    # a new ledger is made in the nearest folder that exists
    inside = Path(path) / "x" if ledger is not None or path.is_dir() else Path(path)
    try:
        require_writable_folder(inside)
    except OSError as error:
        raise LedgerError(
            f"job.ledger = {shown_value(job.job.ledger)}: {path} cannot be written: "
            f"{error.strerror or error} ({type(error).__name__}). Check the disk, its free space "
            "and the permissions of the user."
        ) from error


def require_same_settings(job: Job, ledger: Ledger) -> None:
    """Raise for settings that contradict the settings of the first run, which the ledger keeps.

    Raises
    ------
    JobError
        If a setting differs; the message has its key path.
    """
    conventions = ledger.feature_map
    if isinstance(conventions, MomentGrid) != (job.feature_map.task == PCA):
        content = "second moments" if isinstance(conventions, MomentGrid) else "sketches"
        raise _wrong(
            job, f"feature_map.task = {shown_value(job.feature_map.task)}",
            f'the ledger holds {content}, and "pca" is the task of second moments. Give the '
            "earlier setting, or another path as job.ledger, and the next run reads all data.",
        )  # fmt: skip
    if isinstance(conventions, MomentGrid):
        _require_grid(job, conventions)
    else:
        _require_map(job, conventions)
    _require_design(job, ledger)
    _require_rows(job, ledger)
    _require_policies(job, ledger)
    _require_arithmetic(job, ledger)


def _require_grid(job: Job, grid: MomentGrid) -> None:
    """Raise for settings that contradict the grid of the ledger."""
    wanted = job.feature_map.n_columns
    if wanted is not None and wanted != grid.n_columns:
        raise _other_design(job, "feature_map.n_columns", wanted, grid.n_columns)
    policy = job.sources[0].nan_policy
    if (policy == "available") != grid.pairwise:
        raise _wrong(
            job, f"sources[0].nan_policy = {shown_value(policy)}",
            f"the second moments of the ledger were summed {'with' if grid.pairwise else 'without'}"
            ' "available", as its first run decided. Give the earlier setting, or another path as '
            "job.ledger.",
        )  # fmt: skip


def _require_map(job: Job, feature_map: FeatureMap) -> None:
    """Raise for settings that contradict the feature map of the ledger."""
    table = job.feature_map
    stated = open_map_file(job)
    if stated is not None:
        if stated != feature_map:
            raise _wrong(
                job, f"feature_map.file = {shown_value(table.file)}",
                f"has the digest {stated.digest[:12]}, and the ledger has "
                f"{feature_map.digest[:12]} since its first run: give the earlier file, or "
                "another path as job.ledger.",
            )  # fmt: skip
        return
    for name in ("n_frequencies", "distribution", "dtype", "scale", "normalize"):
        wanted, has = getattr(table, name), getattr(feature_map, name)
        if wanted is not None and wanted != has:
            raise _other_design(job, f"feature_map.{name}", wanted, has)


def design_settings(job: Job) -> dict[str, Any]:
    """Settings of the feature map that only a design uses, for the records of runs."""
    table = job.feature_map
    if table.file is not None:
        return {}
    settings = {
        f"feature_map.{name}": getattr(table, name)
        for name in ("n_components", "task", "whitening", "n_pilot", "n_columns")
    }
    return settings | {"job.seed": job.job.seed}


def _require_design(job: Job, ledger: Ledger) -> None:
    """Raise for settings of the design that differ from the last run."""
    records = ledger.history()
    recorded = records[-1].results.get("design", {}) if records else {}
    for key, wanted in design_settings(job).items():
        if wanted is not None and key in recorded and recorded[key] != wanted:
            raise _other_design(job, key, wanted, recorded[key])


def _require_rows(job: Job, ledger: Ledger) -> None:
    """Raise for a number of random rows that differs from the ledger; zero is always allowed."""
    wanted, has = job.job.sample, 0 if ledger.sampling is None else ledger.sampling.size
    if wanted not in (None, 0, has):
        rows = f"at most {has:,} random rows of each partition" if has else "no random rows"
        raise _wrong(
            job, f"job.sample = {wanted}",
            f"the ledger keeps {rows}, as its first run decided, and cannot change that. Leave the "
            "setting out to go on like this, give 0 for none, or give another path as job.ledger, "
            "and the next run reads all data.",
        )  # fmt: skip


def nan_policies(job: Job) -> dict[str, str]:
    """Policies for missing values by the names of the sources, for the records of runs."""
    return {table.name: table.nan_policy for table in job.sources}


def _require_policies(job: Job, ledger: Ledger) -> None:
    """Raise for a policy for missing values that is not that of earlier rows with such values."""
    records = [
        policies for record in ledger.history() if (policies := record.results.get(POLICIES))
    ]
    for number, table in enumerate(job.sources):
        earlier = records[-1].get(table.name) if records else None
        if earlier in (None, "raise", table.nan_policy):  # no row of "raise" had missing values
            continue
        total = ledger.total()
        if not total.omitted and getattr(total, "missing", None) is None:
            continue
        left = f"{total.omitted:,} rows left out" if total.omitted else "rows with missing values"
        raise _wrong(
            job, f"sources[{number}].nan_policy = {shown_value(table.nan_policy)}",
            f"the ledger has {left} by {shown_value(earlier)} of earlier runs, and sums of several "
            "policies are those of no single pass. Give the earlier setting; or give another path "
            "as job.ledger, and the next run reads all data.",
        )  # fmt: skip


def _require_arithmetic(job: Job, ledger: Ledger) -> None:
    """Raise if the last run computed other sums of the same rows than this process does."""
    records = ledger.history()
    recorded = records[-1].results.get("arithmetic") if records else None
    if recorded is None or recorded == arithmetic_digest(ledger.feature_map):
        return
    now, packages = installed_versions(), ("dask-sketch", "numpy", "numba")
    then = ", ".join(f"{name} {records[-1].versions.get(name, 'unknown')}" for name in packages)
    here = ", ".join(f"{name} {now.get(name, 'unknown')}" for name in packages)
    raise _wrong(
        job, f"job.ledger = {shown_value(job.job.ledger)}",
        f"its last run, with {then}, computed other sums of the same rows than this one, with "
        f"{here}: they cannot be added. Run the job with the earlier versions; or give another "
        "path, and the next run reads all data.",
    )  # fmt: skip


def _other_design(job: Job, key: str, wanted: object, has: object) -> JobError:
    return _wrong(
        job, f"{key} = {wanted!r}",
        f"the ledger has {has!r} since its first run, and its feature map cannot change. Give the "
        "earlier setting; or give another path as job.ledger, and the next run designs a new "
        "feature map and reads all data.",
    )  # fmt: skip


def require_other_data(job: Job, sources: Sequence[tuple[str, Any]]) -> None:
    """Raise if two sources read the same columns of a file, or the same array of a store.

    Parameters
    ----------
    job
        Job of the sources.
    sources
        Name of each source, and origin of the samples of the source.

    Raises
    ------
    JobError
        If rows would count twice; the message names the file or store, and both sources.
    """
    known: list[tuple[Any, set[str], str]] = []
    for i, (name, origin) in enumerate(sources if len(sources) > 1 else ()):
        if isinstance(origin, StoredFiles):
            kind = (origin.fs.unstrip_protocol(""), origin.columns)
            paths = {part.path for part in origin.parts}
            if isinstance(origin.fs, LocalFileSystem):  # one folder may have several links
                paths = {os.path.realpath(path) for path in paths}
        elif isinstance(origin, StoredChunks) and origin.store is not None:
            store = origin.store.resolve() if isinstance(origin.store, Path) else origin.store
            kind, paths = ("array", (origin.arrays[0].path,)), {str(store)}
        else:
            continue
        for other_kind, others, other_name in known:
            twice = min(paths & others, default=None) if kind == other_kind else None
            if twice is not None:
                raise _wrong(
                    job,
                    f"sources[{i}].path",
                    f"{twice} is read by the source {other_name!r}, too, and would count twice: "
                    "leave one of them out",
                )
        known.append((kind, paths, name))
