"""Frozen dataclasses that are frozen after a pickle too."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class Rebuilt:
    """Base of dataclasses that travel as their fields, and are made anew from these.

    What ``__post_init__`` does holds again on the other side: NumPy's arrays come out of a pickle
    writeable, and with a change of one of them a sketch would no longer be that of its samples.
    What is cached stays here, too.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        own: Any = self  # each subclass is a dataclass
        return type(self), tuple(getattr(self, field.name) for field in fields(own))
