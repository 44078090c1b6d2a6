"""Files that a run of a job writes, and what it never replaces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import zarr
from jobs.places import ROWS, Place, rows_of

import dask_sketch as ds
from dask_sketch.diagnostics.report import write_report
from dask_sketch.errors import JobError
from dask_sketch.jobs.run import plan_job, run_job

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"model": "m.zarr", "sketch": "./m.zarr"}, r"outputs\.model.*outputs\.sketch"),
        ({"model": "m.zarr", "report": "m.zarr/r.html"}, r"outputs\.report.*outputs\.model"),
        ({"model": "ledger.zarr"}, r"outputs\.model.*job\.ledger"),
    ],
)
def test_outputs_that_would_replace_each_other_are_refused_first(
    make_place: Make, paths: dict[str, str], message: str
) -> None:
    place = make_place(3)
    outputs = "".join(f'{key} = "{path}"\n' for key, path in paths.items())
    place.write(f"{DECODE}[outputs]\n{outputs}")
    with pytest.raises(JobError, match=message):
        place.run()
    assert not (place.folder / "ledger.zarr").exists()


@pytest.mark.parametrize("key", ["model", "sketch", "report"])
def test_outputs_that_would_replace_something_else_are_refused_first(
    make_place: Make, read: list[int], key: str
) -> None:
    place = make_place()
    before = zarr.open(place.store)[:]
    where = "notes.html" if key == "report" else "x.zarr"
    (place.folder / "notes.html").write_text("my notes")
    place.write(f'{DECODE}[outputs]\n{key} = "{where}"\n')
    for run in (plan_job, run_job):
        with pytest.raises(JobError, match=rf"outputs\.{key}"):
            run(place.file)
    assert not read
    assert not (place.folder / "ledger.zarr").exists()
    np.testing.assert_array_equal(zarr.open(place.store)[:], before)
    assert (place.folder / "notes.html").read_text() == "my notes"


def test_outputs_replace_results_of_jobs_and_no_others(make_place: Make, read: list[int]) -> None:
    place = make_place()
    feature_map = ds.FeatureMap(2, 20, scale=1.0)
    rows = rows_of(30)
    mine = ds.partial_sketch(rows, feature_map)
    model = ds.decode(ds.sketch(rows, feature_map), 1)
    groups = ds.partial_sketch(rows, feature_map, groups=np.arange(30) % 3)
    others: list[tuple[str, ds.Sketch | ds.SketchGroup | ds.GaussianMixture]] = [
        ("sketch", mine), ("sketch", model), ("model", mine), ("model", model), ("model", groups),
    ]  # fmt: skip
    page = write_report(place.folder / "mine.html", mine)
    for k, (_, found) in enumerate(others):
        found.to_zarr(place.folder / f"mine{k}.zarr")
    for key, path in [*((key, f"mine{k}.zarr") for k, (key, _) in enumerate(others)),
                      ("report", "mine.html")]:  # fmt: skip
        before = (page if key == "report" else place.folder / path / "zarr.json").read_bytes()
        place.write(f'{DECODE}[outputs]\n{key} = "{path}"\n')
        run = plan_job if path == "mine1.zarr" else run_job  # both check at the beginning
        with pytest.raises(JobError, match=rf"outputs\.{key}.*{path}"):
            run(place.file)
        after = page if key == "report" else place.folder / path / "zarr.json"
        assert after.read_bytes() == before
    assert not read
    outputs = '[outputs]\nmodel = "m.zarr"\nsketch = "s.zarr"\nreport = "r.html"\n'
    place.write(DECODE + outputs)
    place.run()
    place.run()  # replaces its own results
    text = place.file.read_text().replace("ledger.zarr", "other-ledger.zarr")
    place.file.write_text(text)
    place.run()  # of another ledger
    assert ds.open(place.folder / "s.zarr").count == len(rows_of(ROWS * 10))
    exchanged = '[outputs]\nmodel = "s.zarr"\nsketch = "m.zarr"\n'
    place.write(DECODE + exchanged)
    with pytest.raises(JobError, match=r"outputs\.sketch.*gaussian mixture"):
        place.run()
