"""Permissions of the operator: secrets that job files may use, and the places to which they go.

A job file of another author could name any environment variable or file as a secret, and send it to
a server of this author. So permissions are not in the job file, but in the configuration of Dask:
``sketch.job-secrets`` lists the places to which each secret may be sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import SecretStr

from dask_sketch import config
from dask_sketch.errors import JobError

SETTING = "job-secrets"
AMBIENT = "ambient"  # credentials that a file system finds by itself, such as a machine's
_VARIABLE = "DASK_SKETCH__JOB_SECRETS"
# options that name a server; other options count if their values look like a host, path or URL
_SERVER = re.compile(
    r"host|endpoint|ur[il]|prox|account|server|address|domain|gateway|remote|target|fo$",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[A-Za-z0-9_-]*")
_CLIMBS = re.compile(r"[/\\]\.\.?([/\\?#]|$)")  # parts of a path that clients resolve


class Secret(SecretStr):
    """Secret of a job file.

    Attributes
    ----------
    reference
        Environment variable or file that holds it, such as ``"env:S3_KEY"``.
    """

    def __init__(self, value: str, reference: str) -> None:
        super().__init__(value)
        self.reference = reference


def permitted_places(reference: str) -> list[str] | None:
    """List the places to which a secret may be sent; ``None`` if job files may not use it.

    Parameters
    ----------
    reference
        ``"env:NAME"``, ``"file:PATH"`` with an absolute path, or ``"ambient"``.

    Raises
    ------
    JobError
        If the setting is not a table of lists of places.
    """
    table = config.get(SETTING)
    if not isinstance(table, Mapping) or not all(
        isinstance(urls, (list, tuple)) and all(isinstance(url, str) for url in urls)
        for urls in table.values()
    ):
        raise JobError(
            f"sketch.{SETTING} should list the places of each secret, such as "
            '{"env:S3_KEY": ["s3://bucket"]}'
        )
    named = {_resolved(str(key)): list(urls) for key, urls in table.items()}
    return named.get(_resolved(reference))


def _resolved(reference: str) -> str:
    kind, _, path = reference.partition(":")
    return f"file:{Path(path).expanduser().resolve()}" if kind == "file" else reference


def remedy(reference: str, url: str = "s3://bucket") -> str:
    """Describe how the operator permits a secret."""
    text = json.dumps({reference: [url]})
    return f"the operator permits it outside of the job file, by {_VARIABLE}='{text}'"


def require_permitted(options: Mapping[str, Any], locations: Iterable[str]) -> None:
    """Raise if secrets, or credentials of the machine, would be sent to places without permission.

    Parameters
    ----------
    options
        Options of a file system, in which secrets are :class:`Secret`.
    locations
        Paths and URLs that are opened with these options.

    Raises
    ------
    ValueError
        If a place is not permitted for a secret; the message names both.
    """
    urls = [location for location in locations if "://" in location]
    if not urls:
        return  # local paths are opened without options
    references = sorted({secret.reference for secret in _secrets(options)})
    servers = list(_servers(options))
    for reference in references:
        for url in (*urls, *servers):
            _require(reference, url)
    for url in servers if not references else ():
        _require(AMBIENT, url)


def _require(reference: str, url: str) -> None:
    permitted = permitted_places(reference) or []
    if url in permitted:
        return
    below = any(url.startswith(f"{place.rstrip('/')}/") for place in permitted)
    climbs = _CLIMBS.search(unquote(unquote(url))) is not None
    if climbs or not below:
        credentials = "credentials of the machine" if reference == AMBIENT else reference
        advice = "write the place without '..' and '.'" if climbs else remedy(reference, url)
        raise ValueError(f"may not send {credentials} to {url}: {advice}")


def _secrets(value: object) -> Iterator[Secret]:
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, (Mapping, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _secrets(item)


def _servers(value: object, named: bool = False) -> Iterator[str]:
    """Yield the values of options that name a server, a path or a URL, or may do so."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _servers(item, named or _SERVER.search(key) is not None)
    elif isinstance(value, list):
        for item in value:
            yield from _servers(item, named)
    elif isinstance(value, (bool, Secret)) or value is None:
        return
    elif named or (isinstance(value, str) and not _PLAIN.fullmatch(value)):
        yield str(value)
