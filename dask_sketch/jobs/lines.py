"""Where in a TOML text each key stands; the parser of the standard library does not say."""

from __future__ import annotations

import bisect
import re
import tomllib
from typing import Any

Place = tuple[str | int, ...]  # of a value: keys, and numbers in arrays
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[A-Za-z0-9_-]+')
_DOT = re.compile(r"[ \t]*\.[ \t]*")
# a text of several lines may hold one or two quotes in a row, also right before its end
_TEXT = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^,\]}\n#]*")


def lines_of(text: str) -> dict[Place, int]:
    r"""The line, from 1, of every key, table and element of an array.

    Parameters
    ----------
    text
        TOML that :mod:`tomllib` takes; nothing is checked again.

    Returns
    -------
    lines
        By place. A key that has a dot stands for its tables too.

    Examples
    --------
    >>> found = lines_of('[[sources]]\npath = "a"\n[limits]\nretry.times = [1,\n2]\n')
    >>> found["sources", 0, "path"], found["limits", "retry"], found["limits", "retry", "times", 1]
    (2, 4, 5)
    """
    return _Reader(text.replace("\r\n", "\n")).document()


class _Reader:
    def __init__(self, text: str):
        self._text = text
        self._at = 0
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[Place, int] = {}
        self._lengths: dict[Place, int] = {}  # of arrays of tables

    def document(self) -> dict[Place, int]:
        table: Place = ()
        while True:
            self._skip(_BLANK)
            if self._at >= len(self._text):
                return self._lines
            line = self._line
            if self._text.startswith("[[", self._at):
                table = self._element(self._inside(2))
            elif self._text.startswith("[", self._at):
                table = self._latest(self._inside(1))
            else:
                self._pair(table)
                continue
            for end in range(1, len(table) + 1):
                self._lines.setdefault(table[:end], line)

    def _inside(self, brackets: int) -> Place:
        """The key of a table's head."""
        self._at += brackets
        key = self._key()
        self._skip(_BLANK)
        self._at += brackets
        return key

    def _element(self, key: Place) -> Place:
        """Where the tables of an array go on: one more of them."""
        array = (*self._latest(key[:-1]), key[-1])
        number = self._lengths.get(array, 0)
        self._lengths[array] = number + 1
        return (*array, number)

    def _latest(self, key: Place) -> Place:
        """The place that a key names: of an array of tables, its last one."""
        place: Place = ()
        for part in key:
            place = (*place, part)
            if place in self._lengths:
                place = (*place, self._lengths[place] - 1)
        return place

    def _pair(self, table: Place) -> None:
        line = self._line
        place = (*table, *self._key())
        for end in range(len(table) + 1, len(place) + 1):
            self._lines.setdefault(place[:end], line)
        self._skip(_BLANK)
        self._at += 1  # the sign of equality
        self._value(place)

    def _value(self, place: Place) -> None:
        self._skip(_BLANK)
        sign = self._text[self._at : self._at + 1]
        self._lines.setdefault(place, self._line)
        if sign == "[":
            self._members("]", lambda number: self._value((*place, number)))
        elif sign == "{":
            self._members("}", lambda number: self._pair(place))
        else:
            start = self._at
            self._skip(_TEXT if sign in ('"', "'") else _PLAIN)
            self._at = max(self._at, start + 1)  # whatever it is, on to the next

    def _members(self, end: str, read: Any) -> None:
        self._at += 1
        number = 0
        while True:
            self._skip(_BLANK)
            sign = self._text[self._at : self._at + 1]
            if sign in (end, ""):
                self._at += 1
                return
            if sign == ",":
                self._at += 1
                number += 1
            else:
                read(number)

    def _key(self) -> Place:
        parts = []
        while True:
            self._skip(_BLANK)
            part = self._skip(_KEY)
            parts.append(_unquoted(part))
            if not self._skip(_DOT):
                return tuple(parts)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    @property
    def _line(self) -> int:
        return bisect.bisect_left(self._ends, self._at) + 1


def _unquoted(part: str) -> str:
    return str(tomllib.loads(f"key = {part}")["key"]) if part[:1] in ('"', "'") else part
