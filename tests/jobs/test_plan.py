"""Plans: what a run would do, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import zarr
from jobs.places import ROWS, Place, rows_of

from dask_sketch.errors import (
    PlanError,
)
from dask_sketch.jobs.run import plan_job, run_job

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"


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
