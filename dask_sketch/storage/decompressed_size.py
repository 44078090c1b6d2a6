"""Determine the size of compressed bytes before they are decompressed."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Any

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPED = 0x184D2A50  # first one of the 16 numbers that mark skipped frames
_ZSTD_BLOCK = 2**17  # largest size of one block in bytes
_LZMA_MEMORY = 2**27  # bytes of the dictionary of lzma; level 9 needs 65 MiB
_STEP = 2**20  # bytes that are decompressed at once to be counted
_DEFLATE_RATIO = 1032  # largest compression ratio of deflate


def decompressed_size(compressor: str, packed: memoryview, limit: int) -> int:
    """Size after decompression, an upper bound of it, or some number over ``limit``.

    The size stated by zstd, blosc and lz4 is returned, because their decoders allocate no more. The
    other formats (gzip, zlib, bz2, lzma) are decompressed block by block without keeping the
    result, until the limit is reached.

    Parameters
    ----------
    compressor
        ``"zstd"``, ``"blosc"``, ``"lz4"``, ``"gzip"``, ``"zlib"``, ``"bz2"`` or ``"lzma"``.
    packed
        One compressed chunk. The result for a damaged chunk is arbitrary: its decoder refuses it.
    limit
        Largest allowed size in bytes.

    Examples
    --------
    >>> decompressed_size("zlib", memoryview(zlib.compress(bytes(5000))), 10_000)
    5000
    """
    if compressor == "zstd":
        return _zstd_bytes(packed)
    if compressor == "blosc":
        return int.from_bytes(packed[4:8], "little")
    if compressor == "lz4":
        return int.from_bytes(packed[:4], "little", signed=True)
    if compressor in ("gzip", "zlib") and len(packed) * _DEFLATE_RATIO <= limit:
        return len(packed) * _DEFLATE_RATIO
    return _counted(compressor, packed, limit)


def _zstd_bytes(packed: memoryview) -> int:
    """Content size of all frames; the largest size of its blocks for one that states none.

    See RFC 8878, section 3.1. A decoder allocates no more than a stated size. Frames that a decoder
    skips count as nothing.
    """
    total = position = 0
    while True:
        magic = int.from_bytes(packed[position : position + 4], "little")
        if magic & ~0xF == _ZSTD_SKIPPED:
            position += 8 + int.from_bytes(packed[position + 4 : position + 8], "little")
            continue
        if magic != _ZSTD_MAGIC:
            return total
        flags = packed[position + 4] if position + 4 < len(packed) else 0
        single, checksum = flags >> 5 & 1, flags >> 2 & 1
        dictionary, width = (0, 1, 2, 4)[flags & 3], (single, 2, 4, 8)[flags >> 6]
        position += 5 + (1 - single) + dictionary
        stated = int.from_bytes(packed[position : position + width], "little") + 256 * (width == 2)
        position += width
        blocks = 0
        last = 0
        while not last and position + 3 <= len(packed):
            head = int.from_bytes(packed[position : position + 3], "little")
            last, block_type, size = head & 1, head >> 1 & 3, head >> 3
            blocks += _ZSTD_BLOCK if block_type == 2 else size
            position += 3 + (1 if block_type == 1 else size)
        position += 4 * checksum
        total += stated if width else blocks


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
                    return total  # truncated
        except lzma.LZMAError as error:
            return limit + 1 if "limit" in str(error) else total
        except (zlib.error, OSError, EOFError):
            return total
        rest = decoder.unused_data
        if len(rest) >= before:
            return total
    return total


def _decoder(compressor: str) -> Any:
    if compressor == "bz2":
        return bz2.BZ2Decompressor()
    if compressor == "lzma":
        return lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
    return zlib.decompressobj(wbits=47)  # zlib's and gzip's
