"""Progress bars: one line in a terminal, and nothing where none was asked for."""

from __future__ import annotations

import re
import time

import dask.array as da
import pytest

from dask_sketch import FeatureMap, decode, design, partial_sketch, sketch
from dask_sketch.display import progress as notebook
from dask_sketch.display.progress import progress_bar
from dask_sketch.graph.compute import compute_together
from dask_sketch.models import random_mixture

ROWS = random_mixture(2, 2, seed=0).sample(2000, seed=1)


def test_a_line_in_a_terminal(capsys):
    with progress_bar(True) as show:
        show(1, 4, "chunks of a long name")
        show(3, 4, "chunks")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.split("\r")[1:]
    assert lines[0].startswith("chunks of a long name:   0%")
    assert lines[-1].startswith("chunks: 100%")
    assert err.endswith("\n")
    assert err.count("\n") == 1


def test_what_fails_is_not_shown_as_done(capsys):
    def fail():
        with progress_bar(True) as show:
            show(1, 4, "chunks")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    err = capsys.readouterr().err
    assert "100%" not in err
    assert err.endswith("\n")


def test_nothing_is_shown_where_nobody_asked_or_nothing_happened(capsys):
    with progress_bar(False) as show:
        show(1, 2, "chunks")
    with progress_bar(True):
        pass
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("kernel", "expected"), [(None, False), (object(), True)])
def test_a_notebook_is_told_by_its_kernel(monkeypatch, kernel, expected):
    IPython = pytest.importorskip("IPython")
    shell = type("Shell", (), {"kernel": kernel} if kernel else {})()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    assert notebook.in_notebook() is expected


def test_decode_shows_a_bar(capsys):
    made = partial_sketch(ROWS, FeatureMap(2, 60, scale=1.0))
    quiet = decode(made, 2)
    assert capsys.readouterr().err == ""
    for model in ("gaussian", "dirac"):
        shown = decode(made, 2, model=model, progress=True)
        err = capsys.readouterr().err
        assert "decoded, cost " in err
        assert "100%" in err
        if model == "gaussian":
            assert (shown.means == quiet.means).all()


def test_design_and_others_show_a_bar(capsys):
    x = da.from_array(ROWS, chunks=(500, 2))
    design(x, n_components=2, progress=True)
    assert "completed: 100%" in capsys.readouterr().err
    assert compute_together([x.sum()], None, True, "sum")[0] == pytest.approx(ROWS.sum())
    assert "completed: 100%" in capsys.readouterr().err


@pytest.mark.slow
def test_a_cluster_shows_the_same_bar(thread_client, capsys):
    x = da.from_array(ROWS, chunks=(100, 2))
    total = x.map_blocks(lambda block: time.sleep(0.05) or block).sum()
    assert compute_together([total], thread_client, True, "sum")[0] == pytest.approx(ROWS.sum())
    out, err = capsys.readouterr()
    assert out == ""
    shares = [int(share) for share in re.findall(r"completed: +(\d+)%", err)]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1] == 100  # how many states lie between depends on the machine
    assert compute_together([total, x.max()], thread_client, False, "sum")[1] == ROWS.max()


@pytest.mark.slow
def test_errors_of_a_cluster_come_through(thread_client, capsys):
    bad = da.zeros(3, chunks=1).map_blocks(lambda block: 1 / 0, dtype=float)
    with pytest.raises(ZeroDivisionError):
        compute_together([bad], thread_client, True, "bad")
    assert "100%" in capsys.readouterr().err


@pytest.mark.slow
def test_tasks_on_a_cluster_have_names_and_a_span(thread_client):
    seen = {}

    def names(dask_scheduler):
        for span in dask_scheduler.extensions["spans"].spans.values():
            prefixes = {group.prefix.name for group in span.traverse_groups()}
            seen.setdefault(span.name, set()).update(prefixes)
        return seen

    x = da.from_array(ROWS, chunks=(100, 2))
    feature_map = design(x, n_components=2)
    sketch(x, feature_map).compute()
    found = thread_client.run_on_scheduler(names)
    assert "pilot-aggregate" in found["dask-sketch", "design"]
    assert {"sketch", "sketch-partial", "sketch-aggregate"} <= found["dask-sketch",]
