"""The GPU's benchmark runs, on an emulated one as well, and what it compares agrees."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dask_sketch import FeatureMap
from tests.benchmarks import gpu as benchmark
from tests.benchmarks import table


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch):
    wall = benchmark.wall
    monkeypatch.setattr(benchmark, "wall", lambda run, repeats=1: wall(run, 1))


@pytest.mark.slow
def test_every_part_gives_rows(gpu):
    cp = gpu.cupy
    rows = [
        benchmark.moments(cp, "a case", FeatureMap(12, 64, scale=1.0), pairs=1e4, most=64),
        *benchmark.variants(cp, 1e4, 64),
        *benchmark.agreement(cp, 1500, 64),
        *benchmark.objective(np, 2, benchmark.mixture_sketch(2, 50, 300)),
    ]
    text = table.table(rows)
    assert len(text.splitlines()) == len(rows) + 1
    assert "nan" not in text
    for one in rows:
        if one["unit"] == "a moment":
            assert one["ours"] <= one["floor"]


def test_without_a_gpu_there_is_nothing_to_tell(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert benchmark.rows() == []
    benchmark.main()
    assert capsys.readouterr().out == "no GPU here\n"
