"""Warnings that point at the line of the user's code that called the package."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

# generators of the package that are context managers are called by contextlib
_SKIPPED = (str(Path(__file__).parents[1]) + os.sep, contextlib.__file__)


_COLLECTED: ContextVar[list[Warning] | None] = ContextVar("_COLLECTED", default=None)


@contextlib.contextmanager
def collect_warnings() -> Iterator[list[Warning]]:
    """Collect the warnings of :func:`warn_user` in this thread, which are not issued.

    Code that threads of an executor may run collects by this function:
    ``warnings.catch_warnings`` changes the whole process, and threads in overlapping periods leave
    it changed (https://docs.python.org/3.11/library/warnings.html#warnings.catch_warnings).

    Yields
    ------
    warnings
        Warnings so far, in their order.

    Examples
    --------
    >>> with collect_warnings() as collected:
    ...     warn_user("a rare event")
    >>> collected
    [UserWarning('a rare event')]
    """
    collected: list[Warning] = []
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)


def issue_warnings(collected: Iterable[Warning]) -> None:
    """Issue collected warnings by :func:`warn_user`.

    Parameters
    ----------
    collected
        Warnings, in their order.
    """
    for warning in collected:
        warn_user(warning)


def warn_user(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the innermost line outside of the package.

    Python shows that line, and filters by module and line match it, however deep in the package
    the warning is raised. From Python 3.12 on, ``skip_file_prefixes`` does the same.

    Parameters
    ----------
    message
        Text, or a warning to issue again.
    category
        Class of the warning if ``message`` is text.
    """
    collected = _COLLECTED.get()
    if collected is not None:
        collected.append(message if isinstance(message, Warning) else category(message))
        return
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
