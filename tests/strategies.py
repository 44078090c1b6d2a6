"""Data, chunkings and comparisons of sketches for the tests of several folders."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from dask_sketch import FeatureMap
from dask_sketch.features.feature_map import moment_units

TINY = np.finfo(float).tiny
RELATIVE = {"float64": 1e-12, "float32": 1e-6}


def assert_same_sketch(a, b):
    """All sums, counts and bounds have the same bits."""
    assert a.feature_map == b.feature_map
    assert (a.count, a.omitted) == (b.count, b.omitted)
    np.testing.assert_array_equal(a.minimum, b.minimum)
    np.testing.assert_array_equal(a.maximum, b.maximum)
    for name in ("moment_sum", "total_weight", "squared_weight", "first_moment", "second_moment"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))  # for its message
    assert a.identical(b)


def assert_close_sketches(a, b, rel=None):
    """Counts and bounds are equal; sums agree within ``rel``, relative to their norm, and the grid.

    For sums that were made by other arithmetic, as on a GPU.
    """
    assert a.feature_map == b.feature_map
    rel = RELATIVE[a.feature_map.dtype] if rel is None else rel
    assert (a.count, a.omitted) == (b.count, b.omitted)
    np.testing.assert_array_equal(a.minimum, b.minimum)
    np.testing.assert_array_equal(a.maximum, b.maximum)
    np.testing.assert_allclose(a.total_weight, b.total_weight, rtol=1e-12)
    np.testing.assert_allclose(a.squared_weight, b.squared_weight, rtol=1e-12)
    unit = moment_units(a.feature_map)
    grid = 2.0**-30 * a.total_weight * unit  # of the features, one half step for each side
    np.testing.assert_array_less(
        np.abs(a.second_moment - b.second_moment), 1e-12 * a.second_moment + grid * unit + TINY
    )
    # the first moment of centred data cancels: its rounding is that of the sum of |x|
    size = np.sqrt(a.second_moment * a.total_weight)
    assert (np.abs(a.first_moment - b.first_moment) <= 1e-12 * size + grid).all()
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


@st.composite
def wild_rows(draw, n_features=3, max_rows=150):
    """Rows with outliers, bad rows and many sizes, and weights over 40 binades or none."""
    n_rows = draw(st.integers(1, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = draw_rows(rng, n_rows, n_features)
    some = st.lists(st.integers(0, n_rows - 1), max_size=4)
    x[draw(some)] *= 10.0 ** rng.uniform(-9, 2)
    x[draw(some), 0] = draw(st.sampled_from([1e6, -1e6, 1e3, 0.0, -0.0]))
    x[draw(some), -1] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    kind = draw(st.sampled_from(["none", "whole", "uniform", "wild"]))
    if kind == "none":
        return x, None
    w = {
        "whole": rng.integers(0, 5, size=n_rows).astype(float),
        "uniform": rng.random(n_rows) + 1e-6,
        "wild": 2.0 ** rng.uniform(-32, 8, size=n_rows),
    }[kind]
    w[draw(some)] = 0.0
    return x, w


def feature_map(dtype="float64", n_features=3, n_frequencies=40, **options):
    """A small map for :func:`draw_rows`."""
    options.setdefault("scale", 1.0)
    return FeatureMap(n_features, n_frequencies, dtype=dtype, **options)
