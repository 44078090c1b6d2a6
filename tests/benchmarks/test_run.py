"""The benchmarks still run, in a tiny form, and what they compare agrees."""

from __future__ import annotations

import importlib
import math
from functools import lru_cache

import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from tests.benchmarks import compare, floor, memory, table
from tests.benchmarks.kernel import blocked_float32, complex_exponential
from tests.benchmarks.run import MODULES, main
from tests.benchmarks.table import Row, row


def test_rivals_compute_the_same_sums():
    x = np.random.default_rng(0).normal(size=(2500, 3)).astype(np.float32)
    feature_map = FeatureMap(3, 40, scale=1.0)
    ours = partial_sketch(x, feature_map).moment_sum
    for rival in (blocked_float32, complex_exponential):
        np.testing.assert_allclose(rival(x, feature_map.frequencies), ours, atol=2500 * 1e-6)


@lru_cache
def rows_of(name):
    return importlib.import_module(f"tests.benchmarks.{name}").rows(quick=True)


QUICK = {"memory"}  # the others take many seconds


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in MODULES],
)
def test_a_tiny_run_fills_every_row(name):
    rows = rows_of(name)
    if not rows:
        assert name == "gpu"
        pytest.skip("no GPU here")
    text = table.table(rows)
    assert len(text.splitlines()) == len(rows) + 1
    assert "nan" not in text
    assert len({compare.key(one) for one in rows}) == len(rows)
    for one in rows:
        assert set(one) <= set(Row.__annotations__)
        assert math.isfinite(one["ours"])
        assert one["case"]
        assert one["unit"]


@pytest.mark.slow
def test_tiny_stored_chunks_and_chunks_of_an_array():
    found = {row["case"]: row for row in rows_of("graphs")}
    assert found["tasks for 500 stored chunks of 32 rows"]["ours"] <= 4
    blocks = found["tasks for an array of 500 chunks"]
    assert 1 < blocks["ours"] < 1.1
    assert blocks["rival"] > 2
    assert found["one chunk more of it"]["ours"] < 500
    memory = found["memory of the client, 10,000 chunks"]
    assert 0 < memory["ours"] < memory["rival"]


def test_memory_beyond_a_chunk_does_not_grow_with_the_chunk():
    feature_map = FeatureMap(2, 500, scale=1.0)
    x = np.zeros((40_000, 2), dtype=np.float32)
    few, many = (
        memory.peak(lambda n=n: partial_sketch(x[:n], feature_map)) for n in (10_000, 40_000)
    )
    assert many <= 1.1 * few
    assert many < 1.0  # megabytes; the features of these rows are 160


def test_the_floor_follows_the_number_of_features():
    assert floor.pairs(0, turns=1000) > floor.pairs(1000, turns=1000) > 0


ROWS = [
    row("speed", 2.0, "G pairs/s", against="NumPy", rival=0.5, floor=4.0),
    row("tasks", 130, "tasks", floor=100),
]


def test_ratio_and_share_tell_how_good_whichever_way_is_better():
    speed, tasks = ROWS
    assert (speed["ratio"], speed["share"]) == (4.0, 0.5)
    assert (tasks["ratio"], tasks["share"]) == (None, 100 / 130)
    assert row("decode", 2.0, "s", against="plain", rival=10.0)["ratio"] == 5.0
    assert row("retries", 0, "tasks", against="plain", rival=3)["ratio"] == math.inf


def test_a_run_is_written_with_its_machine_and_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = table.machine()
    path = table.write(ROWS, found)
    assert path.parent.name == ".bench"
    assert table.read(path) == (found, ROWS)
    assert found["cpu"]
    assert found["packages"]["numpy"] == np.__version__


def test_one_table_is_printed_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["--quick", "memory"])
    head, columns, line, legend = capsys.readouterr().out.splitlines()
    assert table.machine()["cpu"] in head
    assert " ".join(columns.split()) == "case unit ours against rival ratio floor share of floor"
    assert line.startswith("memory beyond a chunk")
    assert legend.startswith("ratio: times better")
    (path,) = (tmp_path / ".bench").iterdir()
    assert len(table.read(path)[1]) == 1
    with pytest.raises(SystemExit):
        main(["nonsense"])


def moved(speed=2.0, tasks=130.0, rival=0.5):
    return [
        row("speed", speed, "G pairs/s", against="NumPy", rival=rival),
        row("tasks", tasks, "tasks"),
    ]


@pytest.mark.parametrize(
    ("after", "words", "worse"),
    [
        (moved(speed=1.6, tasks=160), [], False),
        (moved(speed=1.5), ["WORSE", "speed", "2 to 1.5", "the rival 1.00"], True),
        (moved(speed=1.5, rival=0.25), ["WORSE", "the rival 0.50"], True),
        (moved(speed=3.0), ["better", "speed"], False),
        (moved(tasks=1300), ["WORSE", "tasks"], True),
        (moved(tasks=90), ["better", "tasks"], False),
        (moved(tasks=0), ["better", "tasks"], False),
        (moved()[:1], ["gone", "tasks"], False),
        ([*moved(), row("memory", 1, "MB")], ["new", "memory"], False),
    ],
)
def test_what_moved_by_more_than_a_third_is_flagged(after, words, worse):
    lines, found = compare.compare(moved(), after)
    assert found == worse
    assert len(lines) == bool(words)
    for word in words:
        assert word in lines[0]


def test_the_exit_code_tells_that_something_got_worse(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    a = table.write(moved(), table.machine() | {"commit": "a"})
    b = table.write(moved(speed=1.0), table.machine() | {"commit": "b"})
    assert compare.main([str(a), str(b)]) == 1
    assert "WORSE" in capsys.readouterr().out
    assert compare.main([str(b), str(a)]) == 0
    assert compare.main([str(a), str(a)]) == 0
    assert "nothing moved" in capsys.readouterr().out
    assert compare.main([str(a)]) == 2
    assert compare.main([str(a), "no-file.json"]) == 2
