"""What a value in a job file may be; each check returns it as the job wants it, or says why not."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import MISSING, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dask.utils import parse_bytes

Check = Callable[[Any], Any]
MOST_TEXT = 4096  # characters of one value
MOST_ITEMS = 4096  # of one list
# File systems that fetch bytes and nothing else: others take code, or a path to more settings.
SCHEMES = (
    "file", "local", "memory", "http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss",
    "adl", "hdfs", "webhdfs", "ftp", "sftp", "ssh",
)  # fmt: skip
SECRET = re.compile(
    r"secret|passw|pwd|token|credential|private|authori[sz]ation|cookie|bearer|"
    r"(access|account|api|storage)[-_]?key|connection[-_]?string|"
    r"(^|[-_])(sas|sig|signature|auth|key)($|[-_])",
    re.IGNORECASE,
)
MOST_WAYS = 2**20  # in which one pattern may match one key
_MOST_KEY = 512  # characters of a key, for that bound
# an atom of a regular expression, how often it may come, and whether greedily
_PIECE = re.compile(
    r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[])([*+?]|\{(\d*)(,?)(\d*)\})?[?+]?", re.DOTALL
)


class Refused(ValueError):
    """The way out, as the end of a message; the key and the value come before it."""


def setting(check: Check, default: Any = MISSING, *, secret: bool = False) -> Any:
    """A field of a table of the job file; needed, unless it has a default."""
    metadata = {"check": check, "secret": secret}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def text(value: Any) -> str:
    """Some text."""
    if not isinstance(value, str) or not value.strip() or len(value) > MOST_TEXT:
        raise Refused(f"give text of 1 to {MOST_TEXT:,} characters")
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in value):
        raise Refused("give text without control characters")
    return value


def name(value: Any) -> str:
    """A name that is also one of a file, and of a part of a key."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", value):
        raise Refused("give up to 64 letters, digits, dots, dashes and underscores")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Refused("give true or false")
    return value


def one_of(*choices: str) -> Check:
    """One of some names."""

    def check(value: Any) -> Any:
        if value not in choices or not isinstance(value, str):
            *most, last = (f'"{choice}"' for choice in choices)
            raise Refused(f"choose {', '.join(most)} or {last}" if most else f"give {last}")
        return value

    return check


def whole(low: int, high: int) -> Check:
    """A whole number."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Refused(f"give a whole number from {low:,} to {high:,}")
        return value

    return check


def number(low: float, high: float) -> Check:
    """A finite number, its bounds included."""

    def check(value: Any) -> float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or not low <= value <= high:
            raise Refused(f"give a number from {low:g} to {high:g}")
        return float(value)

    return check


def numbers(low: float, high: float) -> Check:
    """A list of finite numbers."""
    each = number(low, high)

    def check(value: Any) -> list[float]:
        if not isinstance(value, list) or not 1 <= len(value) <= MOST_ITEMS:
            raise Refused(f"give a list of 1 to {MOST_ITEMS:,} numbers")
        return [each(item) for item in value]

    return check


def names(value: Any) -> list[str]:
    """A list of texts, all different."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_ITEMS:
        raise Refused(f'give a list of 1 to {MOST_ITEMS:,} names, such as ["a", "b"]')
    found = [text(item) for item in value]
    if len(set(found)) < len(found):
        raise Refused("give each name once")
    return found


def size(value: Any) -> int:
    """Bytes, as a number or as text."""
    try:
        found = -1 if isinstance(value, bool) else int(parse_bytes(value))
    except (AttributeError, TypeError, ValueError, OverflowError):
        found = -1
    if not 1 <= found <= 2**50:
        raise Refused('give bytes, such as "32MiB"')
    return found


def location(value: Any) -> str:
    """A path, or the URL of a file system that is known to hand out bytes and nothing else."""
    place = text(value)
    if "::" in place:
        raise Refused("chained file systems are not taken: give the URL of the data itself")
    scheme, separator, _ = place.partition("://")
    if not separator:
        return place
    if scheme.lower() not in SCHEMES:
        raise Refused(f"give a path, or a URL of {', '.join(SCHEMES)}")
    require_no_secret(place)
    return place


def scheduler(value: Any) -> str:
    """The address of a scheduler."""
    place = text(value)
    if not re.fullmatch(r"(tls|tcp)://[^/@\s]+:\d{1,5}", place):
        raise Refused('give an address, such as "tls://host:8786"')
    return place


def require_no_secret(url: str) -> None:
    """Refuse a URL with a password or a signature in it."""
    try:
        parts = urlsplit(url)
        known = parts.username or parts.password
    except ValueError as error:
        raise Refused("give a URL that can be taken apart") from error
    if known or any(SECRET.search(key) for key, _ in parse_qsl(parts.query)):
        raise Refused(
            "a URL in a job file may hold no user, password or signature: give them in "
            'storage_options, as { env = "NAME" } or { file = "PATH" }'
        )


def pattern(value: Any) -> re.Pattern[str]:
    """A regular expression that cannot take long, with the part of the key that names the group.

    Python's matcher tries every way in which a pattern can match. Groups may therefore not be
    repeated, and the number of ways, a product over all choices, is bounded.
    """
    source = text(value)
    if len(source) > 256:
        raise Refused("give a pattern of at most 256 characters")
    require_cheap(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # for what will mean something else one day
            found = re.compile(source)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise Refused(f"that is no regular expression: {error}") from error
    if found.groups > 1 and "group" not in found.groupindex:
        raise Refused("call the part that names the group (?P<group>...)")
    return found


def require_cheap(source: str) -> None:
    """Refuse a pattern that a key could keep busy for long."""
    ways = 1
    for piece in _PIECE.finditer(source):
        atom, repeat, low, comma, high = piece.groups()
        if re.fullmatch(r"\\[1-9]", atom):
            raise Refused("a pattern may not refer back to its groups")
        if atom == "(" and repeat is not None:
            if not source.startswith(("(?:", "(?P<"), piece.start()):
                raise Refused("of what begins with (? only (?: and (?P<name> are taken")
        elif atom == ")" and repeat is not None:
            raise Refused("a group may not be repeated or optional: that could take for ever")
        elif repeat == "?" or atom == "|":
            ways *= 2
        elif repeat in ("*", "+") or (comma and not high):
            ways *= _MOST_KEY
        elif comma:
            ways *= max(int(high) - int(low or 0) + 1, 1)
    if ways > MOST_WAYS:
        raise Refused(
            "it can match in too many ways: use at most two of * and +, and [^/]* in place of .*"
        )


def options(value: Any) -> dict[str, Any]:
    """Options of a file system, whose secrets come from the environment or from files."""
    if not isinstance(value, dict):
        raise Refused('give a table, such as { anon = true, key = { env = "S3_KEY" } }')
    _require_plain(value, 0)
    for key, item in _leaves(value):
        if SECRET.search(key):
            raise Refused(
                f'{key} is a secret and may not stand in a job file: give {key} = {{ env = "NAME" '
                '} or { file = "PATH" }'
            )
        if isinstance(item, str) and "://" in item:
            require_no_secret(item)
    return value


def _require_plain(value: Any, depth: int) -> None:
    if depth > 4:
        raise Refused("give at most 4 tables within each other")
    if isinstance(value, (dict, list)):
        if len(value) > 64:
            raise Refused("give at most 64 options")
        for item in value.values() if isinstance(value, dict) else value:
            _require_plain(item, depth + 1)
    elif isinstance(value, str):
        if len(value) > MOST_TEXT:
            raise Refused(f"give text of at most {MOST_TEXT:,} characters")
    elif not isinstance(value, (bool, int, float)):
        raise Refused("give text, numbers, true or false")


def _leaves(value: dict[str, Any]) -> list[tuple[str, Any]]:
    """Keys and values, those of tables within too, but for what is kept elsewhere."""
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        if is_kept_elsewhere(item):
            continue
        if isinstance(item, dict) and not SECRET.search(key):
            found += _leaves(item)
        elif isinstance(item, list):
            for member in item:
                inner = isinstance(member, dict)
                found += [*_leaves(member), (key, None)] if inner else [(key, member)]
        else:
            found.append((key, item))
    return found


def is_kept_elsewhere(value: Any) -> bool:
    """Whether a value says where it is: in the environment or in a file."""
    return (
        isinstance(value, dict)
        and len(value) == 1
        and set(value) <= {"env", "file"}
        and isinstance(next(iter(value.values())), str)
    )
