"""Read local files of other authors, which may be pipes or devices."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, limit: int) -> bytes:
    """Read at most ``limit`` bytes of a file; pipes and devices, which may never end, are refused.

    Parameters
    ----------
    path
        Path of the file. Symbolic links are followed.
    limit
        Largest number of bytes.

    Raises
    ------
    OSError
        If the file cannot be read, is not a regular file, or no file can have this name.

    Examples
    --------
    >>> len(read_regular_file(Path(__file__), 3))
    3
    >>> read_regular_file(Path("/dev/zero"), 3)
    Traceback (most recent call last):
    OSError: [Errno 22] not a regular file: '/dev/zero'
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer would block
    except ValueError as error:  # a zero byte, or text that no file system has
        raise OSError(errno.EINVAL, "no file has this name") from error
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(limit)
