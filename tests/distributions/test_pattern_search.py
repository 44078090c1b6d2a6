"""Active search: the closed forms against sampling, and the posterior against scikit-learn."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from dask_sketch.distributions import PatternSearch, ProbitRegions, SampledRegions
from dask_sketch.errors import InputError

POINTS = np.stack(np.meshgrid(np.arange(5.0), np.arange(4.0)), axis=-1).reshape(-1, 2)
KERNEL = ConstantKernel(2.0) * RBF(1.5)
MEMBERS = np.array([POINTS[:, 0] < 2, POINTS[:, 0] > 2, POINTS[:, 1] < 2])
REGIONS = ProbitRegions.of_means(MEMBERS, level=0.5, sharpness=3.0)
SEEN, VALUES = np.array([3, 8, 14, 3]), np.array([0.4, 1.2, -0.3, 0.6])


def searching(regions=REGIONS, **settings):
    return PatternSearch(POINTS, KERNEL, regions, noise_variance=0.1, **settings)


def observed(search):
    for position, value in zip(SEEN, VALUES, strict=True):
        search.observe(position, value)
    return search


def linear(fields):
    return ndtr(fields @ REGIONS.weights.T + REGIONS.offsets)


@pytest.mark.parametrize("kernel", [KERNEL, Matern(2.0)])
def test_posterior_is_that_of_scikit_learn(kernel):
    search = observed(PatternSearch(POINTS, kernel, REGIONS, noise_variance=0.1, mean=0.2))
    theirs = GaussianProcessRegressor(kernel, alpha=0.1, optimizer=None)
    theirs.fit(POINTS[SEEN], VALUES - 0.2)
    mean, covariance = theirs.predict(POINTS, return_cov=True)
    np.testing.assert_allclose(search.mean, 0.2 + mean, atol=1e-10)
    np.testing.assert_allclose(search.covariance, covariance, atol=1e-10)


def test_probabilities_are_means_over_fields():
    search = observed(searching())
    rng = np.random.default_rng(0)
    fields = rng.multivariate_normal(search.mean, search.covariance, 40_000, method="eigh")
    np.testing.assert_allclose(search.probabilities, linear(fields).mean(axis=0), atol=0.01)
    sampled = observed(searching(SampledRegions(linear, 3, n_fields=20_000)))
    np.testing.assert_allclose(sampled.probabilities, search.probabilities, atol=0.01)


@pytest.mark.slow
def test_rewards_are_probabilities_to_pass_the_threshold():
    search, candidate, rng = observed(searching()), 11, np.random.default_rng(1)
    variance = search.covariance[candidate, candidate] + 0.1
    passed = []
    for value in rng.normal(search.mean[candidate], np.sqrt(variance), 800):
        then = observed(searching())
        then.observe(candidate, value)
        passed.append(then.probabilities > 0.7)
    rewards = REGIONS.rewards(search.mean, search.covariance, np.array([candidate]), 0.1, 0.7)
    np.testing.assert_allclose(rewards[:, 0], np.mean(passed, axis=0), atol=0.05)
    assert 0.05 < rewards.max() < 0.95


def test_rewards_of_independent_regions():
    # section 7.3.2: u = Phi(Phi^-1(theta) (R - sqrt(1 - rho^2)) / rho)
    search, threshold = observed(searching()), 0.7
    candidates = np.arange(20)
    linked = REGIONS.weights @ search.covariance
    variance = np.einsum("gn,gn->g", linked, REGIONS.weights)
    change = linked**2 / (np.diag(search.covariance) + 0.1)
    rho = np.sqrt(change / (1 + variance[:, None]))
    ratio = (ndtri(search.probabilities) / ndtri(threshold))[:, None]
    expected = ndtr(ndtri(threshold) * (ratio - np.sqrt(1 - rho**2)) / rho)
    found = REGIONS.rewards(search.mean, search.covariance, candidates, 0.1, threshold)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    left = ~search.found
    np.testing.assert_allclose(search.expected_rewards(), expected[left].sum(axis=0), atol=1e-9)
    assert search.next_point() == np.argmax(expected[left].sum(axis=0))


def test_sampled_rewards_agree_with_closed_forms():
    search = observed(searching())
    sampled = SampledRegions(linear, 3, n_fields=4000, n_values=40)
    arguments = search.mean, search.covariance, np.array([0, 11]), 0.1, 0.7
    np.testing.assert_allclose(sampled.rewards(*arguments), REGIONS.rewards(*arguments), atol=0.06)


def test_small_regions_of_many_points():
    points = np.arange(60.0)[:, None]
    members = np.abs(points[:, 0] - np.array([[10.0], [40.0]])) < 3
    regions = ProbitRegions.of_means(members, level=0.3)
    covariance = RBF(4.0)(points)
    mean = np.sin(points[:, 0])
    linked = regions.weights @ covariance @ regions.weights.T
    ratio = (regions.weights @ mean + regions.offsets) / np.sqrt(1 + np.diag(linked))
    np.testing.assert_allclose(regions.probabilities(mean, covariance), ndtr(ratio))


def test_observations_without_effect():
    # a region far from a candidate stays as it is
    points = np.array([[0.0], [1.0], [1000.0]])
    regions = ProbitRegions.of_means([[True, True, False]], level=-1.0)
    search = PatternSearch(points, RBF(1.0), regions, noise_variance=0.0, threshold=0.95)
    rewards = regions.rewards(search.mean, search.covariance, np.array([2]), 0.0, 0.95)
    assert rewards.tolist() == [[float(search.probabilities[0] > 0.95)]]
    search.observe(2, 5.0)
    before = search.mean.copy()
    search.observe(2, 5.0)  # known without noise
    np.testing.assert_array_equal(search.mean, before)


def test_found_regions_stay_found_and_are_left_out():
    search = searching(threshold=0.6)
    for position in np.flatnonzero(MEMBERS[0]):
        search.observe(position, 5.0)
    assert search.found[0]
    for position in np.flatnonzero(MEMBERS[0]):
        search.observe(position, -5.0)
    assert search.found[0]
    assert search.probabilities[0] < 0.6
    search.found[:] = True
    assert not search.expected_rewards().any()
    variances = np.diag(search.covariance)
    assert variances[search.next_point()] == variances.max()
    assert search.next_point([2, 7]) in (2, 7)


def test_the_search_finds_more_than_random_points():
    def found(seed, active):
        rng = np.random.default_rng(seed)
        field = rng.multivariate_normal(np.zeros(20), KERNEL(POINTS), method="eigh")
        search = searching()
        for _ in range(6):
            position = search.next_point() if active else int(rng.integers(20))
            search.observe(position, field[position] + np.sqrt(0.1) * rng.normal())
        return search.found.sum()

    counts = [[found(seed, active) for seed in range(60)] for active in (True, False)]
    assert np.mean(counts[0]) > np.mean(counts[1])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: PatternSearch([1.0], KERNEL, REGIONS, noise_variance=0.1), "points"),
        (lambda: PatternSearch([[1.0]], KERNEL, REGIONS, noise_variance=0.1), "20 points"),
        (lambda: PatternSearch(POINTS, KERNEL, REGIONS, noise_variance=-1), "noise_variance=-1"),
        (lambda: searching(threshold=1.0), "threshold=1.0"),
        (lambda: PatternSearch(POINTS, len, REGIONS, noise_variance=0.1), "kernel"),
        (lambda: PatternSearch(POINTS, None, REGIONS, noise_variance=0.1), "kernel=None"),
        (lambda: searching().observe(20, 1.0), "position=20"),
        (lambda: searching().observe(0, np.nan), "value=nan"),
        (lambda: searching().next_point([0.5]), "candidates"),
        (lambda: searching().next_point([0, 30]), "candidates=30"),
        (lambda: ProbitRegions(np.ones((2, 3)), np.ones(3)), "offsets"),
        (lambda: ProbitRegions.of_means([[False, False]], 1.0), "members"),
        (lambda: SampledRegions(linear, 3, n_fields=0), "n_fields=0"),
        (lambda: searching(SampledRegions(linear, 2)), "classify"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(InputError, match=match):
        call()


def test_too_many_points(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("", (), {"available": 99}))
    with pytest.raises(InputError, match="20 rows"):
        searching()


def test_observations_that_contradict_each_other_need_noise():
    search = PatternSearch(POINTS, KERNEL, REGIONS, noise_variance=0.0)
    search.observe(3, 1.0)
    search.observe(3, 1.0)
    with pytest.raises(InputError, match=r"value=2 at position 3.* 1: give a noise_variance"):
        search.observe(3, 2.0)
    assert search.mean[3] == pytest.approx(1.0)
