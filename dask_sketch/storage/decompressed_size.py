"""How large packed bytes become, told before they are unpacked."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Any

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK = 2**17  # most bytes of one block
_STEP = 2**20  # bytes unpacked at once to be counted
_MOST_GROWTH = 1032  # of deflate


def unpacked_bytes(compressor: str, packed: memoryview, limit: int) -> int:
    """Size after unpacking, or an upper bound, or some number over ``limit``.

    Formats that state their size are believed, since their decoders allocate what they state and
    no more; the others (gzip, zlib, bz2, lzma) are unpacked piece by piece, each thrown away, until
    the limit is reached.

    Parameters
    ----------
    compressor
        ``"zstd"``, ``"blosc"``, ``"lz4"``, ``"gzip"``, ``"zlib"``, ``"bz2"`` or ``"lzma"``.
    packed
        One packed chunk. Of one that is damaged, any number is returned: its decoder refuses it.
    limit
        What is allowed.

    Examples
    --------
    >>> unpacked_bytes("zlib", memoryview(zlib.compress(bytes(5000))), 10_000)
    5000
    """
    if compressor == "zstd":
        return _zstd_bytes(packed)
    if compressor == "blosc":
        return int.from_bytes(packed[4:8], "little")
    if compressor == "lz4":
        return int.from_bytes(packed[:4], "little", signed=True)
    if compressor in ("gzip", "zlib") and len(packed) * _MOST_GROWTH <= limit:
        return len(packed) * _MOST_GROWTH
    return _counted(compressor, packed, limit)


def _zstd_bytes(packed: memoryview) -> int:
    """Content size of the first frame; where it states none, the sum of what all blocks can hold.

    RFC 8878, section 3.1.1. A decoder that is told a size allocates that and no more.
    """
    total = place = 0
    while int.from_bytes(packed[place : place + 4], "little") == _ZSTD_MAGIC:
        flags = packed[place + 4] if place + 4 < len(packed) else 0
        single, checksum = flags >> 5 & 1, flags >> 2 & 1
        dictionary, width = (0, 1, 2, 4)[flags & 3], (single, 2, 4, 8)[flags >> 6]
        place += 5 + (1 - single) + dictionary
        if width and not total:
            stated = int.from_bytes(packed[place : place + width], "little")
            return stated + (256 if width == 2 else 0)
        place += width
        last = 0
        while not last and place + 3 <= len(packed):
            head = int.from_bytes(packed[place : place + 3], "little")
            last, kind, size = head & 1, head >> 1 & 3, head >> 3
            total += _ZSTD_BLOCK if kind == 2 else size
            place += 3 + (1 if kind == 1 else size)
        place += 4 * checksum
    return total


def _counted(compressor: str, packed: memoryview, limit: int) -> int:
    total = 0
    rest: Any = packed
    while rest and total <= limit:
        decoder = _decoder(compressor)
        before = len(rest)
        try:
            while not decoder.eof and total <= limit:
                total += len(decoder.decompress(rest, _STEP))
                rest = getattr(decoder, "unconsumed_tail", b"")
                if not rest and getattr(decoder, "needs_input", True) and not decoder.eof:
                    return total  # cut short
        except (zlib.error, OSError, lzma.LZMAError, EOFError):
            return total
        rest = decoder.unused_data
        if len(rest) >= before:
            return total
    return total


def _decoder(compressor: str) -> Any:
    if compressor == "bz2":
        return bz2.BZ2Decompressor()
    if compressor == "lzma":
        return lzma.LZMADecompressor()
    return zlib.decompressobj(wbits=47)  # zlib's and gzip's
