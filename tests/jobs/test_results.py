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
from dask_sketch.jobs.results import CAME, STATE

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"


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
    place.write("[groups]\npattern = 'x/\\[(\\d+)'\nmost = 3\n", sources=sources)
    with pytest.raises(JobError, match=r"groups\.most = 3: .*10"):
        place.run()


def test_drift_is_an_alarm_above_its_threshold(make_place: Make) -> None:
    place = make_place(50, DECODE + '[outputs]\nreport = "r.html"\n')
    place.run()
    place.append(rows_of(10 * ROWS, seed=7, shift=0.7))
    outcome = place.run()
    assert outcome.alarm
    assert outcome.drifts[CAME].deviations > 5
    # states share most samples: a smaller discrepancy in smaller noise
    assert outcome.drifts[STATE].discrepancy < outcome.drifts[CAME].discrepancy / 4
    assert outcome.drifts[STATE].deviations == pytest.approx(
        outcome.drifts[CAME].deviations, rel=0.05
    )
    page = (place.folder / "r.html").read_text()
    assert "alarm" in page
    assert "above the threshold" in page
    assert "Changes of the features" in page
    assert "Changes of the components" in page
    place.append(rows_of(10 * ROWS, seed=8, shift=0.7))
    place.write(DECODE + "[drift]\nthreshold = 1e6\n")
    assert not place.run().alarm


@pytest.mark.filterwarnings("ignore:feature 0 has values")
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


def test_a_job_of_centroids_alone_has_a_report(make_place: Make) -> None:
    more = '[[decode]]\nn_components = 2\nmodel = "dirac"\n[outputs]\nreport = "r.html"\n'
    place = make_place(20, more)
    place.run()
    place.append(rows_of(ROWS, seed=1))
    assert place.run().models["model"]["start"] == "cold"
    assert "centroids" in (place.folder / "r.html").read_text()
