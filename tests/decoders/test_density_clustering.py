"""The objective with moments, and centroids by way of a density beside k-means on the samples."""

from __future__ import annotations

import numpy as np
import pytest
from decoders.reference import numerical_gradient
from threadpoolctl import threadpool_limits

from dask_sketch import decode, design, partial_sketch
from dask_sketch.decoders.density_clustering import (
    MomentObjective,
    default_n_candidates,
    divide_density,
)
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap, clustering_scale
from dask_sketch.models import Centroids, GaussianMixture, random_mixture
from dask_sketch.models.clusters import kmeans


@pytest.fixture(autouse=True)
def one_blas_thread():
    """As in decode: more threads are slower, much more so on a busy machine."""
    with threadpool_limits(1, user_api="blas"):
        yield


def gaussian_clusters(k, d, n=20_000, seed=0):
    """Clusters of isotropic variance 0.15 with means at least 3 apart."""
    rng = np.random.default_rng(seed)
    while True:
        means = 6 / np.sqrt(d) * rng.normal(size=(k, d))
        apart = np.linalg.norm(means[:, None] - means, axis=2) + 1e9 * np.eye(k)
        if apart.min() > 3:
            break
    return means[rng.integers(k, size=n)] + np.sqrt(0.15) * rng.normal(size=(n, d))


def skewed_clusters(n=8000, seed=0):
    """Clusters with long tails on one side, of different sizes."""
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
    return Centroids(found.weights, found.means).inertia(x) / kmeans(x, k, seed=seed).inertia


@pytest.mark.slow
def test_ten_gaussian_clusters_in_twelve_dimensions():
    assert relative_risk(gaussian_clusters(10, 12, n=10_000), 10, 360) < 1.005


@pytest.mark.slow
def test_clusters_that_are_not_gaussian():
    x = skewed_clusters()
    many = relative_risk(x, 6, 250)
    assert many < 1.1
    assert many < relative_risk(x, 6, 250, n_candidates=6) + 0.02


@pytest.mark.parametrize("distribution", ["adapted-radius", "clustering", "folded-gaussian"])
def test_any_distribution_will_do(distribution):
    x = gaussian_clusters(4, 3)
    sketch = partial_sketch(x, FeatureMap(3, 200, scale=0.8, distribution=distribution))
    found = divide_density(sketch, 4, np.random.default_rng(0), lambda cost: None)
    assert Centroids(found.weights, found.means).inertia(x) < 1.005 * kmeans(x, 4).inertia


@pytest.fixture(scope="module")
def sketch():
    return partial_sketch(
        gaussian_clusters(4, 3), FeatureMap(3, 200, scale=1.0, distribution="gaussian")
    )


def test_centroids_and_their_density(sketch):
    trace: list[float] = []
    found = divide_density(sketch, 4, np.random.default_rng(0), trace.append)
    assert found.means.shape == (4, 3)
    assert found.weights.sum() == pytest.approx(1.0)
    assert (np.diff(found.weights) <= 0).all()
    assert len(trace) == 4 + 1  # atoms, until noise explains the rest, and the end
    assert trace[-1] < trace[0]
    mixture = GaussianMixture(found.atom_weights, found.atom_means, found.atom_variances)
    z = mixture.characteristic(sketch.feature_map.frequencies) / np.sqrt(200)
    assert found.cost == pytest.approx(np.linalg.norm(sketch.z - z) ** 2, rel=1e-6, abs=1e-12)
    np.testing.assert_allclose(mixture.mean, sketch.mean, atol=0.02)
    np.testing.assert_allclose(mixture.variance, sketch.variance, rtol=0.02)
    assert found.n_evaluations > 1000


def test_the_seed_decides(sketch):
    one, same, other = (
        divide_density(sketch, 4, np.random.default_rng(seed), lambda cost: None).means
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_one_centroid_is_the_mean():
    x = gaussian_clusters(4, 3)
    sketch = partial_sketch(x, FeatureMap(3, 200, scale=clustering_scale(x[:2000], 1)))
    found = divide_density(sketch, 1, np.random.default_rng(0), lambda cost: None)
    np.testing.assert_allclose(found.means[0], sketch.mean, atol=0.05)
    np.testing.assert_allclose(found.weights, [1.0])


def test_units_do_not_matter():
    x = gaussian_clusters(4, 3)
    found = []
    for factor, offset in ((1.0, 0.0), (1e3, 7e5)):
        feature_map = FeatureMap(3, 200, scale=factor, distribution="gaussian", dtype="float64")
        moved = partial_sketch(factor * x + offset, feature_map)
        division = divide_density(moved, 4, np.random.default_rng(0), lambda cost: None)
        found.append((division.means - offset) / factor)
    # of clusters of width 1; releases of SciPy stop their descent at different iterations
    np.testing.assert_allclose(found[1], found[0], atol=1e-2)


@pytest.mark.parametrize("k", [1, 2])
def test_data_without_width(k):
    x = np.repeat(np.array([[0.0, 1.0], [4.0, 1.0]])[:k], 50, axis=0)
    sketch = partial_sketch(x, FeatureMap(2, 50, scale=1.0, distribution="gaussian"))
    found = divide_density(sketch, k, np.random.default_rng(0), lambda cost: None)
    assert Centroids(found.weights, found.means).inertia(x) < 0.01


def test_centres_stay_near_the_box(sketch):
    box = np.stack([sketch.mean - 1.0, sketch.mean + 1.0])
    found = divide_density(sketch, 4, np.random.default_rng(0), lambda cost: None, box=box)
    assert (found.atom_means >= box[0] - 1e-9).all()
    assert (found.atom_means <= box[1] + 1e-9).all()


@pytest.mark.parametrize(
    ("k", "d", "m", "n"), [(10, 10, 2000, 30), (10, 10, 100, 10), (1, 2, 9, 2), (2, 2, 900, 10)]
)
def test_as_many_atoms_as_the_sketch_can_distinguish(k, d, m, n):
    assert default_n_candidates(k, d, m) == n


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_candidates": 3}, "n_candidates=3.*n_components=4"),
        ({"n_starts": 0}, "n_starts=0"),
        ({"maxima": "newton"}, "maxima='newton'"),
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


# -- the objective with moments ------------------------------------------------------------

FAMILIES = ["isotropic", "gaussian", "dirac", "scaled"]


@pytest.fixture(scope="module")
def a_sketch():
    truth = random_mixture(4, 3, seed=3)
    feature_map = FeatureMap(3, 40, covariances=[0.5, 2.0, 1.0], seed=1, dtype="float64")
    return partial_sketch(truth.sample(3000, seed=2) * 3 + 5, feature_map)


def atoms_of(objective, n=3, seed=4):
    rng = np.random.default_rng(seed)
    theta = rng.uniform(0.2, 1.0, (n, objective.space.n_parameters))
    theta[:, : objective.space.n_features] = rng.normal(size=(n, objective.space.n_features))
    return rng.uniform(0.2, 0.5, n), theta


@pytest.mark.parametrize("model", FAMILIES)
def test_gradients_are_finite_differences(a_sketch, model):
    objective = MomentObjective(a_sketch, model)
    weights, theta = atoms_of(objective)
    cost, by_weight, by_theta = objective.cost_gradient(weights, theta)
    assert cost == pytest.approx(objective.cost(weights, theta), rel=1e-12)
    numeric = numerical_gradient(lambda a: objective.cost(a, theta), weights)
    np.testing.assert_allclose(by_weight, numeric, atol=1e-6)
    numeric = numerical_gradient(lambda t: objective.cost(weights, t), theta)
    np.testing.assert_allclose(by_theta, numeric, atol=1e-6)


@pytest.mark.parametrize("model", FAMILIES)
def test_gram_is_that_of_all_rows(a_sketch, model):
    objective, plain = MomentObjective(a_sketch, model), Objective(a_sketch, model)
    weights, theta = atoms_of(objective)
    extra = objective.gram(weights, theta) - plain.gram(weights, theta)
    x = np.concatenate([weights, theta.ravel()])

    def moments(x):
        return objective.moments(x[:3], x[3:].reshape(3, -1))

    jacobian = np.stack(
        [numerical_gradient(lambda x, i=i: moments(x)[i], x) for i in range(7)], axis=1
    )
    np.testing.assert_allclose(extra, jacobian @ jacobian.T, atol=1e-7)


def test_right_moments_cost_nothing():
    x = random_mixture(3, 2, seed=0).sample(4000, seed=1)
    sketch = partial_sketch(x, FeatureMap(2, 30, scale=1.0))
    objective = MomentObjective(sketch, "gaussian")
    theta = objective.space.from_data_units(sketch.mean[None], sketch.variance[None])
    one = np.ones(1)
    assert objective.cost(one, theta) == pytest.approx(objective.sketch_cost(one, theta))
    wrong = objective.space.from_data_units(
        sketch.mean[None] + np.sqrt(sketch.variance), sketch.variance[None]
    )
    # off by one deviation in every mean, and by as much in every second moment
    expected = 0.3**2 * (1 + 1)
    extra = objective.cost(one, wrong) - objective.sketch_cost(one, wrong)
    assert extra == pytest.approx(expected)


def test_the_moments_are_those_of_the_data_units(a_sketch):
    objective = MomentObjective(a_sketch, "gaussian")
    weights, theta = atoms_of(objective)
    weights = weights / weights.sum()
    mixture = GaussianMixture(weights, *objective.space.to_data_units(theta))
    off_mean = (a_sketch.mean - mixture.mean) / np.sqrt(a_sketch.variance)
    second = mixture.variance + (mixture.mean - a_sketch.mean) ** 2
    off_square = (a_sketch.variance - second) / a_sketch.variance
    expected = 0.3**2 / 3 * (np.square(off_mean).sum() + np.square(off_square).sum())
    extra = objective.cost(weights, theta) - objective.sketch_cost(weights, theta)
    assert extra == pytest.approx(expected)


def test_moments_of_a_feature_that_does_not_vary():
    x = np.random.default_rng(0).normal(size=(500, 2)) * [1.0, 0.0]
    objective = MomentObjective(partial_sketch(x, FeatureMap(2, 20, scale=1.0)), "isotropic")
    weights, theta = atoms_of(objective)
    assert np.isfinite(objective.cost(weights, theta))
    assert np.isfinite(objective.gram(weights, theta)).all()


@pytest.mark.filterwarnings("ignore:the data is unlike the pilot rows")  # its weight is another one
def test_a_far_cluster_of_the_pilot_is_found_whatever_its_weight(rng):
    x = rng.normal(size=(20_000, 2))
    x[:800] = 30.0 + 0.05 * rng.normal(size=(800, 2))
    feature_map = design(x, n_components=3, task="clustering")
    model = decode(partial_sketch(x[400:], feature_map), 3, model="dirac", method="density")
    centers = model.centers
    np.testing.assert_allclose(centers[centers[:, 0].argmax()], 30.0, atol=0.1)
    error = ((x[400:, None] - centers) ** 2).sum(axis=2).min(axis=1).mean()
    assert error < 1.05 * kmeans(x[400:], 3, seed=0).inertia


def far_from_the_pilot(seed, far):
    """Rows with a cluster far from all others, and their sketch by a map of other rows."""
    rng = np.random.default_rng(seed)
    feature_map = design(rng.normal(size=(20_000, 2)), n_components=3, task="clustering")
    x = rng.normal(size=(40_000, 2))
    x[:800] = far + 0.05 * rng.normal(size=(800, 2))
    return x, partial_sketch(x, feature_map)


@pytest.mark.parametrize("seed", [2, 3])
def test_a_far_cluster_that_the_pilot_does_not_know_is_found(seed):
    x, sketch = far_from_the_pilot(seed, 30.0)
    centers = decode(sketch, 3, model="dirac").centers
    error = ((x[:, None] - centers) ** 2).sum(axis=2).min(axis=1).mean()
    assert error < 1.05 * kmeans(x, 3, seed=0).inertia


def test_a_cluster_too_far_to_be_located_is_warned_of():
    sketch = far_from_the_pilot(12, 300.0)[1]
    with pytest.warns(UserWarning, match=r"feature \d has values .* 300\.\d+, .* standard"):
        decode(sketch, 3, model="dirac")
