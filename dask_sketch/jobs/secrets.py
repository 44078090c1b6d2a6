"""Read the secrets of a job file from the environment or from files, and hide them in messages."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import SecretStr

from dask_sketch.errors import InputError, SketchError
from dask_sketch.jobs.permissions import Secret, permitted_places, remedy
from dask_sketch.storage.local_files import read_regular_file

MAX_BYTES = 2**16  # bytes of a file that holds a secret, at most
MAX_TEXT = 4096  # characters of one option
MAX_OPTIONS = 64  # options in one table or list, at most
MAX_DEPTH = 4
MIN_HIDDEN = 4  # characters; hiding shorter secrets would make texts unreadable
HIDDEN = "***"
SECRET_NAME = re.compile(
    r"secret|passw|pwd|token|credential|private|authori[sz]ation|cookie|bearer|"
    r"(access|account|api|storage)[-_]?key|connection[-_]?string|"
    r"(^|[-_])(sas|sig|signature|auth|key)($|[-_])",
    re.IGNORECASE,
)


class Secrets:
    """Secrets of one job file.

    Parameters
    ----------
    folder
        Folder to which the paths of files with secrets are relative.

    Examples
    --------
    >>> import dask.config
    >>> os.environ["EXAMPLE_KEY"] = "hunter22"
    >>> secrets = Secrets()
    >>> with dask.config.set({"sketch.job-secrets": {"env:EXAMPLE_KEY": ["s3://bucket"]}}):
    ...     options = secrets.read({"anon": False, "key": {"env": "EXAMPLE_KEY"}})
    >>> options
    {'anon': False, 'key': Secret('**********')}
    >>> revealed(options)
    {'anon': False, 'key': 'hunter22'}
    >>> secrets.hide("403 for user hunter22")
    '403 for user ***'
    """

    def __init__(self, folder: Path = Path()) -> None:
        self.folder = folder
        self._known: set[str] = set()

    def read(self, options: Any) -> dict[str, Any]:
        """Check the options of a file system, and read the secrets that they refer to.

        Parameters
        ----------
        options
            Table of options, in which ``{"env": name}`` and ``{"file": path}`` refer to secrets.

        Returns
        -------
        options
            The same options with a :class:`~dask_sketch.jobs.permissions.Secret` in place of each
            reference.

        Raises
        ------
        ValueError
            If a secret is given in clear text, the operator does not permit it, an environment
            variable is not set, a file cannot be read, or the options are nested too deeply or too
            large.
        """
        if not isinstance(options, dict):
            raise ValueError('should be a table, such as { anon = true, key = { env = "S3_KEY" } }')
        return {key: self._read(key, value, 0) for key, value in _few(options).items()}

    def _read(self, key: str, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"should have at most {MAX_DEPTH} tables within each other")
        if _is_reference(value):
            ((kind, source),) = value.items()
            _require_printable(source)
            path = (self.folder / source).absolute()
            reference = f"env:{source}" if kind == "env" else f"file:{path}"
            if permitted_places(reference) is None:
                raise ValueError(f"may not use {reference}: {remedy(reference)}")
            secret = _variable(source) if kind == "env" else _content(path)
            self._known.add(secret)
            return Secret(secret, reference)
        is_secret = SECRET_NAME.search(key)
        if isinstance(value, list):
            return [self._read(key, item, depth + 1) for item in _few(value)]
        if isinstance(value, dict) and not is_secret:
            return {name: self._read(name, item, depth + 1) for name, item in _few(value).items()}
        if is_secret:
            raise ValueError(
                f"{key} is a secret, and a job file may not contain it: give "
                f'{key} = {{ env = "NAME" }} or {{ file = "PATH" }}'
            )
        if isinstance(value, str):
            _require_printable(value)
            if len(value) > MAX_TEXT:
                raise ValueError(f"should contain texts of at most {MAX_TEXT:,} characters")
            if "://" in value:
                require_no_secret(value)
        elif not isinstance(value, (bool, int, float)):
            raise ValueError("should contain text, numbers, true and false only")
        return value

    def hide(self, text: str) -> str:
        """Replace every secret in a text by asterisks."""
        for secret in sorted(self._known, key=len, reverse=True):
            for form in (secret, repr(secret)[1:-1]):
                if len(form) >= MIN_HIDDEN:
                    text = text.replace(form, HIDDEN)
        return text

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the secrets in log records of this block, and in errors that leave it."""
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
            # the old error is not chained: its text would be printed with the new one
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


def revealed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each ``SecretStr`` in options by its value."""
    return {key: _revealed(value) for key, value in options.items()}


def _revealed(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return revealed(value)
    return [_revealed(item) for item in value] if isinstance(value, list) else value


def require_no_secret(url: str) -> None:
    """Raise for a URL that contains a user, a password or a signature.

    Raises
    ------
    ValueError
        If the URL contains one of these, or is not valid.
    """
    try:
        parts = urlsplit(url)
        credentials = parts.username or parts.password
    except ValueError as error:
        raise ValueError("should be a valid URL") from error
    if credentials or any(SECRET_NAME.search(key) for key, _ in parse_qsl(parts.query)):
        raise ValueError(
            "should have no user, password or signature in the URL: give them in "
            'storage_options, as { env = "NAME" } or { file = "PATH" }'
        )


def _is_reference(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) == 1
        and set(value) <= {"env", "file"}
        and isinstance(next(iter(value.values())), str)
    )


def _require_printable(text: str) -> None:
    if not text.isprintable():
        raise ValueError("should contain no control characters")


def _few(items: Any) -> Any:
    if len(items) > MAX_OPTIONS:
        raise ValueError(f"should have at most {MAX_OPTIONS} options")
    return items


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ValueError(f"the environment has no variable {name}: set it")
    return value


def _content(path: Path) -> str:
    try:
        content = read_regular_file(path, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"{path} has more than {MAX_BYTES:,} bytes: it holds no secret")
        return content.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ValueError(f"{path} cannot be read ({reason})") from error
