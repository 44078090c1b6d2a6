"""What the tests of several folders share: data, chunkings, and how sketches are compared."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from dask_sketch import FeatureMap

RELATIVE = {"float64": 1e-12, "float32": 1e-6}


def assert_same_sketch(a, b, rel=None):
    """Counts and bounds are equal; sums agree within ``rel``, relative to their norm."""
    assert a.feature_map == b.feature_map
    rel = RELATIVE[a.feature_map.dtype] if rel is None else rel
    assert (a.count, a.omitted) == (b.count, b.omitted)
    np.testing.assert_array_equal(a.minimum, b.minimum)
    np.testing.assert_array_equal(a.maximum, b.maximum)
    np.testing.assert_allclose(a.total_weight, b.total_weight, rtol=1e-12)
    np.testing.assert_allclose(a.squared_weight, b.squared_weight, rtol=1e-12)
    np.testing.assert_allclose(a.second_moment, b.second_moment, rtol=1e-12)
    # the first moment of centred data cancels: its rounding is that of the sum of |x|
    size = np.sqrt(a.second_moment * a.total_weight)
    assert (np.abs(a.first_moment - b.first_moment) <= 1e-12 * size).all()
    distance = np.linalg.norm(a.moment_sum - b.moment_sum)
    assert distance <= rel * np.linalg.norm(a.moment_sum), (distance, rel)


def reference_sums(x, feature_map, weights=None):
    """Moment sums by ``np.exp``, about the center of the map."""
    centred = np.asarray(x, dtype=np.float64) - feature_map.center
    features = np.exp(-1j * (centred @ feature_map.frequencies))
    return features.sum(axis=0) if weights is None else np.asarray(weights) @ features


def draw_rows(seed, n_rows, n_features, center=0.0):
    """Rows of a few clusters; the cluster and the spread differ from row to row."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(scale=2.0, size=(3, n_features))[rng.integers(3, size=n_rows)]
    return center + middle + rng.normal(size=(n_rows, n_features))


@st.composite
def chunk_sizes(draw, total, max_chunks=8):
    """Lengths that sum to ``total``; some may be 0."""
    cuts = draw(st.lists(st.integers(0, total), max_size=max_chunks - 1))
    edges = [0, *sorted(cuts), total]
    return tuple(b - a for a, b in itertools.pairwise(edges))


@st.composite
def weighted_rows(draw, n_features=3, min_rows=1, max_rows=400):
    """Rows, and their weights or none."""
    n_rows = draw(st.integers(min_rows, max_rows))
    seed = draw(st.integers(0, 2**32 - 1))
    x = draw_rows(seed, n_rows, n_features)
    if not draw(st.booleans()):
        return x, None
    w = np.random.default_rng(seed + 1).integers(0, 5, size=n_rows).astype(float)
    w[draw(st.integers(0, n_rows - 1))] = draw(st.sampled_from([0.25, 3.0, 1000.0]))
    return x, w


def feature_map(dtype="float64", n_features=3, n_frequencies=40, **options):
    """A small map for :func:`draw_rows`."""
    options.setdefault("scale", 1.0)
    return FeatureMap(n_features, n_frequencies, dtype=dtype, **options)
