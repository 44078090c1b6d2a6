"""Tables of a job file, and the errors of their settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

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
