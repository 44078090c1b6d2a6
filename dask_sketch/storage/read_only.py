"""Read-only Zarr stores that check what they read: a base class, and stores without missing chunks.

The base class derives from Zarr's abstract store and not from its wrapper store: a wrapper hands
each method that a newer release of Zarr adds on to the wrapped store, past the checks, whereas the
abstract store builds it on the methods below.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from zarr.abc.store import Store

from dask_sketch.errors import ArtifactError

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


def is_document(key: str) -> bool:
    """Whether a key belongs to metadata, not to a chunk.

    Examples
    --------
    >>> is_document("x/zarr.json"), is_document("x/c/0/0")
    (True, False)
    """
    return key.rpartition("/")[2] in _DOCUMENTS


class ReadOnlyStore(Store):
    """Read-only view of a store; subclasses check keys and values.

    Parameters
    ----------
    store
        Store to read from.
    """

    supports_writes = False
    supports_deletes = False

    def __init__(self, store: Store) -> None:
        super().__init__(read_only=True)
        self._store: Any = store  # some methods exist only in newer releases of Zarr

    def _admit(self, key: str) -> None:
        """Refuse a key before it is read."""

    def _admit_listing(self, prefix: str) -> None:
        """Refuse a key or prefix before it is looked up or listed."""

    def _part(self, key: str, byte_range: ByteRequest | None) -> ByteRequest | None:
        """Range of a value to read."""
        return byte_range

    def _checked(
        self, key: str, byte_range: ByteRequest | None, value: Buffer | None
    ) -> Buffer | None:
        """Check a value that was read, and return it."""
        return value

    @property
    def store(self) -> Store:
        """Store that is read from, without checks."""
        return self._store  # type: ignore[no-any-return, unused-ignore]

    async def _open(self) -> None:
        await self._store._ensure_open()
        self._is_open = True

    def close(self) -> None:
        """Close the store."""
        self._store.close()
        super().close()

    def with_read_only(self, read_only: bool = False) -> ReadOnlyStore:
        """Return another reader of the same store; writing is refused."""
        if not read_only:
            raise ArtifactError(f"{self} is read-only: write to the store itself.")
        return type(self)(self._store)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Value of a key, or a range of the value, checked."""
        self._admit(key)
        part = self._part(key, byte_range)
        return self._checked(key, part, await self._store.get(key, prototype, part))

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Value of a key, or a range of the value, checked; without an event loop."""
        self._admit(key)
        part = self._part(key, byte_range)
        value = self._store.get_sync(key, prototype=prototype, byte_range=part)
        return self._checked(key, part, value)

    @property
    def _supports_sync_io(self) -> bool:
        """Whether Zarr may call ``get_sync``: only if the store itself can."""
        return hasattr(self._store, "get_sync") and getattr(self._store, "_supports_sync_io", True)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Several ranges, each checked."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def get_ranges(
        self,
        key: str,
        byte_ranges: Sequence[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        **limits: Any,
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """Ranges of one value, each checked; the store may fetch neighbours in one request."""
        self._admit(key)
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        ranges = self._store.get_ranges(key, byte_ranges, prototype=prototype, **limits)
        async for batch in ranges:
            yield [
                (number, self._checked(key, byte_ranges[number], value)) for number, value in batch
            ]

    def get_ranges_sync(
        self,
        key: str,
        byte_ranges: Sequence[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        **limits: Any,
    ) -> Sequence[tuple[int, Buffer | None]]:
        """Ranges of one value, each checked; without an event loop."""
        self._admit(key)
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        return [
            (number, self._checked(key, byte_ranges[number], value))
            for number, value in self._store.get_ranges_sync(
                key, byte_ranges, prototype=prototype, **limits
            )
        ]

    async def exists(self, key: str) -> bool:
        """Whether there is such a key."""
        self._admit_listing(key)
        return bool(await self._store.exists(key))

    async def getsize(self, key: str) -> int:
        """Size of a stored value in bytes."""
        self._admit_listing(key)
        return int(await self._store.getsize(key))

    @property
    def supports_listing(self) -> bool:
        """Whether the store can list its keys."""
        return bool(self._store.supports_listing)

    async def list(self) -> AsyncIterator[str]:
        """All keys."""
        async for key in self._store.list():
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Keys that begin with a prefix."""
        self._admit_listing(prefix)
        async for key in self._store.list_prefix(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names directly below a prefix."""
        self._admit_listing(prefix)
        async for name in self._store.list_dir(prefix):
            yield name

    async def set(self, key: str, value: Buffer) -> None:
        """Refuse to write: the store is read-only."""
        raise ArtifactError(f"{self} is read-only: write to the store itself.")

    async def delete(self, key: str) -> None:
        """Refuse to write: the store is read-only."""
        raise ArtifactError(f"{self} is read-only: write to the store itself.")

    def set_sync(self, key: str, value: Buffer) -> None:
        """Refuse to write: the store is read-only."""
        raise ArtifactError(f"{self} is read-only: write to the store itself.")

    def delete_sync(self, key: str) -> None:
        """Refuse to write: the store is read-only."""
        raise ArtifactError(f"{self} is read-only: write to the store itself.")

    def __reduce__(self) -> Any:
        return type(self), (self._store,)

    def __eq__(self, other: object) -> bool:
        """Whether both read the same store."""
        return type(other) is type(self) and self.store == other.store

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return str(self.store)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.store)!r})"


class CompleteStore(ReadOnlyStore):
    """Read-only store in which a missing or empty chunk is an error.

    Zarr reads such a chunk as fill values, mostly zeros. An unmounted disk or an incomplete copy
    would be zeros too. Chunks that a shard leaves out are not seen here, but by the reader of rows.

    Parameters
    ----------
    store
        Store to read from.
    """

    def _checked(
        self, key: str, byte_range: ByteRequest | None, value: Buffer | None
    ) -> Buffer | None:
        if is_document(key) or (value is not None and len(value)):
            return value
        raise ArtifactError(
            f"the stored chunk {key!r} is missing or empty. Zarr would read fill values; if the "
            "chunk was never written because all its values are the fill value, pass "
            'missing_chunks="fill"'
        )
