"""Types of the values in a job file, and their checks."""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any

from dask.utils import parse_bytes
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo

from dask_sketch.jobs.ledger.windows import parse_span
from dask_sketch.jobs.secrets import MAX_TEXT, Secrets, require_no_secret

MAX_NAMES = 4096  # names in a list, at most
# Largest sizes that a job file may ask for, because the memory in use grows with them.
MAX_COMPONENTS = 10_000
MAX_FREQUENCIES = 1_000_000
MAX_PILOT = 10_000_000
# File systems that only fetch bytes: others run code, or read settings from a further path.
SCHEMES = (
    "file", "local", "memory", "http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss",
    "adl", "hdfs", "webhdfs", "ftp", "sftp", "ssh",
)  # fmt: skip
MAX_MATCHES = 2**20  # ways in which one pattern may match one key
MAX_KEY = 512  # characters of a key that are matched to a pattern, which bounds the time
# an atom of a regular expression, its repetition, and whether that is greedy
_ATOM = re.compile(
    r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[])([*+?]|\{(\d*)(,?)(\d*)\})?[?+]?", re.DOTALL
)


def _text(value: str) -> str:
    if not value.strip() or len(value) > MAX_TEXT:
        raise ValueError(f"should have 1 to {MAX_TEXT:,} characters")
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError("should have no control characters")
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", value):
        raise ValueError("should have 1 to 64 letters, digits, dots, dashes and underscores")
    return value


def _different(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError("should contain each name once")
    return values


def _size(value: Any) -> int:
    try:
        size = -1 if isinstance(value, bool) else int(parse_bytes(value))
    except (AttributeError, TypeError, ValueError, OverflowError):
        size = -1
    if not 1 <= size <= 2**50:
        raise ValueError('should be a number of bytes up to 1 PiB, such as "32MiB"')
    return size


def _location(value: str) -> str:
    if "::" in value:
        raise ValueError("should be the URL of the data itself, not of chained file systems")
    scheme, separator, location = value.partition("://")
    if separator:
        if not location.strip("/"):
            raise ValueError("should name a bucket or a folder after ://")
        if scheme.lower() not in SCHEMES:
            raise ValueError(f"should be a path, or a URL that starts with {', '.join(SCHEMES)}")
        require_no_secret(value)
    return value


def _pattern(source: Any) -> re.Pattern[str]:
    """Compile a regular expression that takes bounded time.

    Python's matcher tries every way in which a pattern can match. Groups may therefore not be
    repeated, and the number of ways, which is a product over all choices, is bounded.
    """
    if not isinstance(source, str) or not 0 < len(source) <= 256:
        raise ValueError("should be a pattern of 1 to 256 characters")
    _require_cheap(_text(source))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning announces a change of meaning
            pattern = re.compile(source)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise ValueError(f"should be a regular expression ({error})") from error
    if pattern.groups > 1 and "group" not in pattern.groupindex:
        raise ValueError("should mark the part that names the group as (?P<group>...)")
    return pattern


def _require_cheap(source: str) -> None:
    ways = 1
    for piece in _ATOM.finditer(source):
        atom, repeat, low, comma, high = piece.groups()
        if re.fullmatch(r"\\[1-9]", atom):
            raise ValueError("should not refer back to a group of the pattern")
        if atom == "(" and repeat is not None:
            if not source.startswith(("(?:", "(?P<"), piece.start()):
                raise ValueError("should use no other extension than (?: and (?P<name>")
        elif atom == ")" and repeat is not None:
            raise ValueError("should neither repeat a group nor make it optional: it is too slow")
        elif repeat == "?" or atom == "|":
            ways *= 2
        elif repeat in ("*", "+") or (comma and not high):
            ways *= MAX_KEY
        elif comma:
            ways *= max(int(high) - int(low or 0) + 1, 1)
    if ways > MAX_MATCHES:
        raise ValueError(
            "can match in too many ways: use at most two of * and +, and [^/]* in place of .*"
        )


def _window(value: Any) -> int | str:
    try:
        if isinstance(value, str):
            parse_span(value)
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
    except ValueError:
        pass
    raise ValueError('should be a number of runs, or a span of time such as "7 days"')


def _positive(value: float) -> float:
    if not 1e-300 <= value <= 1e300:
        raise ValueError("should be above 0, from 1e-300 to 1e300")
    return value


def _ordered(values: tuple[int, int]) -> tuple[int, int]:
    if values[0] > values[1]:
        raise ValueError("should be the lowest and the highest number")
    return values


def _options(value: Any, info: ValidationInfo) -> dict[str, Any]:
    return (info.context or Secrets()).read(value)


Text = Annotated[str, AfterValidator(_text)]
Name = Annotated[str, AfterValidator(_name)]
Names = Annotated[list[Text], Field(min_length=1, max_length=MAX_NAMES), AfterValidator(_different)]
Size = Annotated[int, BeforeValidator(_size)]
Location = Annotated[Text, AfterValidator(_location)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, AfterValidator(_positive)]
Frequencies = Annotated[int, Field(ge=1, le=MAX_FREQUENCIES)]
PilotSize = Annotated[int, Field(ge=2, le=MAX_PILOT)]
Variances = Annotated[list[Positive], Field(min_length=1, max_length=MAX_NAMES)]
Components = Annotated[int, Field(ge=1, le=MAX_COMPONENTS)]
StorageOptions = Annotated[dict[str, Any], PlainValidator(_options)]
Expected = Annotated[
    tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]],
    Field(strict=False),
    AfterValidator(_ordered),
]
Pattern = Annotated[re.Pattern[str], PlainValidator(_pattern)]
Window = Annotated[int | str, PlainValidator(_window)]
