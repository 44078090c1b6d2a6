"""Memory of a pass over a chunk that is there already: the most that is allocated beyond it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np

from dask_sketch import FeatureMap, partial_sketch
from tests.benchmarks.kernel import blocked_float32
from tests.benchmarks.table import Row, row


def peak(call: Callable[[], object]) -> float:
    """The most megabytes (10^6 bytes) that Python and NumPy held at once during a call."""
    call()  # compiles, and draws frequencies
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def rows(quick: bool = False) -> list[Row]:
    """A chunk of 200 MB and 2000 frequencies; tiny if ``quick``."""
    n_features, n_frequencies = 12, 16 if quick else 2000
    n = 5000 if quick else 200_000_000 // (4 * n_features)
    x = np.random.default_rng(0).standard_normal((n, n_features), dtype=np.float32)
    feature_map = FeatureMap(n_features, n_frequencies, scale=1.0)
    few = x[:5000]  # more rows change nothing for the rival, which is slow
    return [
        row(
            f"memory beyond a chunk of {x.nbytes / 1e6:.3g} MB, d={n_features} m={n_frequencies}",
            peak(lambda: partial_sketch(x, feature_map)),
            "MB",
            against="NumPy float32, blocked",
            rival=peak(lambda: blocked_float32(few, feature_map.frequencies)),
        )
    ]
