"""Read and check job files: TOML files of nightly jobs, whose keys are in `job_keys`."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

from pydantic import (
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from dask_sketch.cluster.settings import ClusterSettings
from dask_sketch.errors import InputError, JobError
from dask_sketch.jobs.job_keys import (
    MAX_SHOWN,
    DataTable,
    DecodeTable,
    DriftTable,
    FeatureMapTable,
    GroupsTable,
    JobTable,
    LimitsTable,
    OutputsTable,
    ScoreTable,
    SourceTable,
    Table,
    Wrong,
    key_path,
    shown_value,
    table_errors,
    unpermitted,
    wrong_for_moments,
)
from dask_sketch.jobs.secrets import Secrets, revealed
from dask_sketch.storage.overwrite import local_path, resolve_parents
from dask_sketch.validation.choices import PCA
from dask_sketch.validation.tables import shorten

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_BYTES = 2**16  # bytes of a job file, at most: parsing takes at most a few times as much memory
MAX_DOTS = 200  # dots in a line, at most: the time that the parser takes grows with their square
MAX_TABLES = 64  # tables of one name, at most
MAX_ERRORS = 50
# member of a union in the path of a value
_UNION_MEMBER = re.compile(r"constrained-\w+|literal\[.*\]")
# Options of a cluster that only name a queue or a size: others run code.
CLUSTER_OPTIONS = (
    "account", "interface", "name", "namespace", "queue", "resources", "walltime",
)  # fmt: skip


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


# Keys of earlier job files, and their replacements.
_REPLACED: dict[tuple[str | int, ...], str] = {
    ("drift", "threshold"): "was a number of standard deviations of independent rows, which alarms "
    "at nearly every change of dependent ones: set drift.false_alarms_per_year and drift.tolerance",
}

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
        for key, entries in tables.items():
            for i in _repeated(entries, lambda table: table.name):
                wrong.append(
                    ((key, i, "name"), entries[i].name, "should differ from earlier names")
                )
        for i in _repeated(self.sources, lambda table: (table.path, table.array)):
            wrong.append(
                (("sources", i, "path"), self.sources[i].path,
                 "is a source already and would count twice: give each source once")
            )  # fmt: skip
        if self.score is not None:
            places = [(table.path, table.array) for table in self.sources]
            if (self.score.path, self.score.array) in places:
                wrong.append(
                    (("score", "path"), self.score.path,
                     "is a source, so models are fitted to it: give other samples, or leave "
                     "[score] out")
                )  # fmt: skip
        for i, table in enumerate(self.decode):
            if table.groups and self.groups is None:
                wrong.append((("decode", i, "groups"), True, "needs a table [groups]"))
        if self.feature_map.task == PCA:
            wrong += wrong_for_moments(self.job, self.sources, self.decode, self.limits)
            for key in ("score", "drift"):
                if key in self.model_fields_set:
                    wrong.append(((key,), None, "needs sketches, and not second moments"))
        # tasks hold the options of their files, so a scheduler gets them too
        address = self.cluster.address
        data: dict[tuple[str | int, ...], DataTable] = {
            ("sources", i): source for i, source in enumerate(self.sources)
        }
        data |= {} if self.score is None else {("score",): self.score}
        for loc, input_table in data.items():
            if address is not None and "://" in input_table.path:
                for key, remedy in unpermitted(input_table.storage_options, address):
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

    def resolve(self, location: str) -> str:
        """Return a URL of the job file, or the absolute form of a path.

        ``~`` at the beginning of a path is the home of the user.
        """
        path = local_path(location)
        if path is None or "://" in location:
            return location
        target = path if location.startswith("~") else Path(location)
        return str(resolve_parents(self.path.parent / target).absolute())

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
        Valid job.

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
    ledger = job.resolve(job.job.ledger)
    if "://" not in ledger and path.resolve().is_relative_to(Path(ledger).resolve()):
        raise JobError(
            f"{path}: job.ledger = {shown_value(job.job.ledger)}: is a folder of the job file: "
            'should be a folder of its own, such as "nightly.ledger"'
        )
    return job


def _large_integers(document: dict[str, Any]) -> Iterator[str]:
    """Key paths of integers beyond the range of TOML, which would be slow to show in messages."""
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
    errors = error.errors(include_url=False)
    # pydantic also counts the valid elements of a list in which another one is wrong
    parents = {entry["loc"][:end] for entry in errors for end in range(len(entry["loc"]))}
    errors = [
        entry for entry in errors if entry["type"] != "too_short" or entry["loc"] not in parents
    ]
    errors = _with_joined_unions(errors)
    for entry in errors[:MAX_ERRORS]:
        loc, value, remedy = entry["loc"], entry["input"], entry["msg"]
        if entry["type"] == "missing":
            value, remedy = None, "is missing and required"
        elif entry["type"] == "extra_forbidden":
            value, remedy = None, _REPLACED.get(loc) or _unknown(str(loc[-1]), _keys_beside(loc))
        elif entry["type"] == "model_type":
            remedy = "should be a table"
        elif entry["type"] == "tuple_type":
            tables = f" of tables [[{loc[-1]}]]" if len(loc) == 1 else ", such as [0, 100]"
            remedy = f"should be a list{tables}"
        remedy = re.sub(r"^(Value error,|Input|List|Tuple) | after validation", "", remedy)
        shown = "" if value is None or "storage_options" in loc else f" = {shown_value(value)}"
        yield f"{key_path(loc)}{shown}: {shorten(remedy, 8 * MAX_SHOWN)}"
    if len(errors) > MAX_ERRORS:
        yield f"and {len(errors) - MAX_ERRORS} more"


def _with_joined_unions(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """One error for a value of none of several types, where pydantic has one for each type."""
    joined: dict[tuple[str | int, ...], ErrorDetails] = {}
    for entry in errors:
        loc = entry["loc"]
        if not (loc and isinstance(loc[-1], str) and _UNION_MEMBER.fullmatch(loc[-1])):
            joined[loc] = entry
        elif (before := joined.get(loc[:-1])) is None:
            joined[loc[:-1]] = {**entry, "loc": loc[:-1]}
        else:
            before["msg"] += f", or {entry['msg'].removeprefix('Input should be ')}"
    return list(joined.values())


def _keys_beside(loc: tuple[str | int, ...]) -> list[str]:
    """Known keys of the table that contains a key."""
    table: type[Table] = Job
    for part in loc[:-1]:
        if isinstance(part, str):
            kind = table.model_fields[part].annotation
            kinds = (
                candidate for candidate in (kind, *get_args(kind)) if isinstance(candidate, type)
            )
            table = next(candidate for candidate in kinds if issubclass(candidate, Table))
    return list(table.model_fields)


def _unknown(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key[:100], known, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"the known keys are {', '.join(known)}"
    return f"unknown key: {remedy}"
