"""The benchmarks still run, and what they compare agrees."""

from __future__ import annotations

import numpy as np

from dask_sketch import FeatureMap, partial_sketch
from tests.benchmarks.kernel import blocked_float32, complex_exponential, measure, table


def test_rivals_compute_the_same_sums():
    x = np.random.default_rng(0).normal(size=(2500, 3)).astype(np.float32)
    feature_map = FeatureMap(3, 40, scale=1.0)
    ours = partial_sketch(x, feature_map).moment_sum
    for rival in (blocked_float32, complex_exponential):
        np.testing.assert_allclose(rival(x, feature_map.frequencies), ours, atol=2500 * 1e-6)


def test_a_tiny_run_prints_every_column():
    text = table([measure(2, 16, pairs=1e4, repeats=1)])
    assert len(text.splitlines()) == 4
    assert "nan" not in text
