"""Random rows in jobs: models of them, and what plans, records and reports say of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import zarr
from jobs.places import ROWS, Place, rows_of

from dask_sketch import create_ledger
from dask_sketch.errors import JobError
from dask_sketch.jobs.report import report_last_run
from dask_sketch.jobs.run import plan_job, run_job
from dask_sketch.jobs.verify import verify_job

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"


@pytest.mark.usefixtures("no_drawing")
def test_the_number_of_rows_is_told_everywhere(make_place: Make) -> None:
    place = make_place(10, DECODE, sample=7)
    plan = plan_job(place.file)
    assert (plan.rows_per_partition, plan.rows_bytes) == (7, 70 * 32)
    assert plan.rows_bytes < plan.ledger_bytes
    assert "at most 7 random rows of each partition" in str(plan)
    outcome = place.run()
    assert outcome.rows == {"per_partition": 7, "n_rows": 70, "n_bytes": 70 * 40}
    assert outcome.models["model"]["rows"] == len(place.ledger().total().sample)
    record = place.ledger().history()[-1]
    assert record.results["rows"] == outcome.rows
    assert record.results["models"]["model"]["rows"] == outcome.models["model"]["rows"]
    page = report_last_run(place.file, place.folder / "r.html").read_text()
    for text in (str(outcome), page):
        assert "70 random rows, at most 7 of each partition" in text
    assert "are kept beside the sums" in page


@pytest.mark.parametrize(("more", "kept"), [("", 0), (DECODE, 3000)])
def test_rows_are_kept_by_default_where_a_model_is_decoded(
    make_place: Make, more: str, kept: int
) -> None:
    place = make_place(10, more)
    assert plan_job(place.file).rows_per_partition == kept
    assert place.run().rows["per_partition"] == kept


def test_another_number_than_that_of_the_ledger_is_refused(make_place: Make) -> None:
    place = make_place(3, DECODE, sample=7)
    place.run()
    place.sample = 8
    place.write(DECODE)
    with pytest.raises(JobError, match=r"job\.sample = 8: .* at most 7"):
        place.run()
    place.sample = None
    place.write(DECODE)
    assert place.run().rows["per_partition"] == 7
    place.sample = -1
    place.write(DECODE)
    with pytest.raises(JobError, match=r"job\.sample = -1"):
        place.run()


@pytest.mark.filterwarnings("ignore:the mixture is .* below EM on the pilot rows")  # of seven rows
@pytest.mark.filterwarnings("ignore:.* expected to lose")
@pytest.mark.slow
def test_models_of_groups_have_the_rows_of_their_partitions(make_place: Make) -> None:
    place = make_place(8, sample=7)
    groups = "[groups]\npattern = 'data/\\[(?P<group>[24]0)'\n"
    place.write(groups + DECODE + "groups = true\n")
    models = place.run().models
    ledger = place.ledger()
    for name, keys in {"20": ["data/[20:40]"], "40": ["data/[40:60]"]}.items():
        sample = ledger.total(keys).sample
        assert models[f"model@{name}"]["rows"] == len(sample) == 7


def test_no_rows_erase_those_of_the_ledger(make_place: Make) -> None:
    place = make_place(3, DECODE, sample=7)
    place.run()
    total = place.ledger().total(sample=False)
    place.sample = 0
    place.write(DECODE)
    assert plan_job(place.file).rows_per_partition == 0
    lines: list[str] = []
    outcome = run_job(place.file, log=lines.append)
    assert any("erasing 21 random rows" in line for line in lines)
    assert (outcome.new, outcome.rows["per_partition"]) == (0, 0)
    assert not list((place.folder / "ledger.zarr").rglob("sample_rows"))
    place.sample = None
    place.write(DECODE)
    place.append(rows_of(ROWS, seed=1))
    assert place.run().rows["per_partition"] == 0
    assert place.ledger().total(["data/[0:20]", "data/[20:40]", "data/[40:60]"]).identical(total)
    assert verify_job(place.file, 1.0).is_sound


def test_a_ledger_without_rows_goes_on(make_place: Make) -> None:
    place = make_place(3, DECODE, sample=0)
    place.run()
    place.sample = None
    place.write(DECODE)
    place.append(rows_of(ROWS, seed=1))
    assert "from sums alone" in str(plan_job(place.file))
    outcome = place.run()
    assert (outcome.rows["per_partition"], outcome.models["model"]["rows"]) == (0, 0)
    place.sample = 7
    place.write(DECODE)
    with pytest.raises(JobError, match=r"job\.sample = 7: .*job\.ledger"):
        place.run()


@pytest.mark.slow
def test_rows_depend_on_their_partition_alone(make_place: Make) -> None:
    """Not on the night in which it came, nor on what was there before."""
    whole = make_place(12, DECODE, name="whole", sample=7)
    whole.run()
    store = zarr.open_array(str(whole.store), mode="r")[...]
    place = make_place(5, DECODE, sample=7)
    ledger = whole.ledger()
    create_ledger(place.folder / "ledger.zarr", ledger.feature_map, sample=7)
    zarr.open_array(str(place.store), mode="r+")[:] = rows_of(5 * ROWS, seed=3)
    place.run()
    zarr.open_array(str(place.store), mode="r+")[:] = store[: 5 * ROWS]
    place.append(store[5 * ROWS :])
    place.write(DECODE + "[limits]\nchanged = 1\n")
    outcome = place.run()
    assert (outcome.new, outcome.changed) == (7, 5)
    assert place.ledger().total().sample.identical(ledger.total().sample)


@pytest.mark.slow
def test_rows_are_verified_and_erased(make_place: Make) -> None:
    place = make_place(10, DECODE, sample=7)
    place.run()
    assert verify_job(place.file, 1.0).is_sound
    place.ledger().forget(["data/[0:20]"])
    assert verify_job(place.file, 1.0).is_sound  # the pilot is gone, and the choice is the same
    rows = np.asarray(zarr.open_array(str(place.store), mode="r")[:ROWS, 0]).tolist()
    for path in (place.folder / "ledger.zarr").glob("*/*/sample_rows/zarr.json"):
        assert not set(zarr.open_array(path.parent, mode="r")[:, 0].tolist()) & set(rows)
    assert place.run().partitions == 9
    assert verify_job(place.file, 1.0).is_sound
