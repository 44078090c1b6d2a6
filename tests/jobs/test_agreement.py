"""Job files that do not fit their ledger, their feature map or their data."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner
from jobs.places import Place, rows_of, write_rows

from dask_sketch import FeatureMap
from dask_sketch.cli.jobs import USAGE
from dask_sketch.cli.main import cli
from dask_sketch.cli.options import FAILED
from dask_sketch.errors import InputError, JobError, LedgerError
from dask_sketch.features.artifact import write_feature_map
from dask_sketch.jobs.run import plan_job, run_job

Make = Callable[..., Place]
PARQUET = '[[sources]]\npath = "days"\n'


def refusals(file: Path) -> list[tuple[int, str]]:
    """Exit code and message of the dry run and of the run."""
    found = []
    for options in (["--dry-run"], []):
        result = CliRunner().invoke(cli, ["run", str(file), *options])
        (line,) = (line for line in result.stderr.splitlines() if line.startswith("error: "))
        found.append((result.exit_code, line))
    return found


def write_days(place: Place, **columns: object) -> None:
    """Write one Parquet file with the columns a and b, and further ones."""
    (place.folder / "days").mkdir(exist_ok=True)
    frame = pd.DataFrame(rows_of(60), columns=["a", "b"])
    frame.assign(**columns).to_parquet(place.folder / "days/0.parquet")


@pytest.mark.parametrize("ledger", ["other", "other/file", "x.zarr", "/etc"])
def test_the_dry_run_refuses_a_ledger_where_something_else_is(
    make_place: Make, ledger: str
) -> None:
    place = make_place(2)
    (place.folder / "other").mkdir()
    (place.folder / "other/file").touch()
    place.file.write_text(place.file.read_text().replace("ledger.zarr", ledger))
    dry, real = refusals(place.file)
    assert dry == real
    assert dry[0] == USAGE
    assert f'job.ledger = "{ledger}"' in dry[1]
    assert sorted(path.name for path in (place.folder / "other").iterdir()) == ["file"]


def test_the_dry_run_refuses_a_ledger_that_cannot_be_written(make_place: Make) -> None:
    place = make_place(2)
    place.file.write_text(place.file.read_text().replace("ledger.zarr", "/proc/ledger"))
    dry, real = refusals(place.file)
    assert dry == real
    assert dry[0] == FAILED
    assert 'job.ledger = "/proc/ledger"' in dry[1]


def test_a_ledger_that_exists_and_cannot_be_written(
    make_place: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(2)
    place.run()

    def refused(*arguments: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refused)
    with pytest.raises(LedgerError, match=r"job\.ledger.*Read-only"):
        plan_job(place.file)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ('columns = ["a", "zz"]', "sources[0].columns: columns=['zz']"),
        ('columns = ["a", "t"]', "sources[0].columns: columns of"),
        ("", "sources[0].columns: columns of"),
        ('columns = ["a", "b"]\nweights = "zz"', "sources[0].weights: weights='zz'"),
        ('columns = ["a", "b"]\nweights = "t"', "sources[0].weights: weights of"),
        ('columns = ["a", "b"]\narray = "x"', "sources[0].array: array='x'"),
        ('columns = ["a", "b"]\nmissing_chunks = "fill"', "sources[0].missing_chunks: "),
    ],
)
def test_settings_of_a_source_that_do_not_fit_its_data(
    make_place: Make, settings: str, key: str
) -> None:
    place = make_place(1)
    write_days(place, t="text")
    place.write(sources=f"{PARQUET}{settings}\n")
    dry, real = refusals(place.file)
    assert dry == real
    assert dry[0] == USAGE
    assert key in dry[1]
    assert not (place.folder / "ledger.zarr").exists()


def test_columns_that_the_data_has_lost_are_no_mistake_of_the_job_file(make_place: Make) -> None:
    place = make_place(1)
    write_days(place)
    for columns in ("", 'columns = ["a", "b"]\n'):
        place.write("[limits]\nchanged = 1.0\n", sources=PARQUET + columns)
        write_days(place)
        place.run()
        frame = pd.read_parquet(place.folder / "days/0.parquet")
        frame.rename(columns={"b": "b2"}).to_parquet(place.folder / "days/0.parquet")
        dry, real = refusals(place.file)
        assert dry == real
        assert dry[0] == FAILED
        assert "columns=['b']" in dry[1]


@pytest.mark.parametrize("content", [None, "{}", "no JSON", b"\xff", FeatureMap(5, 9, scale=1.0)])
def test_a_feature_map_file_that_is_wrong(make_place: Make, content: object) -> None:
    place = make_place(2)
    path = place.folder / "map.json"
    if content is not None:
        text = content.to_json() if isinstance(content, FeatureMap) else content
        path.write_bytes(text if isinstance(text, bytes) else str(text).encode())
    place.write(map_='file = "map.json"')
    dry, real = refusals(place.file)
    assert dry == real
    assert dry[0] == USAGE
    assert "feature_map.file" in dry[1]
    assert not (place.folder / "ledger.zarr").exists()


def test_a_feature_map_with_categories(make_place: Make) -> None:
    place = make_place(2)
    found = FeatureMap(2, 9, scale=1.0, distribution="gaussian", categories={1: [0, 1, 2]})
    (place.folder / "map.json").write_text(found.to_json())
    place.write(map_='file = "map.json"')
    with pytest.raises(JobError, match=r"feature_map\.file.*categories"):
        plan_job(place.file)


def test_sources_of_different_features(make_place: Make) -> None:
    place = make_place(2)
    write_rows(place.folder / "y.zarr", np.zeros((20, 3), "f4"))
    more = '[[sources]]\nname = "y"\npath = "y.zarr"\n'
    place.write(sources='[[sources]]\npath = "x.zarr"\n' + more)
    with pytest.raises(JobError, match=r"sources\[1\]\.path: .*3 features"):
        plan_job(place.file)


@pytest.mark.parametrize(
    ("path", "again", "columns"),
    [
        ("x.zarr", "./x.zarr/", ""),
        ("days", "days/*.parquet", ""),
        ("days", "days/1.parquet", 'columns = ["a", "b"]\n'),
        ("days", "link", ""),
    ],
)
def test_data_of_another_source(make_place: Make, path: str, again: str, columns: str) -> None:
    place = make_place(2)
    (place.folder / "days").mkdir()
    for day in range(2):
        frame = pd.DataFrame(np.zeros((5, 2), "f4"), columns=["a", "b"])
        frame.to_parquet(place.folder / f"days/{day}.parquet")
    (place.folder / "link").symlink_to("days")
    more = f'[[sources]]\nname = "again"\npath = "{again}"\n'
    place.write(sources=f'[[sources]]\npath = "{path}"\n{columns}{more}{columns}')
    with pytest.raises(JobError, match=r"sources\[1\]\.path: .*(x\.zarr|\.parquet) .*'data'"):
        plan_job(place.file)


def test_a_source_that_has_gone_is_named_by_its_key(make_place: Make) -> None:
    place = make_place(2)
    place.write(sources='[[sources]]\npath = "gone.zarr"\n')
    with pytest.raises(InputError, match=rf"sources\[0\]\.path: .*{re.escape('gone.zarr')}"):
        plan_job(place.file)


@pytest.mark.parametrize(
    ("settings", "key", "kind"),
    [
        ('path = "gone.zarr"', r"score\.path", InputError),
        ('path = "g.zarr"\narray = "zz"', r"score\.array", JobError),
        ('path = "g.zarr"', "3 features", InputError),
    ],
)
def test_samples_to_score_are_opened_before_the_run(
    make_place: Make, settings: str, key: str, kind: type[Exception]
) -> None:
    place = make_place(2)
    group = zarr.open_group(str(place.folder / "g.zarr"), mode="w")
    group.create_array("rows", data=np.zeros((20, 3), "f4"))
    place.write(f"[[decode]]\nn_components = 2\n[score]\n{settings}\n")
    for call in (plan_job, run_job):
        with pytest.raises(kind, match=key):
            call(place.file)
    assert not (place.folder / "ledger.zarr").exists()


@pytest.mark.parametrize(
    ("feature_map", "decode", "key"),
    [
        ("normalize = true", "", "decode[0].model"),
        ("", 'covariance_type = "low-rank:2"', "decode[0].covariance_type"),
        ('file = "map.json"', "", "decode[0].model"),
    ],
)
def test_models_that_do_not_suit_the_features_are_refused_before_data_is_read(
    make_place: Make, feature_map: str, decode: str, key: str
) -> None:
    place = make_place(2)
    directions = FeatureMap(2, 20, scale=1.0, normalize=True)
    write_feature_map(str(place.folder / "map.json"), directions)
    settings = feature_map if "file" in feature_map else f"n_components = 2\n{feature_map}"
    place.write(f"[[decode]]\nn_components = 2\n{decode}\n", map_=settings)
    for code, line in refusals(place.file):
        assert (code, key in line) == (USAGE, True)
    assert not (place.folder / "ledger.zarr").exists()


def test_centroids_of_directions(make_place: Make) -> None:
    place = make_place(2)
    decode = '[[decode]]\nn_components = 2\nmodel = "dirac"\n'
    place.write(decode, map_="n_components = 2\nnormalize = true")
    assert plan_job(place.file).first


def test_errors_begin_with_the_job_file(make_place: Make) -> None:
    place = make_place(2)
    (place.folder / "map.json").write_text(json.dumps({}))
    place.write(map_='file = "map.json"')
    with pytest.raises(JobError, match=f"^{re.escape(str(place.file))}: "):
        plan_job(place.file)


def test_a_ledger_of_other_arithmetic_is_refused(make_place: Make) -> None:
    place = make_place(2)
    run_job(place.file)
    assert run_job(place.file).new == 0  # the arithmetic is the same
    ledger = place.ledger()
    with ledger.lock():
        last = ledger.history()[-1]
        results = {**last.results, "arithmetic": 64 * "0"}
        ledger.commit(run=replace(last, number=3, models={}, results=results))
    for code, message in refusals(place.file):
        assert code == USAGE
        assert re.search(r"job\.ledger = .*numpy \d", message)


@pytest.mark.parametrize(("first", "second"), [("omit", "available"), ("available", "omit")])
def test_another_policy_for_missing_values_is_refused_if_there_were_some(
    make_place: Make, first: str, second: str
) -> None:
    place = make_place(2, sample=0)
    map_ = 'n_components = 2\nn_frequencies = 60\ndistribution = "gaussian-marginals"'
    days = f'{PARQUET}nan_policy = "{first}"\n'
    write_days(place)
    place.write(sources=days, map_=map_)
    place.run()
    place.write(sources=days.replace(first, second), map_=map_)
    place.run()  # there were no missing values yet
    place.write(sources=days, map_=map_)
    frame = pd.DataFrame(rows_of(60, seed=1), columns=["a", "b"])
    frame.iloc[:7, 0] = np.nan
    frame.to_parquet(place.folder / "days/1.parquet")
    place.run()
    before = place.ledger().total()
    place.write(sources=days.replace(first, second), map_=map_)
    for code, line in refusals(place.file):
        assert code == USAGE
        assert f'sources[0].nan_policy = "{second}"' in line
        assert ("7 rows" if first == "omit" else "missing values") in line
    place.write(sources=days, map_=map_)
    place.run()
    assert place.ledger().total().identical(before)
    looser = {"omit": "raise"}.get(first)
    if looser:
        place.write(sources=days.replace(first, looser), map_=map_)
        assert refusals(place.file)[0][0] == USAGE
