"""A pass that carries random rows beside one of sums only, in CPU time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

import dask

import dask_sketch as ds
from tests.benchmarks.groups import in_turn, write_store
from tests.benchmarks.million import FEATURES
from tests.benchmarks.table import Row, row

ROWS, FREQUENCIES, COMPONENTS = 10**7, 1000, 8  # the latter: as many as m allows
REPEATS = 21
WITH, WITHOUT = "with random rows", "sums only"


def rows(quick: bool = False) -> list[Row]:
    """Passes over a store by turns, in one thread, by the map of ``design`` for a mixture."""
    n_rows, m = (5000, 128) if quick else (ROWS, FREQUENCIES)
    with tempfile.TemporaryDirectory() as place, dask.config.set(scheduler="synchronous"):
        path = str(Path(place) / "x.zarr")
        write_store(path, n_rows, [])
        feature_map = ds.design(
            path, n_frequencies=m, n_components=1 if quick else COMPONENTS, array="x", seed=0
        )
        calls = {
            name: lambda sample=sample: ds.sketch(
                path, feature_map, array="x", sample=sample
            ).compute()
            for name, sample in ((WITH, True), (WITHOUT, False))
        }
        if (calls[WITH]().z != calls[WITHOUT]().z).any():
            raise AssertionError("the sums with random rows differ from those without")
        spent = in_turn(calls, 1 if quick else REPEATS)
    ratio = median(a / b for a, b in zip(spent[WITH], spent[WITHOUT], strict=True))
    mine = median(spent[WITH])
    case = f"pass over {n_rows:,} rows d={FEATURES} m={m}, {WITH}"
    return [row(case, mine, "s of CPU", against=WITHOUT, rival=mine / ratio)]
