"""The job file: TOML, checked as a whole before anything starts; its errors name their lines."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from dask_sketch.errors import JobError
from dask_sketch.jobs.checks import Refused
from dask_sketch.jobs.lines import Place, lines_of
from dask_sketch.jobs.secrets import Secrets
from dask_sketch.jobs.settings import (
    ClusterTable,
    DecodeTable,
    DriftTable,
    FeatureMapTable,
    GroupsTable,
    JobTable,
    LimitsTable,
    OutputsTable,
    ScoreTable,
    SourceTable,
    check_value,
)

MOST_BYTES = 2**16  # of a job file; parsing takes at most a few times as much,
MOST_DOTS = 200  # if no line nests tables by the thousand: a parser takes their number squared
MOST_TABLES = 64  # of one kind
MOST_ERRORS = 50
_SHOWN = 60  # characters of a value in a message
_TABLES: dict[str, Any] = {
    "job": JobTable,
    "feature_map": FeatureMapTable,
    "groups": GroupsTable,
    "score": ScoreTable,
    "drift": DriftTable,
    "outputs": OutputsTable,
    "cluster": ClusterTable,
    "limits": LimitsTable,
}
_LISTS: dict[str, Any] = {"sources": SourceTable, "decode": DecodeTable}
_NEEDED = ("job", "sources", "feature_map")
_OPTIONAL = ("groups", "score")  # without them there is nothing of the kind
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A job file that was found to be right.

    Attributes
    ----------
    path
        Where it stands; relative paths in it begin there.
    job, sources, feature_map, decode, drift, outputs, cluster, limits
        Its tables.
    groups, score
        Tables that need not be there.
    secrets
        What may not be repeated.
    """

    path: Path
    job: JobTable
    sources: tuple[SourceTable, ...]
    feature_map: FeatureMapTable
    groups: GroupsTable | None
    decode: tuple[DecodeTable, ...]
    score: ScoreTable | None
    drift: DriftTable
    outputs: OutputsTable
    cluster: ClusterTable
    limits: LimitsTable
    secrets: Secrets = field(repr=False)

    def place(self, location: str) -> str:
        """A path or URL of the job file, as any process finds it."""
        if "://" in location:
            return location
        return str((self.path.parent / location).absolute())

    def options(self, given: Mapping[str, Any], location: str) -> dict[str, Any] | None:
        """Options of a file system, secrets filled in; none for a local path."""
        if "://" not in location:
            return None
        return self.secrets.fill(given, self.path.parent)


def read_job(path: str | Path) -> Job:
    """Read and check a job file; nothing else is opened but the files of secrets.

    Parameters
    ----------
    path
        Of the file, of at most 64 KiB.

    Returns
    -------
    job

    Raises
    ------
    JobError
        With all that is wrong, a line for each, as ``job.toml:12: limits.unreadable = "maybe":
        choose "stop" or "quarantine"``.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "job.toml"
    >>> _ = place.write_text('''
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
    >>> job = read_job(place)
    >>> job.sources[0].path, job.limits.unreadable, job.limits.attempts
    ('frames.zarr', 'quarantine', 3)
    """
    return parse_job(_text_of(Path(path)), Path(path))


def parse_job(text: str, path: Path) -> Job:
    """The job in a text; see :func:`read_job`."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MOST_DOTS:
            raise JobError(
                f"{path}:{number}: more than {MOST_DOTS} dots: write lists over several lines"
            )
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(_syntax(path, str(error), text)) from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep nesting
        raise JobError(
            f"{path}:1: not TOML that can be read ({type(error).__name__}): it has a number or "
            "nested lists of absurd size"
        ) from error
    return _Checker(document, lines_of(text), path).job()


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise JobError(f"{path}: a job file of more than {MOST_BYTES:,} bytes is refused")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(
            f"{path}: no job file can be read there ({type(error).__name__}: give the path of a "
            "TOML file in UTF-8)"
        ) from error


def _syntax(path: Path, message: str, text: str) -> str:
    """A message of the parser, its line where all others have it."""
    what, _, where = message.partition(" (at ")
    digits = "".join(sign for sign in where.split(",")[0] if sign.isdigit())
    line = int(digits) if digits else text.count("\n") + 1
    return f"{path}:{line}: not TOML: {what[0].lower()}{what[1:]}"


class _Checker:
    def __init__(self, document: dict[str, Any], lines: dict[Place, int], path: Path):
        self._document = document
        self._lines = lines
        self._path = path
        self._errors: list[tuple[int, str]] = []
        self._secrets = Secrets()

    def job(self) -> Job:
        tables = [*_TABLES, *_LISTS]
        for key in self._document:
            if key not in tables:
                self._complain((key,), f"{_shown_key((key,))} is unknown{_nearest(key, tables)}")
        for key in _NEEDED:
            if key not in self._document:
                head = f"[[{key}]]" if key in _LISTS else f"[{key}]"
                self._complain((), f"{head} is missing")
        found: dict[str, Any] = {key: self._table(key) for key in _TABLES}
        found |= {key: self._list(key) for key in _LISTS}
        self._cross(found)
        if self._errors:
            kept = [message for _, message in sorted(self._errors)[:MOST_ERRORS]]
            if len(self._errors) > MOST_ERRORS:
                kept.append(f"{self._path}: and {len(self._errors) - MOST_ERRORS} more")
            raise JobError("\n".join(kept))
        return Job(path=self._path, secrets=self._secrets, **found)

    def _table(self, key: str) -> Any:
        kind = _TABLES[key]
        value = self._document.get(key)
        if value is None:
            return None if key in (*_OPTIONAL, *_NEEDED) else kind()
        if not isinstance(value, dict):
            self._complain((key,), f"{key} is no table: write [{key}]")
            return None
        return self._read(kind, value, (key,))

    def _list(self, key: str) -> tuple[Any, ...]:
        value = self._document.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self._complain((key,), f"{key} is no list of tables: write [[{key}]]")
            return ()
        if not 1 <= len(value) <= MOST_TABLES:
            self._complain((key,), f"{key}: give 1 to {MOST_TABLES} tables [[{key}]]")
            return ()
        read = (self._read(_LISTS[key], item, (key, i)) for i, item in enumerate(value))
        return tuple(table for table in read if table is not None)

    def _read(self, kind: type[T], value: dict[str, Any], place: Place) -> T | None:
        """One table; none if something in it is wrong."""
        before = len(self._errors)
        known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
        for key in value:
            if key not in known:
                shown = _shown_key((*place, key))
                self._complain((*place, key), f"{shown} is unknown{_nearest(key, list(known))}")
        found = {}
        for key, item in known.items():
            at = (*place, key)
            if key in value:
                try:
                    found[key] = check_value(item, value[key])
                    if item.metadata["secret"]:
                        self._secrets.fill(found[key], self._path.parent)
                except Refused as error:
                    stated = "" if item.metadata["secret"] else f" = {_shown(value[key])}"
                    self._complain(at, f"{_shown_key(at)}{stated}: {error}")
            elif item.default is MISSING and item.default_factory is MISSING:
                self._complain(place, f"{_shown_key(at)} is missing")
        if len(self._errors) > before:
            return None
        table = kind(**found)
        for key, reason in getattr(table, "complaints", list)():
            at = (*place, key) if key else place
            stated = f" = {_shown(value[key])}" if key in value else ""
            self._complain(at, f"{_shown_key(at)}{stated}: {reason}")
        return table

    def _cross(self, found: dict[str, Any]) -> None:
        """What only shows between tables."""
        at: Place
        for key in _LISTS:
            for number, table in _repeated(found[key], lambda table: table.name):
                at = (key, number, "name")
                self._complain(
                    at, f"{_shown_key(at)} = {_shown(table.name)}: another one has it: give each "
                    "a name of its own"
                )  # fmt: skip
        for number, table in _repeated(found["sources"], lambda table: (table.path, table.array)):
            at = ("sources", number, "path")
            self._complain(
                at, f"{_shown_key(at)} = {_shown(table.path)}: it is a source already, and would "
                "be counted twice"
            )  # fmt: skip
        decode = found["decode"]
        for number, table in enumerate(decode):
            if table.groups and "groups" not in self._document:
                at = ("decode", number, "groups")
                self._complain(at, f"{_shown_key(at)} = true: there is no [groups]")
        outputs = found["outputs"]
        if outputs is not None and outputs.model is not None:
            at = "outputs", "model"
            if not decode and "decode" not in self._document:
                self._complain(at, "outputs.model: there is no [[decode]] to make one")
            if len(decode) > 1 and "{name}" not in outputs.model:
                self._complain(
                    at, f"outputs.model = {_shown(outputs.model)}: there are {len(decode)} models: "
                    'write {name} where theirs goes, as in "{name}.zarr"'
                )  # fmt: skip

    def _complain(self, place: Place, message: str) -> None:
        line = 1
        for end in range(len(place), 0, -1):
            if place[:end] in self._lines:
                line = self._lines[place[:end]]
                break
        self._errors.append((line, f"{self._path}:{line}: {message}"))


def _repeated(tables: tuple[T, ...], key: Any) -> Iterator[tuple[int, T]]:
    """Tables that have the key of an earlier one."""
    seen = set()
    for number, table in enumerate(tables):
        if key(table) in seen:
            yield number, table
        seen.add(key(table))


def _shown_key(place: Place) -> str:
    """As a person would write it, elements of lists by number from 1."""
    out = ""
    for part in place:
        if isinstance(part, int):
            out += f"[{part + 1}]"
        else:
            plain = part.replace("_", "").replace("-", "").isalnum() and part.isascii()
            out += ("." if out else "") + (part if plain else json.dumps(part))
    return out if len(out) <= _SHOWN else out[: _SHOWN - 3] + "..."


def _shown(value: Any) -> str:
    if isinstance(value, str) and "://" in value and set(value) & set("@?"):
        return f'"{value.partition("://")[0][:20]}://..."'  # it may hold a password
    if isinstance(value, (dict, list)) and not _is_flat(value):
        return "{...}" if isinstance(value, dict) else "[...]"  # and so may these
    text = json.dumps(value, default=str, ensure_ascii=True)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _is_flat(value: Any) -> bool:
    return isinstance(value, list) and not any(
        isinstance(item, (dict, list)) or "://" in str(item) for item in value
    )


def _nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key[:100], known, n=1)
    return f": did you mean {close[0]}?" if close else f": there are {', '.join(sorted(known))}"
