"""Tables of a job file, and the errors of their settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_SHOWN = 60  # characters of a key or a value in a message
Wrong = tuple[tuple[str | int, ...], Any, str]  # key path, value (None is not shown) and remedy


def table_errors(wrong: Iterable[Wrong]) -> ValidationError:
    """An error that pydantic merges with those of the other tables."""
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
    """A table of a job file: unknown keys and values of another type are refused."""

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
    """Path of a key, such as ``sources[1].path``.

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
    return cut(path, MAX_SHOWN)


def shown_value(value: Any) -> str:
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
    return cut(json.dumps(value, default=str), MAX_SHOWN)


def cut(text: str, length: int) -> str:
    """Shorten a text to a number of characters."""
    return text if len(text) <= length else text[: length - 3] + "..."
