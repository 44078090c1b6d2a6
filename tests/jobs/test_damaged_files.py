"""Jobs over Parquet files and Zarr stores that are damaged before and while they are read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fsspec.implementations.local import LocalFileSystem
from jobs.places import ROWS, Place, days, rows_of

from dask_sketch import partial_sketch
from dask_sketch.errors import ChunkError
from dask_sketch.jobs.outcome import Outcome

pytest.importorskip("pyarrow")
Make = Callable[..., Place]
N = 400  # rows of a file, in four row groups of 100
DIVIDED = '[[sources]]\npath = "days"\nname = "days"\nchunk_size = 1600\n'
QUARANTINE = '[limits]\nunreadable = "quarantine"\nattempts = 1\n'


def divided(make_place: Make, more: str = QUARANTINE, sources: str = DIVIDED) -> Place:
    """A job over files `a` and `b`, each divided into four parts."""
    place = make_place(1)
    place.write(more, sources=sources)
    days(place, N, a=0, b=1)
    return place


def file_of(place: Place, name: str) -> Path:
    return place.folder / f"days/{name}.parquet"


def halve(place: Place, name: str) -> bytes:
    """Cut a file in half; return what it was."""
    raw = file_of(place, name).read_bytes()
    file_of(place, name).write_bytes(raw[: len(raw) // 2])
    return raw


def require_total(place: Place, *names: str) -> None:
    """The ledger holds these files and no others, and says so to the bit."""
    rows = [pd.read_parquet(file_of(place, name)).to_numpy() for name in names]
    scratch = partial_sketch(np.concatenate(rows), place.ledger().feature_map)
    assert place.ledger().total().identical(scratch)


def require_quarantined(place: Place, outcome: Outcome, *keys: str) -> None:
    assert outcome.status == ("incomplete" if keys else "done")
    assert sorted(outcome.quarantined) == sorted(keys)
    assert sorted(place.ledger().quarantined) == sorted(keys)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("how", [pytest.param("half", marks=pytest.mark.slow), "empty"])
def test_a_damaged_file_that_would_be_divided(make_place: Make, known: bool, how: str) -> None:
    place = divided(make_place)
    if known:
        days(place, N, c=2)
    place.run()
    if not known:
        days(place, N, c=2)
    days(place, N, d=3)
    raw = halve(place, "c")
    if how == "empty":
        file_of(place, "c").write_bytes(b"")
    for _ in range(2):
        require_quarantined(place, place.run(), "days/c.parquet")
        require_total(place, "a", "b", "d")
    file_of(place, "c").write_bytes(raw)
    require_quarantined(place, place.run())
    require_total(place, "a", "b", "c", "d")


@pytest.mark.slow
def test_a_damaged_file_stops_the_run_with_all_others_committed(make_place: Make) -> None:
    place = divided(make_place, "[limits]\nattempts = 1\n")
    place.run()
    days(place, N, c=2, d=3)
    raw = {name: halve(place, name) for name in "ac"}
    with pytest.raises(ChunkError, match=r"days/a\.parquet and 1 more"):
        place.run()
    file_of(place, "a").write_bytes(raw["a"])
    require_total(place, "a", "b", "d")  # what was read of `a` before stays until it is read again
    file_of(place, "c").write_bytes(raw["c"])
    require_quarantined(place, place.run())
    require_total(place, "a", "b", "c", "d")


def test_a_divided_file_that_becomes_one_part(make_place: Make) -> None:
    place = divided(make_place)
    days(place, N, c=2)
    place.run()
    days(place, 90, a=4)
    place.run()
    assert "days/a.parquet" in place.ledger().entries
    require_total(place, "a", "b", "c")


@pytest.mark.parametrize("undone", [False, True])
@pytest.mark.slow
def test_a_damaged_file_with_a_forgotten_part(make_place: Make, undone: bool) -> None:
    place = divided(make_place)
    place.run()
    place.ledger().forget(["days/a.parquet[0:1]"])
    raw = halve(place, "a")
    require_quarantined(place, place.run(), "days/a.parquet")
    require_total(place, "b")
    file_of(place, "a").write_bytes(raw)
    if undone:
        place.ledger().forget(["days/a.parquet[0:1]"], undo=True)
    require_quarantined(place, place.run())
    assert place.ledger().total().count == (2 * N if undone else 2 * N - 100)


def test_a_damaged_file_that_is_forgotten(make_place: Make) -> None:
    place = divided(make_place)
    place.run()
    place.ledger().forget(["days/a.parquet"])
    halve(place, "a")
    require_quarantined(place, place.run())
    require_total(place, "b")


@pytest.mark.parametrize("sources", [DIVIDED, DIVIDED.replace("1600", "160_000")])
@pytest.mark.parametrize("damaged", ["a", "b", "ab"])
@pytest.mark.slow
def test_the_first_run_with_damaged_files(make_place: Make, sources: str, damaged: str) -> None:
    place = divided(make_place, sources=sources)
    days(place, N, c=2)
    raw = {name: halve(place, name) for name in damaged}
    require_quarantined(place, place.run(), *(f"days/{name}.parquet" for name in damaged))
    require_total(place, *sorted(set("abc") - set(damaged)))
    for name, whole in raw.items():
        file_of(place, name).write_bytes(whole)
    require_quarantined(place, place.run())
    require_total(place, "a", "b", "c")


def test_the_first_run_with_damaged_chunks(make_place: Make) -> None:
    place = make_place(10, QUARANTINE)
    whole = (place.store / "c/4/0").read_bytes()
    (place.store / "c/4/0").write_bytes(b"nonsense")
    (place.store / "c/7/0").unlink()
    require_quarantined(place, place.run(), "data/[80:100]", "data/[140:160]")
    assert place.ledger().total().identical(place.scratch(4, 7))
    (place.store / "c/4/0").write_bytes(whole)
    require_quarantined(place, place.run(), "data/[140:160]")


@pytest.mark.slow
def test_a_file_whose_footer_is_lost_while_it_is_read(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = divided(make_place)
    place.run()
    days(place, N, c=2)
    inner, opened = LocalFileSystem.open, []

    def cut_later(self, path, *args, **options):
        if str(path).endswith("c.parquet"):
            opened.append(path)
            if len(opened) == 4:  # the footer, for the plan, and two of four parts were read
                halve(place, "c")
        return inner(self, path, *args, **options)

    whole = file_of(place, "c").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "open", cut_later)
        outcome = place.run()
    assert outcome.status == "incomplete"
    assert outcome.quarantined
    require_quarantined(place, place.run(), "days/c.parquet")
    require_total(place, "a", "b")
    file_of(place, "c").write_bytes(whole)
    require_quarantined(place, place.run())
    require_total(place, "a", "b", "c")


@pytest.mark.slow
def test_a_file_that_is_divided_otherwise_while_it_is_read(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = divided(make_place)
    place.run()
    days(place, N, c=2)
    inner, opened = LocalFileSystem.open, []

    def written_later(self, path, *args, **options):
        if str(path).endswith("c.parquet"):
            opened.append(path)
            if len(opened) == 4:
                frame = pd.DataFrame(rows_of(N, seed=2), columns=["a", "b"]).astype(float)
                frame.to_parquet(file_of(place, "c"), row_group_size=50)
        return inner(self, path, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "open", written_later)
        outcome = place.run()
    assert outcome.status == "incomplete"
    assert outcome.quarantined
    require_quarantined(place, place.run())
    require_total(place, "a", "b", "c")


@pytest.mark.slow
def test_a_file_that_is_replaced_by_a_folder(make_place: Make) -> None:
    place = divided(make_place)
    days(place, N, c=2)
    place.run()
    file_of(place, "c").unlink()
    file_of(place, "c").mkdir()
    assert place.run().deleted == 4
    require_total(place, "a", "b")
    file_of(place, "c").rmdir()
    days(place, N, c=2)
    assert place.run().new == 4
    require_total(place, "a", "b", "c")


@pytest.mark.parametrize("fingerprint", ["auto", "checksum"])
@pytest.mark.parametrize("size", [pytest.param(1600, marks=pytest.mark.slow), 160_000])
def test_a_file_that_may_not_be_read(
    make_place: Make, monkeypatch: pytest.MonkeyPatch, fingerprint: str, size: int
) -> None:
    sources = DIVIDED.replace("1600", str(size)) + f'fingerprint = "{fingerprint}"\n'
    place = divided(make_place, sources=sources)
    place.run()
    days(place, N, c=2, d=3)
    inner = LocalFileSystem.open

    def refuse(self, path, *args, **options):
        if str(path).endswith("c.parquet"):
            raise PermissionError(13, "Permission denied", path)
        return inner(self, path, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "open", refuse)
        require_quarantined(place, place.run(), "days/c.parquet")
    require_total(place, "a", "b", "d")
    require_quarantined(place, place.run())
    require_total(place, "a", "b", "c", "d")


def test_the_checksum_of_a_chunk_that_may_not_be_read(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = f'[[sources]]\npath = "x.zarr"\nchunk_size = {8 * ROWS}\nfingerprint = "checksum"\n'
    place = make_place(6)
    place.write(QUARANTINE, sources=sources)
    place.run()
    whole = place.store / "c/2/0"
    kept = shutil.move(whole, place.folder / "kept")
    whole.mkdir()
    require_quarantined(place, place.run(), "data/[40:60]")
    assert place.ledger().total().identical(place.scratch(2))
    whole.rmdir()
    shutil.move(kept, whole)
    require_quarantined(place, place.run())
    assert place.ledger().total().identical(place.scratch())
