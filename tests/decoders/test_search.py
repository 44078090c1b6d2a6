"""Searches for atoms through decode: coarse to fine, merging, order, and counts of reports."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from dask_sketch import FeatureMap, GaussianMixture, decode, partial_sketch
from dask_sketch.decoders.greedy import cl_omp, cl_ompr, hierarchical_splitting
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.search import acceptable_cost, converge_nearby, warm_start
from dask_sketch.decoders.starts import Start
from dask_sketch.models import random_mixture, symmetric_kl

SCALES = np.array([1.0, 4.0, 16.0, 64.0])
N_ROWS = 10_000


@pytest.fixture(scope="module")
def long_truth():
    return random_mixture(6, 3, seed=4)


@pytest.fixture(scope="module")
def long_sketch(long_truth):
    """More frequencies than six components need, so that searches run on 2000 of them."""
    return partial_sketch(long_truth.sample(50_000, seed=0), FeatureMap(3, 2600, scale=1.0, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "algorithm", "n_iterations"),
    [("splitting", hierarchical_splitting, 3), ("cl-ompr", cl_ompr, 12), ("cl-omp", cl_omp, 6)],
)
def test_part_of_the_frequencies_leads_to_the_same_model(
    long_sketch, method, algorithm, n_iterations
):
    seen = []
    mixture = decode(
        long_sketch, 6, method=method, progress=lambda done, total, cost: seen.append((done, total))
    )
    objective = Objective(long_sketch)
    fit = algorithm(objective, 6, np.random.default_rng((0, 0)), lambda cost: None)
    components = objective.space.to_data_units(fit.theta)
    plain = GaussianMixture(fit.weights / fit.weights.sum(), *components)
    assert mixture.decoding.cost == pytest.approx(fit.cost, rel=1e-3)
    assert symmetric_kl(plain, mixture, n_samples=20_000) < 1e-3
    assert len(mixture.decoding.trace) == n_iterations + 1
    assert seen[-1][0] == seen[-1][1] == len(seen) == n_iterations + 1
    assert mixture.decoding.converged


def test_a_start_is_converged_with_all_frequencies(long_sketch, long_truth):
    mixture = decode(long_sketch, start=long_truth)
    assert len(mixture.decoding.trace) == 2
    assert mixture.decoding.cost < mixture.decoding.noise_level


def test_coincident_components_are_merged_when_asked():
    x = np.random.default_rng(0).normal(size=(50_000, 2))
    sketch = partial_sketch(x, FeatureMap(2, 100, scale=1.0, seed=1, dtype="float64"))
    twice = GaussianMixture([0.5, 0.5], [[0.0, 0.1], [0.1, 0.0]], np.ones((2, 2)))
    assert decode(sketch, 2, start=twice).n_components == 2
    merged = decode(sketch, 2, start=twice, merge=True)
    assert merged.n_components == 1
    np.testing.assert_allclose(merged.mean, 0.0, atol=0.02)


def test_components_without_width_are_warned_of():
    x = np.repeat([[0.0, 0.0], [5.0, 5.0]], 500, axis=0)  # two points: the best width is none
    sketch = partial_sketch(x, FeatureMap(2, 60, scale=1.0))
    with pytest.warns(UserWarning, match=r"2 of 2 components .* variance_floor") as caught:
        decode(sketch, 2, variance_floor=1e-15)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="noise levels"):  # the floor is too wide for points
        decode(sketch, 2, method="cl-ompr")


def test_the_expected_time_of_a_long_search_is_logged_before_it_begins(caplog):
    class Refusing:
        def submit(self, *args):
            raise RuntimeError("nothing runs")

    x = np.random.default_rng(0).normal(size=(20_000, 64))
    for n_components, n_frequencies, refine, logged in (
        (10, 3000, None, 0),
        (10, 20_000, None, 0),  # most of the search takes a part of the frequencies
        (20, 20_000, None, 1),
        (10, 20_000, "efficient", 1),
    ):
        found = partial_sketch(
            x, FeatureMap(64, n_frequencies, scale=1.0, distribution="sparse-sums")
        )
        caplog.clear()
        with pytest.raises(RuntimeError, match="nothing"):
            decode(found, n_components, "cl-ompr", refine=refine, executor=Refusing())
        said = [one.message for one in caplog.records if one.name == "dask_sketch.decoders.decode"]
        assert len(said) == logged
        assert all(f"{n_frequencies} frequencies" in text for text in said)
        assert all(f"n_components={n_components}" in text for text in said)


@pytest.fixture
def objective(sketch):
    return Objective(sketch)


def started(objective, weights, theta, n_components=None, **options):
    start = Start(weights, *objective.space.to_data_units(theta))
    rng = np.random.default_rng(0)
    return warm_start(objective, start, n_components, rng, lambda cost: None, **options)


@pytest.fixture
def true_theta(objective, truth):
    return objective.space.from_data_units(truth.means, truth.covariances)


def assert_matches(fit, true_theta):
    order = [int(np.abs(fit.theta - row).sum(axis=1).argmin()) for row in true_theta]
    assert sorted(order) == list(range(len(true_theta)))
    np.testing.assert_allclose(fit.theta[order], true_theta, atol=0.1)


def test_the_same_model_stays(objective, true_theta, truth):
    fit = started(objective, truth.weights, true_theta)
    again = started(objective, fit.weights, fit.theta)
    assert again.cost == pytest.approx(fit.cost, rel=1e-4)
    np.testing.assert_allclose(again.theta, fit.theta, atol=1e-3)


@pytest.mark.parametrize("known", [1, 2])
def test_missing_components_are_added(objective, true_theta, truth, known):
    assert_matches(started(objective, truth.weights[:known], true_theta[:known], 3), true_theta)


def test_superfluous_components_are_removed(objective, true_theta):
    theta = np.vstack([true_theta, true_theta[:2] + 0.05])
    assert_matches(started(objective, np.full(5, 0.2), theta, 3), true_theta)


def test_components_that_no_longer_fit_are_replaced(objective, true_theta):
    theta = np.vstack([true_theta[:2], [[30.0, 30.0, 1.0, 1.0]]])
    weights = np.full(3, 1 / 3)
    fit = started(objective, weights, theta)
    assert fit.cost < objective.noise_level
    assert_matches(fit, true_theta)
    kept = started(objective, weights, theta, excess=np.inf)
    assert kept.cost > objective.noise_level


def test_other_components_are_searched_for_if_there_is_a_reason(sketch):
    model = decode(sketch, 3)
    start = Start(model.weights, model.means, model.covariances, model.decoding)
    noise = model.decoding.noise_level
    excess, searched = acceptable_cost(start, None, 0.95 * noise)
    assert 0.0 < excess < noise
    assert searched == noise
    assert acceptable_cost(start, 3, 0.95 * noise) == (excess, searched)
    never = (-np.inf, None)
    assert acceptable_cost(start, 4, 0.95 * noise) == never  # another number of components
    assert acceptable_cost(start, None, 0.8 * noise) == never  # a sketch that has grown
    assert acceptable_cost(replace(start, decoding=None), None, noise) == never
    assert acceptable_cost(None, 3, noise) == never
    # the last search counts, not the last model
    earlier = replace(model.decoding, searched=1.3 * noise)
    assert acceptable_cost(replace(start, decoding=earlier), None, noise) == never


def test_near_components_take_few_steps(objective, true_theta, truth):
    full = started(objective, truth.weights, true_theta)
    near = Start(truth.weights, *objective.space.to_data_units(true_theta + 0.01))
    before = objective.n_evaluations
    found = converge_nearby(objective, near, None, np.inf)
    assert objective.n_evaluations - before < 10
    assert found.cost < full.cost + 0.01 * objective.unit
    far = Start(truth.weights, *objective.space.to_data_units(true_theta + 3.0))
    assert converge_nearby(objective, far, None, np.inf) is None
    for n_components, excess in ((2, np.inf), (None, -np.inf)):
        assert converge_nearby(objective, near, n_components, excess) is None


def feature_map(d, n_frequencies, seed=0):
    return FeatureMap(
        d, n_frequencies, covariances=np.outer(SCALES**2, np.ones(d)), seed=seed,
        covariance_weights=[0.4, 0.2, 0.2, 0.2], distribution="sparse-radius",
    )  # fmt: skip


def clusters(centers, weights, seed):
    return GaussianMixture(weights, centers, np.ones_like(centers)).sample(N_ROWS, seed=seed)


@pytest.fixture(scope="module")
def rare():
    """Four clusters in the plane, two of them of fifty rows, at least 100 apart."""
    centers = np.array([[0.0, 0.0], [120.0, 30.0], [-40.0, 200.0], [150.0, -90.0]])
    weights = np.array([0.495, 0.495, 0.005, 0.005])
    return GaussianMixture(weights, centers, np.ones_like(centers))


def test_rare_clusters_are_found_and_refined(rare):
    x, other = rare.sample(N_ROWS, seed=1), rare.sample(N_ROWS, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = decode(partial_sketch(x, feature_map(2, 100)), 4)
    assert found.score(other) > rare.score(other) - 0.005
    np.testing.assert_allclose(np.sort(found.weights), np.sort(rare.weights), atol=0.015)
    record = found.decoding
    assert abs(record.overidentification - record.freedom) < 0.5 * record.freedom


@pytest.mark.slow
def test_standard_errors_are_those_of_the_refined_fit(rare):
    sketch = partial_sketch(rare.sample(N_ROWS, seed=1), feature_map(2, 100))
    plain, asked = decode(sketch, 4), decode(sketch, 4, refine="efficient")
    np.testing.assert_allclose(asked.means, plain.means, atol=1e-6)
    assert plain.stderr is None
    nearest = np.linalg.norm(asked.means[:, None] - rare.means, axis=2).argmin(axis=1)
    errors = np.abs(asked.means - rare.means[nearest]) / asked.stderr.means
    assert errors.max() < 4.0


@pytest.mark.filterwarnings("default:feature 0 has values")
@pytest.mark.slow
def test_fewer_components_than_clusters_are_warned_of(rare):
    sketch = partial_sketch(rare.sample(N_ROWS, seed=1), feature_map(2, 100))
    with pytest.warns(UserWarning, match=r"statistic of [\d,]+|noise levels"):
        decode(sketch, 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("default:the mixture leaves an overidentification")
@pytest.mark.parametrize("seed", [5, 6])
def test_components_far_narrower_than_the_scale_of_a_map_without_data(seed):
    rng = np.random.default_rng(seed)
    centers = 30.0 * rng.normal(size=(4, 3))
    x = centers[rng.integers(0, 4, 6000)] + rng.normal(size=(6000, 3))
    found = decode(partial_sketch(x, FeatureMap(3, 200, scale=10.0, seed=seed)), 4)
    truth = GaussianMixture(np.full(4, 0.25), centers, np.ones((4, 3)))
    assert found.score(x) > truth.score(x) - 0.01
    with pytest.warns(UserWarning, match=r"(feature \d has values|a cost of)"):
        decode(partial_sketch(x, FeatureMap(3, 200, scale=0.2, seed=seed)), 4)
