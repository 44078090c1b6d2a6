"""Zarr groups as a few objects of known size and checksum.

Zarr encodes and decodes in memory, and the bytes are stored as objects. The reference to a group is
the size and SHA-256 of its metadata, which contains the sizes and checksums of all objects below.
So an edited byte is found before anything is decoded.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.buffer import cpu
from zarr.codecs import BloscCodec

from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.backends import Backend
from dask_sketch.storage.untrusted import guarded

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOT = "zarr.json"
MAX_METADATA = 64 * 2**20  # bytes of the metadata of one group
_OBJECT_NAME = re.compile(r"[a-z_]+/[0-9]{10}-[0-9a-f]{12}")
_ARRAY_METADATA = 16 * 2**10  # bytes of the metadata of one array

LONG = 24  # bytes of a sum of weights


class NewerSchema(LedgerError):
    """A complete object of another schema version."""


class OtherSchema(LedgerError):
    """A complete object that belongs to something else."""


@dataclass(frozen=True)
class Reference:
    """Reference to a stored group: its folder, and the size and SHA-256 of its metadata."""

    name: str
    size: int
    checksum: str

    def to_json(self) -> list[Any]:
        """Form in a manifest."""
        return [self.name, self.size, self.checksum]

    @classmethod
    def from_json(cls, values: Any) -> Reference:
        """Restore from :meth:`to_json`; ``ValueError`` for anything else."""
        name, size, checksum = values
        if not is_object_name(name):
            raise ValueError(f"{name!r} is not the name of an object")
        if not isinstance(size, int) or not 0 < size <= MAX_METADATA or len(checksum) != 64:
            raise ValueError(f"{values!r} is not a reference")
        return cls(name, size, str(checksum))


def fresh_name(folder: str, number: int) -> str:
    """Make a new name for an object of the commit ``number``."""
    return f"{folder}/{number:010d}-{secrets.token_hex(6)}"


def is_object_name(name: Any) -> bool:
    """Whether a name has the form of :func:`fresh_name`; only such objects are ever removed.

    Examples
    --------
    >>> is_object_name(fresh_name("models", 3)), is_object_name("models/../x")
    (True, False)
    """
    return isinstance(name, str) and _OBJECT_NAME.fullmatch(name) is not None


def number_of(name: str) -> int:
    """Number of the commit in a name of :func:`fresh_name`.

    Examples
    --------
    >>> number_of(fresh_name("models", 3))
    3
    """
    return int(name.partition("/")[2].partition("-")[0])


def write_group(
    backend: Backend, name: str, arrays: Mapping[str, NDArray[Any]], attributes: Mapping[str, Any]
) -> Reference:
    """Write a group.

    Parameters
    ----------
    backend
        Backend of the ledger.
    name
        New name of its folder.
    arrays
        Arrays by name, each of which is stored as one compressed chunk.
    attributes
        Attributes that JSON can hold.

    Returns
    -------
    reference
        Reference to the group.
    """
    objects = encode_arrays(arrays)
    stated = {key: [len(content), _sha(content)] for key, content in objects.items()}
    root = group_metadata({**attributes, "objects": stated})
    backend.write({f"{name}/{key}": content for key, content in {**objects, ROOT: root}.items()})
    return Reference(name, len(root), _sha(root))


def group_metadata(attributes: Mapping[str, Any]) -> bytes:
    """Make the metadata document of a Zarr group, format 3."""
    document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def group_attributes(content: bytes, label: str) -> dict[str, Any]:
    """Read the attributes from the metadata of a group.

    Raises
    ------
    LedgerError
        If ``content`` is not the metadata of a group.
    """
    try:
        attributes = json.loads(content)["attributes"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LedgerError(f"{label} is not the metadata of a Zarr group: {error!r}.") from error
    if not isinstance(attributes, dict):
        raise LedgerError(f"{label} is not the metadata of a Zarr group: it has no attributes.")
    return attributes


def with_checksum(schema: str, version: int, content: Mapping[str, Any]) -> bytes:
    """Make the metadata of a group that contains its own checksum."""
    text = json.dumps(content, sort_keys=True)
    attributes = {"schema": schema, "schema_version": version, "checksum": _sha(text.encode())}
    return group_metadata({**attributes, "content": content})


def checked_content(
    content: bytes, schema: str, versions: tuple[int, ...], label: str
) -> dict[str, Any]:
    """Read the content of :func:`with_checksum`.

    Parameters
    ----------
    content
        Metadata of a group.
    schema, versions
        Schema, and its versions that may be read.
    label
        Name of the group for messages.

    Returns
    -------
    content
        Content of the group.

    Raises
    ------
    LedgerError
        If the metadata is truncated or edited.
    OtherSchema
        If it belongs to something else.
    NewerSchema
        If a newer version wrote it.
    """
    attributes = group_attributes(content, label)
    if attributes.get("schema") != schema:
        raise OtherSchema(f"{label} has schema {attributes.get('schema')!r}, expected {schema!r}.")
    version = attributes.get("schema_version")
    if version not in versions:
        raise NewerSchema(
            f"{label} has schema version {version!r}; this version of dask-sketch reads version "
            f"{max(versions)}. Upgrade the older installation."
        )
    inner = attributes.get("content")
    text = json.dumps(inner, sort_keys=True)
    if not isinstance(inner, dict) or attributes.get("checksum") != _sha(text.encode()):
        raise LedgerError(f"{label} does not match its checksum: it was truncated or edited.")
    return inner


def read_attributes(backend: Backend, references: list[Reference]) -> list[dict[str, Any]]:
    """Read the attributes of several groups at once.

    Raises
    ------
    LedgerError
        If a group is missing, or its checksum differs.
    """
    try:
        contents = backend.read_many({f"{ref.name}/{ROOT}": ref.size for ref in references})
    except FileNotFoundError as error:
        raise _missing(backend, error) from error
    out = []
    for ref in references:
        label = f"{backend.label}/{ref.name}"
        content = contents[f"{ref.name}/{ROOT}"]
        _require_same(content, ref.size, ref.checksum, label)
        out.append(group_attributes(content, label))
    return out


def read_arrays(
    backend: Backend,
    reference: Reference,
    attributes: Mapping[str, Any],
    expected: Mapping[str, tuple[tuple[int, ...], str]],
) -> dict[str, NDArray[Any]]:
    """Read arrays of a group.

    Parameters
    ----------
    backend
        Backend of the ledger.
    reference
        Reference to the group.
    attributes
        Attributes of the group, see :func:`read_attributes`.
    expected
        Shape and type of each array to read; nothing else is decoded.

    Returns
    -------
    arrays
        Arrays by name.

    Raises
    ------
    LedgerError
        If an object is missing or edited, or an array is of another shape or type.
    """
    stated, label = attributes.get("objects"), f"{backend.label}/{reference.name}"
    names = {
        key: (f"{key}/{ROOT}", f"{key}/{_chunk(shape)}") for key, (shape, _) in expected.items()
    }
    try:
        sizes = {name: stated[name] for both in names.values() for name in both}  # type: ignore[index]
        for key, (shape, kind) in expected.items():
            nbytes = math.prod(shape) * np.dtype(kind).itemsize
            meta, chunk = names[key]
            # tables and headers make incompressible data a little larger
            if sizes[meta][0] > _ARRAY_METADATA or sizes[chunk][0] > nbytes + nbytes // 8 + 4096:
                raise LedgerError(
                    f"{label} has sizes that are impossible for {key} of shape {shape}."
                )
        limits = {f"{reference.name}/{name}": int(size) for name, (size, _) in sizes.items()}
        contents = backend.read_many(limits)
    except FileNotFoundError as error:
        raise _missing(backend, error) from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, LedgerError):
            raise
        raise LedgerError(f"{label} does not list its arrays: {error!r}.") from error
    objects = {}
    for name, (size, checksum) in sizes.items():
        objects[name] = contents[f"{reference.name}/{name}"]
        _require_same(objects[name], size, checksum, f"{label}/{name}")
    return {
        key: decode_array(
            {name.removeprefix(f"{key}/"): objects[name] for name in names[key]},
            shape, kind, f"{label}/{key}",
        )
        for key, (shape, kind) in expected.items()
    }  # fmt: skip


def long_bytes(value: int) -> bytes:
    """Convert a sum of weights, or of their squares, to :data:`LONG` bytes, the least first.

    Parameters
    ----------
    value
        Sum in quanta, ``>= 0``.

    Raises
    ------
    LedgerError
        If the sum takes more bytes.
    """
    if value.bit_length() > 8 * LONG:
        raise LedgerError(
            f"a sum of weights, or of their squares, takes {value.bit_length()} bits, and a "
            f"ledger stores {8 * LONG}: multiply all weights by one smaller factor."
        )
    return value.to_bytes(LONG, "little")


def encode_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, bytes]:
    """Encode arrays as the objects of Zarr arrays of one chunk each, by name."""
    store: dict[str, Any] = {}
    root = zarr.create_group(zarr.storage.MemoryStore(store), zarr_format=3)
    for name, values in arrays.items():
        array = root.create_array(
            name, shape=values.shape, dtype=values.dtype, chunks=values.shape,
            compressors=BloscCodec(cname="zstd", clevel=5, shuffle="shuffle"),
            chunk_key_encoding={"name": "default", "separator": "."},  # fewer folders
            config={"write_empty_chunks": True},
        )  # fmt: skip
        array[...] = values
    return {key: bytes(value.to_bytes()) for key, value in store.items() if key != ROOT}


def decode_array(
    objects: Mapping[str, bytes], shape: tuple[int, ...], kind: str, label: str
) -> NDArray[Any]:
    """Decode one array from its objects.

    The objects are read through the store of :mod:`dask_sketch.storage.untrusted`, and only if the
    metadata has the expected shape and type, in one chunk.

    Raises
    ------
    LedgerError
        If the metadata differs, or the objects are damaged.
    """
    try:
        store = guarded({name: cpu.Buffer.from_bytes(content) for name, content in objects.items()})
        array = zarr.open_array(store, mode="r", zarr_format=3)
        if (array.shape, array.chunks, array.dtype) != (shape, shape, np.dtype(kind)):
            raise LedgerError(f"{label} is not an array of shape {shape} and type {kind}.")
        return np.asarray(array[...])
    except LedgerError:
        raise
    except Exception as error:  # damaged bytes surface as errors of many kinds
        raise LedgerError(f"{label} is damaged: {error!r}.") from error


def _chunk(shape: tuple[int, ...]) -> str:
    return ".".join(["c", *("0" for _ in shape)])


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _require_same(content: bytes, size: int, checksum: str, label: str) -> None:
    if len(content) != size or _sha(content) != checksum:
        raise LedgerError(
            f"{label} does not match its checksum: it was truncated or edited. Restore it from a "
            "copy, or create the ledger again."
        )


def _missing(backend: Backend, error: FileNotFoundError) -> LedgerError:
    return LedgerError(
        f"an object of the ledger {backend.label} is missing ({error}). If another process has "
        "written to the ledger since it was opened, open it again; otherwise restore the object "
        "from a copy."
    )
