"""Keys of the tables of a job file, with checks of each table alone. New keys are added here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from dask_sketch.decoders.names import AtomName, MethodName, RefinementName
from dask_sketch.jobs.ledger.lock import STALE_AFTER
from dask_sketch.jobs.permissions import require_permitted
from dask_sketch.jobs.values import (
    Components,
    Expected,
    Frequencies,
    Location,
    Name,
    Names,
    Pattern,
    PilotSize,
    Positive,
    Seed,
    Size,
    StorageOptions,
    Text,
    Variances,
    Window,
)
from dask_sketch.sketching.arguments import NanPolicy
from dask_sketch.validation.choices import PCA, Distribution, Task, known_type, listed_types
from dask_sketch.validation.tables import shorten

_MAX_LEVEL = 0.5  # largest level of the test of drift
MAX_SHOWN = 60  # characters of a key or a value in a message
Wrong = tuple[tuple[str | int, ...], Any, str]  # key path, value (None is not shown) and remedy


def table_errors(wrong: Iterable[Wrong]) -> ValidationError:
    """An error that pydantic merges with the errors of the other tables."""
    details: list[InitErrorDetails] = [
        {
            "type": PydanticCustomError("remedy", "{remedy}", {"remedy": remedy}),
            "loc": loc,
            "input": value,
        }
        for loc, value, remedy in wrong
    ]
    return ValidationError.from_exception_data("job", details)


class Table(BaseModel):
    """Table of a job file; unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = [((key,), getattr(self, key), remedy) for key, remedy in self._wrong()]
        if wrong:
            raise table_errors(wrong)
        return self

    def _wrong(self) -> Iterator[tuple[str, str]]:
        """Key and remedy of each setting that contradicts another one."""
        return iter(())


def key_path(loc: tuple[str | int, ...]) -> str:
    """Format the path of a key, such as ``sources[1].path``.

    Parameters
    ----------
    loc
        Keys and indices, from the outermost one.
    """
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            path += ("." if path else "") + (part if bare else json.dumps(part))
    return shorten(path, MAX_SHOWN)


def shown_value(value: object) -> str:
    """Show a value of a job file, unless it may contain a secret.

    Parameters
    ----------
    value
        Value of any type.
    """
    if isinstance(value, (dict, list, tuple)):
        return "{...}" if isinstance(value, dict) else "[...]"
    if isinstance(value, re.Pattern):
        value = value.pattern
    if isinstance(value, str) and "://" in value and set(value) & set("@?"):
        value = f"{value.partition('://')[0][:20]}://..."
    return shorten(json.dumps(value, default=str), MAX_SHOWN)


def _covariance_type(name: str) -> str:
    """Validate the name of a covariance type."""
    if not known_type(name):
        raise ValueError(f"should be one of {listed_types()}")
    return name


def unpermitted(options: Mapping[str, Any], *locations: str) -> Iterator[tuple[str, str]]:
    """Yield key and remedy of options that send a secret to a place without permission."""
    try:
        require_permitted(options, locations)
    except ValueError as error:
        yield "storage_options", str(error)


def _in_memory(table: Table, *keys: str) -> Iterator[tuple[str, str]]:
    """Yield key and remedy of locations whose content is lost at the end of the run."""
    for key in keys:
        if str(getattr(table, key)).lower().startswith("memory:"):
            yield key, "should be on a disk or in an object store: memory ends with the run"


class JobTable(Table):
    """``[job]``: the name of the job and its ledger.

    Attributes
    ----------
    name
        Title of the report.
    ledger
        Path or URL of the ledger, which the first run creates.
    storage_options
        Options of the file system of the ledger.
    seed
        Seed of the frequencies and of the decoders.
    sample
        Maximum number of random rows that the ledger keeps beside the sums of each partition. With
        rows, mixtures are as likely as after EM on all rows, but anyone who can read the ledger can
        read the rows. With 0, the ledger has sums only. If the first run decodes a model, the
        default is 1,000 to 5,000 rows (fewer for over 50 features), otherwise 0. Later runs keep
        the number of the first run, until 0 erases all rows permanently.
    """

    name: Text
    ledger: Location
    storage_options: StorageOptions = Field(default_factory=dict)
    seed: Seed = 0
    sample: Annotated[int, Field(ge=0, le=1_000_000)] | None = None

    def _wrong(self) -> Iterator[tuple[str, str]]:
        yield from _in_memory(self, "ledger")
        yield from unpermitted(self.storage_options, self.ledger)


class DataTable(Table):
    """Data of a job, as for :func:`dask_sketch.open_samples`.

    Attributes
    ----------
    path
        Zarr store, or file, folder or glob of Parquet; a path is relative to the job file.
    array, columns, weights, storage_options
        Arguments of ``open_samples``. After the first run, the default of ``columns`` are the
        features of the feature map.
    chunk_size
        Number of bytes of one partition.
    missing_chunks
        ``"raise"``: missing chunks of a Zarr store cannot be read. ``"fill"``: they hold the fill
        value.
    """

    path: Location
    array: Text | None = None
    columns: Names | None = None
    weights: Text | None = None
    chunk_size: Size = 32 * 2**20
    missing_chunks: Literal["raise", "fill"] | None = None
    storage_options: StorageOptions = Field(default_factory=dict)

    def _wrong(self) -> Iterator[tuple[str, str]]:
        yield from unpermitted(self.storage_options, self.path)


class ScoreTable(DataTable):
    """``[score]``: samples for scores of the models, which no run sketches."""


class SourceTable(DataTable):
    """``[[sources]]``: data to sketch.

    The name and the chunk size of a source must not change between runs: with another name or
    chunk size the partitions have other keys, and all data is read again.

    Attributes
    ----------
    name
        Beginning of the keys of the partitions.
    nan_policy
        ``"raise"``, ``"omit"`` or ``"available"``, as in :func:`~dask_sketch.sketch`. It cannot
        change once rows with missing values were read.
    fingerprint
        Method by which changes are noticed: ``"auto"`` compares size and time or ETag,
        ``"checksum"`` compares the bytes, which are then read twice.
    """

    name: Name = "data"
    nan_policy: NanPolicy = "raise"
    fingerprint: Literal["auto", "checksum"] = "auto"


class FeatureMapTable(Table):
    """``[feature_map]``: a file of ``dask-sketch design``, or the settings of a design.

    Only the first run uses it, because the ledger keeps the feature map. Later runs refuse settings
    that contradict it.

    Attributes
    ----------
    task
        ``"pca"`` for a ledger of second moments, from which principal components are decoded. The
        only other keys are then ``n_columns``, ``n_components`` (by default the largest one of
        ``[[decode]]``) and ``n_pilot``.
    n_columns
        Number of columns of the test matrix; see :func:`dask_sketch.design`.
    file, n_components, n_frequencies, distribution, scale, whitening, normalize, dtype, n_pilot
        File of a feature map, or arguments of :func:`dask_sketch.design`.
    """

    file: Location | None = None
    n_components: Components | None = None
    n_frequencies: Frequencies | None = None
    n_columns: Components | None = None
    task: Task | Literal["pca"] | None = None
    distribution: Distribution | None = None
    scale: Positive | None = None
    whitening: Literal["diagonal", "full"] | None = None
    normalize: bool | None = None
    dtype: Literal["float32", "float64"] | None = None
    n_pilot: PilotSize | None = None

    def _wrong(self) -> Iterator[tuple[str, str]]:
        others = [key for key, value in self if key != "file" and value is not None]
        if self.file is not None and others:
            yield "file", f"contains all settings: leave out {', '.join(others)}, or the file"
        if self.task == PCA:
            names = ("n_frequencies", "distribution", "scale", "whitening", "normalize", "dtype")
            for key in (name for name in names if getattr(self, name) is not None):
                yield key, 'has no meaning for second moments, task = "pca": leave it out'
            return
        if self.n_columns is not None:
            yield "n_columns", 'is for second moments: give task = "pca", or leave it out'
        if self.file is None and self.n_components is None and self.n_frequencies is None:
            yield "n_components", "give it, or a file of `dask-sketch design`"


class GroupsTable(Table):
    """``[groups]``: parts of the data, each with its own total.

    Attributes
    ----------
    by
        ``"source"``: one group for each source.
    pattern
        Regular expression that is matched to the keys of the partitions. The name of the group is
        the part ``(?P<group>...)`` of the match, or its only group, or the whole match. Partitions
        without a match belong to no group.
    max_groups
        Maximum number of groups; a run with more groups is refused.
    """

    by: Literal["source"] | None = None
    pattern: Pattern | None = None
    max_groups: Annotated[int, Field(ge=1, le=1000)] = 100

    def _wrong(self) -> Iterator[tuple[str, str]]:
        if (self.by is None) == (self.pattern is None):
            yield "pattern", 'give either a pattern or by = "source"'


class DecodeTable(Table):
    """``[[decode]]``: a model to decode, as for :func:`dask_sketch.decode`.

    Attributes
    ----------
    name
        Name of the model in the ledger, in the report and in names of files.
    n_components
        Number of components; ``"auto"`` for the number that :func:`dask_sketch.select_model`
        chooses, again in each run that changes the data. Of second moments, the default is all
        components.
    model
        Model of Gaussians or points; jobs decode no other models from sketches. With second
        moments, the only keys are ``name``, ``n_components`` and ``groups``.
    warm
        Whether to start at the model of the last run, if it was fitted to the sketch and the ledger
        keeps no rows. If the fit is worse, the model is also decoded from scratch.
    groups
        Whether to decode a model of each group as well.
    """

    name: Name = "model"
    n_components: Components | Literal["auto"] | None = None
    method: MethodName | None = None
    model: AtomName | None = None
    covariance_type: Annotated[str, AfterValidator(_covariance_type)] | None = None
    refine: RefinementName | None = None
    bounds: Literal["data"] | None = None
    covariance: Variances | None = None
    merge: bool = False
    replicates: Annotated[int, Field(ge=1, le=1000)] = 1
    variance_floor: Annotated[float, Field(ge=1e-15, le=0.999)] | None = None
    seed: Seed | None = None
    warm: bool = True
    groups: bool = False

    def _wrong(self) -> Iterator[tuple[str, str]]:
        if self.n_components is None and self.method not in (None, "cl-omp"):
            yield "method", "give n_components; only cl-omp finds the number of components"
        if self.n_components == "auto" and self.model == "dirac":
            yield "n_components", '"auto" is for mixtures: give the number of centroids'
        if self.n_components == "auto" and self.method == "cl-omp":
            yield "method", 'leave it out: "auto" decodes each number of components by itself'
        if (self.model == "known") != (self.covariance is not None):
            yield "covariance", 'is needed for model = "known", and for no other model'
        if self.method in ("density", "sketch-shift"):
            for key in ("merge", "refine", "covariance"):
                if getattr(self, key):
                    yield key, f"has no effect on {self.method}: leave it out"
            if self.method == "sketch-shift" and self.model not in (None, "dirac"):
                yield "model", 'should be "dirac": sketch-shift finds centroids'
            elif self.model not in (None, "dirac", "gaussian"):
                yield "model", 'should be "gaussian" or "dirac" for the method density'
        elif self.model == "dirac" and self.refine is not None:
            yield "refine", "centroids have no noise model: leave it out"
        implied = "isotropic" if self.covariance_type == "spherical" else "gaussian"
        if self.covariance_type is not None and self.model not in (None, implied):
            yield "covariance_type", f'should be left out with model = "{self.model}"'


class DriftTable(Table):
    """``[drift]``: a test of the newest data against earlier data; see :meth:`Ledger.drift`.

    Attributes
    ----------
    false_alarms_per_year
        Expected number of alarms a year if nothing changes. The level of the test of a run is this
        number divided by ``runs_per_year``.
    runs_per_year
        Number of runs a year that read new data.
    tolerance
        Discrepancy (0 to 2) below which there is no alarm, however significant it is.
    window, reference
        Newest data, and data to compare with: numbers of runs, or spans of time such as
        ``"7 days"``. The defaults are the fewest runs with enough partitions, and all other
        partitions.
    unit
        ``"partition"``, or ``"run"`` if the partitions of one run depend on each other.
    strata
        ``"weekday"`` if days of the week differ: partitions are compared with partitions of the
        same day of the week, by the start of their runs in UTC.
    serial
        Whether successive runs depend on each other, such as nights with the same weather or
        season. It needs ``unit = "run"``, and as many runs as the level of the test requires.
    states
        Number of states of earlier runs whose distance is reported.
    groups
        Whether to report the distances of the groups as well. They raise no alarm.
    """

    false_alarms_per_year: Annotated[float, Field(gt=0, le=1000)] = 1.0
    runs_per_year: Annotated[float, Field(ge=1, le=1e6)] = 365.0
    tolerance: Annotated[float, Field(ge=0, le=2)] = 0.0
    window: Window | None = None
    reference: Window | None = None
    unit: Literal["partition", "run"] = "partition"
    strata: Literal["weekday"] | None = None
    serial: bool = False
    states: Annotated[int, Field(ge=1, le=100)] = 7
    groups: bool = True

    @property
    def level(self) -> float:
        """Level of the test of a run."""
        return self.false_alarms_per_year / self.runs_per_year

    def arguments(self) -> dict[str, Any]:
        """Arguments of :meth:`Ledger.drift`."""
        names = ("window", "reference", "unit", "strata", "serial", "tolerance", "level")
        return {name: getattr(self, name) for name in names}

    def _wrong(self) -> Iterator[tuple[str, str]]:
        if self.level > _MAX_LEVEL:
            yield "false_alarms_per_year", f"should be at most {_MAX_LEVEL:g} of runs_per_year"
        if self.serial and self.unit != "run":
            yield "unit", 'should be "run" with serial = true: runs have an order in time'


class OutputsTable(Table):
    """``[outputs]``: files that each run replaces.

    Attributes
    ----------
    report
        Local path of an HTML page; it needs the extra ``plot``.
    model, sketch
        Paths or URLs of Zarr groups. ``{name}`` in the path of the model is replaced by the name of
        the table ``[[decode]]``. The sketch has no random rows.
    storage_options
        Options of the file systems of the URLs.
    """

    report: Location | None = None
    model: Location | None = None
    sketch: Location | None = None
    storage_options: StorageOptions = Field(default_factory=dict)

    def _wrong(self) -> Iterator[tuple[str, str]]:
        if self.report is not None and (
            "://" in self.report or not self.report.lower().endswith((".html", ".htm"))
        ):
            yield "report", "should be a local path that ends in .html"
        for key in ("model", "sketch"):
            path = getattr(self, key)
            if path is not None and not path.rstrip("/").endswith(".zarr"):
                yield key, "should be a path or URL that ends in .zarr"
        yield from _in_memory(self, "model", "sketch")
        yield from unpermitted(self.storage_options, self.model or "", self.sketch or "")


class LimitsTable(Table):
    """``[limits]``: behaviour of a run when something fails, and limits of the data and the models.

    Attributes
    ----------
    unreadable
        ``"stop"``: stop at a partition that cannot be read, and keep what is done.
        ``"quarantine"``: list the partition, leave it out, and report an incomplete result.
    attempts
        Number of attempts to read a partition before it counts as unreadable.
    backoff
        Seconds before the second attempt.
    deleted
        Largest fraction of the partitions of the ledger that may be missing from the sources, or
        have lost all stored bytes. If more are missing, the run is refused, because the store is
        probably unreachable.
    changed
        Largest fraction of the partitions of the ledger that may have changed. One partition of
        each source may always change.
    commit_partitions, commit_seconds
        Number of partitions and of seconds after which finished work is committed.
    stale_lock
        Seconds without a sign of life after which the lock of a run on another host is broken.
    bytes
        Maximum number of bytes that a run may read; a run that has to read more is refused.
    omitted
        Largest fraction of the rows of a run that may be omitted because they are not finite.
    rows, partitions
        Lowest and highest number of rows (without omitted rows) and of partitions that a run
        reads.
    range
        Largest distance of a value from the mean of its feature in the pilot rows of the feature
        map, in standard deviations of the pilot rows. Without pilot rows, as after ``forget``, the
        other samples take their place.
    cost
        Largest cost of a model in noise levels.
    nats
        Largest loss of log-likelihood of a mixture, in nats a sample, against one Gaussian, or
        against the mixture of the pilot rows if the data is like these rows.

    Data beyond ``omitted``, ``rows``, ``partitions`` or ``range`` is kept, and the run ends with
    another exit code. A model beyond ``cost`` or ``nats`` is refused: the last good model remains
    in the ledger and in the outputs.
    """

    unreadable: Literal["stop", "quarantine"] = "stop"
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    backoff: Annotated[float, Field(ge=0, le=1e7)] = 1.0
    deleted: Annotated[float, Field(ge=0, le=1)] = 0.5
    changed: Annotated[float, Field(ge=0, le=1)] = 0.5
    commit_partitions: Annotated[int, Field(ge=1, le=100_000)] = 256
    commit_seconds: Annotated[float, Field(ge=0.1, le=1e6)] = 60.0
    stale_lock: Annotated[float, Field(ge=1, le=1e7)] = STALE_AFTER
    bytes: Size | None = None
    omitted: Annotated[float, Field(ge=0, le=1)] = 0.5
    rows: Expected | None = None
    partitions: Expected | None = None
    range: Positive | None = None
    cost: Positive | None = None
    nats: Positive | None = None


# Keys of other tables that have no meaning for second moments.
_DECODING = (
    "method", "model", "covariance_type", "refine", "bounds", "covariance", "merge", "replicates",
    "variance_floor", "seed", "warm",
)  # fmt: skip
_OF_MODELS = ("range", "cost", "nats")


def wrong_for_moments(
    job: JobTable,
    sources: tuple[SourceTable, ...],
    decode: tuple[DecodeTable, ...],
    limits: LimitsTable,
) -> Iterator[Wrong]:
    """Yield key path, value and remedy of settings that have no meaning for second moments.

    Parameters
    ----------
    job, sources, decode, limits
        Tables of a job file with ``task = "pca"``.
    """
    remedy = 'has no meaning for second moments, feature_map.task = "pca": leave it out'
    if job.sample:
        yield ("job", "sample"), job.sample, "second moments keep no random rows: leave it out"
    policies = {table.nan_policy for table in sources}
    if "available" in policies and len(policies) > 1:
        text = 'should be the same for all sources of second moments, if one is "available"'
        yield ("sources", 0, "nan_policy"), sources[0].nan_policy, text
    for i, table in enumerate(decode):
        if table.n_components == "auto":
            yield ("decode", i, "n_components"), "auto", "should be a number for second moments"
        for key in _DECODING:
            if key in table.model_fields_set:
                yield ("decode", i, key), getattr(table, key), remedy
    for key in _OF_MODELS:
        if getattr(limits, key) is not None:
            yield ("limits", key), getattr(limits, key), remedy
