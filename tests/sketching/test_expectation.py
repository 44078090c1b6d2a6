"""Statistics of one step of expectation-maximisation, against plain arithmetic."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from dask_sketch.errors import CapacityError, ChunkError, InputError
from dask_sketch.models import Centroids, Decoding, GaussianMixture
from dask_sketch.sketching.expectation import ExpectationStep, merge_statistics

RNG = np.random.default_rng(0)
MIXTURE = GaussianMixture(
    [0.5, 0.3, 0.2], RNG.normal(size=(3, 5)) * 2.0, RNG.uniform(0.2, 3.0, (3, 5))
)
CENTROIDS = Centroids(MIXTURE.weights, MIXTURE.means)
X = MIXTURE.sample(700, seed=1) + RNG.normal(size=5) * 0.3


def plain(x, mixture, weights=None):
    """Textbook step, with the mean log-likelihood before it."""
    w = np.ones(len(x)) if weights is None else np.asarray(weights, float)
    away = (x[:, None, :] - mixture.means) ** 2 / mixture.covariances
    logarithms = -0.5 * (away + np.log(2 * np.pi * mixture.covariances)).sum(axis=2)
    logarithms += np.log(mixture.weights)
    density = logsumexp(logarithms, axis=1)
    r = np.exp(logarithms - density[:, None]) * w[:, None]
    counts = r.sum(axis=0)
    means = r.T @ x / counts[:, None]
    variances = np.array([r[:, k] @ (x - means[k]) ** 2 / counts[k] for k in range(len(means))])
    return counts / counts.sum(), means, variances, np.average(density, weights=w)


def close(step, statistics, x, weights=None, rtol=1e-9):
    share, means, variances, likelihood = plain(np.asarray(x, float), step.model, weights)
    found = step.maximize(statistics)
    np.testing.assert_allclose(found.weights, share, rtol=rtol)
    np.testing.assert_allclose(found.means, means, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(found.covariances, variances, rtol=rtol)
    assert step.objective(statistics) == pytest.approx(likelihood, rel=rtol)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
def test_a_step_is_that_of_the_textbook(dtype):
    x = X.astype(dtype)
    step = ExpectationStep(MIXTURE)
    close(step, step.statistics(x), x)


def test_weights():
    step = ExpectationStep(MIXTURE)
    w = np.exp(RNG.uniform(-15.0, 15.0, len(X)))
    w[::7] = 0.0
    found = step.statistics(X, w)
    assert (found.count, found.omitted) == (len(X), 0)
    close(step, found, X, w, rtol=1e-8)
    # a weight of one is no weight, and one factor changes nothing
    assert step.statistics(X, np.ones(len(X))) == step.statistics(X)
    again, other = step.statistics(X, 16.0 * w), step.maximize(found)
    np.testing.assert_array_equal(step.maximize(again).means, other.means)


def test_weights_are_repeated_rows():
    step = ExpectationStep(MIXTURE)
    w = RNG.integers(0, 5, len(X))
    weighted = step.maximize(step.statistics(X, w))
    repeated = step.maximize(step.statistics(np.repeat(X, w, axis=0)))
    np.testing.assert_allclose(weighted.means, repeated.means, rtol=1e-8)
    np.testing.assert_allclose(weighted.covariances, repeated.covariances, rtol=1e-8)


@settings(max_examples=20, deadline=None)
@given(
    cuts=st.lists(st.integers(0, len(X)), max_size=4),
    seed=st.integers(0, 100),
    hard=st.booleans(),
    weighted=st.booleans(),
)
def test_the_bits_depend_on_no_chunking_and_no_order(cuts, seed, hard, weighted):
    step = ExpectationStep(CENTROIDS if hard else MIXTURE)
    rng = np.random.default_rng(seed)
    far = np.concatenate([X, 1e4 * rng.normal(size=(5, 5)), 1e5 * rng.normal(size=(2, 5))])
    w = np.exp2(rng.integers(-9, 9, len(far))) if weighted else np.ones(len(far))
    whole = step.statistics(far, w if weighted else None)
    order = rng.permutation(len(far))
    edges = [0, *sorted(cuts), len(far)]
    parts = [
        step.statistics(far[order[a:b]], w[order[a:b]] if weighted else None)
        for a, b in itertools.pairwise(edges)
    ]
    assert merge_statistics(parts) == whole


def test_more_rows_than_a_slab():
    x = np.tile(X, (60, 1))
    step = ExpectationStep(MIXTURE)
    close(step, step.statistics(x), x)


def test_far_rows_and_far_components():
    x = np.concatenate([X, X[:9] * 3e3, X[:2] * 1e5])
    step = ExpectationStep(MIXTURE)
    close(step, step.statistics(x), x, rtol=1e-8)
    means = np.array([[0.0, 0.0], [1e6, 0.0], [-1e6, 1e6]])
    apart = GaussianMixture([0.9, 0.05, 0.05], means, [[1.0, 1e-6], [1e-4, 1.0], [4.0, 9.0]])
    x = apart.sample(500) + np.array([0.1, -0.0003])
    step = ExpectationStep(apart)
    close(step, step.statistics(x), x, rtol=1e-7)


def test_rows_beyond_the_limit():
    step = ExpectationStep(MIXTURE)
    x = X.copy()
    x[3, 2] = 1e13
    with pytest.raises(ChunkError, match=r"part 7: row 3 .*1.68e\+07"):
        step.statistics(x, label="part 7")
    with pytest.raises(ChunkError, match="row 3 .* units"):
        ExpectationStep(CENTROIDS).statistics(x)
    x[3, 2] = 1e300
    with pytest.raises(ChunkError, match="row 3 "):
        step.statistics(x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_that_are_not_finite(bad, weighted):
    step = ExpectationStep(MIXTURE)
    x, w = X.copy(), np.ones(len(X)) if weighted else None
    x[[5, 50], [1, 4]] = bad
    with pytest.raises(ChunkError, match=f"row 5 of this chunk has {bad} in feature 1") as error:
        step.statistics(x, w)
    assert error.value.parameter == "nan_policy"
    found = step.statistics(x, w, nan_policy="omit")
    assert (found.count, found.omitted) == (len(X) - 2, 2)
    rest = step.statistics(np.delete(x, [5, 50], axis=0))
    assert found.sums == rest.sums


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, 2.0**33, 2.0**-33])
def test_bad_weights(bad):
    w = np.ones(len(X))
    w[4] = bad
    with pytest.raises(ChunkError, match=r"row 4 has weight="):
        ExpectationStep(MIXTURE).statistics(X, w)


def test_bad_input():
    step = ExpectationStep(MIXTURE)
    for arguments, message in (
        ((X[:, :3],), r"shape=\(700, 3\)"),
        ((X.astype(str),), "dtype=<U"),
        ((X, np.ones(3)), "size=3"),
        ((X, np.array(["a"] * len(X))), "dtype=<U1"),
        ((np.ma.masked_less(X, 0.0),), "masked"),
    ):
        with pytest.raises(InputError, match=message):
            step.statistics(*arguments)
    narrow = GaussianMixture([0.5, 0.5], [[0.0], [1e10]], [[1e-290], [1.0]])
    with pytest.raises(InputError, match="variance_floor"):
        ExpectationStep(narrow)
    with pytest.raises(InputError, match="same model"):
        step.maximize(ExpectationStep(CENTROIDS).statistics(X))
    with pytest.raises(InputError, match="total count of 0"):
        step.maximize(step.statistics(X[:0]))


def test_sums_have_room():
    step = ExpectationStep(MIXTURE)
    part = step.statistics(X, np.full(len(X), 2.0**32))
    for _ in range(4):
        part = merge_statistics([part, part])
    w = np.full(10, 2.0**32)
    far = np.full((10, 5), 1e6)
    with pytest.raises(CapacityError, match="smaller factor"):
        merge_statistics([part] * 1000)
    with pytest.raises(ChunkError, match="far: .*smaller factor"):
        step.statistics(far, w, label="far")


def test_components_without_samples_keep_their_parameters():
    far = GaussianMixture([0.5, 0.5], [[0.0], [1e6]], [[1.0], [4.0]])
    step = ExpectationStep(far)
    found = step.maximize(step.statistics(np.array([[-1.0], [1.0]])))
    np.testing.assert_allclose(found.weights, [1.0, 0.0])
    np.testing.assert_array_equal(found.means[1], far.means[1])
    np.testing.assert_array_equal(found.covariances[1], far.covariances[1])
    # a weight of zero stays zero
    again = ExpectationStep(found)
    assert again.maximize(again.statistics(X[:, :1])).weights[1] == 0.0
    assert step.maximize(step.statistics(np.full((9, 1), 0.5))).covariances[0] > 0


def test_the_bound_is_below_the_gain():
    step = ExpectationStep(MIXTURE)
    statistics = step.statistics(X)
    better = step.maximize(statistics)
    gain = better.score(X) - MIXTURE.score(X)
    assert 0.0 < step.gain(statistics, better) <= gain
    # with well separated components nothing is left to bound
    apart = GaussianMixture([0.5, 0.5], [[-50.0], [50.0]], [[4.0], [4.0]])
    step, x = ExpectationStep(apart), apart.sample(100)
    better = step.maximize(step.statistics(x))
    assert step.gain(step.statistics(x), better) == pytest.approx(better.score(x) - apart.score(x))


def test_centroids():
    step = ExpectationStep(CENTROIDS)
    statistics = step.statistics(X)
    assert step.objective(statistics) == pytest.approx(CENTROIDS.inertia(X), rel=1e-10)
    nearest = CENTROIDS.predict(X)
    found = step.maximize(statistics)
    expected = [X[nearest == k].mean(axis=0) for k in range(3)]
    np.testing.assert_allclose(found.centers, expected, rtol=1e-9)
    np.testing.assert_allclose(found.weights, np.bincount(nearest) / len(X))
    distances = ((X - found.centers[nearest]) ** 2).sum(axis=1).mean()
    bound = step.objective(statistics) + step.gain(statistics, found)
    assert bound == pytest.approx(distances, rel=1e-9)


@pytest.mark.parametrize("model", ["isotropic", "known"])
def test_shapes_of_covariances_stay(model):
    record = Decoding("cl-ompr", model, 0.0, 0.0, (), 0.0, 0, 1, 1, True, "")
    variances = np.broadcast_to([[1.0]], (3, 5))
    start = GaussianMixture(MIXTURE.weights, MIXTURE.means, variances, record)
    step = ExpectationStep(start)
    statistics = step.statistics(X)
    found = step.maximize(statistics, np.array([[1e-3] * 4 + [2e-3]]))
    free = plain(X, start)
    np.testing.assert_allclose(found.means, free[1], rtol=1e-9)
    expected = variances if model == "known" else free[2].mean(axis=1)[:, None] + 0.0 * variances
    np.testing.assert_allclose(found.covariances, expected, rtol=1e-9)
    assert found.score(X) >= start.score(X)


FULL = GaussianMixture(
    [0.4, 0.6],
    [[0.0, 1.0, 0.0], [2.0, -1.0, 0.5]],
    np.array([np.eye(3) + 0.5, 2.0 * np.eye(3) - 0.4]),
    covariance_type="full",
)
TIED = GaussianMixture(FULL.weights, FULL.means, FULL.covariances[0], covariance_type="tied")
TURNED = RNG.normal(size=(900, 3)) @ np.array([[1.0, 0.7, 0.0], [0.0, 1.0, -0.4], [0.0, 0.0, 1.5]])


@pytest.mark.parametrize("mixture", [FULL, TIED], ids=["full", "tied"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_step_with_covariance_matrices_is_that_of_the_textbook(mixture, weighted):
    step = ExpectationStep(mixture)
    w = np.exp(RNG.uniform(-3.0, 3.0, len(TURNED))) if weighted else np.ones(len(TURNED))
    parts = [step.statistics(TURNED[part], w[part]) for part in (slice(100), slice(100, None))]
    statistics = merge_statistics(parts)
    assert statistics == step.statistics(TURNED, w)
    r = mixture.predict_proba(TURNED) * w[:, None]
    counts, means = r.sum(axis=0), r.T @ TURNED / r.sum(axis=0)[:, None]
    away = TURNED[:, None] - means
    matrices = np.einsum("nk,nki,nkj->kij", r, away, away) / counts[:, None, None]
    if mixture is TIED:
        matrices = np.einsum("k,kij->ij", counts / counts.sum(), matrices)
    better = step.maximize(statistics)
    np.testing.assert_allclose(better.weights, counts / counts.sum(), rtol=1e-8)
    np.testing.assert_allclose(better.means, means, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(better.covariances, matrices, rtol=1e-7, atol=1e-8)
    assert better.covariance_type == mixture.covariance_type
    before, after = (each.score(TURNED, w) for each in (mixture, better))
    assert step.objective(statistics) == pytest.approx(before)
    assert 0.0 < step.gain(statistics, better) <= after - before + 1e-9


def test_eigenvalues_stay_above_the_floor():
    flat = TURNED.copy()
    flat[:, 2] = flat[:, 0] + flat[:, 1]
    step = ExpectationStep(FULL)
    better = step.maximize(step.statistics(flat), 0.01)
    assert np.linalg.eigvalsh(better.covariances).min() == pytest.approx(0.01, rel=1e-6)


def test_far_rows_of_covariance_matrices():
    far = GaussianMixture(
        [1.0], np.zeros((1, 2)), [[[1.0, 0.9], [0.9, 1.0]]], covariance_type="full"
    )
    step = ExpectationStep(far)
    x = np.array([[0.0, 0.0], [4e3, -4e3], [1.0, 2.0]])
    better = step.maximize(step.statistics(x))
    np.testing.assert_allclose(better.means, [x.mean(axis=0)])
    np.testing.assert_allclose(better.covariances, [np.cov(x.T, bias=True)], rtol=1e-6)
    with pytest.raises(ChunkError, match="row 1 of this chunk is"):
        step.statistics(np.array([[0.0, 0.0], [1e9, 0.0]]))


def test_components_with_matrices_keep_them_without_samples():
    lost = GaussianMixture(
        [0.5, 0.5], [[0.0, 0.0], [1e3, 0.0]], [np.eye(2), np.eye(2) + 0.5], covariance_type="full"
    )
    step = ExpectationStep(lost)
    better = step.maximize(step.statistics(TURNED[:, :2]))
    np.testing.assert_array_equal(better.covariances[1], lost.covariances[1])
    assert better.weights.tolist() == [1.0, 0.0]


def test_statistics_pickle_and_compare():
    step = ExpectationStep(MIXTURE)
    found = step.statistics(X)
    assert pickle.loads(pickle.dumps(found)) == found
    assert pickle.loads(pickle.dumps(step)).statistics(X) == found
    assert found != step.statistics(X[1:])
    assert found != 3
