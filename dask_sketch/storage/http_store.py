"""Read Zarr stores from web servers, which may send more than was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import FsspecStore

from dask_sketch.errors import ArtifactError

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

_PARTIAL, _MISSING = 206, 404  # status of an answer
_PIECE = 2**20  # bytes


class BoundedHTTPStore(FsspecStore):
    """Store on a web server, of which no more bytes are read than are asked for.

    A server may ignore the range of a request and send the whole file, or data without end. fsspec
    would hold all of it in memory.

    Parameters
    ----------
    store
        Store to read from, on a file system of HTTP.
    """

    def __init__(self, store: FsspecStore) -> None:
        super().__init__(store.fs, read_only=True, path=store.path)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Value of a key, or a range of the value.

        Raises
        ------
        ArtifactError
            If the server ignores a range that does not start at the first byte, or sends more.
        """
        if byte_range is None:
            return await super().get(key, prototype, None)
        start, limit, header = _span(byte_range)
        answer = await self._read(key, limit, header)
        if answer is None:
            return None
        found, status = answer
        if status != _PARTIAL and start != 0:
            raise ArtifactError(
                f"{self}: the server answers a request of a part of {key!r} with all of it. Serve "
                "the store by a server that supports ranges, or copy it."
            )
        if status == _PARTIAL and limit is not None and len(found) > limit:
            raise ArtifactError(
                f"{self}: the server sends more than the {limit:,} bytes of {key!r} that were "
                "asked for; they are not read."
            )
        return prototype.buffer.from_bytes(found[:limit])

    async def _read(self, key: str, limit: int | None, header: str) -> tuple[bytes, int] | None:
        """Read at most one byte more than the limit; return the bytes and the status."""
        settings: dict[str, Any] = dict(self.fs.kwargs)
        settings["headers"] = {
            **settings.get("headers", {}),
            "Range": header,
            "Accept-Encoding": "identity",  # ranges and sizes are those of the stored bytes
        }
        url = f"{self.path.rstrip('/')}/{key}" if key else self.path
        session = await self.fs.set_session()
        async with session.get(self.fs.encode_url(url), **settings) as answer:
            if answer.status == _MISSING:
                return None
            answer.raise_for_status()
            pieces: list[bytes] = []
            left = None if limit is None else limit + 1
            while left is None or left > 0:
                piece = await answer.content.read(_PIECE if left is None else min(left, _PIECE))
                if not piece:
                    break
                pieces.append(piece)
                left = None if left is None else left - len(piece)
            return b"".join(pieces), answer.status


def _span(byte_range: ByteRequest) -> tuple[int, int | None, str]:
    """First byte (negative from the end), number of bytes, and the header of a range."""
    if isinstance(byte_range, RangeByteRequest):
        start, stop = byte_range.start, byte_range.end
        return start, stop - start, f"bytes={start}-{stop - 1}"
    if isinstance(byte_range, SuffixByteRequest):
        return -byte_range.suffix, byte_range.suffix, f"bytes=-{byte_range.suffix}"
    assert isinstance(byte_range, OffsetByteRequest)
    return byte_range.offset, None, f"bytes={byte_range.offset}-"
