"""Stores of untrusted authors run no code, and take neither memory nor disk."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import json
import lzma
import multiprocessing
import os
import pickle
import struct
import zlib
from pathlib import Path

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zarr
from storage.small_memory import sketch_in_small_memory
from zarr.buffer.cpu import Buffer, buffer_prototype
from zarr.storage import MemoryStore

import dask_sketch as ds
from dask_sketch import open_samples
from dask_sketch.errors import ArtifactError, ChunkError, InputError, SketchError
from dask_sketch.storage import chunk_layout
from dask_sketch.storage import untrusted as guarded
from dask_sketch.storage.artifact_reader import MAX_BYTES
from dask_sketch.storage.decompressed_size import decompressed_size
from dask_sketch.storage.read_only import ReadOnlyStore
from dask_sketch.storage.untrusted import GuardedStore


class Marks:
    """A pickle that makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def write_v2(path, chunk=b"", **changes):
    """A store of format 2, of 4 rows of 2 features in one chunk."""
    metadata = {
        "zarr_format": 2, "shape": [4, 2], "chunks": [4, 2], "dtype": "<f8", "compressor": None,
        "fill_value": 0, "order": "C", "filters": None,
    }  # fmt: skip
    path.mkdir(parents=True, exist_ok=True)
    (path / ".zarray").write_text(json.dumps(metadata | changes))
    (path / "0.0").write_bytes(chunk)
    return path


FEATURES = ds.FeatureMap(2, 20, scale=1.0)


@pytest.mark.parametrize("codec", ["pickle", "json2", "msgpack2", "categorize", "vlen-array", "x"])
@pytest.mark.parametrize("dtype", ["<f8", "|O"])
def test_codecs_that_make_objects_are_refused_before_there_is_one(
    codec, dtype, tmp_path, monkeypatch
):
    made = []
    honest = numcodecs.registry.get_codec
    monkeypatch.setattr(
        numcodecs.registry, "get_codec", lambda config: made.append(config) or honest(config)
    )
    mark = tmp_path / "ran"
    settings = {"id": codec, "protocol": 5} if codec == "pickle" else {"id": codec}
    path = write_v2(tmp_path / "x.zarr", pickle.dumps(Marks(mark)), dtype=dtype, filters=[settings])
    with pytest.raises(SketchError, match=f"names the codec '{codec}'"):
        ds.sketch(str(path), FEATURES).compute()
    write_v2(path, pickle.dumps(Marks(mark)), dtype=dtype, compressor=settings)
    with pytest.raises(SketchError, match=f"names the codec '{codec}'"):
        open_samples(str(path))
    assert not mark.exists()
    assert not made


def test_the_pickle_of_these_tests_does_run_where_nothing_guards(tmp_path):
    pickle.loads(pickle.dumps(Marks(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


def test_a_pickle_in_consolidated_metadata_or_beside_the_samples(tmp_path):
    mark = tmp_path / "ran"
    filters = [{"id": "pickle", "protocol": 5}]
    root = tmp_path / "g.zarr"
    evil = write_v2(root / "x", pickle.dumps(Marks(mark)), filters=filters)
    (root / ".zgroup").write_text('{"zarr_format": 2}')
    with pytest.raises(SketchError, match="names the codec 'pickle'"):
        ds.sketch(str(root), FEATURES).compute()
    documents = {
        ".zgroup": {"zarr_format": 2},
        "x/.zarray": json.loads((evil / ".zarray").read_text()),
    }
    (root / ".zmetadata").write_text(
        json.dumps({"zarr_consolidated_format": 1, "metadata": documents})
    )
    write_v2(evil)  # harmless by itself
    with pytest.raises(SketchError, match="names the codec 'pickle'"):
        ds.sketch(str(root), FEATURES).compute()
    assert not mark.exists()


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def frame_that_states(size):
    """A zstd frame of a few bytes that states a content size and repeats one byte."""
    head = struct.pack("<IBQ", 0xFD2FB528, 0xE0, size)
    return head + b"".join(
        (int(last) | 1 << 1 | 2**17 << 3).to_bytes(3, "little") + b"\0"
        for last in [False] * 15 + [True]
    )


def blosc_that_states(size):
    return struct.pack("<BBBBIII", 2, 1, 0x21, 8, size, size, 40) + bytes(24)


BOMBS = {
    "zstd": (frame_that_states(4 * 10**9), {"id": "zstd", "level": 1}),
    "blosc": (blosc_that_states(2**31 - 17), {"id": "blosc", "cname": "lz4"}),
    "lz4": (struct.pack("<I", 2**31 - 1) + bytes(20), {"id": "lz4"}),
    "gzip": (gzip.compress(bytes(10**6)), {"id": "gzip", "level": 1}),
    "zlib": (zlib.compress(bytes(10**6)), {"id": "zlib", "level": 1}),
    "bz2": (bz2.compress(bytes(10**6)), {"id": "bz2", "level": 1}),
    "lzma": (lzma.compress(bytes(10**6)), {"id": "lzma"}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name, tmp_path):
    chunk, compressor = BOMBS[name]
    path = write_v2(tmp_path / "b.zarr", chunk, compressor=compressor)
    with pytest.raises(ChunkError, match=r"decompresses to|its metadata allows"):
        ds.sketch(str(path), FEATURES).compute()


ZEROS = bytes(2 * 10**5)
SKIPPED = struct.pack("<II", 0x184D2A51, 5) + b"12345"
EMPTY = struct.pack("<IBB", 0xFD2FB528, 0x20, 0) + b"\1\0\0"
RAW_LZMA = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**20}]
HIDDEN_BOMBS = {
    "stacked": (zlib.compress(zlib.compress(ZEROS)), [{"id": "zlib"}, {"id": "zlib"}]),
    "shuffled": (zlib.compress(ZEROS), [{"id": "zlib"}, {"id": "shuffle", "elementsize": 1}]),
    "checksum first": (b"1234" + zlib.compress(ZEROS), [{"id": "zlib"}, {"id": "crc32"}]),
    "after a skipped frame": (SKIPPED + frame_that_states(4 * 10**9), [{"id": "zstd"}]),
    "after an empty frame": (EMPTY + frame_that_states(4 * 10**9), [{"id": "zstd"}]),
    "lzma without headers": (
        lzma.compress(ZEROS, lzma.FORMAT_RAW, filters=RAW_LZMA),
        [{"id": "lzma", "format": 3, "filters": RAW_LZMA}],
    ),
    "long texts": (bytes(64), [{"id": "astype", "encode_dtype": "u1", "decode_dtype": "<U99999"}]),
    "objects": (bytes(64), [{"id": "delta", "dtype": "|O", "astype": "u1"}]),
    "casts": (bytes(64), [{"id": "delta", "dtype": "<c16", "astype": "u1"}] * 4),
    "bits": (bytes(64), [{"id": "packbits"}] * 9),
    "zfpy": (bytes(64), [{"id": "zfpy", "mode": 4}]),
    "many texts": (b"\xff" * 4, [{"id": "vlen-utf8"}]),
    "many texts in zlib": (zlib.compress(b"\xff" * 4), [{"id": "vlen-utf8"}, {"id": "zlib"}]),
}


@pytest.mark.parametrize("name", HIDDEN_BOMBS)
def test_bombs_behind_other_codecs(name, tmp_path):
    chunk, codecs = HIDDEN_BOMBS[name]
    kind = "|O" if "texts in" in name or name == "many texts" else "<f8"
    path = write_v2(tmp_path / "b.zarr", chunk, filters=codecs, dtype=kind)
    store = guarded.guarded(str(path))
    with pytest.raises(ArtifactError, match=r"decompresses to|names|states"):
        _ = zarr.open_array(store, mode="r")[:]


def test_records_are_as_wide_as_their_fields(tmp_path):
    path = write_v2(tmp_path / "b.zarr", dtype=[["a", "<f8"], ["b", "<U99999", [9999]]])
    with pytest.raises(ArtifactError, match="over the limit"):
        zarr.open_array(guarded.guarded(str(path)), mode="r")


def test_dictionaries_of_lzma_are_bounded():
    giant = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**27}]
    packed = lzma.compress(bytes(100), filters=giant)
    assert decompressed_size("lzma", memoryview(packed), 10**6) > 10**6


def test_a_bomb_takes_no_memory(tmp_path, preloaded):
    chunk, compressor = BOMBS["zstd"]
    assert len(chunk) < 1000
    path = write_v2(tmp_path / "b.zarr", chunk, compressor=compressor)
    context = multiprocessing.get_context("forkserver")
    told, ours = context.Pipe(duplex=False)
    arguments = (str(path), ours, 1500)
    process = context.Process(target=sketch_in_small_memory, args=arguments)
    process.start()
    ours.close()
    error = told.recv()
    process.join()
    assert "decompresses to over" in error, error
    assert "MemoryError" not in error


@pytest.fixture(
    params=[
        "zarr.core.codec_pipeline.BatchedCodecPipeline",
        "zarr.core.codec_pipeline.FusedCodecPipeline",
        "zarrs.ZarrsCodecPipeline",
    ],
    ids=lambda path: path.rpartition(".")[2],
)
def pipeline(request):
    """Each implementation that may read the chunks of a store."""
    module, _, name = request.param.rpartition(".")
    if not hasattr(pytest.importorskip(module), name):
        pytest.skip(f"zarr {zarr.__version__} has no {name}")
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield name


def write_shard(path, index_location="end"):
    """A store of one shard of 4 chunks of 16 rows; its file, and start and length of the chunks."""
    rows = np.random.default_rng(0).normal(size=(64, 2))
    codec = zarr.codecs.ShardingCodec(
        chunk_shape=(16, 2),
        codecs=[zarr.codecs.BytesCodec(), zarr.codecs.ZstdCodec()],
        index_location=index_location,
    )
    array = zarr.create_array(
        str(path), shape=rows.shape, chunks=(64, 2), dtype="f8", serializer=codec, compressors=None
    )
    array[:] = rows
    np.testing.assert_array_equal(open_samples(str(path)).blocks.compute(), rows)
    (file,) = (p for p in (path / "c").rglob("*") if p.is_file())
    raw = file.read_bytes()
    index = raw[:64] if index_location == "start" else raw[-68:-4]
    return file, np.frombuffer(index, dtype="<u8").reshape(4, 2)


@pytest.mark.parametrize("rows", [slice(0, 64), slice(32, 48), slice(0, 48)], ids=str)
@pytest.mark.parametrize("index_location", ["start", "end"])
def test_a_bomb_in_a_shard(rows, index_location, pipeline, tmp_path):
    file, index = write_shard(tmp_path / "s.zarr", index_location)
    raw = bytearray(file.read_bytes())
    bomb = frame_that_states(4 * 10**9)
    raw[int(index[2, 0]) : int(index[2, 0]) + len(bomb)] = bomb
    file.write_bytes(raw)
    array = zarr.open_array(guarded.guarded(str(tmp_path / "s.zarr")), mode="r")
    with pytest.raises(ArtifactError, match="decompresses to over"):
        _ = array[rows]


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_a_bomb_of_the_size_of_the_index(index_location, pipeline, tmp_path):
    file, index = write_shard(tmp_path / "s.zarr", index_location)
    place = int(index[2, 0])
    changed = index.copy()
    if index_location == "start":  # the chunk is asked for as the index is
        changed[2] = (0, 68)
    else:
        changed[2, 1] = 68
    table = changed.tobytes()
    table += google_crc32c.Checksum(table).digest()[::-1]
    raw = bytearray(file.read_bytes())
    raw[place : place + 68] = frame_that_states(4 * 10**9)[:68]
    raw[slice(0, 68) if index_location == "start" else slice(-68, None)] = table
    file.write_bytes(raw)
    array = zarr.open_array(guarded.guarded(str(tmp_path / "s.zarr")), mode="r")
    with pytest.raises(ArtifactError, match=r"decompresses to|overlap its index"):
        _ = array[32:48]


def test_an_index_that_leads_out_of_its_shard(tmp_path):
    array = zarr.create_array(
        str(tmp_path / "s.zarr"), shape=(64, 2), chunks=(16, 2), shards=(64, 2), dtype="f8"
    )
    array[:] = 1.0
    (file,) = (p for p in (tmp_path / "s.zarr" / "c").rglob("*") if p.is_file())
    raw = bytearray(file.read_bytes())
    raw[-68:-60] = struct.pack("<Q", 2**40)
    file.write_bytes(raw)
    with pytest.raises(ChunkError, match="index"):
        open_samples(str(tmp_path / "s.zarr")).blocks.compute()


def test_sparse_files_are_not_read(tmp_path):
    path = write_v2(tmp_path / "x.zarr")
    with (path / "0.0").open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(ChunkError, match="more than its metadata allows"):
        ds.sketch(str(path), FEATURES).compute()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": [10**12, 2], "chunks": [10**12, 2]}, "states chunks of 16,000,000,000,000 byt"),
        ({"shape": [10**18, 2], "chunks": [1, 2]}, "over the limit of 10,000,000"),
        ({"shape": [4, 10**12], "chunks": [4, 2]}, "states rows of 1,000,000,000,000 features"),
        ({"shape": [4, 10**30], "chunks": [4, 2]}, "not valid integers"),
        ({"shape": [4, 2], "chunks": [0, 2]}, "not valid integers"),
        ({"shape": [4, 2], "chunks": [4]}, "dimensions"),
        ({"dtype": "<U999999999"}, "over the limit"),
    ],
)
def test_stores_that_state_too_much(changes, message, tmp_path):
    path = write_v2(tmp_path / "x.zarr", **changes)
    with pytest.raises(InputError, match=message):
        open_samples(str(path))


def test_shards_of_too_many_chunks(tmp_path):
    zarr.create_array(
        str(tmp_path / "s.zarr"), shape=(64, 2), chunks=(16, 2), shards=(64, 2), dtype="f8"
    )

    def change(document):
        document["shape"] = [2**22, 2]
        document["chunk_grid"]["configuration"]["chunk_shape"] = [2**22, 2]
        document["codecs"][0]["configuration"]["chunk_shape"] = [1, 2]

    edit(tmp_path / "s.zarr" / "zarr.json", change)
    with pytest.raises(InputError, match="states 4,194,304 chunks in a shard"):
        open_samples(str(tmp_path / "s.zarr"))


@pytest.mark.parametrize("prefix", ["", "file://", "simplecache::file://"])
def test_links_out_of_a_store_are_not_followed(prefix, pipeline, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "0.0").write_bytes(np.arange(8.0).tobytes())
    path = write_v2(tmp_path / "x.zarr")
    for target in (secret / "0.0", Path("/dev/zero")):
        (path / "0.0").unlink()
        (path / "0.0").symlink_to(target)
        with pytest.raises(ChunkError, match="leads out of"):
            ds.sketch(f"{prefix}{path}", FEATURES).compute()
    path = write_v2(tmp_path / "g.zarr" / "x", dimension_separator="/")
    (path / "0.0").unlink()
    (secret / "0").write_bytes(np.arange(8.0).tobytes())
    (path / "0").symlink_to(secret)
    with pytest.raises(ChunkError, match="leads out of"):
        ds.sketch(f"{prefix}{path}", FEATURES).compute()


def test_links_within_a_store_and_to_it_are(tmp_path):
    path = write_v2(tmp_path / "x.zarr")
    (path / "real").write_bytes(np.arange(8.0).tobytes())
    (path / "0.0").unlink()
    (path / "0.0").symlink_to("real")
    (tmp_path / "link.zarr").symlink_to(path)
    rows = open_samples(str(tmp_path / "link.zarr")).blocks.compute()
    np.testing.assert_array_equal(rows, np.arange(8.0).reshape(4, 2))


def test_pipes_do_not_hang(tmp_path):
    path = write_v2(tmp_path / "x.zarr")
    (path / "0.0").unlink()
    os.mkfifo(path / "0.0")
    with pytest.raises(ChunkError, match="not a regular file"):
        ds.sketch(str(path), FEATURES).compute()


def test_names_that_lead_out_of_a_store(tmp_path):
    write_v2(tmp_path / "other", np.arange(8.0).tobytes())
    root = tmp_path / "g.zarr"
    root.mkdir()
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [4, 2], "data_type": "float64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 2]}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}},
        "fill_value": 0.0, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
    }  # fmt: skip
    consolidated = {"kind": "inline", "must_understand": False, "metadata": {"../other": document}}
    (root / "zarr.json").write_text(
        json.dumps(
            {"zarr_format": 3, "node_type": "group", "attributes": {}}
            | {"consolidated_metadata": consolidated}
        )
    )
    with pytest.raises(SketchError, match=r"leads out of|not a Zarr store"):
        ds.sketch(str(root), FEATURES).compute()


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/passwd", "a\\b", "a\0b"])
def test_keys_that_lead_out(key, tmp_path):
    store = GuardedStore(zarr.storage.LocalStore(tmp_path, read_only=True))
    with pytest.raises(ArtifactError, match="leads out of the store"):
        asyncio.run(store.exists(key))
    with pytest.raises(ArtifactError, match="leads out of the store"):
        asyncio.run(store.get(key, buffer_prototype))


def test_folders_that_lead_out_are_not_listed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "name").touch()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "link").symlink_to(tmp_path / "outside")
    store = GuardedStore(zarr.storage.LocalStore(tmp_path / "store", read_only=True))

    async def names(found):
        return [name async for name in found]

    assert asyncio.run(names(store.list_dir(""))) == ["link"]
    for prefix in ("link", "../outside"):
        for method in (store.list_dir, store.list_prefix):
            with pytest.raises(ArtifactError, match="leads out of the store"):
                asyncio.run(names(method(prefix)))
        with pytest.raises(ArtifactError, match="leads out of the store"):
            asyncio.run(store.getsize(f"{prefix}/name"))


# public methods of Zarr's abstract store that only call methods which the guarded store defines
BUILT_ON_OTHERS = {
    *("open", "read_only", "is_empty", "getsize_prefix"),
    *("clear", "delete_dir", "set_if_not_exists"),  # they end at `delete` and `set`, which refuse
    *("supports_consolidated_metadata", "supports_partial_writes"),
}


def unchecked_methods(*stores):
    """Public methods of stores that read-only stores neither define nor inherit on purpose."""
    public = {name for store in stores for name in vars(store) if not name.startswith("_")}
    return public - set(vars(ReadOnlyStore)) - BUILT_ON_OTHERS


def test_zarr_has_no_reading_method_that_is_not_checked():
    # a newer Zarr may add one: define it in ReadOnlyStore, with its checks
    assert unchecked_methods(zarr.storage.WrapperStore, zarr.abc.store.Store) == set()
    assert zarr.storage.WrapperStore not in GuardedStore.__mro__

    class Newer(zarr.storage.WrapperStore):
        def read_everything(self):
            return self._store.read_everything()

    assert unchecked_methods(Newer) == {"read_everything"}


def test_a_guarded_store_is_not_written_to(tmp_path):
    zarr.open_group(tmp_path / "g", mode="w")
    group = zarr.open_group(guarded.guarded(tmp_path / "g"), mode="r")
    with pytest.raises((ValueError, SketchError), match="read"):
        group.create_array("a", shape=(3,), dtype="f8")


def test_limits_are_what_is_documented():
    assert (chunk_layout.MAX_CHUNK, guarded.MAX_METADATA) == (2**32, 2**26)
    assert MAX_BYTES == 2**32


@pytest.mark.parametrize("n_bytes", [64, 65, 200_000])
def test_a_server_gives_no_more_than_a_chunk_may_hold(n_bytes, tmp_path):
    path = write_v2(tmp_path / "x.zarr", bytes(n_bytes))
    files = {str(found.relative_to(path)): found.read_bytes() for found in path.iterdir()}
    asked = []

    class Server(MemoryStore):
        """A store elsewhere, which notes how many bytes it is asked for."""

        async def get(self, key, prototype, byte_range=None):
            asked.append((key, byte_range))
            return await super().get(key, prototype, byte_range)

    buffers = {key: Buffer.from_bytes(value) for key, value in files.items()}
    array = zarr.open_array(GuardedStore(Server(buffers)), mode="r")
    if n_bytes == 64:
        assert (array[:] == 0.0).all()
    else:
        with pytest.raises((ArtifactError, ValueError), match="its metadata allows|reshape|size"):
            _ = array[:]
    (whole,) = [part for key, part in asked if key == "0.0"]
    assert whole.end < 200_000
