"""Jobs of principal components: ledgers of second moments, night by night."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner
from jobs.places import CHUNK_BYTES, ROWS, Place, rows_of, write_rows
from sklearn.decomposition import PCA

import dask_sketch as ds
from dask_sketch.cli.main import cli
from dask_sketch.errors import JobError, PlanError
from dask_sketch.jobs.job_file import parse_job
from dask_sketch.jobs.report import report_last_run
from dask_sketch.jobs.run import plan_job, run_job
from dask_sketch.jobs.verify import records_text, verify_job
from dask_sketch.models.principal_components import PrincipalComponents

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 1\n"
MODEL = '[outputs]\nmodel = "out/model.zarr"\nsketch = "out/moments.zarr"\n'
REPORT = 'report = "out/r.html"\n'
SOURCE = f'[[sources]]\npath = "x.zarr"\nchunk_size = {CHUNK_BYTES}\n'
TASK = 'task = "pca"'


def whole(place: Place, *leave_out: int) -> ds.SecondMoments:
    """Second moments of all rows in one pass, without those of some partitions."""
    store = zarr.open_array(str(place.store), mode="r")
    numbers = [i for i in range(-(-store.shape[0] // ROWS)) if i not in leave_out]
    rows = np.concatenate([store[ROWS * i : ROWS * (i + 1)] for i in numbers])
    grid = place.ledger().feature_map
    return ds.second_moments(rows, like=grid, nan_policy="available" if grid.pairwise else "raise")


def test_nights_of_principal_components(make_place: Make, read: list[int]) -> None:
    place = make_place(6)
    place.write(DECODE + MODEL, map_=TASK)
    first = place.run()
    assert (first.run, first.new, first.samples) == (1, 6, 6 * ROWS)
    total = place.ledger().total()
    assert total == whole(place) == ds.open(place.folder / "out/moments.zarr")
    model = ds.open(place.folder / "out/model.zarr")
    assert isinstance(model, PrincipalComponents)
    expected = PCA(1).fit(np.asarray(zarr.open_array(str(place.store))[:], dtype=float))
    np.testing.assert_allclose(model.components, expected.components_, atol=1e-6)
    assert first.models["model"]["kind"] == "principal components"
    assert f"{100 * model.explained_variance_ratio[0]:.3g} % of the variance" in str(first)
    place.append(rows_of(2 * ROWS, seed=1, shift=3.0))
    store = zarr.open_array(str(place.store), mode="r+")
    store[:ROWS] = rows_of(ROWS, seed=2)
    read.clear()
    second = place.run()
    assert sorted(read) == [0, 6 * ROWS, 7 * ROWS]
    assert (second.new, second.changed, second.models["model"]["start"]) == (2, 1, "cold")
    assert place.ledger().total() == whole(place)
    place.ledger().forget([f"data/[{3 * ROWS}:{4 * ROWS}]"])
    assert place.ledger().total() == whole(place, 3)
    read.clear()
    third = place.run()
    assert (read, third.forgotten) == ([], 1)
    again = place.run()
    assert again.models["model"]["start"] == "kept"
    assert "those of the last run" in str(again)
    stored = place.ledger().model()
    assert isinstance(stored, PrincipalComponents)
    assert stored.n_samples == 7 * ROWS
    assert "second moments have no test" in again.untested.lower()
    assert verify_job(place.file, 1.0).is_sound
    store[ROWS : 2 * ROWS] = rows_of(ROWS, seed=4)  # of the same number and weight
    assert place.run().models["model"]["start"] == "cold"
    assert records_text(place.ledger().history(), (), {}).count("done") == 5


def test_plan_states_bytes_of_moments(make_place: Make) -> None:
    place = make_place(4)
    place.write(DECODE, map_=TASK)
    plan = plan_job(place.file)
    each = 8 * (5 + 2 * 6)  # head, and six sums of two words
    assert (plan.n_frequencies, plan.n_moments) == (0, 6)
    assert (plan.rows_per_partition, plan.ledger_bytes) == (0, (4 + 2) * each)
    assert "6 second moments, designed by this run" in str(plan)
    assert plan.memory_per_thread is not None
    place.run()
    assert "6 second moments, from the ledger" in str(plan_job(place.file))
    place.write(DECODE + '[cluster]\nkind = "local"\nmemory_limit = "100kB"\n', map_=TASK)
    with pytest.raises(PlanError, match="memory"):
        plan_job(place.file)


def test_missing_values_pairwise(make_place: Make) -> None:
    place = make_place(5)
    rows = rows_of(5 * ROWS)
    rows[::4, 1] = np.nan
    write_rows(place.store, rows)
    place.write(DECODE, map_=TASK, sources=SOURCE + 'nan_policy = "available"\n')
    outcome = place.run()
    assert outcome.missing == outcome.missing_read == {"feature 1": pytest.approx(0.25)}
    assert "25 % of feature 1" in str(outcome)
    assert place.ledger().total() == whole(place)
    place.write(DECODE, map_=TASK)
    with pytest.raises(JobError, match="nan_policy"):
        place.run()


@pytest.mark.slow
def test_report(make_place: Make) -> None:
    place = make_place(5)
    place.write(DECODE + MODEL + REPORT, map_=TASK)
    place.run()
    page = (place.folder / "out/r.html").read_text()
    assert "nightly: run 1, done" in page
    assert f"{5 * ROWS:,} samples with 2 features" in page
    assert "exact, from all second moments" in page
    assert "<svg" in page
    assert "degrees" not in page
    place.append(rows_of(3 * ROWS, seed=3) * [1.0, -1.0])
    before, outcome = place.ledger().model(), place.run()
    now = place.ledger().model()
    assert isinstance(before, PrincipalComponents)
    assert isinstance(now, PrincipalComponents)
    angle = now.angle_to(before)
    assert angle > 0.1
    assert outcome.models["model"]["turned"] == angle
    assert f"turned by {angle:.2g} degrees" in str(outcome)
    page = (place.folder / "out/r.html").read_text()
    assert f"by up to {angle:.3g} degrees" in page
    report_last_run(place.file, place.folder / "again.html")
    again = (place.folder / "again.html").read_text()
    assert f"by up to {angle:.3g} degrees" in again
    assert "Earlier runs" in again


def test_groups_and_columns(make_place: Make) -> None:
    groups = "[groups]\npattern = 'data/.(?P<group>[024])'\n"
    place = make_place(5)
    place.write(DECODE + "groups = true\n" + groups, map_=TASK + "\nn_columns = 1")
    with pytest.warns(UserWarning, match="n_columns=1"):
        outcome = place.run()
    assert set(outcome.models) == {"model", "model@0", "model@2", "model@4"}
    ledger = place.ledger()
    assert ledger.feature_map.n_columns == 1
    part = ledger.total([f"data/[{ROWS}:{2 * ROWS}]"])
    found = ledger.model(name="model@2")
    assert isinstance(found, PrincipalComponents)
    np.testing.assert_array_equal(found.mean, part.mean)


def test_weights_and_names_of_a_table(make_place: Make) -> None:
    place = make_place(1)
    frame = pd.DataFrame(rows_of(90).astype("f8"), columns=["a", "b"])
    frame["w"] = np.linspace(0.5, 2.0, 90)
    for number in range(3):
        frame[30 * number : 30 * number + 30].to_parquet(place.folder / f"{number}.parquet")
    source = '[[sources]]\npath = "*.parquet"\nweights = "w"\ncolumns = ["b", "a"]\n'
    place.write(DECODE + MODEL, map_=TASK, sources=source)
    outcome = place.run()
    assert outcome.partitions == 3
    total = place.ledger().total()
    x, w = frame[["b", "a"]], frame["w"].to_numpy()
    assert total == ds.second_moments(x, w, like=total)
    np.testing.assert_allclose(total.covariance, np.cov(x.T, aweights=w), rtol=1e-8)
    assert ds.open(place.folder / "out/model.zarr").feature_names == ("b", "a")
    # the next night knows the columns
    place.write(DECODE + MODEL, map_=TASK, sources=source.replace('columns = ["b", "a"]\n', ""))
    assert place.run().models["model"]["start"] == "kept"


@pytest.mark.parametrize(
    ("task", "more", "key"),
    [
        (TASK + "\nn_frequencies = 9", "", "feature_map.n_frequencies"),
        (TASK + "\nscale = 1.0", "", "feature_map.scale"),
        ("n_components = 2\nn_columns = 5", "", "feature_map.n_columns"),
        (TASK, DECODE + 'method = "splitting"\n', "decode[0].method"),
        (TASK, DECODE + "warm = false\n", "decode[0].warm"),
        (TASK, '[[decode]]\nn_components = "auto"\n', "decode[0].n_components"),
        (TASK, '[score]\npath = "y.zarr"\n', "score"),
        (TASK, "[drift]\ntolerance = 0.1\n", "drift"),
        (TASK, "[limits]\ncost = 3\n", "limits.cost"),
    ],
)
def test_settings_without_a_meaning(task: str, more: str, key: str) -> None:
    text = f'[job]\nname = "n"\nledger = "l.zarr"\n{SOURCE}[feature_map]\n{task}\n{more}'
    with pytest.raises(JobError) as raised:
        parse_job(text, Path("job.toml"))
    assert f"job.toml: {key}" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_rows_and_policies_of_sources() -> None:
    text = '[job]\nname = "n"\nledger = "l.zarr"\nsample = 9\n' + SOURCE
    text += '[[sources]]\nname = "b"\npath = "y.zarr"\nnan_policy = "available"\n'
    with pytest.raises(JobError) as raised:
        parse_job(f"{text}[feature_map]\n{TASK}\n", Path("job.toml"))
    assert "job.sample = 9" in str(raised.value)
    assert "sources[0].nan_policy" in str(raised.value)


def test_components_that_cannot_be_decoded_are_refused_before_data_is_read(
    make_place: Make, read: list[int]
) -> None:
    place = make_place(2)
    for task, decode, message in (
        (TASK, "n_components = 3", r"n_components=3.*n_features=2"),
        (TASK + "\nn_columns = 1", "n_components = 2", r"n_columns = 1.*n_components=2"),
        (TASK + "\nn_columns = 1", "", r"decode\[0\]\.n_components"),
    ):
        place.write(f"[[decode]]\n{decode}\n", map_=task)
        with pytest.raises(JobError, match=message):
            place.run()
    assert read == []
    place.write(DECODE, map_=TASK)
    place.run()
    place.write("[[decode]]\nn_components = 3\n", map_=TASK)
    with pytest.raises(JobError, match="n_components=3"):
        place.run()


def test_a_ledger_of_the_other_kind(make_place: Make) -> None:
    place = make_place(3)
    place.write("", map_=TASK)
    with pytest.raises(JobError, match=r"job.sample = 5"):
        run_job(place.file, sample=5)
    place.run()
    for task, message in {
        "n_components = 2": r"feature_map.task.*second moments",
        TASK + "\nn_columns = 1": r"feature_map.n_columns = 1: .*None",
    }.items():
        place.write("", map_=task)
        with pytest.raises(JobError, match=message):
            place.run()
    sketches = make_place(3, name="sketches")
    sketches.run()
    sketches.write("", map_=TASK)
    with pytest.raises(JobError, match=r'feature_map.task = "pca".*sketches'):
        sketches.run()


def test_large_moments_are_committed_before_they_fill_the_memory(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask_sketch.jobs import open as inputs

    monkeypatch.setattr(inputs, "HELD_BYTES", 200)
    place = make_place(4)
    place.write("", map_=TASK)
    place.run()
    assert place.ledger().number > 4
    assert place.ledger().total() == whole(place)


def test_command_line(make_place: Make) -> None:
    place = make_place(4)
    place.write(DECODE + MODEL, map_=TASK)
    run = CliRunner().invoke
    found = run(cli, ["run", "--dry-run", str(place.file), "--json"])
    assert json.loads(found.stdout)["n_moments"] == 6
    found = run(cli, ["run", str(place.file), "--json"], catch_exceptions=False)
    assert found.exit_code == 0
    assert json.loads(found.stdout)["models"]["model"]["n_components"] == 1
    assert run(cli, ["verify", str(place.file), "--fraction", "1"]).exit_code == 0
    key = f"data/[{ROWS}:{2 * ROWS}]"
    assert run(cli, ["forget", str(place.file), key]).exit_code == 0
    assert place.ledger().total() == whole(place, 1)
    assert "principal components" in run(cli, ["info", str(place.folder / "out/model.zarr")]).stdout
    assert "done" in run(cli, ["history", str(place.file)]).stdout
