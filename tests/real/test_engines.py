"""Sketches made by Spark and Beam, with the code of the guide on tables of sketches."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds

pytestmark = [pytest.mark.real, pytest.mark.slow]
GUIDE = Path(__file__).parents[2] / "notebooks" / "11_tables_of_sketches.ipynb"


@pytest.fixture(scope="module")
def data():
    """Rows with a column of sites, and a feature map of their numbers."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(10_000, 2)), columns=["height", "width"])
    rows["site"] = rng.choice(["Lyon", "Oslo"], len(rows))
    return rows, ds.design(rows[["height", "width"]], n_components=3)


def code(name):
    """Lines of Python that the guide shows in text, of all blocks with a name in them."""
    cells = nbformat.read(GUIDE, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    chosen = [block for block in blocks if name in block]
    assert chosen, name
    return "\n".join(chosen)


# pandas 3 is newer than what Spark was made for, and its own code leaves files open
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_spark(data, monkeypatch):
    sql = pytest.importorskip("pyspark.sql")
    rows, feature_map = data
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    try:
        names = {"ds": ds, "feature_map": feature_map, "frame": session.createDataFrame(rows)}
        exec(code("InArrow"), names)
        found = {row.site: ds.open(bytes(row.sketch)) for row in names["sites"].collect()}
    finally:
        session.stop()
    numbers = rows[["height", "width"]]
    assert names["total"].same_sums(ds.sketch(numbers, feature_map))
    assert set(found) == {"Lyon", "Oslo"}
    for site, sketch in found.items():
        assert sketch.same_sums(ds.sketch(numbers[rows["site"] == site], feature_map))


@pytest.mark.filterwarnings("default")  # of modules that Beam imports
def test_beam(data, tmp_path, monkeypatch):
    pytest.importorskip("apache_beam")
    rows, feature_map = data
    x = rows[["height", "width"]].to_numpy()
    monkeypatch.chdir(tmp_path)
    exec(code("beam."), {"ds": ds, "np": np, "feature_map": feature_map, "x": x})
    assert ds.open(Path("sketch").read_bytes()).same_sums(ds.sketch(x, feature_map))
