"""Run since which data differs, as text and as plain values."""

import json

import pytest

from dask_sketch.distributions import ChangePoint, ChangePoints
from dask_sketch.jobs.since import Since


def changes(*runs):
    points = [
        ChangePoint(run, 3 * run, 0.01, 0.4, (0.3, 0.5), f"2026-06-{run:02d}") for run in runs
    ]
    return ChangePoints(tuple(points), 0.25, 0.05, "run", 60, 1, 1000)


@pytest.mark.parametrize(
    ("since", "words", "n_rows"),
    [
        (Since(changes(7)), ["with run 7 of 2026-06-07", "p = 0.01"], 1),
        (Since(changes(5, 7)), ["with run 7 of", "; 1 earlier change."], 2),
        (Since(changes(3, 5, 7)), ["with run 7 of", "; 2 earlier changes."], 3),
        (Since(changes()), ["not clear", "p = 0.25"], 0),
        (Since(None, "units has 2 sketches."), ["not known", "units has 2 sketches."], 0),
    ],
)
def test_text_and_stored_form(since, words, n_rows):
    for word in words:
        assert word in since.sentence
    assert str(since).startswith(since.sentence)
    assert [row[0] for row in since.rows] == ["7", "5", "3"][:n_rows]
    assert bool(since.note) == bool(n_rows)
    assert ("run 7 of" in since.remedy) == bool(n_rows)
    stored = json.loads(json.dumps(since.as_dict()))
    assert stored["sentence"] == since.sentence
    assert Since.from_dict(stored) == since
