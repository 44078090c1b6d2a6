"""Ledgers and sources of jobs: what opens, and what does not fit."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import zarr
from fsspec.implementations.local import LocalFileSystem
from jobs.places import ROWS, Place, rows_of

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.errors import (
    ChunkError,
    JobError,
    LedgerError,
    SketchError,
)
from dask_sketch.features.artifact import write_feature_map
from dask_sketch.jobs import open as inputs
from dask_sketch.jobs.job_file import Job, parse_job, read_job
from dask_sketch.jobs.run import plan_job

Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"


@pytest.mark.slow
def test_the_ledger_keeps_its_map(make_place: Make) -> None:
    place = make_place(5)
    place.run()
    before = place.ledger().feature_map
    place.append(rows_of(10 * ROWS, shift=100.0))
    place.run()
    assert place.ledger().feature_map == before
    place.write(map_="n_components = 2\nn_frequencies = 7")
    with pytest.raises(JobError, match=r"feature_map.n_frequencies = 7"):
        place.run()
    place.write(map_='file = "map.json"')
    (place.folder / "map.json").write_text(FeatureMap(2, 30, scale=1.0).to_json())
    with pytest.raises(JobError, match=r"feature_map\.file = \"map\.json\""):
        place.run()


@pytest.mark.parametrize(
    ("key", "value"),
    [("n_components", 3), ("task", "clustering"), ("whitening", "full"), ("n_pilot", 50)],
)
def test_settings_of_the_design_cannot_change(make_place: Make, key: str, value: object) -> None:
    place = make_place(5)
    place.run()
    more = f"{key} = {value!r}\n" + "n_components = 2" * (key != "n_components")
    place.write(map_=more)
    with pytest.raises(JobError, match=rf"feature_map\.{key} = {value!r}: .*job\.ledger"):
        place.run()
    text = place.file.read_text().replace("ledger.zarr", "other.zarr")
    place.file.write_text(text)  # as the message says
    assert place.run().new == 5


def test_the_seed_of_the_design_cannot_change(make_place: Make) -> None:
    place = make_place(5)
    place.run()
    place.file.write_text(place.file.read_text().replace("[[sources]]", "seed = 1\n[[sources]]"))
    with pytest.raises(JobError, match=r"job\.seed = 1: the ledger has 0"):
        place.run()


def test_the_ledger_keeps_the_pilot_until_rows_are_forgotten(make_place: Make) -> None:
    place = make_place(5)
    place.run()
    ledger = place.ledger()
    pilot = ledger.feature_map.pilot
    assert pilot is not None
    assert pilot.mixture is not None
    assert ledger.total().feature_map.pilot is pilot
    (folder,) = (place.folder / "ledger.zarr/pilots").iterdir()
    ledger.forget(["data/[0:20]"])
    assert ledger.feature_map.pilot is place.ledger().feature_map.pilot is None
    assert not folder.exists()
    assert place.run().partitions == 4
    assert place.ledger().feature_map.pilot is None


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
    with pytest.raises(ChunkError, match=r"data/\[40:60\]"):
        place.run()
    assert times == [[2], [2], [2]]
    assert place.ledger().total().identical(before)


def test_a_run_killed_while_it_made_the_ledger_is_no_obstacle(make_place: Make) -> None:
    place = make_place(3)
    (place.folder / "ledger.zarr/feature_map").mkdir(parents=True)
    (place.folder / "ledger.zarr/.zarr.json-0123").write_bytes(b"{")
    assert plan_job(place.file).first
    assert place.run().samples == 60
    other = make_place(3, name="other")
    (other.folder / "ledger.zarr").mkdir()
    (other.folder / "ledger.zarr/letters.txt").touch()
    with pytest.raises(SketchError, match=r"ledger\.zarr"):
        other.run()


def test_a_ledger_on_a_file_system_without_its_package(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)  # as if it were not installed
    place = make_place(3)
    text = place.file.read_text().replace('"ledger.zarr"', '"adl://account/ledger"')
    place.file.write_text(text)
    with pytest.raises(LedgerError, match=r"job\.ledger: adl://account/ledger"):
        place.run()


def test_other_ways_to_read_a_store_make_other_partitions_and_count_once(make_place: Make) -> None:
    place = make_place(10)
    place.run()
    source = '[[sources]]\npath = "x.zarr"\nchunk_size = 320\n'
    place.write("[limits]\nchanged = 1\n", sources=source)
    outcome = place.run()
    assert (outcome.new, outcome.deleted, outcome.samples) == (5, 10, 200)
    assert place.ledger().total().identical(place.scratch())


def test_a_ledger_that_cannot_be_reached_is_not_taken_for_a_missing_one(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: LocalFileSystem, path: str) -> bool:
        raise RuntimeError("no route to host")  # of clients of servers, which is no OSError

    place = make_place(3)
    url = f"file://{place.folder}/ledger"
    place.file.write_text(place.file.read_text().replace("ledger.zarr", url))
    assert plan_job(place.file).first
    monkeypatch.setattr(LocalFileSystem, "exists", unreachable)
    with pytest.raises(LedgerError, match=f"{url}.*no route to host"):
        plan_job(place.file)


@pytest.mark.slow
def test_columns_are_those_of_the_feature_map(make_place: Make) -> None:
    """Later files have another order, and a text that no model needs."""
    place = make_place(1)
    place.write(
        '[[decode]]\nn_components = 2\n[score]\npath = "heldout.parquet"\n',
        sources='[[sources]]\npath = "days"\ncolumns = ["b", "a"]\n',
    )
    (place.folder / "days").mkdir()
    rows = rows_of(400)
    frame = pd.DataFrame({"text": "x", "a": rows[:, 0], "b": rows[:, 1]})
    frame.to_parquet(place.folder / "heldout.parquet")
    frame[:200].to_parquet(place.folder / "days" / "0.parquet")
    assert place.run().models["model"]["score"] < 0
    place.file.write_text(place.file.read_text().replace('columns = ["b", "a"]\n', ""))
    frame[200:].to_parquet(place.folder / "days" / "1.parquet")
    assert place.run().samples == 400
    names = place.ledger().feature_map.feature_names
    assert names == ("b", "a")
    expected = partial_sketch(rows[:, ::-1], place.ledger().feature_map)
    assert place.ledger().total().without_sample().identical(expected)
    write_feature_map(str(place.folder / "map.json"), place.ledger().feature_map)
    text = place.file.read_text().replace("ledger.zarr", "other.zarr")
    place.file.write_text(text.replace("n_components = 2\n[[", 'file = "map.json"\n[['))
    assert place.run().new == 2


def test_no_source_no_start(make_place: Make) -> None:
    place = make_place(5)
    place.write(sources='[[sources]]\npath = "nowhere.zarr"\n')
    with pytest.raises(SketchError, match=r"nowhere\.zarr"):
        place.run()
    assert not (place.folder / "ledger.zarr").exists()


SMALL = """\
[job]
name = "j"
ledger = "{ledger}"
[[sources]]
path = "x.zarr"
[feature_map]
n_components = 2
"""


def job_in(ledger: str) -> Job:
    return parse_job(SMALL.format(ledger=ledger), Path("folder/job.toml"))


def refused(ledger: str) -> str:
    with pytest.raises(JobError) as caught:
        job_in(ledger)
    return str(caught.value)


def test_outputs_that_cannot_last() -> None:
    with pytest.raises(JobError, match=r'outputs.sketch = "memory://s.zarr"'):
        parse_job(
            SMALL.format(ledger="l") + '[outputs]\nsketch = "memory://s.zarr"', Path("j.toml")
        )


@pytest.mark.parametrize(("ledger", "remedy"), [("memory://l", "disk"), ("s3://", "bucket")])
def test_a_ledger_that_cannot_last(ledger: str, remedy: str) -> None:
    message = refused(ledger)
    assert message.startswith(f'folder/job.toml: job.ledger = "{ledger}": ')
    assert remedy in message


@pytest.mark.parametrize("ledger", [".", "..", "./", "x/..", "/", str(Path("folder").absolute())])
def test_a_ledger_is_no_folder_of_jobs(ledger: str) -> None:
    message = refused(ledger)
    assert message.startswith(f'folder/job.toml: job.ledger = "{ledger}": ')


def test_a_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    job = job_in("~/l")
    assert job.resolve(job.job.ledger) == str(tmp_path / "l")


def test_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(SMALL.format(ledger="l"), encoding="utf-8-sig")
    assert read_job(tmp_path / "job.toml").job.name == "j"
