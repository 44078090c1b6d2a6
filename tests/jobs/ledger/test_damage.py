"""Damaged and edited objects of a ledger are found, and do no harm."""

from __future__ import annotations

import copy
import json
import resource
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs.ledger.world import World, record

from dask_sketch import Centroids, create_ledger, open_ledger
from dask_sketch.errors import ArtifactError, LedgerError
from dask_sketch.jobs.ledger.manifest import SCHEMA, VERSIONS
from dask_sketch.jobs.ledger.objects import group_metadata, with_checksum


@pytest.fixture(scope="session")
def written(tmp_path_factory, feature_map):
    world = World(feature_map)
    place = tmp_path_factory.mktemp("damage") / "ledger.zarr"
    ledger = create_ledger(place, feature_map)
    with ledger.lock():
        ledger.commit(added=world.new("a", "b", "c"))
        ledger.write_model(1, Centroids([1.0], [[1.0, 0.0]]))
        ledger.commit(added=world.new("d"), removed=["c"], run=record(1))
        ledger.forget(["b"])  # so that there is one commit, and none to fall back to
    return place


@pytest.fixture
def place(written, tmp_path):
    shutil.copytree(written, tmp_path / "ledger.zarr")
    return tmp_path / "ledger.zarr"


def read_all(place):
    ledger = open_ledger(place)
    ledger.total()
    ledger.total(ledger.entries)
    ledger.states(5)
    ledger.history()
    ledger.model()
    return ledger


def objects(place):
    return sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())


def test_what_was_written_is_whole(written, world):
    ledger = read_all(written)
    assert ledger.total().identical(world.total("ad"))
    assert len(objects(written)) > 15


def told(place):
    """Message of the error on opening, or the ledger."""
    try:
        return None, read_all(place)
    except (LedgerError, ArtifactError) as error:
        return str(error), None


@pytest.mark.parametrize("how", ["deleted", "truncated", "emptied", "flipped", "grown", "swapped"])
@pytest.mark.few_cases(2)
def test_damage_to_any_object_is_told(how, place, written):
    for name in objects(written):
        path = place / name
        raw = bytearray(path.read_bytes())
        if how == "deleted":
            path.unlink()
        elif how == "swapped":
            others = [p for p in objects(written) if (written / p).read_bytes() != raw]
            path.write_bytes((written / others[len(raw) % len(others)]).read_bytes())
        else:
            half = len(raw) // 2
            changed = {
                "truncated": raw[:half],
                "emptied": b"",
                "flipped": raw[:half] + bytes([raw[half] ^ 1]) + raw[half + 1 :],
                "grown": raw + b" ",
            }
            path.write_bytes(changed[how])
        message, _ = told(place)
        if message is None:  # white space after a document
            assert how == "grown", name
            assert name.endswith("zarr.json")
        else:
            assert "ledger.zarr" in message or "memory://" in message
        path.write_bytes(raw)
    read_all(place)


def test_a_commit_that_was_cut_off_does_not_exist(written, world, tmp_path):
    shutil.copytree(written, tmp_path / "l")
    ledger = open_ledger(tmp_path / "l")
    with ledger.lock():
        ledger.commit(added=world.new("e"))
        ledger.commit(added=world.new("f"))
    last = tmp_path / "l" / "commits" / f"{ledger.number:010d}" / "zarr.json"
    raw = last.read_bytes()
    for cut in (0, 1, len(raw) // 3, len(raw) - 1):
        last.write_bytes(raw[:cut])
        with pytest.warns(UserWarning, match=r"0000000005 .*state of commit 4"):
            again = open_ledger(tmp_path / "l")
        assert again.total().identical(world.total("ade"))
        assert again.damage is not None
    with again.lock():
        again.commit(added=world.new("g"))
    assert again.number == ledger.number + 1  # the number that was begun is not used again
    assert open_ledger(tmp_path / "l").total().identical(world.total("adeg"))


def test_a_ledger_whose_commits_are_gone_is_not_a_new_one(place, world, tmp_path):
    """The erased partition was read again."""
    shutil.rmtree(place / "commits")
    with pytest.raises(LedgerError, match=r"ledger\.zarr.* commit 3.*'commits'"):
        open_ledger(place)
    (place / "commits" / "0000000003").mkdir(parents=True)
    with pytest.raises(LedgerError, match=r"commit 3"):
        open_ledger(place)


def test_an_interrupted_first_commit_is_no_commit(place, feature_map, world, tmp_path):
    ledger = create_ledger(tmp_path / "new.zarr", feature_map)
    with ledger.lock():
        ledger.commit(added=world.new("a"))
    manifest = tmp_path / "new.zarr" / "commits" / "0000000001" / "zarr.json"
    manifest.unlink()
    for folder in (True, False):  # object stores have no empty folders
        if not folder:
            manifest.parent.rmdir()
        again = open_ledger(tmp_path / "new.zarr")
        assert again.number == 0
    with again.lock():
        again.commit(added=world.new("a"))
    assert again.total().identical(world.total("a"))


def reseal(place, change):
    """Write a manifest that proves itself, and is not what we wrote."""
    (path,) = (place / "commits").glob("*/zarr.json")
    content = json.loads(path.read_text())["attributes"]["content"]
    content = change(copy.deepcopy(content)) or content
    path.write_bytes(with_checksum(SCHEMA, VERSIONS[0], content))


def changed(*path, to):
    def change(content):
        at = content
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = to
        return content

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("batches", 0, 0, to="../../../etc"),
        changed("batches", 0, 0, to="/etc"),
        changed("batches", 0, 0, to="batches/.."),
        changed("batches", 0, 0, to=7),
        changed("batches", 0, 1, to=10**12),
        changed("batches", 0, 1, to=-1),
        changed("batches", 0, 3, to=10**9),
        changed("batches", 0, 3, to=0),
        changed("batches", 0, 4, to=[17]),
        changed("total", 0, to="../x"),
        changed("total", to="all of it"),
        changed("number", to=99),
        changed("number", to=None),
        changed("number", to=float("inf")),
        changed("batches", 0, 3, to=float("inf")),
        changed("batches", 0, 4, to=[float("nan")]),
        changed("forgotten", to=3),
        changed("quarantined", to=["a"]),
        changed("gone", to={"a": 1}),
        changed("states", to=[[1]]),
        changed("runs", to=[["runs/x", 10, "0" * 64]]),
    ],
)
def test_manifests_of_others(change, place):
    reseal(place, change)
    with pytest.raises(LedgerError):
        read_all(place)


def test_a_newer_version_is_told_and_nothing_older_is_taken_for_it(place):
    (path,) = (place / "commits").glob("*/zarr.json")
    content = json.loads(path.read_text())["attributes"]["content"]
    path.write_bytes(with_checksum(SCHEMA, VERSIONS[-1] + 1, content))
    with pytest.raises(LedgerError, match=r"schema version 3"):
        open_ledger(place)
    root = json.loads((place / "zarr.json").read_text())["attributes"]
    (place / "zarr.json").write_bytes(group_metadata(root | {"schema_version": 7}))
    with pytest.raises(LedgerError, match="schema version 7"):
        open_ledger(place)


def test_places_that_hold_no_ledger(tmp_path, feature_map, place):
    from dask_sketch import Sketch

    for missing in (tmp_path / "none", "memory://nowhere-at-all/l"):
        with pytest.raises(LedgerError, match=r"create_ledger"):
            open_ledger(missing)
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerError):
        open_ledger(tmp_path / "file")
    Sketch.empty(feature_map).to_zarr(tmp_path / "s.zarr")
    with pytest.raises(LedgerError, match=r"schema 'dask-sketch/sketch'"):
        open_ledger(tmp_path / "s.zarr")
    for taken in (tmp_path / "s.zarr", place):
        with pytest.raises(LedgerError, match="exists"):
            create_ledger(taken, feature_map)
    for nonsense in (None, "", 7):
        with pytest.raises(LedgerError, match="url="):
            open_ledger(nonsense)
    with pytest.raises(LedgerError, match="nonsense"):
        open_ledger("nonsense://x")


def test_what_states_a_huge_size_is_not_allocated(place, written):
    """Metadata that proves itself and claims terabytes: refused before anything is allocated."""
    import hashlib

    batch = place / open_ledger(place).entries["a"].batch
    meta = batch / "words" / "zarr.json"
    array = json.loads(meta.read_text())
    array["shape"][1] = array["chunk_grid"]["configuration"]["chunk_shape"][1] = 10**12
    meta.write_text(json.dumps(array))
    root = json.loads((batch / "zarr.json").read_text())["attributes"]
    raw = meta.read_bytes()
    root["objects"]["words/zarr.json"] = [len(raw), hashlib.sha256(raw).hexdigest()]
    text = group_metadata(root)
    (batch / "zarr.json").write_bytes(text)
    number = [one.reference.name for one in open_ledger(place)._state.batches].index(
        batch.relative_to(place).as_posix()
    )
    reseal(place, changed("batches", number, 1, to=len(text)))
    reseal(place, changed("batches", number, 2, to=hashlib.sha256(text).hexdigest()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LedgerError, match="words"):
        read_all(place)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def places_in(document, path=()):
    yield path
    steps = ()
    if isinstance(document, dict):
        steps = document.items()
    elif isinstance(document, list):
        steps = enumerate(document)
    for step, inner in steps:
        yield from places_in(inner, (*path, step))


@given(data=st.data())
def test_any_manifest_that_proves_itself(data, written):
    (path,) = (Path(written) / "commits").glob("*/zarr.json")
    raw = path.read_bytes()
    content = json.loads(raw)["attributes"]["content"]
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.sampled_from([p for p in places_in(content) if p]))
        content = changed(*where, to=data.draw(JSON))(content)
    try:
        path.write_bytes(with_checksum(SCHEMA, VERSIONS[0], content))
        read_all(written)
    except (LedgerError, ArtifactError):
        pass
    finally:
        path.write_bytes(raw)
