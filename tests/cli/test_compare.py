"""Commands that compare distributions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, browser, visit
from cli.commands import answer, call, refusal
from jobs.conftest import make_place
from jobs.places import ROWS, Place, rows_of

import dask_sketch as ds
from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.cli.jobs import ALARM

__all__ = ["make_place"]
Make = Callable[..., Place]
JOB = "[[decode]]\nn_components = 2\n[drift]\nfalse_alarms_per_year = 5\n"


@pytest.fixture
def groups(tmp_path: Path) -> list[Path]:
    """Two sets of days of one distribution, and one of another."""
    rng, feature_map = np.random.default_rng(0), FeatureMap(2, 40, scale=1.0)
    paths = [tmp_path / f"{name}.zarr" for name in "abc"]
    for path, width in zip(paths, (1.0, 1.0, 3.0), strict=True):
        days = np.repeat(np.arange(8), 50)
        x = width * rng.normal(size=(400, 2)) + 0.1 * rng.normal(size=(8, 2))[days]
        partial_sketch(x, feature_map, groups=days, dim="day").to_zarr(path)
    return paths


def test_compare(groups: list[Path]) -> None:
    a, b, c = groups
    told = answer("compare", a, b)
    assert told["is_different"] is False
    assert told["n_units"] == [8, 8]
    told = answer("compare", a, c, "--level", 0.01)
    assert told["is_different"] is True
    assert told["level"] == 0.01
    assert answer("compare", a, c, "--tolerance", 1.5)["is_different"] is False
    shown = call("compare", a, c).stdout
    assert "A difference was found" in shown
    assert "feature 0" in shown
    assert "level" in refusal(1, "compare", a, b, "--level", 1e-9)
    assert "frequencies" in answer("compare", a, c, "--fold", 0.4)["statistic"]
    assert answer("compare", a, c, "--method", "cross", "--level", 1e-4)["method"] == "cross"


@pytest.mark.slow
def test_compare_writes_a_page(groups: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    a, _, c = groups
    page = tmp_path / "page.html"
    told = answer("compare", a, c, "--level", 0.01, "--report", page)
    assert told["is_different"] is True
    assert told["report"] == str(page)
    text = page.read_text()
    assert "Are a and c of one distribution?" in text
    assert f"dask-sketch compare {a} {c} --level 0.01 --report {page}" in text
    assert "--overwrite" in refusal(1, "compare", a, c, "--report", page)
    assert "page.html" in call("compare", a, c, "--report", page, "--overwrite").stdout
    rows = tmp_path / "rows.csv"
    rows.write_text("1,2")
    assert "rows.csv" in refusal(1, "compare", a, c, "--report", rows, "--overwrite")
    assert rows.read_text() == "1,2"


@pytest.mark.filterwarnings("default")  # the program prints them
@pytest.mark.slow
def test_warnings_of_a_comparison_are_on_its_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rng, feature_map = np.random.default_rng(0), FeatureMap(1, 20, scale=1.0)
    paths = [tmp_path / name / "sketch.zarr" for name in ("many", "few")]
    for path, n in zip(paths, (1000, 20), strict=True):
        x, labels = rng.normal(size=(8 * n, 1)), np.repeat(np.arange(8), n)
        weights = np.full(8 * n, 1000.0 / n)  # units of both sides have one weight
        partial_sketch(x, feature_map, weights, groups=labels).to_zarr(path)
    page = tmp_path / "page.html"
    done = call("compare", *paths, "--report", page)
    assert done.exit_code == 0
    assert "warning: first has units" in done.stderr
    text = page.read_text()
    assert "first has units (group) of 1,000 rows" in text
    assert "Are many/sketch and few/sketch of" in text


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_sees_the_page(groups: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert call("compare", groups[0], groups[2], "--report", page).exit_code == 0
    with browser() as port:
        for dark in (False, True):
            for width in (360, 1400):
                seen = visit(port, page.as_uri(), dark=dark, width=width, seconds=0.5)
                assert seen.complaints == []
                assert seen.judged == []
                assert all(url.startswith(("file:", "data:")) for url in seen.requests)


def test_compare_refuses_what_is_no_group(groups: list[Path], tmp_path: Path) -> None:
    assert "missing.zarr" in refusal(1, "compare", groups[0], tmp_path / "missing.zarr")
    sketch = partial_sketch(np.ones((3, 2)), FeatureMap(2, 40, scale=1.0))
    sketch.to_zarr(tmp_path / "one.zarr")
    assert "second of type Sketch" in refusal(1, "compare", groups[0], tmp_path / "one.zarr")
    assert "give two" in refusal(1, "compare", groups[0], groups[0])


@pytest.mark.slow
def test_strata_and_serial_order(tmp_path: Path) -> None:
    """Weekends of one side only are a difference, unless weekdays are strata."""
    rng, feature_map = np.random.default_rng(0), FeatureMap(2, 40, scale=1.0)
    weekend = {"a": np.arange(20) % 10 < 8, "b": np.arange(20) % 10 < 2}
    lines = ["day,side,weekend"]
    for name, flags in weekend.items():
        days = np.repeat([f"{name}{day:02d}" for day in range(20)], 50)
        x = rng.normal(size=(1000, 2)) + 3.0 * np.repeat(flags, 50)[:, None]
        partial_sketch(x, feature_map, groups=days, dim="day").to_zarr(tmp_path / name)
        lines += [f"{name}{day:02d},{name},{flag}" for day, flag in enumerate(flags)]
    (table := tmp_path / "days.csv").write_text("\n".join(lines))
    sides = tmp_path / "a", tmp_path / "b"
    assert answer("compare", *sides)["is_different"] is True
    told = answer("compare", *sides, "--labels", table, "--strata", "weekend")
    assert (told["is_different"], told["n_strata"]) == (False, 2)
    told = answer("compare", *sides, "--serial", "--level", 0.1)
    assert told["n_permutations"] == 40  # shifts
    assert "strata" in refusal(1, "compare", *sides, "--labels", table)  # which of two columns
    assert call("compare", *sides, "--strata", "weekend").exit_code == 2
    table.write_text("\n".join(lines[:-1]))
    assert "b19" in refusal(1, "compare", *sides, "--labels", table, "--strata", "weekend")


@pytest.mark.slow
def test_compare_all(tmp_path: Path) -> None:
    rng, feature_map = np.random.default_rng(0), FeatureMap(2, 40, scale=1.0)
    file = np.repeat(np.arange(24), 50)
    x = rng.normal(size=(1200, 2)) + np.repeat(np.arange(24) % 4 == 3, 50)[:, None]
    partial_sketch(x, feature_map, groups=file, dim="file").to_zarr(units := tmp_path / "units")
    lines = [f"{k},m{k % 4},{'early' if k < 12 else 'late'}" for k in range(23)]  # one is left out
    (table := tmp_path / "files.csv").write_text("\n".join(["file,machine,time", *lines]))
    told = answer("compare-all", units, "--labels", table, "--by", "machine")
    assert told["is_different"] is True
    assert (told["labels"][0], sum(told["n_units"])) == ("m3", 23)
    assert 0.0 < told["interval"][0] < told["discrepancy"] < told["interval"][1]
    told = answer("compare-all", units, "--labels", table, "--by", "time", "--level", 0.01)
    assert told["is_different"] is False
    told = answer("compare-all", units, "--labels", table, "--by", "machine", "--strata", "time")
    assert told["n_strata"] == 2
    assert "m3" in call("compare-all", units, "--labels", table, "--by", "machine").stdout
    assert call("compare-all", units, "--by", "machine").exit_code == 2
    assert "by=" in refusal(1, "compare-all", units, "--labels", table, "--by", "owner")


@pytest.mark.slow
def test_compare_columns(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(1000, 3)), columns=["a", "b", "c"])
    frame["c"] += frame["a"] ** 2
    frame["day"] = np.repeat(np.arange(20), 50)
    frame.to_parquet(data := tmp_path / "rows.parquet")
    common = (data, "--by", "day", "-m", 64)
    told = answer("compare-columns", *common, "--first", "a, b")
    assert told["is_dependent"] is True
    assert (told["dim"], told["n_units"]) == ("day", 20)
    # the columns that are left out are in no set
    told = answer("compare-columns", *common, "--first", 1, "--columns", "b,c", "--level", 0.01)
    assert told["is_dependent"] is False
    assert told["level"] == 0.01
    answer("design", data, "--by", "day", "--task", "comparison", "-m", 64,
           "-o", tmp_path / "map.json")  # fmt: skip
    by_map = ("compare-columns", data, "--by", "day", "--map", tmp_path / "map.json")
    assert "depend on each other" in call(*by_map, "--first", "c").stdout
    rows = frame[["a", "b", "c"]]
    ds.sketch(rows, ds.open(tmp_path / "map.json")).to_zarr(tmp_path / "sketch.zarr")
    of_sketch = (*by_map[:-1], tmp_path / "sketch.zarr", "--first", "c")
    assert answer(*of_sketch) == answer(*by_map, "--first", "c")
    ds.second_moments(rows).to_zarr(tmp_path / "moments.zarr")
    of_moments = (*by_map[:-1], tmp_path / "moments.zarr", "--first", "c")
    assert "(option --map)" in refusal(1, *of_moments)
    assert "second moments" not in call("compare-columns", "--help").stdout
    refused = refusal(1, *by_map, "--first", "a,d")
    assert "'d'" in refused
    assert "(option --first)" in refused
    assert "--by" in call("compare-columns", data, "--first", "a").stderr
    assert "-m" in call(*by_map, "--first", "a", "-m", 64).stderr


def test_drift(make_place: Make) -> None:
    place = make_place(12, JOB)
    place.run()
    place.append(rows_of(4 * ROWS, seed=7, shift=1.5))
    place.run()
    result = call("drift", place.file)
    assert result.exit_code == ALARM
    assert "A difference was found" in result.stdout
    assert "with run 2 of" in result.stdout
    told = json.loads(call("drift", place.file, "--json").stdout)
    assert [one["label"] for one in told["since"]["changes"]["points"]] == [2]
    assert answer("drift", place.file, "--tolerance", 1.5)["since"] is None
    assert answer("drift", place.file, "--tolerance", 1.5)["level"] == 5 / 365
    ledger = place.folder / "ledger.zarr"
    assert answer("drift", ledger, "--tolerance", 2.0)["level"] == 0.05
    told = answer("drift", ledger, "--window", 1, "--reference", "9 days", "--tolerance", 2.0)
    assert told["n_units"] == [4, 12]
    assert "window='soon'" in refusal(1, "drift", ledger, "--window", "soon")
    assert "level" in refusal(1, "drift", ledger, "--unit", "run")
    assert "unit='partition'" in refusal(1, "drift", ledger, "--serial")
    assert "1 and 1 units" in refusal(1, "drift", ledger, "--serial", "--unit", "run")
