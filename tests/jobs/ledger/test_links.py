"""Ledgers of other authors: nothing is read, written or removed outside of the ledger."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from jobs.ledger.world import record

from dask_sketch import Centroids, open_ledger
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.backends import open_backend
from dask_sketch.jobs.ledger.manifest import SCHEMA, VERSIONS
from dask_sketch.jobs.ledger.objects import with_checksum

FOLDERS = ["batches", "totals", "runs", "models", "commits", "feature_map", "lock"]


@pytest.fixture
def place(local, world):
    with local.lock():
        local.write_model(1, Centroids([1.0], [[1.0, 0.0]]))
        local.commit(added=world.new("a", "b"), run=record(1))
    return Path(local.label)


@pytest.fixture
def elsewhere(tmp_path):
    """A folder of somebody, with names like those of a ledger."""
    folder = tmp_path / "precious"
    (folder / "0000000001-0123456789ab").mkdir(parents=True)
    (folder / "0000000001-0123456789ab" / "thesis.tex").write_text("years of work")
    (folder / "notes.txt").write_text("notes")
    return folder


def content(folder):
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("scheme", ["", "file://", "local://"])
@pytest.mark.few_cases(6)
def test_a_linked_folder_is_refused_and_its_files_stay(place, elsewhere, folder, scheme):
    before = content(elsewhere)
    opened = open_ledger(place)
    shutil.rmtree(place / folder, ignore_errors=True)
    (place / folder).symlink_to(elsewhere)
    with pytest.raises(LedgerError, match=rf"{folder} is a symbolic link"):
        open_ledger(f"{scheme}{place}")
    with pytest.raises(LedgerError, match=rf"{folder} is a symbolic link"), opened.lock():
        pass
    assert content(elsewhere) == before


def test_a_link_below_a_folder_is_neither_followed_nor_read(place, elsewhere):
    before = content(elsewhere)
    (model,) = (place / "models").iterdir()
    (place / "models" / "0000000002-0123456789ab").symlink_to(elsewhere)
    shutil.move(model / "zarr.json", elsewhere / "zarr.json")
    (model / "zarr.json").symlink_to(elsewhere / "zarr.json")
    with pytest.raises(LedgerError, match="symbolic link"):
        open_ledger(place).model()
    (elsewhere / "zarr.json").unlink()
    with open_ledger(place).lock():
        pass
    assert content(elsewhere) == before


def test_only_objects_of_the_ledger_are_removed(place, world):
    foreign = place / "models" / "holiday-photos"
    foreign.mkdir()
    (foreign / "1.jpg").write_text("a photo")
    (place / "commits" / "2024").mkdir()
    ledger = open_ledger(place)
    with ledger.lock():
        ledger.commit(added=world.new("c"))
    assert (foreign / "1.jpg").exists()
    assert (place / "commits" / "2024").exists()


@pytest.mark.parametrize("name", ["../precious", "models/../../precious", "/etc", "models", ""])
def test_models_outside_of_the_ledger_are_not_walked(place, elsewhere, name, monkeypatch):
    ledger = open_ledger(place)
    (run,) = ledger.history()
    edited = replace(run, models={"all": name})
    monkeypatch.setattr(type(ledger), "history", lambda self: [edited])
    with pytest.raises(LedgerError, match=repr(name)):
        ledger.model()


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/./b", "a\\b", "a\0b"])
@pytest.mark.parametrize("url", ["memory://links", None])
def test_no_name_leads_out(name, url, tmp_path):
    backend = open_backend(url or tmp_path / "ledger.zarr")
    for call in (
        lambda: backend.read(name, 10),
        lambda: backend.write({name: b""}),
        lambda: backend.write_new(name, b""),
        lambda: backend.names(name),
        lambda: backend.find(name),
        lambda: backend.remove(name),
    ):
        with pytest.raises(LedgerError, match="leads out"):
            call()


@pytest.mark.parametrize("name", ["../x/0000000001-0123456789ab", "batches/x", "batches"])
def test_references_have_names_of_the_ledger(place, name):
    commit = max(place.glob("commits/*/zarr.json"))
    document = json.loads(commit.read_text())
    inner = document["attributes"]["content"]
    inner["batches"][0][0] = name
    commit.write_bytes(with_checksum(SCHEMA, VERSIONS[0], inner))
    with pytest.raises(LedgerError, match="not the name"):
        open_ledger(place)
