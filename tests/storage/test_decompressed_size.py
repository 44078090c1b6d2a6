"""Sizes of compressed bytes, before they are decompressed."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest

from dask_sketch.storage.decompressed_size import decompressed_size

COMPRESSORS = ["zstd", "blosc", "lz4", "gzip", "zlib", "bz2", "lzma"]


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("n", [0, 1, 300, 10**5])
def test_what_honest_compressors_state(name, n):
    data = np.random.default_rng(n).integers(0, 3, n, dtype=np.uint8).tobytes()
    packed = numcodecs.get_codec({"id": name}).encode(data)
    found = decompressed_size(name, memoryview(bytes(packed)), 10**8)
    if name in ("gzip", "zlib") and len(packed) * 1032 <= 10**8:
        assert found >= n
    else:
        assert found == n


def test_frames_of_zstd_that_state_no_size():
    # a frame of unknown size: two blocks that repeat a byte 2**17 times, one plain of 5
    window = b"\x28\xb5\x2f\xfd\x00\x58"
    block = (1 << 1 | 2**17 << 3).to_bytes(3, "little") + b"\0"
    frame = window + block + block + (1 | 5 << 3).to_bytes(3, "little") + b"12345"
    expected = 2 * 2**17 + 5
    assert len(numcodecs.Zstd().decode(frame)) == expected
    assert decompressed_size("zstd", memoryview(frame), 10) == expected
    assert decompressed_size("zstd", memoryview(frame * 2000), 10) == 2000 * expected


def test_frames_of_zstd_add_up():
    stated = bytes(numcodecs.Zstd().encode(bytes(1000)))
    skipped = b"\x50\x2a\x4d\x18\3\0\0\0abc"
    packed = memoryview(skipped + stated + skipped + stated)
    assert decompressed_size("zstd", packed, 10) == 2000


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_any_bytes_may_be_asked_for_their_size(compressor, rng):
    for n in (0, 1, 3, 7, 20, 1000):
        for _ in range(20):
            assert isinstance(decompressed_size(compressor, memoryview(rng.bytes(n)), 10**6), int)
