"""Check the metadata of a Zarr array of an untrusted author, and what its chunks may hold."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_sketch.errors import ArtifactError

MAX_CHUNK = 2**32  # bytes of one decompressed chunk or shard
_MAX_INDEX = 2**20  # chunks of one shard
_SLACK = 2**16  # bytes of checksums and headers of codecs in a chunk
_MAX_ITEM = 16  # bytes of one number of a filter
_MAX_FILTERS = 8
# compressors: the size of their output is determined before they decompress
_COMPRESSORS = {"zstd", "blosc", "gzip", "zlib", "lz4", "bz2", "lzma"}
_TEXTS = {"vlen-utf8", "vlen-bytes"}  # codecs of texts, which are in other arrays than samples
_CODECS = {
    *_COMPRESSORS,
    *_TEXTS,
    *("bytes", "endian", "transpose", "crc32c", "crc32", "adler32", "fletcher32"),
    *("jenkins_lookup3", "shuffle", "delta", "astype", "bitround", "fixedscaleoffset"),
    *("quantize", "packbits"),
}
_CASTS = {"astype", "delta", "fixedscaleoffset", "quantize", "packbits"}
_AFTER = {"crc32c"}  # codecs that may follow the compressor, whose output they only extend
_DTYPES = ("dtype", "astype", "encode_dtype", "decode_dtype")  # settings of filters
_XZ = 1  # format of lzma whose headers tell the decoder all
_WIDTH = re.compile(r"[<>|=]?([a-zA-Z])(\d*)")
Codec = tuple[str, dict[str, Any]]  # name and settings


@dataclass(frozen=True)
class ChunkLayout:
    """Sizes and compressor of the chunks of one array, from its metadata.

    Attributes
    ----------
    chunk_bytes
        Size of one decompressed chunk in bytes; in shards, of an inner chunk.
    compressor
        Name of the compressor; None without one.
    widening
        Largest ratio of the bytes of a number before and after the filters.
    n_texts
        Number of texts of variable length in a chunk; 0 for numbers.
    n_inner
        Number of chunks in a shard; 0 without shards.
    index_first
        Whether the index of a shard is at its beginning, not at its end.
    """

    chunk_bytes: int
    compressor: str | None = None
    widening: int = 1
    n_texts: int = 0
    n_inner: int = 0
    index_first: bool = False

    @property
    def index_bytes(self) -> int:
        """Size of the index of a shard: two numbers for each chunk, and a checksum."""
        return 16 * self.n_inner + 4 if self.n_inner else 0

    @property
    def max_chunk_bytes(self) -> int:
        """Largest allowed size of a decompressed chunk."""
        return self.widening * self.chunk_bytes + _SLACK

    @property
    def max_object_bytes(self) -> int:
        """Largest allowed size of one stored object; compression may lengthen a chunk."""
        return 2 * max(self.n_inner, 1) * self.max_chunk_bytes + self.index_bytes


def layout_of(document: dict[str, Any]) -> ChunkLayout:
    """Check the metadata of one array of format 2 or 3.

    Parameters
    ----------
    document
        Parsed metadata.

    Raises
    ------
    ArtifactError
        If the metadata states a chunk that is too large, or codecs that are not known to be
        harmless in this order.
    """
    if document.get("zarr_format") == 2:
        shape, chunks = document["shape"], document["chunks"]
        width = _width(document["dtype"])
        # writers apply filters first and the compressor last; readers in reverse order
        applied = [*(document.get("filters") or []), document.get("compressor")]
        codecs = [(codec["id"], codec) for codec in applied if codec is not None]
        return _layout(shape, chunks, width, codecs)
    shape, width = document["shape"], _width(document["data_type"])
    chunks = document["chunk_grid"]["configuration"]["chunk_shape"]
    codecs = [_named(codec) for codec in document["codecs"]]
    if not codecs or codecs[0][0] != "sharding_indexed":
        return _layout(shape, chunks, width, codecs)
    inside = codecs[0][1]
    if [_named(codec)[0] for codec in inside["index_codecs"]] != ["bytes", "crc32c"]:
        raise ArtifactError(
            "has shards with an index of other codecs than bytes and crc32c: write it again."
        )
    if len(codecs) > 1:
        raise ArtifactError(
            "compresses whole shards, so no chunk of them can be read alone: write it again."
        )
    _layout(shape, chunks, width, [])
    inner = inside["chunk_shape"]
    layout = _layout(shape, inner, width, [_named(codec) for codec in inside["codecs"]])
    n_inner = math.prod(-(-whole // part) for whole, part in zip(chunks, inner, strict=True))
    if n_inner > _MAX_INDEX:
        raise ArtifactError(
            f"states {n_inner:,} chunks in a shard, over the limit of {_MAX_INDEX:,}."
        )
    first = inside.get("index_location", "end") == "start"
    return replace(layout, n_inner=n_inner, index_first=first)


def _layout(shape: Any, chunks: Any, width: int, codecs: Sequence[Codec]) -> ChunkLayout:
    for sizes, minimum in ((shape, 0), (chunks, 1)):
        if not all(type(n) is int and minimum <= n < 2**62 for n in sizes):
            raise ArtifactError(f"states sizes {str(sizes)[:60]}, which are not valid integers.")
    if len(shape) != len(chunks):
        raise ArtifactError(f"states {len(shape)} dimensions, and chunks of {len(chunks)}.")
    size = math.prod(chunks) * width
    if size > MAX_CHUNK:
        raise ArtifactError(
            f"states chunks of {size:,} bytes, over the limit of {MAX_CHUNK:,}: they are not "
            "read. Write the data again in smaller chunks."
        )
    codecs = [(_known(name), settings) for name, settings in codecs]
    compressor, widening = _checked_codecs(codecs)
    has_texts = any(name in _TEXTS for name, _ in codecs)
    return ChunkLayout(size, compressor, widening, math.prod(chunks) if has_texts else 0)


def _checked_codecs(codecs: Sequence[Codec]) -> tuple[str | None, int]:
    """Compressor, and the ratio by which filters may widen numbers; codecs in order of writing."""
    names = [name for name, _ in codecs]
    positions = [position for position, name in enumerate(names) if name in _COMPRESSORS]
    if len(positions) > 1 or (positions and not set(names[positions[0] + 1 :]) <= _AFTER):
        raise ArtifactError(
            f"names the codecs {', '.join(names)[:80]}. Give one compressor, which comes last: "
            "the size of its output is known before it is made."
        )
    filters = [name for name in names if name not in _COMPRESSORS]
    if len(filters) > _MAX_FILTERS or sum(filters.count(name) for name in _CASTS) > 1:
        raise ArtifactError(
            f"names the filters {', '.join(filters)[:80]}: write the data again with one filter "
            "that changes the type of numbers, or none."
        )
    for name, settings in codecs:
        for key in _DTYPES:
            _require_numbers(name, settings.get(key))
    widening = _MAX_ITEM if _CASTS & set(filters) else 1  # it may shorten numbers when reading
    if not positions:
        return None, widening
    compressor, settings = codecs[positions[0]]
    if compressor == "lzma" and (settings.get("format", _XZ) != _XZ or settings.get("filters")):
        raise ArtifactError(
            "names lzma without headers, whose size is not known: write the data again with zstd."
        )
    return compressor, widening


def _require_numbers(name: str, dtype: Any) -> None:
    """Refuse a filter of other values than numbers, which could be of any length."""
    if dtype is None:
        return
    try:
        stored_type = np.dtype(str(dtype))
    except TypeError:
        stored_type = np.dtype(object)
    if stored_type.kind not in "biufcmM" or stored_type.itemsize > _MAX_ITEM:
        raise ArtifactError(
            f"names the dtype {str(dtype)[:60]!r} of {name}: give one of numbers of up to "
            f"{_MAX_ITEM} bytes."
        )


def _named(codec: Any) -> Codec:
    """Name and settings of a codec of format 3."""
    if isinstance(codec, str):
        return codec, {}
    return str(codec["name"]), dict(codec.get("configuration") or {})


def _known(name: Any) -> str:
    plain = str(name).removeprefix("numcodecs.")
    if plain not in _CODECS:
        raise ArtifactError(
            f"names the codec {str(name)[:60]!r}. Only codecs of numbers are used: others can run "
            "code of the author (pickle) or make objects. If you trust the store, open its array "
            "with zarr and give the array."
        )
    return plain


def _width(kind: Any) -> int:
    """Size of one element in bytes, from its type in the metadata."""
    if isinstance(kind, str):
        if kind in np.sctypeDict:
            return np.dtype(kind).itemsize
        match = _WIDTH.fullmatch(kind)
        if match:
            return max(int(match[2] or 8), 1) * (4 if match[1] == "U" else 1)
    if isinstance(kind, list):  # fields of a record: name, type, and shape if any
        return sum(_width(field[1]) * math.prod((field[2:] and field[2]) or [1]) for field in kind)
    if isinstance(kind, dict):
        settings = kind.get("configuration") or {}
        if "fields" in settings:
            return sum(_width(field[1]) for field in settings["fields"])
        return int(settings.get("length_bytes", 64))
    return 64  # text of variable length: not samples, and small
