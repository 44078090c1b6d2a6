from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.models.clusters import kmeans


def clusters(n=600, k=6, d=3):
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(k, d)) * 4
    return centers[rng.integers(k, size=n)] + rng.normal(size=(n, d)) * 0.7


def test_weights_and_inertia_are_those_of_the_clusters():
    x = clusters()
    found = kmeans(x, 6, seed=1)
    squares = np.square(x[:, None] - found.centers).sum(axis=2)
    assert found.inertia == pytest.approx(squares.min(axis=1).mean(), rel=1e-3)
    share = np.bincount(squares.argmin(axis=1), minlength=6) / len(x)
    np.testing.assert_allclose(found.weights, share, atol=0.01)


def test_a_weight_is_so_many_points():
    x = clusters(n=60)
    counts = np.random.default_rng(2).integers(1, 5, size=60)
    weighted = kmeans(x, 3, weights=counts, n_starts=20)
    repeated = kmeans(np.repeat(x, counts, axis=0), 3, n_starts=20)
    assert weighted.inertia == pytest.approx(repeated.inertia, rel=1e-3)
    np.testing.assert_allclose(np.sort(weighted.weights), np.sort(repeated.weights), atol=1e-3)


def test_fewer_distinct_points_than_clusters():
    found = kmeans(np.zeros((10, 2)), 3)
    np.testing.assert_array_equal(found.centers, np.zeros((3, 2)))
    assert found.inertia == 0.0
    assert found.weights.sum() == pytest.approx(1.0)


def test_the_seed_decides_and_sizes_are_named():
    x = clusters(n=100)
    one, again = (kmeans(x, 8, seed=3).centers for _ in range(2))
    np.testing.assert_array_equal(one, again)
    for n_clusters in (0, 5):
        with pytest.raises(InputError, match=f"n_clusters={n_clusters}"):
            kmeans(np.zeros((4, 1)), n_clusters)
