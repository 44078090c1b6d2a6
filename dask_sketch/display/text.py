"""What a person at a terminal sees: tables, and messages that cannot steer it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dask.utils import format_bytes

_LONGEST = 4000  # characters of a message: it may quote a file


def grid(rows: Iterable[Sequence[object]], header: Sequence[str] | None = None) -> str:
    """Rows as text in aligned columns; numbers to the right, all else to the left.

    Parameters
    ----------
    rows
        Cells; what is not text is shown as ``str`` shows it.
    header
        Names of the columns.

    Examples
    --------
    >>> print(grid([("ours", "-33.12"), ("truth", "-33.1")], header=("model", "score")))
    model   score
    -----  ------
    ours   -33.12
    truth   -33.1
    """
    table = [[printable(str(cell)) for cell in row] for row in rows]
    head = [list(header)] if header else []
    widths = [max(map(len, column)) for column in zip(*head, *table, strict=True)]
    right = [
        len(table) > 0 and all(_is_number(row[column]) for row in table)
        for column in range(len(widths))
    ]
    if head:
        head.append(["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in head + table
    )


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or (cell[0] in "+-." and cell[1:2].isdigit())


def fields_text(fields: Mapping[str, object]) -> str:
    """A name and its value on each line.

    Examples
    --------
    >>> print(fields_text({"samples": "1,000", "of": "a store"}))
    samples  1,000
    of       a store
    """
    width = max(map(len, fields), default=0)
    return "\n".join(
        f"{printable(name):<{width}}  {printable(str(value))}" for name, value in fields.items()
    )


def printable(text: str, keep: str = "") -> str:
    r"""Text with characters that steer a terminal spelled out: names come from files of others.

    Parameters
    ----------
    text
        Any.
    keep
        Characters that stay, such as line breaks.

    Examples
    --------
    >>> printable("red \x1b[31m")
    'red \\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in keep else sign.encode("unicode_escape").decode()
        for sign in text
    )


def first_line(error: BaseException) -> str:
    """The message of an error on one line, its type before it where it says nothing by itself.

    Examples
    --------
    >>> first_line(KeyError("frames"))
    "KeyError: 'frames'"
    """
    from dask_sketch.errors import SketchError

    text = printable(" ".join(str(error)[:_LONGEST].split()))
    if isinstance(error, SketchError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def in_options(text: str, options: Mapping[str, str]) -> str:
    """A message of the library in the words of the shell: options in place of arguments.

    Examples
    --------
    >>> in_options("pass nan_policy='omit' or columns=[...].", {"nan_policy": "--nan-policy"})
    'pass --nan-policy omit or columns=[...].'
    """
    if not options:
        return text
    names = "|".join(map(re.escape, options))
    return re.sub(
        rf"\b({names})=(True\b|\[\.\.\.\]|'[^']*'|[-\w.]*\w|)",
        lambda found: _as_option(options[found[1]], found[2]),
        text,
    )


def _as_option(option: str, value: str) -> str:
    if value in ("", "True"):
        return option
    if value == "None":
        return f"no {option}"
    shown = "..." if value == "[...]" else value.strip("'")
    return f"{option} {shown}"


def jsonable(value: Any) -> Any:
    """Plain numbers, text and lists, with ``null`` for what is not a finite number."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, float) and not (-float("inf") < value < float("inf")):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


# How many stored rows one task reads.


def describe_bytes(size: int | None) -> str:
    """Bytes for people.

    Examples
    --------
    >>> describe_bytes(3 * 2**20), describe_bytes(None)
    ('3.00 MiB', 'unknown')
    """
    return "unknown" if size is None else str(format_bytes(size))
