"""Partitions of the data: their keys and fingerprints, and changes since the last run.

Two fingerprints of a partition are equal if, as far as can be determined without reading, it holds
the same samples. A fingerprint is a digest of the size and entity tag of all objects of the
partition (or the size and time of the last change, if there is no tag), of the rows in these
objects, and of the columns and types. A file that changes twice within one tick of its clock, to
the same size, keeps its fingerprint; a checksum of all bytes detects this too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from dask_sketch.errors import ChunkError, InputError, LedgerError
from dask_sketch.jobs.ledger.forgotten import RowRanges, updated_identities
from dask_sketch.sources.samples import Samples, StoredChunks, StoredFiles
from dask_sketch.storage.overwrite import path_exists

_TAGS = ("md5Hash", "ETag", "etag", "content_md5")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "date_time", "created")
_BLOCK = 2**20  # bytes that are hashed at a time
_MAX_INFO_CALLS = 64  # objects that are queried one by one, rather than by listing their folder
Info = Mapping[str, Any]


@dataclass(frozen=True)
class Partition:
    """Identity of the data that one task reads.

    Attributes
    ----------
    key
        Name, which stays the same when the source grows.
    fingerprint
        Digest that changes when the content changes.
    rows
        Number of samples; ``None`` if it is unknown before reading.
    n_bytes
        Number of stored bytes; ``None`` if unknown.
    """

    key: str
    fingerprint: str
    rows: int | None = None
    n_bytes: int | None = None


@dataclass(frozen=True)
class Entry:
    """Entry of a ledger for a partition whose sketch it holds.

    Attributes
    ----------
    fingerprint, rows, n_bytes
        Attributes of the partition when it was read.
    count
        Number of samples in its sketch.
    batch
        Name of the batch that holds the sketch.
    run
        Number of the run that read the partition.
    since
        Number of the first run that had a partition of this key, in any version.
    """

    fingerprint: str
    rows: int | None
    n_bytes: int | None
    count: int
    batch: str
    run: int
    since: int


@dataclass(frozen=True)
class Changes:
    """Differences between the partitions of the sources and those in a ledger.

    Attributes
    ----------
    new
        Partitions that are not in the ledger, in the given order.
    changed, same
        Partitions that are in the ledger with another fingerprint, and with the same fingerprint.
    skipped
        Partitions with forgotten rows, which are not read.
    deleted
        Sorted keys in the ledger of partitions that no longer exist.
    divided
        Keys among ``deleted`` whose rows other partitions hold now.
    lost
        Keys of the changed partitions without any stored byte.
    """

    new: tuple[Partition, ...]
    changed: tuple[Partition, ...]
    deleted: tuple[str, ...]
    same: tuple[Partition, ...]
    skipped: tuple[Partition, ...]
    lost: tuple[str, ...] = ()
    divided: tuple[str, ...] = ()


def compare(
    partitions: Sequence[Partition],
    entries: Mapping[str, Entry],
    forgotten: Mapping[str, Iterable[str]],
) -> Changes:
    """Compare the partitions of the sources with those in a ledger.

    Parameters
    ----------
    partitions
        All partitions of the sources.
    entries
        Entries of the ledger, by key.
    forgotten
        Partitions whose rows must not be read again under any key: their fingerprints, by key.

    Returns
    -------
    changes
        Differences.

    Raises
    ------
    LedgerError
        If two partitions have the same key.

    Examples
    --------
    >>> known = Entry("1", None, None, count=10, batch="", run=1, since=1)
    >>> entries = {"a": known, "b": known}
    >>> changes = compare([Partition("a", "2"), Partition("c", "1")], entries, {})
    >>> [p.key for p in changes.new], [p.key for p in changes.changed], changes.deleted
    (['c'], ['a'], ('b',))
    """
    seen: set[str] = set()
    by_state: dict[str, list[Partition]] = {"new": [], "changed": [], "same": [], "skipped": []}
    names = updated_identities(forgotten, ((part.key, part.fingerprint) for part in partitions))
    erased = RowRanges({**forgotten, **names})
    for partition in partitions:
        if partition.key in seen:
            raise LedgerError(
                f"two partitions have the key {partition.key!r}: give each source its own prefix."
            )
        seen.add(partition.key)
        entry = entries.get(partition.key)
        if erased.overlap(partition.key, partition.fingerprint):
            kind = "skipped"
        elif entry is None:
            kind = "new"
        else:
            kind = "same" if entry.fingerprint == partition.fingerprint else "changed"
        by_state[kind].append(partition)
    deleted = tuple(sorted(key for key in entries if key not in seen))
    present = RowRanges(dict.fromkeys(seen, ()))
    return Changes(
        deleted=deleted,
        divided=tuple(key for key in deleted if present.overlap(key)),
        lost=tuple(part.key for part in by_state["changed"] if _is_lost(part, entries[part.key])),
        **{kind: tuple(parts) for kind, parts in by_state.items()},
    )


def _is_lost(partition: Partition, entry: Entry) -> bool:
    return partition.n_bytes == 0 and bool(entry.n_bytes)


@dataclass(frozen=True)
class _Reads:
    """Objects and rows that one chunk reads."""

    key: str
    layout: str  # rows, columns and types, as a part of the fingerprint
    objects: tuple[str, ...]
    rows: int | None


def partitions_of(
    samples: Samples,
    prefix: str = "",
    fingerprint: str = "auto",
    chunks: Iterable[int] | None = None,
) -> list[Partition]:
    """Identify the chunks of a source without reading samples.

    Parameters
    ----------
    samples
        Samples that :func:`dask_sketch.open_samples` opened by the path or URL of a Zarr store or
        Parquet files.
    prefix
        Prefix of every key, which distinguishes sources.
    fingerprint
        Method: ``"auto"`` uses what the file system reports of each object, ``"checksum"`` reads
        all bytes.
    chunks
        Numbers of the chunks to identify; all by default.

    Returns
    -------
    partitions
        Partitions of the chunks, in the same order. Keys are relative to the source and stay the
        same when it grows: ``"x[0:5000]"`` are rows of an array, ``"day=1/a.parquet"`` is a file,
        ``"a.parquet[0:4]"`` are row groups. Appending rows to an array changes only the last
        partition, and only if it was not full.

    Raises
    ------
    InputError
        If the source has no files, its chunks would change as it grows, the name of a file is not
        UTF-8, or its file system reports neither entity tags nor times.
    ChunkError
        If a file was deleted since the source was opened, or cannot be read.

    Examples
    --------
    >>> import tempfile, zarr
    >>> from dask_sketch import open_samples
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> x = zarr.create_array(path, shape=(10, 2), chunks=(4, 2), dtype="f4")
    >>> found = partitions_of(open_samples(path, chunk_size=32), prefix="day-1/")
    >>> [(partition.key, partition.rows) for partition in found]
    [('day-1/[0:4]', 4), ('day-1/[4:8]', 4), ('day-1/[8:12]', 2)]
    """
    if fingerprint not in ("auto", "checksum"):
        raise InputError(f"fingerprint={fingerprint!r}: choose 'auto' or 'checksum'.")
    chosen = list(range(samples.n_chunks) if chunks is None else chunks)
    wrong = [number for number in chosen if not 0 <= number < samples.n_chunks]
    if wrong:
        raise InputError(
            f"chunks={wrong[0]}: give numbers from 0 to {samples.n_chunks - 1} for {samples.label}."
        )
    origin = samples.origin
    if isinstance(origin, StoredChunks):
        fs, folders = _locate(origin, samples.label)
        reads = _stored_rows(origin, folders, chosen)
    elif isinstance(origin, StoredFiles):
        fs, folders = origin.fs, [_base(origin)]
        reads = _stored_parts(origin, chosen)
    else:
        raise InputError(
            f"{samples.label} has no files whose changes can be noticed: store the samples as Zarr "
            "or Parquet, and open them by path or URL, with weights in the same store."
        )
    needed = {name for read in reads for name in read.objects}
    infos = _infos(fs, folders, needed, samples.label, list_all=len(needed) > _MAX_INFO_CALLS)
    if isinstance(origin, StoredFiles) and needed - set(infos):
        raise ChunkError(
            f"{min(needed - set(infos))} was deleted since {samples.label} was opened: run again."
        )
    checksums = _Checksums(fs, samples.label) if fingerprint == "checksum" else None
    for name in infos:
        _require_unicode(_relative(name, folders), samples.label)
    out = []
    for read in reads:
        objects = {name: infos[name] for name in read.objects if name in infos}
        values = {
            name: checksums.of(name, info) if checksums else _tag(info, samples.label)
            for name, info in objects.items()
        }
        marks = [f"{_relative(name, folders)} {value}" for name, value in values.items()]
        digest = hashlib.sha256("\n".join([read.layout, *marks]).encode()).hexdigest()[:32]
        n_bytes = sum(int(info.get("size") or 0) for info in objects.values())
        out.append(Partition(f"{prefix}{read.key}", f"{fingerprint}:{digest}", read.rows, n_bytes))
    return out


def _require_unicode(name: str, label: str) -> None:
    """Raise for a name that is not UTF-8; Python reads its bytes as surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{label} has a file whose name is not UTF-8, {name.rpartition('/')[2]!a}: rename the "
            "file, since ledgers and reports contain its name."
        ) from error


def _locate(origin: StoredChunks, label: str) -> tuple[fsspec.AbstractFileSystem, list[str]]:
    """File system of a Zarr store, and the folders of its arrays."""
    if origin.store is None:
        raise InputError(
            f"{label} is a Zarr object whose files cannot be found: give its path or URL."
        )
    if not origin.is_lasting:
        raise InputError(
            f"the chunks of {label} would change as it grows: open it with a chunk size, such as "
            "open_samples(..., chunk_size='64MiB').",
            parameter="chunk_size",
        )
    options = dict(origin.storage_options or {})
    try:
        fs, root = fsspec.core.url_to_fs(str(origin.store), **options)
    except (OSError, ImportError, ValueError) as error:
        raise InputError(
            f"no file system for {label} ({error}): check the path or URL and its options."
        ) from error
    root = root.rstrip("/")
    folders = [f"{root}/{array.path}".rstrip("/") for array in origin.arrays]
    for folder in folders:
        # otherwise all chunks would be missing, which Zarr accepts, and would seem to have changed
        try:
            is_zarr = any(path_exists(fs, f"{folder}/{name}") for name in ("zarr.json", ".zarray"))
        except Exception as error:  # file systems fail in many ways
            raise ChunkError(
                f"the array {folder} cannot be reached: {type(error).__name__}: {error}. Check its "
                "store."
            ) from error
        if not is_zarr:
            raise ChunkError(
                f"the array {folder} cannot be found: check that its store can be reached."
            )
    return fs, folders


def _stored_rows(
    origin: StoredChunks, folders: Sequence[str], chosen: Sequence[int]
) -> list[_Reads]:
    rows = origin.arrays[0]
    stored = [tuple(getattr(array, "shards", None) or array.chunks) for array in origin.arrays]
    layouts = [
        [str(array.dtype), *array.shape[1:], *sizes, str(array.fill_value)]
        for array, sizes in zip(origin.arrays, stored, strict=True)
    ]
    names = [array.metadata.encode_chunk_key for array in origin.arrays]
    out = []
    for number in chosen:
        start = number * origin.step
        stop = min(start + origin.step, rows.shape[0])
        objects = [
            f"{folder}/{name((i, *others))}"
            for array, sizes, name, folder in zip(
                origin.arrays, stored, names, folders, strict=True
            )
            for i in range(start // sizes[0], _ceil(stop, sizes[0]))
            for others in np.ndindex(*map(_ceil, array.shape[1:], sizes[1:]))
        ]
        # the key has the rows of a full partition, so that it stays the same when rows are added
        key = f"{rows.path}[{start}:{start + origin.step}]"
        out.append(_Reads(key, json.dumps([start, stop, *layouts]), tuple(objects), stop - start))
    return out


def _ceil(size: int, part: int) -> int:
    return -(-size // part)


def _stored_parts(origin: StoredFiles, chosen: Sequence[int]) -> list[_Reads]:
    out = []
    base = _base(origin)
    for number in chosen:
        part = origin.parts[number]
        name = part.path.removeprefix(f"{base}/")
        if part.row_groups is not None:
            name += f"[{part.row_groups[0]}:{part.row_groups[-1] + 1}]"
        layout = json.dumps([list(origin.columns), part.row_groups])
        out.append(_Reads(name, layout, (part.path,), None))
    return out


def _base(origin: StoredFiles) -> str:
    """Folder to which the names of Parquet files are relative."""
    root = origin.root.rstrip("/")
    if len(origin.parts) and all(part.path == root for part in origin.parts):
        return root.rpartition("/")[0]
    if any(part.path.startswith(f"{root}/") for part in origin.parts):
        return root
    steps = root.split("/")  # the folder of a glob ends before its first wildcard
    plain = next((i for i, step in enumerate(steps) if set(step) & set("*?[")), len(steps) - 1)
    return "/".join(steps[:plain])


def _relative(name: str, folders: Sequence[str]) -> str:
    """Name relative to its folder, after the number of the folder: the same in a moved store."""
    for number, folder in enumerate(folders):
        if name.startswith(f"{folder}/"):
            return f"{number}{name[len(folder) :]}"
    return name


def _infos(
    fs: fsspec.AbstractFileSystem,
    folders: Sequence[str],
    needed: set[str],
    label: str,
    *,
    list_all: bool,
) -> dict[str, Info]:
    """Information of the file system on the objects that exist."""
    infos: dict[str, Info] = {}
    try:
        fs.invalidate_cache()
        if list_all:
            for folder in dict.fromkeys(folders):
                infos |= fs.find(folder, detail=True)
            return {name: infos[name] for name in needed if name in infos}
        for name in needed:
            try:
                infos[name] = fs.info(name)
            except FileNotFoundError:
                continue
    except Exception as error:  # file systems fail in many ways
        raise ChunkError(
            f"the files of {label} could not be listed: {type(error).__name__}: {error}. Check "
            "that its store can be reached."
        ) from error
    return infos


def _tag(info: Info, label: str) -> str:
    """Size and entity tag of an object, or size and time of the last change."""
    if info.get("islink"):  # the file system reports the time of the link
        return f"{info.get('size')} {Path(info['name']).stat().st_mtime}"
    for key in (*_TAGS, *_TIMES):
        if info.get(key):
            return f"{info.get('size')} {info[key]}"
    raise InputError(
        f"the file system of {label} reports neither entity tag nor time of {info.get('name')!r}: "
        "use fingerprint='checksum'.",
        parameter="fingerprint",
    )


class _Checksums:
    """SHA-256 of objects, computed once for objects that several chunks read."""

    def __init__(self, fs: fsspec.AbstractFileSystem, label: str):
        self._fs = fs
        self._label = label
        self._known: dict[str, str] = {}

    def of(self, name: str, info: Info) -> str:
        """Compute the SHA-256 of an object, block by block.

        An object that cannot be read has another text; the task that reads it reports the error.
        """
        if name not in self._known:
            total = hashlib.sha256()
            try:
                with self._fs.open(name, "rb") as handle:
                    while block := handle.read(_BLOCK):
                        total.update(block)
                self._known[name] = total.hexdigest()
            except Exception:  # file systems fail in many ways
                self._known[name] = f"not readable {_tag(info, self._label)}"
        return self._known[name]
