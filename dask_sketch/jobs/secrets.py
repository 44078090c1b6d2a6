"""Values that stand in the environment or in files, and that nothing may repeat."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dask_sketch.errors import InputError, SketchError
from dask_sketch.jobs.checks import Refused, is_kept_elsewhere

MOST_BYTES = 2**16  # of a file with a secret
_SHORT = 4  # characters; what is shorter would blot out half of a text
HIDDEN = "***"


class Secrets:
    """Fills options in with their secrets, and takes these out of any text again.

    Examples
    --------
    >>> os.environ["EXAMPLE_KEY"] = "hunter22"
    >>> secrets = Secrets()
    >>> secrets.fill({"anon": False, "key": {"env": "EXAMPLE_KEY"}})
    {'anon': False, 'key': 'hunter22'}
    >>> secrets.hide("403 for user hunter22")
    '403 for user ***'
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def fill(self, options: Mapping[str, Any], folder: Path = Path()) -> dict[str, Any]:
        """The options with the secrets in their place.

        Parameters
        ----------
        options
            Of a file system; ``{"env": name}`` and ``{"file": path}`` stand for secrets.
        folder
            What the paths of files are relative to.

        Raises
        ------
        Refused
            If a variable is not set, or a file cannot be read.
        """
        return {key: self._filled(value, folder) for key, value in options.items()}

    def _filled(self, value: Any, folder: Path) -> Any:
        if is_kept_elsewhere(value):
            ((kind, place),) = value.items()
            secret = _variable(place) if kind == "env" else _content(folder / place)
            self._known.add(secret)
            return secret
        if isinstance(value, Mapping):
            return self.fill(value, folder)
        if isinstance(value, list):
            return [self._filled(item, folder) for item in value]
        return value

    def hide(self, text: str) -> str:
        """The text without any secret that was filled in."""
        for secret in sorted(self._known, key=len, reverse=True):
            for form in (secret, repr(secret)[1:-1]):
                if len(form) >= _SHORT:
                    text = text.replace(form, HIDDEN)
        return text

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the secrets out of errors that leave this block, and of what is logged within."""
        handlers = logging.getLogger("dask_sketch").handlers
        for handler in handlers:
            handler.addFilter(self._clean)
        try:
            yield
        except Exception as error:
            text = str(error)
            clean = self.hide(text)
            if clean == text:
                raise
            # nothing of the old error: its text would be shown with the new one
            kind = type(error) if isinstance(error, SketchError) else InputError
            named = clean if kind is type(error) else f"{type(error).__name__}: {clean}"
            raise kind(named) from None
        finally:
            for handler in handlers:
                handler.removeFilter(self._clean)

    def _clean(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self.hide(record.getMessage()), ()
        return True

    def __repr__(self) -> str:
        return f"<{len(self._known)} secrets>"


def _variable(name: str) -> str:
    found = os.environ.get(name)
    if not found:
        raise Refused(f"the environment has no variable {name}: set it")
    return found


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            found = file.read(MOST_BYTES + 1)
        if len(found) > MOST_BYTES:
            raise Refused(f"{path} has more than {MOST_BYTES:,} bytes: it holds no secret")
        return found.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read ({type(error).__name__})") from error
