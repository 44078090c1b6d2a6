from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.features.lloyd import lloyd


def clusters(n=600, k=6, d=3, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(k, d)) * 4
    return centers[rng.integers(k, size=n)] + rng.normal(size=(n, d)) * 0.7


@pytest.mark.parametrize("seed", range(4))
def test_no_worse_than_scikit_learn(seed):
    cluster = pytest.importorskip("sklearn.cluster")
    x = clusters(seed=seed)
    reference = cluster.KMeans(6, n_init=10, random_state=seed).fit(x).inertia_ / len(x)
    assert lloyd(x, 6, seed=seed).inertia <= 1.01 * reference


def test_states_its_own_inertia_and_shares():
    x = clusters()
    found = lloyd(x, 6, seed=1)
    away = np.square(x[:, None] - found.centers).sum(axis=2)
    labels = away.argmin(axis=1)
    assert found.inertia == pytest.approx(away.min(axis=1).mean(), rel=1e-3)
    np.testing.assert_allclose(found.shares, np.bincount(labels, minlength=6) / len(x), atol=0.01)
    means = np.stack([x[labels == k].mean(axis=0) for k in range(6)])
    np.testing.assert_allclose(means, found.centers, atol=0.05)  # a fixed point, near enough


def test_a_weight_is_so_many_points():
    x = clusters(n=60)
    counts = np.random.default_rng(2).integers(1, 5, size=60)
    weighted = lloyd(x, 3, weights=counts, n_starts=20)
    repeated = lloyd(np.repeat(x, counts, axis=0), 3, n_starts=20)
    assert weighted.inertia == pytest.approx(repeated.inertia, rel=1e-3)


def test_far_from_the_origin_keeps_its_digits():
    x = clusters()
    near, far = lloyd(x, 6), lloyd(x + 1e8, 6)
    np.testing.assert_allclose(far.inertia, near.inertia, rtol=1e-5)


def test_fewer_distinct_points_than_clusters():
    found = lloyd(np.zeros((10, 2)), 3)
    np.testing.assert_array_equal(found.centers, np.zeros((3, 2)))
    assert found.inertia == 0.0
    assert found.shares.sum() == pytest.approx(1.0)


def test_the_seed_decides():
    x = clusters()
    np.testing.assert_array_equal(lloyd(x, 6, seed=3).centers, lloyd(x, 6, seed=3).centers)


@pytest.mark.parametrize("n_clusters", [0, 5])
def test_refuses_impossible_numbers(n_clusters):
    with pytest.raises(InputError, match=f"n_clusters={n_clusters}: there are 4 points"):
        lloyd(np.zeros((4, 1)), n_clusters)
