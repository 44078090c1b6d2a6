"""Forgotten files stay forgotten when they, their source and their division change."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from jobs.places import Place, days

from dask_sketch.errors import PlanError
from dask_sketch.jobs.open import open_sources
from dask_sketch.jobs.results import digest_of

Make = Callable[..., Place]


def test_files_may_be_forgotten_while_a_run_starts(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ended with an error that named damage: the state that it had opened was erased."""
    pytest.importorskip("pyarrow")
    place = make_place(1)
    place.write(sources='[[sources]]\npath = "days"\nname = "days"\n')
    days(place, 400, a=0, b=1, c=2)
    place.run()
    days(place, 400, d=3)
    opened = open_sources

    def forget_meanwhile(*arguments: Any) -> Any:
        place.ledger().forget(["days/a.parquet"])
        return opened(*arguments)

    monkeypatch.setattr("dask_sketch.jobs.run.open_sources", forget_meanwhile)
    outcome = place.run()
    assert (outcome.new, outcome.forgotten) == (1, 1)
    assert sorted(place.ledger().entries) == [f"days/{day}.parquet" for day in "bcd"]


def test_forgotten_files_do_not_come_back_when_they_are_divided(make_place: Make) -> None:
    pytest.importorskip("pyarrow")
    place = make_place(1)
    source = '[[sources]]\npath = "days"\nname = "days"\nchunk_size = {}\n'
    place.write(sources=source.format(16 * 500))
    days(place, 400, a=0, b=1, c=2)
    place.run()
    place.ledger().forget(["days/a.parquet"])
    expected = place.ledger().total()
    # with a smaller chunk size, the keys are other ones
    place.write("[limits]\nchanged = 1\n", sources=source.format(16 * 200))
    outcome = place.run()
    assert (outcome.new, outcome.deleted, outcome.forgotten) == (4, 2, 2)
    assert sorted(place.ledger().entries) == [
        f"days/{day}.parquet[{i}:{i + 2}]" for day in "bc" for i in (0, 2)
    ]
    assert place.ledger().total().identical(expected)
    place.write(sources=source.format(16 * 500))
    with pytest.raises(PlanError, match=r"limits\.changed = 0\.5: 4 of 4"):
        place.run()


@pytest.mark.parametrize(
    "changes",
    [
        [("days", 200), ("other", 200)],
        [("other", 500), ("other", 200)],
        pytest.param([("replace", 500), ("days", 500), ("other", 500)], marks=pytest.mark.slow),
        pytest.param([("touch", 500), ("days", 500), ("other", 500)], marks=pytest.mark.slow),
        [("other", 500), ("touch", 500), ("other", 500), ("days", 500)],
    ],
    ids=[
        "division, name",
        "name, division",
        "replaced, name",
        "touched, name",
        "name, touched, earlier name",
    ],
)
def test_forgotten_files_do_not_come_back_by_changes(
    changes: list[tuple[str, int]], make_place: Make
) -> None:
    pytest.importorskip("pyarrow")
    place = make_place(1)
    source = '[[sources]]\npath = "days"\nname = "{}"\nchunk_size = {}\n'
    place.write(sources=source.format("days", 16 * 500))
    days(place, 400, a=0, b=1)
    place.run()
    place.ledger().forget(["days/a.parquet"])
    expected = place.ledger().total()
    for name, rows in changes:
        if name == "touch":
            os.utime(place.folder / "days/a.parquet", (1, 1))
            continue
        if name == "replace":
            days(place, 400, a=9)
            continue
        limits = "[limits]\nchanged = 1\ndeleted = 1\n"
        place.write(limits, sources=source.format(name, 16 * rows))
        assert place.run().forgotten == (1 if rows == 500 else 2)
        assert place.ledger().total().identical(expected)


def test_the_sketch_of_a_forgotten_file_leaves_the_total(make_place: Make) -> None:
    pytest.importorskip("pyarrow")
    place = make_place(1)
    source = '[[sources]]\npath = "days"\nname = "{}"\n'
    limits = "[limits]\nchanged = 1\ndeleted = 1\n"
    place.write(limits, sources=source.format("days"))
    days(place, 400, a=0, b=1)
    place.run()
    place.ledger().forget(["days/a.parquet"])
    file = place.folder / "days/a.parquet"
    kept = place.folder / "kept"
    file.rename(kept)
    # both its content and its source are others, so that it is not recognised
    days(place, 200, a=2)
    place.write(limits, sources=source.format("other"))
    assert place.run().new == 2
    assert sorted(place.ledger().entries) == ["other/a.parquet", "other/b.parquet"]
    # the forgotten rows are back, where others have a sketch
    kept.rename(file)
    outcome = place.run()
    assert (outcome.forgotten, outcome.deleted, outcome.changed) == (1, 0, 0)
    ledger = place.ledger()
    assert sorted(ledger.entries) == ["other/b.parquet"]
    (only,) = (sketch for _, sketch in ledger.sketches(["other/b.parquet"]))
    assert ledger.total(sample=False).count == 400
    assert digest_of(ledger.total()) == digest_of(only)


def test_a_new_ledger_beside_earlier_outputs_is_noted(make_place: Make) -> None:
    """It knows nothing of partitions that were forgotten in the earlier one."""
    place = make_place(4, '[outputs]\nsketch = "s.zarr"\n')
    assert not place.run().notes
    place.file.write_text(place.file.read_text().replace('ledger = "', 'ledger = "other_'))
    outcome = place.run()
    assert (outcome.run, outcome.new) == (1, 4)
    assert any("s.zarr exists" in note and "forgotten" in note for note in outcome.notes)
    assert not any("exists" in note for note in place.run().notes)
