"""Commands that install optional packages."""

from __future__ import annotations

import re
from importlib import metadata

_NAME = "dask-sketch"


def install_command(extra: str) -> str:
    """Command that installs the packages of an extra, whatever dask-sketch was installed from.

    The packages themselves are named: dask-sketch may come from a checkout or a wheel, and then no
    package index has it.

    Parameters
    ----------
    extra
        Name of an extra in ``pyproject.toml``, such as ``"plot"``.

    Examples
    --------
    >>> install_command("tls")
    "pip install 'cryptography>=43'"
    """
    try:
        required = metadata.requires(_NAME) or []
    except metadata.PackageNotFoundError:  # a folder of sources on the path
        required = []
    found: list[str] = []
    left = [extra]
    while left:
        marker = re.compile(rf"extra == ['\"]{re.escape(left.pop())}['\"]")
        for text in required:
            requirement, _, condition = (part.strip() for part in text.partition(";"))
            if not marker.search(condition):
                continue
            if inner := re.fullmatch(rf"{_NAME}\[(.+)\]", requirement):
                left += inner[1].split(",")
            else:
                found.append(repr(requirement) if set(requirement) & set("[]<>") else requirement)
    if not found:
        return f"pip install '.[{extra}]' in the folder of the sources of {_NAME}"
    return f"pip install {' '.join(found)}"
