"""Models, scores and drifts of a run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import zarr
from jobs.places import ROWS, Place, rows_of, write_rows

import dask_sketch as ds
from dask_sketch.errors import (
    JobError,
)
from dask_sketch.jobs import drift_history
from dask_sketch.jobs.report import report_last_run
from dask_sketch.jobs.results import NEW_SAMPLES, STATE
from dask_sketch.jobs.run import plan_job, run_job

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"


@pytest.mark.slow
def test_groups_by_source_and_by_pattern(make_place: Make) -> None:
    place = make_place(10)
    write_rows(place.folder / "y.zarr", rows_of(5 * ROWS, seed=4, shift=0.5))
    sources = "".join(
        f'[[sources]]\nname = "{name}"\npath = "{name}.zarr"\nchunk_size = 160\n' for name in "xy"
    )
    place.write('[groups]\nby = "source"\n' + DECODE + "groups = true\n", sources=sources)
    outcome = place.run()
    assert list(outcome.models) == ["model", "model@x", "model@y"]
    assert outcome.between["x against y"].is_alarm(5.0)
    assert not outcome.alarm  # groups may differ from each other
    keys = [key for key in place.ledger().entries if key.startswith("y/")]
    assert len(keys) == 5
    place.write("[groups]\npattern = 'x/\\[(?P<group>\\d)'\n", sources=sources)
    outcome = place.run()
    names = {name for pair in outcome.between for name in pair.split(" against ")}
    assert {"1", "2", "4", "6", "8", "0"} == names
    place.write("[groups]\npattern = 'z/(.)'\n", sources=sources)
    lines: list[str] = []
    outcome = run_job(place.file, log=lines.append)
    for said in (lines, outcome.notes):
        assert [line for line in said if line.startswith("groups.pattern = 'z/(.)'")]
    place.write("[groups]\npattern = 'x/\\[(\\d+)'\nmax_groups = 3\n", sources=sources)
    with pytest.raises(JobError, match=r"groups\.max_groups = 3: .*10"):
        place.run()


DRIFT = DECODE + "[drift]\nfalse_alarms_per_year = 5\nruns_per_year = 365\n"


@pytest.mark.usefixtures("no_drawing")
def test_drift_is_an_alarm_above_its_tolerance(make_place: Make) -> None:
    place = make_place(12, DRIFT + '[outputs]\nreport = "r.html"\n')
    first = place.run()
    assert (first.drift, first.untested) == (None, "There is no earlier data to compare with.")
    place.append(rows_of(4 * ROWS, seed=7, shift=1.5))
    outcome = place.run()
    assert outcome.alarm
    assert outcome.drift is not None
    assert outcome.drift.n_units == (4, 12)
    assert outcome.drift.p_value <= outcome.drift.level == 5 / 365
    # states share most samples: a smaller distance
    assert outcome.drifts[STATE].discrepancy < outcome.drifts[NEW_SAMPLES].discrepancy / 2
    page = (place.folder / "r.html").read_text()
    assert "Alarm" in page
    assert outcome.drift.sentence in page
    assert outcome.since is not None
    assert outcome.since.changes is not None
    (change,) = outcome.since.changes.points
    assert (change.label, change.date) == (2, place.ledger().history()[-1].started[:10])
    assert "with run 2 of" in str(outcome)
    assert outcome.since.sentence in page
    assert "<h2>Last change" in page
    assert "Changes of the components" in page
    report_last_run(place.file, place.folder / "again.html")
    again = (place.folder / "again.html").read_text()
    assert outcome.drift.sentence in again
    assert outcome.since.sentence in again
    place.append(rows_of(4 * ROWS, seed=8, shift=1.5))
    assert "<h2>Drift by run" not in page  # a picture of one test
    place.write(DRIFT + 'tolerance = 1.5\n[outputs]\nreport = "r.html"\n')
    outcome = place.run()
    assert not outcome.alarm
    assert "<h2>Drift by run" in (place.folder / "r.html").read_text()
    found = drift_history(place.ledger())
    assert (found.runs, found.alarms, found.changes) == ((2, 3), (True, False), (2,))
    assert found.tests[-1] == outcome.drift
    assert outcome.drift is not None
    assert outcome.drift.tolerance_p_value > 0.5
    assert outcome.since is None


@pytest.mark.usefixtures("no_drawing")
def test_too_few_partitions_are_not_tested(make_place: Make) -> None:
    place = make_place(3, DRIFT + '[outputs]\nreport = "r.html"\n')
    place.run()
    place.append(rows_of(ROWS, seed=7, shift=3.0))
    outcome = place.run()
    assert not outcome.alarm
    assert outcome.drift is None
    assert "1 and 3 units" in outcome.untested
    assert "1 and 3 units" in str(outcome)
    assert "1 and 3 units" in (place.folder / "r.html").read_text()


@pytest.mark.filterwarnings("ignore:feature 0 has values")
@pytest.mark.slow
def test_a_warm_start_that_ends_worse_is_made_anew(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(20, DECODE, sample=0)
    place.run()
    # a third cluster where there was nothing; two components, one of them in its place
    far = rows_of(100 * ROWS, seed=9)
    far[far[:, 0] < 0] += (30.0, -30.0)
    place.append(far)
    outcome = place.run()
    cold = place.folder.parent / "cold"
    cold.mkdir()
    assert outcome.models["model"]["start"] in ("warm", "cold, better than warm")
    place.write("[[decode]]\nn_components = 2\nwarm = false\nseed = 0\n")
    again = place.run()
    assert again.models["model"]["start"] in ("cold", "kept")
    # whichever was taken is no worse than a cold one
    assert outcome.models["model"]["cost"] <= again.models["model"]["cost"] * (1 + 1e-6)


def test_covariance_types_that_do_not_suit_the_model_are_refused(make_place: Make) -> None:
    place = make_place(20, DECODE + 'covariance_type = "full"\nmodel = "dirac"\n')
    with pytest.raises(JobError, match=r'covariance_type = "full".*"dirac"'):
        place.run()


@pytest.mark.parametrize("kind", ["full", "low-rank:1"])
@pytest.mark.slow
def test_covariance_matrices_are_a_start_of_the_next_run(make_place: Make, kind: str) -> None:
    place = make_place(
        20,
        DECODE + f'covariance_type = "{kind}"\nmethod = "cl-ompr"\n[outputs]\nmodel = "m.zarr"\n',
    )
    place.run()
    place.append(rows_of(10 * ROWS, seed=5))
    outcome = place.run()
    assert outcome.models["model"]["start"] in ("warm", "cold, better than warm")
    assert ds.open(place.folder / "m.zarr").covariance_type == kind


@pytest.mark.slow
def test_the_map_has_frequencies_for_the_largest_covariance_type(make_place: Make) -> None:
    more = [f'{DECODE}name = "{kind}"\ncovariance_type = "{kind}"\n' for kind in ("diag", "full")]
    place = make_place(20, "".join(more))
    assert plan_job(place.file).n_frequencies == 60
    place.run()
    assert place.ledger().feature_map.n_frequencies == 60


def test_unknown_covariance_types_are_refused(make_place: Make) -> None:
    place = make_place(20, DECODE + 'covariance_type = "low-rank:0"\n')
    with pytest.raises(JobError, match=r'"low-rank:0".*low-rank:r'):
        place.run()


@pytest.mark.slow
def test_scores_on_samples_that_no_run_sketches(make_place: Make) -> None:
    place = make_place(20)
    write_rows(place.folder / "h.zarr", rows_of(500, seed=11))
    points = '[[decode]]\nname = "points"\nn_components = 2\nmodel = "dirac"\n'
    place.write(DECODE + points + '[score]\npath = "h.zarr"\n[outputs]\nmodel = "{name}.zarr"\n')
    outcome = place.run()
    held = np.asarray(zarr.open_array(str(place.folder / "h.zarr")))
    assert outcome.models["model"]["score"] == pytest.approx(
        ds.open(place.folder / "model.zarr").score(held)
    )
    assert outcome.models["points"]["mean_squared_distance"] == pytest.approx(
        ds.open(place.folder / "points.zarr").inertia(held), rel=1e-5
    )
    assert "nats per row" in str(outcome)


@pytest.mark.slow
def test_a_job_of_centroids_alone_has_a_report(make_place: Make) -> None:
    decode = '[[decode]]\nn_components = 2\nmodel = "dirac"\n'
    place = make_place(20, decode)
    place.run()
    place.write(decode + '[outputs]\nreport = "r.html"\n')
    place.append(rows_of(ROWS, seed=1))
    assert place.run().models["model"]["start"] == "cold"
    assert "centroids" in (place.folder / "r.html").read_text()


@pytest.mark.slow
def test_the_number_of_components_is_found(make_place: Make) -> None:
    place = make_place(6, '[[decode]]\nn_components = "auto"\n')
    outcome = place.run()
    assert outcome.models["model"]["n_components"] == 2
    assert place.run().models["model"]["start"] == "kept"
    place.write('[[decode]]\nn_components = "auto"\nmodel = "dirac"\n')
    with pytest.raises(JobError, match=r"n_components.*\"auto\""):
        place.run()
