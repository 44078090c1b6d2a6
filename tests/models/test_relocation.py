from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.models.covariances import COVARIANCES, Components
from dask_sketch.models.low_rank import covariances_of
from dask_sketch.models.relocation import agglomerate, merge_and_reseed, relocations
from dask_sketch.models.weighted_em import fit_mixture

CENTERS = np.array([[-6.0, 0.0], [6.0, 0.0], [0.0, 8.0], [0.0, -8.0]])


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    return CENTERS[rng.integers(4, size=2000)] + rng.normal(size=(2000, 2))


@pytest.fixture(scope="module")
def poor() -> Components:
    """Two components on one cluster, and one on two clusters."""
    means = np.array([[-6.2, 0.0], [-5.8, 0.0], [3.0, 4.0], [0.0, -8.0]])
    variances = np.array([[1.0, 1.0], [1.0, 1.0], [10.0, 17.0], [1.0, 1.0]])
    return Components(np.array([0.125, 0.125, 0.5, 0.25]), means, variances)


def test_first_move_leaves_the_local_maximum(rows: np.ndarray, poor: Components) -> None:
    weights = np.full(len(rows), 1 / len(rows))
    moved = next(relocations(COVARIANCES["diag"], poor, rows, weights, 1e-6))
    distance = np.linalg.norm(moved.means[:, None] - CENTERS, axis=2)
    assert distance.min(axis=0).max() < 0.5
    assert moved.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("covariance_type", ["diag", "spherical", "full"])
def test_moves_raise_the_likelihood(
    rows: np.ndarray, poor: Components, covariance_type: str
) -> None:
    start = (poor.weights, poor.means, poor.covariances)
    without, found = (
        fit_mixture(
            rows, None, 4, starts=[start], n_starts=0, n_moves=n, covariance_type=covariance_type
        )
        for n in (0, 10)
    )
    assert found.log_likelihood > without.log_likelihood + 0.1
    assert found.weights.min() > 0.2


def test_too_few_rows_are_not_split() -> None:
    rows = np.random.default_rng(1).normal(size=(8, 2))
    components = Components(np.full(2, 0.5), rows[:2], np.ones((2, 2)))
    weights = np.full(8, 1 / 8)
    assert list(relocations(COVARIANCES["diag"], components, rows, weights, 1e-6)) == []


def test_rows_that_share_a_value_are_divided_from_the_others() -> None:
    rows = np.random.default_rng(1).normal(size=(2000, 4))
    rows[:240, 0] = 0.5  # within the range of the others
    components = Components(np.full(2, 0.5), np.zeros((2, 4)), np.ones((2, 4)))
    weights = np.full(2000, 1 / 2000)
    moved = next(relocations(COVARIANCES["diag"], components, rows, weights, 1e-6))
    thin = int(moved.covariances[:, 0].argmin())
    assert moved.means[thin, 0] == pytest.approx(0.5, abs=1e-3)
    assert moved.weights[thin] == pytest.approx(0.12, abs=0.01)
    assert moved.covariances[thin, 0] < 1e-4


def test_halves_of_one_cluster_are_merged_for_a_small_one() -> None:
    # without its half, a component loses more likelihood than the small clusters gain
    rng = np.random.default_rng(2)
    centers = np.array([[0.0, 0.0], [100.0, 0.0], [110.0, 0.0]])
    rows = centers[rng.choice(3, size=4000, p=[0.99, 0.005, 0.005])] + rng.normal(size=(4000, 2))
    halves = [[-0.5, 0.0], [0.5, 0.0], [105.0, 0.0]]
    start = ([0.5, 0.49, 0.01], halves, [[0.8, 1.0], [0.8, 1.0], [26.0, 1.0]])
    found = fit_mixture(rows, None, 3, starts=[start], n_starts=0)
    np.testing.assert_allclose(np.sort(found.means[:, 0]), centers[:, 0], atol=1.0)


@pytest.mark.parametrize("covariance_type", ["diag", "spherical", "full"])
def test_nearest_components_are_merged_first(
    rows: np.ndarray, poor: Components, covariance_type: str
) -> None:
    family = COVARIANCES[covariance_type]
    given = Components(
        poor.weights, poor.means, family.from_variances(poor.weights, poor.covariances)
    )
    found = agglomerate(family, given, 3)
    order = np.argsort(found.means[:, 0])
    np.testing.assert_allclose(found.weights[order], [0.25, 0.25, 0.5])
    np.testing.assert_allclose(found.means[order], [[-6.0, 0.0], [0.0, -8.0], [3.0, 4.0]])
    assert len(agglomerate(family, given, 1).weights) == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_clusters_that_share_components(seed: int) -> None:
    rng = np.random.default_rng(2)
    centers = rng.uniform(-10.0, 10.0, (12, 5))
    x = centers[rng.integers(12, size=3000)] + rng.normal(size=(3000, 5))
    best = fit_mixture(x, None, 6, n_starts=12, seed=9).log_likelihood
    assert fit_mixture(x, None, 6, seed=seed).log_likelihood > best - 0.02


@pytest.mark.parametrize("seed", range(3))
def test_components_of_one_matrix_leave_poor_maxima(seed: int) -> None:
    rng = np.random.default_rng(2)
    centers = rng.uniform(-10.0, 10.0, (12, 5)) * [1.0, 1.0, 3.0, 1.0, 1.0]
    noise = rng.normal(size=(3000, 5)) @ rng.normal(size=(5, 5))
    x = centers[rng.integers(12, size=3000)] + noise
    best = fit_mixture(x, None, 12, n_starts=12, seed=9, covariance_type="tied").log_likelihood
    found = fit_mixture(x, None, 12, n_starts=1, seed=seed, covariance_type="tied")
    assert found.log_likelihood > best - 0.005


def test_few_rows_far_from_others_are_a_component() -> None:
    # two clusters of ten rows in 50 features share a component, and two others a cluster
    rng = np.random.default_rng(0)
    centers = np.zeros((4, 50))
    centers[1, 0], centers[2, 1], centers[3, 2] = 40.0, 40.0, 40.0
    rows = np.repeat(centers, (480, 500, 10, 10), axis=0) + rng.normal(size=(1000, 50))
    labels = np.repeat([0, 1, 2, 3], (240, 240, 500, 20))
    family, weights = COVARIANCES["diag"], np.full(1000, 1e-3)
    poor = family.from_labels(rows, weights, labels, 4)
    moved = next(relocations(family, poor, rows, weights, 1e-6))
    assert np.linalg.norm(moved.means[:, None] - centers, axis=2).min(axis=0).max() < 4.0


@pytest.mark.parametrize("d", [2, 20])
@pytest.mark.few_cases(1)
def test_many_small_clusters_far_apart_that_share_components_are_found_in_few_moves(
    d: int,
) -> None:
    rng = np.random.default_rng(d)
    centers = 40.0 * rng.normal(size=(32, d))
    counts = np.tile([800, 20], 16)
    rows = np.repeat(centers, counts, axis=0) + rng.normal(size=(counts.sum(), d))
    # two components on each large cluster but one, and one on all small clusters
    labels = np.repeat(np.arange(32), counts)
    half = rows[:, 0] > centers[labels, 0]
    labels = np.where(labels % 2 == 0, labels + half, 31)
    labels[np.repeat(np.arange(32), counts) == 30] = 30
    family, weights = COVARIANCES["diag"], np.full(len(rows), 1 / len(rows))
    poor = family.from_labels(rows, weights, labels, 32)
    start, truth = (
        (each.weights, each.means, each.covariances)
        for each in (poor, Components(counts / counts.sum(), centers, np.ones((32, d))))
    )
    best = fit_mixture(rows, None, 32, starts=[truth], n_starts=0, n_moves=0).log_likelihood
    found = fit_mixture(rows, None, 32, starts=[start], n_starts=0, n_moves=4).log_likelihood
    assert found > best - 1e-3


def test_loss_without_a_component_far_from_others() -> None:
    rows = np.array([[0.0], [100.0]])
    components = Components(np.full(2, 0.5), rows, np.ones((2, 1)))
    shares, losses = COVARIANCES["diag"].posterior(components, rows, np.full(2, 0.5))
    assert shares == pytest.approx(np.eye(2))
    assert losses == pytest.approx([2500.0, 2500.0])


@pytest.mark.parametrize("kind", ["diag", "spherical", "full", "low-rank:1"])
def test_mixtures_of_the_same_rows_are_fitted_together(kind: str) -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(300, 3)), rng.dirichlet(np.ones(300))
    family, mixtures = covariances_of(kind), []
    for feature in range(3):
        labels = (rows[:, feature] > 0.3).astype(np.intp)
        mixtures.append(family.from_labels(rows, weights, labels, 2))
    all_fields = [[getattr(one, name) for one in mixtures] for name in vars(mixtures[0])]
    scaled, means, covariances = (np.concatenate(each) for each in all_fields)
    found = family.expectation(Components(scaled / 3, means, covariances), rows, weights, 3)
    alone = [family.expectation(one, rows, weights) for one in mixtures]
    likelihoods = [one.log_likelihood for one in alone]
    np.testing.assert_allclose(found.log_likelihoods, likelihoods, rtol=1e-6)
    for name in ("counts", "squared_counts", "sums", "squares"):
        expected = np.concatenate([getattr(one, name) for one in alone])
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def uneven() -> tuple[np.ndarray, np.ndarray]:
    """Rows of four heavy clusters and four light ones, and their centers."""
    rng = np.random.default_rng(0)
    heavy = np.array([[0.0, 0.0], [30.0, 0.0], [0.0, 30.0], [30.0, 30.0]])
    centers = np.concatenate([heavy, heavy + np.array([12.0, 0.0])])
    sizes = [4000] * 4 + [40] * 4
    return np.repeat(centers, sizes, axis=0) + rng.normal(size=(16_160, 2)), centers


def mean_squared_distance(x: np.ndarray, centers: np.ndarray) -> float:
    return float(((x[:, None] - centers) ** 2).sum(axis=2).min(axis=1).mean())


def test_light_clusters_take_the_place_of_halves(uneven: tuple[np.ndarray, np.ndarray]) -> None:
    x, centers = uneven
    apart = np.array([0.8, 0.0])
    halves = np.concatenate([centers[:4] + apart, centers[:4] - apart])
    found = merge_and_reseed(x, np.ones(len(x)), halves, 0)
    assert mean_squared_distance(x, found) == pytest.approx(mean_squared_distance(x, centers), 0.01)
    np.testing.assert_array_equal(found, merge_and_reseed(x, np.ones(len(x)), halves, 0))


def test_centroids_that_cannot_be_improved_stay(uneven: tuple[np.ndarray, np.ndarray]) -> None:
    x, centers = uneven
    np.testing.assert_allclose(merge_and_reseed(x, np.ones(len(x)), centers, 1), centers)
    points = np.repeat([[0.0], [1.0]], 3, axis=0)
    np.testing.assert_allclose(merge_and_reseed(points, np.ones(6), points[[0, 3]], 0), [[0], [1]])
