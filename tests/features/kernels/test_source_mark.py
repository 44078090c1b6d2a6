"""Every cached function that takes code from other modules encloses the checksum of the sources."""

from __future__ import annotations

import numba
import pytest

from dask_sketch.features.kernels import dense, grouped_loops, grouped_reading, structured
from dask_sketch.features.kernels import whitened_rows as whitened
from dask_sketch.features.kernels.source_mark import SOURCE_MARK

COMPILERS = {
    "dense": lambda: dense._specialised.__wrapped__(2, "float64", 2, 0),
    "structured": lambda: structured._compiled.__wrapped__("float64", 2, 128),
    "whitened": lambda: whitened._whitener.__wrapped__("float64"),
    "sums of groups": lambda: grouped_loops._summer_of_sums("float64", 2),
    "values of groups": lambda: grouped_loops._summer_of_values("float64"),
    "tiles of groups": lambda: grouped_loops._summer_of_tiles("float64", 2),
    "fetching": lambda: grouped_reading._fetcher.__wrapped__("float64", 2),
    "reading": lambda: grouped_reading._reader.__wrapped__("float64", "float64"),
    "whitening of groups": lambda: grouped_reading._whitener("float64"),
}


@pytest.mark.parametrize("name", COMPILERS)
def test_the_cache_of_a_kernel_depends_on_all_sources(name, monkeypatch):
    kept = []
    monkeypatch.setattr(numba, "njit", lambda *args, **options: lambda f: kept.append(f) or f)
    COMPILERS[name]()
    (function,) = kept
    values = dict(
        zip(
            function.__code__.co_freevars,
            (cell.cell_contents for cell in function.__closure__),
            strict=True,
        )
    )
    assert values["mark"] == SOURCE_MARK
