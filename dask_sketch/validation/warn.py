"""Warnings that point at the line of the user's code that called the package."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from pathlib import Path

# generators of the package that are context managers are called by contextlib
_SKIPPED = (str(Path(__file__).parents[1]) + os.sep, contextlib.__file__)


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
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
