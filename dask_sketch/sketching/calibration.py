"""How fast this process sketches and merges: what a plan needs to tell the time of a pass."""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np

from dask_sketch.features import FeatureMap
from dask_sketch.sketching.partial import partial_sketch
from dask_sketch.sketching.sketch import Sketch, merge

_FIRST_ROWS = 256
_LARGEST = 2**25  # bytes of random rows
_MERGED = 16


def pairs_per_second(
    feature_map: FeatureMap, n_rows: int, dtype: Any = np.float32, seconds: float = 1.0
) -> float:
    """(sample, frequency) pairs that one thread sketches in a second of wall time, measured.

    Parameters
    ----------
    feature_map
        What is averaged.
    n_rows
        Rows of a chunk, ``>= 1``: what a chunk costs beside its rows is measured too. Fewer are
        taken where they would need too long.
    dtype
        Type of the rows.
    seconds
        About how long to measure, after compiling.

    Examples
    --------
    >>> pairs_per_second(FeatureMap(2, 20, scale=1.0), 1000, seconds=0.01) > 1e4
    True
    """
    d = feature_map.n_features
    most = max(min(n_rows, _LARGEST // (8 * d)), 1)
    rows = min(_FIRST_ROWS, most)
    noise = np.random.default_rng(0).standard_normal((most, d), dtype=np.float32)
    x = (noise + feature_map.center).astype(dtype)
    partial_sketch(x[:rows], feature_map)  # compiles
    calls, start = 0, time.perf_counter()
    while True:
        begin = time.perf_counter()
        partial_sketch(x[:rows], feature_map)
        now = time.perf_counter()
        calls += 1
        if rows < most and now - begin < seconds / 8:
            rows = min(2 * rows, most)
            calls, start = 0, time.perf_counter()
        elif now - start >= seconds:
            return calls * rows * feature_map.n_frequencies / (now - start)


def merge_seconds(feature_map: FeatureMap) -> float:
    """Seconds for one partial sketch to be sent, received and added, measured.

    Examples
    --------
    >>> merge_seconds(FeatureMap(2, 20, scale=1.0)) > 0
    True
    """
    sent = pickle.dumps(Sketch.empty(feature_map), protocol=5)
    start = time.perf_counter()
    received = [pickle.loads(sent) for _ in range(_MERGED)]
    pickle.dumps(merge(received), protocol=5)
    return (time.perf_counter() - start) / _MERGED
