"""Checksum of the source of all kernels.

numba loads a compiled function from its cache if its bytecode, the values that it encloses and its
file are unchanged. Emitted arithmetic, sizes of buffers and functions of other modules are not
compared. A compiled function of more than one module therefore encloses this checksum.
"""

from __future__ import annotations

from importlib import resources
from zlib import crc32


def _checksum() -> int:
    files = (one for one in resources.files(__package__).iterdir() if one.name.endswith(".py"))
    texts = (one.read_bytes() for one in sorted(files, key=lambda one: one.name))
    return crc32(b"".join(texts))


SOURCE_MARK = _checksum()
