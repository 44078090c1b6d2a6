"""Read and check job files: TOML files that describe a nightly job."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from dask_sketch.cluster.settings import ClusterSettings
from dask_sketch.decoders.names import AtomName, MethodName, RefinementName
from dask_sketch.errors import InputError, JobError
from dask_sketch.jobs.permissions import require_permitted
from dask_sketch.jobs.secrets import Secrets, revealed
from dask_sketch.jobs.table import MAX_SHOWN, Table, Wrong, cut, key_path, shown_value, table_errors
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
from dask_sketch.storage.overwrite import local_path
from dask_sketch.validation.choices import Distribution, Task, known_type, listed_types

MAX_BYTES = 2**16  # of a job file: parsing takes at most a few times as much memory,
MAX_DOTS = 200  # in a line: the time that the parser takes grows with their square
MAX_TABLES = 64  # of one name
MAX_ERRORS = 50
# Options of a cluster that only name a queue or a size: others run code.
CLUSTER_OPTIONS = (
    "account", "interface", "name", "namespace", "queue", "resources", "walltime",
)  # fmt: skip


def _covariance_type(name: str) -> str:
    """Name of a covariance type."""
    if not known_type(name):
        raise ValueError(f"should be one of {listed_types()}")
    return name


def _cluster(value: Any, info: ValidationInfo) -> ClusterSettings:
    """Settings of a cluster that neither run code nor contain a secret."""
    if isinstance(value, ClusterSettings):
        return value
    if not isinstance(value, dict):
        raise ValueError("should be a table [cluster]")
    known = [field.name for field in fields(ClusterSettings)]
    wrong: list[Wrong] = [((key,), None, _unknown(key, known)) for key in value if key not in known]
    address, tls, options = (value.get(key) for key in ("address", "tls", "options"))
    if address is not None and not (
        isinstance(address, str) and re.fullmatch(r"(tls|tcp)://[^/@\s]+:\d{1,5}", address)
    ):
        wrong.append((("address",), address, 'should be an address, such as "tls://host:8786"'))
    if tls is not None and not isinstance(tls, str):
        wrong.append((("tls",), tls, "should be the path of a folder of certificates"))
    if options is not None:
        try:
            Secrets().read(options)
            unknown = next((key for key in options if key not in CLUSTER_OPTIONS), None)
            if unknown is not None:
                raise ValueError(
                    f"{unknown} may not be in a job file: set it in Dask's configuration"
                )
        except ValueError as error:
            wrong.append((("options",), None, str(error)))
    if not wrong:
        folder = info.context.folder if info.context else Path()
        if isinstance(tls, str):
            value = value | {"tls": str((folder / tls).absolute())}
        try:
            return ClusterSettings(**value)
        except InputError as error:
            key = error.parameter or "kind"
            remedy = str(error).partition(": ")[2].rstrip(".")
            wrong.append(((key,), value.get(key), remedy))
    raise table_errors(wrong)


_MAX_LEVEL = 0.5  # of the test of drift
# Keys that job files had before, and what takes their place.
_REPLACED: dict[tuple[str | int, ...], str] = {
    ("drift", "threshold"): "was a number of standard deviations of independent rows, which alarms "
    "at nearly every change of dependent ones: set drift.false_alarms_per_year and drift.tolerance",
}


def _unpermitted(options: Mapping[str, Any], *locations: str) -> Iterator[tuple[str, str]]:
    """Key and remedy of options that send a secret to a place without permission."""
    try:
        require_permitted(options, locations)
    except ValueError as error:
        yield "storage_options", str(error)


def _in_memory(table: Table, *keys: str) -> Iterator[tuple[str, str]]:
    """Key and remedy of locations that are lost at the end of the run."""
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
        rows, mixtures are as likely as those of EM on all rows, but whoever can read the ledger can
        read them; with 0 it holds sums only. By default, from 1,000 to 5,000 rows (fewer of over 50
        features) if the first run decodes a model, else none. The ledger keeps the number of its
        first run, until 0 erases its rows for good.
    """

    name: Text
    ledger: Location
    storage_options: StorageOptions = Field(default_factory=dict)
    seed: Seed = 0
    sample: Annotated[int, Field(ge=0, le=1_000_000)] | None = None

    def _wrong(self) -> Iterator[tuple[str, str]]:
        yield from _in_memory(self, "ledger")
        yield from _unpermitted(self.storage_options, self.ledger)


class DataTable(Table):
    """Data of a job, as for :func:`dask_sketch.open_samples`.

    Attributes
    ----------
    path
        Zarr store, or file, folder or glob of Parquet; a path is relative to the job file.
    array, columns, weights, storage_options
        Arguments of ``open_samples``. The columns are those of the feature map by default, once
        there is one.
    chunk_size
        Number of bytes of one partition.
    missing_chunks
        ``"raise"``: a chunk of a Zarr store that is missing cannot be read. ``"fill"``: it holds
        the fill value.
    """

    path: Location
    array: Text | None = None
    columns: Names | None = None
    weights: Text | None = None
    chunk_size: Size = 32 * 2**20
    missing_chunks: Literal["raise", "fill"] | None = None
    storage_options: StorageOptions = Field(default_factory=dict)

    def _wrong(self) -> Iterator[tuple[str, str]]:
        yield from _unpermitted(self.storage_options, self.path)


class ScoreTable(DataTable):
    """``[score]``: samples that no run sketches, on which the models are scored."""


class SourceTable(DataTable):
    """``[[sources]]``: data to sketch.

    The name and the chunk size of a source must not change between runs: with another name or
    chunk size the partitions have other keys, and all data is read again.

    Attributes
    ----------
    name
        Beginning of the keys of the partitions.
    nan_policy
        ``"raise"``, ``"omit"`` or ``"available"``, as in :func:`~dask_sketch.sketch`.
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
    """

    file: Location | None = None
    n_components: Components | None = None
    n_frequencies: Frequencies | None = None
    task: Task | None = None
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
        if self.file is None and self.n_components is None and self.n_frequencies is None:
            yield "n_components", "give it, or a file of `dask-sketch design`"


class GroupsTable(Table):
    """``[groups]``: parts of the data that have totals of their own.

    Attributes
    ----------
    by
        ``"source"``: one group for each source.
    pattern
        Regular expression that is matched to the keys of the partitions. Its part
        ``(?P<group>...)``, else its only group, else the whole match is the name of the group.
        Partitions with other keys belong to no group.
    most
        Largest number of groups; a run with more groups is refused.
    """

    by: Literal["source"] | None = None
    pattern: Pattern | None = None
    most: Annotated[int, Field(ge=1, le=1000)] = 100

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
        Number of components; ``"auto"`` for the number that :func:`dask_sketch.select_model` finds,
        anew in each run that changes the data.
    model
        Model of Gaussians or points; jobs decode no other model.
    warm
        Start at the model of the last run, if that was a fit to the sketch and the ledger keeps no
        rows; where the fit is then worse, decode from scratch.
    groups
        Decode a model of each group too.
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
    """``[drift]``: a test of the newest data against that before; see :meth:`Ledger.drift`.

    Attributes
    ----------
    false_alarms_per_year
        Expected number of alarms a year where nothing changes. The level of the test of a run is
        this divided by ``runs_per_year``.
    runs_per_year
        Number of runs that read new data.
    tolerance
        Discrepancy (0 to 2) below which there is no alarm, however significant it is.
    window, reference
        Newest data, and data to compare with: numbers of runs, or spans of time such as
        ``"7 days"``. The defaults are the fewest runs that have enough partitions, and all other
        partitions.
    unit
        ``"partition"``, or ``"run"`` if the partitions of one run depend on each other.
    strata
        ``"weekday"`` if days of the week differ: partitions are compared with those of the same
        day.
    serial
        Successive runs depend on each other, as nights do whose weather or season lasts. With
        ``unit = "run"``; there is a test once the ledger has as many runs as one alarm takes.
    states
        Number of states of earlier runs whose distance is reported.
    groups
        Report the distances of the groups too. This raises no alarm.
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
        Paths or URLs of Zarr groups. ``{name}`` in that of the model is replaced by the name of
        the table ``[[decode]]``. The sketch has sums only, without random rows.
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
        yield from _unpermitted(self.storage_options, self.model or "", self.sketch or "")


class LimitsTable(Table):
    """``[limits]``: behaviour of a run when something fails, and bounds of what it takes.

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
        Largest fraction of the partitions of the ledger that may be gone from the sources, or have
        no stored byte left. A run that misses more is refused, because it looks like an
        unreachable store.
    changed
        Largest fraction of the partitions of the ledger that may have changed. One partition of
        each source always may.
    commit_partitions, commit_seconds
        Number of partitions and of seconds after which finished work is committed.
    stale_lock
        Seconds without a sign of life after which the lock of a run on another host is broken.
    bytes
        Number of bytes that a run may read; the plan refuses a run that has to read more.
    omitted
        Largest fraction of the rows of a run that may be omitted because they are not finite.
    rows, partitions
        Lowest and highest number of rows, without omitted ones, and of partitions that a run
        reads.
    range
        Largest distance of a value from the mean of its feature in the pilot rows of the feature
        map, in their standard deviations. Without pilot rows, as after ``forget``, the other
        samples take their place.
    cost
        Largest cost of a model in noise levels.
    nats
        Largest loss of a mixture in nats a sample, to one Gaussian or to the mixture of the pilot
        rows, where the data is still like them.

    Data beyond the last limits is kept, and the run ends with another exit code. A model beyond
    them is refused: the last good one remains in the ledger and in the outputs.
    """

    unreadable: Literal["stop", "quarantine"] = "stop"
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    backoff: Annotated[float, Field(ge=0, le=1e7)] = 1.0
    deleted: Annotated[float, Field(ge=0, le=1)] = 0.5
    changed: Annotated[float, Field(ge=0, le=1)] = 0.5
    commit_partitions: Annotated[int, Field(ge=1, le=100_000)] = 256
    commit_seconds: Annotated[float, Field(ge=0.1, le=1e6)] = 60.0
    stale_lock: Annotated[float, Field(ge=1, le=1e7)] = 3600.0
    bytes: Size | None = None
    omitted: Annotated[float, Field(ge=0, le=1)] = 0.5
    rows: Expected | None = None
    partitions: Expected | None = None
    range: Positive | None = None
    cost: Positive | None = None
    nats: Positive | None = None


_TABLES = Field(strict=False, min_length=1, max_length=MAX_TABLES)  # TOML has lists, no tuples


class Job(Table):
    """A valid job file.

    Attributes
    ----------
    job, sources, feature_map
        Required tables.
    groups, decode, score, drift, outputs, cluster, limits
        Optional tables.
    """

    job: JobTable
    sources: Annotated[tuple[SourceTable, ...], _TABLES]
    feature_map: FeatureMapTable
    groups: GroupsTable | None = None
    decode: Annotated[tuple[DecodeTable, ...], _TABLES] = ()
    score: ScoreTable | None = None
    drift: DriftTable = DriftTable()
    outputs: OutputsTable = OutputsTable()
    cluster: Annotated[ClusterSettings, PlainValidator(_cluster)] = ClusterSettings()
    limits: LimitsTable = LimitsTable()
    _path: Path = PrivateAttr(Path())
    _secrets: Secrets = PrivateAttr(default_factory=Secrets)

    @property
    def path(self) -> Path:
        """Path of the job file."""
        return self._path

    @property
    def secrets(self) -> Secrets:
        """Secrets that the job file refers to."""
        return self._secrets

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        wrong: list[Wrong] = []
        tables: dict[str, tuple[Any, ...]] = {"sources": self.sources, "decode": self.decode}
        for key, those in tables.items():
            for i in _repeated(those, lambda table: table.name):
                wrong.append(((key, i, "name"), those[i].name, "should differ from earlier names"))
        for i in _repeated(self.sources, lambda table: (table.path, table.array)):
            wrong.append(
                (("sources", i, "path"), self.sources[i].path,
                 "is a source already and would count twice: give each source once")
            )  # fmt: skip
        for i, table in enumerate(self.decode):
            if table.groups and self.groups is None:
                wrong.append((("decode", i, "groups"), True, "needs a table [groups]"))
        # tasks hold the options of their files, so a scheduler gets them too
        address = self.cluster.address
        data: dict[tuple[str | int, ...], DataTable] = {
            ("sources", i): source for i, source in enumerate(self.sources)
        }
        data |= {} if self.score is None else {("score",): self.score}
        for loc, one in data.items():
            if address is not None and "://" in one.path:
                for key, remedy in _unpermitted(one.storage_options, address):
                    wrong.append(((*loc, key), None, remedy))
        model = self.outputs.model
        if model is not None and not self.decode:
            wrong.append((("outputs", "model"), model, "needs a table [[decode]]"))
        if model is not None and len(self.decode) > 1 and "{name}" not in model:
            wrong.append(
                (("outputs", "model"), model,
                 f'should contain {{name}}, as in "{{name}}.zarr", for {len(self.decode)} models')
            )  # fmt: skip
        if wrong:
            raise table_errors(wrong)
        return self

    def with_rows(self, sample: int | None) -> Job:
        """The same job with another ``job.sample``; unchanged for ``None``."""
        if sample is None:
            return self
        return self.model_copy(update={"job": self.job.model_copy(update={"sample": sample})})

    def place(self, location: str) -> str:
        """Return a URL of the job file, or the absolute form of a path.

        ``~`` at the beginning of a path is the home of the user.
        """
        path = local_path(location)
        if path is None or "://" in location:
            return location
        return str((self.path.parent / path).absolute())

    def options(self, given: Mapping[str, Any], location: str) -> dict[str, Any] | None:
        """Return the options of a file system with their secrets, ``None`` for a local path."""
        return revealed(given) if "://" in location else None


def read_job(path: str | Path) -> Job:
    """Read and check a job file. Only the files of its secrets are opened beside it.

    Parameters
    ----------
    path
        Path of the job file, a TOML file of at most 64 KiB.

    Returns
    -------
    job

    Raises
    ------
    JobError
        If the job file is wrong. The message has a line for each error, with the path of the key,
        such as ``job.toml: sources[0].chunk_size = "big": should be ...``. Elements of lists are
        counted from 0.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "job.toml"
    >>> _ = path.write_text('''
    ... [job]
    ... name = "nightly"
    ... ledger = "nightly.ledger"
    ... [[sources]]
    ... path = "frames.zarr"
    ... [feature_map]
    ... n_components = 64
    ... [limits]
    ... unreadable = "quarantine"
    ... ''')
    >>> job = read_job(path)
    >>> job.sources[0].path, job.limits.unreadable, job.limits.attempts
    ('frames.zarr', 'quarantine', 3)
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        # editors of Windows begin a file with a byte order mark
        text = content.decode("utf-8-sig") if len(content) <= MAX_BYTES else ""
    except (OSError, ValueError) as error:  # no UTF-8; no file can have this name
        raise JobError(
            f"{path}: the job file cannot be read ({type(error).__name__}): give the path of a "
            "TOML file in UTF-8"
        ) from error
    if len(content) > MAX_BYTES:
        raise JobError(f"{path}: should have at most {MAX_BYTES:,} bytes")
    return parse_job(text, path)


def parse_job(text: str, path: Path) -> Job:
    """Check the text of a job file; see :func:`read_job`."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MAX_DOTS:
            raise JobError(
                f"{path}: line {number} has more than {MAX_DOTS} dots: write lists over several "
                "lines"
            )
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{path}: not TOML: {error}") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep nesting
        raise JobError(
            f"{path}: not TOML that can be read ({type(error).__name__}): a number is too long or "
            "lists are nested too deeply"
        ) from error
    for key in _large_integers(document):
        raise JobError(f"{path}: {key}: should be an integer of at most 64 bits")
    secrets = Secrets(path.parent)
    try:
        job = Job.model_validate(document, context=secrets)
    except ValidationError as error:
        # not chained, because the text of pydantic's error shows values, which may be secret
        raise JobError("\n".join(f"{path}: {line}" for line in _lines(error))) from None
    job._path, job._secrets = path, secrets
    ledger = job.place(job.job.ledger)
    if "://" not in ledger and path.resolve().is_relative_to(Path(ledger).resolve()):
        raise JobError(
            f"{path}: job.ledger = {shown_value(job.job.ledger)}: is a folder of the job file: "
            'should be a folder of its own, such as "nightly.ledger"'
        )
    return job


def _large_integers(document: dict[str, Any]) -> Iterator[str]:
    """Key paths of integers that are not within the range of TOML: such texts are slow to make."""
    left: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    while left:
        loc, value = left.pop()
        if isinstance(value, (dict, list)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            left += [((*loc, key), item) for key, item in items]
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            yield key_path(loc)


def _repeated(tables: tuple[Any, ...], key: Callable[[Any], Hashable]) -> Iterator[int]:
    """Indices of the tables with the key of an earlier one."""
    seen = set()
    for i, table in enumerate(tables):
        if key(table) in seen:
            yield i
        seen.add(key(table))


def _lines(error: ValidationError) -> Iterator[str]:
    """The key path, the value and the remedy of each error."""
    found = error.errors(include_url=False)
    # pydantic also counts the valid elements of a list in which another one is wrong
    parents = {one["loc"][:end] for one in found for end in range(len(one["loc"]))}
    found = [one for one in found if one["type"] != "too_short" or one["loc"] not in parents]
    for one in found[:MAX_ERRORS]:
        loc, value, remedy = one["loc"], one["input"], one["msg"]
        if one["type"] == "missing":
            value, remedy = None, "is missing and required"
        elif one["type"] == "extra_forbidden":
            value, remedy = None, _REPLACED.get(loc) or _unknown(str(loc[-1]), _keys_beside(loc))
        elif one["type"] == "model_type":
            remedy = "should be a table"
        elif one["type"] == "tuple_type":
            tables = f" of tables [[{loc[-1]}]]" if len(loc) == 1 else ", such as [0, 100]"
            remedy = f"should be a list{tables}"
        remedy = re.sub(r"^(Value error,|Input|List|Tuple) | after validation", "", remedy)
        shown = "" if value is None or "storage_options" in loc else f" = {shown_value(value)}"
        yield f"{key_path(loc)}{shown}: {cut(remedy, 8 * MAX_SHOWN)}"
    if len(found) > MAX_ERRORS:
        yield f"and {len(found) - MAX_ERRORS} more"


def _keys_beside(loc: tuple[str | int, ...]) -> list[str]:
    """Known keys of the table that contains a key."""
    table: type[Table] = Job
    for part in loc[:-1]:
        if isinstance(part, str):
            kind = table.model_fields[part].annotation
            those = (one for one in (kind, *get_args(kind)) if isinstance(one, type))
            table = next(one for one in those if issubclass(one, Table))
    return list(table.model_fields)


def _unknown(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key[:100], known, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"the known keys are {', '.join(known)}"
    return f"unknown key: {remedy}"
