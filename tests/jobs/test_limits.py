"""Limits of the data of a run and of its models: broken feeds and bad models do not pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from click.testing import CliRunner
from jobs.places import CHUNK_BYTES, ROWS, Place, answers_in, rows_of, write_rows

import dask_sketch as ds
from dask_sketch.cli.jobs import BREACH, REFUSED_MODEL
from dask_sketch.cli.main import cli
from dask_sketch.decoders.checks.misfit import loss_to_rival
from dask_sketch.errors import ChunkError, LedgerError
from dask_sketch.jobs.report import report_last_run
from dask_sketch.jobs.verify import records_text

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"
OUTPUTS = '[outputs]\nmodel = "m.zarr"\nreport = "r.html"\n'
SOURCE = f'[[sources]]\npath = "x.zarr"\nchunk_size = {CHUNK_BYTES}\nnan_policy = "omit"\n'


def first_night(make_place: Make, more: str = "") -> Place:
    """A place whose first run has read ten good partitions."""
    place = make_place(10)
    place.write(more, sources=SOURCE)
    place.run()
    return place


def broken(n: int, n_good: int) -> np.ndarray:
    rows = rows_of(n, seed=1)
    rows[n_good:, 1] = np.nan
    return rows


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.parametrize(("n_good", "percent"), [(0, "100 %"), (1, "99.5 %")])
def test_a_dead_feed_is_a_breach(make_place: Make, n_good: int, percent: str) -> None:
    place = first_night(make_place, DECODE + OUTPUTS)
    place.append(broken(200, n_good))
    found = CliRunner().invoke(cli, ["run", str(place.file), "--json"])
    assert found.exit_code == BREACH, found.output
    assert f'"omitted": {200 - n_good}' in found.stdout
    (record,) = place.ledger().history()[1:]
    (text,) = record.results["breaches"]
    assert text.startswith("limits.omitted = 0.5: ")
    assert percent in text
    assert record.counts["omitted"] == 200 - n_good
    history = records_text(place.ledger().history(), [], {})
    assert "done, limits" in history
    assert "omitted" in history
    answers = answers_in(place.folder / "r.html")
    assert answers["good"].startswith("!No: ")
    assert percent in answers["good"]
    assert "the source" in answers["done"]
    assert "This run read no samples" in answers["time"] or n_good
    outcome = place.run()  # nothing is new
    (note,) = outcome.notes
    assert "limits.partitions" in note
    assert note in answers_in(place.folder / "r.html")["done"]
    assert (outcome.omitted, outcome.breaches) == (0, ())
    assert "done, limits" in (place.folder / "r.html").read_text()


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.parametrize("map_", ["", 'task = "pca"'])
@pytest.mark.slow
def test_no_rows_are_left(make_place: Make, map_: str) -> None:
    place = make_place(10)
    more = DECODE + OUTPUTS + "[limits]\nchanged = 1.0\n"
    place.write(more, sources=SOURCE, map_=map_)
    place.run()
    page = (place.folder / "r.html").read_bytes()
    write_rows(place.store, broken(200, 0))
    for run in (2, 3):  # what the first of these read is still all that there is
        found = CliRunner().invoke(cli, ["run", str(place.file)])
        assert found.exit_code == BREACH, found.output
        assert "limits.omitted = 0.5: 200 of the 200 rows" in found.stdout
        assert place.ledger().history()[-1].number == run
    assert place.ledger().model(name="model") is not None
    assert (place.folder / "r.html").read_bytes() == page
    with pytest.raises(LedgerError, match="run 3 .* 0 samples"):
        report_last_run(place.file)
    write_rows(place.store, rows_of(200))
    outcome = place.run()
    assert (outcome.breaches, outcome.refused, outcome.samples) == ((), (), 200)
    assert (place.folder / "r.html").read_bytes() != page


@pytest.mark.slow
def test_few_omitted_rows_are_reported_and_no_breach(make_place: Make) -> None:
    place = first_night(make_place)
    place.append(broken(200, 150))
    outcome = place.run()
    assert (outcome.omitted, outcome.samples_read, outcome.breaches) == (50, 150, ())
    assert "50 of this run" in str(outcome)
    place.write("[limits]\nomitted = 0.1\n", sources=SOURCE)
    place.append(broken(200, 150))
    (text,) = place.run().breaches
    assert "50 of the 200 rows" in text


@pytest.mark.parametrize("key", ["rows", "partitions"])
@pytest.mark.slow
def test_too_few_and_too_many_rows_and_partitions(make_place: Make, key: str) -> None:
    size = ROWS if key == "rows" else 1
    place = make_place(10)
    place.write(f"[limits]\n{key} = [{2 * size}, {10 * size}]\n")
    first = place.run()
    assert (first.breaches, first.notes) == ((), ())
    for n_new, expected in ((0, "read 0 "), (1, f"read {size} "), (11, f"read {11 * size} ")):
        place.append(rows_of(n_new * ROWS, seed=n_new))
        outcome = place.run()
        assert outcome.notes == ()
        (text,) = outcome.breaches
        assert text.startswith(f"limits.{key} = [{2 * size}, {10 * size}]: ")
        assert expected in text


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.slow
def test_values_far_from_the_pilot_rows(make_place: Make, forgotten: bool) -> None:
    place = first_night(make_place, "[limits]\nrange = 20\n")
    if forgotten:  # and the record of the pilot rows with them
        place.ledger().forget(["data/[0:20]"])
    rows = rows_of(2 * ROWS, seed=5)
    place.append(rows)
    assert place.run().breaches == ()
    rows[:, 1] *= 1000  # another unit
    place.append(rows)
    (text,) = place.run().breaches
    assert text.startswith("limits.range = 20: feature 1 is ")
    assert ("the other samples" if forgotten else "the pilot rows") in text


@pytest.mark.usefixtures("no_drawing")
def test_a_refused_model_leaves_the_last_good_one(make_place: Make) -> None:
    place = first_night(make_place, DECODE + OUTPUTS)
    good = ds.open(place.folder / "m.zarr")
    place.append(rows_of(2 * ROWS, seed=3))
    place.write(DECODE + OUTPUTS + "[limits]\ncost = 1e-9\n", sources=SOURCE)
    for _ in range(2):  # each run tries again
        found = CliRunner().invoke(cli, ["run", str(place.file)])
        assert found.exit_code == REFUSED_MODEL, found.output
        assert "limits.cost = 1e-09: model leaves a cost of " in found.output
        for model in (ds.open(place.folder / "m.zarr"), place.ledger().model(name="model")):
            assert (model.means == good.means).all()
    assert "model refused" in records_text(place.ledger().history(), [], {})
    answers = answers_in(place.folder / "r.html")
    assert answers["good"].startswith("!No: ")
    assert "limits.cost" in answers["good"]
    assert "last good model" in answers["done"]
    place.write(DECODE + OUTPUTS + "[limits]\ncost = 1e9\n", sources=SOURCE)
    outcome = place.run()
    assert (outcome.refused, outcome.models["model"]["start"]) == ((), "cold")
    assert (ds.open(place.folder / "m.zarr").means != good.means).any()


def test_a_first_model_that_is_refused_is_no_output(make_place: Make) -> None:
    place = make_place(10, DECODE + '[outputs]\nmodel = "m.zarr"\n[limits]\ncost = 1e-9\n')
    assert len(place.run().refused) == 1
    assert not (place.folder / "m.zarr").exists()
    assert place.ledger().model(name="model") is None


def test_a_mixture_below_a_simple_rival() -> None:
    x = rows_of(2000)
    sketch = ds.sketch(x, ds.design(x, n_frequencies=200, n_components=2, seed=0), sample=False)
    good = ds.decode(sketch, 2, seed=0)
    loss, _ = loss_to_rival(sketch, good.weights, good.means, good.covariances)
    assert loss < 0.1
    loss, rival = loss_to_rival(sketch, good.weights, good.means + 3.0, good.covariances)
    assert loss > 1
    assert rival == "EM on the pilot rows"


def test_a_model_below_the_pilot_is_refused(make_place: Make) -> None:
    limits = "[limits]\nnats = 0.1\n"
    assert make_place(50, DECODE + limits).run().refused == ()
    wrong = '[[decode]]\nn_components = 1\nmethod = "cl-omp"\n'
    place = make_place(50, wrong + limits, name="wrong")
    with pytest.warns(UserWarning, match="nats"):
        (text,) = place.run().refused
    assert text.startswith("limits.nats = 0.1: model is ")
    assert "nats a sample below one Gaussian" in text


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.slow
def test_a_cost_far_above_the_last_one_is_noted(make_place: Make) -> None:
    place = make_place(20, DECODE + OUTPUTS)
    assert place.run().notes == ()
    rows = rows_of(2 * ROWS, seed=5)
    place.append(rows)
    assert place.run().notes == ()
    rows[:, 1] = 9.0 * rows[:, 1] + 32.0  # another unit
    place.append(rows)
    outcome = place.run()
    (note,) = outcome.notes
    assert "limits.cost = 10 " in note
    assert note in str(outcome)
    assert note in answers_in(place.folder / "r.html")["done"]


def test_partitions_of_a_run_that_failed_count_for_the_next(make_place: Make) -> None:
    place = make_place(10)
    place.write("[limits]\nattempts = 1\n")
    place.run()
    place.append(rows_of(3 * ROWS, seed=1))
    good = (place.store / "c/11/0").read_bytes()
    (place.store / "c/11/0").write_bytes(b"nonsense")
    with pytest.raises(ChunkError):
        place.run()
    (place.store / "c/11/0").write_bytes(good)
    outcome = place.run()
    assert (outcome.run, outcome.new) == (2, 1)
    (note,) = outcome.notes
    assert note.startswith("2 partitions ")
