"""Plans: what a run would do, and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import zarr
from jobs.places import ROWS, Place, rows_of

from dask_sketch.errors import ChunkError, PlanError
from dask_sketch.jobs.run import plan_job, run_job
from dask_sketch.jobs.verify import verify_job

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"


@pytest.mark.slow
def test_a_dry_run_reads_and_writes_nothing(
    make_place: Make, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(10, DECODE + '[outputs]\nmodel = "m.zarr"\n[limits]\nbytes = "1MiB"\n')
    before = sorted(place.folder.rglob("*"))
    plan = plan_job(place.file)
    assert (plan.first, plan.new, plan.same, plan.n_samples) == (True, 10, 0, 200)
    assert plan.memory_per_thread is not None
    assert "created by this run" in str(plan)
    assert "m.zarr" in str(plan)
    assert (read, sorted(place.folder.rglob("*"))) == ([], before)
    place.run()
    place.append(rows_of(ROWS))
    place.ledger().forget(["data/[0:20]"])
    zarr.open_array(str(place.store), mode="r+")[20:40] = 0.0
    before = sorted(place.folder.rglob("*"))
    read.clear()
    plan = plan_job(place.file)
    assert (plan.first, plan.new, plan.changed, plan.forgotten, plan.same) == (False, 1, 1, 1, 8)
    assert plan.n_samples == 2 * ROWS
    assert plan.n_tasks == 3
    assert "data/[20:40]" in str(plan)
    assert (read, sorted(place.folder.rglob("*"))) == ([], before)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(PlanError, match=r"2 partitions"):
        plan_job(place.file)
    monkeypatch.undo()
    place.write("[limits]\nbytes = 10\n")
    for refused in (plan_job, run_job):
        with pytest.raises(PlanError, match=r"limits\.bytes"):
            refused(place.file)


def test_a_store_that_all_but_vanished_is_refused(make_place: Make) -> None:
    place = make_place(10)
    place.run()
    before = place.ledger().total()
    zarr.open_array(str(place.store), mode="r+").resize((4 * ROWS, 2))
    with pytest.raises(PlanError, match=r"limits\.deleted = 0\.5: 6 of 10"):
        place.run()
    assert place.ledger().total().identical(before)
    place.write("[limits]\ndeleted = 1\n")
    assert place.run().deleted == 6


def test_partitions_without_bytes_are_gone(make_place: Make) -> None:
    place = make_place(10)
    place.run()
    before = place.ledger().total()
    shutil.move(place.store / "c", place.folder / "unmounted")
    with pytest.raises(PlanError, match=r"limits\.deleted = 0\.5: 10 of 10"):
        place.run()
    verified = verify_job(place.file, 1.0)
    assert (len(verified.unreadable), verified.is_sound) == (10, False)
    place.write("[limits]\ndeleted = 1\nchanged = 1\nattempts = 1\n")
    with pytest.raises(ChunkError, match="missing"):
        place.run()
    assert place.ledger().total().identical(before)
    shutil.move(place.folder / "unmounted", place.store / "c")
    assert (place.run().changed, place.ledger().total().identical(before)) == (0, True)


@pytest.mark.slow
def test_one_lost_partition_is_in_quarantine_until_it_is_back(make_place: Make) -> None:
    place = make_place(10, '[limits]\nunreadable = "quarantine"\nattempts = 1\n')
    place.run()
    shutil.move(place.store / "c/4", place.folder / "lost")
    for _ in range(2):
        assert list(place.run().quarantined) == ["data/[80:100]"]
        assert place.ledger().total().identical(place.scratch(4))
    shutil.move(place.folder / "lost", place.store / "c/4")
    assert place.run().status == "done"
    assert place.ledger().total().identical(place.scratch())


def test_chunks_that_were_never_written_are_filled_on_request(make_place: Make) -> None:
    place = make_place(10)
    zarr.open_array(str(place.store), mode="r+")[20:40] = 0.0
    with pytest.raises(ChunkError, match="missing_chunks"):
        place.run()
    source = '[[sources]]\npath = "x.zarr"\nchunk_size = 160\nmissing_chunks = "fill"\n'
    place.write(sources=source)
    assert place.run().samples == 200
    assert place.ledger().total().identical(place.scratch())


def test_too_many_changed_partitions_are_refused(make_place: Make) -> None:
    place = make_place(10)
    place.run()
    before = place.ledger().total()
    zarr.open_array(str(place.store), mode="r+")[: 6 * ROWS] = rows_of(6 * ROWS, seed=3)
    with pytest.raises(PlanError, match=r"limits\.changed = 0\.5: 6 of 10"):
        place.run()
    assert place.ledger().total().identical(before)
    place.write("[limits]\nchanged = 1\n")
    assert place.run().changed == 6
    assert place.ledger().total().identical(place.scratch())
