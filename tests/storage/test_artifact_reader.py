"""Stored artifacts of untrusted authors."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from every_artifact import content, made

import dask_sketch as ds
from dask_sketch.errors import ArtifactError
from dask_sketch.models import Decoding
from dask_sketch.models.artifact import MIXTURE, to_dataset
from dask_sketch.models.open import model_from_dataset, open_model
from dask_sketch.sketching.open import open_sketch
from dask_sketch.storage import untrusted as guarded
from dask_sketch.storage.artifact import write_dataset


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


@pytest.mark.parametrize("read", [open_sketch, open_model, ds.open])
def test_artifacts_are_of_format_3_only(read, tmp_path):
    root = tmp_path / "s.zarr"
    write_v2(root / "x", pickle.dumps(Marks(tmp_path / "ran")), filters=[{"id": "pickle"}])
    (root / ".zgroup").write_text('{"zarr_format": 2}')
    (root / ".zattrs").write_text('{"schema": "dask-sketch/sketch", "schema_version": 1}')
    with pytest.raises(ArtifactError, match=r"s.zarr' cannot be read"):
        read(root)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def stored(tmp_path):
    """A stored sketch."""
    rows = np.random.default_rng(0).normal(size=(50, 2))
    ds.partial_sketch(rows, FEATURES).to_zarr(tmp_path / "s.zarr")
    return tmp_path / "s.zarr"


def an_array_of(store):
    """The metadata file of an array of an artifact, by name, whatever the arrays are."""
    return sorted(path for path in store.glob("*/zarr.json") if path.parent.name != "center")[0]


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def set_shape(n):
    def change(document):
        document["shape"] = [n] * len(document["shape"])
        document["chunk_grid"]["configuration"]["chunk_shape"] = document["shape"]

    return change


def set_chunks(n):
    def change(document):
        chunks = document["chunk_grid"]["configuration"]
        chunks["chunk_shape"] = [n] * len(chunks["chunk_shape"])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_shape(10**12), "over the limit"),
        (set_shape(2**30), "over the limit"),
        (set_chunks(10**12), "over the limit"),
        (set_chunks(2**20), "expected one chunk|over the limit"),
        (lambda d: d.update(codecs=[{"name": "numcodecs.pickle"}]), "names the codec"),
        (
            lambda d: d.update(codecs=[{"name": "vlen-utf8"}], data_type="string"),
            "expected numbers",
        ),
        (
            lambda d: d.update(shape=["9" * 5000]),
            "not valid integers|unreadable|cannot be read|damaged",
        ),
        (lambda d: d.update(shape=[2.5]), "not valid integers"),
        (lambda d: d.update(shape=[-5]), "not valid integers"),
        (lambda d: d.update(codecs=5), "not the metadata of an array"),
        (lambda d: d.update(chunk_grid=[]), "not the metadata of an array"),
    ],
)
@pytest.mark.few_cases(4)
def test_sketches_of_others(change, message, stored):
    edit(an_array_of(stored), change)
    with pytest.raises(ArtifactError, match=message):
        ds.open(stored)


@pytest.mark.parametrize("schema", [["dask-sketch/sketch"], {}, None, 3])
def test_a_schema_that_is_no_text(schema, stored):
    edit(stored / "zarr.json", lambda d: d["attributes"].update(schema=schema))
    with pytest.raises(ArtifactError, match="schema="):
        ds.open(stored)


def test_a_name_that_no_file_has():
    with pytest.raises(ArtifactError, match="store='a.*does not exist"):
        ds.open("a\0b")


def test_more_than_half_of_the_memory_is_not_asked_for(stored, monkeypatch):
    class Little:
        available = 100

    monkeypatch.setattr("psutil.virtual_memory", Little)
    with pytest.raises(ArtifactError, match="half of the 100 bytes"):
        ds.open(stored)


@pytest.mark.parametrize("where", ["zarr.json", "array"])
def test_deep_and_long_metadata(where, stored, monkeypatch):
    path = stored / "zarr.json" if where == "zarr.json" else an_array_of(stored)
    whole = path.read_text()
    path.write_text('{"a":' * 100_000)
    with pytest.raises(ArtifactError, match="nested too deeply"):
        ds.open(stored)
    path.write_text(whole)
    monkeypatch.setattr(guarded, "MAX_METADATA", 100)
    with pytest.raises(ArtifactError, match="over 100 bytes of metadata"):
        ds.open(stored)


@pytest.mark.parametrize(
    "record",
    [
        "[" * 100_000,
        "3",
        "{}",
        {"method": {"a": 1}},
        {"message": "x" * 10_000},
        {"seconds": "soon"},
        {"trace": ["a"]},
        {"trace": 5},
        {"converged": "yes"},
        {"seed": 1.5},
        {"surprise": 1},
    ],
    ids=lambda record: str(record)[:30],
)
def test_models_of_others(record, tmp_path):
    how = Decoding("cl-ompr", "gaussian", 0.1, 0.1, (0.2, 0.1), 1.0, 0, 1, 10, True, "done")
    model = ds.GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]], decoding=how)
    dataset = to_dataset(model, MIXTURE)
    assert model_from_dataset(dataset).decoding == how
    if isinstance(record, dict):
        record = json.dumps(json.loads(dataset.attrs["decoding"]) | record)
    write_dataset(dataset.assign_attrs(decoding=record), tmp_path / "m.zarr", MIXTURE, 1)
    with pytest.raises(ArtifactError, match=r"decoding|unreadable|gaussian mixture"):
        ds.open(tmp_path / "m.zarr")


def frame_that_states(size):
    """A zstd frame of a few bytes that states a content size and repeats one byte."""
    head = struct.pack("<IBQ", 0xFD2FB528, 0xE0, size)
    return head + b"".join(
        (int(last) | 1 << 1 | 2**17 << 3).to_bytes(3, "little") + b"\0"
        for last in [False] * 15 + [True]
    )


NEWER = ["second moments", "phases", "components", "heavy tails", "latent classes", "group"]


@pytest.mark.parametrize("kind", ["sketch", *NEWER])
@pytest.mark.few_cases(3)
def test_a_bomb_in_an_artifact(kind, tmp_path):
    """Of every kind, in each of its arrays: refused before memory is taken."""
    stored = tmp_path / "s.zarr"
    made(kind).to_zarr(stored)
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
    ]
    files = sorted(path for path in stored.rglob("*") if path.is_file())
    for path in (path for path in files if path.name != "zarr.json"):
        metadata = stored / path.relative_to(stored).parts[0] / "zarr.json"
        before, chunk = metadata.read_text(), path.read_bytes()
        edit(metadata, lambda d: d.update(codecs=codecs))
        path.write_bytes(frame_that_states(4 * 10**9))
        with pytest.raises(ArtifactError, match="decompresses to over"):
            ds.open(stored)
        metadata.write_text(before)
        path.write_bytes(chunk)
    assert content(ds.open(stored)) == content(made(kind))
