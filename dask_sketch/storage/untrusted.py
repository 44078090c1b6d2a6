"""Read Zarr stores of untrusted authors: check documents and chunks before Zarr uses them.

A store is read through :class:`GuardedStore`, which sees every document and every stored chunk
first. It refuses metadata that is large or not plain JSON, codecs that are not for numbers (pickle
can run code), chunks that state more bytes than the limit, chunks that decompress to more bytes
than the metadata states, keys that lead out of the store, by ``..`` or by a symbolic link, and keys
of pipes, devices and other special files. Web servers may send more than was asked for.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numcodecs
import numpy as np
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.local import LocalFileSystem
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, WrapperStore

from dask_sketch.errors import ArtifactError
from dask_sketch.storage.chunk_layout import ChunkLayout, layout_of
from dask_sketch.storage.decompressed_size import decompressed_size
from dask_sketch.storage.overwrite import local_path
from dask_sketch.storage.read_only import ReadOnlyStore, is_document

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

MAX_METADATA = 2**26  # bytes of one document
_MAX_FOLDERS = 4096  # folders of a store that are remembered
# one byte more than the limit, so that longer documents are noticed
_WHOLE_DOCUMENT = RangeByteRequest(0, MAX_METADATA + 1)
_PARTIAL, _MISSING = 206, 404  # status of an answer of HTTP
_ANSWER_SECONDS = 60.0  # time without any byte of an answer after which a server has stopped
_PIECE = 2**20  # bytes of an answer that are read at once


class GuardedStore(ReadOnlyStore):
    """Read-only store that checks every key and every value.

    Parameters
    ----------
    store
        Store to read from.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._root = _local_root(store)
        # those of other packages may fail at a range that ends after the value
        self._takes_long_ranges = isinstance(
            store, (LocalStore, FsspecStore, MemoryStore, WrapperStore)
        )
        self._layouts: dict[str, ChunkLayout] = {}
        self._folders: set[Path] = set()  # folders that are known to be in the store

    def _admit(self, key: str) -> None:
        size = self._require_inside(key)
        if not is_document(key):
            self._layout_of(key, size)

    def _admit_listing(self, prefix: str) -> None:
        self._require_inside(prefix)

    def _part(self, key: str, byte_range: ByteRequest | None) -> ByteRequest | None:
        if is_document(key):
            return _WHOLE_DOCUMENT if self._takes_long_ranges else None
        # a server may answer with any number of bytes
        if byte_range is None and self._root is None and self._takes_long_ranges:
            return _whole_chunk(self._layout_of(key, 0))
        return byte_range

    def _checked(
        self, key: str, byte_range: ByteRequest | None, value: Buffer | None
    ) -> Buffer | None:
        if value is None:
            return None
        if is_document(key):
            if byte_range not in (None, _WHOLE_DOCUMENT):
                raise ArtifactError(f"{self}: the document {key!r} is only read as a whole.")
            self._read(key, key.rpartition("/")[0], value.to_bytes())
            return value
        layout = self._layout_of(key, 0)
        if byte_range in (None, _whole_chunk(layout)):
            self._layout_of(key, len(value))
            byte_range = None
        if layout.compressor is not None or layout.n_texts:
            for piece in _pieces(value.as_numpy_array(), layout, byte_range, key):
                _require_stated_size(piece, layout, key)
        return value

    def _require_inside(self, key: str) -> int:
        """Refuse keys that lead out of the store; return the size of a local file, else 0."""
        if key.startswith("/") or ".." in key.split("/") or "\\" in key or "\0" in key:
            raise ArtifactError(f"{self}: the key {key!r} leads out of the store; it is not read.")
        if self._root is None:
            return 0
        path = root = self._root
        for part in key.split("/"):
            path = path / part
            if path in self._folders:
                continue
            try:
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    self._require_below(root, path, key)
                    status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return 0
            if stat.S_ISREG(status.st_mode):
                return status.st_size
            if not stat.S_ISDIR(status.st_mode):  # reading a pipe or a device may never end
                raise ArtifactError(f"{self}: {key!r} is not a regular file; it is not read.")
            if len(self._folders) > _MAX_FOLDERS:
                self._folders.clear()
            self._folders.add(path)
        return 0

    def _require_below(self, root: Path, path: Path, key: str) -> None:
        if not path.resolve().is_relative_to(root.resolve()):
            raise ArtifactError(
                f"{self}: {key!r} is a link that leads out of the store; it is not followed. If "
                "you trust the store, open its array with zarr and give the array."
            )

    def _read(self, key: str, prefix: str, text: bytes) -> None:
        """Check a document, and store the layouts of its arrays."""
        if len(text) > MAX_METADATA:
            raise ArtifactError(f"{self}: {key!r} has over {MAX_METADATA:,} bytes of metadata.")
        try:
            parsed = json.loads(text)
        except RecursionError as error:
            raise ArtifactError(f"{self}: {key!r} is nested too deeply.") from error
        except ValueError:
            return  # Zarr raises its own error
        if not isinstance(parsed, dict):
            return
        try:
            for path, document in _arrays_in(key, prefix, parsed):
                self._layouts[path] = layout_of(document)
        except ArtifactError as error:
            raise ArtifactError(f"{self}: {key!r} {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ArtifactError(
                f"{self}: {key!r} is not the metadata of an array ({type(error).__name__}: "
                f"{error})."
            ) from error

    def _layout_of(self, key: str, size: int) -> ChunkLayout:
        """Layout of the array of a chunk; refuse chunks that are stored in too many bytes."""
        prefix = key
        while prefix:
            prefix = prefix.rpartition("/")[0]
            if prefix in self._layouts:
                layout = self._layouts[prefix]
                if size > layout.max_object_bytes:
                    raise ArtifactError(
                        f"{self}: {key!r} has {size:,} bytes, more than its metadata allows."
                    )
                return layout
        raise ArtifactError(f"{self}: {key!r} belongs to no array whose metadata was read.")

    def __reduce__(self) -> Any:
        # tasks contain the store: values that can be computed again are not pickled
        return _restore, (
            self._store,
            [(path, *_values(one)) for path, one in self._layouts.items()],
        )


def _whole_chunk(layout: ChunkLayout) -> RangeByteRequest:
    """Range of a whole chunk, and of one byte more, so that longer ones are noticed."""
    return RangeByteRequest(0, layout.max_object_bytes + 1)


def _values(layout: ChunkLayout) -> tuple[Any, ...]:
    """Attributes of a layout, without those at the end that are zero: each task holds some."""
    values = astuple(layout)
    while not values[-1]:
        values = values[:-1]
    return values


def _restore(store: Store, layouts: list[tuple[Any, ...]]) -> GuardedStore:
    restored = GuardedStore(store)
    restored._layouts.update({path: ChunkLayout(*values) for path, *values in layouts})
    return restored


def _local_root(store: Any) -> Path | None:
    """Folder of a store of local files, through any interface; None for other stores."""
    while isinstance(store, WrapperStore):
        store = store._store
    if isinstance(store, LocalStore):
        return store.root
    files = getattr(store, "fs", None)
    files = getattr(files, "sync_fs", files)  # Zarr wraps file systems that are not asynchronous
    if isinstance(files, CachingFileSystem):
        files = files.fs
    return Path(store.path) if isinstance(files, LocalFileSystem) else None


def with_time_limits(url: str, storage_options: dict[str, Any] | None) -> dict[str, Any]:
    """Options of the file system of a URL, for HTTP with limits of the time without an answer.

    By default, a client gives a server five minutes for a whole answer: too little for a large
    file, and too much for a server that stopped in the middle of one.

    Parameters
    ----------
    url
        Path or URL.
    storage_options
        Options of the user. A number as ``client_kwargs["timeout"]`` is the limit in seconds.

    Examples
    --------
    >>> options = with_time_limits("https://a.org/x.zarr", {"client_kwargs": {"timeout": 20}})
    >>> options["client_kwargs"]["timeout"].sock_read
    20
    >>> with_time_limits("x.zarr", None)
    {}
    """
    options = dict(storage_options or {})
    client = dict(options.get("client_kwargs") or {})
    seconds = client.get("timeout", _ANSWER_SECONDS)
    if not str(url).startswith(("http://", "https://")) or not isinstance(seconds, (int, float)):
        return options
    try:
        from aiohttp import ClientTimeout
    except ImportError:  # fsspec says what to install
        return options
    client["timeout"] = ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)
    return options | {"client_kwargs": client}


def guarded(store: Any, storage_options: dict[str, Any] | None = None) -> Any:
    """Wrap a store in a :class:`GuardedStore`.

    Parameters
    ----------
    store
        Path, URL, Zarr store or mapping. Objects of other types are returned unchanged.
    storage_options
        Options of the file system of a URL.

    Examples
    --------
    >>> str(guarded(MemoryStore())).startswith("memory://")
    True
    """
    if isinstance(store, (GuardedStore, StorePath)):
        return store
    if isinstance(store, Store):
        return GuardedStore(store)
    if isinstance(store, dict):
        return GuardedStore(MemoryStore(store, read_only=True))
    if isinstance(store, str) and ("://" in store or "::" in store):
        options = with_time_limits(store, storage_options)
        opened = FsspecStore.from_url(store, storage_options=options, read_only=True)
        protocols = opened.fs.protocol
        names = {protocols} if isinstance(protocols, str) else set(protocols)
        is_http = bool(names & {"http", "https"})
        return GuardedStore(BoundedHTTPStore(opened) if is_http else opened)
    if isinstance(store, (str, Path)):
        return GuardedStore(LocalStore(local_path(store) or store, read_only=True))
    return store


def _arrays_in(key: str, prefix: str, parsed: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Paths and metadata of the arrays of a document, including consolidated metadata."""
    name = key.rpartition("/")[2]
    if name == ".zarray":
        yield prefix, parsed
    elif name == ".zmetadata":
        for inner, document in parsed["metadata"].items():
            path, _, name = inner.rpartition("/")
            if name == ".zarray":
                yield _joined(prefix, path), document
    elif name == "zarr.json":
        if parsed.get("node_type") == "array":
            yield prefix, parsed
        consolidated = parsed.get("consolidated_metadata") or {}
        for path, document in consolidated.get("metadata", {}).items():
            if document.get("node_type") == "array":
                yield _joined(prefix, path), document


def _joined(prefix: str, path: str) -> str:
    return "/".join(part for part in (prefix, path) if part)


def _pieces(
    raw: Any, layout: ChunkLayout, byte_range: ByteRequest | None, key: str
) -> Iterable[memoryview]:
    """Compressed chunks in a value that was read: the value itself, or the chunks of a shard."""
    view = np.ascontiguousarray(raw).data.cast("B")
    n = layout.index_bytes
    if not n:
        return [view]
    # the request by which Zarr reads the index, which is not compressed
    of_index = RangeByteRequest(0, n) if layout.index_first else SuffixByteRequest(n)
    if byte_range not in (None, of_index):
        return [view]  # one chunk
    if len(view) < n:
        return []  # Zarr refuses it
    table = view[: n - 4] if layout.index_first else view[-n:-4]
    spans = np.frombuffer(table, dtype="<u8").reshape(-1, 2)
    spans = spans[spans[:, 0] != np.iinfo(np.uint64).max]
    if layout.index_first and int(spans[:, 0].min(initial=n)) < n:
        # such a chunk could be read by the request of the index, without a check
        raise ArtifactError(f"the shard {key!r} has chunks that overlap its index.")
    if byte_range is not None:
        return []
    if int(spans.max(initial=0)) > len(view):
        raise ArtifactError(f"the shard {key!r} has an index that leads out of it.")
    return [view[int(start) : int(start) + int(length)] for start, length in spans]


def _require_stated_size(piece: memoryview, layout: ChunkLayout, key: str) -> None:
    n_bytes, limit = len(piece), layout.max_chunk_bytes
    if layout.compressor is not None:
        n_bytes = decompressed_size(layout.compressor, piece, limit)
    if n_bytes > limit:
        raise ArtifactError(
            f"the chunk {key!r} decompresses to over {limit:,} bytes, but its metadata states "
            f"{layout.chunk_bytes:,}: it is not read."
        )
    if not layout.n_texts:
        return
    if layout.compressor is not None:
        piece = memoryview(numcodecs.get_codec({"id": layout.compressor}).decode(piece))
    n_texts = int.from_bytes(piece.cast("B")[:4], "little")
    if n_texts > layout.n_texts:  # the decoder allocates so many before it reads the first
        raise ArtifactError(
            f"the chunk {key!r} states {n_texts:,} texts, but its metadata {layout.n_texts:,}: it "
            "is not read."
        )


class BoundedHTTPStore(FsspecStore):
    """Store on a web server that reads no more bytes than are asked for.

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
        content, status = answer
        if status != _PARTIAL and start != 0:
            raise ArtifactError(
                f"{self}: the server answers a request of a part of {key!r} with all of it. Serve "
                "the store by a server that supports ranges, or copy it."
            )
        if status == _PARTIAL and limit is not None and len(content) > limit:
            raise ArtifactError(
                f"{self}: the server sends more than the {limit:,} bytes of {key!r} that were "
                "asked for; they are not read."
            )
        return prototype.buffer.from_bytes(content[:limit])

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
