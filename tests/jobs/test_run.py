"""Runs of a job: only what is new is read, what is gone is subtracted, and all bits are right."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import dask.config
import numpy as np
import pytest
import zarr
from jobs.places import ROWS, Place, answers_in, days, rows_of, write_rows

import dask_sketch as ds
from dask_sketch import partial_sketch
from dask_sketch.diagnostics.report import installed_versions
from dask_sketch.errors import (
    ChunkError,
    InputError,
    LedgerLocked,
)
from dask_sketch.jobs import open as inputs
from dask_sketch.jobs.outcome import INCOMPLETE
from dask_sketch.jobs.report import report_last_run
from dask_sketch.jobs.results import NEW_SAMPLES, STATE
from dask_sketch.jobs.run import plan_job, run_job
from dask_sketch.jobs.verify import records_text, verify_job

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"


def test_from_nothing_to_a_model_and_its_files(make_place: Make) -> None:
    outputs = '[outputs]\nmodel = "out/model.zarr"\nsketch = "out/s.zarr"\nreport = "out/r.html"\n'
    place = make_place(10, DECODE + outputs)
    lines: list[str] = []
    outcome = run_job(place.file, log=lines.append)
    assert (outcome.run, outcome.status) == (1, "done")
    assert (outcome.new, outcome.changed, outcome.deleted, outcome.forgotten) == (10, 0, 0, 0)
    assert (outcome.samples, outcome.samples_read, outcome.partitions) == (200, 200, 10)
    assert outcome.bytes_read == sum(f.stat().st_size for f in place.store.rglob("c/*/*"))
    total = place.ledger().total()
    assert total.identical(place.scratch())
    written = ds.open(place.folder / "out/s.zarr")
    assert written.identical(total)
    assert written.sample is None  # the ledger has it
    assert (total.sample.is_complete, outcome.models["model"]["rows"]) == (True, 200)
    model = ds.open(place.folder / "out/model.zarr")
    assert np.sort(model.means[:, 0]) == pytest.approx([-4, 4], abs=0.5)
    assert (place.ledger().model(name="model").means == model.means).all()
    page = (place.folder / "out/r.html").read_text()
    assert "nightly: run 1, done" in page
    assert "no earlier data to compare with" in page
    assert any("10 partitions" in line for line in lines)
    assert "cold start" in str(outcome)


@pytest.mark.slow
def test_missing_values(make_place: Make) -> None:
    """Counters from the sources to the record, the report and the history."""
    policy = '[[sources]]\npath = "x.zarr"\nchunk_size = 240\nnan_policy = "available"\n'
    page = '[outputs]\nreport = "out/r.html"\n'
    place = make_place(10, sample=0)
    place.write(DECODE + page, sources=policy)
    rows = np.concatenate([rows_of(ROWS * 14), rows_of(ROWS * 14, seed=1)[:, :1]], axis=1)
    rows[: ROWS * 10 : 4, 1] = np.nan
    write_rows(place.store, rows[: ROWS * 10])
    first = place.run()
    assert first.missing == first.missing_read == {"feature 1": 0.25}
    total = place.ledger().total()
    expected = partial_sketch(rows[: ROWS * 10], total.feature_map, nan_policy="available")
    assert total.identical(expected)
    place.append(rows[ROWS * 10 :])
    second = place.run()
    assert second.missing == {"feature 1": pytest.approx(50 / 280)}
    assert second.missing_read == {}
    assert {NEW_SAMPLES, STATE} == set(second.drifts)
    assert second.drift is not None
    assert "none in this run; 18 % of feature 1 in all" in str(second)
    assert "17.9 %" in (place.folder / "out/r.html").read_text()
    assert verify_job(place.file, 1.0).is_sound
    assert "25 % of feature 1" in records_text(place.ledger().history(), (), {})
    report_last_run(place.file, place.folder / "again.html")
    assert "17.9 %" in (place.folder / "again.html").read_text()


def test_a_map_of_all_features_is_refused_where_values_are_missing(make_place: Make) -> None:
    policy = '[[sources]]\npath = "x.zarr"\nnan_policy = "available"\n'
    place = make_place(2, sample=0)
    place.write(DECODE, sources=policy, map_='n_components = 2\ndistribution = "gaussian"')
    with pytest.raises(InputError, match="nan_policy='available'.*distribution='gaussian'"):
        place.run()


def test_a_second_run_reads_only_what_is_new(make_place: Make, read: list[int]) -> None:
    place = make_place(10, DECODE, sample=0)
    place.run()
    place.append(rows_of(ROWS, seed=1))
    read.clear()
    outcome = place.run()
    assert read == [10 * ROWS]
    assert (outcome.new, outcome.changed, outcome.samples_read, outcome.samples) == (
        1,
        0,
        ROWS,
        11 * ROWS,
    )
    assert outcome.models["model"]["start"] == "warm"
    assert {NEW_SAMPLES, STATE} == set(outcome.drifts)
    assert not outcome.alarm
    assert "level" in outcome.untested  # one partition beside ten has no p-value under a tenth
    assert place.ledger().total().identical(place.scratch())


def test_nothing_new_reads_and_decodes_nothing(make_place: Make, read: list[int]) -> None:
    place = make_place(10, DECODE)
    first = place.run()
    read.clear()
    outcome = place.run()
    assert read == []
    assert (outcome.run, outcome.new, outcome.drifts) == (2, 0, {})
    assert outcome.models["model"]["start"] == "kept"
    assert outcome.models["model"]["cost"] == first.models["model"]["cost"]
    assert place.ledger().model(2, "model") is not None
    place.write("[[decode]]\nn_components = 3\n")
    assert place.run().models["model"]["start"] == "cold"  # other settings: another model


def test_what_changes_is_replaced(make_place: Make, read: list[int]) -> None:
    place = make_place(10)
    place.run()
    store = zarr.open_array(str(place.store), mode="r+")
    store[3 * ROWS : 4 * ROWS] = rows_of(ROWS, seed=2)
    read.clear()
    outcome = place.run()
    assert read == [3 * ROWS]
    assert (outcome.new, outcome.changed) == (0, 1)
    assert place.ledger().total().identical(place.scratch())


def test_what_is_gone_is_subtracted(make_place: Make, read: list[int]) -> None:
    place = make_place(10)
    place.run()
    zarr.open_array(str(place.store), mode="r+").resize((8 * ROWS, 2))
    read.clear()
    outcome = place.run()
    assert (read, outcome.deleted, outcome.samples) == ([], 2, 8 * ROWS)
    assert place.ledger().total().identical(place.scratch())


def test_what_is_forgotten_is_never_read_again(make_place: Make, read: list[int]) -> None:
    place = make_place(20, DECODE)
    place.run()
    gone = [3, 7, 8, 14, 15, 18, 19]
    place.ledger().forget([f"data/[{ROWS * i}:{ROWS * (i + 1)}]" for i in gone])
    # bit for bit the sketch of the other ones
    assert place.ledger().total().identical(place.scratch(*gone))
    read.clear()
    outcome = place.run()
    assert (read, outcome.forgotten, outcome.partitions) == ([], 7, 13)
    assert outcome.models["model"]["start"] == "cold"  # the last model knew them
    assert place.ledger().total().identical(place.scratch(*gone))
    place.ledger().forget([f"data/[{ROWS * 3}:{ROWS * 4}]"], undo=True)
    assert place.run().new == 1
    assert place.ledger().total().identical(place.scratch(*gone[1:]))


def test_the_bits_do_not_depend_on_the_way(make_place: Make) -> None:
    whole = make_place(15, name="whole")
    rows = np.asarray(zarr.open_array(str(whole.store))[:])
    nightly = make_place(name="nightly", more="[limits]\ncommit_partitions = 2\n")
    write_rows(nightly.store, rows[: 5 * ROWS])
    nightly.run()
    for start in range(5, 15, 5):
        nightly.append(rows[ROWS * start : ROWS * (start + 5)])
        nightly.run()
    # by the map that was designed on the first night
    (whole.folder / "map.json").write_text(nightly.ledger().feature_map.to_json())
    source = '[[sources]]\npath = "x.zarr"\nchunk_size = 1120\n'  # seven chunks to a partition
    whole.write(map_='file = "map.json"', sources=source)
    whole.run()
    assert len(whole.ledger().entries) == 3
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
    with pytest.raises(ChunkError, match=r"^data/\[280:300\] and 1 more.*quarantine"):
        place.run()
    assert place.ledger().next_run == 2  # it has not come to its end
    assert len(place.ledger().entries) == 18
    assert place.ledger().total().identical(place.scratch(14, 17))
    store = zarr.open_array(str(place.store), mode="r+")
    store[10 * ROWS :] = good
    outcome = place.run()
    # what the stopped run had committed counts to the one that ends
    assert (outcome.run, outcome.partitions, outcome.alarm) == (2, 20, False)
    assert (outcome.new, outcome.samples_read) == (2, 10 * ROWS)
    assert place.ledger().total().identical(place.scratch())


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.slow
def test_unreadable_partitions_in_quarantine(make_place: Make) -> None:
    place = make_place(10, DECODE)
    report = '[outputs]\nreport = "r.html"\n'
    place.write(DECODE + report + '[limits]\nunreadable = "quarantine"\nattempts = 1\n')
    place.run()
    damage(place, 4)
    outcome = place.run()
    answers = answers_in(place.folder / "r.html")
    assert answers["complete"].startswith("!No, it is incomplete: 1 partition ")
    assert "in quarantine" in answers["done"]
    assert outcome.status == INCOMPLETE
    assert list(outcome.quarantined) == ["data/[80:100]"]
    assert outcome.partitions == 9  # what it held is no longer so
    assert place.ledger().total().identical(place.scratch(4))
    assert "1 not in the result: data/[80:100]" in str(outcome)
    # each run tries again
    zarr.open_array(str(place.store), mode="r+")[4 * ROWS : 5 * ROWS] = rows_of(ROWS)
    outcome = place.run()
    assert (outcome.status, outcome.quarantined, outcome.partitions) == ("done", {}, 10)
    assert place.ledger().total().identical(place.scratch())


def test_refused_values_are_named(make_place: Make) -> None:
    place = make_place(5)
    store = zarr.open_array(str(place.store), mode="r+")
    store[45] = np.nan
    with pytest.raises(ChunkError, match=r"row 5 .*nan"):
        place.run()
    source = '[[sources]]\npath = "x.zarr"\nchunk_size = 160\nnan_policy = "omit"\n'
    place.write(sources=source)
    assert place.run().samples == 99


def test_two_runs_at_once(make_place: Make) -> None:
    place = make_place(5)
    place.run()
    ledger = place.ledger()
    with ledger.lock(), pytest.raises(LedgerLocked, match="process"):
        place.run()
    assert place.run().run == 2


def test_another_run_creates_the_ledger_first(make_place: Make) -> None:
    place = make_place(5)
    others: list[int] = []

    def log(line: str) -> None:
        if "designing" in line and not others:
            others.append(0)
            others.append(place.run().new)

    outcome = run_job(place.file, log=log)
    assert others == [0, 5]
    assert (outcome.run, outcome.new, outcome.samples) == (2, 0, 5 * ROWS)
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
    outcome = place.run()
    assert (outcome.new, outcome.samples) == (3, 150)
    assert sorted(place.ledger().entries) == [f"days/{day}.parquet" for day in range(3)]
    (place.folder / "days/1.parquet").unlink()
    assert (place.run().deleted, place.ledger().total().count) == (1, 100)


def test_a_deleted_partition_leaves_the_quarantine(make_place: Make) -> None:
    pytest.importorskip("pyarrow")
    place = make_place(1)
    sources = '[[sources]]\npath = "days"\nname = "days"\n'
    place.write('[limits]\nunreadable = "quarantine"\nattempts = 1\n', sources=sources)
    days(place, 400, a=0, b=1)
    place.run()
    (place.folder / "days/b.parquet").write_bytes(b"nonsense")
    outcome = place.run()
    assert list(outcome.quarantined) == ["days/b.parquet"]
    assert not any("No partition is new" in note for note in outcome.notes)  # one has changed
    (place.folder / "days/b.parquet").unlink()
    assert place.run().status == "done"
    assert dict(place.ledger().quarantined) == {}


@pytest.mark.slow
def test_a_damaged_newest_commit_is_reported_and_read_again(
    make_place: Make, read: list[int]
) -> None:
    place = make_place(10)
    place.run()
    before = place.ledger().total()
    place.append(rows_of(ROWS, seed=1))
    place.run()
    total = place.ledger().total()
    # the last two commits: the new partition, and the record of the run
    for commit in sorted((place.folder / "ledger.zarr/commits").iterdir())[-2:]:
        path = commit / "zarr.json"
        path.write_bytes(path.read_bytes().replace(b'"number"', b'"numbxr"'))
    with pytest.warns(UserWarning, match="checksum.*state of commit"):
        ledger = place.ledger()
    assert ledger.total().identical(before)
    assert "checksum" in ledger._repr_html_()
    with pytest.warns(UserWarning, match="state of commit"):
        verified = verify_job(place.file, 1.0)
    assert (bool(verified.damage), verified.is_sound) == (True, False)
    read.clear()
    with pytest.warns(UserWarning, match="state of commit"):
        outcome = place.run()
    assert (read, outcome.run, outcome.new) == ([10 * ROWS], 2, 1)
    assert outcome.damage is not None
    assert "checksum" in str(outcome)
    assert place.ledger().total().identical(total)
    assert place.ledger().history()[-1].results["damage"] == outcome.damage
    assert place.run().damage is None
    assert verify_job(place.file, 1.0).is_sound


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
    permitted = {"sketch.job-secrets": {"env:JOB_TEST_KEY": ["memory://x"]}}
    try:
        with (
            dask.config.set(permitted),
            pytest.raises(InputError, match=r"'key': '\*\*\*'") as caught,
        ):
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
    place = make_place(3, DECODE + '[outputs]\nreport = "r.html"\n')
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'matplotlib>="):
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
    outcome = place.run()
    assert (outcome.new, outcome.samples) == (40, 800)
    assert place.ledger().total().identical(place.scratch())
    assert "local, 2 workers" in str(plan_job(place.file))
    place.append(rows_of(ROWS, seed=1))
    place.write(DECODE)  # and on with threads
    assert place.run().new == 1
    assert place.ledger().total().identical(place.scratch())
