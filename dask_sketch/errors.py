"""Exceptions of dask-sketch.

Every one of them is a :class:`SketchError`, itself a ``ValueError``, so that one ``except``
catches all that the library refuses. A message names the argument, the value received and
the remedy, such as the command that installs a package.
"""

from __future__ import annotations

import re

_NAME = "dask-sketch"


class SketchError(ValueError):
    """Base class of all errors raised by dask-sketch.

    Parameters
    ----------
    message
        Text of the error. One that starts with ``name=value`` is about the parameter ``name``.
    parameter
        Name of the parameter that the message is about, where it does not start with it.

    Attributes
    ----------
    parameter
        Name of the parameter, ``None`` if the message is about none. The command line shows the
        option of this parameter.

    Examples
    --------
    >>> InputError("nan_policy='skip': choose 'raise' or 'omit'.").parameter
    'nan_policy'
    """

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message)
        if parameter is None:
            name, equals, _ = message.partition("=")
            parameter = name if equals and name.isidentifier() else None
        self.parameter = parameter


class InputError(SketchError):
    """Samples, weights or arguments that cannot be sketched as given."""


class ChunkError(SketchError):
    """One chunk of the input could not be read, or holds values that were refused.

    The message names the chunk. The class pickles by its message, so that it crosses from a
    worker to the client unchanged.
    """


class MergeError(SketchError):
    """Two sketches of different feature maps were combined; the message names the field."""


class CapacityError(SketchError):
    """Sums are larger than a sketch can hold exactly."""


class ArtifactError(SketchError):
    """A stored sketch, model or feature map is truncated, edited or of another schema."""


class PlanError(SketchError):
    """The plan refuses to start: the input cannot fit in the memory that there is."""


class DecodeError(SketchError):
    """The sketch cannot be decoded with the arguments given."""


class DeviceError(SketchError):
    """A GPU was asked for, and none can be used here."""


class LedgerError(SketchError):
    """A ledger cannot be read or written, or does not hold what was requested."""


class LedgerLocked(LedgerError):
    """Another process is writing to the ledger; the message names it and the time it started."""


class JobError(SketchError):
    """A job file is wrong; the message has a line for each error, with the path of its key."""


class ClusterError(SketchError):
    """The scheduler of a cluster, or all of its workers, were lost for good during a pass."""


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
    from importlib import metadata  # takes as long to import as the rest of a short command

    try:
        required = metadata.requires(_NAME) or []
    except metadata.PackageNotFoundError:  # a folder of sources on the path
        required = []
    requirements: list[str] = []
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
                requirements.append(
                    repr(requirement) if set(requirement) & set("[]<>") else requirement
                )
    if not requirements:
        return f"pip install '.[{extra}]' in the folder of the sources of {_NAME}"
    return f"pip install {' '.join(requirements)}"
