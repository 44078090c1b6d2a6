"""Format tables, messages and sizes for terminals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dask_sketch.errors import SketchError

_LONGEST = 4000  # characters of a message: it may quote a file
_MAX_ITEMS = 6  # names in a list


def text_table(rows: Iterable[Sequence[object]], header: Sequence[str] | None = None) -> str:
    """Format rows in aligned columns; numbers to the right, other cells to the left.

    Parameters
    ----------
    rows
        Cells of each row; converted by ``str``.
    header
        Names of the columns.

    Examples
    --------
    >>> print(text_table([("ours", "-33.12"), ("truth", "-33.1")], header=("model", "score")))
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
    """Format names and values, one pair on each line.

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


def counted(number: int, noun: str) -> str:
    """Format a number of things.

    Examples
    --------
    >>> counted(1, "chunk"), counted(1000, "chunk")
    ('1 chunk', '1,000 chunks')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def describe(values: Mapping[str, object]) -> dict[str, str]:
    """Format the values of ``as_dict()`` as text, for tables.

    Nested mappings are merged with the rest; arrays and None are left out.

    Examples
    --------
    >>> describe({"count": 12000, "bytes": 2048, "mean": [0.5], "privacy": {"epsilon": 1.0}})
    {'count': '12,000', 'bytes': '2.00 kiB', 'epsilon': '1'}
    """
    return _texts(values, separator=",", brackets="")


def _texts(values: Mapping[str, object], *, separator: str, brackets: str) -> dict[str, str]:
    """Text of each value, with a separator of thousands and brackets of several items."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            nested = _texts(value, separator=separator, brackets=brackets)
            texts |= {key: text for key, text in nested.items() if key not in texts}
        elif isinstance(value, bool):
            texts[name] = "yes" if value else "no"
        elif isinstance(value, int):
            is_size = name.endswith("bytes")
            texts[name] = describe_bytes(value) if is_size else f"{value:{separator}}"
        elif isinstance(value, float):
            texts[name] = f"{value:{separator}.6g}"
        elif isinstance(value, str):
            texts[name] = value[:12] if name == "digest" else value
        elif isinstance(value, tuple):
            items = [item if isinstance(item, str) else f"{item:.4g}" for item in value]
            more = ["..."] if len(items) > _MAX_ITEMS else []
            joined = ", ".join(items[:_MAX_ITEMS] + more)
            texts[name] = f"{brackets[:1]}{joined}{brackets[1:]}"
    return texts


def one_line(values: Mapping[str, object]) -> str:
    """Format the values of ``as_dict()`` on one line, for ``repr``.

    Examples
    --------
    >>> one_line({"count": 12000, "interval": (0.5, 1.0), "mean": None})
    'count=12000, interval=(0.5, 1)'
    """
    texts = _texts(values, separator="", brackets="()")
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def printable(text: str, keep: str = "") -> str:
    r"""Escape control characters, since names may come from files of others.

    Parameters
    ----------
    text
        Text to show.
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
    """Format the message of an error on one line, with its type unless it is one of ours.

    Examples
    --------
    >>> first_line(KeyError("frames"))
    "KeyError: 'frames'"
    """
    text = printable(" ".join(str(error)[:_LONGEST].split()))
    if isinstance(error, SketchError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def jsonable(value: Any) -> Any:
    """Convert to plain numbers, text and lists, with ``None`` for numbers that are not finite."""
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


def describe_bytes(size: int | None) -> str:
    """Format a number of bytes with a binary unit.

    Examples
    --------
    >>> describe_bytes(3 * 2**20), describe_bytes(700), describe_bytes(None)
    ('3.00 MiB', '700 B', 'unknown')
    """
    if size is None:
        return "unknown"
    for unit, power in (("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("kiB", 10)):
        if size >= 0.9 * 2**power:
            return f"{size / 2**power:.2f} {unit}"
    return f"{size} B"
