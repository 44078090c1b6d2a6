"""Centroids by way of a density, against Lloyd's algorithm on the samples."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dask_sketch import partial_sketch
from dask_sketch.decoders import decode
from dask_sketch.decoders.density_clustering import default_n_candidates, divide_density
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap, clustering_scale
from dask_sketch.features.pilot import kmeans
from dask_sketch.models import Centroids, GaussianMixture


@pytest.fixture(autouse=True)
def one_blas_thread():
    """As under decode: more of them are slower, many times so on a busy machine."""
    with threadpool_limits(1, user_api="blas"):
        yield


def gaussian_clusters(k, d, n=20_000, seed=0):
    """Ten clusters of the issue: isotropic variance 0.15, means at least 3 apart."""
    rng = np.random.default_rng(seed)
    while True:
        means = 6 / np.sqrt(d) * rng.normal(size=(k, d))
        apart = np.linalg.norm(means[:, None] - means, axis=2) + 1e9 * np.eye(k)
        if apart.min() > 3:
            break
    return means[rng.integers(k, size=n)] + np.sqrt(0.15) * rng.normal(size=(n, d))


def skewed_clusters(n=20_000, seed=0):
    """No Gaussians: long tails on one side, of unlike sizes."""
    rng = np.random.default_rng(seed)
    means = 3 * rng.normal(size=(6, 4))
    labels = rng.choice(6, size=n, p=[0.3, 0.25, 0.2, 0.15, 0.07, 0.03])
    reach = np.array([0.2, 0.3, 0.5, 0.4, 1.5, 2.0])[labels, None]
    return means[labels] + reach * rng.exponential(size=(n, 4))


def relative_risk(x, k, m, seed=0, **options):
    scale = clustering_scale(x[:2000], k, seed=seed)
    sketch = partial_sketch(
        x, FeatureMap(x.shape[1], m, scale=scale, distribution="gaussian", seed=seed)
    )
    found = divide_density(sketch, k, np.random.default_rng(seed), lambda cost: None, **options)
    return Centroids(found.weights, found.centers).inertia(x) / kmeans(x, k, seed=seed).inertia


@pytest.mark.parametrize("seed", range(3))
def test_ten_gaussian_clusters_in_ten_dimensions(seed):
    assert relative_risk(gaussian_clusters(10, 10, seed=seed), 10, 500, seed) < 1.005


@pytest.mark.parametrize("seed", range(3))
def test_clusters_that_are_no_gaussians(seed):
    x = skewed_clusters(seed=seed)
    many = relative_risk(x, 6, 400, seed)
    assert many < 1.1
    assert many < relative_risk(x, 6, 400, seed, n_candidates=6) + 0.02


@pytest.mark.parametrize("distribution", ["adapted-radius", "clustering", "folded-gaussian"])
def test_any_distribution_will_do(distribution):
    x = gaussian_clusters(4, 3)
    sketch = partial_sketch(x, FeatureMap(3, 200, scale=0.8, distribution=distribution))
    found = divide_density(sketch, 4, np.random.default_rng(0), lambda cost: None)
    assert Centroids(found.weights, found.centers).inertia(x) < 1.005 * kmeans(x, 4).inertia


@pytest.fixture(scope="module")
def sketch():
    return partial_sketch(
        gaussian_clusters(4, 3), FeatureMap(3, 200, scale=1.0, distribution="gaussian")
    )


def test_says_what_it_found(sketch):
    trace: list[float] = []
    found = divide_density(sketch, 4, np.random.default_rng(0), trace.append)
    assert found.centers.shape == (4, 3)
    assert found.weights.sum() == pytest.approx(1.0)
    assert (np.diff(found.weights) <= 0).all()
    assert len(trace) == 12 + 1  # atoms, and the end
    assert trace[-1] < trace[0]
    mixture = GaussianMixture(found.atom_weights, found.atom_means, found.atom_variances)
    z = mixture.characteristic(sketch.feature_map.frequencies) / np.sqrt(200)
    assert found.cost == pytest.approx(np.linalg.norm(sketch.z - z) ** 2, rel=1e-6, abs=1e-12)
    np.testing.assert_allclose(mixture.mean, sketch.mean, atol=0.02)
    np.testing.assert_allclose(mixture.variance, sketch.variance, rtol=0.02)
    assert found.n_evaluations > 1000


def test_the_seed_decides(sketch):
    one, same, other = (
        divide_density(sketch, 4, np.random.default_rng(seed), lambda cost: None).centers
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_one_centroid_is_the_mean():
    x = gaussian_clusters(4, 3)
    sketch = partial_sketch(x, FeatureMap(3, 200, scale=clustering_scale(x[:2000], 1)))
    found = divide_density(sketch, 1, np.random.default_rng(0), lambda cost: None)
    np.testing.assert_allclose(found.centers[0], sketch.mean, atol=0.05)
    np.testing.assert_allclose(found.weights, [1.0])


def test_units_do_not_matter():
    x = gaussian_clusters(4, 3)
    found = []
    for factor, offset in ((1.0, 0.0), (1e3, 7e5)):
        feature_map = FeatureMap(3, 200, scale=factor, distribution="gaussian", dtype="float64")
        moved = partial_sketch(factor * x + offset, feature_map)
        division = divide_density(moved, 4, np.random.default_rng(0), lambda cost: None)
        found.append((division.centers - offset) / factor)
    np.testing.assert_allclose(found[1], found[0], atol=5e-3)


@pytest.mark.parametrize("k", [1, 2])
def test_data_without_width(k):
    x = np.repeat(np.array([[0.0, 1.0], [4.0, 1.0]])[:k], 50, axis=0)
    sketch = partial_sketch(x, FeatureMap(2, 50, scale=1.0, distribution="gaussian"))
    found = divide_density(sketch, k, np.random.default_rng(0), lambda cost: None)
    assert Centroids(found.weights, found.centers).inertia(x) < 0.01


def test_centres_stay_near_the_box(sketch):
    box = np.stack([sketch.mean - 1.0, sketch.mean + 1.0])
    found = divide_density(sketch, 4, np.random.default_rng(0), lambda cost: None, box=box)
    assert (found.atom_means >= box[0] - 1e-9).all()
    assert (found.atom_means <= box[1] + 1e-9).all()


@pytest.mark.parametrize(
    ("k", "d", "m", "n"), [(10, 10, 2000, 30), (10, 10, 100, 10), (1, 2, 9, 2), (2, 2, 900, 10)]
)
def test_as_many_atoms_as_the_sketch_can_tell_apart(k, d, m, n):
    assert default_n_candidates(k, d, m) == n


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_candidates": 3}, "n_candidates=3: give at least n_components=4"),
        ({"n_starts": 0}, "n_starts=0: give a whole number"),
        ({"maxima": "newton"}, "maxima='newton' is unknown"),
    ],
)
def test_refuses_arguments_out_of_range(sketch, options, message):
    with pytest.raises(DecodeError, match=message):
        divide_density(sketch, 4, np.random.default_rng(0), lambda cost: None, **options)


@pytest.mark.parametrize("unit", [1.0, 100.0, 1e6])
def test_units_of_features_do_not_matter_to_the_density(unit):
    place = np.array([[-5.0, 0.0], [0.0, 8.0], [5.0, 0.0]])
    x = GaussianMixture([0.4, 0.3, 0.3], place, np.full((3, 2), 0.25)).sample(30_000, seed=1)
    x *= [1.0, unit]
    feature_map = FeatureMap(2, 100, covariances=[0.25, 0.25 * unit**2], seed=3)
    found = decode(partial_sketch(x, feature_map), 3, method="density")
    rival = kmeans(x[:10_000], 3)
    assert found.inertia(x) < 1.02 * Centroids(rival.weights, rival.centers).inertia(x)
