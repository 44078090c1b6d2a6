from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

from dask_sketch.errors import InputError
from dask_sketch.models.clusters import excess_on_others, kmeans, kmedians, spherical_kmeans


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


def total_distance(center, x, weights):
    return weights @ np.linalg.norm(x - center, axis=1)


def median(x, weights):
    """Geometric median by a simplex search, from the mean and from each point."""
    starts = [np.average(x, axis=0, weights=weights), *x]
    found = min((total_distance(start, x, weights), tuple(start)) for start in starts)
    options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 5000}
    return minimize(
        total_distance, found[1], (x, weights), method="Nelder-Mead", options=options
    ).fun


@pytest.mark.parametrize("heavy", [False, True], ids=["between points", "at a point"])
def test_geometric_medians(heavy):
    rng = np.random.default_rng(1)
    x, weights = rng.normal(size=(15, 2)), rng.uniform(0.5, 1.5, 15)
    x[3] *= 1e4
    if heavy:
        weights[7] = 40.0
    found = kmedians(x, 1, weights=weights)
    assert found.inertia * weights.sum() == pytest.approx(median(x, weights), rel=1e-6)
    if heavy:
        np.testing.assert_allclose(found.centers[0], x[7], atol=1e-6)


@pytest.mark.slow
def test_kmedians_are_the_best_of_all_partitions():
    x = np.random.default_rng(5).normal(size=(7, 2)) + np.repeat([[0.0], [3.0]], [4, 3], axis=0)
    weights = np.arange(1.0, 8.0)
    best = min(
        median(x[one], weights[one]) + median(x[~one], weights[~one])
        for one in map(np.array, itertools.product([False, True], repeat=7))
        if one[0] and not one.all()
    )
    found = kmedians(x, 2, weights=weights, n_starts=20)
    assert found.inertia * weights.sum() == pytest.approx(best, rel=1e-5)
    assert found.weights.sum() == pytest.approx(1.0)


def test_kmedians_of_equal_points_and_of_a_start():
    found = kmedians(np.full((10, 2), 1e9), 3)
    np.testing.assert_array_equal(found.centers, np.full((3, 2), 1e9))
    assert found.inertia == 0.0
    x = clusters()
    start = kmeans(x, 6).centers
    before = np.linalg.norm(x[:, None] - start, axis=2).min(axis=1).mean()
    assert kmedians(x, 6, starts=[start], n_starts=0).inertia < before
    with pytest.raises(InputError, match="n_clusters=7"):
        kmedians(x[:6], 7)


def test_spherical_kmeans_is_the_best_of_all_partitions():
    rng = np.random.default_rng(5)
    points = rng.normal(size=(7, 2))
    points /= np.linalg.norm(points, axis=1)[:, None]
    weights = rng.uniform(0.5, 2.0, 7)
    weights /= weights.sum()
    best = min(
        2.0 - 2.0 * sum(
            float(np.linalg.norm((weights[:, None] * points)[labels == k].sum(axis=0)))
            for k in (0, 1)
        )
        for labels in (np.array(each) for each in itertools.product((0, 1), repeat=7))
    )  # fmt: skip
    starts = [points[list(pair)] for pair in itertools.combinations(range(7), 2)]
    found = spherical_kmeans(points, weights=weights, starts=starts)
    assert found.inertia == pytest.approx(best)
    np.testing.assert_allclose(np.linalg.norm(found.centers, axis=1), 1.0)
    with pytest.raises(InputError, match="row 1 at the origin"):
        spherical_kmeans(points, starts=[np.array([[1.0, 0.0], [0.0, 0.0]])])


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_the_excess_on_other_points_is_that_of_other_points(offset):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40_000, 4))
    few = kmeans(x[:2000], 40, n_starts=1)
    many = kmeans(x, 40, n_starts=1)
    squares = ((x[:, None] - few.centers) ** 2).sum(axis=2).min(axis=1)
    truth = squares.mean() / many.inertia - 1.0
    assert excess_on_others(x[:2000] + offset, 40) == pytest.approx(truth, rel=0.4)
    assert excess_on_others(x[:60], 40) == 0.0
    assert excess_on_others(np.ones((90, 2)), 1) == 0.0


def test_the_excess_of_far_points_is_large():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 5))
    x[rng.random(5000) < 0.005] *= 200.0
    assert excess_on_others(x, 20) > 0.2
