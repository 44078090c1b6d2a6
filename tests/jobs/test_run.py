"""Runs of a job: only what is new is read, what is gone is subtracted, and all bits are right."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from jobs.places import ROWS, Place, rows_of, write_rows

from dask_sketch import FeatureMap, open_model, open_sketch
from dask_sketch.diagnostics.report import installed_versions
from dask_sketch.errors import (
    ArtifactError,
    ChunkError,
    InputError,
    JobError,
    LedgerLocked,
    PlanError,
    SketchError,
)
from dask_sketch.jobs import open as inputs
from dask_sketch.jobs.outcome import INCOMPLETE
from dask_sketch.jobs.results import CAME, STATE
from dask_sketch.jobs.run import plan_job, run_job
from dask_sketch.sources.zarr import RowReader

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """First rows of what was read of any store, chunk by chunk."""
    seen: list[int] = []
    inner = RowReader.__getitem__

    def recorded(self, index):
        rows = index[0]
        seen.extend(range(self._start + rows.start, self._start + rows.stop, ROWS))
        return inner(self, index)

    monkeypatch.setattr(RowReader, "__getitem__", recorded)
    return seen


def test_from_nothing_to_a_model_and_its_files(make_place: Make) -> None:
    outputs = '[outputs]\nmodel = "out/model.zarr"\nsketch = "out/s.zarr"\nreport = "out/r.html"\n'
    place = make_place(10, DECODE + outputs)
    lines: list[str] = []
    made = run_job(place.file, say=lines.append)
    assert (made.run, made.status) == (1, "done")
    assert (made.new, made.changed, made.deleted, made.forgotten) == (10, 0, 0, 0)
    assert (made.samples, made.samples_read, made.partitions) == (200, 200, 10)
    assert made.bytes_read == sum(f.stat().st_size for f in place.store.rglob("c/*/*"))
    total = place.ledger().total()
    assert total.identical(place.scratch())
    assert open_sketch(place.folder / "out/s.zarr").identical(total)
    model = open_model(place.folder / "out/model.zarr")
    assert np.sort(model.means[:, 0]) == pytest.approx([-4, 4], abs=0.5)
    assert (place.ledger().model(name="model").means == model.means).all()
    page = (place.folder / "out/r.html").read_text()
    assert "nightly: run 1, done" in page
    assert "nothing to compare with yet" in page
    assert any("10 partitions" in line for line in lines)
    assert "cold start" in str(made)


def test_a_second_run_reads_only_what_is_new(make_place: Make, read: list[int]) -> None:
    place = make_place(10, DECODE)
    place.run()
    place.append(rows_of(ROWS, seed=1))
    read.clear()
    made = place.run()
    assert read == [10 * ROWS]
    assert (made.new, made.changed, made.samples_read, made.samples) == (1, 0, ROWS, 11 * ROWS)
    assert made.models["model"]["start"] == "warm"
    assert {CAME, STATE} == set(made.drifts)
    assert not made.alarm
    assert place.ledger().total().identical(place.scratch())


def test_nothing_new_reads_and_decodes_nothing(make_place: Make, read: list[int]) -> None:
    place = make_place(10, DECODE)
    first = place.run()
    read.clear()
    made = place.run()
    assert read == []
    assert (made.run, made.new, made.drifts) == (2, 0, {})
    assert made.models["model"]["start"] == "kept"
    assert made.models["model"]["cost"] == first.models["model"]["cost"]
    assert place.ledger().model(2, "model") is not None
    place.write("[[decode]]\nn_components = 3\n")
    assert place.run().models["model"]["start"] == "warm"  # other settings: another model


def test_what_changes_is_replaced(make_place: Make, read: list[int]) -> None:
    place = make_place(10)
    place.run()
    store = zarr.open_array(str(place.store), mode="r+")
    store[3 * ROWS : 4 * ROWS] = rows_of(ROWS, seed=2)
    read.clear()
    made = place.run()
    assert read == [3 * ROWS]
    assert (made.new, made.changed) == (0, 1)
    assert place.ledger().total().identical(place.scratch())


def test_what_is_gone_is_subtracted(make_place: Make, read: list[int]) -> None:
    place = make_place(10)
    place.run()
    zarr.open_array(str(place.store), mode="r+").resize((8 * ROWS, 2))
    read.clear()
    made = place.run()
    assert (read, made.deleted, made.samples) == ([], 2, 8 * ROWS)
    assert place.ledger().total().identical(place.scratch())


def test_a_store_that_all_but_vanished_is_refused(make_place: Make) -> None:
    place = make_place(10)
    place.run()
    before = place.ledger().total()
    zarr.open_array(str(place.store), mode="r+").resize((4 * ROWS, 2))
    with pytest.raises(PlanError, match=r"6 of 10 partitions .* raise limits\.deleted \(now 0\.5"):
        place.run()
    assert place.ledger().total().identical(before)
    place.write("[limits]\ndeleted = 1\n")
    assert place.run().deleted == 6


def test_what_is_forgotten_is_never_read_again(make_place: Make, read: list[int]) -> None:
    place = make_place(100, DECODE)
    place.run()
    gone = [3, 17, 18, 40, 41, 42, 77, 90, 98, 99]
    place.ledger().forget([f"data/[{ROWS * i}:{ROWS * (i + 1)}]" for i in gone])
    # bit for bit the sketch of the other ones
    assert place.ledger().total().identical(place.scratch(*gone))
    read.clear()
    made = place.run()
    assert (read, made.forgotten, made.partitions) == ([], 10, 90)
    assert made.models["model"]["start"] == "warm"  # the last model knew them
    assert place.ledger().total().identical(place.scratch(*gone))
    place.ledger().forget([f"data/[{ROWS * 3}:{ROWS * 4}]"], undo=True)
    assert place.run().new == 1
    assert place.ledger().total().identical(place.scratch(*gone[1:]))


def test_the_bits_do_not_depend_on_the_way(make_place: Make) -> None:
    whole = make_place(30, name="whole")
    rows = np.asarray(zarr.open_array(str(whole.store))[:])
    nightly = make_place(name="nightly", more="[limits]\ncommit_partitions = 2\n")
    write_rows(nightly.store, rows[: 5 * ROWS])
    nightly.run()
    for start in range(5, 30, 5):
        nightly.append(rows[ROWS * start : ROWS * (start + 5)])
        nightly.run()
    # by the map that was designed on the first night
    (whole.folder / "map.json").write_text(nightly.ledger().feature_map.to_json())
    source = '[[sources]]\npath = "x.zarr"\nchunk_size = 1120\n'  # seven chunks to a partition
    whole.write(map_='file = "map.json"', sources=source)
    whole.run()
    assert len(whole.ledger().entries) == 5
    assert whole.ledger().total().identical(nightly.ledger().total())
    assert whole.ledger().total().identical(nightly.scratch())


def damage(place: Place, *partitions: int) -> None:
    for i in partitions:
        (place.store / f"c/{i}/0").write_bytes(b"nonsense")


def test_unreadable_partitions_stop_the_run_with_all_else_kept(make_place: Make) -> None:
    place = make_place(10, DECODE + "[limits]\nattempts = 2\nbackoff = 0\n")
    place.run()
    good = rows_of(10 * ROWS, seed=1)
    place.append(good)
    damage(place, 14, 17)
    with pytest.raises(
        ChunkError, match=r"^data/\[280:300\] and 1 more could not be read"
    ) as caught:
        place.run()
    assert "quarantine" in str(caught.value)
    assert place.ledger().next_run == 2  # it has not come to its end
    assert len(place.ledger().entries) == 18
    assert place.ledger().total().identical(place.scratch(14, 17))
    store = zarr.open_array(str(place.store), mode="r+")
    store[10 * ROWS :] = good
    made = place.run()
    # what the stopped run had committed counts to the one that ends
    assert (made.run, made.partitions, made.drifts[CAME].is_alarm(5.0)) == (2, 20, False)
    assert place.ledger().total().identical(place.scratch())


def test_unreadable_partitions_in_quarantine(make_place: Make) -> None:
    place = make_place(10, DECODE)
    place.write(DECODE + '[limits]\nunreadable = "quarantine"\nattempts = 1\n')
    place.run()
    damage(place, 4)
    made = place.run()
    assert made.status == INCOMPLETE
    assert list(made.quarantined) == ["data/[80:100]"]
    assert made.partitions == 9  # what it held is no longer so
    assert place.ledger().total().identical(place.scratch(4))
    assert "1 not in the result: data/[80:100]" in str(made)
    # each run tries again
    write_rows(place.store, rows_of(10 * ROWS))
    made = place.run()
    assert (made.status, made.quarantined, made.partitions) == ("done", {}, 10)
    assert place.ledger().total().identical(place.scratch())


def test_refused_values_are_named(make_place: Make) -> None:
    place = make_place(5)
    store = zarr.open_array(str(place.store), mode="r+")
    store[45] = np.nan
    with pytest.raises(ChunkError, match="row 5 of this chunk has nan"):
        place.run()
    source = '[[sources]]\npath = "x.zarr"\nchunk_size = 160\nnan_policy = "omit"\n'
    place.write(sources=source)
    assert place.run().samples == 99


def test_a_source_that_changes_while_it_is_read_is_read_again(
    make_place: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = make_place(5)
    inner, times = inputs.sketch_partitions, []

    def meddling(samples, numbers, *rest, **options):
        times.append(list(numbers))
        for number, result in inner(samples, numbers, *rest, **options):
            if number == 2 and len(times) < most:
                store = zarr.open_array(str(place.store), mode="r+")
                store[2 * ROWS : 3 * ROWS] = rows_of(ROWS, seed=100 + len(times))
            yield number, result

    monkeypatch.setattr(inputs, "sketch_partitions", meddling)
    most = 2
    with caplog.at_level(logging.WARNING):
        place.run()
    assert times == [[0, 1, 2, 3, 4], [2]]
    assert "1 partitions of" in caplog.text
    assert place.ledger().total().identical(place.scratch())
    times.clear()
    most = 100
    store = zarr.open_array(str(place.store), mode="r+")
    store[2 * ROWS : 3 * ROWS] = rows_of(ROWS, seed=99)
    before = place.ledger().total()
    with pytest.raises(ChunkError, match="changed each of the 3 times that it was read"):
        place.run()
    assert times == [[2], [2], [2]]
    assert place.ledger().total().identical(before)


def test_two_runs_at_once(make_place: Make) -> None:
    place = make_place(5)
    place.run()
    ledger = place.ledger()
    with ledger.lock(), pytest.raises(LedgerLocked, match="is being written to by process"):
        place.run()
    assert place.run().run == 2


def test_groups_by_source_and_by_pattern(make_place: Make) -> None:
    place = make_place(10)
    write_rows(place.folder / "y.zarr", rows_of(5 * ROWS, seed=4, shift=0.5))
    sources = "".join(
        f'[[sources]]\nname = "{name}"\npath = "{name}.zarr"\nchunk_size = 160\n' for name in "xy"
    )
    place.write('[groups]\nby = "source"\n' + DECODE + "groups = true\n", sources=sources)
    made = place.run()
    assert list(made.models) == ["model", "model@x", "model@y"]
    assert made.between["x against y"].is_alarm(5.0)
    assert not made.alarm  # groups may differ from each other
    keys = [key for key in place.ledger().entries if key.startswith("y/")]
    assert len(keys) == 5
    place.write("[groups]\npattern = 'x/\\[(?P<group>\\d)'\n", sources=sources)
    made = place.run()
    names = {name for pair in made.between for name in pair.split(" against ")}
    assert {"1", "2", "4", "6", "8", "0"} == names
    place.write("[groups]\npattern = 'x/\\[(\\d+)'\nmost = 3\n", sources=sources)
    with pytest.raises(JobError, match="there are 10 of them"):
        place.run()


def test_drift_is_an_alarm_above_its_threshold(make_place: Make) -> None:
    place = make_place(50, DECODE + '[outputs]\nreport = "r.html"\n')
    place.run()
    place.append(rows_of(10 * ROWS, seed=7, shift=0.7))
    made = place.run()
    assert made.alarm
    assert made.drifts[CAME].deviations > 5
    # states share most samples: a smaller discrepancy in smaller noise
    assert made.drifts[STATE].discrepancy < made.drifts[CAME].discrepancy / 4
    assert made.drifts[STATE].deviations == pytest.approx(made.drifts[CAME].deviations, rel=0.05)
    page = (place.folder / "r.html").read_text()
    assert "alarm" in page
    assert "above the threshold" in page
    assert "What changed: the features" in page
    assert "What changed: the components" in page
    place.append(rows_of(10 * ROWS, seed=8, shift=0.7))
    place.write(DECODE + "[drift]\nthreshold = 1e6\n")
    assert not place.run().alarm


def test_a_warm_start_that_ends_worse_is_made_anew(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(20, DECODE)
    place.run()
    # a third cluster where there was nothing; two components, one of them in its place
    far = rows_of(100 * ROWS, seed=9)
    far[far[:, 0] < 0] += (30.0, -30.0)
    place.append(far)
    made = place.run()
    cold = place.folder.parent / "cold"
    cold.mkdir()
    assert made.models["model"]["start"] in ("warm", "cold, better than warm")
    place.write("[[decode]]\nn_components = 2\nwarm = false\nseed = 0\n")
    again = place.run()
    assert again.models["model"]["start"] in ("cold", "kept")
    # whichever was taken is no worse than a cold one
    assert made.models["model"]["cost"] <= again.models["model"]["cost"] * (1 + 1e-6)


def test_scores_on_samples_that_no_run_sketches(make_place: Make) -> None:
    place = make_place(20)
    write_rows(place.folder / "h.zarr", rows_of(500, seed=11))
    points = '[[decode]]\nname = "points"\nn_components = 2\nmodel = "dirac"\n'
    place.write(DECODE + points + '[score]\npath = "h.zarr"\n[outputs]\nmodel = "{name}.zarr"\n')
    made = place.run()
    held = np.asarray(zarr.open_array(str(place.folder / "h.zarr")))
    assert made.models["model"]["score"] == pytest.approx(
        open_model(place.folder / "model.zarr").score(held)
    )
    assert made.models["points"]["mean_squared_distance"] == pytest.approx(
        open_model(place.folder / "points.zarr").inertia(held), rel=1e-5
    )
    assert "nats per row" in str(made)


def test_a_job_of_centroids_alone_has_a_report(make_place: Make) -> None:
    more = '[[decode]]\nn_components = 2\nmodel = "dirac"\n[outputs]\nreport = "r.html"\n'
    place = make_place(20, more)
    place.run()
    place.append(rows_of(ROWS, seed=1))
    assert place.run().models["model"]["start"] == "cold"
    assert "centroids: weight, then place" in (place.folder / "r.html").read_text()


def test_the_ledger_keeps_its_map(make_place: Make) -> None:
    place = make_place(5)
    place.run()
    before = place.ledger().feature_map
    place.append(rows_of(50 * ROWS, shift=100.0))
    place.run()
    assert place.ledger().feature_map == before
    place.write(map_="n_components = 2\nn_frequencies = 7")
    with pytest.raises(InputError, match=r"feature_map.n_frequencies = 7, and the ledger"):
        place.run()
    place.write(map_='file = "map.json"')
    (place.folder / "map.json").write_text(FeatureMap(2, 30, scale=1.0).to_json())
    with pytest.raises(InputError, match="a ledger keeps the map of its first run"):
        place.run()


def test_a_dry_run_reads_and_writes_nothing(
    make_place: Make, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(10, DECODE + '[outputs]\nmodel = "m.zarr"\n[limits]\nbytes = "1MiB"\n')
    before = sorted(place.folder.rglob("*"))
    plan = plan_job(place.file)
    assert (plan.first, plan.new, plan.same, plan.n_samples) == (True, 10, 0, 200)
    assert plan.memory_per_thread is not None
    assert "which this run makes" in str(plan)
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
    with pytest.raises(PlanError, match=r"the sketches of 2 partitions take up to .* are free"):
        plan_job(place.file)
    monkeypatch.undo()
    place.write("[limits]\nbytes = 10\n")
    for refused in (plan_job, run_job):
        with pytest.raises(PlanError, match=r"limits\.bytes"):
            refused(place.file)


def test_a_run_killed_while_it_made_the_ledger_is_no_obstacle(make_place: Make) -> None:
    place = make_place(3)
    (place.folder / "ledger.zarr/feature_map").mkdir(parents=True)
    (place.folder / "ledger.zarr/.zarr.json-0123").write_bytes(b"{")
    assert plan_job(place.file).first
    assert place.run().samples == 60
    other = make_place(3, name="other")
    (other.folder / "ledger.zarr").mkdir()
    (other.folder / "ledger.zarr/letters.txt").touch()
    with pytest.raises(SketchError, match="choose another place"):
        other.run()


def test_no_source_no_start(make_place: Make) -> None:
    place = make_place(5)
    place.write(sources='[[sources]]\npath = "nowhere.zarr"\n')
    with pytest.raises(SketchError, match=r"nowhere\.zarr"):
        place.run()
    assert not (place.folder / "ledger.zarr").exists()


def test_other_ways_to_read_a_store_make_other_partitions_and_count_once(make_place: Make) -> None:
    place = make_place(10)
    place.run()
    source = '[[sources]]\npath = "x.zarr"\nchunk_size = 320\n'
    place.write("[limits]\ndeleted = 1\n", sources=source)
    made = place.run()
    assert (made.new, made.deleted, made.samples) == (5, 10, 200)
    assert place.ledger().total().identical(place.scratch())


def test_parquet_with_weights(make_place: Make) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    place = make_place(1)
    (place.folder / "days").mkdir()
    for day in range(3):
        frame = pd.DataFrame(rows_of(50, seed=day), columns=["a", "b"])
        frame["w"] = np.arange(50) % 3 + 0.5
        frame.to_parquet(place.folder / f"days/{day}.parquet")
    place.write(sources='[[sources]]\npath = "days"\nweights = "w"\nname = "days"\n')
    made = place.run()
    assert (made.new, made.samples) == (3, 150)
    assert sorted(place.ledger().entries) == [f"days/{day}.parquet" for day in range(3)]
    (place.folder / "days/1.parquet").unlink()
    assert (place.run().deleted, place.ledger().total().count) == (1, 100)


def test_secrets_are_not_repeated(
    make_place: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JOB_TEST_KEY", "hunter2-from-the-environment")
    place = make_place(3)
    source = '[[sources]]\npath = "memory://x"\nstorage_options = { key = { env = "JOB_TEST_KEY" }}'
    place.write(sources=source + "\n")

    def fail(job, table):
        options = job.options(table.storage_options, table.path)
        assert options == {"key": "hunter2-from-the-environment"}
        logging.getLogger("dask_sketch").warning("opening with %s", options)
        raise OSError(f"403 for {options}")

    monkeypatch.setattr(inputs, "open_source", fail)
    handler = logging.getLogger("dask_sketch")
    handler.addHandler(caplog.handler)
    try:
        with pytest.raises(InputError, match=r"OSError: 403 for \{'key': '\*\*\*'\}") as caught:
            place.run()
    finally:
        handler.removeHandler(caplog.handler)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "opening with" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_report_without_matplotlib_is_refused_first(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    place = make_place(3, DECODE + '[outputs]\nreport = "r.html"\n')
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    with pytest.raises(InputError, match=r"dask-sketch\[plot\]"):
        place.run()
    assert not (place.folder / "ledger.zarr").exists()


def test_versions_are_recorded(make_place: Make) -> None:
    place = make_place(3)
    place.run()
    (record,) = place.ledger().history()
    assert dict(record.versions) == installed_versions()
    assert record.counts["samples"] == 60
    assert Path(place.file).exists()


def test_workers_give_the_bits_of_threads(make_place: Make, forked_workers: None) -> None:
    place = make_place(40)
    place.write(DECODE + '[cluster]\nkind = "local"\nn_workers = 2\nmemory_limit = "1GiB"\n')
    made = place.run()
    assert (made.new, made.samples) == (40, 800)
    assert place.ledger().total().identical(place.scratch())
    assert "local, 2 workers" in str(plan_job(place.file))
    place.append(rows_of(ROWS, seed=1))
    place.write(DECODE)  # and on with threads
    assert place.run().new == 1
    assert place.ledger().total().identical(place.scratch())


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
        with pytest.raises(ArtifactError, match=rf"outputs\.{key}: .* is not overwritten"):
            run(place.file)
    assert not read
    assert not (place.folder / "ledger.zarr").exists()
    np.testing.assert_array_equal(zarr.open(place.store)[:], before)
    assert (place.folder / "notes.html").read_text() == "my notes"
