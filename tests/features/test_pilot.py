from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.features.pilot import Pilot, fit_pilot, kmeans, record_pilot
from dask_sketch.models import GaussianMixture, random_mixture


def test_the_fit_is_rough_but_near():
    truth = random_mixture(5, 4, seed=0)
    rows, others = truth.sample(5000, seed=1), truth.sample(20_000, seed=3)
    found = fit_pilot(rows, 5, seed=2)
    mixture = GaussianMixture(found.weights, found.means, found.variances)
    assert mixture.score(rows) > truth.score(rows) - 0.02
    assert mixture.score(others) > truth.score(others) - 0.05
    assert found.score == pytest.approx(mixture.score(rows), abs=1e-3)
    single = fit_pilot(rows, 1)
    np.testing.assert_allclose(single.variances[0], rows.var(axis=0), rtol=1e-3)


def test_units_do_not_matter():
    rows = random_mixture(3, 2, seed=4).sample(2000, seed=5)
    unit, offset = np.array([1e-3, 1e6]), np.array([1e4, -7.0])
    plain, moved = fit_pilot(rows, 3), fit_pilot(rows * unit + offset, 3)
    np.testing.assert_allclose(moved.variances, plain.variances * unit**2, rtol=1e-3)
    np.testing.assert_allclose(moved.weights, plain.weights, atol=1e-3)


def test_the_seed_decides():
    rows = random_mixture(3, 2, seed=4).sample(500, seed=5)
    one, again, other = (fit_pilot(rows, 8, seed=seed).means for seed in (2**40, 2**40, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    one, again = (kmeans(rows, 8, seed=3).centers for _ in range(2))
    np.testing.assert_array_equal(one, again)


def test_more_components_than_distinct_rows():
    found = fit_pilot(np.repeat([[0.0, 1.0], [1.0, 0.0]], 20, axis=0), 5)
    assert np.isfinite(found.means).all()
    assert (found.variances > 0).all()
    assert found.weights.sum() == pytest.approx(1.0)


def test_bad_arguments_are_named():
    with pytest.raises(InputError, match=r"features \[1\]"):
        fit_pilot(np.array([[0.0, 1.0], [1.0, 1.0]]), 1)
    with pytest.raises(InputError, match="n_components=3"):
        fit_pilot(np.array([[0.0], [1.0]]), 3)
    for n_clusters in (0, 5):
        with pytest.raises(InputError, match=f"n_clusters={n_clusters}"):
            kmeans(np.zeros((4, 1)), n_clusters)


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


def test_the_record_of_a_pilot_is_read_back_and_checked():
    rows = random_mixture(2, 3, seed=0).sample(1000, seed=1)
    rows[:, 1] = 4.0  # a feature that does not vary
    pilot = record_pilot(rows, 2)
    assert pilot.mixture.score > pilot.gaussian_score
    assert pilot.mixture.variances[0, 1] > 0
    found = Pilot.from_dict(pilot.as_dict(), 3)
    assert found.as_dict() == pilot.as_dict()
    assert record_pilot(rows, None).mixture is None
    for change in (
        {"variance": [1.0]},
        {"variance": [1.0, -1.0, 1.0]},
        {"n_rows": "many"},
        {"mixture": {}},
        {"mixture": pilot.as_dict()["mixture"] | {"weights": [2.0, -1.0]}},
        {"mixture": pilot.as_dict()["mixture"] | {"variances": [[0.0] * 3] * 2}},
    ):
        with pytest.raises(InputError, match="pilot"):
            Pilot.from_dict(pilot.as_dict() | change, 3)
