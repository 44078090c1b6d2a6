"""`dask-sketch report`: of a job's last run, a sketch, a model, a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, browser, visit
from click.testing import CliRunner
from jobs.places import ROWS, Place, answers_in, draw_nothing, rows_of, write_rows

import dask_sketch as ds
from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.cli.main import cli
from dask_sketch.cli.report import report_run
from dask_sketch.diagnostics import report
from dask_sketch.errors import InputError
from dask_sketch.jobs import report as page
from dask_sketch.jobs.report import report_last_run

DECODE = "[[decode]]\nn_components = 2\n"


def invoke(*arguments: object) -> object:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    rows = rows_of(2000)
    feature_map = FeatureMap(2, 60, scale=1.0)
    sketch = partial_sketch(rows, feature_map)
    sketch.to_zarr(folder / "sketch.zarr")
    partial_sketch(rows_of(500, seed=3), feature_map).to_zarr(folder / "heldout.zarr")
    ds.decode(sketch, 2).to_zarr(folder / "model.zarr")
    write_rows(folder / "frames.zarr", rows[:100])
    return folder


@pytest.mark.slow
def test_of_a_folder_a_sketch_and_a_model(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = invoke(kept, "-o", tmp_path / "a" / "r.html", "--json")
    assert done.exit_code == 0, done.output
    text = Path(json.loads(done.stdout)["report"]).read_text()
    for expected in (
        "2,000 samples with 2 features each",
        "2 Gaussians",
        f"dask-sketch report {kept} -o",
        "model.zarr",
    ):
        assert expected in text, expected
    assert "frames.zarr" not in text
    monkeypatch.setattr(report, "draw_pictures", draw_nothing)  # one page has shown them
    text = report_run(str(kept / "sketch.zarr"), tmp_path / "s.html").read_text()
    text = report_run(str(kept / "model.zarr"), tmp_path / "m.html").read_text()
    assert "2 features each" not in text
    done = invoke(
        kept / "sketch.zarr", "--model", kept / "model.zarr", "--heldout", kept / "heldout.zarr",
        "--names", "left, right", "-o", tmp_path / "b.html",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    text = (tmp_path / "b.html").read_text()
    assert "held-out" in text
    assert "left" in text


@pytest.mark.usefixtures("no_drawing")
def test_of_sketches_of_groups(tmp_path: Path) -> None:
    rows, feature_map = rows_of(300), FeatureMap(2, 30, scale=1.0)
    labels = np.repeat(["ada", "<b>", "cleo"], [50, 150, 100])
    group = ds.sketch(rows, feature_map, groups=labels)
    group.to_zarr(tmp_path / "sketch.zarr")
    text = report_run(str(tmp_path), tmp_path / "r.html").read_text()
    assert "300 samples with 2 features" in text
    assert text.index("&lt;b&gt;") < text.index("cleo") < text.index("ada")


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.slow
def test_what_stands_there_is_not_replaced_unasked(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(kept / "model.zarr").exit_code == 0
    refused = invoke(kept / "model.zarr")
    assert refused.exit_code == 1
    assert "report.html exists" in refused.output
    assert invoke(kept / "model.zarr", "--overwrite").exit_code == 0
    (tmp_path / "rows.csv").write_text("1,2")
    assert invoke(kept / "model.zarr", "-o", "rows.csv", "--overwrite").exit_code == 1
    assert (tmp_path / "rows.csv").read_text() == "1,2"


@pytest.mark.parametrize(
    ("run", "options", "said"),
    [
        ("frames.zarr", {}, "holds neither a sketch nor a model"),
        ("nothing.zarr", {}, "nothing.zarr"),
        ("", {"model": "model.zarr"}, "model.zarr"),
        ("model.zarr", {"heldout": "heldout.zarr"}, "heldout="),
        ("", {"heldout": "model.zarr"}, "heldout="),
        ("", {"names": ["a"]}, "names"),
    ],
)
def test_what_cannot_be_told_is_refused(kept, tmp_path, run, options, said):
    given = {key: str(kept / value) if key != "names" else value for key, value in options.items()}
    with pytest.raises(InputError, match=said):
        report_run(str(kept / run), tmp_path / "r.html", **given)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path / "here")
    made.folder.mkdir()
    write_rows(made.store, rows_of(30 * ROWS))
    made.write(DECODE + '[outputs]\nreport = "r.html"\n')
    return made


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.slow
def test_of_a_job_it_is_the_one_of_its_run(place: Place, tmp_path: Path) -> None:
    early = invoke(place.file)
    assert early.exit_code == 1
    assert "no run of" in early.output
    place.run()
    answers = answers_in(place.folder / "r.html")
    assert list(answers) == ["complete", "good", "time", "done"]
    assert answers["complete"].startswith("Yes: ")
    assert "600 samples in 30 partitions" in answers["complete"]
    assert answers["good"].startswith("Yes: ")
    assert "no earlier data" in answers["time"]
    assert answers["done"] == "Nothing."
    place.append(rows_of(5 * ROWS, seed=7, shift=0.9))
    made = place.run()
    assert made.alarm
    written = place.folder / "r.html"
    answers = answers_in(written)
    assert answers["good"].startswith("Yes: ")
    assert "all samples together" in answers["good"]
    assert answers["time"].startswith("!Alarm: ")
    assert made.drift.sentence in answers["time"]
    assert "features below Drift" in answers["done"]
    first = written.read_text()
    written.unlink()
    done = invoke(place.file)
    assert done.exit_code == 0, done.output
    assert drop_seconds(written.read_text()) == drop_seconds(first)
    for expected in (
        "nightly: run 2, done",
        "Alarm: the data has changed.",
        "Plan and outcome",
        '<th scope="row">new partitions</th><td data-name="plan">5</td>'
        '<td data-name="outcome">5</td>',
        '<th scope="row">samples</th><td data-name="plan">100</td><td data-name="outcome">100</td>',
        "Earlier runs",
        "Changes of the components",
        f"dask-sketch report {place.file}",
    ):
        assert expected in first, expected
    other = invoke(place.file, "-o", tmp_path / "other.html")
    assert other.exit_code == 0, other.output
    assert (tmp_path / "other.html").exists()


def drop_seconds(text: str) -> list[str]:
    """Lines that do not hold times, which a run measures."""
    return [
        line for line in text.splitlines() if "seconds to" not in line and " s in all" not in line
    ]


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.slow
def test_of_an_early_ledger(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of earlier versions hold no plan."""
    place.run()
    written = []
    monkeypatch.setattr(page, "write_report", lambda *a, **k: written.append(k["sections"]))

    class Record:
        def __init__(self, record):
            self._record = record

        def __getattr__(self, name):
            value = getattr(self._record, name)
            if name == "results":
                return {k: v for k, v in value.items() if k not in ("plan", "between")}
            return value

    ledger_type = type(place.ledger())
    history = ledger_type.history
    monkeypatch.setattr(ledger_type, "history", lambda self: list(map(Record, history(self))))
    report_last_run(place.file)
    assert "Plan and outcome" not in [section.title for section in written[0]]


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.slow
def test_a_job_without_a_report_needs_a_place(place: Place, tmp_path: Path) -> None:
    place.write(DECODE)
    place.run()
    refused = invoke(place.file)
    assert refused.exit_code == 1
    assert "outputs.report" in refused.output
    assert "--output" in refused.output
    assert invoke(place.file, "-o", tmp_path / "r.html").exit_code == 0
    assert invoke(place.file, "-o", tmp_path / "s.html", "--names", "a,b").exit_code == 1
    place.write('[[decode]]\nname = "other"\nn_components = 2\n')
    refused = invoke(place.file, "-o", tmp_path / "t.html")
    assert "run 1" in refused.output


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.slow
def test_names_come_with_the_ledger(place: Place) -> None:
    place.run()
    record = place.ledger().history()[-1]
    assert record.results["feature_names"] is None
    assert record.results["plan"]["new"] == 30
    assert all(value is None or isinstance(value, int) for value in record.results["plan"].values())
    assert np.isfinite(record.results["seconds"]["sketch"])


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_sees_it(place: Place, kept: Path, tmp_path: Path) -> None:
    place.run()
    place.append(rows_of(5 * ROWS, seed=7, shift=0.9))
    place.run()
    pages = [place.folder / "r.html", report_run(str(kept), tmp_path / "r.html")]
    with browser() as port:
        for path in pages:
            for dark in (False, True):
                for width in (360, 1400):
                    seen = visit(port, path.as_uri(), dark=dark, width=width, seconds=0.5)
                    assert seen.complaints == []
                    assert seen.judged == []
                    assert all(url.startswith(("file:", "data:")) for url in seen.requests)
                    assert seen.picture.startswith(b"\x89PNG")
