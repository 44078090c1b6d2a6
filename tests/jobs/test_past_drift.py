"""Tests of drift of all runs, as a table and as a picture; and the run since which data differs."""

import json

import pytest

from dask_sketch import FeatureMap
from dask_sketch.distributions import ChangePoint, ChangePoints
from dask_sketch.distributions.testing.result import FeatureDifference, TwoSampleTest
from dask_sketch.errors import LedgerError
from dask_sketch.jobs import drift_history
from dask_sketch.jobs.ledger import create_ledger
from dask_sketch.jobs.ledger.history import RunRecord
from dask_sketch.jobs.past_drift import DriftHistory, LastChange


def result_of(discrepancy, tolerance=0.0):
    interval = (discrepancy / 2, 2 * discrepancy)
    feature = FeatureDifference("a", 0.5, (0.0, 1.0), (1.0, 1.0))
    return TwoSampleTest(
        0.2, 0.001, discrepancy, discrepancy**2, interval, 0.05, tolerance, 0.5, "partition",
        (3, 9), 1, 1000, False, (feature,),
    )  # fmt: skip


def record(number, test=None, *, alarm=False, since=None):
    results = {
        "drift": test and test.as_dict(),
        "alarm": alarm,
        "since": since and since.as_dict(),
    }
    day = f"2026-06-{number:02d}T03:00:00+00:00"
    return RunRecord(number, day, day, "done", results=results)


def changes(*runs):
    points = [ChangePoint(run, 3 * run, 0.01, 0.4, (0.3, 0.5)) for run in runs]
    return ChangePoints(tuple(points), 0.01, 0.05, "run", 60, 1, 1000)


@pytest.fixture
def history():
    return DriftHistory.from_records(
        [
            record(1),
            record(2, result_of(0.1)),
            record(3, result_of(0.4), alarm=True, since=LastChange(changes(3))),
            record(4, result_of(0.3), alarm=True, since=LastChange(None, "too few units")),
        ]
    )


def test_runs_without_a_test_are_left_out(history):
    assert history.runs == (2, 3, 4)
    assert history.dates == ("2026-06-02", "2026-06-03", "2026-06-04")
    assert history.alarms == (False, True, True)
    assert history.tests[1] == result_of(0.4)
    assert history.changes == (3,)  # of the last run that has found any


@pytest.mark.parametrize(("found", "expected"), [(None, (3,)), (changes(), ()), (changes(5), (5,))])
def test_a_later_run_is_added(history, found, expected):
    longer = history.with_run(5, "2026-06-05", result_of(0.2), alarm=True, changes=found)
    assert (longer.runs, longer.alarms[-1]) == ((2, 3, 4, 5), True)
    assert longer.changes == expected
    assert len(history) == 3


def test_a_table(history):
    rows = repr(history).splitlines()
    assert rows[-2].split() == ["3", "2026-06-03", "0.4", "0.2", "to", "0.8", "0.2", "alarm"]
    assert history._repr_html_().count("<tr") >= 4


def test_a_picture(history):
    pytest.importorskip("matplotlib")
    ax = history.with_run(5, "", result_of(0.2, 0.05), alarm=False, changes=None).plot()
    segments = [one.get_segments() for one in ax.collections]
    assert [[tuple(point) for point in line] for line in segments[1]] == [
        [(3.0, 0.2), (3.0, 0.8)],
        [(4.0, 0.15), (4.0, 0.6)],
    ]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["no alarm", "alarm", "change of the distribution", "tolerance"]


def test_a_ledger_without_tests(tmp_path):
    create_ledger(tmp_path / "x.ledger", FeatureMap(2, 20, scale=1.0))
    with pytest.raises(LedgerError, match=r"x\.ledger .*\[drift\]"):
        drift_history(tmp_path / "x.ledger")


def dated_changes(*runs):
    points = [
        ChangePoint(run, 3 * run, 0.01, 0.4, (0.3, 0.5), f"2026-06-{run:02d}") for run in runs
    ]
    return ChangePoints(tuple(points), 0.25, 0.05, "run", 60, 1, 1000)


@pytest.mark.parametrize(
    ("since", "words", "n_rows"),
    [
        (LastChange(dated_changes(7)), ["with run 7 of 2026-06-07", "p = 0.01"], 1),
        (LastChange(dated_changes(5, 7)), ["with run 7 of", "; 1 earlier change."], 2),
        (LastChange(dated_changes(3, 5, 7)), ["with run 7 of", "; 2 earlier changes."], 3),
        (LastChange(dated_changes()), ["not clear", "p = 0.25"], 0),
        (LastChange(None, "units has 2 sketches."), ["not known", "units has 2 sketches."], 0),
    ],
)
def test_since_as_text_and_stored(since, words, n_rows):
    for word in words:
        assert word in since.sentence
    assert str(since).startswith(since.sentence)
    assert [row[0] for row in since.rows] == ["7", "5", "3"][:n_rows]
    assert bool(since.note) == bool(n_rows)
    assert ("run 7 of" in since.remedy) == bool(n_rows)
    stored = json.loads(json.dumps(since.as_dict()))
    assert stored["sentence"] == since.sentence
    assert LastChange.from_dict(stored) == since
